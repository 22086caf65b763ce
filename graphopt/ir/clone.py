"""Copies of nodes and bodies, for inlining and unrolling; weights are shared, never copied."""

from __future__ import annotations

from collections.abc import Container, Mapping

from graphopt.ir.graph import Graph
from graphopt.ir.node import Form, Kind, Node
from graphopt.ir.value import Value

Mapped = dict[Value, Value]


def clone_node(node: Node, target: Graph, mapped: Mapped, *, rank: int | None = None) -> Node:
    """Insert a copy of a node, its bodies included, into `target`.

    Args:
        node: The node to copy.
        target: Where the copy goes.
        mapped: Old value to new value for what the copy should read instead; the copy's results are added to it.
        rank: The copy's place in the file's order.

    Returns:
        The copy. Its values keep their names where `target` can take them.
    """
    copy = Node(
        target.model.next_serial(),
        node.kind,
        node.op_type,
        node.domain,
        operands=tuple(None if value is None else mapped.get(value, value) for value in node.operands),
        results=len(node.results),
        attributes=node.attributes,
        name=node.name,
        overload=node.overload,
        tensor=node.tensor,
    )
    copy.default, copy.stored_as_node = node.default, node.stored_as_node
    if node.origin is not None and node.origin.form is not Form.TENSOR:
        copy.origin = node.origin  # doc string, metadata and what only the file can spell go along
    for old, new in zip(node.results, copy.results, strict=True):
        new.name, new.type, new.declared, new.elements = old.name, old.type, old.declared, old.elements
        mapped[old] = new
    for name, body in node.bodies.items():
        inner = target.make_body(copy, name, body.name)
        inner.details = dict(body.details)
        for item in _sources_first(body):
            clone_node(item, inner, mapped, rank=item.rank)
        inner.set_outputs([mapped.get(value, value) for value in body.outputs])
    target.insert(copy, rank=rank)
    return copy


def _sources_first(body: Graph) -> list[Node]:
    return [*(value.producer for value in body.inputs), *body.constants(), *body.order()]


def clone_body(
    body: Graph, target: Graph, inputs: Mapping[Value, Value], *, rank: int, taken: Container[str] | None = None
) -> list[Value]:
    """Insert copies of a body's nodes into `target`, reading other values in place of the body's inputs.

    Args:
        body: The body; `target` must see what it captures.
        target: Where the copies go.
        inputs: The body's inputs to the values that replace them.
        rank: The copies' place in the file's order.
        taken: Names the copies must not carry because something else does; None lets export name all of them.

    Returns:
        What the body's outputs are in `target`.
    """
    mapped: Mapped = dict(inputs)
    for node in _sources_first(body):
        if node.kind is Kind.INPUT:
            continue
        copy = clone_node(node, target, mapped, rank=rank)
        for value in copy.results:
            if value.name and (taken is None or value.name in taken):
                value.name = None
    return [mapped.get(value, value) for value in body.outputs]
