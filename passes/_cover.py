"""Recognizing a computation by walking back from its last node, in whatever order exporters write it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphopt import Builder, Context, DType, Node, Value

Build: TypeAlias = Callable[[Builder], Value | None]


class Cover:
    """The nodes of one recognized computation; `root` gives its result."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes: dict[Node, None] = {root: None}

    def enter(self, value: Value | None, *op_types: str) -> Node | None:
        """The node that makes a value, covered from now on, if it is one of those operators in the root's graph."""
        if value is None or value.index != 0:
            return None
        node = value.producer
        if node.graph is not self.root.graph or node.domain != "" or not node.is_operator:
            return None
        if node.op_type not in op_types or not node.has_latest_meaning:
            return None
        self.nodes[node] = None
        return node

    def copy(self) -> Cover:
        """The same, to try one way of going on."""
        other = Cover(self.root)
        other.nodes = dict(self.nodes)
        return other

    @property
    def is_private(self) -> bool:
        """True if nobody else reads what is inside."""
        return all(
            user in self.nodes
            for node in self.nodes
            if node is not self.root
            for value in node.results
            for user, _ in value.uses
        )

    def replace(self, context: Context, build: Build) -> bool:
        """Put what `build` makes in place of the computation, if nobody else needs a part of it.

        Returns:
            True if it was replaced; False too where `build` gives None.
        """
        graph, nodes = self.root.graph, list(self.nodes)
        if graph is None or not self.is_private or any(node.is_pinned or context.keeps(node) for node in nodes):
            return False
        builder = context.builder(graph)
        value = build(builder)
        if value is None:
            return False
        with context.rewrite(graph):
            context.replace(self.root.results[0], value, builder)
            pending = True
            while pending:
                gone = [node for node in nodes if node.graph is graph and not node.is_used]
                pending = bool(gone)
                for node in gone:
                    graph.erase(node)
        return True


def number(value: Value | None, beside: Value | None = None) -> float | None:
    """The number a constant of one element holds, None for anything else.

    Args:
        value: The constant.
        beside: What it is broadcast against, which must not gain dims by it.
    """
    if value is None or value.const is None or value.const.size != 1 or not value.const.dtype.is_float:
        return None
    rank = value.const.rank
    if beside is not None and rank and (beside.rank is None or rank > beside.rank):
        return None
    return float(value.const.scalar())


def is_near(found: float | None, wanted: float) -> bool:
    """True for the number as any exporter writes it: rounded to five digits, or in half precision.

    Whole numbers and halves of them need no rounding.
    """
    return found is not None and (
        found == wanted if (2 * wanted).is_integer() else math.isclose(found, wanted, rel_tol=5e-4)
    )


def is_number(value: Value | None, wanted: float, beside: Value | None = None) -> bool:
    """True for a constant of one element that is near `wanted`, or what bfloat16 makes of that."""
    found = number(value, beside)
    if found is None or value is None or value.dtype is not DType.BFLOAT16:
        return is_near(found, wanted)
    return found == float(np.asarray(wanted, DType.BFLOAT16.numpy))


def other(node: Node, value: Value | None) -> Value | None:
    """The operand beside `value` in a node of two operands."""
    left, right = node.operand(0), node.operand(1)
    return right if left is value else left if right is value else None


def with_number(node: Node, wanted: float) -> Value | None:
    """The operand beside a constant near `wanted`, in a node of two operands in any order."""
    left, right = node.operand(0), node.operand(1)
    if is_number(right, wanted, left):
        return left
    return right if is_number(left, wanted, right) else None


def sole_user(value: Value, *op_types: str) -> Node | None:
    """The only reader of a value, if it is one of those operators in the same graph."""
    users = value.users
    if len(users) != 1:
        return None
    (user,) = users
    is_one = user.is_operator and user.domain == "" and user.op_type in op_types and user.has_latest_meaning
    return user if is_one and user.graph is value.producer.graph else None
