"""The graph as networkx users see it: a live read-only view, and a plain copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import networkx as nx

from graphopt.errors import EditError

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node
    from graphopt.ir.value import Value

_MUTATORS = (
    "add_node",
    "add_nodes_from",
    "remove_node",
    "remove_nodes_from",
    "add_edge",
    "add_edges_from",
    "add_weighted_edges_from",
    "remove_edge",
    "remove_edges_from",
    "clear",
    "clear_edges",
    "update",
)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise EditError(
        "graph.nx is read-only; use the edits of Graph: insert, erase, set_operand, set_attribute, retype, replace_uses"
    )


def frozen_view(stored: nx.MultiDiGraph[Node]) -> nx.MultiDiGraph[Node]:
    """A view that shares the stored adjacency and refuses to be edited."""
    view: nx.MultiDiGraph[Node] = nx.graphviews.generic_graph_view(stored)  # type: ignore[type-var, unused-ignore]
    for name in _MUTATORS:
        setattr(view, name, _refuse)
    return view


def plain_copy(graph: Graph) -> nx.MultiDiGraph[int]:
    """A copy with serial numbers as nodes and only strings and numbers as data.

    Nodes carry `kind`, `op`, `domain`, `name`, `scope` (the graph's name), and the `dtype` and `shape` of their first
    result; edges carry `value`, `operand`, `dtype` and `shape`.
    """
    copy: nx.MultiDiGraph[int] = nx.MultiDiGraph(name=graph.name)
    nodes = graph.all_nodes()
    for node in nodes:
        first = node.results[0] if node.results else None
        copy.add_node(
            node.serial,
            kind=node.kind.value,
            op=node.op_type,
            domain=node.domain,
            name=node.name or (first.name if first is not None else None) or "",
            scope=graph.name,
            dtype=_dtype_text(first),
            shape=_shape_text(first),
        )
    stored = graph.nx
    for node in nodes:
        for _, place, (user, index) in stored.out_edges(node, keys=True):
            value = user.operands[index]
            copy.add_edge(
                node.serial,
                place.serial,
                value=value.name or "",
                operand=index,
                dtype=_dtype_text(value),
                shape=_shape_text(value),
            )
    return copy


def _dtype_text(value: Value | None) -> str:
    return "" if value is None or value.dtype is None else value.dtype.text


def _shape_text(value: Value | None) -> str:
    if value is None or value.shape is None:
        return ""
    return ",".join("?" if dim is None else str(dim) for dim in value.shape)
