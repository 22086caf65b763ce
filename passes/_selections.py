"""Slices, Gathers and Splits as what they pick along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Node, Value
from passes._proofs import WHOLE, Dim, axis_of, contents, counted, is_given

MAX_INDICES = 1 << 16
"""Longer lists of indices are not written down."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a Slice keeps along one axis, as the model writes it: all that is not said is as in Python."""

    start: int
    end: int
    step: int = 1

    @property
    def is_open(self) -> bool:
        """True if it reaches to the end of whatever dim, going forward."""
        return self.step > 0 and self.end >= WHOLE

    @property
    def is_whole(self) -> bool:
        """True if it keeps everything."""
        return self.start == 0 and self.step == 1 and self.is_open

    def places(self, size: int) -> range:
        """The places it keeps of an axis of that size."""
        if self.step > 0:
            start = min(max(self.start + size if self.start < 0 else self.start, 0), size)
            end = min(max(self.end + size if self.end < 0 else self.end, 0), size)
        else:
            start = min(max(self.start + size if self.start < 0 else self.start, 0), size - 1)
            end = min(max(self.end + size if self.end < 0 else self.end, -1), size - 1)
        return range(start, max(start, end), self.step) if self.step > 0 else range(start, min(start, end), self.step)


Cuts = dict[int, Cut]
"""Cuts by axis, counted from the front."""


def cuts_of(node: Node) -> Cuts | None:
    """What a Slice of known bounds keeps; axes it keeps whole are left out.

    Returns:
        None for another operator, for bounds that are computed, for axes that cannot be counted from the front.
    """
    if not node.is_op("Slice") or node.operands[0] is None:
        return None
    starts, ends = contents(node, "starts"), contents(node, "ends")
    if starts is None or ends is None:
        return None
    axes = contents(node, "axes") if is_given(node, "axes") else tuple(range(len(starts)))
    steps = contents(node, "steps") if is_given(node, "steps") else (1,) * len(starts)
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    rank = node.operands[0].rank
    places = axes if _are_counted(axes) else None if rank is None else counted(axes, rank)
    if places is None or len(set(places)) != len(places):
        return None
    cuts: Cuts = {}
    for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
        if not (isinstance(axis, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
            return None
        if step == 0 or (step < 0 and end >= WHOLE):
            return None  # the runtime has its own idea of the latter
        cut = Cut(start, end, step)
        if not cut.is_whole:
            cuts[axis] = cut
    return cuts


def _are_counted(axes: Sequence[Dim]) -> bool:
    return all(isinstance(axis, int) and axis >= 0 for axis in axes)


def then(first: Cut, second: Cut, size: Dim) -> Cut | None:
    """One cut in place of two along the same axis; None if there is none for every size.

    Args:
        first: The cut made first.
        second: The cut of what that leaves.
        size: The dim before both.
    """
    if isinstance(size, int):
        places = first.places(size)
        return cut_of(places[slice_of(second, len(places))])
    if first.step != 1 or first.start < 0 or second.start < 0 or second.step < 1:
        return None
    if first.is_open:
        if second.end < 0:
            return None
        return Cut(first.start + second.start, WHOLE if second.is_open else first.start + second.end, second.step)
    if first.end < 0 or second.end < 0:
        return None
    return Cut(first.start + second.start, min(first.end, first.start + second.end), second.step)


def slice_of(cut: Cut, size: int) -> slice:
    """The same for a sequence in Python."""
    places = cut.places(size)
    end = places.stop if places.stop >= 0 else None
    return slice(places.start, end, places.step) if places else slice(0, 0)


def cut_of(places: range) -> Cut:
    """The cut that keeps those places."""
    if not places:
        return Cut(0, 0)
    if len(places) == 1:
        return Cut(places.start, places.start + 1)
    last = places[-1]
    if places.step > 0:
        return Cut(places.start, last + 1, places.step)
    return Cut(places.start, last - 1 if last > 0 else -WHOLE, places.step)


def sliced(b: Builder, value: Value, cuts: Cuts) -> Value:
    """A Slice, or the value itself where everything is kept."""
    if not cuts:
        return value
    axes = sorted(cuts)
    parameters: dict[str, object] = {
        "starts": [cuts[axis].start for axis in axes],
        "ends": [cuts[axis].end for axis in axes],
        "axes": axes,
    }
    if any(cuts[axis].step != 1 for axis in axes):
        parameters["steps"] = [cuts[axis].step for axis in axes]
    result: Value = b.apply("Slice", (value,), parameters=parameters)
    return result


@dataclass(frozen=True, slots=True)
class Selection:
    """Places that a value holds of another along one axis.

    Attributes:
        source: Of which value.
        axis: Along which axis, counted from the front.
        places: Which, in order; for an axis that goes away, the only one.
        keeps_axis: False if the axis goes away.
    """

    source: Value
    axis: int
    places: np.ndarray
    keeps_axis: bool = True


def selection_of(value: Value) -> Selection | None:
    """What a Slice, Gather or Split picks along the only axis it looks at; None if that is not known."""
    node = value.producer
    source = node.operand(0)
    if not node.is_operator or source is None or source.shape is None:
        return None
    if node.is_op("Slice"):
        return _of_slice(node, source)
    if node.is_op("Gather"):
        return _of_gather(node, source)
    return _of_split(value, source) if node.is_op("Split") else None


def size_along(value: Value, axis: int) -> int | None:
    """The size of an axis, if it is a number of few digits."""
    size = None if value.shape is None or axis >= len(value.shape) else value.shape[axis]
    return size if isinstance(size, int) and size <= MAX_INDICES else None


def _of_slice(node: Node, source: Value) -> Selection | None:
    cuts = cuts_of(node)
    if cuts is None or len(cuts) != 1:
        return None
    ((axis, cut),) = cuts.items()
    size = size_along(source, axis)
    return None if size is None else Selection(source, axis, np.array(cut.places(size), dtype=np.int64))


def _of_gather(node: Node, source: Value) -> Selection | None:
    axis, indices = axis_of(node, source.rank), node.operand(1)
    size = None if axis is None else size_along(source, axis)
    if axis is None or size is None or indices is None or indices.const is None or indices.const.size > MAX_INDICES:
        return None
    places = indices.const.numpy().astype(np.int64)
    if places.ndim > 1 or ((places < -size) | (places >= size)).any():
        return None
    return Selection(source, axis, np.where(places < 0, places + size, places).reshape(-1), places.ndim == 1)


def _of_split(value: Value, source: Value) -> Selection | None:
    axis = axis_of(value.producer, source.rank)
    if axis is None:
        return None
    sizes = [size_along(part, axis) for part in value.producer.results[: value.index + 1]]
    if size_along(source, axis) is None or any(size is None for size in sizes):
        return None
    first = sum(size or 0 for size in sizes[:-1])
    return Selection(source, axis, np.arange(first, first + (sizes[-1] or 0), dtype=np.int64))


def selected(b: Builder, source: Value, axis: int, places: np.ndarray, keeps_axis: bool = True) -> Value:
    """The shortest way to pick places: the value itself, a Slice, a Gather."""
    size = size_along(source, axis)
    if not keeps_axis:
        picked: Value = b.Gather(source, np.array(places[0], dtype=np.int64), axis=axis)
        return picked
    if size is not None and len(places) == size and np.array_equal(places, np.arange(size)):
        return source
    steps = np.unique(np.diff(places))
    if len(places) == 0 or len(steps) == 0 or (len(steps) == 1 and steps[0] != 0):
        step = int(steps[0]) if len(steps) else 1
        first = int(places[0]) if len(places) else 0
        return sliced(b, source, {axis: cut_of(range(first, first + step * len(places), step))})
    gathered: Value = b.Gather(source, places, axis=axis)
    return gathered
