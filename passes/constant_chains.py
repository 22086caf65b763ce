"""Merges constants that meet: (x * a) * b, (x + a) - b, -(x * a), x * (1 / sqrt(v)).

A product of scales is rounded once where it was rounded twice, and cannot overflow on the way: class R. A sum of
constants is that only where the constants' own sum is not rounded: (x + 1) + 1e-9 is not x + 1.
"""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Node, Tensor, Value, const, op, rule, var
from passes import _merging as merging
from passes._numbers import is_all
from passes._proofs import same_shape

x, y = var("x"), var("y")
_inner, _outer = const("inner"), const("outer")
_one = var("one", where=lambda value: is_all(value, 1))

_FACTORS = ("Mul", "Div")
_TERMS = ("Add", "Sub")


def _parts(node: Node) -> tuple[Value, Value, bool] | None:
    """What a binary operator computes with, its only constant, and whether the constant stands on the left."""
    left, right = node.operands[0], node.operands[1]
    if left is None or right is None or (left.const is None) is (right.const is None):
        return None
    return (right, left, True) if left.const is not None else (left, right, False)


def _made(m: Match, b: Builder, op_type: str, *operands: Value | Tensor | None) -> Value | Miss:
    if any(operand is None for operand in operands):
        return b.no("the merged constant would be larger, or no ordinary number")
    made: Value = b.apply(op_type, operands)
    return made if same_shape(made, m.root.result) else b.no("the result may have another shape")


# --- factors

_FACTOR = op.one_of(*_FACTORS)(x, y)


@rule(
    op.Mul(op.Mul(x, _inner), _outer),
    before="(int64[N,3] x) => (int64[N,3] y) <int64[3] a = {1,2,3}, int64 c = {7}> { t = Mul(x, a)  y = Mul(c, t) }",
    after="(int64[N,3] x) => (int64[N,3] y) <int64[3] c = {7,14,21}> { y = Mul(x, c) }",
    unless=[
        "(float[2] x) => (float[2] y) <float a = {2.0}, float c = {7.0}> { t = Mul(x, a)  y = Mul(c, t) }",
        """(int64[2,3] x) => (int64[2,3] y) <int64[3] a = {1,2,3}, int64[2,1] c = {7,8}>
           { t = Mul(x, a)  y = Mul(c, t) }""",
        "(int64[2] x) => (int64[2] y) <int64 a = {2}, int64 c = {7}> { t = Mul(x, a)  y = Div(t, c) }",
    ],
)
def merge_integer_factors(m: Match, b: Builder) -> Value | Miss:
    """Two integer factors are one; products wrap around in either order."""
    if m[x].dtype is None or not m[x].dtype.is_integer:
        return b.no("they are no integers")
    return _made(m, b, "Mul", m[x], merging.product(m[_inner], m[_outer]))


@rule(
    op.one_of(*_FACTORS)(_FACTOR, _outer),
    before="(float[N,3] x) => (float[N,3] y) <float[3] a = {1,2,3}, float c = {4.0}> { t = Mul(a, x)  y = Div(t, c) }",
    after="(float[N,3] x) => (float[N,3] y) <float[3] c = {0.25,0.5,0.75}> { y = Mul(x, c) }",
    unless=[
        "(float[2] x) => (float[2] y) <float a = {1e-30}, float c = {1e-30}> { t = Mul(x, a)  y = Mul(t, c) }",
        "(float[2] x) => (float[2] y) <float a = {0.0}, float c = {2.0}> { t = Mul(x, a)  y = Mul(t, c) }",
        """(float[2,3] x) => (float[2,3] y) <float[3] a = {1,2,3}, float[2,1] c = {7,8}>
           { t = Mul(x, a)  y = Mul(c, t) }""",
        # The end of a Gelu as it is exported: the runtime looks for it.
        """(float[2] x, float[2] z) => (float[2] y) <float a = {0.5}, float c = {3.0}>
           { g = Mul(x, z)  t = Mul(g, a)  y = Mul(t, c) }""",
    ],
    numeric="R",
)
def merge_factors(m: Match, b: Builder) -> Value | Miss:
    """Two factors or divisors in a row are one."""
    found = _parts(m.node(_FACTOR))
    if found is None or not found[0].dtype or not found[0].dtype.is_float:
        return b.no("there are no two constants of floats")
    value, inner, is_left = found
    outer: Value = m[_outer]
    if not (merging.is_ordinary(inner) and merging.is_ordinary(outer)):
        return b.no("a constant is 0, infinite or subnormal")
    if _ends_gelu(m.node(_FACTOR), value, inner):
        return b.no("it ends a Gelu, which the runtime fuses as it is")
    divides, multiplies = m.node(_FACTOR).op_type == "Div", m.root.op_type == "Mul"
    if divides and is_left:
        return _made(m, b, "Div", (merging.product if multiplies else merging.quotient)(inner, outer), value)
    if divides and not multiplies:
        return _made(m, b, "Div", value, merging.product(inner, outer))
    if divides:
        return _made(m, b, "Mul", value, merging.quotient(outer, inner))
    return _made(m, b, "Mul", value, (merging.product if multiplies else merging.quotient)(inner, outer))


def _ends_gelu(node: Node, value: Value, inner: Value) -> bool:
    return node.op_type == "Mul" and value.producer.is_op("Mul") and is_all(inner, 0.5)


@rule(
    op.Div(_outer, _FACTOR),
    before="(float[N,3] x) => (float[N,3] y) <float a = {2.0}, float c = {6.0}> { t = Mul(x, a)  y = Div(c, t) }",
    after="(float[N,3] x) => (float[N,3] y) <float c = {3.0}> { y = Div(c, x) }",
    unless=[
        "(float[2] x) => (float[2] y) <float a = {2.0}, float c = {6.0}> { t = Div(a, x)  y = Div(c, t) }",
        "(float[2] x) => (float[2] y) <float a = {2.0}, float c = {0.0}> { t = Mul(x, a)  y = Div(c, t) }",
        "(int64[2] x) => (int64[2] y) <int64 a = {2}, int64 c = {6}> { t = Mul(x, a)  y = Div(c, t) }",
    ],
    numeric="R",
)
def merge_numerator(m: Match, b: Builder) -> Value | Miss:
    """A constant divided by a scaled value is another constant divided by the value."""
    found = _parts(m.node(_FACTOR))
    if found is None or not found[0].dtype or not found[0].dtype.is_float:
        return b.no("there are no two constants of floats")
    value, inner, is_left = found
    divides = m.node(_FACTOR).op_type == "Div"
    if divides and is_left:
        return b.no("both constants are divided")
    if not (merging.is_ordinary(inner) and merging.is_ordinary(m[_outer])):
        return b.no("a constant is 0, infinite or subnormal")
    return _made(m, b, "Div", (merging.product if divides else merging.quotient)(m[_outer], inner), value)


@rule(
    op.one_of(*_FACTORS)(op.Neg(x), _inner),
    before="(float[N,3] x) => (float[N,3] y) <float[3] c = {1,2,3}> { n = Neg(x)  y = Mul(n, c) }",
    after="(float[N,3] x) => (float[N,3] y) <float[3] c = {-1,-2,-3}> { y = Mul(x, c) }",
    unless=[
        "(float[2] x, float z) => (float[2] y) { n = Neg(x)  y = Mul(n, z) }",
        "(int64[2] x) => (int64[2] y) <int64 c = {2}> { n = Neg(x)  y = Div(n, c) }",
    ],
    numeric="Z",
)
def negate_factor(m: Match, b: Builder) -> Value | Miss:
    """The sign of a factor goes into the constant; only the sign of a NaN can differ."""
    return _signed(m, b, m.root.op_type, m[x], m[_inner])


@rule(
    op.Neg(op.one_of(*_FACTORS)(x, _inner)),
    before="(float[N,3] x) => (float[N,3] y) <float[3] c = {1,2,3}> { n = Mul(x, c)  y = Neg(n) }",
    after="(float[N,3] x) => (float[N,3] y) <float[3] c = {-1,-2,-3}> { y = Mul(x, c) }",
    unless=[
        "(float[2] x, float z) => (float[2] y) { n = Mul(x, z)  y = Neg(n) }",
        "(int64[2] x) => (int64[2] y) <int64 c = {2}> { n = Div(x, c)  y = Neg(n) }",
    ],
    numeric="Z",
)
def negate_product(m: Match, b: Builder) -> Value | Miss:
    """The sign of a product or quotient goes into the constant; only the sign of a NaN can differ."""
    inner = next(node for node in m.nodes if node is not m.root)
    return _signed(m, b, inner.op_type, m[x], m[_inner])


def _signed(m: Match, b: Builder, op_type: str, value: Value, constant: Value) -> Value | Miss:
    if op_type == "Div" and not (value.dtype is not None and value.dtype.is_float):
        return b.no("integers are not divided alike on both sides of 0")
    return _made(m, b, op_type, value, merging.negated(constant))


# --- roots

_ROOT = op.Sqrt(y)


@rule(
    op.Mul(x, op.Div(_one, _ROOT)),
    before="""(float[N,3] x, float[N,1] v) => (float[N,3] y) <float o = {1.0}>
              { s = Sqrt(v)  r = Div(o, s)  y = Mul(x, r) }""",
    after="(float[N,3] x, float[N,1] v) => (float[N,3] y) { s = Sqrt(v)  y = Div(x, s) }",
    unless=[
        """(float[2] x, float[2] v) => (float[2] y) <float o = {2.0}>
           { s = Sqrt(v)  r = Div(o, s)  y = Mul(x, r) }""",
        # 1 / v overflows where v is subnormal; a root never is.
        "(float[2] x, float[2] v) => (float[2] y) <float o = {1.0}> { r = Div(o, v)  y = Mul(x, r) }",
        """(float[3] x, float[3] v) => (float[2,3] y) <float[2,1] o = {1.0,1.0}>
           { s = Sqrt(v)  r = Div(o, s)  y = Mul(x, r) }""",
    ],
    keep=(_ROOT,),
    numeric="U",
)
def multiply_by_inverse_root(m: Match, b: Builder) -> Value | Miss:
    """A product with 1 / sqrt(v) is a quotient by sqrt(v): one operator and one rounding less."""
    return _made(m, b, "Div", m[x], m[_ROOT])


_RECIPROCAL_ROOT = op.Sqrt(y)


@rule(
    op.Mul(x, op.Reciprocal(_RECIPROCAL_ROOT)),
    before="(float[N,3] x, float[N,1] v) => (float[N,3] y) { s = Sqrt(v)  r = Reciprocal(s)  y = Mul(x, r) }",
    after="(float[N,3] x, float[N,1] v) => (float[N,3] y) { s = Sqrt(v)  y = Div(x, s) }",
    unless=["(float[2] x, float[2] v) => (float[2] y) { r = Reciprocal(v)  y = Mul(x, r) }"],
    keep=(_RECIPROCAL_ROOT,),
    numeric="U",
)
def multiply_by_reciprocal_root(m: Match, b: Builder) -> Value | Miss:
    """A product with the reciprocal of a root is a quotient by the root."""
    return _made(m, b, "Div", m[x], m[_RECIPROCAL_ROOT])


@rule(
    op.Mul(x, op.Div(_one, y)),
    before="""(float[N,3] x, float[N,1] v) => (float[N,3] y) <float o = {1.0}>
              { r = Div(o, v)  y = Mul(x, r) }""",
    after="(float[N,3] x, float[N,1] v) => (float[N,3] y) { y = Div(x, v) }",
    unless=[
        "(float[2] x, float[2] v) => (float[2] y) <float o = {2.0}> { r = Div(o, v)  y = Mul(x, r) }",
        "(float[2] x, float[2] v) => (float[2] y, float[2] r) <float o = {1.0}> { r = Div(o, v)  y = Mul(x, r) }",
        """(float[3] x, float[3] v) => (float[2,3] y) <float[2,1] o = {1.0,1.0}>
           { r = Div(o, v)  y = Mul(x, r) }""",
        "(int64[2] x, int64[2] v) => (int64[2] y) <int64 o = {1}> { r = Div(o, v)  y = Mul(x, r) }",
    ],
    numeric="R",
)
def multiply_by_inverse(m: Match, b: Builder) -> Value | Miss:
    """A product with 1 / v is a quotient by v, rounded once; it does not overflow where v is subnormal."""
    return _quotient(m, b)


@rule(
    op.Mul(x, op.Reciprocal(y)),
    before="(float[N,3] x, float[N,1] v) => (float[N,3] y) { r = Reciprocal(v)  y = Mul(x, r) }",
    after="(float[N,3] x, float[N,1] v) => (float[N,3] y) { y = Div(x, v) }",
    unless=["(float[2] x, float[2] v) => (float[2] y, float[2] r) { r = Reciprocal(v)  y = Mul(x, r) }"],
    numeric="R",
)
def multiply_by_reciprocal(m: Match, b: Builder) -> Value | Miss:
    """A product with a reciprocal is a quotient, rounded once."""
    return _quotient(m, b)


def _quotient(m: Match, b: Builder) -> Value | Miss:
    if m[y].dtype is None or not m[y].dtype.is_float:
        return b.no("a quotient of integers is truncated")
    return _made(m, b, "Div", m[x], m[y])


# --- terms

_TERM = op.one_of(*_TERMS)(x, y)


@rule(
    op.one_of(*_TERMS)(_TERM, _outer),
    before="(int64[N,3] x) => (int64[N,3] y) <int64[3] a = {1,2,3}, int64 c = {4}> { t = Sub(a, x)  y = Sub(t, c) }",
    after="(int64[N,3] x) => (int64[N,3] y) <int64[3] c = {-3,-2,-1}> { y = Sub(c, x) }",
    unless=[
        "(float[2] x) => (float[2] y) <float a = {1.0}, float c = {2.0}> { t = Add(x, a)  y = Add(t, c) }",
        """(int64[2,3] x) => (int64[2,3] y) <int64[3] a = {1,2,3}, int64[2,1] c = {7,8}>
           { t = Add(x, a)  y = Add(c, t) }""",
    ],
)
def merge_integer_terms(m: Match, b: Builder) -> Value | Miss:
    """Two integer terms are one; sums wrap around in any order."""
    return _merge_terms(m, b, exact=True)


@rule(
    op.Sub(_outer, _TERM),
    before="(int64[N,3] x) => (int64[N,3] y) <int64[3] a = {1,2,3}, int64 c = {4}> { t = Sub(a, x)  y = Sub(c, t) }",
    after="(int64[N,3] x) => (int64[N,3] y) <int64[3] c = {3,2,1}> { y = Add(x, c) }",
    unless=["(float[2] x) => (float[2] y) <float a = {1.0}, float c = {2.0}> { t = Add(x, a)  y = Sub(c, t) }"],
)
def merge_integer_minuend(m: Match, b: Builder) -> Value | Miss:
    """A constant minus an integer sum with a constant needs one constant."""
    return _merge_terms(m, b, exact=True, outer_first=True)


@rule(
    op.one_of(*_TERMS)(_TERM, _outer),
    before="(float[N,3] x) => (float[N,3] y) <float[3] a = {1,2,3}, float c = {4.0}> { t = Add(a, x)  y = Sub(t, c) }",
    after="(float[N,3] x) => (float[N,3] y) <float[3] c = {-3,-2,-1}> { y = Add(x, c) }",
    unless=[
        "(float[2] x) => (float[2] y) <float a = {1.0}, float c = {1e-9}> { t = Add(x, a)  y = Add(t, c) }",
        "(float[2] x) => (float[2] y) <float a = {3e38}, float c = {3e38}> { t = Add(x, a)  y = Add(t, c) }",
        "(float[2] x) => (float[2] y) <float a = {1.0}, float c = {inf}> { t = Add(x, a)  y = Add(t, c) }",
    ],
    numeric="R",
)
def merge_terms(m: Match, b: Builder) -> Value | Miss:
    """Two terms whose sum is not rounded are one."""
    return _merge_terms(m, b, exact=False)


@rule(
    op.Sub(_outer, _TERM),
    before="(float[N,3] x) => (float[N,3] y) <float a = {1.0}, float c = {4.0}> { t = Add(x, a)  y = Sub(c, t) }",
    after="(float[N,3] x) => (float[N,3] y) <float c = {3.0}> { y = Sub(c, x) }",
    unless=["(float[2] x) => (float[2] y) <float a = {1.0}, float c = {1e-9}> { t = Add(x, a)  y = Sub(c, t) }"],
    numeric="R",
)
def merge_minuend(m: Match, b: Builder) -> Value | Miss:
    """A constant minus a sum with a constant needs one constant, where the constants' own sum is not rounded."""
    return _merge_terms(m, b, exact=False, outer_first=True)


@rule(
    op.one_of(*_TERMS)(_TERM, _outer),
    before="(float[N,3] x) => (float[N,3] y) <float a = {0.1}, float c = {0.2}> { t = Add(x, a)  y = Add(t, c) }",
    after="(float[N,3] x) => (float[N,3] y) <float c = {0.3}> { y = Add(x, c) }",
    unless=["(float[2] x, float z) => (float[2] y) <float a = {0.1}> { t = Add(x, z)  y = Add(t, a) }"],
    numeric="D",
)
def merge_rounded_terms(m: Match, b: Builder) -> Value | Miss:
    """Two terms are one, though an element that nearly cancels the first loses the second."""
    return _merge_terms(m, b, exact=False, rounded=True)


def _merge_terms(
    m: Match, b: Builder, *, exact: bool, outer_first: bool = False, rounded: bool = False
) -> Value | Miss:
    """The sum of a value (or its negation) and one constant, of a value and two."""
    found = _parts(m.node(_TERM))
    if found is None or found[0].dtype is None or found[0].dtype.is_integer is not exact:
        return b.no("there are no two constants, or of another type")
    value, inner, is_left = found
    outer: Value = m[_outer]
    inner_minus, outer_minus = m.node(_TERM).op_type == "Sub", m.root.op_type == "Sub"
    # The inner result is sign * value + inner, or minus inner; the outer takes it or takes it away.
    negative = (inner_minus and is_left) is not outer_first
    takes_inner = (inner_minus and not is_left) is not outer_first
    takes_outer = outer_minus and not outer_first
    if takes_inner and takes_outer:
        # -inner - outer: what is taken away is their sum.
        constant, minus = merging.total(inner, outer), False
        flip = True
    elif takes_inner:
        constant, minus, flip = merging.difference(outer, inner), True, False
        inner, outer = outer, inner
    elif takes_outer:
        constant, minus, flip = merging.difference(inner, outer), True, False
    else:
        constant, minus, flip = merging.total(inner, outer), False, False
    if constant is None:
        return b.no("the merged constant would be larger, or infinite")
    if not exact and not rounded and not merging.is_exact_sum(inner, outer, constant, minus=minus):
        return b.no("the sum of the constants is rounded")
    if not negative:
        return _made(m, b, "Sub" if flip else "Add", value, constant)
    if not flip:
        return _made(m, b, "Sub", constant, value)
    return _made(m, b, "Sub", merging.negated(b.constant(constant)), value)
