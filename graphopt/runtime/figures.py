"""Times as a benchmark tells them: figures of both sides, every run by session, and the sentence on the verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.measurements import Comparison, Samples
from graphopt.runtime.stats import CONFIDENCE, MARGIN, Estimate, verdict
from graphopt.runtime.timing import Track


def compare(name: str, track: Track, unit: str, detail: str, items: int) -> Comparison:
    """One figure of both sides from its times; a rate counts `items` for each timed run."""
    found = track.estimate()
    medians = [float(np.median(np.concatenate([np.asarray(session) for session in side]))) for side in track.runs]
    figures = [1e3 * median if unit == "ms" else items / median for median in medians]
    return Comparison(
        name,
        unit,
        figures[0],
        figures[1],
        verdict(found.low, found.high),
        found.ratio,
        found.low,
        found.high,
        detail,
        (samples(track.runs[0]), samples(track.runs[1])),
    )


def samples(sessions: Sequence[Sequence[float]]) -> Samples:
    """Seconds as they are kept: a clock tells no more than nanoseconds."""
    return tuple(tuple(round(seconds, 9) for seconds in session) for session in sessions)


def sentence(said: str, found: Estimate, track: Track) -> str:
    """Why a verdict is what it is: the ratio, its interval, and what it was taken from."""
    interval = f"{found.ratio:.3f} times as fast, {CONFIDENCE:.0%} interval {found.low:.3f} to {found.high:.3f}"
    count = f"{sum(map(len, track.rounds[0]))} rounds in {len(track.rounds[0])} pairs of sessions"
    if found.of == "lower":
        count += ", by the faster runs of each: the machine does other things, too"
    if said == "no difference seen":
        return f"{interval}, which does not lie outside 1 ± {MARGIN:.0%} ({count})"
    if said == "too noisy to say":
        return f"{interval}: too wide; close other programs or allow more time ({count})"
    return f"{interval} ({count})"
