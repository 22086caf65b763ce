"""Attention and rotary embeddings, written in parts."""

from __future__ import annotations

import math

from graphopt import Builder, DType, Node, Value
from passes._proofs import same_dim

_MINUS_INFINITY = -math.inf


def _dim(value: Value, axis: int) -> int | None:
    dim = value.shape[axis] if value.shape is not None and len(value.shape) >= abs(axis) else None
    return dim if isinstance(dim, int) else None


def rotated(node: Node, b: Builder) -> list[Value] | None:
    """RotaryEmbedding in parts; None where the sizes it takes are unknown."""
    x, cos, sin, positions = (node.operand(index) for index in range(4))
    heads, is_interleaved = int(node.param("num_heads") or 0), bool(node.param("interleaved"))
    if x is None or cos is None or sin is None or x.rank not in (3, 4):
        return None
    original = x
    if x.rank == 3:
        width = _dim(x, -1)
        if not heads or width is None:
            return None
        x = b.Reshape(x, b.constant([0, 0, heads, width // heads], DType.INT64))
    size = _dim(x, -1)
    if size is None:
        return None
    if positions is not None:
        cos, sin = b.Gather(cos, positions, axis=0), b.Gather(sin, positions, axis=0)
    head_axis = 1 if original.rank == 4 else 2
    cos, sin = b.Unsqueeze(cos, axes=[head_axis]), b.Unsqueeze(sin, axes=[head_axis])
    turned = int(node.param("rotary_embedding_dim")) or size
    rest = None
    if turned < size:
        x, rest = _split(b, x, [turned, size - turned])
    if is_interleaved:
        left, right = (b.Slice(x, starts=[first], ends=[turned], axes=[3], steps=[2]) for first in (0, 1))
    else:
        left, right = _split(b, x, [turned // 2, turned // 2])
    new_left = b.Sub(b.Mul(cos, left), b.Mul(sin, right))
    new_right = b.Add(b.Mul(sin, left), b.Mul(cos, right))
    if is_interleaved:
        pairs = b.Concat(b.Unsqueeze(new_left, axes=[4]), b.Unsqueeze(new_right, axes=[4]), axis=-1)
        result = b.Reshape(pairs, b.constant([0, 0, 0, turned], DType.INT64))
    else:
        result = b.Concat(new_left, new_right, axis=-1)
    if rest is not None:
        result = b.Concat(result, rest, axis=-1)
    return [result if original.rank == 4 else b.Reshape(result, b.Shape(original))]


def _split(b: Builder, value: Value, sizes: list[int]) -> tuple[Value, ...]:
    parts: tuple[Value, ...] = b.Split(value, axis=-1, split=sizes, outputs=len(sizes))
    return parts


def attention_parts(node: Node, b: Builder) -> list[Value | None] | None:
    """Attention in parts; None where it asks for what is not written here, or sizes are unknown."""
    query, key, value = node.operand(0), node.operand(1), node.operand(2)
    mask, past_key, past_value = node.operand(3), node.operand(4), node.operand(5)
    if query is None or key is None or value is None or node.operand(6) is not None or query.dtype is None:
        return None
    if any(result.is_used for result in node.results[3:]):
        return None  # the scores are asked for
    if any(int(node.attributes.get(name, -1)) != -1 for name in ("left_window_size", "right_window_size")):
        return None
    original = query
    heads, groups = int(node.param("q_num_heads") or 0), int(node.param("kv_num_heads") or 0)
    if query.rank == 3:
        parts = [_by_head(b, item, count) for item, count in ((query, heads), (key, groups), (value, groups))]
        if any(part is None for part in parts):
            return None
        query, key, value = (part for part in parts if part is not None)
    size, width = _dim(query, -1), _dim(value, -1)
    if query.rank != 4 or key.rank != 4 or size is None or width is None:
        return None
    are_shared = not same_dim((query.shape or ())[1], (key.shape or ())[1])
    if past_key is not None:
        key, value = b.Concat(past_key, key, axis=2), b.Concat(past_value, value, axis=2)
    present = (key, value)
    if are_shared:
        key, value = _repeated(b, key, query), _repeated(b, value, query)
    scale = node.attributes.get("scale")
    factor = float(scale) if isinstance(scale, float) else 1 / math.sqrt(size)
    scores = b.MatMul(b.Mul(query, factor), b.Transpose(key, perm=[0, 1, 3, 2]))
    softcap = float(node.param("softcap") or 0)
    if softcap:
        scores = b.Mul(b.Tanh(b.Div(scores, softcap)), softcap)
    is_masked = mask is not None or bool(node.param("is_causal"))
    infinity = b.constant(_MINUS_INFINITY, query.dtype) if is_masked else None
    if node.param("is_causal"):
        scores = b.Where(_visible(b, query, key, past_key), scores, infinity)
    if mask is not None:
        if mask.dtype is None:
            return None
        scores = b.Where(mask, scores, infinity) if mask.dtype is DType.BOOL else b.Add(scores, mask)
    precision = node.attributes.get("softmax_precision")
    dtype = query.dtype
    assert dtype is not None
    is_cast = bool(precision) and int(precision or 0) != int(dtype)
    weights = b.Softmax(b.Cast(scores, to=int(precision or 0)) if is_cast else scores, axis=-1)
    weights = b.Cast(weights, to=int(dtype)) if is_cast else weights
    if is_masked:
        # A query that sees nothing gets zeros, where softmax gives NaN.
        is_blind = b.Equal(b.ReduceMax(scores, axes=[-1]), infinity)
        weights = b.Where(is_blind, b.constant(0.0, dtype), weights)
    result = b.MatMul(weights, value)
    if original.rank == 3:
        turned = b.Transpose(result, perm=[0, 2, 1, 3])
        result = b.Reshape(turned, b.constant([0, 0, heads * width], DType.INT64))
    return [result, *(item if given.is_used else None for item, given in zip(present, node.results[1:3], strict=False))]


def _by_head(b: Builder, value: Value, heads: int) -> Value | None:
    width = _dim(value, -1)
    if not heads or width is None:
        return None
    parts: Value = b.Transpose(
        b.Reshape(value, b.constant([0, 0, heads, width // heads], DType.INT64)), perm=[0, 2, 1, 3]
    )
    return parts


def _repeated(b: Builder, value: Value, query: Value) -> Value:
    """Every head as often as queries share it."""
    heads, groups = _dim(query, 1), _dim(value, 1)
    one, last = b.constant([1, 1], DType.INT64), b.Slice(b.Shape(value), starts=[2], ends=[4], axes=[0])
    if heads is not None and groups is not None:
        times = b.constant([heads // groups], DType.INT64)
    else:
        times = b.Div(*(b.Slice(b.Shape(item), starts=[1], ends=[2], axes=[0]) for item in (query, value)))
    wide = b.Expand(b.Unsqueeze(value, axes=[2]), b.Concat(one, times, one, axis=0))
    result: Value = b.Reshape(wide, b.Concat(b.constant([0, -1], DType.INT64), last, axis=0))
    return result


def _visible(b: Builder, query: Value, key: Value, past: Value | None) -> Value:
    """Which keys each query sees: those up to itself, the past ones among them."""
    zero, one, axis = (b.constant(number, DType.INT64) for number in (0, 1, 2))
    queries, keys = (b.Gather(b.Shape(item), axis) for item in (query, key))
    rows = b.Range(zero, queries, one)
    if past is not None:
        rows = b.Add(rows, b.Gather(b.Shape(past), axis))
    seen: Value = b.Not(b.Greater(b.Range(zero, keys, one), b.Unsqueeze(rows, axes=[1])))
    return seen
