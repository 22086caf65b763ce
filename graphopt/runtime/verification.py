"""Equal, different or not verified: the written model against the original, on the runtime that will run it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import ExecutionError, KernelMissingError, ProviderMissingError
from graphopt.records import FeedRecord, Verification
from graphopt.runtime.compare import compare
from graphopt.runtime.feeds import Feed, FeedMaker, FeedOptions, FeedSet
from graphopt.runtime.remote import RemoteSession, provider_here, version_here
from graphopt.runtime.session import AS_USERS, CPU, JUDGE, SessionInfo, SessionSettings
from graphopt.runtime.sources import ModelSource, open_source
from graphopt.runtime.structure import Structure, read_structure
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.tolerance import has_floats, noise, one_ulp
from graphopt.runtime.userdata import read_data
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker

_RUN_SECONDS = 300.0
# Runs with inputs moved by an ulp, for each feed: the largest of few elements scatters.
_ULP_SAMPLES = 2

Outputs = dict[str, Data]


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
        dict(dims or {}), {name: tuple(shape) for name, shape in (shapes or {}).items()}, dict(ranges or {}), seed, runs
    )
    own = Worker(memory_limit=memory_limit) if worker is None and memory_limit is not None else None
    process = worker or own or shared_worker()
    try:
        with open_source(original, "the original") as first, open_source(rewritten, "the rewritten model") as second:
            job = _Verification(
                first,
                second,
                process,
                provider,
                level,
                options,
                feeds,
                data,
                Yardstick(level == "exact" and rtol is None and atol is None, rtol, atol),
                tuple(custom_ops),
                timeout or _RUN_SECONDS,
            )
            return job.run(started)
    finally:
        if own is not None:
            own.close()


class _Verification:
    """One verification on its way; sides are loaded one after the other, so that a model has to fit only once."""

    def __init__(
        self,
        original: ModelSource,
        rewritten: ModelSource,
        worker: Worker,
        provider: str,
        level: str,
        options: FeedOptions,
        feeds: Sequence[Mapping[str, Data]] | None,
        data: str | Path | None,
        yardstick: Yardstick,
        custom_ops: tuple[str, ...],
        timeout: float,
    ) -> None:
        self.original = original
        self.rewritten = rewritten
        self.worker = worker
        self.asked = provider
        self.level = level
        self.options = options
        self.given = feeds
        self.data = data
        self.yardstick = yardstick
        self.custom_ops = custom_ops
        self.timeout = timeout
        self.provider = ""
        self.version = ""
        self.notes: list[str] = []
        self.found = FeedSet()
        self.tallies: dict[str, OutputTally] = {}
        self.structure: Structure | None = None
        self.measured = False
        self.reference_info: SessionInfo | None = None

    def run(self, started: float) -> Verification:
        """All steps; the first that settles the matter ends it."""
        verdict, reason = self._decide()
        return Verification(
            verdict=verdict,
            reason=reason,
            level=self.level,
            provider=self.provider,
            provider_asked=self.asked,
            runtime=self.version,
            feeds=self._feed_records(),
            outputs=tuple(tally.record(self.yardstick) for tally in self.tallies.values()),
            rtol=self.yardstick.rtol,
            atol=self.yardstick.atol,
            notes=tuple(self.notes),
            seconds=time.monotonic() - started,
        )

    # --- steps ----------------------------------------------------------------------------------------------------

    def _decide(self) -> tuple[str, str]:
        try:
            self.version = self.worker.call(version_here)
            self.provider = CPU if self.level == "exact" else self.worker.call(provider_here, self.asked)
        except (ExecutionError, ProviderMissingError) as error:
            return "not verified", str(error)
        if self.level == "exact" and self.asked.lower() not in ("auto", "cpu"):
            self.notes.append(
                "the level exact is judged on the CPU; use --level default to compare on another provider"
            )
        settled = self._run_original()
        if settled is not None:
            return settled
        return self._run_rewritten()

    def _settings(self, base: SessionSettings) -> SessionSettings:
        changed = base.but(provider=self.provider, custom_ops=self.custom_ops, seed=self.options.seed)
        if self.provider != CPU:
            changed = changed.but(prepack=True, arena=True)
        return changed

    def _session(self, source: ModelSource, base: SessionSettings) -> RemoteSession:
        return RemoteSession(source, self._settings(base), worker=self.worker, timeout=self.timeout)

    def _run_original(self) -> tuple[str, str] | None:
        with self._session(self.original, JUDGE) as session:
            try:
                self.reference_info = session.info
            except ExecutionError as error:
                return "not verified", f"the original cannot be run ({error.reason}): {error}"
            if session.info.provider != self.provider:
                return (
                    "not verified",
                    f"{self.provider} was asked for and {session.info.provider} ran; see graphopt doctor",
                )
            self.structure = read_structure(self.original, session.info)
            self._collect(session)
        if not self.found.working:
            return "not verified", self.found.advice
        return None

    def _collect(self, session: RemoteSession) -> None:
        info = session.info
        structure = self.structure
        assert structure is not None
        maker = FeedMaker(
            info.inputs,
            self.options,
            roles=structure.roles,
            unranked=structure.unranked,
            defaults=structure.defaults,
            hints=structure.hints,
        )
        own = [Feed(f"given {number}", dict(feed)) for number, feed in enumerate(self.given or (), 1)]
        if self.data is not None:
            own += read_data(self.data, info.inputs, self.options.runs)
        if not own:
            self.found = maker.collect(session.run)
            return
        for feed in own:
            try:
                self.found.working.append((feed, session.run(feed.values)))
            except ExecutionError as error:
                self.found.failing.append((feed, str(error)))
                self.found.error = self.found.error or error
        if not self.found.working:
            self.found.advice = f"the original runs on none of the inputs given: {self.found.error}"
        elif self.given is None:
            more = maker.collect(session.run, tries=12, seconds=5.0)
            self.found.working += more.working
            self.found.failing += more.failing

    def _run_rewritten(self) -> tuple[str, str]:
        info = self.reference_info
        assert info is not None
        self.tallies = {port.name: OutputTally(port.name) for port in info.outputs}
        try:
            with self._session(self.rewritten, JUDGE) as session:
                mismatch = _signature(info, session.info)
                if mismatch:
                    return "different", mismatch
                results = self._feed_all(session, strict=True)
        except _RewrittenFailedError as failure:
            return "different", failure.args[0]
        except KernelMissingError as error:
            return (
                "not verified",
                f"{self.provider} has no kernel for the rewritten model: {error}; verify it where it is to run",
            )
        except ExecutionError as error:
            return "different", f"the original runs and the rewritten model does not ({error.reason}): {error}"
        for (feed, reference), result in zip(self.found.working, results, strict=True):
            assert result is not None
            for name, tally in self.tallies.items():
                tally.differences[feed.label] = compare(reference[name], result[name])
        identical = all(item.identical for tally in self.tallies.values() for item in tally.differences.values())
        if not identical:
            self._find_random()
            if not (self.yardstick.exact or self.yardstick.given):
                self._measure_floors()
        verdict = self._judge(users=False)
        if verdict is not None:
            return "different", verdict
        return self._as_users_run()

    def _feed_all(self, session: RemoteSession, *, strict: bool) -> list[Outputs | None]:
        results: list[Outputs | None] = []
        for feed, _ in self.found.working:
            try:
                results.append(session.run(feed.values))
            except ExecutionError as error:
                if strict:
                    raise _RewrittenFailedError(
                        f"the original runs at {feed.label} and the rewritten model does not ({error.reason}): {error}"
                    ) from error
                results.append(None)
        return results

    def _references(self) -> list[Outputs]:
        return [outputs for _, outputs in self.found.working]

    def _find_random(self) -> None:
        """Run the original again in another session with another seed: what moves is random."""
        settings = self._settings(JUDGE)
        settings = settings.but(seed=(settings.seed or 0) + 1)
        with RemoteSession(self.original, settings, worker=self.worker, timeout=self.timeout) as session:
            try:
                again = self._feed_all(session, strict=False)
            except ExecutionError:
                return
        for name, tally in self.tallies.items():
            for left, right in zip(self._references(), again, strict=True):
                if right is not None and not compare(left[name], right[name]).identical:
                    tally.random = True

    def _measure_floors(self) -> None:
        """Noise of the original: the runtime's optimizer on against off, and its inputs moved by one ulp."""
        if self.measured:
            return
        self.measured = True
        optimized: list[Outputs | None] = []
        try:
            with self._session(self.original, JUDGE.but(optimize="all", prepack=True)) as session:
                optimized = self._feed_all(session, strict=False)
        except ExecutionError as error:
            self.notes.append(f"the original does not run with the runtime's optimizer on: {error}")
        for tally in self.tallies.values():
            for (feed, reference), other in zip(self.found.working, optimized, strict=False):
                if (value := noise(reference, other, tally.name)) is not None:
                    tally.floor.optimizer[feed.label] = value
        self._move_inputs()

    def _move_inputs(self) -> None:
        assert self.structure is not None
        switches = [name for name, role in self.structure.roles.items() if role.choices is not None]
        with self._session(self.original, JUDGE) as session:
            for number, (feed, reference) in enumerate(self.found.working):
                if not has_floats({name: value for name, value in feed.values.items() if name not in switches}):
                    continue
                for sample in range(_ULP_SAMPLES):
                    try:
                        moved = session.run(one_ulp(feed.values, self.options.seed + 100 * number + sample, switches))
                    except ExecutionError:
                        break
                    for tally in self.tallies.values():
                        if (value := noise(reference, moved, tally.name)) is not None:
                            tally.floor.ulp[feed.label] = max(tally.floor.ulp.get(feed.label, 0.0), value)

    def _as_users_run(self) -> tuple[str, str]:
        """Run the rewritten model once more with default options; it must run and be within the floor."""
        settings = AS_USERS.but(threads=JUDGE.threads, tf32=False)
        try:
            with self._session(self.rewritten, settings) as session:
                results = self._feed_all(session, strict=True)
        except _RewrittenFailedError as failure:
            return self._default_failure(failure.args[0])
        except ExecutionError as error:
            return self._default_failure(
                f"the rewritten model does not load with default options ({error.reason}): {error}"
            )
        references = self._references()
        for (feed, reference), result in zip(self.found.working, results, strict=True):
            assert result is not None
            for name, tally in self.tallies.items():
                tally.users[feed.label] = compare(reference[name], result[name])
        if all(item.identical for tally in self.tallies.values() for item in tally.users.values()):
            return self._equal()
        optimized: list[Outputs | None] = [None] * len(references)
        try:
            with self._session(self.original, settings) as session:
                optimized = self._feed_all(session, strict=False)
        except ExecutionError:
            pass
        self._measure_floors()
        for (feed, _), left, right in zip(self.found.working, optimized, results, strict=True):
            for name, tally in self.tallies.items():
                if left is None or right is None:
                    continue
                other = compare(left[name], right[name])
                if other.identical or (other.error, other.mismatched) < (
                    tally.users[feed.label].error,
                    tally.users[feed.label].mismatched,
                ):
                    tally.users[feed.label] = other
        verdict = self._judge(users=True)
        return ("different", verdict) if verdict is not None else self._equal()

    def _default_failure(self, text: str) -> tuple[str, str]:
        """The rewritten model fails with default options: a fault of ours only if the original does not."""
        try:
            with self._session(self.original, AS_USERS.but(threads=JUDGE.threads, tf32=False)) as session:
                self._feed_all(session, strict=True)
        except (ExecutionError, _RewrittenFailedError):
            self.notes.append(
                "neither model runs with the runtime's default options; compared with its optimizer off only"
            )
            return self._equal()
        return "different", text

    # --- verdicts -------------------------------------------------------------------------------------------------

    def _judge(self, users: bool) -> str | None:
        """The sentence on the first output that is off; None where all are within."""
        for tally in self.tallies.values():
            for label in tally.faults(self.yardstick, users):
                difference = (tally.users if users else tally.differences)[label]
                how = ", run with default options," if users else ""
                return f"output {tally.name!r}{how} differs at {label}: {tally.how_far(difference, label, self.yardstick, users)}"
        return None

    def _equal(self) -> tuple[str, str]:
        compared = [tally for tally in self.tallies.values() if not tally.random]
        random = [tally.name for tally in self.tallies.values() if tally.random]
        if random:
            self.notes.append(f"random in the original and not compared: {', '.join(random)}")
        if not compared and self.tallies:
            return "not verified", "every output is random in the original; set seeds in the model to compare it"
        same = all(item.identical for tally in compared for item in tally.differences.values())
        how = (
            "the same bits"
            if same
            else f"within {self.yardstick}"
            if self.yardstick.given
            else "within the measured noise"
        )
        count = len(self.found.working)
        return "equal", f"{how} on {self.provider} in {count} {'feed' if count == 1 else 'feeds'}"

    def _feed_records(self) -> tuple[FeedRecord, ...]:
        worked = [FeedRecord(feed.label, feed.sizes) for feed, _ in self.found.working]
        failed = [
            FeedRecord(feed.label, feed.sizes, f"covers nothing, the original fails: {error}")
            for feed, error in self.found.failing
        ]
        return (*worked, *failed)


class _RewrittenFailedError(Exception):
    """The rewritten model does not run where the original does."""


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
