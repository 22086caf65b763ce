#!/usr/bin/env python
"""A model that fits the memory once and not twice, with weights in a sparse file: optimize, verify and bench it.

    python benchmarks/huge.py [--share 0.55] [--memory-limit 2] [--json FILE]
    python benchmarks/huge.py --provider cuda                            # a share of the device's memory
    python benchmarks/huge.py --weights 14 --memory-limit 4              # weights of 14 GB, whatever may be had
    python benchmarks/huge.py --weights 14 --memory-limit 4 --tables     # the same in tables, whose weights stay mapped

The file takes next to no room on the disk: all but the first rows of every weight are holes, which read as zeros. The
exit code is 1 if a verdict is missing or wrong, if graphopt itself came to hold the weights, or if a bench of two sides
that do not fit together did not say so.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import versions
from onnx import TensorProto, helper

import graphopt
from graphopt.runtime import device_memory

GB = 1e9
# What graphopt itself may take beside the runtime's process, whatever the model weighs.
OWN_LIMIT = 0.7 * GB


class OwnMemory:
    """The most memory of its own that this process had, files that it maps not counted, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> OwnMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith("RssAnon:"):
                    self.most = max(self.most, int(line.split()[1]) * 1024)


def build(folder: Path, weights: float, dtype: Any, side: int) -> tuple[Path, int]:
    """A chain of matrix products with something to remove between them; (path, bytes of its weights).

    The first two elements are turned by an angle in each layer, so numbers neither grow nor vanish; no two weights are
    the same, or the runtime would keep the rearranged form of one for all.
    """
    size = side * side * np.dtype(dtype).itemsize
    layers = max(2, round(weights / size))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    with open(folder / "huge.data", "wb") as file:
        file.truncate(layers * size)
        for layer in range(layers):
            rows = (0.01 * rng.standard_normal((2, side))).astype(dtype)
            angle = rng.uniform(0, 2 * np.pi)
            rows[:, :2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
            file.seek(layer * size)
            file.write(rows.tobytes())
            tensor = TensorProto(name=f"w{layer}", data_type=kind, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "huge.data"), ("offset", layer * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"m{layer}"]))
            nodes.append(helper.make_node("Transpose", [f"m{layer}"], [f"t{layer}"], perm=[1, 0]))
            nodes.append(helper.make_node("Transpose", [f"t{layer}"], [f"x{layer + 1}"], perm=[1, 0]))
    ends = [helper.make_tensor_value_info(name, kind, ["rows", side]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "huge", ends[:1], ends[1:], tensors)
    path = folder / "huge.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, layers * size


def build_tables(folder: Path, weights: float, width: int = 256) -> tuple[Path, int]:
    """Embedding tables of 1 GB, whose rows are added up; (path, bytes of its weights).

    The runtime rearranges no table, so it never holds more of them than what is read.
    """
    count = max(2, round(weights / GB))
    rows = round(weights / count / (4 * width))
    size = rows * width * 4
    rng = np.random.default_rng(0)
    nodes, tensors, total = [], [], "first"
    with open(folder / "huge.data", "wb") as file:
        file.truncate(count * size)
        for table in range(count):
            file.seek(table * size)
            file.write(rng.standard_normal((4096, width)).astype(np.float32).tobytes())
            tensor = TensorProto(name=f"w{table}", data_type=TensorProto.FLOAT, dims=[rows, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "huge.data"), ("offset", table * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            nodes.append(helper.make_node("Gather", [f"w{table}", "ids"], [f"g{table}"]))
            nodes.append(helper.make_node("Transpose", [f"g{table}"], [f"t{table}"], perm=[1, 0]))
            nodes.append(helper.make_node("Transpose", [f"t{table}"], [f"x{table}"], perm=[1, 0]))
            if table:
                nodes.append(helper.make_node("Add", [total, f"x{table}"], [f"s{table}"]))
            total = f"s{table}" if table else f"x{table}"
    nodes[-1].output[0] = "sum"
    ends = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows"]),
        helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["rows", width]),
    ]
    graph = helper.make_graph(nodes, "tables", ends[:1], ends[1:], tensors)
    path = folder / "huge.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, count * size


def read_once(path: Path) -> None:
    """Bring a file into the system's cache from many places at once: holes are filled page by page, which is slow."""
    size, workers = path.stat().st_size, os.cpu_count() or 1
    part = -(-size // workers)

    def read(start: int) -> None:
        buffer = bytearray(16 << 20)
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            while file.tell() < min(start + part, size) and file.readinto(buffer):
                pass

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(read, range(0, size, part)))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What some work gives, and the seconds it took."""
    started = time.perf_counter()
    return work(), round(time.perf_counter() - started, 2)


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The row of the file, and what is wrong with it."""
    cuda = arguments.provider == "cuda"
    available = device_memory.free_device_bytes() if cuda else arguments.memory_limit * GB
    if available is None:
        raise SystemExit("no NVIDIA device tells how much memory it has; leave --provider cuda out")
    wanted = arguments.weights * GB if arguments.weights else arguments.share * available
    if arguments.tables:
        path, weights = build_tables(folder, wanted)
    else:
        path, weights = build(folder, wanted, np.float16 if cuda else np.float32, arguments.side)
    _, read_seconds = timed(lambda: None if arguments.tables else read_once(folder / "huge.data"))
    mapped = arguments.tables and not cuda
    fits_once, fits_twice = mapped or weights < available, mapped or 2 * weights < available
    limit = None if cuda else int(available)
    target = folder / "huge.opt.onnx"
    common: dict[str, Any] = {"provider": arguments.provider, "dims": {"rows": 1}, "memory_limit": limit}
    with OwnMemory() as own:

        def rewrite() -> Any:
            result = graphopt.optimize(path, measure=False)
            graphopt.save(result.graph, target, external_data="reference")
            return result.report

        report, optimize_seconds = timed(rewrite)
        verdict, verify_seconds = timed(lambda: graphopt.verify(path, target, runs=1, **common))
        speed, bench_seconds = timed(
            lambda: graphopt.benchmark(
                path, target, max_time=arguments.max_time, sessions=3, memory=False, placement=False, **common
            )
        )
    apart = any("one after the other" in note for note in speed.notes)
    disk = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    row = {
        "provider": verdict.provider,
        "weights_gb": round(weights / GB, 2),
        "available_gb": round(available / GB, 2),
        "disk_gb": round(disk / GB, 3),
        "own_memory_gb": round(own.most / GB, 3),
        "nodes": [report.nodes_before, report.nodes_after],
        "read_seconds": read_seconds,
        "optimize_seconds": optimize_seconds,
        "verify_seconds": verify_seconds,
        "bench_seconds": bench_seconds,
        "verdict": verdict.verdict,
        "reason": verdict.reason.replace(str(folder), "."),
        "speed": {"verdict": speed.verdict, "ratio": speed.ratio, "low": speed.low, "high": speed.high},
        "speed_reason": speed.reason.replace(str(folder), "."),
        "one_after_the_other": apart,
        "notes": [*verdict.notes, *speed.notes],
    }
    wrong = []
    if own.most > OWN_LIMIT:
        wrong.append(f"graphopt itself held {own.most / GB:.2f} GB")
    if fits_once and verdict.verdict != "equal":
        wrong.append(f"the verdict is {verdict.verdict}: {verdict.reason}")
    if verdict.verdict == "different":
        wrong.append("a model that cannot be run was called different")
    if fits_once and speed.verdict == "not measured":
        wrong.append(f"it was not timed: {speed.reason}")
    if fits_once and not fits_twice and not apart:
        wrong.append("nothing says that the sides were timed one after the other")
    return row, wrong


def main() -> None:
    """Build, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--share", type=float, default=0.55, help="weights as a share of the memory there is")
    parser.add_argument("--weights", type=float, help="weights in GB, in place of a share")
    parser.add_argument("--memory-limit", type=float, default=2.0, help="GB that the runtime's process may take; CPU")
    parser.add_argument("--side", type=int, default=0, help="rows and columns of a weight")
    parser.add_argument("--max-time", type=float, default=30.0, help="seconds of the bench, loading included")
    parser.add_argument("--tables", action="store_true", help="tables that are looked up, in place of products")
    parser.add_argument("--folder", type=Path, help="where the model goes; by default a temporary folder")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.side = arguments.side or (16384 if arguments.provider == "cuda" else 4096)
    with tempfile.TemporaryDirectory(prefix="huge-", dir=arguments.folder) as folder:
        row, wrong = measure(arguments, Path(folder))
    print(json.dumps(row, indent=1))
    for sentence in wrong:
        print(f"wrong: {sentence}")
    if arguments.json is not None:
        document = {"made_by": "benchmarks/huge.py", "versions": versions(), **row, "wrong": wrong}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
