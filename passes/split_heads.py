"""Views the parts of a Split as heads all at once, before it.

Where queries, keys and values are made by one layer, exporters split its result and then reshape and transpose each
part. One Reshape and one Transpose of the whole move the same elements with a third of the operators.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, graph_pass
from passes._heads import has_same_types, heads_of
from passes._proofs import axis_of
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
        # The first dim asked for copies the axis that is split.
        """(float[16] x) => (float[2,1,4] y, float[2,1,4] z) <int64[3] s = {0,-1,4}, int64[3] r = {2,1,4}>
           { a, b = Split<axis = 0, num_outputs = 2>(x)
             d = Reshape(a, r)  e = Transpose<perm = [1,0,2]>(d)  y = Relu(d)
             f = Reshape(b, r)  g = Transpose<perm = [1,0,2]>(f)  z = Relu(f) }""",
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
