"""Two negations cancel."""

from __future__ import annotations

from graphopt import Builder, Match, Value, op, rule, var

AFTER = "identities"

x = var("x")


@rule(
    op.Neg(op.Neg(x)),
    before="(float[2,3] x) => (float[2,3] y) { n = Neg(x)  y = Neg(n) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
    unless=["(float[2] x) => (float[2] y) { n = Abs(x)  y = Neg(n) }"],
)
def cancel(m: Match, b: Builder) -> Value:
    """The negation of a negation is the operand."""
    return m[x]
