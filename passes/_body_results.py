"""Results of If, Loop and Scan that nobody reads, and the state a loop carries for nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt import Context, Effect, Graph, Kind, Node, Value, effect_of

_PER_STACK = ("scan_output_axes", "scan_output_directions")


def drop_unread(node: Node, context: Context) -> bool:
    """Drop the results of an If, Loop or Scan that nobody reads, with what computes them in its bodies.

    Returns:
        False if there was nothing to drop.
    """
    if not node.is_used or all(value.uses for value in node.results):
        return False  # one nobody reads at all is dead code
    if node.op_type == "If":
        return _drop_branch_outputs(node, context)
    states = state_count(node)
    body = node.bodies["body"]
    if states is None or len(body.inputs) < first_state(node) + states:
        return False
    return _drop_loop_results(node, body, states, context)


def _drop_branch_outputs(node: Node, context: Context) -> bool:
    graph = node.graph
    assert graph is not None
    kept = [index for index, value in enumerate(node.results) if value.uses]
    branches = list(node.bodies.values())
    if any(len(branch.outputs) < len(node.results) for branch in branches):
        return False
    with context.rewrite(graph):
        for branch in branches:
            keep_outputs(branch, kept)
        graph.set_results(node, [node.results[index] for index in kept])
    return True


def _drop_loop_results(node: Node, body: Graph, states: int, context: Context) -> bool:
    graph = node.graph
    assert graph is not None
    first_input, start = first_state(node), first_output(node)
    is_read = [bool(value.uses) for value in node.results]
    is_read += [False] * (len(body.outputs) - start - len(is_read))
    needed = _needed_nodes(body, is_read, states, first_input, start, context)
    carried = [
        index for index in range(states) if is_read[index] or body.inputs[first_input + index].producer in needed
    ]
    kept = [*carried, *(index for index in range(states, len(is_read)) if is_read[index])]
    if len(kept) == len(is_read):
        return False
    stays = set(carried)
    gone = [body.inputs[first_input + index].producer for index in range(states) if index not in stays]
    with context.rewrite(graph):
        keep_outputs(body, [*range(start), *(start + index for index in kept)])
        for inner in reversed(body.order()):
            if inner not in needed:
                body.erase(inner)
        for inner in gone:
            body.erase(inner)
        operands = list(node.operands)
        operands[first_operand(node) : first_operand(node) + states] = [
            node.operands[first_operand(node) + index] for index in carried
        ]
        graph.set_operands(node, operands)
        _keep_stack_attributes(graph, node, [index - states for index in kept if index >= states])
        graph.set_results(node, [node.results[index] for index in kept if index < len(node.results)])
    return True


def _needed_nodes(
    body: Graph, is_read: Sequence[bool], states: int, first_input: int, start: int, context: Context
) -> dict[Node, None]:
    """The nodes of a body that matter outside it: state counts only if something else than itself needs it."""
    places = {value.producer: index for index, value in enumerate(body.inputs)}
    needed: dict[Node, None] = {}
    pending: list[Node] = [node for node in body.all_nodes() if _must_stay(node, context)]
    pending.extend(value.producer for value in body.outputs[:start])
    pending.extend(body.outputs[start + index].producer for index, read in enumerate(is_read) if read)
    while pending:
        node = pending.pop()
        if node in needed or node.graph is not body:
            continue
        needed[node] = None
        state = places.get(node, -1) - first_input
        if 0 <= state < states:
            pending.append(body.outputs[start + state].producer)
        pending.extend(value.producer for value in reads(node))
    return needed


def _must_stay(node: Node, context: Context) -> bool:
    if node.kind is Kind.RETURN:
        return False
    return node.is_pinned or context.keeps(node) or (node.kind is Kind.OPERATOR and effect_of(node) > Effect.RANDOM)


def reads(node: Node) -> Iterator[Value]:
    """What a node reads: its operands, and what its bodies take from outside."""
    for value in node.operands:
        if value is not None:
            yield value
    for body in node.bodies.values():
        yield from body.captures()


def keep_outputs(body: Graph, kept: Sequence[int]) -> None:
    """Let a body return some of its outputs only."""
    values, declared = body.outputs, body.details.get("outputs", [])
    body.set_outputs([values[index] for index in kept])
    body.set_detail("outputs", [declared[index] for index in kept if index < len(declared)])


def _keep_stack_attributes(graph: Graph, node: Node, kept: Sequence[int]) -> None:
    for name in _PER_STACK:
        entries = node.attributes.get(name)
        if isinstance(entries, tuple) and len(entries) != len(kept):
            graph.set_attribute(node, name, tuple(entries[index] for index in kept) or None)


# A Loop has the trip count and the condition in front of its states; its body the iteration and the condition, and it
# returns the condition first. A Scan has its states in front of what it scans.


def first_operand(node: Node) -> int:
    """Where the initial states begin among the operands of a Loop or Scan."""
    return 2 if node.op_type == "Loop" else 0


def first_state(node: Node) -> int:
    """Where the states begin among the inputs of its body."""
    return 2 if node.op_type == "Loop" else 0


def first_output(node: Node) -> int:
    """Where the states begin among the outputs of its body."""
    return 1 if node.op_type == "Loop" else 0


def state_count(node: Node) -> int | None:
    """How many states it carries."""
    if node.op_type == "Loop":
        return max(len(node.operands) - 2, 0)
    scanned = node.attributes.get("num_scan_inputs")
    return len(node.operands) - scanned if isinstance(scanned, int) else None
