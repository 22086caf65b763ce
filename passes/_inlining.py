"""Putting the body of an If or Loop in the place of its node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from graphopt import Context, DType, Effect, Graph, Node, TensorType, Value, clone_body, effect_of


def outermost(graph: Graph) -> Graph:
    """The graph around all those around a graph: the main graph, or a function's."""
    while graph.parent is not None:
        graph = graph.parent
    return graph


class TakenNames(Container[str]):
    """The names of all values of an outermost graph and the bodies in it, counted.

    ONNX wants names unique along nesting, so a value that leaves its body must not be called like one of the graphs
    around its new place, nor like one of a body it is now outside of.
    """

    def __init__(self, outermost: Graph) -> None:
        self._counts: Counter[str] = Counter(_names(outermost))
        self._suffixes: Counter[str] = Counter()

    def __contains__(self, name: object) -> bool:
        return self._counts[str(name)] > 0

    def fresh(self, base: str) -> str:
        """A name nothing has, the base itself if it is free; it counts as taken from now on."""
        name = base
        while self._counts[name] > 0:
            self._suffixes[base] += 1
            name = f"{base}_{self._suffixes[base]}"
        self._counts[name] += 1
        return name

    def pass_on(self, olds: Iterable[Value], new: Value) -> None:
        """Let a value take the name of others that are about to go, of the first one that is free then."""
        bases = [value.name for value in olds if value.name]
        self._counts.subtract(bases)
        free = [name for name in bases if self._counts[name] <= 0]
        new.name = self.fresh((free or bases)[0]) if bases else None

    def release(self, body: Graph) -> None:
        """Forget the names of a body that is about to go."""
        self._counts.subtract(_names(body))

    def claim(self, body: Graph) -> None:
        """Count the names of a body whose copy stands in another graph, except those the copy could not keep."""
        self._counts.update([name for name in _names(body) if self._counts[name] <= 0])


def _names(graph: Graph) -> Iterator[str]:
    for scope in (graph, *graph.bodies_inside()):
        for node in scope.all_nodes():
            for value in node.results:
                if value.name:
                    yield value.name


def stays(node: Node, context: Context) -> bool:
    """True if something outside the graph names the node, or a node in its bodies."""
    return any(item.is_pinned or context.keeps(item) for item in (node, *node.nested()))


# --- what is known before the model runs


def known_number(value: Value | None) -> int | None:
    """The number a scalar or one-element value holds, None if it is not known."""
    if value is None:
        return None
    tensor = value.const
    if tensor is not None:
        return int(tensor.scalar()) if tensor.size == 1 and tensor.dtype is not DType.STRING else None
    elements = value.elements
    return elements[0] if elements is not None and len(elements) == 1 and isinstance(elements[0], int) else None


def known_condition(node: Node) -> bool | None:
    """Which branch an If takes, as its condition and the bodies around it tell; None if they do not."""
    condition, graph = node.operand(0), node.graph
    if condition is None or graph is None:
        return None
    return known_truth(condition, facts_in(graph))


def facts_in(graph: Graph) -> dict[Value, bool]:
    """The booleans of one element that are known wherever a body runs, from the conditions under which it does."""
    facts: dict[Value, bool] = {}
    scope: Graph | None = graph
    while scope is not None and scope.owner is not None:
        owner = scope.owner
        condition = owner.operand(0)
        if owner.is_op("If") and condition is not None:
            for value, truth in implied(condition, owner.bodies.get("then_branch") is scope).items():
                facts.setdefault(value, truth)
        elif owner.is_op("Loop") and len(scope.inputs) > 1:
            facts.setdefault(scope.inputs[1], True)
        scope = owner.graph
    return facts


def implied(condition: Value, truth: bool) -> dict[Value, bool]:
    """What follows from the truth of a condition of one element: for itself and for what it is computed from."""
    found: dict[Value, bool] = {}
    pending = [(condition, truth)]
    while pending:
        value, truth = pending.pop()
        if value in found or value.const is not None:
            continue
        found[value] = truth
        node = value.producer
        if node.is_op("Not") or node.is_op("Identity"):
            pending.extend((operand, truth ^ node.is_op("Not")) for operand in node.operands if operand is not None)
        elif (node.is_op("And") and truth) or (node.is_op("Or") and not truth):
            pending.extend((operand, truth) for operand in node.operands if operand is not None)
    return found


def known_truth(value: Value, facts: Mapping[Value, bool], depth: int = 8) -> bool | None:
    """Whether a boolean of one element is true, as far as constants and facts tell."""
    number = known_number(value)
    if number is not None:
        return bool(number)
    if value in facts:
        return facts[value]
    node = value.producer
    if depth == 0 or not (
        facts and (node.is_op("Not") or node.is_op("Identity") or node.is_op("And") or node.is_op("Or"))
    ):
        return None
    parts = [None if operand is None else known_truth(operand, facts, depth - 1) for operand in node.operands]
    if node.op_type in ("Not", "Identity"):
        return None if parts[0] is None else parts[0] ^ (node.op_type == "Not")
    decisive = node.op_type == "Or"
    if decisive in parts:
        return decisive
    return None if None in parts else not decisive


def known_trips(node: Node) -> int | None:
    """How often a Loop runs, if that is known to be 0 or 1 times; else None."""
    limit, start = node.operand(0), node.operand(1)
    most = known_number(limit)
    starts = True if start is None else known_number(start)
    if (most is not None and most <= 0) or (starts is not None and not starts):
        return 0
    if not starts:
        return None
    if most == 1:
        return 1
    again = known_number(node.bodies["body"].outputs[0])
    return 1 if again == 0 and (limit is None or most is not None) else None


def source_of(value: Value) -> Value:
    """What a value is a copy of."""
    while value.producer.is_op("Identity") and value.producer.operands[0] is not None:
        value = value.producer.operands[0]
    return value


# --- inlining


def inline_branch(node: Node, is_taken: bool, context: Context, names: TakenNames) -> bool:
    """Replace an If by the branch it takes.

    Returns:
        False if it was left alone.
    """
    graph = node.graph
    assert graph is not None
    branch = node.bodies["then_branch" if is_taken else "else_branch"]
    outputs = branch.outputs
    if len(outputs) < len(node.results) or not _all_fit(node.results, outputs):
        context.note(f"If '{node.name}' keeps both branches: the one it takes returns other types than it declares")
        return False
    with context.rewrite(graph):
        _release(node, names)
        copies = clone_body(branch, graph, {}, rank=node.rank, taken=names)
        names.claim(branch)
        hand_over(node, copies, {value for value in outputs if value.producer.graph is branch}, outputs)
        graph.erase(node)
    return True


def inline_single_trip(node: Node, context: Context, names: TakenNames) -> bool:
    """Replace a Loop that runs once by its body.

    Returns:
        False if it was left alone.
    """
    graph, body = node.graph, node.bodies["body"]
    assert graph is not None
    states = node.operands[2:]
    outputs = body.outputs[1:]
    fits = len(body.inputs) == 2 + len(states) and len(outputs) >= max(len(states), len(node.results))
    if not fits or None in states or not _all_fit(node.results[: len(states)], outputs):
        context.note(f"Loop '{node.name}' stays: its body does not fit it")
        return False
    builder = context.builder(graph)
    iteration, condition = body.inputs[:2]
    inputs = {
        iteration: builder.constant(np.zeros((1,) if iteration.rank == 1 else (), np.int64)),
        condition: builder.constant(np.ones((1,) if condition.rank == 1 else (), np.bool_)),
    }
    read = [value.producer for inner, value in inputs.items() if inner.uses]
    inputs.update(dict(zip(body.inputs[2:], [value for value in states if value is not None], strict=True)))
    with context.rewrite(graph):
        for constant in read:
            graph.insert(constant, rank=node.rank)
        _release(node, names)
        again, *copies = clone_body(body, graph, inputs, rank=node.rank, taken=names)
        names.claim(body)
        for index in range(len(states), len(node.results)):
            if node.results[index].uses:
                copies[index] = _stacked(copies[index], node, context)
        own = {value for value in outputs[: len(states)] if value.producer.graph is body and value not in inputs}
        hand_over(node, copies, own, outputs)
        graph.erase(node)
        erase_unread(again.producer, graph)
    return True


def drop_zero_trip(node: Node, context: Context) -> bool:
    """Replace a Loop that never runs by its initial states.

    What it stacks must be unread: an empty stack has dims that the runtime takes from its own inference of the body,
    and 0 where that knows none.

    Returns:
        False if it was left alone.
    """
    graph = node.graph
    assert graph is not None
    states = node.operands[2:]
    if any(value.uses for value in node.results[len(states) :]):
        context.note(f"Loop '{node.name}' never runs, but stays for the shape of the empty stack it gives")
        return False
    pairs = [(old, new) for old, new in zip(node.results, states, strict=False) if old.uses and new is not None]
    if any(old.uses for old, new in zip(node.results, states, strict=False) if new is None):
        return False
    if not _all_fit([old for old, _ in pairs], [new for _, new in pairs]):
        return False
    with context.rewrite(graph):
        for old, new in pairs:
            graph.replace_uses(old, new)
        graph.erase(node)
    return True


def _release(node: Node, names: TakenNames) -> None:
    for body in node.bodies.values():
        names.release(body)


def erase_unread(node: Node, graph: Graph) -> None:
    """Erase what only computed the condition to go on, unless it may do more than that."""
    pending = [node]
    while pending:
        node = pending.pop()
        if node.graph is graph and node.is_operator and not node.is_used and effect_of(node) <= Effect.RANDOM:
            pending.extend(value.producer for value in node.operands if value is not None)
            graph.erase(node)


def _stacked(value: Value, node: Node, context: Context) -> Value:
    """What a Loop of one trip stacks: the value with an axis of size 1 in front."""
    graph = node.graph
    assert graph is not None
    builder = context.builder(graph)
    stacked: Value = builder.Unsqueeze(value, axes=[0])
    for made in builder.nodes:
        graph.insert(made, rank=node.rank)
    return stacked


def hand_over(node: Node, copies: Sequence[Value], own: set[Value], outputs: Sequence[Value]) -> None:
    """Let readers of a node read other values; those just made take the names that readers know.

    Args:
        node: The node that goes.
        copies: What stands for its results.
        own: Those of `outputs` whose copies were just made.
        outputs: What the copies are copies of.
    """
    graph = node.graph
    assert graph is not None
    for old, new, inner in zip(node.results, copies, outputs, strict=False):
        if not old.uses:
            continue
        if old.name and inner in own:
            own.discard(inner)
            graph.rename(new, None)
        graph.replace_uses(old, new)


def _all_fit(results: Sequence[Value], values: Sequence[Value]) -> bool:
    """False where the element type or rank of a replacement is known to be another."""
    for old, new in zip(results, values, strict=False):
        if isinstance(old.type, TensorType) != isinstance(new.type, TensorType) and old.type and new.type:
            return False
        if None not in (old.dtype, new.dtype) and old.dtype is not new.dtype:
            return False
        if None not in (old.rank, new.rank) and old.rank != new.rank:
            return False
    return True
