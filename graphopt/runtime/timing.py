"""The timing loop itself; it runs in the worker and returns plain numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphopt.runtime.session import CPU, CUDA, Session, SessionSettings, runtime
from graphopt.runtime.values import Data, to_ort, to_ort_value

_WARM_RUNS = 100
_WARM_SECONDS = 2.0


@dataclass(slots=True)
class Plan:
    """How much to measure.

    Attributes:
        pairs: Sessions of each side.
        seconds: Time for all of it.
        least_rounds: Rounds in each pair, whatever the time.
        most_rounds: Rounds in each pair, at most.
        together: Hold both sides' sessions at once; otherwise one after the other.
    """

    pairs: int = 5
    seconds: float = 20.0
    least_rounds: int = 6
    most_rounds: int = 1000
    together: bool = True


@dataclass(slots=True)
class Timings:
    """What was measured; index 0 is the original, 1 the rewritten model.

    Attributes:
        runs: Seconds of every timed run.
        rounds: Seconds, one typical run for each round, one list for each session.
        loads: Seconds to make each session.
        provider: What really ran.
    """

    runs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    rounds: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))
    loads: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    provider: str = ""


def time_here(
    models: tuple[str | bytes, str | bytes], settings: SessionSettings, feeds: Mapping[str, Data], plan: Plan
) -> Timings:
    """Time both models in this process."""
    timings = Timings()
    started = time.perf_counter()
    for pair in range(plan.pairs):
        spent = time.perf_counter() - started
        if pair >= 3 and spent > plan.seconds:
            break
        share = max(0.0, plan.seconds - spent) / (plan.pairs - pair)
        first = pair % 2  # who is loaded first alternates, too
        if plan.together:
            _time_pair(models, settings, feeds, plan, share, first, timings)
        else:
            _time_apart(models, settings, feeds, plan, share, first, timings)
    return timings


def _load(
    model: str | bytes, settings: SessionSettings, feeds: Mapping[str, Data], side: int, timings: Timings
) -> Callable[[], Any]:
    started = time.perf_counter()
    session = Session(model, settings)
    timings.loads[side].append(time.perf_counter() - started)
    timings.provider = session.info.provider
    return _runner(session, feeds)


def _runner(session: Session, feeds: Mapping[str, Data]) -> Callable[[], Any]:
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


def _warm(run: Callable[[], Any]) -> float:
    """Run until two neighbouring windows agree; seconds of a typical run."""
    started = time.perf_counter()
    runs = [_once(run)]
    while len(runs) < _WARM_RUNS and time.perf_counter() - started < _WARM_SECONDS:
        runs.append(_once(run))
        if len(runs) >= 10:
            before, now = statistics.median(runs[-10:-5]), statistics.median(runs[-5:])
            if abs(before - now) <= 0.05 * now:
                break
    return statistics.median(runs[-5:])


def _block(run: Callable[[], Any], typical: float, timings: Timings, side: int) -> float:
    """A few runs in a row; the first is not counted where the other side has just had the caches."""
    count = 5 if typical < 0.02 else 2 if typical < 0.2 else 1
    if typical < 0.5:
        run()
    runs = [_once(run) for _ in range(count)]
    timings.runs[side].extend(runs)
    return statistics.median(runs)


def _time_pair(
    models: tuple[str | bytes, str | bytes],
    settings: SessionSettings,
    feeds: Mapping[str, Data],
    plan: Plan,
    share: float,
    first: int,
    timings: Timings,
) -> None:
    runners: list[Callable[[], Any] | None] = [None, None]
    for side in (first, 1 - first):
        runners[side] = _load(models[side], settings, feeds, side, timings)
    typical = [0.0, 0.0]
    for side in (first, 1 - first):
        run = runners[side]
        assert run is not None
        typical[side] = _warm(run)
    started = time.perf_counter()
    rounds: tuple[list[float], list[float]] = ([], [])
    for number in range(plan.most_rounds):
        if number >= plan.least_rounds and time.perf_counter() - started > share:
            break
        for side in (0, 1) if number % 2 == first else (1, 0):
            run = runners[side]
            assert run is not None
            rounds[side].append(_block(run, typical[side], timings, side))
    timings.rounds[0].append(rounds[0])
    timings.rounds[1].append(rounds[1])


def _time_apart(
    models: tuple[str | bytes, str | bytes],
    settings: SessionSettings,
    feeds: Mapping[str, Data],
    plan: Plan,
    share: float,
    first: int,
    timings: Timings,
) -> None:
    for side in (first, 1 - first):
        run: Callable[[], Any] | None = _load(models[side], settings, feeds, side, timings)
        assert run is not None
        typical = _warm(run)
        started = time.perf_counter()
        rounds: list[float] = []
        while len(rounds) < plan.least_rounds or (
            len(rounds) < plan.most_rounds and time.perf_counter() - started < share / 2
        ):
            rounds.append(_block(run, typical, timings, side))
        timings.rounds[side].append(rounds)
        run = None  # the session goes before the other side is loaded


def peak_here(model: str | bytes, settings: SessionSettings, feeds: Mapping[str, Data]) -> int | None:
    """Load and run a model in this (fresh) process; its peak resident bytes."""
    run = _runner(Session(model, settings), feeds)
    run()
    run()
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


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
