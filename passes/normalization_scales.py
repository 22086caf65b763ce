"""Folds factors and addends behind a normalization into its own scale and bias.

That is what is left where no layer stands next to a normalization: it scales and shifts each channel anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import Builder, Match, Miss, Node, Value, const, op, rule
from passes._affine import addend, multiplier
from passes._layers import along
from passes._weights import EPSILON, Array, in_double, rounded

c = const("c")

_BIASED = ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization")
_NORMALIZED = op.one_of(*_BIASED, "RMSNormalization")(...)
_SHIFTED = op.one_of(*_BIASED)(...)


@rule(
    op.one_of("Mul", "Div")(_NORMALIZED, c),
    before="""(float[1,2,4] x) => (float[1,2,4] y)
              <float[2] s = {1,2}, float[2] t = {3,4}, float[2,1] f = {2,-0.5}>
              { n = InstanceNormalization(x, s, t)  m = Mul(n, f)  y = Relu(m) }""",
    after="""(float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {2,-1}, float[2] t = {6,-2}>
             { n = InstanceNormalization(x, s, t)  y = Relu(n) }""",
    unless=[
        """(float[1,2,4] x, float[2] s) => (float[1,2,4] y) <float[2] t = {3,4}, float[2,1] f = {2,-0.5}>
           { n = InstanceNormalization(x, s, t)  m = Mul(n, f)  y = Relu(m) }""",
        """(float[1,2,2] x) => (float[1,2,2] y) <float[2] s = {1,2}, float[2] t = {3,4}, float[2] f = {2,-0.5}>
           { n = InstanceNormalization(x, s, t)  m = Mul(n, f)  y = Relu(m) }""",
        """(float[1,2,4] x) => (float[1,2,4] y) <float[2] s = {1,2}, float[2] t = {3,4}, float f = {0}>
           { n = InstanceNormalization(x, s, t)  m = Div(n, f)  y = Relu(m) }""",
        """(float[1,2,2] x) => (float[1,2,2] y) <float[2,2] s = {1,2,3,4}, float[2] f = {2,3}>
           { n = LayerNormalization<axis = 1>(x, s)  m = Mul(n, f)  y = Relu(m) }""",
    ],
    numeric="R",
    opsets=(7, None),
)
def scale_after_normalization(m: Match, b: Builder) -> Value | Miss:
    """A factor for each channel behind a normalization goes into its scale and bias."""
    return _changed(m, b, m.node(_NORMALIZED), is_factor=True)


@rule(
    op.one_of("Add", "Sub")(_SHIFTED, c),
    before="""(float[N,4] x) => (float[N,4] y) <float[4] s = {1,2,3,4}, float[4] f = {1,-2,0.5,1}>
              { n = LayerNormalization(x, s)  m = Add(n, f)  y = Relu(m) }""",
    after="""(float[N,4] x) => (float[N,4] y) <float[4] s = {1,2,3,4}, float[4] t = {1,-2,0.5,1}>
             { n = LayerNormalization(x, s, t)  y = Relu(n) }""",
    unless=[
        """(float[3,4] x) => (float[3,4] y) <float[4] s = {1,2,3,4}, float[3,1] f = {1,-2,0.5}>
           { n = LayerNormalization(x, s)  m = Add(n, f)  y = Relu(m) }""",
        """(float[3,4] x, float[4] t) => (float[3,4] y) <float[4] s = {1,2,3,4}, float f = {1}>
           { n = LayerNormalization(x, s, t)  m = Add(n, f)  y = Relu(m) }""",
        """(float[3,4] x) => (float[1,3,4] y) <float[4] s = {1,2,3,4}, float[1,1,4] f = {1,2,3,4}>
           { n = LayerNormalization(x, s)  m = Add(n, f)  y = Relu(m) }""",
    ],
    numeric="R",
    opsets=(7, None),
)
def shift_after_normalization(m: Match, b: Builder) -> Value | Miss:
    """An addend for each channel behind a normalization goes into its bias."""
    return _changed(m, b, m.node(_SHIFTED), is_factor=False)


def _changed(m: Match, b: Builder, node: Node, *, is_factor: bool) -> Value | Miss:
    parts, rank = _parameters(node), node.results[0].rank
    if parts is None or rank is None:
        return b.no("scale or bias are computed at run time, or stand for more than one axis, or the rank is unknown")
    scale, bias = parts
    axis = -1 if node.op_type in ("LayerNormalization", "RMSNormalization") else 1 - rank
    numbers = along(m[c].const, axis, scale.size, rank)
    affine = None if numbers is None else (multiplier if is_factor else addend)(m.root, numbers)
    if affine is None:
        return b.no("it is not one finite number for each channel")
    with np.errstate(all="ignore"):
        if is_factor:
            scale, bias = scale * affine, None if bias is None else bias * affine
        else:
            bias = np.zeros(scale.size) + affine if bias is None else bias + affine
    return _like(b, node, scale if is_factor else None, bias)


def _parameters(node: Node) -> tuple[Array, Array | None] | None:
    """Scale and bias of a normalization as one number for each channel; None if they are something else."""
    if node.param("training_mode") or any(value.is_used for value in node.results[1:]):
        return None
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        rank, axis = node.results[0].rank, node.param("axis")
        if axis != -1 and (rank is None or axis != rank - 1):
            return None
    scale, bias = (None if value is None else value.const for value in (node.operand(1), node.operand(2)))
    if scale is None or scale.rank != 1 or scale.dtype not in EPSILON:
        return None
    if bias is None:
        return None if node.operand(2) is not None else (in_double(scale), None)
    return (in_double(scale), in_double(bias)) if bias.shape == scale.shape and bias.dtype in EPSILON else None


def _like(b: Builder, node: Node, scale: Array | None, bias: Array | None) -> Value | Miss:
    operands: list[Any] = list(node.operands)
    for place, exact in ((1, scale), (2, bias)):
        if exact is None:
            continue
        value = node.operand(place) or node.operand(1)
        dtype = None if value is None else value.dtype
        made = None if dtype is None else rounded(exact, dtype)
        if made is None:
            return b.no("the scale or bias would overflow")
        operands.extend([None] * (place + 1 - len(operands)))
        operands[place] = made
    made_node = b.like(node, *operands)
    result: Value = made_node[0] if isinstance(made_node, tuple) else made_node
    return result
