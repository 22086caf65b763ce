"""Where dims can be read: for each expression the tensors that have it, those that cost least first."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import Expr, Graph, Kind, Node, TensorType, Value

Shape = tuple[int | Expr | None, ...]
_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_ACTIVATIONS = ("Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
FIRST = -1
"""The place of what is there before any operator runs."""


def places_of(graph: Graph) -> dict[Node, int]:
    """The place of each operator, and of the Return, in topological order."""
    order = graph.order()
    places = {node: place for place, node in enumerate(order)}
    places[graph.return_node] = len(order)
    return places


def home_of(user: Node, graph: Graph) -> Node:
    """The node of a graph that is, or contains, a user of one of its values."""
    node = user
    while node.graph is not graph:
        assert node.graph is not None
        assert node.graph.owner is not None
        node = node.graph.owner
    return node


class Sources:
    """The tensors of a graph by the dims that they have, one for each shape: the one that is there earliest."""

    def __init__(self, graph: Graph, places: dict[Node, int], live: dict[Node, None]) -> None:
        """Look at every value that the graph can read.

        Args:
            graph: The graph.
            places: Its nodes in topological order.
            live: The nodes whose results are there in any case; those of others are not looked at.
        """
        self._by_shape: dict[Shape, list[tuple[int, Value]]] = {}
        self._by_dim: dict[Expr, dict[Shape, None]] = {}
        for value, place in _values(graph, places):
            is_there = not value.producer.is_operator or value.producer in live or value.producer.graph is not graph
            if is_there and not _is_fused(value):
                self._enter(value, place)

    def _enter(self, value: Value, place: int) -> None:
        shape = value.shape
        if not shape or not isinstance(value.type, TensorType):
            return
        symbolic = [dim for dim in shape if isinstance(dim, Expr)]
        if not symbolic:
            return
        known = self._by_shape.get(shape)
        if known is None:
            self._by_shape[shape] = [(place, value)]
            for dim in symbolic:
                self._by_dim.setdefault(dim, {})[shape] = None
        elif place < known[-1][0]:
            known.append((place, value))

    def holders(self, dim: Expr, before: int) -> Iterator[tuple[Value, int]]:
        """Tensors that have a dim and are there before a place, with their places, in the order of first mention."""
        for shape in self._by_dim.get(dim, ()):
            place, value = self._by_shape[shape][-1]
            if place < before:
                yield value, place

    def whole(self, shape: Shape, before: int) -> tuple[Value, int] | None:
        """A tensor of a shape that is there before a place, with its place."""
        found = self._by_shape.get(shape)
        if found is None or found[-1][0] >= before:
            return None
        place, value = found[-1]
        return value, place


def _is_fused(value: Value) -> bool:
    """True if a layer's activation is all that reads it: the runtime makes one of the two, unless others read between.

    The activation's result has the same dims.
    """
    users = value.users
    return value.producer.op_type in _LAYERS and len(users) == 1 and users[0].op_type in _ACTIVATIONS


def _values(graph: Graph, places: dict[Node, int]) -> Iterator[tuple[Value, int]]:
    for value in graph.inputs:
        yield value, FIRST
    if graph.owner is not None:
        for value in graph.captures():
            if value.producer.kind is not Kind.CONSTANT:
                yield value, FIRST
    for node, place in places.items():
        if node.is_operator:
            for value in node.results:
                if value.name != "" or value.uses:
                    yield value, place
