"""Permutations of axes, as `Transpose` writes them: axis `i` of the result is axis `perm[i]` of the operand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from graphopt import Node
from passes._proofs import Dim

Perm: TypeAlias = tuple[int, ...]


def identity(rank: int) -> Perm:
    """The permutation that keeps every axis."""
    return tuple(range(rank))


def is_identity(perm: Perm) -> bool:
    """True if every axis stays."""
    return perm == identity(len(perm))


def compose(first: Perm, second: Perm) -> Perm:
    """The permutation of a Transpose by `first` and then by `second`."""
    return tuple(first[axis] for axis in second)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def without_axes(perm: Perm, axes: Iterable[int]) -> Perm:
    """What is left of a permutation when those axes of the operand, and of the result, go away."""
    gone = frozenset(axes)
    kept = [axis for axis in range(len(perm)) if axis not in gone]
    return tuple(kept.index(axis) for axis in perm if axis not in gone)


def with_axes(perm: Perm, axes: Iterable[int]) -> Perm:
    """The permutation with more axes, which stand at these places in the operand and in the result alike."""
    added = sorted(axes)
    kept = [axis for axis in range(len(perm) + len(added)) if axis not in added]
    whole = [kept[axis] for axis in perm]
    for axis in added:
        whole.insert(axis, axis)
    return tuple(whole)


def permuted(items: Sequence[Dim], perm: Perm) -> tuple[Dim, ...]:
    """The items in the order of the result's axes."""
    return tuple(items[axis] for axis in perm)


def perm_of(node: Node) -> Perm | None:
    """The permutation of a Transpose; None if it is another operator, or says nothing and its rank is unknown."""
    if not node.is_op("Transpose") or not node.operands or node.operands[0] is None:
        return None
    perm, rank = node.param("perm"), node.operands[0].rank
    if not perm:
        return None if rank is None else tuple(reversed(range(rank)))
    if not isinstance(perm, tuple) or sorted(perm) != list(range(len(perm))) or rank not in (None, len(perm)):
        return None
    return perm
