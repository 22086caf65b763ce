"""The attention that ONNX Runtime itself makes one operator of, which asks for queries, keys and values apart.

It knows older exporters' spelling only: scores divided by the root of the head's size, and masked by adding what was
multiplied by -10000, or by a choice between them and -10000 or another fill.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import Node, Value

_MASKED = -10000.0
_VIEWS = ("Concat", "Transpose")
_LONGEST = 4


def is_known_to_runtime(views: Iterable[Node]) -> bool:
    """True if what these views give may be the queries, keys or values of such an attention."""
    return any(is_masked_as_known(scores) for node in views for scores in _products(node.results[0]))


def _products(value: Value) -> list[Value]:
    """The products a value goes into, through nothing but what moves it."""
    found, front = [], [value]
    for _ in range(_LONGEST):
        nodes = [node for item in front for node in item.users]
        found += [node.results[0] for node in nodes if node.is_op("MatMul")]
        # Queries may be scaled before the product.
        front = [node.results[0] for node in nodes if node.op_type in (*_VIEWS, "Div") and node.domain == ""]
    return found


def is_masked_as_known(scores: Value) -> bool:
    """True if scores are masked in the way the runtime knows."""
    node = _reader(scores)
    is_divided = node is not None and node.is_op("Div")
    if is_divided and node is not None:
        node = _reader(node.results[0])
    if node is not None and node.is_op("Where"):
        return is_divided or _reads_equal(node.operands[0])
    if node is None or not is_divided or not node.is_op("Add"):
        return False
    return any(_is_number(value, _MASKED) for mask in node.operands if mask is not None for value in _factors(mask))


def _reader(value: Value) -> Node | None:
    """The node that computes with a value, beside those that ask for its shape."""
    readers = [node for node in value.users if not node.is_op("Shape")]
    return readers[0] if len(readers) == 1 else None


def _factors(value: Value) -> list[Value]:
    maker = value.producer
    return [item for item in maker.operands if item is not None] if maker.is_op("Mul") else []


def _is_number(value: Value, number: float) -> bool:
    return value.const is not None and value.const.size == 1 and value.const.scalar() == number


def _reads_equal(value: Value | None) -> bool:
    """True if a condition is a comparison, seen through views."""
    for _ in range(_LONGEST):
        if value is None or not value.producer.operands:
            return False
        if value.producer.is_op("Equal"):
            return True
        value = value.producer.operands[0]
    return False
