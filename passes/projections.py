"""Merges layers with constant weights that follow one another, and transposes before a Gemm.

Two layers become one where the product of their weights is smaller than the two together, which is also fewer
multiplications: a factorization into low ranks stays what it is. For finite numbers that is another order of sums;
of an infinite operand two weights of opposite sign used to make NaN in between, and the product does not.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Match, Miss, Node, Value, op, rule, var
from passes._layers import Layer, bias_of, biased_product, is_pointwise, layer_of, matrix_of, pads_nothing
from passes._weights import Array, combined, rounded

x, v, w = var("x"), var("v"), var("w")

_MOST_MULTIPLICATIONS = 1 << 33
"""A larger product takes too long in float64."""
_FIRST = op.MatMul(x, v)


@rule(
    op.MatMul(_FIRST, w),
    before="""(float[N,2] x) => (float[N,1] y) <float[2,2] v = {1,2,3,4}, float[2,1] w = {1,-1}>
              { p = MatMul(x, v)  q = MatMul(p, w)  y = Relu(q) }""",
    after="(float[N,2] x) => (float[N,1] y) <float[2,1] w = {-1,-1}> { q = MatMul(x, w)  y = Relu(q) }",
    unless=[
        """(float[N,2] x, float[2,2] v) => (float[N,1] y) <float[2,1] w = {1,-1}>
           { p = MatMul(x, v)  q = MatMul(p, w)  y = Relu(q) }""",
        # Of low rank: the product would be larger than both.
        """(float[N,3] x) => (float[N,3] y) <float[3,1] v = {1,2,3}, float[1,3] w = {1,-1,2}>
           { p = MatMul(x, v)  q = MatMul(p, w)  y = Relu(q) }""",
        """(float[N,2] x) => (float[N,2] y) <float[2,2] v = {1e30,2,3,4}, float[2,2] w = {1e30,1,1,1}>
           { p = MatMul(x, v)  q = MatMul(p, w)  y = Relu(q) }""",
    ],
    numeric="D",
)
def consecutive_products(m: Match, b: Builder) -> Value | Miss:
    """Two MatMuls by constants in a row are one by the product."""
    return _merged_products(m, b, layer_of(m.node(_FIRST)), layer_of(m.root))


_INNER = op.MatMul(x, v)
_BIASED = op.one_of("Add", "Sub")(_INNER, w)
_OUTER = var("outer")


@rule(
    op.MatMul(_BIASED, _OUTER),
    before="""(float[N,3,2] x) => (float[N,3,1] y) <float[2,2] v = {1,2,3,4}, float[2] b = {1,4}, float[2,1] w = {1,-1}>
              { p = MatMul(x, v)  z = Add(p, b)  q = MatMul(z, w)  y = Relu(q) }""",
    after="""(float[N,3,2] x) => (float[N,3,1] y) <float[2,1] w = {-1,-1}, float[1] b = {-3}>
             { q = MatMul(x, w)  z = Add(q, b)  y = Relu(z) }""",
    unless=[
        """(float[N,2] x, float[2] b) => (float[N,1] y) <float[2,2] v = {1,2,3,4}, float[2,1] w = {1,-1}>
           { p = MatMul(x, v)  z = Add(p, b)  q = MatMul(z, w)  y = Relu(q) }""",
        """(float[2,2] x) => (float[2,1] y) <float[2,2] v = {1,2,3,4}, float[2,1] b = {1,4}, float[2,1] w = {1,-1}>
           { p = MatMul(x, v)  z = Add(p, b)  q = MatMul(z, w)  y = Relu(q) }""",
    ],
    numeric="D",
)
def consecutive_biased_products(m: Match, b: Builder) -> Value | Miss:
    """A MatMul of a MatMul with a bias is one MatMul with a bias."""
    return _merged_products(m, b, biased_product(m.node(_BIASED), m.node(_INNER)), layer_of(m.root))


_GEMM = op.Gemm(x, v, ...)


@rule(
    op.Gemm(_GEMM, w, ...),
    before="""(float[N,2] x) => (float[N,1] y)
              <float[2,2] v = {1,3,2,4}, float[2] b = {1,4}, float[2,1] w = {1,-1}, float[1] c = {2}>
              { p = Gemm<transB = 1>(x, v, b)  q = Gemm<alpha = 2.0>(p, w, c)  y = Relu(q) }""",
    after="""(float[N,2] x) => (float[N,1] y) <float[2,1] w = {-2,-2}, float[1] b = {-4}>
             { q = Gemm(x, w, b)  y = Relu(q) }""",
    unless=[
        """(float[N,2] x, float[2] b) => (float[N,1] y) <float[2,2] v = {1,3,2,4}, float[2,1] w = {1,-1}>
           { p = Gemm(x, v, b)  q = Gemm(p, w)  y = Relu(q) }""",
        """(float[2,2] x) => (float[2,1] y) <float[2,2] v = {1,3,2,4}, float[2,1] w = {1,-1}>
           { p = Gemm<transA = 1>(x, v)  q = Gemm(p, w)  y = Relu(q) }""",
        """(float[2,2] x) => (float[2,1] y) <float[2,2] v = {1,3,2,4}, float[2,2] w = {1,-1,1,1}>
           { p = Gemm(x, v)  q = Gemm<transA = 1>(p, w)  y = Relu(q) }""",
    ],
    numeric="D",
)
def consecutive_gemms(m: Match, b: Builder) -> Value | Miss:
    """Two Gemms by constants in a row are one."""
    return _merged_products(m, b, layer_of(m.node(_GEMM)), layer_of(m.root))


def _merged_products(m: Match, b: Builder, first: Layer | str, second: Layer | str) -> Value | Miss:
    if isinstance(first, str) or isinstance(second, str):
        return b.no(first if isinstance(first, str) else str(second))
    left, right = matrix_of(first), matrix_of(second)
    if left is None or right is None or left.shape[1] != right.shape[0]:
        return b.no("the weights are not two matrices on the right")
    inner, outer = bias_of(first), bias_of(second)
    doubt = _doubt(left.shape[0] * right.shape[1], left.size + right.size, right.shape[0])
    if doubt or inner is None or outer is None:
        return b.no(doubt or "a bias is computed at run time")
    with np.errstate(all="ignore"):
        weight = combined(left @ right, first.dtype, 1)
        shift = inner @ right + outer
    bias = rounded(shift, first.dtype)
    if weight is None or bias is None:
        return b.no("the product would overflow or lose precision")
    operands = [m[x], weight]
    if second.node.op_type == "Gemm":
        has_bias = shift.any() or second.node.operand(2) is not None  # before opset 11 there must be one
        merged: Value = b.Gemm(*operands, *([bias] if has_bias else []))
        return merged
    product: Value = b.MatMul(*operands)
    result: Value = b.Add(product, bias) if shift.any() else product
    return result


def _doubt(size: int, sizes: int, inner: int) -> str:
    if size >= sizes:
        return "the product of the weights is as large as both together"
    return "the product of the weights takes too long" if size * inner > _MOST_MULTIPLICATIONS else ""


_CONV = op.Conv(x, v, ...)


@rule(
    op.Conv(_CONV, w, ...),
    before="""(float[1,2,4,4] x) => (float[1,1,4,4] y)
              <float[2,2,1,1] v = {1,2,3,4}, float[2] b = {1,4}, float[1,2,1,1] w = {1,-1}, float[1] c = {2}>
              { p = Conv(x, v, b)  q = Conv(p, w, c)  y = Relu(q) }""",
    after="""(float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,1,1] w = {-2,-2}, float[1] b = {-1}>
             { q = Conv(x, w, b)  y = Relu(q) }""",
    unless=[
        # A bias in between would have to reach into the padding.
        f"""(float[1,1,4,4] x) => (float[1,1,4,4] y)
           <float[2,1,1,1] v = {{1,2}}, float[2] b = {{1,4}}, float[1,2,3,3] w = {{{",".join(["1"] * 18)}}}>
           {{ p = Conv(x, v, b)  q = Conv<pads = [1,1,1,1]>(p, w)  y = Relu(q) }}""",
        """(float[1,4,4,4] x) => (float[1,4,4,4] y) <float[1,4,1,1] v = {1,2,3,4}, float[4,1,1,1] w = {1,-1,2,3}>
           { p = Conv(x, v)  q = Conv(p, w)  y = Relu(q) }""",
        """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,1,1,1] v = {1,2}, float[2,1,1,1] w = {1,-1}>
           { p = Conv<group = 2>(x, v)  q = Conv<group = 2>(p, w)  y = Relu(q) }""",
    ],
    numeric="D",
)
def consecutive_convolutions(m: Match, b: Builder) -> Value | Miss:
    """Two Convs in a row, one of them of single pixels, are one."""
    first, second = layer_of(m.node(_CONV)), layer_of(m.root)
    if isinstance(first, str) or isinstance(second, str):
        return b.no(first if isinstance(first, str) else str(second))
    if first.node.param("group") != 1 or second.node.param("group") != 1 or first.dtype is not second.dtype:
        return b.no("the channels come in groups")
    inner, outer = bias_of(first), bias_of(second)
    if inner is None or outer is None or first.channels != second.weight.shape[1]:
        return b.no("a bias is computed at run time")
    if not is_pointwise(second) and (not is_pointwise(first) or (inner.any() and not pads_nothing(second.node))):
        return b.no("both see more than one pixel, or a bias would have to reach into the padding")
    taps = first.weight.size * second.weight.size // (first.weight.shape[0] * second.weight.shape[1])
    doubt = _doubt(taps, first.weight.size + second.weight.size, second.weight.shape[1])
    if doubt:
        return b.no(doubt)
    weight, shift = _composed(first, second, inner, outer)
    tensor, bias = combined(weight, first.dtype, 0), rounded(shift, first.dtype)
    if tensor is None or bias is None:
        return b.no("the product would overflow or lose precision")
    like = first.node if is_pointwise(second) else second.node
    result: Value = b.like(like, m[x], tensor, *([bias] if shift.any() else []))
    return result


def _composed(first: Layer, second: Layer, inner: Array, outer: Array) -> tuple[Array, Array]:
    """Weight and bias of two convolutions in a row, of which one looks at single pixels."""
    left = first.weight.numpy().astype(np.float64)
    right = second.weight.numpy().astype(np.float64)
    taps = right.reshape(*right.shape[:2], -1).sum(axis=2)
    with np.errstate(all="ignore"):
        shift = taps @ inner + outer
        if is_pointwise(second):
            return np.tensordot(taps, left, axes=(1, 0)), shift
        pixels = left.reshape(left.shape[:2])
        return np.moveaxis(np.tensordot(right, pixels, axes=(1, 0)), -1, 1), shift


_TRANSPOSED_FIRST = op.Transpose(x)
_TRANSPOSED_SECOND = op.Transpose(x)


@rule(
    op.Gemm(_TRANSPOSED_FIRST, w, ...),
    before="""(float[3,2] x, float[3,4] w) => (float[2,4] y)
              { t = Transpose<perm = [1,0]>(x)  z = Gemm(t, w)  y = Relu(z) }""",
    after="(float[3,2] x, float[3,4] w) => (float[2,4] y) { z = Gemm<transA = 1>(x, w)  y = Relu(z) }",
    unless=[
        """(float[3,2] x, float[2,4] w) => (float[3,4] y)
           { t = Transpose<perm = [0,1]>(x)  z = Gemm(t, w)  y = Relu(z) }""",
    ],
    numeric="R",
)
def transpose_into_first_operand(m: Match, b: Builder) -> Value | Miss:
    """A Gemm of a transposed first operand takes it as it is."""
    return _turned(m, b, m.node(_TRANSPOSED_FIRST), "transA", m[x], m[w])


@rule(
    op.Gemm(w, _TRANSPOSED_SECOND, ...),
    before="""(float[2,3] w, float[4,3] x) => (float[2,4] y)
              { t = Transpose<perm = [1,0]>(x)  z = Gemm(w, t)  y = Relu(z) }""",
    after="(float[2,3] w, float[4,3] x) => (float[2,4] y) { z = Gemm<transB = 1>(w, x)  y = Relu(z) }",
    unless=[
        """(float[2,3] w, float[3,4] x) => (float[2,4] y)
           { t = Transpose<perm = [0,1]>(x)  z = Gemm(w, t)  y = Relu(z) }""",
    ],
    numeric="R",
)
def transpose_into_second_operand(m: Match, b: Builder) -> Value | Miss:
    """A Gemm of a transposed second operand takes it as it is."""
    return _turned(m, b, m.node(_TRANSPOSED_SECOND), "transB", m[w], m[x])


def _turned(m: Match, b: Builder, turn: Node, name: str, *operands: Value) -> Value | Miss:
    is_turned = m.root.param(name)
    if m[x].rank != 2 or turn.param("perm") not in (None, (1, 0)) or is_turned not in (0, 1):
        return b.no("it does not turn a matrix")
    result: Value = b.like(m.root, *operands, *m.root.operands[2:], **{name: 1 - is_turned})
    return result
