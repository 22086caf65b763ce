"""What ONNX Runtime's own operators are documented to compute, for ONNX's reference evaluator.

Only what originals are seen to have, and only the forms that are written here: anything else raises, and then there
is no such run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_MICROSOFT = "com.microsoft"


def contrib_operators() -> list[type[Any]]:
    """The operators as classes of the reference evaluator."""
    from onnx.reference.op_run import OpRun

    def made(name: str, function: Any, domain: str = _MICROSOFT) -> type[Any]:
        def _run(self: Any, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
            # Attributes that no schema gives a default come as they stand in the node.
            given = {item.name: _value(item) for item in self.onnx_node.attribute}
            results = tuple(function(given, *operands))[: len(self.onnx_node.output)]
            if any(port and value is None for port, value in zip(self.onnx_node.output, results, strict=True)):
                raise NotImplementedError(f"a result of {name} that nothing is documented of")
            return tuple(np.zeros(0) if value is None else value for value in results)  # the evaluator takes no None

        return type(name, (OpRun,), {"op_domain": domain, "_run": _run})

    return [
        made("SkipLayerNormalization", _skip_layer_normalization),
        made("SkipSimplifiedLayerNormalization", _skip_simplified),
        made("BiasGelu", lambda given, x, bias: (_gelu(x + bias),)),
        made("Gelu", lambda given, x: (_gelu(x),)),
        made("FastGelu", lambda given, x, bias=None: (_fast_gelu(x if bias is None else x + bias),)),
        made("QuickGelu", lambda given, x: (x / (1 + np.exp(-given.get("alpha", 1.702) * x)),)),
        made("Attention", _attention),
        made("MultiHeadAttention", _multi_head),
    ]


def _value(attribute: Any) -> Any:
    from onnx import helper

    return helper.get_attribute_value(attribute)


def _gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    result: Array = x * 0.5 * (1 + erf(x / math.sqrt(2)))
    return result


def _fast_gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x)))
    return result


def _skip_layer_normalization(
    given: dict[str, Any],
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array | None, ...]:
    total = x + skip if bias is None else x + skip + bias
    mean = total.mean(axis=-1, keepdims=True)
    variance = np.square(total - mean).mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(variance + given.get("epsilon", 1e-12))
    result = (total - mean) * inverse * gamma
    return result if beta is None else result + beta, mean, inverse, total


def _skip_simplified(
    given: dict[str, Any], x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    total = x + skip if bias is None else x + skip + bias
    inverse = 1 / np.sqrt(np.square(total).mean(axis=-1, keepdims=True) + given.get("epsilon", 1e-12))
    return total * inverse * gamma, None, inverse, total


def _attention(
    given: dict[str, Any],
    x: Array,
    weight: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array | None, ...]:
    _only(given, "num_heads", "scale", "unidirectional", "mask_filter_value")
    if past_length is not None:
        raise NotImplementedError("Attention with a buffer of past keys")
    layer = x @ weight if bias is None else x @ weight + bias
    query, key, value = (_heads(part, given["num_heads"]) for part in np.split(layer, 3, axis=-1))
    if past is not None:
        key, value = np.concatenate([past[0], key], axis=2), np.concatenate([past[1], value], axis=2)
    result = _attend(given, query, key, value, mask, attention_bias)
    return result, np.stack([key, value])


def _multi_head(
    given: dict[str, Any],
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


def _only(given: dict[str, Any], *names: str) -> None:
    """Raise for attributes that are not written here, unless they ask for nothing."""
    others = sorted(name for name, value in given.items() if name not in names and value not in (0, [], 0.0))
    if others:
        raise NotImplementedError(f"attention with {', '.join(others)}")


def _heads(x: Array, heads: int) -> Array:
    batch, rows, width = x.shape
    return x.reshape(batch, rows, heads, width // heads).transpose(0, 2, 1, 3)


def _attend(
    given: dict[str, Any], query: Array, key: Array, value: Array, mask: Array | None, attention_bias: Array | None
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
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ value
    batch, _, rows, _ = mixed.shape
    result: Array = mixed.transpose(0, 2, 1, 3).reshape(batch, rows, -1)
    return result
