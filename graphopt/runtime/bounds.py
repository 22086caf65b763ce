"""How much may be asked of one run; more says nothing further, and takes all there is of time, threads or memory."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.errors import UsageError


@dataclass(frozen=True, slots=True)
class Bound:
    """A number that a user gives.

    Attributes:
        most: The largest.
        what: What is counted.
        advice: What to do instead of asking for more.
    """

    most: float
    what: str
    advice: str


BOUNDS = {
    "decode": Bound(4096, "steps", "a few hundred show how time grows with the past"),
    "threads": Bound(1024, "threads", "more threads than cores only wait for each other; 0 is the runtime's default"),
    "concurrency": Bound(256, "requests at a time", "beyond the number of cores a session serves no more of them"),
    "sessions": Bound(200, "sessions of each side", "for a sharper interval give more --max-time"),
    "max_time": Bound(7 * 24 * 3600, "seconds", "that is a week"),
}


def require_bounded(**given: float) -> None:
    """Refuse numbers that are too large, negative, or none.

    Raises:
        UsageError: One is.
    """
    for name, value in given.items():
        bound = BOUNDS[name]
        if not 0 <= value <= bound.most:  # a NaN is not
            raise UsageError(
                f"--{name.replace('_', '-')} takes up to {bound.most:g} {bound.what}, and {value} is no such number; "
                f"{bound.advice}"
            )
