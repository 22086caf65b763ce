"""What the condition of an If tells inside its branches, and changing which condition an If reads."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import Context, DType, Effect, Graph, Kind, Model, Node, Tensor, Value, clone_node, effect_of
from passes._body_results import reads
from passes._inlining import TakenNames, implied

_MOST_BETWEEN = 1000
"""Nodes between two Ifs that are looked at before they are left apart."""
_MOST_COPIED = 500
"""Nodes in an If that another one is merged into: each merger copies all of them."""


def known_inside(model: Model, context: Context) -> None:
    """Let what is read inside a body and known there from a condition be read as a constant."""
    says: dict[tuple[Value, bool], Mapping[Value, bool]] = {}
    values: dict[Value, None] = {}
    for scope in model.graphs():
        for node in scope.of_kind("If"):
            condition = node.operand(0)
            if condition is not None and (condition, True) not in says:
                for truth in (True, False):
                    says[condition, truth] = implied(condition, truth)
                    values.update(dict.fromkeys(says[condition, truth]))
        for node in scope.of_kind("Loop"):
            values.update(dict.fromkeys(node.bodies["body"].inputs[1:2]))
    for value in values:
        shape = value.shape
        if value.dtype is not DType.BOOL or shape is None or any(dim != 1 for dim in shape):
            continue
        known: dict[tuple[Graph, bool], list[tuple[Node, int]]] = {}
        for user, index in value.uses:
            found = _truth_at(value, user, index, says)
            if found is not None and user.graph is not None:
                known.setdefault((user.graph, found), []).append((user, index))
        for (graph, truth), uses in known.items():
            with context.rewrite(graph):
                constant = graph.add_constant(Tensor.of(_nested(truth, len(shape)), DType.BOOL))
                for user, index in uses:
                    graph.set_operand(user, index, constant)


def _truth_at(
    value: Value, user: Node, index: int, says: Mapping[tuple[Value, bool], Mapping[Value, bool]]
) -> bool | None:
    """Whether a value is known to be true or false where one node reads it."""
    producer, graph = value.producer, user.graph
    if producer.kind is Kind.INPUT and producer.graph is not None and producer.graph.owner is not None:
        owner = producer.graph.owner
        if owner.is_op("Loop") and value is producer.graph.inputs[1]:
            goes_on = user.kind is Kind.RETURN and user.graph is producer.graph and index == 0
            return None if goes_on else True  # a loop that only counts returns what it was given
    while graph is not None and graph.owner is not None and graph is not producer.graph:
        owner = graph.owner
        condition = owner.operand(0)
        if owner.is_op("If") and condition is not None:
            is_then = owner.bodies["then_branch"] is graph
            truth = says.get((condition, is_then), {}).get(value)
            if truth is not None:
                return truth
        graph = owner.graph
    return None


def _nested(truth: bool, rank: int) -> object:
    found: object = truth
    for _ in range(rank):
        found = [found]
    return found


def copy_nodes(body: Graph, target: Graph, mapped: dict[Value, Value]) -> None:
    """Insert copies of all constants and operators of a body into another graph."""
    for item in (*body.constants(), *body.order()):
        clone_node(item, target, mapped, rank=item.rank)


# --- other conditions


def swap_branches(node: Node, context: Context) -> None:
    """Let an If on a negation read what is negated, its branches swapped."""
    graph, condition = node.graph, node.operand(0)
    assert graph is not None
    assert condition is not None
    with context.rewrite(graph):
        swapped = graph.make_node("If", condition.producer.operands, results=len(node.results), name=node.name)
        for name, other in (("then_branch", "else_branch"), ("else_branch", "then_branch")):
            _copy_body(node.bodies[other], graph.make_body(swapped, name, node.bodies[other].name))
        swapped.origin = node.origin
        graph.insert(swapped, rank=node.rank)
        for old, new in zip(node.results, swapped.results, strict=True):
            new.type = old.type
            new.name = "" if old.name == "" else None
            if old.name != "":
                graph.replace_uses(old, new)
        graph.erase(node)
        if not condition.uses and not condition.producer.is_pinned and not context.keeps(condition.producer):
            home = condition.producer.graph
            assert home is not None
            home.erase(condition.producer)


def _copy_body(body: Graph, target: Graph) -> None:
    target.details = dict(body.details)
    mapped: dict[Value, Value] = {}
    copy_nodes(body, target, mapped)
    target.set_outputs([mapped.get(value, value) for value in body.outputs])


class Merger:
    """Merges the Ifs of one graph that read the same condition."""

    def __init__(self, graph: Graph, context: Context, names: TakenNames) -> None:
        self.graph = graph
        self.context = context
        self.names = names
        self._places = {node: place for place, node in enumerate(graph.order())}

    def merge(self, first: Node, second: Node) -> Node | None:
        """The If that stands for two on one condition, None if something between them needs the first."""
        pure = all(effect_of(node) <= Effect.PURE_MAY_FAIL for node in (first, second))
        size = sum(node.is_operator for node in first.nested())
        if not pure or size > _MOST_COPIED or self._needs(second, first):
            return None
        graph = self.graph
        count = len(first.results)
        merged = graph.make_node("If", first.operands, results=count + len(second.results), name=first.name)
        self._places[merged] = self._places[first]
        with self.context.rewrite(graph):
            for name in ("then_branch", "else_branch"):
                self._fill(graph.make_body(merged, name, first.bodies[name].name), first, second, name)
            graph.insert(merged, rank=max(first.rank, second.rank))
            for old, new in zip((*first.results, *second.results), merged.results, strict=True):
                new.type, new.name = old.type, "" if old.name == "" else None
                if old.name != "":
                    graph.replace_uses(old, new)
            graph.erase(second)
            graph.erase(first)
        return merged

    def _needs(self, second: Node, first: Node) -> bool:
        """True if a node between two Ifs reads the first and is read by the second, or there is too much between."""
        start = self._places[first]
        pending = [value.producer for value in reads(second) if value.producer is not first]
        seen: dict[Node, None] = {}
        while pending:
            node = pending.pop()
            if node in seen or node.graph is not self.graph or self._places.get(node, -1) < start:
                continue
            seen[node] = None
            if node is first or len(seen) > _MOST_BETWEEN:
                return True
            pending.extend(value.producer for value in reads(node))
        return False

    def _fill(self, body: Graph, first: Node, second: Node, name: str) -> None:
        mapped: dict[Value, Value] = {}
        ours, theirs = first.bodies[name], second.bodies[name]
        copy_nodes(ours, body, mapped)
        taken = {value.name for node in body.all_nodes() for value in node.results}
        outputs = [mapped.get(value, value) for value in ours.outputs[: len(first.results)]]
        inner = {**mapped, **dict(zip(first.results, outputs, strict=True))}
        copy_nodes(theirs, body, inner)
        for node in (*theirs.constants(), *theirs.order()):
            for value in node.results:
                if value.name and value.name in taken:
                    inner[value].name = self.names.fresh(value.name)
        outputs += [inner.get(value, value) for value in theirs.outputs[: len(second.results)]]
        body.set_outputs(outputs)
        declared = [
            part.details.get("outputs", [])[: len(node.results)] for part, node in ((ours, first), (theirs, second))
        ]
        body.details = {**ours.details, "outputs": [*declared[0], *declared[1]], "infos": []}
