"""Which nodes one rewrite took away or changed: heard while it happens, found again in the graph before it."""

from __future__ import annotations

from graphopt.ir import AttributeSet, Edit, Erased, Graph, Inserted, Model, Node, Rewired, Value
from graphopt.ir.structure import holder_of


class Touched:
    """A listener that keeps the serial numbers of the operators rewrite `number` erased or changed.

    Serial numbers are handed out alike in every run, so they name the same nodes in the graph of another run that
    stopped earlier. Nodes that only read another value where what they read was replaced are not touched: they are the
    readers at which the difference comes out.
    """

    def __init__(self, model: Model, number: int) -> None:
        self._model = model
        self._number = number
        self._erased: dict[int, None] = {}
        self._changed: dict[int, None] = {}
        self._inserted: dict[int, None] = {}
        self._lost: dict[int, set[int]] = {}

    def on_edit(self, edit: Edit) -> None:
        """Take note of an edit of the rewrite."""
        if self._model.rewrites != self._number or self._model.current_rewrite is None:
            return
        match edit:
            case Inserted(node=node):
                self._inserted[node.serial] = None
            case Erased(node=node):
                self._erased[node.serial] = None
            case AttributeSet(node=node):
                self._changed[node.serial] = None
            case Rewired(node=node, old=old, new=new):
                lost = {value.producer.serial for value in _without(old, new)}
                self._lost.setdefault(node.serial, set()).update(lost)
            case _:
                pass

    def nodes(self, graph: Graph) -> list[Node]:
        """The touched operators of the main graph as it was before the rewrite, bodies by the node that owns them."""
        serials = {*self._erased, *self._changed}
        serials |= {serial for serial, lost in self._lost.items() if not lost <= self._erased.keys()}
        serials -= self._inserted.keys()
        found: dict[Node, None] = {}
        for scope in (graph, *graph.bodies_inside()):
            for node in scope.nodes():
                holder = holder_of(graph, node) if node.serial in serials else None
                if holder is not None:
                    found[holder] = None
        for node in graph.nodes():
            function = graph.model.functions.get((node.domain, node.op_type, node.overload))
            if function is not None and any(inner.serial in serials for inner in _all_nodes(function.graph)):
                found[node] = None
        return list(found)


def _without(old: tuple[Value | None, ...], new: tuple[Value | None, ...]) -> list[Value]:
    return [value for value in old if value is not None and value not in new]


def _all_nodes(graph: Graph) -> list[Node]:
    return [node for scope in (graph, *graph.bodies_inside()) for node in scope.nodes()]
