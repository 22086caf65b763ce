"""The search: blocks of settings in order of promise, each tried on top of the best so far, until time runs out.

It knows neither models nor processes: something that runs trials is handed to it, and a clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from graphopt.recipes import MODEL, TrialRecord
from graphopt.runtime.stats import MARGIN
from graphopt.tuning.candidates import Block, Change

Settings = tuple[tuple[str, str], ...]
FASTER, NO_FASTER, SLOWER, REFUSED, NOT_TRIED = "faster", "no faster", "slower", "refused", "not tried"
OUTDONE = "outdone"


@dataclass(frozen=True, slots=True)
class Request:
    """A trial to be made.

    Attributes:
        settings: Of the candidate.
        against: Of what it is timed against.
        thorough: Time it in full even where a first look says that it does not pay.
        bar: How many times faster than the same rival another candidate of the same block is.
    """

    settings: Settings
    against: Settings
    thorough: bool = False
    bar: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed.

    Attributes:
        verdict: "faster", "no faster", "slower", "outdone" (by another of its block, at a first look) or "refused".
        reason: Why, one sentence.
        error: Largest error of an output.
        output: Which output.
        median_ms: Median time of a run.
        against_ms: The same of what it was timed against.
        ratio: How many times faster.
        low: Lower end of its interval.
        high: Upper end of it.
        device: What it ran on.
        seconds: How long the trial took.
    """

    verdict: str
    reason: str = ""
    error: float = math.nan
    output: str = ""
    median_ms: float = math.nan
    against_ms: float = math.nan
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    device: str = ""
    seconds: float = 0.0


class Trials(Protocol):
    """Whatever runs trials."""

    slots: int
    """How many it runs at a time, each on a device of its own."""

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Outcome]]:
        """Run all, and give each outcome as it comes."""


@dataclass(slots=True)
class Told:
    """How far the search is, for whoever watches.

    Attributes:
        record: The trial that just ended; None where one starts.
        starting: Settings of the trials that start.
        done: Trials made.
        left: Trials still planned.
        best: Settings that are best so far.
        best_ms: Their median time; NaN until it is known.
    """

    record: TrialRecord | None
    starting: tuple[Settings, ...]
    done: int
    left: int
    best: Settings
    best_ms: float


@dataclass(slots=True)
class Found:
    """What the search found.

    Attributes:
        settings: The best; None where nothing is close enough to the original.
        final: The best against the runtime's defaults; None where they are the best.
        baseline_ms: Median time with the runtime's defaults; NaN where no trial ran.
        records: All trials.
        ran_out: Time ended the search.
    """

    settings: Settings | None
    final: Outcome | None
    baseline_ms: float
    records: list[TrialRecord] = field(default_factory=list)
    ran_out: bool = False


def search(
    blocks: Sequence[Block],
    trials: Trials,
    *,
    max_time: float,
    closer: Sequence[Block] = (),
    baseline_ok: bool = True,
    tell: Callable[[Told], None] = lambda told: None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Find the fastest settings that hold.

    Args:
        blocks: What to try, in order of promise.
        trials: Runs the trials.
        max_time: Seconds; no trial starts that would end far beyond.
        closer: What to try first where the defaults are too far from the original.
        baseline_ok: The defaults are close enough.
        tell: Told what goes on.
        clock: Seconds.
    """
    return _Search(trials, max_time, tell, clock).run(list(blocks), list(closer), baseline_ok)


@dataclass(slots=True)
class _Planned:
    """A change still to be tried."""

    change: Change
    block: int
    name: str


class _Search:
    """One search on its way."""

    def __init__(
        self, trials: Trials, max_time: float, tell: Callable[[Told], None], clock: Callable[[], float]
    ) -> None:
        self.trials = trials
        self.max_time = max_time
        self.tell = tell
        self.clock = clock
        self.started = clock()
        self.best: Settings = ()
        self.best_ms = math.nan
        self.baseline_ms = math.nan
        self.longest = 0.0
        self.records: list[TrialRecord] = []
        self.outcomes: dict[tuple[Settings, Settings], Outcome] = {}
        self.steps: list[tuple[Settings, Settings]] = []  # each best settings that fell, and what beat them
        self.slower_than: set[Settings] = set()  # known to be slower than something that came after
        self.left = 0
        self.ran_out = False

    def run(self, blocks: list[Block], closer: list[Block], baseline_ok: bool) -> Found:
        """All rounds, then what can be left out, then the best against the defaults."""
        if not baseline_ok and not self._come_closer(closer):
            return Found(None, None, self.baseline_ms, self.records, self.ran_out)
        planned = [
            _Planned(change, number, block.name) for number, block in enumerate(blocks) for change in block.changes
        ]
        again = self._round(planned)
        while again and not self.ran_out:
            again = self._round(again)
        self._simplify()
        final = self._confirm(baseline_ok)
        if final is not None and baseline_ok and final.verdict != FASTER:
            self.best, final = self._best_direct()  # step by step it was faster, and all together it is not
        kept = dict(self.best)
        records = [
            replace(item, kept=bool(kept) and item.verdict == FASTER and item.settings.items() <= kept.items())
            for item in self.records
        ]
        return Found(self.best, final, self.baseline_ms, records, self.ran_out)

    def _best_direct(self) -> tuple[Settings, Outcome | None]:
        """The best of what was found faster than the defaults themselves."""
        direct = [
            (settings, outcome)
            for (settings, against), outcome in self.outcomes.items()
            if not against and outcome.verdict == FASTER
        ]
        return max(direct, key=lambda item: item[1].ratio, default=((), None))

    # --- rounds

    def _come_closer(self, closer: list[Block]) -> bool:
        """The defaults are too far from the original: take the fastest of the first block that holds."""
        for block in closer:
            held = []
            requests = [Request(_with((), change), (), thorough=True) for change in block.changes]
            for request, outcome in self._attempt(requests):
                if outcome.verdict != REFUSED:
                    held.append((outcome.ratio, request))
            if held:
                _, request = max(held, key=lambda item: item[0])
                self._adopt(request.settings, self.outcomes[request.settings, request.against])
                return True
        return False

    def _round(self, planned: list[_Planned]) -> list[_Planned]:
        """Try each change once; what is worth another try on top of settings found later."""
        retry: list[tuple[_Planned, Settings]] = []
        queue = list(planned)
        while queue:
            batch = self._next_batch(queue)
            by_settings: dict[Settings, _Planned] = {}
            for item in batch:
                settings = _with(self.best, item.change)
                if settings != self.best and (settings, self.best) not in self.outcomes:
                    by_settings.setdefault(settings, item)
            self.left = len(queue)
            against = self.best
            winners: list[tuple[Outcome, Settings]] = []
            for request, outcome in self._attempt([Request(settings, against) for settings in by_settings]):
                if outcome.verdict == FASTER:
                    winners.append((outcome, request.settings))
                elif outcome.verdict == NO_FASTER:
                    retry.append((by_settings[request.settings], against))
            if not winners:
                continue
            chosen, settings = _best_of(winners, list(by_settings))
            for outcome, other in winners:
                if other == settings:
                    continue
                if by_settings[other].block != by_settings[settings].block:
                    queue.insert(0, by_settings[other])  # it may pay on top of the one that was taken, too
                elif outcome.high < chosen.low:
                    self.slower_than.add(other)
            self._adopt(settings, chosen)
        if self.ran_out:
            return []
        return [item for item, against in retry if against != self.best and not _is_in(item.change, self.best)]

    def _next_batch(self, queue: list[_Planned]) -> list[_Planned]:
        """The next block, and more of them where more run at a time."""
        batch = [queue.pop(0)]
        while queue and (queue[0].block == batch[-1].block or len(batch) < self.trials.slots):
            batch.append(queue.pop(0))
        return batch

    def _attempt(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Outcome]]:
        """Run what time allows and keep records of all."""
        slots, bar = max(1, self.trials.slots), 1.0
        for start in range(0, len(requests), slots):
            part = requests[start : start + slots]
            if not self._has_time():
                self.ran_out = True
                self.records += [
                    TrialRecord(dict(item.settings), dict(item.against), reason="no time was left; allow more")
                    for item in requests[start:]
                ]
                return
            self.tell(self._told(None, tuple(item.settings for item in part)))
            for request, outcome in self.trials.run([replace(item, bar=bar) for item in part]):
                self._note(request, outcome)
                if outcome.verdict == FASTER:
                    bar = max(bar, outcome.ratio)
                yield request, outcome

    def _note(self, request: Request, outcome: Outcome) -> None:
        self.longest = max(self.longest, outcome.seconds)
        self.outcomes[request.settings, request.against] = outcome
        if not request.against and not math.isnan(outcome.against_ms):
            self.baseline_ms = outcome.against_ms
        if request.against == self.best and not math.isnan(outcome.against_ms):
            self.best_ms = outcome.against_ms
        if outcome.verdict in (SLOWER, OUTDONE):
            self.slower_than.add(request.settings)
        record = TrialRecord(
            dict(request.settings),
            dict(request.against),
            outcome.verdict,
            outcome.reason,
            outcome.error,
            outcome.output,
            outcome.median_ms,
            outcome.ratio,
            outcome.low,
            outcome.high,
            False,
            outcome.device,
            outcome.seconds,
        )
        self.records.append(record)
        self.tell(self._told(record, ()))

    def _adopt(self, settings: Settings, outcome: Outcome) -> None:
        self.steps.append((self.best, settings))
        self.slower_than.add(self.best)
        self.best, self.best_ms = settings, outcome.median_ms
        self.tell(self._told(None, ()))

    def _told(self, record: TrialRecord | None, starting: tuple[Settings, ...]) -> Told:
        return Told(record, starting, len(self.records), self.left, self.best, self.best_ms)

    def _has_time(self) -> bool:
        """True while another trial fits, and after it one that confirms what was found."""
        reserve = self.longest if self.steps else 0.0
        return not self.records or self.clock() - self.started + reserve + self.longest / 2 < self.max_time

    # --- the end

    def _simplify(self) -> None:
        """Leave out, one by one, what makes no difference beyond noise: ties go to what is simpler."""
        refused = {settings for (settings, _), outcome in self.outcomes.items() if outcome.verdict == REFUSED}
        for name, _ in reversed(self.best):
            less = tuple(item for item in self.best if item[0] != name)
            if not less or less in self.slower_than or less in refused:
                continue
            self.left = 0
            for request, outcome in self._attempt([Request(less, self.best, thorough=True)]):
                if outcome.verdict in (FASTER, NO_FASTER):
                    self._adopt(request.settings, outcome)

    def _confirm(self, baseline_ok: bool) -> Outcome | None:
        """The best against the runtime's defaults, in one run; time is kept for it."""
        if not self.best:
            return None
        known = self.outcomes.get((self.best, ()))
        if known is not None and (len(self.steps) == 1 or not baseline_ok):
            return known
        self.tell(self._told(None, (self.best,)))
        for request, outcome in self.trials.run([Request(self.best, (), thorough=True)]):
            self._note(request, outcome)
            return outcome
        return known


def _best_of(winners: Sequence[tuple[Outcome, Settings]], order: Sequence[Settings]) -> tuple[Outcome, Settings]:
    """The fastest; where others are no more than the margin behind, the simplest of them, or the first named."""
    most = max(outcome.ratio for outcome, _ in winners)
    close = [item for item in winners if item[0].ratio >= most / (1 + MARGIN)]
    return min(close, key=lambda item: (len(item[1]), order.index(item[1])))


def _with(settings: Settings, change: Change) -> Settings:
    """Settings with some changed, in an order of their own: equal settings are one tuple."""
    return tuple(sorted({**dict(settings), **change}.items(), key=lambda item: (item[0] != MODEL, item)))


def _is_in(change: Change, settings: Settings) -> bool:
    known = dict(settings)
    return all(known.get(name) == value for name, value in change.items())
