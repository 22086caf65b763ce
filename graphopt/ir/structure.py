"""What a graph stores, and how to read it: networkx holds who reads what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from networkx import MultiDiGraph, NetworkXNoCycle, NetworkXUnfeasible, find_cycle

from graphopt.errors import EditError
from graphopt.ir.node import Kind, Node
from graphopt.ir.order import LAST_RANK, by_age, stable_order
from graphopt.ir.value import Value
from graphopt.ir.views import frozen_view, plain_copy

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.model import Model


class Structure:
    """The nodes and uses of a graph; `Graph` adds the edits that change them."""

    __slots__ = (
        "__weakref__",
        "_edges",
        "_imports",
        "_inputs",
        "_kinds",
        "_next_rank",
        "_order",
        "_owners",
        "changes",
        "details",
        "model",
        "name",
        "opsets",
        "owner",
        "return_node",
        "use_count",
        "version",
    )

    def __init__(self, model: Model, name: str, opsets: Mapping[str, int], owner: Node | None = None) -> None:
        self.model = model
        self.name = name
        self._imports = {} if owner is not None else dict(opsets)
        self.opsets: Mapping[str, int] = opsets if owner is not None else MappingProxyType(self._imports)
        """Opset imports by domain, "" for the standard one; a body shares those of the graph around it."""
        self.owner = owner
        self.details: dict[str, Any] = {}
        """What the file says beside nodes and values (doc string, metadata …); read and written by onnxio."""
        self.version = 0
        """Grows with every edit here or in a body."""
        self.changes = 0
        """Edits here and in bodies since the graph was read, less those taken back; what became known is no edit."""
        self.use_count = 0
        """The number of uses of this graph's values: the edges."""
        self._edges: MultiDiGraph[Node] = MultiDiGraph()
        self._inputs: dict[Node, None] = {}
        self._kinds: dict[tuple[str, str], dict[Node, None]] = {}
        self._owners: dict[Node, None] = {}
        """The nodes that have bodies."""
        self._next_rank = 1
        self._order: list[Node] | None = None
        self.return_node = Node(model.next_serial(), Kind.RETURN)
        self.return_node.graph = cast("Graph", self)
        self.return_node.rank = LAST_RANK
        self._edges.add_node(self.return_node)

    # --- reading

    @property
    def nx(self) -> MultiDiGraph[Node]:
        """The stored graph, read-only and live: any networkx algorithm runs on it."""
        return frozen_view(self._edges)

    def to_networkx(self) -> MultiDiGraph[int]:
        """A plain copy with numbers as nodes and strings as data, for drawing, GraphML, JSON and `node_match`."""
        return plain_copy(cast("Graph", self))

    @property
    def parent(self) -> Graph | None:
        """The graph around this body, None for a model's or function's own."""
        return None if self.owner is None else self.owner.graph

    @property
    def is_attached(self) -> bool:
        """False for a body whose owner, or a node around that one, was erased or is not inserted yet."""
        graph: Structure | None = self
        while graph is not None and graph.owner is not None:
            graph = graph.owner.graph
        return graph is not None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The graph inputs in their order."""
        return tuple(node.results[0] for node in by_age(self._inputs))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values the graph returns, in their order."""
        return tuple(value for value in self.return_node.operands if value is not None)

    def nodes(self) -> list[Node]:
        """The operators, in the order in which they were made."""
        return by_age(node for node in self._edges if node.kind is Kind.OPERATOR)

    def all_nodes(self) -> list[Node]:
        """Every node: the Return, operators, inputs and constants, in the order in which they were made."""
        return by_age(self._edges)

    def constants(self) -> list[Node]:
        """The constants, in the order in which they were made."""
        return by_age(node for node in self._edges if node.kind is Kind.CONSTANT)

    def of_kind(self, op_type: str, domain: str = "") -> list[Node]:
        """The applications of one operator, in the order in which they were made."""
        return by_age(self._kinds.get((domain, op_type), ()))

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The (domain, operator) pairs that occur."""
        return [kind for kind, nodes in self._kinds.items() if nodes]

    @property
    def operator_count(self) -> int:
        """The number of operators, those in bodies not counted."""
        return sum(len(nodes) for nodes in self._kinds.values())

    def sorted_nodes(self) -> list[Node]:
        """Every node in topological order, close to the file's order and the same in every process.

        Raises:
            EditError: the graph has a cycle.
        """
        if self._order is None:
            try:
                self._order = stable_order(self._edges)
            except NetworkXUnfeasible as error:
                cycle = " -> ".join(node.name or node.op_type for node in self.find_cycle()[:10])
                raise EditError(
                    f"graph '{self.name}' has a cycle, these nodes feed each other: {cycle}; make one of them read "
                    "something else"
                ) from error
        return list(self._order)

    def order(self) -> list[Node]:
        """The operators in the order of `sorted_nodes`.

        Raises:
            EditError: the graph has a cycle.
        """
        return [node for node in self.sorted_nodes() if node.kind is Kind.OPERATOR]

    def find_cycle(self) -> list[Node]:
        """The nodes of one cycle, empty if there is none."""
        try:
            return [node for node, *_ in find_cycle(self._edges)]
        except NetworkXNoCycle:
            return []

    def bodies_inside(self) -> Iterator[Graph]:
        """Every body below this graph, innermost first."""
        for node in by_age(self._owners):
            for body in node.bodies.values():
                yield from body.bodies_inside()
                yield body

    def note_owner(self, node: Node) -> None:
        """Take note that a node of this graph was given a body."""
        self._owners[node] = None

    def encloses(self, graph: Graph | None) -> bool:
        """True if `graph` is this graph or lies inside it."""
        while graph is not None and graph is not self:
            graph = graph.parent
        return graph is self

    def can_see(self, value: Value) -> bool:
        """True if a node of this graph may read the value: it is made here or in a graph around this one.

        Inside a node that is in no graph yet, values of any graph pass; the insertion of that node looks again.
        """
        home = value.producer.graph
        if home is None:
            return False
        graph: Structure = self
        while graph is not home:
            if graph.owner is None:
                return False
            if graph.owner.graph is None:
                return True
            graph = graph.owner.graph
        return True

    def can_return(self, value: Value) -> bool:
        """True if this body may return the value itself; where not, the file needs an Identity.

        ONNX forbids returning a value of an outer graph. An input that a Scan's body returns, and the counter that a
        Loop's body returns, ONNX Runtime gives out before it is written or after it has moved on.
        """
        producer = value.producer
        if producer.graph is not self:
            return False
        owner = self.owner
        if owner is None or owner.domain or producer.kind is not Kind.INPUT:
            return True
        return not (owner.op_type == "Scan" or (owner.op_type == "Loop" and value is self.inputs[0]))

    def captures(self) -> list[Value]:
        """The outer values that nodes in this body, or deeper, read."""
        return list(dict.fromkeys(value for _, _, value in reads_from_outside(cast("Graph", self))))

    # --- for readers: no edits

    def populate(self, nodes: Iterable[tuple[Node, Sequence[Value | None]]]) -> None:
        """Put in nodes read from a file, each with the operands it reads; they may read one another in any order.

        Nobody is told and nothing is checked: `sorted_nodes` finds cycles.
        """
        pairs = list(nodes)
        self._edges.add_nodes_from(node for node, _ in pairs)
        for node, _ in pairs:
            self._register(node)
        add_edge = self._edges.add_edge
        for node, operands in pairs:
            node._operands = tuple(operands)
            for index, value in enumerate(operands):
                if value is None:
                    continue
                if value.producer.graph is self:  # as _link does, in fewer steps: this is most of loading
                    key = (node, index)
                    value.uses[key] = None
                    add_edge(value.producer, node, key)
                    self.use_count += 1
                else:
                    _link(value, node, index)
        graph: Structure | None = self
        while graph is not None:
            graph._order, graph = None, graph.parent

    # --- what edits are made of

    def _register(self, node: Node) -> None:
        node.graph = cast("Graph", self)
        if node.rank == 0:
            node.rank = self._next_rank
        if node.rank >= self._next_rank:
            self._next_rank = node.rank + 1
        if node.kind is Kind.OPERATOR:
            self._kinds.setdefault((node.domain, node.op_type), {})[node] = None
        elif node.kind is Kind.INPUT:
            self._inputs[node] = None

    def _attach(self, node: Node) -> None:
        self._register(node)
        self._edges.add_node(node)
        if node.bodies:
            self._owners[node] = None
        for index, value in enumerate(node.operands):
            if value is not None:
                _link(value, node, index)
        for body in node.bodies.values():
            for user, index, value in reads_from_outside(body):
                _link(value, user, index)

    def _detach(self, node: Node) -> None:
        for index, value in enumerate(node.operands):
            if value is not None:
                _unlink(value, node, index)
        for body in node.bodies.values():
            for user, index, value in reads_from_outside(body):
                _unlink(value, user, index)
        self._edges.remove_node(node)
        self._owners.pop(node, None)
        if node.kind is Kind.OPERATOR:
            del self._kinds[node.domain, node.op_type][node]
        elif node.kind is Kind.INPUT:
            del self._inputs[node]
        node.graph = None

    def _rewire(self, node: Node, operands: tuple[Value | None, ...], where: range | None = None) -> None:
        """Give a node other operands; `where`, if given, are the only positions at which they differ."""
        old = node.operands
        for index in where or range(max(len(old), len(operands))):
            before = old[index] if index < len(old) else None
            after = operands[index] if index < len(operands) else None
            if before is after:
                continue
            if before is not None:
                _unlink(before, node, index)
            if after is not None:
                _link(after, node, index)
        node._operands = operands

    def __repr__(self) -> str:
        """The name and size."""
        return f"<Graph '{self.name}': {self.operator_count} operators>"


def _link(value: Value, user: Node, index: int) -> None:
    """Record a use, unless the user lies in a node that is in no graph: its insertion will."""
    home, place = value.producer.graph, holder_of(value.producer.graph, user)
    if home is None or place is None or (user, index) in value.uses:
        return
    value.uses[user, index] = None
    home._edges.add_edge(value.producer, place, key=(user, index))
    home.use_count += 1


def _unlink(value: Value, user: Node, index: int) -> None:
    if (user, index) not in value.uses:
        return
    home, place = value.producer.graph, holder_of(value.producer.graph, user)
    assert home is not None
    assert place is not None
    del value.uses[user, index]
    home._edges.remove_edge(value.producer, place, key=(user, index))
    home.use_count -= 1


def holder_of(home: Structure | None, user: Node) -> Node | None:
    """The node of a graph that is, or contains, the user; None while an owner is detached."""
    node = user
    while node.graph is not home:
        if node.graph is None or node.graph.owner is None:
            return None
        node = node.graph.owner
    return node


def reads_from_outside(body: Graph) -> Iterator[tuple[Node, int, Value]]:
    """Every read, in a body and the bodies below it, of a value made outside that body."""
    for graph in (body, *body.bodies_inside()):
        for node in graph.all_nodes():
            for index, value in enumerate(node.operands):
                if value is not None and not body.encloses(value.producer.graph):
                    yield node, index, value
