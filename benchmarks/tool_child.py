"""One optimization by one tool in this process: load, optimize, save; prints one JSON line.

    PYTHON benchmarks/tool_child.py TOOL IN OUT
    PYTHON benchmarks/tool_child.py TOOL --many         reads lines `[IN, OUT, seconds]`, answers each with a JSON line

Runs in the tool's own environment, so it needs the standard library and that tool only. Importing is done before the
clock starts, the modules that a tool imports late included. With `--many` it is done once: every model is optimized in
a fork of its own, so that a crash or a hang costs one answer; memory is not comparable between forks.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[str, str], None]


def graphopt(level: str, **options: Any) -> Run:
    """Prepare graphopt at one level, without its verification: the others do not verify either."""
    module = importlib.import_module("graphopt")
    for late in ("passes", "onnxruntime", "graphopt.runtime.folding"):
        importlib.import_module(late)
    importlib.import_module("graphopt.pipeline").load_registry()  # imports every pass

    def run(source: str, target: str) -> None:
        module.optimize(source, level=level, verify=False, **options).save(target)

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
    "graphopt-trust": lambda: graphopt("default", trust_dim_names=True),
    "graphopt-opset20": lambda: graphopt("default", opset=20),
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


def answer_many(tool: str, run: Run) -> None:
    """Answer lines of input, each in a fork: `{"seconds": …}` or `{"problem": …}`; the first line is the versions."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tool prints must not stand among the answers
    print(json.dumps({"tool": tool, "versions": installed()}), file=answers, flush=True)
    for line in sys.stdin:
        source, target, limit = json.loads(line)
        print(json.dumps(run_in_fork(run, source, target, limit)), file=answers, flush=True)


def run_in_fork(run: Run, source: str, target: str, limit: float) -> dict[str, Any]:
    """Run a tool in a fork of this process, for at most `limit` seconds."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        start = time.perf_counter()
        try:
            run(source, target)
            result: dict[str, Any] = {"seconds": time.perf_counter() - start}
        except BaseException as error:
            result = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
        os.write(send, json.dumps(result).encode())
        os._exit(0)
    os.close(send)
    ready, _, _ = select.select([receive], [], [], limit)
    text = os.read(receive, 1 << 16) if ready else b""
    os.close(receive)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not ready:
        return {"problem": "time limit"}
    if not text:
        return {"problem": signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "no result"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def main() -> None:
    """Run one tool, once or for many models."""
    tool, *files = sys.argv[1:]
    run = TOOLS[tool]()
    if files == ["--many"]:
        answer_many(tool, run)
        return
    source, target = files
    before = anonymous_megabytes()
    start = time.perf_counter()
    run(source, target)
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {"seconds": seconds, "imported_mb": before, "versions": installed()}
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
