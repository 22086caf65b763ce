"""Compare a model with another runtime through files; here the other one is ONNX's own reference implementation.

graphopt verify model.onnx --against 'python examples/against_reference.py {model} {inputs} {outputs}'

The inputs come in one .npz, by name; the outputs go to another, by name. To compare with TensorRT, PyTorch or a device
of your own, keep the first and the last line of `run` and put your runtime between them.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

import graphopt

MODEL = Path(__file__).parents[1] / "models" / "resnet.onnx"


def run(model: str, inputs: str, outputs: str) -> None:
    """Read the inputs, run the model, write the outputs: what graphopt calls."""
    feeds = dict(np.load(inputs))
    runtime = ReferenceEvaluator(model)
    results = runtime.run(None, feeds)
    np.savez(outputs, **dict(zip(runtime.output_names, results, strict=True)))


def main() -> None:
    """The same from Python: this file is the command."""
    command = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)} {{model}} {{inputs}} {{outputs}}"
    result = graphopt.verify(MODEL, against=command, runs=1)
    print(f"{result.verdict}: {result.reason}")


if __name__ == "__main__":
    run(*sys.argv[1:]) if len(sys.argv) > 1 else main()
