"""Which name every value and node carries in the file."""

from __future__ import annotations

from graphopt.ir import Graph, Kind, Node, Value


class Names:
    """The names of one main graph or function, its bodies included.

    A value keeps its own name, except that a graph output must carry the name the signature gives it. Where one value
    would need two external names, or a body returns a value of an outer graph, `relays` says which `Identity` the file
    needs: ONNX forbids the direct form.
    """

    def __init__(self, graph: Graph, signature: list[str]) -> None:
        self.of: dict[Value, str] = {}
        self.outputs: dict[Graph, list[str]] = {}
        self.relays: dict[Graph, list[tuple[Value, str]]] = {}
        self._taken: set[str] = set(signature)
        self._counters: dict[str, int] = {}
        bodies = list(graph.bodies_inside())
        self._collect([graph, *bodies])
        self._sign_main(graph, signature)
        for scope in [graph, *reversed(bodies)]:
            self._name_values(scope)
        for body in bodies:
            self._sign_body(body)

    def _collect(self, graphs: list[Graph]) -> None:
        for graph in graphs:
            for node in graph.all_nodes():
                self._taken.update(value.name for value in node.results if value.name)

    def _sign_main(self, graph: Graph, signature: list[str]) -> None:
        relays = self.relays.setdefault(graph, [])
        relayed: dict[str, None] = {}
        for value, name in zip(graph.outputs, signature, strict=True):
            if self.of.get(value) == name or name in relayed:
                continue
            if value.name == name:
                self.of[value] = name
                continue
            if value in self.of or not _is_renamable(value) or _keeps_own_output_name(value, graph, signature):
                relays.append((value, name))
                relayed[name] = None
            else:
                self.of[value] = name
        self.outputs[graph] = signature

    def _name_values(self, graph: Graph) -> None:
        hidden = set(self.of.values()) if graph.owner is None else self._hidden_by(graph)
        for node in graph.all_nodes():
            for value in node.results:
                if value in self.of:
                    continue
                if value.name and value.name not in hidden:
                    self.of[value] = value.name
                elif value.name == "" and not value.uses:
                    self.of[value] = ""
                else:
                    self.of[value] = self.fresh(_base(node, value))

    def _hidden_by(self, body: Graph) -> set[str]:
        """Names of outer values read in a body: nothing in the body may be called the same."""
        return {self.of[value] for value in body.captures() if value in self.of}

    def _sign_body(self, body: Graph) -> None:
        names, relays, seen = [], self.relays.setdefault(body, []), set()
        for value in body.outputs:
            if value.producer.graph is body and self.of[value] not in seen:
                name = self.of[value]
            else:
                name = self.fresh(f"{self.of[value]}_out")
                relays.append((value, name))
            seen.add(name)
            names.append(name)
        self.outputs[body] = names

    def fresh(self, base: str) -> str:
        """A name nothing else has, the base itself if it is free."""
        name = base
        while name in self._taken:
            count = self._counters[base] = self._counters.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def _is_renamable(value: Value) -> bool:
    producer = value.producer
    if producer.kind is Kind.INPUT or producer.is_pinned:
        return False
    return producer.kind is Kind.OPERATOR or value.declared is None or producer.stored_as_node


def _keeps_own_output_name(value: Value, graph: Graph, signature: list[str]) -> bool:
    """True if a later output gives the value the name it has already."""
    return value.name in signature and any(
        other is value and name == value.name for other, name in zip(graph.outputs, signature, strict=True)
    )


def _base(node: Node, value: Value) -> str:
    if node.name:
        return f"{node.name}_output" + (f"_{value.index}" if value.index else "")
    return f"{(node.op_type or node.kind.value).lower()}_output"
