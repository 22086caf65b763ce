"""What ONNX Runtime's own operators are documented to compute, for ONNX's reference evaluator.

Only what originals are seen to have and what graphopt's fusions make, and only the forms that are written here and
beside this file: anything else raises, and then there is no such run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from graphopt.runtime import contrib_attention as attentions
from graphopt.runtime import contrib_normalizations as normalizations

Array = np.ndarray[Any, Any]
_MICROSOFT = "com.microsoft"
_UNREAD = "graphopt/nobody reads this/"


def contrib_operators() -> list[type[Any]]:
    """The operators as classes of the reference evaluator."""
    from onnx.reference.op_run import OpRun

    def made(name: str, function: Any, domain: str = _MICROSOFT) -> type[Any]:
        def _run(self: Any, *operands: Array, **attributes: Any) -> tuple[Array, ...]:
            # Attributes that no schema gives a default come as they stand in the node.
            given = {item.name: _value(item) for item in self.onnx_node.attribute}
            results = tuple(function(given, *operands))[: len(self.onnx_node.output)]
            ports = [not port.startswith(_UNREAD) for port in self.onnx_node.output]
            if any(is_read and value is None for is_read, value in zip(ports, results, strict=True)):
                raise NotImplementedError(f"a result of {name} that nothing is documented of")
            return tuple(np.zeros(0) if value is None else value for value in results)  # the evaluator takes no None

        return type(name, (OpRun,), {"op_domain": domain, "_run": _run})

    return [
        made("SkipLayerNormalization", normalizations.skip_layer_normalization),
        made("SkipSimplifiedLayerNormalization", normalizations.skip_simplified),
        made("SimplifiedLayerNormalization", normalizations.simplified_layer_normalization, domain=""),
        made("EmbedLayerNormalization", normalizations.embed_layer_normalization),
        made("GroupNorm", normalizations.group_norm),
        made("SkipGroupNorm", normalizations.skip_group_norm),
        made("Erf", lambda given, x: (_erf(x),), domain=""),  # the evaluator's own gives float32 for float64
        made("BiasGelu", lambda given, x, bias: (_gelu(x + bias),)),
        made("Gelu", lambda given, x: (_gelu(x),)),
        made("FastGelu", lambda given, x, bias=None: (_fast_gelu(x if bias is None else x + bias),)),
        made("QuickGelu", lambda given, x: (x / (1 + np.exp(-given.get("alpha", 1.702) * x)),)),
        made("BiasSplitGelu", _bias_split_gelu),
        made("BiasAdd", lambda given, x, bias, skip: (x + bias + skip,)),
        made("FusedMatMul", _fused_matmul),
        made("Attention", attentions.attention),
        made("MultiHeadAttention", attentions.multi_head_attention),
        made("GroupQueryAttention", attentions.group_query_attention),
        made("RotaryEmbedding", attentions.rotary_embedding),
    ]


def name_unread(nodes: Iterable[Any]) -> None:
    """Give a name to every result that has none.

    The evaluator keeps such a result under the empty name, where the next operator finds it as the operand that it was
    not given.
    """
    for place, node in enumerate(nodes):
        for index, port in enumerate(node.output):
            if not port:
                node.output[index] = f"{_UNREAD}{place}/{index}"


def _value(attribute: Any) -> Any:
    from onnx import helper

    return helper.get_attribute_value(attribute)


def _gelu(x: Array) -> Array:
    result: Array = x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    return result


def _erf(x: Array) -> Array:
    result: Array = np.vectorize(math.erf, otypes=[x.dtype])(x)
    return result


def _fast_gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x)))
    return result


def _bias_split_gelu(given: dict[str, Any], x: Array, bias: Array) -> tuple[Array, ...]:
    left, right = np.split(x + bias, 2, axis=-1)
    return (left * _gelu(right),)


def _fused_matmul(given: dict[str, Any], left: Array, right: Array) -> tuple[Array, ...]:
    if given.get("transBatchA", 0) or given.get("transBatchB", 0):
        raise NotImplementedError("FusedMatMul that turns the batch")
    if (given.get("transA", 0) and left.ndim < 2) or (given.get("transB", 0) and right.ndim < 2):
        raise NotImplementedError("FusedMatMul that turns a vector")
    left = np.swapaxes(left, -1, -2) if given.get("transA", 0) else left
    right = np.swapaxes(right, -1, -2) if given.get("transB", 0) else right
    return (np.asarray(left @ right * given.get("alpha", 1.0)),)
