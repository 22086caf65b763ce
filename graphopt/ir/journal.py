"""Undo: the inverse of every edit, replayed backwards. Nothing is copied."""

from __future__ import annotations

from graphopt.ir import edits
from graphopt.ir.edits import Edit
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node


class Journal:
    """A listener that can take back what it heard."""

    def __init__(self) -> None:
        self.edits: list[Edit] = []

    def on_edit(self, edit: Edit) -> None:
        """Remember an edit."""
        self.edits.append(edit)

    def roll_back(self) -> None:
        """Undo every edit heard, the latest first; call it once the journal no longer listens."""
        while self.edits:
            _undo(self.edits.pop())


def _undo(edit: Edit) -> None:
    graph: Graph = edit.graph
    match edit:
        case edits.Inserted(node=node):
            is_pinned, node.is_pinned = node.is_pinned, False
            graph.erase(node)
            node.is_pinned = is_pinned
        case edits.Erased(node=node):
            graph.insert(node, rank=node.rank)
            if edit.place is not None:
                graph.move_input(node, edit.place)
        case edits.Rewired(node=node, old=old):
            graph.set_operands(node, old)
        case edits.AttributeSet(node=node, name=name, old=old):
            graph.set_attribute(node, name, old)
        case edits.Retyped(value=value, old=old):
            graph.retype(value, old)
        case edits.Renamed(item=item, old=old):
            if isinstance(item, Node):
                graph.rename(item, old)
            else:
                item.name = old
        case edits.Restored(node=node, old=form):
            graph.store_as_node(node, form)
        case edits.Narrowed(node=node, old=results):
            graph.set_results(node, results)
        case edits.DetailSet(name=name, old=detail):
            graph.set_detail(name, detail)
        case edits.OpsetSet(domain=domain, old=version):
            graph.set_opset(domain, version)
        case edits.FunctionsSet(old=functions):
            graph.model.set_functions(functions)
