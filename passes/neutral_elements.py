"""Removes operands that change nothing: x + 0, x * 1, x / 1, x ** 1, And True, Or False, Max -inf, empty parts.

The neutral number may be a scalar, a whole tensor or expanded to any shape, as long as it is proved not to widen the
other operand. `x + 0.0` makes 0.0 of -0.0 and is class Z; `x + -0.0` and `x - 0.0` are exact.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Value, op, rule, var
from passes._affine import completes_normalization
from passes._halves import for_halves, not_of_halves
from passes._noops import is_fragile_output
from passes._numbers import is_all
from passes._proofs import axis_of, same_type

x = var("x")
_zero = var("zero", where=lambda value: is_all(value, 0.0))
_minus_zero = var("minus_zero", where=lambda value: is_all(value, -0.0))
_one = var("one", where=lambda value: is_all(value, 1))
_true = var("true", where=lambda value: is_all(value, True))
_false = var("false", where=lambda value: is_all(value, False))
_ones = var("ones", where=lambda value: _is_bound(value, least=False, bits=True))


def _kept(m: Match, b: Builder) -> Value | Miss:
    """The other operand, if it is proved to have the type of the result."""
    value: Value = m[x]
    if is_fragile_output(m.root, value):
        return b.no("the runtime does not load what would be left")
    return value if same_type(value, m.root.result) else b.no("the neutral operand may widen the other one")


def _kept_unless_fused(m: Match, b: Builder, constant: Value) -> Value | Miss:
    """The same, but not where the neutral operand is the scale or shift of a normalization."""
    if completes_normalization(m.root, m[x], constant):
        return b.no("the runtime makes one normalization of it and what is before it")
    return _kept(m, b)


def _is_bound(value: Value | None, *, least: bool, bits: bool = False) -> bool:
    """True for a tensor that holds the least or the greatest number of its type throughout.

    Args:
        value: The tensor.
        least: Which of the two.
        bits: True to ask for all bits set instead.
    """
    dtype = None if value is None else value.dtype
    if dtype is None:
        return False
    if dtype.is_float:
        return not bits and is_all(value, -np.inf if least else np.inf)
    if not dtype.is_integer or dtype.bits < 8:
        return False
    if bits and dtype.is_signed:
        return is_all(value, -1)
    limits = np.iinfo(dtype.numpy)
    return is_all(value, int(limits.min if least else limits.max))


# --- sums


@rule(
    op.one_of("Add", "Sub")(x, _zero),
    before="(int64[N,3] x) => (int64[N,3] y) <int64[3] c = {0,0,0}> { t = Add(c, x)  y = Abs(t) }",
    after="(int64[N,3] x) => (int64[N,3] y) { y = Abs(x) }",
    unless=[
        "(int64[3] x) => (int64[2,3] y) <int64[2,1] c = {0,0}> { t = Add(x, c)  y = Abs(t) }",
        "(int64[N] x) => (int64[M] y) <int64[3] c = {0,0,0}> { t = Add(x, c)  y = Abs(t) }",
        "(int64 x) => (int64[1] y) <int64[1] c = {0}> { t = Add(x, c)  y = Abs(t) }",
        "(int64[3] x) => (int64[3] y) <int64 c = {0}> { t = Sub(c, x)  y = Abs(t) }",
        "(float[3] x) => (float[3] y) <float c = {0.0}> { t = Add(x, c)  y = Abs(t) }",
    ],
)
def add_integer_zero(m: Match, b: Builder) -> Value | Miss:
    """An integer plus or minus 0 is that integer."""
    is_integer = m[x].dtype is not None and m[x].dtype.is_integer
    return _kept(m, b) if is_integer else b.no("it is no integer")


@rule(
    op.Sub(x, _zero),
    before="(float[N,3] x) => (float[N,3] y) <float c = {0.0}> { t = Sub(x, c)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=[
        "(float[3] x) => (float[3] y) <float c = {0.0}> { t = Sub(c, x)  y = Exp(t) }",
        "(float[1] x) => (float[2] y) <float[2] c = {0.0,0.0}> { t = Sub(x, c)  y = Exp(t) }",
        "(float[3] x) => (float[3] y) <float c = {-0.0}> { t = Sub(x, c)  y = Exp(t) }",
    ],
)
@not_of_halves
def subtract_zero(m: Match, b: Builder) -> Value | Miss:
    """Minus 0.0 changes nothing, not even -0.0."""
    return _kept(m, b)


subtract_zero_of_halves = for_halves(subtract_zero)


@rule(
    op.Add(x, _minus_zero),
    before="(float[N,3] x) => (float[N,3] y) <float c = {-0.0}> { t = Add(c, x)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=["(float[2,3] x) => (float[2,3] y) <float c = {0.0}> { t = Add(c, x)  y = Exp(t) }"],
)
@not_of_halves
def add_minus_zero(m: Match, b: Builder) -> Value | Miss:
    """Plus -0.0 changes nothing: 0.0 + -0.0 is 0.0."""
    return _kept(m, b)


@rule(
    op.Add(x, _zero),
    before="(float[N,3] x) => (float[N,3] y) <float[1,3] c = {0.0,0.0,0.0}> { t = Add(c, x)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=[
        "(float[3] x) => (float[1,3] y) <float[1,3] c = {0.0,0.0,0.0}> { t = Add(c, x)  y = Exp(t) }",
        "(float[N] x) => (float[M] y) <float[2] c = {0.0,0.0}> { t = Add(c, x)  y = Exp(t) }",
        "(float[2] x) => (float[2] y) <float[2] c = {0.0,1e-30}> { t = Add(c, x)  y = Exp(t) }",
        "(float[2] x, float[2] z) => (float[2] y) { t = Add(x, z)  y = Exp(t) }",
        # The shift of a normalization, which the runtime fuses with it and not without it.
        """(float[2,4] x) => (float[2,4] y) <float[4] g = {2,3,4,5}, float[4] c = {0,0,0,0}, float e = {0.1}>
           { q = Mul(x, x)  v = ReduceMean<axes = [-1]>(q)  a = Add(v, e)  r = Sqrt(a)  n = Div(x, r)  s = Mul(n, g)
             y = Add(s, c) }""",
    ],
    numeric="Z",
)
def add_zero(m: Match, b: Builder) -> Value | Miss:
    """Plus 0.0 changes nothing but the sign of -0.0."""
    return _kept_unless_fused(m, b, m[_zero])


@rule(
    op.Sub(_zero, x),
    before="(float[N,3] x) => (float[N,3] y) <float c = {0.0}> { y = Sub(c, x) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Neg(x) }",
    unless=[
        "(float[3] x) => (float[2,3] y) <float[2,1] c = {0.0,0.0}> { y = Sub(c, x) }",
        "(float[3] x) => (float[3] y) <float c = {0.0}> { y = Sub(x, c) }",
        "(uint64[3] x) => (uint64[3] y) <uint64 c = {0}> { y = Sub(c, x) }",
        "(bfloat16[3] x) => (bfloat16[3] y) <bfloat16 c = {0}> { y = Sub(c, x) }",
    ],
    numeric="Z",
)
def subtract_from_zero(m: Match, b: Builder) -> Value | Miss:
    """0 minus a number is its negation, but for the sign of zero."""
    if m[x].dtype not in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.INT32, DType.INT64):
        return b.no("the runtime has no negation for the type")
    return b.Neg(m[x]) if same_type(m[x], m.root.result) else b.no("the 0 may widen the other operand")


# --- products


@rule(
    op.one_of("Mul", "Div")(x, _one),
    before="(float[N,3] x) => (float[N,3] y) <float c = {1.0}> { t = Mul(c, x)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=[
        "(float[3] x) => (float[2,3] y) <float[2,1] c = {1.0,1.0}> { t = Mul(x, c)  y = Exp(t) }",
        "(float[N] x) => (float[M] y) <float[2] c = {1.0,1.0}> { t = Mul(x, c)  y = Exp(t) }",
        "(float x) => (float[1] y) <float[1] c = {1.0}> { t = Div(x, c)  y = Exp(t) }",
        "(float[3] x) => (float[3] y) <float c = {1.0}> { t = Div(c, x)  y = Exp(t) }",
        "(float[2] x) => (float[2] y) <float[2] c = {1.0,1.5}> { t = Mul(x, c)  y = Exp(t) }",
        "(float[2] x) => (float[2] y) <float[2] c = {1.0,-1.0}> { t = Mul(x, c)  y = Exp(t) }",
        # The scale of a normalization, which the runtime fuses with it and not without it.
        """(float[2,4] x) => (float[2,4] y) <float[4] c = {1,1,1,1}, float e = {0.1}>
           { q = Mul(x, x)  v = ReduceMean<axes = [-1]>(q)  a = Add(v, e)  r = Sqrt(a)  n = Div(x, r)
             y = Mul(n, c) }""",
    ],
)
@not_of_halves
def multiply_by_one(m: Match, b: Builder) -> Value | Miss:
    """Times or divided by 1 changes nothing."""
    return _kept_unless_fused(m, b, m[_one])


multiply_by_one_of_halves = for_halves(multiply_by_one)


@rule(
    op.Pow(x, _one),
    before="(float[N,3] x) => (float[N,3] y) <int64 c = {1}> { t = Pow(x, c)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=[
        "(float[3] x) => (float[3] y) <float c = {1.0}> { t = Pow(c, x)  y = Exp(t) }",
        "(float[3] x) => (float[2,3] y) <float[2,1] c = {1.0,1.0}> { t = Pow(x, c)  y = Exp(t) }",
        # Through float64: beyond 2**53 the power is another number.
        "(int64[3] x) => (int64[3] y) <int64 c = {1}> { t = Pow(x, c)  y = Abs(t) }",
    ],
    numeric="Z",
)
def first_power(m: Match, b: Builder) -> Value | Miss:
    """The first power of a number is that number; the runtime may change the sign of a NaN."""
    return b.no("integers go through float64") if m[x].dtype is DType.INT64 else _kept(m, b)


# --- truth values and bits


@rule(
    op.And(x, _true),
    before="(bool[N,3] x) => (bool[N,3] y) <bool c = {1}> { t = And(c, x)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(bool[3] x) => (bool[2,3] y) <bool[2,1] c = {1,1}> { t = And(c, x)  y = Not(t) }",
        "(bool[3] x) => (bool[3] y) <bool[3] c = {1,0,1}> { t = And(c, x)  y = Not(t) }",
        "(bool[3] x) => (bool[3] y) <bool c = {0}> { t = And(c, x)  y = Not(t) }",
    ],
)
def and_true(m: Match, b: Builder) -> Value | Miss:
    """And True changes nothing."""
    return _kept(m, b)


@rule(
    op.one_of("Or", "Xor")(x, _false),
    before="(bool[N,3] x) => (bool[N,3] y) <bool[3] c = {0,0,0}> { t = Xor(c, x)  y = Not(t) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = Not(x) }",
    unless=[
        "(bool[3] x) => (bool[2,3] y) <bool[2,1] c = {0,0}> { t = Or(c, x)  y = Not(t) }",
        "(bool[3] x) => (bool[3] y) <bool c = {1}> { t = Or(c, x)  y = Not(t) }",
    ],
)
def or_false(m: Match, b: Builder) -> Value | Miss:
    """Or False and exclusive or False change nothing."""
    return _kept(m, b)


@rule(
    op.one_of("BitwiseOr", "BitwiseXor", "BitShift")(x, _zero),
    before="(int32[N,3] x) => (int32[N,3] y) <int32 c = {0}> { t = BitwiseOr(c, x)  y = BitwiseNot(t) }",
    after="(int32[N,3] x) => (int32[N,3] y) { y = BitwiseNot(x) }",
    unless=[
        "(int32[3] x) => (int32[3] y) <int32 c = {1}> { t = BitwiseXor(c, x)  y = BitwiseNot(t) }",
        """(uint8[3] x) => (uint8[3] y) <uint8 c = {0}>
           { t = BitShift<direction = "LEFT">(c, x)  y = BitwiseNot(t) }""",
    ],
    opsets=(18, None),
)
def or_no_bit(m: Match, b: Builder) -> Value | Miss:
    """A bitwise or, exclusive or or shift by 0 changes nothing."""
    return _kept(m, b)


@rule(
    op.BitwiseAnd(x, _ones),
    before="(uint8[N,3] x) => (uint8[N,3] y) <uint8 c = {255}> { t = BitwiseAnd(c, x)  y = BitwiseNot(t) }",
    after="(uint8[N,3] x) => (uint8[N,3] y) { y = BitwiseNot(x) }",
    unless=[
        "(uint8[3] x) => (uint8[3] y) <uint8 c = {127}> { t = BitwiseAnd(c, x)  y = BitwiseNot(t) }",
        "(int8[3] x) => (int8[3] y) <int8 c = {127}> { t = BitwiseAnd(c, x)  y = BitwiseNot(t) }",
    ],
)
def and_every_bit(m: Match, b: Builder) -> Value | Miss:
    """A bitwise and with every bit set changes nothing."""
    return _kept(m, b)


# --- extremes and parts


@rule(
    op.one_of("Max", "Min")(x, ...),
    before="(float[N,3] x) => (float[N,3] y) <float c = {-inf}> { t = Max(x, c)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=[
        "(float[3] x) => (float[3] y) <float c = {-60000.0}> { t = Max(x, c)  y = Exp(t) }",
        "(float[3] x) => (float[3] y) <float c = {-inf}> { t = Min(x, c)  y = Exp(t) }",
        "(float[1] x) => (float[2] y) <float[2] c = {-inf,-inf}> { t = Max(x, c)  y = Exp(t) }",
        "(int32[3] x) => (int32[3] y) <int32 c = {0}> { t = Max(x, c)  y = Abs(t) }",
    ],
)
@not_of_halves
def maximum_with_least(m: Match, b: Builder) -> Value | Miss:
    """A Max without -inf or a Min without inf among its operands is the same; integers have bounds too."""
    root = m.root
    rest = [value for value in root.operands if not _is_bound(value, least=root.op_type == "Max")]
    if not rest or len(rest) == len(root.operands):
        return b.no("no operand is the least or greatest there is")
    kept: Value = rest[0] if len(rest) == 1 and rest[0] is not None else b.like(root, *rest)
    return kept if same_type(kept, root.result) else b.no("the neutral operand may widen the others")


maximum_with_least_of_halves = for_halves(maximum_with_least)


@rule(
    op.Concat(x, ...),
    before="(float[N,3] x, float[N,0] e) => (float[N,6] y) { y = Concat<axis = 1>(x, e, x) }",
    after="(float[N,3] x, float[N,0] e) => (float[N,6] y) { y = Concat<axis = 1>(x, x) }",
    unless=[
        "(float[2,3] x, float[2,M] e) => (float[2,K] y) { y = Concat<axis = 1>(x, e) }",
        "(float[0,3] x, float[0,2] e) => (float[0,5] y) { y = Concat<axis = 1>(x, e) }",
        "(float[2,0] x, float[2,0] e) => (float[2,0] y) { y = Concat<axis = 1>(x, e) }",
    ],
)
def empty_part(m: Match, b: Builder) -> Value | Miss:
    """A part of no length adds nothing to a Concat."""
    root = m.root
    axis = axis_of(root, root.result.rank)
    rest: list[Value | None] = [
        value for value in root.operands if value is None or axis is None or not _is_empty(value, axis)
    ]
    if not rest or len(rest) == len(root.operands):
        return b.no("no part is known to be empty, or all are")
    # Wherever the runtime takes the parts, they agree in all other dims: nothing needs to be proved of those.
    return rest[0] if len(rest) == 1 and rest[0] is not None else b.like(root, *rest)


def _is_empty(value: Value, axis: int) -> bool:
    return value.shape is not None and axis < len(value.shape) and value.shape[axis] == 0
