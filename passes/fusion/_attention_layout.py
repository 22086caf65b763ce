"""Where the heads of an attention lie in the tensor they were cut from: views followed to the layer that made them.

The operands of an attention have the axes batch, heads, sequence and head. Exporters make them of a layer's result by
reshapes, transposes, splits and gathers in any order; here each of these is undone, so that it is known which column
of the layer's result is which element of which head, in whatever order the columns are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphopt import Node, Value, symbol
from passes._permutation import perm_of
from passes._proofs import Dim, axes_of, axis_of, same_dim

Array: TypeAlias = NDArray[Any]

BATCH, ROWS, HEADS, COLUMNS, FOLDED = "B", "S", "N", "H", "BN"
"""Batch, sequence, heads, the elements of a head, and batch and heads as one axis."""

_VIEWS = frozenset(("Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Split", "Slice", "Gather"))
_FURTHEST = 24


@dataclass(frozen=True, slots=True)
class Extent:
    """A whole axis, or a factor of one, that nothing is taken out of: batch or sequence.

    Attributes:
        tag: Which it is.
        size: How long it is.
        place: Of a factor where it is among the factors, outermost first: equal sizes do not make factors the same.
    """

    tag: str
    size: Dim
    place: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Places on an axis of known length.

    Attributes:
        labels: What the places depend on: heads, the elements of a head, both or neither, in the order of axes below.
        at: The places, one axis for each label.
        full: How long the axis is.
    """

    labels: tuple[str, ...]
    at: Array
    full: int


Part: TypeAlias = Extent | Places
Axis: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of a value, each as the factors that it consists of, outermost first."""

    value: Value
    axes: tuple[Axis, ...]

    @property
    def parts(self) -> list[Part]:
        """All factors in order."""
        return [part for axis in self.axes for part in axis]


def everything(label: str, size: int) -> Places:
    """All places of an axis, in order."""
    return Places((label,), np.arange(size, dtype=np.int64), size)


def size_of(part: Part) -> Dim:
    """The length of a factor."""
    return part.full if isinstance(part, Places) else part.size


def _joined(outer: Places, inner: Places) -> Places:
    labels = tuple(label for label in (HEADS, COLUMNS) if label in outer.labels + inner.labels)
    left, right = spread(outer, labels), spread(inner, labels)
    return Places(labels, left * inner.full + right, outer.full * inner.full)


def spread(places: Places, labels: tuple[str, ...]) -> Array:
    """The places with an axis for each label, of 1 where they do not depend on it."""
    sizes = dict(zip(places.labels, places.at.shape, strict=True))
    return places.at.reshape([sizes.get(label, 1) for label in labels])


def _divided(places: Places, inner: int) -> tuple[Places, Places]:
    return _lessened(places.labels, places.at // inner, places.full // inner), _lessened(
        places.labels, places.at % inner, inner
    )


def _lessened(labels: tuple[str, ...], at: Array, full: int) -> Places:
    """Places without the labels that they do not depend on."""
    for axis in reversed(range(len(labels))):
        first = np.take(at, [0], axis=axis)
        if at.shape[axis] > 1 and bool((at == first).all()):
            at, labels = np.take(at, 0, axis=axis), (*labels[:axis], *labels[axis + 1 :])
    return Places(labels, at, full)


def merged(axis: Sequence[Part]) -> Axis:
    """An axis with neighbouring places as one."""
    found: list[Part] = []
    for part in axis:
        last = found[-1] if found else None
        if isinstance(part, Places) and isinstance(last, Places):
            found[-1] = _joined(last, part)
        else:
            found.append(part)
    return tuple(found)


def is_same(left: Dim, right: Dim) -> bool:
    """True if two dims are equal wherever dims of one declared name are and none is 0."""
    if same_dim(left, right):
        return True
    return left is not None and right is not None and symbol.always_equal(declared(left), declared(right))


def declared(dim: int | symbol.Expr) -> int | symbol.Expr:
    """A dim as its name says: the kernels refuse operands whose batches differ, where parts might stretch them.

    None is 0: what a Reshape makes of a 0 in its target then is no question.
    """
    if isinstance(dim, int):
        return dim
    return symbol.substitute(dim, {item: symbol.Symbol(item.label, item.label, 1) for item in symbol.symbols(dim)})


def regroup(parts: Sequence[Part], dims: Sequence[Dim], heads: Callable[[int], None]) -> tuple[Axis, ...] | None:
    """The same factors as axes of other lengths, None if that is not how they divide.

    Args:
        parts: The factors.
        dims: The lengths wanted; what is left is the first axis.
        heads: Told how many heads there are, where batch and heads come apart.
    """
    left = list(parts)
    axes: list[Axis] = []
    for dim in reversed(dims[1:]):
        taken = _taken(left, dim, heads)
        if taken is None:
            return None
        axes.append(merged(taken))
    if not dims:
        return None
    axes.append(merged(left))
    return tuple(reversed(axes))


def _taken(left: list[Part], dim: Dim, heads: Callable[[int], None]) -> list[Part] | None:
    """Factors from the end whose product is a length."""
    taken: list[Part] = []
    length: int | symbol.Expr = 1
    if dim is None:
        return None
    dim = declared(dim)
    if dim == 1:
        return [left.pop()] if left and size_of(left[-1]) == 1 else []
    while not is_same(length, dim):
        if not left:
            return None
        part = left.pop()
        found = size_of(part)
        size = None if found is None else declared(found)
        if size == 1 and isinstance(part, Extent):
            continue
        rest = _quotient(dim, length)
        if rest is None:
            return None
        if size is not None and (is_same(size, rest) or _quotient(rest, size) is not None):
            taken.insert(0, part)
            length = length * size
            continue
        inner = _inner(part, size, rest, heads)
        if inner is None:
            return None
        left.append(inner[0])
        taken.insert(0, inner[1])
        length = dim
    return taken


def _quotient(dividend: int | symbol.Expr, divisor: int | symbol.Expr) -> int | symbol.Expr | None:
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    return symbol.divide_exactly(dividend, divisor)


def _inner(part: Part, size: Dim, length: int | symbol.Expr, heads: Callable[[int], None]) -> tuple[Part, Part] | None:
    """A factor divided in two, of which the inner one has a length."""
    if isinstance(part, Places):
        if isinstance(length, int) and part.full % length == 0:
            return _divided(part, length)
        return None
    if part.tag == FOLDED and isinstance(length, int):
        heads(length)
        return Extent(BATCH, None if size is None else _quotient(size, length), part.place), everything(HEADS, length)
    rest = None if size is None else _quotient(size, length)
    if rest is None:
        return None
    return Extent(part.tag, rest, (*part.place, 0)), Extent(part.tag, length, (*part.place, 1))


def above(layout: Layout, heads: Callable[[int], None]) -> Layout | None:
    """The layout of what a view is of, None where something is computed."""
    node = layout.value.producer
    source = node.operand(0)
    if not node.is_operator or node.domain != "" or node.op_type not in _VIEWS or source is None:
        return None
    if source.shape is None or source.const is not None:
        return None
    axes = _ABOVE[node.op_type](node, layout, source, heads)
    return None if axes is None else Layout(source, axes)


_Heads: TypeAlias = Callable[[int], None]


def _same(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    return layout.axes


def _transposed(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    perm = perm_of(node)
    return None if perm is None else tuple(layout.axes[perm.index(axis)] for axis in range(len(perm)))


def _reshaped(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    return regroup(layout.parts, source.shape or (), heads)


def _unsqueezed(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    places = axes_of(node, len(layout.axes))
    if places is None or any(size_of(part) != 1 for place in places for part in layout.axes[place]):
        return None
    return tuple(axis for place, axis in enumerate(layout.axes) if place not in places)


def _squeezed(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    places = axes_of(node, source.rank)
    if places is None:
        return None
    rest = list(layout.axes)
    for place in sorted(places):
        rest.insert(place, ())
    return tuple(rest)


def _split(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    axis = axis_of(node, source.rank)
    if axis is None:
        return None
    sizes: list[int] = []
    for result in node.results:
        dim = None if result.shape is None else result.shape[axis]
        if not isinstance(dim, int):
            return None
        sizes.append(dim)
    return _taken_from(layout.axes, sum(sizes), axis, sum(sizes[: layout.value.index]))


def _taken_from(axes: tuple[Axis, ...], full: Dim, axis: int, start: int) -> tuple[Axis, ...] | None:
    """The axes of a value from one of which places were taken, given how long it is."""
    found = axes[axis]
    if not found:
        found = (Places((), np.zeros((), dtype=np.int64), 1),)
    part = found[0]
    if not isinstance(full, int) or len(found) != 1 or not isinstance(part, Places):
        return None
    if start + part.full > full or start < 0:
        return None
    return (*axes[:axis], (Places(part.labels, part.at + start, full),), *axes[axis + 1 :])


def _sliced(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    starts = node.param("starts")
    steps = node.param("steps")
    places = tuple(range(len(starts))) if isinstance(starts, tuple) else None
    if node.operand(3) is not None or "axes" in node.attributes:
        places = axes_of(node, source.rank)
    if not isinstance(starts, tuple) or places is None or (steps is not None and set(steps) != {1}):
        return None
    axes: tuple[Axis, ...] | None = layout.axes
    for place, start in zip(places, starts, strict=True):
        full, size = (source.shape or ())[place], (layout.value.shape or ())[place]
        if not isinstance(full, int) or not isinstance(size, int) or axes is None:
            return None
        first = max(start + full, 0) if start < 0 else min(start, full)
        axes = _taken_from(axes, full, place, first)
    return axes


def _gathered(node: Node, layout: Layout, source: Value, heads: _Heads) -> tuple[Axis, ...] | None:
    index, axis = node.operand(1), axis_of(node, source.rank)
    if index is None or index.const is None or axis is None or index.const.size != 1 or index.const.rank > 1:
        return None
    full = (source.shape or ())[axis]
    if not isinstance(full, int) or not full:
        return None
    place = int(index.const.numpy().reshape(-1)[0]) % full
    axes = layout.axes if index.const.rank else (*layout.axes[:axis], (), *layout.axes[axis:])
    if any(size_of(part) != 1 for part in axes[axis]):
        return None
    found = (Places((), np.array(place, dtype=np.int64), full),)
    return (*axes[:axis], found, *axes[axis + 1 :])


_ABOVE: dict[str, Callable[[Node, Layout, Value, _Heads], tuple[Axis, ...] | None]] = {
    "Identity": _same,
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Split": _split,
    "Slice": _sliced,
    "Gather": _gathered,
}


def below(layout: Layout, node: Node) -> Layout | None:
    """The layout of a view of a value; None if it takes something out, or computes."""
    result = node.results[0]
    if not node.is_operator or node.domain != "" or result.shape is None:
        return None
    if node.op_type == "Transpose":
        perm = perm_of(node)
        return None if perm is None else Layout(result, tuple(layout.axes[place] for place in perm))
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
        axes = regroup(layout.parts, result.shape, lambda count: None)
        return None if axes is None else Layout(result, axes)
    return None


def walk_up(layout: Layout, heads: Callable[[int], None]) -> list[Layout]:
    """A layout and all above it."""
    found = [layout]
    while len(found) < _FURTHEST:
        higher = above(found[-1], heads)
        if higher is None:
            break
        found.append(higher)
    return found
