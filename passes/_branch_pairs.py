"""What both branches of an If compute: pairs of equal expressions, and moving them in front of the If."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphopt import Context, Graph, Node, Value, clone_node, is_pure
from passes._body_results import keep_outputs, reads
from passes._equality import Constants, Key, computes_same, expression_key
from passes._inlining import TakenNames, source_of


@dataclass(slots=True)
class Shared:
    """What of an If can stand in front of it.

    Attributes:
        nodes: Nodes of the branch taken when the condition holds, in order, each with its equal in the other one.
        outputs: Results, by position, that are the same in both branches, with what they are: a result of such a node,
            a constant, or a value from outside.
    """

    nodes: dict[Node, Node] = field(default_factory=dict)
    outputs: dict[int, Value] = field(default_factory=dict)


def shared_by_branches(node: Node, constants: Constants) -> Shared | None:
    """What both branches of an If compute and so can be computed before it, if there are fewer nodes then."""
    then, other = node.bodies["then_branch"], node.bodies["else_branch"]
    count = len(node.results)
    if len(then.outputs) < count or len(other.outputs) < count:
        return None
    pairs, equal = _pairs(then, other, constants)
    while True:
        pairs = _closed(pairs, then)
        shared = Shared(pairs, _equal_outputs(then, other, equal, pairs, count, constants))
        costly = _returned_elsewhere(shared, then, other)
        if not (pairs or shared.outputs):
            return None
        relays = sum(costly.values())
        if relays < len(pairs) or not relays:
            return shared
        pairs = {one: two for one, two in pairs.items() if one not in costly}


def _pairs(then: Graph, other: Graph, constants: Constants) -> tuple[dict[Node, Node], dict[Value, Value]]:
    """Nodes of one branch with their equals in the other, and values of the other with their equals in the one."""
    table: dict[Key, list[Node]] = {}
    for node in then.order():
        if _may_move(node):
            table.setdefault(expression_key(node, constants), []).append(node)
    pairs: dict[Node, Node] = {}
    equal: dict[Value, Value] = {}
    for node in other.order():
        if not table or not _may_move(node) or not all(_is_known(value, other, equal) for value in reads(node)):
            continue
        for candidate in table.get(expression_key(node, constants, equal), ()):
            if candidate not in pairs and _given(candidate) == _given(node) and computes_same(node, candidate, equal):
                pairs[candidate] = node
                equal.update(zip(node.results, candidate.results, strict=True))
                break
    return pairs, equal


def _may_move(node: Node) -> bool:
    return not node.is_pinned and is_pure(node)


def _is_known(value: Value, branch: Graph, equal: dict[Value, Value]) -> bool:
    return value in equal or value.const is not None or value.producer.graph is not branch


def _given(node: Node) -> list[bool]:
    return [value.name != "" for value in node.results]


def _closed(pairs: dict[Node, Node], then: Graph) -> dict[Node, Node]:
    """The pairs whose operands can be had outside: constants, values from there, results of other pairs."""
    kept: dict[Node, Node] = {}
    for node in then.order():
        if node in pairs and all(
            value.producer in kept or value.const is not None or value.producer.graph is not then
            for value in reads(node)
        ):
            kept[node] = pairs[node]
    return kept


def _equal_outputs(
    then: Graph, other: Graph, equal: dict[Value, Value], pairs: dict[Node, Node], count: int, constants: Constants
) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for index, (one, two) in enumerate(zip(then.outputs[:count], other.outputs[:count], strict=True)):
        number, source = constants.number(one), source_of(one)
        if source is source_of(two) and source.const is None and not then.encloses(source.producer.graph):
            found[index] = source
            continue
        is_same = (one is two and one.producer.graph is not then) or (equal.get(two) is one and one.producer in pairs)
        if is_same or (number is not None and number == constants.number(two)):
            found[index] = one
    return found


def _returned_elsewhere(shared: Shared, then: Graph, other: Graph) -> dict[Node, int]:
    """Pairs whose results a branch still has to return, which takes an Identity, with how many it takes."""
    costly: dict[Node, int] = {}
    owners = {**{node: node for node in shared.nodes}, **{two: one for one, two in shared.nodes.items()}}
    for branch in (then, other):
        places: dict[Value, list[int]] = {}
        for index, value in enumerate(branch.outputs):
            places.setdefault(value, []).append(index)
        for value, indices in places.items():
            node = owners.get(value.producer)
            # A branch that returns a value twice needs an Identity for the second anyway.
            if node is not None and not any(index in shared.outputs for index in indices):
                costly[node] = costly.get(node, 0) + 1
    return costly


# --- moving


def move_out(node: Node, shared: Shared, context: Context, names: TakenNames) -> None:
    """Compute in front of an If what both branches share, and let it give only the results that differ."""
    graph, then, other = node.graph, node.bodies["then_branch"], node.bodies["else_branch"]
    assert graph is not None
    with context.rewrite(graph):
        outside: dict[Value, Value] = {}
        for one, two in shared.nodes.items():
            for value in reads(one):
                _bring_out(value, graph, node, outside)
            copy = clone_node(one, graph, outside, rank=node.rank)
            for new, first, second in zip(copy.results, one.results, two.results, strict=True):
                if new.name != "":
                    names.pass_on((first, second), new)
                graph.replace_uses(first, new)
                graph.replace_uses(second, new)
            context.inference.visit(copy)
        _erase(then, list(shared.nodes))
        _erase(other, list(shared.nodes.values()))
        handed: dict[Value, None] = {}
        for index, value in shared.outputs.items():
            _bring_out(value, graph, node, outside)
            result, new = node.results[index], outside.get(value, value)
            if not result.uses:
                continue
            if new is not value and new not in handed and result.name:
                handed[new] = None
                graph.rename(new, None)
            graph.replace_uses(result, new)
        drop_outputs(node, [index for index in range(len(node.results)) if index not in shared.outputs])


def drop_outputs(node: Node, kept: Sequence[int]) -> None:
    """Let an If give some of its results only; without any it goes."""
    graph = node.graph
    assert graph is not None
    if not kept:
        graph.erase(node)
    elif len(kept) < len(node.results):
        for branch in node.bodies.values():
            keep_outputs(branch, kept)
        graph.set_results(node, [node.results[index] for index in kept])


def _bring_out(value: Value, graph: Graph, node: Node, outside: dict[Value, Value]) -> None:
    """Have a constant of a branch in the graph around it."""
    if (
        value not in outside
        and value.const is not None
        and value.producer.graph is not graph
        and graph.encloses(value.producer.graph)
    ):
        constant = graph.make_constant(value.const)
        constant.stored_as_node = value.producer.stored_as_node
        graph.insert(constant, rank=node.rank)
        outside[value] = constant.result


def _erase(branch: Graph, nodes: list[Node]) -> None:
    for node in reversed(nodes):
        branch.erase(node)
