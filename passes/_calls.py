"""Which nodes call a local function, and which functions a model needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import networkx as nx

from graphopt import Function, Graph, Model, Node


def function_of(node: Node, model: Model) -> Function | None:
    """The local function a node calls, None for an operator."""
    return model.functions.get((node.domain, node.op_type, node.overload)) if node.is_operator else None


def calls_in(graph: Graph) -> Iterator[tuple[Node, Function]]:
    """The calls of local functions in a graph and the bodies inside it, outer ones first."""
    model = graph.model
    names = {key[:2] for key in model.functions}
    for scope in (graph, *graph.bodies_inside()):
        for domain, op_type in scope.kinds:
            if (domain, op_type) not in names:
                continue
            for node in scope.of_kind(op_type, domain):
                function = function_of(node, model)
                if function is not None:
                    yield node, function


def called_from(graph: Graph) -> dict[Function, None]:
    """The functions that a graph calls, and those that they call."""
    called: dict[Function, None] = {}
    pending = [graph]
    while pending:
        for _, function in calls_in(pending.pop()):
            if function not in called:
                called[function] = None
                pending.append(function.graph)
    return called


def recursive(functions: Iterable[Function]) -> dict[Function, None]:
    """The functions that call themselves, be it through others; ONNX forbids them."""
    edges: nx.DiGraph[Function] = nx.DiGraph()
    for function in functions:
        edges.add_node(function)
        edges.add_edges_from((function, callee) for _, callee in calls_in(function.graph))
    found: dict[Function, None] = {}
    for group in nx.strongly_connected_components(edges):
        members = [function for function in edges if function in group]
        if len(members) > 1 or edges.has_edge(members[0], members[0]):
            found.update(dict.fromkeys(members))
    return found
