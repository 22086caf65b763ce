"""Cosines and sines of rotary embeddings: one half of a table whose last axis says everything twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from graphopt import Builder, DType, Node, Tensor, Value
from passes._cover import number
from passes._proofs import axes_of, axis_of, contents, same_dim

Known = dict[tuple[Value, str], bool]
"""Which stored tables are known to say everything twice, or not to: every layer asks for the same."""

HALVES = "halves"
"""Twice as `a b a b`: element `i` belongs to the pair (i, i + half)."""

PAIRS = "pairs"
"""Twice as `a a b b`: element `i` belongs to the pair (2j, 2j + 1)."""

_STEPS = 12
_LARGEST = 1 << 24
"""Elements of a constant that is compared with itself."""

_VIEWS = ("Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity")
_ELEMENTWISE = ("Cos", "Sin", "Cast", "Neg")
_WITH_NUMBER = ("Mul", "Div", "Add", "Sub")


@dataclass(slots=True)
class Half:
    """How to compute one half of a table.

    Attributes:
        source: What the table is made of: a value with one half on its last axis, or a constant with both.
        size: How many elements one half has.
        takes: For a constant with both halves: which elements of the last axis to take.
        steps: The nodes that made the table of it, innermost first, and which operand of each is the table.
    """

    source: Value
    size: int
    takes: slice | None = None
    steps: list[tuple[Node, int]] = field(default_factory=list)

    def rows(self, b: Builder) -> Value:
        """Compute it, with all axes but the last as one."""
        value = self.source
        if self.takes is not None:
            assert value.const is not None
            value = b.constant(_part(value.const, self.takes))
        for node, place in self.steps:
            operands = list(node.operands)
            operands[place] = value
            value = b.like(node, *operands)
        return value if value.rank == 2 else b.Reshape(value, b.constant([-1, self.size], DType.INT64))


def half_of(value: Value | None, size: int, kind: str, known: Known) -> Half | None:
    """One half of a table of `size` elements on its last axis; None if it isn't known to say everything twice.

    Views are left out as long as nothing before them counts axes: the order of the rows stays.
    """
    steps: list[tuple[Node, int]] = []
    is_flat = True
    for _ in range(_STEPS):
        if value is None or not value.shape or value.shape[-1] != size or size % 2:
            return None
        if value.const is not None:
            takes = slice(0, size // 2, 1) if kind == HALVES else slice(0, size, 2)
            if (value, kind) not in known:
                known[value, kind] = _is_twice(value.const, size, kind)
            return Half(value, size // 2, takes, steps[::-1]) if known[value, kind] else None
        node = value.producer
        if not node.is_operator or node.domain != "" or value.index != 0 or not node.has_latest_meaning:
            return None
        source = _doubled_halves(node, size) if kind == HALVES else _doubled_pairs(node, size)
        if source is not None and (is_flat or source.rank == value.rank):
            return Half(source, size // 2, None, steps[::-1])
        place = _table_operand(node, value)
        if place is None:
            return None
        if node.op_type not in _VIEWS:
            steps.append((node, place))
            is_flat = is_flat and node.op_type not in ("Gather", "Slice")
        elif not is_flat:
            return None
        value = node.operand(place)
    return None


def half_as_it_is(value: Value, size: int) -> Half:
    """A table that says everything once."""
    return Half(value, size)


def _table_operand(node: Node, value: Value) -> int | None:
    """Which operand a node passes on without looking at the place on the last axis."""
    if node.op_type in _ELEMENTWISE or node.op_type in _VIEWS:
        return 0  # whatever the view, if the last axis stays what it is: that is looked at next
    if node.op_type in _WITH_NUMBER:
        left, right = node.operand(0), node.operand(1)
        if number(right, left) is not None:
            return 0
        return 1 if number(left, right) is not None else None
    table = node.operand(0)
    if table is None or table.rank is None:
        return None
    if node.op_type == "Gather":
        axis = axis_of(node, table.rank)
        return 0 if axis is not None and axis != table.rank - 1 else None
    if node.op_type == "Slice":
        axes = axes_of(node, table.rank)
        return 0 if axes is not None and table.rank - 1 not in axes else None
    return None


def _doubled_halves(node: Node, size: int) -> Value | None:
    source = node.operand(0)
    if source is None or not source.shape or source.shape[-1] != size // 2:
        return None
    rank = len(source.shape)
    if node.op_type == "Concat" and len(node.operands) == 2:
        return source if node.operand(1) is source and axis_of(node, rank) == rank - 1 else None
    if node.op_type == "Tile":
        return source if contents(node, "repeats") == (*(1,) * (rank - 1), 2) else None
    if node.op_type == "Gather":
        return source if _takes(node, rank, [*range(size // 2)] * 2) else None
    return None


def _doubled_pairs(node: Node, size: int) -> Value | None:
    source = node.operand(0)
    if source is None or not source.shape:
        return None
    shape = source.shape
    if node.op_type == "Gather" and shape[-1] == size // 2:
        return source if _takes(node, len(shape), [place // 2 for place in range(size)]) else None
    if node.op_type not in ("Reshape", "Flatten") or shape[-2:] != (size // 2, 2):
        return None
    wide = source.producer
    if wide.is_op("Concat") and len(wide.operands) == 2 and axis_of(wide, len(shape)) == len(shape) - 1:
        first, second = (_before_last_axis(operand) for operand in wide.operands)
        return first if first is second else None
    if wide.is_op("Expand") or wide.is_op("Tile"):
        narrow = wide.operand(0)
        inner = _before_last_axis(narrow)
        if inner is None or narrow is None or narrow.shape is None or len(narrow.shape) != len(shape):
            return None
        return inner if all(map(same_dim, narrow.shape[:-1], shape[:-1])) else None
    return None


def _before_last_axis(value: Value | None) -> Value | None:
    """What a value was before it got a last axis of one."""
    if value is None or not value.producer.is_op("Unsqueeze") or not value.shape:
        return None
    axes, before = axes_of(value.producer, len(value.shape)), value.producer.operand(0)
    if axes is None or len(value.shape) - 1 not in axes or before is None or not before.shape:
        return None
    return before if len(value.shape) > 1 and before.shape[-1] == value.shape[-2] else None


def _takes(node: Node, rank: int, wanted: list[int]) -> bool:
    places = node.operand(1)
    if places is None or places.const is None or places.const.shape != (len(wanted),):
        return False
    return axis_of(node, rank) == rank - 1 and [int(place) for place in places.const.numpy()] == wanted


def _is_twice(table: Tensor, size: int, kind: str) -> bool:
    if table.size > _LARGEST:
        return False
    data, half = table.numpy(), size // 2
    left, right = (data[..., :half], data[..., half:]) if kind == HALVES else (data[..., ::2], data[..., 1::2])
    return bool(np.array_equal(left, right))


def _part(table: Tensor, takes: slice) -> Tensor:
    shape = (*table.shape[:-1], len(range(*takes.indices(table.shape[-1]))))
    return Tensor.computed(table.dtype, shape, lambda: np.ascontiguousarray(table.numpy()[..., takes]))
