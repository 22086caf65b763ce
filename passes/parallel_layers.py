"""Makes one layer of several that read the same value: queries, keys and values of an attention, mostly.

The weights are put side by side, and a Split gives each reader its columns. Only layers whose results meet again
before the next layer are put together, so that nothing lives longer than it did, and only where that is fewer nodes.
Sums over the same numbers may be taken in another order where the wider product is computed by other tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._constant_products import weight_of
from passes._heads import Heads, has_same_types, heads_of, split
from passes._layers import LAYERS
from passes._parallel_parts import Part, are_shared_alike, built, kind_of, part_of
from passes._runtime_attention import is_known_to_runtime

_MOST_NODES = 256
"""How far is looked for the next layer."""
_LARGEST = 1 << 28
"""Bytes of the largest weight that is made."""
_READERS = frozenset(("Concat", "Gather", "MatMul", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
"""What may read a part of a merged layer: nothing that a runtime makes one operator of with the layer."""


@graph_pass(
    before="""(float[N,M,2] x) => (float[N,M,2] y)
              <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,1] c = {-1,2},
               float[2] i = {1,2}, float[2] j = {3,4}, float[1] k = {5}, float[1,2] o = {1,-1}>
              { p = MatMul(x, a)  q = Add(p, i)  r = MatMul(x, b)  s = Add(j, r)  t = MatMul(x, c)  u = Sub(t, k)
                v = Transpose<perm = [0,2,1]>(s)  w = MatMul(q, v)  z = MatMul(w, u)  y = MatMul(z, o) }""",
    after="""(float[N,M,2] x) => (float[N,M,2] y)
             <float[2,5] a = {1,2,5,6,-1, 3,4,7,8,2}, float[5] i = {1,2,3,4,-5}, float[1,2] o = {1,-1},
              int64[3] d = {2,2,1}>
             { p = MatMul(x, a)  f = Add(p, i)  q, s, u = Split<axis = 2>(f, d)
               v = Transpose<perm = [0,2,1]>(s)  w = MatMul(q, v)  z = MatMul(w, u)  y = MatMul(z, o) }""",
    unless=[
        # One more operator than there is.
        """(float[N,M,2] x) => (float[N,2,2] y)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,2] o = {1,2,3,4}>
           { p = MatMul(x, a)  q = MatMul(x, b)  v = Transpose<perm = [0,2,1]>(p)  w = MatMul(v, q)
             y = MatMul(w, o) }""",
        # They read different values.
        """(float[N,M,2] x, float[N,M,2] z) => (float[N,2,2] y)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,2] o = {1,2,3,4}, float[2] i = {1,2}>
           { p = MatMul(x, a)  f = Add(p, i)  q = MatMul(z, b)  g = Add(q, i)
             v = Transpose<perm = [0,2,1]>(f)  w = MatMul(v, g)  y = MatMul(w, o) }""",
        # A weight that somebody else reads, and one that the caller may override.
        """(float[N,M,2] x) => (float[N,2,2] y, float[2,2] h)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,2] o = {1,2,3,4}, float[2] i = {1,2}>
           { p = MatMul(x, a)  f = Add(p, i)  q = MatMul(x, b)  g = Add(q, i)  h = Relu(a)
             v = Transpose<perm = [0,2,1]>(f)  w = MatMul(v, g)  y = MatMul(w, o) }""",
        """(float[N,M,2] x, float[2,2] a = {1,2,3,4}) => (float[N,2,2] y)
           <float[2,2] b = {5,6,7,8}, float[2,2] o = {1,2,3,4}, float[2] i = {1,2}>
           { p = MatMul(x, a)  f = Add(p, i)  q = MatMul(x, b)  g = Add(q, i)
             v = Transpose<perm = [0,2,1]>(f)  w = MatMul(v, g)  y = MatMul(w, o) }""",
        # The runtime makes one operator of a layer with its activation.
        """(float[N,M,2] x) => (float[N,M,2] y)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,2] o = {1,2,3,4}, float[2] i = {1,2}>
           { p = MatMul(x, a)  f = Add(p, i)  q = MatMul(x, b)  g = Add(q, i)
             v = Sigmoid(f)  w = Mul(v, g)  y = MatMul(w, o) }""",
        # Their results never meet.
        """(float[N,M,2] x) => (float[N,2,M] y, float[N,2,M] z)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2] i = {1,2}>
           { p = MatMul(x, a)  f = Add(p, i)  q = MatMul(x, b)  g = Add(q, i)
             y = Transpose<perm = [0,2,1]>(f)  z = Transpose<perm = [0,2,1]>(g) }""",
        # An attention that the runtime makes one operator of.
        """(float[N,M,4] x, float[N,1,1,M] m) => (float[N,M,4] y)
           <float[4,4] a = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, float[4,4] b = {5,6,7,8,9,1,2,3,4,5,6,7,1,2,3,4},
            float[4,4] c = {9,1,2,3,4,5,6,7,1,2,3,4,5,6,7,8}, float[4] i = {1,2,3,4}, int64[4] s = {0,0,2,2},
            float d = {1.4142135}, float f = {-10000}, float[4,4] o = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7},
            int64[3] e = {0,0,4}>
           { p = MatMul(x, a)  pi = Add(p, i)  ps = Reshape(pi, s)  pt = Transpose<perm = [0,2,1,3]>(ps)
             q = MatMul(x, b)  qi = Add(q, i)  qs = Reshape(qi, s)  qt = Transpose<perm = [0,2,3,1]>(qs)
             r = MatMul(x, c)  ri = Add(r, i)  rs = Reshape(ri, s)  rt = Transpose<perm = [0,2,1,3]>(rs)
             t = MatMul(pt, qt)  u = Div(t, d)  n = Mul(m, f)  v = Add(u, n)  w = Softmax<axis = 3>(v)
             z = MatMul(w, rt)  k = Transpose<perm = [0,2,1,3]>(z)  l = Reshape(k, e)  y = MatMul(l, o) }""",
    ],
    numeric="R",
)
def one_layer(graph: Graph, context: Context) -> None:
    """Layers of one value are one layer with a Split behind it."""
    found: dict[tuple[object, ...], list[Part]] = {}
    nodes = [node for op_type in ("MatMul", "Gemm") for node in graph.of_kind(op_type)]
    by_value: dict[Value, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        x = node.operand(0)
        if x is not None and x.const is None and len(x.uses) > 1:
            by_value.setdefault(x, []).append(node)
    for alike in by_value.values():
        if len(alike) < 2:
            continue
        for part in filter(None, (part_of(node, graph, context) for node in alike)):
            ends = _next_layers(part.result, graph)
            if ends:
                found.setdefault((kind_of(part), ends, part.layer.operand), []).append(part)
    merged: dict[tuple[Value, ...], Value] = {}
    for parts in found.values():
        if len(parts) > 1:
            _merge(graph, context, parts, merged)


def _next_layers(value: Value, graph: Graph) -> tuple[int, ...]:
    """The layers with constant weights that are reached from a value without passing one, by their numbers."""
    seen: dict[Node, None] = {}
    front, ends = [value], dict[int, None]()
    while front:
        for node in front.pop().users:
            if node in seen:
                continue
            seen[node] = None
            if len(seen) > _MOST_NODES:
                return ()
            weight = node.operands[1] if len(node.operands) > 1 else None
            if node.op_type in LAYERS and weight is not None and weight.const is not None:
                ends[node.serial] = None
            elif node.graph is graph:
                front.extend(node.results)
    return tuple(sorted(ends))


def _merge(graph: Graph, context: Context, parts: list[Part], merged: dict[tuple[Value, ...], Value]) -> None:
    """Merge layers, unless that saves nothing; those that share their weights share the new one, too."""
    nodes = [part.layer.node for part in parts]
    if any(node.graph is not graph for node in nodes) or len({part.result for part in parts}) < len(parts):
        return
    if not are_shared_alike(parts):
        return
    if sum(part.layer.weight.nbytes for part in parts) > _LARGEST:
        context.note("layers that read the same value were left apart: their weights are very large")
        return
    results, widths = [part.result for part in parts], [part.width for part in parts]
    heads = heads_of(results, widths, graph, context)
    adds = sum(part.add is not None for part in parts)
    saved = len(parts) + adds - 2 - bool(adds)
    if heads is not None and heads.saved > 0:
        saved += heads.saved
    elif any(user.op_type not in _READERS for result in results for user in result.users):
        return
    else:
        heads = None
    if saved < 1 or _is_fused(heads, results):
        return
    b = context.builder(graph)
    whole = built(b, parts, merged)
    values = split(b, whole, widths, (results[0].rank or 1) - 1) if heads is None else heads.build(b, whole)
    olds = results if heads is None else [view.results[0] for view in heads.last]
    if not all(map(has_same_types, olds, values)):
        return
    rank = min(node.rank for node in nodes)
    gone = [*(heads.nodes if heads is not None else ()), *(part.add for part in parts if part.add), *nodes]
    with context.rewrite(graph):
        for made in b.nodes:
            graph.insert(made, rank=rank)
        layer = next(made for made in b.nodes if made.op_type == nodes[0].op_type)
        merged[tuple(weight_of(part.layer) for part in parts)] = layer.operands[1]  # type: ignore[assignment]
        for old, new in zip(olds, values, strict=True):
            graph.replace_uses(old, new)
        for node in gone:
            graph.erase(node)


def _is_fused(heads: Heads | None, results: Sequence[Value]) -> bool:
    """True if the runtime would make one operator of an attention that reads these."""
    if heads is not None:
        return is_known_to_runtime(heads.last)
    views = [node for result in results for view in result.users for node in view.results[0].users]
    return is_known_to_runtime(node for node in views if node.is_op("Transpose"))
