"""Decoders compared as they are used: a prefill, then steps that are fed what the step before gave.

Each side feeds on its own caches, so an error in them grows as it would in use. The tokens are those that the original
chooses, on both sides: otherwise one tie would set the two on different ways, and all that follows would differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, FeedError, WorkerMemoryError, WorkerTimeoutError
from graphopt.records import GenerationRecord
from graphopt.runtime.compare import Difference, compare, is_float, scale_of
from graphopt.runtime.contents import file_bytes
from graphopt.runtime.decoding import cache_pairs, plan_generation
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.excuses import dtypes_made_in
from graphopt.runtime.feeds import FeedMaker, FeedOptions
from graphopt.runtime.generation import Generation
from graphopt.runtime.judging import judge_r, widen
from graphopt.runtime.remote import RemoteSession
from graphopt.runtime.scores import Scores, find_scores, last_scores, next_tokens, token_fault
from graphopt.runtime.session import JUDGE
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.tolerance import noise, one_ulp
from graphopt.runtime.truth import Truth
from graphopt.runtime.values import Data

STEPS = 8
_PROMPTS = (8, 3)
_CHUNK = 3
_OTHER_SEED = 104729
# As in `excuses`: larger models are not turned into double.
_MOST_BYTES = 1 << 29

Run = Callable[[dict[str, Data]], Outputs]
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Along:
    """A generation of the original that others are held against.

    Attributes:
        plan: Its inputs.
        labels: What each run is, for people.
        scores: Where tokens are read off; None where the planned tokens are fed.
        fed: The ids that each step was fed with, in place of the planned ones where there are scores.
        reference: What the original gave, run by run.
        tallies: What was seen, output by output.
    """

    plan: Generation
    labels: tuple[str, ...]
    scores: Scores | None
    fed: list[Array | None] = field(default_factory=list)
    reference: list[Outputs] = field(default_factory=list)
    tallies: dict[str, OutputTally] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps of one token."""
        return len(self.plan.steps) - bool(self.plan.chunk)


class GenerationFailedError(Exception):
    """The rewritten model does not generate where the original does; holds the sentence and the runtime's error."""

    def __init__(self, sentence: str, cause: ExecutionError) -> None:
        super().__init__(sentence)
        self.cause = cause


def over_generation(
    evidence: Evidence, yardstick: Yardstick, steps: int, settled: tuple[str, str]
) -> tuple[tuple[str, str], GenerationRecord | None]:
    """The verdict once both models have generated, too; only one of "equal" is looked into.

    Args:
        evidence: The models, and what is known of the original.
        yardstick: What equality means here.
        steps: Tokens to generate; 0 leaves it out.
        settled: (verdict, reason) so far.
    """
    if settled[0] != "equal" or not steps or not cache_pairs(evidence.info):
        return settled, None
    try:
        record = compare_generation(evidence, yardstick, steps)
    except GenerationFailedError as failure:
        unclear = isinstance(failure.cause, WorkerMemoryError | WorkerTimeoutError)
        return ("not verified" if unclear else "different", str(failure)), None
    except ExecutionError as error:  # the original ran a moment ago: memory or time is what is wanting
        record = str(error)
    if isinstance(record, str):
        evidence.notes.append(f"not compared over generated tokens: {record.rstrip('.')}")
        return settled, None
    if record.fault:
        return ("different", record.fault), record
    same = record.identical or not settled[1].startswith("the same bits")
    return ("equal", f"{settled[1]} and {record if same else f'within the measured noise {record}'}"), record


def compare_generation(evidence: Evidence, yardstick: Yardstick, steps: int) -> GenerationRecord | str:
    """Generate with both models and compare; the reason where the original cannot be made to generate.

    Raises:
        GenerationFailedError: The rewritten model fails on the way.
        ExecutionError: The original does not load any more.
    """
    with evidence.session(evidence.original, JUDGE) as session:
        along = _plan(evidence, session.run, steps)
        if isinstance(along, str):
            return along
        along.reference = _walk(session.run, along)
    along.tallies = {port.name: OutputTally(port.name) for port in evidence.info.outputs}
    judged = _rewritten(evidence, along, evidence.session(evidence.rewritten, JUDGE))
    _note(along, judged, users=False)
    if not all(item.identical for tally in along.tallies.values() for item in tally.differences.values()):
        _find_random(evidence, along)
        if not (yardstick.exact or yardstick.given):
            _measure_noise(evidence, along)
    record = _record(evidence, along, yardstick, judged, users=False)
    if record.fault:
        return record
    try:
        as_users = _rewritten(evidence, along, evidence.as_users(evidence.rewritten))
    except GenerationFailedError:
        if _original_as_users(evidence, along) is not None:
            raise
        evidence.notes.append("neither model generates with the runtime's default options; its optimizer was off")
        return record
    _note(along, as_users, users=True)
    if not all(item.identical for tally in along.tallies.values() for item in tally.users.values()):
        _find_random(evidence, along)
        if not yardstick.given:
            _measure_noise(evidence, along)
        _compare_optimized(evidence, along, as_users)
    final = _record(evidence, along, yardstick, as_users, users=True)
    ties = max(record.ties, final.ties)
    return dataclasses.replace(final, ties=ties, tokens_equal=final.tokens_equal and record.tokens_equal)


# --- the way


def _plan(evidence: Evidence, run: Run, steps: int) -> Along | str:
    """The inputs of the generation, and where its tokens are read off."""
    options, structure, info = evidence.options, evidence.structure, evidence.info
    if options.shapes:
        return "whole shapes are given; give sizes of dims instead"

    def maker(dims: Mapping[str, int]) -> FeedMaker:
        return FeedMaker(
            info.inputs,
            FeedOptions(dict(dims), {}, options.ranges, options.seed, 1),
            roles=structure.roles,
            unranked=structure.unranked,
            hints=structure.hints,
        )

    try:
        plan = plan_generation(info, maker, options.dims, run, steps, prompts=_PROMPTS, chunk=_CHUNK)
    except FeedError as error:
        return str(error)
    if isinstance(plan, str):
        return plan
    labels = [] if plan.prefill is None else [f"a prefill of {plan.prompt} tokens"]
    labels += [f"{plan.chunk} more tokens"] if plan.chunk else []
    labels += [f"token {number}" for number in range(1, len(plan.steps) - bool(plan.chunk) + 1)]
    role = structure.roles.get(plan.ids)
    rows = 0 if role is None or role.high is None else int(role.high) + 1
    caches = {source for _, source in (*plan.pairs, *plan.once)}
    return Along(plan, tuple(labels), find_scores(info.outputs, caches, rows) if plan.ids else None)


def _walk(run: Run, along: Along, *, moved: int | None = None, double: bool = False) -> list[Outputs]:
    """One generation.

    The first one chooses the tokens; those that follow are fed the same.

    Args:
        run: Runs the model.
        along: The inputs.
        moved: A seed with which the caches are moved by one ulp before each step; the caches then are the original's.
        double: Floats are fed in float64.

    Raises:
        ExecutionError: A run fails.
    """
    plan, results = along.plan, list[Outputs]()
    choosing = not along.reference
    kept = {name: widen(value) if double else value for name, value in plan.start.items()}
    past: dict[str, Data] = dict(kept)
    if plan.prefill is not None:
        results.append(run(_feed(plan.prefill, double)))
    for number, step in enumerate(plan.steps):
        if results:
            before = results[-1] if moved is None else along.reference[len(results) - 1]
            if plan.prefill is not None:
                first = results[0] if moved is None else along.reference[0]
                kept |= {name: first[source] for name, source in plan.once}
            past = {**kept, **{name: before[source] for name, source in plan.pairs}}
        if moved is not None:
            past = one_ulp(past, moved + number)
        values = {**_feed(step, double), **past}
        if choosing:
            along.fed.append(_choose(along, step, results))
        chosen = along.fed[number]
        if chosen is not None:
            values[plan.ids] = chosen
        results.append(run(values))
    return results


def _feed(values: Mapping[str, Data], double: bool) -> dict[str, Data]:
    return {name: widen(value) if double else value for name, value in values.items()}


def _choose(along: Along, step: Mapping[str, Data], results: Sequence[Outputs]) -> Array | None:
    """The ids to feed next; None for the planned ones."""
    planned = step.get(along.plan.ids)
    if along.scores is None or not results or not isinstance(planned, np.ndarray) or planned.shape[1] != 1:
        return None
    tokens = next_tokens(results[-1], along.scores)
    if tokens is None or tokens.shape[0] != planned.shape[0]:
        return None
    return tokens.reshape(planned.shape).astype(planned.dtype)


def _rewritten(evidence: Evidence, along: Along, session: RemoteSession) -> list[Outputs]:
    done: list[str] = []

    def run(values: dict[str, Data]) -> Outputs:
        outputs = session.run(values)
        done.append("")
        return outputs

    with session:
        try:
            return _walk(run, along)
        except ExecutionError as error:
            where = along.labels[min(len(done), len(along.labels) - 1)]
            sentence = (
                "the original generates with its own past and the rewritten model does not: at "
                f"{where} ({error.reason}): {error}"
            )
            raise GenerationFailedError(sentence, error) from error


# --- how far


def _note(along: Along, results: Sequence[Outputs], *, users: bool) -> None:
    for label, reference, result in zip(along.labels, along.reference, results, strict=True):
        for tally in along.tallies.values():
            seen = tally.users if users else tally.differences
            seen[label] = compare(reference[tally.name], result[tally.name])


def _find_random(evidence: Evidence, along: Along) -> None:
    """The original generates again, with another seed: what moves is random."""
    if any(tally.random for tally in along.tallies.values()):
        return
    session = evidence.session(evidence.original, JUDGE)
    with contextlib.suppress(ExecutionError), session:
        session.settings = session.settings.but(seed=evidence.options.seed + _OTHER_SEED)
        again = _walk(session.run, along)
        for label, left, right in zip(along.labels, along.reference, again, strict=True):
            for tally in along.tallies.values():
                if not compare(left[tally.name], right[tally.name]).identical:
                    tally.random[label] = None


def _measure_noise(evidence: Evidence, along: Along) -> None:
    """The original along the same way: the runtime's optimizer on against off, and its caches moved by one ulp."""
    tallies = along.tallies.values()
    if any(tally.floor.optimizer or tally.floor.ulp for tally in tallies):
        return
    for tally in tallies:
        tally.floor.quantized = evidence.structure.quantized
        tally.floor.coarsest = evidence.structure.coarsest
        tally.floor.largest = max((scale_of(item[tally.name]) for item in along.reference), default=0.0)
    with (
        contextlib.suppress(ExecutionError),
        evidence.session(evidence.original, JUDGE.but(optimize="all", prepack=True)) as session,
    ):
        _add_noise(along, along.reference, _walk(session.run, along), "optimizer")
    with contextlib.suppress(ExecutionError), evidence.session(evidence.original, JUDGE) as session:
        _add_noise(along, along.reference, _walk(session.run, along, moved=evidence.options.seed + 1), "ulp")


def _add_noise(along: Along, reference: Sequence[Outputs], other: Sequence[Outputs], what: str) -> None:
    for label, one, another in zip(along.labels, reference, other, strict=True):
        for tally in along.tallies.values():
            value = noise(one, another, tally.name)
            if value is not None:
                getattr(tally.floor, what)[label] = value


def _compare_optimized(evidence: Evidence, along: Along, results: Sequence[Outputs]) -> None:
    """Optimized against optimized, where that is closer than optimized against not."""
    optimized = _original_as_users(evidence, along)
    if optimized is not None and evidence.set_up.has_tf32:
        settings = evidence.set_up.without_tf32()
        session = RemoteSession(evidence.original, settings, worker=evidence.worker, timeout=evidence.timeout)
        with contextlib.suppress(ExecutionError), session:
            _add_noise(along, _walk(session.run, along), optimized, "tf32")
    for label, left, right in zip(along.labels, optimized or (), results, strict=optimized is not None):
        for tally in along.tallies.values():
            other, known = compare(left[tally.name], right[tally.name]), tally.users[label]
            if other.identical or (other.error, other.mismatched) < (known.error, known.mismatched):
                tally.users[label] = other


def _original_as_users(evidence: Evidence, along: Along) -> list[Outputs] | None:
    """The original along the same way with default options; None where it does not run."""
    try:
        with evidence.as_users(evidence.original) as session:
            return _walk(session.run, along)
    except ExecutionError:
        return None


def _ask_truth(evidence: Evidence, along: Along, yardstick: Yardstick, results: Sequence[Outputs], users: bool) -> None:
    """An error against a float64 run of the same way at most twice the original's own is rounding."""
    wanted: list[tuple[OutputTally, str, Difference]] = []
    for tally in along.tallies.values():
        seen = tally.users if users else tally.differences
        for label in tally.faults(yardstick, users):
            item = seen[label]
            if item.floating and not item.mismatch and item.error <= tally.floor.ceiling(item):
                wanted.append((tally, label, item))
    if not wanted or file_bytes(evidence.original) > _MOST_BYTES:
        return
    try:
        with Truth(evidence) as truth_of:
            truths = _walk(truth_of.run, along, double=True)
    except (ExecutionError, ValueError, TypeError, OSError):
        return
    made_in = dtypes_made_in(evidence, {tally.name for tally, _, _ in wanted})
    for tally, label, _ in wanted:
        place = along.labels.index(label)
        reference, got, truth = (side[place].get(tally.name) for side in (along.reference, results, truths))
        if not (isinstance(reference, np.ndarray) and isinstance(got, np.ndarray) and isinstance(truth, np.ndarray)):
            continue
        if reference.shape == got.shape == truth.shape and is_float(reference.dtype) and reference.dtype.kind != "c":
            deviation, why = judge_r(reference, got, truth, made_in.get(tally.name))
            if not why:
                tally.excuses[label, users] = (
                    f"as close to a float64 run as the original itself ({deviation:.2g} of what rounding is allowed)"
                )


# --- tokens


def _tokens(along: Along, yardstick: Yardstick, results: Sequence[Outputs], users: bool) -> tuple[int, str]:
    """(ties, what is wrong) of the tokens that the rewritten model would choose."""
    if along.scores is None or along.tallies[along.scores.output].is_random:
        return 0, ""
    tally, ties = along.tallies[along.scores.output], 0
    seen = tally.users if users else tally.differences
    for label, reference, result in zip(along.labels, along.reference, results, strict=True):
        left, right = last_scores(reference, along.scores), last_scores(result, along.scores)
        if left is None or right is None or left.shape != right.shape or label in tally.random:
            continue
        item = seen[label]
        allowed = (yardstick.atol or 0.0) + (yardstick.rtol or 0.0) * item.scale
        if not yardstick.given:
            allowed = 0.0 if yardstick.exact and not users else item.scale * tally.floor.tolerance(item, label, users)
        if (label, users) in tally.excuses:
            allowed = max(allowed, item.absolute)
        found, wrong = token_fault(left, right, allowed)
        ties += found
        if wrong:
            return ties, f"after {label} the best is {wrong}"
    return ties, ""


def _record(
    evidence: Evidence, along: Along, yardstick: Yardstick, results: Sequence[Outputs], *, users: bool
) -> GenerationRecord:
    """What was found so far; the fault is the first output or token that is off."""
    excusable = not yardstick.given and (users or not yardstick.exact)
    if excusable and any(tally.faults(yardstick, users) for tally in along.tallies.values()):
        _ask_truth(evidence, along, yardstick, results, users)
    fault = ""
    how = ", run with default options," if users else ""
    off = {tally.name: tally.faults(yardstick, users) for tally in along.tallies.values()}
    for label, name in ((label, name) for label in along.labels for name in off if label in off[name]):
        tally = along.tallies[name]
        far = tally.how_far((tally.users if users else tally.differences)[label], label, yardstick, users)
        fault = f"output {name!r}{how} differs at {label} of a generation: {far}"
        break
    ties, wrong = _tokens(along, yardstick, results, users)
    if wrong and not fault:
        fault = f"the rewritten model{how} goes on otherwise: {wrong}"
    compared = [tally for tally in along.tallies.values() if not tally.is_random]
    plan = along.plan
    return GenerationRecord(
        steps=along.steps,
        prompt=plan.prompt,
        prefill=plan.prefill is not None,
        chunk=plan.chunk,
        batch=plan.batch,
        caches=len(plan.pairs),
        greedy=along.scores is not None,
        tokens=tuple(tuple(int(token) for token in ids.reshape(-1)) for ids in along.fed if ids is not None),
        tokens_equal=None if along.scores is None else not wrong and not ties,
        ties=ties,
        identical=bool(compared) and all(item.identical for one in compared for item in one.differences.values()),
        fault=fault,
        outputs=tuple(tally.record(yardstick) for tally in along.tallies.values()),
    )
