"""Weights that no feed reads, and outputs that show nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from runtime_models import text_model

from graphopt import optimize
from graphopt.onnxio import load
from graphopt.runtime import verify
from graphopt.runtime.structure import is_constant
from graphopt.runtime.unread import changed_alike
from graphopt.runtime.worker import Worker

# The branch needs a first element that no made feed has.
BRANCH = (
    "(float[N] x, float[4] w, float[4] b) => (float[N, 4] y)"
    "{ i = Constant<value = int64 {0}>() f = Gather(x, i) t = Constant<value = float {1e9}>() c = Greater(f, t)"
    "a = Constant<value = int64[1] {1}>() u = Unsqueeze(x, a)"
    "y = If(c) <then_branch = p () => (float[N, 4] l) { l = Mul(u, w) },"
    "else_branch = q () => (float[N, 4] r) { r = Mul(u, b) }> }"
)


def branch(wide: float = 1.0, narrow: float = 1.0) -> bytes:
    proto = onnx.ModelProto.FromString(text_model(BRANCH))
    del proto.graph.input[1:]
    for name, factor in (("w", wide), ("b", narrow)):
        array = np.arange(1, 5, dtype=np.float32) * np.float32(factor)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto.SerializeToString()


def test_a_weight_of_a_branch_that_never_runs_is_not_verified(worker: Worker) -> None:
    result = verify(branch(), branch(wide=0.0), provider="cpu", worker=worker)
    assert result.verdict == "not verified"
    assert "'w' has other bytes" in result.reason
    assert "no output at any feed depends on what differs" in result.reason
    loose = verify(branch(), branch(wide=0.0), provider="cpu", rtol=0.1, worker=worker)
    assert loose.verdict == "not verified"
    reading = [{"x": np.array([2e9, 1.0], np.float32)}]
    assert verify(branch(), branch(wide=0.0), provider="cpu", feeds=reading, worker=worker).verdict == "different"


def test_a_weight_that_is_read_and_within_the_noise_is_equal(worker: Worker) -> None:
    changed = branch(narrow=float(np.nextafter(np.float32(1), np.float32(2))))
    result = verify(branch(), changed, provider="cpu", rtol=1e-3, worker=worker)
    assert result.verdict == "equal", result.reason


def test_what_our_own_rewrites_change_is_verified(worker: Worker) -> None:
    proto = onnx.ModelProto.FromString(branch())
    result = verify(branch(), optimize(proto).model, provider="cpu", worker=worker)
    assert result.verdict == "equal", result.reason


def test_only_weights_read_alike_are_suspicious() -> None:
    assert list(changed_alike(load(branch()), load(branch(wide=2.0)))) == ["w"]
    other = onnx.ModelProto.FromString(branch(wide=2.0))
    then = other.graph.node[-1].attribute[0].g
    then.node[0].op_type = "Div"
    assert not changed_alike(load(branch()), load(other.SerializeToString()))


ZERO = "z = Constant<value = float {0.0}>()"


def vacuous(factor: float = 1.0, tail: str = "y = Mul(m, z)") -> bytes:
    number = f"c = Constant<value = float {{{factor}}}>()"
    return text_model(f"(float[N, 4] x) => (float[N, 4] y) {{ {number} {ZERO} m = Mul(x, c) {tail} }}")


@pytest.mark.parametrize("factor", [1.5, 1.001])
def test_outputs_that_show_no_change_prove_nothing(worker: Worker, factor: float) -> None:
    result = verify(vacuous(), vacuous(factor), provider="cpu", worker=worker)
    assert result.verdict == "not verified"
    assert "no output shows a change" in result.reason or "no output at any feed depends" in result.reason
    assert verify(vacuous(), vacuous(), provider="cpu", worker=worker).verdict == "equal"


def test_values_inside_are_evidence_where_outputs_are_none(worker: Worker) -> None:
    direct = vacuous(tail="s = Tanh(m) y = Mul(s, z)")
    doubled = vacuous(tail="i = Identity(m) s = Tanh(i) y = Mul(s, z)")
    result = verify(direct, doubled, provider="cpu", worker=worker)
    assert result.verdict == "equal", result.reason
    assert "inside" in result.reason


def test_a_model_of_constants_is_compared_by_them(worker: Worker) -> None:
    def filled(number: float, tail: str = "y = Identity(c)") -> bytes:
        made = f"s = Shape(x) c = ConstantOfShape<value = float[1] {{{number}}}>(s)"
        return text_model(f"(float[N, 4] x) => (float[A, B] y) {{ {made} {tail} }}")

    assert is_constant(load(filled(2.0)))
    assert not is_constant(load(vacuous()))
    more = filled(2.0, "i = Identity(c) y = Identity(i)")
    assert verify(filled(2.0), more, provider="cpu", worker=worker).verdict == "equal"
    assert verify(filled(2.0), filled(3.0), provider="cpu", worker=worker).verdict == "different"


def test_zeros_that_every_weight_would_move_are_evidence(worker: Worker) -> None:
    text = "(float[N, 4] x) => (float[N, 4] y) {{ z = Constant<value = float {{0.0}}>() {} }}"
    once, twice = (text.format(tail) for tail in ("y = Mul(x, z)", "i = Identity(x) y = Mul(i, z)"))
    result = verify(text_model(once), text_model(twice), provider="cpu", worker=worker)
    assert result.verdict == "equal", result.reason
    assert "each weight moves one" in result.reason
