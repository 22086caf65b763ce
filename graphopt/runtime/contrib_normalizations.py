"""What ONNX Runtime's normalizations are documented to compute."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Given = dict[str, Any]
"""Attributes as they stand in the node."""


def skip_layer_normalization(
    given: Given,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array | None, ...]:
    """`SkipLayerNormalization`."""
    total = x + skip if bias is None else x + skip + bias
    return (*_layer_normalized(total, gamma, beta, given.get("epsilon", 1e-12)), total)


def skip_simplified(
    given: Given, x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    """`SkipSimplifiedLayerNormalization`."""
    total = x + skip if bias is None else x + skip + bias
    inverse = 1 / np.sqrt(np.square(total).mean(axis=-1, keepdims=True) + given.get("epsilon", 1e-12))
    return total * inverse * gamma, None, inverse, total


def simplified_layer_normalization(given: Given, x: Array, scale: Array) -> tuple[Array | None, ...]:
    """`SimplifiedLayerNormalization`, which the runtime has in the standard domain."""
    axes = tuple(range(given.get("axis", -1) % x.ndim, x.ndim))
    inverse = 1 / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + given.get("epsilon", 1e-5))
    return x * inverse * scale, inverse


def embed_layer_normalization(
    given: Given,
    words: Array,
    kinds: Array | None,
    word_table: Array,
    place_table: Array,
    kind_table: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    places: Array | None = None,
) -> tuple[Array | None, ...]:
    """`EmbedLayerNormalization`; its second result is the number of words of every row."""
    found = np.arange(words.shape[1])[None] if places is None else places
    total = _row_of(word_table, words) + _row_of(place_table, found)
    if kinds is not None and kind_table is not None:
        total = total + _row_of(kind_table, kinds)
    lengths = np.zeros(words.shape[0], np.int32) if mask is None else (mask == 1).sum(axis=1).astype(np.int32)
    is_prefix = mask is None or np.array_equal(mask == 1, np.arange(words.shape[1])[None] < lengths[:, None])
    normalized = _layer_normalized(total, gamma, beta, given.get("epsilon", 1e-12))[0]
    return normalized, lengths if is_prefix else None, total


def _row_of(table: Array, indices: Array) -> Array:
    if np.any(indices < 0) or np.any(indices >= table.shape[0]):
        raise NotImplementedError("a row that a table does not have")
    rows: Array = table[indices]
    return rows


def _layer_normalized(x: Array, gamma: Array, beta: Array | None, epsilon: float) -> tuple[Array, Array, Array]:
    mean = x.mean(axis=-1, keepdims=True)
    variance = np.square(x - mean).mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(variance + epsilon)
    result = (x - mean) * inverse * gamma
    return result if beta is None else result + beta, mean, inverse


def group_norm(given: Given, x: Array, gamma: Array, beta: Array) -> tuple[Array, ...]:
    """`GroupNorm`, channels last or next to the batch."""
    is_last = given.get("channels_last", 1)
    first = np.moveaxis(x, -1, 1) if is_last else x
    if given["activation"] not in (0, 1):
        raise NotImplementedError("GroupNorm with another activation")
    groups = first.reshape(first.shape[0], given["groups"], -1)
    mean = groups.mean(axis=-1, keepdims=True)
    variance = np.square(groups - mean).mean(axis=-1, keepdims=True)
    normalized = ((groups - mean) / np.sqrt(variance + given.get("epsilon", 1e-5))).reshape(first.shape)
    channels = (-1, *(1,) * (first.ndim - 2))
    result = normalized * gamma.reshape(channels) + beta.reshape(channels)
    if given["activation"]:
        result = result / (1 + np.exp(-result))
    return (np.moveaxis(result, 1, -1) if is_last else result,)


def skip_group_norm(
    given: Given, x: Array, gamma: Array, beta: Array, skip: Array, bias: Array | None = None
) -> tuple[Array, ...]:
    """`SkipGroupNorm`; its second result is the sum."""
    is_last = given.get("channels_last", 1)
    if skip.ndim == 2:
        skip = skip[:, None, None, :] if is_last else skip[:, :, None, None]
    elif skip.shape != x.shape and not is_last:
        raise NotImplementedError("SkipGroupNorm of channels next to the batch, with an addend of another shape")
    total = x + skip
    if bias is not None:
        total = total + (bias if is_last else bias[:, None, None])
    return (*group_norm(given, total, gamma, beta), total)
