"""One trial, as it runs in a process of its own: first compared with the original, then timed against the best so far.

Whatever goes wrong in it is the trial's outcome: a refusal by the runtime, NaN, a crash, a hang, want of memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphopt.errors import WorkerMemoryError
from graphopt.runtime.compare import Difference, compare
from graphopt.runtime.loading import LoadedModel
from graphopt.runtime.recipe import stamp_here
from graphopt.runtime.session import Session, SessionSettings
from graphopt.runtime.stats import CONFIDENCE, MARGIN, verdict
from graphopt.runtime.timing import LATENCY, Plan, Track, Work, time_here
from graphopt.runtime.values import Data
from graphopt.tuning.search import FASTER, NO_FASTER, OUTDONE, REFUSED, SLOWER, Outcome

# A first look in one pair of sessions: what is not at least so many times as fast there is not timed in full.
_PROMISING = 1.01
# What is behind another candidate of its block by more than this there is not, either.
_BEHIND = 0.9
TOO_NOISY = "too noisy to say"


@dataclass(frozen=True, slots=True)
class Contender:
    """A model under some settings.

    Attributes:
        model: Path or bytes.
        settings: How its session is made.
    """

    model: str | bytes
    settings: SessionSettings


@dataclass(frozen=True, slots=True)
class Standard:
    """What outputs are held to; the same in all trials.

    Attributes:
        feeds: Sets of inputs; the first is the one that is timed.
        references: What the original gives for each, not optimized.
        limits: Output -> the error it may have; outputs that are not named are random and not compared.
        again: Run the first set once more after all others: recorded runs must follow their inputs.
    """

    feeds: tuple[Mapping[str, Data], ...]
    references: tuple[Mapping[str, Data], ...]
    limits: Mapping[str, float]
    again: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a trial needs.

    Attributes:
        candidate: What is tried.
        best: What it is timed against.
        standard: What its outputs are held to.
        plan: How much is measured.
        look: How much is measured first; None measures in full at once.
        bar: How many times faster than the same `best` another candidate of the same block is.
        device: Name of the device it must run on; empty takes any.
    """

    candidate: Contender
    best: Contender
    standard: Standard
    plan: Plan
    look: Plan | None = None
    bar: float = 1.0
    device: str = ""


@dataclass(slots=True)
class Worst:
    """The largest error seen.

    Attributes:
        error: Share of the output's largest value.
        output: Which output.
        refusal: Why the outputs cannot stand; empty where they can.
    """

    error: float = 0.0
    output: str = ""
    refusal: str = ""

    def take(self, name: str, difference: Difference, limit: float) -> None:
        """Note the difference of one output; only the first refusal is kept."""
        error = math.inf if difference.mismatch else difference.error
        if error > self.error or not self.output:
            self.error, self.output = max(error, self.error), name
        if self.refusal or (not difference.mismatch and error <= limit):
            return
        if difference.mismatch:
            self.refusal = f"output {name!r} has another {difference.mismatch}"
        elif not math.isfinite(error):
            self.refusal = f"output {name!r} has NaN or infinity where the original is finite, or the other way round"
        else:
            self.refusal = f"output {name!r} is off by {error:.1e} and {limit:.1e} is allowed"


@dataclass(slots=True)
class Timed:
    """What a comparison of times showed.

    Attributes:
        ratio: How many times faster the candidate is.
        low: Lower end of the interval.
        high: Upper end of it.
        median_ms: Of the candidate.
        against_ms: Of what it was timed against.
        rounds: Rounds, all sessions together.
        sessions: Pairs of sessions.
    """

    ratio: float
    low: float
    high: float
    median_ms: float
    against_ms: float
    rounds: int
    sessions: int = field(default=0)


def try_here(job: Job) -> Outcome:
    """Run a trial in this process.

    Raises:
        ExecutionError: The runtime would not load or run the candidate.
    """
    started = time.monotonic()
    provider = job.candidate.settings.provider
    device = stamp_here(provider).device
    if job.device and device != job.device:
        return Outcome(REFUSED, f"it ran on another device ({device}) than the others ({job.device})", device=device)
    session = Session(job.candidate.model, job.candidate.settings)
    if session.info.provider != provider:
        return Outcome(REFUSED, f"{provider} was asked for and {session.info.provider} ran", device=device)
    worst = check(LoadedModel(session), job.standard)
    del session  # its memory is wanted for the timing
    outcome = Outcome(REFUSED, worst.refusal, worst.error, worst.output, device=device)
    if not worst.refusal:
        outcome = _timed(job, outcome)
    return replace(outcome, seconds=time.monotonic() - started)


def check(model: LoadedModel, standard: Standard) -> Worst:
    """Compare what a model gives with what the original gave.

    Raises:
        ExecutionError: It does not run at some inputs.
    """
    worst = Worst()
    order = [*range(len(standard.feeds)), *([0] if standard.again and len(standard.feeds) > 1 else [])]
    for number in order:
        outputs = model.run(standard.feeds[number])
        reference = standard.references[number]
        for name, limit in standard.limits.items():
            worst.take(name, compare(reference[name], outputs.get(name)), limit)
        if worst.refusal:
            break
    return worst


def _timed(job: Job, outcome: Outcome) -> Outcome:
    if job.look is not None:
        first = _time(job, job.look)
        # One pair is little on a busy machine: it is dismissed only where neither figure promises anything.
        promise = max(first.ratio, first.against_ms / first.median_ms)
        if _PROMISING <= promise < _BEHIND * job.bar:
            reason = f"{first.ratio:.2f} times as fast at a first look, and another of its kind is {job.bar:.2f} times"
            return _with_times(outcome, first, OUTDONE, reason)
        if promise < _PROMISING:
            said = SLOWER if first.ratio < 1 - MARGIN else NO_FASTER
            reason = f"{first.ratio:.2f} times as fast at a first look ({first.rounds} rounds), and not timed further"
            return _with_times(outcome, first, said, reason)
    times = _time(job, job.plan)
    said = verdict(times.low, times.high)
    interval = f"{times.ratio:.3f} times as fast, {CONFIDENCE:.0%} interval {times.low:.3f} to {times.high:.3f}"
    if said == "faster":
        reason = f"{interval} ({times.rounds} rounds in {times.sessions} pairs of sessions)"
        return _with_times(outcome, times, FASTER, reason)
    if said == "slower":
        return _with_times(outcome, times, SLOWER, interval)
    why = TOO_NOISY if said == TOO_NOISY else f"not outside 1 ± {MARGIN:.0%}"
    return _with_times(outcome, times, NO_FASTER, f"{interval}: {why}")


def _with_times(outcome: Outcome, times: Timed, said: str, reason: str) -> Outcome:
    return replace(
        outcome,
        verdict=said,
        reason=reason,
        median_ms=times.median_ms,
        against_ms=times.against_ms,
        ratio=times.ratio,
        low=times.low,
        high=times.high,
    )


def _time(job: Job, plan: Plan) -> Timed:
    sides = (job.best, job.candidate)
    models, settings = (sides[0].model, sides[1].model), (sides[0].settings, sides[1].settings)
    work = Work(job.standard.feeds[0])
    try:
        timings = time_here(models, settings, work, plan)
    except WorkerMemoryError:  # both do not fit at once: one after the other is less sharp, and better than nothing
        timings = time_here(models, settings, work, replace(plan, together=False))
    track = timings.tracks[LATENCY]
    found = track.estimate()
    rounds = sum(map(len, track.rounds[0]))
    return Timed(found.ratio, found.low, found.high, _median(track, 1), _median(track, 0), rounds, len(track.rounds[0]))


def _median(track: Track, side: int) -> float:
    return 1e3 * float(np.median(np.concatenate([np.asarray(session) for session in track.runs[side]])))


def quick_look(seconds: float) -> Plan:
    """One pair of sessions, a few rounds."""
    return Plan(pairs=1, most_pairs=1, seconds=seconds, least_rounds=4)


def labels(sizes: Sequence[tuple[str, Mapping[str, str]]]) -> tuple[str, ...]:
    """Feeds in words, one line each."""
    return tuple(f"{label}: {', '.join(f'{name} {size}' for name, size in shapes.items())}" for label, shapes in sizes)
