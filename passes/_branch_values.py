"""An If that only chooses between values which are there anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphopt import Builder, Context, DType, Graph, Node, Value
from passes._inlining import source_of
from passes._proofs import same_type

EXACT: Final = frozenset({DType.INT32, DType.INT64, DType.STRING, DType.UINT8, DType.BOOL})
FLOATS: Final = frozenset({DType.FLOAT, DType.DOUBLE})
_MOST_ELEMENTS = 4096
"""A Where reads both of its operands in full; an If copies one."""
_FIRST_OPSET = 9


@dataclass(frozen=True, slots=True)
class _Choice:
    """One result: what it is if the condition holds, and if not."""

    result: Value
    then: Value
    other: Value


def select(node: Node, dtypes: frozenset[DType], context: Context) -> None:
    """Replace an If by one Where for each result, or by its condition, if there are no more nodes then."""
    graph, condition = node.graph, node.operand(0)
    asked = context.options.opset or node.opset
    if graph is None or condition is None or min(node.opset, asked) < _FIRST_OPSET:
        return  # an opset the model is about to be converted to counts, too
    choices = _choices(node)
    if choices is None or not all(_can_select(choice, condition, dtypes) for choice in choices):
        return
    inside = sum(body.operator_count for body in node.bodies.values())
    if len(choices) > 1 + inside:
        return
    with context.rewrite(graph):
        for choice in choices:
            builder = context.builder(graph)
            new = _replacement(choice, condition, builder)
            for made in builder.nodes:
                graph.insert(made, rank=node.rank)
            if new.producer.is_operator and new.producer in builder.nodes:
                new.producer.name = node.name
            graph.replace_uses(choice.result, new)
        graph.erase(node)


def _choices(node: Node) -> list[_Choice] | None:
    """The results in use, None if one is computed in a branch."""
    graph = node.graph
    then, other = node.bodies["then_branch"], node.bodies["else_branch"]
    if graph is None or len(then.outputs) < len(node.results) or len(other.outputs) < len(node.results):
        return None
    if any(not inner.is_op("Identity") for body in (then, other) for inner in body.nodes()):
        return None
    found = []
    for result, one, two in zip(node.results, then.outputs, other.outputs, strict=False):
        if result.uses:
            one, two = source_of(one), source_of(two)
            if not all(graph.can_see(value) or value.const is not None for value in (one, two)):
                return None
            found.append(_Choice(result, one, two))
    return found or None


def _can_select(choice: _Choice, condition: Value, dtypes: frozenset[DType]) -> bool:
    one, two = choice.then, choice.other
    if one.dtype not in dtypes or not same_type(one, two) or condition.shape is None or one.shape is None:
        return False
    if any(dim != 1 for dim in condition.shape) or len(condition.shape) > len(one.shape):
        return False
    if one.dtype is DType.BOOL:
        return one.shape == condition.shape and _truths(choice) in ((True, False), (False, True))
    size = 1
    for dim in one.shape:
        if not isinstance(dim, int):
            return False
        size *= dim
    return size <= _MOST_ELEMENTS


def _truths(choice: _Choice) -> tuple[bool | None, bool | None]:
    one, two = choice.then.const, choice.other.const
    return (None if one is None else bool(one.scalar()), None if two is None else bool(two.scalar()))


def _replacement(choice: _Choice, condition: Value, builder: Builder) -> Value:
    if choice.result.dtype is DType.BOOL or choice.then.dtype is DType.BOOL:
        made: Value = condition if _truths(choice) == (True, False) else builder.Not(condition)
        return made
    one, two = (_outside(value, builder) for value in (choice.then, choice.other))
    chosen: Value = builder.Where(condition, one, two)
    return chosen


def _outside(value: Value, builder: Builder) -> Value:
    graph: Graph = builder.graph
    return value if value.const is None or graph.can_see(value) else builder.constant(value.const)
