"""Common operators of ONNX Runtime's own domain, com.microsoft."""

from __future__ import annotations

from typing import Any

from graphopt.analysis.shapes.common import (
    UNKNOWN,
    Fact,
    Facts,
    broadcast_shapes,
    contents,
    dtype_of,
    merge_dims,
    one,
    plus,
    shape_of,
    tensor,
    times,
    transfer,
)
from graphopt.analysis.shapes.linear import product_shape
from graphopt.analysis.shapes.windows import convolved, pooled
from graphopt.ir import Dim, Node, Shape, Value
from graphopt.ir.symbol import floordiv, maximum
from graphopt.tensors import DType

_MS = "com.microsoft"


def _attribute(node: Node, name: str, default: Any = None) -> Any:
    """An attribute; ONNX does not know these operators' defaults."""
    return node.attributes.get(name, default)


@transfer(
    *["BiasGelu", "FastGelu", "Gelu", "QuickGelu", "BiasSoftmax", "BiasAdd", "Inverse", "GroupNorm"],
    *["RotaryEmbedding", "Trilu"],
    domain=_MS,
)
def same_as_first(node: Node) -> Facts:
    """The first result has the type of the first operand."""
    value = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("BiasSplitGelu", domain=_MS)
def bias_split_gelu(node: Node) -> Facts:
    """Half as wide as the first operand."""
    shape = shape_of(node.operands[0])
    if not shape:
        return one(dtype_of(node.operands[0]), None)
    return one(dtype_of(node.operands[0]), (*shape[:-1], None if shape[-1] is None else floordiv(shape[-1], 2)))


@transfer("SkipGroupNorm", domain=_MS)
def skip_group_norm(node: Node) -> Facts:
    """Like the first operand, twice: the second result is the sum before normalization."""
    value = node.operands[0]
    whole = UNKNOWN if value is None else Fact(value.type)
    return (whole, whole)


@transfer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", domain=_MS)
def skip_normalization(node: Node) -> Facts:
    """Like the first operand; the fourth result is the sum before normalization."""
    if node.op_type == "EmbedLayerNormalization":
        return _embedding(node)
    value, skip = node.operands[0], node.operands[1]
    shape = shape_of(value)
    # The skip may be the smaller one, never the larger.
    whole = tensor(dtype_of(value) or dtype_of(skip), shape)
    return (whole, UNKNOWN, UNKNOWN, whole)


def _embedding(node: Node) -> Facts:
    ids, table = shape_of(node.operand(0)), shape_of(node.operand(2))
    batch, length = ids if ids is not None and len(ids) == 2 else (None, None)
    width = table[1] if table is not None and len(table) == 2 else None
    dtype = dtype_of(node.operand(2))
    if node.op_type == "EmbedLayerNormalization" and node.operand(2) is None:
        return (UNKNOWN,)
    return (tensor(dtype, (batch, length, width)), tensor(DType.INT32, (batch,)), tensor(dtype, (batch, length, width)))


@transfer("SimplifiedLayerNormalization")
@transfer("LayerNormalization", "SimplifiedLayerNormalization", domain=_MS)
def layer_normalization(node: Node) -> Facts:
    """The shape of the first operand in the element type of the scale."""
    return one(dtype_of(node.operand(1)), shape_of(node.operands[0]))


@transfer("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", domain=_MS)
def fused_matmul(node: Node) -> Facts:
    """A matrix product of operands that may be transposed first."""
    left, right = shape_of(node.operands[0]), shape_of(node.operands[1])
    left = _turned(left, _attribute(node, "transA", 0), _attribute(node, "transBatchA", 0))
    right = _turned(right, _attribute(node, "transB", 0), _attribute(node, "transBatchB", 0))
    return one(dtype_of(node.operands[0]), product_shape(left, right))


def _turned(shape: Shape | None, swap: int, batch: int) -> Shape | None:
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


@transfer("FusedGemm", "GemmFastGelu", "GemmFloat8", domain=_MS)
def fused_gemm(node: Node) -> Facts:
    """A product of two matrices."""
    if node.op_type == "GemmFastGelu":
        return one(dtype_of(node.operands[0]), product_shape(shape_of(node.operands[0]), shape_of(node.operands[1])))
    left, right = shape_of(node.operands[0]), shape_of(node.operands[1])
    rows = left[1 if _attribute(node, "transA", 0) else 0] if left is not None and len(left) == 2 else None
    columns = right[0 if _attribute(node, "transB", 0) else 1] if right is not None and len(right) == 2 else None
    dtype = dtype_of(node.operands[0])
    if node.op_type == "GemmFloat8":
        dtype = DType(_attribute(node, "dtype", 1))
    return one(dtype, (rows, columns))


@transfer("MatMulNBits", "MatMulBnb4", domain=_MS)
def matmul_bits(node: Node) -> Facts:
    """A product with a packed matrix of K rows and N columns."""
    dims = shape_of(node.operands[0])
    columns = _attribute(node, "N")
    return one(dtype_of(node.operands[0]), None if not dims else (*dims[:-1], columns))


@transfer("FusedConv", "NhwcFusedConv", domain=_MS)
def fused_conv(node: Node) -> Facts:
    """A convolution with what follows it."""
    dims, weights = shape_of(node.operands[0]), shape_of(node.operands[1])
    if node.op_type == "NhwcFusedConv":
        dims, weights = _channels_first(dims), weights
        return one(dtype_of(node.operands[0]), _channels_last(convolved(node, dims, weights)))
    return one(dtype_of(node.operands[0]), convolved(node, dims, weights))


def _channels_first(shape: Shape | None) -> Shape | None:
    return None if shape is None or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def _channels_last(shape: Shape | None) -> Shape | None:
    return None if shape is None or len(shape) < 2 else (shape[0], *shape[2:], shape[1])


# --- attention


@transfer("Attention", "QAttention", domain=_MS)
def attention(node: Node) -> Facts:
    """What packed queries read from the values; the grown cache is left open."""
    dims, weights, bias = shape_of(node.operand(0)), shape_of(node.operand(1)), shape_of(node.operand(2))
    dtype = dtype_of(node.operand(3)) if node.op_type == "QAttention" else dtype_of(node.operand(0))
    if dims is None or len(dims) != 3:
        return one(dtype, None)
    sizes = _attribute(node, "qkv_hidden_sizes")
    packed = (
        weights[1]
        if weights is not None and len(weights) == 2
        else bias[0]
        if bias and node.op_type == "Attention"
        else None
    )
    width: Dim = sizes[2] if isinstance(sizes, tuple) and len(sizes) == 3 else None
    if width is None and sizes is None and packed is not None:
        width = floordiv(packed, 3)
    return (tensor(dtype, (dims[0], dims[1], width)), tensor(dtype, None))


@transfer("MultiHeadAttention", domain=_MS)
def multi_head_attention(node: Node) -> Facts:
    """What the queries read from the values, and the cache."""
    query, key, value = (shape_of(node.operand(index)) for index in range(3))
    dtype = dtype_of(node.operand(0))
    heads: Dim = _attribute(node, "num_heads")
    if query is None:
        return one(dtype, None)
    cache: tuple[Fact, Fact] = (tensor(dtype, None), tensor(dtype, None))
    if len(query) == 5:  # queries, keys and values packed
        return (tensor(dtype, (query[0], query[1], times(query[2], query[4]))), *cache)
    if len(query) != 3:
        return one(dtype, None)
    width: Dim = None
    if value is not None and len(value) == 3:
        width = value[2]
    elif value is not None and len(value) == 4:
        width = times(value[1], value[3])
    elif key is not None and len(key) == 5:
        width = query[2]
    result = tensor(dtype, (query[0], query[1], width))
    past = shape_of(node.operand(6))
    if node.operand(6) is None and key is not None and value is not None and len(key) == len(value) == 3:
        key_size = floordiv(key[2], heads) if key[2] is not None and isinstance(heads, int) else None
        value_size = floordiv(value[2], heads) if value[2] is not None and isinstance(heads, int) else None
        cache = (
            tensor(dtype, (query[0], heads, key[1], key_size)),
            tensor(dtype, (query[0], heads, value[1], value_size)),
        )
    elif past is not None and len(past) == 4 and key is not None and len(key) == 3 and not _shares_buffer(node):
        cache = (tensor(dtype, (past[0], past[1], plus(past[2], key[1]), past[3])), tensor(dtype, None))
    return (result, *cache)


def _shares_buffer(node: Node) -> bool:
    """True if the cache is a buffer of its full size, of which an operand tells how much is used."""
    return node.operand(8) is not None


@transfer("GroupQueryAttention", domain=_MS)
def group_query_attention(node: Node) -> Facts:
    """Like the queries; packed ones hold keys and values too."""
    query, key, past = shape_of(node.operand(0)), shape_of(node.operand(1)), shape_of(node.operand(3))
    dtype = dtype_of(node.operand(0))
    cache_dtype = dtype if node.operand(3) is None else dtype_of(node.operand(3))
    heads, shared = node.attributes.get("num_heads"), node.attributes.get("kv_num_heads")
    width = None if query is None or len(query) != 3 else query[2]
    if not isinstance(heads, int) or not isinstance(shared, int) or not isinstance(width, int) or heads < 1:
        known = query if len(query or ()) == 3 and key is not None else None
        return (tensor(dtype, known), tensor(cache_dtype, None), tensor(cache_dtype, None))
    assert query is not None
    size = width // (heads if node.operand(1) is not None else heads + 2 * shared)
    counted = contents(node.operand(6))
    length = counted[0] if counted is not None and len(counted) == 1 else None
    cached: Shape | None = None
    if node.operand(3) is None:
        cached = (query[0], shared, length, size)
    elif past is not None and len(past) == 4:
        # A buffer that is longer than what is used of it is given back as long as it is.
        longest = None if length is None or past[2] is None else maximum(length, past[2])
        cached = (past[0], past[1], longest, past[3])
    shape = (query[0], query[1], heads * size)
    return (tensor(dtype, shape), tensor(cache_dtype, cached), tensor(cache_dtype, cached))


# --- quantization


@transfer("QuantizeLinear", "DequantizeLinear", domain=_MS)
def quantization(node: Node) -> Facts:
    """The shape of the first operand; the element type of the zero point or the scale."""
    dims = shape_of(node.operand(0))
    if node.op_type == "DequantizeLinear":
        return one(dtype_of(node.operand(1)), dims)
    return one(DType.UINT8 if node.operand(2) is None else dtype_of(node.operand(2)), dims)


@transfer("QLinearAdd", "QLinearMul", domain=_MS)
def quantized_arithmetic(node: Node) -> Facts:
    """Two quantized operands broadcast to each other."""
    shape = broadcast_shapes(shape_of(node.operand(0)), shape_of(node.operand(3)))
    return one(dtype_of(node.operand(0)), shape)


@transfer("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=_MS)
def quantized_unary(node: Node) -> Facts:
    """Like the first operand."""
    return one(dtype_of(node.operand(0)), shape_of(node.operand(0)))


@transfer("QLinearGlobalAveragePool", domain=_MS)
def quantized_global_pool(node: Node) -> Facts:
    """Every spatial axis folded into one element."""
    dims = shape_of(node.operand(0))
    dtype = dtype_of(node.operand(0))
    if dims is None or len(dims) < 2:
        return one(dtype, None)
    ones = (1,) * (len(dims) - 2)
    return one(dtype, (dims[0], *ones, dims[-1]) if _attribute(node, "channels_last", 0) else (*dims[:2], *ones))


@transfer("QLinearAveragePool", domain=_MS)
def quantized_pool(node: Node) -> Facts:
    """A quantized average for each window."""
    dims = shape_of(node.operand(0))
    dtype = dtype_of(node.operand(0))
    if dims is None or "auto_pad" in node.attributes or _attribute(node, "ceil_mode", 0):
        return one(dtype, None if dims is None else (None,) * len(dims))
    if not _attribute(node, "channels_last", 0):
        return one(dtype, pooled(node, dims))
    first = _channels_first(dims)
    return one(dtype, None if first is None else _channels_last(pooled(node, first)))


@transfer("QLinearConcat", domain=_MS)
def quantized_concat(node: Node) -> Facts:
    """Quantized operands one after another along an axis."""
    parts = [shape_of(value) for value in node.operands[2::3]]
    axis = _attribute(node, "axis")
    known = [part for part in parts if part is not None]
    dtype = dtype_of(node.operand(1))
    if not known or not isinstance(axis, int) or any(len(part) != len(known[0]) for part in known):
        return one(dtype, None)
    place = axis + len(known[0]) if axis < 0 else axis
    dims: list[Dim] = list(known[0])
    for part in known[1:]:
        dims = [merge_dims(left, right) for left, right in zip(dims, part, strict=True)]
    dims[place] = plus(*(None if part is None else part[place] for part in parts))
    return one(dtype, dims)


@transfer("QGemm", domain=_MS)
def quantized_gemm(node: Node) -> Facts:
    """A product of quantized matrices, quantized again or in float."""
    left, right = shape_of(node.operand(0)), shape_of(node.operand(3))
    rows = left[1 if _attribute(node, "transA", 0) else 0] if left is not None and len(left) == 2 else None
    columns = right[0 if _attribute(node, "transB", 0) else 1] if right is not None and len(right) == 2 else None
    return one(DType.FLOAT if node.operand(8) is None else dtype_of(node.operand(8)), (rows, columns))


@transfer("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=_MS)
def matmul_to_float(node: Node) -> Facts:
    """A product of bytes, scaled to floats."""
    scale: Value | None = node.operand(2)
    return one(dtype_of(scale), product_shape(shape_of(node.operand(0)), shape_of(node.operand(1))))


@transfer("DynamicQuantizeLSTM", domain=_MS)
def dynamic_lstm(node: Node) -> Facts:
    """All hidden states, the last of them, and the last cell state."""
    dims = shape_of(node.operands[0])
    hidden = _attribute(node, "hidden_size")
    directions = 2 if _attribute(node, "direction", "forward") == "bidirectional" else 1
    length, batch = dims[:2] if dims is not None and len(dims) == 3 else (None, None)
    last = tensor(DType.FLOAT, (directions, batch, hidden))
    return (tensor(DType.FLOAT, (length, directions, batch, hidden)), last, last)
