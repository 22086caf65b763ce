"""Is the rewritten model faster? Both models timed in one run, with an interval on the ratio."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, FeedError, RecipeError, WorkerMemoryError
from graphopt.measurements import Benchmark, Comparison, LatencySide
from graphopt.recipes import Recipe, settings_text
from graphopt.runtime import device_memory
from graphopt.runtime.bounds import require_bounded
from graphopt.runtime.comparable import input_difference
from graphopt.runtime.contents import count_operators, file_bytes
from graphopt.runtime.decoding import cache_pairs, plan_generation
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions
from graphopt.runtime.figures import compare, samples, sentence
from graphopt.runtime.generation import DECODE, PREFILL, Generation
from graphopt.runtime.hotspots import Touched, profile_of
from graphopt.runtime.placement import graph_here
from graphopt.runtime.profiling import Look, look_here
from graphopt.runtime.providers import checked_options
from graphopt.runtime.recipe import apply_settings, read_recipe, require_model
from graphopt.runtime.remote import RemoteSession, provider_here, version_here
from graphopt.runtime.session import CUDA, SessionInfo, SessionSettings
from graphopt.runtime.sources import ModelSource, open_source
from graphopt.runtime.stats import CONFIDENCE, verdict
from graphopt.runtime.structure import Structure, read_structure
from graphopt.runtime.timing import LATENCY, THROUGHPUT, Plan, Timings, Work, default_settings, time_here
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker

DECODE_STEPS = 16
_LOAD_SECONDS = 600.0
# Of the time there is, what timing takes; the rest is for memory and placement, in processes of their own.
_TIMING_SHARE = 0.85
_LOOK_SECONDS = 2.5
_PROFILED_RUNS = 20
_PROFILE_SECONDS = 3.0
_USABLE = 0.95  # of free device memory: contexts and workspaces take some
# Only what is well beyond the time there was is worth a word.
_OVERRUN, _OVERRUN_SECONDS = 1.5, 2.0
_DIFF = "; `graphopt diff` shows where they differ"
NO_DECODER = "not a decoder, so --decode did nothing: no input is named like a past with an output that continues it"
_ONE_AFTER_THE_OTHER = "both models do not fit at once; they were timed one after the other, which is less sharp"
_NOTHING_MOVED = ("no difference seen", "too noisy to say")


def benchmark(
    original: Any,
    rewritten: Any,
    *,
    provider: str = "auto",
    provider_options: Mapping[str, str] | None = None,
    feeds: Mapping[str, Data] | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    threads: int = 0,
    sessions: int = 5,
    max_time: float = 30.0,
    concurrency: int = 0,
    decode: int | None = None,
    profile: bool = False,
    touched: Touched | None = None,
    custom_ops: Sequence[str] = (),
    memory: bool = True,
    placement: bool = True,
    memory_limit: int | None = None,
    recipe: str | Path | Recipe | None = None,
    worker: Worker | None = None,
) -> Benchmark:
    """Time two models against each other as users run them, the runtime's default optimization on for both.

    Args:
        original: A path, bytes, ModelProto or Graph.
        rewritten: The same for the other side.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        provider_options: Options of the provider, such as `use_tf32`, for both sides.
        feeds: One set of inputs; by default it is made.
        dims: Name of a symbolic dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        seed: Seed of the made inputs.
        data: A file or folder of the user's inputs; the first is used.
        threads: Threads within an operator; 0 is the runtime's default.
        sessions: Sessions of each side, at least 3; more are made where loading is quick.
        max_time: Seconds for all of it once inputs are found, loading and warming up included. A few rounds in three
            sessions of each side, and a profile where one is asked for, are made even where they take longer. Timing
            ends before that once every interval lies within the band in which no difference is called one.
        concurrency: Requests at a time for the throughput on one session; 0 leaves it out.
        decode: Steps after a prefill for models that are decoders by their past and present; by default 16, 0 leaves
            them out. Fewer are made where so many take too long.
        profile: Whether to find out which operators and kernels take the time.
        touched: Which rewrite took which node away or put it there, for the profile.
        custom_ops: Libraries of custom operators.
        memory: Whether to measure peak memory, in a process of its own for each side.
        placement: Whether to look at which provider runs which node, in the same process.
        memory_limit: Bytes that the runtime's process may take, files it maps not counted.
        recipe: A recipe of `graphopt tune` for the rewritten model; the original runs with the runtime's defaults.
        worker: The process to run in; by default one made for this and ended after it.

    Returns:
        The timings and the verdict; "not measured" where a model does not run.

    Raises:
        FeedError: An option names something that the model does not have, or the user's data does not fit.
        RecipeError: The recipe cannot be read, or belongs to another model or provider.
        UsageError: A number is too large or none, or the provider does not take an option.
    """
    require_bounded(threads=threads, sessions=sessions, max_time=max_time)
    require_bounded(concurrency=max(0, concurrency), decode=max(0, decode or 0))
    options = FeedOptions(
        dict(dims or {}), {name: tuple(shape) for name, shape in (shapes or {}).items()}, dict(ranges or {}), seed, 1
    )
    wishes = _Wishes(
        provider,
        threads,
        max(3, sessions),
        max_time,
        tuple(custom_ops),
        memory,
        placement,
        max(0, concurrency),
        None if decode is None else max(0, decode),
        profile,
        touched,
        memory_limit,
        dict(provider_options or {}),
        _recipe_for(rewritten, recipe),
    )
    own = Worker(memory_limit=memory_limit) if worker is None else None
    process = worker or own
    assert process is not None
    try:
        with open_source(original, "original") as first, open_source(rewritten, "rewritten") as second:
            return _Benchmark((first, second), process, options, wishes).run(feeds, data)
    finally:
        if own is not None:
            own.close()


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the caller asked for."""

    provider: str
    threads: int
    sessions: int
    max_time: float
    custom_ops: tuple[str, ...]
    memory: bool
    placement: bool
    concurrency: int
    decode: int | None
    profile: bool
    touched: Touched | None
    memory_limit: int | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    recipe: Recipe | None = None


class _Benchmark:
    """One comparison on its way."""

    def __init__(
        self, sources: tuple[ModelSource, ModelSource], worker: Worker, options: FeedOptions, wishes: _Wishes
    ) -> None:
        self.sources = sources
        self.worker = worker
        self.options = options
        self.wishes = wishes
        self.notes: list[str] = []
        self.started = self.since = time.monotonic()

    def run(self, given: Mapping[str, Data] | None, data: str | Path | None) -> Benchmark:
        """Make inputs, time, look, conclude."""
        version = ""
        wishes = self.wishes
        differs = input_difference(*self.sources)
        if differs:
            return self._not_measured(f"the models take different inputs: {differs}{_DIFF}", version)
        try:
            version = self.worker.call(version_here)
            provider = self.worker.call(provider_here, wishes.provider)
            chosen, aside = checked_options(self.worker, wishes.provider, provider, wishes.provider_options)
            self.notes += aside
            settings = default_settings(provider, wishes.threads, wishes.custom_ops).but(
                provider_options=tuple(chosen.items())
            )
            both = settings, self._as_recipe(settings)
            feed, generation = self._inputs(given, data, settings)
            self.since = time.monotonic()
            work = self._work(feed, generation)
            timings = self._time(both, work)
        except ExecutionError as error:
            refused = error.reason == "feed refused" and given is None and data is None
            hint = f"; both must take the same inputs{_DIFF}" if refused else ""
            why = f"{error.reason}: {str(error).removeprefix(f'{error.reason}: ').rstrip('.')}{hint}"
            return self._not_measured(why, version)
        track = timings.tracks[LATENCY]
        found = track.estimate()
        said = verdict(found.low, found.high)
        looks = self._looks(both, feed)
        sides = [self._side(number, timings, looks[number]) for number in (0, 1)]
        self._remark_on_time(timings)
        return Benchmark(
            verdict=said,
            reason=sentence(said, found, track),
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            confidence=CONFIDENCE,
            original=sides[0],
            rewritten=sides[1],
            provider=timings.provider,
            runtime=version,
            threads=wishes.threads,
            sizes=feed.sizes,
            dims=self.options.dims,
            comparisons=tuple(self._comparisons(timings, work.generation)),
            profile=profile_of(looks, self.sources, wishes.touched) if wishes.profile else None,
            runtime_does=self._runtime_does(settings, looks[0]) if said in _NOTHING_MOVED else {},
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.started,
        )

    def _not_measured(self, why: str, version: str) -> Benchmark:
        return Benchmark(
            "not measured",
            why,
            runtime=version,
            threads=self.wishes.threads,
            dims=self.options.dims,
            seconds=time.monotonic() - self.started,
        )

    def _remark_on_time(self, timings: Timings) -> None:
        """Say where the time went, if it was more than there was."""
        taken, there = time.monotonic() - self.since, self.wishes.max_time
        if taken > _OVERRUN * there + _OVERRUN_SECONDS:
            loads = sum(map(sum, timings.loads))
            self.notes.append(
                f"it took {taken:.0f} s in place of {there:.3g} s: three sessions of each side are made in any case; "
                f"loading took {loads:.0f} s and warming up {sum(timings.readying) - loads:.0f} s"
            )

    def _left(self) -> float:
        return self.wishes.max_time - (time.monotonic() - self.since)

    # --- inputs

    def _inputs(
        self, given: Mapping[str, Data] | None, data: str | Path | None, settings: SessionSettings
    ) -> tuple[Feed, Generation | None]:
        if given is not None:
            return Feed("given", dict(given)), None
        # Tried as they will be timed: some exports run at some sizes only while the runtime does not optimize them.
        with RemoteSession(self.sources[0], settings, worker=self.worker, timeout=_LOAD_SECONDS) as session:
            info = session.info
            structure = read_structure(self.sources[0], info)
            if data is not None:
                feed = read_data(data, info.inputs, 1)[0]
            else:
                found = self._maker(info, structure, self.options).collect(session.run)
                if not found.working:
                    raise found.error if found.error is not None else FeedError(found.advice)
                feed = found.working[0][0]
            return feed, self._generation(session, info, structure)

    def _maker(self, info: SessionInfo, structure: Structure, options: FeedOptions) -> FeedMaker:
        return FeedMaker(
            info.inputs,
            options,
            roles=structure.roles,
            unranked=structure.unranked,
            hints=structure.hints,
            typical=True,
        )

    def _generation(self, session: RemoteSession, info: SessionInfo, structure: Structure) -> Generation | None:
        asked = self.wishes.decode
        if asked == 0:
            return None
        if not cache_pairs(info):
            if asked is not None:
                self.notes.append(NO_DECODER)
            return None
        if self.options.shapes:
            self.notes.append("prefill and decode were not timed apart: whole shapes are given; give dims instead")
            return None
        options = self.options

        def maker(dims: Mapping[str, int]) -> FeedMaker:
            return self._maker(info, structure, FeedOptions(dict(dims), {}, options.ranges, options.seed, 1))

        planned = plan_generation(info, maker, options.dims, session.run, DECODE_STEPS if asked is None else asked)
        if isinstance(planned, str):
            self.notes.append(f"prefill and decode were not timed apart: {planned}")
            return None
        return planned

    # --- timing

    def _as_recipe(self, settings: SessionSettings) -> SessionSettings:
        """Settings of the rewritten side."""
        recipe = self.wishes.recipe
        if recipe is None:
            return settings
        if recipe.settings.provider != settings.provider:
            raise RecipeError(
                f"the recipe is for {recipe.settings.provider} and {settings.provider} runs here; choose the other "
                "with --provider, or tune anew"
            )
        self.notes.append(f"the rewritten model runs with {settings_text(recipe.settings.flat())}")
        return apply_settings(settings, recipe.settings)

    def _work(self, feed: Feed, generation: Generation | None) -> Work:
        recipe = self.wishes.recipe
        recorded = recipe is not None and recipe.settings.provider_options.get("enable_cuda_graph") == "1"
        if not recorded:
            return Work(feed.values, self.wishes.concurrency, generation)
        if self.wishes.concurrency or generation is not None:
            self.notes.append("only the latency is timed: a CUDA graph runs one request at a time, at fixed shapes")
        return Work(feed.values)

    def _time(self, both: tuple[SessionSettings, SessionSettings], work: Work) -> Timings:
        handles = (self.sources[0].handle, self.sources[1].handle)
        extras = self.wishes.memory or self.wishes.placement or self.wishes.profile
        seconds = max(0.0, self._left())
        if extras:
            seconds = max(seconds / 2, min(seconds * _TIMING_SHARE, seconds - _LOOK_SECONDS))
        plan = Plan(pairs=self.wishes.sessions, seconds=seconds)
        if both[0].provider == CUDA and not self._fit_together():
            plan.together = False
            self.notes.append(_ONE_AFTER_THE_OTHER)
        limit = 20 * self.wishes.max_time + _LOAD_SECONDS
        began = time.monotonic()
        for _ in range(3):
            plan.seconds = max(0.0, seconds - (time.monotonic() - began))  # what a failed attempt took is gone
            try:
                timings: Timings = self.worker.call(time_here, handles, both, work, plan, timeout=limit)
            except WorkerMemoryError:
                if not plan.together:
                    raise
                self.notes.append(_ONE_AFTER_THE_OTHER)
                plan.together = False
            except ExecutionError as error:
                if work.generation is None:
                    raise
                self.notes.append(
                    f"prefill and decode were not timed apart: one of the models does not run them: {error}"
                )
                work.generation = None
            else:
                break
        return timings

    def _fit_together(self) -> bool:
        """False where the weights of both need more than the device has free; trying would take as long as loading."""
        free = device_memory.free_device_bytes()
        return free is None or sum(file_bytes(source) for source in self.sources) < _USABLE * free

    def _comparisons(self, timings: Timings, generation: Generation | None) -> list[Comparison]:
        found = []
        if THROUGHPUT in timings.tracks:
            detail = f"{self.wishes.concurrency} at a time"
            found.append(compare(THROUGHPUT, timings.tracks[THROUGHPUT], "requests/s", detail, 1))
        if generation is not None:
            tokens = f"{generation.prompt} tokens, batch {generation.batch}"
            if PREFILL in timings.tracks:
                found.append(compare(PREFILL, timings.tracks[PREFILL], "ms", tokens, 1))
            if DECODE in timings.tracks:
                asked, made = len(generation.steps), timings.steps or len(generation.steps)
                if made < asked:
                    self.notes.append(f"{made} of {asked} steps were timed; the rest wants more --max-time")
                detail = f"{made} steps after {tokens}"
                found.append(compare(DECODE, timings.tracks[DECODE], "tokens/s", detail, generation.batch))
        return found

    # --- looks

    def _looks(self, both: tuple[SessionSettings, SessionSettings], feed: Feed) -> tuple[Look, Look]:
        wishes = self.wishes
        looks = []
        for source, settings in zip(self.sources, both, strict=True):
            look = Look()
            looks.append(look)
            if not (wishes.memory or wishes.placement or wishes.profile):
                continue
            if not wishes.profile and self._left() < 0:
                missing = (("peak_bytes", "device_bytes") if wishes.memory else ()) + ("placement",) * wishes.placement
                look.unknown |= dict.fromkeys(missing, "no time was left; allow more by --max-time")
                continue
            runs = _PROFILED_RUNS if wishes.profile else 0
            try:
                with Worker(memory_limit=wishes.memory_limit) as fresh:
                    looks[-1] = fresh.call(
                        look_here,
                        source.handle,
                        settings,
                        feed.values,
                        runs,
                        _PROFILE_SECONDS,
                        wishes.memory,
                        file_bytes(source),
                        timeout=_LOAD_SECONDS,
                    )
            except ExecutionError as error:
                look.unknown |= dict.fromkeys(("peak_bytes", "device_bytes", "placement"), str(error))
                self.notes.append(f"memory and placement of {source.label} are not known: {error}")
        return looks[0], looks[1]

    def _side(self, number: int, timings: Timings, look: Look) -> LatencySide:
        sessions = timings.tracks[LATENCY].runs[number]
        runs = np.asarray([run for session in sessions for run in session]) * 1e3
        source = self.sources[number]
        return LatencySide(
            label=source.label,
            median_ms=float(np.median(runs)),
            p90_ms=float(np.quantile(runs, 0.9)),
            p99_ms=float(np.quantile(runs, 0.99)),
            runs=int(runs.size),
            sessions=len(timings.loads[number]),
            load_seconds=float(np.median(timings.loads[number])),
            file_bytes=file_bytes(source),
            peak_bytes=look.peak_bytes,
            first_run_ms=float(np.median(timings.firsts[number])) * 1e3,
            device_bytes=look.device_bytes,
            unknown=look.unknown,
            placement=look.placement,
            samples=samples(sessions),
        )

    def _runtime_does(self, settings: SessionSettings, look: Look) -> dict[str, tuple[int, int]]:
        """Operator types that the rewriting made fewer and that the runtime makes fewer by itself at load."""
        try:
            before, ours = (count_operators(source) for source in self.sources)
            if look.placement is not None:
                theirs = look.placement.operators
            else:
                _, theirs = self.worker.call(graph_here, self.sources[0].handle, settings, timeout=_LOAD_SECONDS)
        except (ExecutionError, OSError, ValueError):
            return {}
        return {
            name: (before[name], theirs.get(name, 0))
            for name in sorted(before)
            if ours.get(name, 0) < before[name] and theirs.get(name, 0) < before[name]
        }


def _recipe_for(model: Any, recipe: str | Path | Recipe | None) -> Recipe | None:
    """The recipe, if it belongs to the model.

    Raises:
        RecipeError: It cannot be read, or does not belong to it.
    """
    if recipe is None:
        return None
    found = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    if isinstance(model, str | os.PathLike):
        require_model(model, (found.model,))
    return found
