"""Folds batch normalization by constant statistics into the layer before or behind it.

Weights and biases are computed in float64 and rounded once. A normalization that trains, or whose statistics a caller
may override, stays; so does one whose scale would overflow the weight or push it among the subnormal numbers.
"""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, op, rule, var
from passes._affine import is_centred, normalization_of
from passes._layers import (
    LAYERS,
    Layer,
    biased_product,
    input_channels,
    layer_of,
    pads_nothing,
    with_input,
    with_output,
)

x, w = var("x"), var("w")

_LAYER = op.one_of(*LAYERS)(...)
_STATISTICS = "float[2] s = {2,-1}, float[2] t = {1,2}, float[2] m = {0.5,-1}, float[2] v = {4,0.25}"


@rule(
    op.BatchNormalization(_LAYER, ...),
    before=f"""(float[1,2,4,4] x) => (float[1,2,4,4] y)
              <float[2,2,1,1] w = {{1,2,3,4}}, {_STATISTICS}>
              {{ z = Conv(x, w)  n = BatchNormalization<epsilon = 0.0>(z, s, t, m, v)  y = Relu(n) }}""",
    after="""(float[1,2,4,4] x) => (float[1,2,4,4] y)
             <float[2,2,1,1] w = {1,2,-6,-8}, float[2] b = {0.5,0}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        f"""(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) <{_STATISTICS}>
           {{ z = Conv(x, w)  y = BatchNormalization(z, s, t, m, v) }}""",
        f"""(float[1,2,4,4] x, float[2] b) => (float[1,2,4,4] y) <float[2,2,1,1] w = {{1,2,3,4}}, {_STATISTICS}>
           {{ z = Conv(x, w, b)  y = BatchNormalization(z, s, t, m, v) }}""",
        """(float[1,2,4,4] x, float[2] s) => (float[1,2,4,4] y)
           <float[2,2,1,1] w = {1,2,3,4}, float[2] t = {1,2}, float[2] m = {0.5,-1}, float[2] v = {4,0.25}>
           { z = Conv(x, w)  y = BatchNormalization(z, s, t, m, v) }""",
        f"""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {{1,2,3,4}}, {_STATISTICS}>
           {{ z = Conv(x, w)  y, p, q = BatchNormalization<training_mode = 1>(z, s, t, m, v) }}""",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y)
           <float[1,1,1,1] w = {1}, float[1] s = {1}, float[1] t = {0}, float[1] m = {0}, float[1] v = {-1}>
           { z = Conv(x, w)  y = BatchNormalization(z, s, t, m, v) }""",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y)
           <float[1,1,1,1] w = {1e-20}, float[1] s = {1e-20}, float[1] t = {0}, float[1] m = {0}, float[1] v = {1}>
           { z = Conv(x, w)  y = BatchNormalization(z, s, t, m, v) }""",
        """(float[3,4,2] x) => (float[3,2,2] y) <float[2,2] w = {1,2,3,4},
           float[4] s = {1,1,1,1}, float[4] t = {1,1,1,1}, float[4] m = {1,1,1,1}, float[4] v = {1,1,1,1}>
           { z = MatMul(x, w)  y = BatchNormalization(z, s, t, m, v) }""",
    ],
    numeric="R",
    opsets=(7, None),
)
def normalization_after_layer(m: Match, b: Builder) -> Value | Miss:
    """A BatchNormalization of a layer is the layer with other weights and another bias."""
    layer = layer_of(m.node(_LAYER))
    if not isinstance(layer, str) and layer.node.op_type == "MatMul" and (m[_LAYER].rank != 2 or layer.axis != -1):
        return b.no("the channels of a MatMul are not the second axis")
    return _normalized(m, b, layer)


def _normalized(m: Match, b: Builder, layer: Layer | str) -> Value | Miss:
    """The layer with the normalization at the root in it."""
    affine = normalization_of(m.root)
    if isinstance(layer, str) or isinstance(affine, str):
        return b.no(affine if isinstance(affine, str) else str(layer))
    if layer.dtype is not m.root.result.dtype:
        return b.no("the normalization gives another element type")
    if layer.channels != affine[0].size:
        return b.no("the model fails here: the numbers of channels differ")
    return with_output(layer, b, *affine)


_PRODUCT = op.MatMul(...)
_BIASED = op.one_of("Add", "Sub")(_PRODUCT, w)


@rule(
    op.BatchNormalization(_BIASED, ...),
    before=f"""(float[N,2] x) => (float[N,2] y) <float[2,2] w = {{1,2,3,4}}, float[2] b = {{1,1}}, {_STATISTICS}>
              {{ p = MatMul(x, w)  z = Add(p, b)
                 n = BatchNormalization<epsilon = 0.0>(z, s, t, m, v)  y = Relu(n) }}""",
    after="""(float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,-4,3,-8}, float[2] b = {1.5,-2}>
             { p = MatMul(x, w)  z = Add(p, b)  y = Relu(z) }""",
    unless=[
        f"""(float[N,2] x, float[2] b) => (float[N,2] y) <float[2,2] w = {{1,2,3,4}}, {_STATISTICS}>
           {{ p = MatMul(x, w)  z = Add(p, b)  y = BatchNormalization(z, s, t, m, v) }}""",
        f"""(float[3,2,2] x) => (float[3,2,2] y) <float[2,2] w = {{1,2,3,4}}, float[2] b = {{1,1}}, {_STATISTICS}>
           {{ p = MatMul(x, w)  z = Add(p, b)  y = BatchNormalization(z, s, t, m, v) }}""",
        f"""(float[1,2] x) => (float[3,2] y) <float[2,2] w = {{1,2,3,4}}, float[3,1] b = {{1,2,3}}, {_STATISTICS}>
           {{ p = MatMul(x, w)  z = Add(p, b)  y = BatchNormalization(z, s, t, m, v) }}""",
    ],
    numeric="R",
    opsets=(7, None),
)
def normalization_after_biased_product(m: Match, b: Builder) -> Value | Miss:
    """A BatchNormalization of a MatMul with a bias goes into weight and bias."""
    if m[_PRODUCT].rank != 2:
        return b.no("the channels of the MatMul may not be the second axis")
    return _normalized(m, b, biased_product(m.node(_BIASED), m.node(_PRODUCT)))


_NORMALIZED = op.BatchNormalization(x, ...)


@rule(
    op.one_of(*LAYERS)(_NORMALIZED, w, ...),
    before="""(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {0.5,0.25,1,0.5},
              float[2] s = {1,-1}, float[2] t = {1.5,2}, float[2] m = {2,4}, float[2] v = {4,4}>
              { n = BatchNormalization<epsilon = 0.0>(x, s, t, m, v)  z = Conv(n, w)  y = Relu(z) }""",
    after="""(float[1,2,4,4] x) => (float[1,2,4,4] y)
             <float[2,2,1,1] w = {0.25,-0.125,0.5,-0.25}, float[2] b = {1.25,2.5}>
             { z = Conv(x, w, b)  y = Relu(z) }""",
    unless=[
        # The shift would have to reach into the padding.
        f"""(float[1,2,4,4] x) => (float[1,1,6,6] y) <float[1,2,1,1] w = {{1,2}}, {_STATISTICS}>
           {{ n = BatchNormalization(x, s, t, m, v)  z = Conv<pads = [1,1,1,1]>(n, w)  y = Relu(z) }}""",
        f"""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,3,3] w = {{{",".join(["1"] * 18)}}}, {_STATISTICS}>
           {{ n = BatchNormalization(x, s, t, m, v)  z = Conv<auto_pad = "SAME_UPPER">(n, w)  y = Relu(z) }}""",
        f"""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[2,1,1,1] w = {{1,2}}, {_STATISTICS}>
           {{ n = BatchNormalization(x, s, t, m, v)  z = ConvTranspose(n, w)  y = Relu(z) }}""",
        f"""(float[3,2,2] x) => (float[3,2,2] y) <float[2,2] w = {{1,2,3,4}}, {_STATISTICS}>
           {{ n = BatchNormalization(x, s, t, m, v)  z = MatMul(n, w)  y = Relu(z) }}""",
        # The mean is a hundred deviations from zero.
        """(float[1,1,4,4] x) => (float[1,1,4,4] y)
           <float[1,1,1,1] w = {1}, float[1] s = {1}, float[1] t = {0}, float[1] m = {100}, float[1] v = {1}>
           { n = BatchNormalization(x, s, t, m, v)  y = Conv(n, w) }""",
    ],
    numeric="R",
    opsets=(7, None),
)
def normalization_before_layer(m: Match, b: Builder) -> Value | Miss:
    """A BatchNormalization before a layer goes into its weight and bias."""
    layer, affine = layer_of(m.root), normalization_of(m.node(_NORMALIZED))
    if isinstance(layer, str) or isinstance(affine, str):
        return b.no(affine if isinstance(affine, str) else str(layer))
    scale, shift = affine
    if layer.place == 0 or layer.dtype is not m[x].dtype or input_channels(layer) != scale.size:
        return b.no("the channels are not those of the operand, or it has another element type")
    if not _has_channels_second(layer, m[x]):
        return b.no("the channels of the layer are not the second axis")
    if shift.any() and layer.node.op_type == "ConvTranspose":
        return b.no("a shift does not reach every pixel alike")
    if shift.any() and layer.node.op_type == "Conv" and not pads_nothing(layer.node):
        return b.no("a shift would have to reach into the padding")
    if not is_centred(m.node(_NORMALIZED)):
        return b.no("a mean is so large that sums would cancel later than they do now")
    return with_input(layer, b, m[x], scale, shift)


def _has_channels_second(layer: Layer, value: Value) -> bool:
    if layer.node.op_type == "Gemm":
        return not layer.node.param("transA")
    return layer.node.op_type != "MatMul" or (value.rank == 2 and layer.weight.rank == 2)
