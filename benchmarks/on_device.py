#!/usr/bin/env python
"""Optimize, verify, time and tune models on the device at hand, and keep what came out as JSON.

    python benchmarks/on_device.py models/*.onnx --out benchmarks/results/NAME.json
    python benchmarks/on_device.py --export resnet50:batch=64,bert_base:batch=4:sequence=128 --tune 120 --out FILE

`--export` makes well-known networks with PyTorch (`models/known_networks.py`) and times them at the sizes given. Every
number in the file comes from this one run: versions, device and the provider that really ran stand beside it. What
`--budget` leaves no time for is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import graphopt
from graphopt.errors import GraphoptError
from graphopt.runtime import doctor

CHECKOUT = Path(__file__).resolve().parents[1]
_SIDES = ("original", "rewritten")


def measure(model: Path, folder: Path, sizes: Mapping[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """One model's row: nodes, verdict, ratio with its interval, spread against itself, and the recipe found."""
    result = graphopt.optimize(model, target=options.target)
    target = folder / model.name
    result.save(target)
    feeds: dict[str, Any] = {"provider": options.provider, "dims": sizes}
    verdict = graphopt.verify(model, target, **feeds)
    speed = graphopt.benchmark(model, target, max_time=options.max_time, **feeds)
    itself = graphopt.benchmark(model, model, max_time=options.max_time / 2, memory=False, **feeds)
    latency = speed.without_samples().to_json()
    for side in _SIDES:
        if latency[side] is not None:
            latency[side]["label"] = side  # the folders of this machine tell nobody anything
    row = {
        "model": model.name,
        "sizes": dict(sizes),
        "nodes": [result.report.nodes_before, result.report.nodes_after],
        "optimize_seconds": round(result.report.seconds, 3),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "provider": verdict.provider,
        "latency": latency,
        "against_itself": {"verdict": itself.verdict, "ratio": itself.ratio, "low": itself.low, "high": itself.high},
    }
    if options.tune:
        row["tuning"] = tuned(model, feeds, options.tune)
    return row


def tuned(model: Path, feeds: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What tuning found, without the places of this machine."""
    from graphopt.tuning import tune

    try:
        found = tune(model, max_time=seconds, write=False, **feeds).to_json()
    except GraphoptError as error:
        return {"problem": str(error)}
    return {key: value for key, value in found.items() if key not in ("model", "path", "out")}


def exported(text: str, folder: Path) -> tuple[Path, dict[str, int]]:
    """Export `NAME:DIM=SIZE:…`; the file and the sizes."""
    name, *items = text.split(":")
    script = CHECKOUT / "models" / "known_networks.py"
    subprocess.run([sys.executable, str(script), str(folder), "--only", name], check=True, stdout=subprocess.DEVNULL)
    return folder / f"{name}.ts.onnx", {key: int(size) for key, size in (item.split("=") for item in items)}


def device() -> str:
    """The accelerator's name and driver, or that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no NVIDIA GPU"


def sentence(row: Mapping[str, Any]) -> str:
    """One model on one line, and one on what tuning found."""
    latency, itself = row["latency"], row["against_itself"]
    text = (
        f"{row['model']}: {row['nodes'][0]} → {row['nodes'][1]} nodes, {row['verdict']} on {row['provider']}, "
        f"{latency['ratio']:.3f} times as fast [{latency['low']:.3f}, {latency['high']:.3f}]; "
        f"against itself {itself['ratio']:.3f} [{itself['low']:.3f}, {itself['high']:.3f}]"
    )
    recipe = row.get("tuning", {}).get("recipe")
    return f"{text}\n  tuned: {json.dumps(recipe)[:600]}" if recipe else text


def main() -> None:
    """Measure every model and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--export", default="", help="networks to export, NAME:DIM=SIZE:…, separated by commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--target", default="portable")
    parser.add_argument("--max-time", type=float, default=20.0, help="seconds of one comparison")
    parser.add_argument("--tune", type=float, default=0.0, metavar="S", help="tune each model for so many seconds")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for everything")
    options = parser.parse_args()
    started = time.monotonic()
    state = doctor()
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as exports, tempfile.TemporaryDirectory() as folder:
        jobs = [(str(model), model, {}) for model in options.models]
        jobs += [(text.split(":")[0], None, text) for text in options.export.split(",") if text]
        for name, model, more in jobs:
            if time.monotonic() - started > options.budget:
                left_out.append(name)
                continue
            source, sizes = (model, more) if model is not None else exported(more, Path(exports))
            rows.append(measure(source, Path(folder), sizes, options))
            print(f"[{time.monotonic() - started:.0f} s] {sentence(rows[-1])}", flush=True)
    document = {
        "made_by": "benchmarks/on_device.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "providers_running": list(state.providers_running),
        "models": rows,
        "left_out": left_out,
    }
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
