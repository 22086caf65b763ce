"""Operators that give a tensor another shape or order and keep its elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

import numpy as np

from graphopt.analysis.shapes import contents as on
from graphopt.analysis.shapes.common import (
    CACHE,
    CARRIERS,
    UNKNOWN,
    Array,
    Fact,
    Facts,
    axes_of,
    axis_of,
    broadcast_shapes,
    content_array,
    contents,
    count_of,
    dtype_of,
    integers,
    is_known_absent,
    one,
    parameter,
    rank_of,
    same_dim,
    shape_of,
    static,
    tensor,
    times,
    transfer,
    vector,
)
from graphopt.analysis.shapes.sources import dims_from
from graphopt.ir import Dim, Expr, Node, Shape
from graphopt.ir.symbol import (
    Application,
    Integer,
    define,
    divide_exactly,
    floordiv,
    is_nonnegative,
    is_nonzero,
    opaque,
    product_of,
)


def reshaped(node: Node, shape: Sequence[Dim] | None) -> Facts:
    """The facts of a result that holds the first operand's elements in order."""
    value = node.operands[0]
    elements = contents(value) if value is not None and value.dtype in CARRIERS else None
    if elements is not None and (shape is None or len(shape) > 2 or static(shape) is None):
        elements = None
    return one(dtype_of(value), shape, elements)


# --- Reshape


def size_or(size: Integer, other: Integer) -> Integer:
    """What Reshape makes of a target size that may be 0 and then stands for the operand's own dim."""
    if not isinstance(size, Expr):
        return size if size else other
    if is_nonzero(size) or same_dim(size, other) or divide_exactly(other, _primitive(size)) is not None:
        return size
    if isinstance(other, Application) and other.name == "broadcast" and size in other.args:
        return size  # what broadcasts with 0 is 0
    return opaque("size_or", size, other, nonnegative=is_nonnegative(size) and is_nonnegative(other))


define("size_or", size_or)


def _primitive(size: Expr) -> Integer:
    """The expression without the number that divides it: it is 0 where the whole is."""
    found = divide_exactly(size, gcd(*size.terms.values()))
    return size if found is None else found


@transfer("Reshape")
def reshape(node: Node) -> Facts:
    """The operand's elements in another shape."""
    old = shape_of(node.operands[0])
    if node.has_latest_meaning:
        elements = contents(node.operand(1))
        target = elements if elements is not None else dims_from(node.operand(1))
    else:
        target = node.param("shape")
    if target is None or not isinstance(target, tuple):
        return one(dtype_of(node.operands[0]), None)
    return reshaped(node, reshape_shape(old, target, bool(node.param("allowzero"))))


@lru_cache(maxsize=CACHE)
def reshape_shape(old: Shape | None, target: Shape, allow_zero: bool = False) -> Shape:
    """The shape after a reshape to `target`, in which 0 copies a dim and -1 takes what is left.

    A run in which -1 stands beside a size of 0 fails, and so does one in which the sizes do not fit.
    """
    free = [index for index, size in enumerate(target) if isinstance(size, int) and size == -1]
    dims = [_target_dim(old, target, index, allow_zero, bool(free)) for index in range(len(target))]
    total = None if old is None else count_of(old)
    if not free:
        free = [index for index, size in enumerate(dims) if size is None]
    if len(free) != 1 or total is None:
        return tuple(dims)
    place = free[0]
    rest = product_of(dims[:place] + dims[place + 1 :])
    if rest is None or (isinstance(rest, int) and rest == 0):
        return tuple(dims)
    if is_nonzero(rest) or (target[place] == -1 and not allow_zero):
        dims[place] = floordiv(total, rest, assume_nonzero=True)
    elif target[place] == -1 and old is not None:
        sizes = [dim for dim in (*old, *dims) if dim is not None]
        dims[place] = fitted_dim(len(old), *sizes)
    return tuple(dims)


def fitted_dim(count: int, *sizes: Integer) -> Integer:
    """What -1 stands for beside sizes that may be 0, where 0 is allowed: dims of 0 are left out of the quotient.

    Args:
        count: How many of the sizes are the operand's.
        sizes: The dims of the operand, and those of the result but this one.
    """
    old, new = list(sizes[:count]), list(sizes[count:])
    if all(isinstance(size, int) for size in sizes):
        if 0 in new:
            old, new = [size for size in old if size != 0], [size for size in new if size != 0]
        return floordiv(product_of(old) or 0, product_of(new) or 1, assume_nonzero=True)
    for size in list(old):
        match = next((index for index, other in enumerate(new) if same_dim(size, other)), None)
        if match is not None:
            old.remove(size)
            del new[match]
    if all(is_nonzero(size) for size in (*old, *new)):
        whole, rest = product_of(old), product_of(new)
        if whole is not None and rest is not None:
            return floordiv(whole, rest, assume_nonzero=True)
    return opaque("fitted_dim", count, *sizes, nonnegative=True)


define("fitted_dim", fitted_dim)


def _target_dim(old: Shape | None, target: Sequence[Dim], index: int, allow_zero: bool, has_free: bool) -> Dim:
    size = target[index]
    if size is None or (isinstance(size, int) and size > 0):
        return size
    if isinstance(size, int) and size < 0:
        return None
    copied = old[index] if old is not None and index < len(old) else None
    if isinstance(size, int):
        return 0 if allow_zero else copied
    is_dim = old is not None and any(same_dim(size, dim) for dim in old)
    if not has_free and not is_dim and not is_nonnegative(size):
        return None  # it may be -1
    if allow_zero or is_nonzero(size):
        return size
    if old is not None and index >= len(old):
        return size  # there is nothing to copy: a 0 fails
    if not has_free and old is not None and _vanishes_with(old, target, index):
        return size
    return None if copied is None else size_or(size, copied)


def _vanishes_with(old: Shape, target: Sequence[Dim], index: int) -> bool:
    """True if a size of 0 means no elements, and no other size can be the 0 that makes it so."""
    size, total = target[index], count_of(old)
    if not isinstance(size, Expr) or total is None or divide_exactly(total, _primitive(size)) is None:
        return False
    others = [other for place, other in enumerate(target) if place != index]
    return all(other is not None and is_nonzero(other) for other in others)


# --- other views


@transfer("Flatten")
def flatten(node: Node) -> Facts:
    """A matrix: dims before the axis multiplied, and those from it on."""
    dims, axis = shape_of(node.operands[0]), node.param("axis")
    if dims is None or not isinstance(axis, int):
        return reshaped(node, (None, None))
    place = axis + len(dims) if axis < 0 else axis
    return reshaped(node, (count_of(dims[:place]), count_of(dims[place:])))


@transfer("Squeeze")
def squeeze(node: Node) -> Facts:
    """The operand without some dims of size 1."""
    dims = shape_of(node.operands[0])
    axes = integers(node, "axes")
    if dims is None or (axes is None and not is_known_absent(node, "axes")):
        return reshaped(node, _rank_less(node, dims))
    if axes is None:
        # Every 1 goes: where a dim might be 1, the rank is unknown.
        if any(dim is None or (isinstance(dim, Expr) and not is_nonzero(dim - 1)) for dim in dims):
            return reshaped(node, None)
        return reshaped(node, [dim for dim in dims if dim != 1])
    dropped = axes_of(axes, len(dims))
    if dropped is None:
        return one(dtype_of(node.operands[0]), None)
    return reshaped(node, [dim for index, dim in enumerate(dims) if index not in dropped])


def _rank_less(node: Node, dims: Shape | None) -> Shape | None:
    # Of several axes some may be equal.
    return (None,) * (len(dims) - 1) if shape_of(node.operand(1)) == (1,) and dims else None


@transfer("Unsqueeze")
def unsqueeze(node: Node) -> Facts:
    """The operand with dims of size 1 put in."""
    dims, axes = shape_of(node.operands[0]), integers(node, "axes")
    if dims is None or axes is None:
        return reshaped(node, None)
    rank = len(dims) + len(axes)
    added = axes_of(axes, rank)
    if added is None:
        return one(dtype_of(node.operands[0]), None)
    rest = iter(dims)
    return reshaped(node, [1 if index in added else next(rest, None) for index in range(rank)])


@transfer("Transpose")
def transpose(node: Node) -> Facts:
    """The dims in another order."""
    value = node.operands[0]
    dims, order = shape_of(value), node.param("perm")
    if dims is None:
        return one(dtype_of(value), (None,) * len(order) if isinstance(order, tuple) and order else None)
    places = list(order) if isinstance(order, tuple) and order else list(reversed(range(len(dims))))
    if sorted(places) != list(range(len(dims))):
        return one(dtype_of(value), None)
    array = content_array(value) if value is not None and value.dtype in CARRIERS else None
    if array is not None:
        return vector(dtype_of(value), np.transpose(array, places), dims)
    return one(dtype_of(value), [dims[place] for place in places])


@transfer("Expand")
def expand(node: Node) -> Facts:
    """The operand broadcast to the shape that the second operand spells."""
    value = node.operands[0]
    dims = broadcast_shapes(shape_of(value), dims_from(node.operand(1)))
    array = content_array(value) if value is not None and value.dtype in CARRIERS else None
    sizes = static(dims)
    if array is not None and sizes is not None and np.prod(sizes) <= 64 and len(sizes) <= 2:
        return vector(dtype_of(value), np.broadcast_to(array, sizes), dims)
    return one(dtype_of(value), dims)


@transfer("Tile")
def tile(node: Node) -> Facts:
    """The operand repeated along each axis."""
    value = node.operands[0]
    dims = shape_of(value)
    if not node.has_latest_meaning:
        return one(dtype_of(value), None if dims is None else (None,) * len(dims))
    repeats = contents(node.operand(1))
    if dims is None or repeats is None or len(repeats) != len(dims):
        rank = dims_from(node.operand(1)) if dims is None else dims
        return one(dtype_of(value), None if rank is None else (None,) * len(rank))
    sizes = [0 if dim == 0 else times(dim, count) for dim, count in zip(dims, repeats, strict=True)]
    array = content_array(value) if value is not None and value.dtype in CARRIERS else None
    numbers = static(repeats)
    known = static(sizes)
    if array is not None and numbers is not None and known is not None and np.prod(known) <= 64:
        return vector(dtype_of(value), np.tile(array, numbers), sizes)
    return one(dtype_of(value), sizes)


@transfer("DepthToSpace", "SpaceToDepth")
def blocks(node: Node) -> Facts:
    """Channels against blocks of pixels."""
    dims, block = shape_of(node.operands[0]), node.param("blocksize")
    if dims is None or len(dims) != 4 or not isinstance(block, int) or block < 1:
        return one(dtype_of(node.operands[0]), (None,) * 4)
    batch, channels, height, width = dims
    if node.op_type == "SpaceToDepth":
        shape = (batch, times(channels, block * block), _over(height, block), _over(width, block))
    else:
        shape = (batch, _over(channels, block * block), times(height, block), times(width, block))
    return one(dtype_of(node.operands[0]), shape)


def _over(dim: Dim, by: int) -> Dim:
    return None if dim is None else floordiv(dim, by)


@transfer("CumSum", "CumProd")
def running(node: Node) -> Facts:
    """Like the operand; sums of a small vector are followed."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    array = content_array(value) if value.dtype in CARRIERS and node.op_type == "CumSum" else None
    if array is None or array.ndim != 1 or node.param("exclusive") or value.dtype is None or value.dtype.is_float:
        return (Fact(value.type),)
    items = list(array)[::-1] if node.param("reverse") else list(array)
    total: Dim = 0
    sums: list[Dim] = []
    for item in items:
        total = None if total is None or item is None else on.fitted(total + item, value.dtype)
        sums.append(total)
    return (Fact(value.type, tuple(sums[::-1] if node.param("reverse") else sums)),)


# --- axes helpers shared by this family


def without_axis(shape: Shape | None, axis: int) -> Shape | None:
    """The shape without one axis."""
    place = None if shape is None else axis_of(axis, len(shape))
    return None if shape is None or place is None else shape[:place] + shape[place + 1 :]


__all__ = ["Array", "parameter", "rank_of", "reshape_shape", "reshaped", "size_or", "tensor", "without_axis"]
