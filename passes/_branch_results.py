"""What follows from which branch an If took, for what is computed from its results."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import Builder, Context, DType, Graph, Kind, Node, Value, is_pure
from passes._equality import Constants, Key, expression_key

_FOLLOWED = frozenset(
    (
        *("Add", "And", "Cast", "Concat", "Equal", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Mul", "Not", "Or", "ReduceProd", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"),
    )
)
"""Operators through which a shape is followed to a condition."""
_MOST_FOLLOWED = 24
_SIDES = ("then_branch", "else_branch")

Copies = Mapping[Value, tuple[Value, Value]]


def settled(node: Node, context: Context) -> dict[Value, tuple[bool, bool]]:
    """Conditions computed from the shapes of an If's results, with what they are after either branch."""
    graph = node.graph
    then, other = (node.bodies[name].outputs for name in _SIDES)
    if graph is None or len(then) < len(node.results) or len(other) < len(node.results):
        return {}
    builder = context.builder(graph)
    known: dict[Value, tuple[Value, Value]] = {
        result: (one, two) for result, one, two in zip(node.results, then, other, strict=False) if result.uses
    }
    found: dict[Value, tuple[bool, bool]] = {}
    pending = [user for result in known for user in result.users if _reads_shape_of(user, result)]
    seen: dict[Node, None] = {}
    while pending and len(seen) < _MOST_FOLLOWED:
        user = pending.pop()
        if user in seen or not _can_follow(user, graph, known):
            continue
        seen[user] = None
        known[user.result] = _supposed(user, known, builder)
        truths = tuple(map(_truth, known[user.result]))
        if user.result.dtype is DType.BOOL and truths[0] is not None and truths[1] is not None:
            found[user.result] = (truths[0], truths[1])
        pending.extend(user.result.users)
    return found


def _reads_shape_of(user: Node, value: Value) -> bool:
    return (user.is_op("Shape") or user.is_op("Size")) and user.operand(0) is value


def _can_follow(user: Node, graph: Graph, known: Copies) -> bool:
    return (
        user.graph is graph
        and user.kind is Kind.OPERATOR
        and not user.domain
        and user.op_type in _FOLLOWED
        and len(user.results) == 1
        and all(value is None or value in known or value.const is not None for value in user.operands)
    )


def _supposed(user: Node, known: Copies, builder: Builder) -> tuple[Value, Value]:
    """The results of a node's copies, in no graph, after the one branch and after the other."""
    results = []
    for side in (0, 1):
        operands = [value if value is None or value not in known else known[value][side] for value in user.operands]
        results.append(builder.like(user, *operands))
    return results[0], results[1]


def _truth(value: Value) -> bool | None:
    if value.const is not None and value.const.size == 1:
        return bool(value.const.scalar())
    elements = value.elements
    return bool(elements[0]) if elements is not None and len(elements) == 1 and isinstance(elements[0], int) else None


def read_condition(node: Node, context: Context) -> None:
    """Let Ifs that read a condition settled by the branch of one before them read that one's condition."""
    graph, condition = node.graph, node.operand(0)
    assert graph is not None
    assert condition is not None
    for value, truths in settled(node, context).items():
        users = [(user, index) for user, index in value.uses if user.is_op("If") and index == 0]
        if not users or value.producer.is_pinned or context.keeps(value.producer):
            continue
        builder = context.builder(graph)
        if truths[0] is truths[1]:
            new: Value = builder.constant(truths[0], DType.BOOL)
        else:
            new = condition if truths[0] else builder.Not(condition)
        with context.rewrite(graph):
            for made in builder.nodes:
                graph.insert(made, rank=value.producer.rank)
            for user, index in users:
                assert user.graph is not None
                user.graph.set_operand(user, index, new)


# --- equal results


def equal_results(node: Node) -> list[tuple[Value, Value]]:
    """Results of an If that are the same as an earlier one whichever branch it takes, with that one."""
    bodies = [node.bodies[name] for name in _SIDES]
    if any(len(body.outputs) < len(node.results) for body in bodies):
        return []
    constants = Constants()
    keys = [[_result_key(value, body, constants) for value in body.outputs] for body in bodies]
    first: dict[object, Value] = {}
    pairs = []
    for index, result in enumerate(node.results):
        if result.uses:
            earlier = first.setdefault((keys[0][index], keys[1][index]), result)
            if earlier is not result and (_saves_twice(bodies, index) or not _are_returned(result, earlier)):
                pairs.append((result, earlier))
    return pairs


def _saves_twice(bodies: list[Graph], index: int) -> bool:
    """True if either branch has a node, or needs one, for a result: then an Identity for its second name is less."""
    return all(body.outputs[index].const is None for body in bodies)


def _are_returned(one: Value, other: Value) -> bool:
    return all(any(user.kind is Kind.RETURN for user, _ in value.uses) for value in (one, other))


def _result_key(value: Value, body: Graph, constants: Constants) -> Key:
    node = value.producer
    number = constants.number(value)
    if number is not None:
        return ("constant", number)
    plain = node.graph is body and node.is_operator and not node.bodies and is_pure(node)
    has_tensors = any(not isinstance(item, (int, float, str, tuple)) for item in node.attributes.values())
    if not plain or has_tensors:
        return (node.serial, value.index)
    given = tuple(result.name != "" for result in node.results)
    return (value.index, given, *expression_key(node, constants))
