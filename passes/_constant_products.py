"""Products by constant matrices, whose weights several layers may share, as those of a model with one layer repeated.

What is done to a shared weight must be done for all who read it, once.
"""

from __future__ import annotations

from dataclasses import replace

from graphopt import Node, Value
from passes._layers import Layer, along, weight_axis
from passes._weights import EPSILON


def product_of(node: Node) -> Layer | None:
    """The layer that a MatMul or Gemm with a constant matrix on the right is, whoever else reads the matrix."""
    x, weight = node.operand(0), node.operand(1)
    if x is None or weight is None or weight.const is None or x.const is not None or weight.const.rank != 2:
        return None
    if not (node.is_op("MatMul") or node.is_op("Gemm")) or weight.const.dtype not in EPSILON or 0 in weight.const.shape:
        return None
    layer = Layer(node, 1, weight.const, None, -1, node.results[0].rank or 2)
    return replace(layer, channels=weight.const.shape[weight_axis(layer)])


def with_bias_of(layer: Layer, add: Node) -> Layer | None:
    """The layer with what an Add or Sub behind it adds; None if that is not one constant for each channel."""
    place = next((index for index, item in enumerate(add.operands) if item is layer.node.results[0]), None)
    other = None if place is None else add.operand(1 - place)
    if other is None or other.const is None or other.const.dtype is not layer.dtype:
        return None
    if add.is_op("Sub"):
        if place != 0:
            return None
    elif not add.is_op("Add"):
        return None
    bias = along(other.const, -1, layer.channels, layer.rank)
    return None if bias is None else replace(layer, bias=-bias if add.is_op("Sub") else bias)


def weight_of(layer: Layer) -> Value:
    """The constant that a layer multiplies by."""
    value = layer.node.operand(layer.place)
    assert value is not None
    return value


def readers(weight: Value) -> list[Node]:
    """The layers that multiply by a constant; empty if anything else reads it."""
    nodes = [user for user, place in weight.uses if place == 1 and user.op_type in ("MatMul", "Gemm")]
    return nodes if len(nodes) == len(weight.uses) else []
