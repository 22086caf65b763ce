"""Which rule took which node away and which rule put which node there, by listening."""

from __future__ import annotations

from graphopt.ir import Edit, Erased, Inserted, Model, Node


class Origins:
    """A listener that remembers, of every node that came or went, whose doing it was; what is undone is forgotten."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._came: dict[Node, str] = {}
        self._went: dict[Node, str] = {}

    def on_edit(self, edit: Edit) -> None:
        """Note a node that joined or left."""
        if not isinstance(edit, Inserted | Erased) or not edit.node.is_operator:
            return
        node, rule = edit.node, self._model.current_rewrite or "edit"
        if isinstance(edit, Inserted):
            if self._went.pop(node, None) is None:
                self._came[node] = rule
        elif self._came.pop(node, None) is None:
            self._went[node] = rule

    @property
    def inserted(self) -> dict[str, str]:
        """Name of a node of the result -> the rule that put it there."""
        return {node.name: rule for node, rule in self._came.items() if node.name and node.graph is not None}

    @property
    def erased(self) -> dict[str, str]:
        """Name of a node of the original -> the rule that took it away."""
        return {node.name: rule for node, rule in self._went.items() if node.name and node.graph is None}
