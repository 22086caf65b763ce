"""Putting the body of a loop in its place, once for each iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import Context, Graph, Node, TensorType, Value, clone_body, is_pure
from passes._body_results import reads, state_count
from passes._inlining import TakenNames, erase_unread, hand_over, known_number, source_of

_MOST_TRIPS = 8
_MOST_NODES = 64
"""Nodes that may stand for a Loop if the pass is aggressive."""


def trips_of(node: Node) -> int | None:
    """How often a Loop runs, if only a known number of trips ends it."""
    body, start = node.bodies["body"], node.operand(1)
    limit = known_number(node.operand(0))
    if limit is None or (start is not None and known_number(start) != 1) or len(body.outputs) == 0:
        return None
    again = source_of(body.outputs[0])
    return limit if again is body.inputs[1] or known_number(again) == 1 else None


def pays(node: Node, trips: int, context: Context) -> bool:
    """True if the iterations one by one are no more nodes than the loop, or few enough where growth is asked for."""
    if not 1 < trips <= _MOST_TRIPS:
        return False
    body, states = node.bodies["body"], state_count(node) or 0
    stacks = sum(bool(value.uses) for value in node.results[states:])
    cost = trips * _work(body) + stacks * (trips + 1)
    size = 1 + sum(scope.operator_count for scope in (body, *body.bodies_inside()))
    return cost <= size or (context.is_aggressive and cost <= _MOST_NODES)


def _work(body: Graph) -> int:
    """The nodes of one iteration that are left when all that depends on its number alone is a constant."""
    known: dict[Value, None] = dict.fromkeys(body.inputs[:2])
    work = 0
    for node in body.order():
        if is_pure(node) and all(value in known or value.const is not None for value in reads(node)):
            known.update(dict.fromkeys(node.results))
            continue
        if all(user is body.return_node and index == 0 for value in node.results for user, index in value.uses):
            continue  # it only tells to go on
        work += 1 + sum(inner.is_operator for inner in node.nested())
    return work


def unroll(node: Node, trips: int, context: Context, names: TakenNames) -> bool:
    """Replace a Loop by its iterations.

    Returns:
        False if it was left alone.
    """
    graph, body = node.graph, node.bodies["body"]
    assert graph is not None
    states = [value for value in node.operands[2:] if value is not None]
    count = len(states)
    fits = count == len(node.operands[2:]) and len(body.inputs) == 2 + count
    if not fits or len(body.outputs) < 1 + max(count, len(node.results)):
        context.note(f"Loop '{node.name}' stays: its body does not fit it")
        return False
    stacked: list[list[Value]] = [[] for _ in node.results[count:]]
    ends: list[Node] = []
    newest = graph.model.next_serial()
    with context.rewrite(graph):
        names.release(body)
        for trip in range(trips):
            builder = context.builder(graph)
            iteration, condition = body.inputs[:2]
            inputs = {
                iteration: builder.constant(np.full((1,) if iteration.rank == 1 else (), trip, np.int64)),
                condition: builder.constant(np.ones((1,) if condition.rank == 1 else (), np.bool_)),
                **dict(zip(body.inputs[2:], states, strict=True)),
            }
            for inner, value in list(inputs.items())[:2]:
                if inner.uses:
                    graph.insert(value.producer, rank=node.rank)
            again, *copies = clone_body(body, graph, inputs, rank=node.rank, taken=names)
            names.claim(body)
            ends.append(again.producer)
            states = copies[:count]
            for parts, value in zip(stacked, copies[count:], strict=False):
                parts.append(value)
        pairs = zip(stacked, node.results[count:], strict=True)
        results = [*states, *(_stack(parts, old, node, context) for parts, old in pairs)]
        hand_over(node, results, _made_since(newest, results), results)
        graph.erase(node)
        for producer in ends:
            erase_unread(producer, graph)
    return True


def _stack(parts: Sequence[Value], result: Value, node: Node, context: Context) -> Value:
    """Values side by side along a new first axis."""
    graph = node.graph
    assert graph is not None
    if not result.uses:
        return parts[0]
    builder = context.builder(graph)
    whole: Value = builder.Concat(*(builder.Unsqueeze(value, axes=[0]) for value in parts), axis=0)
    for made in builder.nodes:
        graph.insert(made, rank=node.rank)
    return whole


# --- a Scan of one step


def has_one_step(node: Node) -> bool:
    """True if a Scan goes through sequences of length one."""
    states = state_count(node)
    scanned = [] if states is None else node.operands[states:]
    for value, axis in zip(scanned, _axes(node, "scan_input_axes", len(scanned)), strict=True):
        shape = None if value is None else value.shape
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 1:
            return True
    return False


def step_pays(node: Node, context: Context) -> bool:
    """True if the step alone, with what takes the sequences apart and puts them together, is no more nodes."""
    states = state_count(node) or 0
    body = node.bodies["body"]
    taken = sum(
        bool(inner.uses) and not (value is not None and value.const is not None)
        for value, inner in zip(node.operands[states:], body.inputs[states:], strict=True)
    )
    made = sum(bool(value.uses) for value in node.results[states:])
    return taken + made <= 1 or context.is_aggressive


def inline_step(node: Node, context: Context, names: TakenNames) -> bool:
    """Replace a Scan of one step by its body.

    Returns:
        False if it was left alone.
    """
    graph, body, count = node.graph, node.bodies["body"], state_count(node)
    assert graph is not None
    if count is None or len(body.inputs) != len(node.operands) or len(body.outputs) < len(node.results):
        return False
    if any(value is None or not isinstance(value.type, TensorType) for value in node.operands):
        return False
    builder = context.builder(graph)
    axes = _axes(node, "scan_input_axes", len(node.operands) - count)
    inputs: dict[Value, Value] = {}
    for index, (inner, value) in enumerate(zip(body.inputs, node.operands, strict=True)):
        assert value is not None
        is_read = index < count or inner.uses
        inputs[inner] = value if index < count or not is_read else builder.Squeeze(value, axes=[axes[index - count]])
    newest = graph.model.next_serial()
    with context.rewrite(graph):
        _insert(builder.nodes, node)
        names.release(body)
        copies = clone_body(body, graph, inputs, rank=node.rank, taken=names)
        names.claim(body)
        builder = context.builder(graph)
        turned = _axes(node, "scan_output_axes", len(node.results) - count)
        for index, axis in enumerate(turned, count):
            if node.results[index].uses:
                copies[index] = builder.Unsqueeze(copies[index], axes=[axis])
        _insert(builder.nodes, node)
        hand_over(node, copies, _made_since(newest, copies), copies)
        graph.erase(node)
    return True


def _made_since(serial: int, values: Sequence[Value]) -> set[Value]:
    """Those values that may take another name, since they were just made."""
    return {value for value in values if value.producer.serial > serial}


def _insert(nodes: Sequence[Node], scan: Node) -> None:
    graph = scan.graph
    assert graph is not None
    for made in nodes:
        graph.insert(made, rank=scan.rank)


def _axes(node: Node, name: str, count: int) -> tuple[int, ...]:
    found = node.attributes.get(name)
    return found if isinstance(found, tuple) and len(found) == count else (0,) * count
