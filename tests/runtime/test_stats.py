"""The estimator on simulated machines: false alarms, power, and what it is made of."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from graphopt.runtime.stats import Estimate, best_estimate, log_ratios, lower_runs, ratio_interval, verdict

RUNS = 5


Array = np.ndarray[Any, Any]


def machines(rng: np.random.Generator, times: int, pairs: int, rounds: int, *, slower: float, busy: float) -> Array:
    """Seconds of runs [times, pairs, rounds, side, runs] as they follow each other: A B B A.

    Each session has a speed of its own (0.4 %). The clock wanders (autocorrelated), every run has 1 % of its own, and
    another program comes and goes for some hundred runs at a time; while it is there most runs lose time, some of them
    many times their own length (a Pareto tail without a variance).
    """
    count = pairs * rounds * 2 * RUNS
    clock = np.zeros((count, times))
    there = np.zeros((count, times), dtype=bool)
    there[0] = rng.random(times) < busy
    for place in range(1, count):
        clock[place] = 0.99 * clock[place - 1] + rng.normal(0, 0.003, times)
        goes = rng.random(times) * 400 * np.where(there[place - 1], busy, 1 - busy) < 1
        there[place] = (there[place - 1] ^ goes) & (busy > 0)
    seconds = np.exp(clock + rng.normal(0, 0.01, clock.shape))
    seconds += there * (rng.random(clock.shape) < 0.6) * 0.5 * rng.pareto(1.5, clock.shape)
    shaped = seconds.T.reshape(times, pairs, rounds, 2, RUNS)
    shaped[:, :, 1::2] = shaped[:, :, 1::2, ::-1].copy()  # every other round began with the other side
    sessions = np.exp(rng.normal(0, 0.004, (times, pairs, 1, 2, 1)))
    sessions[:, :, :, 1] *= 1 + slower
    return np.asarray(shaped * sessions)


def estimate(seconds: Array) -> Estimate:
    ratios = []
    for blocks in (np.median(seconds, axis=-1), np.sort(seconds, axis=-1)[..., :2].mean(axis=-1)):
        by_side = [blocks[:, :, side].tolist() for side in (0, 1)]
        ratios.append(log_ratios((by_side[0], by_side[1])))
    return best_estimate(ratios[0], ratios[1])


@pytest.mark.parametrize(("pairs", "rounds", "busy"), [(5, 20, 0.0), (5, 20, 0.5), (20, 6, 0.3), (20, 6, 0.7)])
def test_false_alarms_are_rare_and_a_tenth_is_seen(pairs: int, rounds: int, busy: float) -> None:
    rng = np.random.default_rng([pairs, rounds, int(10 * busy)])
    times, covered = 300, 0
    said = {slower: Counter[str]() for slower in (0.0, 0.1)}
    for slower, counts in said.items():
        for seconds in machines(rng, times, pairs, rounds, slower=slower, busy=busy):
            found = estimate(seconds)
            counts[verdict(found.low, found.high)] += 1
            covered += found.low <= 1 / (1 + slower) <= found.high
    same, tenth = said[0.0], said[0.1]
    assert same["faster"] + same["slower"] <= 0.01 * times, same
    assert tenth["slower"] >= 0.95 * times, tenth
    assert tenth["faster"] == 0
    assert covered >= 0.98 * 2 * times
    if pairs == 20:
        assert same["no difference seen"] >= 0.97 * times, same


def test_a_pair_that_was_fallen_upon_does_not_decide() -> None:
    rng = np.random.default_rng(1)
    quiet = [rng.normal(0.0, 0.004, 8).tolist() for _ in range(12)]
    hit = [*quiet[:-1], [1.5] * 8]
    ratio, low, high = ratio_interval(hit)
    assert ratio == pytest.approx(1, abs=0.005)
    assert high / low - 1 < 0.02
    assert high / low > 1.0


def test_medians_are_taken_where_they_are_sharp_enough() -> None:
    sharp = [[0.001 * place] * 4 for place in range(10)]
    blunt = [[0.2 * (-1) ** place] * 4 for place in range(10)]
    assert best_estimate(sharp, blunt).of == "median"
    assert best_estimate(sharp, sharp).of == "median"
    assert best_estimate(blunt, sharp).of == "lower"
    assert best_estimate(blunt, [[math.log(2)]]).ratio == pytest.approx(2)


def test_what_is_settled() -> None:
    assert Estimate(1.0, 0.985, 1.015).settles
    assert not Estimate(1.0, 0.97, 1.01).settles
    assert not Estimate(math.nan, math.nan, math.nan).settles
    assert Estimate(math.nan, math.nan, math.nan).width == math.inf


def test_few_data() -> None:
    assert all(math.isnan(number) for number in ratio_interval([]))
    assert ratio_interval([[0.1]]) == pytest.approx((math.exp(0.1),) * 3)
    _, low, high = ratio_interval([[0.0, 0.1]])
    assert low < 1 < high
    _, low, high = ratio_interval([[-20.0], [20.0]])
    assert 0 < low < 1 < high < math.inf


def test_blocks_and_ratios() -> None:
    assert lower_runs([5.0, 1.0, 2.0, 9.0, 7.0]) == 1.5
    assert lower_runs([3.0]) == 3.0
    assert lower_runs([3.0, 2.0]) == 2.0
    paired = log_ratios(([[2.0, 4.0]], [[1.0, 1.0]]))
    assert paired == [pytest.approx([math.log(2), math.log(4)])]
    assert log_ratios(([[2.0, 2.0, 8.0]], [[1.0]])) == [pytest.approx([math.log(2)])]
