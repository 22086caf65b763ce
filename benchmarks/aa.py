#!/usr/bin/env python
"""How honest is `graphopt bench`? A model against itself many times, and against one that is slower by a known share.

    python benchmarks/aa.py [--times 100] [--max-time 4] [--provider cuda] [--json FILE]

A verdict of *faster* or *slower* for a model against itself is a false alarm; at a 99 % interval and a margin of 2 %
there should be next to none in a hundred. A model with a tenth more of the same work must be seen as slower: *too noisy
to say* is an honest answer on a busy machine, *no difference seen* and *faster* are misses. The exit code is 1 where
more than 3 % of the comparisons with itself end otherwise than with *no difference seen*, or a tenth is missed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from common import versions, write_json
from onnx import TensorProto, helper, numpy_helper

from graphopt.runtime import Worker, benchmark

LAYERS = 30
SLOWER = 0.10
SETTLED = 0.97


def chain(layers: int, width: int) -> bytes:
    """`layers` equal matrix products with a Tanh between them; the runtime can drop none."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array((rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32), "w")
    nodes = []
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", "w"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"x{layer + 1}"]))
    shape = [width, width]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def trial(left: bytes, right: bytes, options: dict[str, Any]) -> dict[str, Any]:
    """One comparison, without what does not bear on the verdict."""
    result = benchmark(left, right, memory=False, placement=False, **options)
    sessions = 0 if result.original is None else result.original.sessions
    numbers = {"ratio": result.ratio, "low": result.low, "high": result.high}
    return {"verdict": result.verdict, **numbers, "sessions": sessions, "seconds": round(result.seconds, 2)}


def told(name: str, trials: list[dict[str, Any]]) -> str:
    """One line: how often each verdict was given, and how far the ratios spread."""
    ratios = np.sort([item["ratio"] for item in trials])
    counts = ", ".join(f"{verdict} {count}" for verdict, count in Counter(i["verdict"] for i in trials).most_common())
    widths = np.asarray([item["high"] / item["low"] - 1 for item in trials])
    spread = f"ratio {np.median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}"
    return f"{name}: {counts}; {spread}; intervals {np.median(widths):.1%} wide, at most {widths.max():.1%}"


def main() -> None:
    """Run the trials and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="comparisons of the model with itself")
    parser.add_argument("--max-time", type=float, default=4.0, help="seconds for one comparison")
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=96, help="side of the matrices")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model, slower = chain(LAYERS, arguments.width), chain(round(LAYERS * (1 + SLOWER)), arguments.width)
    found: dict[str, list[dict[str, Any]]] = {"itself": [], "slower by a tenth": []}
    with Worker() as worker:
        options = {
            "provider": arguments.provider,
            "threads": arguments.threads,
            "max_time": arguments.max_time,
            "worker": worker,
        }
        for number in range(arguments.times):
            found["itself"].append(trial(model, model, options))
            if number % 5 == 0:
                found["slower by a tenth"].append(trial(model, slower, options))
            if number % 10 == 9:
                print(f"{number + 1} of {arguments.times}", flush=True)
    for name, trials in found.items():
        print(told(name, trials))
    alarms = sum(item["verdict"] in ("faster", "slower") for item in found["itself"])
    missed = sum(item["verdict"] in ("faster", "no difference seen") for item in found["slower by a tenth"])
    print(f"false alarms: {alarms} of {len(found['itself'])}; missed: {missed} of {len(found['slower by a tenth'])}")
    if arguments.json is not None:
        document = {"made_by": "benchmarks/aa.py", "versions": versions(), "false_alarms": alarms, "missed": missed}
        rows = {name: [list(item.values()) for item in trials] for name, trials in found.items()}
        write_json(arguments.json, {**document, "columns": list(found["itself"][0]), **rows})
    settled = sum(item["verdict"] == "no difference seen" for item in found["itself"])
    raise SystemExit(settled < SETTLED * len(found["itself"]) or missed > 0)


if __name__ == "__main__":
    main()
