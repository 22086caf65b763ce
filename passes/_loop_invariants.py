"""What is the same in every iteration of a Loop or Scan, and moving it in front of the loop."""

from __future__ import annotations

from graphopt import Context, Graph, Kind, Node, Value, clone_node, is_pure, is_total, symbol
from passes._body_results import drop_unread, first_operand, first_output, first_state, reads, state_count
from passes._inlining import TakenNames, known_number, source_of


def surely_runs(node: Node) -> bool:
    """True if the body of a Loop or Scan runs at least once, or the model fails."""
    if node.op_type == "Scan":
        return True  # the runtime fails on a sequence without elements
    limit, start = node.operand(0), node.operand(1)
    if start is not None and known_number(start) != 1:
        return False
    if limit is None:
        return True
    count = known_number(limit)
    if count is None and limit.elements is not None and len(limit.elements) == 1:
        trips = limit.elements[0]
        return trips is not None and symbol.is_positive(trips)
    return count is not None and count > 0


# --- work


def invariants(node: Node, context: Context) -> list[Node]:
    """The nodes of a loop's body that may as well run once before the loop, in order."""
    body, runs = node.bodies["body"], surely_runs(node)
    found: dict[Node, None] = {}
    for inner in body.order():
        if inner.is_pinned or context.keeps(inner) or not _is_outside(inner, body, found):
            continue
        if any(user is body.return_node for value in inner.results for user, _ in value.uses):
            continue  # returning a value from outside would take an Identity
        if is_pure(inner) if runs else is_total(inner):
            found[inner] = None
    return list(found)


def _is_outside(inner: Node, body: Graph, moved: dict[Node, None]) -> bool:
    """True if all that a node reads is there before the loop."""
    return all(
        value.producer in moved or value.const is not None or not body.encloses(value.producer.graph)
        for value in reads(inner)
    )


def move_before(node: Node, moved: list[Node], context: Context, names: TakenNames) -> None:
    """Compute nodes of a loop's body before the loop."""
    graph, body = node.graph, node.bodies["body"]
    assert graph is not None
    outside: dict[Value, Value] = {}
    with context.rewrite(graph):
        for inner in moved:
            for value in reads(inner):
                if value.const is not None and value.producer.graph is body and value not in outside:
                    constant = graph.make_constant(value.const)
                    constant.stored_as_node = value.producer.stored_as_node
                    graph.insert(constant, rank=node.rank)
                    outside[value] = constant.result
            copy = clone_node(inner, graph, outside, rank=node.rank)
            for old, new in zip(inner.results, copy.results, strict=True):
                if new.name != "":
                    names.pass_on((old,), new)
                body.replace_uses(old, new)
            context.inference.visit(copy)
        for inner in reversed(moved):
            body.erase(inner)


# --- state


def read_from_outside(node: Node, context: Context) -> bool:
    """Let a body read state that never changes from outside, and what follows the loop its initial value.

    Returns:
        False if there is no such state.
    """
    graph, body, states = node.graph, node.bodies["body"], state_count(node)
    if graph is None or states is None or len(body.outputs) < first_output(node) + states:
        return False
    if len(body.inputs) < first_state(node) + states or len(node.results) < states:
        return False
    found: list[tuple[Value, int, Value, Value]] = []
    for index in range(states):
        place = first_output(node) + index
        inner, initial = body.inputs[first_state(node) + index], node.operands[first_operand(node) + index]
        if initial is None or source_of(body.outputs[place]) is not inner:
            continue
        # A Loop may return its state under another name without an Identity, a value from outside it may not.
        is_returned = node.op_type == "Loop" and any(
            user is body.return_node and position != place for user, position in inner.uses
        )
        result = node.results[index]
        if is_returned or _would_need_relay(result, initial, graph):
            continue
        if result.uses or any(user is not body.return_node or position != place for user, position in inner.uses):
            found.append((inner, place, initial, result))
    if not found:
        return False
    with context.rewrite(graph):
        for inner, place, initial, result in found:
            for user, position in list(inner.uses):
                if user is not body.return_node or position != place:
                    assert user.graph is not None
                    user.graph.set_operand(user, position, initial)
            graph.replace_uses(result, initial)
        drop_unread(node, context)
    return True


def _would_need_relay(old: Value, new: Value, graph: Graph) -> bool:
    """True if a graph returns one value, and could return the other only through an Identity."""
    returned = any(user.kind is Kind.RETURN and user.graph is graph for user, _ in new.uses)
    is_given = new.producer.kind is Kind.INPUT or new.producer.is_pinned
    return any(
        user.graph is not graph or returned or is_given or not graph.can_return(new)
        for user, _ in old.uses
        if user.kind is Kind.RETURN
    )


# --- what a Scan goes through

_PER_INPUT = ("scan_input_axes", "scan_input_directions")


def drop_scanned(node: Node, context: Context) -> bool:
    """Drop what a Scan goes through and its body does not read, or reads under another name; one must stay.

    Returns:
        False if there is no such operand.
    """
    graph, body, states = node.graph, node.bodies["body"], state_count(node)
    if graph is None or states is None or len(body.inputs) != len(node.operands):
        return False
    count = len(node.operands) - states
    how = [_entries(node, name, count) for name in _PER_INPUT]
    if None in how:
        return False
    first: dict[object, Value] = {}
    kept: list[int] = []
    equal: list[tuple[Value, Value]] = []
    for index in range(count):
        inner = body.inputs[states + index]
        key = (node.operands[states + index], *(entries[index] for entries in how if entries is not None))
        if key in first:
            equal.append((inner, first[key]))
        elif inner.uses:
            first[key] = inner
            kept.append(index)
    kept = kept or [0]
    gone = [body.inputs[states + index].producer for index in range(count) if index not in kept]
    if not gone:
        return False
    with context.rewrite(graph):
        for old, new in equal:
            for user, position in list(old.uses):
                assert user.graph is not None
                user.graph.set_operand(user, position, new)
        for name, entries in zip(_PER_INPUT, how, strict=True):
            if name in node.attributes and entries is not None:
                graph.set_attribute(node, name, tuple(entries[index] for index in kept))
        graph.set_attribute(node, "num_scan_inputs", len(kept))
        operands = node.operands
        graph.set_operands(node, [*operands[:states], *(operands[states + index] for index in kept)])
        for producer in gone:
            body.erase(producer)
    return True


def _entries(node: Node, name: str, count: int) -> tuple[int, ...] | None:
    """One number for each operand a Scan goes through; None if the model says something else."""
    found = node.attributes.get(name)
    if found is None:
        return (0,) * count
    return found if isinstance(found, tuple) and len(found) == count else None
