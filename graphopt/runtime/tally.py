"""What was seen of one output over all feeds, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphopt.records import OutputDiff
from graphopt.runtime.compare import Difference
from graphopt.runtime.tolerance import FACTOR, Floor, Noise


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What equality means in one verification.

    Attributes:
        exact: Only the same bits will do.
        rtol: Relative tolerance that the user set, a share of the output's scale.
        atol: Absolute tolerance that the user set.
    """

    exact: bool = False
    rtol: float | None = None
    atol: float | None = None

    @property
    def given(self) -> bool:
        """True where the user set a tolerance."""
        return self.rtol is not None or self.atol is not None

    def __str__(self) -> str:
        return f"--rtol {self.rtol or 0:g} --atol {self.atol or 0:g}"


@dataclass(slots=True)
class OutputTally:
    """What was seen of one output over all feeds.

    Attributes:
        name: The output.
        differences: Feed label -> difference with the optimizer off, judge settings.
        users: Feed label -> difference with default options, the smaller of those against the original with the
            optimizer off and on.
        floor: Its noise.
        random: Labels of feeds at which the original does not repeat itself.
        excuses: (feed label, as users run) -> why a difference above the floor is still none.
    """

    name: str
    differences: dict[str, Difference] = field(default_factory=dict)
    users: dict[str, Difference] = field(default_factory=dict)
    floor: Floor = field(default_factory=Floor)
    random: dict[str, None] = field(default_factory=dict)
    excuses: dict[tuple[str, bool], str] = field(default_factory=dict)

    @property
    def is_random(self) -> bool:
        """True where the original repeats itself at no feed that gives elements; at a few it may read stale memory."""
        telling = [label for label, item in self.differences.items() if item.elements or not item.identical]
        return bool(self.random) and all(label in self.random for label in telling)

    def faults(self, yardstick: Yardstick, users: bool) -> list[str]:
        """Labels of the feeds at which the output is off, in order."""
        if self.is_random:
            return []
        seen = self.users if users else self.differences
        return [
            label
            for label, item in seen.items()
            if label not in self.random and not self.fine(item, label, yardstick, users)
        ]

    def fine(self, difference: Difference, label: str, yardstick: Yardstick, users: bool) -> bool:
        """True where a difference may be called none."""
        if difference.identical or (label, users) in self.excuses:
            return True
        if difference.mismatch:
            return False
        if yardstick.given:
            allowed = (yardstick.atol or 0.0) + (yardstick.rtol or 0.0) * difference.scale
            return difference.absolute <= allowed
        if yardstick.exact and not users:
            return False
        return difference.floating and self.floor.accepts(difference, label, users)

    def how_far(self, difference: Difference, label: str, yardstick: Yardstick, users: bool = False) -> str:
        """A difference in words, beside what is allowed."""
        if difference.mismatch:
            return difference.mismatch
        count = f"{difference.mismatched} of {difference.elements} elements"
        if yardstick.given:
            return f"{count}, by up to {difference.absolute:.3g}; {yardstick} is allowed"
        if yardstick.exact and not users:
            return f"{count}, by up to {difference.error:.2g} of the output's scale; the level exact allows none"
        if not difference.floating:
            return f"{count}, by up to {difference.absolute:g}"
        allowed = self.floor.tolerance(difference, label, users)
        if difference.error <= allowed:
            mean = self.floor.rms_tolerance(difference, label, users)
            return f"{count}, on average by {difference.rms:.2g} of the output's scale; up to {mean:.2g} would be noise"
        return f"{count}, by up to {difference.error:.2g} of the output's scale; up to {allowed:.2g} would be noise"

    def record(self, yardstick: Yardstick) -> OutputDiff:
        """The tally as a record."""
        if not self.differences:
            return OutputDiff(self.name, "not compared")
        label, worst = max(self.differences.items(), key=lambda item: _badness(item[1]))
        identical = all(item.identical for item in self.differences.values())
        bad = [*self.faults(yardstick, False), *self.faults(yardstick, True)]
        measured = (
            not identical and not yardstick.exact and not yardstick.given and worst.floating and not worst.mismatch
        )
        return OutputDiff(
            name=self.name,
            verdict="random" if self.is_random else "different" if bad else "equal",
            reason=self._reason(yardstick, label, worst, bool(bad), identical),
            identical=identical,
            error=worst.error,
            error_as_users_run=max((item.error for item in self.users.values()), default=None),
            tolerance=self.floor.tolerance(worst, label) if measured else None,
            tolerance_as_users_run=self._allowed_to_users(yardstick),
            floor_optimizer=_most(self.floor.optimizer),
            floor_ulp=_most(self.floor.ulp),
            floor_sessions=_most(self.floor.sessions),
            floor_tf32=_most(self.floor.tf32),
            mismatched=sum(item.mismatched for item in self.differences.values()),
            elements=sum(item.elements for item in self.differences.values()),
            worst_feed=label,
        )

    def _allowed_to_users(self, yardstick: Yardstick) -> float | None:
        """What the error of the final run might be; None where there was nothing to measure."""
        far = [(label, item) for label, item in self.users.items() if item.floating and not item.identical]
        if yardstick.given or not far:
            return None
        label, worst = max(far, key=lambda entry: _badness(entry[1]))
        return None if worst.mismatch else self.floor.tolerance(worst, label, users=True)

    def _reason(self, yardstick: Yardstick, label: str, worst: Difference, bad: bool, identical: bool) -> str:
        if self.is_random:
            return "differs between two runs of the original"
        if bad:
            users = not self.faults(yardstick, False)
            if users:
                label, worst = max(self.users.items(), key=lambda item: _badness(item[1]))
            return self.how_far(worst, label, yardstick, users)
        if self.excuses:
            return next(iter(self.excuses.values()))
        if identical:
            return "the same bits"
        return f"within {yardstick}" if yardstick.given else f"within {FACTOR:g} times the measured noise"


def _most(measured: Mapping[str, Noise]) -> float | None:
    return max((item.most for item in measured.values()), default=None)


def _badness(difference: Difference) -> tuple[bool, float, int]:
    return bool(difference.mismatch), difference.error, difference.mismatched
