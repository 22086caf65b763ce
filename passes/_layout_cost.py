"""What moving data costs: the bytes and the number of the Transposes that a graph needs.

A value and every Transpose of it are one *root* and the orders in which it is read. What is counted is how many orders
are read that the root's producer does not give by itself, each once however many nodes read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from graphopt import Graph, Node, Symbol, Value, symbol
from passes._permutation import Perm, compose, identity, perm_of
from passes._proofs import Dim

ASSUMED_SIZE = 16
"""The size a free dim is taken to have; only the ratios of tensors with the same free dims matter."""
NODE_COST = 4096
"""What one more node costs, in bytes moved."""
SMALL = 1 << 16
"""Bytes of a constant that may be stored in another order beside its own."""
LAST_AXIS = ("Hardmax", "LogSoftmax", "Softmax")
"""Kernels that want their axis last, and transpose by themselves where it is not."""
_OWN_ORDER_IS_ENOUGH = frozenset(("Shape", "Size"))
"""They read no elements: any order does."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A node that reads a root, or a Transpose of it.

    Attributes:
        node: The node; it may stand in a body.
        index: The position of the operand.
        perm: In which order of the root's axes it reads.
    """

    node: Node
    index: int
    perm: Perm


class Transposes:
    """The Transposes of one graph: roots, readers, prices."""

    def __init__(self, graph: Graph, is_kept: Callable[[Node], bool]) -> None:
        self.graph = graph
        self._is_kept = is_kept

    def perm_of(self, node: Node) -> Perm | None:
        """The permutation of a Transpose of this graph that may go away; None for any other node."""
        if node.op_type != "Transpose" or node.graph is not self.graph or node.is_pinned or self._is_kept(node):
            return None
        return perm_of(node)

    def root_of(self, value: Value) -> tuple[Value, Perm | None]:
        """What a value is a Transpose of, and by which permutation; None if it is none."""
        perm: Perm | None = None
        while (step := self.perm_of(value.producer)) is not None:
            operand = value.producer.operands[0]
            assert operand is not None
            value, perm = operand, step if perm is None else compose(step, perm)
        return value, perm

    def readers(self, root: Value, rank: int) -> Iterator[Reader]:
        """Everything that reads elements of a root, directly or through Transposes."""
        pending = [(root, identity(rank))]
        while pending:
            value, perm = pending.pop()
            for user, index in value.uses:
                step = self.perm_of(user)
                if step is not None and index == 0:
                    pending.append((user.results[0], compose(perm, step)))
                elif user.op_type not in _OWN_ORDER_IS_ENOUGH or user.domain or not user.is_operator:
                    yield Reader(user, index, perm)

    def price(self, root: Value, given: Perm, wanted: Perm) -> int:
        """What it costs to read a root in another order than the one there is."""
        return 0 if given == wanted or is_free(root) else NODE_COST + self.moved(root, given, wanted)

    def moved(self, root: Value, given: Perm, wanted: Perm) -> int:
        """The bytes that the Transpose from one order of a root to another moves."""
        if given == wanted or is_free(root) or is_same_sequence(root, given, wanted):
            return 0
        return size_of(root, len(wanted))

    def of_orders(self, root: Value, own: Perm, wanted: Sequence[Perm]) -> tuple[int, int]:
        """The bytes moved, and the price, to read a root in all of these orders.

        Args:
            root: The value.
            own: The order it comes in.
            wanted: The orders it is read in. One that differs from another only by axes of size 1 is a view of that.
        """
        moved = price = 0
        there = [own]
        for perm in wanted:
            near = next((order for order in there if is_same_sequence(root, order, perm)), own)
            moved += self.moved(root, near, perm)
            price += self.price(root, near, perm)
            there.append(perm)
        return moved, price

    def total(self) -> tuple[int, int]:
        """The bytes that are moved in all of the graph to change the order of axes, and the price of that."""
        softmaxes = [node for op_type in LAST_AXIS for node in self.graph.of_kind(op_type) if node.has_latest_meaning]
        moved = price = sum(hidden_bytes(node, node.param("axis")) for node in softmaxes)
        for node in self.graph.of_kind("Transpose"):
            perm = self.perm_of(node)
            if perm is None or node.operands[0] is None:
                continue
            readers = self.readers(node.results[0], len(perm))
            if any(perm not in absorbed_by(reader.node, reader.index, len(perm)) for reader in readers):
                moved += self.moved(node.operands[0], identity(len(perm)), perm)
                price += self.price(node.operands[0], identity(len(perm)), perm)
        return moved, price


def hidden_bytes(node: Node, axis: int) -> int:
    """The bytes that a kernel moves to have its axis last and its result back in order."""
    result = node.results[0]
    return 0 if result.rank is None or axis in (-1, result.rank - 1) else 2 * size_of(result, result.rank)


def absorbed_by(node: Node, index: int, rank: int) -> tuple[Perm, ...]:
    """The permutations of an operand that a matrix product applies by itself, at no cost; empty for other operators.

    A Gemm says so by an attribute. A runtime folds into a MatMul the Transpose that swaps the last two axes; of two
    operands of the same rank also the one that takes the first axis behind the other batch axes, and both together.
    """
    if node.domain or node.op_type not in ("Gemm", "MatMul") or index > 1 or not node.is_operator or rank < 2:
        return ()
    value = node.operands[index]
    if value is None or value.dtype is None or not value.dtype.is_float:
        return ()
    swap = (*range(rank - 2), rank - 1, rank - 2)
    other = node.operands[1 - index]
    if rank == 2 or other is None or other.rank != rank:
        return (swap,)
    batch = (*range(1, rank - 1), 0, rank - 1)
    return (swap, batch, compose(batch, swap))


def is_same_sequence(root: Value, given: Perm, wanted: Perm) -> bool:
    """True if only axes of size 1 change places, so that no element does."""
    shape = root.shape
    if shape is None or len(shape) != len(given):
        return False
    return [axis for axis in given if shape[axis] != 1] == [axis for axis in wanted if shape[axis] != 1]


def is_free(value: Value) -> bool:
    """True for a constant that can be stored in another order: a small one, or one that nobody else reads."""
    tensor = value.const
    return tensor is not None and not value.producer.is_pinned and (tensor.nbytes <= SMALL or len(value.uses) <= 1)


def size_of(value: Value, rank: int) -> int:
    """An estimate of a tensor's bytes."""
    dims: tuple[Dim, ...] = value.shape if value.shape is not None else (None,) * rank
    bits = 32 if value.dtype is None else max(value.dtype.bits, 1)
    return max(math.prod(map(estimate, dims)) * bits // 8, 1)


@lru_cache(maxsize=1 << 12)
def estimate(dim: Dim) -> int:
    """A number for a dim."""
    if isinstance(dim, int):
        return dim
    if dim is None:
        return ASSUMED_SIZE
    sizes: dict[Symbol, int] = dict.fromkeys(symbol.symbols(dim), ASSUMED_SIZE)
    try:
        return max(symbol.evaluate(dim, sizes), 0)
    except (ValueError, ZeroDivisionError):
        return ASSUMED_SIZE
