"""Writes activations as the operators of ONNX Runtime that compute them in one kernel."""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, const, op, rule, var
from passes.fusion import RUNTIME

TARGETS = RUNTIME

x = var("x")
alpha = const("alpha")


@rule(
    op.Mul(x, op.Sigmoid(op.Mul(x, alpha))),
    before="(float[2,3] x) => (float[2,3] y) <float c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
    after="(float[2,3] x) => (float[2,3] y) { y = com.microsoft.QuickGelu<alpha = 1.702>(x) }",
    unless=[
        """(float[2,3] x, float[2,3] w) => (float[2,3] y) <float c = {1.702}>
           { z = Mul(w, c)  s = Sigmoid(z)  y = Mul(x, s) }""",
        "(float[3] x) => (float[1,3] y) <float[1,1] c = {1.702}> { z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s) }",
    ],
    numeric="R",
)
def quick_gelu(m: Match, b: Builder) -> Value | Miss:
    """A value times the sigmoid of a multiple of it is QuickGelu."""
    value, factor = m[x], m[alpha]
    if factor.const is None or factor.const.size != 1 or (factor.rank or 0) > (value.rank or 0):
        return b.no("the factor is not one number")
    if not b.target.runs("QuickGelu", value.dtype):
        return b.no(f"{b.target.name} has no kernel of QuickGelu for {value.dtype}")
    fused: Value = b.microsoft.QuickGelu(value, alpha=float(factor.const.scalar()))
    return fused
