"""Random models of nested bodies: constant and free conditions, idle state, unread results, repeated expressions."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_UNARY = ("Abs", "Identity", "Neg", "Relu", "Sin", "Tanh")
_BINARY = ("Add", "Max", "Mul", "Sub")
_DEPTH = 3


def random_model(seed: int) -> ModelProto:
    """A valid model of inputs `x` (float[2]) and `c` (bool), the same for a seed."""
    return _Maker(seed).model()


def _info(name: str, dtype: int = TensorProto.FLOAT, shape: tuple[int, ...] = (2,)) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


class _Scope:
    """One graph in the making; what is visible in it, and the names taken around it."""

    def __init__(self, outer: _Scope | None) -> None:
        self.values: list[str] = list(outer.values) if outer else []
        self.conditions: list[str] = list(outer.conditions) if outer else []
        self.depth: int = outer.depth + 1 if outer else 0
        self.taken: set[str] = set()
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.own: list[str] = []

    def name(self, stem: str) -> str:
        """A name not used here or around; bodies side by side share theirs."""
        number = 0
        while (name := f"{stem}{self.depth}_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name


class _Maker:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def model(self) -> ModelProto:
        scope = _Scope(None)
        scope.values, scope.conditions = ["x"], ["c"]
        for name, flag in (("yes", True), ("no", False)):
            scope.initializers.append(numpy_helper.from_array(np.array(flag), name))
            scope.conditions.append(name)
        self.fill(scope, 0, int(self.random.integers(3, 8)))
        outputs = list(dict.fromkeys(self.pick(scope.own) for _ in range(self.random.integers(1, 4))))
        graph = helper.make_graph(
            scope.nodes,
            "g",
            [_info("x"), _info("c", TensorProto.BOOL, ()), _info("trips", TensorProto.INT64, ())],
            [_info(name) for name in outputs],
            scope.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def pick(self, items: list[str]) -> str:
        return items[self.random.integers(len(items))]

    def fill(self, scope: _Scope, depth: int, count: int) -> None:
        for _ in range(count):
            kind = self.random.random()
            if depth < _DEPTH and kind < 0.2:
                self.add_if(scope, depth)
            elif depth < _DEPTH and kind < 0.35:
                self.add_loop(scope, depth)
            elif kind < 0.45:
                self.constant(scope, np.array(self.random.integers(0, 3, 2), np.float32))
            else:
                self.add_plain(scope)

    def constant(self, scope: _Scope, array: np.ndarray) -> str:  # type: ignore[type-arg]
        name = scope.name("k")
        tensor = numpy_helper.from_array(array, name)
        if self.random.random() < 0.5:
            scope.initializers.append(tensor)
        else:
            scope.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        if array.dtype == np.float32:
            scope.values.append(name)
        return name

    def add_plain(self, scope: _Scope) -> str:
        is_unary = self.random.random() < 0.5
        op_type = self.pick(list(_UNARY if is_unary else _BINARY))
        name = scope.name("v")
        operands = [self.pick(scope.values) for _ in range(1 if is_unary else 2)]
        scope.nodes.append(helper.make_node(op_type, operands, [name]))
        self.define(scope, name)
        return name

    def define(self, scope: _Scope, name: str) -> None:
        scope.values.append(name)
        scope.own.append(name)

    def returned(self, scope: _Scope) -> str:
        if not scope.own or self.random.random() < 0.4:
            return self.add_plain(scope)
        return self.pick(scope.own)

    def returns(self, scope: _Scope, count: int) -> list[str]:
        names: list[str] = []
        while len(names) < count:
            name = self.returned(scope)
            if name in names:  # the runtime mixes up a body that returns a value twice
                name = self.add_plain(scope)
            names.append(name)
        return names

    def add_if(self, scope: _Scope, depth: int) -> None:
        count = int(self.random.integers(1, 4))
        branches: list[GraphProto] = []
        for label in ("then_body", "else_body"):
            branch = _Scope(scope)
            self.fill(branch, depth + 1, int(self.random.integers(1, 4)))
            names = self.returns(branch, count)
            infos = [_info(name) for name in names]
            branches.append(helper.make_graph(branch.nodes, label, [], infos, branch.initializers))
        results = [scope.name("v") for _ in range(count)]
        condition = self.pick(scope.conditions)
        scope.nodes.append(
            helper.make_node("If", [condition], results, then_branch=branches[0], else_branch=branches[1])
        )
        for name in results:
            self.define(scope, name)

    def add_loop(self, scope: _Scope, depth: int) -> None:
        states, stacks = (int(self.random.integers(0, 3)) for _ in range(2))
        if states + stacks == 0:
            states = 1
        body = _Scope(scope)
        iteration, go = body.name("i"), body.name("go")
        inputs = [body.name("s") for _ in range(states)]
        body.values += inputs
        body.conditions.append(go)
        number = body.name("f")
        body.nodes.append(helper.make_node("Cast", [iteration], [number], to=TensorProto.FLOAT))
        body.values.append(self.sized(body, number))
        self.fill(body, depth + 1, int(self.random.integers(1, 4)))
        again = body.name("again")
        ends = self.random.random()
        if ends < 0.2:
            body.nodes.append(helper.make_node("Constant", [], [again], value=numpy_helper.from_array(np.array(False))))
        else:
            body.nodes.append(helper.make_node("Identity", [go if ends < 0.8 else self.pick(body.conditions)], [again]))
        names = self.returns(body, states + stacks)
        graph = helper.make_graph(
            body.nodes,
            "loop_body",
            [_info(iteration, TensorProto.INT64, ()), _info(go, TensorProto.BOOL, ()), *map(_info, inputs)],
            [_info(again, TensorProto.BOOL, ()), *map(_info, names)],
            body.initializers,
        )
        trips = self.random.random()
        most = "" if trips < 0.1 and ends < 0.2 else "trips"
        if trips > 0.4:
            most = self.constant(scope, np.array(self.random.integers(0, 3), np.int64))
        start = "" if self.random.random() < 0.5 else self.pick(scope.conditions)
        initial = [self.pick(scope.values) for _ in range(states)]
        results = [scope.name("v") for _ in range(states)]
        stacked = [scope.name("stack") for _ in range(stacks)]
        scope.nodes.append(helper.make_node("Loop", [most, start, *initial], [*results, *stacked], body=graph))
        for name in results:
            self.define(scope, name)
        for name in stacked:
            if self.random.random() < 0.6:
                total = scope.name("v")
                axes = self.constant(scope, np.array([0]))
                scope.nodes.append(helper.make_node("ReduceSum", [name, axes], [total], keepdims=0))
                self.define(scope, total)

    def sized(self, scope: _Scope, name: str) -> str:
        """A scalar as two elements, which is what every value has."""
        shaped = scope.name("w")
        two = self.constant(scope, np.array([2], np.int64))
        scope.nodes.append(helper.make_node("Expand", [name, two], [shaped]))
        return shaped
