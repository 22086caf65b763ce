"""Folds constants that are added to each channel of a layer into its bias.

What would add a batch, a row or a pixel of its own stays, and so does what would widen the result. A MatMul with one
constant added is left as it is: the runtime makes one operator of the two.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Node, Value, const, op, rule, symbol, var
from passes._affine import addend
from passes._layers import CONVOLUTIONS, Layer, biased_product, layer_of, per_channel, with_output
from passes._proofs import same_dim, same_shape

c, w, x, y = const("c"), var("w"), var("x"), var("y")

_BIASABLE = op.one_of(*CONVOLUTIONS, "Gemm")(...)


@rule(
    op.one_of("Add", "Sub")(_BIASABLE, c),
    before="""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2,1,1] f = {1,-2}>
              { z = Conv(x, w)  t = Sub(z, f)  y = Relu(t) }""",
    after="""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] b = {-1,2}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        """(float[1,2,4,4] x, float[2,1,1] f) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}>
           { z = Conv(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x, float[2] b) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2,1,1] f = {1,2}>
           { z = Conv(x, w, b)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,2,4,2] x) => (float[1,2,4,2] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] f = {1,2}>
           { z = Conv(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[2,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2,2,1,1] f = {1,2,3,4}>
           { z = Conv(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[1,2,1,1] w = {1,2}, float[2,1,1] f = {1,2}>
           { z = Conv(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[1,1,2,1,1] f = {1,2}>
           { z = Conv(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2,1] f = {1,2}>
           { z = Gemm(x, w)  t = Add(z, f)  y = Relu(t) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {1,2}>
           { z = MatMul(x, w)  t = Add(z, f)  y = Relu(t) }""",
        "(int32[2,2] x) => (int32[2,2] y) <int32[2,2] w = {1,2,3,4}, int32 f = {1}> { z = Gemm(x, w)  y = Add(z, f) }",
    ],
    numeric="R",
)
def bias_after_layer(m: Match, b: Builder) -> Value | Miss:
    """A constant added to each channel of a Conv, ConvTranspose or Gemm goes into its bias."""
    return _added(m, b, layer_of(m.node(_BIASABLE)))


_GEMM = op.Gemm(x, w)
_GEMM_TYPES = (DType.FLOAT, DType.DOUBLE, DType.FLOAT16)
_AHEAD = ("LayerNormalization", "RMSNormalization", "ReduceMean", "SimplifiedLayerNormalization")
"""What normalizations are, or begin with."""


@rule(
    op.one_of("Add", "Sub", "Sum")(_GEMM, y),
    before="""(float[2,3] x, float[3,4] w, float[1,4] c) => (float[2,4] y)
              { g = Gemm<alpha = 0.5>(x, w)  t = Sub(g, c)  y = Relu(t) }""",
    after="""(float[2,3] x, float[3,4] w, float[1,4] c) => (float[2,4] y)
             { t = Gemm<alpha = 0.5, beta = -1.0>(x, w, c)  y = Relu(t) }""",
    unless=[
        # It widens the product, or may.
        "(float[1,3] x, float[3,4] w, float[2,4] c) => (float[2,4] y) { g = Gemm(x, w)  y = Add(g, c) }",
        "(float[2,3] x, float[3,4] w, float[1,2,4] c) => (float[1,2,4] y) { g = Gemm(x, w)  y = Add(g, c) }",
        "(float[N,3] x, float[3,4] w, float[M,4] c) => (float[K,4] y) { g = Gemm(x, w)  y = Add(g, c) }",
        "(float[2,3] x, float[3,4] w, float[4] c) => (float[2,4] y) { g = Gemm(x, w)  y = Sum(g, c, c) }",
        "(float[2,3] x, float[3,4] w, float[4] c, float[4] d) => (float[2,4] y) { g = Gemm(x, w, d)  y = Add(g, c) }",
        "(float[2,3] x, float[3,4] w, float[4] c) => (float[2,4] y, float[2,4] g) { g = Gemm(x, w)  y = Add(g, c) }",
        # There may be nothing to add up: then the runtime takes beta for 1.
        "(float[2,K] x, float[K,4] w, float[4] c) => (float[2,4] y) { g = Gemm(x, w)  y = Sub(g, c) }",
        # The sum before a normalization, which the runtime fuses with it.
        """(float[2,3] x, float[3,4] w, float[2,4] c, float[4] s) => (float[2,4] y)
           { g = Gemm(x, w)  t = Add(g, c)  y = LayerNormalization(t, s) }""",
    ],
    numeric="R",
)
def addend_after_gemm(m: Match, b: Builder) -> Value | Miss:
    """What is added to a Gemm without a bias, or subtracted from it, becomes its bias."""
    gemm, added, result = m.node(_GEMM), m[y], m.root.result
    if result.dtype not in _GEMM_TYPES or added is gemm.result:
        return b.no("it is no sum of floats")
    if not same_shape(gemm.result, result) or not _broadcasts(added, result):
        return b.no("it may widen the product")
    if any(user.op_type in _AHEAD for user in result.users):
        return b.no("it is the sum that a normalization begins with")
    if m.root.op_type == "Sub" and not _adds_up(gemm):
        return b.no("the runtime forgets beta where nothing is added up")
    made: Value = b.like(gemm, m[x], m[w], added, beta=-1.0 if m.root.op_type == "Sub" else 1.0)
    return made


def _adds_up(gemm: Node) -> bool:
    """True if each element of a product is a sum of one number at least."""
    left, right = gemm.operands[0], gemm.operands[1]
    if left is None or right is None or left.rank != 2 or right.rank != 2 or not left.shape or not right.shape:
        return False
    dims = (left.shape[0 if gemm.param("transA") else 1], right.shape[1 if gemm.param("transB") else 0])
    return any(dim is not None and symbol.is_positive(dim) for dim in dims)


def _broadcasts(value: Value, result: Value) -> bool:
    if value.shape is None or result.shape is None or len(value.shape) > len(result.shape):
        return False
    pairs = zip(reversed(value.shape), reversed(result.shape), strict=False)
    return all(dim == 1 or same_dim(dim, wanted) for dim, wanted in pairs)


_PRODUCT = op.MatMul(...)
_BIASED = op.one_of("Add", "Sub")(_PRODUCT, w)


@rule(
    op.one_of("Add", "Sub")(_BIASED, c),
    before="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float[2] f = {4,5}>
              { p = MatMul(x, w)  z = Add(p, b)  t = Add(z, f)  y = Relu(t) }""",
    after="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {5,7}>
             { p = MatMul(x, w)  z = Add(p, b)  y = Relu(z) }""",
    unless=[
        """(float[N,3,2] x, float[2] b) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {4,5}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Add(z, f)  y = Relu(t) }""",
        """(float[1,3,2] x) => (float[2,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float[2,1,1] f = {4,5}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Add(z, f)  y = Relu(t) }""",
    ],
    numeric="R",
)
def bias_after_biased_product(m: Match, b: Builder) -> Value | Miss:
    """Two constants added to each channel of a MatMul are one."""
    return _added(m, b, biased_product(m.node(_BIASED), m.node(_PRODUCT)))


def _added(m: Match, b: Builder, layer: Layer | str) -> Value | Miss:
    if isinstance(layer, str):
        return b.no(layer)
    numbers = per_channel(layer, m[c].const)
    shift = None if numbers is None else addend(m.root, numbers)
    return b.no("it is not one finite number for each channel") if shift is None else with_output(layer, b, None, shift)


@rule(
    op.Sub(c, _BIASABLE),
    before="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float[1] b = {3}, float f = {1}>
              { z = Conv(x, w, b)  t = Sub(f, z)  y = Relu(t) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {-1,-2}, float[1] b = {-2}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[1,2,1,1] w = {1,2}, float[2,1,1] f = {1,2}>
           { z = Conv(x, w)  t = Sub(f, z)  y = Relu(t) }""",
        """(float[1,2,4,4] x, float f) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}>
           { z = Conv(x, w)  t = Sub(f, z)  y = Relu(t) }""",
    ],
    numeric="R",
)
def difference_from_layer(m: Match, b: Builder) -> Value | Miss:
    """A constant minus a layer is the layer with the negated weight and another bias."""
    return _subtracted(m, b, layer_of(m.node(_BIASABLE)))


@rule(
    op.Sub(c, _BIASED),
    before="""(float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {3,4}, float f = {1}>
              { p = MatMul(x, w)  z = Add(p, b)  t = Sub(f, z)  y = Relu(t) }""",
    after="""(float[N,2] x) => (float[N,2] y) <float[2,2] w = {-1,-2,-3,-4}, float[2] b = {-2,-3}>
             { p = MatMul(x, w)  z = Add(p, b)  y = Relu(z) }""",
    unless=[
        """(float[N,2] x, float[2] b) => (float[N,2] y) <float[2,2] w = {1,2,3,4}, float f = {1}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Sub(f, z)  y = Relu(t) }""",
    ],
    numeric="R",
)
def difference_from_biased_product(m: Match, b: Builder) -> Value | Miss:
    """A constant minus a MatMul with a bias is a MatMul of the negated weight with another bias."""
    return _subtracted(m, b, biased_product(m.node(_BIASED), m.node(_PRODUCT)))


def _subtracted(m: Match, b: Builder, layer: Layer | str) -> Value | Miss:
    if isinstance(layer, str):
        return b.no(layer)
    numbers = per_channel(layer, m[c].const)
    if numbers is None or not np.isfinite(numbers).all():
        return b.no("it is not one finite number for each channel")
    return with_output(layer, b, -np.ones(1), numbers)
