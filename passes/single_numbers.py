"""Numbers that become vectors of one element in the end are computed as vectors of one from the start.

Sizes are picked out of shapes one by one, computed with, and made vectors to be put together. Picked as vectors of
one, they need not be made so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt import Builder, Context, DType, Graph, Node, Value, graph_pass, is_elementwise
from passes._proofs import HALVES, contents

_MOST = 64
"""Operators that are looked at together."""
_IN_FIRST = ("BitCast", "Cast", "CastLike", "Clip")
"""Elementwise in operand 0; the others must stay numbers."""


@dataclass(slots=True)
class _Region:
    """Operators on numbers that hang together.

    Attributes:
        inner: Elementwise operators.
        picks: Operators that make numbers of vectors: a Gather of one place, a Squeeze.
        ends: Operators that make vectors of one element of the numbers.
    """

    inner: dict[Node, None] = field(default_factory=dict)
    picks: dict[Node, None] = field(default_factory=dict)
    ends: dict[Node, None] = field(default_factory=dict)


@graph_pass(
    before="""(int64[4] s, float c) => (int64[2] y) <int64 i = {2}, int64[1] a = {0}, int64[1] one = {1}>
              { g = Gather(s, i)  f = Cast<to = 1>(g)  h = Div(f, f)  k = Cast<to = 7>(h)  u = Unsqueeze(k, a)
                y = Concat<axis = 0>(u, one) }""",
    after="""(int64[4] s, float c) => (int64[2] y) <int64[1] i = {2}, int64[1] one = {1}>
             { g = Gather(s, i)  f = Cast<to = 1>(g)  h = Div(f, f)  k = Cast<to = 7>(h)
               y = Concat<axis = 0>(k, one) }""",
    unless=[
        # One of the numbers is needed as a number.
        """(int64[4] s) => (int64[1] y, int64 n) <int64 i = {2}, int64[1] a = {0}>
           { g = Gather(s, i)  n = Abs(g)  y = Unsqueeze(n, a) }""",
        # Where the number comes from, it is one.
        "(int64 n) => (int64[1] y) <int64[1] a = {0}> { m = Abs(n)  y = Unsqueeze(m, a) }",
        """(int64[4,4] s) => (int64[1,4] y) <int64 i = {2}, int64[1] a = {0}>
           { g = Gather(s, i)  n = Abs(g)  y = Unsqueeze(n, a) }""",
        """(float16[4] s) => (float16[1] y) <int64 i = {2}, int64[1] a = {0}>
           { g = Gather(s, i)  n = Abs(g)  y = Unsqueeze(n, a) }""",
    ],
)
def vectors_of_one(graph: Graph, context: Context) -> None:
    """Elementwise operators on single numbers work on vectors of one where all of these are asked for."""
    seen: dict[Node, None] = {}
    for end in graph.of_kind("Unsqueeze"):
        if end.graph is not graph or end in seen or not _is_end(end):
            continue
        region = _region_around(end, context)
        if region is not None:
            seen.update(region.ends)
            _rebuild(region, graph, context)


def _is_end(node: Node) -> bool:
    value = node.operand(0)
    return node.is_op("Unsqueeze") and value is not None and value.rank == 0 and contents(node, "axes") in ((0,), (-1,))


def _region_around(end: Node, context: Context) -> _Region | None:
    """The region that ends with a node; None if not all of it can work on vectors, or that saves nothing."""
    region, stack = _Region(), [end]
    while stack:
        node = stack.pop()
        if node in region.inner or node in region.picks or node in region.ends:
            continue
        if node.graph is not end.graph or node.is_pinned or context.keeps(node):
            return None
        if len(region.inner) + len(region.picks) > _MOST:
            return None
        if _is_end(node):
            region.ends[node] = None
            stack.append(node.operands[0].producer)  # type: ignore[union-attr]  # `_is_end` looked at it
        elif _is_pick(node):
            region.picks[node] = None
            stack.extend(node.result.users)
        elif _is_inner(node):
            region.inner[node] = None
            stack.extend(node.result.users)
            stack.extend(value.producer for value in _numbers(node))
        else:
            return None
    return region if region.inner and region.picks else None


def _is_pick(node: Node) -> bool:
    data = node.operand(0)
    if not node.is_operator or len(node.results) != 1 or node.result.rank != 0 or data is None or data.rank != 1:
        return False
    if node.is_op("Gather"):
        index = node.operand(1)
        return index is not None and index.const is not None and index.rank == 0
    return node.is_op("Squeeze")


def _is_inner(node: Node) -> bool:
    if not node.is_operator or len(node.results) != 1 or not is_elementwise(node.domain, node.op_type):
        return False
    if not node.is_op(node.op_type) or node.bodies or node.result.rank != 0 or not _numbers(node):
        return False
    values = [value for value in (*node.operands, node.result) if value is not None]
    if any(value.rank != 0 or value.dtype is None or value.dtype in HALVES for value in values):
        return False
    return node.op_type not in _IN_FIRST or all(value is None or value.const is not None for value in node.operands[1:])


def _numbers(node: Node) -> list[Value]:
    """The operands that become vectors."""
    return [value for value in node.operands if value is not None and value.const is None]


def _rebuild(region: _Region, graph: Graph, context: Context) -> None:
    b = context.builder(graph)
    made: dict[Value, Value] = {pick.result: _picked(pick, b) for pick in region.picks}
    waiting = list(region.inner)
    while waiting:
        ready = [node for node in waiting if all(value in made for value in _numbers(node))]
        for node in ready:
            made[node.result] = b.like(node, *(made.get(value, value) if value else None for value in node.operands))
        waiting = [node for node in waiting if node.result not in made]
    with context.rewrite(graph):
        for node in b.nodes:
            graph.insert(node, rank=min(end.rank for end in region.ends))
        for end in region.ends:
            value = end.operands[0]
            assert value is not None
            graph.replace_uses(end.result, made[value])
            graph.erase(end)
        for node in _readers_first(region):
            graph.erase(node)


def _picked(pick: Node, b: Builder) -> Value:
    data = pick.operands[0]
    assert data is not None
    if pick.op_type == "Squeeze":
        return data
    index = pick.operands[1]
    assert index is not None
    assert index.const is not None
    one: Value = b.Gather(data, b.constant([index.const.scalar()], DType.INT64), axis=0)
    return one


def _readers_first(region: _Region) -> list[Node]:
    """The nodes of a region, each before those that it reads."""
    found: list[Node] = []
    waiting = [*region.inner, *region.picks]
    while waiting:
        read = {value.producer for node in waiting for value in node.operands if value is not None}
        found += [node for node in waiting if node not in read]
        waiting = [node for node in waiting if node in read]
    return found
