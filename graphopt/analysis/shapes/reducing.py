"""Reductions, ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.analysis.shapes import contents as on
from graphopt.analysis.shapes.common import (
    INTEGER_CARRIERS,
    UNKNOWN,
    Elements,
    Facts,
    axes_of,
    axis_of,
    contents,
    dtype_of,
    integers,
    is_known_absent,
    one,
    shape_of,
    transfer,
)
from graphopt.ir import Dim, Node, Shape
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
    folded = _folded(node, contents(value)) if value.dtype in INTEGER_CARRIERS else None
    if folded is None or shape is None or len(shape) > 1 or value.rank != 1:
        return one(value.dtype, shape)
    return one(value.dtype, shape, folded)


def reduced_shape(node: Node, dims: Shape | None) -> Shape | None:
    """The shape of a reduction's result."""
    keep = bool(node.param("keepdims"))
    axes = integers(node, "axes")
    if dims is None:
        return () if axes is None and is_known_absent(node, "axes") and not keep else None
    if axes is None and not is_known_absent(node, "axes"):
        return _unknown_axes(node, dims, keep)
    if not axes:
        if node.param("noop_with_empty_axes"):
            return dims
        axes = tuple(range(len(dims)))
    places = axes_of(axes, len(dims))
    if places is None:
        return None
    if keep:
        return tuple(1 if axis in places else dim for axis, dim in enumerate(dims))
    return tuple(dim for axis, dim in enumerate(dims) if axis not in places)


def _unknown_axes(node: Node, dims: Shape, keep: bool) -> Shape | None:
    if keep:
        return (None,) * len(dims)
    position = node.param_operand("axes")
    shape = None if position is None else shape_of(node.operand(position))
    # Of several axes some may be equal.
    return (None,) * (len(dims) - 1) if shape == (1,) and dims else None


def _folded(node: Node, elements: Elements | None) -> Elements | None:
    """The fold of a vector; None where it is not the whole vector that is folded."""
    if elements is None or node.op_type not in _FOLDS:
        return None
    if node.param("noop_with_empty_axes") and integers(node, "axes") in (None, ()):
        return None
    operation, start = _FOLDS[node.op_type]
    items = list(elements)
    if start is None and not items:
        return None
    total: Dim = start if start is not None else items.pop(0)
    for item in items:
        if total is None or item is None:
            return (None,)
        total = operation(total, item)
    return (total,)


@transfer("ArgMax", "ArgMin")
def arg_extreme(node: Node) -> Facts:
    """The index of the largest or smallest along an axis."""
    dims, axis = shape_of(node.operands[0]), node.param("axis")
    place = axis_of(axis if isinstance(axis, int) else 0, len(dims)) if dims is not None else None
    if dims is None or place is None:
        return one(DType.INT64, None)
    middle: tuple[Dim, ...] = (1,) if node.param("keepdims") else ()
    return one(DType.INT64, (*dims[:place], *middle, *dims[place + 1 :]))


@transfer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node) -> Facts:
    """Every spatial axis folded into one element."""
    dims = shape_of(node.operands[0])
    return one(dtype_of(node.operands[0]), None if dims is None else dims[:2] + (1,) * (len(dims) - 2))
