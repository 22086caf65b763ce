"""The graph: networkx stores who reads what, and a handful of edits are the only way to change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import networkx as nx

from graphopt.errors import EditError
from graphopt.ir import edits
from graphopt.ir.node import Kind, Node
from graphopt.ir.value import Value
from graphopt.ir.views import frozen_view, plain_copy
from graphopt.tensors import Tensor

if TYPE_CHECKING:
    from graphopt.ir.model import Model
    from graphopt.ir.types import Type


class Graph:
    """An ONNX graph: the model's, a function's, or a body of If, Loop or Scan.

    Its nodes and uses are the nodes and edges of one `networkx.MultiDiGraph`: value `v` read as operand `i` by node
    `u` is the edge `(v.producer, n, key=(u, i))`, where `n` is `u` or, for a `u` inside a body, the node of this graph
    that owns the body.
    """

    __slots__ = (
        "__weakref__",
        "_edges",
        "_inputs",
        "_kinds",
        "_next_rank",
        "_order",
        "details",
        "model",
        "name",
        "opsets",
        "owner",
        "return_node",
        "version",
    )

    def __init__(self, model: Model, name: str, opsets: Mapping[str, int], owner: Node | None = None) -> None:
        self.model = model
        self.name = name
        self.opsets: Mapping[str, int] = opsets
        """Opset imports by domain, "" for the standard one; a body shares those of the graph around it."""
        self.owner = owner
        self.details: dict[str, Any] = {}
        """What the file says beside nodes and values (doc string, metadata, annotations); read and written by onnxio."""
        self.version = 0
        """Grows with every edit here or in a body."""
        self._edges: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
        self._inputs: dict[Node, None] = {}
        self._kinds: dict[tuple[str, str], dict[Node, None]] = {}
        self._next_rank = 1
        self._order: tuple[int, list[Node]] = (-1, [])
        self.return_node = Node(model.next_serial(), Kind.RETURN)
        self.return_node.graph = self
        self._edges.add_node(self.return_node)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def nx(self) -> nx.MultiDiGraph[Node]:
        """The stored graph, read-only and live: any networkx algorithm runs on it."""
        return frozen_view(self._edges)

    def to_networkx(self) -> nx.MultiDiGraph[int]:
        """A plain copy with numbers as nodes and strings as data, for drawing, GraphML, JSON and `node_match`."""
        return plain_copy(self)

    @property
    def parent(self) -> Graph | None:
        """The graph around this body, None for a model's or function's own."""
        return None if self.owner is None else self.owner.graph

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The graph inputs in their order."""
        return tuple(node.results[0] for node in self._inputs)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values the graph returns, in their order."""
        return tuple(value for value in self.return_node.operands if value is not None)

    def nodes(self) -> list[Node]:
        """The operators, in the order in which they were inserted."""
        return [node for node in self._edges if node.kind is Kind.OPERATOR]

    def all_nodes(self) -> list[Node]:
        """Every node: operators, inputs, constants and the Return."""
        return list(self._edges)

    def constants(self) -> list[Node]:
        """The constants, in the order in which they were inserted."""
        return [node for node in self._edges if node.kind is Kind.CONSTANT]

    def of_kind(self, op_type: str, domain: str = "") -> list[Node]:
        """The applications of one operator."""
        return list(self._kinds.get((domain, op_type), ()))

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The (domain, operator) pairs that occur."""
        return [kind for kind, nodes in self._kinds.items() if nodes]

    def sorted_nodes(self) -> list[Node]:
        """Every node in topological order, close to the file's order and the same in every process.

        Raises:
            EditError: the graph has a cycle.
        """
        if self._order[0] != self.version:
            try:
                ordered = nx.lexicographical_topological_sort(self._edges, key=lambda node: (node.rank, node.serial))
                self._order = (self.version, list(ordered))
            except nx.NetworkXUnfeasible as error:
                raise EditError(f"graph '{self.name}' has a cycle; {self._describe_cycle()}") from error
        return list(self._order[1])

    def order(self) -> list[Node]:
        """The operators in the order of `sorted_nodes`.

        Raises:
            EditError: the graph has a cycle.
        """
        return [node for node in self.sorted_nodes() if node.kind is Kind.OPERATOR]

    def _describe_cycle(self) -> str:
        cycle = [node for node, *_ in nx.find_cycle(self._edges)]
        return "these nodes feed each other: " + " -> ".join(node.name or node.op_type for node in cycle[:10])

    def find_cycle(self) -> list[Node]:
        """The nodes of one cycle, empty if there is none."""
        try:
            return [node for node, *_ in nx.find_cycle(self._edges)]
        except nx.NetworkXNoCycle:
            return []

    def bodies_inside(self) -> Iterator[Graph]:
        """Every body below this graph, innermost first."""
        for node in self.nodes():
            for body in node.bodies.values():
                yield from body.bodies_inside()
                yield body

    def encloses(self, graph: Graph | None) -> bool:
        """True if `graph` is this graph or lies inside it."""
        while graph is not None and graph is not self:
            graph = graph.parent
        return graph is self

    def captures(self) -> list[Value]:
        """The outer values that nodes in this body, or deeper, read."""
        found: dict[Value, None] = {}
        for graph in (self, *self.bodies_inside()):
            for node in graph.all_nodes():
                for value in node.operands:
                    if value is not None and not self.encloses(value.producer.graph):
                        found[value] = None
        return list(found)

    # --- making nodes (detached: no edit yet) -------------------------------------------------------------------------

    def make_node(
        self,
        op_type: str,
        operands: Sequence[Value | None] = (),
        *,
        results: int = 1,
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
        overload: str = "",
    ) -> Node:
        """An operator application that is not in the graph yet; trailing omitted operands are dropped."""
        trimmed = list(operands)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        return Node(
            self.model.next_serial(),
            Kind.OPERATOR,
            op_type,
            domain,
            operands=tuple(trimmed),
            results=results,
            attributes=attributes,
            name=name,
            overload=overload,
        )

    def make_constant(self, tensor: Tensor, name: str | None = None) -> Node:
        """A constant that is not in the graph yet."""
        from graphopt.ir.types import TensorType

        node = Node(self.model.next_serial(), Kind.CONSTANT, results=1, tensor=tensor)
        node.results[0].name = name
        node.results[0].type = TensorType(tensor.dtype, tensor.shape)
        return node

    def add_constant(self, tensor: Tensor, name: str | None = None) -> Value:
        """Insert a constant and return its value."""
        node = self.make_constant(tensor, name)
        self.insert(node)
        return node.result

    def add_input(self, name: str, type: Type | None, default: Tensor | None = None) -> Value:
        """Append a graph input and return its value."""
        node = Node(self.model.next_serial(), Kind.INPUT, results=1)
        node.results[0].name, node.results[0].type, node.default = name, type, default
        self.insert(node)
        return node.results[0]

    # --- the edits ----------------------------------------------------------------------------------------------------

    def insert(self, node: Node, *, rank: int | None = None) -> None:
        """Put a detached node, with its bodies, into the graph.

        Args:
            node: The node; its operands must be visible here.
            rank: Its place in the file's order; default: after everything there is.

        Raises:
            EditError: the node is in a graph already, or an operand is not visible here.
        """
        if node.graph is not None:
            raise EditError(f"{node!r} is in a graph already; make a new node")
        for value in node.operands:
            if value is not None and not self.can_see(value):
                raise EditError(f"{node!r} reads {value!r}, which is not visible in graph '{self.name}'; insert it first")
        node.graph = self
        if rank is not None:
            node.rank = rank
        elif node.rank == 0:
            node.rank = self._next_rank
        self._next_rank = max(self._next_rank, node.rank + 1)
        self._edges.add_node(node)
        if node.kind is Kind.OPERATOR:
            self._kinds.setdefault((node.domain, node.op_type), {})[node] = None
        elif node.kind is Kind.INPUT:
            self._inputs[node] = None
        for index, value in enumerate(node.operands):
            if value is not None:
                _link(value, node, index)
        for body in node._bodies.values():
            body.owner = node
            for inner, index, value in _reads(body):
                if not body.encloses(value.producer.graph) and (inner, index) not in value.uses:
                    _link(value, inner, index)
        self._tell(edits.Inserted(self, node))

    def erase(self, node: Node) -> None:
        """Take a node, with its bodies, out of the graph.

        Raises:
            EditError: a result is still read (the message says by whom), or something outside names the node.
        """
        self._require_own(node)
        if node.is_pinned:
            raise EditError(f"{node!r} is kept by name; it cannot be erased")
        for value in node.results:
            if value.uses:
                users = ", ".join(repr(user) for user in value.users[:3])
                raise EditError(f"{value!r} is still read by {users}; replace its uses first")
        for index, value in enumerate(node.operands):
            if value is not None:
                _unlink(value, node, index)
        for body in node._bodies.values():
            for inner, index, value in _reads(body):
                if not body.encloses(value.producer.graph) and (inner, index) in value.uses:
                    _unlink(value, inner, index)
        self._edges.remove_node(node)
        place = None
        if node.kind is Kind.OPERATOR:
            del self._kinds[node.domain, node.op_type][node]
        elif node.kind is Kind.INPUT:
            place = list(self._inputs).index(node)
            del self._inputs[node]
        node.graph = None
        self._tell(edits.Erased(self, node, place))

    def set_operands(self, node: Node, operands: Sequence[Value | None]) -> None:
        """Let a node read other operands, as many as are given.

        Raises:
            EditError: an operand is not visible in the node's graph.
        """
        self._require_own(node)
        old, new = node.operands, tuple(operands)
        if old == new:
            return
        for value in new:
            if value is not None and not self.can_see(value):
                raise EditError(f"{value!r} is not visible in graph '{self.name}'; {node!r} cannot read it")
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else None
            after = new[index] if index < len(new) else None
            if before is after:
                continue
            if before is not None:
                _unlink(before, node, index)
            if after is not None:
                _link(after, node, index)
        node._operands = new
        self._tell(edits.Rewired(self, node, old, new))

    def set_operand(self, node: Node, index: int, value: Value | None) -> None:
        """Let a node read another value at one position.

        Raises:
            EditError: the value is not visible in the node's graph, or there is no such position.
        """
        if not 0 <= index < len(node.operands):
            raise EditError(f"{node!r} has no operand {index}; use set_operands to add one")
        self.set_operands(node, (*node.operands[:index], value, *node.operands[index + 1 :]))

    def set_outputs(self, values: Sequence[Value]) -> None:
        """Let the graph return other values."""
        self.set_operands(self.return_node, values)

    def set_attribute(self, node: Node, name: str, value: Any) -> None:
        """Set an attribute; None removes it.

        Raises:
            EditError: ONNX knows the operator and it has no such attribute in this opset.
        """
        self._require_own(node)
        operator = node.schema
        if operator is not None and value is not None and name not in operator.attributes:
            raise EditError(f"{node.op_type} has no attribute '{name}' in opset {node.opset}; see the operator's page")
        old = node._attributes.get(name)
        if value is None:
            node._attributes.pop(name, None)
        else:
            node._attributes[name] = value
        if node.origin is not None:
            node.origin.is_intact = False
        self._tell(edits.AttributeSet(self, node, name, old, value))

    def retype(self, value: Value, type: Type | None) -> None:
        """Record what became known of a value's type."""
        if value.type == type:
            return
        old, value.type = value.type, type
        self._tell(edits.Retyped(self, value, old, type))

    def rename(self, item: Value | Node, name: str | None) -> None:
        """Give a value or node another label.

        Raises:
            EditError: the name belongs to the signature or is kept from outside.
        """
        if isinstance(item, Value) and (item.producer.kind is Kind.INPUT or item.producer.is_pinned):
            raise EditError(f"{item!r} is known outside by its name; it cannot be renamed")
        if item.name == name:
            return
        old, item.name = item.name, name  # type: ignore[assignment]  # only values may be unnamed
        self._tell(edits.Renamed(self, item, old, name))

    def store_as_node(self, constant: Node, as_node: bool) -> None:
        """Choose whether a constant is written as a `Constant` node or as an initializer."""
        if constant.stored_as_node != as_node:
            constant.stored_as_node = as_node
            self._tell(edits.Restored(self, constant, not as_node, as_node))

    def set_results(self, node: Node, results: Sequence[Value]) -> None:
        """Let a node give only some of its results, in their order (or, to undo that, all again).

        Raises:
            EditError: a result that goes is still read, or the node is kept by name.
        """
        self._require_own(node)
        old, new = node.results, tuple(results)
        if node.is_pinned:
            raise EditError(f"{node!r} is kept by name; its results stay")
        for value in old:
            if value not in new and value.uses:
                raise EditError(f"{value!r} is still read by {value.users[0]!r}; replace its uses first")
        node.results = new
        for index, value in enumerate(new):
            value.index = index
        self._tell(edits.Narrowed(self, node, old, new))

    def set_detail(self, name: str, detail: Any) -> None:
        """Change what the file says beside nodes and values: `outputs`, `infos` …; the old object is kept for undo."""
        old, self.details[name] = self.details.get(name), detail
        self._tell(edits.DetailSet(self, name, old, detail))

    def set_opset(self, domain: str, version: int | None) -> None:
        """Import an opset in this graph and its bodies, or none of a domain."""
        old, opsets = self.opsets.get(domain), dict(self.opsets)
        if version is None:
            opsets.pop(domain, None)
        else:
            opsets[domain] = version
        for graph in (self, *self.bodies_inside()):
            graph.opsets = opsets
        self._tell(edits.OpsetSet(self, domain, old, version))

    def replace_uses(self, old: Value, new: Value) -> None:
        """Let everything that reads `old` read `new`; an unnamed `new` takes the name of `old`."""
        if old is new:
            return
        for user, index in list(old.uses):
            assert user.graph is not None
            user.graph.set_operand(user, index, new)
        if new.name is None and old.name and old.producer.kind is not Kind.INPUT and not old.producer.is_pinned:
            name = old.name
            new.declared = old.declared
            self.rename(old, None)
            self.rename(new, name)

    def move_input(self, node: Node, place: int) -> None:
        """Put the input added last at its place among the inputs: how an erased one comes back."""
        others = [other for other in self._inputs if other is not node]
        self._inputs = dict.fromkeys([*others[:place], node, *others[place:]])

    # --- helpers ------------------------------------------------------------------------------------------------------

    def can_see(self, value: Value) -> bool:
        """True if a node of this graph may read the value: it is made here or in a graph around this one."""
        home, graph = value.producer.graph, self
        while graph is not home:
            if graph.owner is None:
                return False
            if graph.owner.graph is None:  # inside a detached node: checked when that one is inserted
                return home is not None
            graph = graph.owner.graph
        return home is not None

    def _require_own(self, node: Node) -> None:
        if node.graph is not self:
            raise EditError(f"{node!r} is not in graph '{self.name}'; call the edit on its own graph")

    def _tell(self, edit: edits.Edit) -> None:
        graph: Graph | None = self
        while graph is not None:
            graph.version += 1
            owner = graph.owner
            if owner is not None and owner.origin is not None and not isinstance(edit, edits.Retyped):
                owner.origin.is_intact = False
            graph = None if owner is None else owner.graph
        self.model.tell(edit)

    def freeze_opsets(self) -> None:
        """Make the opset imports read-only for whoever is handed the graph."""
        self.opsets = MappingProxyType(dict(self.opsets))

    def __repr__(self) -> str:
        """The name and size."""
        return f"<Graph '{self.name}': {len(self.nodes())} operators>"


def _link(value: Value, user: Node, index: int) -> None:
    place = _node_at_home(value, user)
    if place is not None:
        value.uses[user, index] = None
        value.producer.graph._edges.add_edge(value.producer, place, key=(user, index))  # type: ignore[union-attr]


def _unlink(value: Value, user: Node, index: int) -> None:
    if (user, index) not in value.uses:
        return
    del value.uses[user, index]
    place = _node_at_home(value, user)
    value.producer.graph._edges.remove_edge(value.producer, place, key=(user, index))  # type: ignore[union-attr]


def _node_at_home(value: Value, user: Node) -> Node | None:
    """The node of the value's own graph that is, or contains, the user; None while an owner is detached."""
    home, node = value.producer.graph, user
    while node.graph is not home:
        if node.graph is None or node.graph.owner is None:
            return None
        node = node.graph.owner
    return node


def _reads(body: Graph) -> Iterator[tuple[Node, int, Value]]:
    """Every read in a body and the bodies below it."""
    for graph in (body, *body.bodies_inside()):
        for node in graph.all_nodes():
            for index, value in enumerate(node.operands):
                if value is not None:
                    yield node, index, value
