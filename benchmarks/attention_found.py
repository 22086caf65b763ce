"""Count the attentions of models that graphopt writes as one operator of ONNX Runtime, and say why the others are not.

    python benchmarks/attention_found.py FOLDER… [--target ort-cpu] [--only bert,vit] [--verify] [--json FILE]

Each model is looked at as it is and, where it has free dims, with all of them fixed (`--form` for one of the two).
Expected are the Softmax of the model as exported whose scores come from a product of two matrices that are computed,
or of learned queries and computed keys, and its Attention operators, local functions inlined, less those that are
folded, merged or found unread.
Found are the fused operators of the result. Exit code 1 if a model failed, or if a result is not equal where that is
asked for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
from common import console, find_models, table, versions, write_json

import graphopt
from graphopt import Graph, Node, Value

FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention")
TARGETS = ("ort-cpu", "ort-cuda")
LEFT = "was left alone: "
_BETWEEN = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Where", "Reshape", "Cast", "Tanh", "Unsqueeze", "Squeeze", "Identity", "Neg"),
        *("Transpose", "Expand", "Max", "Min", "Clip", "Slice", "Concat", "Flatten"),
    )
)
_FURTHEST = 60
AS_IT_IS, FIXED = "as exported", "fixed sizes"
SIZES = {
    "batch": 2,
    "sequence": 12,
    "dec_sequence": 6,
    "past_sequence": 5,
    "total_sequence": 17,  # earlier ones and new ones
    "samples": 16000,
    "width": 64,
    "time": 4,
}
TAKEN_FOR_GRANTED: dict[str, dict[str, int]] = {  # by the exporter: the export is right for these sizes only
    "levit.dynamo": {"batch": 1},
    "segformer.dynamo": {"batch": 1},
    "yolos.dynamo": {"batch": 1},
    "llama_past.dynamo": {"sequence": 1, "total_sequence": 6},
}


@dataclass(slots=True)
class Row:
    """What became of one model for one target.

    Attributes:
        model: The file's name without its ending.
        form: As exported, or with fixed sizes.
        target: What it was optimized for.
        expected: Attentions in the model as exported.
        gone: How many of them the passes for every target fold, merge or find unread.
        found: Fused operators in the result, by name.
        reasons: Why others were left alone, with how many.
        verdict: What verifying said, "" if it was not asked.
        seconds: How long optimizing took.
        error: Why there is no result.
    """

    model: str
    form: str
    target: str
    expected: int
    gone: int = 0
    found: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    verdict: str = ""
    seconds: float = 0.0
    error: str = ""


def sizes_of(path: Path) -> dict[str, int]:
    """A size for each free dim of a model's inputs; the same for dims that a table does not know.

    Args:
        path: The model.
    """
    known = SIZES | TAKEN_FOR_GRANTED.get(path.stem, {})
    inputs = graphopt.load(path).inputs
    free = dict.fromkeys(str(dim) for value in inputs for dim in value.shape or () if not isinstance(dim, int))
    return {name: known.get(name, SIZES["batch"]) for name in free}


def expected_in(model: Path | onnx.ModelProto, sizes: dict[str, int]) -> int:
    """How many attentions a model has."""
    flat = graphopt.optimize(model, passes=["functions"], fix_dims=sizes, measure=False).model
    graph = graphopt.load(flat)
    return sum(_count(item) for item in graph.model.graphs())


def _count(graph: Graph) -> int:
    order = graph.order()
    fixed: set[Value] = set()
    for node in order:
        if all(value is None or value.const is not None or value in fixed for value in node.operands):
            fixed.update(node.results)
    found = 0
    for node in order:
        if node.op_type in ("Attention", "MultiHeadAttention", "GroupQueryAttention"):
            found += 1
        elif node.op_type == "Softmax" and node.domain == "" and node.operands[0] is not None:
            found += _is_of_product(node.operands[0], fixed)
    return found


def _is_of_product(scores: Value, fixed: set[Value]) -> bool:
    """True if scores come from a product of two matrices, of which the second, at least, is computed."""
    front, seen = [scores], {scores}
    while front and len(seen) < _FURTHEST:
        node: Node = front.pop(0).producer
        if not node.is_operator:
            continue
        operands = [value for value in node.operands if value is not None]
        if node.op_type in ("MatMul", "Einsum", "Gemm"):
            is_fixed = [value.const is not None or value in fixed for value in operands[:2]]
            is_learned = is_fixed == [True, False] and (operands[0].rank or 0) > 2  # queries
            if not any(is_fixed) or is_learned:
                return True
        elif node.op_type in _BETWEEN:
            front += [value for value in operands if value not in seen]
            seen.update(operands)
    return False


def look_at(path: Path, target: str, sizes: dict[str, int], *, verifies: bool) -> Row:
    """Optimize one model, with fixed sizes if there are some, and count."""
    row = Row(path.stem, FIXED if sizes else AS_IT_IS, target, 0)
    try:
        row.expected = expected_in(path, sizes)
        left = row.expected and expected_in(graphopt.optimize(path, fix_dims=sizes, measure=False).model, {})
        began = time.perf_counter()
        result = graphopt.optimize(path, target=target, fix_dims=sizes)
    except graphopt.GraphoptError as error:
        row.error = str(error)
        return row
    row.seconds = round(time.perf_counter() - began, 3)
    graph = graphopt.load(result.model)
    nodes = [node for item in graph.model.graphs() for node in item.order()]
    row.found = dict(
        Counter(node.op_type for node in nodes if node.op_type in FUSED and node.domain == "com.microsoft")
    )
    # Two that are found to be the same once they are one operator each were one.
    still = sum(node.op_type == "Softmax" or (node.op_type == "Attention" and node.domain == "") for node in nodes)
    left = min(left, sum(row.found.values()) + still)
    row.gone = row.expected - left
    if sum(row.found.values()) < left:
        told: dict[str, str] = {}
        for note in result.report.notes:
            where, found, reason = note.partition(LEFT)
            if found:
                told.setdefault(where, reason)
        row.reasons = dict(Counter(told.values()))
    if verifies:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / path.name
            result.save(written)
            row.verdict = graphopt.verify(path, written, provider="cpu", dims=sizes or None).verdict
    return row


def kept(rows: list[Row]) -> list[dict[str, Any]]:
    """Return rows without what is empty; targets with the same result share one, with the seconds of the first."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        entry = {key: value for key, value in asdict(row).items() if value not in ("", {}, 0)}
        target, seconds = entry.pop("target"), entry.pop("seconds", None)
        made = found.setdefault((row.model, row.form, repr(entry)), {**entry, "seconds": seconds, "targets": []})
        made["targets"].append(target)
    return list(found.values())


def main() -> None:
    """Print a table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("places", nargs="+", help="models, or folders of them")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this target; may be repeated")
    parser.add_argument("--form", choices=("exported", "fixed"), help="only as exported, or only with fixed sizes")
    parser.add_argument("--only", default="", help="only models whose name contains one of these, comma-separated")
    parser.add_argument("--skip", default="", help="no models whose name contains one of these, comma-separated")
    parser.add_argument("--verify", action="store_true", help="compare results with the originals on the CPU provider")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file, too")
    arguments = parser.parse_args()
    wanted, unwanted = (list(filter(None, text.split(","))) for text in (arguments.only, arguments.skip))
    rows: list[Row] = []
    for path in find_models(arguments.places):
        if (wanted and not any(part in path.stem for part in wanted)) or any(part in path.stem for part in unwanted):
            continue
        sizes = sizes_of(path)
        forms: list[dict[str, int]] = [{}] if arguments.form != "fixed" or not sizes else []
        forms += [sizes] if arguments.form != "exported" and sizes else []
        for fixed in forms:
            for target in arguments.target or TARGETS:
                row = look_at(path, target, fixed, verifies=arguments.verify)
                if row.expected or row.found or row.error:
                    rows.append(row)
    columns = ["model", "sizes", "target", "found / expected", "as", "left alone because"]
    lines = []
    for row in rows:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(row.found.items()))
        reasons = "; ".join(f"{count} x {reason}" for reason, count in row.reasons.items())
        share = f"{sum(row.found.values())} / {row.expected - row.gone}" + (f" {row.verdict}" if row.verdict else "")
        lines.append([row.model, row.form, row.target, share, kinds, row.error or reasons])
    out = console()
    out.print(table("Attentions found", columns, lines))
    for form in (AS_IT_IS, FIXED):
        for target in arguments.target or TARGETS:
            mine = [row for row in rows if (row.target, row.form) == (target, form)]
            found, expected = sum(sum(row.found.values()) for row in mine), sum(row.expected - row.gone for row in mine)
            out.print(f"{target}, {form}: {found} of {expected} in {len(mine)} models")
    if arguments.json:
        write_json(
            arguments.json,
            {
                "versions": versions("onnxruntime-gpu", "onnx"),
                "rows": kept(rows),
            },
        )
    if any(row.error or row.verdict not in ("", "equal") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
