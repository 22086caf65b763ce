"""What an input is for, in a form from which values can be drawn; `structure` finds it in the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Shapes of all inputs under the sizes at hand.
Shapes = Mapping[str, tuple[int, ...]]
Maker = Callable[[tuple[int, ...], Shapes, np.random.Generator], np.ndarray[Any, Any] | None]


@dataclass(slots=True)
class Role:
    """What values an input may take.

    Attributes:
        low: Smallest value, inclusive; None for no limit.
        high: Largest value, inclusive.
        extents: Sizes that bound the values from above: (input, axis, what to add to its size).
        choices: The only values there are; the first is the most common.
        make: Makes the whole value, for inputs such as target shapes; None from it means that it cannot.
        note: Why, for people.
    """

    low: float | None = None
    high: float | None = None
    extents: list[tuple[str, int, int]] = field(default_factory=list)
    choices: tuple[Any, ...] | None = None
    make: Maker | None = None
    note: str = ""

    def narrow(self, other: Role) -> None:
        """Take in what another use of the same input asks for."""
        if other.low is not None:
            self.low = other.low if self.low is None else max(self.low, other.low)
        if other.high is not None:
            self.high = other.high if self.high is None else min(self.high, other.high)
        self.extents += [extent for extent in other.extents if extent not in self.extents]
        self.choices = self.choices or other.choices
        self.make = self.make or other.make
        self.note = self.note or other.note

    def limits(self, shapes: Shapes) -> tuple[float | None, float | None]:
        """(low, high) under the sizes at hand."""
        low, high = self.low, self.high
        for name, axis, extra in self.extents:
            shape = shapes.get(name, ())
            if -len(shape) <= axis < len(shape):
                bound = shape[axis] + extra
                high = bound if high is None else min(high, bound)
                low = 0 if low is None else low
        return low, high


def by_name(name: str) -> Role | None:
    """A role that the name of an integer input alone suggests; a weak hint."""
    low = name.lower()
    if "mask" in low:
        return Role(choices=(1, 0), note="named like a mask")
    if "position" in low:
        return Role(low=0, high=3, note="named like a position")
    if "token_type" in low or "segment" in low:
        return Role(choices=(0, 1), note="named like a segment id")
    return None
