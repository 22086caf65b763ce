"""What ONNX Runtime's attentions and rotations are documented to compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Given = dict[str, Any]
"""Attributes as they stand in the node."""


def attention(
    given: Given,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array | None, ...]:
    """`Attention`, queries, keys and values of one product."""
    _only(given, "num_heads", "scale", "unidirectional", "mask_filter_value")
    if past_length is not None:
        raise NotImplementedError("Attention with a buffer of past keys")
    layer = x @ weight if bias is None else x @ weight + bias
    query, key, value = (_heads(part, given["num_heads"]) for part in np.split(layer, 3, axis=-1))
    if past is not None:
        key, value = np.concatenate([past[0], key], axis=2), np.concatenate([past[1], value], axis=2)
    result = _attend(given, query, key, value, mask, attention_bias)
    return result, np.stack([key, value])


def multi_head_attention(
    given: Given,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *others: Array | None,
) -> tuple[Array | None, ...]:
    """`MultiHeadAttention` of three operands."""
    _only(given, "num_heads", "scale", "unidirectional", "mask_filter_value")
    if key is None or value is None or query.ndim != 3 or any(item is not None for item in others):
        raise NotImplementedError("MultiHeadAttention of packed operands or buffers")
    heads = given["num_heads"]
    if bias is not None:
        width = query.shape[-1]
        query = query + bias[:width]
        key = key + bias[width : 2 * width] if key.ndim == 3 else key
        value = value + bias[2 * width :] if value.ndim == 3 else value
    sides = [item if item.ndim == 4 else _heads(item, heads) for item in (query, key, value)]
    if past_key is not None and past_value is not None:
        sides[1] = np.concatenate([past_key, sides[1]], axis=2)
        sides[2] = np.concatenate([past_value, sides[2]], axis=2)
    return _attend(given, sides[0], sides[1], sides[2], mask, attention_bias), sides[1], sides[2]


_GROUPED = ("num_heads", "kv_num_heads", "scale", "softcap", "do_rotary", "rotary_interleaved", "causal")
_IGNORED = ("local_window_size", "smooth_softmax", "qk_norm_epsilon", "k_quant_type", "v_quant_type")


def group_query_attention(
    given: Given,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    lasts: Array | None = None,
    total: Array | None = None,
    cosine: Array | None = None,
    sine: Array | None = None,
    positions: Array | None = None,
    attention_bias: Array | None = None,
    *others: Array | None,
) -> tuple[Array | None, ...]:
    """`GroupQueryAttention` where all rows of a batch have the same number of keys, none of them in a buffer."""
    _only(given, *_GROUPED, *_IGNORED)
    window = given.get("local_window_size", -1)
    quantized = any(given.get(name, b"NONE") != b"NONE" for name in _IGNORED[3:])
    if quantized or given.get("smooth_softmax", -1) > 0 or any(item is not None for item in others):
        raise NotImplementedError("GroupQueryAttention of quantized or normalized keys, or with sinks")
    heads, groups = given["num_heads"], given["kv_num_heads"]
    if key is None or value is None:
        size = query.shape[-1] // (heads + 2 * groups)
        query, key, value = np.split(query, [heads * size, (heads + groups) * size], axis=-1)
    rows, columns = query.shape[1], int(np.ravel(np.asarray(total))[0])
    before = 0 if past_key is None else past_key.shape[2]
    if before + rows != columns or np.any(np.asarray(lasts) != columns - 1) or key.shape[1] != rows:
        raise NotImplementedError("GroupQueryAttention of rows with keys of their own number, or in a buffer")
    sides = [_heads(query, heads), _heads(key, groups), _heads(value, groups)]
    if given.get("do_rotary", 0):
        if cosine is None or sine is None or positions is not None:
            raise NotImplementedError("GroupQueryAttention with positions of its own")
        places = np.arange(before, columns)[None]
        sides[:2] = [_turned(side, places, cosine, sine, given.get("rotary_interleaved", 0)) for side in sides[:2]]
    if past_key is not None and past_value is not None:
        sides[1:] = np.concatenate([past_key, sides[1]], axis=2), np.concatenate([past_value, sides[2]], axis=2)
    scores = sides[0] @ np.repeat(sides[1], heads // groups, axis=1).transpose(0, 1, 3, 2)
    scores = scores * (given.get("scale") or 1 / math.sqrt(sides[0].shape[-1]))
    if cap := given.get("softcap", 0.0):
        scores = cap * np.tanh(scores / cap)
    if attention_bias is not None:
        scores = scores + attention_bias
    if given.get("causal", 1):
        seen = np.tri(rows, columns, before, dtype=bool)
        seen &= True if window < 0 else ~np.tri(rows, columns, before - window, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    elif window >= 0:
        raise NotImplementedError("GroupQueryAttention with a window to both sides")
    return _mixed(scores, np.repeat(sides[2], heads // groups, axis=1)), sides[1], sides[2]


def rotary_embedding(given: Given, x: Array, positions: Array, cosine: Array, sine: Array) -> tuple[Array, ...]:
    """`RotaryEmbedding` of rows or heads."""
    _only(given, "num_heads", "rotary_embedding_dim", "interleaved", "scale")
    if given.get("scale", 1.0) != 1.0:
        raise NotImplementedError("RotaryEmbedding with a scale")
    half = 2 * cosine.shape[-1]
    width = given.get("rotary_embedding_dim", 0) or half
    if width != half:
        raise NotImplementedError("RotaryEmbedding with tables of another width")
    heads = x
    if x.ndim == 3:
        # Without the dim all of a head is turned, so that the tables tell its size.
        is_partial = given.get("rotary_embedding_dim", 0) > 0
        heads = _heads(x, given["num_heads"] if is_partial else x.shape[-1] // width)
    places = positions + np.arange(heads.shape[2])[None] if positions.size == 1 and positions.ndim == 1 else positions
    turned = _turned(heads, places, cosine, sine, given.get("interleaved", 0))
    return (turned if x.ndim == 4 else _rows(turned),)


def _turned(heads: Array, places: Array, cosine: Array, sine: Array, interleaved: int) -> Array:
    """The first elements of every head, as many as the tables are for, turned by the angles of their places."""
    if np.any(places < 0) or np.any(places >= cosine.shape[0]):
        raise NotImplementedError("a position beyond the tables")
    width = 2 * cosine.shape[-1]
    cos, sin = cosine[places][:, None], sine[places][:, None]
    result = np.array(np.broadcast_to(heads, heads.shape))
    one, two = (
        (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, width))
    )
    left, right = heads[..., one], heads[..., two]
    result[..., one], result[..., two] = left * cos - right * sin, left * sin + right * cos
    return result


def _only(given: Given, *names: str) -> None:
    """Raise for attributes that are not written here, unless they ask for nothing."""
    others = sorted(name for name, value in given.items() if name not in names and value not in (0, [], 0.0))
    if others:
        raise NotImplementedError(f"an operator with {', '.join(others)}")


def _heads(x: Array, heads: int) -> Array:
    batch, rows, width = x.shape
    return x.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3)


def _rows(heads: Array) -> Array:
    batch, _, rows, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, rows, -1)


def _attend(
    given: Given, query: Array, key: Array, value: Array, mask: Array | None, attention_bias: Array | None
) -> Array:
    scale = given.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(0, 1, 3, 2) * scale
    low = given.get("mask_filter_value", -10000.0)
    if attention_bias is not None:
        scores = scores + attention_bias
    if mask is not None:
        if mask.ndim != 2 or mask.shape != (query.shape[0], key.shape[2]):
            raise NotImplementedError("attention with a mask of lengths, or of more axes")
        scores = scores + np.where(mask == 0, low, 0.0)[:, None, None, :]
    if given.get("unidirectional", 0):
        rows, columns = scores.shape[-2:]
        seen = np.tri(rows, columns, columns - rows, dtype=bool)
        scores = np.where(seen, scores, float(np.finfo(np.float32).min) if mask is None else low + scores)
    return _mixed(scores, value)


def _mixed(scores: Array, value: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return _rows((weights / weights.sum(axis=-1, keepdims=True)) @ value)
