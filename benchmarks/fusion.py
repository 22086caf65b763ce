"""What fusing for ONNX Runtime wins on a device, beside the runtime's own optimizer for transformers.

    python benchmarks/fusion.py [FOLDER] --json FILE               on a machine with CUDA and PyTorch
    python benchmarks/fusion.py FOLDER --provider cpu --only bert_base --no-export

Each network (`NAME.ts.onnx`, made by `models/known_networks.py` where the folder lacks it) gets fixed sizes and is then
optimized for the provider's target. Timed against the model as exported, alternating in one run, under the runtime's
default optimization: the result; what `onnxruntime.transformers.optimizer` makes of the same model; with `--graphs`
both under CUDA graphs; and with `--half` all of it again from a float16 copy made by the runtime's own converter. The
verdict on each result is by `graphopt.verify` on this provider and on the CPU.

Everything fits into `--budget` seconds: what is not reached is named. Exit codes: 0 measured, 1 a result differs, 4 the
provider does not start here, so nothing was measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
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
from graphopt.runtime import doctor

TEXT = {"batch": 4, "sequence": 128}
# Network -> (sizes of its free dims, kind of model for the rival, heads, width); in the order of measuring.
NETWORKS: dict[str, tuple[Mapping[str, int], str, int, int]] = {
    "bert_base": (TEXT, "bert", 12, 768),
    "vit_base": ({"batch": 8}, "vit", 12, 768),
    "gpt2": (TEXT, "gpt2", 12, 768),
    "llama": (TEXT, "gpt2", 16, 1024),
    "unet_sd": ({"batch": 2, "sequence": 77}, "unet", 0, 0),
    "swin_tiny": ({"batch": 8}, "swin", 0, 0),
    "t5_encoder": (TEXT, "t5", 8, 512),
    "detr": ({"batch": 8}, "bert", 4, 128),
    "segformer": ({"batch": 8}, "bert", 0, 0),
    "resnet50": ({"batch": 8}, "", 0, 0),
    "mobilenet_v2": ({"batch": 8}, "", 0, 0),
    "convnext_tiny": ({"batch": 8}, "", 0, 0),
    "efficientnet_b0": ({"batch": 8}, "", 0, 0),
}
TARGETS = {"cuda": "ort-cuda", "cpu": "ort-cpu"}
GRAPHS = {"enable_cuda_graph": "1"}
LEAST_TIMING, MOST_TIMING = 3.0, 15.0  # seconds of one comparison

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
    """Write a model with fixed sizes, and nothing else changed."""
    graph = graphopt.load(model)
    free = {str(dim) for value in graph.inputs for dim in value.shape or () if not isinstance(dim, int)}
    names = {name for name in sizes if any(name in text for text in free)}
    api.change_signature(graph, Signature(fix_dims={name: sizes[name] for name in names}))
    graphopt.save(graph, target)
    return target


def timed(first: Path, second: Path, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Time two models against each other; keep what a table needs."""
    speed = graphopt.benchmark(
        first, second, provider=options.provider, max_time=options.slice, memory=False, sessions=5, decode=0, **more
    )
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


def judged(model: Path, result: Path, provider: str) -> dict[str, str]:
    """The verdict on a result."""
    found = graphopt.verify(model, result, provider=provider, timeout=120.0)
    return {"verdict": found.verdict, "reason": found.reason, "provider": found.provider}


def fusions(result: graphopt.Result) -> dict[str, int]:
    """How often each rule for the target fired."""
    return {name: count for name, count in result.report.rewrites_by_rule.items() if name.startswith("fusion.")}


def measure(name: str, model: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All comparisons of one network, in one precision."""
    _, kind, heads, width = NETWORKS[name.split(".")[0]]
    row: dict[str, Any] = {"network": name, "problem": ""}
    fused, rival = folder / f"{name}.fused.onnx", folder / f"{name}.rival.onnx"
    try:
        result = graphopt.optimize(model, target=TARGETS[options.provider])
        result.save(fused)
        row |= {"nodes": [result.report.nodes_before, result.report.nodes_after], "fusions": fusions(result)}
        row["optimize_seconds"] = round(result.report.seconds, 3)
        row["runs"] = [ask(path, options.provider) for path in (model, fused)]
        for graph in row["runs"]:
            graph.pop("operators", None)  # too long to keep
        row["verdicts"] = [judged(model, fused, where) for where in dict.fromkeys((options.provider, "cpu"))]
        row["default"] = timed(model, fused, options)
        if options.graphs:
            row["graphs"] = timed(model, fused, options, provider_options=GRAPHS)
    except (GraphoptError, OSError) as error:
        row["problem"] = f"{type(error).__name__}: {error}"
        return row
    if not kind:
        return row
    try:
        half = "1" if name.endswith(".half") else "0"
        source = options.plain[name.split(".")[0]] if half == "1" else model
        failure = run_python(_RIVAL, source, rival, kind, heads, width, options.provider, half)
        row["rival_problem"] = failure
        if not failure:
            row["against_rival"] = timed(rival, fused, options)
            row["rival"] = judged(model, rival, options.provider)
    except (GraphoptError, OSError, subprocess.TimeoutExpired) as error:
        row["rival_problem"] = f"{type(error).__name__}: {error}"
    return row


def sentence(row: Mapping[str, Any]) -> str:
    """One line on one network."""
    if row["problem"]:
        return f"{row['network']}: {row['problem']}"
    parts = [f"{row['nodes'][0]} → {row['nodes'][1]} nodes", "/".join(item["verdict"] for item in row["verdicts"])]
    for key, what in (
        ("default", "as fast"),
        ("graphs", "with CUDA graphs"),
        ("against_rival", "as fast as the rival"),
    ):
        if key in row and row[key]["ratio"]:
            parts.append(f"{interval(row[key])} {what}")
    if row.get("rival_problem"):
        parts.append(f"rival: {row['rival_problem']}")
    return f"{row['network']}: {', '.join(parts)}"


def interval(latency: Mapping[str, Any]) -> str:
    """A ratio with its interval."""
    return f"{latency['ratio']:.3f} [{latency['low']:.3f}, {latency['high']:.3f}]"


def run(models: Path, options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Measure everything that the budget allows."""
    names = [name for name in options.names if (models / f"{name}.ts.onnx").exists()]
    jobs = [(name, half) for half in ((False, True) if options.half else (False,)) for name in names]
    jobs = [(name, half) for name, half in jobs if not half or NETWORKS[name][1]]
    rows, unreached = [], [f"{name}.ts.onnx" for name in options.names if name not in names]
    options.plain = {}
    with tempfile.TemporaryDirectory(prefix="graphopt-fusion-") as text:
        folder = Path(text)
        for index, (name, half) in enumerate(jobs):
            label = f"{name}.half" if half else name
            fair = clock.left() / (len(jobs) - index)
            if fair < 2 * LEAST_TIMING:
                unreached.append(label)
                continue
            # Optimizing, verifying on two providers and loading sessions take about as long as the timing itself.
            options.slice = min(MOST_TIMING, max(LEAST_TIMING, fair * 0.5 / (3 if options.graphs else 2)))
            if not half:
                options.plain[name] = with_sizes(models / f"{name}.ts.onnx", folder / f"{name}.onnx", NETWORKS[name][0])
                model = options.plain[name]
            else:
                model = folder / f"{label}.onnx"
                problem = run_python(_HALF, options.plain[name], model)
                if problem:
                    rows.append({"network": label, "problem": f"not converted: {problem}"})
                    continue
            rows.append(measure(label, model, folder, options))
            print(f"[{clock.left():.0f} s left] {sentence(rows[-1])}", flush=True)
    return {"models": rows, "not_reached": unreached}


def report(document: dict[str, Any]) -> None:
    """Print a table and add the means to the document."""
    lines = []
    for row in document["models"]:
        if row["problem"]:
            continue
        cells = [interval(row[key]) if row.get(key, {}).get("ratio") else "" for key in ("default", "graphs")]
        rival = interval(row["against_rival"]) if row.get("against_rival", {}).get("ratio") else ""
        runs = " → ".join(str(side.get("nodes", "?")) for side in row["runs"])
        verdict = "/".join(item["verdict"] for item in row["verdicts"])
        lines.append([row["network"], runs, verdict, *cells, rival])
    columns = ["model", "nodes that run", "verdict", "as fast", "with CUDA graphs", "against the rival"]
    screen = console()
    screen.print(table("Fused for ONNX Runtime, with 99 % intervals", columns, lines))
    for key in ("default", "graphs", "against_rival"):
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
            export_missing(models, options.names, options.opset, clock)
        document = run(models, options, clock)
    document = {
        "schema": 1,
        "made_by": "benchmarks/fusion.py",
        "date": date.today().isoformat(),
        "device": device(),
        "versions": dict(state.versions),
        "provider": full,
        "sizes": {name: dict(NETWORKS[name][0]) for name in options.names},
    } | document
    report(document)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.json, document)
    verdicts = [item["verdict"] for row in document["models"] for item in row.get("verdicts", ())]
    return 1 if "different" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
