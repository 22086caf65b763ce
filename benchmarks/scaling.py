"""Does the time grow in proportion to the graph? Generated models of growing size, one process each.

    python benchmarks/scaling.py [--sizes 1000,10000,100000] [--repeats 3] [--json FILE]

Phases: *load* is `graphopt.load` alone, *optimize* is `graphopt.optimize(path, verify=False)` less that, *save* is
writing the result. The growth column is the time per node against the size before: 1 is linear, 10 is quadratic for a
tenfold size. The passes that take longest at the largest size are listed, if the report tells their times.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import (
    console,
    count_file_nodes,
    find_models,
    generated_models,
    measure,
    median,
    quiet_environment,
    table,
    versions,
    write_json,
)

PHASES = ("load", "optimize", "save")


def child(source: str, target: str, level: str) -> None:
    """Time the phases on one model in this process; print one JSON line."""
    graphopt: Any = importlib.import_module("graphopt")
    for late in ("passes", "onnxruntime"):
        importlib.import_module(late)
    marks = [time.perf_counter()]
    graphopt.load(source)
    marks.append(time.perf_counter())
    result = graphopt.optimize(source, level=level, verify=False)
    marks.append(time.perf_counter())
    result.save(target)
    marks.append(time.perf_counter())
    load, optimize, save = (after - before for before, after in itertools.pairwise(marks))
    document = result.report.to_json()
    if isinstance(document, str):
        document = json.loads(document)
    seconds = {"load": load, "optimize": max(optimize - load, 0.0), "save": save, "passes": pass_seconds(document)}
    print("\n" + json.dumps(seconds), flush=True)


def pass_seconds(document: Any) -> dict[str, float]:
    """Add up the seconds of each pass over all sweeps, wherever the report lists passes with a name and seconds."""
    found: dict[str, float] = {}
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name, seconds = item.get("name") or item.get("pass"), item.get("seconds")
            if isinstance(name, str) and isinstance(seconds, int | float):
                found[name] = found.get(name, 0.0) + float(seconds)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return found


def main() -> int:
    """Run the sizes; the exit code is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="models to time instead of generated ones, smallest first")
    parser.add_argument("--sizes", default="1000,10000,100000", help="node counts; default 1000,10000,100000")
    parser.add_argument("--level", default="default")
    parser.add_argument("--repeats", type=int, default=3, help="processes per size, the median counts; default 3")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process; default 600")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--child", nargs=2, metavar=("IN", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.child[1], options.level)
        return 0
    rows: list[list[Any]] = []
    results: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="graphopt-scaling-") as folder:
        target = Path(folder) / "out.onnx"
        models = find_models(options.models) or generated_models(options.sizes, Path(folder))
        for model in models:
            command = [sys.executable, __file__, "--level", options.level, "--child", str(model), str(target)]
            runs = [measure(command, options.timeout, quiet_environment()) for _ in range(options.repeats)]
            timed = [found for run in runs if run.problem() is None and (found := run.last_json())]
            before = count_file_nodes(model)
            if not timed:
                failed = True
                rows.append([model.stem, before, runs[-1].problem()])
                continue
            seconds = {phase: median([found[phase] for found in timed]) for phase in PHASES}
            total = sum(seconds.values())
            result = {
                "model": model.stem,
                "nodes": before,
                "nodes_left": count_file_nodes(target),
                **seconds,
                "total": total,
                "anonymous_mb": max(run.peak_anonymous_mb for run in runs),
                "passes": timed[-1]["passes"],
            }
            growth = (total / before) / (results[-1]["total"] / results[-1]["nodes"]) if results else None
            results.append({**result, "growth": growth})
            numbers = [f"{seconds[phase]:.3f}" for phase in PHASES]
            memory = f"{result['anonymous_mb']:.0f}"
            grown = f"{growth:.2f}" if growth else ""
            rows.append(
                [
                    model.stem,
                    before,
                    result["nodes_left"],
                    *numbers,
                    f"{total:.3f}",
                    f"{1e6 * total / before:.1f}",
                    grown,
                    memory,
                ]
            )
    screen = console()
    columns = [
        "model",
        "nodes",
        "left",
        *(f"{phase} s" for phase in PHASES),
        "total s",
        "µs a node",
        "growth",
        "anonymous MB",
    ]
    screen.print(table(f"graphopt.optimize at level {options.level}", columns, rows))
    if results and results[-1]["passes"]:
        slowest = sorted(results[-1]["passes"].items(), key=lambda item: -item[1])[:10]
        screen.print(
            "slowest passes of the last model: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest)
        )
    if options.json:
        write_json(
            options.json, {"schema": 1, "versions": versions("graphopt", "onnx", "networkx"), "results": results}
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
