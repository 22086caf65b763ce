"""Which name every value and node carries in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.ir import Graph, Kind, Node, Value


class Names:
    """The names of one main graph or function, its bodies included.

    A value keeps its own name, except that a graph output must carry the name the signature gives it, and that no name
    may be given twice in a graph and what it can see. Where one value would need two external names, or a body returns
    a value of an outer graph, `relays` says which `Identity` the file needs: ONNX forbids the direct form.

    Args:
        graph: The main graph or a function's.
        signature: The names of its outputs.
        hidden: Names the file itself gives to a value and to another one in a body; they stay.

    Attributes:
        of: The name of each value, "" for an optional result that is left out.
        of_node: The name of each node that is new or a copy, unique among nodes.
        outputs: The names of each graph's outputs.
        relays: For each graph, values to pass on under another name by an `Identity`.
    """

    def __init__(self, graph: Graph, signature: Sequence[str], hidden: Iterable[str] = ()) -> None:
        self.of: dict[Value, str] = {}
        self.of_node: dict[Node, str] = {}
        self.outputs: dict[Graph, list[str]] = {}
        self.relays: dict[Graph, list[tuple[Value, str]]] = {}
        self._hidden = frozenset(hidden)
        self._claimed: dict[Graph, set[str]] = {}
        self._given: set[str] = set()
        self._counters: dict[str, int] = {}
        self._taken_nodes: set[str] = set()
        self._node_counters: dict[str, int] = {}
        bodies = list(graph.bodies_inside())
        graphs = [graph, *reversed(bodies)]  # the outer ones first
        nodes = {scope: scope.all_nodes() for scope in graphs}
        everything = [node for scope in graphs for node in nodes[scope]]
        self._taken = {value.name for node in everything for value in node.results if value.name}
        self._taken.update(signature)
        captured = _captured(everything) if bodies else {}
        self._sign_main(graph, signature)
        for is_new in (False, True):  # what the file brought keeps its name before what rewrites made gets one
            for scope in graphs:
                forbidden = {self.of[value] for value in captured.get(scope, ()) if value in self.of}
                self._name_values(scope, [node for node in nodes[scope] if node.is_new == is_new], forbidden)
        for body in bodies:
            self._sign_body(body)
        self._name_nodes(everything)

    # --- values

    def _sign_main(self, graph: Graph, signature: Sequence[str]) -> None:
        pairs = list(zip(graph.outputs, signature, strict=True))
        for value, name in pairs:
            if value.name == name:
                self.of[value] = name
        relays: dict[str, Value] = {}
        for value, name in pairs:
            if self.of.get(value) == name or name in relays:
                continue
            if value in self.of or not _is_renamable(value):
                relays[name] = value
            else:
                self.of[value] = name
        self.relays[graph] = [(value, name) for name, value in relays.items()]
        self.outputs[graph] = list(signature)
        self._claimed[graph] = set(signature)
        self._given.update(signature)

    def _name_values(self, graph: Graph, nodes: list[Node], forbidden: set[str]) -> None:
        claimed = self._claimed.setdefault(graph, set())
        for node in nodes:
            for value in node.results:
                if value in self.of:
                    continue
                name = value.name
                if name == "" and not value.uses:
                    self.of[value] = ""
                    continue
                if not name or name in claimed or name in forbidden or self._is_hiding(name, graph, node):
                    name = self.fresh(_base(node, value))
                self.of[value] = name
                claimed.add(name)
                self._given.add(name)

    def _is_hiding(self, name: str, graph: Graph, node: Node) -> bool:
        """True if the name is another value's already, in a graph around or, for a new node, anywhere."""
        if node.is_new:
            return name in self._given
        if name in self._hidden:
            return False
        outer = graph.parent
        while outer is not None:
            if name in self._claimed.get(outer, ()):
                return True
            outer = outer.parent
        return False

    def _sign_body(self, body: Graph) -> None:
        names: list[str] = []
        relays = self.relays.setdefault(body, [])
        declared = [name for name, _ in body.details.get("outputs", [])]
        if body.changes == 0 and declared == [self.of[value] for value in body.outputs]:
            self.outputs[body] = declared  # as the file has it, whatever that is
            return
        for value in body.outputs:
            name = self.of[value]
            if not body.can_return(value) or name in names:
                name = self.fresh(f"{name}_out")
                relays.append((value, name))
            names.append(name)
        self.outputs[body] = names

    # --- nodes

    def _name_nodes(self, nodes: list[Node]) -> None:
        taken = self._taken_nodes
        taken.update(node.name for node in nodes if not node.is_new)
        counters = self._node_counters
        for node in nodes:
            if node.is_new and (node.kind is Kind.OPERATOR or (node.is_constant and node.name)):
                self.of_node[node] = _fresh(node.name or node.op_type, taken, counters)

    def node_name(self, node: Node) -> str:
        """The name of a node."""
        return self.of_node.get(node, node.name)

    def relay_name(self, output: str) -> str:
        """A name for the `Identity` that gives an output its name."""
        return _fresh(f"{output}_relay", self._taken_nodes, self._node_counters)

    def fresh(self, base: str) -> str:
        """A value name nothing else has, the base itself if it is free."""
        return _fresh(base, self._taken, self._counters)


def names_of(graph: Graph) -> Names:
    """The names of a model's main graph or of a function, outputs called as the file calls them."""
    outputs = graph.outputs
    signature = [name for name, _ in graph.details.get("outputs", ())][: len(outputs)]
    for index, value in enumerate(outputs[len(signature) :], len(signature)):  # those a rewrite added
        signature.append(value.name if value.name and value.name not in signature else f"output_{index}")
    return Names(graph, signature, graph.model.details.get("hidden_names", ()))


def _fresh(base: str, taken: set[str], counters: dict[str, int]) -> str:
    name = base
    while name in taken:
        count = counters[base] = counters.get(base, 0) + 1
        name = f"{base}_{count}"
    taken.add(name)
    return name


def _captured(nodes: list[Node]) -> dict[Graph, dict[Value, None]]:
    """For each body, the outer values that nodes in it, or deeper, read."""
    captured: dict[Graph, dict[Value, None]] = {}
    for node in nodes:
        for value in node.operands:
            if value is None:
                continue
            graph, home = node.graph, value.producer.graph
            while graph is not None and graph is not home:
                captured.setdefault(graph, {})[value] = None
                graph = graph.parent
    return captured


def _is_renamable(value: Value) -> bool:
    """True if nothing outside the graph knows the value by its name."""
    producer = value.producer
    if producer.kind is Kind.INPUT or producer.is_pinned:
        return False
    is_listed = producer.kind is Kind.CONSTANT and not producer.stored_as_node and value.declared is not None
    return not is_listed


def _base(node: Node, value: Value) -> str:
    if node.name:
        return f"{node.name}_output" + (f"_{value.index}" if value.index else "")
    return f"{(node.op_type or node.kind.value).lower()}_output"
