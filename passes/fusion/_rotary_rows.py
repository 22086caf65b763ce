"""Where the axes of batch, positions and heads are in what a rotary embedding turns, and how the operator takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphopt import Builder, Context, DType, Expr, Node, Value
from passes._permutation import perm_of
from passes.fusion._attention_layout import is_same
from passes.fusion._rotary_forms import Rotation

Dim = int | Expr | None
Restore = Callable[[Builder, Value], Value]

_SWAPPED = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of what is turned, and the dims of its angles along two of them.

    Attributes:
        batch: The axis of the batch; None if there is none.
        positions: The axis of positions.
        heads: The axis of heads; None if there is none.
        angle_batch: How many batches have angles of their own.
        angle_positions: How many positions have.
        angle_axes: Where these two are in the table of angles; None for an axis that it lacks.
    """

    batch: int | None
    positions: int
    heads: int | None
    angle_batch: Dim
    angle_positions: Dim
    angle_axes: tuple[int | None, int]


def layout_of(rotation: Rotation) -> Layout | str:
    """Where the axes are, told by the dims of the angles; a reason if the operator has no such layout."""
    x, angles = rotation.x.shape, rotation.angles.shape
    if x is None or angles is None or len(x) not in (3, 4):
        return "what is rotated has neither 3 nor 4 axes"
    missing = len(x) - len(angles)
    dims: tuple[Dim, ...] = (*(1,) * missing, *angles)[:-1]

    def at(batch: int | None, positions: int, heads: int | None) -> Layout:
        place = None if batch is None or batch < missing else batch - missing
        one = 1 if batch is None else dims[batch]
        return Layout(batch, positions, heads, one, dims[positions], (place, positions - missing))

    if len(x) == 3:
        found = at(None, 0, 1) if dims[1] == 1 and dims[0] != 1 else at(0, 1, None)
    elif dims[1] == 1 and (dims[2] != 1 or x[2] == 1):
        found = at(0, 2, 1)
    elif dims[2] == 1 and (dims[1] != 1 or x[1] == 1):
        found = at(0, 1, 2)
    else:
        return "a rotation has angles that differ by head, or one for all positions"
    if found.positions < missing or (found.angle_positions == 1 and x[found.positions] != 1):
        return "a rotation has one angle for all positions"
    if found.angle_batch is None or found.angle_positions is None or x[found.positions] is None:
        return "a rotation has dims that nothing is known of"
    return found


@dataclass(slots=True)
class Rows:
    """What the operator gets, and what is done to its result.

    Attributes:
        value: Of shape (batch, positions, heads · size), or (batch, heads, positions, size).
        heads: How many heads it has; None if that is unknown.
        positions: Its axis of positions.
        restore: Gives the result the form of what it takes the place of.
        others: Parts of a Split beside it, and what stands for each of them.
        is_turned: True if `restore` brings the heads to the front.
    """

    value: Value
    heads: int | None
    positions: int
    restore: Restore
    others: dict[Value, Value]
    is_turned: bool = False


def rows_of(b: Builder, x: Value, layout: Layout, cover_root: Node, context: Context) -> Rows | str:
    """What is turned as the operator takes it: before its heads are moved to the front, if possible."""
    shape = x.shape
    assert shape is not None
    if layout.heads is None:
        return Rows(x, 1, 1, lambda b, value: value, {})
    size, count = shape[-1], _count(x, layout.heads)
    if layout.heads == 1 and layout.batch is not None:
        return _behind_transpose(b, x, cover_root, context) or Rows(x, count, 2, lambda b, value: value, {})
    if count is None or not isinstance(size, int):
        return "the number of heads is unknown"
    if layout.batch is None:
        flat = b.Reshape(x, b.constant([1, -1, count * size], DType.INT64))
        return Rows(flat, count, 1, lambda b, value: b.Reshape(value, b.constant([-1, count, size], DType.INT64)), {})
    return Rows(joined_heads(b, x, count, size), count, 1, lambda b, value: parted_heads(b, value, count, size), {})


def _count(x: Value, axis: int) -> int | None:
    """How many heads there are, told by the width before they were parted where the run would find out."""
    shape = x.shape
    assert shape is not None
    heads, size = shape[axis], shape[-1]
    if isinstance(heads, int):
        return heads
    node = x.producer
    if node.is_op("Transpose") and node.operands[0] is not None:
        node = node.operands[0].producer
    source = node.operand(0) if node.is_op("Reshape") else None
    width = source.shape[-1] if source is not None and source.shape else None
    if not isinstance(width, int) or not isinstance(size, int) or not size or width % size:
        return None
    return width // size if is_same(heads, width // size) else None


def joined_heads(b: Builder, value: Value, heads: int, size: int) -> Value:
    """(batch, positions, heads, size) as (batch, positions, heads · size), from before the heads were parted if so."""
    node = value.producer
    source = node.operand(0) if node.is_op("Reshape") else None
    if source is not None and _is_joined(source, value, heads * size):
        return source
    made: Value = b.Reshape(value, b.constant([0, 0, heads * size], DType.INT64))
    return made


def _is_joined(source: Value, value: Value, width: int) -> bool:
    before, after = source.shape, value.shape
    if before is None or after is None or len(before) != 3 or before[2] != width:
        return False
    return is_same(before[0], after[0]) and is_same(before[1], after[1])


def parted_heads(b: Builder, value: Value, heads: int, size: int) -> Value:
    """(batch, positions, heads · size) as (batch, positions, heads, size)."""
    made: Value = b.Reshape(value, b.constant([0, 0, heads, size], DType.INT64))
    return made


def _behind_transpose(b: Builder, x: Value, root: Node, context: Context) -> Rows | None:
    """What is turned before a Transpose brought its heads to the front, also where a Split of heads is in between."""
    shape, node = x.shape, x.producer
    if shape is None or node.graph is not root.graph:
        return None
    heads, size = _count(x, 1), shape[-1]
    if heads is None or not isinstance(size, int):
        return None

    def restore(b: Builder, value: Value) -> Value:
        made: Value = b.Transpose(parted_heads(b, value, heads, size), perm=_SWAPPED)
        return made

    if node.is_op("Transpose"):
        source = node.operand(0)
        if perm_of(node) != _SWAPPED or source is None:
            return None
        return Rows(joined_heads(b, source, heads, size), heads, 1, restore, {}, True)
    if not node.is_op("Split") or node.param("axis") not in (1, -3) or node.is_pinned or context.keeps(node):
        return None
    whole = node.operand(0)
    turn = None if whole is None else whole.producer
    source = None if turn is None else turn.operand(0) if turn.is_op("Transpose") else None
    if turn is None or source is None or perm_of(turn) != _SWAPPED or turn.result.sole_use() is None:
        return None
    known = _counts_of(node)
    if known is None:
        return None
    joined = joined_heads(b, source, sum(known), size)
    parts = b.Split(joined, axis=2, split=[count * size for count in known], outputs=len(known))
    others = {
        result: b.Transpose(parted_heads(b, part, count, size), perm=_SWAPPED)
        for result, part, count in zip(node.results, parts, known, strict=True)
        if result is not x and result.is_used
    }
    return Rows(parts[x.index], heads, 1, restore, others, True)


def _counts_of(split: Node) -> list[int] | None:
    """How many heads each part of a Split has."""
    counts = [result.shape[1] if result.shape else None for result in split.results]
    known = [count for count in counts if isinstance(count, int)]
    return known if len(known) == len(counts) else None


def split_behind(b: Builder, root: Node, made: Value, size: int, context: Context) -> dict[Value, Value]:
    """Parts of the heads, where all that reads a rotation is a Split of them: parted before they move to the front.

    Args:
        b: The builder.
        root: The last node of the rotation.
        made: What the operator gives, (batch, positions, heads · size).
        size: The elements of a head.
        context: The run.

    Returns:
        What stands for each part of the Split, nothing if there is none.
    """
    use = root.result.sole_use()
    node = None if use is None else use[0]
    if node is None or not node.is_op("Split") or node.graph is not root.graph or node.param("axis") not in (1, -3):
        return {}
    known = _counts_of(node)
    if known is None or len(known) < 2 or node.is_pinned or context.keeps(node):
        return {}
    parts = b.Split(made, axis=2, split=[count * size for count in known], outputs=len(known))
    return {
        result: b.Transpose(parted_heads(b, part, count, size), perm=_SWAPPED)
        for result, part, count in zip(node.results, parts, known, strict=True)
        if result.is_used
    }
