"""Folds factors into the weights of the layer before or behind them.

A factor is one number, or one for each channel, in whatever shape broadcasts to that. Where the runtime itself would
make one operator of what a factor completes (a Gelu, a normalization), the factor stays where it is.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Match, Miss, Node, Value, const, op, rule, var
from passes._affine import addend, ends_activation, is_grouped, is_normalized, multiplier
from passes._layers import (
    LAYERS,
    Layer,
    along,
    biased_product,
    input_axis,
    input_channels,
    layer_of,
    pads_nothing,
    per_channel,
    with_input,
    with_output,
)

x, c, w = var("x"), const("c"), var("w")

_MOST_SHIFT = 16.0
_LAYER = op.one_of(*LAYERS)(...)
_PRODUCT = op.MatMul(...)
_BIASED = op.one_of("Add", "Sub")(_PRODUCT, w)


@rule(
    op.one_of("Mul", "Div")(_LAYER, c),
    before="""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] b = {1,2},
              float[2,1,1] f = {2,-0.5}> { z = Conv(x, w, b)  t = Mul(z, f)  y = Relu(t) }""",
    after="""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {2,4,-1.5,-2}, float[2] b = {2,-1}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        """(float[1,2,4,4] x, float[2,1,1] f) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) <float[2,1,1] f = {2,3}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        # Along the width, not the channels.
        """(float[1,2,4,2] x) => (float[1,2,4,2] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] f = {2,3}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        # More channels, more images, more dims come out than went in.
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[1,2,1,1] w = {1,2}, float[2,1,1] f = {2,3}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[2,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[2,1,1,1] f = {2,3}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[1,1,1,1,1] f = {2}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float f = {0}>
           { z = Conv(x, w)  t = Div(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float f = {1e38}>
           { z = Conv(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float f = {2}>
           { z = Conv(x, w)  t = Div(f, z)  y = Relu(t) }""",
        """(float[2,2] x, float[2] b) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {2,3}>
           { z = Gemm(x, w, b)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2,1] f = {2,3}>
           { z = MatMul(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(float[2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}, float[1,2] f = {2,3}>
           { z = MatMul(x, w)  t = Mul(z, f)  y = Relu(t) }""",
        """(int32[2,2] x) => (int32[2,2] y) <int32[2,2] w = {1,2,3,4}, int32 f = {2}>
           { z = MatMul(x, w)  t = Mul(z, f)  y = Abs(t) }""",
    ],
    numeric="R",
)
def scale_after_layer(m: Match, b: Builder) -> Value | Miss:
    """A factor for each channel behind a layer goes into its weight and bias."""
    return _scaled(m, b, layer_of(m.node(_LAYER)))


@rule(
    op.one_of("Mul", "Div")(_BIASED, c),
    before="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float f = {4}>
              { p = MatMul(x, w)  z = Add(p, b)  t = Div(z, f)  y = Relu(t) }""",
    after="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {0.25,0.5,0.75,1}, float[2] b = {0.25,0.5}>
             { p = MatMul(x, w)  z = Add(p, b)  y = Relu(z) }""",
    unless=[
        """(float[N,3,2] x, float[2] b) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float f = {4}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Div(z, f)  y = Relu(t) }""",
        """(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[3,1] b = {1,2,3}, float f = {4}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Div(z, f)  y = Relu(t) }""",
        """(float[3,2] x) => (float[3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float[3,1] f = {4,5,6}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Mul(z, f)  y = Relu(t) }""",
    ],
    numeric="R",
)
def scale_after_biased_product(m: Match, b: Builder) -> Value | Miss:
    """A factor for each channel behind a MatMul with a bias goes into weight and bias."""
    return _scaled(m, b, biased_product(m.node(_BIASED), m.node(_PRODUCT)))


def _scaled(m: Match, b: Builder, layer: Layer | str) -> Value | Miss:
    if isinstance(layer, str):
        return b.no(layer)
    numbers = per_channel(layer, m[c].const)
    factor = None if numbers is None else multiplier(m.root, numbers)
    if factor is None:
        return b.no("the factor is not one finite number for each channel")
    return with_output(layer, b, factor, None)


@rule(
    op.Neg(_LAYER),
    before="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float[1] b = {3}>
              { z = Conv(x, w, b)  t = Neg(z)  y = Relu(t) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {-1,-2}, float[1] b = {-3}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        """(float[1,2,4,4] x, float[1] b) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}>
           { z = Conv(x, w, b)  t = Neg(z)  y = Relu(t) }""",
    ],
    numeric="R",
)
def negation_after_layer(m: Match, b: Builder) -> Value | Miss:
    """The negation of a layer is the layer with the negated weight and bias."""
    layer = layer_of(m.node(_LAYER))
    return b.no(layer) if isinstance(layer, str) else with_output(layer, b, -np.ones(1), None)


@rule(
    op.Neg(_BIASED),
    before="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}>
              { p = MatMul(x, w)  z = Add(p, b)  t = Neg(z)  y = Relu(t) }""",
    after="""(float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {-1,-2,-3,-4}, float[2] b = {-1,-2}>
             { p = MatMul(x, w)  z = Add(p, b)  y = Relu(z) }""",
    unless=[
        """(float[N,3,2] x, float[2] b) => (float[N,3,2] y) <float[2,2] w = {1,2,3,4}>
           { p = MatMul(x, w)  z = Add(p, b)  t = Neg(z)  y = Relu(t) }""",
    ],
    numeric="R",
)
def negation_after_biased_product(m: Match, b: Builder) -> Value | Miss:
    """The negation of a MatMul with a bias is the MatMul with the negated weight and bias."""
    layer = biased_product(m.node(_BIASED), m.node(_PRODUCT))
    return b.no(layer) if isinstance(layer, str) else with_output(layer, b, -np.ones(1), None)


_SCALED = op.one_of("Mul", "Div")(x, c)


@rule(
    op.one_of(*LAYERS)(_SCALED, w, ...),
    before="""(float[1,2,4,4] x) => (float[1,1,3,3] y) <float[1,2,1,1] w = {1,2}, float[2,1,1] f = {2,-0.5}>
              { t = Mul(x, f)  z = Conv<pads = [1,1,1,1], strides = [2,2]>(t, w)  y = Relu(z) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,3,3] y) <float[1,2,1,1] w = {2,-1}>
             { z = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w)  y = Relu(z) }""",
    unless=[
        """(float[1,2,4,4] x, float f) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}>
           { t = Mul(x, f)  z = Conv(t, w)  y = Relu(z) }""",
        """(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float[1,1,1,4] f = {1,2,3,4}>
           { t = Mul(x, f)  z = Conv(t, w)  y = Relu(z) }""",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float[2,1,1] f = {2,3}>
           { t = Mul(x, f)  z = Conv(t, w)  y = Relu(z) }""",
        """(float[2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}, float[1,2] f = {2,3}>
           { t = Mul(x, f)  z = MatMul(t, w)  y = Relu(z) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2,1] f = {2,3}>
           { t = Mul(x, f)  z = MatMul(t, w)  y = Relu(z) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float f = {0.5}, float o = {1}>
           { e = Erf(x)  p = Add(e, o)  g = Mul(x, p)  t = Mul(g, f)  y = MatMul(t, w) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {2,3}>
           { q = Mul(x, x)  s = ReduceMean<keepdims = 1>(q)  r = Sqrt(s)  n = Div(x, r)  t = Mul(n, f)
             y = MatMul(t, w) }""",
    ],
    numeric="R",
)
def scale_before_layer(m: Match, b: Builder) -> Value | Miss:
    """A factor for each channel before a layer goes into its weight."""
    layer = layer_of(m.root)
    if isinstance(layer, str) or layer.place == 0:
        return b.no(layer if isinstance(layer, str) else "the weight comes first")
    return _scaled_before(m, b, layer, m.node(_SCALED))


_SCALED_COLUMNS = op.one_of("Mul", "Div")(x, c)


@rule(
    op.MatMul(w, _SCALED_COLUMNS),
    before="""(float[2,3] x) => (float[2,3] y) <float[2,2] w = {1,2,3,4}, float[2,1] f = {2,-1}>
              { t = Mul(x, f)  z = MatMul(w, t)  y = Relu(z) }""",
    after="""(float[2,3] x) => (float[2,3] y) <float[2,2] w = {2,-2,6,-4}> { z = MatMul(w, x)  y = Relu(z) }""",
    unless=[
        """(float[2,3] x) => (float[2,3] y) <float[2,2] w = {1,2,3,4}, float[3] f = {1,2,3}>
           { t = Mul(x, f)  z = MatMul(w, t)  y = Relu(z) }""",
        """(float[2,3] x, float[2,2] w) => (float[2,3] y) <float f = {2}>
           { t = Mul(x, f)  z = MatMul(w, t)  y = Relu(z) }""",
    ],
    numeric="R",
)
def scale_behind_weight(m: Match, b: Builder) -> Value | Miss:
    """A factor of the second operand of a MatMul goes into the weight that is the first."""
    layer = layer_of(m.root)
    if isinstance(layer, str) or layer.place == 1:
        return b.no(layer if isinstance(layer, str) else "the weight comes second")
    return _scaled_before(m, b, layer, m.node(_SCALED_COLUMNS))


d = const("d")
_FACTOR = op.one_of("Mul", "Div")(x, c)
_SHIFTED = op.one_of("Add", "Sub")(_FACTOR, d)


@rule(
    op.one_of(*LAYERS)(_SHIFTED, w, ...),
    before="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float[1] b = {3},
              float[2,1,1] f = {0.5,0.25}, float[2,1,1] g = {1,2}>
              { t = Mul(x, f)  s = Add(t, g)  z = Conv(s, w, b)  y = Relu(z) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {0.5,0.5}, float[1] b = {8}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        # A shift would have to reach into the padding.
        """(float[1,1,4,4] x) => (float[1,1,6,6] y) <float[1,1,1,1] w = {2}, float f = {2}, float g = {3}>
           { t = Mul(x, f)  s = Add(t, g)  z = Conv<pads = [1,1,1,1]>(s, w)  y = Relu(z) }""",
        # Numbers that cancel do so before they are multiplied and summed.
        """(float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w = {2}, float f = {2}, float g = {-1000}>
           { t = Mul(x, f)  s = Add(t, g)  z = Conv(s, w)  y = Relu(z) }""",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,2}, float f = {2}, float[2,1,1] g = {3,4}>
           { t = Mul(x, f)  s = Add(t, g)  z = Conv(s, w)  y = Relu(z) }""",
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}, float[2] f = {2,3}, float[2] g = {1,2}>
           { q = Mul(x, x)  s = ReduceMean<keepdims = 1>(q)  r = Sqrt(s)  n = Div(x, r)  t = Mul(n, f)
             u = Add(t, g)  y = MatMul(u, w) }""",
    ],
    numeric="R",
)
def scale_and_shift_before_layer(m: Match, b: Builder) -> Value | Miss:
    """A factor and an addend for each channel before a layer that pads nothing go into its weight and bias."""
    layer, value = layer_of(m.root), m[x]
    if isinstance(layer, str) or layer.place == 0:
        return b.no(layer if isinstance(layer, str) else "the weight comes first")
    if layer.node.op_type == "ConvTranspose" or (layer.node.op_type == "Conv" and not pads_nothing(layer.node)):
        return b.no("the shift does not reach every pixel alike")
    if layer.weight.rank > 2 and layer.node.op_type == "MatMul":
        return b.no("the shift would need a bias for each matrix")
    if value.dtype is not layer.dtype or is_normalized(value) or is_grouped(value):
        return b.no("another element type, or what the runtime or a newer operator makes one normalization of")
    axis, channels = input_axis(layer), input_channels(layer)
    if not _has_channels(value, axis, channels):
        return b.no("a constant may widen what it is applied to")
    factors = along(m[c].const, axis or 0, channels, value.rank)
    shifts = along(m[d].const, axis or 0, channels, value.rank)
    scale = None if factors is None else multiplier(m.node(_FACTOR), factors)
    shift = None if shifts is None else addend(m.node(_SHIFTED), shifts)
    if scale is None or shift is None:
        return b.no("there is not one finite number for each channel")
    if not (np.abs(shift) <= _MOST_SHIFT * np.abs(scale)).all():
        return b.no("the shift is so large that sums would cancel later than they do now")
    return with_input(layer, b, value, scale, shift)


_NEGATED = op.Neg(x)


@rule(
    op.one_of(*LAYERS)(_NEGATED, w, ...),
    before="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {1,-2}, float[1] b = {3}>
              { t = Neg(x)  z = Conv(t, w, b)  y = Relu(z) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {-1,2}, float[1] b = {3}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        "(float[2,2] x, float[2,2] w) => (float[2,2] y) { t = Neg(x)  z = MatMul(t, w)  y = Relu(z) }",
        "(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1,2,3,4}> { t = Neg(x)  z = MatMul(w, t)  y = Relu(z) }",
    ],
    numeric="R",
)
def negation_before_layer(m: Match, b: Builder) -> Value | Miss:
    """A layer of a negated operand is the layer with the negated weight."""
    layer = layer_of(m.root)
    if isinstance(layer, str) or layer.place == 0:
        return b.no(layer if isinstance(layer, str) else "the weight comes first")
    return with_input(layer, b, m[x], -np.ones(1))


def _scaled_before(m: Match, b: Builder, layer: Layer, scaling: Node) -> Value | Miss:
    axis, value, constant = input_axis(layer), m[x], m[c].const
    if value.dtype is not layer.dtype:
        return b.no("the factor has another element type")
    if ends_activation(value) or is_normalized(value):
        return b.no("the factor completes what the runtime makes one operator of")
    if constant.size != 1 and not _has_channels(value, axis, input_channels(layer)):
        return b.no("the factor may widen what it scales")
    numbers = along(constant, axis or 0, input_channels(layer), value.rank)
    factor = None if numbers is None else multiplier(scaling, numbers)
    if factor is None:
        return b.no("the factor is not one finite number for each channel")
    return with_input(layer, b, value, factor)


def _has_channels(value: Value, axis: int | None, channels: int) -> bool:
    shape = value.shape
    return axis is not None and shape is not None and len(shape) >= -axis and shape[axis] == channels
