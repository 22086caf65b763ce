from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from tuning_models import linear

from graphopt.runtime.compare import compare
from graphopt.runtime.loading import LoadedModel
from graphopt.runtime.session import AS_USERS, CPU, JUDGE, Session, SessionSettings
from graphopt.runtime.timing import Plan
from graphopt.tuning import executors, trial
from graphopt.tuning.executors import LocalExecutor, run_one
from graphopt.tuning.search import Outcome
from graphopt.tuning.trial import Contender, Job, Standard, Worst, check, quick_look, try_here

QUICK = Plan(pairs=3, most_pairs=3, seconds=0.1, most_rounds=10)
ONE_THREAD = AS_USERS.but(threads=1)


@pytest.fixture(scope="module")
def standard() -> Standard:
    session = Session(linear(), JUDGE)
    feeds = tuple(
        {"x": np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)}
        for seed, rows in enumerate((8, 3, 8))
    )
    return Standard(feeds, tuple(session.run(feed) for feed in feeds), {"y": 1e-5})


def job(standard: Standard, candidate: Contender | None = None, **changes: Any) -> Job:
    best = Contender(linear(), ONE_THREAD)
    return Job(candidate or best, best, standard, QUICK, **changes)


def refused(limit: float, left: Any, right: Any) -> str:
    worst = Worst()
    worst.take("y", compare(left, right), limit)
    return worst.refusal


def test_errors_within_the_limit_stand() -> None:
    one = np.array([1.0, 4.0], np.float32)
    assert refused(1e-3, one, one + np.float32(1e-3)) == ""
    assert "off by 2.5e-02 and 1.0e-03 is allowed" in refused(1e-3, one, one + np.float32(0.1))


def test_nan_where_the_original_is_finite_is_refused_whatever_is_allowed() -> None:
    finite, broken = np.array([1.0, 2.0], np.float32), np.array([1.0, np.nan], np.float32)
    assert "NaN" in refused(1e9, finite, broken)
    assert "NaN" in refused(1e9, finite, np.array([1.0, np.inf], np.float32))
    assert "NaN" in refused(1e9, broken, finite)
    assert refused(0.0, broken, broken.copy()) == ""


def test_another_shape_or_dtype_is_refused() -> None:
    one = np.ones(3, np.float32)
    assert "shape" in refused(1e9, one, np.ones(4, np.float32))
    assert "dtype" in refused(1e9, one, np.ones(3, np.float64))


def test_the_worst_output_is_named() -> None:
    worst = Worst()
    one = np.ones(2, np.float32)
    for name, error in (("a", 0.0), ("b", 0.5), ("c", 0.25)):
        worst.take(name, compare(one, one + np.float32(error)), 1.0)
    assert (worst.output, worst.error, worst.refusal) == ("b", 0.5, "")


def test_a_run_that_ignores_its_inputs_is_found(standard: Standard) -> None:
    """As a recorded run does whose buffers are not written: the first answer for ever."""

    class Stuck(LoadedModel):
        kept: Mapping[str, Any] | None = None

        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            self.kept = self.kept or super().run(feeds)
            return dict(self.kept)

    same_shape = Standard(
        (standard.feeds[0], standard.feeds[2]), (standard.references[0], standard.references[2]), {"y": 1e-5}
    )
    session = Session(linear(), ONE_THREAD)
    assert check(LoadedModel(session), same_shape).refusal == ""
    assert "off by" in check(Stuck(session), same_shape).refusal


def test_a_trial_is_compared_and_timed(standard: Standard) -> None:
    outcome = try_here(job(standard))
    assert outcome.verdict in ("faster", "slower", "no faster")
    assert outcome.error < 1e-5
    assert outcome.median_ms > 0
    assert outcome.low <= outcome.ratio <= outcome.high
    assert outcome.seconds > 0


def timed(ratio: float, width: float = 0.005) -> trial.Timed:
    return trial.Timed(ratio, ratio * (1 - width), ratio * (1 + width), 1.0, ratio, 30, 3)


@pytest.mark.parametrize(
    ("look", "bar", "full", "verdict", "words"),
    [
        (1.00, 1.0, None, "no faster", "first look"),
        (0.50, 1.0, None, "slower", "first look"),
        (1.20, 1.7, None, "outdone", "another of its kind is 1.70 times"),
        (1.60, 1.7, 1.65, "faster", "99% interval 1.642 to 1.658 (30 rounds in 3 pairs of sessions)"),
        (1.05, 1.0, 1.05, "faster", "99% interval"),
        (1.05, 1.0, 1.01, "no faster", "not outside 1 ± 2%"),
        (1.05, 1.0, 0.95, "slower", "99% interval"),
    ],
)
def test_what_is_timed_in_full_and_what_is_said(
    look: float,
    bar: float,
    full: float | None,
    verdict: str,
    words: str,
    standard: Standard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking, measured = quick_look(0.1), list[Plan]()

    def fake(job: Job, plan: Plan) -> trial.Timed:
        measured.append(plan)
        if plan is looking:
            return timed(look)
        assert full is not None
        return timed(full)

    monkeypatch.setattr(trial, "_time", fake)
    outcome = try_here(job(standard, look=looking, bar=bar))
    assert (outcome.verdict, words in outcome.reason) == (verdict, True), outcome.reason
    assert len(measured) == (1 if full is None else 2)


def test_noise_is_said(standard: Standard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_time", lambda job, plan: timed(1.3, width=0.4))
    outcome = try_here(job(standard))
    assert outcome.verdict == "no faster"
    assert outcome.reason.endswith("too noisy to say")


def test_a_wrong_result_is_never_timed(standard: Standard) -> None:
    outcome = try_here(job(standard, Contender(linear(seed=1), ONE_THREAD)))
    assert outcome.verdict == "refused"
    assert np.isnan(outcome.median_ms)
    assert outcome.error > 0.1


def test_another_device_is_refused(standard: Standard) -> None:
    outcome = try_here(job(standard, device="another"))
    assert (outcome.verdict, "another device" in outcome.reason) == ("refused", True)


def test_the_runtime_refusing_is_an_outcome(standard: Standard) -> None:
    outcome = run_one(job(standard, Contender(b"no model", ONE_THREAD)), 60)
    assert outcome.verdict == "refused"
    assert outcome.reason.startswith("model refused: ")
    assert outcome.seconds > 0


def _dies(job: Job) -> Outcome:
    os.abort()


def _hangs(job: Job) -> Outcome:
    time.sleep(600)
    raise AssertionError


@pytest.mark.parametrize(("function", "reason"), [(_dies, "crashed"), (_hangs, "timed out")])
def test_a_crash_and_a_hang_are_outcomes(
    function: Any, reason: str, standard: Standard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "try_here", function)
    jobs = [job(standard)]
    [(number, outcome)] = LocalExecutor().run(jobs, 5.0 if reason == "crashed" else 1.5)
    assert (number, outcome.verdict) == (0, "refused")
    assert outcome.reason.startswith(reason)


def test_settings_that_do_not_exist_are_refused() -> None:
    for attributes in ((("execution_mode", "ORT_SIDEWAYS"),),):
        with pytest.raises(Exception, match="no value 'ORT_SIDEWAYS'"):
            Session(linear(), SessionSettings(provider=CPU, attributes=attributes))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    module = pytest.importorskip("ray", reason="ray is not installed: pip install 'graphopt[ray]'")
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield module
    module.shutdown()


def test_ray_runs_the_same_trials(standard: Standard, ray: Any) -> None:
    executor = executors.RayExecutor()
    try:
        assert executor.slots == 1
        jobs = [job(standard), job(standard, Contender(linear(seed=1), ONE_THREAD))]
        outcomes = dict(executor.run(jobs, 60.0))
    finally:
        executor.close()
    assert outcomes[0].verdict != "refused"
    assert outcomes[1].verdict == "refused"
    assert "off by" in outcomes[1].reason
    assert ray.is_initialized()  # whoever started it ends it


def test_ray_gives_each_gpu_or_machine_one_trial() -> None:
    nodes = [
        {"NodeID": "b", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}},
        {"NodeID": "c", "Alive": False, "Resources": {"CPU": 4.0, "GPU": 8.0}},
    ]
    assert executors._slots(nodes, gpus=True) == [("b", 8.0), ("b", 8.0)]
    assert executors._slots(nodes, gpus=False) == [("a", 4.0), ("b", 8.0)]
