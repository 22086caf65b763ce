"""Folds the scale of an attention into the layer that makes its queries, or its keys.

Scores are products of queries and keys, times one number. The number goes through the product, through the views that
make heads and through rotary embeddings into the weight and bias of the layer behind them, and no operator is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from graphopt import Builder, Context, Graph, Miss, Node, Tensor, Value, graph_pass
from passes import _merging as merging
from passes._constant_products import weight_of
from passes._layers import with_output
from passes._linear_regions import Root, root_of
from passes._proofs import HALVES
from passes._runtime_attention import is_known_to_runtime, is_masked_as_known
from passes._weights import Array, rounded, scaled

_MOVERS = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LONGEST = 4
_SMALL = 1 << 16
"""Bytes of a weight that is copied because somebody else reads it too: one node is not worth more."""


@graph_pass(
    before="""(float[N,M,2] x, float[N,2,L] k) => (float[N,M,L] y)
              <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float f = {4}>
              { p = MatMul(x, w)  q = Add(p, b)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
    after="""(float[N,M,2] x, float[N,2,L] k) => (float[N,M,L] y)
             <float[2,2] w = {0.25,0.5,0.75,1}, float[2] b = {0.25,0.5}>
             { p = MatMul(x, w)  q = Add(p, b)  s = MatMul(q, k)  y = Softmax(s) }""",
    unless=[
        # Queries that somebody else reads.
        """(float[N,M,2] x, float[N,2,L] k) => (float[N,M,L] y, float[N,M,2] q)
           <float[2,2] w = {1,2,3,4}, float f = {4}>
           { q = MatMul(x, w)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
        # Queries that are the keys as well.
        """(float[N,2,2] x) => (float[N,2,2] y) <float[2,2] w = {1,2,3,4}, float f = {4}>
           { q = MatMul(x, w)  s = MatMul(q, q)  t = Div(s, f)  y = Softmax(t) }""",
        # Not one number for all.
        """(float[N,M,2] x, float[N,2,2] k) => (float[N,M,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {4,5}>
           { q = MatMul(x, w)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
        # Something is added on the way.
        """(float[N,M,2] x, float[N,2,L] k, float[2] b) => (float[N,M,L] y) <float[2,2] w = {1,2,3,4}, float f = {4}>
           { p = MatMul(x, w)  q = Add(p, b)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
        """(float[N,M,2] x, float[N,2,L] k, float[2,2] w) => (float[N,M,L] y) <float f = {4}>
           { q = MatMul(x, w)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
        """(float[N,M,2] x, float[N,2,L] k) => (float[N,M,L] y)
           <float[2,2] w = {1e-20,2e-20,3e-20,4e-20}, float f = {1e24}>
           { q = MatMul(x, w)  s = MatMul(q, k)  t = Div(s, f)  y = Softmax(t) }""",
        # An attention that the runtime makes one operator of.
        """(float[N,M,2] x, float[N,2,L] k, float[N,1,L] m) => (float[N,M,L] y)
           <float[2,2] w = {1,2,3,4}, float f = {4}, float g = {-10000}>
           { q = MatMul(x, w)  s = MatMul(q, k)  t = Div(s, f)  n = Mul(m, g)  u = Add(t, n)  y = Softmax(u) }""",
    ],
    numeric="R",
)
def scale_into_projection(graph: Graph, context: Context) -> None:
    """One factor behind a product goes into the layer that makes one of its operands."""
    _fold_all(graph, context, _scales_of_products)


@graph_pass(
    before="""(float[N,M,2] x) => (float[N,M,2] y, float[N,M,1] z)
              <float[2,3] w = {1,2,3,4,5,6}, float[3] b = {1,2,3}, int64[2] s = {2,1}, float f = {0.5}>
              { p = MatMul(x, w)  a = Add(p, b)  q, z = Split<axis = 2>(a, s)  t = Mul(q, f)  y = Relu(t) }""",
    after="""(float[N,M,2] x) => (float[N,M,2] y, float[N,M,1] z)
             <float[2,3] w = {0.5,1,3,2,2.5,6}, float[3] b = {0.5,1,3}, int64[2] s = {2,1}>
             { p = MatMul(x, w)  a = Add(p, b)  q, z = Split<axis = 2>(a, s)  y = Relu(q) }""",
    unless=[
        """(float[N,M,2] x) => (float[N,M,2] y, float[N,M,1] z, float[N,M,2] q)
           <float[2,3] w = {1,2,3,4,5,6}, int64[2] s = {2,1}, float f = {0.5}>
           { a = MatMul(x, w)  q, z = Split<axis = 2>(a, s)  t = Mul(q, f)  y = Relu(t) }""",
        # Parts of rows, not of channels.
        """(float[N,4,2] x) => (float[N,2,3] y, float[N,2,3] z)
           <float[2,3] w = {1,2,3,4,5,6}, int64[2] s = {2,2}, float f = {0.5}>
           { a = MatMul(x, w)  q, z = Split<axis = 1>(a, s)  t = Mul(q, f)  y = Relu(t) }""",
        # What a Gelu consists of stays where the runtime looks for it.
        """(float[N,2] x) => (float[N,2] y, float[N,1] z)
           <float[2,3] w = {1,2,3,4,5,6}, int64[2] s = {2,1}, float f = {0.70710677}>
           { a = MatMul(x, w)  q, z = Split<axis = 1>(a, s)  t = Mul(q, f)  e = Erf(t)  y = Mul(q, e) }""",
    ],
    numeric="R",
)
def scale_into_packed_projection(graph: Graph, context: Context) -> None:
    """One factor of a part of a layer's result goes into the columns that make the part."""
    _fold_all(graph, context, _scales_of_parts)


def _scales_of_products(graph: Graph, context: Context, node: Node) -> Iterator[Root]:
    """Layers that may take a scale behind a product, those of its first operand first."""
    product = _product(node)
    if product is None or is_masked_as_known(product.results[0]):
        return
    for value in product.operands:
        root = None if value is None or value.const is not None else root_of(value, product, graph, context)
        if root is not None:
            yield root


def _scales_of_parts(graph: Graph, context: Context, node: Node) -> Iterator[Root]:
    """The layer that may take the scale of one of its parts; what is scaled as a whole is for others."""
    value = _scaled(node)
    root = None if value is None else root_of(value, node, graph, context)
    if root is not None and not root.columns.all() and not is_known_to_runtime((node,)):
        yield root


def _fold_all(graph: Graph, context: Context, roots: Callable[[Graph, Context, Node], Iterator[Root]]) -> None:
    """Fold every scale that can be; those of layers that share a weight all together, or none."""
    nodes = [node for op_type in ("Mul", "Div") for node in graph.of_kind(op_type)]
    shared: dict[Value, list[tuple[Node, Root]]] = {}
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        if node.graph is not graph or node.is_pinned or context.keeps(node):
            continue
        for root in roots(graph, context, node):
            weight = weight_of(root.layer)
            if len(weight.uses) > 1 and not _is_small(weight):
                shared.setdefault(weight, []).append((node, root))
                break
            if _fold(graph, context, node, root, {}):
                break
    for weight, group in shared.items():
        if (
            len(group) == len(weight.uses)
            and len({(_number(node), root.columns.tobytes()) for node, root in group}) == 1
        ):
            made: dict[Value, Value] = {}
            if all(node.graph is graph and root.layer.node.graph is graph for node, root in group):
                for node, root in group:
                    if not _fold(graph, context, node, root, made):
                        break


def _is_small(weight: Value) -> bool:
    return weight.const is not None and weight.const.nbytes <= _SMALL


def _scaled(node: Node) -> Value | None:
    """What one ordinary number scales; None if it is no such scale."""
    dtype = node.results[0].dtype
    if not node.has_latest_meaning or dtype is None or not dtype.is_float:
        return None
    for place, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        value, factor = node.operand(place), node.operand(other)
        if value is None or factor is None or factor.const is None or value.const is not None:
            continue
        if factor.const.size == 1 and value.rank is not None and factor.const.rank <= value.rank:
            return value if value.sole_use() == (node, place) and merging.is_ordinary(factor) else None
    return None


def _number(node: Node) -> float:
    """The number that a scale multiplies by."""
    factor = next(value.const for value in node.operands if value is not None and value.const is not None)
    assert factor is not None
    number = float(factor.scalar())
    return 1 / number if node.op_type == "Div" else number


def _product(scale: Node) -> Node | None:
    """The product of two computed values that is scaled, if nobody sees it before."""
    value = _scaled(scale)
    for _ in range(_LONGEST):
        if value is None or value.producer.graph is not scale.graph or value.sole_use() is None:
            return None
        node = value.producer
        if node.is_op("MatMul"):
            return node if all(item is not None and item.const is None for item in node.operands) else None
        if node.op_type not in _MOVERS or node.is_pinned:
            return None
        value = node.operand(0)
    return None


def _fold(graph: Graph, context: Context, scale: Node, root: Root, made: dict[Value, Value]) -> bool:
    """Let a layer do what a scale does; False if its numbers do not allow it."""
    value, number = _scaled(scale), _number(scale)
    if value is None or value.dtype is not root.layer.dtype:
        return False
    if root.layer.dtype in HALVES and abs(number) > 1:
        return False  # what would not overflow before the product could
    b = context.builder(graph)
    result = _layer_times(b, root, number, made)
    if result is None:
        return False
    result.producer.name = root.nodes[0].name
    with context.rewrite(graph):
        for node in b.nodes:
            graph.insert(node, rank=root.nodes[0].rank)
        graph.replace_uses(root.result, result)
        for node in root.nodes:
            graph.erase(node)
        graph.replace_uses(scale.results[0], value)
        graph.erase(scale)
    return True


def _layer_times(b: Builder, root: Root, number: float, made: dict[Value, Value]) -> Value | None:
    """The layer with some of its channels scaled; None if that loses precision."""
    layer = root.layer
    factor = np.where(root.columns, number, 1.0)
    if layer.node.op_type != "MatMul" or layer.place != 1:
        result = with_output(layer, b, factor, None)
        return None if isinstance(result, Miss) else result
    old = weight_of(layer)
    bias = None if layer.bias is None else rounded(np.broadcast_to(layer.bias, factor.shape) * factor, layer.dtype)
    if layer.bias is not None and bias is None:
        return None
    if old not in made:
        tensor = _weight_times(layer.weight, root.columns, number)
        if tensor is None:
            return None
        made[old] = b.constant(tensor)
    product: Value = b.like(layer.node, layer.operand, made[old])
    biased: Value = product if bias is None else b.Add(product, bias)
    return biased


def _weight_times(weight: Tensor, columns: Array, number: float) -> Tensor | None:
    """A matrix with some of its columns scaled."""
    array = weight.numpy()
    part = scaled(Tensor.from_numpy(array[:, columns], weight.dtype), np.array(number), 1)
    if part is None or columns.all():
        return part
    whole = array.copy()
    whole[:, columns] = part.numpy()
    return Tensor.from_numpy(whole, weight.dtype)
