"""Equal, different or not verified: the written model against the original, on the runtimes that will run it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphopt.errors import ExecutionError, UsageError
from graphopt.records import Verification
from graphopt.runtime.adversarial import adversarial_feeds
from graphopt.runtime.against import OtherRuntime
from graphopt.runtime.decoding import cache_pairs
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.feeds import Feed, FeedOptions
from graphopt.runtime.generated import STEPS
from graphopt.runtime.providers import AUTO, options_of, provider_names, require_options_here, short_name
from graphopt.runtime.remote import provider_here, version_here
from graphopt.runtime.session import CPU
from graphopt.runtime.sources import open_source
from graphopt.runtime.tally import Yardstick
from graphopt.runtime.trial import Trial
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker

_RUN_SECONDS = 300.0
_MOST_RUNS = 1000
_NO_DECODER = "not a decoder, so --decode did nothing: no input is named like a past with an output that continues it"
_SEVERITY = ("equal", "not verified", "different")


def verify(
    original: Any,
    rewritten: Any = None,
    *,
    provider: str | Sequence[str] = "auto",
    provider_options: Mapping[str, str] | None = None,
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
    decode: int | None = None,
    adversarial: bool = False,
    against: str | None = None,
    worker: Worker | None = None,
) -> Verification:
    """Compare a rewritten model with its original by running both.

    Args:
        original: A path, bytes, ModelProto or Graph.
        rewritten: The same for the other side; pass the written file, not what it was written from. With `against` it
            may be left out: then the original runs on both sides.
        provider: "auto" (CUDA where it really starts, else the CPU), "cpu", "cuda" or a name of the runtime's; several
            as a sequence, or with commas between.
        provider_options: Options of the provider, such as `use_tf32`, for the run as users run it; with several
            providers `cuda:use_tf32`. The class check takes only those that name a part of its own set-up.
        level: "exact" asks for the same bits on the CPU; other levels for less than the measured noise.
        feeds: Inputs to use instead of made ones.
        dims: Name of a symbolic dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        seed: Seed of the made inputs.
        runs: How many sets of inputs, at most 1000; None for one of each kind.
        override_defaults: Whether inputs with a default are also given another value; False where they were frozen.
        data: A file or folder of the user's inputs, see `read_data`.
        rtol: Relative tolerance (of the output's scale) in place of the measured one.
        atol: Absolute tolerance in place of the measured one.
        custom_ops: Libraries of custom operators.
        timeout: Seconds that one load or run may take.
        memory_limit: Bytes that the runtime's process may take.
        decode: Tokens to generate with models that are decoders by their past and present, each side fed with its own
            caches; by default 8, 0 leaves it out.
        adversarial: Compare on NaN, infinities, ends of ranges, ties and the like, too.
        against: A command with {model}, {inputs} and {outputs} that runs the rewritten model elsewhere: it reads the
            inputs from one `.npz` and writes the outputs to another.
        worker: The process to run in; by default the one that all calls share.

    Returns:
        The verdict, of several providers the worst with one part for each. Failures of the runtime are verdicts, not
        exceptions.

    Raises:
        UsageError: The runtime has no such provider, or the provider no such option; the command of `against` cannot
            be read; a tolerance is not finite, or `runs` out of range.
        FeedError: An option names something that the model does not have, or the user's data does not fit.
    """
    if rewritten is None and against is None:
        raise UsageError("there is nothing to compare with: give a second model, or --against with a command")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{name} is {value}; a tolerance is a finite number that is not negative")
    if runs is not None and not 1 <= runs <= _MOST_RUNS:
        raise UsageError(f"runs is {runs}; ask for 1 to {_MOST_RUNS} sets of inputs")
    started = time.monotonic()
    options = FeedOptions(
        dict(dims or {}),
        {name: tuple(shape) for name, shape in (shapes or {}).items()},
        dict(ranges or {}),
        seed,
        runs,
        override_defaults,
    )
    seconds = timeout or _RUN_SECONDS
    other = None if against is None else OtherRuntime(against, seconds)
    yardstick = Yardstick(level == "exact" and rtol is None and atol is None, rtol, atol)
    own = Worker(memory_limit=memory_limit) if worker is None and memory_limit is not None else None
    process = worker or own or shared_worker()
    try:
        places = _places(process, provider, provider_options or {}, level)
        with (
            open_source(original, "the original") as first,
            open_source(original if rewritten is None else rewritten, "the rewritten model") as second,
        ):

            def trial(place: _Place) -> Trial:
                evidence = Evidence(first, second, process, options, tuple(custom_ops), seconds)
                evidence.provider, evidence.provider_options = place.provider, place.options
                return Trial(evidence, level, yardstick, STEPS if decode is None else decode, other)

            parts: list[Verification] = []
            ready: list[Feed] | None = None
            for place in places:
                if place.problem:
                    parts.append(Verification("not verified", place.problem, level, provider_asked=place.asked))
                    continue
                job = trial(place)
                job.notes.extend(place.notes)
                part = job.run(feeds, data, ready)
                if decode and part.feeds and not cache_pairs(job.evidence.info):
                    part = replace(part, notes=(*part.notes, _NO_DECODER))
                ready = ready or [feed for feed, _ in job.evidence.found.working] or None
                if adversarial and part.equal:
                    part = _adversarially(part, job, trial(place))
                parts.append(replace(part, provider_asked=place.asked, runtime=place.version))
    finally:
        if own is not None:
            own.close()
    whole = parts[0] if len(parts) == 1 else _together(parts)
    return replace(whole, seconds=time.monotonic() - started)


@dataclass(slots=True)
class _Place:
    """Where one part of a verification runs.

    Attributes:
        asked: What the user called it.
        provider: Full name of the provider that will run.
        version: Of the runtime.
        problem: Why it does not run here; empty where it does.
        options: The user's options of the provider.
        notes: Sentences for the record.
    """

    asked: str
    provider: str
    version: str = ""
    problem: str = ""
    options: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _places(process: Worker, provider: str | Sequence[str], given: Mapping[str, str], level: str) -> list[_Place]:
    """The providers to run on, each once.

    Raises:
        UsageError: There is no such provider, or it refuses an option.
    """
    asked = provider_names(provider)
    note = ""
    if level == "exact":
        if any(name not in (AUTO, CPU) for name in asked):
            note = "the level exact is judged on the CPU; use --level default to compare on another provider"
            given = {}
        asked = (AUTO,) if AUTO in asked else (CPU,)
    found: dict[str, _Place] = {}
    for name in asked:
        place = _Place(short_name(name), name)
        try:
            place.version = process.call(version_here)
            place.provider = CPU if level == "exact" else process.call(provider_here, name)
        except ExecutionError as error:
            place.problem = str(error)
        if name == AUTO and place.provider == CPU and level != "exact":
            place.notes.append("CUDA does not start here, so this ran on the CPU; graphopt doctor says why")
        if note:
            place.notes.append(note)
        found.setdefault(place.provider, place)
    places = list(found.values())
    sorted_options, notes = options_of(
        given, list(found), [AUTO if place.asked == AUTO else place.provider for place in places]
    )
    for place in places:
        place.options = sorted_options[place.provider]
        if not place.problem:
            process.call(require_options_here, place.provider, place.options)
    places[0].notes += notes
    return places


def _adversarially(part: Verification, job: Trial, again: Trial) -> Verification:
    """The verdict on ordinary feeds, and that on adversarial ones made from the first of them."""
    base = next((feed for feed, _ in job.evidence.found.working if not feed.is_empty), None)
    made = [] if base is None else list(adversarial_feeds(job.evidence.maker(), base))
    if not made:
        note = "there are no adversarial feeds: no input is a float, a mask, or an index into something"
        return replace(part, notes=(*part.notes, note))
    again.is_adversarial, again.decode = True, 0
    again.usual = {name: tally.floor.at("") for name, tally in job.tallies.items()}  # zeros and ties do not move
    found = replace(again.run(None, None, made), provider_asked=part.provider_asked)
    if found.verdict == "different":
        reason = f"equal on ordinary values, and different on adversarial ones only: {found.reason}"
        return replace(part, verdict="different", reason=reason, adversarial=found)
    if not found.equal:
        note = f"adversarial values were not compared: {found.reason}"
        return replace(part, notes=(*part.notes, note), adversarial=found)
    compared = sum(feed.outcome == "compared" for feed in found.feeds)
    reason = f"{part.reason}, and in {compared} adversarial {'one' if compared == 1 else 'ones'}"
    return replace(part, reason=reason, adversarial=found)


def _together(parts: Sequence[Verification]) -> Verification:
    """Several parts as one: the worst verdict, its reason and its evidence."""
    worst = max(parts, key=lambda part: _SEVERITY.index(part.verdict))
    reason = f"on {worst.provider_asked}: {worst.reason}"
    if worst.equal:
        reason = "; ".join(f"on {part.provider_asked}: {part.reason}" for part in parts)
    return replace(
        worst,
        reason=reason,
        provider=", ".join(part.provider for part in parts if part.provider),
        provider_asked=", ".join(part.provider_asked for part in parts),
        notes=tuple(dict.fromkeys(f"on {part.provider_asked}: {note}" for part in parts for note in part.notes)),
        parts=tuple(parts),
    )
