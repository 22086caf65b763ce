"""Makes one layer of several that read the same value: queries, keys and values of an attention, mostly.

The weights are put side by side, and a Split gives each reader its columns. Only layers whose results meet again
before the next layer are put together, so that nothing lives longer than it did, and only where that is fewer nodes.
Sums over the same numbers may be taken in another order where the wider product is computed by other tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, Graph, Node, Tensor, Value, graph_pass
from passes._constant_products import product_of, readers, weight_of, with_bias_of
from passes._heads import Heads, has_same_types, heads_of, split
from passes._layers import LAYERS, Layer, bias_of, weight_axis
from passes._runtime_attention import is_known_to_runtime
from passes._weights import Array

_MOST_NODES = 256
"""How far is looked for the next layer."""
_LARGEST = 1 << 28
"""Bytes of the largest weight that is made."""
_READERS = frozenset(("Concat", "Gather", "MatMul", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
"""What may read a part of a merged layer: nothing that a runtime makes one operator of with the layer."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the layers.

    Attributes:
        layer: The layer.
        result: What it gives, bias included.
        add: The node that adds the bias behind a MatMul.
    """

    layer: Layer
    result: Value
    add: Node | None

    @property
    def width(self) -> int:
        """How many output channels it has."""
        return self.layer.channels or 0

    @property
    def is_biased(self) -> bool:
        """True if it adds something."""
        return self.layer.bias is not None or self.layer.node.operand(2) is not None


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
    found: dict[tuple[object, ...], list[_Part]] = {}
    nodes = [node for op_type in ("MatMul", "Gemm") for node in graph.of_kind(op_type)]
    by_value: dict[Value, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        x = node.operand(0)
        if x is not None and x.const is None and len(x.uses) > 1:
            by_value.setdefault(x, []).append(node)
    for alike in by_value.values():
        if len(alike) < 2:
            continue
        for part in filter(None, (_part(node, graph, context) for node in alike)):
            ends = _next_layers(part.result, graph)
            if ends:
                found.setdefault((_kind(part), ends, part.layer.operand), []).append(part)
    merged: dict[tuple[Value, ...], Value] = {}
    for parts in found.values():
        if len(parts) > 1:
            _merge(graph, context, parts, merged)


def _part(node: Node, graph: Graph, context: Context) -> _Part | None:
    """The layer a node is, if nobody else reads what would go away."""
    layer = None if node.is_pinned or context.keeps(node) else product_of(node)
    if layer is None:
        return None
    if node.op_type == "Gemm":
        is_plain = node.param("transA") == 0 and node.param("alpha") == 1.0 and node.param("beta") == 1.0
        return _Part(layer, node.results[0], None) if is_plain and bias_of(layer) is not None else None
    use = node.results[0].sole_use()
    add = None if use is None or use[0].graph is not graph or use[0].is_pinned or context.keeps(use[0]) else use[0]
    biased = None if add is None else with_bias_of(layer, add)
    if add is None or biased is None:
        return _Part(layer, node.results[0], None)
    return _Part(biased, add.results[0], add)


def _kind(part: _Part) -> tuple[object, ...]:
    """What layers must have in common."""
    node, weight = part.layer.node, part.layer.weight
    axis = weight_axis(part.layer)
    return (node.op_type, weight.dtype, axis, weight.shape[1 - axis], part.result.rank)


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


def _merge(graph: Graph, context: Context, parts: list[_Part], merged: dict[tuple[Value, ...], Value]) -> None:
    """Merge layers, unless that saves nothing; those that share their weights share the new one, too."""
    nodes = [part.layer.node for part in parts]
    if any(node.graph is not graph for node in nodes) or len({part.result for part in parts}) < len(parts):
        return
    if not _are_shared_alike(parts):
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
    whole = _built(b, parts, merged)
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


def _are_shared_alike(parts: list[_Part]) -> bool:
    """True if whoever reads one of the weights reads them all, so that none of them stays."""
    weights = [weight_of(part.layer) for part in parts]
    if len(set(weights)) < len(weights):
        return False
    shared = [[node.operands[0] for node in readers(weight)] for weight in weights]
    places = [sorted((x.producer.serial, x.index) for x in found if x is not None) for found in shared]
    return bool(places[0]) and all(item == places[0] for item in places)


def _built(b: Builder, parts: list[_Part], merged: dict[tuple[Value, ...], Value]) -> Value:
    """The layer of all output channels."""
    first = parts[0].layer
    axis = weight_axis(first)
    tensors = [part.layer.weight for part in parts]
    shape = list(first.weight.shape)
    shape[axis] = sum(part.width for part in parts)
    key = tuple(weight_of(part.layer) for part in parts)
    weight = merged.get(key)
    if weight is None:
        # Put together when it is read, and not held: all of them would be a copy of the model.
        weight = b.constant(Tensor.computed(first.dtype, tuple(shape), lambda: _joined(tensors, axis)))
    is_biased = any(part.is_biased for part in parts)
    bias = Tensor.from_numpy(np.concatenate([_bias(part) for part in parts]).astype(first.dtype.numpy), first.dtype)
    operands = [first.operand, weight]
    if first.node.op_type == "Gemm":
        gemm: Value = b.like(first.node, *operands, *([b.constant(bias)] if is_biased else []))
        return gemm
    product: Value = b.like(first.node, *operands)
    result: Value = b.Add(product, bias) if is_biased else product
    return result


def _joined(tensors: Sequence[Tensor], axis: int) -> Array:
    return np.concatenate([tensor.numpy() for tensor in tensors], axis=axis)


def _bias(part: _Part) -> Array:
    """What a layer adds to each of its channels; its numbers as they are."""
    bias = bias_of(part.layer)
    return np.zeros(part.width) if bias is None else np.asarray(np.broadcast_to(bias, (part.width,)))
