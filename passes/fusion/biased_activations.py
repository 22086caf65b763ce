"""Gives a layer's bias to the activation that follows it.

ONNX Runtime makes a matrix product and the addition of a bias one Gemm, of which more than two dims are viewed as two
and back, and on CUDA copies the bias over the whole result first. The activation reads the bias along with it. On the
CPU that is worth it for FastGelu; BiasGelu is no faster there than the Gemm and Gelu.
"""

from __future__ import annotations

from graphopt import Builder, DType, Match, Miss, Value, op, rule, var
from passes._proofs import type_name
from passes._vectors import as_vector, is_last_axis_vector

TARGETS = ("ort-cuda", "ort-cpu")

x, bias = var("x"), var("bias")
_MICROSOFT = op.domain("com.microsoft")
_SUM = op.Add(x, bias)


@rule(
    _MICROSOFT.Gelu(_SUM),
    before="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
              { s = Add(x, c)  y = com.microsoft.Gelu(s) }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
             { y = com.microsoft.BiasGelu(x, c) }""",
    unless=[
        "(float[2,5,4] x) => (float[2,5,4] y) <float[1] c = {0.5}> { s = Add(x, c)  y = com.microsoft.Gelu(s) }",
        """(float[2,5,1] x) => (float[2,5,4] y) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
           { s = Add(x, c)  y = com.microsoft.Gelu(s) }""",
        """(float[2,5,4] x) => (float[2,5,4] y) <float[5,1] c = {0.5, 1.0, -1.0, 2.0, 3.0}>
           { s = Add(x, c)  y = com.microsoft.Gelu(s) }""",
        """(float[2,5,4] x) => (float[2,5,4] y, float[2,5,4] s) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
           { s = Add(x, c)  y = com.microsoft.Gelu(s) }""",
        "(float[2,5,4] x, float[2,5,4] c) => (float[2,5,4] y) { s = Add(x, c)  y = com.microsoft.Gelu(s) }",
        """(float[5,4] x, float[4] c) => (float[5,4] y) <float share = {0.5}, bool yes = {1}>
           { s = Add(x, c)  d = Dropout(s, share, yes)  y = com.microsoft.Gelu(d) }""",
    ],
    numeric="R",
)
def bias_gelu(m: Match, b: Builder) -> Value | Miss:
    """Gelu of a sum with a vector along the last axis is BiasGelu."""
    return _biased(m, b, "BiasGelu")


@rule(
    op.Gelu(_SUM, approximate="none"),
    before="""(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { s = Add(x, c)  y = Gelu(s) }""",
    after="(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { y = com.microsoft.BiasGelu(x, c) }",
    unless=[
        """(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { s = Add(x, c)  y = Gelu<approximate="tanh">(s) }""",
        "(float[2,5,4] x, float[5,4] c) => (float[2,5,4] y) { s = Add(x, c)  y = Gelu(s) }",
        "(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { s = Sub(x, c)  y = Gelu(s) }",
    ],
    numeric="R",
    opsets=(20, None),
)
def standard_bias_gelu(m: Match, b: Builder) -> Value | Miss:
    """So it is with the standard operator."""
    return _biased(m, b, "BiasGelu")


@rule(
    _MICROSOFT.FastGelu(_SUM),
    before="""(float[2,5,4] x) => (float[2,5,4] y) <float[1,1,4] c = {0.5, 1.0, -1.0, 2.0}>
              { s = Add(c, x)  y = com.microsoft.FastGelu(s) }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
             { y = com.microsoft.FastGelu(x, c) }""",
    unless=[
        """(float[2,5,4] x, float[4] c) => (float[2,5,4] y) <float[4] d = {0.5, 1.0, -1.0, 2.0}>
           { s = Add(x, c)  y = com.microsoft.FastGelu(s, d) }""",
        """(float[5,4] x) => (float[1,5,4] y) <float[1,1,4] c = {0.5, 1.0, -1.0, 2.0}>
           { s = Add(x, c)  y = com.microsoft.FastGelu(s) }""",
        # The bias stretches the rows; the sum is a result; something random in between.
        """(float[1,4] x) => (float[5,4] y) <float[5,4] c = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}>
           { s = Add(x, c)  y = com.microsoft.FastGelu(s) }""",
        """(float[5,4] x) => (float[5,4] y, float[5,4] s) <float[4] c = {0.5, 1.0, -1.0, 2.0}>
           { s = Add(x, c)  y = com.microsoft.FastGelu(s) }""",
        """(float[5,4] x) => (float[5,4] y) <float[4] c = {0.5, 1.0, -1.0, 2.0}, float share = {0.5}, bool yes = {1}>
           { s = Add(x, c)  d = Dropout(s, share, yes)  y = com.microsoft.FastGelu(d) }""",
        # There is no kernel for double, or none more exact than that for float.
        "(double[5,4] x, double[4] c) => (double[5,4] y) { s = Add(x, c)  y = com.microsoft.FastGelu(s) }",
    ],
    numeric="R",
)
def bias_fast_gelu(m: Match, b: Builder) -> Value | Miss:
    """FastGelu adds such a vector too."""
    return _biased(m, b, "FastGelu")


@rule(
    op.Gelu(_SUM, approximate="tanh"),
    before="""(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { s = Add(x, c)  y = Gelu<approximate="tanh">(s) }""",
    after="(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { y = com.microsoft.FastGelu(x, c) }",
    unless=[
        "(float[2,5,4] x, float[4] c) => (float[2,5,4] y) { s = Add(x, c)  y = Gelu(s) }",
        """(double[2,5,4] x, double[4] c) => (double[2,5,4] y) { s = Add(x, c)  y = Gelu<approximate="tanh">(s) }""",
    ],
    numeric="R",
    opsets=(20, None),
)
def standard_bias_fast_gelu(m: Match, b: Builder) -> Value | Miss:
    """So it is with the standard operator's approximation."""
    return _biased(m, b, "FastGelu")


def _biased(m: Match, b: Builder, op_type: str) -> Value | Miss:
    dtype = m.root.results[0].dtype
    if op_type == "BiasGelu" and not b.target.is_cuda:
        return b.no("BiasGelu of the CPU provider is no faster than a Gemm with bias and Gelu")
    if not b.target.runs(op_type, dtype):
        return b.no(f"{b.target.name} has no kernel of {op_type} for {type_name(dtype)}")
    if op_type == "FastGelu" and dtype is DType.DOUBLE:
        return b.no("the kernel of FastGelu for double is no more exact than that for float")
    for of, vector in ((m[x], m[bias]), (m[bias], m[x])):
        if is_last_axis_vector(vector, of):
            made: Value = b.apply(op_type, [of, as_vector(b, vector)], domain="com.microsoft")
            return made
    return b.no("what is added is not a vector along the last axis")
