"""Values inside that are further off than noise, where both models in float64 tell rounding from a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import text_model

from graphopt.errors import ExecutionError
from graphopt.records import OutputDiff, Verification
from graphopt.runtime import truth, verify
from graphopt.runtime.worker import Worker

ULP = 2.0**-23
NEAR, FAR = 16.0, 32.0
"""What makes rounding of between 2 and 4, and of more than 4 times the tolerance."""


def sines(around: float = 0.0, off: float = 0.0, behind: float = 1.0) -> bytes:
    """Sines times a weight, given back with large numbers that hide their last places; no noise was measured there.

    Args:
        around: What is added to some elements and taken from them again, which is nothing in float64.
        off: By how many ulps the weight is off there.
        behind: A factor of the difference between the product and the sines, which is a hundredth of either.
    """
    weight, number = np.full(64, 1.01, np.float32), np.zeros(64, np.float32)
    weight[::11] += np.float32(off * ULP)
    number[::11] = around
    product = "m = Mul(n, w)  a = Add(m, k)  h = Sub(a, k)" if around else "h = Mul(n, w)"
    text = f"""(int64[N, 64] i) => (float[N, 64] y, float[N, 64] z)
               <float large = {{64.0}}, float less = {{8.0}}, float f = {{{behind:.9g}}}> {{
        x = Cast<to = 1>(i)  n = Sin(x)  {product}  y = Add(h, large)  d = Sub(h, n)  g = Mul(d, f)  z = Add(g, less)
    }}"""
    proto = onnx.ModelProto.FromString(text_model(text))
    proto.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(number, "k")])
    return proto.SerializeToString()


def found(worker: Worker, **changes: float) -> tuple[Verification, dict[str, OutputDiff]]:
    result = verify(sines(), sines(**changes), provider="cpu", worker=worker)
    assert all(item.verdict == "equal" for item in result.outputs)
    return result, {item.name: item for item in result.inner}


def is_between(item: OutputDiff, low: float, high: float) -> bool:
    assert item.tolerance is not None
    return low * item.tolerance < item.error < high * item.tolerance


def test_a_kernel_that_rounds_more_is_no_fault_where_float64_agrees(worker: Worker) -> None:
    result, inner = found(worker, around=NEAR)
    assert result.verdict == "equal", result.reason
    assert is_between(inner["h"], 2, 4)
    assert "the same in float64" in inner["h"].reason


def test_what_it_makes_of_values_behind_is_none_either(worker: Worker) -> None:
    _, inner = found(worker, around=NEAR)
    assert is_between(inner["d"], 20, np.inf)
    assert "the same in float64" in inner["d"].reason


@pytest.mark.parametrize("around", [0.0, NEAR / 4])
def test_a_wrong_weight_that_makes_as_much_is_a_fault(around: float, worker: Worker) -> None:
    result, inner = found(worker, off=8, around=around)
    assert result.verdict == "different"
    assert "'h' inside the model differs" in result.reason
    assert is_between(inner["h"], 2, 4)


def test_a_fault_behind_a_kernel_that_rounds_more_is_one(worker: Worker) -> None:
    """By less than that kernel's rounding makes of the value."""
    result, _ = found(worker, around=NEAR, behind=1 + 64 * ULP)
    assert result.verdict == "different"
    assert "'g' inside the model differs" in result.reason


def test_more_than_kernels_round_is_a_fault_whatever_float64_says(worker: Worker) -> None:
    result, inner = found(worker, around=FAR)
    assert result.verdict == "different"
    assert "'h' inside the model differs" in result.reason
    assert is_between(inner["h"], 4, np.inf)


def test_without_float64_runs_the_margin_decides(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: truth.Truth, feeds: Any) -> dict[str, Any]:
        raise ExecutionError("no float64 run")

    monkeypatch.setattr(truth.Truth, "run", failing)
    _, inner = found(worker, around=NEAR)
    assert "no float64 run can tell" in inner["h"].reason
    assert found(worker, around=FAR)[0].verdict == "different"
