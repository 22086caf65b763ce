"""Types, shapes and shape contents of every value, from the inputs on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onnx import ValueInfoProto

from graphopt.analysis import onnx_inference
from graphopt.analysis.input_bounds import find_bounds
from graphopt.analysis.known import Known, forget, values_inside
from graphopt.analysis.requirements import equations
from graphopt.analysis.shapes import TRANSFERS, UNKNOWN, Fact, Facts, bodies
from graphopt.ir import (
    Dim,
    Expr,
    Graph,
    Kind,
    Model,
    Node,
    OptionalType,
    SequenceType,
    Symbol,
    TensorType,
    Type,
    Value,
)
from graphopt.ir.collector import collector_paused
from graphopt.ir.symbol import Atom, Integer, substitute
from graphopt.ir.symbol_facts import parts_of
from graphopt.schema import RefAttribute
from graphopt.tensors import DType

_LOGGER = logging.getLogger(__name__)
_CALLED_NODES = 200_000
"""How many nodes of local functions may be visited at their calls: functions that call functions grow fast."""
_ROUNDS = 4
"""How often equations are looked for: each round of inference may show others."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Something inferred that contradicts what was known; what was known stays."""

    value: Value
    known: object
    found: object


class Inference:
    """Infers the types of a model's values and what its shape tensors hold.

    What is inferred holds on every run that succeeds: the only axiom is that dims are at least 0. Each free dim of an
    input is a symbol of its own, since the runtime does not compare dims of equal names. Declared dims of outputs and
    of inner values are no evidence.

    Attributes:
        conflicts: What contradicted something known, in the order found.
        trial_depth: How many suppositions are being tried inside each other right now.
    """

    def __init__(self, model: Model, trust_dim_names: bool = False) -> None:
        """Prepare.

        Args:
            model: The model.
            trust_dim_names: Take dims of the main graph's inputs that share a name to be equal.
        """
        self.model = model
        self.trust_dim_names = trust_dim_names
        self.conflicts: list[Conflict] = []
        self._functions = model.functions
        self._is_started = False
        self._calls: dict[tuple[object, ...], Facts] = {}
        self._calls_left = 0
        self._open_calls: dict[Graph, None] = {}
        self.trial_depth = 0
        self._is_silent = False
        self._detached: Node | None = None
        self._equations: dict[Atom, Integer] = {}
        self._simplified: dict[Expr, Dim] = {}

    def run(self) -> None:
        """Infer every graph: functions and the main graph, with the bodies in them."""
        if self.trust_dim_names and not self._is_started:
            self._unify_dim_names()
        self._calls_left = _CALLED_NODES
        with collector_paused():
            for function in self.model.functions.values():
                self.run_graph(function.graph)
            self.run_graph(self.model.graph)
            if not self._is_started:
                self._is_started = True
                find_bounds(self)
                self._find_equations()

    def learn_more(self) -> bool:
        """Ask again what sizes must be, in a model that has become simpler; False if that shows nothing new."""
        inputs = self.model.graph.inputs
        types, count = [value.type for value in inputs], len(self._equations)
        with collector_paused():
            find_bounds(self, tables=True)
            self._find_equations()
        return len(self._equations) > count or any(
            value.type is not type for value, type in zip(inputs, types, strict=True)
        )

    def run_graph(self, graph: Graph) -> None:
        """Infer one graph, operators in topological order, bodies with their owners."""
        for node in graph.order():
            self.infer(node)

    def visit(self, node: Node, graph: Graph | None = None) -> None:
        """Infer the results of one node from its operands and attributes, its bodies included.

        Args:
            node: An operator; others are left as they are.
            graph: For a node that is in no graph yet, the one whose opset it is written in; by default the main graph.
        """
        if node.kind is not Kind.OPERATOR:
            return
        if node.graph is not None:
            self.infer(node)
            return
        # Parameters are read by the opsets of the node's graph, so it is lent one.
        node.graph, self._detached = self.model.graph if graph is None else graph, node
        try:
            self.infer(node)
        finally:
            node.graph = self._detached = None

    def infer(self, node: Node) -> None:
        """Infer the results of a node of a graph."""
        for value, fact in zip(node.results, self._facts(node), strict=False):
            self.refine(value, fact)

    def _facts(self, node: Node) -> Facts:
        if self._functions:
            called = self._functions.get((node.domain, node.op_type, node.overload))
            if called is not None:
                return self._call(node, called.graph)
            if any(isinstance(value, RefAttribute) for value in node.attributes.values()):
                return ()  # inside a function: only a call says what it means
        if node.bodies:
            return bodies.infer(node, self)
        function = TRANSFERS.get((node.domain, node.op_type))
        if function is None:
            return onnx_inference.infer(node)
        try:
            return function(node)
        except (IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
            # A malformed node: the runtime will say what is wrong with it.
            _LOGGER.debug("no inference for %r: %s", node, error)
            return ()

    def _call(self, node: Node, function: Graph) -> Facts:
        """What a call of a local function returns, from what is known of its operands here."""
        given = [bodies.known(value) for value in node.operands[: len(function.inputs)]]
        given += [UNKNOWN] * (len(function.inputs) - len(given))
        key = (function.return_node, function.version, *given)
        found = self._calls.get(key)
        if found is None:
            self._calls_left -= len(function.order())
            if self._calls_left < 0 or function in self._open_calls:
                return ()  # a function that calls itself is no valid one, but must not end in a stack overflow
            self._open_calls[function] = None
            try:
                found = self._calls[key] = tuple(self.try_graph(function, given))
            finally:
                del self._open_calls[function]
        return found

    # --- refining

    def refine(self, value: Value, fact: Fact) -> None:
        """Add a fact to what is known of a value."""
        if self._equations:
            fact = self._simplify(fact)
        known, found = value.type, fact.type
        if found is not None and found is not known:
            merged = found if known is None else self._merged(value, known, found)
            if merged is not known:
                self._retype(value, merged)
        if fact.elements is not None and fact.elements != value.elements:
            self._refine_elements(value, fact.elements)

    def set_input(self, value: Value, fact: Fact) -> None:
        """Record what is known of a body's input, which may be less than at the visit before."""
        if fact.type is not None and fact.type != value.type:
            self._retype(value, fact.type)
        value.elements = fact.elements

    def try_graph(self, graph: Graph, inputs: list[Fact]) -> list[Fact]:
        """The facts of a body's outputs if those of its inputs were these; nothing is recorded."""
        with self._trial(graph):
            for value, fact in zip(graph.inputs, inputs, strict=True):
                value.type, value.elements = fact.type or value.type, fact.elements
            self.run_graph(graph)
            return [bodies.known(value) for value in graph.outputs]

    @contextmanager
    def _trial(self, graph: Graph) -> Iterator[None]:
        """Forget what is known inside a graph; afterwards it is all as before."""
        values = list(values_inside(graph))
        with self.supposing() as saved:
            saved.update((value, (value.type, value.elements)) for value in values)
            forget(values)
            yield

    @contextmanager
    def supposing(self) -> Iterator[Known]:
        """Nothing is recorded; what is known of the values in the mapping is afterwards what it says."""
        saved: Known = {}
        conflicts, silent = len(self.conflicts), self._is_silent
        self._is_silent = True
        self.trial_depth += 1
        try:
            yield saved
        finally:
            self._is_silent = silent
            self.trial_depth -= 1
            del self.conflicts[conflicts:]
            for value, (type, elements) in saved.items():
                value.type, value.elements = type, elements

    # --- equations

    def _find_equations(self) -> None:
        """Find what opaque dims must be on every run that succeeds, and infer again with that knowledge."""
        graph = self.model.graph
        for _ in range(_ROUNDS):
            found: dict[Atom, Integer] = {
                atom: value for atom, value in equations(graph).items() if atom not in self._equations
            }
            if not found:
                return
            self._equations.update(found)
            self._simplified.clear()
            for value in graph.inputs:
                fact = self._simplify(Fact(value.type, None))
                if fact.type is not None and fact.type is not value.type:
                    graph.retype(value, fact.type)
            forget([value for value in values_inside(graph) if value.producer.kind is Kind.OPERATOR])
            self.run_graph(graph)

    def _simplify(self, fact: Fact) -> Fact:
        type, elements = fact
        if isinstance(type, TensorType) and type.shape is not None:
            shape = tuple(map(self._simple, type.shape))
            type = type if shape == type.shape else TensorType(type.dtype, shape)
        if elements is not None:
            elements = tuple(map(self._simple, elements))
        return Fact(type, elements)

    def _simple(self, dim: Dim) -> Dim:
        if not isinstance(dim, Expr):
            return dim
        found = self._simplified.get(dim)
        if found is None:
            try:
                found = substitute(dim, self._equations)
            except ZeroDivisionError:
                found = dim
            self._simplified[dim] = found
        return found

    def _retype(self, value: Value, type: Type) -> None:
        graph = value.producer.graph
        if self._is_silent or graph is None or value.producer is self._detached:
            value.type = type
        else:
            graph.retype(value, type)

    def _merged(self, value: Value, known: Type, found: Type) -> Type:
        if isinstance(known, TensorType) and isinstance(found, TensorType):
            return self._merged_tensors(value, known, found)
        if isinstance(known, SequenceType) and isinstance(found, SequenceType):
            return SequenceType(self._merged_inner(value, known.element, found.element))
        if isinstance(known, OptionalType) and isinstance(found, OptionalType):
            return OptionalType(self._merged_inner(value, known.element, found.element))
        if type(known) is not type(found):
            self._conflict(value, known, found)
        return known

    def _merged_inner(self, value: Value, known: Type | None, found: Type | None) -> Type | None:
        if known is None or found is None:
            return found if known is None else known
        return self._merged(value, known, found)

    def _merged_tensors(self, value: Value, known: TensorType, found: TensorType) -> TensorType:
        dtype = found.dtype if known.dtype is DType.UNDEFINED else known.dtype
        if found.dtype is not dtype and found.dtype is not DType.UNDEFINED:
            self._conflict(value, known, found)
            return known
        if found.shape is None or known.shape == found.shape:
            return known if dtype is known.dtype else TensorType(dtype, known.shape)
        if known.shape is None:
            return TensorType(dtype, found.shape)
        if len(known.shape) != len(found.shape):
            self._conflict(value, known, found)
            return known
        dims = tuple(
            self._merged_dims(value, left, right) for left, right in zip(known.shape, found.shape, strict=True)
        )
        return known if dims == known.shape and dtype is known.dtype else TensorType(dtype, dims)

    def _merged_dims(self, value: Value, known: Dim, found: Dim) -> Dim:
        if known is None:
            return found
        if found is None or known is found:
            return known
        if isinstance(known, int):
            if isinstance(found, int) and known != found:
                self._conflict(value, known, found)
            return known
        if isinstance(found, int):
            return found
        # Both hold; what is said with less is equal to more.
        return found if len(parts_of(found)) < len(parts_of(known)) else known

    def _refine_elements(self, value: Value, found: tuple[Dim, ...]) -> None:
        known = value.elements
        if known is None:
            if any(item is not None for item in found) or not found:
                value.elements = found
                self._tell_learned(value)
            return
        if len(known) != len(found):
            self._conflict(value, known, found)
            return
        merged = tuple(self._merged_dims(value, left, right) for left, right in zip(known, found, strict=True))
        if merged != known:
            value.elements = merged
            self._tell_learned(value)

    def _tell_learned(self, value: Value) -> None:
        """Let passes that had nothing to do in the graph look again: more is known of what a value holds."""
        graph = None if self._is_silent else value.producer.graph
        while graph is not None:
            graph.version += 1
            graph = graph.parent

    def _conflict(self, value: Value, known: object, found: object) -> None:
        self.conflicts.append(Conflict(value, known, found))
        _LOGGER.debug("%r: %s was known, %s was found", value, known, found)

    # --- dim names

    def _unify_dim_names(self) -> None:
        """Give dims of the main graph's inputs that share a declared name one symbol."""
        for value in self.model.graph.inputs:
            if value.declared is None or not isinstance(value.type, TensorType) or value.type.shape is None:
                continue
            declared = ValueInfoProto.FromString(value.declared).type.tensor_type.shape.dim
            names = [dim.dim_param for dim in declared]
            if len(names) != len(value.type.shape):
                continue
            dims = tuple(
                Symbol(name, name) if name and isinstance(dim, Symbol) else dim
                for name, dim in zip(names, value.type.shape, strict=True)
            )
            self.model.graph.retype(value, TensorType(value.type.dtype, dims))
