"""Operators that make tensors from little: sizes, ranges, fills, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.analysis.shapes.common import (
    CARRIERS,
    INTEGER_CARRIERS,
    MAX_ELEMENTS,
    UNKNOWN,
    Facts,
    constant_array,
    contents,
    count_of,
    dtype_of,
    one,
    parameter,
    plus,
    read_contents,
    scalar_content,
    shape_of,
    tensor,
    transfer,
)
from graphopt.analysis.shapes.contents import IN_DOUBLE, fitted, is_within
from graphopt.ir import Dim, Node, Shape, Value
from graphopt.ir.symbol import Integer, ceildiv, is_nonnegative, maximum
from graphopt.tensors import DType, Tensor


def dims_from(value: Value | None) -> Shape | None:
    """The shape that an operand's contents spell; None where not even its length is known."""
    elements = contents(value)
    if elements is not None:
        return tuple(item if item is not None and is_nonnegative(item) else None for item in elements)
    shape = shape_of(value)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > MAX_ELEMENTS:
        return None
    return (None,) * shape[0]


@transfer("Shape")
def shape(node: Node) -> Facts:
    """The operand's dims as a vector."""
    dims = shape_of(node.operand(0))
    if dims is None:
        return one(DType.INT64, (None,))
    start, end = node.param("start"), node.param("end")
    dims = dims[slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None)]
    return one(DType.INT64, (len(dims),), dims if len(dims) <= MAX_ELEMENTS else None)


@transfer("Size")
def size(node: Node) -> Facts:
    """The number of elements."""
    dims = shape_of(node.operand(0))
    return one(DType.INT64, (), None if dims is None else (count_of(dims),))


@transfer("ConstantOfShape")
def constant_of_shape(node: Node) -> Facts:
    """One value throughout, in the shape that the operand spells."""
    fill = node.param("value")
    dtype = fill.dtype if isinstance(fill, Tensor) else DType.FLOAT
    dims = dims_from(node.operand(0))
    count = None if dims is None else count_of(dims)
    if dims is None or not isinstance(count, int) or count > MAX_ELEMENTS or len(dims) > 2:
        return one(dtype, dims)
    item = read_contents(fill) if isinstance(fill, Tensor) else (0,)
    return one(dtype, dims, None if item is None or len(item) != 1 else item * count)


@transfer("Range")
def range_(node: Node) -> Facts:
    """Numbers from a start to a limit in steps."""
    dtype = dtype_of(node.operand(0))
    count = _range_count(node)
    if not isinstance(count, int) or count > MAX_ELEMENTS or dtype not in INTEGER_CARRIERS:
        return one(dtype, (count,))
    return one(dtype, (count,), tuple(_stepped(node, index) for index in range(count)))


def _stepped(node: Node, index: int) -> Dim:
    start, delta = scalar_content(node.operand(0)), scalar_content(node.operand(2))
    return fitted(plus(start, None if delta is None else delta * index), dtype_of(node.operand(0)))


def _range_count(node: Node) -> Dim:
    numbers = [constant_array(value) for value in node.operands]
    known = [array for array in numbers if array is not None and array.size == 1]
    if len(known) == 3:
        first, last, step = (array.reshape(-1)[0].item() for array in known)
        if max(abs(first), abs(last)) > IN_DOUBLE:
            return None
        return max(0, int(np.ceil((last - first) / step))) if step else None
    start, limit, delta = (scalar_content(value) for value in node.operands)
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return None
    if dtype_of(node.operand(0)) not in CARRIERS:
        return None
    if not is_within(start, IN_DOUBLE) or not is_within(limit, IN_DOUBLE):
        return None  # the runtime divides in double
    span: Integer = limit - start
    return maximum(0, ceildiv(span, delta) if delta > 0 else ceildiv(-span, -delta))


@transfer("EyeLike")
def eye_like(node: Node) -> Facts:
    """The operand's shape, in the element type asked for."""
    dtype = node.param("dtype")
    return one(DType(dtype) if isinstance(dtype, int) else dtype_of(node.operand(0)), shape_of(node.operand(0)))


@transfer("RandomNormal", "RandomUniform")
def random(node: Node) -> Facts:
    """The shape and element type of the attributes."""
    dtype, dims = node.param("dtype"), node.param("shape")
    return one(DType(dtype) if isinstance(dtype, int) else DType.FLOAT, dims if isinstance(dims, tuple) else None)


@transfer("Multinomial")
def multinomial(node: Node) -> Facts:
    """One row of samples for each row of the operand."""
    dims, dtype, count = shape_of(node.operand(0)), node.param("dtype"), node.param("sample_size")
    rows = dims[0] if dims else None
    return one(
        DType(dtype) if isinstance(dtype, int) else DType.INT32, (rows, count if isinstance(count, int) else None)
    )


@transfer("Constant")
def constant(node: Node) -> Facts:
    """A constant the IR keeps as an operator: its value is the caller's, or sparse."""
    return (UNKNOWN,)


@transfer("HannWindow", "HammingWindow", "BlackmanWindow")
def window(node: Node) -> Facts:
    """A vector of the size asked for."""
    dtype, length = node.param("output_datatype"), scalar_content(node.operand(0))
    return one(DType(dtype) if isinstance(dtype, int) else DType.FLOAT, (length,))


@transfer("NonZero")
def non_zero(node: Node) -> Facts:
    """The indices of elements that are not 0, one column for each."""
    value = node.operand(0)
    dims = shape_of(value)
    rank = None if dims is None else max(len(dims), 1)
    array = constant_array(value, MAX_ELEMENTS)
    elements = contents(value)
    flags = None if array is None else [bool(item) for item in array.reshape(-1)]
    if flags is None and elements is not None and all(isinstance(item, int) for item in elements):
        flags = [item != 0 for item in elements]
    if flags is None or dims is None or len(dims) != 1:
        return one(DType.INT64, (rank, None))
    found = tuple(index for index, flag in enumerate(flags) if flag)
    return one(DType.INT64, (1, len(found)), found)


@transfer("OneHot")
def one_hot(node: Node) -> Facts:
    """The indices' shape with the depth put in at an axis."""
    indices, depth = shape_of(node.operand(0)), scalar_content(node.operand(1))
    dtype = dtype_of(node.operand(2))
    if indices is None:
        return one(dtype, None)
    axis = node.param("axis")
    place = axis if isinstance(axis, int) and axis >= 0 else len(indices) + 1 + (axis if isinstance(axis, int) else -1)
    return one(dtype, (*indices[:place], depth, *indices[place:]))


@transfer("TopK")
def top_k(node: Node) -> Facts:
    """The largest or smallest along an axis, and where they are."""
    value = node.operands[0]
    dims = shape_of(value)
    found: Any = parameter(node, "k")
    axis = node.param("axis")
    count = found[0] if isinstance(found, tuple) and len(found) == 1 else found
    known = count if not isinstance(count, tuple) and (isinstance(count, int) or hasattr(count, "terms")) else None
    if dims is None or not isinstance(axis, int):
        return (tensor(dtype_of(value), None), tensor(DType.INT64, None))
    place = axis % len(dims) if dims else 0
    dims = (*dims[:place], known, *dims[place + 1 :])
    return (tensor(dtype_of(value), dims), tensor(DType.INT64, dims))
