"""The layers that make queries, keys and values, as the operators take them: merged, or apart with one bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphopt import Builder, DType, Node, Tensor, Value
from passes._constant_products import product_of, with_bias_of
from passes._layers import bias_of, weight_axis
from passes.fusion._attention_rows import Rows

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A layer with a constant matrix.

    Attributes:
        x: What it is applied to.
        weight: The matrix.
        axis: The axis of its columns.
        bias: What is added to each column, None for nothing.
        bias_value: The constant that holds the bias, if it is one vector.
        product: The node that multiplies.
        add: The node that adds, None for none.
    """

    x: Value
    weight: Value
    axis: int
    bias: Array | None
    bias_value: Value | None
    product: Node
    add: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of it."""
        return (self.product,) if self.add is None else (self.product, self.add)

    @property
    def unbiased(self) -> Value:
        """Its result before the bias."""
        return self.product.results[0]


def projection_of(value: Value) -> Projection | None:
    """The layer that gives a value, None if it is none with a constant matrix."""
    node = value.producer
    if not node.is_operator:
        return None
    if node.is_op("MatMul") or node.is_op("Gemm"):
        layer = product_of(node)
        if layer is None:
            return None
        if node.op_type == "Gemm":
            if node.param("transA") or node.param("alpha") != 1 or node.param("beta") != 1:
                return None
            bias = bias_of(layer)
            if node.operand(2) is not None and bias is None:
                return None
        else:
            bias = None
        weight = node.operands[1]
        assert weight is not None
        return Projection(layer.operand, weight, weight_axis(layer), _row(bias, layer.channels), None, node, None)
    if node.is_op("Add") or node.is_op("Sub"):
        for operand in node.operands:
            inner = None if operand is None else operand.producer
            layer = product_of(inner) if inner is not None and inner.is_op("MatMul") else None
            biased = None if layer is None else with_bias_of(layer, node)
            if layer is None or biased is None or inner is None or inner.results[0].sole_use() is None:
                continue
            weight = inner.operands[1]
            assert weight is not None
            others = [item for item in node.operands if item is not operand]
            held = others[0] if others and node.is_op("Add") else None
            is_vector = held is not None and held.const is not None and held.const.shape == (layer.channels,)
            return Projection(
                layer.operand,
                weight,
                weight_axis(layer),
                _row(biased.bias, layer.channels),
                held if is_vector else None,
                inner,
                node,
            )
    return None


def _row(bias: Array | None, width: int | None) -> Array | None:
    return None if bias is None else np.asarray(np.broadcast_to(bias, (width or 0,)))


def merged_weight(
    b: Builder, parts: Sequence[tuple[Projection, Rows]], dtype: DType, made: dict[tuple[object, ...], Value]
) -> tuple[Value, Value]:
    """The matrix and the bias of one layer that gives queries, keys and values side by side, heads in order."""
    places = [rows.at.reshape(-1) for _, rows in parts]
    first, rows = parts[0]
    width = sum(len(at) for at in places)
    same = all(item.weight is first.weight for item, _ in parts)
    joined = np.concatenate(places)
    if same and first.axis == 1 and rows.full == width and bool((joined == np.arange(width)).all()):
        bias = first.bias_value
        if bias is None or any(item.bias_value is not bias for item, _ in parts):
            bias = b.constant(_joined_bias(parts, dtype))
        return first.weight, bias
    key = tuple((item.weight, at.tobytes()) for (item, _), at in zip(parts, places, strict=True))
    weight = made.get(key)
    if weight is None:
        sources = [(item.weight.const, item.axis, at) for (item, _), at in zip(parts, places, strict=True)]
        height = next(tensor.shape[1 - axis] for tensor, axis, _ in sources if tensor is not None)

        def compute() -> Array:
            columns = []
            for tensor, axis, at in sources:
                assert tensor is not None
                matrix = tensor.numpy()
                columns.append(np.take(matrix if axis == 1 else matrix.T, at, axis=1))
            return np.concatenate(columns, axis=1)

        weight = made[key] = b.constant(Tensor.computed(dtype, (height, width), compute))
    return weight, b.constant(_joined_bias(parts, dtype))


def _joined_bias(parts: Sequence[tuple[Projection, Rows]], dtype: DType) -> Tensor:
    pieces = [
        np.zeros(rows.at.size) if item.bias is None else np.take(item.bias, rows.at.reshape(-1)) for item, rows in parts
    ]
    return Tensor.from_numpy(np.concatenate(pieces).astype(dtype.numpy), dtype)
