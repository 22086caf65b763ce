"""One verification on one provider: equal, different or not verified, and what that rests on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from graphopt.errors import ExecutionError, KernelMissingError, WorkerMemoryError, WorkerTimeoutError
from graphopt.records import FeedRecord, NoiseFloor, Verification
from graphopt.runtime.adversarial import OVERFLOWING, where_defined
from graphopt.runtime.against import OtherRuntime, OtherRuntimeError, model_file
from graphopt.runtime.compare import Difference, compare
from graphopt.runtime.contents import same_file
from graphopt.runtime.evidence import Evidence, Outputs, RewrittenFailedError
from graphopt.runtime.excuses import find_excuses
from graphopt.runtime.feeds import VACUOUS, Feed, FeedSet, tells
from graphopt.runtime.generated import over_generation
from graphopt.runtime.inside import Inside, look_inside
from graphopt.runtime.opaque import OpaqueChangedError, cut_out
from graphopt.runtime.session import CPU, JUDGE, SessionInfo
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import is_constant
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.tolerance import Noise
from graphopt.runtime.unread import depends_on_all, unread_weights
from graphopt.runtime.values import Data


class Trial:
    """One verification on one provider; the first step that settles the matter ends it."""

    def __init__(
        self, evidence: Evidence, level: str, yardstick: Yardstick, decode: int = 0, against: OtherRuntime | None = None
    ) -> None:
        """Set up.

        Args:
            evidence: The two models and where they run.
            level: What the caller asked for.
            yardstick: What equality means.
            decode: Tokens to generate with decoders.
            against: Another runtime that runs the rewritten model; None for ONNX Runtime.
        """
        self.evidence = evidence
        self.level = level
        self.yardstick = yardstick
        self.decode = decode
        self.against = against
        self.provider = evidence.provider
        self.opaque_nodes = 0
        self.is_adversarial = False
        self.usual: Mapping[str, Noise] = {}
        self.inner: dict[str, OutputTally] = {}

    @property
    def notes(self) -> list[str]:
        """Sentences for the record."""
        return self.evidence.notes

    @property
    def tallies(self) -> dict[str, OutputTally]:
        """What was seen, output by output."""
        return self.evidence.tallies

    def run(
        self,
        given: Sequence[Mapping[str, Data]] | None,
        data: str | Path | None,
        ready: Sequence[Feed] | None = None,
    ) -> Verification:
        """All steps.

        Args:
            given: Inputs of the caller's.
            data: Where the user's inputs are.
            ready: Feeds that were made before, in place of all others.
        """
        started = time.monotonic()
        self._feeds = (given, data, ready)
        settled = self._decide()
        decode = 0 if self.against is not None else self.decode
        (verdict, reason), generation = over_generation(self.evidence, self.yardstick, decode, settled)
        return Verification(
            verdict=verdict,
            reason=reason,
            level=self.level,
            provider=self.provider,
            provider_options=dict(self.evidence.provider_options),
            against=self.against.command if self.against is not None else "",
            feeds=_feed_records(self.evidence.found),
            outputs=tuple(tally.record(self.yardstick) for tally in self.tallies.values()),
            inner=tuple(tally.record(Yardstick()) for tally in self.inner.values()),
            floors=floors_of(self.tallies.values()),
            rtol=self.yardstick.rtol,
            atol=self.yardstick.atol,
            opaque_nodes=self.opaque_nodes,
            notes=tuple(self.notes),
            seconds=time.monotonic() - started,
            generation=generation,
        )

    # --- steps

    def _decide(self) -> tuple[str, str]:
        evidence = self.evidence
        try:
            evidence.run_original(*self._feeds)
        except ExecutionError as error:
            settled = self._around_opaque_nodes(error)
            if settled is not None:
                return settled
        if evidence.info.provider != self.provider:
            ran, self.provider = evidence.info.provider, ""
            return "not verified", f"{evidence.provider} was asked for and {ran} ran; see graphopt doctor"
        if not evidence.found.working:
            return "not verified", evidence.found.advice
        if self.against is not None:
            return self._elsewhere(self.against)
        settled = self._rewritten_as_judged()
        if settled[0] != "equal" or self.is_adversarial:
            return settled
        vacuous = not self._tells()
        inside = Inside()
        if vacuous or not self.yardstick.given:
            inside = self._inside(needed=vacuous)
        if inside.fault:
            return "different", inside.fault
        unread = unread_weights(evidence)
        if unread:
            self.notes[:] = [note for note in self.notes if note != inside.note]
            return "not verified", unread
        return self._vacuous(inside) or settled if vacuous else settled

    def _tells(self) -> bool:
        """Whether some output shows a change at some feed; so does a model of constants, or without float outputs."""
        telling = any(tells(outputs) for feed, outputs in self.evidence.found.working if not feed.is_empty)
        return telling or is_constant(self.evidence.graph)

    def _vacuous(self, inside: Inside) -> tuple[str, str] | None:
        """A comparison of outputs that are the same number all over: what is left of it."""
        if same_file(self.evidence.original, self.evidence.rewritten):
            return None
        if inside.telling and not inside.unclear:
            count = len(inside.telling)
            values = "1 value inside does, and agrees" if count == 1 else f"{count} values inside do, and agree"
            return "equal", f"no output shows a change, but {values}, on {self.provider}"
        same = all(item.identical for tally in self.tallies.values() for item in tally.differences.values())
        if same and not inside.unclear and depends_on_all(self.evidence):
            return "equal", f"no output shows a change, but each weight moves one; the same bits on {self.provider}"
        return "not verified", VACUOUS

    def _inside(self, needed: bool) -> Inside:
        """Values inside both models, where all outputs agree."""
        compared = [item for tally in self.tallies.values() for item in tally.differences.values()]
        found = look_inside(self.evidence, all(item.identical for item in compared), needed)
        self.inner = found.tallies
        if found.note:
            self.notes.append(found.note)
        return found

    def _elsewhere(self, other: OtherRuntime) -> tuple[str, str]:
        """The rewritten model on another runtime, against the original unoptimized."""
        evidence = self.evidence
        results, ran = [], []
        with model_file(evidence.rewritten) as path:
            for feed, outputs in evidence.found.working:
                try:
                    results.append(other.run(path, feed.values, list(outputs)))
                    ran.append((feed, outputs))
                except OtherRuntimeError as error:
                    if not feed.is_empty:  # many runtimes do not take empty inputs, and that says nothing of the rest
                        return "not verified", f"the other runtime gives nothing at {feed.label}: {error}"
                    evidence.found.failing.append((feed, f"the other runtime fails: {error}"))
        evidence.found.working = ran
        return self._compare(results) or self._equal()

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
            evidence.run_original(*self._feeds)
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
                results = evidence.as_judged_run(session)
        except RewrittenFailedError as failure:
            return _failure(failure.cause, str(failure))
        except KernelMissingError as error:
            return (
                "not verified",
                f"{self.provider} has no kernel for the rewritten model: {error}; verify it where it is to run",
            )
        except ExecutionError as error:
            return _failure(error, f"the original runs and the rewritten model does not ({error.reason}): {error}")
        for feed, why in evidence.found.refused:
            self.notes.append(
                f"at {feed.label} the original runs and the rewritten model fails: its fused operators take nothing "
                f"empty ({why}); feed it nothing empty, or optimize with --target portable"
            )
        return self._compare(results) or self._rewritten_as_users()

    def _compare(self, results: Sequence[Outputs]) -> tuple[str, str] | None:
        """What was given with the optimizer off, or elsewhere; None where all of it is within the noise."""
        evidence = self.evidence
        for tally in self.tallies.values():
            tally.floor.least = self.usual.get(tally.name, Noise())
            for (feed, reference), result in zip(evidence.found.working, results, strict=True):
                tally.differences[feed.label] = self._difference(feed, reference[tally.name], result[tally.name])
        moved = not all(item.identical for tally in self.tallies.values() for item in tally.differences.values())
        if moved or self.provider != CPU:
            evidence.find_random()
        if moved and not (self.yardstick.exact or self.yardstick.given):
            evidence.measure_noise()
        verdict = self._judge(results, users=False)
        return ("different", verdict) if verdict is not None else None

    def _difference(self, feed: Feed, original: Data, other: Data) -> Difference:
        if self.is_adversarial and feed.label in OVERFLOWING and not self.yardstick.exact:
            other = where_defined(original, other)
        return compare(original, other)

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
                tally.users[feed.label] = self._difference(feed, reference[tally.name], result[tally.name])
        self._measure_tf32()
        if all(item.identical for tally in self.tallies.values() for item in tally.users.values()):
            return self._equal()
        evidence.find_random()
        evidence.measure_noise()
        self._compare_optimized(results)
        verdict = self._judge(results, users=True)
        return ("different", verdict) if verdict is not None else self._equal()

    def _measure_tf32(self) -> None:
        """The floor of TF32, measured apart: the class check is without it, the final run with it."""
        evidence = self.evidence
        if not evidence.set_up.has_tf32:
            return
        evidence.measure_tf32()
        moved = [item.most for tally in self.tallies.values() for item in tally.floor.tf32.values()]
        if moved:
            self.notes.append(
                "the class check has TF32 off and the final run has it on, as is the runtime's default; TF32 alone "
                f"moves the original by {max(moved):.1e} of an output's scale"
            )

    def _compare_optimized(self, results: Sequence[Outputs]) -> None:
        """Optimized against optimized, where that is closer than optimized against not."""
        evidence = self.evidence
        optimized = evidence.original_as_users()
        for (feed, _), left, right in zip(evidence.found.working, optimized, results, strict=True):
            if left is None:
                continue
            for tally in self.tallies.values():
                other = self._difference(feed, left[tally.name], right[tally.name])
                known = tally.users[feed.label]
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

    # --- verdicts

    def _judge(self, results: Sequence[Outputs], users: bool) -> str | None:
        """The sentence on the first output that is off; None where all are within."""
        yardstick = self.yardstick
        excusable = not yardstick.given and (users or not yardstick.exact)
        if excusable and any(tally.faults(yardstick, users) for tally in self.tallies.values()):
            find_excuses(self.evidence, yardstick, results, users)
        for tally in self.tallies.values():
            for label in tally.faults(yardstick, users):
                difference = (tally.users if users else tally.differences)[label]
                how = ", run as users run it," if users else " of the other runtime" if self.against else ""
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
        where = f"{self.provider} and the other runtime" if self.against is not None else self.provider
        return "equal", f"{how} on {where} in {count} {'feed' if count == 1 else 'feeds'}"


def _failure(error: ExecutionError, sentence: str) -> tuple[str, str]:
    """A rewritten model that wants time or memory is not proved different."""
    if isinstance(error, WorkerMemoryError | WorkerTimeoutError):
        return "not verified", sentence
    return "different", sentence


def floors_of(tallies: Iterable[OutputTally]) -> tuple[NoiseFloor, ...]:
    """Each noise that was measured, in the output where it is largest."""
    kinds: dict[str, tuple[float, str]] = {}
    for tally in tallies:
        floor = tally.floor
        measured: dict[str, Mapping[str, Noise]] = {
            "in another session": floor.sessions,
            "by the runtime's optimizer": floor.optimizer,
            "with inputs + 1 ulp": floor.ulp,
            "by TF32": floor.tf32,
        }
        for name, noises in measured.items():
            most = max((item.most for item in noises.values()), default=None)
            if most is not None and (name not in kinds or most > kinds[name][0]):
                kinds[name] = (most, tally.name)
    return tuple(NoiseFloor(name, value, output) for name, (value, output) in kinds.items())


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
    refused = [
        FeedRecord(feed.label, feed.sizes, f"covers nothing, the fused operators take nothing empty: {why}")
        for feed, why in found.refused
    ]
    return (*worked, *aside, *refused, *failed)


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
