"""Count the nodes that graphopt and its rivals leave of many models: ratios to the best rival, means over groups.

    python benchmarks/architectures.py FOLDER… --rivals PYTHON --cache FILE              run rivals once, graphopt now
    python benchmarks/architectures.py FOLDER… --cache FILE --only bert,gpt2             graphopt again on a few models
    python benchmarks/architectures.py FOLDER… --pairs                                   NAME.ts against NAME.dynamo

Constant nodes are not counted, nodes in bodies are, functions once. Every result, a rival's too, is compared with its
original by `checking.py`; one that is wrong, invalid or missing is no rival: `!` wrong, `~` could not be compared,
`*` signature changed, `+` operators of domains that the original does not use, so no portable result. What the rivals
made is kept in the cache by the SHA-256 of the model, so that later runs take only graphopt's own time. Groups:
TorchScript exports of attention networks with dynamic dims, and all others. Exit code 1 if a result of graphopt is
missing or wrong, larger than the best rival's, or over a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from common import (
    bodies,
    console,
    count_file_nodes,
    count_model_nodes,
    find_models,
    geometric_mean,
    measure,
    quiet_environment,
    table,
    versions,
    write_json,
)

HERE = Path(__file__).resolve().parent
RIVALS = ("onnxsim", "onnxslim", "onnxoptimizer", "onnxscript", "ort-basic")
OWN = ("graphopt", "graphopt-trust")
PAIR_TOOL = "graphopt-opset20"
LIMITS = {  # most nodes that the default result may have
    "bert_base.ts": 420,
    "gpt2.ts": 450,
    "gpt2_12l_h96.ts": 450,
    "swin_tiny.ts": 809,
    "detr.ts": 499,
    "unet_sd.ts": 650,
    "swinv2.ts": 387,
    "sam_vision.ts": 206,
}
GROUP_GOALS = {"graphopt": 0.65, "graphopt-trust": 0.60}  # of the best rival, geometric mean over the first group
TRANSFORMERS = "TorchScript, attention, dynamic dims"
OTHERS = "others"
PRODUCTS = ("MatMul", "Gemm", "Einsum")
COLUMNS = ["model", "exported", TRANSFORMERS, *(f"{tool}: nodes, seconds" for tool in OWN), *RIVALS]  # of the JSON

Entry = dict[str, Any]


# --- tools


class Tool:
    """A process of one tool that optimizes one model after the other, each in a fork (`tool_child.py --many`)."""

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self.command = [python, str(HERE / "tool_child.py"), name, "--many"]
        self.process: subprocess.Popen[str] | None = None
        self.versions: dict[str, str] = {}

    def start(self) -> subprocess.Popen[str]:
        """Start the process, unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **quiet_environment()},
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if not first:
            command = " ".join(self.command[:3])
            raise SystemExit(f"{self.name} does not start: run `{command} IN OUT` to see why")
        self.versions = json.loads(first)["versions"]
        return self.process

    def run(self, model: Path, target: Path, timeout: float) -> Entry:
        """Optimize one model; return the nodes left and the seconds, or what went wrong."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(model), str(target), timeout]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        answer: Entry = json.loads(line) if line else {"problem": "the tool's process ended"}
        if "problem" not in answer and not target.exists():
            answer = {"problem": "no result"}
        if "problem" in answer:
            return {"nodes": None, "seconds": None, "problem": answer["problem"]}
        left = onnx.load(target, load_external_data=False)
        before = onnx.load(model, load_external_data=False)
        return {
            "nodes": count_model_nodes(left),
            "seconds": round(answer["seconds"], 3),
            "problem": "",
            "foreign": sorted(domains(left) - domains(before)),
        }

    def end(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def domains(model: onnx.ModelProto) -> set[str]:
    """Return the domains of the nodes of a model, bodies included."""
    graphs = [model.graph]
    for graph in graphs:
        graphs += [body for node in graph.node for body in bodies(node)]
    return {node.domain or "ai.onnx" for graph in graphs for node in graph.node}


@contextlib.contextmanager
def tools_of(names: Sequence[str], python: str) -> Iterator[list[Tool]]:
    """Give tools of one environment; end their processes afterwards."""
    tools = [Tool(name, python) for name in names]
    try:
        yield tools
    finally:
        for tool in tools:
            tool.end()


def run_all(tools: Sequence[Tool], model: Path, options: argparse.Namespace) -> dict[str, Entry]:
    """Run tools on one model and compare what they made with it."""
    with tempfile.TemporaryDirectory(prefix="graphopt-architectures-") as folder:
        targets = {tool.name: Path(folder) / tool.name / model.name for tool in tools}
        made = {}
        for tool in tools:
            targets[tool.name].parent.mkdir()
            made[tool.name] = tool.run(model, targets[tool.name], options.timeout)
        if options.check:
            there = {name: targets[name] for name, entry in made.items() if not entry["problem"]}
            for name, verdict in check(model, there, options.timeout).items():
                made[name] |= verdict
    return made


def check(model: Path, targets: dict[str, Path], timeout: float) -> dict[str, Entry]:
    """Compare results with their original in one process; in one each for those that were left when it crashed."""
    found: dict[str, Entry] = {}
    for group in [list(targets), *([name] for name in targets)]:
        group = [name for name in group if name not in found]
        if not group:
            continue
        command = [sys.executable, str(HERE / "checking.py"), str(model), *(str(targets[name]) for name in group)]
        measured = measure(command, timeout * len(group), quiet_environment())
        lines = [json.loads(line) for line in measured.stdout.splitlines() if line.startswith("{")]
        for name, verdict in zip(group, lines, strict=False):
            found[name] = {key: verdict[key] for key in ("verdict", "reason", "signature", "checker")}
        if len(group) == 1 and group[0] not in found:
            found[group[0]] = {"verdict": "different", "reason": measured.problem(), "signature": [], "checker": None}
    return found


def mark(entry: Entry) -> str:
    """One character for the result of the check."""
    if "verdict" not in entry:
        return ""
    if entry["verdict"] == "different" or entry["checker"]:
        return "!"
    if entry["signature"]:
        return "*"
    if entry.get("foreign"):
        return "+"
    return "" if entry["verdict"] == "equal" else "~"


# --- cache


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a model file (not of external data)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_cache(path: Path | None) -> dict[str, Any]:
    """Read what rivals made of models, by fingerprint."""
    if path is None or not path.exists():
        return {"schema": 1, "versions": {}, "models": {}}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def ask_rivals(models: dict[str, Path], cache: dict[str, Any], options: argparse.Namespace) -> None:
    """Run the rivals on the models that the cache lacks; write the cache after each."""
    lacking = {key: path for key, path in models.items() if not set(RIVALS) <= set(results(cache, key))}
    if not lacking or options.rivals is None:
        return
    screen = console()
    with tools_of(RIVALS, str(options.rivals)) as tools:
        for number, (key, path) in enumerate(lacking.items()):
            made = run_all(tools, path, options)
            cache["models"][key] = {"file": path.name, "nodes": count_file_nodes(path), "results": made}
            cache["versions"] = next(tool.versions for tool in tools)
            if options.cache is not None:
                partial = options.cache.with_suffix(".partial")
                write_json(partial, cache)
                partial.replace(options.cache)
            shown = "  ".join(f"{name} {mark(entry)}{entry['nodes']}" for name, entry in made.items())
            screen.print(f"[dim]{number + 1}/{len(lacking)}[/dim] {path.name}: {shown}", soft_wrap=True)


def results(cache: dict[str, Any], key: str) -> dict[str, Entry]:
    """Return what the rivals made of a model, by tool; nothing if they were not asked."""
    found: dict[str, Entry] = cache["models"].get(key, {}).get("results", {})
    return found


def best_rival(entries: dict[str, Entry]) -> tuple[str, int] | None:
    """Return the rival with the fewest nodes among those whose result is not wrong, and its count."""
    fair = {name: entry for name, entry in entries.items() if not entry["problem"] and mark(entry) != "!"}
    counts = [(entry["nodes"], name) for name, entry in fair.items()]
    if not counts:
        return None
    nodes, name = min(counts)
    return name, nodes


def best_table(models: dict[str, Path], cache: dict[str, Any]) -> str:
    """Return lines of model, group, nodes exported, nodes of the best rival, its name, and every rival's count."""
    lines = ["\t".join(("model", "group", "exported", "best", "rival", *RIVALS))]
    for key, path in models.items():
        entries = results(cache, key)
        nodes = cache["models"].get(key, {}).get("nodes", "")
        rival, count = best_rival(entries) or ("", "")
        group = "ts-attention" if entries and group_of(path) == TRANSFORMERS else "others"
        counts = [cell(entries[name]) if name in entries else "" for name in RIVALS]
        lines.append("\t".join(map(str, (path.name.removesuffix(".onnx"), group, nodes, count, rival, *counts))))
    return "\n".join(lines) + "\n"


# --- groups


def group_of(path: Path) -> str:
    """Put a model into a group by what is in it."""
    model = onnx.load(path, load_external_data=False)
    return TRANSFORMERS if is_torchscript(model) and has_free_dims(model) and has_attention(model.graph) else OTHERS


def is_torchscript(model: onnx.ModelProto) -> bool:
    """Say whether PyTorch's TorchScript exporter wrote a model: the torch.export one describes every node's origin."""
    described = any(entry.key.startswith("pkg.torch") for node in model.graph.node for entry in node.metadata_props)
    return model.producer_name == "pytorch" and not described


def has_free_dims(model: onnx.ModelProto) -> bool:
    """Say whether an input has a dim without a fixed size."""
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    return any(not dim.HasField("dim_value") for dim in dims)


def has_attention(graph: onnx.GraphProto) -> bool:
    """Say whether Softmax stands between two products of matrices, and convolutions do not outnumber the products."""
    counts = {name: sum(node.op_type == name for node in graph.node) for name in (*PRODUCTS, "Conv")}
    if counts["Conv"] > sum(counts[name] for name in PRODUCTS):
        return False
    producers = {name: node for node in graph.node for name in node.output}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)

    def sources(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [producers[name] for name in node.input if name in producers]

    def users(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [user for name in node.output for user in consumers.get(name, ())]

    softmaxes = [node for node in graph.node if node.op_type == "Softmax"]
    return any(reaches_product(node, sources, 12) and reaches_product(node, users, 6) for node in softmaxes)


def reaches_product(
    node: onnx.NodeProto, neighbours: Callable[[onnx.NodeProto], list[onnx.NodeProto]], far: int
) -> bool:
    """Say whether a product of matrices lies within some steps of a node, in one direction."""
    found = [node]
    seen = {node.output[0]}
    for _ in range(far):
        found = [other for node in found for other in neighbours(node) if other.output[0] not in seen]
        if any(other.op_type in PRODUCTS for other in found):
            return True
        seen |= {other.output[0] for other in found}
    return False


# --- report


def compare(models: dict[str, Path], cache: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run graphopt on every model and put it beside the best rival."""
    rows = []
    screen = console()
    with tools_of(OWN[: 2 if options.trust else 1], sys.executable) as tools:
        for number, (key, path) in enumerate(models.items()):
            own = run_all(tools, path, options)
            rivals = results(cache, key)
            row = {
                "model": path.name,
                "nodes": count_file_nodes(path),
                "group": group_of(path),
                "own": own,
                "rivals": rivals,
                "best": best_rival(rivals),
            }
            rows.append(row)
            shown = "  ".join(f"{name} {mark(entry)}{entry['nodes']}" for name, entry in own.items())
            screen.print(f"[dim]{number + 1}/{len(models)}[/dim] {path.name}: {shown}", soft_wrap=True)
    return rows


def ratio(row: dict[str, Any], tool: str) -> float | None:
    """Return the nodes a tool left over those the best rival left; none count as one."""
    nodes = row["own"].get(tool, {}).get("nodes")
    if row["best"] is None or nodes is None:
        return None
    return float(max(nodes, 1) / max(row["best"][1], 1))


def cell(entry: Entry) -> str:
    """Return a count with its mark, or what went wrong."""
    return entry["problem"].partition(":")[0] if entry["problem"] else f"{mark(entry)}{entry['nodes']}"


def report(rows: list[dict[str, Any]], tools: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Print the tables; return the means by group, and what is not as it must be."""
    screen = console()
    means: dict[str, Any] = {}
    for group in (TRANSFORMERS, OTHERS):
        members = [row for row in rows if row["group"] == group]
        lines = []
        for row in members:
            rivals = [cell(row["rivals"][name]) if name in row["rivals"] else "" for name in RIVALS]
            best = f"{row['best'][1]} {row['best'][0]}" if row["best"] else ""
            shares = [ratio(row, tool) for tool in tools]
            own = [
                text
                for tool, share in zip(tools, shares, strict=True)
                for text in (cell(row["own"][tool]), "" if share is None else f"{share:.3f}")
            ]
            lines.append([Path(row["model"]).stem, row["nodes"], *rivals, best, *own])
        columns = ["model", "exported", *RIVALS, "best rival", *(text for tool in tools for text in (tool, "ratio"))]
        screen.print(table(f"nodes left: {group}", columns, lines))
        for tool in tools:
            ratios = [share for row in members if (share := ratio(row, tool)) is not None]
            left = [row["own"][tool]["nodes"] / max(row["nodes"], 1) for row in members if row["own"][tool]["nodes"]]
            means.setdefault(group, {})[tool] = {
                "models": len(ratios),
                "to_best_rival": geometric_mean(ratios),
                "to_export": geometric_mean(left),
            }
            screen.print(
                f"  {tool}: {geometric_mean(ratios):.3f} of the best rival over {len(ratios)} models (geometric mean), "
                f"{geometric_mean(left):.3f} of the export"
            )
    return means, failures(rows, tools, means)


def failures(rows: list[dict[str, Any]], tools: Sequence[str], means: dict[str, Any]) -> list[str]:
    """List what is not as it must be, one line each."""
    found = []
    for row in rows:
        name = Path(row["model"]).stem
        for tool in tools:
            entry = row["own"][tool]
            if entry["problem"]:
                found.append(f"{name}: {tool} failed: {entry['problem']}")
            elif mark(entry) in ("!", "*", "+"):
                why = entry["reason"] or entry["checker"] or entry["signature"] or f"uses {entry['foreign']}"
                found.append(f"{name}: {tool} {why}")
            if row["best"] is not None and entry["nodes"] is not None and entry["nodes"] > row["best"][1]:
                found.append(f"{name}: {tool} leaves {entry['nodes']}, {row['best'][0]} {row['best'][1]}")
        nodes = row["own"]["graphopt"]["nodes"]
        if name in LIMITS and nodes is not None and nodes > LIMITS[name]:
            found.append(f"{name}: {nodes} nodes, the limit is {LIMITS[name]}")
    for tool in tools:
        mean = means[TRANSFORMERS][tool]["to_best_rival"]
        if means[TRANSFORMERS][tool]["models"] and mean > GROUP_GOALS[tool]:
            found.append(f"{TRANSFORMERS}: {tool} leaves {mean:.3f} of the best rival, the goal is {GROUP_GOALS[tool]}")
    return found


def written(row: dict[str, Any]) -> list[Any]:
    """Return a row as it is kept: model, nodes exported, whether it is of the first group, then what each tool left."""
    entries = row["own"] | row["rivals"]
    left = [kept(entries[tool], tool in OWN) if tool in entries else None for tool in (*OWN, *RIVALS)]
    return [row["model"].removesuffix(".onnx"), row["nodes"], row["group"] == TRANSFORMERS, *left]


def kept(entry: Entry, timed: bool = True) -> list[Any] | int | str:
    """Return nodes, seconds and, unless the result is right and portable, what the check said; or what went wrong.

    Seconds of rivals are left out: they come from the cache, of another hour.

    What the check said: the verdict, what is not as in the original (`signature`, say), why it is not called equal.
    """
    if entry.get("problem"):
        return str(entry["problem"])
    verdict = entry.get("verdict", "not checked")
    said = [key for key in ("checker", "signature", "foreign") if entry.get(key)]
    details = [] if verdict == "not checked" or (verdict == "equal" and not said) else [verdict, *said]
    if verdict not in ("equal", "not checked"):
        details.append(entry["reason"].partition("[ONNXRuntimeError]")[0][:80].rstrip(": "))
    if not timed:
        return [entry["nodes"], *details] if details else int(entry["nodes"])
    return [entry["nodes"], entry["seconds"], *details]


def compare_forms(models: dict[str, Path], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Optimize the two exporter forms of each network at one opset; print their counts side by side."""
    by_name = {path.name: path for path in models.values()}
    pairs = {
        name.removesuffix(".ts.onnx"): (path, by_name[other])
        for name, path in by_name.items()
        if (other := name.replace(".ts.onnx", ".dynamo.onnx")) != name and other in by_name
    }
    rows: list[dict[str, Any]] = []
    with tools_of([PAIR_TOOL], sys.executable) as tools:
        for name, (script, dynamo) in pairs.items():
            made = [run_all(tools, path, options)[PAIR_TOOL] for path in (script, dynamo)]
            rows.append(
                {"network": name, "exported": [count_file_nodes(path) for path in (script, dynamo)], "own": made}
            )
    lines = []
    for row in rows:
        counts = [entry["nodes"] for entry in row["own"]]
        row["difference"] = None if None in counts else (counts[0] - counts[1]) / max(counts[1], 1)
        shown = "" if row["difference"] is None else f"{row['difference']:+.1%}"
        lines.append([row["network"], *row["exported"], *map(cell, row["own"]), shown])
    columns = ["network", "exported: TorchScript", "torch.export", "ours: TorchScript", "torch.export", "difference"]
    console().print(table("the two exporter forms at opset 20", columns, lines))
    apart = [abs(row["difference"]) for row in rows if row["difference"] is not None]
    if apart:
        console().print(
            f"  {sum(share <= 0.05 for share in apart)} of {len(apart)} networks within 5 %; "
            f"largest difference {max(apart):.1%}"
        )
    return rows


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="files and folders")
    parser.add_argument("--rivals", type=Path, metavar="PYTHON", help="a Python that has the rivals installed")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="what the rivals made; read, and added to")
    parser.add_argument("--rivals-only", action="store_true", help="fill the cache and stop")
    parser.add_argument("--best", type=Path, metavar="FILE", help="write the best rival of each model as TSV")
    parser.add_argument("--only", default="", metavar="TEXTS", help="only files with one of these texts in their names")
    parser.add_argument("--skip", default="", metavar="TEXTS", help="no files with one of these texts in their names")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not compare outputs")
    parser.add_argument("--no-trust", dest="trust", action="store_false", help="leave --trust-dim-names out")
    parser.add_argument("--pairs", action="store_true", help="compare NAME.ts.onnx with NAME.dynamo.onnx instead")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one run; default 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args()
    wanted = [text for text in options.only.split(",") if text]
    unwanted = [text for text in options.skip.split(",") if text]
    models = {
        fingerprint(path): path
        for path in find_models(options.models)
        if (not wanted or any(text in path.name for text in wanted)) and not any(text in path.name for text in unwanted)
    }
    document: dict[str, Any] = {"schema": 1, "versions": versions("onnx", "onnxruntime", "onnxruntime-gpu")}
    wrong: list[str] = []
    if options.pairs:
        document["forms"] = [row | {"own": [kept(e) for e in row["own"]]} for row in compare_forms(models, options)]
    else:
        cache = read_cache(options.cache)
        ask_rivals(models, cache, options)
        if options.best:
            options.best.write_text(best_table(models, cache), encoding="utf-8")
        if options.rivals_only:
            return 0
        tools = OWN[: 2 if options.trust else 1]
        rows = compare(models, cache, options)
        means, wrong = report(rows, tools)
        document |= {"rivals": cache["versions"], "means": means, "wrong": wrong, "columns": COLUMNS}
        document["models"] = list(map(written, rows))
        for line in wrong:
            console().print(f"  {line}", soft_wrap=True)
    if options.json:
        write_json(options.json, document)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
