"""Moves arithmetic on counters into the numbers they count with: small sums in place of whole vectors.

`Range` reads its numbers on the host. A vector that is counted on a device and then shifted or scaled by a size the
host knows makes the runtime copy that size over first; counted from the right number on, it needs no copy.
"""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, op, rule, symbol, var
from passes._proofs import Dim

start, limit, delta = var("start", rank=0), var("limit", rank=0), var("delta", rank=0)
shift, factor, axes = var("shift"), var("factor"), var("axes")
_COUNTER = op.Range(start, limit, delta)
_RAISED = op.Unsqueeze(_COUNTER, axes)


def _number(value: Value) -> Dim:
    """The integer that a tensor of one element holds, as far as it follows from sizes: then nothing wraps around."""
    is_integer = value.dtype is not None and value.dtype.is_integer
    elements = value.elements
    return elements[0] if is_integer and elements is not None and len(elements) == 1 else None


def _is_size(value: Value) -> bool:
    return _number(value) is not None


@rule(
    op.Add(_COUNTER, shift),
    before="""
        (float[N] x, float[M] z) => (int64[N] y) <int64 zero = {0}, int64 one = {1}> {
            n = Size(x)
            m = Size(z)
            r = Range(zero, n, one)
            y = Add(r, m)
        }
    """,
    after="""
        (float[N] x, float[M] z) => (int64[N] y) <int64 one = {1}> {
            n = Size(x)
            m = Size(z)
            e = Add(n, m)
            y = Range(m, e, one)
        }
    """,
    unless=[
        # What is added is longer than one element.
        """
        (float[N] x, int64[N] z) => (int64[N] y) <int64 zero = {0}, int64 one = {1}> {
            n = Size(x)
            r = Range(zero, n, one)
            y = Add(r, z)
        }
        """,
        # The sum may wrap around.
        """
        (float[N] x, int64 z) => (int64[N] y) <int64 zero = {0}, int64 one = {1}> {
            n = Size(x)
            r = Range(zero, n, one)
            y = Add(r, z)
        }
        """,
        # Floats are not counted exactly.
        """
        (float n) => (float[M] y) <float zero = {0.0}, float one = {1.0}, float half = {0.5}> {
            r = Range(zero, n, one)
            y = Add(r, half)
        }
        """,
    ],
)
def shifted_counter(m: Match, b: Builder) -> Value | Miss:
    """A counter to which a size is added counts from that size on."""
    if m[shift].rank != 0 or not all(map(_is_size, (m[start], m[limit], m[delta], m[shift]))):
        return b.no("the numbers are no sizes, or no single ones")
    first = m[shift] if _number(m[start]) == 0 else b.Add(m[start], m[shift])
    result: Value = b.Range(first, b.Add(m[limit], m[shift]), m[delta])
    return result


@rule(
    op.Mul(_RAISED, factor),
    before="""
        (float[N, 3] x, int64[2] z) => (int64[N, 1] y) <
            int64 zero = {0}, int64 one = {1}, int64[1] axes = {1}, int64[1] five = {5}
        > {
            s = Shape(x)
            n = Gather(s, zero)
            t = Shape(z)
            w = Add(t, five)
            r = Range(zero, n, one)
            u = Unsqueeze(r, axes)
            y = Mul(u, w)
        }
    """,
    after="""
        (float[N, 3] x, int64[2] z) => (int64[N, 1] y) <
            int64 zero = {0}, int64 one = {1}, int64[1] axes = {1}, int64[1] five = {5}, int64[1] none = {0}
        > {
            s = Shape(x)
            n = Gather(s, zero)
            t = Shape(z)
            w = Add(t, five)
            f = Squeeze(w, none)
            e = Mul(n, f)
            r = Range(zero, e, f)
            y = Unsqueeze(r, axes)
        }
    """,
    unless=[
        # Nothing is counted in steps of 0.
        """
        (float[N, 3] x, float[M] z) => (int64[N, 1] y) <int64 zero = {0}, int64 one = {1}, int64[1] axes = {1}> {
            n = Size(x)
            t = Size(z)
            r = Range(zero, n, one)
            u = Unsqueeze(r, axes)
            y = Mul(u, t)
        }
        """,
    ],
    grows="the size is read as a number, on the host",
)
def scaled_counter(m: Match, b: Builder) -> Value | Miss:
    """A counter from 0 by ones, times a size that is not 0, counts in steps of that size."""
    step = _number(m[factor])
    if step is None or m[factor].const is not None or not symbol.is_positive(step):
        return b.no("the factor is no size, or one that may be 0")
    if _number(m[start]) != 0 or _number(m[delta]) != 1 or not _is_size(m[limit]):
        return b.no("it does not count from 0 by ones up to a size")
    size = m[factor] if m[factor].rank == 0 else b.Squeeze(m[factor], axes=list(range(m[factor].rank or 0)))
    counter = b.Range(m[start], b.Mul(m[limit], size), size)
    result: Value = b.like(m.node(_RAISED), counter, m[axes])
    return result
