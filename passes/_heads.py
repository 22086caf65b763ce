"""Parts of a value that are viewed as heads: reshaped alike, then transposed, each on its own or all at once.

Parts `[..., heads * size]` that lie side by side become `[..., heads, size]` by one Reshape of the whole, and stand in
any order of axes by one Transpose; a Split along the heads gives them back. A part that is transposed otherwise than
most is transposed once more: for the keys of an attention that swaps the last two axes, which runtimes do in a product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, Graph, Node, Value
from passes._permutation import perm_of
from passes._proofs import same_dim

Perm = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """How parts go on alike.

    Attributes:
        reshapes: The Reshape of each part.
        counts: How many heads each part has.
        transposes: The Transpose of each, empty if not every part has one.
        perms: Their permutations.
        perm: The permutation that the whole is transposed by.
    """

    reshapes: tuple[Node, ...]
    counts: tuple[int, ...]
    transposes: tuple[Node, ...] = ()
    perms: tuple[Perm, ...] = ()
    perm: Perm = ()

    @property
    def saved(self) -> int:
        """How many nodes fewer there are when the whole is viewed, the Split not counted."""
        apart = len(self.reshapes) + len(self.transposes)
        return apart - 1 - bool(self.transposes) - sum(perm != self.perm for perm in self.perms) - self._target_costs

    @property
    def _target_costs(self) -> int:
        """A target that is computed is computed for the whole; for the parts it may stay."""
        return 0 if self.reshapes[0].operand(1) is None or self.reshapes[0].operands[1].const is not None else 1  # type: ignore[union-attr]

    def build(self, b: Builder, whole: Value) -> list[Value]:
        """The viewed parts of a whole; they stand for the results of `last`."""
        x: Value = _reshaped(b, whole, self.reshapes, self.counts)
        axis = len(self.perm or self.reshapes[0].results[0].shape or ()) - 2
        if self.transposes:
            x = b.Transpose(x, perm=self.perm)
            axis = self.perm.index(axis)
        parts = split(b, x, self.counts, axis)
        return [
            part if perm == self.perm else b.Transpose(part, perm=[self.perm.index(place) for place in perm])
            for part, perm in zip(parts, self.perms or [()] * len(parts), strict=True)
        ]

    @property
    def last(self) -> tuple[Node, ...]:
        """The last view of each part."""
        return self.transposes or self.reshapes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All views, those that read others first."""
        return (*self.transposes, *self.reshapes)


def split(b: Builder, whole: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """The parts of a whole."""
    parts: tuple[Value, ...] = b.Split(whole, axis=axis, split=list(sizes), outputs=len(sizes))
    return list(parts)


def heads_of(parts: Sequence[Value], widths: Sequence[int], graph: Graph, context: Context) -> Heads | None:
    """How parts side by side, of one shape but for the last dim, go on alike; None if they do not."""
    reshapes = _only_readers(parts, "Reshape", graph, context)
    rank = parts[0].rank
    if reshapes is None or rank is None or len(parts) < 2:
        return None
    counts = _counts(reshapes, widths, rank)
    if counts is None:
        return None
    transposes = _only_readers([node.results[0] for node in reshapes], "Transpose", graph, context)
    perms = None if transposes is None else [perm_of(node) for node in transposes]
    if transposes is None or perms is None:
        return Heads(reshapes, counts)
    known = tuple(perm for perm in perms if perm is not None)
    if len(known) < len(perms):
        return Heads(reshapes, counts)
    found = Counter(known)
    # Where two are as common, the one that leaves the elements of a head together.
    best = max(found, key=lambda perm: (found[perm], perm[-1] == len(perm) - 1))
    both = Heads(reshapes, counts, transposes, known, best)
    apart = Heads(reshapes, counts)
    return both if both.saved > apart.saved else apart


def _only_readers(values: Sequence[Value], op_type: str, graph: Graph, context: Context) -> tuple[Node, ...] | None:
    """The only reader of each value, if it is such an operator of this graph, on its first operand."""
    readers = []
    for value in values:
        use = value.sole_use()
        if use is None or use[1] != 0 or not use[0].is_op(op_type) or use[0].graph is not graph:
            return None
        if use[0].is_pinned or context.keeps(use[0]):
            return None
        readers.append(use[0])
    return tuple(readers)


def _counts(reshapes: tuple[Node, ...], widths: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """The heads of each part, if all are `[..., heads, size]` with the same other dims."""
    first = reshapes[0]
    shapes = [node.results[0].shape for node in reshapes]
    counts: list[int] = []
    for node, shape, width in zip(reshapes, shapes, widths, strict=True):
        if shape is None or shapes[0] is None or len(shape) != len(shapes[0]) or len(shape) < 3:
            return None
        count, size = shape[-2:]
        if not isinstance(count, int) or not isinstance(size, int) or count * size != width or not width:
            return None
        if size != shapes[0][-1] or node.param("allowzero") != first.param("allowzero"):
            return None
        counts.append(count)
    if any(_lead(node, count, rank) is None for node, count in zip(reshapes, counts, strict=True)):
        return None
    leads = [_lead(node, count, rank) for node, count in zip(reshapes, counts, strict=True)]
    return tuple(counts) if all(lead == leads[0] for lead in leads) else None


def _lead(node: Node, count: int, rank: int) -> tuple[object, ...] | None:
    """What a Reshape asks for before heads and size, in a form that is equal only if it is the same."""
    target, shape = node.operand(1), node.results[0].shape
    if target is None or shape is None:
        return None
    if target.const is not None:
        numbers = tuple(int(number) for number in target.const.numpy().reshape(-1))
        if len(numbers) != len(shape) or numbers[-1] not in (-1, shape[-1]) or numbers[-2] not in (-1, count):
            return None
        # A dim copied must be one that parts and whole have in common.
        copies = not node.param("allowzero")
        if copies and any(number == 0 and place >= rank - 1 for place, number in enumerate(numbers[:-2])):
            return None
        return (*numbers[:-2], numbers[-2] == -1, numbers[-1])
    maker = target.producer
    tail = maker.operands[-1] if maker.is_op("Concat") and target.rank == 1 else None
    if tail is None or tail.const is None or tail.const.size < 2 or len(shape) > rank + 1:
        return None
    numbers = tuple(int(number) for number in tail.const.numpy().reshape(-1))
    if numbers[-1] != shape[-1] or numbers[-2] != count:
        return None
    return (*maker.operands[:-1], *numbers[:-2])


def _reshaped(b: Builder, whole: Value, reshapes: tuple[Node, ...], counts: tuple[int, ...]) -> Value:
    first = reshapes[0]
    target = first.operands[1]
    assert target is not None
    constant = target.const if target.const is not None else target.producer.operands[-1].const  # type: ignore[union-attr]
    assert constant is not None
    numbers = np.array(constant.numpy()).reshape(-1)
    if numbers[-2] != -1:
        numbers[-2] = sum(counts)
    asked: Value = b.constant(numbers)
    if target.const is None:
        asked = b.like(target.producer, *target.producer.operands[:-1], asked)
    reshaped: Value = b.like(first, whole, asked)
    return reshaped


def has_same_types(old: Value, new: Value) -> bool:
    """True if two values have the same element type and rank, and no dim of one is known otherwise in the other."""
    if old.dtype is not new.dtype or old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
        return False
    return all(
        same_dim(left, right) or left is None or right is None for left, right in zip(old.shape, new.shape, strict=True)
    )
