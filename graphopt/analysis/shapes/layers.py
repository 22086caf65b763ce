"""Normalization, recurrence, attention and losses."""

from __future__ import annotations

from typing import Any

from graphopt.analysis.shapes.common import (
    UNKNOWN,
    Fact,
    Facts,
    axis_of,
    dtype_of,
    one,
    plus,
    shape_of,
    tensor,
    times,
    transfer,
)
from graphopt.ir import Dim, Node, Shape
from graphopt.ir.symbol import floordiv
from graphopt.tensors import DType


@transfer("LayerNormalization")
def layer_normalization(node: Node) -> Facts:
    """Like the first operand, and the statistics with the normalized axes of size 1."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    dims, axis = value.shape, node.param("axis")
    place = axis_of(axis if isinstance(axis, int) else -1, len(dims)) if dims is not None else None
    stash = node.param("stash_type")
    shape = None if dims is None or place is None else (*dims[:place], *(1,) * (len(dims) - place))
    statistics = tensor(DType(stash) if isinstance(stash, int) else DType.FLOAT, shape)
    # The runtime has this operator at opsets before ONNX's own too, and there the scale may be of another type.
    result = Fact(value.type) if node.opset >= 17 else tensor(dtype_of(node.operand(1)) or value.dtype, dims)
    return (result, statistics, statistics)


@transfer("RMSNormalization")
def rms_normalization(node: Node) -> Facts:
    """The shape of the first operand in the element type of the scale."""
    return one(dtype_of(node.operand(1)) or dtype_of(node.operands[0]), shape_of(node.operands[0]))


# --- recurrence


@transfer("LSTM", "GRU", "RNN")
def recurrent(node: Node) -> Facts:
    """All hidden states, the last of them, and of LSTM the last cell state."""
    value = node.operands[0]
    dims = shape_of(value)
    dtype = dtype_of(value)
    hidden: Any = node.param("hidden_size")
    if not isinstance(hidden, int):
        weights = shape_of(node.operand(2))
        hidden = weights[2] if weights is not None and len(weights) == 3 else None
    directions = 2 if node.param("direction") in ("bidirectional", b"bidirectional") else 1
    first, second = dims[:2] if dims is not None and len(dims) == 3 else (None, None)
    if node.param("layout"):
        batch, length = first, second
        whole: Shape = (batch, length, directions, hidden)
        last: Shape = (batch, directions, hidden)
    else:
        length, batch = first, second
        whole, last = (length, directions, batch, hidden), (directions, batch, hidden)
    return (tensor(dtype, whole), tensor(dtype, last), tensor(dtype, last))


# --- attention


@transfer("RotaryEmbedding")
def rotary_embedding(node: Node) -> Facts:
    """Like the first operand."""
    value = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("Attention")
def attention(node: Node) -> Facts:
    """What the queries read from the values, the grown cache, and the scores."""
    query, key, value = (shape_of(operand) for operand in node.operands[:3])
    past_key, past_value = shape_of(node.operand(4)), shape_of(node.operand(5))
    dtype = dtype_of(node.operands[0])
    if query is None or key is None or value is None:
        return one(dtype, None)
    heads = _Heads(node, query, key, value)
    shape = (
        (query[0], query[1], times(heads.query_heads, heads.value_size))
        if len(query) == 3
        else (query[0], query[1], query[2], value[-1])
    )
    has_past = node.operand(4) is not None
    total = plus(_cached(past_key) if has_past else 0, heads.key_length)
    total_value = plus(_cached(past_value) if has_past else 0, heads.value_length)
    present_key = (query[0], heads.key_heads, total, heads.key_size)
    present_value = (query[0], heads.key_heads, total_value, heads.value_size)
    scores = (query[0], heads.query_heads, heads.query_length, total)
    return (
        tensor(dtype, shape),
        tensor(dtype_of(node.operands[1]), present_key),
        tensor(dtype_of(node.operands[2]), present_value),
        tensor(dtype, scores),
    )


def _cached(past: Shape | None) -> Dim:
    return past[2] if past is not None and len(past) == 4 else None


class _Heads:
    """Numbers and sizes of heads, whether they are axes of their own or folded into the last one."""

    def __init__(self, node: Node, query: Shape, key: Shape, value: Shape) -> None:
        if len(query) == 3:
            self.query_heads: Dim = node.param("q_num_heads")
            self.key_heads: Dim = node.param("kv_num_heads")
            self.key_size = _share(key[-1], self.key_heads)
            self.value_size = _share(value[-1], self.key_heads)
            self.query_length, self.key_length, self.value_length = query[1], key[1], value[1]
        else:
            self.query_heads, self.key_heads = query[1], key[1]
            self.key_size, self.value_size = key[-1], value[-1]
            self.query_length, self.key_length, self.value_length = query[2], key[2], value[2]


def _share(dim: Dim, heads: Dim) -> Dim:
    return floordiv(dim, heads) if dim is not None and isinstance(heads, int) and heads > 0 else None


# --- losses


@transfer("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def loss(node: Node) -> Facts:
    """One number, or one for each label."""
    dtype = dtype_of(node.operands[0])
    labels = shape_of(node.operand(1))
    shape = labels if node.param("reduction") in ("none", b"none") else ()
    return (tensor(dtype, shape), tensor(dtype, shape_of(node.operands[0])))


@transfer("MelWeightMatrix")
def mel_weights(node: Node) -> Facts:
    """A matrix from spectrum to mel bins."""
    dtype = node.param("output_datatype")
    return one(DType(dtype) if isinstance(dtype, int) else DType.FLOAT, (None, None))
