"""The interval of a speed ratio: pairs of sessions are the independent units, and neither end of them decides alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.99
# A difference below this is not called one, whatever the interval says.
MARGIN = 0.02
# Wider than this on both sides together, and an interval that holds 1 says nothing.
_NOISY = 0.10
# From so many pairs on, the outermost fifth at either end weighs no more than the next one inwards.
_TRIMMED_FROM = 8
_TRIM = 0.2
# Two-sided 99 % quantiles of Student's t, from one degree of freedom.
_STUDENT = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921,
    2.898, 2.878, 2.861, 2.845,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many times as fast, with its interval.

    Attributes:
        ratio: Original time over rewritten time.
        low: Lower end of the 99 % interval.
        high: Upper end of it.
        of: What was taken for the time of a block of runs: its "median", or its "lower" two fifths.
    """

    ratio: float
    low: float
    high: float
    of: str = "median"

    @property
    def width(self) -> float:
        """Upper over lower end, less 1; infinite without data."""
        return self.high / self.low - 1 if self.low > 0 and math.isfinite(self.high) else math.inf

    @property
    def is_narrow(self) -> bool:
        """True where the interval is no wider than the band in which nothing is called a difference."""
        return self.width <= 2 * MARGIN

    @property
    def settles(self) -> bool:
        """True where the interval lies in that band: more data would change nothing."""
        return self.low >= 1 - MARGIN and self.high <= 1 + MARGIN


def ratio_interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The ratio and its 99 % interval from log-ratios of rounds, one list for each pair of sessions.

    Two sessions of one file differ in memory layout and chosen algorithms, and what else the machine does lasts for
    many rounds, so rounds are no independent units and pairs are: each counts with the median of its rounds. From eight
    pairs on, their trimmed mean is taken and the interval is Yuen's (The two-sample trimmed t for unequal population
    variances, Biometrika 61, 1974): Student's t on the winsorized variance. A pair that another program fell upon then
    pulls neither the one nor the other.

    Returns:
        (ratio, low, high); all NaN without data.
    """
    data = [list(one) for one in rounds if len(one)]
    if not data:
        return math.nan, math.nan, math.nan
    # One pair only: rounds are all that is known, and the caller says so.
    units = sorted(statistics.median(one) for one in data) if len(data) > 1 else sorted(data[0])
    count = len(units)
    cut = int(_TRIM * count) if count >= _TRIMMED_FROM else 0
    kept = units[cut : count - cut]
    centre = statistics.fmean(kept)
    if count < 2:
        return math.exp(centre), math.exp(centre), math.exp(centre)
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(winsorized) / (len(kept) / count * math.sqrt(count))
    room = min(_student(len(kept) - 1) * error, 50.0)  # of few units it can be beyond what exp() takes
    return math.exp(centre), math.exp(centre - room), math.exp(centre + room)


def _student(freedom: int) -> float:
    """The two-sided 99 % quantile of Student's t."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return 2.576 * (1 + 2.1 / freedom)


def best_estimate(medians: Sequence[Sequence[float]], lows: Sequence[Sequence[float]]) -> Estimate:
    """The estimate by medians of blocks, or by their faster runs where other programs make the medians too noisy.

    What disturbs a run makes it slower, never faster, so the faster runs of a block tell of the model where the median
    tells of the machine. Which of the two is taken depends on the widths of the intervals alone, not on what they say.

    Args:
        medians: Log-ratios of rounds by the median of each block, one list for each pair of sessions.
        lows: The same by the lower two fifths of each block.
    """
    usual = Estimate(*ratio_interval(medians))
    if usual.is_narrow:
        return usual
    other = Estimate(*ratio_interval(lows), of="lower")
    return other if other.width < usual.width else usual


def lower_runs(runs: Sequence[float]) -> float:
    """Mean of the fastest two fifths of a block, of one run at least."""
    return statistics.fmean(sorted(runs)[: max(1, (2 * len(runs)) // 5)])


def log_ratios(sides: tuple[list[list[float]], list[list[float]]]) -> list[list[float]]:
    """Log of original over rewritten time, by round where rounds are paired, by session otherwise."""
    result = []
    for left, right in zip(*sides, strict=False):
        if len(left) == len(right):
            result.append([math.log(one / other) for one, other in zip(left, right, strict=True)])
        else:
            result.append([math.log(statistics.median(left) / statistics.median(right))])
    return result


def verdict(low: float, high: float) -> str:
    """What an interval of original time over rewritten time says."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not measured"
    if low > 1 + MARGIN:
        return "faster"
    if high < 1 - MARGIN:
        return "slower"
    return "too noisy to say" if high / low - 1 > _NOISY else "no difference seen"
