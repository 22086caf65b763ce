"""What became of every name: kept, renamed, merged into another value, or gone."""

from __future__ import annotations

from typing import Any

from graphopt.ir import Edit, Graph, Model, Node, Rewired, Value
from graphopt.onnxio.names import names_of


class NameMap:
    """A listener that remembers the names a model began with and which value took the place of which."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._values: dict[Value, str] = {}
        self._nodes: dict[Node, str] = {}
        self._replaced: dict[Value, Value] = {}
        for graph in model.graphs():
            for node in graph.all_nodes():
                if node.is_operator and node.name:
                    self._nodes[node] = node.name
                self._values.update({value: value.name for value in node.results if value.name})
        signature = [name for name, _ in model.graph.details["outputs"]]
        self._values.update(dict(zip(model.graph.outputs, signature, strict=True)))

    def on_edit(self, edit: Edit) -> None:
        """Note which value a reader was given in place of which."""
        if not isinstance(edit, Rewired):
            return
        for old, new in zip(edit.old, edit.new, strict=False):
            if old is not None and new is not None and old is not new:
                self._replaced[old] = new

    def to_json(self) -> dict[str, Any]:
        """The map as a JSON document; what kept its name is only counted.

        Each entry of `values` is `{"how": "renamed" | "merged" | "gone", "now": name or None}`; each of `nodes`
        `{"how": "replaced" | "gone"}`, where a replaced node's name is carried by the one that stands for it, or
        `{"how": "renamed", "now": name}`.
        """
        names = self._names_now()
        values: dict[str, dict[str, str | None]] = {}
        for value, old in self._values.items():
            now = names.get(value)
            if now == old:
                continue
            if now is not None:
                values[old] = {"how": "renamed", "now": now}
                continue
            heir = self._heir(value)
            name = None if heir is None else names.get(heir)
            if name == old:
                continue
            values[old] = {"how": "gone" if name is None else "merged", "now": name}
        alive = {node.name for graph in self._model.graphs() for node in graph.nodes() if node.name}
        nodes = {
            name: {"how": "replaced" if name in alive else "gone"}
            for node, name in self._nodes.items()
            if node.graph is None
        }
        renamed = {
            name: node.name for node, name in self._nodes.items() if node.graph is not None and node.name != name
        }
        nodes |= {name: {"how": "renamed", "now": now} for name, now in renamed.items()}
        return {
            "schema": "graphopt.name-map",
            "schema_version": 1,
            "kept_values": len(self._values) - len(values),
            "kept_nodes": len(self._nodes) - len(nodes),
            "values": values,
            "nodes": nodes,
        }

    def _names_now(self) -> dict[Value, str]:
        found = dict(names_of(self._model.graph).of)
        for function in self._model.functions.values():
            found.update(names_of(function.graph).of)
        return found

    def _heir(self, value: Value) -> Value | None:
        seen: set[Value] = set()
        while value in self._replaced and value not in seen:
            seen.add(value)
            value = self._replaced[value]
            if _is_alive(value):
                return value
        return None


def _is_alive(value: Value) -> bool:
    graph: Graph | None = value.producer.graph
    while graph is not None and graph.owner is not None:
        graph = graph.owner.graph
    return graph is not None
