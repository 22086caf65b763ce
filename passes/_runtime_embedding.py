"""The embedding that ONNX Runtime itself makes one operator of: words, positions and segments, added up and normalized.

It knows positions that are counted out for each batch: an Expand of a Range to the shape of the words. Without the
Expand the numbers are the same, one position for all batches, but the runtime looks them up, adds and normalizes
one after the other.
"""

from __future__ import annotations

from graphopt import Node, Value

_COUNTERS = ("Range", "NonZero")
_ON_THE_WAY = ("Cast", "Squeeze", "Transpose", "Unsqueeze")
_LONGEST = 8
_PARTS = ("Pow", "Mul", "Sqrt", "Add", "Div", "Reciprocal", "Cast")


def counts_positions(node: Node) -> bool:
    """True if an Expand gives the positions of an embedding before an attention, as the runtime knows it."""
    if not node.is_op("Expand") or not _is_counter(node.operand(0)):
        return False
    found = _only_user(node.results[0], "Gather")
    if found is None or found.operand(1) is not node.results[0]:
        return False
    words = _added(found.results[0])
    total = None if words is None else _only_user(found.results[0], "Add")
    if total is None or words is None:
        return False
    segments = _added(total.results[0])
    if segments is not None:
        total = _only_user(total.results[0], "Add")
    return total is not None and _is_attended(total.results[0])


def _is_counter(value: Value | None) -> bool:
    for _ in range(_LONGEST):
        if value is None or not value.producer.is_operator or len(value.uses) != 1:
            return False
        if value.producer.op_type in _COUNTERS:
            return True
        if value.producer.op_type not in _ON_THE_WAY:
            return False
        value = value.producer.operands[0]
    return False


def _only_user(value: Value, op_type: str) -> Node | None:
    use = value.sole_use()
    return use[0] if use is not None and use[0].is_op(op_type) else None


def _added(value: Value) -> Node | None:
    """The other table that is looked up and added to a value."""
    total = _only_user(value, "Add")
    if total is None:
        return None
    for item in total.operands:
        if item is not None and item is not value and item.producer.is_op("Gather"):
            return item.producer
    return None


def _is_attended(total: Value) -> bool:
    """True if a sum is normalized, and what comes of it goes into an attention, fused or in parts."""
    for user in total.users:
        for result in _normalizations(user):
            users = [node.op_type for node in result.users]
            if "Attention" in users or users.count("MatMul") >= 3:
                return True
    return False


def _normalizations(user: Node) -> list[Value]:
    if user.op_type == "LayerNormalization":
        return [user.results[0]]
    if not user.is_op("Sub"):
        return []
    front, found = [user.results[0]], []
    for _ in range(_LONGEST):
        nodes = [node for value in front for node in value.users if node.op_type in ("ReduceMean", *_PARTS)]
        front = list(dict.fromkeys(node.results[0] for node in nodes))
        found += front
    return found
