"""If, Loop and Scan: what their results are, from what is known of their bodies."""

from __future__ import annotations

from typing import Protocol

from graphopt.analysis.shapes.common import (
    UNKNOWN,
    Elements,
    Fact,
    Facts,
    axis_of,
    contents,
    merge_dims,
    scalar_content,
    tensor,
)
from graphopt.ir import Dim, Graph, Node, OptionalType, SequenceType, Shape, TensorType, Type, Value
from graphopt.ir.symbol import is_positive
from graphopt.tensors import DType

_ROUNDS = 3
_MAX_TRIALS = 2


class Runner(Protocol):
    """What infers the nodes of a body."""

    trial_depth: int

    def run_graph(self, graph: Graph) -> None:
        """Infer one graph for good."""

    def try_graph(self, graph: Graph, inputs: list[Fact]) -> list[Fact]:
        """The facts of a body's outputs if those of its inputs were these; nothing is recorded."""

    def set_input(self, value: Value, fact: Fact) -> None:
        """Record what is known of a body's input."""


def infer(node: Node, runner: Runner) -> Facts:
    """Infer the bodies of a node, then its results."""
    if node.domain == "" and node.op_type == "If":
        return _if(node, runner)
    if node.domain == "" and node.op_type == "Loop":
        return _loop(node, runner)
    if node.domain == "" and node.op_type == "Scan" and node.has_latest_meaning:
        return _scan(node, runner)
    for body in node.bodies.values():
        runner.run_graph(body)
    return ()


def known(value: Value | None) -> Fact:
    """All that is known of a value."""
    return UNKNOWN if value is None else Fact(value.type, contents(value))


# --- statements that hold of either


def either(left: Fact, right: Fact) -> Fact:
    """What holds of a value that is one or the other."""
    return Fact(either_type(left.type, right.type), _either_elements(left.elements, right.elements))


def either_type(left: Type | None, right: Type | None) -> Type | None:
    """What holds of the type of a value that has one type or the other."""
    if left is None or right is None:
        return None
    if left == right:
        return left
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        if left.dtype is not right.dtype:
            return None
        return TensorType(left.dtype, _either_shape(left.shape, right.shape))
    if isinstance(left, SequenceType) and isinstance(right, SequenceType):
        return SequenceType(either_type(left.element, right.element))
    if isinstance(left, OptionalType) and isinstance(right, OptionalType):
        return OptionalType(either_type(left.element, right.element))
    return None


def _either_shape(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(_either_dim(one, other) for one, other in zip(left, right, strict=True))


def _either_dim(left: Dim, right: Dim) -> Dim:
    return left if left is right or (isinstance(left, int) and left == right) else None


def _either_elements(left: Elements | None, right: Elements | None) -> Elements | None:
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(_either_dim(one, other) for one, other in zip(left, right, strict=True))


# --- If


def _if(node: Node, runner: Runner) -> Facts:
    branches = [body for body in (node.bodies.get("then_branch"), node.bodies.get("else_branch")) if body is not None]
    for body in branches:
        runner.run_graph(body)
    if len(branches) != 2:
        return ()
    test = scalar_content(node.operand(0))
    if isinstance(test, int):
        return tuple(known(value) for value in branches[0 if test else 1].outputs)
    pairs = zip(branches[0].outputs, branches[1].outputs, strict=False)
    return tuple(either(known(left), known(right)) for left, right in pairs)


# --- Loop


def _loop(node: Node, runner: Runner) -> Facts:
    body = node.bodies.get("body")
    if body is None:
        return ()
    carried = [known(value) for value in node.operands[2:]]
    count = len(carried)
    if len(body.inputs) != count + 2 or len(body.outputs) < count + 1:
        runner.run_graph(body)
        return ()
    counters = [Fact(TensorType(DType.INT64, ())), Fact(TensorType(DType.BOOL, ()))]
    carried = _fixpoint(body, counters, carried, [], 1, runner)
    for value, fact in zip(body.inputs, [*counters, *carried], strict=True):
        runner.set_input(value, fact)
    runner.run_graph(body)
    trips = scalar_content(node.operand(0))
    always = _always_continues(node, body)
    runs = always and trips is not None and is_positive(trips)
    scanned = [
        _stacked(value, trips if always else None, 0) if runs else _no_shape(value)
        for value in body.outputs[count + 1 :]
    ]
    return (*carried, *scanned)


def _fixpoint(
    body: Graph, before: list[Fact], carried: list[Fact], after: list[Fact], skip: int, runner: Runner
) -> list[Fact]:
    """What holds of the carried values before every iteration; each round that finds less keeps less."""
    count = len(carried)
    # Loops in loops in loops: each supposition about one would need others about those inside it.
    rounds = _ROUNDS if runner.trial_depth < _MAX_TRIALS else 0
    if not carried:
        return carried
    for turn in range(rounds):
        found = runner.try_graph(body, [*before, *carried, *after])[skip : skip + count]
        weaker = [either(old, new) for old, new in zip(carried, found, strict=True)]
        if weaker == carried:
            return carried
        carried = weaker if turn < _ROUNDS - 2 else [_only_dtype(fact) for fact in weaker]
    return [Fact(_only_dtype(fact).type) for fact in carried]


def _only_dtype(fact: Fact) -> Fact:
    return Fact(TensorType(fact.type.dtype)) if isinstance(fact.type, TensorType) else Fact(None)


def _always_continues(node: Node, body: Graph) -> bool:
    """True if only the number of trips ends the loop."""
    start = node.operand(1)
    if start is not None and scalar_content(start) != 1:
        return False
    result = body.outputs[0]
    while result.producer.is_op("Identity") and result.producer.operands[0] is not None:
        result = result.producer.operands[0]
    return scalar_content(result) == 1 or result is body.inputs[1]


def _no_shape(value: Value) -> Fact:
    """Stacked results of a loop that may not run at all: then the runtime makes up a shape."""
    return tensor(value.dtype, None)


def _stacked(value: Value, length: Dim, axis: int) -> Fact:
    if value.shape is None:
        return tensor(value.dtype, None)
    place = axis_of(axis, len(value.shape) + 1)
    if place is None:
        return tensor(value.dtype, None)
    return tensor(value.dtype, (*value.shape[:place], length, *value.shape[place:]))


# --- Scan


def _scan(node: Node, runner: Runner) -> Facts:
    body = node.bodies.get("body")
    scans = node.param("num_scan_inputs")
    if body is None or not isinstance(scans, int) or len(body.inputs) != len(node.operands):
        for inner in node.bodies.values():
            runner.run_graph(inner)
        return ()
    count = len(node.operands) - scans
    carried = [known(value) for value in node.operands[:count]]
    parts: list[Fact] = []
    length: Dim = None
    for value, axis in zip(node.operands[count:], _axes(node, "scan_input_axes", scans), strict=True):
        part, found = _part(value, axis)
        parts.append(part)
        length = merge_dims(length, found)
    carried = _fixpoint(body, [], carried, parts, 0, runner)
    for value, fact in zip(body.inputs, [*carried, *parts], strict=True):
        runner.set_input(value, fact)
    runner.run_graph(body)
    stacked = body.outputs[count:]
    axes = _axes(node, "scan_output_axes", len(stacked))
    return (*carried, *(_stacked(value, length, axis) for value, axis in zip(stacked, axes, strict=True)))


def _axes(node: Node, name: str, count: int) -> tuple[int, ...]:
    found = node.param(name)
    return found if isinstance(found, tuple) and len(found) == count else (0,) * count


def _part(value: Value | None, axis: int) -> tuple[Fact, Dim]:
    """One slice of a scanned operand, and how many there are; the runtime fails on none."""
    if value is None or value.dtype is None or value.shape is None:
        return (UNKNOWN if value is None else tensor(value.dtype, None)), None
    place = axis_of(axis, len(value.shape))
    if place is None:
        return tensor(value.dtype, None), None
    return tensor(value.dtype, value.shape[:place] + value.shape[place + 1 :]), value.shape[place]
