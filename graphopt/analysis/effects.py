"""What an operator does besides computing its results, and whether it can fail.

Five effects, from harmless to unknown; a node with bodies has at least the worst of theirs. Only `PURE_TOTAL` nodes
are ever executed where the original might not have been. *Total* means: on operands of the types and shapes at hand
the operator gives a result, running out of memory aside. A float that a `Cast` takes out of the integer's range gives
an unspecified number but no error, so casts between numbers are total. Shapes count as known only as far as inference
has proved them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from graphopt.analysis import effect_table as table
from graphopt.analysis.totality import cannot_fail
from graphopt.ir.node import Kind, Node
from graphopt.ir.value import Value
from graphopt.tensors import DType

_STANDARD_DOMAINS: Final = ("", "ai.onnx")
_ELEMENTWISE: Final = table.UNARY | table.BROADCASTING | table.ELEMENTWISE_IN_FIRST


class Effect(IntEnum):
    """What a node may do; the greater of two holds for both together."""

    PURE_TOTAL = 0
    """A function of its operands that gives a result on all of them."""
    PURE_MAY_FAIL = 1
    """A function of its operands that may refuse some, or not end."""
    RANDOM = 2
    """The results differ from run to run."""
    STATEFUL = 3
    """It changes or reads something outside its operands, or must stay for another reason."""
    UNKNOWN = 4
    """Nothing is known; it is left where it is."""


def effect_of(node: Node) -> Effect:
    """The effect of a node, with those of its bodies or of the local function it calls."""
    effect = _effect(node, frozenset())
    return Effect.PURE_TOTAL if effect is Effect.PURE_MAY_FAIL and cannot_fail(node, is_total) else effect


def is_pure(node: Node) -> bool:
    """True if it only computes: applications to equal operands may be shared, folded, or dropped when unused."""
    return _effect(node, frozenset()) <= Effect.PURE_MAY_FAIL


def is_total(node: Node) -> bool:
    """True if the node is pure and cannot fail at the shapes at hand: it may run where the original might not have."""
    return effect_of(node) is Effect.PURE_TOTAL


def is_training(node: Node) -> bool:
    """True if a BatchNormalization or Dropout may be in training mode: no rule for inference holds for it."""
    if node.domain not in _STANDARD_DOMAINS or not node.is_operator:
        return node.domain == "com.microsoft" and _is_training_dropout(node)
    if node.op_type == "Dropout":
        return _is_training_dropout(node)
    if node.op_type != "BatchNormalization":
        return False
    if node.opset >= 14:
        return bool(node.attributes.get("training_mode", 0) != 0)
    if node.opset < 7 and node.attributes.get("is_test", 0) in (0, None):
        return True
    return any(result.name != "" for result in node.results[1:])


def is_elementwise(domain: str, op_type: str) -> bool:
    """True if each element of the result depends on the elements at that (broadcast) place of the operands alone.

    Of which operands, `elementwise_operands` says. So it may change places with anything that only moves elements:
    Transpose, Slice, Concat, ... (see `graphopt.analysis.position` for the bits). For operators whose meaning changed
    (broadcasting by attributes before opset 7), this speaks of today's meaning.
    """
    if domain == "com.microsoft":
        return op_type in table.CONTRIB_TOTAL
    return domain in _STANDARD_DOMAINS and op_type in _ELEMENTWISE


def elementwise_operands(domain: str, op_type: str, count: int) -> tuple[int, ...]:
    """The operands, of `count`, that take part element by element; others (of Clip, CastLike) are scalars or types."""
    if not is_elementwise(domain, op_type):
        return ()
    return (0,) if op_type in table.ELEMENTWISE_IN_FIRST else tuple(range(count))


def is_commutative(domain: str, op_type: str, dtype: DType | None = None, count: int = 2) -> bool:
    """True if all `count` operands of element type `dtype` may change places without changing a bit of a number.

    Where both operands are NaN, which of the two payloads comes out depends on the order; NaN counts as equal to NaN.
    The least of -0.0 and 0.0 depends on the order too, so Min and Max commute for integers only. Sums of three are not
    commutative: their order is the order of rounding.
    """
    if domain not in _STANDARD_DOMAINS:
        return False
    if op_type in ("Min", "Max"):
        return dtype is not None and dtype.is_integer
    if op_type in ("Sum", "Mean"):
        return count <= 2
    return op_type in table.COMMUTATIVE


# --- effects


def _effect(node: Node, calls: frozenset[tuple[str, str, str]]) -> Effect:
    """The effect, not yet asking whether a pure node can fail; `calls` are the local functions being looked into."""
    if not node.is_operator:
        return Effect.STATEFUL if node.kind is Kind.RETURN else Effect.PURE_MAY_FAIL
    called = _function_effect(node, calls)
    own = _operator_effect(node) if called is None else called
    inside = (_effect(inner, calls) for body in node.bodies.values() for inner in body.nodes())
    return max((own, *inside))


def _function_effect(node: Node, calls: frozenset[tuple[str, str, str]]) -> Effect | None:
    key = (node.domain, node.op_type, node.overload)
    function = None if node.graph is None else node.graph.model.functions.get(key)
    if function is None:
        return None
    if key in calls:
        return Effect.UNKNOWN  # a function that calls itself is no valid model
    return max((_effect(inner, calls | {key}) for inner in function.graph.nodes()), default=Effect.PURE_MAY_FAIL)


def _operator_effect(node: Node) -> Effect:
    domain, op_type = node.domain, node.op_type
    if domain in _STANDARD_DOMAINS:
        if op_type in table.RANDOM or (op_type == "Dropout" and _is_training_dropout(node)):
            return Effect.RANDOM
        known = op_type in table.STANDARD or op_type == table.SIMPLIFIED_LAYER_NORMALIZATION
        return Effect.PURE_MAY_FAIL if known else Effect.UNKNOWN
    if domain == "ai.onnx.ml":
        return Effect.PURE_MAY_FAIL
    if domain == "com.microsoft":
        if op_type in table.CONTRIB_RANDOM or _is_training_dropout(node):
            return Effect.RANDOM
        known = op_type in table.CONTRIB_MAY_FAIL or op_type in table.CONTRIB_TOTAL or op_type in table.CONTRIB_DROPOUT
        return Effect.PURE_MAY_FAIL if known else Effect.UNKNOWN
    if domain == "ai.onnx.preview.training" and op_type in table.PREVIEW:
        return Effect.PURE_MAY_FAIL
    return Effect.PURE_MAY_FAIL if (domain, op_type) == ("ai.onnx.preview", "FlexAttention") else Effect.UNKNOWN


def _is_training_dropout(node: Node) -> bool:
    if node.domain == "com.microsoft":
        position = table.CONTRIB_DROPOUT.get(node.op_type)
        return position is not None and not _is_false(node.operand(position))
    if node.opset < 7:
        return node.attributes.get("is_test", 0) in (0, None) or not isinstance(node.attributes["is_test"], int)
    return node.opset >= 12 and not _is_false(node.operand(2))


def _is_false(value: Value | None) -> bool:
    return value is None or (value.const is not None and value.const.size == 1 and not value.const.scalar())
