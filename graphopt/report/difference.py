"""How two models differ, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from graphopt.ir import Graph
from graphopt.report.units import bytes_text

Row = tuple[str, str, str]
_NAMES_SHOWN = 12


def compare_models(before: Graph, after: Graph) -> list[Row]:
    """Rows of what, before, after; empty if nothing a reader would see differs."""
    return [
        *_signature("input", _inputs(before), _inputs(after)),
        *_signature("output", _outputs(before), _outputs(after)),
        *_rows("IR version", str(before.model.ir_version), str(after.model.ir_version)),
        *_signature("opset", _opsets(before), _opsets(after)),
        *_rows("constants", _constants(before), _constants(after)),
        *_counts("operator", _operators(before), _operators(after)),
        *_names(before, after),
    ]


def _rows(what: str, was: str, now: str) -> Iterator[Row]:
    if was != now:
        yield what, was, now


def _signature(what: str, was: dict[str, str], now: dict[str, str]) -> Iterator[Row]:
    for name in dict.fromkeys([*was, *now]):
        yield from _rows(f"{what} {name}", was.get(name, "-"), now.get(name, "-"))


def _counts(what: str, was: Counter[str], now: Counter[str]) -> Iterator[Row]:
    for name in sorted({*was, *now}, key=lambda name: (now[name] - was[name], name)):
        yield from _rows(f"{what} {name}", str(was[name]), str(now[name]))


def _inputs(graph: Graph) -> dict[str, str]:
    return {value.name or "": str(value.type) for value in graph.inputs}


def _outputs(graph: Graph) -> dict[str, str]:
    return {
        name: str(value.dtype.text if value.dtype else "?")
        for (name, _), value in zip(graph.details["outputs"], graph.outputs, strict=True)
    }


def _opsets(graph: Graph) -> dict[str, str]:
    return {domain or "ai.onnx": str(version) for domain, version in graph.opsets.items()}


def _constants(graph: Graph) -> str:
    tensors = [node.tensor for inner in graph.model.graphs() for node in inner.constants() if node.tensor is not None]
    return f"{len(tensors)}, {bytes_text(sum(tensor.nbytes for tensor in tensors))}"


def _operators(graph: Graph) -> Counter[str]:
    counts: Counter[str] = Counter()
    for inner in graph.model.graphs():
        for domain, op_type in inner.kinds:
            counts[f"{domain}.{op_type}" if domain else op_type] += len(inner.of_kind(op_type, domain))
    return counts


def _names(before: Graph, after: Graph) -> Iterator[Row]:
    was, now = set(_node_names(before)), set(_node_names(after))
    gone, new = sorted(was - now), sorted(now - was)
    if gone or new:
        yield "node names", _listed(gone), _listed(new)


def _node_names(graph: Graph) -> Iterable[str]:
    return (node.name for inner in graph.model.graphs() for node in inner.nodes() if node.name)


def _listed(names: list[str]) -> str:
    rest = f", … {len(names)} in all" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + rest) or "-"
