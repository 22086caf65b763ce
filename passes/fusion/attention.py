"""Writes attention as the one operator that ONNX Runtime computes it with.

An attention is found from its softmax (see `_attention_core`), whatever scales, masks, views and packed layers stand
around it. Where queries, keys and values are layers of one tensor, they go into `com.microsoft.Attention` with their
weights side by side, which measured fastest; else `MultiHeadAttention` takes them apart, their biases with them. What
is added to the scores is kept as it is, through the operand `attention_bias`: what a mask holds makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from graphopt import Builder, Context, Graph, Node, Value, graph_pass, symbol
from passes._proofs import HALVES
from passes.fusion import RUNTIME
from passes.fusion._attention_causal import is_unidirectional
from passes.fusion._attention_core import AttentionCore, distance, erase_unread, find_attention, replace
from passes.fusion._attention_layout import is_same
from passes.fusion._attention_masks import BiasKey, bias_key, bias_of, doubt_of, has_infinity, is_finite, seen_of
from passes.fusion._attention_operands import Cache, cache_of, given_back, operand_in_rows, operands_apart, projected
from passes.fusion._attention_projections import merged_weight
from passes.fusion._attention_standard import find_standard_attention

TARGETS = RUNTIME

MICROSOFT = "com.microsoft"
_FUSED = ("Attention", "MultiHeadAttention")


class _Made:
    """What several attentions of one graph share."""

    def __init__(self) -> None:
        self.biases: dict[BiasKey, Value] = {}
        self.seen: dict[BiasKey, Value] = {}
        self.weights: dict[tuple[object, ...], Value] = {}


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
    _fuse(graph, context, _as_attention, tells=False)


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
    _fuse(graph, context, _as_multi_head, tells=True)


@graph_pass(
    before="""(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y)
              <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float[2] c = {1,2}>
              { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
                l = MatMul(t, w)  m = Add(l, c)  y = Transpose<perm = [1,0,2]>(m) }""",
    after="""(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[B,S,2] y)
             <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}, float[2] c = {1,2}>
             { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  l = MatMul(a, w)  y = Add(l, c) }""",
    unless=[
        # Another turn, a weight for each place, and a layer that somebody else reads.
        """(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v) => (float[2,B,S] y) <float[4,2] w = {1,-2,3,-4,5,-6,7,-8}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  y = Transpose<perm = [2,1,0]>(l) }""",
        """(float[1,S,2] q, float[1,S,2] k, float[1,S,2] v) => (float[1,S,2] y) <float[1,2,2] w = {1,-2,3,-4}>
           { a = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v)  t = Transpose<perm = [1,0,2]>(a)
             l = MatMul(t, w)  y = Transpose<perm = [1,0,2]>(l) }""",
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


_Caches: TypeAlias = tuple[Cache | None, Cache | None]
_Write: TypeAlias = Callable[[AttentionCore, _Caches, Builder, Context, _Made], str]


def _fuse(graph: Graph, context: Context, write: _Write, *, tells: bool) -> None:
    """Replace every attention that can be written in one way; say why others are left alone."""
    made = _Made()
    for node in [node for node in graph.order() if node.domain == "" and node.op_type in ("Softmax", "Attention")]:
        is_softmax = node.op_type == "Softmax"
        core = find_attention(node, context, by_head=True) if is_softmax else find_standard_attention(node, context)
        reason = core if isinstance(core, str) else _fused(core, graph, context, write, made)
        scores = node.operand(0)
        if tells and reason and scores is not None and (node.op_type == "Attention" or distance(scores) < math.inf):
            context.note(f"the attention at {_label(node)} was left alone: {reason}")


def _label(node: Node) -> str:
    return node.name or node.results[0].name or "a softmax"


def _fused(core: AttentionCore, graph: Graph, context: Context, write: _Write, made: _Made) -> str:
    """Replace an attention; why not, if it is left alone."""
    caches = cache_of(core.key, core.heads), cache_of(core.value, core.heads)
    return _doubt_of(core, caches, context) or write(core, caches, context.builder(graph), context, made)


def _doubt_of(core: AttentionCore, caches: _Caches, context: Context) -> str:
    """Why no operator computes it."""
    if core.softcap:
        return "the scores are bounded by a Tanh, which neither operator does"
    query, key, value = core.sides
    for side, cache in zip((key, value), caches, strict=True):
        # Putting keys behind a cache asks for equal batches.
        batch = side.batch if cache is None else cache.new.batch
        source = side.source if cache is None else cache.new.source
        if not is_same(query.batch, batch) and query.source is not source:
            return f"queries and keys or values may be of different batches: {query.batch} and {batch}"
    if core.precision is not None and not context.target.is_cuda:
        return "the softmax is computed in another precision"
    is_half = context.target.is_cuda and core.dtype in HALVES
    if is_half and not core.is_guarded and has_infinity(core) and not _is_causal(core):
        return "a query that sees no key gives NaN, and zeros in half precision on CUDA"
    return doubt_of(core, is_loose=context.options.level == "fast-math")


def _is_causal(core: AttentionCore) -> bool:
    """True if every query sees its own position: no row is hidden throughout."""
    return is_unidirectional(core, None)


def _as_attention(core: AttentionCore, caches: _Caches, b: Builder, context: Context, made: _Made) -> str:
    if not b.target.runs("Attention", core.dtype):
        return f"{b.target.name} has no kernel of Attention for {core.dtype}"
    sizes = [core.heads * side.width for side in core.sides]
    if core.head_scales is not None:
        return "each head is scaled in its own way"
    if context.target.is_cuda and sizes[0] != sizes[2]:
        return "values have another width than keys, which Attention gets wrong on CUDA"
    parts = [projected(side, core.heads) for side in core.sides]
    known = [part for part in parts if part is not None]
    if len(known) < 3:
        return "queries, keys and values are not all layers with constant weights"
    first, rows = known[0]
    if any(item.x is not first.x for item, _ in known):
        return "queries, keys and values are layers of different tensors"
    nodes = dict.fromkeys(node for item, _ in known for node in item.nodes)
    inside = {**core.nodes, **nodes}
    for side in core.sides:
        inside.update(dict.fromkeys(layout.value.producer for layout in side.layouts))
    if any(user not in inside for node in nodes for value in node.results for user in value.users):
        return "what a layer gives is read elsewhere"
    width = first.weight.shape[1 - first.axis] if first.weight.shape is not None else None
    if not isinstance(width, int) or first.x.shape is None:
        return "shapes are unknown"
    x = operand_in_rows(b, first.x, width, rows, core.query)
    if x is None:
        return "the rows of the layers' operand have no shape that a Reshape can ask for"
    is_pure = is_unidirectional(core, None)
    bias = None if is_pure else _bias(core, b, x, (x, 1), made)
    if isinstance(bias, str):
        return bias
    weight, vector = merged_weight(b, known, core.dtype, made.weights)
    result: Value = b.microsoft.Attention(
        *_trimmed(x, weight, vector, None, None, bias),
        num_heads=core.heads,
        scale=core.scale,
        unidirectional=1 if is_pure or core.is_causal else None,
        qkv_hidden_sizes=None if sizes[0] == sizes[2] else sizes,
    )
    return _put(core, result, b, context, made, bias, is_pure)


def _as_multi_head(core: AttentionCore, caches: _Caches, b: Builder, context: Context, made: _Made) -> str:
    if not b.target.runs("MultiHeadAttention", core.dtype):
        return f"{b.target.name} has no kernel of MultiHeadAttention for {core.dtype}"
    cached = [cache for cache in caches if cache is not None and _is_returned(cache, core)]
    if len(cached) < 2 or core.query.width != core.value.width:
        cached = []
    sides = core.sides if not cached else (core.query, cached[0].new, cached[1].new)
    apart = operands_apart(core, sides, b, takes_four=not cached)
    if isinstance(apart, str):
        return apart
    is_pure = is_unidirectional(core, cached[0].past if cached else None)
    if is_pure:
        bias = None
    elif cached:
        bias = _bias(core, b, apart.query, (apart.key, apart.keys_axis), made, cached[0].past)
    else:
        bias = _bias(core, b, apart.query, (apart.key, apart.keys_axis), made)
    if isinstance(bias, str):
        return bias
    operands = [apart.query, apart.key, apart.value, apart.bias, None, bias, *(cache.past for cache in cached)]
    results = b.microsoft.MultiHeadAttention(
        *_trimmed(*operands),
        num_heads=core.heads,
        scale=core.scale,
        unidirectional=1 if is_pure or core.is_causal else None,
        outputs=3 if cached else 1,
    )
    presents = [(cache.present, new) for cache, new in zip(cached, results[1:], strict=True)] if cached else []
    return _put(core, results[0] if cached else results, b, context, made, bias, is_pure, presents)


def _is_returned(cache: Cache, core: AttentionCore) -> bool:
    """True if the whole is a result of the graph, too: the operator computes earlier and new ones only to give them."""
    inside = [*core.nodes, *(layout.value.producer for side in core.sides for layout in side.layouts)]
    others = [user for user in cache.present.users if user not in inside]
    return bool(others) and not any(user.is_operator for user in others) and cache.present.producer.graph is not None


def _trimmed(*operands: Value | None) -> list[Value | None]:
    found = list(operands)
    while found and found[-1] is None:
        found.pop()
    return found


def _bias(
    core: AttentionCore, b: Builder, query: Value, key: tuple[Value, int], made: _Made, past: Value | None = None
) -> Value | str | None:
    known = made.biases.get(bias_key(core))
    return known if known is not None else bias_of(core, b, query, key, past)


def _put(
    core: AttentionCore,
    result: Value,
    b: Builder,
    context: Context,
    made: _Made,
    bias: Value | None,
    is_pure: bool,
    presents: Sequence[tuple[Value, Value]] = (),
) -> str:
    seen = None
    if core.is_guarded and not is_pure and not is_finite(core):
        key = bias_key(core)
        seen = made.seen[key] if key in made.seen else seen_of(core, b)
        nothing = b.constant(0.0, core.dtype)
        result = b.Where(b.IsNaN(result), nothing, result) if seen is None else b.Where(seen, result, nothing)
    ended = given_back(core, result, b)
    if isinstance(ended, str):
        return ended
    layers = [node for side in core.sides for item in [projected(side, core.heads)] if item for node in item[0].nodes]
    replace(core, ended, b, context, presents, layers)
    sizes = (core.query.batch, core.query.rows, core.key.rows)
    if context.target.is_cuda and not all(dim is not None and symbol.is_positive(dim) for dim in sizes):
        context.note("on CUDA, attention as one operator takes no batch and no sequence of length 0")
    if bias is not None:
        made.biases[bias_key(core)] = bias
    if seen is not None:
        made.seen[bias_key(core)] = seen
    return ""
