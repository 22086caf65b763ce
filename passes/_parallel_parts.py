"""Layers that read the same value, and the one layer that they make together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, Graph, Node, Tensor, Value
from passes._constant_products import product_of, readers, weight_of, with_bias_of
from passes._layers import Layer, bias_of, weight_axis
from passes._weights import Array


@dataclass(frozen=True, slots=True)
class Part:
    """One of the layers.

    Attributes:
        layer: The layer.
        result: What it gives, bias included.
        add: The node that adds the bias behind a MatMul.
    """

    layer: Layer
    result: Value
    add: Node | None

    @property
    def width(self) -> int:
        """How many output channels it has."""
        return self.layer.channels or 0

    @property
    def is_biased(self) -> bool:
        """True if it adds something."""
        return self.layer.bias is not None or self.layer.node.operand(2) is not None


def part_of(node: Node, graph: Graph, context: Context) -> Part | None:
    """The layer a node is, if nobody else reads what would go away."""
    layer = None if node.is_pinned or context.keeps(node) else product_of(node)
    if layer is None:
        return None
    if node.op_type == "Gemm":
        is_plain = node.param("transA") == 0 and node.param("alpha") == 1.0 and node.param("beta") == 1.0
        return Part(layer, node.results[0], None) if is_plain and bias_of(layer) is not None else None
    use = node.results[0].sole_use()
    add = None if use is None or use[0].graph is not graph or use[0].is_pinned or context.keeps(use[0]) else use[0]
    biased = None if add is None else with_bias_of(layer, add)
    if add is None or biased is None:
        return Part(layer, node.results[0], None)
    return Part(biased, add.results[0], add)


def kind_of(part: Part) -> tuple[object, ...]:
    """What layers must have in common."""
    node, weight = part.layer.node, part.layer.weight
    axis = weight_axis(part.layer)
    return (node.op_type, weight.dtype, axis, weight.shape[1 - axis], part.result.rank)


def are_shared_alike(parts: list[Part]) -> bool:
    """True if whoever reads one of the weights reads them all, so that none of them stays."""
    weights = [weight_of(part.layer) for part in parts]
    if len(set(weights)) < len(weights):
        return False
    shared = [[node.operands[0] for node in readers(weight)] for weight in weights]
    places = [sorted((x.producer.serial, x.index) for x in found if x is not None) for found in shared]
    return bool(places[0]) and all(item == places[0] for item in places)


def built(b: Builder, parts: list[Part], merged: dict[tuple[Value, ...], Value]) -> Value:
    """The layer of all output channels."""
    first = parts[0].layer
    axis = weight_axis(first)
    tensors = [part.layer.weight for part in parts]
    shape = list(first.weight.shape)
    shape[axis] = sum(part.width for part in parts)
    key = tuple(weight_of(part.layer) for part in parts)
    weight = merged.get(key)
    if weight is None:
        # Put together when it is read, and not held: all of them would be a copy of the model.
        weight = b.constant(Tensor.computed(first.dtype, tuple(shape), lambda: _joined(tensors, axis)))
    is_biased = any(part.is_biased for part in parts)
    bias = Tensor.from_numpy(np.concatenate([_bias(part) for part in parts]).astype(first.dtype.numpy), first.dtype)
    operands = [first.operand, weight]
    if first.node.op_type == "Gemm":
        gemm: Value = b.like(first.node, *operands, *([b.constant(bias)] if is_biased else []))
        return gemm
    product: Value = b.like(first.node, *operands)
    result: Value = b.Add(product, bias) if is_biased else product
    return result


def _joined(tensors: Sequence[Tensor], axis: int) -> Array:
    return np.concatenate([tensor.numpy() for tensor in tensors], axis=axis)


def _bias(part: Part) -> Array:
    """What a layer adds to each of its channels; its numbers as they are."""
    bias = bias_of(part.layer)
    return np.zeros(part.width) if bias is None else np.asarray(np.broadcast_to(bias, (part.width,)))
