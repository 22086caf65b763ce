"""What fusing for ONNX Runtime wins on a device, beside the runtime's own optimizer for transformers.

    python benchmarks/fusion.py [FOLDER] --json FILE               on a machine with CUDA and PyTorch
    python benchmarks/fusion.py FOLDER --provider cpu --only bert_base --no-export

Each network (`NAME.FORM.onnx`, made by `models/known_networks.py` where the folder lacks it) gets fixed sizes and is
then optimized for the provider's target. Timed against the model as exported, alternating in one run, under the
runtime's default optimization: the result; what `onnxruntime.transformers.optimizer` makes of the same model; with
`--graphs` both under CUDA graphs; and with `--half` all of it again from a float16 copy made by the runtime's own
converter. The verdict on each result is by `graphopt.verify` on this provider and on the CPU.

First all are exported and optimized, `--jobs` at a time; then they are timed, one after the other with nothing else
running; then judged. Everything fits into `--budget` seconds: what is not reached is named. Exit codes: 0 measured, 1 a
result differs, 4 the provider does not start here, so nothing was measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from common import console, geometric_mean, table, write_json
from exporter_noise import FULL_NAMES, Clock, export_missing
from on_device import device
from runtime_graph import ask

import graphopt
from graphopt import api
from graphopt.errors import GraphoptError
from graphopt.onnxio.signature import Signature
from graphopt.runtime import Worker, doctor

TEXT = {"batch": 4, "sequence": 128}


@dataclass(frozen=True, slots=True)
class Network:
    """What is measured of a network.

    Attributes:
        sizes: Of its free dims.
        kind: What the rival calls such a model; "" for one that it is not made for.
        heads: Heads of attention, for the rival; 0 lets it find out.
        width: Width of the layers, for the rival.
        form: Of the export.
    """

    sizes: Mapping[str, int]
    kind: str = ""
    heads: int = 0
    width: int = 0
    form: str = "ts"

    def file(self, name: str) -> str:
        """What the export is called."""
        return f"{name}.{self.form}.onnx"


IMAGES = {"batch": 8}
NETWORKS: dict[str, Network] = {  # in the order of measuring
    "bert_base": Network(TEXT, "bert", 12, 768),
    "vit_base": Network(IMAGES, "vit", 12, 768),
    "gpt2": Network(TEXT, "gpt2", 12, 768),
    "llama": Network(TEXT, "gpt2", 16, 1024),
    "bert_base_unmasked": Network(TEXT, "bert", 12, 768),
    "llama_unmasked": Network(TEXT, "gpt2", 16, 1024, "dynamo"),
    "unet_sd": Network({"batch": 2, "sequence": 77}, "unet"),
    "swin_tiny": Network(IMAGES, "swin"),
    "t5_encoder": Network(TEXT, "t5", 8, 512),
    "detr": Network(IMAGES, "bert", 4, 128),
    "segformer": Network(IMAGES, "bert"),
} | {
    name: Network(IMAGES)
    for name in ("resnet50", "mobilenet_v2", "densenet121", "efficientnet_b0", "convnext_tiny", "inception_v3")
}
TARGETS = {"cuda": "ort-cuda", "cpu": "ort-cpu"}
GRAPHS = {"enable_cuda_graph": "1"}
COLUMNS = {  # key in a row -> what its ratio says of the result
    "default": "as fast",
    "graphs": "with CUDA graphs",
    "against_rival": "as fast as the rival",
}
LEAST_TIMING, MOST_TIMING = 3.0, 20.0  # seconds of one comparison
JUDGING_SHARE = 0.25  # of what is left after preparing

_RIVAL = """
import sys
from onnxruntime.transformers.optimizer import optimize_model
source, target, kind, heads, width, gpu, half = sys.argv[1:]
model = optimize_model(source, model_type=kind, num_heads=int(heads), hidden_size=int(width), use_gpu=gpu == "cuda")
if half == "1":
    model.convert_float_to_float16(keep_io_types=True)
model.save_model_to_file(target)
"""
_HALF = """
import sys
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
onnx.save(convert_float_to_float16(onnx.load(sys.argv[1]), keep_io_types=True), sys.argv[2])
"""


def run_python(text: str, *arguments: object) -> str:
    """Run a script of another tool in a process of its own; the end of what it says if it fails."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1][:300]


def with_sizes(model: Path, target: Path, sizes: Mapping[str, int]) -> Path:
    """Write a model with fixed sizes, and nothing else changed; an exporter's own names get them in their order."""
    graph = graphopt.load(model)
    free = dict.fromkeys(str(dim) for value in graph.inputs for dim in value.shape or () if not isinstance(dim, int))
    named = {name: size for name, size in sizes.items() if any(name in text for text in free)}
    chosen = named or dict(zip(free, sizes.values(), strict=False))
    api.change_signature(graph, Signature(fix_dims=chosen))
    graphopt.save(graph, target)
    return target


@dataclass(slots=True)
class Job:
    """One network in one precision: its files, and what is found out about it.

    Attributes:
        name: Network, with `.half` behind it for the float16 copy.
        plain: The export in float32 with fixed sizes, from which the rival starts.
        model: What everything is compared with: `plain`, or its float16 copy.
        fused: What graphopt made of `model`.
        rival: What the runtime's own optimizer made; None where it made nothing.
        row: What is kept of it.
    """

    name: str
    plain: Path
    model: Path
    fused: Path
    rival: Path | None
    row: dict[str, Any]

    @property
    def is_ready(self) -> bool:
        """True if there is a result to measure."""
        return not self.row["problem"]


def prepared(name: str, half: bool, models: Path, folder: Path, options: argparse.Namespace) -> Job:
    """Give a network its sizes and precision, optimize it, and let the rival do so: nothing here is timed."""
    label = f"{name}.half" if half else name
    plain = folder / f"{label}.plain.onnx"
    job = Job(label, plain, plain, folder / f"{label}.fused.onnx", None, {"network": label, "problem": ""})
    try:
        with_sizes(models / NETWORKS[name].file(name), plain, NETWORKS[name].sizes)
        if half:
            job.model = folder / f"{label}.onnx"
            if problem := run_python(_HALF, plain, job.model):
                job.row["problem"] = f"not converted: {problem}"
                return job
        result = graphopt.optimize(job.model, target=TARGETS[options.provider], level=options.level)
        result.save(job.fused)
    except (GraphoptError, OSError, subprocess.TimeoutExpired) as error:
        job.row["problem"] = f"{type(error).__name__}: {error}"
        return job
    job.row |= {
        "nodes": [result.report.nodes_before, result.report.nodes_after],
        "fusions": fusions(result),
        "optimize_seconds": round(result.report.seconds, 3),
        "runs": [ask(path, options.provider) for path in (job.model, job.fused)],
    }
    for graph in job.row["runs"]:
        graph.pop("operators", None)  # too long to keep
    if NETWORKS[name].kind:
        make_rival(job, NETWORKS[name], half, folder, options.provider)
    return job


def make_rival(job: Job, network: Network, half: bool, folder: Path, provider: str) -> None:
    """Let the runtime's own optimizer for transformers work on the same export."""
    target = folder / f"{job.name}.rival.onnx"
    arguments = (network.kind, network.heads, network.width, provider, "1" if half else "0")
    try:
        job.row["rival_problem"] = run_python(_RIVAL, job.plain, target, *arguments)
    except subprocess.TimeoutExpired as error:
        job.row["rival_problem"] = f"not done in {error.timeout:.0f} s"
    if not job.row["rival_problem"]:
        job.rival = target


def timed(first: Path, second: Path, options: argparse.Namespace, seconds: float, **more: Any) -> dict[str, Any]:
    """Time two models against each other, with nothing else running; keep what a table needs."""
    try:
        speed = graphopt.benchmark(
            first, second, provider=options.provider, max_time=seconds, memory=False, sessions=5, decode=0, **more
        )
    except (GraphoptError, OSError) as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    sides = (speed.original, speed.rewritten)
    return {
        "verdict": speed.verdict,
        "reason": speed.reason,
        "ratio": speed.ratio,
        "low": speed.low,
        "high": speed.high,
        "confidence": speed.confidence,
        "provider": speed.provider,
        "median_ms": [side.median_ms if side else None for side in sides],
    }


def comparisons(job: Job, options: argparse.Namespace) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """What the result is timed against: key in the row -> model, options of the benchmark."""
    wanted: dict[str, tuple[Path, Mapping[str, Any]]] = {"default": (job.model, {})}
    if options.graphs:
        wanted["graphs"] = (job.model, {"provider_options": GRAPHS})
    if job.rival:
        wanted["against_rival"] = (job.rival, {})
    return wanted


def judged(model: Path, result: Path, provider: str) -> dict[str, str]:
    """The verdict on a result, found in a worker of its own."""
    try:
        with Worker() as worker:
            found = graphopt.verify(model, result, provider=provider, timeout=120.0, worker=worker)
    except GraphoptError as error:
        return {"verdict": "no verdict", "reason": str(error), "provider": provider}
    return {"verdict": found.verdict, "reason": found.reason, "provider": found.provider}


def fusions(result: graphopt.Result) -> dict[str, int]:
    """How often each rule for the target fired."""
    return {name: count for name, count in result.report.rewrites_by_rule.items() if name.startswith("fusion.")}


def sentence(row: Mapping[str, Any]) -> str:
    """One line on one network."""
    if row["problem"]:
        return f"{row['network']}: {row['problem']}"
    parts = [f"{row['nodes'][0]} → {row['nodes'][1]} nodes"]
    for key, what in COLUMNS.items():
        if row.get(key, {}).get("ratio"):
            parts.append(f"{interval(row[key])} {what}")
        elif row.get(key, {}).get("problem"):
            parts.append(f"{what}: {row[key]['problem']}")
    if row.get("rival_problem"):
        parts.append(f"rival: {row['rival_problem']}")
    return f"{row['network']}: {', '.join(parts)}"


def interval(latency: Mapping[str, Any]) -> str:
    """A ratio with its interval."""
    return f"{latency['ratio']:.3f} [{latency['low']:.3f}, {latency['high']:.3f}]"


def run(models: Path, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Prepare side by side, time one after the other, judge side by side."""
    names = [name for name in options.names if (models / NETWORKS[name].file(name)).exists()]
    wanted = [(name, False) for name in names if options.single]
    wanted += [(name, True) for name in names if options.half and NETWORKS[name].kind]
    unreached = [NETWORKS[name].file(name) for name in options.names if name not in names]
    with tempfile.TemporaryDirectory(prefix="graphopt-fusion-") as text, ThreadPoolExecutor(options.jobs) as pool:
        jobs = list(pool.map(lambda item: prepared(item[0], item[1], models, Path(text), options), wanted))
        print(f"[{clock.left():.0f} s left] prepared", flush=True)
        ready = [job for job in jobs if job.is_ready]
        left = sum(len(comparisons(job, options)) for job in ready)
        timing_ends = clock.left() * JUDGING_SHARE
        for job in ready:
            for key, (base, more) in comparisons(job, options).items():
                seconds = min(MOST_TIMING, (clock.left() - timing_ends) / left / 1.2)
                left -= 1
                if seconds < LEAST_TIMING:
                    unreached.append(f"{job.name} {key}")
                    continue
                job.row[key] = timed(base, job.fused, options, seconds, **more)
            print(f"[{clock.left():.0f} s left] {sentence(job.row)}", flush=True)
        sides = [(job, where) for job in ready for where in dict.fromkeys((options.provider, "cpu"))]
        found = pool.map(lambda side: judged(side[0].model, side[0].fused, side[1]), sides)
        for (job, _), verdict in zip(sides, found, strict=True):
            job.row.setdefault("verdicts", []).append(verdict)
        rivals = [job for job in ready if job.rival]
        for job, verdict in zip(
            rivals, pool.map(lambda job: judged(job.model, job.rival, options.provider), rivals), strict=True
        ):
            job.row["rival"] = verdict
    for job in jobs:
        verdicts = [f"{item['verdict']}: {item['reason']}" for item in job.row.get("verdicts", ())]
        print(job.name, job.row["problem"] or "; ".join(verdicts), flush=True)
    return {"models": [job.row for job in jobs], "not_reached": unreached}


def report(document: dict[str, Any]) -> None:
    """Print a table and add the means to the document."""
    lines = []
    for row in document["models"]:
        if row["problem"]:
            continue
        cells = [interval(row[key]) if row.get(key, {}).get("ratio") else "" for key in COLUMNS]
        runs = " → ".join(str(side.get("nodes", "?")) for side in row["runs"])
        verdict = "/".join(item["verdict"] for item in row["verdicts"])
        lines.append([row["network"], runs, verdict, *cells])
    columns = ["model", "nodes that run", "verdict", *COLUMNS.values()]
    screen = console()
    screen.print(table("Fused for ONNX Runtime, with 99 % intervals", columns, lines))
    for key in COLUMNS:
        ratios = [row[key]["ratio"] for row in document["models"] if row.get(key, {}).get("ratio")]
        if ratios:
            document[f"geometric_mean_{key}"] = round(geometric_mean(ratios), 4)
            screen.print(f"{key.replace('_', ' ')}: geometric mean {document[f'geometric_mean_{key}']}")


def main() -> int:
    """Export, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="exports, kept there; default: a temporary folder")
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, separated by commas; default: all")
    parser.add_argument("--provider", default="cuda", choices=TARGETS)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything; default 480")
    parser.add_argument("--opset", type=int, default=17, help="of the exports; default 17")
    parser.add_argument("--graphs", action="store_true", help="also time under CUDA graphs")
    parser.add_argument("--half", action="store_true", help="also convert to float16 and measure that")
    parser.add_argument("--half-only", dest="single", action="store_false", help="with --half: nothing in float32")
    parser.add_argument("--level", default="default", help="of the optimization; default: default")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3), help="prepared at a time")
    parser.add_argument("--no-export", dest="export", action="store_false", help="use what the folder holds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    options.names = options.only.split(",")
    if unknown := [name for name in options.names if name not in NETWORKS]:
        parser.error(f"unknown networks {', '.join(unknown)}: choose among {', '.join(NETWORKS)}")
    clock = Clock(options.budget)
    state = doctor()
    full = FULL_NAMES[options.provider]
    if full not in state.providers_running:
        print(f"nothing measured: {full} does not start here; see graphopt doctor")
        return 4
    with tempfile.TemporaryDirectory(prefix="graphopt-exports-") as text:
        models = options.folder or Path(text)
        models.mkdir(parents=True, exist_ok=True)
        if options.export:
            files = [NETWORKS[name].file(name) for name in options.names]
            export_missing(models, files, options.opset, clock)
        document = run(models, options, clock)
    document = {
        "schema": 1,
        "made_by": "benchmarks/fusion.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "provider": full,
        "level": options.level,
        "sizes": {name: dict(NETWORKS[name].sizes) for name in options.names},
    } | document
    report(document)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.json, document)
    verdicts = [item["verdict"] for row in document["models"] for item in row.get("verdicts", ())]
    return 1 if "different" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
