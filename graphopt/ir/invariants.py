"""What must hold of a graph after every pass, numbered.

1. Every operand's use is recorded in its value, and every recorded use is an operand.
2. Every use is one edge of the stored networkx graph, from the value's producer to the user or the node whose body
   holds the user, and there are no other edges.
3. Every operand is visible: made in the user's graph or in one around it.
4. The graph has no cycle, counting what bodies read from outside.
5. Names of values are unique within a graph; export renames a body's value that would hide an outer one.
6. The operands and results of a node that a rewrite built fit the operator's schema in the graph's opset in number, and
   no operand is left out that the schema requires.
7. A value's type does not contradict the data of its constant.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.errors import EditError, InvariantViolationError
from graphopt.ir.graph import Graph
from graphopt.ir.model import Model
from graphopt.ir.node import Kind, Node
from graphopt.ir.types import TensorType, contradict


def check_model(model: Model) -> None:
    """Check every graph of a model.

    Raises:
        InvariantViolationError: the first invariant found broken, by number.
    """
    checked: dict[Graph, None] = {}
    for graph in model.graphs():
        check_graph(graph, checked=checked)


def check_graph(graph: Graph, nodes: Iterable[Node] | None = None, checked: dict[Graph, None] | None = None) -> None:
    """Check one graph; given nodes, of the invariants that speak of single nodes only theirs.

    Args:
        graph: The graph.
        nodes: Those that changed.
        checked: Graphs known to have no cycle; those that are looked at here are added.

    Raises:
        InvariantViolationError: the first invariant found broken, by number.
    """
    inside = [node for node in (graph.all_nodes() if nodes is None else nodes) if node.graph is graph]
    for node in inside:
        _check_reads(node)
        _check_arity(node)
        _check_constant(node)
    if nodes is None:
        _check_edges(graph)
        _check_names(graph)
    # What a body reads is an edge of the graph that makes it: a cycle may be there.
    homes = {graph: None}
    for node in inside:
        for value in node.operands:
            if value is not None and value.producer.graph is not None:
                homes[value.producer.graph] = None
    known = {} if checked is None else checked
    for home in homes:
        if home not in known:
            _check_acyclic(home)
            known[home] = None


def _check_acyclic(graph: Graph) -> None:
    try:
        graph.sorted_nodes()  # the passes that come next want it, too
    except EditError:
        cycle = " -> ".join(repr(node) for node in graph.find_cycle()[:10])
        raise InvariantViolationError(4, f"graph '{graph.name}' has a cycle: {cycle}") from None


def _check_reads(node: Node) -> None:
    graph = node.graph
    assert graph is not None
    for index, value in enumerate(node.operands):
        if value is None:
            continue
        if (node, index) not in value.uses:
            raise InvariantViolationError(1, f"{node!r} reads {value!r}, which does not list it")
        if not graph.can_see(value):
            raise InvariantViolationError(3, f"{node!r} in graph '{graph.name}' reads {value!r} of another graph")
    for value in node.results:
        for user, index in value.uses:
            if index >= len(user.operands) or user.operands[index] is not value:
                raise InvariantViolationError(1, f"{value!r} lists {user!r}, which does not read it at {index}")


def _check_edges(graph: Graph) -> None:
    expected = sum(len(value.uses) for node in graph.all_nodes() for value in node.results)
    stored = graph.nx
    found = stored.number_of_edges()
    if not expected == found == graph.use_count:
        raise InvariantViolationError(
            2, f"graph '{graph.name}' stores {found} edges and counts {graph.use_count} for {expected} uses"
        )
    for node in graph.all_nodes():
        for value in node.results:
            for user, index in value.uses:
                place = user
                while place.graph is not graph:
                    if place.graph is None or place.graph.owner is None:
                        raise InvariantViolationError(3, f"{user!r} lies outside graph '{graph.name}'")
                    place = place.graph.owner
                if not stored.has_edge(node, place, key=(user, index)):
                    raise InvariantViolationError(2, f"the use of {value!r} by {user!r} has no edge")


def _check_names(graph: Graph) -> None:
    seen: set[str] = set()
    for node in graph.all_nodes():
        for value in node.results:
            if not value.name:
                continue
            if value.name in seen:
                raise InvariantViolationError(5, f"two values are called '{value.name}' in graph '{graph.name}'")
            seen.add(value.name)


def _check_arity(node: Node) -> None:
    operator = node.schema
    if operator is None or node.kind is not Kind.OPERATOR or node.origin is not None:
        return  # what the file brought is the file's affair; what a rewrite built is ours
    operands, results = len(node.operands), len(node.results)
    if not operator.min_inputs <= operands <= operator.max_inputs:
        raise InvariantViolationError(
            6,
            f"{node!r} has {operands} operands; {node.op_type} of opset {node.opset} takes "
            f"{operator.min_inputs} to {operator.max_inputs}",
        )
    for value, formal in zip(node.operands, operator.inputs, strict=False):
        if value is None and not formal.optional and not formal.variadic:
            raise InvariantViolationError(6, f"{node!r} leaves out '{formal.name}', which {node.op_type} requires")
    if not operator.min_outputs <= results <= operator.max_outputs:
        raise InvariantViolationError(6, f"{node!r} has {results} results, which {node.op_type} cannot have")


def _check_constant(node: Node) -> None:
    if node.tensor is None or node.kind is not Kind.CONSTANT:
        return
    data = TensorType(node.tensor.dtype, node.tensor.shape)
    if contradict(node.results[0].type, data):
        raise InvariantViolationError(7, f"{node!r} is typed {node.results[0].type} but holds {data}")
