"""The order in which nodes are written and visited."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import networkx as nx

from graphopt.ir.node import Node

LAST_RANK = 1 << 62
"""The rank of a Return node: whatever the file's order, it comes after everything."""


def by_age(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in the order in which they were made; unlike that of their insertion, an undo leaves it as it was."""
    return sorted(nodes, key=_age)


def stable_order(stored: nx.MultiDiGraph[Node]) -> list[Node]:
    """The nodes in topological order: of those that could come next, the first by rank and age.

    Raises:
        networkx.NetworkXUnfeasible: there is a cycle.
    """
    # Files are mostly in order, and a rewrite puts new nodes where the old ones were: then sorting is all it takes.
    ordered = sorted(stored, key=_place)
    if all(_place(node) < _place(user) for node, users in stored.adjacency() for user in users):
        return ordered
    return list(nx.lexicographical_topological_sort(stored, key=_place))


_age = attrgetter("serial")
_place = attrgetter("rank", "serial")
