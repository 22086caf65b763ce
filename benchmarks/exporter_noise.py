"""What the shape arithmetic of an exporter costs on a device, and how much of it graphopt wins back.

    python benchmarks/exporter_noise.py [FOLDER] --json FILE            on a machine with CUDA and PyTorch
    python benchmarks/exporter_noise.py FOLDER --provider cpu --only bert_base,t5_encoder --no-export

TorchScript exports with dynamic axes (`NAME.ts.onnx`; made by `models/known_networks.py` where the folder lacks them)
are optimized for the portable target and timed against the original in one run, alternating, at batch 1, under the
runtime's default optimization. Beside the ratio with its 99 % interval: nodes as exported and left, nodes and copies
between host and device (`Memcpy`) in the graphs that the runtime really runs, and the verdict on this device. Networks
of which `NAME.dynamo.onnx` is wanted too (T5) are also compared across the two exporter forms.

Everything fits into `--budget` seconds: timing shares what is left evenly, and what is not reached is named. Exit
codes: 0 measured, 1 a result differs, 4 the provider does not start here, so nothing was measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import onnx
from common import CHECKOUT, console, count_file_nodes, geometric_mean, table, write_json
from feeds import dim_terms
from on_device import device
from runtime_graph import ask

import graphopt
from graphopt.errors import GraphoptError
from graphopt.runtime import doctor

NETWORKS = (  # in the order in which they are measured
    "bert_base",
    "gpt2",
    "swin_tiny",
    "t5_encoder",
    "t5_decoder",
    "vit_base",
    "deberta_v2",
    "segformer",
    "detr",
    "unet_sd",
    "llama_past",
)
BOTH_FORMS = ("t5_encoder", "t5_decoder")
SIZES = {
    "batch": 1,
    "sequence": 128,
    "encoder_sequence": 128,
    "dec_sequence": 128,
    "past_sequence": 128,
    "total_sequence": 256,
}
EXPORT_SHARE = 0.4  # of the budget
LEAST_TIMING, MOST_TIMING = 3.0, 20.0  # seconds of one comparison
COUNTED = ("nodes", "copies", "problem")  # of a graph that runs
FULL_NAMES = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


@dataclass(slots=True)
class Clock:
    """The time budget of the whole run."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Return the seconds left."""
        return self.seconds - (time.monotonic() - self.started)


# --- models


def wanted_files(names: Sequence[str]) -> list[str]:
    """Return the file names that a run needs."""
    return [f"{name}.{form}.onnx" for name in names for form in (("ts", "dynamo") if name in BOTH_FORMS else ("ts",))]


def export_missing(folder: Path, files: Sequence[str], opset: int, clock: Clock) -> None:
    """Export what the folder lacks, several at a time, until a share of the budget is spent."""
    missing = [name for name in files if not (folder / name).exists()]
    limit = clock.left() - (1 - EXPORT_SHARE) * clock.seconds
    deadline = time.monotonic() + limit
    running: list[tuple[str, subprocess.Popen[str]]] = []
    jobs = max(1, (os.cpu_count() or 1) // 3)
    threads = {"OMP_NUM_THREADS": "3", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    while missing or running:
        while missing and len(running) < jobs and time.monotonic() < deadline:
            file = missing.pop(0)
            name, form = file.split(".")[:2]
            script = str(CHECKOUT / "models" / "known_networks.py")
            command = [sys.executable, script, str(folder), "--only", name, "--forms", form, "--opset", str(opset)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **threads}
            )
            running.append((file, process))
        if time.monotonic() >= deadline:
            for file, process in running:
                process.kill()
                process.communicate()
                (folder / file).unlink(missing_ok=True)  # half a file is worse than none
            left_out = [*missing, *(file for file, _ in running)]
            print(f"not exported in {limit:.0f} s: {', '.join(left_out)}", flush=True)
            return
        for item in [item for item in running if item[1].poll() is not None]:
            running.remove(item)
            output, _ = item[1].communicate()
            print("\n".join(output.strip().splitlines()[-2:]), flush=True)
        time.sleep(0.1)


def input_shapes(model: Path, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return a shape for every input whose dims are numbers or sums of known names."""
    shapes = {}
    for value in onnx.load(model, load_external_data=False).graph.input:
        found = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            terms = dim_terms(dim, value.name, axis)
            if any(term not in sizes for term in terms):
                break
            found.append(sum(sizes[term] for term in terms) if terms else dim.dim_value)
        else:
            shapes[value.name] = tuple(found)
    return shapes


# --- measuring


def optimized(model: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Optimize a model for the portable target and save it."""
    result = graphopt.optimize(model, verify=False)
    target = folder / model.name
    result.save(target)
    return target, {
        "nodes": [count_file_nodes(model), count_file_nodes(target)],
        "optimize_seconds": round(result.report.seconds, 3),
    }


def timed(original: Path, rewritten: Path, shapes: Any, provider: str, seconds: float) -> dict[str, Any]:
    """Time two models against each other; keep what a table needs."""
    speed = graphopt.benchmark(
        original, rewritten, provider=provider, shapes=shapes, max_time=seconds, memory=False, sessions=7
    )
    sides = (speed.original, speed.rewritten)
    return {
        "verdict": speed.verdict,
        "ratio": speed.ratio,
        "low": speed.low,
        "high": speed.high,
        "provider": speed.provider,
        "median_ms": [side.median_ms if side else None for side in sides],
        "load_seconds": [side.load_seconds if side else None for side in sides],
        "runs": [side.runs if side else None for side in sides],
    }


def measure(
    network: str, form: str, models: Path, folder: Path, options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    """Optimize, verify, count and time one export."""
    model = models / f"{network}.{form}.onnx"
    row: dict[str, Any] = {"network": network, "form": form, "problem": ""}
    try:
        target, made = optimized(model, folder)
        row |= made
        with ThreadPoolExecutor(2) as pool:
            graphs = pool.map(lambda path: ask(path, options.provider), (model, target))
            row["before"], row["after"] = ({key: side[key] for key in COUNTED if key in side} for side in graphs)
        if options.verify:
            verdict = graphopt.verify(model, target, provider=options.provider, timeout=60.0)
            row |= {"verdict": verdict.verdict, "reason": verdict.reason, "verified_on": verdict.provider}
        row["latency"] = timed(model, target, options.shapes[network], options.provider, seconds)
    except (GraphoptError, OSError) as error:
        row["problem"] = f"{type(error).__name__}: {error}"
    return row


def across(network: str, models: Path, folder: Path, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Time the two exporter forms of one network against each other: as exported, and optimized."""
    found: dict[str, Any] = {"network": network}
    for what, place in (("as exported", models), ("optimized", folder)):
        script, dynamo = (place / f"{network}.{form}.onnx" for form in ("ts", "dynamo"))
        if script.exists() and dynamo.exists():
            found[what] = timed(script, dynamo, options.shapes[network], options.provider, seconds)
    return found


def run(names: Sequence[str], models: Path, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Measure everything that the budget allows."""
    jobs = [
        (name, form)
        for name, form, _ in (file.split(".") for file in wanted_files(names))
        if (models / f"{name}.{form}.onnx").exists()
    ]
    pairs = [name for name in names if (name, "ts") in jobs and (name, "dynamo") in jobs]
    options.shapes = {
        name: input_shapes(models / f"{name}.ts.onnx", options.sizes) for name, form in jobs if form == "ts"
    }
    rows, forms, unreached = [], [], []
    with tempfile.TemporaryDirectory(prefix="graphopt-exporter-noise-") as text:
        folder = Path(text)
        slots = len(jobs) + 2 * len(pairs)
        for name, form in jobs:
            fair = clock.left() / max(slots, 1)
            slots -= 1
            if fair < LEAST_TIMING or name not in options.shapes:
                unreached.append(f"{name}.{form}")
                continue
            # Optimizing, verifying and loading ten sessions take about as long as the timing itself.
            seconds = min(MOST_TIMING, max(LEAST_TIMING, fair * 0.4))
            rows.append(measure(name, form, models, folder, options, seconds))
            print(f"[{clock.left():.0f} s left] {sentence(rows[-1])}", flush=True)
        for name in pairs:
            fair = clock.left() / max(slots, 1)
            slots -= 2
            if fair < LEAST_TIMING:
                unreached.append(f"{name}, one form against the other")
                continue
            forms.append(across(name, models, folder, options, min(MOST_TIMING, max(LEAST_TIMING, fair * 0.5))))
    missing = [file for file in wanted_files(names) if not (models / file).exists()]
    return {"models": rows, "forms": forms, "not_reached": unreached, "missing": missing}


# --- reporting


def sentence(row: Mapping[str, Any]) -> str:
    """Return one line on one network."""
    name = f"{row['network']}.{row['form']}"
    if row["problem"]:
        return f"{name}: {row['problem']}"
    latency = row["latency"]
    nodes, verdict = row["nodes"], row.get("verdict", "not verified")
    return f"{name}: {nodes[0]} → {nodes[1]} nodes, {verdict}, {interval(latency)} as fast ({latency['verdict']})"


def interval(latency: Mapping[str, Any]) -> str:
    """Return a ratio with its interval."""
    return f"{latency['ratio']:.3f} [{latency['low']:.3f}, {latency['high']:.3f}]"


def counted(row: Mapping[str, Any], what: str) -> str:
    """Return a count of the graphs that run, before and after."""
    return " → ".join(str(row[side].get(what, "?")) for side in ("before", "after"))


def report(document: dict[str, Any]) -> None:
    """Print the tables and add the means to the document."""
    screen = console()
    rows = [row for row in document["models"] if not row["problem"]]
    lines = []
    for row in rows:
        latency = row["latency"]
        medians = ["?" if value is None else f"{value:.3f}" for value in latency["median_ms"]]
        lines.append(
            [
                f"{row['network']}.{row['form']}",
                f"{row['nodes'][0]} → {row['nodes'][1]}",
                counted(row, "nodes"),
                counted(row, "copies"),
                " → ".join(medians),
                interval(latency),
                latency["verdict"],
                row.get("verdict", "not asked"),
            ]
        )
    columns = ["network", "nodes", "nodes that run", "copies", "ms", "times as fast, 99 %", "speed", "outputs"]
    screen.print(table("original against result, batch 1, the runtime's default optimization", columns, lines))
    ratios = [
        row["latency"]["ratio"]
        for row in rows
        if row["form"] == "ts" and row.get("verdict", "equal") == "equal" and row["latency"]["ratio"] > 0
    ]
    document["geometric_mean"] = {"models": len(ratios), "ratio": geometric_mean(ratios)}
    screen.print(
        f"  TorchScript form, {len(ratios)} networks: {geometric_mean(ratios):.3f} times as fast (geometric mean)"
    )
    for pair in document["forms"]:
        for what in ("as exported", "optimized"):
            if what in pair:
                screen.print(
                    f"  {pair['network']} {what}: the torch.export form is {interval(pair[what])} times as fast as the "
                    f"TorchScript form ({pair[what]['verdict']})",
                    soft_wrap=True,
                )
    for row in document["models"]:
        if row["problem"] or row.get("verdict") not in (None, "equal"):
            screen.print(f"  {row['network']}.{row['form']}: {row['problem'] or row['reason']}", soft_wrap=True)
    for what, said in (("missing", "not there and not exported"), ("not_reached", "not reached in the time")):
        if document[what]:
            screen.print(f"  {said}: {', '.join(document[what])}", soft_wrap=True)


def main() -> int:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where exports are, or go; default: a temporary folder")
    parser.add_argument("--provider", default="cuda", help="cuda or cpu; default cuda")
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, separated by commas; default: all")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything; default 480")
    parser.add_argument("--opset", type=int, default=17, help="of the exports; default 17")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="size of a dynamic axis")
    parser.add_argument("--no-export", dest="export", action="store_false", help="use what the folder holds")
    parser.add_argument("--no-verify", dest="verify", action="store_false", help="do not compare outputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in NETWORKS]:
        parser.error(f"unknown networks {', '.join(unknown)}: choose among {', '.join(NETWORKS)}")
    options.sizes = SIZES | {name: int(size) for name, size in (item.split("=") for item in options.size)}
    clock = Clock(options.budget)
    state = doctor()
    full = FULL_NAMES.get(options.provider, options.provider)
    if full not in state.providers_running:
        why = [finding.text for finding in state.findings if finding.name == full]
        print(f"nothing measured: {full} does not start here ({'; '.join(why) or 'not in this build'})")
        return 4
    with tempfile.TemporaryDirectory(prefix="graphopt-exports-") as text:
        models = options.folder or Path(text)
        models.mkdir(parents=True, exist_ok=True)
        if options.export:
            export_missing(models, wanted_files(names), options.opset, clock)
        document = run(names, models, options, clock)
    report(document)
    document = {
        "schema": 1,
        "made_by": "benchmarks/exporter_noise.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "provider": full,
        "sizes": options.sizes,
        "seconds": round(options.budget - clock.left(), 1),
    } | document
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.json, document)
    return 1 if any(row.get("verdict") == "different" for row in document["models"]) else 0


if __name__ == "__main__":
    sys.exit(main())
