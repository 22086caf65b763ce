"""When two nodes compute the same: a key that equal ones share, and the comparison of what a key does not show."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from graphopt import Graph, Node, Tensor, Value, is_commutative

Key = tuple[object, ...]


class Constants:
    """Numbers for constants, the same for equal ones wherever they are stored."""

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}
        self._first: dict[Key, list[tuple[Tensor, int]]] = {}

    def number(self, value: Value) -> int | None:
        """The number of a constant's data, None for another value."""
        tensor = value.const
        if tensor is None:
            return None
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = self._find(tensor)
        return known

    def _find(self, tensor: Tensor) -> int:
        candidates = self._first.setdefault(tensor.fingerprint(), [])
        for other, number in candidates:
            if other.equals(tensor):
                return number
        number = len(self._numbers)
        candidates.append((tensor, number))
        return number


def expression_key(node: Node, constants: Constants, stands_for: Mapping[Value, Value] | None = None) -> Key:
    """What nodes that compute the same have in common: operator, operands, attributes with their defaults.

    Tensors among the attributes show by a few samples, bodies by their operators and what these read from outside:
    `computes_same` tells.

    Args:
        node: The node.
        constants: Numbers for constants.
        stands_for: Values to take for others, as equal to them.
    """
    equal = stands_for or {}
    operands = [_operand_key(None if value is None else equal.get(value, value), constants) for value in node.operands]
    while operands and not operands[-1]:
        operands.pop()
    if _may_swap(node):
        operands.sort()
    bodies = tuple((name, _body_key(body, body, constants, equal)) for name, body in node.bodies.items())
    return (node.domain, node.op_type, node.overload, tuple(operands), _attributes_key(node), bodies)


def _body_key(graph: Graph, outermost: Graph, constants: Constants, equal: Mapping[Value, Value]) -> Key:
    """The operators of a body, and of those in it, in their order, with the values from outside that they read."""
    parts: list[object] = []
    for node in graph.order():
        outer = [
            _operand_key(equal.get(value, value), constants)
            for value in node.operands
            if value is not None and not outermost.encloses(value.producer.graph)
        ]
        inner = [_body_key(body, outermost, constants, equal) for body in node.bodies.values()]
        parts.append((node.domain, node.op_type, tuple(outer), tuple(inner)))
    return tuple(parts)


def _operand_key(value: Value | None, constants: Constants) -> tuple[int, ...]:
    if value is None:
        return ()
    number = constants.number(value)
    return (value.producer.serial, value.index) if number is None else (number,)


def computes_same(left: Node, right: Node, stands_for: Mapping[Value, Value] | None = None) -> bool:
    """True if two nodes of one key really compute the same: their tensors and bodies are equal.

    Args:
        left: One node.
        right: The other.
        stands_for: For values that the left one may read, those that the right one may read instead.
    """
    if not _equal_tensors(left, right):
        return False
    if not left.bodies:
        return True
    mapped = dict(stands_for or {})
    return len(left.results) == len(right.results) and _equal_bodies(left, right, mapped)


def _may_swap(node: Node) -> bool:
    first = node.operand(0)
    if len(node.operands) < 2 or first is None or not node.has_latest_meaning:
        return False
    return is_commutative(node.domain, node.op_type, first.dtype, len(node.operands))


def _attributes_key(node: Node) -> Key:
    schema = node.schema
    attributes = {**schema.defaults, **node.attributes} if schema is not None else dict(node.attributes)
    return tuple((name, _frozen(attributes[name])) for name in sorted(attributes))


def _frozen(value: Any) -> object:
    """A hashable form in which 0.0 and -0.0, 1 and 1.0 and True differ and a NaN equals itself."""
    if isinstance(value, Tensor):
        return value.fingerprint()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, tuple):
        return tuple(_frozen(item) for item in value)
    return (type(value).__name__, value)


def _equal_tensors(left: Node, right: Node) -> bool:
    pairs = zip(_tensors_of(left), _tensors_of(right), strict=False)
    return all(one.equals(other) for one, other in pairs)


def _tensors_of(node: Node) -> Iterator[Tensor]:
    for name in sorted(node.attributes):
        value = node.attributes[name]
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Tensor):
                yield item


# --- bodies


def _equal_bodies(left: Node, right: Node, mapped: dict[Value, Value]) -> bool:
    if tuple(left.bodies) != tuple(right.bodies):
        return False
    return all(_equal_graphs(body, right.bodies[name], mapped) for name, body in left.bodies.items())


def _equal_graphs(left: Graph, right: Graph, mapped: dict[Value, Value]) -> bool:
    """True if two bodies hold the same operators in the same order, reading the same outer values."""
    if len(left.inputs) != len(right.inputs) or len(left.outputs) != len(right.outputs):
        return False
    for one, other in zip(left.inputs, right.inputs, strict=True):
        if one.type != other.type:
            return False
        mapped[one] = other
    ours, theirs = left.order(), right.order()
    if len(ours) != len(theirs):
        return False
    return all(_equal_inner(one, other, mapped) for one, other in zip(ours, theirs, strict=True)) and all(
        _equal_reads(one, other, mapped) for one, other in zip(left.outputs, right.outputs, strict=True)
    )


def _equal_inner(left: Node, right: Node, mapped: dict[Value, Value]) -> bool:
    same_kind = (left.domain, left.op_type, left.overload) == (right.domain, right.op_type, right.overload)
    if not same_kind or len(left.operands) != len(right.operands) or len(left.results) != len(right.results):
        return False
    if not all(_equal_reads(one, other, mapped) for one, other in zip(left.operands, right.operands, strict=True)):
        return False
    if _attributes_key(left) != _attributes_key(right) or not _equal_tensors(left, right):
        return False
    for one, other in zip(left.results, right.results, strict=True):
        if (one.name == "") != (other.name == ""):
            return False
        mapped[one] = other
    return _equal_bodies(left, right, mapped)


def _equal_reads(left: Value | None, right: Value | None, mapped: dict[Value, Value]) -> bool:
    if left is None or right is None:
        return left is right
    if left in mapped:
        return mapped[left] is right
    if left.const is not None and right.const is not None:
        return left.const.equals(right.const)
    return left is right
