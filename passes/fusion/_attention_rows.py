"""Tensors whose rows are batch and sequence and whose last axis holds the heads, and which of them agree on that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Value
from passes.fusion._attention_layout import (
    BATCH,
    COLUMNS,
    FOLDED,
    HEADS,
    ROWS,
    Array,
    Axis,
    Extent,
    Layout,
    Places,
    is_same,
    merged,
    spread,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """A value whose rows are batch and sequence in this order, and whose last axis holds the heads.

    Attributes:
        value: The value.
        at: Of each element of each head its place on the last axis, `[heads, size]`.
        full: The length of the last axis.
        is_plain: True if the axes are batch, sequence and columns already.
        is_swapped: True if the sequence comes before the batch, on whatever axes.
        axes: The axes before the last one.
    """

    value: Value
    at: Array
    full: int
    is_plain: bool
    is_swapped: bool = False
    axes: tuple[Axis, ...] = ()

    @property
    def is_turned(self) -> bool:
        """True if the axes are sequence, batch and columns."""
        return self.is_swapped and len(self.axes) == 2 and all(len(axis) == 1 for axis in self.axes)

    @property
    def is_whole(self) -> bool:
        """True if the last axis is nothing but the heads, one after another."""
        return self.full == self.at.size and self.is_run

    @property
    def is_run(self) -> bool:
        """True if the heads lie one after another."""
        flat = self.at.reshape(-1)
        return bool((np.diff(flat) == 1).all())

    @property
    def start(self) -> int:
        """The first place."""
        return int(self.at.reshape(-1)[0])


def rows_of(layout: Layout, heads: int, size: int) -> Rows | None:
    """A layout as rows of heads, if it is."""
    if not layout.axes or any(isinstance(part, Extent) for part in layout.axes[-1]):
        return None
    columns = merged(layout.axes[-1])
    last = columns[0] if columns else Places((), np.zeros((), dtype=np.int64), 1)
    assert isinstance(last, Places)
    if any(label not in last.labels and count > 1 for label, count in ((HEADS, heads), (COLUMNS, size))):
        return None
    tags: list[tuple[str, tuple[int, ...]]] = []
    for part in (item for axis in layout.axes[:-1] for item in axis):
        if isinstance(part, Places):
            if part.full != 1:
                return None
            continue
        if part.tag == FOLDED and heads > 1:
            return None
        tags.append((BATCH if part.tag == FOLDED else part.tag, part.place))
    at = np.broadcast_to(spread(last, (HEADS, COLUMNS)), (heads, size))
    leading = layout.axes[:-1]
    if [tag for tag, _ in tags] == [ROWS, BATCH]:
        return Rows(layout.value, at, last.full, False, True, leading)
    if tags != sorted(tags):  # batch before sequence, and the factors of each in order
        return None
    plain = len(layout.axes) == 3 and len(layout.axes[0]) <= 1 and len(layout.axes[1]) <= 1
    is_plain = plain and _is_of(layout.axes[0], BATCH) and _is_of(layout.axes[1], ROWS)
    return Rows(layout.value, at, last.full, is_plain, False, leading)


def has_same_axes(left: Sequence[Axis], right: Sequence[Axis]) -> bool:
    """True if axes of one tensor are the same in two ways of naming them: batch the same batch, rows the same rows.

    Sizes tell nothing of that, as those of batch and sequence may be equal; only how an axis is divided is told so.
    """
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        mine, its = _long_extents(one), _long_extents(other)
        if [(part.tag, part.place) for part in mine] != [(part.tag, part.place) for part in its]:
            return False
        if not all(is_same(part.size, item.size) for part, item in zip(mine[1:], its[1:], strict=True)):
            return False
    return True


def _long_extents(axis: Axis) -> list[Extent]:
    return [part for part in axis if isinstance(part, Extent) and part.size != 1]


def _is_of(axis: Axis, tag: str) -> bool:
    return all(isinstance(part, Extent) and (part.tag == tag or (part.tag == FOLDED and tag == BATCH)) for part in axis)
