"""Counting what passes do, by listening."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.ir import Edit, Erased, Inserted, Model, Retyped
from graphopt.records import Rewrite


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in the record to return to."""

    edits: int
    rewrites: int
    number: int


class Recorder:
    """Numbers and counts rewrites; an edit outside any group is a rewrite of its own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.edits = 0
        self.rewrites: list[Rewrite] = []

    def on_edit(self, edit: Edit) -> None:
        """Count an edit; learning more of a type changes nothing."""
        if isinstance(edit, Retyped):
            return
        self.edits += 1
        name, number = self._model.current_rewrite, self._model.rewrites
        if name is None:
            self._model.rewrites += 1
            name, number = "edit", self._model.rewrites
        if not self.rewrites or self.rewrites[-1].number != number:
            self.rewrites.append(Rewrite(number, name, (), ()))
        last = self.rewrites[-1]
        if isinstance(edit, Erased):
            label = edit.node.name or edit.node.op_type or edit.node.kind.value
            self.rewrites[-1] = Rewrite(number, last.rule, (*last.erased, label), last.inserted)
        elif isinstance(edit, Inserted):
            label = edit.node.op_type or edit.node.kind.value
            self.rewrites[-1] = Rewrite(number, last.rule, last.erased, (*last.inserted, label))

    def mark(self) -> Mark:
        """Where the record stands."""
        return Mark(self.edits, len(self.rewrites), self._model.rewrites)

    def since(self, mark: Mark) -> list[Rewrite]:
        """The rewrites made since a mark."""
        return self.rewrites[mark.rewrites :]

    def reset(self, mark: Mark) -> None:
        """Forget what was rolled back; numbers are given out again."""
        del self.rewrites[mark.rewrites :]
        self.edits = mark.edits
        self._model.rewrites = mark.number


def count_nodes(model: Model) -> int:
    """Operators in the main graph, bodies and functions; constants are not counted."""
    return sum(graph.operator_count for graph in model.graphs())


def count_edges(model: Model) -> int:
    """Uses in all graphs."""
    return sum(graph.use_count for graph in model.graphs())
