"""Equal, different or not verified: the written model against the original, on the runtime that will run it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import ExecutionError, KernelMissingError, WorkerMemoryError, WorkerTimeoutError
from graphopt.records import FeedRecord, Verification
from graphopt.runtime.compare import compare
from graphopt.runtime.evidence import Evidence, Outputs, RewrittenFailedError
from graphopt.runtime.excuses import find_excuses
from graphopt.runtime.feeds import FeedOptions, FeedSet
from graphopt.runtime.opaque import OpaqueChangedError, cut_out
from graphopt.runtime.remote import provider_here, version_here
from graphopt.runtime.session import CPU, CUDA, JUDGE, SessionInfo
from graphopt.runtime.sources import ModelSource, open_source
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker

_RUN_SECONDS = 300.0


def verify(
    original: Any,
    rewritten: Any,
    *,
    provider: str = "auto",
    level: str = "default",
    feeds: Sequence[Mapping[str, Data]] | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    runs: int | None = None,
    override_defaults: bool = True,
    data: str | Path | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    custom_ops: Sequence[str] = (),
    timeout: float | None = None,
    memory_limit: int | None = None,
    worker: Worker | None = None,
) -> Verification:
    """Compare a rewritten model with its original by running both.

    Args:
        original: A path, bytes, ModelProto or Graph.
        rewritten: The same for the other side; pass the written file, not what it was written from.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        level: "exact" asks for the same bits on the CPU; other levels for less than the measured noise.
        feeds: Inputs to use instead of made ones.
        dims: Name of a symbolic dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        seed: Seed of the made inputs.
        runs: How many sets of inputs; None for one of each kind.
        override_defaults: Whether inputs with a default are also given another value; False where they were frozen.
        data: A file or folder of the user's inputs, see `read_data`.
        rtol: Relative tolerance (of the output's scale) in place of the measured one.
        atol: Absolute tolerance in place of the measured one.
        custom_ops: Libraries of custom operators.
        timeout: Seconds that one load or run may take.
        memory_limit: Bytes that the runtime's process may take.
        worker: The process to run in; by default the one that all calls share.

    Returns:
        The verdict. Failures of the runtime are verdicts, not exceptions.

    Raises:
        FeedError: An option names something that the model does not have, or the user's data does not fit.
    """
    started = time.monotonic()
    options = FeedOptions(
        dict(dims or {}),
        {name: tuple(shape) for name, shape in (shapes or {}).items()},
        dict(ranges or {}),
        seed,
        runs,
        override_defaults,
    )
    own = Worker(memory_limit=memory_limit) if worker is None and memory_limit is not None else None
    process = worker or own or shared_worker()
    try:
        with open_source(original, "the original") as first, open_source(rewritten, "the rewritten model") as second:
            evidence = Evidence(first, second, process, options, tuple(custom_ops), timeout or _RUN_SECONDS)
            yardstick = Yardstick(level == "exact" and rtol is None and atol is None, rtol, atol)
            job = _Verification(evidence, provider, level, feeds, data, yardstick)
            return job.run(started)
    finally:
        if own is not None:
            own.close()


class _Verification:
    """One verification on its way; the first step that settles the matter ends it."""

    def __init__(
        self,
        evidence: Evidence,
        provider: str,
        level: str,
        feeds: Sequence[Mapping[str, Data]] | None,
        data: str | Path | None,
        yardstick: Yardstick,
    ) -> None:
        self.evidence = evidence
        self.asked = provider
        self.level = level
        self.given = feeds
        self.data = data
        self.yardstick = yardstick
        self.provider = ""
        self.version = ""
        self.opaque_nodes = 0

    @property
    def notes(self) -> list[str]:
        """Sentences for the record."""
        return self.evidence.notes

    @property
    def tallies(self) -> dict[str, OutputTally]:
        """What was seen, output by output."""
        return self.evidence.tallies

    def run(self, started: float) -> Verification:
        """All steps."""
        verdict, reason = self._decide()
        return Verification(
            verdict=verdict,
            reason=reason,
            level=self.level,
            provider=self.provider,
            provider_asked=self.asked,
            runtime=self.version,
            feeds=_feed_records(self.evidence.found),
            outputs=tuple(tally.record(self.yardstick) for tally in self.tallies.values()),
            rtol=self.yardstick.rtol,
            atol=self.yardstick.atol,
            opaque_nodes=self.opaque_nodes,
            notes=tuple(self.notes),
            seconds=time.monotonic() - started,
        )

    # --- steps ----------------------------------------------------------------------------------------------------

    def _decide(self) -> tuple[str, str]:
        evidence = self.evidence
        try:
            self.version = evidence.worker.call(version_here)
            self.provider = CPU if self.level == "exact" else evidence.worker.call(provider_here, self.asked)
        except ExecutionError as error:
            return "not verified", str(error)
        evidence.provider = self.provider
        if self.level == "exact" and self.asked.lower() not in ("auto", "cpu"):
            self.notes.append(
                "the level exact is judged on the CPU; use --level default to compare on another provider"
            )
        try:
            evidence.run_original(self.given, self.data)
        except ExecutionError as error:
            settled = self._around_opaque_nodes(error)
            if settled is not None:
                return settled
        if self.provider == CUDA:
            self.notes.append("compared with TF32 off; the runtime has it on, which is a thousand times coarser")
        if evidence.info.provider != self.provider:
            ran, self.provider = evidence.info.provider, ""
            return "not verified", f"{evidence.provider} was asked for and {ran} ran; see graphopt doctor"
        if not evidence.found.working:
            return "not verified", evidence.found.advice
        return self._rewritten_as_judged()

    def _around_opaque_nodes(self, error: ExecutionError) -> tuple[str, str] | None:
        """Cut out what the runtime does not know, and run the original again; a verdict where that does not help."""
        evidence = self.evidence
        unknown = "not verified", f"the original cannot be run ({error.reason}): {error}"

        def loads(source: ModelSource) -> None:
            with evidence.session(source, JUDGE) as session:
                evidence.info = session.info

        try:
            cut = cut_out(evidence.original, evidence.rewritten, error, loads)
            if cut is None:
                return unknown
            evidence.original, evidence.rewritten, nodes = cut
            evidence.run_original(self.given, self.data)
        except OpaqueChangedError as changed:
            return "not verified", str(changed)
        except ExecutionError:
            return unknown
        self.opaque_nodes = len(nodes)
        return None

    def _rewritten_as_judged(self) -> tuple[str, str]:
        """The rewritten model with the runtime's optimizer off, against the original in the same way."""
        evidence = self.evidence
        try:
            with evidence.session(evidence.rewritten, JUDGE) as session:
                mismatch = _signature(evidence.info, session.info)
                if mismatch:
                    return "different", mismatch
                results = evidence.strictly(session)
        except RewrittenFailedError as failure:
            return _failure(failure.cause, str(failure))
        except KernelMissingError as error:
            return (
                "not verified",
                f"{self.provider} has no kernel for the rewritten model: {error}; verify it where it is to run",
            )
        except ExecutionError as error:
            return _failure(error, f"the original runs and the rewritten model does not ({error.reason}): {error}")
        for tally in self.tallies.values():
            for (feed, reference), result in zip(evidence.found.working, results, strict=True):
                tally.differences[feed.label] = compare(reference[tally.name], result[tally.name])
        if not all(item.identical for tally in self.tallies.values() for item in tally.differences.values()):
            evidence.find_random()
            if not (self.yardstick.exact or self.yardstick.given):
                evidence.measure_noise()
        verdict = self._judge(results, users=False)
        return ("different", verdict) if verdict is not None else self._rewritten_as_users()

    def _rewritten_as_users(self) -> tuple[str, str]:
        """The rewritten model once more with default options; it must run and be within the noise."""
        evidence = self.evidence
        try:
            with evidence.as_users(evidence.rewritten) as session:
                results = evidence.as_users_run(session)
        except RewrittenFailedError as failure:
            return self._fails_as_users(failure.cause, str(failure))
        except ExecutionError as error:
            sentence = f"the rewritten model does not load with default options ({error.reason}): {error}"
            return self._fails_as_users(error, sentence)
        for feed, why in evidence.found.unoptimized:
            self.notes.append(
                f"at {feed.label} the runtime's own optimizations of the rewritten model fail, and without them it is "
                f"equal ({why}); feed it nothing empty, or switch them off"
            )
        for tally in self.tallies.values():
            for (feed, reference), result in zip(evidence.found.working, results, strict=True):
                tally.users[feed.label] = compare(reference[tally.name], result[tally.name])
        if all(item.identical for tally in self.tallies.values() for item in tally.users.values()):
            return self._equal()
        evidence.find_random()
        evidence.measure_noise()
        self._compare_optimized(results)
        verdict = self._judge(results, users=True)
        return ("different", verdict) if verdict is not None else self._equal()

    def _compare_optimized(self, results: Sequence[Outputs]) -> None:
        """Optimized against optimized, where that is closer than optimized against not."""
        evidence = self.evidence
        with evidence.as_users(evidence.original) as session:
            optimized = evidence.leniently(session)
        for (feed, _), left, right in zip(evidence.found.working, optimized, results, strict=True):
            if left is None:
                continue
            for tally in self.tallies.values():
                other, known = compare(left[tally.name], right[tally.name]), tally.users[feed.label]
                if other.identical or (other.error, other.mismatched) < (known.error, known.mismatched):
                    tally.users[feed.label] = other

    def _fails_as_users(self, error: ExecutionError, sentence: str) -> tuple[str, str]:
        """The rewritten model fails with default options: a fault of ours only if the original does not."""
        evidence = self.evidence
        try:
            with evidence.as_users(evidence.original) as session:
                evidence.strictly(session)
        except (ExecutionError, RewrittenFailedError):
            self.notes.append("neither model runs with the runtime's default options; its optimizer was off")
            return self._equal()
        return _failure(error, sentence)

    # --- verdicts -------------------------------------------------------------------------------------------------

    def _judge(self, results: Sequence[Outputs], users: bool) -> str | None:
        """The sentence on the first output that is off; None where all are within."""
        yardstick = self.yardstick
        excusable = not yardstick.given and (users or not yardstick.exact)
        if excusable and any(tally.faults(yardstick, users) for tally in self.tallies.values()):
            find_excuses(self.evidence, yardstick, results, users)
        for tally in self.tallies.values():
            for label in tally.faults(yardstick, users):
                difference = (tally.users if users else tally.differences)[label]
                how = ", run with default options," if users else ""
                far = tally.how_far(difference, label, yardstick, users)
                return f"output {tally.name!r}{how} differs at {label}: {far}"
        return None

    def _equal(self) -> tuple[str, str]:
        compared = [tally for tally in self.tallies.values() if not tally.is_random]
        random = [tally.name for tally in self.tallies.values() if tally.is_random]
        stale = [tally.name for tally in compared if tally.random]
        if stale:
            self.notes.append(f"the original does not repeat itself at some feeds, left out there: {', '.join(stale)}")
        if random:
            self.notes.append(f"random in the original and not compared: {', '.join(random)}")
        if not compared and self.tallies:
            return "not verified", "every output is random in the original; set seeds in the model to compare it"
        how = "within the measured noise"
        if all(item.identical for tally in compared for item in tally.differences.values()):
            how = "the same bits"
        elif self.yardstick.given:
            how = f"within {self.yardstick}"
        count = len(self.evidence.found.working)
        if self.opaque_nodes:
            how = f"{how} around {self.opaque_nodes} opaque {'node' if self.opaque_nodes == 1 else 'nodes'}"
        return "equal", f"{how} on {self.provider} in {count} {'feed' if count == 1 else 'feeds'}"


def _failure(error: ExecutionError, sentence: str) -> tuple[str, str]:
    """A rewritten model that wants time or memory is not proved different."""
    if isinstance(error, WorkerMemoryError | WorkerTimeoutError):
        return "not verified", sentence
    return "different", sentence


def _feed_records(found: FeedSet) -> tuple[FeedRecord, ...]:
    worked = [FeedRecord(feed.label, feed.sizes) for feed, _ in found.working]
    failed = [
        FeedRecord(feed.label, feed.sizes, f"covers nothing, the original fails: {error}")
        for feed, error in found.failing
    ]
    aside = [
        FeedRecord(
            feed.label, feed.sizes, f"compared with the runtime's optimizer off; with it on the runtime fails: {why}"
        )
        for feed, why in found.unoptimized
    ]
    return (*worked, *aside, *failed)


def _signature(original: SessionInfo, rewritten: SessionInfo) -> str:
    """What sets two signatures apart: names, order, dtypes, ranks; empty where nothing does."""
    for what, left, right in (
        ("inputs", original.inputs, rewritten.inputs),
        ("outputs", original.outputs, rewritten.outputs),
    ):
        if what == "inputs":  # an initializer that could be fed and now cannot is a contract lost; so is its order
            left_names, right_names = [port.name for port in left], [port.name for port in right]
        else:
            left_names, right_names = [port.name for port in left], [port.name for port in right]
        if left_names != right_names:
            return (
                f"the {what} are {', '.join(right_names) or 'none'}; the original has {', '.join(left_names) or 'none'}"
            )
        for one, other in zip(left, right, strict=True):
            if one.type != other.type:
                return f"{what[:-1]} {one.name!r} is {other.type}; the original has {one.type}"
            if one.overridable != other.overridable:
                return f"input {one.name!r} {'no longer has' if one.overridable else 'now has'} a default"
    return ""
