"""Deciding by measurement which rewrites stay.

The pipeline is deterministic, so a model "without group G" is had by running it again with G left out. Rewrites that
make the result different are found by halving and left out. Then groups are left out one after the other: where the
result without one is surely faster, it stays out. What is kept is never slower than the original, as measured.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt import api
from graphopt.acceptance.candidates import Candidate, Workshop
from graphopt.acceptance.groups import Choice, fired, in_order, owner_of, suspects
from graphopt.acceptance.instruments import Instruments, device_name, instruments
from graphopt.bisection.search import first_bad
from graphopt.errors import GraphoptError, UsageError
from graphopt.measurements import AcceptanceReport, Benchmark, Trial
from graphopt.onnxio import load, to_proto
from graphopt.pipeline import Registry
from graphopt.records import Verification

DEFAULT_SECONDS = 300.0
MARGIN = 0.02
"""Faster is what is faster by more than that, with the whole interval; see DESIGN of the timings."""
_LEAST_SECONDS = 3.0
"""A comparison of times is not begun with less."""
_MOST_SECONDS = 30.0
_LOOK_SHARE = 0.4
"""Of a trial's time, what the first look takes where loading takes long; where it leaves no doubt, it is the last."""
_SUSPECTS = 5
"""Rules, at most, that are tried by themselves because the profile speaks against them."""
_NOT_SETTLED = ("sweep limit", "rules keep feeding each other")


@dataclass(slots=True)
class Acceptance:
    """A result that was measured, and what that came to.

    Attributes:
        result: The optimized model; its `verification` is set. The model as it was where there was nothing to gain.
        report: What was tried, what was left out and why.
        settings: Options of `optimize` that give this result again, with nothing measured.
        sha256: Of the file that was verified, empty where its weights lie in another.
    """

    result: api.Result
    report: AcceptanceReport
    settings: dict[str, Any]
    sha256: str = ""

    @property
    def benchmark(self) -> Benchmark | None:
        """The result against the original."""
        return self.report.benchmark

    @property
    def verification(self) -> Verification | None:
        """The verdict on the result."""
        return self.result.verification

    @property
    def dropped(self) -> tuple[Trial, ...]:
        """The groups that were left out, for being wrong or slow."""
        return self.report.dropped


def accept(
    model: Any,
    *,
    max_time: float = DEFAULT_SECONDS,
    verify: Mapping[str, Any] | None = None,
    bench: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
    registry: Registry | None = None,
    tools: Instruments | None = None,
    **options: Any,
) -> Acceptance:
    """Optimize a model, and leave out every group of rewrites that makes it different or, as measured, slower.

    Args:
        model: What `optimize` takes; not changed.
        max_time: Seconds for all of it. The first run of the pipeline and the first comparison of answers are made
            however long they take.
        verify: Options of `verify`, such as the provider.
        bench: Options of `benchmark` beside those; it is timed on the first of several providers.
        progress: Told what is tried, which of how many it is, and the best so far.
        registry: The passes there are; default: the installed ones, and those of `load_files`.
        tools: What is measured with; default: ONNX Runtime.
        **options: See `optimize`.

    Raises:
        ModelError: the model cannot be read.
        UsageError: an option names something that does not exist.
        FeedError: an option names something that the model does not have, or the user's data does not fit.
    """
    if not max_time > 0:
        raise UsageError(f"the time for measuring is {max_time:g} s; give a number above 0")
    if not isinstance(model, (str, os.PathLike, bytes)):
        model = to_proto(load(model)).SerializeToString()
    real = tools or instruments(options.get("level", "default"), verify or {}, bench or {})
    with tempfile.TemporaryDirectory(prefix="graphopt-") as scratch:
        run = _Run(model, options, real, max_time, progress or (lambda text: None), Path(scratch), registry)
        return run.run()


class _OutOfTimeError(Exception):
    """The time is up in the middle of a search."""


class _Run:
    """One acceptance on its way."""

    def __init__(
        self,
        model: Any,
        options: dict[str, Any],
        tools: Instruments,
        max_time: float,
        say: Callable[[str], None],
        scratch: Path,
        registry: Registry | None,
    ) -> None:
        self.options = options
        self.tools = tools
        self.max_time = max_time
        self.say = say
        self.workshop = Workshop(model, options, scratch, registry)
        self.started = tools.clock()
        self.trials: list[Trial] = []
        self.timings = 0
        self.overhead = 0.0  # what a timing takes beyond the time it is told, at most
        self.out_of_time = False
        self.first: Benchmark | None = None

    # --- the whole

    def run(self) -> Acceptance:
        """Make it right, then make it fast, then see that it is not slower."""
        self.say("optimizing")
        best = self.workshop.make(Choice())
        if best.result.report.stopped_by in _NOT_SETTLED:
            return self._end(best, "not settled", f"the passes did not settle ({best.result.report.stopped_by})")
        best = self._made_right(best)
        verification = best.result.verification
        assert verification is not None
        if not verification.equal:
            return self._end(best, verification.verdict, verification.reason)
        if not best.result.report.rewrites:
            return self._end(best, "nothing to gain", "no rewrite applies to this model")
        self.say(f"timing all of it against the original; {self._time_left()}")
        whole = self.first = self._measured_whole(best, min(_MOST_SECONDS, self.max_time / 4))
        if whole.verdict == "not measured":
            return self._end(best, "not measured", whole.reason, whole)
        if self._digest(best) and self._digest(best) == self.tools.digest(self.workshop.reference):
            same = "the runtime makes the same graph of the original, so no rewrite costs or gains time at a run"
            return self._end(best, "accepted", f"{same}; {whole.verdict}: {whole.reason}", whole)
        fastest = self._made_fast(best, whole)
        if not fastest.result.report.rewrites:
            reason = "without the rewrites that make it slower none is left; the model is kept as it was"
            return self._end(fastest, "nothing to gain", reason, whole)
        if fastest is not best:
            best = fastest
            self.say(f"timing what is left against the original; {self._time_left()}")
            seconds = max(_LEAST_SECONDS, min(_MOST_SECONDS, self._left() - self.overhead))
            whole = self._measured_whole(best, seconds)
        if whole.verdict == "slower":
            return self._unchanged(whole)
        return self._end(best, "accepted", self._sentence(whole), whole)

    def _sentence(self, whole: Benchmark) -> str:
        count = sum(trial.outcome in ("wrong", "left out") for trial in self.trials)
        out = f"{count} {'group' if count == 1 else 'groups'} of rewrites left out" if count else "everything is kept"
        return f"{out}; {whole.verdict}: {whole.reason}"

    def _unchanged(self, whole: Benchmark) -> Acceptance:
        """The model as it was; an opset that was asked for is not a matter of speed."""
        self.say("nothing is faster than the original: keeping it as it was")
        converted = self.options.get("opset") is not None
        options = {**self.options, "passes": ("opset",) if converted else (), "skip": (), "aggressive": ()}
        best = self.workshop.make(Choice(), options)
        best.result.verification = self.tools.verify(self.workshop.reference, best.path)
        reason = f"even the best result is slower than the original: {whole.reason}; the model is kept as it was"
        return self._end(best, "nothing to gain", reason, whole, options)

    def _end(
        self,
        best: Candidate,
        outcome: str,
        reason: str,
        benchmark: Benchmark | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Acceptance:
        provider = "" if benchmark is None else benchmark.provider
        report = AcceptanceReport(
            outcome=outcome,
            reason=reason,
            trials=tuple(self.trials),
            skip=best.choice.skip,
            disable=best.choice.disable,
            benchmark=benchmark,
            first=self.first if self.first is not benchmark else None,
            provider=provider,
            device=device_name(provider),
            runtime="" if benchmark is None else benchmark.runtime,
            max_time=self.max_time,
            seconds=self.tools.clock() - self.started,
            timings=self.timings,
            out_of_time=self.out_of_time,
        )
        settings = best.choice.apply(options or self.options)
        made = best.result.report
        settings |= {"deadline": None, "stop_after": None if made.converged else len(made.rewrites)}
        return Acceptance(best.result, report, settings, best.sha256)

    # --- right

    def _made_right(self, best: Candidate) -> Candidate:
        """Leave out, one after the other, the rewrites that make the result different."""
        while True:
            self.say("comparing with the original on ONNX Runtime")
            verification = self.tools.verify(self.workshop.reference, best.path)
            best.result.verification = verification
            if verification.verdict != "different":
                return best
            begun = self.tools.clock()
            try:
                group, number = self._guilty(best, verification.reason)
            except _OutOfTimeError:
                self.out_of_time = True
                return best
            if not group or best.choice.has(group):
                return best
            count = self._count(best, group)
            self.say(f"{group} makes the result different: optimizing without it")
            try:
                without = self.workshop.make(best.choice.without(group))
            except GraphoptError as error:
                self.trials.append(Trial(group, count, "needed", f"different with it; without it: {error}"))
                return best
            reason = f"different from rewrite {number} on: {verification.reason}"
            took = self.tools.clock() - begun
            self.trials.append(Trial(group, count, "wrong", reason, seconds=took))
            best = without

    def _guilty(self, best: Candidate, reason: str) -> tuple[str, int]:
        """The group, and the number of the rewrite, after which the result is different; "" if it always is."""
        options = best.choice.apply(self.options)
        report = best.result.report
        last = max((item.number for item in report.rewrites), default=0)
        known = {last: reason}

        def is_bad(number: int) -> str:
            if number not in known:
                if self._left() <= 0:
                    raise _OutOfTimeError
                trial = self.workshop.make(best.choice, {**options, "stop_after": number})
                said = self.tools.verify(self.workshop.reference, trial.path)
                self.workshop.forget(trial)
                known[number] = said.reason if said.verdict == "different" else ""
            return known[number]

        found = first_bad(last, is_bad, lambda text: self.say(f"looking for the rewrite that is wrong: {text}"))
        if found is None or found.number == 0:
            return "", 0
        return owner_of(report, found.number), found.number

    # --- fast

    def _made_fast(self, best: Candidate, whole: Benchmark) -> Candidate:
        """Leave out, one after the other, the groups without which the result is faster."""
        told = f"{whole.ratio:.3f} times the original's speed"
        groups = fired(best.result.report)
        # Where the profile says that a rule lost time, that rule goes first, whatever else its pass gains.
        rules = [rule for rule in suspects(whole.profile, MARGIN) if len(groups.get(rule.partition("/")[0], ())) > 1]
        order = [*rules[:_SUSPECTS], *in_order(groups, whole.profile)]
        tried: set[str] = set()
        for index, name in enumerate(order):
            rules_left = fired(best.result.report).get(name.partition("/")[0], {})
            if not rules_left or ("/" in name and name not in rules_left):
                continue
            group = name if "/" in name else _group(name, rules_left)
            if group in tried:
                continue
            tried.add(group)
            label = f"{index + 1} of {len(order)}: without {group}; best so far {told}"
            trial, without = self._trial(best, group, len(order) - index, label)
            if without is None:
                self.trials.append(trial)
                continue
            is_pass = "/" not in group and len(rules_left) > 1
            narrowed = self._narrowed(best, name, rules_left, trial, told, tried) if is_pass else None
            best = narrowed if narrowed is not None else self._taken(best, without, trial)
            told = self._told(whole)
        return best

    def _told(self, whole: Benchmark) -> str:
        """How fast the best is, as far as trials tell: each was timed against the best before it."""
        gained = math.prod(trial.ratio for trial in self.trials if trial.outcome == "left out")
        return f"about {whole.ratio * gained:.3f} times the original's speed"

    def _narrowed(
        self, best: Candidate, name: str, rules: Mapping[str, int], whole: Trial, told: str, tried: set[str]
    ) -> Candidate | None:
        """Find which rules of a guilty pass make it slow; None if none does so alone."""
        place = len(self.trials)
        start = best
        for index, rule in enumerate(rules):
            if rule not in fired(best.result.report).get(name, {}) or "/" not in rule or rule in tried:
                continue
            tried.add(rule)
            label = f"rule {index + 1} of {len(rules)} of {name}: without {rule}; best so far {told}"
            trial, without = self._trial(best, rule, len(rules) - index, label)
            if without is None:
                self.trials.append(trial)
            else:
                best = self._taken(best, without, trial)
        if best is start:
            return None
        reason = f"faster without it, {_figures(whole.ratio, whole.low, whole.high)}; its rules were tried one by one"
        self.trials.insert(place, dataclasses.replace(whole, outcome="narrowed", reason=reason))
        return best

    def _taken(self, best: Candidate, without: Candidate, trial: Trial) -> Candidate:
        """Go on without a group, if the result is still equal."""
        self.say(f"comparing the result without {trial.group} with the original")
        without.result.verification = self.tools.verify(self.workshop.reference, without.path)
        if without.result.verification.equal:
            self.trials.append(trial)
            self.workshop.forget(best)
            return without
        said = without.result.verification
        reason = f"{trial.reason}; but without it the result is {said.verdict}: {said.reason}"
        self.trials.append(dataclasses.replace(trial, outcome="kept", reason=reason))
        self.workshop.forget(without)
        return best

    def _trial(self, best: Candidate, group: str, left: int, label: str) -> tuple[Trial, Candidate | None]:
        """Look at the result without a group; it is returned, too, if it is surely faster.

        Args:
            best: The result with it.
            group: The group.
            left: How many trials are still to be made, this one among them.
            label: What to say.
        """
        count, begun = self._count(best, group), self.tools.clock()
        if self._left() < _LEAST_SECONDS + self.overhead:
            self.out_of_time = True
            return Trial(group, count, "not tried", "the time was up; allow more by --max-time"), None
        self.say(f"{label}; {self._time_left()}")

        def trial(outcome: str, reason: str, found: Benchmark | None = None) -> Trial:
            took = self.tools.clock() - begun
            if found is None:
                return Trial(group, count, outcome, reason, seconds=took)
            return Trial(group, count, outcome, reason, found.ratio, found.low, found.high, took)

        try:
            without = self.workshop.make(best.choice.without(group))
        except GraphoptError as error:
            return trial("needed", str(error)), None
        if without.result.report.stopped_by in _NOT_SETTLED:
            self.workshop.forget(without)
            return trial("needed", f"without it the passes do not settle ({without.result.report.stopped_by})"), None
        if self._runs_the_same(best, without):
            self.workshop.forget(without)
            return trial("same graph", "the runtime runs the same graph without it"), None
        found = self._compared(best, without, left)
        if found.verdict == "not measured":
            self.workshop.forget(without)
            return trial("kept", f"without it nothing can be timed: {found.reason}"), None
        if found.low > 1 + MARGIN:
            reason = f"faster without it, {_figures(found.ratio, found.low, found.high)}"
            return trial("left out", reason, found), without
        self.workshop.forget(without)
        return trial("kept", _kept(found), found), None

    def _compared(self, best: Candidate, without: Candidate, left: int) -> Benchmark:
        """Time a candidate against the best: a short look, and a long one where that leaves a doubt."""
        reserve = self.overhead + min(_MOST_SECONDS, 0.15 * self.max_time)
        share = min(_MOST_SECONDS, max(_LEAST_SECONDS, (self._left() - reserve) / max(1, left)))
        look = _LEAST_SECONDS if self.overhead < _LEAST_SECONDS else max(_LEAST_SECONDS, _LOOK_SHARE * share)
        found = self._measured(best.path, without.path, look, None)
        is_clear = found.verdict == "not measured" or found.low > 1 + MARGIN or found.high <= 1 + MARGIN
        if is_clear or self._left() < _LEAST_SECONDS + self.overhead:
            return found
        longer = min(share, self._left() - self.overhead)
        second = self._measured(best.path, without.path, longer, None)
        return found if second.verdict == "not measured" else second

    def _runs_the_same(self, best: Candidate, without: Candidate) -> bool:
        if best.sha256 and best.sha256 == without.sha256:
            return True
        return bool(self._digest(best)) and self._digest(best) == self._digest(without)

    def _digest(self, candidate: Candidate) -> str:
        if candidate.digest is None:
            candidate.digest = self.tools.digest(candidate.path)
        return candidate.digest

    # --- tools

    def _measured_whole(self, best: Candidate, seconds: float) -> Benchmark:
        from graphopt import runtime

        origins = best.result.origins
        return self._measured(
            self.workshop.reference, best.path, seconds, runtime.Touched(origins.erased, origins.inserted)
        )

    def _measured(self, one: str, other: str, seconds: float, touched: Any) -> Benchmark:
        begun = self.tools.clock()
        self.timings += 1
        found = self.tools.measure(one, other, seconds, touched)
        self.overhead = max(self.overhead, self.tools.clock() - begun - seconds)
        return found

    def _left(self) -> float:
        return self.max_time - (self.tools.clock() - self.started)

    def _time_left(self) -> str:
        return f"{max(0.0, self._left()):.0f} s left"

    def _count(self, best: Candidate, group: str) -> int:
        rules = fired(best.result.report).get(group.partition("/")[0], {})
        return rules.get(group, 0) if "/" in group else sum(rules.values())


def _group(name: str, rules: Mapping[str, int]) -> str:
    """A pass; or its rule, where only that one fired."""
    only = next(iter(rules))
    return only if len(rules) == 1 and "/" in only else name


def _kept(found: Benchmark) -> str:
    if found.high < 1 - MARGIN:
        return "slower without it"
    return "no difference seen without it" if found.high <= 1 + MARGIN else "not surely faster without it"


def _figures(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} times as fast, 99% interval {low:.3f} to {high:.3f}"
