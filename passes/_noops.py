"""Whether an operator does nothing: the questions behind the rules of `identities`, one function each."""

from __future__ import annotations

import numpy as np

from graphopt import DType, Kind, Node, SequenceType, TensorType, Value, symbol
from passes._proofs import HALVES, WHOLE, Dim, axes_of, axis_of, contents, is_given, same_dim, same_shape, same_type

SUMS = ("ReduceMean", "ReduceProd", "ReduceSum")
EXTREMES = ("ReduceMax", "ReduceMin")


def is_relay(node: Node, value: Value) -> bool:
    """True for an Identity that export would write again: only returned, and what it reads has a name of its own."""
    graph = node.graph
    assert graph is not None
    if any(user.kind is not Kind.RETURN or user.graph is not graph for user in node.result.users):
        return False
    # A body inside returns a copy of it anyway.
    is_returned = any(user.kind is Kind.RETURN and user.graph is graph for user in value.users)
    # A body may return most of its own inputs under any name, the model and a function may not.
    is_input = value.producer.kind is Kind.INPUT and graph.owner is None
    return is_returned or is_input or not graph.can_return(value)


def is_fragile_output(node: Node, value: Value) -> bool:
    """True if a Transpose that a Gemm reads would be returned: ONNX Runtime 1.31 fuses the two and loses the output."""
    is_returned = any(user.kind is Kind.RETURN for user in node.result.users)
    return is_returned and value.producer.is_op("Transpose") and any(user.is_op("Gemm") for user in value.users)


def is_full_slice(node: Node, value: Value) -> bool:
    """True if a Slice leaves nothing out and turns nothing around."""
    steps = contents(node, "steps") if is_given(node, "steps") else ()
    starts, ends = contents(node, "starts"), contents(node, "ends")
    if steps is None:
        return False
    if all(step == 1 for step in steps) and same_shape(node.result, value):
        return True
    if starts is None or ends is None or len(starts) != len(ends):
        return False
    axes = contents(node, "axes") if is_given(node, "axes") else tuple(range(len(starts)))
    if axes is None or len(axes) != len(starts) or len(steps) not in (0, len(starts)):
        return False
    return all(
        _is_full(node, value, axis, starts[index], ends[index], steps[index] if steps else 1)
        for index, axis in enumerate(axes)
    )


def _is_full(node: Node, value: Value, axis: Dim, start: Dim, end: Dim, step: Dim) -> bool:
    if step == 1 and start == 0 and isinstance(end, int) and end >= WHOLE:
        return True
    if value.shape is None or node.result.shape is None or not isinstance(axis, int):
        return False
    if not -len(value.shape) <= axis < len(value.shape):
        return False
    before, after = value.shape[axis], node.result.shape[axis]
    # One element, or none, is the same in either direction.
    return same_dim(before, after) and (step == 1 or (isinstance(before, int) and before < 2))


def is_expand_to_ones(node: Node, value: Value) -> bool:
    """True if an Expand asks only for dims that are there, or for 1."""
    target, dims = contents(node, "shape"), value.shape
    if target is None or dims is None or len(target) > len(dims):
        return False
    tail = dims[len(dims) - len(target) :]
    return all(size == 1 or same_dim(dim, size) for dim, size in zip(tail, target, strict=True))


def is_reshape_in_place(node: Node, value: Value) -> bool:
    """True if a Reshape asks for the dims that are there: by number, by 0, or by -1 once."""
    target, dims = contents(node, "shape"), value.shape
    if target is None or dims is None or len(target) != len(dims):
        return False
    copies = not node.param("allowzero")
    rest = [size for dim, size in zip(dims, target, strict=True) if not (same_dim(dim, size) or (copies and size == 0))]
    # What is left for the only -1 is the dim that was there; where another dim is 0, -1 is an error.
    return rest in ([], [-1])


def has_no_unit_dim(value: Value) -> bool:
    """True if no dim of a tensor can be 1."""
    dims = value.shape
    return dims is not None and all(dim is not None and symbol.never_equal(dim, 1) for dim in dims)


def keeps_labels(equation: str) -> bool:
    """True if an Einsum of one operand neither moves nor sums an axis."""
    labels, arrow, result = equation.replace(" ", "").partition("->")
    letters = labels.replace("...", "")
    # Without an arrow the result has the labels in alphabetical order, after those of the ellipsis.
    kept = result == labels if arrow else list(letters) == sorted(letters) and labels.rfind("...") <= 0
    return kept and len(set(letters)) == len(letters)


def gathers_in_order(node: Node, value: Value) -> bool:
    """True if a Gather takes every index of its axis once, in order."""
    axis, indices = axis_of(node, value.rank), node.operands[1]
    if axis is None or value.shape is None or indices is None or indices.const is None:
        return False
    size, found = value.shape[axis], indices.const
    if not isinstance(size, int) or found.shape != (size,):
        return False
    places = found.numpy()
    return bool(np.array_equal(np.where(places < 0, places + size, places), np.arange(size)))


def scatters_nothing(node: Node) -> bool:
    """True if a scatter has no element to write."""
    indices = node.operands[1]
    if indices is None or indices.shape is None:
        return False
    # The last dim of ScatterND's indices is how many axes they index: where it is 0, all is replaced.
    return 0 in (indices.shape[:-1] if node.op_type == "ScatterND" else indices.shape)


def keeps_scale(node: Node, value: Value) -> bool:
    """True if a Resize or Upsample keeps every size, and reads each pixel where it writes it."""
    mode = node.param("coordinate_transformation_mode")
    if mode == "tf_crop_and_resize" or (mode == "tf_half_pixel_for_nn" and node.param("mode") == "nearest"):
        return False
    if is_given(node, "scales"):
        scales = node.param("scales")
        return isinstance(scales, tuple) and all(scale == 1 for scale in scales)
    return node.op_type == "Resize" and is_given(node, "sizes") and same_shape(node.result, value)


def reduces_nothing(node: Node) -> bool:
    """True if a reduction has no axes and takes that to mean none, not all."""
    return node.param("noop_with_empty_axes") == 1 and not is_given(node, "axes")


def reduces_unit_axes(node: Node, value: Value) -> bool:
    """True if every axis a reduction takes is of size 1, and stays."""
    if node.param("keepdims") != 1 or value.shape is None or reduces_nothing(node):
        return False
    axes = axes_of(node, value.rank) if is_given(node, "axes") else tuple(range(len(value.shape)))
    return axes is not None and all(value.shape[axis] == 1 for axis in axes)


def is_exact_for_one(node: Node, dtype: DType | None) -> bool:
    """True if the kernel of a reduction gives back a single element bit by bit.

    A sum starts from 0.0, which makes 0.0 of -0.0, and 64-bit integers are summed in float64.
    """
    if node.op_type in EXTREMES:
        return dtype is not None and dtype not in HALVES
    return dtype is DType.INT32


def pools_single_pixels(node: Node) -> bool:
    """True if a pool looks at one pixel at a time and at every one of them."""
    shape = node.param("kernel_shape")
    ones = all(size == 1 for size in (*shape, *(node.param("strides") or ())))
    return ones and not any(node.param("pads") or ()) and not any(extra.is_used for extra in node.results[1:])


def max_pool_is_exact(value: Value) -> bool:
    """True if the runtime's MaxPool gives back a single element bit by bit.

    It starts from the least finite number, so that -inf and NaN can get lost, except in float64 and for two spatial
    axes in float32.
    """
    if value.dtype is DType.FLOAT:
        return value.rank == 4
    return value.dtype is not None and (value.dtype.is_integer or value.dtype is DType.DOUBLE)


def has_single_pixel(value: Value) -> bool:
    """True if every spatial axis of an image is of size 1."""
    return value.shape is not None and len(value.shape) > 2 and all(dim == 1 for dim in value.shape[2:])


def is_branch(value: Value, result: Value, *, is_float: bool) -> bool:
    """True if a Where can be a branch of that kind: its result has the branch's type, no condition widens it."""
    return value.dtype is not None and value.dtype.is_float is is_float and same_type(result, value)


def is_present(value: Value) -> bool:
    """True if a value is no optional: there is something in it."""
    return isinstance(value.type, (TensorType, SequenceType))
