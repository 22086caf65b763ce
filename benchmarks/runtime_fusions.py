"""Compare what ONNX Runtime's own fusions find in a model and in graphopt's result: none may be lost.

    python benchmarks/runtime_fusions.py models [--cache FILE] [--json FILE]

Both are loaded as users load them (all optimizations, CPU provider, or `--provider cuda`), each in a process of its own
(`runtime_graph.py`), and the operators of the graphs that run are counted. Fused are the operators of the runtime's own
domains and the standard ones that it also fuses to, whether it made them or found them. A stronger fusion counts for
the weaker ones of its family: a LayerNormalization that became a SkipLayerNormalization is not lost, and a Gemm counts
only where the runtime made it. Fewer of one kind are a loss if the operators that it is made of stay behind instead;
where they went too (equal expressions merged, a product folded into weights), it is shown and is none. Exit code 1 if
anything was lost, or did not load.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import onnx
from architectures import fingerprint
from common import console, find_models, geometric_mean, table, versions, write_json
from runtime_graph import ask, operators
from tool_child import TOOLS, run_in_fork

RUNTIME_DOMAINS = ("com.microsoft", "com.ms")


@dataclass(frozen=True, slots=True)
class Family:
    """Fused operators that stand for the same part of a model.

    Attributes:
        members: Operators without their domain; a stronger form stands in an earlier group.
        parts: What is seen in a graph where the fusion did not happen.
    """

    name: str
    members: tuple[tuple[str, ...], ...]
    parts: tuple[str, ...]


FAMILIES = (
    Family(
        "normalization",
        (
            ("EmbedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipGroupNorm"),
            ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "GroupNorm"),
            ("GroupNormalization", "InstanceNormalization", "BatchNormalization"),
        ),
        ("ReduceMean", "Pow", "Sqrt", "Reciprocal"),
    ),
    Family(
        "attention",
        (
            ("Attention", "QAttention", "DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "MultiHeadAttention"),
            ("BiasSplitGelu", "BiasSoftmax", "PackedAttention"),
        ),
        ("Softmax",),
    ),
    Family("gelu", (("BiasGelu",), ("Gelu", "FastGelu", "QuickGelu")), ("Erf", "Tanh", "Sigmoid")),
    Family("rotary", (("RotaryEmbedding", "GemmaRotaryEmbedding"),), ("Sin", "Cos", "Neg")),
    Family("product", (("FusedGemm",), ("Gemm",)), ("MatMul",)),
    Family("scaled or transposed product", (("FusedMatMul", "TransposeMatMul"),), ("Transpose", "Mul", "Div")),
    Family(
        "convolution",
        (("FusedConv", "NhwcFusedConv", "nchwc::Conv"), ("NhwcConv", "Conv")),
        ("Relu", "Clip", "LeakyRelu", "Sigmoid", "BatchNormalization"),
    ),
    Family(
        "quantized",
        (
            ("QGemm", "QLinearConv", "DynamicQuantizeMatMul", "QLinearMatMul"),
            ("MatMulIntegerToFloat", "MatMulNBits", "ConvInteger", "MatMulInteger"),
            ("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearConcat"),
        ),
        ("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear"),
    ),
)
IGNORED = ("nchwc::ReorderInput", "nchwc::ReorderOutput")  # the price of a layout, no fusion


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of fused operator of which the runtime finds fewer in the result.

    Attributes:
        lost: It is a loss, not a part of the model that is no longer there.
    """

    operator: str
    before: int
    after: int
    parts_before: int
    parts_after: int
    lost: bool


def plain(operators: Mapping[str, int]) -> Counter[str]:
    """Count operators without their domains, but tell the blocked layout's operators (`nchwc::Conv`) apart."""
    counts = Counter[str]()
    for name, count in operators.items():
        domain, _, kind = name.rpartition("::")
        counts[f"nchwc::{kind}" if domain.endswith("nchwc") else kind] += count
    return counts


def foreign(operators: Mapping[str, int]) -> Counter[str]:
    """Count the operators of the runtime's own domains that belong to no family."""
    known = {member for family in FAMILIES for group in family.members for member in group} | set(IGNORED)
    theirs = {name: count for name, count in operators.items() if name.startswith(RUNTIME_DOMAINS)}
    return Counter({name: count for name, count in plain(theirs).items() if name not in known})


def fewer(
    before: Mapping[str, int], after: Mapping[str, int], written: Mapping[str, int] | None = None
) -> Iterator[Row]:
    """Yield the kinds of fused operators of which the second graph has fewer than the first.

    Args:
        before: Operators of the original as it runs.
        after: Operators of the result as it runs.
        written: Operators of the original as it is written: a Gemm there is no fusion of the runtime's.
    """
    old, new = plain(before), plain(after)
    old["Gemm"] = max(0, old["Gemm"] - (written or {}).get("Gemm", 0))
    for family in FAMILIES:
        stronger: list[str] = []
        told = 0
        for index, group in enumerate(family.members):
            stronger += group
            left = list(family.parts) + [member for weaker in family.members[index + 1 :] for member in weaker]
            counts = [sum(graph[name] for name in stronger) for graph in (old, new)]
            parts = [sum(graph[name] for name in left) for graph in (old, new)]
            short, told_before = counts[0] - counts[1], told
            told = max(told, short)
            if short > told_before:
                names = "/".join(name for name in stronger if old[name])
                yield Row(names, counts[0], counts[1], parts[0], parts[1], parts[1] > parts[0])
    others_before, others_after = foreign(before), foreign(after)
    for name, count in others_before.items():
        if others_after[name] < count:
            yield Row(name, count, others_after[name], 0, 0, True)


def fused(operators: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of all fused operators of a graph."""
    known = {member for family in FAMILIES for group in family.members for member in group}
    counts = {name: count for name, count in plain(operators).items() if name in known and name not in ("Conv", "Gemm")}
    return counts | dict(foreign(operators))


def optimize(model: Path, target: Path, tool: str, timeout: float) -> str:
    """Optimize a model in a fork; return what went wrong, or nothing."""
    answer = run_in_fork(TOOLS[tool](), str(model), str(target), timeout)
    return str(answer.get("problem", ""))


def compare(model: Path, cache: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Count what runs of one model before and after."""
    key = f"{options.provider} {fingerprint(model)}"
    if key not in cache:
        cache[key] = ask(model, options.provider, options.timeout)
    document: dict[str, Any] = {"model": model.name, "before": cache[key], "after": {}, "fewer": [], "problem": ""}
    if "problem" in cache[key]:
        return document
    with tempfile.TemporaryDirectory(prefix="graphopt-runtime-fusions-") as folder:
        target = Path(folder) / model.name
        document["problem"] = optimize(model, target, options.tool, options.timeout)
        if not document["problem"]:
            document["after"] = ask(target, options.provider, options.timeout)
            document["problem"] = document["after"].get("problem", "")
    if not document["problem"]:
        written = operators(onnx.load(model, load_external_data=False))
        rows = fewer(document["before"]["operators"], document["after"]["operators"], written)
        document["fewer"] = [asdict(row) for row in rows]
    return document


def written(document: dict[str, Any]) -> dict[str, Any]:
    """Return a model as it is kept: nodes and copies of the graphs that run, and fusions of which there are fewer."""
    sides = [document["before"], document["after"]]
    row: dict[str, Any] = {"model": document["model"].removesuffix(".onnx")}
    if problem := document["problem"] or document["before"].get("problem"):
        return row | {"problem": problem}
    row["nodes"] = [side["nodes"] for side in sides]
    if any(side["copies"] for side in sides):
        row["copies"] = [side["copies"] for side in sides]
    if document["fewer"]:
        row["fewer"] = [list(fusion.values()) for fusion in document["fewer"]]
    return row


def report(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the tables; return the totals."""
    screen = console()
    both = [document for document in documents if document["after"] and not document["problem"]]
    totals: dict[str, Counter[str]] = {"before": Counter(), "after": Counter()}
    for document in both:
        for side, counts in totals.items():
            counts.update(fused(document[side]["operators"]))
    names = sorted({*totals["before"], *totals["after"]})
    rows = [[name, totals["before"][name], totals["after"][name]] for name in names]
    screen.print(
        table("fused operators in the graphs that run, all models together", ["operator", "original", "ours"], rows)
    )
    rows = [
        [d["model"], d["before"]["nodes"], d["after"]["nodes"], d["before"]["copies"], d["after"]["copies"]]
        for d in both
    ]
    columns = ["model", "original", "ours", "copies", "ours"]
    screen.print(table("nodes of the graph that runs", columns, rows))
    lines = [
        [
            d["model"],
            row["operator"],
            row["before"],
            row["after"],
            f"{row['parts_before']} → {row['parts_after']}",
            "LOST" if row["lost"] else "gone with its parts",
        ]
        for d in both
        for row in d["fewer"]
    ]
    if lines:
        screen.print(table("fewer fusions", ["model", "operator", "original", "ours", "parts left", ""], lines))
    for document in documents:
        if document["problem"]:
            screen.print(f"  {document['model']}: {document['problem']}", soft_wrap=True)
        elif "problem" in document["before"]:
            screen.print(
                f"  {document['model']}: the original does not load: {document['before']['problem']}", soft_wrap=True
            )
    mean = geometric_mean([d["after"]["nodes"] / d["before"]["nodes"] for d in both if d["before"]["nodes"]])
    lost = sum(row["lost"] for d in both for row in d["fewer"])
    screen.print(
        f"  {len(both)} models, {lost} kinds of fusion lost; "
        f"nodes that run: {mean:.3f} of the original's (geometric mean)"
    )
    together = {name: [totals["before"][name], totals["after"][name]] for name in names}
    return {"models": len(both), "lost": lost, "nodes_that_run": mean, "fused": together}


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="files and folders")
    parser.add_argument("--tool", default="graphopt", help="graphopt, graphopt-exact or graphopt-trust")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--only", default="", metavar="TEXTS", help="only files with one of these texts in their names")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="what runs of the originals; read, and added to")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one step; default 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything counted")
    options = parser.parse_args()
    wanted = [text for text in options.only.split(",") if text]
    cache: dict[str, Any] = {}
    if options.cache is not None and options.cache.exists():
        cache = json.loads(options.cache.read_text(encoding="utf-8"))
    documents = []
    models = [m for m in find_models(options.models) if not wanted or any(text in m.name for text in wanted)]
    for number, model in enumerate(models):
        documents.append(compare(model, cache, options))
        lost = [row["operator"] for row in documents[-1]["fewer"] if row["lost"]]
        said = documents[-1]["problem"] or (f"lost {', '.join(lost)}" if lost else "nothing lost")
        console().print(f"[dim]{number + 1}/{len(models)}[/dim] {model.name}: {said}", soft_wrap=True)
        if options.cache is not None:
            write_json(options.cache, cache)
    totals = report(documents)
    if options.json:
        found = versions("onnx", "onnxruntime", "onnxruntime-gpu")
        columns = {"nodes": ["original", "ours"], "fewer": [field.name for field in fields(Row)]}
        head = {"schema": 1, "versions": found, "totals": totals, "columns": columns}
        write_json(options.json, head | {"models": list(map(written, documents))})
    return 1 if totals["lost"] or any(document["problem"] for document in documents) else 0


if __name__ == "__main__":
    sys.exit(main())
