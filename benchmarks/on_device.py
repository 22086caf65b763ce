#!/usr/bin/env python
"""Optimize, verify and time models on the device at hand, and keep what came out as JSON.

    python benchmarks/on_device.py models/*.onnx --out benchmarks/results/NAME.json

Every number in the file comes from this one run: versions, device and the provider that really ran stand beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import graphopt
from graphopt.runtime import doctor


def measure(model: Path, folder: Path, provider: str, max_time: float) -> dict[str, Any]:
    """One model's row: nodes, verdict, ratio with its interval."""
    result = graphopt.optimize(model)
    target = folder / model.name
    result.save(target)
    verdict = graphopt.verify(model, target, provider=provider)
    speed = graphopt.benchmark(model, target, provider=provider, max_time=max_time)
    itself = graphopt.benchmark(model, model, provider=provider, max_time=max_time / 2)
    latency = speed.without_samples().to_json()
    for side in ("original", "rewritten"):
        if latency[side] is not None:
            latency[side]["label"] = side  # the folders of this machine tell nobody anything
    return {
        "model": model.name,
        "nodes": [result.report.nodes_before, result.report.nodes_after],
        "optimize_seconds": round(result.report.seconds, 3),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "provider": verdict.provider,
        "latency": latency,
        "against_itself": {"verdict": itself.verdict, "ratio": itself.ratio, "low": itself.low, "high": itself.high},
    }


def device() -> str:
    """The accelerator's name and driver, or that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"


def main() -> None:
    """Measure every model and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--max-time", type=float, default=20.0)
    arguments = parser.parse_args()
    state = doctor()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            row = measure(model, Path(folder), arguments.provider, arguments.max_time)
            rows.append(row)
            ratio = row["latency"]["ratio"]
            print(f"{row['model']}: {row['nodes']} nodes, {row['verdict']} on {row['provider']}, {ratio} times as fast")
    document = {
        "made_by": "benchmarks/on_device.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "providers_running": list(state.providers_running),
        "models": rows,
    }
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
