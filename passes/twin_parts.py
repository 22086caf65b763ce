"""Computes once, on two neighbouring parts of a Split together, what is computed on each of them alike.

Queries and keys that come from one layer are turned by the same rotary embedding. Turned together, and split
afterwards, they take half the operators. The numbers are the same: only operators that give a number the same bits
wherever it stands are moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt import Context, Graph, Node, Value, graph_pass, is_elementwise, is_position_independent
from passes._proofs import axis_of, same_dim
from passes._selections import size_along

_SPLITTERS = ("Concat", "Split")
_MOST_NODES = 16


@dataclass(slots=True)
class _Twins:
    """What two parts go through alike.

    Attributes:
        axis: The axis the parts stand side by side on.
        values: Every value made of the first part, with its twin.
        nodes: Every operator of the first part, with its twin, in an order of computing.
        ends: The values that are not gone on with alike.
    """

    axis: int
    values: dict[Value, Value]
    nodes: dict[Node, Node] = field(default_factory=dict)
    ends: list[Value] = field(default_factory=list)


@graph_pass(
    before="""(float[N,8,M,4] x, float[1,1,M,4] c, float[1,1,M,4] s)
              => (float[N,4,M,4] y, float[N,2,M,4] z, float[N,2,M,4] v) <int64[3] p = {4,2,2}>
              { q, k, v = Split<axis = 1>(x, p)
                a = Mul(q, c)  b, d = Split<axis = 3, num_outputs = 2>(q)  e = Concat<axis = 3>(d, b)  f = Mul(e, s)
                g = Add(a, f)  h = Mul(k, c)  i, j = Split<axis = 3, num_outputs = 2>(k)
                l = Concat<axis = 3>(j, i)  m = Mul(l, s)  n = Add(h, m)  y = Relu(g)  z = Exp(n) }""",
    after="""(float[N,8,M,4] x, float[1,1,M,4] c, float[1,1,M,4] s)
             => (float[N,4,M,4] y, float[N,2,M,4] z, float[N,2,M,4] v) <int64[2] p = {6,2}, int64[2] r = {4,2}>
             { t, v = Split<axis = 1>(x, p)
               a = Mul(t, c)  b, d = Split<axis = 3, num_outputs = 2>(t)  e = Concat<axis = 3>(d, b)  f = Mul(e, s)
               w = Add(a, f)  g, n = Split<axis = 1>(w, r)  y = Relu(g)  z = Exp(n) }""",
    unless=[
        # Other factors.
        """(float[N,4,M] x, float[1,1,M] c, float[1,1,M] d) => (float[N,2,M] y, float[N,2,M] z)
           { q, k = Split<axis = 1, num_outputs = 2>(x)  a = Mul(q, c)  b = Mul(k, d)  e = Neg(a)  f = Neg(b)
             y = Relu(e)  z = Exp(f) }""",
        # A factor for each place of the axis.
        """(float[N,4,M] x, float[2,1] c) => (float[N,2,M] y, float[N,2,M] z)
           { q, k = Split<axis = 1, num_outputs = 2>(x)  a = Mul(q, c)  b = Mul(k, c)  e = Neg(a)  f = Neg(b)
             y = Relu(e)  z = Exp(f) }""",
        # Bits depend on where a number stands.
        """(float[N,4,M] x) => (float[N,2,M] y, float[N,2,M] z)
           { q, k = Split<axis = 1, num_outputs = 2>(x)  a = Log(q)  b = Log(k)  e = Softplus(a)  f = Softplus(b)
             y = Relu(e)  z = Exp(f) }""",
        # The axis itself is split.
        """(float[N,8,M] x) => (float[N,2,M] y, float[N,2,M] z)
           { q, k = Split<axis = 1, num_outputs = 2>(x)  a, b = Split<axis = 1, num_outputs = 2>(q)
             c, d = Split<axis = 1, num_outputs = 2>(k)  e = Sub(a, b)  f = Sub(c, d)  y = Relu(e)  z = Exp(f) }""",
    ],
)
def twins_together(graph: Graph, context: Context) -> None:
    """Two neighbouring parts of a Split that go through the same are one part that goes through it."""
    for node in sorted(graph.of_kind("Split"), key=lambda node: (node.rank, node.serial)):
        source = node.operand(0)
        axis = None if source is None else axis_of(node, source.rank)
        if axis is None or node.graph is not graph or node.is_pinned or context.keeps(node):
            continue
        sizes = [size_along(value, axis) for value in node.results]
        if any(size is None for size in sizes):
            continue
        for index in range(len(node.results) - 1):
            twins = _twins(node.results[index], node.results[index + 1], axis, graph, context)
            if twins is not None and _saved(twins, node) > 0:
                _join(graph, context, node, index, [size or 0 for size in sizes], twins)
                break


def _saved(twins: _Twins, node: Node) -> int:
    return len(twins.nodes) - len(twins.ends) + (len(node.results) == 2)


def _twins(first: Value, second: Value, axis: int, graph: Graph, context: Context) -> _Twins | None:
    twins = _Twins(axis, {first: second})
    front, waiting = [first], dict[Node, None]()
    while front:
        value = front.pop()
        alike = _readers(twins, value, graph, context)
        if alike is None:
            twins.ends.append(value)
            continue
        for left, right in alike.items():
            if left in twins.nodes:
                continue
            if not _is_ready(twins, left, right):
                waiting[left] = None  # until its other operand comes
                continue
            if len(twins.nodes) >= _MOST_NODES:
                return None
            twins.nodes[left] = right
            for one, two in zip(left.results, right.results, strict=True):
                twins.values[one] = two
                front.append(one)
    if first in twins.ends or any(node not in twins.nodes for node in waiting):
        return None
    return twins


def _readers(twins: _Twins, value: Value, graph: Graph, context: Context) -> dict[Node, Node] | None:
    """The readers of a value, each with the reader of its twin that does the same; None if they do not agree."""
    other = twins.values[value]
    ours, theirs = list(value.uses), list(other.uses)
    if len(ours) != len(theirs) or not ours:
        return None
    found: dict[Node, Node] = {}
    for node, place in ours:
        matches = [item for item, at in theirs if at == place and _do_same(twins, node, item)]
        if len(matches) != 1 or found.setdefault(node, matches[0]) is not matches[0]:
            return None
        if any(item.graph is not graph or item.is_pinned or context.keeps(item) for item in (node, matches[0])):
            return None
    return found if len(set(found.values())) == len(found) else None


def _do_same(twins: _Twins, left: Node, right: Node) -> bool:
    """True if two operators do the same along other axes, with operands that are twins, or may become such."""
    if left is right or left.op_type != right.op_type or left.domain != "" or right.domain != "" or left.bodies:
        return False
    if dict(left.attributes) != dict(right.attributes) or len(left.operands) != len(right.operands):
        return False
    if len(left.results) != len(right.results) or not left.has_latest_meaning:
        return False
    rank = left.results[0].rank
    parts = [value for value in left.operands if value in twins.values]
    if rank is None or any(value is None or value.rank != rank for value in parts):
        return False
    if left.op_type in _SPLITTERS:
        axis = axis_of(left, rank)
        if axis is None or axis == twins.axis:
            return False
        rest = left.operands[1:] if left.op_type == "Split" else ()
        return all(map(_is_same_constant, rest, right.operands[1:]))
    dtype = parts[0].dtype if parts and parts[0] is not None else None
    if dtype is None or not is_elementwise("", left.op_type) or not is_position_independent(left.op_type, dtype):
        return False
    return all(
        one is None or one in twins.values or one is not two or _is_spread(one, rank - twins.axis)
        for one, two in zip(left.operands, right.operands, strict=True)
    )


def _is_same_constant(one: Value | None, two: Value | None) -> bool:
    if one is None or two is None or one is two:
        return one is two
    return one.const is not None and two.const is not None and one.const.equals(two.const)


def _is_spread(value: Value, behind: int) -> bool:
    """True if a value is the same all along an axis of what it is broadcast to; `behind` counts from the end."""
    return value.shape is not None and (len(value.shape) < behind or same_dim(value.shape[-behind], 1))


def _is_ready(twins: _Twins, left: Node, right: Node) -> bool:
    """True if every operand of two operators is a twin, or the same for both and spread along the axis."""
    rank = left.results[0].rank or 0
    for index, (one, two) in enumerate(zip(left.operands, right.operands, strict=True)):
        if one is None or two is None:
            if one is not two:
                return False
        elif one in twins.values:
            if twins.values[one] is not two:
                return False
        elif left.op_type == "Split" and index == 1:
            continue
        elif (
            left.op_type == "Concat"
            or not _is_spread(one, rank - twins.axis)
            or (one is not two and not _is_same_constant(one, two))
        ):
            return False
    return True


def _join(graph: Graph, context: Context, node: Node, index: int, sizes: list[int], twins: _Twins) -> None:
    b = context.builder(graph)
    source = node.operands[0]
    assert source is not None
    joined = [*sizes[:index], sizes[index] + sizes[index + 1], *sizes[index + 2 :]]
    parts: list[Value] = [source]
    if len(joined) > 1:
        parts = list(b.Split(source, axis=twins.axis, split=joined, outputs=len(joined)))
    made = {node.results[index]: parts[index]}
    for old in twins.nodes:
        results = b.like(old, *(made.get(item, item) if item is not None else None for item in old.operands))
        made.update(zip(old.results, results if isinstance(results, tuple) else (results,), strict=True))
    ends: list[tuple[Value, Value]] = []
    for end in twins.ends:
        halves = b.Split(made[end], axis=twins.axis, split=sizes[index : index + 2], outputs=2)
        ends += [(end, halves[0]), (twins.values[end], halves[1])]
    olds = [*node.results[:index], *node.results[index + 2 :]]
    news = [*parts[:index], *parts[index + 1 :]]
    with context.rewrite(graph):
        for item in b.nodes:
            graph.insert(item, rank=node.rank)
        for old, new in (*ends, *(zip(olds, news, strict=True) if len(joined) > 1 else ())):
            graph.replace_uses(old, new)
        for left, right in reversed(twins.nodes.items()):
            graph.erase(left)
            graph.erase(right)
        graph.erase(node)
