"""Views the parts of a Split as heads all at once, before it.

Where queries, keys and values are made by one layer, exporters split its result and then reshape and transpose each
part. One Reshape and one Transpose of the whole move the same elements with a third of the operators.
"""

from __future__ import annotations

import numpy as np

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._heads import has_same_types, heads_of, split
from passes._permutation import perm_of, without_axes
from passes._proofs import axis_of, same_dim
from passes._runtime_attention import is_known_to_runtime
from passes._selections import size_along


@graph_pass(
    before="""(float[N,M,24] x) => (float[N,2,M,4] y, float[N,2,4,M] z, float[N,2,M,4] w) <int64[4] s = {0,0,2,4}>
              { a, b, c = Split<axis = 2, num_outputs = 3>(x)
                d = Reshape(a, s)  e = Transpose<perm = [0,2,1,3]>(d)
                f = Reshape(b, s)  g = Transpose<perm = [0,2,3,1]>(f)
                h = Reshape(c, s)  i = Transpose<perm = [0,2,1,3]>(h)
                y = Relu(e)  z = Relu(g)  w = Relu(i) }""",
    after="""(float[N,M,24] x) => (float[N,2,M,4] y, float[N,2,4,M] z, float[N,2,M,4] w)
             <int64[4] s = {0,0,6,4}, int64[3] p = {2,2,2}>
             { r = Reshape(x, s)  t = Transpose<perm = [0,2,1,3]>(r)  e, b, i = Split<axis = 1>(t, p)
               g = Transpose<perm = [0,1,3,2]>(b)  y = Relu(e)  z = Relu(g)  w = Relu(i) }""",
    unless=[
        # One of them has another reader.
        """(float[N,M,16] x) => (float[N,2,M,4] y, float[N,2,M,4] z, float[N,M,8] w) <int64[4] s = {0,0,2,4}>
           { a, b = Split<axis = 2, num_outputs = 2>(x)
             d = Reshape(a, s)  y = Transpose<perm = [0,2,1,3]>(d)
             f = Reshape(b, s)  z = Transpose<perm = [0,2,1,3]>(f)  w = Relu(a) }""",
        # Heads of different sizes.
        """(float[N,M,16] x) => (float[N,2,M,4] y, float[N,4,M,2] z) <int64[4] s = {0,0,2,4}, int64[4] r = {0,0,4,2}>
           { a, b = Split<axis = 2, num_outputs = 2>(x)
             d = Reshape(a, s)  e = Transpose<perm = [0,2,1,3]>(d)
             f = Reshape(b, r)  g = Transpose<perm = [0,2,1,3]>(f)  y = Relu(e)  z = Relu(g) }""",
        # Parts of another axis.
        """(float[N,6,8] x) => (float[N,2,3,4] y, float[N,2,3,4] z) <int64[4] s = {0,0,2,4}>
           { a, b = Split<axis = 1, num_outputs = 2>(x)
             d = Reshape(a, s)  e = Transpose<perm = [0,2,1,3]>(d)
             f = Reshape(b, s)  g = Transpose<perm = [0,2,1,3]>(f)  y = Relu(e)  z = Relu(g) }""",
        # Places of the axis that is split are divided anew.
        """(float[16] x) => (float[2,4] y, float[2,4] z) <int64[2] s = {2,4}>
           { a, b = Split<axis = 0, num_outputs = 2>(x)  d = Reshape(a, s)  f = Reshape(b, s)
             y = Relu(d)  z = Relu(f) }""",
    ],
)
def heads_before_split(graph: Graph, context: Context) -> None:
    """Parts of the last axis that are reshaped and transposed alike are split after that is done to the whole."""
    for node in sorted(graph.of_kind("Split"), key=lambda node: (node.rank, node.serial)):
        source = node.operand(0)
        if source is None or source.rank is None or axis_of(node, source.rank) != source.rank - 1:
            continue
        if node.is_pinned or context.keeps(node):
            continue
        _move(graph, context, node)


def _move(graph: Graph, context: Context, node: Node) -> None:
    source = node.operands[0]
    assert source is not None
    sizes = [size_along(value, (source.rank or 1) - 1) for value in node.results]
    widths = [size for size in sizes if size is not None]
    if len(widths) < len(sizes):
        return
    heads = heads_of(node.results, widths, graph, context)
    if heads is None or heads.saved < 1 or is_known_to_runtime(heads.last):
        return
    b = context.builder(graph)
    values = heads.build(b, source)
    olds = [view.results[0] for view in heads.last]
    if not all(map(has_same_types, olds, values)):
        return
    with context.rewrite(graph):
        for made in b.nodes:
            graph.insert(made, rank=node.rank)
        for old, new in zip(olds, values, strict=True):
            graph.replace_uses(old, new)
        for view in (*heads.nodes, node):
            graph.erase(view)


@graph_pass(
    before="""(float[N,M,24] x) => (float[N,2,M,4] y, float[N,2,M,4] z, float[N,2,M,4] w)
              <int64[5] s = {0,0,3,2,4}, int64 i = {0}, int64 j = {1}, int64 k = {-1}>
              { r = Reshape(x, s)  t = Transpose<perm = [2,0,3,1,4]>(r)
                a = Gather<axis = 0>(t, i)  b = Gather<axis = 0>(t, j)  c = Gather<axis = 0>(t, k)
                y = Relu(a)  z = Relu(b)  w = Relu(c) }""",
    after="""(float[N,M,24] x) => (float[N,2,M,4] y, float[N,2,M,4] z, float[N,2,M,4] w)
             <int64[4] s = {0,0,6,4}, int64[3] p = {2,2,2}>
             { r = Reshape(x, s)  t = Transpose<perm = [0,2,1,3]>(r)  a, b, c = Split<axis = 1>(t, p)
               y = Relu(a)  z = Relu(b)  w = Relu(c) }""",
    unless=[
        # One place is not taken, or one is taken twice.
        """(float[N,M,24] x) => (float[N,2,M,4] y, float[N,2,M,4] z)
           <int64[5] s = {0,0,3,2,4}, int64 i = {0}, int64 j = {1}>
           { r = Reshape(x, s)  t = Transpose<perm = [2,0,3,1,4]>(r)
             a = Gather<axis = 0>(t, i)  b = Gather<axis = 0>(t, j)  y = Relu(a)  z = Relu(b) }""",
        # The places are those of each head.
        """(float[N,M,16] x) => (float[N,2,M,4] y, float[N,2,M,4] z)
           <int64[5] s = {0,0,2,2,4}, int64 i = {0}, int64 j = {1}>
           { r = Reshape(x, s)  t = Transpose<perm = [3,0,2,1,4]>(r)
             a = Gather<axis = 0>(t, i)  b = Gather<axis = 0>(t, j)  y = Relu(a)  z = Relu(b) }""",
        """(float[N,M,16] x) => (float[N,2,M,4] y, float[N,2,M,4] z, float[2,N,2,M,4] t)
           <int64[5] s = {0,0,2,2,4}, int64 i = {0}, int64 j = {1}>
           { r = Reshape(x, s)  t = Transpose<perm = [2,0,3,1,4]>(r)
             a = Gather<axis = 0>(t, i)  b = Gather<axis = 0>(t, j)  y = Relu(a)  z = Relu(b) }""",
    ],
)
def split_instead_of_places(graph: Graph, context: Context) -> None:
    """Places of an axis that heads were divided by, each taken by a Gather, are parts of all heads."""
    for node in sorted(graph.of_kind("Reshape"), key=lambda node: (node.rank, node.serial)):
        use = node.results[0].sole_use()
        if node.is_pinned or context.keeps(node) or use is None or use[1] != 0 or use[0].graph is not graph:
            continue
        turn = use[0]
        perm = perm_of(turn) if turn.is_op("Transpose") and not (turn.is_pinned or context.keeps(turn)) else None
        if perm is not None and len(perm) > 3:
            _split_places(graph, context, node, turn, perm)


def _split_places(graph: Graph, context: Context, node: Node, turn: Node, perm: tuple[int, ...]) -> None:
    axis, target = len(perm) - 3, node.operand(1)
    dims = [size_along(node.results[0], place) for place in range(axis, len(perm))]
    gathers = _all_places(turn, perm.index(axis), dims[0], graph, context)
    if gathers is None or target is None or target.const is None or None in dims:
        return
    numbers = [int(number) for number in target.const.numpy().reshape(-1)]
    count, heads = dims[0] or 0, dims[1] or 0
    if len(numbers) != len(perm) or 0 in numbers[axis:] or not count * heads:
        return
    b = context.builder(graph)
    merged = -1 if -1 in numbers[axis : axis + 2] else count * heads
    asked = np.array([*numbers[:axis], merged, numbers[-1]], dtype=np.int64)
    whole: Value = b.like(node, node.operands[0], asked)
    left = without_axes(perm, [axis])
    turned: Value = b.Transpose(whole, perm=left)
    parts = split(b, turned, [heads] * count, left.index(axis))
    olds = [gather.results[0] for gather in gathers]
    if not all(map(has_same_types, olds, parts)):
        return
    with context.rewrite(graph):
        for made in b.nodes:
            graph.insert(made, rank=node.rank)
        for old, new in zip(olds, parts, strict=True):
            graph.replace_uses(old, new)
        for gone in (*gathers, turn, node):
            graph.erase(gone)


def _all_places(turn: Node, axis: int, count: int | None, graph: Graph, context: Context) -> list[Node] | None:
    """The Gather of each place of an axis, in order, if nothing else reads the value."""
    found: dict[int, Node] = {}
    for user, place in turn.results[0].uses:
        index = user.operand(1) if user.is_op("Gather") and place == 0 and user.graph is graph else None
        number = (
            index.const.scalar() if index is not None and index.const is not None and not index.const.rank else None
        )
        if number is None or axis_of(user, turn.results[0].rank) != axis or user.is_pinned or context.keeps(user):
            return None
        found[number % count if count else number] = user
    places = sorted(found)
    is_complete = len(turn.results[0].uses) == count and count > 1 and places == list(range(count))
    return [found[place] for place in places] if is_complete else None


@graph_pass(
    before="""(float[N,M,8] x) => (float[N,M,4] y, float[N,M,4] z)
              <int64[4] s = {0,0,2,4}, int64 i = {0}, int64 j = {1}>
              { r = Reshape(x, s)  a = Gather<axis = 2>(r, i)  b = Gather<axis = 2>(r, j)
                y = Relu(a)  z = Relu(b) }""",
    after="""(float[N,M,8] x) => (float[N,M,4] y, float[N,M,4] z) <int64[2] p = {4,4}>
             { a, b = Split<axis = 2>(x, p)  y = Relu(a)  z = Relu(b) }""",
    unless=[
        """(float[N,M,8] x) => (float[N,M,2] y, float[N,M,2] z) <int64[4] s = {0,0,4,2}, int64 i = {0}, int64 j = {1}>
           { r = Reshape(x, s)  a = Gather<axis = 2>(r, i)  b = Gather<axis = 2>(r, j)  y = Relu(a)  z = Relu(b) }""",
        """(float[N,M,8] x) => (float[N,M,2] y, float[N,M,2] z) <int64[4] s = {0,-1,2,2}, int64 i = {0}, int64 j = {1}>
           { r = Reshape(x, s)  a = Gather<axis = 2>(r, i)  b = Gather<axis = 2>(r, j)  y = Relu(a)  z = Relu(b) }""",
        # A number has no last axis.
        "(float x) => (float y) <int64[1] s = {-1}, int64 i = {0}> { r = Reshape(x, s)  y = Gather(r, i) }",
    ],
)
def split_instead_of_divided(graph: Graph, context: Context) -> None:
    """Places of the last axis divided in two, each taken by a Gather, are the parts of a Split."""
    for node in sorted(graph.of_kind("Reshape"), key=lambda node: (node.rank, node.serial)):
        source, dims = node.operand(0), node.results[0].shape
        if node.is_pinned or context.keeps(node) or source is None or not source.shape or dims is None:
            continue
        if len(dims) != len(source.shape) + 1 or not all(map(same_dim, dims[:-2], source.shape[:-1])):
            continue
        count, width = dims[-2:]
        if not isinstance(count, int) or not isinstance(width, int) or source.shape[-1] != count * width:
            continue
        gathers = _all_places(node, len(dims) - 2, count, graph, context)
        if gathers is None:
            continue
        b = context.builder(graph)
        parts = split(b, source, [width] * count, len(dims) - 2)
        with context.rewrite(graph):
            for made in b.nodes:
                graph.insert(made, rank=node.rank)
            for gather, part in zip(gathers, parts, strict=True):
                graph.replace_uses(gather.results[0], part)
            for gone in (*gathers, node):
                graph.erase(gone)
