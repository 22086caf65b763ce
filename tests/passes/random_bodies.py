"""Random models of nested bodies and calls: constant, free and negated conditions, idle state, unread results, equal
expressions around, inside and on both sides of branches, work that is the same in every iteration, local functions."""

from __future__ import annotations

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

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
        self.is_function = False

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
        self.functions: list[FunctionProto] = []

    def model(self) -> ModelProto:
        if self.random.random() < 0.5:
            for number in range(int(self.random.integers(1, 3))):
                self.functions.append(self.function(f"F{number}"))
        scope = _Scope(None)
        scope.values, scope.conditions = ["x"], ["c"]
        for name, flag in (("yes", True), ("no", False)):
            scope.initializers.append(numpy_helper.from_array(np.array(flag), name))
            scope.conditions.append(name)
        self.fill(scope, 0, int(self.random.integers(3, 8)))
        self.add_plain(scope)
        outputs = list(dict.fromkeys(self.pick(scope.own) for _ in range(self.random.integers(1, 4))))
        graph = helper.make_graph(
            scope.nodes,
            "g",
            [_info("x"), _info("c", TensorProto.BOOL, ()), _info("trips", TensorProto.INT64, ())],
            [_info(name) for name in outputs],
            scope.initializers,
        )
        imports = [helper.make_opsetid("", 18)]
        if self.functions:
            imports.append(helper.make_opsetid("local", 1))
        return helper.make_model(graph, opset_imports=imports, functions=self.functions, ir_version=9)

    def function(self, name: str) -> FunctionProto:
        """A function of two values and a condition, with an attribute; it may call those made before."""
        scope = _Scope(None)
        scope.is_function = True
        scope.values, scope.conditions = ["p", "q"], ["r"]
        scope.taken.update(("p", "q", "r", "trips", "half"))
        factor = helper.make_node("Constant", [], ["half"])
        factor.attribute.append(AttributeProto(name="value_floats", ref_attr_name="factor", type=AttributeProto.FLOATS))
        scope.nodes.append(factor)
        scope.values.append("half")
        self.fill(scope, 1, int(self.random.integers(1, 5)))
        names = self.returns(scope, int(self.random.integers(1, 3)))
        imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        return helper.make_function(
            "local", name, ["p", "q", "r", "trips"], names, scope.nodes, imports, attributes=["factor"]
        )

    def pick(self, items: list[str]) -> str:
        return items[self.random.integers(len(items))]

    def fill(self, scope: _Scope, depth: int, count: int) -> None:
        for _ in range(count):
            kind = self.random.random()
            if depth < _DEPTH and kind < 0.2:
                self.add_if(scope, depth)
            elif depth < _DEPTH and kind < 0.35:
                self.add_loop(scope, depth)
            elif depth < _DEPTH and kind < 0.4:
                self.add_scan(scope, depth)
            elif kind < 0.45:
                self.add_condition(scope)
            elif self.functions and kind < 0.5:
                self.add_call(scope)
            elif kind < 0.55:
                self.constant(scope, np.array(self.random.integers(0, 3, 2), np.float32))
            else:
                self.add_plain(scope)

    def constant(self, scope: _Scope, array: np.ndarray) -> str:  # type: ignore[type-arg]
        name = scope.name("k")
        tensor = numpy_helper.from_array(array, name)
        if self.random.random() < 0.5 and not scope.is_function:
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

    def add_condition(self, scope: _Scope) -> None:
        name = scope.name("b")
        op_type = self.pick(["Not", "And", "Or"])
        operands = [self.pick(scope.conditions) for _ in range(1 if op_type == "Not" else 2)]
        scope.nodes.append(helper.make_node(op_type, operands, [name]))
        scope.conditions.append(name)

    def add_call(self, scope: _Scope) -> None:
        function = self.functions[self.random.integers(len(self.functions))]
        operands = [self.pick(scope.values), self.pick(scope.values), self.pick(scope.conditions), "trips"]
        results = [scope.name("v") for _ in function.output]
        factor = [0.5, float(self.random.integers(0, 3))]
        scope.nodes.append(helper.make_node(function.name, operands, results, domain="local", factor=factor))
        for name in results:
            self.define(scope, name)

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
        both = [
            (self.pick(list(_BINARY)), self.pick(scope.values), self.pick(scope.values))
            for _ in range(int(self.random.integers(0, 3)))
        ]
        is_choice = self.random.random() < 0.2
        for label in ("then_body", "else_body"):
            branch = _Scope(scope)
            if is_choice:
                for _ in range(count):
                    name = branch.name("v")
                    branch.nodes.append(helper.make_node("Identity", [self.pick(scope.values)], [name]))
                    branch.own.append(name)
                infos = [_info(name) for name in branch.own]
                branches.append(helper.make_graph(branch.nodes, label, [], infos))
                continue
            for op_type, *operands in both if self.random.random() < 0.5 else both[::-1]:
                name = branch.name("v")
                branch.nodes.append(helper.make_node(op_type, operands, [name]))
                self.define(branch, name)
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

    def add_scan(self, scope: _Scope, depth: int) -> None:
        states, stacks = (int(self.random.integers(0, 3)) for _ in range(2))
        if states + stacks == 0:
            states = 1
        axes = [int(self.random.integers(0, 2)) for _ in range(self.random.integers(1, 3))]
        length = int(self.random.integers(1, 4))
        scanned = [self.sequence(scope, axis, length) for axis in axes]
        body = _Scope(scope)
        inputs = [body.name("s") for _ in range(states + len(axes))]
        body.values += inputs if self.random.random() < 0.5 else inputs[:-1]
        self.fill(body, depth + 1, int(self.random.integers(1, 4)))
        names = self.returns(body, states + stacks)
        graph = helper.make_graph(
            body.nodes, "scan_body", [*map(_info, inputs)], [*map(_info, names)], body.initializers
        )
        initial = [self.pick(scope.values) for _ in range(states)]
        results = [scope.name("v") for _ in range(states)]
        stacked = [scope.name("stack") for _ in range(stacks)]
        attributes: dict[str, list[int]] = {}
        if self.random.random() < 0.5 or any(axes):
            attributes["scan_input_axes"] = axes
        if self.random.random() < 0.5:
            attributes["scan_input_directions"] = [int(self.random.integers(0, 2)) for _ in axes]
        turned = [int(self.random.integers(0, 2)) for _ in stacked]
        if stacked and any(turned):
            attributes["scan_output_axes"] = turned
        if stacked and self.random.random() < 0.5:
            attributes["scan_output_directions"] = [int(self.random.integers(0, 2)) for _ in stacked]
        scope.nodes.append(
            helper.make_node(
                "Scan",
                [*initial, *scanned],
                [*results, *stacked],
                body=graph,
                num_scan_inputs=len(axes),
                **attributes,
            )
        )
        for name in results:
            self.define(scope, name)
        for name, axis in zip(stacked, turned, strict=True):
            if self.random.random() < 0.6:
                total, where = scope.name("v"), self.constant(scope, np.array([axis]))
                scope.nodes.append(helper.make_node("ReduceSum", [name, where], [total], keepdims=0))
                self.define(scope, total)

    def sequence(self, scope: _Scope, axis: int, length: int) -> str:
        """Values side by side along a new axis."""
        parts = []
        where = self.constant(scope, np.array([axis]))
        for _ in range(length):
            parts.append(scope.name("u"))
            scope.nodes.append(helper.make_node("Unsqueeze", [self.pick(scope.values), where], [parts[-1]]))
        whole = scope.name("u")
        scope.nodes.append(helper.make_node("Concat", parts, [whole], axis=axis))
        return whole

    def sized(self, scope: _Scope, name: str) -> str:
        """A scalar as two elements, which is what every value has."""
        shaped = scope.name("w")
        two = self.constant(scope, np.array([2], np.int64))
        scope.nodes.append(helper.make_node("Expand", [name, two], [shaped]))
        return shaped
