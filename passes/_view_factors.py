"""Two shapes of the same elements over the factors that the axes of both are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import symbol
from passes._permutation import Perm
from passes._proofs import Dim, same_dim


@dataclass(frozen=True, slots=True)
class Factors:
    """The finest axes that both shapes split into.

    Attributes:
        dims: Their sizes, from the outermost on.
        left: Of each axis of the one shape, the fine axes it consists of.
        right: The same for the other shape.
    """

    dims: tuple[Dim, ...]
    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]


def factors_of(left: Sequence[Dim], right: Sequence[Dim]) -> Factors | None:
    """The common factors of two shapes; None if there are none, or not surely."""
    if any(dim is None or (isinstance(dim, int) and dim == 0) for dim in (*left, *right)):
        return None
    dims: list[Dim] = []
    parts: tuple[list[list[int]], list[list[int]]] = ([[] for _ in left], [[] for _ in right])
    rest: list[Dim] = [1, 1]
    places = [-1, -1]
    shapes = (left, right)
    while True:
        for side in (0, 1):
            while rest[side] == 1 and places[side] + 1 < len(shapes[side]):
                places[side] += 1
                rest[side] = shapes[side][places[side]]
        if rest == [1, 1]:
            return Factors(tuple(dims), *(tuple(map(tuple, part)) for part in parts))
        factor = _common(rest[0], rest[1])
        if factor is None:
            return None
        for side in (0, 1):
            parts[side][places[side]].append(len(dims))
            whole = rest[side]
            quotient = None if whole is None else symbol.divide_exactly(whole, factor)
            if quotient is None:
                return None
            rest[side] = quotient
        dims.append(factor)


def _common(left: Dim, right: Dim) -> Dim:
    """The outermost factor of both, which is the whole of one."""
    if left is None or right is None or left == 1 or right == 1:
        return None
    if same_dim(left, right) or symbol.divide_exactly(right, left) is not None:
        return left
    return right if symbol.divide_exactly(left, right) is not None else None


def composed(first: Perm, factors: Factors, second: Perm) -> tuple[tuple[Dim, ...], Perm]:
    """Two Transposes with a Reshape in between, as one.

    Args:
        first: The first permutation.
        factors: Those of its result's shape and of the shape the Reshape gives.
        second: The second permutation.

    Returns:
        The shape that the first operand must have, and the permutation of its axes.
    """
    # Fine axes in the order of the first operand, whose axis first[i] is axis i of the first result.
    start = [fine for axis in range(len(first)) for fine in factors.left[first.index(axis)]]
    end = [fine for axis in second for fine in factors.right[axis]]
    return tuple(factors.dims[fine] for fine in start), tuple(start.index(fine) for fine in end)
