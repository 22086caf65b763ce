"""No-ops beyond their own examples: at the edges of graphs, in bodies, with shapes the model computes, near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from pass_runs import assert_equal, floats, model_of, operators, run

import passes.common_subexpressions as common_subexpressions
import passes.constant_folding as constant_folding
import passes.identities as identities
import passes.layout as layout
import passes.pruning as pruning
import passes.trivial_arithmetic as trivial_arithmetic
from graphopt import optimize

BOTH = (identities, trivial_arithmetic)
X = {"x": floats(2, 3)}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1.5, 3e38], np.float32)


def left(text: str, *, level: str = "exact", opset: int = 18) -> dict[str, int]:
    """The operators left of a model that gives the same bits afterwards."""
    model = model_of(f"g {text}", opset=opset)
    return operators(run(model, *BOTH, level=level))


# --- at the edges of a graph


def test_every_no_op_between_an_input_and_an_output() -> None:
    model = model_of(
        """g (float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d, float[2,3] e, float[2,3] f)
        <int64[2] shape = {2,3}, int64[4] pads = {0,0,0,0}, int64[1] s = {0}, int64[1] n = {3}, int64[1] axis = {1}> {
            a = Concat<axis = 0>(x)
            b = Cast<to = 1>(x)
            c = Reshape(x, shape)
            d = Pad(x, pads)
            e = Slice(x, s, n, axis)
            t = Dropout(x)
            f = Identity(t)
        }"""
    )
    graph_outputs = [value.name for value in model.graph.output]
    result = run(model, identities)
    assert set(operators(result)) == {"Identity"}
    assert [value.name for value in result.graph.output] == graph_outputs
    assert_equal(model, result, [X])


def test_chains_of_different_no_ops_end_at_once() -> None:
    text = """(float[N,3] x) => (float[N,3] y) <int64[2] s = {0,-1}, int64[2] r = {1,1}, int64[2] e = {1,1}> {
        a = Identity(x)  b = Reshape(a, s)  c = Tile(b, r)  d = Expand(c, e)  f = Concat<axis = -1>(d)
        g = Transpose<perm = [0,1]>(f)  h = Flatten(g)  i = Sum(h)  j = Einsum<equation = "ab">(i)  y = Relu(j)
    }"""
    assert left(text) == {"Relu": 1}


def test_a_no_op_read_inside_a_branch() -> None:
    model = model_of("""g (float[2,3] x, bool c) => (float[2,3] y) {
        t = Identity(x)
        y = If (c) <
            then_branch = a () => (float[2,3] u) { v = Cast<to = 1>(t)  u = Neg(v) },
            else_branch = b () => (float[2,3] w) { w = Relu(t) }
        >
    }""")
    result = run(model, identities)
    assert operators(result) == {"If": 1, "Neg": 1, "Relu": 1}
    assert_equal(model, result, [{**X, "c": np.array(flag)} for flag in (True, False)])


def test_a_no_op_in_a_loop_whose_state_passes_through() -> None:
    model = model_of("""g (float[2,3] x, int64 n) => (float[2,3] y) <bool go = {1}> {
        y = Loop (n, go, x) <
            body = b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] t) {
                d = Identity(c)  u = Identity(s)  v = Relu(u)  t = Identity(v)
            }
        >
    }""")
    result = run(model, identities)
    assert operators(result)["Relu"] == 1
    assert_equal(model, result, [{**X, "n": np.array(3)}, {**X, "n": np.array(0)}])


def test_a_kept_node_stays_and_nothing_goes_round_in_circles() -> None:
    model = model_of("g (float[2,3] x) => (float[2,3] y) { kept = Identity(x)  t = Identity(kept)  y = Relu(t) }")
    result = optimize(model, passes=["identities"], keep=["kept"], strict=True)
    assert result.report.converged
    assert "kept" in [name for node in result.model.graph.node for name in node.output]


def test_sequences_and_strings_pass_through() -> None:
    text = """(string[2] x, float[2] z) => (string[2] y, float[2] w) <int64 one = {1}> {
        a = Identity(x)  b = Concat<axis = 0>(a)  y = Identity(b)
        s = SequenceConstruct(z, z)  t = Identity(s)  u = SequenceAt(t, one)  w = Relu(u)
    }"""
    assert left(text) == {"Identity": 1, "Relu": 1}  # the output that is an input needs a name of its own


# --- shapes the model computes


@pytest.mark.parametrize(
    "body",
    [
        "s = Shape(x)  t = Reshape(x, s)  y = Relu(t)",
        "s = Shape(x)  t = Expand(x, s)  y = Relu(t)",
        "s = Shape<start = 1, end = 2>(x)  t = Slice(x, zero, s, one)  y = Relu(t)",
        "s = Shape<start = 0, end = 1>(x)  u = Concat<axis = 0>(s, minus)  t = Reshape(x, u)  y = Relu(t)",
        "s = Shape<start = 0, end = 1>(x)  u = Concat<axis = 0>(s, one)  t = Expand(x, u)  y = Relu(t)",
        "s = Shape<start = 0, end = 1>(x)  d = Sub(s, s)  u = Concat<axis = 0>(d, d, d, d)  t = Pad(x, u)  y = Relu(t)",
        "s = Shape<start = 0, end = 1>(x)  r = Div(s, s)  u = Concat<axis = 0>(one, one)  t = Tile(x, u)  y = Relu(t)",
    ],
)
def test_shape_arithmetic_proves_a_no_op(body: str) -> None:
    model = model_of(
        f"g (float[N,M] x) => (float[N,M] y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] minus = {{-1}}> "
        f"{{ {body} }}"
    )
    result = run(model, identities, pruning)
    assert operators(result) == {"Relu": 1}
    assert_equal(model, result, [X, {"x": floats(1, 1)}, {"x": floats(0, 3)}])


@pytest.mark.parametrize(
    "text",
    [
        "(float[N,M] x, float[K,L] z) => (float[A,B] y) { s = Shape(z)  t = Reshape(x, s)  y = Relu(t) }",
        "(float[N,M] x, float[K,L] z) => (float[A,B] y) { s = Shape(z)  t = Expand(x, s)  y = Relu(t) }",
        "(float[N,M] x) => (float[A,B] y) <int64[2] s = {-1,2}> { t = Reshape(x, s)  y = Relu(t) }",
        "(float[N] x) => (float[A] y) <int64[1] i = {0}> { t = Gather(x, i)  y = Relu(t) }",
        "(float[N,M] x) => (float[A,B] y) { t = Transpose<perm = [1,0]>(x)  y = Relu(t) }",
        "(float[N,M] x) => (float[A,B,1] y) <int64[1] a = {2}> { t = Unsqueeze(x, a)  y = Relu(t) }",
    ],
)
def test_what_may_change_a_shape_stays(text: str) -> None:
    model = model_of(f"g {text}")
    assert operators(run(model, *BOTH)) == operators(model)


def test_two_inputs_of_one_dim_name_are_not_trusted_to_agree() -> None:
    text = "(float[N] x, float[N] z) => (float[N] y) { s = Shape(z)  t = Expand(x, s)  y = Relu(t) }"
    assert left(text) == {"Expand": 1, "Relu": 1, "Shape": 1}


def test_slices_against_numpy() -> None:
    """What is taken for a whole slice gives the whole array, and what gives the whole array is taken for one."""
    random = np.random.default_rng(0)
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    removed = 0
    for _ in range(60):
        axis, step = int(random.integers(-2, 2)), int(random.choice([1, 1, 1, 2, -1]))
        start, end = int(random.choice([0, 0, 1, -9, -1])), int(random.choice([2, 3, 4, 9, 2**31 - 1, -1, -9]))
        model = model_of(
            f"g (float[4,3] x) => (float[A,B] y) <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, "
            f"int64[1] a = {{{axis}}}, int64[1] p = {{{step}}}> {{ t = Slice(x, s, e, a, p)  y = Relu(t) }}"
        )
        taken = data[start:end:step] if axis in (0, -2) else data[:, start:end:step]
        is_whole = taken.shape == data.shape and bool((taken == data).all())
        assert ("Slice" not in operators(run(model, identities))) is is_whole, (start, end, axis, step)
        removed += is_whole
    assert removed > 3


# --- training, and old spellings


@pytest.mark.parametrize(("opset", "body"), [(7, "Dropout<ratio = 0.4>(x)"), (10, "Dropout(x)"), (12, "Dropout(x, r)")])
def test_dropout_without_training(opset: int, body: str) -> None:
    assert left(f"(float[2,3] x) => (float[2,3] y) <float r = {{0.4}}> {{ t = {body}  y = Relu(t) }}", opset=opset) == {
        "Relu": 1
    }


def test_dropout_in_training_stays() -> None:
    text = "(float[2,3] x) => (float[2,3] y) <float r = {0.4}, bool t = {1}> { d = Dropout(x, r, t)  y = Relu(d) }"
    assert left(text, level="fast-math") == {"Dropout": 1, "Relu": 1}


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (9, "(float[2,3] x) => (float[2,3] y) { t = Slice<starts = [0], ends = [3], axes = [1]>(x)  y = Relu(t) }"),
        (9, "(float[2,3] x) => (float[2,3] y) { t = Pad<pads = [0,0,0,0]>(x)  y = Relu(t) }"),
        (11, "(float[2,3] x) => (float[2,3] y) { t = Split<split = [2]>(x)  y = Relu(t) }"),
        (11, "(float[2,3] x) => (float[2,3] y) { t = Squeeze(x)  y = Relu(t) }"),
        (9, "(float[1,1,2,3] x) => (float[1,1,2,3] y) <float[4] s = {1,1,1,1}> { t = Upsample(x, s)  y = Relu(t) }"),
    ],
)
def test_parameters_that_were_attributes(opset: int, text: str) -> None:
    assert left(text, opset=opset) == {"Relu": 1}


def test_an_overridable_parameter_is_not_known() -> None:
    text = "(float[2,3] x, int64[4] p = {0,0,0,0}) => (float[A,B] y) { t = Pad(x, p)  y = Relu(t) }"
    assert left(text) == {"Pad": 1, "Relu": 1}


def test_an_empty_list_of_axes_squeezes_everything() -> None:
    """ONNX Runtime reads it as no list, so a dim of 1 goes."""
    text = "(float[1,3] x) => (float[A] y) <int64[0] a = {}> { t = Squeeze(x, a)  y = Relu(t) }"
    assert left(text) == {"Relu": 1, "Squeeze": 1}


# --- numbers


def _on_specials(text: str, level: str, numeric: str, gone: bool) -> None:
    model = model_of(f"g {text}")
    result = run(model, *BOTH, level=level)
    assert (len(result.graph.node) < len(model.graph.node)) is gone
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = np.resize(SPECIAL, shape)
    feed: dict[str, Any] = {"x": values if model.graph.input[0].type.tensor_type.elem_type == 1 else values > 0}
    assert_equal(model, result, [feed], numeric)


@pytest.mark.parametrize(
    ("level", "gone"),
    [("exact", False), ("default", True)],
)
def test_a_sum_of_one_element_loses_the_sign_of_zero(level: str, gone: bool) -> None:
    for body in ("ReduceSum(x, a)", "ReduceMean(x, a)"):
        text = f"(float[8,1] x) => (float[8,1] y) <int64[1] a = {{1}}> {{ t = {body}  y = Neg(t) }}"
        _on_specials(text, level, "E" if not gone else "Z", gone)
    text = "(float[1,1,8,1] x) => (float[1,1,8,1] y) { t = AveragePool<kernel_shape = [1,1]>(x)  y = Neg(t) }"
    _on_specials(text, level, "E" if not gone else "Z", gone)


def test_a_pool_that_loses_infinities_stays() -> None:
    text = "(float[1,1,8] x) => (float[1,1,8] y) { t = MaxPool<kernel_shape = [1]>(x)  y = Neg(t) }"
    _on_specials(text, "default", "E", False)
    _on_specials(text.replace("8]", "4,2]").replace("[1]>", "[1,1]>"), "exact", "E", True)


def test_clip_without_bounds_clips_infinities() -> None:
    _on_specials("(float[8] x) => (float[8] y) { t = Clip(x)  y = Neg(t) }", "default", "E", False)


def test_sums_of_64_bit_integers_go_through_float64() -> None:
    model = model_of("g (int64[2,1] x) => (int64[2,1] y) <int64[1] a = {1}> { t = ReduceSum(x, a)  y = Neg(t) }")
    assert operators(run(model, *BOTH, level="fast-math")) == {"Neg": 1, "ReduceSum": 1}
    short = model_of("g (int32[2,1] x) => (int32[2,1] y) <int64[1] a = {1}> { t = ReduceSum(x, a)  y = Neg(t) }")
    result = run(short, *BOTH)
    assert operators(result) == {"Neg": 1}
    assert_equal(short, result, [{"x": np.array([[-(2**31)], [2**31 - 1]], np.int32)}])


@pytest.mark.parametrize("reduction", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_that_compute_something_even_for_one_element(reduction: str) -> None:
    text = f"(float[8,1] x) => (float[8,1] y) <int64[1] a = {{1}}> {{ t = {reduction}(x, a)  y = Neg(t) }}"
    assert left(text, level="default") == {"Neg": 1, reduction: 1}


# --- with other passes


def test_a_no_op_and_a_factor_that_folds_to_one_both_go_right() -> None:
    """Two rewrites that are right alone: one bypasses the no-op the other still reads."""
    model = model_of("""g (float[2,3] x) => (float[2,3] y0, float[2,3] y1, float[2,3] y2)
        <float one = {1}, float zero = {0}> {
            mid = Identity(x)  fold = Div(one, one)  wrapped = Mul(mid, fold)  y0 = Add(wrapped, zero)
            other = Cast<to = 1>(x)  again = Div(one, one)  mixed = Mul(again, other)  y1 = Add(mixed, zero)
            t = Transpose<perm = [1,0]>(x)  ti = Identity(t)  tt = Transpose<perm = [1,0]>(ti)  y2 = Sub(tt, zero)
        }""")
    result = run(model, pruning, constant_folding, identities, trivial_arithmetic, common_subexpressions, layout)
    counts = operators(result)
    assert "Transpose" not in counts
    assert "Cast" not in counts
    assert_equal(model, result, [X])


def test_a_view_between_dequantize_and_quantize_goes_and_the_pair_stays() -> None:
    model = model_of("""g (float[2,3] x) => (float[2,3] y) <float s = {0.1}, int8 z = {0}, int64[2] shape = {2,3}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        v = Reshape(d, shape)
        p = QuantizeLinear(v, s, z)  y = DequantizeLinear(p, s, z)
    }""")
    result = run(model, *BOTH)
    assert operators(result) == {"DequantizeLinear": 2, "QuantizeLinear": 2}
    assert_equal(model, result, [X])


def test_signature_and_names_survive() -> None:
    model: ModelProto = model_of(
        "g (float[N,3] x) => (float[N,3] result) { a = Relu(x)  b = Identity(a)  result = Concat<axis = 0>(b) }"
    )
    result = run(model, identities)
    assert operators(result) == {"Relu": 1}
    assert result.graph.node[0].output[0] == "result"
    assert result.graph.output[0] == model.graph.output[0]
