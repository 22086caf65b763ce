"""Algebra beyond the rules' own examples: counter-examples, several rules at work together, random expressions."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from pass_runs import model_of, operators, run

import passes.absorbing_elements as absorbing_elements
import passes.clipping as clipping
import passes.comparisons as comparisons
import passes.constant_chains as constant_chains
import passes.hoisting as hoisting
import passes.idle_masks as idle_masks
import passes.involutions as involutions
import passes.meeting_scales as meeting_scales
import passes.neutral_elements as neutral_elements
import passes.pruning as pruning
import passes.reductions as reductions
import passes.rotation_signs as rotation_signs
import passes.truth_factors as truth_factors
import passes.variadic as variadic
from graphopt.runtime import judge
from graphopt.testing.feeds import feeds_of

ALGEBRA: tuple[ModuleType, ...] = (
    neutral_elements,
    absorbing_elements,
    involutions,
    clipping,
    variadic,
    reductions,
    comparisons,
    truth_factors,
    idle_masks,
    constant_chains,
    meeting_scales,
    hoisting,
    rotation_signs,
    pruning,
)


def left(text: str, *, level: str = "default", opset: int = 21) -> dict[str, int]:
    """The operators left of a model, whose answers hold at the class the level allows."""
    model = model_of(f"g {text}", opset=opset)
    result = run(model, *ALGEBRA, level=level)
    verdict = judge(model, result, "E" if level == "exact" else "R", feeds_of(model))
    assert verdict.ok, verdict.reason
    return operators(result)


# --- several rules together


def test_root_mean_square_normalization_needs_no_reciprocal() -> None:
    text = """(float[2,3,4] x) => (float[2,3,4] y)
    <float two = {2}, float e = {1e-6}, float o = {1}, float[4] g = {1,2,3,4}>
    { p = Pow(x, two)  m = ReduceMean<keepdims = 1, axes = [-1]>(p)  a = Add(m, e)  s = Sqrt(a)  r = Div(o, s)
      n = Mul(x, r)  y = Mul(g, n) }"""
    assert left(text, opset=17) == {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1, "Mul": 1}
    assert left(text, opset=17, level="exact")["Mul"] == 2


def test_queries_and_keys_are_scaled_once() -> None:
    text = """(float[1,2,3,4] q, float[1,2,3,4] k) => (float[1,2,3,3] y) <float s = {0.5}, float d = {2}>
    { a = Mul(q, s)  t = Transpose<perm = [0,1,3,2]>(k)  b = Mul(t, s)  p = MatMul(a, b)  y = Div(p, d) }"""
    assert left(text) == {"Mul": 1, "Transpose": 1, "MatMul": 1}


def test_a_gelu_as_it_is_exported_stays() -> None:
    text = """(float[2,4] x) => (float[2,4] y) <float r = {1.41421354}, float o = {1}, float h = {0.5}, float c = {3}>
    { d = Div(x, r)  e = Erf(d)  a = Add(e, o)  m = Mul(x, a)  g = Mul(m, h)  y = Mul(g, c) }"""
    assert left(text) == {"Div": 1, "Erf": 1, "Add": 1, "Mul": 3}


def test_a_layer_normalization_as_it_is_exported_stays() -> None:
    text = """(float[2,4] x) => (float[2,4] y)
    <float two = {2}, float e = {1e-6}, float[4] g = {1,2,3,4}, float[4] b = {1,1,1,1}>
    { m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)  a = Add(v, e)
      s = Sqrt(a)  n = Div(d, s)  w = Mul(n, g)  y = Add(w, b) }"""
    assert sum(left(text, opset=17).values()) == 9


def test_a_small_epsilon_is_not_lost_in_a_larger_constant() -> None:
    text = "(float[3] x) => (float[3] y) <float a = {1}, float e = {1e-9}> { t = Add(x, a)  y = Add(t, e) }"
    assert left(text) == {"Add": 2}


def test_signs_meet_and_go_away() -> None:
    text = """(float[2,3] x, float[3] z) => (float[2,3] y) <float c = {2}>
    { n = Neg(x)  m = Neg(z)  s = Sub(n, m)  t = Neg(s)  p = Mul(t, c)  y = Neg(p) }"""
    assert sum(left(text).values()) == 2


def test_masks_of_truth_values_become_choices() -> None:
    text = """(bool[2,3] m, bool[3] n) => (float[2,3] y) <float o = {1}, float c = {-10000}, float z = {0}>
    { a = Cast<to = 1>(m)  b = Cast<to = 1>(n)  p = Mul(a, b)  s = Sub(o, p)  t = Mul(s, c)  y = Add(t, z) }"""
    assert left(text) == {"And": 1, "Where": 1}


# --- what must stay


@pytest.mark.parametrize(
    "text",
    [
        "(float[2] x) => (float[2] y) { n = Reciprocal(x)  y = Reciprocal(n) }",
        "(float[2] x, float[2] z) => (bool[2] y) { n = Less(x, z)  y = Not(n) }",
        "(float[2] x) => (bool[2] y) { y = Equal(x, x) }",
        "(float[2] x) => (float[2] y) { y = Sub(x, x) }",
        "(float[2] x) => (float[2] y) { y = Div(x, x) }",
        "(float[2] x) => (float[2] y) <float c = {0}> { y = Mul(x, c) }",
        "(float[2] x) => (float[2] y) <float c = {3}> { y = Div(x, c) }",
        "(float[2] x) => (float[2] y) <float c = {0.5}> { y = Pow(x, c) }",
        "(int64[2] x) => (int64[2] y) <int64 a = {2}, int64 c = {2}> { n = Div(x, a)  y = Mul(n, c) }",
        "(float[2] x) => (float[2] y) <float a = {1e30}, float c = {1e30}> { n = Mul(x, a)  y = Mul(n, c) }",
        "(float[2] x) => (float[2] y) <float a = {1e-30}, float c = {1e-30}> { n = Mul(x, a)  y = Mul(n, c) }",
        "(float[2] x) => (float[2] y) { n = Relu(x)  y = Neg(n) }",
    ],
)
def test_other_values_somewhere_in_the_domain(text: str) -> None:
    model = model_of(f"g {text}", opset=21)
    assert operators(run(model, *ALGEBRA, level="default")) == operators(model)


def test_a_neutral_operand_of_one_element_may_raise_the_rank() -> None:
    text = "(float x) => (float[1] y) <float[1] c = {1}> { y = Mul(x, c) }"
    assert left(text) == {"Mul": 1}


def test_a_number_is_found_behind_views() -> None:
    text = """(int64[2,3] x) => (int64[2,3] y) <int64 z = {0}, int64[1] a = {0}, int64[1] n = {3}>
    { u = Unsqueeze(z, a)  e = Expand(u, n)  y = Add(x, e) }"""
    assert left(text) == {"Identity": 1}


# --- constants that meet


def test_the_products_of_integers_wrap_around() -> None:
    text = """(int32[3] x) => (int32[3] y) <int32 a = {65537}, int32 c = {65537}> { t = Mul(x, a)  y = Mul(t, c) }"""
    assert left(text, level="exact") == {"Mul": 1}


def test_no_constant_grows() -> None:
    rows = "(float[2,3] x) => (float[2,3] y) <float[2,1] a = {1,2}, float[3] c = {1,2,3}>"
    assert left(f"{rows} {{ t = Mul(x, a)  y = Mul(t, c) }}") == {"Mul": 2}


@pytest.mark.parametrize(("left", "right", "exact"), [(1.0, 2.0, True), (1.0, 1e-9, False), (0.1, 0.2, False)])
def test_sums_of_stored_numbers_that_are_rounded_are_known(left: float, right: float, exact: bool) -> None:
    text = f"(float[3] x) => (float[3] y) <float a = {{{left}}}, float c = {{{right}}}>"
    model = model_of(f"g {text} {{ t = Add(x, a)  y = Add(t, c) }}", opset=21)
    assert operators(run(model, *ALGEBRA, level="default")) == {"Add": 1 if exact else 2}


# --- random expressions

_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 3), (2, 1), (1, 3))
_TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "j": TensorProto.INT32, "b": TensorProto.BOOL}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -np.inf, np.inf, 6.0, 1e-30, 4.0, 1 / 3, np.nan)
_OPERATORS = {
    "f": ("Add", "Sub", "Mul", "Div", "Max", "Min", "Neg", "Abs", "Relu", "Ceil", "Sqrt", "Exp", "Where", "Cast"),
    "i": ("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign", "Where", "Cast"),
    "j": ("Add", "Sub", "Mul", "Max", "Neg", "Abs", "Where", "Cast"),
    "b": ("And", "Or", "Xor", "Not", "Equal", "Less", "GreaterOrEqual"),
}
_ONE = frozenset(("Neg", "Abs", "Relu", "Ceil", "Sqrt", "Exp", "Sign", "Not", "Cast"))


class _Expressions:
    """A random model of operators on single elements, with constants that are special to some rule."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values: list[tuple[str, str, tuple[int, ...]]] = []
        self.model = helper.make_model(
            helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
        )
        for kind in ("f", "f", "i", "j", "b"):
            shape = self.random.choice(((3,), (2, 3)))
            name = self._new(kind, shape)
            self.model.graph.input.append(helper.make_tensor_value_info(name, _TYPES[kind], shape))
        for _ in range(self.random.randint(4, 12)):
            self._step()
        read = {name for node in self.model.graph.node for name in node.input}
        for name, kind, shape in self.values[5:]:
            if name not in read:
                info = helper.make_tensor_value_info(name, _TYPES[kind], [None] * len(shape))
                self.model.graph.output.append(info)

    def _new(self, kind: str, shape: tuple[int, ...]) -> str:
        self.values.append((f"v{len(self.values)}", kind, shape))
        return self.values[-1][0]

    def _pick(self, kind: str) -> tuple[str, tuple[int, ...]]:
        found = [(name, shape) for name, own, shape in self.values if own == kind][-4:]
        return self._constant(kind) if self.random.random() < 0.4 else self.random.choice(found)

    def _constant(self, kind: str) -> tuple[str, tuple[int, ...]]:
        shape = self.random.choice(_SHAPES)
        numbers = {"f": _FLOATS, "b": (True, False)}.get(kind, (0, 1, -1, 2, 3, -(2**31), 2**31 - 1))
        dtype = helper.tensor_dtype_to_np_dtype(_TYPES[kind])
        name = f"c{len(self.model.graph.initializer)}"
        array = np.full(shape, self.random.choice(numbers), dtype)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name, shape

    def _step(self) -> None:
        kind = self.random.choice("fffijbb")
        op_type = self.random.choice(_OPERATORS[kind])
        own = self.random.choice("fij") if op_type in ("Equal", "Less", "GreaterOrEqual") else kind
        kinds = [own] if op_type in _ONE else [own, own]
        if op_type == "Where":
            kinds.insert(0, "b")
        elif op_type == "Cast":
            kinds = ["b"]
        operands = [self._pick(item) for item in kinds]
        try:
            shape = np.broadcast_shapes(*(shape for _, shape in operands))
        except ValueError:
            return
        if all(name.startswith("c") for name, _ in operands):
            return
        attributes = {"to": _TYPES[kind]} if op_type == "Cast" else {}
        names = [name for name, _ in operands]
        self.model.graph.node.append(helper.make_node(op_type, names, [self._new(kind, shape)], **attributes))


def _random_model(seed: int) -> ModelProto:
    model = _Expressions(seed).model
    checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_random_expressions_keep_every_bit_at_level_exact(start: int) -> None:
    for seed in range(start, start + 25):
        model = _random_model(seed)
        verdict = judge(model, run(model, *ALGEBRA), "E", feeds_of(model))
        assert verdict.ok, f"seed {seed}: {verdict.reason}"


@pytest.mark.parametrize("dtype", ["int32", "float"])
@pytest.mark.parametrize(
    "body",
    [
        "t = Clip(x, a, c)  y = Relu(t)",
        "t = Relu(x)  y = Clip(t, , c)",
        "t = Max(x, a)  y = Min(t, c)",
        "t = Min(x, c)  y = Max(t, a)",
    ],
)
def test_bounds_have_the_type_that_is_clipped(dtype: str, body: str) -> None:
    model = model_of(
        f"g ({dtype}[N] x) => ({dtype}[N] y) <{dtype} a = {{-3}}, {dtype} c = {{5}}> {{ {body} }}", opset=17
    )
    result = run(model, clipping, level="default")
    assert operators(result) == {"Clip": 1}
    checker.check_model(result)
    feed = {"x": np.arange(-8, 9).astype(dtype if dtype != "float" else "float32")}
    verdict = judge(model, result, "E", ({**feed},))
    assert verdict.ok, verdict.reason
