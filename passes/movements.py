"""Operators in a row that only move elements become one Gather of blocks, where that is fewer of them.

Windows of an image, rolled or not, and patches put together: reshapes, transposes, slices and concatenations. What
becomes of each element is followed through all of them.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, graph_pass
from passes._movements import Choice, Region, choice_of, may_move, places_of, regions
from passes._reshape_carrier import splits_heads


@graph_pass(
    before="""(float[N,16,16] x) => (float[M,4,16] y)
              <int64[4] s = {-1,4,4,16}, int64[4] r = {3,0,1,2}, int64[6] t = {-1,2,2,2,2,16}, int64[3] u = {-1,4,16}> {
              a = Reshape(x, s)
              b = Gather<axis = 1>(a, r)
              c = Reshape(b, t)
              d = Transpose<perm = [0,1,3,2,4,5]>(c)
              e = Reshape(d, u)
              y = Relu(e) }""",
    after="""(float[N,16,16] x) => (float[M,4,16] y)
             <int64[16] r = {12,13,0,1,14,15,2,3,4,5,8,9,6,7,10,11}, int64[3] u = {-1,4,16}>
             { a = Gather<axis = 1>(x, r)  e = Reshape(a, u)  y = Relu(e) }""",
    unless=[
        # Single elements move: that is what Transpose is for.
        """(float[N,16,4] x) => (float[N,4,16] y) <int64[4] s = {-1,4,4,4}, int64[3] u = {-1,4,16}>
           { a = Reshape(x, s)  b = Transpose<perm = [0,3,2,1]>(a)  c = Reshape(b, u)  y = Relu(c) }""",
        # Heads of attention: as many operators.
        """(float[N,8,64] x) => (float[M,8,16] y) <int64[4] s = {0,8,4,16}, int64[3] u = {-1,8,16}>
           { a = Reshape(x, s)  b = Transpose<perm = [0,2,1,3]>(a)  c = Reshape(b, u)  y = Relu(c) }""",
        # What is in between is needed.
        """(float[N,16,16] x) => (float[M,4,16] y, float[K,2,2,2,2,16] z)
           <int64[6] t = {-1,2,2,2,2,16}, int64[3] u = {-1,4,16}> {
           c = Reshape(x, t)
           d = Transpose<perm = [0,1,3,2,4,5]>(c)
           z = Neg(d)
           e = Reshape(d, u)
           y = Relu(e) }""",
    ],
)
def gather_instead_of_moving(graph: Graph, context: Context) -> None:
    """A region that only moves blocks of neighbouring elements is one Gather of them."""
    if not any(graph.of_kind(op_type) for op_type in ("Transpose", "Gather", "Slice", "Concat")):
        return
    order = {node: place for place, node in enumerate(graph.order())}
    ends = [node for node in order if may_move(node) and _is_end(node)]
    for last in sorted(ends, key=order.__getitem__, reverse=True):
        if last.graph is not graph or last.is_pinned or context.keeps(last):
            continue
        found = _best(graph, last, order, context)
        if found is not None:
            region, choice = found
            b = context.builder(graph)
            with context.rewrite(graph):
                context.replace(region.result, choice.build(b, region.source), b)
                _erase_unread(region, context)


def _is_end(node: Node) -> bool:
    """True if something other than a movement reads the only result."""
    return len(node.results) == 1 and any(not may_move(user) for user in node.results[0].users)


def _best(graph: Graph, last: Node, order: dict[Node, int], context: Context) -> tuple[Region, Choice] | None:
    """The region whose Gather saves most operators; None if none does."""
    best: tuple[Region, Choice] | None = None
    most = 0
    for region in regions(graph, last, order):
        dtype = region.source.dtype
        if dtype is None or dtype.bits < 8 or region.dying() <= 1:
            continue
        if any(node.is_pinned or context.keeps(node) or splits_heads(node) for node in region.nodes):
            continue  # runtimes know attention by its transposed heads
        places = places_of(region)
        choice = None if places is None else choice_of(region, places)
        if choice is not None and region.dying() - choice.cost > most:
            best, most = (region, choice), region.dying() - choice.cost
    return best


def _erase_unread(region: Region, context: Context) -> None:
    for node in reversed(region.nodes):
        if node.graph is not None and not node.is_used and not node.is_pinned and not context.keeps(node):
            node.graph.erase(node)
