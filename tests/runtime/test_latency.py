from __future__ import annotations

import json
import time

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
    """A busy machine may make it too noisy to say; a difference it must never see."""
    for _ in range(3):
        result = benchmark(chain(6), chain(6), threads=1, max_time=3.0, memory=False, placement=False)
        assert result.verdict in ("no difference seen", "too noisy to say"), result.reason
        assert 0.8 < result.ratio < 1.25
        assert result.low <= 1.02
        assert result.high >= 0.98
        if result.verdict == "no difference seen":
            break
    else:
        pytest.skip("this machine is too busy for a verdict")
    assert result.original is not None
    assert result.original.sessions >= 3
    assert result.original.runs > 50
    json.dumps(result.to_json(), allow_nan=False)


def test_every_run_is_in_the_document_by_session() -> None:
    result = benchmark(chain(2), chain(2), threads=1, max_time=1.0, memory=False, placement=False)
    assert result.original is not None
    document = result.to_json()["original"]
    assert len(document["samples"]) == result.original.sessions
    assert sum(map(len, document["samples"])) == result.original.runs
    assert np.median(np.concatenate(document["samples"])) * 1e3 == pytest.approx(result.original.median_ms)
    assert result.original.first_run_ms > 0
    plain = result.without_samples().original
    assert plain is not None
    assert plain.samples == ()
    assert plain.median_ms == result.original.median_ms


def test_time_is_bounded_as_a_whole() -> None:
    started = time.monotonic()
    benchmark(chain(6), chain(6), threads=1, max_time=4.0, concurrency=2, memory=False, placement=False)
    assert time.monotonic() - started < 12


def test_memory_and_placement_stand_beside_the_times() -> None:
    result = benchmark(chain(3), chain(6), threads=1, max_time=6.0)
    sides = (result.original, result.rewritten)
    for side, nodes in zip(sides, (7, 13), strict=True):
        assert side is not None
        if side.placement is None:
            assert "no time was left" in side.unknown["placement"]
            continue
        assert side.placement.nodes == nodes
        assert side.placement.copies == 0
        assert side.placement.providers == {"CPUExecutionProvider": nodes}
        assert side.unknown["device_bytes"] == "the model runs on the CPU"
        assert side.device_bytes is None


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
    result = benchmark(before, after, threads=1, max_time=1.0, memory=False, placement=False)
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
    widths = []
    for _ in range(40):
        rounds = [rng.normal(0.1, 0.02, 60).tolist() for _ in range(12)]
        widths.append([np.log(high / low) for _, low, high in (ratio_interval(rounds[:n]) for n in (3, 5, 12))])
    few, some, many = np.mean(widths, axis=0)
    assert few > 2 * some > 3 * many
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
    result = benchmark(chain(2), chain(40), provider=cuda, max_time=6.0, concurrency=2, profile=True)
    assert result.verdict == "slower"
    assert result.rewritten is not None
    assert result.rewritten.placement is not None
    assert result.rewritten.placement.copies == 0
    assert result.rewritten.device_bytes is None or result.rewritten.device_bytes > 1 << 20
    assert result.profile is not None
