"""Reductions, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from graphopt.analysis.shapes import contents as on
from graphopt.analysis.shapes.common import (
    CACHE,
    INTEGER_CARRIERS,
    UNKNOWN,
    Elements,
    Facts,
    axes_of,
    contents,
    dtype_of,
    integers,
    is_known_absent,
    one,
    same_dim,
    shape_of,
    transfer,
)
from graphopt.ir import Dim, Node, Shape
from graphopt.ir.symbol import Integer, define, is_nonzero, opaque
from graphopt.tensors import DType

_FOLDS: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "ReduceProd": (on.multiply, 1),
    "ReduceSum": (on.add, 0),
    "ReduceMax": (on.greatest, None),
    "ReduceMin": (on.least, None),
}


@transfer(
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
def reduce(node: Node) -> Facts:
    """The operand with some axes folded into one element each."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    shape = reduced_shape(node, value.shape)
    folded = _folded(node, contents(value), value.dtype) if value.dtype in INTEGER_CARRIERS else None
    if folded is None or shape is None or len(shape) > 1 or value.rank != 1:
        return one(value.dtype, shape)
    return one(value.dtype, shape, folded)


def reduced_shape(node: Node, dims: Shape | None) -> Shape | None:
    """The shape of a reduction's result."""
    keep = bool(node.param("keepdims"))
    axes = integers(node, "axes")
    if dims is None:
        folds_all = is_known_absent(node, "axes") and not keep and not node.param("noop_with_empty_axes")
        return () if folds_all else None
    if axes is None and not is_known_absent(node, "axes"):
        return _unknown_axes(node, dims, keep)
    if not axes:
        if node.param("noop_with_empty_axes"):
            return dims
        axes = tuple(range(len(dims)))
    return folded_shape(dims, axes, keep)


def folded_shape(dims: Shape, axes: Sequence[int], keep: bool) -> Shape | None:
    """The shape without some axes, or with 1 for them. Of an empty operand the runtime leaves out no negative axis."""
    places = axes_of(axes, len(dims))
    if places is None:
        return None
    certain = {axis for axis in axes if axis >= 0}
    doubtful = {axis for axis in places if axis not in certain}
    if keep:
        return tuple(
            1 if axis in certain else _kept(dim, dims) if axis in doubtful else dim for axis, dim in enumerate(dims)
        )
    if any(isinstance(dim, int) and dim == 0 for dim in dims):
        places = list(certain)
    elif doubtful and not all(dim is not None and is_nonzero(dim) for dim in dims):
        return None
    return tuple(dim for axis, dim in enumerate(dims) if axis not in places)


def _kept(size: Dim, dims: Shape) -> Dim:
    known = [dim for dim in dims if dim is not None]
    if size is None or len(known) < len(dims):
        return 1 if size == 1 else None
    return reduced_dim(size, *known)


@lru_cache(maxsize=CACHE)
def reduced_dim(size: Integer, *dims: Integer) -> Integer:
    """The size of a reduced axis that is given as a negative number: 1, but where a dim is 0 what it was.

    Args:
        size: What it was.
        dims: All dims of the operand.
    """
    if same_dim(size, 1) or all(is_nonzero(dim) for dim in dims):
        return 1
    if any(isinstance(dim, int) and dim == 0 for dim in dims):
        return size
    return opaque("reduced_dim", size, *dims, nonnegative=True)


define("reduced_dim", reduced_dim)


def _unknown_axes(node: Node, dims: Shape, keep: bool) -> Shape | None:
    if keep:
        return (None,) * len(dims)
    position = node.param_operand("axes")
    shape = None if position is None else shape_of(node.operand(position))
    # Of several axes some may be equal, and of an empty operand a negative one is not left out.
    is_filled = bool(dims) and all(dim is not None and is_nonzero(dim) for dim in dims)
    return (None,) * (len(dims) - 1) if shape == (1,) and is_filled else None


def _folded(node: Node, elements: Elements | None, dtype: DType) -> Elements | None:
    """The fold of a vector; None where it is not the whole vector that is folded."""
    if elements is None or node.op_type not in _FOLDS:
        return None
    if node.param("noop_with_empty_axes") and integers(node, "axes") in (None, ()):
        return None
    operation, start = _FOLDS[node.op_type]
    items = list(elements)
    if not items:
        return None
    total: Dim = start if start is not None else items.pop(0)
    # Sums and products the runtime computes in double; of extremes it is not known.
    limit = on.IN_DOUBLE if start is not None else on.SHORT if dtype is DType.INT64 else 1 << 31
    for item in items:
        if total is None or item is None or not on.is_within(item, limit, dtype):
            return (None,)
        total = on.fitted(operation(total, item), dtype)
        if total is not None and not on.is_within(total, limit, dtype):
            return (None,)
    return (total,)


@transfer("ArgMax", "ArgMin")
def arg_extreme(node: Node) -> Facts:
    """The index of the largest or smallest along an axis."""
    dims, axis = shape_of(node.operands[0]), node.param("axis")
    if dims is None:
        return one(DType.INT64, None)
    shape = folded_shape(dims, (axis if isinstance(axis, int) else 0,), bool(node.param("keepdims")))
    return one(DType.INT64, shape)


@transfer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node) -> Facts:
    """Every spatial axis folded into one element."""
    dims = shape_of(node.operands[0])
    return one(dtype_of(node.operands[0]), None if dims is None else dims[:2] + (1,) * (len(dims) - 2))
