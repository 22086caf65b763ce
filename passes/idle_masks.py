"""Removes tests that always hold, and masks that let everything through.

Exporters compare positions with 0 and join the outcome to the mask that matters. The joint mask may be wider for it;
that is needless where the readers are as wide by themselves.
"""

from __future__ import annotations

from heapq import heappop, heappush

from graphopt import (
    Builder,
    Context,
    Graph,
    Match,
    Miss,
    Node,
    Value,
    graph_pass,
    is_elementwise,
    is_position_independent,
    op,
    rule,
    var,
)
from passes._noops import is_branch
from passes._proofs import HALVES, same_type
from passes._truth import known_truth

x, y, c = var("x"), var("y"), var("c")

_MOST = 24
"""Readers of readers looked at for one mask."""
_ONE_BY_ONE = ("BitCast", "Cast", "CastLike", "Clip")


@rule(
    op.Where(c, x, y),
    before="""(int64[N] x) => (int64[N] y) <int64 z = {0}, int64 o = {1}> {
              s = Shape(x)  n = Squeeze(s)  r = Range(z, n, o)  t = Less(r, z)  w = Where(t, o, x)  y = Abs(w) }""",
    after="""(int64[N] x) => (int64[N] y) <int64 z = {0}, int64 o = {1}> {
             s = Shape(x)  n = Squeeze(s)  r = Range(z, n, o)  t = Less(r, z)  y = Abs(x) }""",
    unless=[
        "(int64[N] x, int64[N] z) => (int64[N] y) <int64 o = {0}> { t = Less(x, o)  w = Where(t, z, x)  y = Abs(w) }",
        "(int64[2] x, int64[3,2] z) => (int64[3,2] y) <bool t = {1}> { w = Where(t, x, z)  y = Abs(w) }",
    ],
    numeric="Z",
)
def where_of_known_test(m: Match, b: Builder) -> Value | Miss:
    """A Where by a test of positions that always holds, or never, is one branch; the runtime may make 0.0 of -0.0."""
    truth = known_truth(m[c])
    if truth is None:
        return b.no("the test may come out either way")
    branch: Value = m[x] if truth else m[y]
    is_float = branch.dtype is not None and branch.dtype.is_float
    fits = is_branch(branch, m.root.result, is_float=is_float)
    return branch if fits else b.no("the other branch, or the test, may widen it")


@graph_pass(
    before="""(bool[N,1,1,M] m, float[N,2,L,M] s) => (float[N,2,L,M] y)
              <int64 z = {0}, int64 o = {1}, int64[1] e = {0}, int64[3] u = {0,1,3}, float a = {0}, float c = {-9}> {
              h = Shape<start = 2, end = 3>(s)  n = Squeeze(h, e)  r = Range(z, n, o)  p = Unsqueeze(r, u)
              g = GreaterOrEqual(p, z)  t = And(g, m)  w = Where(t, a, c)  y = Add(s, w) }""",
    after="""(bool[N,1,1,M] m, float[N,2,L,M] s) => (float[N,2,L,M] y)
             <int64 z = {0}, int64 o = {1}, int64[1] e = {0}, int64[3] u = {0,1,3}, float a = {0}, float c = {-9}> {
             h = Shape<start = 2, end = 3>(s)  n = Squeeze(h, e)  r = Range(z, n, o)  p = Unsqueeze(r, u)
             g = GreaterOrEqual(p, z)  w = Where(m, a, c)  y = Add(s, w) }""",
    unless=[
        """(bool[2,1] m, int64[3] i) => (bool[2,3] y) <int64 z = {0}> { g = GreaterOrEqual(i, z)  y = And(g, m) }""",
        """(bool[N,1] m, float[M] x) => (bool[N,M] y) <int64 z = {0}, int64 o = {1}, int64[1] e = {0}> {
           h = Shape(x)  n = Squeeze(h, e)  r = Range(z, n, o)  g = GreaterOrEqual(r, z)  y = And(g, m) }""",
        """(bool[N,1] m, float[M] x) => (float[N,M] y) <int64 z = {0}, int64 o = {1}, float a = {0}, float c = {1}> {
           h = Shape(x)  n = Squeeze(h)  r = Range(z, n, o)  g = GreaterOrEqual(r, z)  t = And(g, m)
           w = Where(t, a, c)  y = Exp(w) }""",
    ],
    numeric="Z",
)
def idle_test(graph: Graph, context: Context) -> None:
    """A test that always holds goes from a mask, where the readers of the mask are as wide without it."""
    nodes = graph.of_kind("And") + graph.of_kind("Or")
    place = {node: index for index, node in enumerate(graph.order())} if nodes else {}
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        if node.graph is not graph or len(node.operands) != 2 or _stays(context, node):
            continue
        for test, mask in (node.operands, node.operands[::-1]):
            if mask is not None and known_truth(test) is (node.op_type == "And"):
                _narrow(graph, context, node, mask, place)
                break


def _narrow(graph: Graph, context: Context, node: Node, mask: Value, place: dict[Node, int]) -> None:
    """Let the readers of a mask read a narrower one, if what comes out keeps its shape."""
    if same_type(mask, node.result):
        context.replace(node.result, mask)
        return
    b = context.builder(graph)
    narrower: dict[Value, Value] = {node.result: mask}
    last: list[tuple[Node, int, Value]] = []
    waiting: list[tuple[int, int, Node]] = []
    seen: dict[Node, None] = {}
    _push(node.result, place, waiting)
    while waiting:
        reader = heappop(waiting)[2]
        if reader in seen:
            continue
        seen[reader] = None
        if len(seen) > _MOST or not _broadcasts(graph, context, reader):
            return
        made: Value = b.like(reader, *(narrower.get(value, value) if value else None for value in reader.operands))
        if same_type(made, reader.result):
            last.extend(
                (reader, index, narrower[value]) for index, value in enumerate(reader.operands) if value in narrower
            )
            continue
        if reader not in place or made.shape is None or any(use.graph is not graph for use in reader.result.users):
            return
        narrower[reader.result] = made
        place[made.producer] = place[reader]
        _push(reader.result, place, waiting)
    with context.rewrite(graph):
        for old, new in narrower.items():
            if new.producer.graph is None:
                graph.insert(new.producer, rank=old.producer.rank)
                new.producer.name = old.producer.name
        for reader, index, value in last:
            graph.set_operand(reader, index, value)
        for old in reversed(list(narrower)):
            graph.erase(old.producer)


def _push(value: Value, place: dict[Node, int], waiting: list[tuple[int, int, Node]]) -> None:
    for user in value.users:
        heappush(waiting, (place.get(user, 1 << 60), user.serial, user))


def _broadcasts(graph: Graph, context: Context, node: Node) -> bool:
    """True if a node broadcasts its operands, and does the same to numbers whatever their shape, zeros aside."""
    if node.graph is not graph or not node.is_operator or not is_elementwise(node.domain, node.op_type):
        return False
    if node.op_type in _ONE_BY_ONE or not node.has_latest_meaning or _stays(context, node):
        return False
    number = node.operands[-1]
    dtype = None if number is None else number.dtype
    if dtype in HALVES:
        return node.op_type == "Where"
    return is_position_independent(node.op_type, dtype, node.domain, signed_zeros=False)


def _stays(context: Context, node: Node) -> bool:
    return node.is_pinned or context.keeps(node)
