"""How a Reshape carries a permutation of axes: in blocks that stay together.

The axes of operand and result fall into blocks that hold the same elements: one axis that stays, several that merge
into one, one that is split. A permutation is carried if it moves whole blocks; axes of size 1 hold nothing and get out
of the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import Node, symbol
from passes._permutation import Perm, permuted, with_axes, without_axes
from passes._proofs import Dim, same_dim


@dataclass(frozen=True, slots=True)
class Blocks:
    """Axes of two shapes with the same elements in the same order.

    Attributes:
        pairs: The axes of each block in the one and in the other shape, axes of size 1 left out and not counted.
        dropped: Axes of size 1 of the first shape.
        added: Axes of size 1 of the second.
    """

    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    dropped: tuple[int, ...]
    added: tuple[int, ...]


def carried(node: Node, perm: Perm, *, to_result: bool) -> tuple[Perm, Perm, tuple[int, ...]] | None:
    """How a Reshape whose operand (or result) is transposed by `perm` computes.

    Returns:
        The permutations of operand and result, and the shape to ask for; None if the permutation takes blocks apart or
        the shape cannot be written.
    """
    data, result = node.operand(0), node.results[0]
    if data is None or data.shape is None or result.shape is None:
        return None
    if splits_heads(node) and moves_nothing(data.shape if to_result else result.shape, perm):
        return None  # for one token the Transpose beside it could go, but runtimes know attention by it
    blocks = blocks_of(data.shape, result.shape)
    if blocks is None:
        return None
    here, there = (blocks.dropped, blocks.added) if to_result else (blocks.added, blocks.dropped)
    pairs = blocks.pairs if to_result else tuple((other, own) for own, other in blocks.pairs)
    moved = by_blocks(without_axes(perm, here), pairs)
    if moved is None:
        return None
    other = with_axes(moved, there)
    operand_perm, result_perm = (perm, other) if to_result else (other, perm)
    target = written(permuted(result.shape, result_perm), permuted(data.shape, operand_perm))
    return None if target is None else (operand_perm, result_perm, target)


def splits_heads(node: Node) -> bool:
    """True for a Reshape between [batch, tokens, width] and [batch, tokens, heads, width of one], either way."""
    if not node.is_op("Reshape") or node.operands[0] is None:
        return False
    before, after = node.operands[0].shape, node.results[0].shape
    if before is None or after is None or {len(before), len(after)} != {3, 4}:
        return False
    return same_dim(before[0], after[0]) and same_dim(before[1], after[1])


def moves_nothing(shape: Sequence[Dim], perm: Perm) -> bool:
    """True if only axes of size 1 change places."""
    kept = [axis for axis in perm if shape[axis] != 1]
    return kept == sorted(kept)


def blocks_of(before: Sequence[Dim], after: Sequence[Dim]) -> Blocks | None:
    """The smallest blocks of axes with equal products; None if it is not known that there are any."""
    if any(dim is None or (isinstance(dim, int) and dim == 0) for dim in (*before, *after)):
        return None
    left = [dim for dim in before if dim != 1]
    right = [dim for dim in after if dim != 1]
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = i, j
        one, other = left[i], right[j]
        i, j = i + 1, j + 1
        while not same_dim(one, other):
            grows_left = _is_part(one, other)
            if grows_left and i < len(left):
                one, i = symbol.product_of((one, left[i])), i + 1
            elif grows_left is False and j < len(right):
                other, j = symbol.product_of((other, right[j])), j + 1
            else:
                return None
        pairs.append((tuple(range(first, i)), tuple(range(second, j))))
    if i < len(left) or j < len(right):
        return None
    dropped = tuple(axis for axis, dim in enumerate(before) if dim == 1)
    added = tuple(axis for axis, dim in enumerate(after) if dim == 1)
    return Blocks(tuple(pairs), dropped, added)


def _is_part(one: Dim, other: Dim) -> bool | None:
    """True if `one` is the lesser of two different products, False if `other` is; None if that is not known."""
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    if one is None or other is None:
        return None
    if symbol.divide_exactly(other, one) is not None:
        return True
    return False if symbol.divide_exactly(one, other) is not None else None


def by_blocks(perm: Perm, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Perm | None:
    """The permutation of the other side's axes, if this one moves whole blocks."""
    block_of = {axis: block for block in pairs for axis in block[0]}
    moved: list[int] = []
    place = 0
    while place < len(perm):
        own, other = block_of[perm[place]]
        if perm[place : place + len(own)] != own:
            return None
        moved.extend(other)
        place += len(own)
    return tuple(moved)


def written(wanted: Sequence[Dim], operand: Sequence[Dim]) -> tuple[int, ...] | None:
    """A target that makes a Reshape give the dims wanted; None if none is sure to.

    A free dim is copied by 0 where it stands at the same place in the operand. One other may be -1, if no dim beside it
    can be 0: the runtime refuses -1 beside a dim of size 0.
    """
    target: list[int] = []
    for axis, dim in enumerate(wanted):
        if isinstance(dim, int):
            target.append(dim)
        elif axis < len(operand) and same_dim(dim, operand[axis]):
            target.append(0)
        else:
            target.append(-1)
    free = [dim for dim, size in zip(wanted, target, strict=True) if size == 0]
    if target.count(-1) > 1 or (-1 in target and any(dim is None or not symbol.is_positive(dim) for dim in free)):
        return _with_one_free(wanted)
    return tuple(target)


def _with_one_free(wanted: Sequence[Dim]) -> tuple[int, ...] | None:
    """The dims with -1 for the only one that is not a number."""
    free = [dim for dim in wanted if not isinstance(dim, int)]
    return tuple(dim if isinstance(dim, int) else -1 for dim in wanted) if len(free) == 1 else None
