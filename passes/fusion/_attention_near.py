"""A softmax that is none of an attention the fusions know: whether it may be meant as one, and what stands between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphopt import Node, Value
from passes.fusion._attention_scores import is_over_last

_STEPS: Final = 6
_PRODUCTS: Final = frozenset(("MatMul", "Einsum", "Gemm"))


def is_between_products(softmax: Node) -> bool:
    """True for a softmax over the last axis that a product of tensors leads to, or that leads to one."""
    scores = softmax.operand(0)
    if scores is None or scores.rank is None or not is_over_last(softmax, scores.rank):
        return False
    is_above = _above(scores)
    return is_above is not None and (is_above or _below(softmax.results[0]))


def _above(value: Value) -> bool | None:
    """Whether a product is near above; None where other fusions have taken it."""
    front, seen = [value], {value: None}
    for _ in range(_STEPS):
        makers = [item.producer for item in front if item.producer.is_operator]
        if any(node.op_type in _PRODUCTS for node in makers):
            return True
        if any(node.domain != "" for node in makers):
            # Its product was fused since: the reasons were told when it was there.
            return None
        front = _new([item for node in makers for item in node.operands if item is not None], seen)
    return False


def _below(value: Value) -> bool:
    front, seen = [value], {value: None}
    for _ in range(_STEPS):
        readers = [user for item in front for user in item.users if user.is_operator]
        if any(node.op_type in _PRODUCTS for node in readers):
            return True
        front = _new([item for node in readers for item in node.results], seen)
    return False


def _new(values: Sequence[Value], seen: dict[Value, None]) -> list[Value]:
    found = [value for value in dict.fromkeys(values) if value not in seen]
    seen.update(dict.fromkeys(found))
    return found
