"""The interval of a speed ratio: a bootstrap that resamples sessions first and rounds within them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.99
# A difference below this is not called one, whatever the interval says.
MARGIN = 0.02
# Wider than this on both sides together, and an interval that holds 1 says nothing.
_NOISY = 0.10
_RESAMPLES = 4000


def ratio_interval(
    rounds: Sequence[Sequence[float]], *, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[float, float, float]:
    """The ratio and its interval from log-ratios of rounds, one list for each pair of sessions.

    Two sessions of one file differ in memory layout and chosen algorithms, so pairs are the independent units: they are
    resampled first, rounds within each pair second. A bootstrap over few units is too narrow by a factor that is known
    (n / (n - 1) in the variance, and the heavier tail of small samples); the interval is widened by it.

    Returns:
        (ratio, low, high); all NaN without data.
    """
    data = [np.asarray(one, dtype=np.float64) for one in rounds if len(one)]
    if not data:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(seed)
    centre = float(np.mean([np.median(one) for one in data]))
    count = len(data)
    # medians[p, s]: the s-th resampled median of pair p.
    draws = 400
    medians = np.empty((count, draws))
    for number, one in enumerate(data):
        picks = rng.integers(0, one.size, (draws, one.size))
        medians[number] = np.median(one[picks], axis=1)
    pairs = rng.integers(0, count, (_RESAMPLES, count))
    columns = rng.integers(0, draws, (_RESAMPLES, count))
    means = medians[pairs, columns].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    widen = _widening(count)
    return math.exp(centre), math.exp(centre - (centre - low) * widen), math.exp(centre + (high - centre) * widen)


def _widening(count: int) -> float:
    """How much too narrow a 99 % bootstrap over `count` units is: Student's t against the normal, and n / (n - 1)."""
    student = {2: 63.66, 3: 9.92, 4: 5.84, 5: 4.60, 6: 4.03, 7: 3.71, 8: 3.50, 9: 3.36, 10: 3.25, 11: 3.17, 12: 3.11}
    if count < 2:
        return 1.0  # one pair only: rounds are all that is known, and the caller says so
    # A bootstrap's own tail is shorter still with 2 or 3 units (only so many resamples exist); t stands for both.
    return student.get(count, 2.576 * (1 + 2.0 / count)) / 2.576 * math.sqrt(count / (count - 1))


def verdict(low: float, high: float) -> str:
    """What an interval of original time over rewritten time says."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not measured"
    if low > 1 + MARGIN:
        return "faster"
    if high < 1 - MARGIN:
        return "slower"
    return "too noisy to say" if high / low - 1 > _NOISY else "no difference seen"
