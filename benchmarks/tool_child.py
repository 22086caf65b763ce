"""One optimization by one tool in this process: load, optimize, save; prints one JSON line.

    PYTHON benchmarks/tool_child.py TOOL IN OUT

Runs in the tool's own environment, so it needs the standard library and that tool only. Importing is done before the
clock starts, the modules that a tool imports late included.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[str, str], None]


def graphopt(level: str) -> Run:
    """Prepare graphopt at one level, without its verification: the others do not verify either."""
    module = importlib.import_module("graphopt")
    for late in ("passes", "onnxruntime"):
        importlib.import_module(late)

    def run(source: str, target: str) -> None:
        module.optimize(source, level=level, verify=False).save(target)

    return run


def onnxsim() -> Run:
    """Prepare onnxsim with its defaults; its own random check is off unless asked for."""
    onnx, module = importlib.import_module("onnx"), importlib.import_module("onnxsim")

    def run(source: str, target: str) -> None:
        model, _ = module.simplify(source)
        onnx.save(model, target)

    return run


def onnxslim() -> Run:
    """Prepare OnnxSlim with its defaults."""
    onnx, module = importlib.import_module("onnx"), importlib.import_module("onnxslim")
    importlib.import_module("onnxruntime")

    def run(source: str, target: str) -> None:
        onnx.save(module.slim(source), target)

    return run


def onnxoptimizer() -> Run:
    """Prepare onnxoptimizer: every fuse and eliminate pass, to its fixed point."""
    onnx, module = importlib.import_module("onnx"), importlib.import_module("onnxoptimizer")

    def run(source: str, target: str) -> None:
        passes = module.get_fuse_and_elimination_passes()
        onnx.save(module.optimize(onnx.load(source), passes, fixed_point=True), target)

    return run


def onnxscript() -> Run:
    """Prepare onnxscript's optimizer with its defaults."""
    onnx, module = importlib.import_module("onnx"), importlib.import_module("onnxscript.optimizer")

    def run(source: str, target: str) -> None:
        onnx.save(module.optimize(onnx.load(source)), target)

    return run


def onnxruntime(level: str) -> Run:
    """Prepare ONNX Runtime's own optimizer, written to a file (which binds it to that version and provider)."""
    module = importlib.import_module("onnxruntime")

    def run(source: str, target: str) -> None:
        options = module.SessionOptions()
        options.graph_optimization_level = getattr(module.GraphOptimizationLevel, level)
        options.optimized_model_filepath = target
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        module.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return run


TOOLS: dict[str, Callable[[], Run]] = {
    "graphopt": lambda: graphopt("default"),
    "graphopt-exact": lambda: graphopt("exact"),
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxoptimizer": onnxoptimizer,
    "onnxscript": onnxscript,
    "ort-basic": lambda: onnxruntime("ORT_ENABLE_BASIC"),
    "ort-extended": lambda: onnxruntime("ORT_ENABLE_EXTENDED"),
}


def anonymous_megabytes() -> float:
    """Return the anonymous memory of this process now."""
    with open("/proc/self/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields.get("RssAnon", "0 kB").split()[0]) / 1024


def installed() -> dict[str, str]:
    """Return the versions of the packages that matter here."""
    found = {"python": sys.version.split()[0]}
    for package in (
        "graphopt",
        "onnx",
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxsim",
        "onnxslim",
        "onnxoptimizer",
        "onnxscript",
    ):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Run one tool once."""
    tool, source, target = sys.argv[1:4]
    run = TOOLS[tool]()
    before = anonymous_megabytes()
    start = time.perf_counter()
    run(source, target)
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {"seconds": seconds, "imported_mb": before, "versions": installed()}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
