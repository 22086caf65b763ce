#!/usr/bin/env python
"""Optimize, verify, time and tune models on the device at hand, and keep what came out as JSON.

    python benchmarks/on_device.py models/*.onnx --out benchmarks/results/NAME.json
    python benchmarks/on_device.py --export resnet50:batch=64:tune=180,vit_base:batch=8 --tune 60 --out FILE

`--export` makes well-known networks with PyTorch (`models/known_networks.py`) and times them at the sizes given. First
all are exported, optimized and verified, `--jobs` at a time; then they are timed and tuned one after the other. Every
number in the file comes from this one run: versions, device and the provider that really ran stand beside it. What
`--budget` leaves no time for is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from common import write_json

import graphopt
from graphopt.errors import GraphoptError
from graphopt.runtime import Worker, doctor

CHECKOUT = Path(__file__).resolve().parents[1]
_SIDES = ("original", "rewritten")
_TRIAL = ("settings", "verdict", "ratio", "low", "high", "error")  # settings: on top of what it ran against


@dataclass(frozen=True, slots=True)
class Job:
    """A model to measure.

    Attributes:
        name: What it is called.
        source: The file; None for a network that is to be exported.
        sizes: Sizes of free dims in the feeds.
        tune: Seconds for tuning; 0 leaves it out.
    """

    name: str
    source: Path | None
    sizes: Mapping[str, int]
    tune: float


def prepared(job: Job, folder: Path, options: argparse.Namespace) -> tuple[Path, Path, dict[str, Any]]:
    """Export, optimize and verify one model, in a worker of its own: nothing here is timed against anything."""
    model = job.source or exported(job.name, folder)
    result = graphopt.optimize(model, target=options.target)
    target = folder / f"{job.name}.opt.onnx"
    result.save(target)
    with Worker() as worker:
        verdict = graphopt.verify(model, target, provider=options.provider, dims=job.sizes, worker=worker)
    row = {
        "model": model.name,
        "sizes": dict(job.sizes),
        "nodes": [result.report.nodes_before, result.report.nodes_after],
        "optimize_seconds": round(result.report.seconds, 3),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "provider": verdict.provider,
        "verify_seconds": round(verdict.seconds, 1),
    }
    return model, target, row


def timed(job: Job, model: Path, target: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time one model against its original and the original against itself, and tune it, with nothing else running."""
    feeds: dict[str, Any] = {"provider": options.provider, "dims": job.sizes}
    speed = graphopt.benchmark(model, target, max_time=options.max_time, **feeds)
    itself = graphopt.benchmark(model, model, max_time=options.max_time / 2, memory=False, decode=0, **feeds)
    latency = speed.without_samples().to_json()
    for key in ("schema", "schema_version", "reason"):
        del latency[key]
    for side in _SIDES:
        if latency[side] is not None:
            latency[side]["label"] = side  # the folders of this machine tell nobody anything
            for key in ("assigned", "operators"):  # too long to keep
                (latency[side]["placement"] or {}).pop(key, None)
    row: dict[str, Any] = {
        "latency": latency,
        "against_itself": {"verdict": itself.verdict, "ratio": itself.ratio, "low": itself.low, "high": itself.high},
    }
    if job.tune:
        row["tuning"] = tuned(model, feeds, job.tune)
    return row


def tuned(model: Path, feeds: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What tuning found, without the places of this machine."""
    from graphopt.tuning import tune

    try:
        found = tune(model, max_time=seconds, write=False, **feeds).to_json()
    except GraphoptError as error:
        return {"problem": str(error)}
    recipe = {
        key: value for key, value in found["recipe"].items() if key not in ("original", "model", "feeds", "stamp")
    }
    recipe["columns"] = list(_TRIAL)
    recipe["trials"] = [[_added(trial), *(trial[key] for key in _TRIAL[1:])] for trial in recipe["trials"]]
    return {"recipe": recipe} | {key: found[key] for key in ("seconds", "notes") if found[key]}


def _added(trial: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial that are not those of what it ran against."""
    return {key: value for key, value in trial["settings"].items() if trial["against"].get(key) != value}


def exported(name: str, folder: Path) -> Path:
    """Export a well-known network."""
    script = CHECKOUT / "models" / "known_networks.py"
    threads = {**os.environ, "OMP_NUM_THREADS": "3"}
    command = [sys.executable, str(script), str(folder), "--only", name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=threads)
    return folder / f"{name}.ts.onnx"


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """What the command line asks for."""
    jobs = [Job(model.name, model, {}, options.tune) for model in options.models]
    for text in filter(None, options.export.split(",")):
        name, *items = text.split(":")
        sizes = {key: int(size) for key, size in (item.split("=") for item in items)}
        jobs.append(Job(name, None, sizes, float(sizes.pop("tune", options.tune))))
    return jobs


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
    parser.add_argument("--export", default="", help="networks to export, NAME:DIM=SIZE:…:tune=S, separated by commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--target", default="portable")
    parser.add_argument("--max-time", type=float, default=20.0, help="seconds of one comparison")
    parser.add_argument("--tune", type=float, default=0.0, metavar="S", help="tune each model for so many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="models prepared at a time")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for everything")
    options = parser.parse_args()
    started = time.monotonic()
    state = doctor()
    jobs, rows, left_out = jobs_of(options), [], []
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(options.jobs) as pool:
        for job, (model, target, row) in zip(
            jobs, list(pool.map(lambda job: prepared(job, Path(text), options), jobs)), strict=True
        ):
            if time.monotonic() - started > options.budget:
                left_out.append(job.name)
                continue
            rows.append(row | timed(job, model, target, options))
            print(f"[{time.monotonic() - started:.0f} s] {sentence(rows[-1])}", flush=True)
            if options.out is not None:  # what was measured is kept, whatever happens next
                write(options.out, state, rows, left_out)
    if options.out is not None:
        write(options.out, state, rows, left_out)


def write(path: Path, state: Any, rows: list[dict[str, Any]], left_out: list[str]) -> None:
    """Write the document."""
    document = {
        "made_by": "benchmarks/on_device.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "providers_running": list(state.providers_running),
        "left_out": left_out,
        "models": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document)


if __name__ == "__main__":
    main()
