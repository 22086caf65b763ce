"""Float64 runs of the original where the runtime has no kernels for them, and what they excuse."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import ModelProto

import graphopt
from graphopt.errors import ExecutionError
from graphopt.onnxio import parse_text
from graphopt.runtime import truth
from graphopt.runtime.double import in_double
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.excuses import dtypes_made_in
from graphopt.runtime.judging import judge_r
from graphopt.runtime.session import JUDGE
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.truth import Reference
from graphopt.runtime.worker import Worker

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


def test_the_standard_domain_by_its_other_name() -> None:
    proto = model("(float[2] x) => (float[2] y) { y = Erf(x) }")
    proto.opset_import[0].domain = "ai.onnx"
    got = Reference(in_double(proto.SerializeToString())).run({"x": np.array([0.5, -1.0])})
    assert got["y"].dtype == np.float64


def test_nodes_in_any_order() -> None:
    proto = model("(float[2] x) => (float[2] y) { a = Erf(x)  b = Neg(a)  y = Add(a, b) }")
    last, *others = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*reversed(others), last])
    got = Reference(in_double(proto.SerializeToString())).run({"x": np.array([0.5, -1.0])})
    assert got["y"].tolist() == [0.0, 0.0]


def test_a_model_is_prepared_for_the_reference_once(worker: Worker) -> None:
    data = in_double(model("(float[2] x) => (float[2] y) { y = Erf(x) }").SerializeToString())
    with truth._ReferenceSession(ModelSource("a model", data=data), JUDGE, worker=worker) as session:
        opened = []
        for value in (0.0, 1.0):
            got = session.run({"x": np.full(2, value)}, timeout=60)
            assert got["y"] == pytest.approx(math.erf(value), abs=1e-15)
            opened.append(session._number)
    assert opened[0] == opened[1] > 0


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


def test_what_is_cast_at_the_end_has_the_roundings_of_what_it_was_made_in() -> None:
    truth, unit = np.array([1.0, -0.75]), 2.0**-10
    reference, got = ((truth + share * unit).astype(np.float32) for share in (0.25, 3.0))
    half = np.dtype(np.float16)
    assert judge_r(reference, got, truth)[1]
    assert not judge_r(reference, got, truth, half)[1]
    assert judge_r(reference, (truth + 6.0 * unit).astype(np.float32), truth, half)[1]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("h = Cast<to = 10>(x)  g = Add(h, w)  y = Cast<to = 1>(g)", {"y": np.dtype(np.float16)}),
        ("v = Cast<to = 1>(w)  y = Add(x, v)", {}),
        ("h = Cast<to = 10>(x)  g = Add(h, w)  f = Cast<to = 1>(g)  y = Mul(f, f)", {}),
    ],
)
def test_only_what_is_computed_in_half_precision_is_made_in_it(body: str, expected: dict[str, np.dtype[Any]]) -> None:
    data = model(f"(float[2] x, float16[2] w) => (float[2] y) {{ {body} }}").SerializeToString()
    source = ModelSource("a model", data=data)
    evidence = SimpleNamespace(original=source)
    assert dtypes_made_in(cast(Evidence, evidence), {"y"}) == expected
