from __future__ import annotations

import time

import numpy as np
import pytest
from runtime_models import conv_bn, text_model

from graphopt.errors import ExecutionError
from graphopt.runtime import judge

FEEDS = [
    {"x": np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)},
    {"x": np.zeros((0, 8), np.float32)},
    {"x": np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e30, -2.0]], np.float32)},
]


def body(text: str) -> bytes:
    return text_model(f"(float[N, 8] x) => (float[N, 8] y) {{ {text} }}")


def test_exact_recomputation_holds_at_every_class() -> None:
    before = body("c = Constant<value = float {2.0}>() t = Mul(x, c) y = Sigmoid(t)")
    after = body("t = Add(x, x) y = Sigmoid(t)")
    for numeric in "SEZURD":
        result = judge(before, after, numeric, FEEDS)
        assert result.ok, result.reason
        assert result.feeds == 3


def test_e_sees_one_bit_and_z_forgives_signs_of_zero() -> None:
    before = body("y = Identity(x)")
    after = body("c = Constant<value = float {0.0}>() y = Add(x, c)")  # -0 becomes +0
    assert not judge(before, after, "E", FEEDS)
    assert judge(before, after, "Z", FEEDS).ok
    assert not judge(before, body("c = Constant<value = float {1e-6}>() y = Add(x, c)"), "Z", FEEDS)


def test_u_counts_units_in_the_last_place() -> None:
    before = body("c = Constant<value = float {3.0}>() y = Div(x, c)")
    after = body("c = Constant<value = float {0.33333334}>() y = Mul(x, c)")
    assert not judge(before, after, "E", FEEDS)
    assert judge(before, after, "U", FEEDS).ok
    assert not judge(before, body("c = Constant<value = float {0.3333336}>() y = Mul(x, c)"), "U", FEEDS)
    assert not judge(before, body("c = Constant<value = float {0.3333336}>() y = Mul(x, c)"), "U", FEEDS, ulp=1)


def test_r_measures_against_a_float64_run() -> None:
    feeds = [{"x": np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)}]
    result = judge(conv_bn(), conv_bn(folded=True), "R", feeds)
    assert result.ok, result.reason
    assert "no float64 run" not in result.reason
    assert not judge(conv_bn(), conv_bn(folded=True), "E", feeds)
    assert not judge(conv_bn(), conv_bn(folded=True, wrong=1.00001), "R", feeds)


def test_r_holds_overflow_and_nan_to_the_truth() -> None:
    # x * 1e30 * 1e-30: the original overflows on the way, the result does not, and the truth is in range.
    before = body(
        "a = Constant<value = float {1e30}>() b = Constant<value = float {1e-30}>() t = Mul(x, a) y = Mul(t, b)"
    )
    after = body("y = Identity(x)")
    feeds = [{"x": np.array([[1e20, -1e20, 1.0, 2.0, 3.0, np.nan, np.inf, -np.inf]], np.float32)}]
    assert judge(before, after, "R", feeds).ok
    worse = judge(after, before, "R", feeds)
    assert not worse.ok
    assert "was" in worse.reason


def test_r_without_a_float64_run_says_so() -> None:
    before = text_model("(float[2] x) => (bfloat16[2] y) { y = Cast<to = 16>(x) }")
    feeds = [{"x": np.array([1.0, 2.0], np.float32)}]
    assert judge(before, before, "R", feeds).ok


def test_d_looks_at_shapes_and_dtypes_only() -> None:
    assert judge(body("y = Neg(x)"), body("y = Abs(x)"), "D", FEEDS).ok
    other = text_model("(float[N, 8] x) => (float[N, 8] y) { y = Concat<axis = 0>(x, x) }")
    assert "shape" in judge(body("y = Neg(x)"), other, "D", FEEDS).reason


def test_feeds_that_the_original_refuses_cover_nothing() -> None:
    before = text_model("(float[N] x) => (float[M] y) { s = Constant<value_ints = [2]>() y = Reshape(x, s) }")
    result = judge(before, before, "E", [{"x": np.zeros(2, np.float32)}, {"x": np.zeros(3, np.float32)}])
    assert (result.ok, result.feeds, result.skipped) == (True, 1, 1)
    strict = text_model("(float[2] x) => (float[2] y) { y = Identity(x) }")
    wide = text_model("(float[N] x) => (float[N] y) { y = Identity(x) }")
    assert "fails where" in judge(wide, strict, "E", [{"x": np.zeros(3, np.float32)}]).reason


def test_results_that_do_not_load_or_have_another_signature() -> None:
    before = body("y = Neg(x)")
    assert "does not load" in judge(before, body("y = Foo(x)"), "E", FEEDS).reason
    assert "outputs" in judge(before, text_model("(float[N,8] x) => (float[N,8] z) { z = Neg(x) }"), "E", FEEDS).reason
    with pytest.raises(ExecutionError):
        judge(body("y = Foo(x)"), before, "E", FEEDS)


def test_integers_strings_and_sequences() -> None:
    text = "(int64[N] x) => (int64[N] y, seq(int64[N]) s) {{ y = {op} s = SequenceConstruct(y) }}"
    before, after = text_model(text.format(op="Neg(x)")), text_model(text.format(op="Abs(x)"))
    feeds = [{"x": np.array([1, -2, 3])}]
    assert judge(before, before, "R", feeds).ok
    assert not judge(before, after, "R", feeds)


def test_a_judgement_takes_milliseconds() -> None:
    before, after = body("y = Neg(x)"), body("y = Neg(x)")
    judge(before, after, "E", FEEDS)
    started = time.perf_counter()
    for _ in range(50):
        judge(before, after, "E", FEEDS)
    assert (time.perf_counter() - started) / 50 < 0.02
