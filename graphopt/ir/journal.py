"""Undo: the inverse of every edit, replayed backwards. Nothing is copied."""

from __future__ import annotations

from graphopt.ir.edits import Edit


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
            edit = self.edits.pop()
            edit.graph.undo(edit)
