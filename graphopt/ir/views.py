"""The graph as networkx users see it: a live read-only view, and a plain copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import networkx as nx

from graphopt.errors import EditError

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node

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
    view: nx.MultiDiGraph[Node] = nx.graphviews.generic_graph_view(stored)
    for name in _MUTATORS:
        setattr(view, name, _refuse)
    return view


def plain_copy(graph: Graph) -> nx.MultiDiGraph[int]:
    """A copy with serial numbers as nodes and only strings and numbers as data.

    Nodes carry `kind`, `op`, `domain`, `name` and `scope`; edges `value`, `operand`, `dtype` and `shape`.
    """
    copy: nx.MultiDiGraph[int] = nx.MultiDiGraph(name=graph.name)
    for node in graph.all_nodes():
        copy.add_node(
            node.serial,
            kind=node.kind.value,
            op=node.op_type,
            domain=node.domain,
            name=node.name or next((value.name or "" for value in node.results), ""),
            scope=graph.name,
        )
    for node in graph.all_nodes():
        for value in node.results:
            for user, index in value.uses:
                place = user
                while place.graph is not graph:
                    assert place.graph is not None and place.graph.owner is not None
                    place = place.graph.owner
                shape = "" if value.shape is None else ",".join("?" if dim is None else str(dim) for dim in value.shape)
                copy.add_edge(
                    node.serial,
                    place.serial,
                    value=value.name or "",
                    operand=index,
                    dtype="" if value.dtype is None else value.dtype.text,
                    shape=shape,
                )
    return copy
