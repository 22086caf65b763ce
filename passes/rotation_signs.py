"""Moves the signs of rotated halves into the factor they share.

Rotary embeddings compute `concat(-b, a) * sin` in every layer, for queries and keys, with one `sin` for all. Changing
the sign of one half of `sin` once makes the negations unnecessary.
"""

from __future__ import annotations

import numpy as np

from graphopt import Context, DType, Graph, Model, Node, Options, Value, graph_pass
from passes._proofs import HALVES

Signs = tuple[int, tuple[tuple[int, bool], ...]]
"""An axis counted from the end, and for each part along it its size and whether it is negated."""

_LARGEST = 1 << 12
"""Elements of the constant of signs."""

_BEFORE = """(float[N,2,4] x, float[N,2,4] z, float[N,1,4] s) => (float[N,2,4] y, float[N,2,4] w)
             { a, b = Split<axis = 2, num_outputs = 2>(x)  n = Neg(b)  c = Concat<axis = 2>(n, a)  y = Mul(c, s)
               d, e = Split<axis = 2, num_outputs = 2>(z)  m = Neg(e)  f = Concat<axis = -1>(m, d)  w = Mul(s, f) }"""
_AFTER = """(float[N,2,4] x, float[N,2,4] z, float[N,1,4] s) => (float[N,2,4] y, float[N,2,4] w)
            <float[4] signs = {-1.0,-1.0,1.0,1.0}>
            { r = Mul(s, signs)
              a, b = Split<axis = 2, num_outputs = 2>(x)  c = Concat<axis = 2>(b, a)  y = Mul(c, r)
              d, e = Split<axis = 2, num_outputs = 2>(z)  f = Concat<axis = -1>(e, d)  w = Mul(r, f) }"""


def is_asked(model: Model, options: Options) -> bool:
    """Only where no rotary embedding of the runtime's own takes its place, which is known by the negations."""
    return options.target == "portable"


@graph_pass(
    before=_BEFORE,
    after=_AFTER,
    unless=[
        """(float[2,2,4] x, float[2,1,4] s) => (float[2,2,4] y)
           { a, b = Split<axis = 2, num_outputs = 2>(x)  n = Neg(b)  c = Concat<axis = 2>(n, a)  y = Mul(c, s) }""",
        """(float[2,2,4] x, float[2,2,4] z, float[2,1,1] s) => (float[2,2,4] y, float[2,2,4] w)
           { a, b = Split<axis = 2, num_outputs = 2>(x)  n = Neg(b)  c = Concat<axis = 2>(n, a)  y = Mul(c, s)
             d, e = Split<axis = 2, num_outputs = 2>(z)  m = Neg(e)  f = Concat<axis = -1>(m, d)  w = Mul(s, f) }""",
        """(float[2,2,4] x, float[2,2,4] z, float[2,1,4] s) => (float[2,2,4] y, float[2,2,4] w)
           { a, b = Split<axis = 2, num_outputs = 2>(x)  n = Neg(b)  c = Concat<axis = 2>(n, a)  y = Mul(c, s)
             d, e = Split<axis = 2, num_outputs = 2>(z)  m = Neg(e)  f = Concat<axis = 2>(d, m)  w = Mul(s, f) }""",
    ],
    numeric="Z",
)
def share_signs(graph: Graph, context: Context) -> None:
    """Signs of parts that are multiplied by one value go into that value, once; only signs of NaNs can differ."""
    _move_signs(graph, context, frozenset((DType.FLOAT, DType.DOUBLE)))


@graph_pass(
    before=_BEFORE.replace("float", "float16"),
    after=_AFTER.replace("float", "float16").replace("-1.0", "48128").replace("1.0", "15360"),
    numeric="R",
)
def share_signs_of_halves(graph: Graph, context: Context) -> None:
    """For halves: signs of parts that are multiplied by one value go into that value, once."""
    _move_signs(graph, context, HALVES)


def _move_signs(graph: Graph, context: Context, dtypes: frozenset[DType]) -> None:
    groups: dict[tuple[Value, Signs], list[Node]] = {}
    for product in graph.of_kind("Mul"):
        if product.result.dtype not in dtypes or len(product.operands) != 2 or _stays(context, product):
            continue
        for place in (0, 1):
            factor, concat = product.operands[1 - place], product.operands[place]
            if factor is None or concat is None or concat.sole_use() != (product, place):
                continue
            signs = _signs(graph, context, concat.producer)
            if signs is not None and _spans(factor, signs):
                groups.setdefault((factor, signs), []).append(product)
                break
    for (factor, signs), products in groups.items():
        # One operator more for the signs, at least one less for every product.
        if len(products) * sum(negated for _, negated in signs[1]) > 1:
            _rewrite(graph, context, factor, signs, products)


def _signs(graph: Graph, context: Context, concat: Node) -> Signs | None:
    """Which parts of a Concat are negated by private operators."""
    rank, axis = concat.results[0].rank, concat.attributes.get("axis")
    if not concat.is_op("Concat") or concat.graph is not graph or _stays(context, concat):
        return None
    if rank is None or not isinstance(axis, int) or not -rank <= axis < rank:
        return None
    parts = []
    for place, value in enumerate(concat.operands):
        size = None if value is None or value.shape is None else value.shape[axis]
        if value is None or not isinstance(size, int):
            return None
        maker = value.producer
        is_own = value.sole_use() == (concat, place) and maker.graph is graph and not _stays(context, maker)
        parts.append((size, maker.is_op("Neg") and is_own))
    return (rank - axis % rank, tuple(parts)) if any(negated for _, negated in parts) else None


def _spans(factor: Value, signs: Signs) -> bool:
    """True if a factor has an element of its own for each place along the axis."""
    axis, parts = signs
    total = sum(size for size, _ in parts)
    if factor.shape is None or len(factor.shape) < axis or factor.const is not None or total > _LARGEST:
        return False
    return factor.shape[-axis] == total


def _stays(context: Context, node: Node) -> bool:
    return node.is_pinned or context.keeps(node)


def _rewrite(graph: Graph, context: Context, factor: Value, signs: Signs, products: list[Node]) -> None:
    axis, parts = signs
    row = np.concatenate([np.full(size, -1.0 if negated else 1.0) for size, negated in parts])
    assert factor.dtype is not None
    builder = context.builder(graph)
    column = row.reshape(-1, *([1] * (axis - 1))).astype(factor.dtype.numpy)
    signed: Value = builder.Mul(factor, builder.constant(column, factor.dtype))
    with context.rewrite(graph):
        for part in builder.nodes:
            graph.insert(part, rank=products[0].rank)
        for product in products:
            place = 0 if product.operands[1] is factor else 1
            concat = product.operands[place]
            assert concat is not None
            graph.set_operand(product, 1 - place, signed)
            for index, (value, (_, negated)) in enumerate(zip(concat.producer.operands, parts, strict=True)):
                if negated and value is not None:
                    graph.set_operand(concat.producer, index, value.producer.operands[0])
                    graph.erase(value.producer)
