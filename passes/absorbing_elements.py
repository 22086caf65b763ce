"""Replaces what is known whatever the operand holds: integer x * 0, And False, Or True, x - x, x == x, x ** 0.

The result must be storable: of known, small shape, or the absorbing constant itself where that has the shape. For
floats, 0 * x, x - x and x / x are not known: x may be infinite or NaN; those are class D.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Value, op, rule, var
from passes._numbers import is_all
from passes._proofs import same_type

x, y = var("x"), var("y")
_zero = var("zero", where=lambda value: is_all(value, 0.0) or is_all(value, -0.0))
_one = var("one", where=lambda value: is_all(value, 1))
_true = var("true", where=lambda value: is_all(value, True))
_false = var("false", where=lambda value: is_all(value, False))
_zero_constant = var("zero", where=lambda value: value.const is not None and is_all(value, 0.0))

_LIMIT = 4096
"""Elements of a constant that may take the place of one operator."""


def _filled(m: Match, b: Builder, number: float | bool, like: Value | None = None) -> Value | Miss:
    """A constant of the result's type and shape that holds `number` throughout; `like` if that is one."""
    result = m.root.result
    if like is not None and like.const is not None and same_type(like, result):
        return like
    if result.dtype is None or result.dtype is DType.STRING or result.shape is None:
        return b.no("the type of the result is not known")
    sizes = [dim for dim in result.shape if isinstance(dim, int)]
    if len(sizes) != len(result.shape):
        return b.no("the shape of the result depends on the inputs")
    if np.prod(sizes, dtype=np.int64) > _LIMIT:
        return b.no("the result is too large to be stored")
    return b.constant(np.full(sizes, number, result.dtype.numpy), result.dtype)


def _is_exact(value: Value) -> bool:
    """True if a tensor holds integers or truth values."""
    return value.dtype is not None and (value.dtype.is_integer or value.dtype is DType.BOOL)


@rule(
    op.Mul(x, _zero),
    before="(int64[2,3] x) => (int64[2,3] y) <int64[3] c = {0,0,0}> { t = Mul(x, c)  y = Add(t, x) }",
    after="(int64[2,3] x) => (int64[2,3] y) <int64[2,3] c = {0,0,0,0,0,0}> { y = Add(c, x) }",
    unless=[
        "(float[2,3] x) => (float[2,3] y) <float[3] c = {0.0,0.0,0.0}> { t = Mul(x, c)  y = Add(t, x) }",
        "(int64[N,3] x) => (int64[N,3] y) <int64[3] c = {0,0,0}> { t = Mul(x, c)  y = Add(t, x) }",
        "(int64[2,3] x) => (int64[2,3] y) <int64[3] c = {0,1,0}> { t = Mul(x, c)  y = Add(t, x) }",
        "(int64[4097] x) => (int64[4097] y) <int64[1] c = {0}> { t = Mul(x, c)  y = Add(t, x) }",
    ],
)
def multiply_by_zero(m: Match, b: Builder) -> Value | Miss:
    """An integer times 0 is 0."""
    return _filled(m, b, 0, m[_zero]) if _is_exact(m[x]) else b.no("0 times infinity is no number")


@rule(
    op.Mul(x, _zero),
    before="(float[2] x, float[2] z) => (float[2] y) <float c = {0.0}> { t = Mul(x, c)  y = Add(t, z) }",
    after="(float[2] x, float[2] z) => (float[2] y) <float[2] c = {0.0,0.0}> { y = Add(c, z) }",
    unless=["(float[N] x, float[N] z) => (float[N] y) <float c = {0.0}> { t = Mul(x, c)  y = Add(t, z) }"],
    numeric="D",
)
def multiply_float_by_zero(m: Match, b: Builder) -> Value | Miss:
    """A number times 0 is 0, unless it is infinite or NaN."""
    return _filled(m, b, 0, m[_zero])


@rule(
    op.MatMul(x, _zero_constant),
    before="""(float[1,2] x, float[1,2] z) => (float[1,2] y) <float[2,2] c = {0.0,0.0,0.0,0.0}>
              { t = MatMul(x, c)  y = Add(t, z) }""",
    after="(float[1,2] x, float[1,2] z) => (float[1,2] y) <float[1,2] c = {0.0,0.0}> { y = Add(c, z) }",
    unless=[
        """(float[1,2] x, float[1,2] z) => (float[1,2] y) <float[2,2] c = {0.0,0.0,0.0,1.0}>
           { t = MatMul(x, c)  y = Add(t, z) }""",
    ],
    numeric="D",
)
def matmul_by_zero(m: Match, b: Builder) -> Value | Miss:
    """A matrix product with zeros is zeros, unless something is infinite or NaN."""
    return _filled(m, b, 0)


@rule(
    op.And(x, _false),
    before="(bool[2,3] x, bool[3] z) => (bool[2,3] y) <bool c = {0}> { t = And(x, c)  y = Or(t, z) }",
    after="(bool[2,3] x, bool[3] z) => (bool[2,3] y) <bool[2,3] c = {0,0,0,0,0,0}> { y = Or(c, z) }",
    unless=[
        "(bool[N,3] x, bool[3] z) => (bool[N,3] y) <bool c = {0}> { t = And(x, c)  y = Or(t, z) }",
        "(bool[2] x, bool[2] z) => (bool[2] y) <bool[2] c = {0,1}> { t = And(x, c)  y = Or(t, z) }",
    ],
)
def and_false(m: Match, b: Builder) -> Value | Miss:
    """And False is False."""
    return _filled(m, b, False, m[_false])


@rule(
    op.Or(x, _true),
    before="(bool[2] x, bool[2] z) => (bool[2] y) <bool[2] c = {1,1}> { t = Or(x, c)  y = Xor(t, z) }",
    after="(bool[2] x, bool[2] z) => (bool[2] y) <bool[2] c = {1,1}> { y = Xor(c, z) }",
    unless=["(bool[N] x, bool[2] z) => (bool[M] y) <bool c = {1}> { t = Or(x, c)  y = Xor(t, z) }"],
)
def or_true(m: Match, b: Builder) -> Value | Miss:
    """Or True is True."""
    return _filled(m, b, True, m[_true])


@rule(
    op.Mod(x, _one),
    before="(int64[2] x, int64[2] z) => (int64[2] y) <int64 c = {1}> { t = Mod(x, c)  y = Add(t, z) }",
    after="(int64[2] x, int64[2] z) => (int64[2] y) <int64[2] c = {0,0}> { y = Add(c, z) }",
    unless=[
        "(int64[2] x, int64[2] z) => (int64[2] y) <int64 c = {2}> { t = Mod(x, c)  y = Add(t, z) }",
        "(float[2] x, float[2] z) => (float[2] y) <float c = {1.0}> { t = Mod<fmod = 1>(x, c)  y = Add(t, z) }",
        "(int64[2] x, int64[2] z) => (int64[2] y) <int64 c = {1}> { t = Mod(c, x)  y = Add(t, z) }",
    ],
)
def remainder_of_one(m: Match, b: Builder) -> Value | Miss:
    """The remainder of an integer divided by 1 is 0."""
    return _filled(m, b, 0) if _is_exact(m[x]) else b.no("a float has a fraction")


@rule(
    op.Pow(x, _zero),
    before="(float[2] x, float[2] z) => (float[2] y) <float c = {0.0}> { t = Pow(x, c)  y = Add(t, z) }",
    after="(float[2] x, float[2] z) => (float[2] y) <float[2] c = {1.0,1.0}> { y = Add(c, z) }",
    unless=[
        "(float[2] x, float[2] z) => (float[2] y) <float c = {0.0}> { t = Pow(c, x)  y = Add(t, z) }",
        "(float[2] x, float[2] z) => (float[2] y) <float c = {1.0}> { t = Pow(x, c)  y = Add(t, z) }",
    ],
)
def power_of_zero(m: Match, b: Builder) -> Value | Miss:
    """Everything to the power of 0 is 1, NaN included."""
    return _filled(m, b, 1)


# --- a value and itself


@rule(
    op.one_of("And", "Or", "BitwiseAnd", "BitwiseOr")(x, x),
    before="(bool[N] x) => (bool[N] y) { t = And(x, x)  y = Not(t) }",
    after="(bool[N] x) => (bool[N] y) { y = Not(x) }",
    unless=["(bool[N] x) => (bool[N] y) { t = Xor(x, x)  y = Not(t) }"],
    opsets=(7, None),
)
def both_the_same(m: Match, b: Builder) -> Value | Miss:
    """And and Or of a value and itself are that value."""
    value: Value = m[x]
    return value


@rule(
    op.one_of("Sub", "Xor", "BitwiseXor")(x, x),
    before="(int64[2] x, int64[2] z) => (int64[2] y) { t = Sub(x, x)  y = Add(t, z) }",
    after="(int64[2] x, int64[2] z) => (int64[2] y) <int64[2] c = {0,0}> { y = Add(c, z) }",
    unless=[
        "(float[2] x, float[2] z) => (float[2] y) { t = Sub(x, x)  y = Add(t, z) }",
        "(int64[2] x, int64[2] z) => (int64[2] y) { t = Sub(x, z)  y = Add(t, z) }",
    ],
    opsets=(7, None),
)
def difference_from_itself(m: Match, b: Builder) -> Value | Miss:
    """An integer minus itself is 0, a truth value or bits exclusive or themselves are False."""
    return _filled(m, b, 0) if _is_exact(m[x]) else b.no("infinity minus infinity is no number")


@rule(
    op.one_of("Equal", "GreaterOrEqual", "LessOrEqual")(x, x),
    before="(int64[2] x, bool[2] z) => (bool[2] y) { t = Equal(x, x)  y = Xor(t, z) }",
    after="(int64[2] x, bool[2] z) => (bool[2] y) <bool[2] c = {1,1}> { y = Xor(c, z) }",
    unless=["(float[2] x, bool[2] z) => (bool[2] y) { t = Equal(x, x)  y = Xor(t, z) }"],
    opsets=(12, None),
)
def equal_to_itself(m: Match, b: Builder) -> Value | Miss:
    """An integer equals itself; NaN does not."""
    return _filled(m, b, True) if _is_exact(m[x]) else b.no("NaN does not equal itself")


@rule(
    op.one_of("Greater", "Less")(x, x),
    before="(float[2] x, bool[2] z) => (bool[2] y) { t = Less(x, x)  y = Xor(t, z) }",
    after="(float[2] x, bool[2] z) => (bool[2] y) <bool[2] c = {0,0}> { y = Xor(c, z) }",
    unless=["(float[2] x, float[2] w, bool[2] z) => (bool[2] y) { t = Less(x, w)  y = Xor(t, z) }"],
)
def less_than_itself(m: Match, b: Builder) -> Value | Miss:
    """Nothing is less or greater than itself, not even NaN."""
    return _filled(m, b, False)


@rule(
    op.one_of("Div", "Sub")(x, x),
    before="(float[2] x, float[2] z) => (float[2] y) { t = Div(x, x)  y = Add(t, z) }",
    after="(float[2] x, float[2] z) => (float[2] y) <float[2] c = {1.0,1.0}> { y = Add(c, z) }",
    unless=["(float[N] x, float[N] z) => (float[N] y) { t = Div(x, x)  y = Add(t, z) }"],
    numeric="D",
)
def quotient_of_itself(m: Match, b: Builder) -> Value | Miss:
    """A number divided by itself is 1 and minus itself is 0, unless it is 0, infinite or NaN."""
    if not (m[x].dtype is not None and m[x].dtype.is_float):
        return b.no("an integer 0 divided by itself is an error")
    return _filled(m, b, 1 if m.root.op_type == "Div" else 0)
