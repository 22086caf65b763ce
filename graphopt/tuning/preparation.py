"""What trials are held to: inputs, what the original gives for them unoptimized, how far the defaults are from it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphopt.errors import ExecutionError, FeedError, UsageError
from graphopt.recipes import DeviceStamp
from graphopt.runtime.compare import compare, eps
from graphopt.runtime.contents import count_operators
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions, FeedSet
from graphopt.runtime.recipe import stamp_here
from graphopt.runtime.remote import RemoteSession, provider_here
from graphopt.runtime.session import CPU, CUDA, SessionInfo, SessionSettings
from graphopt.runtime.set_ups import SetUp
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import Structure, read_structure
from graphopt.runtime.tolerance import CEILINGS, FACTOR
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker
from graphopt.tuning.trial import Standard

_LOAD_SECONDS = 600.0
# Random operators without a seed: what differs under another seed is random.
_SEEDS = (17, 7919)
_RANDOM = ("Random", "Dropout", "Bernoulli", "Multinomial")
# Beyond what float32 is off by itself, below what TF32 is off by.
_COARSE = 1e-5
Outputs = dict[str, Data]


@dataclass(slots=True)
class Prepared:
    """What the original says about itself.

    Attributes:
        provider: What really runs.
        stamp: The device.
        standard: What trials are held to.
        feeds: The sets of inputs; the first is timed.
        floor: Output -> error of the runtime's defaults.
        tf32_floor: Output -> what TF32 alone does, in either layout of convolutions.
        baseline_ok: The defaults are within the limits.
        operators: Operator type -> nodes.
        has_conv1d: Some convolution has one spatial dim.
        ready_seconds: How long it takes to make a session and run it once.
        notes: Sentences for the report.
    """

    provider: str
    stamp: DeviceStamp
    standard: Standard
    feeds: tuple[Feed, ...]
    floor: dict[str, float]
    tf32_floor: dict[str, float]
    baseline_ok: bool
    operators: Mapping[str, int]
    has_conv1d: bool = False
    ready_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def prepare(
    source: ModelSource,
    *,
    provider: str,
    options: FeedOptions,
    data: str | Path | None,
    max_error: float | None,
    custom_ops: tuple[str, ...],
) -> Prepared:
    """Make inputs, run the original on them, and measure how far the runtime's defaults are from it.

    Args:
        source: The model.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        options: What the user says about inputs.
        data: A file or folder of the user's inputs.
        max_error: What errors may be; None takes what the defaults do themselves.
        custom_ops: Libraries of custom operators.

    Raises:
        ExecutionError: The original does not run, or the provider does not start.
        FeedError: No inputs were found, or those given do not fit.
        UsageError: Every output is random.
    """
    with Worker() as worker:
        return _Preparation(source, worker, options, custom_ops).run(provider, data, max_error)


class _Preparation:
    """One preparation on its way."""

    def __init__(self, source: ModelSource, worker: Worker, options: FeedOptions, custom_ops: tuple[str, ...]) -> None:
        self.source = source
        self.worker = worker
        self.options = options
        self.custom_ops = custom_ops
        self.provider = CPU
        self.ready_seconds = 0.0
        self.notes: list[str] = []

    def run(self, asked: str, data: str | Path | None, max_error: float | None) -> Prepared:
        self.provider = self.worker.call(provider_here, asked)
        operators, has_conv1d = self._operators()
        # Kept open: making it again would cost another search for the algorithms of convolutions.
        with self._session(self._set_up().as_users()) as users:
            found = self._inputs(data, users)
            feeds = [feed for feed, _ in found]
            references = [outputs for _, outputs in found]
            random = self._random(feeds, references) if _may_be_random(operators) else set()
            names = [name for name in references[0] if name not in random]
            floor, feeds, references = self._floor(feeds, references, names, users)
        if random:
            self.notes.append(f"random in the original and not compared: {', '.join(sorted(random))}")
        if not names:
            raise UsageError("every output is random in the original; set seeds in the model to tune it")
        # Where the defaults are that far off, they take TF32 already, and there is nothing more to learn.
        asks = max_error is None and self.provider == CUDA and min(floor.values()) < _COARSE
        tf32 = self._tf32_floor(feeds[:1], names) if asks else {}
        limits = {name: _limit(max_error, name, floor, tf32, references) for name in names}
        return Prepared(
            self.provider,
            self.worker.call(stamp_here, self.provider),
            Standard(tuple(feed.values for feed in feeds), tuple(references), limits),
            tuple(feeds),
            floor,
            tf32,
            all(floor[name] <= limits[name] for name in names),
            operators,
            has_conv1d,
            self.ready_seconds,
            self.notes,
        )

    def _set_up(self, seed: int = _SEEDS[0], options: tuple[tuple[str, str], ...] = ()) -> SetUp:
        return SetUp(self.provider, options, self.custom_ops, seed)

    @contextmanager
    def _session(self, settings: SessionSettings) -> Iterator[RemoteSession]:
        with RemoteSession(self.source, settings, worker=self.worker, timeout=_LOAD_SECONDS) as session:
            yield session

    # --- inputs

    def _inputs(self, data: str | Path | None, users: RemoteSession) -> list[tuple[Feed, Outputs]]:
        """The inputs that are timed, at the sizes models are used at, then others and other sizes."""
        began = time.monotonic()
        info = users.info
        loaded = time.monotonic()
        structure = read_structure(self.source, info)
        if data is not None:
            own = read_data(data, info.inputs, self.options.runs)
        else:
            own = [self._typical(info, structure, users)]
        first_run = time.monotonic()
        users.run(own[0].values)
        self.ready_seconds = loaded - began + time.monotonic() - first_run
        maker = self._maker(info, structure, typical=False)
        with self._session(self._set_up().judged()) as session:
            if session.info.provider != self.provider:
                raise ExecutionError(
                    f"{self.provider} was asked for and {session.info.provider} ran; see graphopt doctor"
                )
            found = [(feed, session.run(feed.values)) for feed in own]
            found += _turned(own[0], session)
            others = FeedSet()
            try:
                others = maker.collect(session.run, tries=24, seconds=10.0)
            except FeedError as error:
                self.notes.append(f"outputs are compared at the inputs given only: {error}")
        # Empty inputs say nothing about a setting, and the runtime's own fusions stumble over them.
        return [*found, *(item for item in others.working if not item[0].is_empty)]

    def _typical(self, info: SessionInfo, structure: Structure, session: RemoteSession) -> Feed:
        maker = self._maker(info, structure, typical=True)
        alone = FeedOptions(self.options.dims, self.options.shapes, self.options.ranges, self.options.seed, 1)
        maker.options = alone
        found = maker.collect(session.run)
        if not found.working:
            raise found.error if found.error is not None else FeedError(found.advice)
        return Feed("timed", found.working[0][0].values)

    def _maker(self, info: SessionInfo, structure: Structure, *, typical: bool) -> FeedMaker:
        return FeedMaker(
            info.inputs,
            self.options,
            roles=structure.roles,
            unranked=structure.unranked,
            hints=structure.hints,
            typical=typical,
        )

    # --- how far the original is from itself

    def _random(self, feeds: Sequence[Feed], references: Sequence[Outputs]) -> set[str]:
        """Outputs that differ under another seed."""
        with self._session(self._set_up(_SEEDS[1]).judged()) as session:
            again = session.run(feeds[0].values)
        return {name for name, value in references[0].items() if not compare(value, again[name]).identical}

    def _floor(
        self, feeds: Sequence[Feed], references: Sequence[Outputs], names: Sequence[str], session: RemoteSession
    ) -> tuple[dict[str, float], list[Feed], list[Outputs]]:
        """What the runtime's defaults do themselves; inputs at which they fail, or give NaN, are left out."""
        floor = dict.fromkeys(names, 0.0)
        kept_feeds, kept = [], []
        for number, (feed, reference) in enumerate(zip(feeds, references, strict=True)):
            try:
                outputs = session.run(feed.values)
                errors = {name: _error(reference[name], outputs[name]) for name in names}
                why = "" if all(map(math.isfinite, errors.values())) else "it gives NaN or another shape"
            except ExecutionError as error:
                if number == 0:
                    raise
                errors, why = {}, str(error)
            if why and number == 0:  # at what is timed: then the defaults do not count, and others may hold
                self.notes.append(f"the runtime's defaults do not give what the model, not optimized, gives: {why}")
            elif why:
                self.notes.append(f"the runtime's defaults fail at {feed.label}, which is left out: {why}")
                continue
            kept_feeds.append(feed)
            kept.append(reference)
            for name, distance in errors.items():
                floor[name] = max(floor[name], distance)
        return floor, kept_feeds, kept

    def _tf32_floor(self, feeds: Sequence[Feed], names: Sequence[str]) -> dict[str, float]:
        """What TF32, which the defaults allow, does alone: on against off, in both layouts of convolutions.

        Where the defaults take no tensor cores for a convolution at some size, another layout may.
        """
        found: dict[str, float] = {}
        for layout in ("0", "1"):
            plain = self._set_up(options=(("prefer_nhwc", layout),))
            try:
                with self._session(plain.without_tf32()) as session:
                    exact = [session.run(feed.values) for feed in feeds]
                with self._session(plain.as_users()) as session:
                    coarse = [session.run(feed.values) for feed in feeds]
            except ExecutionError:
                continue  # a layout that does not run here allows nothing
            for left, right in zip(exact, coarse, strict=True):
                for name in names:
                    error = _error(left[name], right[name])
                    if math.isfinite(error):
                        found[name] = max(found.get(name, 0.0), error)
        return found

    def _operators(self) -> tuple[Mapping[str, int], bool]:
        try:
            operators = count_operators(self.source)
        except ValueError:
            return {}, False
        return operators, "Conv" in operators and _has_conv1d(self.source)


def _may_be_random(operators: Mapping[str, int]) -> bool:
    """True where some operator draws numbers; also where nothing is known of them."""
    return not operators or any(word in name for name in operators for word in _RANDOM)


def _turned(feed: Feed, session: RemoteSession) -> list[tuple[Feed, Outputs]]:
    """The inputs that are timed, back to front: other values of the same shapes, which a recorded run must follow."""
    for kinds in ("fciub", "fc"):
        turned = {
            name: np.flip(value).copy() if isinstance(value, np.ndarray) and value.dtype.kind in kinds else value
            for name, value in feed.values.items()
        }
        try:
            return [(Feed(f"{feed.label}, back to front", turned), session.run(turned))]
        except ExecutionError:
            continue  # lengths, positions: what they stand for cannot be turned round
    return []


def _error(reference: Data, value: Data) -> float:
    difference = compare(reference, value)
    return math.inf if difference.mismatch else difference.error


def _limit(
    given: float | None,
    name: str,
    floor: Mapping[str, float],
    tf32: Mapping[str, float],
    references: Sequence[Outputs],
) -> float:
    """What the error of an output may be: as asked for, or a few times what the defaults do."""
    least = ceiling = 0.0
    for outputs in references:
        dtype = getattr(outputs[name], "dtype", None)
        least = max(least, eps(dtype) if dtype is not None else 0.0)
        ceiling = CEILINGS.get(dtype.name, 0.0) if dtype is not None else 0.0
    if given is not None:
        return given
    if not math.isfinite(floor[name]):
        return ceiling
    return FACTOR * max(floor[name], tf32.get(name, 0.0), least)


def _has_conv1d(source: ModelSource) -> bool:
    """True where the weights of some convolution have three dims."""
    from graphopt.runtime.structure import try_load

    graph = try_load(source)
    if graph is None:
        return True  # not known: let it be tried
    return any(
        len(node.operands) > 1 and node.operands[1] is not None and node.operands[1].rank == 3
        for inner in graph.model.graphs()
        for node in inner.of_kind("Conv")
    )
