"""The timing loop itself; it runs in the worker and returns plain numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt.errors import ExecutionError
from graphopt.runtime.captured import Recording, is_recorded
from graphopt.runtime.generation import Generation, generator, steps_within
from graphopt.runtime.session import CPU, CUDA, Session, SessionSettings, problem, runtime
from graphopt.runtime.stats import Estimate, best_estimate, log_ratios, lower_runs
from graphopt.runtime.throughput import at_once
from graphopt.runtime.values import Data, to_ort, to_ort_value

LATENCY, THROUGHPUT = "latency", "throughput"
_WARM_RUNS = 100
_WARM_SECONDS = 2.0
_FEWEST_SESSIONS = 3
_FEWEST_ROUNDS = 3
# Generations that are made at least, all sessions together, and how many steps each has whatever they take.
_GENERATIONS, _FEWEST_STEPS = 24, 16
# Of the time there is, what further sessions may cost before any run of theirs is timed; the first have to cost it.
_LOADING_SHARE = 0.3

# One block of runs; seconds by what was timed.
Meter = Callable[[], dict[str, list[float]]]


@dataclass(slots=True)
class Work:
    """What is run.

    Attributes:
        feeds: Inputs of a run.
        concurrency: Requests at a time for the throughput; 0 leaves it out.
        generation: Prefill and decode steps of a decoder; None leaves them out.
    """

    feeds: Mapping[str, Data]
    concurrency: int = 0
    generation: Generation | None = None


@dataclass(slots=True)
class Plan:
    """How much to measure.

    Attributes:
        pairs: Sessions of each side; more are made where that is quick.
        most_pairs: Sessions of each side, at most.
        seconds: Time for all of it, loading included; a few rounds in three sessions are made whatever it is.
        least_rounds: Rounds in each pair while there is time.
        most_rounds: Rounds in each pair, at most.
        together: Hold both sides' sessions at once; otherwise one after the other.
    """

    pairs: int = 5
    most_pairs: int = 24
    seconds: float = 20.0
    least_rounds: int = 6
    most_rounds: int = 1000
    together: bool = True


@dataclass(slots=True)
class Track:
    """One thing that was timed; index 0 is the original, 1 the rewritten model.

    Attributes:
        runs: Seconds of every timed run, one list for each session.
        rounds: Seconds, the median of each round's runs, one list for each session.
        lows: Seconds, the faster runs of each round, one list for each session.
    """

    runs: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))
    rounds: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))
    lows: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))

    def open_session(self, side: int) -> None:
        """What is added from now on was timed in another session."""
        self.runs[side].append([])
        self.rounds[side].append([])
        self.lows[side].append([])

    def add(self, side: int, runs: list[float]) -> None:
        """Note a round."""
        self.runs[side][-1].extend(runs)
        self.rounds[side][-1].append(statistics.median(runs))
        self.lows[side][-1].append(lower_runs(runs))

    def estimate(self) -> Estimate:
        """How many times as fast the rewritten model is."""
        return best_estimate(log_ratios(self.rounds), log_ratios(self.lows))


@dataclass(slots=True)
class Timings:
    """What was measured; index 0 is the original, 1 the rewritten model.

    Attributes:
        tracks: What was timed -> its times.
        loads: Seconds to make each session.
        firsts: Seconds of the first run of each session.
        readying: Seconds to load and warm up each pair of sessions.
        provider: What really ran.
        steps: Steps of each generation; fewer than asked for where those would take too long.
    """

    tracks: dict[str, Track] = field(default_factory=dict)
    loads: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    firsts: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    readying: list[float] = field(default_factory=list)
    provider: str = ""
    steps: int = 0

    def settled(self, kinds: int) -> bool:
        """True where more runs would change nothing: every interval lies in the band of no difference."""
        return len(self.tracks) >= kinds and all(track.estimate().settles for track in self.tracks.values())


# Settings of both sides, or one for each.
Settings = SessionSettings | tuple[SessionSettings, SessionSettings]


def time_here(models: tuple[str | bytes, str | bytes], settings: Settings, work: Work, plan: Plan) -> Timings:
    """Time both models in this process, under the same settings or each under its own.

    Raises:
        WorkerMemoryError: There is not enough memory.
        ExecutionError: A model does not load or run.
    """
    timings = Timings()
    started = time.perf_counter()
    kinds = 1 + bool(work.concurrency) + (work.generation is not None)
    for pair in range(max(plan.pairs, plan.most_pairs)):
        spent = time.perf_counter() - started
        if pair >= _FEWEST_SESSIONS and spent > plan.seconds:
            break
        wanted = _pairs(plan, timings)
        if pair >= wanted or (pair >= plan.pairs and timings.settled(kinds)):
            break
        share = max(0.0, plan.seconds - spent) / (wanted - pair)
        timings.readying.append(0.0)
        sides = (pair % 2, 1 - pair % 2)  # who is loaded first alternates, too
        for group in [sides] if plan.together else [sides[:1], sides[1:]]:
            try:
                _time_group(group, models, settings, work, plan, share * len(group) / 2, timings)
            except ExecutionError:
                raise
            except Exception as error:
                raise problem(error, loading=False) from error
    return timings


def _pairs(plan: Plan, timings: Timings) -> int:
    """How many pairs of sessions to make in all: pairs are what the interval rests on, and more rounds no substitute.

    The first pair gets the time of one of many; where it took long to load, there will be few, with more time for each.
    """
    if not timings.readying:
        return max(plan.pairs, plan.most_pairs)
    cost = statistics.median(timings.readying)
    return min(max(plan.pairs, int(_LOADING_SHARE * plan.seconds / max(cost, 1e-6))), max(plan.pairs, plan.most_pairs))


def _time_group(
    sides: Sequence[int],
    models: tuple[str | bytes, str | bytes],
    settings: Settings,
    work: Work,
    plan: Plan,
    share: float,
    timings: Timings,
) -> None:
    """Load the sides, and time each kind of work in alternation; the sessions go at the end."""
    started = time.perf_counter()
    if work.generation is not None and timings.steps:
        work = replace(work, generation=replace(work.generation, steps=work.generation.steps[: timings.steps]))
    meters: dict[int, dict[str, Meter]] = {}
    for side in sides:
        own = settings[side] if isinstance(settings, tuple) else settings
        session = _load(models[side], own, side, timings)
        run = runner(session, work.feeds)
        timings.firsts[side].append(_once(run))
        if work.generation is not None and not timings.steps:
            least = min(_FEWEST_STEPS, len(work.generation.steps))
            timings.steps = steps_within(session, work.generation, plan.seconds / _GENERATIONS, least)
            work = replace(work, generation=replace(work.generation, steps=work.generation.steps[: timings.steps]))
        meters[side] = _meters(session, run, work, share / 4)
        session = run = None  # type: ignore[assignment]  # only the meters hold it
    timings.readying[-1] += time.perf_counter() - started
    kinds = list(meters[sides[0]])
    for number, kind in enumerate(kinds):
        left = max(0.0, share - (time.perf_counter() - started))
        _alternate(sides, {side: meters[side][kind] for side in sides}, plan, left / (len(kinds) - number), timings)


def _alternate(sides: Sequence[int], meters: Mapping[int, Meter], plan: Plan, share: float, timings: Timings) -> None:
    started = time.perf_counter()
    opened: set[tuple[int, str]] = set()
    least = plan.least_rounds if share > 0 else _FEWEST_ROUNDS
    for number in range(plan.most_rounds):
        if number >= least and time.perf_counter() - started > share:
            break
        for side in sides if number % 2 == 0 else sides[::-1]:
            for name, runs in meters[side]().items():
                track = timings.tracks.setdefault(name, Track())
                if (side, name) not in opened:
                    opened.add((side, name))
                    track.open_session(side)
                track.add(side, runs)


def _load(model: str | bytes, settings: SessionSettings, side: int, timings: Timings) -> Session:
    started = time.perf_counter()
    session = Session(model, settings)
    timings.loads[side].append(time.perf_counter() - started)
    timings.provider = session.info.provider
    return session


def _meters(session: Session, run: Callable[[], Any], work: Work, seconds: float) -> dict[str, Meter]:
    """A warm meter for each kind of work."""
    typical = _warm(run, seconds)
    found: dict[str, Meter] = {LATENCY: lambda: {LATENCY: _block(run, typical)}}
    if work.concurrency:
        runs = [runner(session, work.feeds) for _ in range(work.concurrency)]
        found[THROUGHPUT] = lambda: {THROUGHPUT: [at_once(runs, typical)]}
        found[THROUGHPUT]()
    if work.generation is not None:
        found["generation"] = generator(session, work.generation)
        found["generation"]()
    return found


def runner(session: Session, feeds: Mapping[str, Data]) -> Callable[[], Any]:
    """One run without anything that is not the run: inputs made ready, and on a GPU bound to the device."""
    ort = runtime()
    types = {port.name: port.type for port in session.info.inputs}
    ready = {name: to_ort(value, types.get(name, ""), ort) for name, value in feeds.items() if name in types}
    raw = session.raw
    if session.info.provider != CUDA:
        names = [port.name for port in session.info.outputs]
        if any(isinstance(value, ort.OrtValue) for value in ready.values()) or session.exotic:
            values = {name: to_ort_value(value, ort) for name, value in ready.items()}
            return lambda: raw.run_with_ort_values(names, values)
        return lambda: raw.run(names, ready)
    if is_recorded(raw):
        return Recording(raw, ready).replay
    binding = raw.io_binding()
    kept = []
    for name, value in ready.items():
        held = value if isinstance(value, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
        kept.append(held)
        binding.bind_ortvalue_input(name, held)
    for port in session.info.outputs:
        binding.bind_output(port.name, "cuda")

    def run() -> None:
        raw.run_with_iobinding(binding)
        binding.synchronize_outputs()

    run.kept = kept  # type: ignore[attr-defined]
    return run


def _once(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _warm(run: Callable[[], Any], seconds: float) -> float:
    """Run until two neighbouring windows agree; seconds of a typical run."""
    started = time.perf_counter()
    limit = min(_WARM_SECONDS, seconds)
    runs = [_once(run)]
    while len(runs) < _WARM_RUNS and time.perf_counter() - started < limit:
        runs.append(_once(run))
        if len(runs) >= 10:
            before, now = statistics.median(runs[-10:-5]), statistics.median(runs[-5:])
            if abs(before - now) <= 0.05 * now:
                break
    return statistics.median(runs[-5:])


def _block(run: Callable[[], Any], typical: float) -> list[float]:
    """A few runs in a row; the first is not counted where the other side has just had the caches."""
    count = 5 if typical < 0.02 else 2 if typical < 0.2 else 1
    if typical < 0.5:
        run()
    return [_once(run) for _ in range(count)]


def default_settings(provider: str, threads: int, custom_ops: tuple[str, ...]) -> SessionSettings:
    """What users run: everything at the runtime's defaults."""
    # Threads of an idle session go on spinning for a while after a run and would slow the other side; within a run they
    # spin as they always do.
    quiet = (("session.force_spinning_stop", "1"),) if provider == CPU else ()
    return SessionSettings(
        provider=provider,
        optimize="all",
        prepack=True,
        threads=threads,
        arena=True,
        tf32=True,
        custom_ops=custom_ops,
        entries=quiet,
    )
