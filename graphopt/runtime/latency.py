"""Is the rewritten model faster? Both models timed in one run, with an interval on the ratio."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, FeedError, WorkerMemoryError
from graphopt.records import Benchmark, LatencySide
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions
from graphopt.runtime.remote import RemoteSession, close_here, open_here, provider_here, version_here
from graphopt.runtime.session import JUDGE, SessionSettings
from graphopt.runtime.sources import ModelSource, open_source
from graphopt.runtime.stats import CONFIDENCE, MARGIN, ratio_interval, verdict
from graphopt.runtime.structure import read_structure
from graphopt.runtime.timing import Plan, Timings, default_settings, peak_here, time_here
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker

_LOAD_SECONDS = 600.0


def benchmark(
    original: Any,
    rewritten: Any,
    *,
    provider: str = "auto",
    feeds: Mapping[str, Data] | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    threads: int = 0,
    sessions: int = 5,
    max_time: float = 30.0,
    custom_ops: Sequence[str] = (),
    memory: bool = True,
    worker: Worker | None = None,
) -> Benchmark:
    """Time two models against each other as users run them, the runtime's default optimization on for both.

    Args:
        original: A path, bytes, ModelProto or Graph.
        rewritten: The same for the other side.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        feeds: One set of inputs; by default it is made.
        dims: Name of a symbolic dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        seed: Seed of the made inputs.
        data: A file or folder of the user's inputs; the first is used.
        threads: Threads within an operator; 0 is the runtime's default.
        sessions: Sessions of each side, at least 3.
        max_time: Seconds that timing may take; loading and warming up come on top, three sessions are always made.
        custom_ops: Libraries of custom operators.
        memory: Whether to measure peak memory, in a process of its own for each side.
        worker: The process to run in; by default one made for this and ended after it.

    Returns:
        The timings and the verdict; "not measured" where a model does not run.

    Raises:
        FeedError: An option names something that the model does not have, or the user's data does not fit.
    """
    started = time.monotonic()
    options = FeedOptions(
        dict(dims or {}), {name: tuple(shape) for name, shape in (shapes or {}).items()}, dict(ranges or {}), seed, 1
    )
    own = Worker() if worker is None else None
    process = worker or own
    assert process is not None
    try:
        with open_source(original, "original") as first, open_source(rewritten, "rewritten") as second:
            job = _Benchmark(
                (first, second),
                process,
                provider,
                options,
                threads,
                max(3, sessions),
                max_time,
                tuple(custom_ops),
                memory,
            )
            return job.run(feeds, data, started)
    finally:
        if own is not None:
            own.close()


class _Benchmark:
    """One comparison on its way."""

    def __init__(
        self,
        sources: tuple[ModelSource, ModelSource],
        worker: Worker,
        provider: str,
        options: FeedOptions,
        threads: int,
        sessions: int,
        max_time: float,
        custom_ops: tuple[str, ...],
        memory: bool,
    ) -> None:
        self.sources = sources
        self.worker = worker
        self.asked = provider
        self.options = options
        self.threads = threads
        self.sessions = sessions
        self.max_time = max_time
        self.custom_ops = custom_ops
        self.memory = memory
        self.notes: list[str] = []

    def run(self, given: Mapping[str, Data] | None, data: str | Path | None, started: float) -> Benchmark:
        """Make inputs, time, conclude."""
        version = ""
        try:
            version = self.worker.call(version_here)
            settings = default_settings(self.worker.call(provider_here, self.asked), self.threads, self.custom_ops)
            feed = self._feed(given, data, settings)
            timings = self._time(settings, feed)
        except ExecutionError as error:
            return Benchmark(
                "not measured",
                f"{error.reason}: {error}",
                runtime=version,
                threads=self.threads,
                seconds=time.monotonic() - started,
            )
        ratio, low, high = ratio_interval(_log_ratios(timings))
        said = verdict(low, high)
        sides = [self._side(number, timings, settings, feed) for number in (0, 1)]
        does: dict[str, tuple[int, int]] = {}
        if said in ("no difference seen", "too noisy to say"):
            does = self._runtime_does(settings)
        return Benchmark(
            verdict=said,
            reason=_sentence(said, ratio, low, high, timings),
            ratio=ratio,
            low=low,
            high=high,
            confidence=CONFIDENCE,
            original=sides[0],
            rewritten=sides[1],
            provider=timings.provider,
            runtime=version,
            threads=self.threads,
            sizes=feed.sizes,
            runtime_does=does,
            notes=tuple(self.notes),
            seconds=time.monotonic() - started,
        )

    def _feed(self, given: Mapping[str, Data] | None, data: str | Path | None, settings: SessionSettings) -> Feed:
        if given is not None:
            return Feed("given", dict(given))
        probe = JUDGE.but(provider=settings.provider, custom_ops=self.custom_ops, prepack=True, threads=self.threads)
        with RemoteSession(self.sources[0], probe, worker=self.worker, timeout=_LOAD_SECONDS) as session:
            info = session.info
            if data is not None:
                return read_data(data, info.inputs, 1)[0]
            structure = read_structure(self.sources[0], info)
            maker = FeedMaker(
                info.inputs,
                self.options,
                roles=structure.roles,
                unranked=structure.unranked,
                hints=structure.hints,
                typical=True,
            )
            found = maker.collect(session.run)
        if not found.working:
            raise found.error if found.error is not None else FeedError(found.advice)
        return found.working[0][0]

    def _time(self, settings: SessionSettings, feed: Feed) -> Timings:
        handles = (self.sources[0].handle, self.sources[1].handle)
        plan = Plan(pairs=self.sessions, seconds=self.max_time)
        limit = 20 * self.max_time + _LOAD_SECONDS
        try:
            timings: Timings = self.worker.call(time_here, handles, settings, feed.values, plan, timeout=limit)
        except WorkerMemoryError:
            self.notes.append(
                "both models do not fit at once; they were timed one after the other, which is less sharp"
            )
            plan.together = False
            timings = self.worker.call(time_here, handles, settings, feed.values, plan, timeout=limit)
        return timings

    def _side(self, number: int, timings: Timings, settings: SessionSettings, feed: Feed) -> LatencySide:
        runs = np.asarray(timings.runs[number]) * 1e3
        source = self.sources[number]
        peak = None
        if self.memory:
            try:
                with Worker() as fresh:
                    peak = fresh.call(peak_here, source.handle, settings, feed.values, timeout=_LOAD_SECONDS)
            except ExecutionError as error:
                self.notes.append(f"the peak memory of {source.label} could not be measured: {error}")
        return LatencySide(
            label=source.label,
            median_ms=float(np.median(runs)),
            p90_ms=float(np.quantile(runs, 0.9)),
            p99_ms=float(np.quantile(runs, 0.99)),
            runs=int(runs.size),
            sessions=len(timings.loads[number]),
            load_seconds=float(np.median(timings.loads[number])),
            file_bytes=file_bytes(source),
            peak_bytes=peak,
        )

    def _runtime_does(self, settings: SessionSettings) -> dict[str, tuple[int, int]]:
        """Operator types that the rewriting made fewer and that the runtime makes fewer by itself at load."""
        with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
            path = os.path.join(folder, "optimized.onnx")
            try:
                number, _ = self.worker.call(
                    open_here, self.sources[0].handle, settings.but(optimized_path=path), timeout=_LOAD_SECONDS
                )
                self.worker.call(close_here, number)
                counts = [
                    count_operators(self.sources[0]),
                    count_operators(self.sources[1]),
                    count_operators(ModelSource("", path=path)),
                ]
            except (ExecutionError, OSError, ValueError):
                return {}
        before, ours, theirs = counts
        return {
            name: (before[name], theirs.get(name, 0))
            for name in sorted(before)
            if ours.get(name, 0) < before[name] and theirs.get(name, 0) < before[name]
        }


def _log_ratios(timings: Timings) -> list[list[float]]:
    """Log of original over rewritten time, by round where rounds are paired, by session otherwise."""
    result = []
    for left, right in zip(timings.rounds[0], timings.rounds[1], strict=True):
        if len(left) == len(right):
            result.append([math.log(one / other) for one, other in zip(left, right, strict=True)])
        else:
            result.append([math.log(float(np.median(left)) / float(np.median(right)))])
    return result


def _sentence(said: str, ratio: float, low: float, high: float, timings: Timings) -> str:
    interval = f"{ratio:.3f} times as fast, {CONFIDENCE:.0%} interval {low:.3f} to {high:.3f}"
    count = f"{sum(map(len, timings.rounds[0]))} rounds in {len(timings.rounds[0])} pairs of sessions"
    if said == "no difference seen":
        return f"{interval}, which does not lie outside 1 ± {MARGIN:.0%} ({count})"
    if said == "too noisy to say":
        return f"{interval}: too wide; close other programs or allow more time ({count})"
    return f"{interval} ({count})"


def file_bytes(source: ModelSource) -> int:
    """Size of a model with its external data."""
    total = source.nbytes
    if source.path is None:
        return total
    folder = os.path.dirname(source.path)
    for location in sorted(_locations(source.path)):
        path = os.path.join(folder, location)
        if os.path.isfile(path):
            total += os.path.getsize(path)
    return total


def _locations(path: str) -> set[str]:
    """External data files that a model names; found without reading weights."""
    try:
        return {
            entry.value
            for tensor in _tensors(_read(ModelSource("", path=path)))
            for entry in tensor.external_data
            if entry.key == "location"
        }
    except (OSError, ValueError):
        return set()


def _read(source: ModelSource) -> Any:
    import onnx

    try:
        if source.path is None:
            return onnx.ModelProto.FromString(source.data or b"")
        return onnx.load(source.path, load_external_data=False)
    except Exception as error:  # protobuf's own class has no stable home
        raise ValueError(f"not a readable model: {error}") from error


def _graphs(proto: Any) -> list[Any]:
    todo, found = [proto.graph], []
    nodes = [list(function.node) for function in proto.functions]
    while todo or nodes:
        if nodes:
            current = nodes.pop()
        else:
            graph = todo.pop()
            found.append(graph)
            current = list(graph.node)
        for node in current:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    todo.append(attribute.g)
                todo.extend(attribute.graphs)
    return found


def _tensors(proto: Any) -> list[Any]:
    found = []
    for graph in _graphs(proto):
        found += list(graph.initializer)
        for node in graph.node:
            found += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    return found


def count_operators(source: ModelSource) -> Counter[str]:
    """Nodes by operator type, bodies included, constants not."""
    proto = _read(source)
    return Counter(node.op_type for graph in _graphs(proto) for node in graph.node if node.op_type != "Constant")
