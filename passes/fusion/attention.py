"""Writes attention as the one operator that ONNX Runtime computes it with.

An attention is found from its softmax (see `_attention_core`), whatever scales, masks, views and packed layers stand
around it. Where queries, keys and values are layers of one tensor, they go into `com.microsoft.Attention` with their
weights side by side, which measured fastest; else `MultiHeadAttention` takes them apart, their biases with them. What
is added to the scores is kept as it is, through the operand `attention_bias`: what a mask holds makes no difference.
Scores are taken to be finite: one of NaN or infinity that the model puts a number in place of, or whose probabilities
it guards against NaN, may show in the result.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, graph_pass
from passes.fusion import RUNTIME
from passes.fusion._attention_core import erase_unread
from passes.fusion._attention_writing import as_attention, as_multi_head, fuse

TARGETS = RUNTIME

MICROSOFT = "com.microsoft"
_FUSED = ("Attention", "MultiHeadAttention")


@graph_pass(
    before="""(float[B,S,2] x, float[B,1,S,S] m) => (float[B,S,4] y)
              <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
               float[12] c = {1,0,-1,2,0,1,0,-1,0,2,1,0}, int64[3] p = {2,2,2}, float r = {0.125},
               int64[3] o = {0,0,4}>
              { l = MatMul(x, w)  a = Add(l, c)  h = Reshape(a, s)  t = Transpose<perm = [0,2,1,3]>(h)
                q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
                e = Mul(d, r)  f = Add(e, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, v)
                j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
    after="""(float[B,S,2] x, float[B,1,S,S] m) => (float[B,S,4] y)
             <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6},
              float[12] c = {1,0,-1,2,0,1,0,-1,0,2,1,0}>
             { y = com.microsoft.Attention<num_heads = 2, scale = 0.125>(x, w, c, , , m) }""",
    unless=[
        # The probabilities are a result, too.
        """(float[B,S,2] x) => (float[B,S,4] y, float[B,2,S,S] g)
           <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}, int64[3] o = {0,0,4}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        # What the layer gives is read elsewhere.
        """(float[B,S,2] x) => (float[B,S,4] y, float[B,2,S,2] r)
           <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}, int64[3] o = {0,0,4}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             r = Relu(q)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)
             j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        # Probabilities dropped in training, a softmax over the queries, and a type without a kernel.
        """(float[B,S,2] x) => (float[B,S,4] y)
           <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}, int64[3] o = {0,0,4}, float share = {0.5}, bool yes = {1}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             g = Softmax<axis = -1>(d)  e = Dropout(g, share, yes)  i = MatMul(e, v)
             j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        """(float[B,S,2] x) => (float[B,S,4] y)
           <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}, int64[3] o = {0,0,4}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             g = Softmax<axis = -2>(d)  i = MatMul(g, v)  j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        """(double[B,S,2] x) => (double[B,S,4] y)
           <double[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}, int64[3] o = {0,0,4}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        # Queries whose batch is the sequence of keys and values: equal sizes do not make them one axis.
        """(float[3,3,2] x) => (float[3,2,3,2] i)
           <float[2,12] w = {1,2,3,4,5,6,7,8,9,1,2,3, 4,-5,6,-7,8,-9,1,-2,3,-4,5,-6}, int64[4] s = {0,0,6,2},
            int64[3] p = {2,2,2}>
           { l = MatMul(x, w)  h = Reshape(l, s)  qh, kh, vh = Split<axis = 2>(h, p)
             q = Transpose<perm = [1,2,0,3]>(qh)  k = Transpose<perm = [0,2,3,1]>(kh)
             v = Transpose<perm = [0,2,1,3]>(vh)  d = MatMul(q, k)  g = Softmax<axis = -1>(d)  i = MatMul(g, v) }""",
        # The caller may override the weight.
        """(float[B,S,2] x, float[2,12] w) => (float[B,S,4] y)
           <int64[4] s = {0,0,6,2}, int64[3] p = {2,2,2}, int64[3] o = {0,0,4}>
           { l = MatMul(x, w)  h = Reshape(l, s)  t = Transpose<perm = [0,2,1,3]>(h)
             q, k, v = Split<axis = 1>(t, p)  u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)
             g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
    ],
    numeric="R",
    largest=1e6,
)
def attention_of_layers(graph: Graph, context: Context) -> None:
    """Queries, keys and values that layers of one tensor give, put together by a softmax, are Attention."""
    fuse(graph, context, as_attention, tells=False)


@graph_pass(
    before="""(float[B,S,4] q, float[B,T,4] k, float[B,T,6] v, float[B,1,1,T] m) => (float[B,S,6] y)
              <int64[4] s = {0,0,2,2}, int64[4] z = {0,0,2,3}, float r = {2}, int64[3] o = {0,0,6}>
              { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
                kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
                vh = Reshape(v, z)  vt = Transpose<perm = [0,2,1,3]>(vh)
                qs = Div(qt, r)  d = MatMul(qs, kt)  f = Add(m, d)  g = Softmax<axis = -1>(f)  i = MatMul(g, vt)
                j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
    after="""(float[B,S,4] q, float[B,T,4] k, float[B,T,6] v, float[B,1,1,T] m) => (float[B,S,6] y)
             <int64[2] one = {1,1}>
             { n = Shape<start = 1, end = 2>(q)  t = Shape<start = 1, end = 2>(k)
               e = Concat<axis = 0>(one, n, t)  b = Expand(m, e)
               y = com.microsoft.MultiHeadAttention<num_heads = 2, scale = 0.5>(q, k, v, , , b) }""",
    unless=[
        # Masks of more rows than there are queries, or more batches.
        """(float[B,1,4] q, float[B,T,4] k, float[B,T,4] v, float[1,1,3,T] m) => (float[B,2,3,2] i)
           <int64[4] s = {0,0,2,2}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, vt) }""",
        """(float[1,S,4] q, float[1,T,4] k, float[1,T,4] v, float[3,1,1,T] m) => (float[3,2,S,2] i)
           <int64[4] s = {0,0,2,2}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, vt) }""",
        # Heads of keys and values that the product may stretch.
        """(float[B,2,S,2] q, float[B,N,2,T] k, float[B,N,T,2] v) => (float[B,2,S,2] i)
           { d = MatMul(q, k)  g = Softmax<axis = -1>(d)  i = MatMul(g, v) }""",
        # A mask of more axes than the scores, scores that are a result, and probabilities dropped in training.
        """(float[B,S,4] q, float[B,T,4] k, float[B,T,4] v, float[3,1,1,1,T] m) => (float[3,B,2,S,2] i)
           <int64[4] s = {0,0,2,2}, int64[1] first = {0}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  f = Add(d, m)  g = Softmax<axis = -1>(f)  w = Unsqueeze(vt, first)
             i = MatMul(g, w) }""",
        """(float[B,S,4] q, float[B,T,4] k, float[B,T,4] v, float[B,1,1,T] m) => (float[B,2,S,2] i, float[B,2,S,T] f)
           <int64[4] s = {0,0,2,2}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, vt) }""",
        """(float[B,S,4] q, float[B,T,4] k, float[B,T,4] v) => (float[B,2,S,2] i)
           <int64[4] s = {0,0,2,2}, float share = {0.5}, bool yes = {1}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  g = Softmax<axis = -1>(d)  e = Dropout(g, share, yes)  i = MatMul(e, vt) }""",
        # Heads of a size that is not known, and a type without a kernel.
        """(float[B,2,S,K] qt, float[B,2,K,T] kt, float[B,2,T,K] vt) => (float[B,2,S,K] i)
           { d = MatMul(qt, kt)  g = Softmax<axis = -1>(d)  i = MatMul(g, vt) }""",
        """(double[B,S,4] q, double[B,T,4] k, double[B,T,4] v) => (double[B,2,S,2] i) <int64[4] s = {0,0,2,2}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  g = Softmax<axis = -1>(d)  i = MatMul(g, vt) }""",
        # Another axis.
        """(float[B,S,4] q, float[B,T,4] k, float[B,T,4] v) => (float[B,S,4] y)
           <int64[4] s = {0,0,2,2}, int64[3] o = {0,0,4}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  g = Softmax<axis = 2>(d)  i = MatMul(g, vt)
             j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        # Scores are replaced by a number that would not hide them.
        """(float[B,S,4] q, float[B,T,4] k, float[B,T,4] v, bool[S,T] m) => (float[B,S,4] y)
           <int64[4] s = {0,0,2,2}, int64[3] o = {0,0,4}, float low = {-100}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, s)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  f = Where(m, d, low)  g = Softmax<axis = -1>(f)  i = MatMul(g, vt)
             j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
        # Two queries share a key.
        """(float[B,S,4] q, float[B,T,2] k, float[B,T,2] v) => (float[B,S,4] y)
           <int64[4] s = {0,0,2,2}, int64[4] z = {0,0,1,2}, int64[3] o = {0,0,4}>
           { qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)
             kh = Reshape(k, z)  kt = Transpose<perm = [0,2,3,1]>(kh)
             vh = Reshape(v, z)  vt = Transpose<perm = [0,2,1,3]>(vh)
             d = MatMul(qt, kt)  g = Softmax<axis = -1>(d)  i = MatMul(g, vt)
             j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }""",
    ],
    numeric="R",
    largest=1e6,
)
def attention_apart(graph: Graph, context: Context) -> None:
    """A softmax of scaled, masked products of queries and keys, times values, is MultiHeadAttention."""
    fuse(graph, context, as_multi_head, tells=True)


@graph_pass(
    before="""(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y)
              <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float[2] c = {1,2}>
              { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
                l = MatMul(t, w)  m = Add(l, c)  y = Transpose<perm = [1,0,2]>(m) }""",
    after="""(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y)
             <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float[2] c = {1,2}>
             { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  l = MatMul(a, w)  y = Add(l, c) }""",
    unless=[
        # Another turn, a weight for each place, something random or a bias for each batch in between, and a layer that
        # somebody else reads.
        """(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[2,B,S] y) <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  y = Transpose<perm = [2,1,0]>(l) }""",
        """(float[1,S,2] q, float[1,S,2] k, float[1,S,2] v) => (float[1,S,2] y) <float[1,2,2] w = {1,-2,3,-4}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  y = Transpose<perm = [1,0,2]>(l) }""",
        """(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y)
           <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float share = {0.5}, bool yes = {1}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  d = Dropout(l, share, yes)  y = Transpose<perm = [1,0,2]>(d) }""",
        """(float[1,S,4] q, float[1,S,4] k, float[1,S,4] v) => (float[3,S,2] y)
           <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float[3,2] c = {1,2,3,4,5,6}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  m = Add(l, c)  y = Transpose<perm = [1,0,2]>(m) }""",
        """(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y, float[S,B,2] l)
           <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  y = Transpose<perm = [1,0,2]>(l) }""",
    ],
    numeric="R",
)
def layer_between_turns(graph: Graph, context: Context) -> None:
    """A layer between two turns of what an attention gives is computed without them: it goes over the last axis."""
    for turn in sorted(graph.of_kind("Transpose"), key=lambda node: (node.rank, node.serial)):
        source = turn.operand(0)
        if source is None or source.producer.domain != MICROSOFT or source.producer.op_type not in _FUSED:
            continue
        nodes = _layer_behind(turn, context)
        if not nodes:
            continue
        b = context.builder(graph)
        made, before = source, turn.results[0]
        for node in nodes[:-1]:
            made = b.like(node, *(made if item is before else item for item in node.operands))
            before = node.results[0]
        with context.rewrite(graph):
            context.replace(nodes[-1].results[0], made, b)
            erase_unread(graph, [turn, *nodes], context)


def _layer_behind(turn: Node, context: Context) -> list[Node]:
    """A product, a sum with its bias, and the Transpose back, where a Transpose is followed by these alone."""
    value, found = turn.results[0], list[Node]()
    if turn.param("perm") != (1, 0, 2) or turn.is_pinned or context.keeps(turn):
        return []
    for _ in range(3):
        use = value.sole_use()
        node = None if use is None else use[0]
        if node is None or node.graph is not turn.graph or node.is_pinned or context.keeps(node) or value.rank != 3:
            return []
        if node.is_op("Transpose") and found:
            return [*found, node] if node.param("perm") == (1, 0, 2) else []
        others = [item for item in node.operands if item is not None and item is not value]
        constant = others[0].const if len(others) == 1 else None
        is_product = not found and node.is_op("MatMul") and node.operands[0] is value
        is_bias = len(found) == 1 and node.is_op("Add")
        if constant is None or not ((is_product and constant.rank == 2) or (is_bias and constant.rank == 1)):
            return []
        found.append(node)
        value = node.results[0]
    return []
