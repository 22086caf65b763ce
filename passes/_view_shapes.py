"""Views: operators that give a tensor another shape and keep its elements in order; which one gives which shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphopt import Builder, Node, Value, symbol
from passes._permutation import perm_of
from passes._proofs import Dim, axes_of, contents, is_given, same_dim, same_shape
from passes._reshape_carrier import moves_nothing, splits_heads

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that are views whatever their operands."""
LIKE_VIEWS = (*VIEWS, "Transpose", "Expand")
"""Operators that are views, or may be."""

Shape: TypeAlias = Sequence[Dim]


@dataclass(frozen=True, slots=True)
class View:
    """One operator that gives the shape wanted, or none.

    Attributes:
        op_type: `Reshape`, `Squeeze` or `Unsqueeze`; "" where the shape is the one there is.
        numbers: The axes, or the shape to ask for.
        target: Instead of numbers, the value a Reshape reads its shape from.
        allows_zero: True if a 0 in that value does not copy a dim.
    """

    op_type: str = ""
    numbers: tuple[int, ...] = ()
    target: Value | None = None
    allows_zero: bool = False

    def build(self, b: Builder, source: Value) -> Value:
        """The view of `source`, which is the value itself where nothing changes."""
        if not self.op_type:
            return source
        if self.op_type == "Reshape":
            shape = np.array(self.numbers, dtype=np.int64) if self.target is None else self.target
            reshaped: Value = b.Reshape(source, shape, allowzero=1 if self.allows_zero else None)
            return reshaped
        result: Value = b.apply(self.op_type, (source,), parameters={"axes": list(self.numbers)})
        return result


def is_view(node: Node) -> bool:
    """True if a node gives its first operand another shape and nothing else."""
    if not node.operands or node.operands[0] is None or not node.is_op(node.op_type):
        return False
    if node.op_type in VIEWS:
        return True
    if node.op_type == "Transpose":
        return _moves_unit_axes(node)
    return node.op_type == "Expand" and _expands_by_ones(node)


def _moves_unit_axes(node: Node) -> bool:
    """True if a Transpose lets every axis that is not of size 1 keep its order."""
    value, perm = node.operands[0], perm_of(node)
    if value is None or value.shape is None or perm is None or not moves_nothing(value.shape, perm):
        return False
    # Attention is recognized by its Transposes, for one token and for one head too.
    neighbours = [value.producer, *node.results[0].users]
    return not any(splits_heads(neighbour) or neighbour.op_type == "MatMul" for neighbour in neighbours)


def _expands_by_ones(node: Node) -> bool:
    value, target = node.operands[0], contents(node, "shape")
    if value is None or value.rank is None or target is None:
        return False
    return len(target) > value.rank and all(size == 1 for size in target)


def view_of(source: Value, nodes: Sequence[Node]) -> View | None:
    """The one operator, or none, that does what a chain of views does.

    It takes every size the chain takes, sizes of 0 included.

    Args:
        source: What the chain begins with.
        nodes: The views, from first to last.

    Returns:
        None if no single operator is sure to.
    """
    last, result = nodes[-1], nodes[-1].results[0]
    if same_shape(source, result):
        return View()
    own = _of_one_kind(nodes)
    if own is not None:
        return own
    if source.shape is None:
        return None
    target = None if result.shape is None else target_of(source.shape, result.shape, free_place(last))
    if target is not None:
        return View("Reshape", target)
    ones = None if result.shape is None else _by_ones(source.shape, result.shape)
    return ones or _same_target(source, last)


def target_of(source: Shape, result: Shape, free: int | None = None) -> tuple[int, ...] | None:
    """Numbers that make a Reshape give that shape: sizes, 0 for a dim that stays in place, at most one -1.

    Args:
        source: The dims there are.
        result: The dims wanted; they hold as many elements.
        free: Where the Reshape that is there has a -1: with a -1 there, no other size is refused.

    Returns:
        None if there are none that are sure to, and to take every size.
    """
    target: list[int] = []
    for axis, dim in enumerate(result):
        if isinstance(dim, int) and dim != 0:
            target.append(dim)
        else:
            target.append(0 if axis < len(source) and same_dim(source[axis], dim) else -1)
    if target.count(-1) > 1:
        return None
    if -1 not in target or target.index(-1) == free:
        return tuple(target)
    if _never_zero(result, target):
        return tuple(target)
    whole = tuple(dim if isinstance(dim, int) and dim else -1 for dim in result)
    return whole if whole.count(-1) == 1 else None


def _never_zero(result: Shape, target: Sequence[int]) -> bool:
    """True if no dim that a Reshape copies can be 0: beside one, -1 is refused."""
    return all(
        dim is not None and symbol.is_positive(dim) for dim, size in zip(result, target, strict=True) if size == 0
    )


def free_place(node: Node) -> int | None:
    """Where the shape a Reshape reads has its -1, if that is refused beside a 0."""
    sizes = contents(node, "shape") if node.op_type == "Reshape" and not node.param("allowzero") else None
    return sizes.index(-1) if sizes is not None and -1 in sizes else None


def _of_one_kind(nodes: Sequence[Node]) -> View | None:
    """A chain of Unsqueezes is one, and so is a chain of Squeezes: dims need not be known."""
    kinds = {node.op_type for node in nodes}
    if len(kinds) != 1 or not kinds <= {"Squeeze", "Unsqueeze"}:
        return None
    merged: tuple[int, ...] = ()
    for node in nodes:
        axes = axes_given(node)
        if axes is None:
            return None
        merged = _added(merged, axes) if node.op_type == "Unsqueeze" else _dropped(merged, axes)
    return View(nodes[0].op_type, merged)


def axes_given(node: Node) -> tuple[int, ...] | None:
    """The axes of a Squeeze or Unsqueeze, counted from the front and in order; None if they are not known."""
    value = node.operands[0] if node.op_type == "Squeeze" else node.results[0]
    axes = contents(node, "axes") if is_given(node, "axes") else None
    if axes is None or value is None:
        return None
    if any(not isinstance(axis, int) or axis < 0 for axis in axes):
        axes = axes_of(node, value.rank)
    return None if axes is None else tuple(sorted(axis for axis in axes if isinstance(axis, int)))


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of two Unsqueezes in a row, in the last result."""
    if not first:
        return second
    places = [axis for axis in range(len(first) + len(second) + first[-1] + 1) if axis not in second]
    return tuple(sorted((*second, *(places[axis] for axis in first))))


def _dropped(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of two Squeezes in a row, in the first operand."""
    if not first:
        return second
    places = [axis for axis in range(len(first) + len(second) + second[-1] + 1) if axis not in first]
    return tuple(sorted((*first, *(places[axis] for axis in second))))


def _by_ones(source: Shape, result: Shape) -> View | None:
    """A Squeeze or Unsqueeze, where dims of 1 are all that goes or comes."""
    if len(source) > len(result):
        axes = _extra_ones(source, result)
        return None if axes is None else View("Squeeze", axes)
    axes = _extra_ones(result, source)
    return View("Unsqueeze", axes) if axes else None


def _extra_ones(longer: Shape, shorter: Shape) -> tuple[int, ...] | None:
    """The places of dims of 1 that the longer shape has and the shorter has not; None if that is not all."""
    axes, place = [], 0
    for axis, dim in enumerate(longer):
        if place < len(shorter) and same_dim(dim, shorter[place]):
            place += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if place == len(shorter) else None


def _same_target(source: Value, last: Node) -> View | None:
    """A Reshape to the shape the last one reads, if no 0 in it copies another dim than before."""
    target = last.operand(1) if last.op_type == "Reshape" else None
    sizes, before = contents(last, "shape"), last.operands[0]
    if target is None or sizes is None or before is None or before.shape is None or source.shape is None:
        return None
    if last.param("allowzero"):
        # What -1 stands for depends on the dims that are not 0, and so on the shape before.
        return None if -1 in sizes or None in sizes else View("Reshape", target=target, allows_zero=True)
    for axis, size in enumerate(sizes):
        if size is not None and symbol.is_nonzero(size):
            continue
        if axis < len(before.shape) and not (
            axis < len(source.shape) and same_dim(source.shape[axis], before.shape[axis])
        ):
            return None
    return View("Reshape", target=target)
