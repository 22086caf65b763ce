"""Float64 runs of the original where the runtime has no kernels for them, and what they excuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import graphopt
from graphopt.errors import ExecutionError
from graphopt.onnxio import parse_text
from graphopt.runtime import truth
from graphopt.runtime.double import in_double
from graphopt.runtime.session import JUDGE, Session
from graphopt.runtime.truth import run_by_reference

OPSETS = {"": 17, "com.microsoft": 1}
PAIRS = 12
STEPS = "  ".join(f"u{place} = Mul(v{place}, third)  v{place + 1} = Mul(u{place}, three)" for place in range(PAIRS))
WHOLE = (float(np.float32(1 / 3)) * 3) ** PAIRS
ROUNDED = f"""(int64[B,64] i) => (float[B,64] y)
    <float third = {{{1 / 3:.9g}}}, float three = {{3.0}}, float whole = {{{WHOLE:.9g}}}, float off = {{1.000004}}> {{
    x = Cast<to = 1>(i)  g = Erf(x)  n = Sigmoid(x)  h = Add(n, g)  v0 = Add(h, x)  BODY
}}"""
"""No input of floats and nothing to optimize, so that no noise is measured: the float64 run has to tell."""
STEP_BY_STEP = ROUNDED.replace("BODY", f"{STEPS}  y = Identity(v{PAIRS})")
AT_ONCE = ROUNDED.replace("BODY", "y = Mul(v0, whole)")
WRONG = ROUNDED.replace("BODY", "w = Mul(v0, whole)  y = Mul(w, off)")


def model(text: str) -> ModelProto:
    return parse_text(text, OPSETS)


def runs(text: str, feeds: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the runtime gives in float32, and the reference in float64."""
    data = model(text).SerializeToString()
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    return Session(data, JUDGE).run(feeds), run_by_reference(in_double(data), wide)


NORMALIZED = "float[2,3,8] x, float[2,3,8] r, float[8] w, float[8] c, float[8] b"
SKIP = "com.microsoft.SkipLayerNormalization<epsilon = 0.001>"
RMS = "com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>"
ROWS = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v, float[24] c, float[2,2,3,5] m"
PAST = "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,4,4] pk, float[2,2,4,4] pv"
LAYERS = "float[2,3,4] x, float[4,24] w, float[24] c, int32[2,5] m, float[2,2,2,2,4] p"
MULTI = "com.microsoft.MultiHeadAttention"
ATTENTION = "com.microsoft.Attention"
OPERATORS = {
    "a sum normalized": f"({NORMALIZED}) => (float[2,3,8] y, float[2,3,8] s) {{ y, , , s = {SKIP}(x, r, w, c, b) }}",
    "without shift": f"({NORMALIZED}) => (float[2,3,8] y) {{ y = {SKIP}(x, r, w) }}",
    "mean square": f"({NORMALIZED}) => (float[2,3,8] y, float[2,3,8] s) {{ y, , , s = {RMS}(x, r, w, b) }}",
    "gelu": "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.Gelu(x) }",
    "biased gelu": "(float[2,8] x, float[8] b) => (float[2,8] y) { y = com.microsoft.BiasGelu(x, b) }",
    "fast gelu": "(float[2,8] x, float[8] b) => (float[2,8] y) { y = com.microsoft.FastGelu(x, b) }",
    "quick gelu": "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.QuickGelu<alpha = 1.5>(x) }",
    "heads": f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2>(q, k, v, c, , m) }}",
    "heads, scaled": f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2, scale = 0.3>(q, k, v) }}",
    "heads, cached": f"({PAST}) => (float[2,3,8] y, float[2,2,7,4] kk, float[2,2,7,4] vv)"
    f" {{ y, kk, vv = {MULTI}<num_heads = 2, unidirectional = 1>(q, k, v, , , , pk, pv) }}",
    "layers": f"({LAYERS}) => (float[2,3,8] y) {{ y = {ATTENTION}<num_heads = 2>(x, w, c) }}",
    "layers, cached": f"({LAYERS}) => (float[2,3,8] y, float[2,2,2,5,4] z)"
    f" {{ y, z = {ATTENTION}<num_heads = 2, unidirectional = 1>(x, w, c, m, p) }}",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_the_runtime_compute_what_it_computes(name: str) -> None:
    rng = np.random.default_rng(2)
    feeds: dict[str, Any] = {}
    for item in model(OPERATORS[name]).graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        is_mask = item.type.tensor_type.elem_type == 6
        feeds[item.name] = np.ones(shape, np.int32) if is_mask else rng.standard_normal(shape).astype(np.float32)
    got, exact = runs(OPERATORS[name], feeds)
    for output, value in got.items():
        assert exact[output].dtype == np.float64
        np.testing.assert_allclose(value, exact[output], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "text",
    [
        f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2, do_rotary = 1>(q, k, v) }}",
        f"({LAYERS}) => (float[2,3,8] y) {{ y = {ATTENTION}<num_heads = 2, qkv_hidden_sizes = [8,8,8]>(x, w, c) }}",
        "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.Trilu(x) }",
    ],
)
def test_forms_that_are_not_written_here_give_no_truth(text: str) -> None:
    proto = model(text)
    feeds = {
        item.name: np.ones([dim.dim_value for dim in item.type.tensor_type.shape.dim], np.float64)
        for item in proto.graph.input
    }
    with pytest.raises(ExecutionError, match="no float64 run by the reference"):
        run_by_reference(in_double(proto.SerializeToString()), feeds)


def test_the_standard_domain_by_its_other_name() -> None:
    proto = model("(float[2] x) => (float[2] y) { y = Erf(x) }")
    proto.opset_import[0].domain = "ai.onnx"
    got = run_by_reference(in_double(proto.SerializeToString()), {"x": np.array([0.5, -1.0])})
    assert got["y"].dtype == np.float64


def test_rounding_behind_operators_without_a_kernel_in_double_is_excused() -> None:
    found = graphopt.verify(model(STEP_BY_STEP), model(AT_ONCE), provider="cpu")
    assert found.verdict == "equal"
    assert any("float64 run" in item.reason for item in found.outputs)


def test_a_fault_little_larger_than_rounding_is_not_excused() -> None:
    assert graphopt.verify(model(STEP_BY_STEP), model(WRONG), provider="cpu").verdict == "different"


def test_no_float64_run_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: truth.Truth, feeds: Any) -> dict[str, Any]:
        raise ExecutionError("no float64 run")

    monkeypatch.setattr(truth.Truth, "run", failing)
    assert graphopt.verify(model(STEP_BY_STEP), model(AT_ONCE), provider="cpu").verdict == "different"


def test_a_truth_that_the_original_is_far_from_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def far(self: truth.Truth, feeds: Any) -> dict[str, Any]:
        return {"y": np.full(feeds["i"].shape, 1e3)}

    monkeypatch.setattr(truth.Truth, "run", far)
    assert graphopt.verify(model(STEP_BY_STEP), model(AT_ONCE), provider="cpu").verdict == "different"
