"""Reads shapes where they are read most simply: of what an operator keeps the shape of, a part at once, as one product.

What is left to these rules is what no plan of a whole graph's integers covers: shapes that are returned, or that a
custom operator reads.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Node, Value, const, op, rule, var
from passes._permutation import perm_of
from passes._proofs import axes_of, contents, is_given, same_shape

x, indices = var("x"), const("indices")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONE_OPERAND = _names(
    """Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumSum
    DequantizeLinear Dropout Elu Erf Exp Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization
    MeanVarianceNormalization Mish Neg Not QuantizeLinear RMSNormalization Reciprocal Relu Round ScatterElements
    ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu"""
)
"""Operators whose first result has the shape of their first operand."""
_SEVERAL = _names(
    """Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or
    PRelu Pow Sub Sum Where Xor"""
)
"""Operators that broadcast: one of their operands may be known to have the shape of the result."""

_KEEPER = op.one_of(*_ONE_OPERAND, *_SEVERAL)(...)


@rule(
    op.one_of("Shape", "Size")(_KEEPER),
    before="(float[N,M] x) => (int64[2] y) { t = Cast<to = 10>(x)  y = Shape(t) }",
    after="(float[N,M] x) => (int64[2] y) { y = Shape(x) }",
    unless=[
        # The operator is needed anyway.
        "(float[N,M] x) => (int64[2] y, float[N,M] z) { z = Relu(x)  y = Shape(z) }",
        # Either operand may be stretched.
        "(float[N] x, float[M] z) => (int64[1] y) { t = Add(x, z)  y = Shape(t) }",
        "(float[N,M] x) => (int64[2] y) { t = Transpose(x)  y = Shape(t) }",
    ],
    opsets=(8, None),
)
def shape_of_same_shape(m: Match, b: Builder) -> Value | Miss:
    """The shape of what an operator makes is read of its operand, where the two shapes are one."""
    keeper = m.node(_KEEPER)
    if m.root.operand(0) is not keeper.results[0]:
        return b.no("it is another result")
    source = _same_shape_operand(keeper)
    return b.no("no operand is known to have that shape") if source is None else b.like(m.root, source)


def _same_shape_operand(node: Node) -> Value | None:
    operands = [value for value in node.operands if value is not None]
    if node.op_type in _ONE_OPERAND:
        return operands[0] if operands else None
    return next((value for value in operands if same_shape(value, node.result)), None)


_TURNED = op.Transpose(x)
_TURNED_SHAPE = op.Shape(_TURNED)


@rule(
    op.Gather(_TURNED_SHAPE, indices),
    before="""(float[N,M,L] x, float[N,M,K] z) => (int64 y, float[N,L,K] v) <int64 i = {-1}>
              { t = Transpose<perm = [0,2,1]>(x)  s = Shape(t)  y = Gather(s, i)  v = MatMul(t, z) }""",
    after="""(float[N,M,L] x, float[N,M,K] z) => (int64 y, float[N,L,K] v) <int64 i = {1}>
             { t = Transpose<perm = [0,2,1]>(x)  s = Shape(x)  y = Gather(s, i)  v = MatMul(t, z) }""",
    unless=[
        "(float[N,M] x, int64 i) => (int64 y) { t = Transpose(x)  s = Shape(t)  y = Gather(s, i) }",
        # The whole shape is needed anyway.
        """(float[N,M] x) => (int64 y, int64[2] s, float[M,N] t) <int64 i = {0}>
           { t = Transpose(x)  s = Shape(t)  y = Gather(s, i) }""",
    ],
    keep=(_TURNED,),
)
def dim_before_transpose(m: Match, b: Builder) -> Value | Miss:
    """A dim is read before a Transpose: a product takes that in for nothing where nobody else asks for its result."""
    shape, turned, constant = m.node(_TURNED_SHAPE), m.node(_TURNED), m[indices].const
    perm = perm_of(turned)
    if perm is None or constant is None or constant.dtype not in (DType.INT32, DType.INT64):
        return b.no("the permutation is not known")
    if m.root.operand(0) is not shape.result or len(shape.attributes):
        return b.no("it is no dim of the whole shape")
    found = constant.numpy()
    if not ((found >= -len(perm)) & (found < len(perm))).all():
        return b.no("there is no such dim")
    places: Value = b.constant(np.asarray(perm, constant.dtype.numpy)[found], constant.dtype)
    made: Value = b.like(m.root, b.like(shape, m[x]), places)
    return made


_SHAPE = op.Shape(x)


@rule(
    op.one_of("Slice", "Gather")(_SHAPE, ...),
    before="""(float[N,M,4] x) => (int64[2] y) <int64[1] s = {-3}, int64[1] e = {2}>
              { t = Shape(x)  y = Slice(t, s, e) }""",
    after="(float[N,M,4] x) => (int64[2] y) { y = Shape<start = 0, end = 2>(x) }",
    unless=[
        """(float[N,M,4] x) => (int64[2] y) <int64[1] s = {0}, int64[1] e = {3}, int64[1] a = {0}, int64[1] p = {2}>
           { t = Shape(x)  y = Slice(t, s, e, a, p) }""",
        "(float[N,M,4] x) => (int64[2] y) <int64[2] i = {0,2}> { t = Shape(x)  y = Gather(t, i) }",
        "(float[N,M,4] x) => (int64 y) <int64 i = {0}> { t = Shape(x)  y = Gather(t, i) }",
        "(float[N,M,4] x, int64[1] s) => (int64[K] y) <int64[1] e = {3}> { t = Shape(x)  y = Slice(t, s, e) }",
        """(float[N,M,4] x) => (int64[2] y, int64[3] t) <int64[1] s = {0}, int64[1] e = {2}>
           { t = Shape(x)  y = Slice(t, s, e) }""",
    ],
    opsets=(15, None),
)
def part_of_shape(m: Match, b: Builder) -> Value | Miss:
    """Neighbouring dims taken out of a shape are read alone."""
    shape, rank = m.node(_SHAPE), m[x].rank
    if rank is None or m.root.operand(0) is not shape.result:
        return b.no("the rank is unknown, or the shape is no data")
    places = range(rank)[slice(shape.param("start"), shape.param("end"))]
    part = _sliced(m.root, places) if m.root.op_type == "Slice" else _gathered(m.root, places)
    if not part:
        return b.no("they are not known to be neighbours")
    made: Value = b.Shape(m[x], start=part[0], end=part[-1] + 1)
    return made


def _sliced(node: Node, places: range) -> range | None:
    starts, ends = contents(node, "starts"), contents(node, "ends")
    axes = contents(node, "axes") if is_given(node, "axes") else (0,)
    steps = contents(node, "steps") if is_given(node, "steps") else (1,)
    if starts is None or ends is None or axes not in ((0,), (-1,)) or steps != (1,):
        return None
    if len(starts) != 1 or len(ends) != 1 or not isinstance(starts[0], int) or not isinstance(ends[0], int):
        return None
    return places[starts[0] : ends[0]]


def _gathered(node: Node, places: range) -> range | None:
    indices = node.operand(1)
    if indices is None or indices.const is None or indices.rank != 1 or not indices.const.size:
        return None
    count = len(places)
    found = [index + count if index < 0 else index for index in indices.const.tolist()]
    first = found[0]
    if found != list(range(first, first + len(found))) or first < 0 or found[-1] >= count:
        return None
    return places[first : found[-1] + 1]


@rule(
    op.ReduceProd(_SHAPE, ...),
    before="(float[N,M] x) => (int64 y) { t = Shape(x)  y = ReduceProd<keepdims = 0>(t) }",
    after="(float[N,M] x) => (int64 y) { y = Size(x) }",
    unless=[
        "(float[N,M] x) => (int64[1] y) { t = Shape(x)  y = ReduceProd(t) }",
        "(float[N,M] x) => (int64 y) { t = Shape<end = 1>(x)  y = ReduceProd<keepdims = 0>(t) }",
        """(float[N,M] x) => (int64[2] y)
           { t = Shape(x)  y = ReduceProd<keepdims = 0, noop_with_empty_axes = 1>(t) }""",
        "(float[N,M] x) => (int64 y, int64[2] t) { t = Shape(x)  y = ReduceProd<keepdims = 0>(t) }",
    ],
)
def product_of_shape(m: Match, b: Builder) -> Value | Miss:
    """The product of all dims is the size."""
    shape, rank = m.node(_SHAPE), m[x].rank
    if not rank or len(range(rank)[slice(shape.param("start"), shape.param("end"))]) != rank:
        return b.no("it is not known to be every dim")
    takes_all = axes_of(m.root, 1) == (0,) if is_given(m.root, "axes") else not m.root.param("noop_with_empty_axes")
    if m.root.param("keepdims") or not takes_all:
        return b.no("the result is no number")
    made: Value = b.Size(m[x])
    return made
