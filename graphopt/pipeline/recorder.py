"""Counting what passes do, by listening."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt.ir import Edit, Erased, Inserted, Model, Retyped
from graphopt.records import Rewrite


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in the record to return to."""

    edits: int
    rewrites: int
    number: int


@dataclass(slots=True)
class _Open:
    """A rewrite that may still grow."""

    number: int
    rule: str
    erased: list[str] = field(default_factory=list)
    inserted: list[str] = field(default_factory=list)


class Recorder:
    """Numbers and counts rewrites; an edit outside any group is a rewrite of its own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.edits = 0
        self._open: list[_Open] = []

    def on_edit(self, edit: Edit) -> None:
        """Count an edit; learning more of a type changes nothing."""
        if isinstance(edit, Retyped):
            return
        self.edits += 1
        name, number = self._model.current_rewrite, self._model.rewrites
        if name is None:
            self._model.rewrites += 1
            name, number = "edit", self._model.rewrites
        if not self._open or self._open[-1].number != number:
            self._open.append(_Open(number, name))
        last = self._open[-1]
        if isinstance(edit, Erased):
            last.erased.append(edit.node.name or edit.node.op_type or edit.node.kind.value)
        elif isinstance(edit, Inserted):
            last.inserted.append(edit.node.op_type or edit.node.kind.value)

    @property
    def rewrites(self) -> list[Rewrite]:
        """Every rewrite so far."""
        return self._records(0)

    def _records(self, first: int) -> list[Rewrite]:
        return [
            Rewrite(item.number, item.rule, tuple(item.erased), tuple(item.inserted)) for item in self._open[first:]
        ]

    def mark(self) -> Mark:
        """Where the record stands."""
        return Mark(self.edits, len(self._open), self._model.rewrites)

    def since(self, mark: Mark) -> list[Rewrite]:
        """The rewrites made since a mark."""
        return self._records(mark.rewrites)

    def reset(self, mark: Mark) -> None:
        """Forget what was rolled back; numbers are given out again."""
        del self._open[mark.rewrites :]
        self.edits = mark.edits
        self._model.rewrites = mark.number


def count_nodes(model: Model) -> int:
    """Operators in the main graph, bodies and functions; constants are not counted."""
    return sum(graph.operator_count for graph in model.graphs())


def count_edges(model: Model) -> int:
    """Uses in all graphs."""
    return sum(graph.use_count for graph in model.graphs())
