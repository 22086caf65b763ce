"""What goes when a value becomes a constant or is read from elsewhere."""

from __future__ import annotations

from graphopt import Context, Kind, Node, Tensor, Value, is_pure


def may_go(node: Node, context: Context) -> bool:
    """True if nothing outside names a node and it only computes, so that it may be left out where it is not read."""
    return not node.is_pinned and not context.keeps(node) and is_pure(node)


def store(value: Value, tensor: Tensor) -> None:
    """Let everything that reads a result read a constant, which takes its name."""
    graph = value.producer.graph
    assert graph is not None
    constant = graph.make_constant(tensor)
    # Before IR version 4 an initializer is an input, too, so a new one is written as a node.
    constant.stored_as_node = graph.model.ir_version < 4
    graph.insert(constant, rank=value.producer.rank)
    graph.replace_uses(value, constant.result)


def erase_dead(nodes: list[Node], context: Context) -> None:
    """Erase nodes nothing reads, and what was only there for them."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        graph = node.graph
        if graph is None or node.is_used or node.is_pinned or node.kind not in (Kind.OPERATOR, Kind.CONSTANT):
            continue
        if node.is_operator and not may_go(node, context):
            continue
        before = [value.producer for value in node.operands if value is not None]
        before += [value.producer for body in node.bodies.values() for value in body.captures()]
        graph.erase(node)
        stack.extend(dict.fromkeys(before))
