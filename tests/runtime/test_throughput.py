from __future__ import annotations

import threading
import time

import pytest
from runtime_models import text_model

from graphopt.runtime import benchmark
from graphopt.runtime.throughput import at_once


def test_requests_are_served_at_the_same_time() -> None:
    seconds = at_once([lambda: time.sleep(0.02)] * 4, 0.02)
    assert 0.004 < seconds < 0.015


def test_a_failure_reaches_the_caller() -> None:
    def fail() -> None:
        raise RuntimeError(threading.current_thread().name)

    with pytest.raises(RuntimeError):
        at_once([fail, lambda: time.sleep(0.001)], 0.001)


def test_throughput_has_a_ratio_with_its_interval() -> None:
    model = text_model("(float[32, 32] x) => (float[32, 32] y) { a = MatMul(x, x) y = Tanh(a) }")
    result = benchmark(model, model, threads=1, max_time=2.0, concurrency=3, memory=False, placement=False)
    (found,) = result.comparisons
    assert found.name == "throughput"
    assert found.unit == "requests/s"
    assert found.detail == "3 at a time"
    assert found.original > 100
    assert found.low <= found.ratio <= found.high
    assert found.verdict in ("no difference seen", "too noisy to say")
    assert [len(side) for side in found.samples] == [result.original.sessions] * 2  # type: ignore[union-attr]
    assert result.lowest_high() <= found.high
