"""Slice and Pad, whose bounds may be symbolic."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from graphopt.analysis.shapes.common import (
    CACHE,
    UNBOUNDED,
    UNKNOWN,
    Array,
    Facts,
    axes_of,
    content_array,
    contents,
    dtype_of,
    is_known_absent,
    one,
    parameter,
    plus,
    shape_of,
    transfer,
    vector,
)
from graphopt.analysis.shapes.selecting import carried
from graphopt.ir import NOT_CONSTANT, Dim, Expr, Node, Shape
from graphopt.ir.symbol import Integer, bounds, ceildiv, define, is_nonnegative, maximum, minimum, opaque

_NO_END = (2**31 - 1, 2**63 - 1)
"""The runtime takes these for "to the end" in whatever direction a slice goes."""


@lru_cache(maxsize=CACHE)
def slice_length(size: Integer, start: Integer, end: Integer, step: int) -> Integer:
    """How many elements a slice of an axis of `size` has, whatever the signs of its bounds."""
    first = _place(size, start, step)
    last = -1 if step < 0 and end in _NO_END else _place(size, end, step)
    if first is None or last is None:
        return opaque("slice_length", size, start, end, step, nonnegative=True)
    low, high = (0, size) if step > 0 else (-1, size - 1)
    return maximum(0, ceildiv(_clamped(last, low, high) - _clamped(first, low if step > 0 else 0, high), step))


define("slice_length", slice_length)


def _place(size: Integer, bound: Integer, step: int) -> Integer | None:
    """A bound counted from the front, None where its sign is not known; far bounds stand for an end."""
    if isinstance(bound, int) and not isinstance(size, int):
        if bound >= UNBOUNDED:
            return size
        if bound <= -UNBOUNDED:
            return 0 if step > 0 else -1
    least, most = bounds(bound)
    if least is not None and least >= 0:
        return bound
    return size + bound if most is not None and most < 0 else None


def _clamped(bound: Integer, low: Integer, high: Integer) -> Integer:
    return minimum(maximum(bound, low), high)


@transfer("Slice")
def slice_(node: Node) -> Facts:
    """A part of the operand along some axes."""
    value = node.operands[0]
    dims = shape_of(value)
    if dims is None:
        return one(dtype_of(value), None)
    cuts = _cuts(node, dims)
    if cuts is None:
        return one(dtype_of(value), (None,) * len(dims))
    sizes: list[Dim] = list(dims)
    for axis, start, end, step in cuts:
        sizes[axis] = _length(dims[axis], start, end, step)
    array = carried(value)
    return one(dtype_of(value), sizes) if array is None else vector(dtype_of(value), _sliced(array, cuts), sizes)


Cut = tuple[int, Dim, Dim, Dim]


def _cuts(node: Node, dims: Shape) -> list[Cut] | None:
    """(axis, start, end, step) of every axis that is cut; None where the axes are not known."""
    starts, ends = _list(node, "starts"), _list(node, "ends")
    steps, axes = _list(node, "steps"), _list(node, "axes")
    count = next((len(found) for found in (axes, starts, ends, steps) if found is not None), None)
    if is_known_absent(node, "axes"):
        if count is None:
            return None
        axes = tuple(range(count))
    if is_known_absent(node, "steps"):
        steps = (1,) * (count or 0)
    if axes is None:
        return None
    known = [axis for axis in axes if isinstance(axis, int)]
    places = axes_of(known, len(dims)) if len(known) == len(axes) else None
    if places is None:
        return None
    blank: tuple[Dim, ...] = (None,) * len(places)
    columns = [
        column if column is not None and len(column) == len(places) else blank for column in (starts, ends, steps)
    ]
    return list(zip(places, *columns, strict=True))


def _list(node: Node, name: str) -> tuple[Dim, ...] | None:
    found: Any = parameter(node, name)
    if found is NOT_CONSTANT or found is None:
        return None
    return found if isinstance(found, tuple) else (found,)


def _length(size: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    if isinstance(size, int) and size == 0:
        return 0
    if size is None:
        return _length_of_unknown(start, end, step)
    if start is None or end is None or not isinstance(step, int) or step == 0:
        return None
    return slice_length(size, start, end, step)


def _length_of_unknown(start: Dim, end: Dim, step: Dim) -> Dim:
    """Nothing but an empty slice is empty whatever it is cut from."""
    if step == 1 and isinstance(start, int) and isinstance(end, int) and 0 <= end <= start:
        return 0
    return None


def _sliced(array: Array, cuts: list[Cut]) -> Array | None:
    for axis, start, end, step in cuts:
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int) or step == 0:
            return None
        array = np.take(array, _places(array.shape[axis], start, end, step), axis=axis)
    return array


def _places(size: int, start: int, end: int, step: int) -> list[int]:
    """The indices that a slice takes; numpy takes none where it starts before the first and runs backwards."""
    if size == 0:
        return []
    first = start + size if start < 0 else start
    last = -1 if step < 0 and end in _NO_END else end + size if end < 0 else end
    if step > 0:
        return list(range(min(max(first, 0), size), min(max(last, 0), size), step))
    return list(range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step))


# --- Pad


@transfer("Pad")
def pad(node: Node) -> Facts:
    """The operand with elements put around it, or cut off where a pad is negative."""
    value = node.operands[0]
    dims = shape_of(value)
    if value is None or dims is None:
        return (UNKNOWN,) if value is None else one(value.dtype, None)
    pads = _list(node, "pads" if node.has_latest_meaning else "paddings")
    axes = list(range(len(dims)))
    if not is_known_absent(node, "axes"):
        given = _list(node, "axes")
        places = None if given is None else axes_of([axis for axis in given if isinstance(axis, int)], len(dims))
        if given is None or places is None or len(places) != len(given):
            return one(value.dtype, (None,) * len(dims))
        axes = places
    if pads is None or len(pads) != 2 * len(axes):
        return one(value.dtype, (None,) * len(dims))
    sizes = list(dims)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        size = plus(dims[axis], before, after)
        sizes[axis] = None if size is None else maximum(size, 0)
    return vector(value.dtype, _padded(node, carried(value), axes, pads), sizes)


def _padded(node: Node, array: Array | None, axes: list[int], pads: tuple[Dim, ...]) -> Array | None:
    if array is None or axes != [0] or array.ndim != 1 or node.param("mode") not in ("constant", None):
        return None
    before, after = pads
    if not isinstance(before, int) or not isinstance(after, int) or before < 0 or after < 0:
        return None
    fill = node.operand(2)
    known = (0,) if fill is None else contents(fill)
    item = known[0] if known is not None and len(known) == 1 else None
    if fill is None and node.opset < 11:
        item = 0 if node.param("value") == 0 else None
    made = np.full(before + array.size + after, None, dtype=object)
    made[:] = [item] * before + list(array) + [item] * after
    return made


__all__ = ["Expr", "content_array", "is_nonnegative", "slice_length"]
