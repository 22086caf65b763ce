from __future__ import annotations

import json

import numpy as np
import pytest
from runtime_models import text_model

from graphopt.runtime import benchmark
from graphopt.runtime.stats import ratio_interval, verdict


def chain(count: int) -> bytes:
    """`count` matrix products that the runtime cannot fold or drop."""
    nodes = " ".join(f"t{i + 1} = MatMul(t{i}, w) s{i + 1} = Tanh(t{i + 1})" for i in range(count))
    return text_model(f"(float[64, 64] t0, float[64, 64] w) => (float[64, 64] y) {{ {nodes} y = Add(s{count}, s1) }}")


def test_no_difference_between_a_model_and_itself() -> None:
    result = benchmark(chain(6), chain(6), threads=1, max_time=3.0, memory=False)
    assert result.verdict in ("no difference seen", "too noisy to say"), result.reason
    assert 0.8 < result.ratio < 1.25
    assert result.low <= result.ratio <= result.high
    assert result.original is not None
    assert result.original.sessions >= 3
    assert result.original.runs > 50
    json.dumps(result.to_json(), allow_nan=False)


def test_a_known_slowdown_and_its_reverse_are_seen() -> None:
    slower = benchmark(chain(2), chain(12), threads=1, max_time=3.0)
    assert slower.verdict == "slower", slower.reason
    assert slower.ratio < 0.8
    assert slower.rewritten is not None
    assert slower.rewritten.file_bytes == len(chain(12))
    assert slower.rewritten.peak_bytes is None or slower.rewritten.peak_bytes > 1 << 20
    faster = benchmark(chain(12), chain(2), threads=1, max_time=3.0, memory=False)
    assert faster.verdict == "faster", faster.reason


def test_what_the_runtime_does_by_itself_is_told() -> None:
    before = text_model("(float[8] x) => (float[8] y) { a = Identity(x) b = Identity(a) c = Neg(b) y = Abs(c) }")
    after = text_model("(float[8] x) => (float[8] y) { c = Neg(x) y = Abs(c) }")
    result = benchmark(before, after, threads=1, max_time=1.0, memory=False)
    if result.verdict in ("no difference seen", "too noisy to say"):
        assert result.runtime_does == {"Identity": (2, 0)}


def test_models_that_do_not_run_are_not_measured() -> None:
    result = benchmark(chain(2), b"no model", threads=1, max_time=1.0)
    assert result.verdict == "not measured"
    assert result.original is None


def test_intervals_hold_and_are_wider_for_few_sessions() -> None:
    rng = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(200):
        sessions = rng.normal(0, 0.004, 5)
        rounds = [rng.normal(centre, 0.03, 60).tolist() for centre in sessions]
        _, low, high = ratio_interval(rounds)
        false_alarms += verdict(low, high) in ("faster", "slower")
    assert false_alarms == 0
    rounds = [rng.normal(0.1, 0.02, 60).tolist() for _ in range(5)]
    ratio, low, high = ratio_interval(rounds)
    assert low < np.exp(0.1) < high
    assert verdict(low, high) == "faster"
    few = ratio_interval(rounds[:3])
    assert few[2] - few[1] > high - low
    assert ratio == pytest.approx(np.exp(0.1), rel=0.02)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.03, 1.2, "faster"),
        (0.8, 0.97, "slower"),
        (1.01, 1.03, "no difference seen"),
        (0.98, 1.02, "no difference seen"),
        (0.8, 1.3, "too noisy to say"),
        (float("nan"), 1.0, "not measured"),
    ],
)
def test_verdicts(low: float, high: float, said: str) -> None:
    assert verdict(low, high) == said


@pytest.mark.gpu
def test_on_cuda(cuda: str) -> None:
    assert benchmark(chain(2), chain(40), provider=cuda, max_time=3.0).verdict == "slower"
