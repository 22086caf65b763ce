"""Operators that pick, join and overwrite parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from graphopt.analysis.shapes.common import (
    CACHE,
    CARRIERS,
    MAX_ELEMENTS,
    UNKNOWN,
    Array,
    Fact,
    Facts,
    axis_of,
    constant_array,
    content_array,
    contents,
    count_of,
    dtype_of,
    one,
    plus,
    rank_of,
    same_dim,
    shape_of,
    static,
    tensor,
    transfer,
    vector,
)
from graphopt.ir import Dim, Node, SequenceType, Shape, TensorType, Value
from graphopt.ir.symbol import Integer, ceildiv, define, is_nonnegative, is_nonzero, opaque
from graphopt.tensors import DType


def carried(value: Value | None) -> Array | None:
    """The contents of an operand whose contents are followed, as an array."""
    return content_array(value) if value is not None and value.dtype in CARRIERS else None


def indices(value: Value | None) -> Array | None:
    """An operand of indices as numbers, if all of them are known and few."""
    array = content_array(value)
    if array is None:
        found = constant_array(value, MAX_ELEMENTS)
        return None if found is None else found.astype(np.int64)
    if not all(isinstance(item, int) for item in array.reshape(-1)):
        return None
    return array.astype(np.int64)


@transfer("Gather")
def gather(node: Node) -> Facts:
    """Slices of the first operand at the indices along an axis."""
    data, picked = node.operands
    dims, shape, axis = shape_of(data), shape_of(picked), node.param("axis")
    place = axis_of(axis, len(dims)) if dims is not None and isinstance(axis, int) else None
    if dims is None or place is None:
        return one(dtype_of(data), None)
    result = None if shape is None else (*dims[:place], *shape, *dims[place + 1 :])
    array = carried(data)
    if array is None:
        return one(dtype_of(data), result)
    places = indices(picked)
    if places is None or not _inside(places, array.shape[place]):
        return one(dtype_of(data), result)
    return vector(dtype_of(data), np.asarray(np.take(array, places, axis=place), dtype=object), result)


def _inside(places: Array, size: int) -> bool:
    return bool(((places >= -size) & (places < size)).all())


@transfer("GatherElements")
def gather_elements(node: Node) -> Facts:
    """One element for each index."""
    data, picked = node.operands
    array, places, axis = carried(data), indices(picked), node.param("axis")
    if array is None or places is None or not isinstance(axis, int) or places.ndim != array.ndim:
        return one(dtype_of(data), shape_of(picked))
    place = axis_of(axis, array.ndim)
    if place is None or not _inside(places, array.shape[place]):
        return one(dtype_of(data), shape_of(picked))
    whole = np.where(places < 0, places + array.shape[place], places)
    return vector(dtype_of(data), np.take_along_axis(array, whole, axis=place), shape_of(picked))


@transfer("GatherND")
def gather_nd(node: Node) -> Facts:
    """Slices of the first operand at the tuples of indices."""
    data, picked = shape_of(node.operands[0]), shape_of(node.operands[1])
    batch = node.param("batch_dims") or 0
    dtype = dtype_of(node.operands[0])
    if data is None or not picked or not isinstance(picked[-1], int):
        return one(dtype, None)
    return one(dtype, (*picked[:-1], *data[batch + picked[-1] :]))


@transfer("ScatterElements", "Scatter", "ScatterND")
def scatter(node: Node) -> Facts:
    """Like the first operand, partly overwritten."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    array = carried(value)
    reduction = node.param("reduction")
    if array is None or array.ndim != 1 or reduction not in (None, "none", b"none"):
        return (Fact(value.type),)
    places, updates = indices(node.operand(1)), content_array(node.operand(2))
    if places is None or not _inside(places, array.size):
        return (Fact(value.type),)
    result = array.copy()
    flat = places.reshape(-1)
    new: list[Dim] = [None] * flat.size if updates is None or updates.size != flat.size else list(updates.reshape(-1))
    for index, item in zip(flat.tolist(), new, strict=True):
        result[index] = item
    return vector(value.dtype, result, value.shape)


@transfer("Concat")
def concat(node: Node) -> Facts:
    """The operands one after another along an axis."""
    operands = node.operands
    dtype = next((value.dtype for value in operands if value is not None and value.dtype is not None), None)
    shapes = [shape_of(value) for value in operands]
    axis = node.param("axis")
    axis = 1 if axis is None else axis  # opset 1
    known = [shape for shape in shapes if shape is not None]
    rank = len(known[0]) if known else None
    place = axis_of(axis, rank) if rank is not None and isinstance(axis, int) else None
    if rank is None or place is None or any(len(shape) != rank for shape in known):
        return one(dtype, None)
    dims = [same_in_all(index, shapes) for index in range(rank)]
    dims[place] = plus(*(None if shape is None else shape[place] for shape in shapes))
    return vector(dtype, _joined(node, place), dims) if dtype in CARRIERS and rank <= 2 else one(dtype, dims)


@lru_cache(maxsize=CACHE)
def filled_dim(*pairs: Integer) -> Integer:
    """The dim that operands of Concat share: of the first that is not empty, since the runtime lets empty ones differ.

    Args:
        pairs: Of each operand the dim and the number of elements.
    """
    dims, counts = pairs[::2], pairs[1::2]
    if all(same_dim(dim, dims[0]) for dim in dims):
        return dims[0]
    for dim, count in zip(dims, counts, strict=True):
        if is_nonzero(count):
            return dim
    if all(isinstance(count, int) for count in counts):
        return dims[0]
    return opaque("filled_dim", *pairs, nonnegative=True)


define("filled_dim", filled_dim)


def same_in_all(axis: int, shapes: Sequence[Shape | None]) -> Dim:
    """The size of an axis that operands of Concat share."""
    first = None if shapes[0] is None else shapes[0][axis]
    if first is not None and all(shape is not None and same_dim(shape[axis], first) for shape in shapes):
        return first
    pairs: list[Integer] = []
    for shape in shapes:
        if shape is not None and shape[axis] is not None and all(isinstance(dim, int) and dim > 0 for dim in shape):
            return shape[axis]
    for shape in shapes:
        dim = None if shape is None else shape[axis]
        count = None if shape is None else count_of(shape)
        if dim is None or count is None:
            return None
        pairs += [dim, count]
    return filled_dim(*pairs)


def _joined(node: Node, place: int) -> Array | None:
    parts = []
    known = False
    for value in node.operands:
        array = content_array(value) if contents(value) is not None else None
        known = known or array is not None
        if array is None:
            sizes = static(shape_of(value))
            if sizes is None or prod(sizes) > MAX_ELEMENTS:
                return None
            array = np.full(sizes, None, dtype=object)
        parts.append(array)
    return np.concatenate(parts, axis=place) if known else None


@transfer("Split")
def split(node: Node) -> Facts:
    """The first operand cut along an axis."""
    value = node.operands[0]
    dims, axis = shape_of(value), node.param("axis")
    dtype = dtype_of(value)
    place = axis_of(axis if isinstance(axis, int) else 0, len(dims)) if dims is not None else None
    if dims is None or place is None:
        return tuple(tensor(dtype, None) for _ in node.results)
    sizes = _split_sizes(node, dims[place])
    array = carried(value)
    facts, start = [], 0
    for size in sizes:
        shape = (*dims[:place], size, *dims[place + 1 :])
        if array is None or not isinstance(size, int):
            array = None
            facts.append(tensor(dtype, shape))
            continue
        piece = array[start : start + size] if place == 0 else array[:, start : start + size]
        facts.extend(vector(dtype, piece, shape))
        start += size
    return tuple(facts)


def _split_sizes(node: Node, whole: Dim) -> list[Dim]:
    count = len(node.results)
    given = node.param("split")
    if given is not None:
        position = node.param_operand("split")
        found = given if isinstance(given, tuple) else None if position is None else contents(node.operand(position))
        if found is None or len(found) != count:
            return [None] * count
        return [size if size is not None and is_nonnegative(size) else None for size in found]
    if whole is None:
        return [None] * count
    # Parts of equal size; the last is smaller if need be, which only newer opsets allow.
    outputs = node.param("num_outputs")
    if isinstance(outputs, int):
        part = ceildiv(whole, outputs)
        parts: list[Dim] = [part] * count
        if outputs == count:
            parts[-1] = whole - part * (outputs - 1)
        return parts
    if not node.has_latest_meaning:
        return [None] * count
    return [whole // count] * count


@transfer("SplitToSequence")
def split_to_sequence(node: Node) -> Facts:
    """A sequence of parts."""
    value = node.operands[0]
    dims, axis = shape_of(value), node.param("axis")
    if value is None or value.dtype is None:
        return (UNKNOWN,)
    if dims is None or not isinstance(axis, int):
        return (Fact(SequenceType(TensorType(value.dtype))),)
    place = axis_of(axis, len(dims))
    if place is None:
        return (Fact(SequenceType(TensorType(value.dtype))),)
    split_value = node.operand(1)
    if split_value is None and not node.param("keepdims"):
        return (Fact(SequenceType(TensorType(value.dtype, dims[:place] + dims[place + 1 :]))),)
    part: Dim = 1 if split_value is None else None
    return (Fact(SequenceType(TensorType(value.dtype, (*dims[:place], part, *dims[place + 1 :])))),)


@transfer("Compress")
def compress(node: Node) -> Facts:
    """The slices that the condition picks."""
    value, axis = node.operands[0], node.param("axis")
    dims, flags = shape_of(value), constant_array(node.operand(1))
    if not isinstance(axis, int):
        return one(dtype_of(value), (None,))
    place = None if dims is None else axis_of(axis, len(dims))
    if dims is None or place is None:
        return one(dtype_of(value), None)
    # Flags past the end of the axis pick nothing.
    size = dims[place]
    count = int(np.count_nonzero(flags)) if flags is not None and isinstance(size, int) and size >= flags.size else None
    return one(dtype_of(value), (*dims[:place], count, *dims[place + 1 :]))


@transfer("Unique")
def unique(node: Node) -> Facts:
    """The distinct slices, in what order they came, and how many there were."""
    value, axis = node.operands[0], node.param("axis")
    dims: Shape | None = (None,)
    if isinstance(axis, int):
        old = shape_of(value)
        place = None if old is None else axis_of(axis, len(old))
        dims = None if old is None or place is None else (*old[:place], None, *old[place + 1 :])
    index = tensor(DType.INT64, (None,))
    return (tensor(dtype_of(value), dims), index, index, index)


@transfer("Trilu")
def trilu(node: Node) -> Facts:
    """Like the operand."""
    value = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("TensorScatter")
def tensor_scatter(node: Node) -> Facts:
    """Like the first operand, a cache."""
    value: Any = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


def unknown_dims(value: Value | None) -> Shape | None:
    """The rank of an operand with nothing said of its dims."""
    rank = rank_of(value)
    return None if rank is None else (None,) * rank
