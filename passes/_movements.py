"""Where each element of a tensor comes from, through a region of operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Expr, Graph, Node, Value, symbol
from passes._concats import axis_of_concat
from passes._permutation import perm_of
from passes._proofs import Dim, axis_of
from passes._selections import cuts_of, slice_of
from passes._view_shapes import VIEWS, is_view, target_of

_MOVES = (*VIEWS, "Concat", "Gather", "Slice", "Split", "Transpose")
_MAX_NODES = 24
_MAX_ELEMENTS = 1 << 20
"""Larger tensors are not followed element by element."""
_MAX_INDICES = 1 << 14
_MIN_BLOCK = 16
"""Elements that stay neighbours; fewer are moved faster by other operators."""


@dataclass(frozen=True, slots=True)
class Region:
    """Operators that only move elements, between one value and another.

    Attributes:
        source: What they read.
        nodes: The operators, in topological order; the last gives the result.
    """

    source: Value
    nodes: tuple[Node, ...]

    @property
    def result(self) -> Value:
        """What the region gives."""
        return self.nodes[-1].results[0]

    def dying(self) -> int:
        """How many of the operators nobody needs once the result is had in another way."""
        gone: dict[Node, None] = {}
        for node in reversed(self.nodes):
            is_last = node is self.nodes[-1]
            if not node.is_pinned and (is_last or all(user in gone for value in node.results for user in value.users)):
                gone[node] = None
        return len(gone)


def may_move(node: Node) -> bool:
    """True if a node moves elements and does nothing else, as far as its kind tells."""
    return node.op_type in _MOVES and node.is_op(node.op_type) and (node.op_type not in VIEWS or is_view(node))


def regions(graph: Graph, last: Node, order: Mapping[Node, int]) -> list[Region]:
    """The regions that end with a node and begin with one value, the smallest first; of three operators or more."""
    found: list[Region] = []
    nodes: dict[Node, None] = {last: None}
    frontier = dict.fromkeys(_data_of(last))
    while len(nodes) < _MAX_NODES:
        if len(frontier) == 1 and len(nodes) > 2:
            found.append(Region(next(iter(frontier)), tuple(sorted(nodes, key=order.__getitem__))))
        makers = [value.producer for value in frontier]
        if any(maker.graph is not graph or not may_move(maker) or maker not in order for maker in makers):
            makers = [maker for maker in makers if maker.graph is graph and may_move(maker) and maker in order]
            if len(frontier) == 1 or not makers:
                break
        latest = max(makers, key=order.__getitem__)
        if any(order.get(value.producer, -1) > order[latest] for value in frontier):
            break  # a value that cannot be followed lies behind another that can
        nodes[latest] = None
        frontier = {value: None for value in frontier if value.producer is not latest}
        frontier.update(dict.fromkeys(_data_of(latest)))
    return found


def _data_of(node: Node) -> list[Value]:
    """The operands whose elements are moved."""
    operands = node.operands if node.op_type == "Concat" else node.operands[:1]
    return [value for value in operands if value is not None]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the elements of a region's result come from.

    Attributes:
        lead: The dim that both shapes begin with, or a divisor of it: what stays outermost; 1 if all is known.
        count: How many elements of the source belong to one step of it.
        flat: Of each element of the result, which of them it is.
    """

    lead: Dim
    count: int
    flat: np.ndarray


def places_of(region: Region) -> Places | None:
    """Follow every element through a region; None if that is not possible before the model runs."""
    values = [region.source, *(value for node in region.nodes for value in node.results)]
    lead = _lead(values)
    if lead is None:
        return None
    start = _static(region.source, lead)
    if start is None or not 0 < math.prod(start) <= _MAX_ELEMENTS:
        return None
    arrays: dict[Value, np.ndarray] = {region.source: np.arange(math.prod(start)).reshape(start)}
    for node in region.nodes:
        if not _follow(node, arrays, lead):
            return None
    flat = arrays[region.result].reshape(-1)
    return Places(lead, math.prod(start), flat) if 0 < flat.size <= _MAX_ELEMENTS else None


def _lead(values: Sequence[Value]) -> Dim:
    """The dim that stays outermost: 1, or what divides the first dim of all of them."""
    if any(not value.shape for value in values):
        return None
    firsts = [value.shape[0] for value in values if value.shape]
    if all(isinstance(dim, int) for dim in firsts):
        return 1
    for lead in firsts:
        if isinstance(lead, Expr) and all(_times(dim, lead) is not None for dim in firsts):
            return lead
    return None


def _times(dim: Dim, lead: Dim) -> int | None:
    if dim is None or lead is None:
        return None
    if isinstance(lead, int):
        return dim if isinstance(dim, int) else None
    found = symbol.divide_exactly(dim, lead)
    return found if isinstance(found, int) else None


def _static(value: Value, lead: Dim) -> tuple[int, ...] | None:
    """The shape of what belongs to one step of the outermost dim."""
    if not value.shape:
        return None
    first, rest = _times(value.shape[0], lead), [dim for dim in value.shape[1:] if isinstance(dim, int)]
    return None if first is None or len(rest) + 1 < len(value.shape) else (first, *rest)


def _follow(node: Node, arrays: dict[Value, np.ndarray], lead: Dim) -> bool:
    """Do with places what a node does with elements."""
    moved = [_moved(node, value, arrays, lead) for value in node.results]
    for value, array in zip(node.results, moved, strict=True):
        if array is None or array.shape != _static(value, lead):
            return False
        arrays[value] = array
    return True


def _moved(node: Node, result: Value, arrays: Mapping[Value, np.ndarray], lead: Dim) -> np.ndarray | None:
    data = [arrays[value] for value in _data_of(node)]
    if not data:
        return None
    is_free = isinstance(lead, int)
    if node.op_type in VIEWS:
        shape = _static(result, lead)
        return data[0].reshape(shape) if shape is not None and math.prod(shape) == data[0].size else None
    if node.op_type == "Transpose":
        perm = perm_of(node)
        return np.transpose(data[0], perm) if perm is not None and (is_free or perm[0] == 0) else None
    if node.op_type == "Slice":
        cuts = cuts_of(node)
        if cuts is None or (0 in cuts and not is_free):
            return None
        keys = [slice_of(cuts[axis], size) if axis in cuts else slice(None) for axis, size in enumerate(data[0].shape)]
        return data[0][tuple(keys)]
    axis = axis_of_concat(node) if node.op_type == "Concat" else axis_of(node, data[0].ndim)
    if axis is None or (axis == 0 and not is_free):
        return None
    if node.op_type == "Concat":
        return np.concatenate(data, axis=axis)
    return _gathered(node, data[0], axis) if node.op_type == "Gather" else _split(node, result, data[0], axis)


def _gathered(node: Node, data: np.ndarray, axis: int) -> np.ndarray | None:
    indices = node.operand(1)
    if indices is None or indices.const is None or indices.const.size > _MAX_INDICES:
        return None
    found, size = indices.const.numpy(), data.shape[axis]
    return None if ((found < -size) | (found >= size)).any() else np.take(data, found.astype(np.int64), axis=axis)


def _split(node: Node, result: Value, data: np.ndarray, axis: int) -> np.ndarray | None:
    sizes = [None if value.shape is None else value.shape[axis] for value in node.results[: result.index + 1]]
    known = [size for size in sizes if isinstance(size, int)]
    return None if len(known) < len(sizes) else data.take(range(sum(known[:-1]), sum(known)), axis=axis)


# --- one Gather for all of it


@dataclass(frozen=True, slots=True)
class Choice:
    """A Gather between two views that does what a region does.

    Attributes:
        before: What to reshape the source to, None where it stays.
        axis: Along which axis to gather.
        indices: Which places.
        after: What to reshape that to, None where it stays.
    """

    before: tuple[int, ...] | None
    axis: int
    indices: np.ndarray | None
    after: tuple[int, ...] | None

    @property
    def cost(self) -> int:
        """How many operators it is."""
        return (self.before is not None) + (self.indices is not None) + (self.after is not None)

    def build(self, b: Builder, value: Value) -> Value:
        """Make the operators."""
        for step, shape in enumerate((self.before, self.after)):
            if step and self.indices is not None:
                value = b.Gather(value, self.indices, axis=self.axis)
            if shape is not None:
                value = b.Reshape(value, np.array(shape, dtype=np.int64))
        return value


def choice_of(region: Region, places: Places) -> Choice | None:
    """The shortest Gather for a region; None if its blocks are too short or its indices too many."""
    source, result = region.source.shape or (), region.result.shape or ()
    block = _block(places)
    if len(places.flat) == places.count == block:
        after = target_of(source, result)
        return None if after is None else Choice(None, 0, None, after)
    lead: tuple[Dim, ...] = () if isinstance(places.lead, int) else (places.lead,)
    axis = len(lead)
    # As the source is, so that nothing comes before; as the result is, so that nothing follows; or neither.
    tails = [shape[axis + 1 :] for shape in (source, result) if len(shape) > axis and (not lead or shape[0] is lead[0])]
    found = [_choice(region, places, lead, tail) for tail in (*tails, (block,)) if _fits(tail, block)]
    return min((choice for choice in found if choice is not None), key=lambda choice: choice.cost, default=None)


def _fits(tail: Sequence[Dim], block: int) -> bool:
    size = math.prod(dim for dim in tail if isinstance(dim, int))
    return size >= _MIN_BLOCK and block % size == 0


def _choice(region: Region, places: Places, lead: Sequence[Dim], tail: Sequence[Dim]) -> Choice | None:
    """A Gather of blocks of that shape."""
    source, result = region.source.shape or (), region.result.shape or ()
    block = math.prod(dim for dim in tail if isinstance(dim, int))
    indices = (places.flat[::block] // block).astype(np.int64)
    seen = (*lead, places.count // block, *tail)
    gathered = (*lead, len(indices), *tail)
    before, after = target_of(source, seen), target_of(gathered, result)
    if before is None or after is None or len(indices) > _MAX_INDICES:
        return None
    return Choice(
        None if _are_same(seen, source) else before,
        len(lead),
        indices,
        None if _are_same(gathered, result) else after,
    )


def _are_same(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    return len(left) == len(right) and all(map(_is_same, left, right))


def _is_same(left: Dim, right: Dim) -> bool:
    return left is right or (isinstance(left, int) and left == right)


def _block(places: Places) -> int:
    """How many neighbours at least stay neighbours, wherever they begin."""
    flat = places.flat
    starts = np.flatnonzero(np.diff(flat) != 1) + 1
    return int(np.gcd.reduce(np.concatenate([starts, flat[starts], flat[:1], [flat.size, places.count]])))
