"""Resampling of images and regions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from graphopt.analysis.shapes.common import (
    Elements,
    Facts,
    axes_of,
    constant_array,
    contents,
    dtype_of,
    is_known_absent,
    one,
    shape_of,
    times,
    transfer,
)
from graphopt.analysis.shapes.sources import dims_from
from graphopt.ir import Dim, Expr, Node, Shape, Value
from graphopt.ir.symbol import Integer, define, floordiv, opaque, product_of
from graphopt.tensors import DType

_EXACT_NUMERATOR = 64


def resized_dim(size: Integer, scale: str) -> Integer:
    """`floor(size * scale)` as the runtime computes it, in single precision.

    Args:
        size: The dim.
        scale: The scale as a fraction, `numerator/denominator`.
    """
    fraction = Fraction(scale)
    if not isinstance(size, Expr):
        return int(np.floor(np.float32(float(fraction)) * np.float32(size)))
    if 0 < fraction.numerator <= _EXACT_NUMERATOR:  # the product is exact whatever the precision
        return floordiv(size * fraction.numerator, fraction.denominator)
    return opaque("resized", size, scale, nonnegative=True)


define("resized", resized_dim)


@transfer("Resize", "Upsample")
def resize(node: Node) -> Facts:
    """The operand resampled to given sizes or by given scales."""
    dims = shape_of(node.operands[0])
    dtype = dtype_of(node.operands[0])
    if dims is None:
        return one(dtype, None)
    return one(dtype, _resized(node, dims) or (None,) * len(dims))


def _resized(node: Node, dims: Shape) -> Shape | None:
    axes = node.param("axes") if node.op_type == "Resize" else None
    places = axes_of(axes, len(dims)) if isinstance(axes, tuple) else list(range(len(dims)))
    if places is None or node.param("coordinate_transformation_mode") == "tf_crop_and_resize":
        return None if node.operand(3) is None else _with_sizes(node, dims, places)
    if node.operand(3) is not None:
        return _with_sizes(node, dims, places)
    scales = _scales(node)
    if scales is None or len(scales) != len(places):
        return _rest_unknown(dims, places)
    result = list(dims)
    for place, scale in zip(places, scales, strict=True):
        dim = dims[place]
        result[place] = None if dim is None else dim if scale == 1.0 else resized_dim(dim, str(Fraction(scale)))
    return tuple(result)


def _scales(node: Node) -> list[float] | None:
    stated = node.attributes.get("scales")
    if isinstance(stated, tuple):
        return [float(np.float32(scale)) for scale in stated]
    value = node.operand(2 if node.op_type == "Resize" and node.has_latest_meaning else 1)
    array = constant_array(value)
    if array is not None:
        return [float(scale) for scale in array.reshape(-1)]
    known = contents(value)
    if known is None or not all(isinstance(scale, int) for scale in known):
        return None
    return [float(scale) for scale in known if isinstance(scale, int)]


def _with_sizes(node: Node, dims: Shape, places: list[int] | None) -> Shape | None:
    sizes: Elements | None = dims_from(node.operand(3))
    if places is None or sizes is None or len(sizes) != len(places):
        return None if places is None else _rest_unknown(dims, places)
    if node.param("keep_aspect_ratio_policy") not in (None, "stretch"):
        return _rest_unknown(dims, places)
    result = list(dims)
    for place, size in zip(places, sizes, strict=True):
        result[place] = size
    return tuple(result)


def _rest_unknown(dims: Shape, places: list[int]) -> Shape:
    return tuple(None if place in places else dim for place, dim in enumerate(dims))


@transfer("GridSample")
def grid_sample(node: Node) -> Facts:
    """The first operand read at the points of a grid."""
    dims, grid = shape_of(node.operands[0]), shape_of(node.operands[1])
    if dims is None or grid is None or len(dims) != len(grid):
        return one(dtype_of(node.operands[0]), None if dims is None else (*dims[:2], *(None,) * (len(dims) - 2)))
    return one(dtype_of(node.operands[0]), (*dims[:2], *grid[1:-1]))


@transfer("AffineGrid")
def affine_grid(node: Node) -> Facts:
    """The points at which an image of a given size is read."""
    size = dims_from(node.operand(1))
    if size is None:
        return one(dtype_of(node.operands[0]), None)
    return one(dtype_of(node.operands[0]), (size[0], *size[2:], len(size) - 2))


@transfer("RoiAlign")
def roi_align(node: Node) -> Facts:
    """A patch of fixed size for each region."""
    dims, regions = shape_of(node.operands[0]), shape_of(node.operands[1])
    channels = dims[1] if dims is not None and len(dims) > 1 else None
    height, width = node.param("output_height"), node.param("output_width")
    return one(dtype_of(node.operands[0]), (regions[0] if regions else None, channels, height, width))


@transfer("NonMaxSuppression")
def non_max_suppression(node: Node) -> Facts:
    """Batch, class and box of each box that is kept."""
    return one(DType.INT64, (None, 3))


@transfer("Col2Im")
def columns_to_image(node: Node) -> Facts:
    """Blocks added up to an image."""
    dims, image = shape_of(node.operands[0]), dims_from(node.operand(1))
    block = contents(node.operand(2))
    size = None if block is None else product_of(block)
    channels: Dim = None
    if dims is not None and len(dims) == 3 and dims[1] is not None and isinstance(size, int) and size > 0:
        channels = floordiv(dims[1], size)
    if image is None:
        return one(dtype_of(node.operands[0]), None)
    return one(dtype_of(node.operands[0]), (dims[0] if dims else None, channels, *image))


@transfer("CenterCropPad")
def center_crop_pad(node: Node) -> Facts:
    """The operand cropped or padded to given sizes."""
    dims, sizes = shape_of(node.operands[0]), dims_from(node.operand(1))
    if dims is None:
        return one(dtype_of(node.operands[0]), None)
    axes: Any = node.param("axes")
    places = list(range(len(dims))) if is_known_absent(node, "axes") else axes_of(axes, len(dims))
    if places is None or sizes is None or len(sizes) != len(places):
        return one(dtype_of(node.operands[0]), (None,) * len(dims))
    result = list(dims)
    for place, size in zip(places, sizes, strict=True):
        result[place] = size
    return one(dtype_of(node.operands[0]), result)


def scaled(dim: Dim, by: int) -> Dim:
    """A dim times a number."""
    return times(dim, by)


def values_of(value: Value | None) -> Elements | None:
    """The contents of an operand."""
    return contents(value)
