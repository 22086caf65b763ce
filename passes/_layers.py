"""Layers with constant weights, Conv, ConvTranspose, Gemm and MatMul, as functions that are linear in each channel.

A layer takes a scale of its result's channels into its weight, a shift into its bias, and a scale of its operand's
channels into its weight. Everything is computed in float64; `b.no(...)` says why it cannot be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt import NOT_CONSTANT, Builder, DType, Miss, Node, Tensor, Value
from passes._weights import Array, doubt_of, in_double, rounded, scaled

CONVOLUTIONS = ("Conv", "ConvTranspose")
LAYERS = (*CONVOLUTIONS, "Gemm", "MatMul")
_LOST = "the weight would overflow or lose precision"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        node: The operator.
        place: Which operand is the weight.
        weight: The weight.
        channels: How many output channels there are, None if the weight is a vector that leaves none.
        axis: The axis of output channels in the result, from the end.
        rank: A rank the result has at least.
        bias: What an Add behind a MatMul adds to each output channel, if that belongs to the layer.
    """

    node: Node
    place: int
    weight: Tensor
    channels: int | None
    axis: int
    rank: int
    bias: Array | None = None

    @property
    def operand(self) -> Value:
        """What the layer is applied to."""
        value = self.node.operand(1 - self.place)
        assert value is not None
        return value

    @property
    def dtype(self) -> DType:
        """The element type the layer computes in."""
        return self.weight.dtype


def layer_of(node: Node) -> Layer | str:
    """The layer a node is, or why it cannot be rewritten."""
    first, second = node.operand(0), node.operand(1)
    if first is None or second is None:
        return "the layer lacks an operand"
    place = 0 if node.op_type == "MatMul" and second.const is None else 1
    value = second if place else first
    weight = value.const
    doubt = doubt_of(value)
    if weight is None or doubt:
        return doubt
    if node.op_type == "MatMul":
        return _product(node, place, weight)
    if node.op_type == "Gemm":
        transposed, *others = (node.param(name) for name in ("transB", "transA", "alpha", "beta"))
        if NOT_CONSTANT in (transposed, *others) or weight.rank != 2:
            return "an attribute is the caller's"
        return Layer(node, 1, weight, weight.shape[0 if transposed else 1], -1, 2)
    group = node.param("group")
    if not isinstance(group, int) or weight.rank < 3 or group < 1:
        return "the number of groups is unknown"
    channels = weight.shape[0] if node.op_type == "Conv" else weight.shape[1] * group
    if channels % group or weight.shape[0] % group:
        return "the channels do not divide into groups"
    return Layer(node, 1, weight, channels, 1 - weight.rank, weight.rank)


def _product(node: Node, place: int, weight: Tensor) -> Layer | str:
    operand = node.operands[1 - place]
    if not weight.rank or operand is None:
        return "a MatMul of a scalar"
    rank = node.result.rank if node.result.rank is not None else max(weight.rank - 1, 0)
    if weight.rank == 1:
        return Layer(node, place, weight, None, 0, rank)
    if place == 1:
        return Layer(node, 1, weight, weight.shape[-1], -1, rank)
    if operand.rank is None:
        return Layer(node, 0, weight, None, 0, rank)
    return Layer(node, 0, weight, weight.shape[-2], -1 if operand.rank == 1 else -2, rank)


def biased_product(add: Node, product: Node) -> Layer | str:
    """A MatMul by a constant with the constant that an Add or Sub brings to each channel of it, as one layer."""
    layer = layer_of(product)
    if isinstance(layer, str):
        return layer
    others = [value for value in add.operands if value is not None and value.producer is not product]
    tensor = others[0].const if len(others) == 1 else None
    bias = None if tensor is None or tensor.dtype is not layer.dtype else per_channel(layer, tensor)
    if bias is None:
        return "what is added is not one constant for each channel"
    if add.op_type == "Sub" and add.operand(1) is not others[0]:
        return "the product is subtracted"
    return replace(layer, bias=-bias if add.op_type == "Sub" else bias)


# --- constants that are one number for each channel


def per_channel(layer: Layer, constant: Tensor) -> Array | None:
    """A constant as one number for each output channel, or one for all.

    None if it is something else, or would give the result more dims or larger ones.
    """
    return along(constant, layer.axis, layer.channels, layer.rank)


def along(constant: Tensor, axis: int, size: int | None, rank: int | None) -> Array | None:
    """A constant as one number for each place along an axis of a value it is broadcast to, or one number.

    Args:
        constant: The constant.
        axis: The axis, from the end.
        size: The size of the axis; None: only a single number will do.
        rank: The rank of the value, or a smaller number.
    """
    if constant.size == 1 and (constant.rank == 0 or (rank is not None and constant.rank <= rank)):
        return in_double(constant).reshape(1)
    if rank is None or constant.rank > rank or size is None or constant.rank < -axis or constant.shape[axis] != size:
        return None
    return in_double(constant).reshape(-1) if constant.size == size else None


# --- rewriting the layer


def with_output(layer: Layer, b: Builder, scale: Array | None, shift: Array | None) -> Value | Miss:
    """The layer whose result is `scale` times the result plus `shift`, each one number or one for each channel."""
    if layer.node.op_type == "MatMul":
        return _product_with_output(layer, b, scale, shift)
    bias = layer.node.operand(2)
    constant = None if bias is None else bias.const
    if bias is not None and constant is None:
        return b.no("the bias is computed at run time")
    if constant is not None and constant.dtype is not layer.dtype:
        return b.no("the bias has another element type")
    weight = _scaled_weight(layer, scale)
    new_bias = _new_bias(layer, constant, scale, shift)
    if weight is None or isinstance(new_bias, str):
        return b.no(_LOST if weight is None else str(new_bias))
    keywords: dict[str, Any] = {}
    if layer.node.op_type == "Gemm" and new_bias is not None and layer.node.param("beta") != 1.0:
        keywords["beta"] = 1.0
    operands = [layer.operand, weight, *([] if new_bias is None else [b.constant(new_bias)])]
    result: Value = b.like(layer.node, *operands, **keywords)
    return result


def _product_with_output(layer: Layer, b: Builder, scale: Array | None, shift: Array | None) -> Value | Miss:
    weight = _scaled_weight(layer, scale)
    if weight is None:
        return b.no(_LOST)
    operands: list[Any] = [weight, layer.operand] if layer.place == 0 else [layer.operand, weight]
    product: Value = b.like(layer.node, *operands)
    with np.errstate(all="ignore"):
        parts = [] if layer.bias is None else [layer.bias if scale is None else layer.bias * scale]
        parts = parts if shift is None else [*parts, shift]
        total = sum(parts[1:], parts[0]) if parts else np.zeros(1)
    if not total.any():
        return product
    if layer.channels is not None:
        total = np.broadcast_to(total, (layer.channels,)).reshape(layer.channels, *[1] * (-layer.axis - 1))
    bias = rounded(total if layer.channels is not None else total.reshape(()), layer.dtype)
    if bias is None:
        return b.no(_LOST)
    result: Value = b.Add(product, bias)
    return result


def _scaled_weight(layer: Layer, scale: Array | None) -> Value | Tensor | None:
    """The weight with its output channels scaled; the value itself if there is nothing to scale."""
    if scale is None:
        return layer.node.operand(layer.place)
    weight, group = layer.weight, layer.node.param("group")
    axis = weight_axis(layer)
    if scale.size == 1:
        return scaled(weight, scale.reshape(()), axis)
    if layer.node.op_type == "ConvTranspose":
        # The weight is [inputs, outputs per group, ...]: the rows of a group hold that group's output channels.
        rows = np.repeat(scale.reshape(group, -1), weight.shape[0] // group, axis=0)
        return scaled(weight, rows.reshape(*rows.shape, *[1] * (weight.rank - 2)), axis)
    return scaled(weight, _aligned(scale, axis, weight.rank), axis)


def weight_axis(layer: Layer) -> int:
    """The weight's axis of output channels; of a grouped ConvTranspose, of those of a group."""
    weight = layer.weight
    if layer.node.op_type == "Gemm":
        return 0 if layer.node.param("transB") else 1
    if layer.node.op_type == "MatMul":
        return 0 if weight.rank == 1 else weight.rank - (1 if layer.place else 2)
    return 0 if layer.node.op_type == "Conv" else 1


def _aligned(vector: Array, axis: int, rank: int) -> Array:
    """A vector as an array of a rank, along one axis."""
    shape = [1] * rank
    shape[axis] = vector.size
    return vector.reshape(shape)


def _new_bias(layer: Layer, bias: Tensor | None, scale: Array | None, shift: Array | None) -> Tensor | str | None:
    """The bias after scale and shift; None if there is none, text if there cannot be one."""
    if bias is None and (shift is None or layer.channels is None):
        return None
    with np.errstate(all="ignore"):
        exact = np.zeros(1) if bias is None else in_double(bias)
        if layer.node.op_type == "Gemm":
            exact = exact * (layer.node.param("beta") if bias is not None else 1.0)
            columns = any(item is not None and item.size > 1 for item in (scale, shift))
            if columns and exact.ndim == 2 and exact.shape[0] != 1 and exact.shape[1] == 1:
                return "the bias would become a matrix"
        elif bias is None:
            exact = np.zeros(layer.channels or 0)
        exact = exact if scale is None else exact * scale
        exact = exact if shift is None else exact + shift
    result = rounded(exact, layer.dtype)
    return _LOST if result is None else result


def with_input(layer: Layer, b: Builder, x: Value, scale: Array, shift: Array | None = None) -> Value | Miss:
    """The layer of `x` that equals this one of `x` times `scale` plus `shift`.

    Each is one number or one for each input channel; a shift asks for a layer that sees every input alike.
    """
    weight = _scaled_rows(layer, scale)
    if weight is None:
        return b.no(_LOST)
    operands: list[Any] = [weight, x] if layer.place == 0 else [x, weight]
    if shift is None or not shift.any():
        same: Value = b.like(layer.node, *operands, *layer.node.operands[2:])
        return same
    bias = layer.node.operand(2)
    if bias is not None and (bias.const is None or bias.const.dtype is not layer.dtype):
        return b.no("the bias is computed at run time, or has another element type")
    added = _new_bias(layer, None if bias is None else bias.const, None, _response(layer, shift))
    if not isinstance(added, Tensor):
        return b.no(added or "there is no bias")
    if layer.node.op_type == "MatMul":
        product: Value = b.Add(b.like(layer.node, *operands), added)
        return product
    keywords = {"beta": 1.0} if layer.node.op_type == "Gemm" and layer.node.param("beta") != 1.0 else {}
    result: Value = b.like(layer.node, *operands, b.constant(added), **keywords)
    return result


def _scaled_rows(layer: Layer, scale: Array) -> Tensor | None:
    weight, axis = layer.weight, weight_axis(layer)
    if scale.size == 1:
        return scaled(weight, scale.reshape(()), axis)
    if layer.node.op_type == "Conv":
        # Row m reads the input channels of its group.
        group = layer.node.param("group")
        rows = np.repeat(scale.reshape(group, -1), weight.shape[0] // group, axis=0)
        return scaled(weight, rows.reshape(*rows.shape, *[1] * (weight.rank - 2)), axis)
    return scaled(weight, _aligned(scale, _input_weight_axis(layer), weight.rank), axis)


def _input_weight_axis(layer: Layer) -> int:
    if layer.node.op_type == "ConvTranspose" or layer.weight.rank == 1:
        return 0
    if layer.node.op_type == "Gemm":
        return 1 if layer.node.param("transB") else 0
    return layer.weight.rank - (2 if layer.place else 1)


def input_channels(layer: Layer) -> int:
    """How many channels the operand has."""
    if layer.node.op_type == "Conv":
        return layer.weight.shape[1] * int(layer.node.param("group"))
    return layer.weight.shape[_input_weight_axis(layer)]


def input_axis(layer: Layer) -> int | None:
    """The operand's axis of input channels, from the end; None if its rank must be known and is not."""
    if layer.node.op_type in CONVOLUTIONS:
        return 1 - layer.weight.rank
    if layer.node.op_type == "Gemm":
        return -2 if layer.node.param("transA") else -1
    if layer.place == 1:
        return -1
    rank = layer.operand.rank
    return None if rank is None else -1 if rank == 1 else -2


def _response(layer: Layer, shift: Array) -> Array:
    """What each output channel adds up when every input channel holds its `shift`, bias aside, in float64."""
    weight = in_double(layer.weight)
    with np.errstate(all="ignore"):
        if layer.node.op_type == "Conv":
            group = layer.node.param("group")
            full = np.broadcast_to(shift, (input_channels(layer),)).reshape(group, -1)
            taps = weight.reshape(*weight.shape[:2], -1).sum(axis=2).reshape(group, -1, weight.shape[1])
            return np.asarray(np.einsum("gmc,gc->gm", taps, full).reshape(-1))
        if layer.node.op_type == "Gemm":
            rows = weight.T if layer.node.param("transB") else weight
            return np.asarray(layer.node.param("alpha") * (np.broadcast_to(shift, (rows.shape[0],)) @ rows))
        return np.asarray(np.broadcast_to(shift, (weight.shape[-2],)) @ weight)


def matrix_of(layer: Layer) -> Array | None:
    """The matrix that a MatMul or Gemm multiplies the rows of its operand with, in float64; None if there is none."""
    if layer.place != 1 or layer.weight.rank != 2 or layer.node.op_type not in ("Gemm", "MatMul"):
        return None
    weight = in_double(layer.weight)
    if layer.node.op_type == "MatMul":
        return weight
    if layer.node.param("transA"):
        return None
    return np.asarray(layer.node.param("alpha") * (weight.T if layer.node.param("transB") else weight))


def bias_of(layer: Layer) -> Array | None:
    """What a layer adds to each output channel, in float64; None if it is something else."""
    if layer.bias is not None or layer.channels is None:
        return layer.bias
    value = layer.node.operand(2)
    if value is None:
        return np.zeros(layer.channels)
    tensor = value.const
    if tensor is None or tensor.dtype is not layer.dtype or tensor.size not in (1, layer.channels):
        return None
    if tensor.rank > 1 and tensor.shape[-1] != tensor.size:
        return None
    beta = layer.node.param("beta") if layer.node.op_type == "Gemm" else 1.0
    return np.broadcast_to(beta * in_double(tensor).reshape(-1), (layer.channels,))


def pads_nothing(node: Node) -> bool:
    """True if a convolution reads nothing but its operand."""
    if node.param("auto_pad") not in ("NOTSET", "VALID", "", None):
        return False
    pads = node.param("pads")
    return node.param("auto_pad") == "VALID" or pads is None or (isinstance(pads, tuple) and not any(pads))


def is_pointwise(layer: Layer) -> bool:
    """True for a Conv of one pixel, one group, that looks everywhere and pads nothing."""
    node = layer.node
    strides = node.param("strides")
    return (
        node.op_type == "Conv"
        and node.param("group") == 1
        and math.prod(layer.weight.shape[2:]) == 1
        and (strides is None or (isinstance(strides, tuple) and all(step == 1 for step in strides)))
        and pads_nothing(node)
    )


__all__ = [
    "CONVOLUTIONS",
    "LAYERS",
    "Layer",
    "along",
    "bias_of",
    "biased_product",
    "input_axis",
    "input_channels",
    "is_pointwise",
    "layer_of",
    "matrix_of",
    "pads_nothing",
    "per_channel",
    "weight_axis",
    "with_input",
    "with_output",
]
