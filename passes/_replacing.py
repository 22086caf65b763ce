"""Several nodes in the place of one, result by result."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import Builder, Graph, Node, Value


def replace_node(graph: Graph, node: Node, values: Sequence[Value | None], builder: Builder | None = None) -> None:
    """Insert what a builder made and let it stand for a node; call inside a rewrite.

    Args:
        graph: The node's graph.
        node: What goes.
        values: What stands for each result; None, or nothing at the end, for one that nobody reads.
        builder: What made the values, if they are not in the graph yet.
    """
    for made in () if builder is None else builder.nodes:
        if made.graph is None:
            graph.insert(made, rank=node.rank)
    first = values[0]
    if first is not None and first.producer.is_operator and not first.producer.name:
        first.producer.name = node.name
    for old, new in zip(node.results, values, strict=False):
        if new is not None:
            if new.type is None and old.type is not None:
                graph.retype(new, old.type)
            graph.replace_uses(old, new)
    graph.erase(node)
