"""The main job in five lines of Python."""

from __future__ import annotations

from pathlib import Path

import graphopt

MODEL = Path(__file__).parents[1] / "models" / "encoder.onnx"


def main() -> None:
    """Optimize a model, prove the result equal, save it."""
    result = graphopt.optimize(MODEL, verify=True)
    print(f"{result.report.nodes_before} -> {result.report.nodes_after} nodes: {result.verdict}")
    if result.verdict == "equal":
        result.save("encoder.opt.onnx")


if __name__ == "__main__":
    main()
