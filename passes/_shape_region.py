"""The nodes of a graph that only compute integers known from shapes, and who reads what they compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from graphopt import Context, DType, Expr, Graph, Kind, Node, TensorType, Value
from passes._shape_sources import home_of
from passes._storing import may_go

_DTYPES = (DType.INT64, DType.INT32, DType.FLOAT, DType.DOUBLE, DType.FLOAT16)


@dataclass(slots=True)
class Need:
    """Integers that something outside the region reads."""

    user: Node
    index: int
    value: Value
    before: int
    """The place of the user, or of the node that holds it, in topological order."""


@dataclass(slots=True)
class ShapeRegion:
    """What computes known integers in one graph.

    Attributes:
        nodes: The nodes, in topological order; only those that something outside needs.
        needs: The uses of their results outside.
        kept: Values that must stay: returned, of a form that is not planned.
        live: The nodes outside that are needed for more than their shapes, in no particular order.
    """

    nodes: list[Node] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    kept: dict[Value, None] = field(default_factory=dict)
    live: dict[Node, None] = field(default_factory=dict)

    def cone_of(self, roots: Iterable[Node]) -> dict[Node, None]:
        """Nodes, and the operators below them that nothing else needs."""
        found = dict.fromkeys(roots)
        stack = list(found)
        while stack:
            for value in _reads(stack.pop()):
                node = value.producer
                if node.is_operator and node not in found and node not in self.live:
                    found[node] = None
                    stack.append(node)
        return found


def region_of(graph: Graph, context: Context, places: dict[Node, int]) -> ShapeRegion:
    """Find the region of a graph."""
    inside = {node: None for node in places if node.is_operator and _is_known(node) and may_go(node, context)}
    region = ShapeRegion()
    waiting = [node for node in places if not node.is_operator or (node not in inside and not may_go(node, context))]
    region.live.update(dict.fromkeys(waiting))
    needed: dict[Node, None] = {}
    while waiting:
        for value in _reads(waiting.pop()):
            node = value.producer
            if node in inside:
                needed[node] = None
            elif node.is_operator and node.graph is graph and node not in region.live:
                region.live[node] = None
                waiting.append(node)
    for node in reversed(inside):
        for value in node.results if node in needed else ():
            _find_needs(value, graph, places, region)
        if node in needed:
            region.nodes.append(node)
            needed.update((value.producer, None) for value in _reads(node) if value.producer in inside)
    region.nodes.reverse()
    region.needs.sort(key=lambda need: (need.before, need.user.serial, need.index))
    return region


def _reads(node: Node) -> Iterator[Value]:
    """What a node, or a body of it, reads of its graph."""
    yield from (value for value in node.operands if value is not None)
    for body in node.bodies.values():
        yield from (value for value in body.captures() if value.producer.graph is node.graph)


def _find_needs(value: Value, graph: Graph, places: dict[Node, int], region: ShapeRegion) -> None:
    for user, index in value.uses:
        home = home_of(user, graph)
        if home not in region.live:
            continue
        if user.kind is Kind.RETURN or value.rank not in (0, 1) or value.dtype not in _DTYPES:
            region.kept[value] = None
        else:
            region.needs.append(Need(user, index, value, places[home]))


def _is_known(node: Node) -> bool:
    if node.bodies or not node.results:
        return False
    return all(_has_contents(value) for value in node.results)


def _has_contents(value: Value) -> bool:
    elements = value.elements
    if elements is None or not isinstance(value.type, TensorType):
        return False
    return all(isinstance(item, (int, Expr)) for item in elements)
