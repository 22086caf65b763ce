"""What a Concat puts together, and which of it a cut or a place takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import Node, Value
from passes._selections import Cut, cut_of, size_along


def axis_of_concat(node: Node) -> int | None:
    """The axis of a Concat, counted from the front; None if it is another operator or the axis is not known."""
    if not node.is_op("Concat"):
        return None
    axis = node.param("axis")
    rank = next((value.rank for value in node.operands if value is not None and value.rank is not None), None)
    return axis % rank if isinstance(axis, int) and rank and -rank <= axis < rank else None


@dataclass(frozen=True, slots=True)
class Parts:
    """The operands of a Concat.

    Attributes:
        axis: Along which they stand, counted from the front.
        values: The operands.
        sizes: Their sizes along the axis, None where that is not known.
    """

    axis: int
    values: tuple[Value, ...]
    sizes: tuple[int | None, ...]

    def covered_by(self, cut: Cut) -> tuple[Sequence[Value], Cut | None] | None:
        """The operands a cut takes.

        Returns:
            The operands, all of them whole, or one and how to cut that; None if there is no such answer.
        """
        if cut.step < 1:
            return None
        whole = self._total()
        if whole is not None:
            places = cut.places(whole)
        elif cut.start >= 0 and 0 <= cut.end <= (known := sum(self._known())):
            places = range(cut.start, max(cut.start, min(cut.end, known)), cut.step)
        else:
            return self._tail(cut)
        return self._of(places)

    def _of(self, places: range) -> tuple[Sequence[Value], Cut | None] | None:
        if not places:
            return None
        first, taken = 0, []
        for value, size in zip(self.values, self.sizes, strict=True):
            if size is None:
                break
            end = first + size
            if first <= places[0] and places[-1] < end:
                inside = range(places[0] - first, places[-1] - first + 1, places.step)
                is_whole = len(inside) == size
                return (value,), None if is_whole else cut_of(inside)
            if places.step == 1 and places[0] <= first and end <= places[-1] + 1 and size:
                taken.append(value)
            elif first <= places[-1] and end > places[0]:
                return None
            first = end
        return (taken, None) if taken else None

    def _tail(self, cut: Cut) -> tuple[Sequence[Value], Cut | None] | None:
        """What begins behind operands of known sizes and reaches to the end."""
        if cut.step != 1 or not cut.is_open or cut.start < 0:
            return None
        first = 0
        for index, size in enumerate(self.sizes):
            if first == cut.start and index:
                return self.values[index:], None
            if size is None:
                return None
            first += size
        return None

    def holding(self, place: int) -> tuple[Value, int] | None:
        """The operand that holds a place, and where in it."""
        if place < 0:
            total = self._total()
            if total is not None:
                return self.holding(place + total) if place + total >= 0 else None
            return self._from_the_end(place)
        first = 0
        for value, size in zip(self.values, self.sizes, strict=True):
            if size is None:
                return None
            if place < first + size:
                return value, place - first
            first += size
        return None

    def _from_the_end(self, place: int) -> tuple[Value, int] | None:
        last = 0
        for value, size in zip(self.values[::-1], self.sizes[::-1], strict=True):
            if size is None:
                return None
            if place >= last - size:
                return value, place - last + size
            last -= size
        return None

    def _total(self) -> int | None:
        known = self._known()
        return sum(known) if len(known) == len(self.sizes) else None

    def _known(self) -> list[int]:
        """The sizes from the front on, up to the first that is not known."""
        known: list[int] = []
        for size in self.sizes:
            if size is None:
                break
            known.append(size)
        return known


def parts_of(node: Node) -> Parts | None:
    """What a Concat puts together; None for another operator or an unknown axis."""
    axis = axis_of_concat(node)
    if axis is None or any(value is None for value in node.operands):
        return None
    values = tuple(value for value in node.operands if value is not None)
    return Parts(axis, values, tuple(size_along(value, axis) for value in values))
