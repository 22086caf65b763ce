"""Merges scales that meet through a matrix product or an operator that only moves data.

Exporters of attention scale the queries and the keys, or the queries and the products: `(q * s) @ (k * s)` needs one
scale. The one that is left stands where the first one met stood, so that nothing is computed unscaled that was not.
"""

from __future__ import annotations

import numpy as np

from graphopt import Context, DType, Graph, Node, Tensor, Value, graph_pass
from passes import _merging as merging
from passes._proofs import HALVES

_MOVERS = ("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""They move the elements of operand 0; a scale may stand on either side of them."""
_LONGEST = 16
_SPAN = 2.0**14
"""Halves have few exponents: a merged scale further from 1 than this could make numbers vanish on the way."""


@graph_pass(
    before="""(float[N,M,4] q, float[N,M,4] k) => (float[N,M,L] y) <float a = {0.5}, float c = {0.25}>
              { t = Transpose<perm = [0,2,1]>(k)  s = Mul(q, a)  r = Mul(t, c)  y = MatMul(s, r) }""",
    after="""(float[N,M,4] q, float[N,M,4] k) => (float[N,M,L] y) <float a = {0.125}>
             { t = Transpose<perm = [0,2,1]>(k)  s = Mul(q, a)  y = MatMul(s, t) }""",
    unless=[
        """(float[2,4] q, float[4,2] k) => (float[2,2] y) <float[4] a = {1,2,3,4}, float c = {0.25}>
           { s = Mul(q, a)  r = Mul(k, c)  y = MatMul(s, r) }""",
        """(float[2,4] q, float[4,2] k) => (float[2,2] y, float[2,4] s) <float a = {0.5}, float c = {0.25}>
           { s = Mul(q, a)  r = Mul(k, c)  y = MatMul(s, r) }""",
        """(float[2,4] q, float[4,2] k) => (float[2,2] y) <float a = {1e-30}, float c = {1e-30}>
           { s = Mul(q, a)  r = Mul(k, c)  y = MatMul(s, r) }""",
        """(int32[2,4] q, int32[4,2] k) => (int32[2,2] y) <int32 a = {2}, int32 c = {3}>
           { s = Mul(q, a)  r = Mul(k, c)  y = MatMul(s, r) }""",
        """(float[4] q) => (float[1,4] y) <float a = {0.5}, float[1,1] c = {0.25}>
           { s = Mul(q, a)  t = Identity(s)  y = Mul(t, c) }""",
        """(float[4] q) => (float[4] y) <float a = {0.5}, float c = {0.25}>
           { s = Mul(q, a)  t = Exp(s)  y = Mul(t, c) }""",
    ],
    numeric="R",
)
def merge_meeting_scales(graph: Graph, context: Context) -> None:
    """Two scalar factors that meet through a MatMul or through views are one."""
    nodes = [node for op_type in ("MatMul", "Mul", "Div") for node in graph.of_kind(op_type)]
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        if node.graph is not graph or context.keeps(node):
            continue
        if node.op_type == "MatMul":
            _merge_sides(graph, context, node)
        else:
            _merge_above(graph, context, node)


def _merge_sides(graph: Graph, context: Context, product: Node) -> None:
    """Of a scale on either side of a product, keep the left one."""
    left, right = (_scale_above(graph, product, side, through_products=False) for side in (0, 1))
    if left is None or right is None or left is right:
        return
    scale = _merged(left, right)
    if scale is not None and not context.keeps(left) and not context.keeps(right):
        with context.rewrite(graph):
            _rescale(graph, context, left, scale)
            _drop(graph, right)


def _merge_above(graph: Graph, context: Context, scale: Node) -> None:
    """A scale below another that is reached through views or a product goes into that one."""
    place = _scaled_operand(scale)
    if place is None or scale.is_pinned:
        return
    above = _scale_above(graph, scale, place, through_products=True)
    if above is None or above.result.sole_use() == (scale, place):
        return  # where both touch, `constant_chains` merges them
    merged = _merged(above, scale)
    if merged is not None and not context.keeps(above):
        with context.rewrite(graph):
            _rescale(graph, context, above, merged)
            _drop(graph, scale)


def _scale_above(graph: Graph, node: Node, place: int, *, through_products: bool) -> Node | None:
    """The next scale above an operand that nobody else sees on the way."""
    for _ in range(_LONGEST):
        value = node.operand(place)
        if value is None or value.sole_use() != (node, place) or value.producer.graph is not graph:
            return None
        node = value.producer
        if node.domain != "" or not node.is_operator or node.is_pinned:
            return None
        if _scaled_operand(node) is not None:
            return node
        if node.is_op("MatMul") and through_products:
            if value.dtype in HALVES:
                return None
            found = _scale_above(graph, node, 0, through_products=False)
            return found or _scale_above(graph, node, 1, through_products=False)
        if node.op_type not in _MOVERS:
            return None
        place = 0
    return None


def _scaled_operand(node: Node) -> int | None:
    """Where a multiplication or division by one stored number has its other operand; None if it is no such."""
    if node.op_type not in ("Mul", "Div") or not node.has_latest_meaning or node.result.dtype is None:
        return None
    if not node.result.dtype.is_float:
        return None
    for place, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        value, factor = node.operand(place), node.operand(other)
        if value is None or factor is None or value.const is not None or factor.const is None:
            continue
        rank = value.rank
        if factor.const.size == 1 and rank is not None and factor.const.rank <= rank and merging.is_ordinary(factor):
            return place
    return None


def _factor(node: Node) -> float:
    """The number a scale multiplies by."""
    place = _scaled_operand(node)
    assert place is not None
    factor = node.operands[1 - place]
    assert factor is not None
    assert factor.const is not None
    number = float(factor.const.scalar())
    return 1 / number if node.op_type == "Div" else number


def _merged(first: Node, second: Node) -> Tensor | None:
    """The product of two scales in their type; None if it is no ordinary number there."""
    dtype = first.result.dtype
    if dtype is None or dtype is not second.result.dtype:
        return None
    number = _factor(first) * _factor(second)
    if dtype in HALVES and not 1 / _SPAN <= abs(number) <= _SPAN:
        return None
    least, greatest = (1e-300, 1e300) if dtype is DType.DOUBLE else (1e-30, 1e30)
    if not least <= abs(number) <= greatest or dtype.bits < 16:
        return None
    return Tensor.from_numpy(np.array(number).astype(dtype.numpy), dtype)


def _rescale(graph: Graph, context: Context, node: Node, scale: Tensor) -> None:
    """Let a scale multiply by another number."""
    place = _scaled_operand(node)
    assert place is not None
    value = node.operands[place]
    assert value is not None
    builder = context.builder(graph)
    made: Value = builder.Mul(value, builder.constant(scale))
    made.producer.name = node.name
    for part in builder.nodes:
        graph.insert(part, rank=node.rank)
    graph.replace_uses(node.result, made)
    graph.erase(node)


def _drop(graph: Graph, node: Node) -> None:
    place = _scaled_operand(node)
    assert place is not None
    value = node.operands[place]
    assert value is not None
    graph.replace_uses(node.result, value)
    graph.erase(node)
