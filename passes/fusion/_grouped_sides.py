"""Keys and values that several heads of queries share: what they are before they are repeated, and their caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Node, Value
from passes._proofs import axes_of, axis_of
from passes.fusion._attention_core import AttentionCore, Side
from passes.fusion._attention_layout import HEADS, Axis, Layout, Places, everything, is_same, walk_up
from passes.fusion._attention_operands import Cache, cache_of, highest, is_of_four_axes, rowed, turned_rows

_Heads = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys or values that are shared.

    Attributes:
        heads: How many heads they have.
        side: They, before they are repeated.
        cache: The cache they are put together from, if they are.
        present: Without a cache: they as one would begin, where somebody else reads that.
    """

    heads: int
    side: Side
    cache: Cache | None
    present: Value | None = None

    @property
    def new(self) -> Side:
        """Those of this run."""
        return self.side if self.cache is None else self.cache.new


def shared_side(side: Side, core: AttentionCore, *, unshared: bool) -> Shared | None:
    """What a side is before its heads are repeated, None if they are not.

    Args:
        side: Keys or values.
        core: The attention.
        unshared: True if heads of keys and values that are as many as those of queries will do.
    """
    if core.is_shared:
        return _described(side, 1, {})
    top = side.layouts[-1]
    node = top.value.producer
    below = _before_gather(top, core.heads) if node.is_op("Gather") else _before_expand(top, core.heads)
    if below is None:
        return _described(side, core.heads, {}) if unshared else None
    count, layout = below
    layouts = walk_up(layout, lambda found: None)
    made = [node, *(value.producer for value in node.operands if value is not None and value is not layout.value)]
    return _described(Side(layouts, side.batch, side.rows, side.width), count, dict.fromkeys(made), side)


def _described(side: Side, heads: int, repeat: dict[Node, None], below: Side | None = None) -> Shared:
    cache = cache_of(side, heads)
    if cache is not None:
        return Shared(heads, side, cache)
    layouts = [*side.layouts, *(below.layouts if below is not None else ())]
    own = {**repeat, **dict.fromkeys(layout.value.producer for layout in layouts)}
    # Below a scale it is not what the operator gets.
    for layout in side.layouts if side.scale == 1.0 else ():
        is_first = is_of_four_axes(layout, heads, side.width)
        if is_first and any(user not in own and not _multiplies(user, layout.value) for user in layout.value.users):
            return Shared(heads, side, None, layout.value)
    return Shared(heads, side, None)


def _multiplies(node: Node, value: Value) -> bool:
    """True for the product of an attention, or a scale before it."""
    return node.op_type in ("MatMul", "Mul", "Div") and node.domain == ""


def _before_gather(top: Layout, heads: int) -> tuple[int, Layout] | None:
    node = top.value.producer
    source, places = node.operand(0), node.operand(1)
    if source is None or places is None or places.const is None or source.shape is None or places.const.rank != 1:
        return None
    axis = axis_of(node, source.rank)
    if axis is None or not _is_all_heads(top.axes[axis], heads):
        return None
    count = source.shape[axis]
    if not isinstance(count, int) or not count or heads % count or heads == count:
        return None
    if [int(place) for place in places.const.numpy()] != [head * count // heads for head in range(heads)]:
        return None
    return count, Layout(source, (*top.axes[:axis], (everything(HEADS, count),), *top.axes[axis + 1 :]))


def _before_expand(top: Layout, heads: int) -> tuple[int, Layout] | None:
    node, shape = top.value.producer, top.value.shape
    lifted = node.operand(0) if node.is_op("Expand") else None
    if lifted is None or lifted.shape is None or shape is None or len(shape) != len(lifted.shape):
        return None
    stretched = [
        place for place, (old, new) in enumerate(zip(lifted.shape, shape, strict=True)) if not is_same(old, new)
    ]
    source = lifted.producer.operand(0) if lifted.producer.is_op("Unsqueeze") else None
    if source is None or len(stretched) != 1 or axes_of(lifted.producer, lifted.rank) != (stretched[0],):
        return None
    (axis,) = stretched
    times = shape[axis]
    if not isinstance(times, int) or not axis or heads % times or times == 1:
        return None
    outer, inner = _places(top.axes[axis - 1]), _places(top.axes[axis])
    every = np.arange(heads)
    if outer is None or inner is None or not np.array_equal(inner, every % times):
        return None
    if not np.array_equal(outer, every // times):
        return None
    count = heads // times
    return count, Layout(source, (*top.axes[: axis - 1], (everything(HEADS, count),), *top.axes[axis + 1 :]))


def _places(axis: Axis) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    part = axis[0] if len(axis) == 1 else None
    return part.at if isinstance(part, Places) and part.labels == (HEADS,) else None


def _is_all_heads(axis: Axis, heads: int) -> bool:
    at = _places(axis)
    return at is not None and np.array_equal(at, np.arange(heads))


def rows_of_heads(b: Builder, side: Side, heads: int, *, turns: bool) -> Value | None:
    """A side as `[batch, rows, heads * width]`, cut out of a packed layer if need be.

    Args:
        b: The builder.
        side: Queries, keys or values.
        heads: How many heads.
        turns: True if heads may be moved back beside the rows.
    """
    width = heads * side.width
    whole = highest(side, heads, whole=True)
    if whole is not None:
        dims = whole.value.shape or ()
        is_ready = len(dims) == 3 and all(map(is_same, dims, (side.batch, side.rows, width)))
        return whole.value if is_ready and not whole.is_swapped else rowed(b, whole.value, whole, side)
    part = highest(side, heads)
    if part is None or not part.is_run:
        return turned_rows(b, side, heads) if turns else None
    value = rowed(b, part.value, part, side)
    if value is None:
        return None
    cut: Value = b.Slice(value, starts=[part.start], ends=[part.start + width], axes=[2], steps=[1])
    return cut


def are_beside(core: AttentionCore, key: Side, value: Side) -> bool:
    """True if queries, new keys and new values are of the same batches and as many."""
    query = core.query
    return all(is_same(query.batch, side.batch) and is_same(query.rows, side.rows) for side in (key, value))
