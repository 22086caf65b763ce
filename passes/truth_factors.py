"""Chooses instead of multiplying by a truth value made a number: b * c is c where b holds, else 0."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Value, const, op, rule, var
from passes._numbers import is_all
from passes._proofs import same_shape

b1, b2, x = var("b1", dtype=DType.BOOL), var("b2", dtype=DType.BOOL), var("x")
_number = const("number")
_one = var("one", where=lambda value: is_all(value, 1))

_CHOSEN = (DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64)
"""Types that the runtime chooses between."""


def _chosen(m: Match, b: Builder, value: Value, *, holds: bool = True) -> Value | Miss:
    dtype = m.root.result.dtype
    if dtype not in _CHOSEN or dtype is not value.dtype:
        return b.no("the runtime may have no Where for the type")
    zero = b.constant(np.zeros((), dtype.numpy), dtype)
    made: Value = b.Where(m[b1], value, zero) if holds else b.Where(m[b1], zero, value)
    return made if same_shape(made, m.root.result) else b.no("the result may have another shape")


_FIRST = op.Cast(b1)
_SECOND = op.Cast(b2)


@rule(
    op.Mul(_FIRST, _SECOND),
    before="""(bool[N,3] m, bool[3] n) => (float[N,3] y)
              { s = Cast<to = 1>(m)  t = Cast<to = 1>(n)  y = Mul(s, t) }""",
    after="(bool[N,3] m, bool[3] n) => (float[N,3] y) { t = And(m, n)  y = Cast<to = 1>(t) }",
    unless=[
        """(bool[2] m, int64[2] n) => (float[2] y)
           { s = Cast<to = 1>(m)  t = Cast<to = 1>(n)  y = Mul(s, t) }""",
    ],
)
def truth_times_truth(m: Match, b: Builder) -> Value | Miss:
    """A product of truth values is their And."""
    made: Value = b.Cast(b.And(m[b1], m[b2]), to=m.node(_FIRST).param("to"))
    return made


@rule(
    op.Cast(op.Mul(op.Cast(b1), op.Cast(b2)), to=int(DType.BOOL)),
    before="""(bool[N,3] m, bool[3] n) => (bool[N,3] y)
              { s = Cast<to = 7>(m)  t = Cast<to = 7>(n)  p = Mul(s, t)  y = Cast<to = 9>(p) }""",
    after="(bool[N,3] m, bool[3] n) => (bool[N,3] y) { y = And(m, n) }",
    unless=[
        """(bool[2] m, bool[2] n) => (int64[2] y)
           { s = Cast<to = 1>(m)  t = Cast<to = 1>(n)  p = Mul(s, t)  y = Cast<to = 7>(p) }""",
    ],
)
def product_is_truth(m: Match, b: Builder) -> Value | Miss:
    """Whether a product of truth values is not 0 is their And."""
    made: Value = b.And(m[b1], m[b2])
    return made


@rule(
    op.Mul(op.Cast(b1), x),
    before="(bool[N,3] m, int64[3] x) => (int64[N,3] y) { n = Cast<to = 7>(m)  y = Mul(n, x) }",
    after="(bool[N,3] m, int64[3] x) => (int64[N,3] y) <int64 z = {0}> { y = Where(m, x, z) }",
    unless=[
        "(float[2] m, int64[2] x) => (int64[2] y) { n = Cast<to = 7>(m)  y = Mul(n, x) }",
        "(bool[2] m, float[2] x) => (float[2] y) { n = Cast<to = 1>(m)  y = Mul(n, x) }",
        "(bool[2] m, int8[2] x) => (int8[2] y) { n = Cast<to = 3>(m)  y = Mul(n, x) }",
        "(bool[2] m, int64[2] x) => (int64[2] y, int64[2] n) { n = Cast<to = 7>(m)  y = Mul(n, x) }",
    ],
)
def integer_times_truth(m: Match, b: Builder) -> Value | Miss:
    """An integer times a truth value is that integer or 0."""
    is_integer = m[x].dtype is not None and m[x].dtype.is_integer
    return _chosen(m, b, m[x]) if is_integer else b.no("infinity times 0 is no number")


def _is_finite(value: Value) -> bool:
    tensor = value.const
    return tensor is not None and tensor.size < 1 << 16 and bool(np.isfinite(tensor.numpy()).all())


@rule(
    op.Mul(op.Cast(b1), _number),
    before="(bool[N,3] m) => (float[N,3] y) <float c = {-10000.0}> { n = Cast<to = 1>(m)  y = Mul(c, n) }",
    after="(bool[N,3] m) => (float[N,3] y) <float c = {-10000.0}, float z = {0.0}> { y = Where(m, c, z) }",
    unless=[
        "(bool[2] m) => (float[2] y) <float c = {-inf}> { n = Cast<to = 1>(m)  y = Mul(c, n) }",
        "(int64[2] m) => (float[2] y) <float c = {-10000.0}> { n = Cast<to = 1>(m)  y = Mul(c, n) }",
    ],
    numeric="Z",
)
def number_times_truth(m: Match, b: Builder) -> Value | Miss:
    """A stored number times a truth value is that number or 0, of whatever sign."""
    return _chosen(m, b, m[_number]) if _is_finite(m[_number]) else b.no("infinity times 0 is no number")


@rule(
    op.Mul(op.Sub(_one, op.Cast(b1)), _number),
    before="""(bool[N,3] m) => (float[N,3] y) <float o = {1.0}, float c = {-10000.0}>
              { n = Cast<to = 1>(m)  s = Sub(o, n)  y = Mul(s, c) }""",
    after="(bool[N,3] m) => (float[N,3] y) <float c = {-10000.0}, float z = {0.0}> { y = Where(m, z, c) }",
    unless=[
        """(bool[2] m) => (float[2] y) <float o = {1.0}, float c = {-inf}>
           { n = Cast<to = 1>(m)  s = Sub(o, n)  y = Mul(s, c) }""",
        # The mask of a BERT as it is exported: the runtime looks for it.
        """(int64[2] m) => (float[2] y) <float o = {1.0}, float c = {-10000.0}>
           { n = Cast<to = 1>(m)  s = Sub(o, n)  y = Mul(s, c) }""",
    ],
    numeric="Z",
)
def number_times_untruth(m: Match, b: Builder) -> Value | Miss:
    """A stored number times 1 minus a truth value is 0 or that number."""
    return _chosen(m, b, m[_number], holds=False) if _is_finite(m[_number]) else b.no("infinity times 0 is no number")
