"""Convolutions and pooling: windows that slide over spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.analysis.shapes.common import (
    Facts,
    constant_array,
    dtype_of,
    one,
    rank_of,
    shape_of,
    tensor,
    times,
    transfer,
)
from graphopt.ir import Dim, Node, Shape
from graphopt.ir.symbol import Integer, bounds, ceildiv, floordiv, maximum, truncdiv
from graphopt.tensors import DType


class Window:
    """The attributes of a sliding window, a number for each spatial axis."""

    def __init__(self, node: Node, kernel: Sequence[Dim]) -> None:
        """Read the attributes; absent ones have their defaults."""
        count = len(kernel)
        self.kernel = kernel
        self.strides = _numbers(node, "strides", count, 1)
        self.dilations = _numbers(node, "dilations", count, 1)
        self.auto_pad = node.param("auto_pad") or "NOTSET"
        pads = _numbers(node, "pads", 2 * count, 0)
        if self.auto_pad != "NOTSET":
            pads = (0,) * (2 * count)
        self.begins, self.ends = pads[:count], pads[count:]
        self.is_valid = min(len(self.strides), len(self.dilations), len(self.ends)) == count

    @property
    def is_same(self) -> bool:
        """True if pads are chosen so that the strides alone tell the result's size."""
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER")

    def reach(self, axis: int) -> Dim:
        """How many elements a window spans."""
        size = self.kernel[axis]
        return None if size is None else (size - 1) * self.dilations[axis] + 1


def _numbers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    found = node.param(name)
    return found if isinstance(found, tuple) and found else (default,) * count


def _kernel(node: Node, weights: Shape | None, rank: int) -> Sequence[Dim] | None:
    stated = node.param("kernel_shape")
    if isinstance(stated, tuple) and stated:
        return stated if len(stated) == rank - 2 else None
    return weights[2:] if weights is not None and len(weights) == rank else None


# --- convolution


def convolved(node: Node, dims: Shape | None, weights: Shape | None) -> Shape | None:
    """The shape of a convolution; the runtime fails where a window is larger than the padded operand."""
    if dims is None:
        return None if weights is None else (None, weights[0], *(None,) * (len(weights) - 2))
    channels = weights[0] if weights else None
    kernel = _kernel(node, weights, len(dims))
    window = None if kernel is None else Window(node, kernel)
    if window is None or not window.is_valid:
        return (dims[0], channels, *(None,) * (len(dims) - 2))
    return (dims[0], channels, *(_convolved_dim(window, axis, dim) for axis, dim in enumerate(dims[2:])))


def _convolved_dim(window: Window, axis: int, dim: Dim) -> Dim:
    reach, stride = window.reach(axis), window.strides[axis]
    if dim is None:
        return None
    if window.is_same:
        return ceildiv(dim, stride)
    if reach is None:
        return None
    return maximum(floordiv(dim + (window.begins[axis] + window.ends[axis]) - reach, stride) + 1, 1)


def room_of_conv(node: Node) -> list[Integer]:
    """For each spatial axis how far a window can slide; the runtime fails where that is less than 0."""
    dims, weights = shape_of(node.operands[0]), shape_of(node.operand(1))
    kernel = None if dims is None else _kernel(node, weights, len(dims))
    window = None if kernel is None else Window(node, kernel)
    if dims is None or window is None or not window.is_valid or window.is_same:
        return []
    found = [(dim, window.reach(axis), window.begins[axis] + window.ends[axis]) for axis, dim in enumerate(dims[2:])]
    return [dim + pads - reach for dim, reach, pads in found if dim is not None and reach is not None]


@transfer("Conv")
def conv(node: Node) -> Facts:
    """A convolution."""
    return one(dtype_of(node.operands[0]), convolved(node, shape_of(node.operands[0]), shape_of(node.operand(1))))


@transfer("ConvInteger")
def conv_integer(node: Node) -> Facts:
    """A convolution of bytes."""
    return one(DType.INT32, convolved(node, shape_of(node.operands[0]), shape_of(node.operand(1))))


@transfer("QLinearConv")
def quantized_conv(node: Node) -> Facts:
    """A convolution of quantized operands, quantized again."""
    return one(dtype_of(node.operand(7)), convolved(node, shape_of(node.operands[0]), shape_of(node.operand(3))))


@transfer("DeformConv")
def deformable_conv(node: Node) -> Facts:
    """A convolution whose windows are bent."""
    return one(dtype_of(node.operands[0]), convolved(node, shape_of(node.operands[0]), shape_of(node.operand(1))))


@transfer("ConvTranspose")
def conv_transpose(node: Node) -> Facts:
    """The gradient of a convolution."""
    dims, weights = shape_of(node.operands[0]), shape_of(node.operand(1))
    dtype = dtype_of(node.operands[0])
    if dims is None:
        return one(dtype, None)
    channels = times(weights[1], node.param("group") or 1) if weights is not None and len(weights) > 1 else None
    kernel = _kernel(node, weights, len(dims))
    count = len(dims) - 2
    given = node.param("output_shape")
    if isinstance(given, tuple) and given:
        return one(dtype, (dims[0], channels, *(given[-count:] if len(given) >= count else (None,) * count)))
    window = None if kernel is None else Window(node, kernel)
    extra = _numbers(node, "output_padding", count, 0)
    if window is None or not window.is_valid or len(extra) != count:
        return one(dtype, (dims[0], channels, *(None,) * count))
    sizes = [_transposed_dim(window, axis, dim, extra[axis]) for axis, dim in enumerate(dims[2:])]
    return one(dtype, (dims[0], channels, *sizes))


def _transposed_dim(window: Window, axis: int, dim: Dim, extra: int) -> Dim:
    reach, stride = window.reach(axis), window.strides[axis]
    if dim is None:
        return None
    if window.is_same:
        # The runtime pads no less than nothing, so a window smaller than the stride leaves the end out.
        return dim * stride if isinstance(reach, int) and reach >= stride and not extra else None
    return None if reach is None else (dim - 1) * stride + extra + reach - window.begins[axis] - window.ends[axis]


# --- pooling


@transfer("MaxPool", "AveragePool", "LpPool")
def pool(node: Node) -> Facts:
    """A value for each window; of MaxPool also where it lies."""
    dims = shape_of(node.operands[0])
    shape = None if dims is None else pooled(node, dims)
    return (tensor(dtype_of(node.operands[0]), shape), tensor(DType.INT64, shape))


def pooled(node: Node, dims: Shape) -> Shape:
    """The shape of pooling as the runtime computes it: rounding towards 0 where a window is larger than the operand."""
    kernel = _kernel(node, None, len(dims))
    window = None if kernel is None else Window(node, kernel)
    if window is None or not window.is_valid:
        return (*dims[:2], *(None,) * (len(dims) - 2))
    ceil_mode = bool(node.param("ceil_mode"))
    return (*dims[:2], *(_pooled_dim(window, axis, dim, ceil_mode) for axis, dim in enumerate(dims[2:])))


def _pooled_dim(window: Window, axis: int, dim: Dim, ceil_mode: bool) -> Dim:
    reach, stride = window.reach(axis), window.strides[axis]
    if dim is None or reach is None:
        return None
    if window.is_same:
        # Of a dilated window the runtime pads as much as one that is not needs, or less.
        return ceildiv(dim, stride) if window.dilations[axis] == 1 else None
    before, after = window.begins[axis], window.ends[axis]
    room = dim + (before + after) - reach
    if ceil_mode:
        return _ceil_pooled(dim, room, before, after, reach, stride)
    low, _ = bounds(room)
    if low is not None and low > -stride:
        return maximum(floordiv(room, stride) + 1, 1)
    return maximum(truncdiv(room, stride) + 1, 0)


def _ceil_pooled(dim: Integer, room: Integer, before: int, after: int, reach: Integer, stride: int) -> Dim:
    size = ceildiv(room, stride) + 1
    if isinstance(reach, int) and reach >= stride + after:
        return maximum(size, 0)
    # A last window that begins in the padding is dropped, by newer runtimes.
    if isinstance(size, int) and isinstance(dim, int):
        return size - 1 if (size - 1) * stride >= dim + before else size
    return None


@transfer("MaxUnpool")
def max_unpool(node: Node) -> Facts:
    """The reverse of MaxPool."""
    dims = shape_of(node.operands[0])
    dtype = dtype_of(node.operands[0])
    if dims is None:
        return one(dtype, None)
    given = constant_array(node.operand(2))
    if node.operand(2) is not None:
        known = None if given is None else [int(size) for size in given]
        return one(dtype, known if known is not None and len(known) == len(dims) else (None,) * len(dims))
    kernel = _kernel(node, None, len(dims))
    window = None if kernel is None else Window(node, kernel)
    if window is None or not window.is_valid:
        return one(dtype, (*dims[:2], *(None,) * (len(dims) - 2)))
    return one(dtype, (*dims[:2], *(_transposed_dim(window, axis, dim, 0) for axis, dim in enumerate(dims[2:]))))


@transfer("MaxRoiPool")
def max_roi_pool(node: Node) -> Facts:
    """A pooled patch for each region."""
    dims, regions = shape_of(node.operands[0]), shape_of(node.operand(1))
    size: Any = node.param("pooled_shape")
    rows = regions[0] if regions else None
    channels = dims[1] if dims is not None and len(dims) > 1 else None
    return one(dtype_of(node.operands[0]), (rows, channels, *(size if isinstance(size, tuple) else (None, None))))


def spatial_rank(node: Node) -> int | None:
    """How many spatial axes the first operand has."""
    rank = rank_of(node.operands[0])
    return None if rank is None else rank - 2
