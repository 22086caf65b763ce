"""Keys and values that several heads of queries share: what they are before they are repeated, and their caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Value
from passes._proofs import axes_of, axis_of
from passes.fusion._attention_core import AttentionCore, Side
from passes.fusion._attention_layout import HEADS, Axis, Layout, Places, everything, is_same, walk_up
from passes.fusion._attention_operands import Cache, cache_of, highest, rowed

_Heads = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys or values that are shared.

    Attributes:
        heads: How many heads they have.
        side: They, before they are repeated.
        cache: The cache they are put together from, if they are.
    """

    heads: int
    side: Side
    cache: Cache | None

    @property
    def new(self) -> Side:
        """Those of this run."""
        return self.side if self.cache is None else self.cache.new


def shared_side(side: Side, heads: int) -> Shared | None:
    """What a side is before its heads are repeated, None if they are not."""
    top = side.layouts[-1]
    node = top.value.producer
    below = _before_gather(top, heads) if node.is_op("Gather") else _before_expand(top, heads)
    if below is None:
        return None
    count, layout = below
    layouts = walk_up(layout, lambda found: None)
    shared = Side(layouts, side.batch, side.rows, side.width)
    return Shared(count, shared, cache_of(shared, count))


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


def rows_of_heads(b: Builder, side: Side, heads: int) -> Value | None:
    """A side as `[batch, rows, heads * width]`, cut out of a packed layer or with its heads moved back if need be."""
    width = heads * side.width
    whole = highest(side, heads, whole=True)
    if whole is not None:
        dims = whole.value.shape or ()
        is_ready = len(dims) == 3 and all(map(is_same, dims, (side.batch, side.rows, width)))
        return whole.value if is_ready and not whole.is_swapped else rowed(b, whole.value, whole, side)
    part = highest(side, heads)
    if part is None or not part.is_run:
        return None
    value = rowed(b, part.value, part, side)
    if value is None:
        return None
    cut: Value = b.Slice(value, starts=[part.start], ends=[part.start + width], axes=[2], steps=[1])
    return cut


def are_beside(core: AttentionCore, key: Side, value: Side) -> bool:
    """True if queries, new keys and new values are of the same batches and as many."""
    query = core.query
    return all(is_same(query.batch, side.batch) and is_same(query.rows, side.rows) for side in (key, value))
