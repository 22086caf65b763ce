"""Merges limits: Clip of Clip, Relu of Clip, Clip of Relu, Min of Max with stored numbers.

A Clip without an upper bound takes infinity to the greatest finite number, so that it is no Relu; what is missing
counts as that number. NaN passes through every one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import Builder, DType, Match, Miss, Node, Value, op, rule, var
from passes._numbers import is_one_number
from passes._proofs import same_type

x, y, z = var("x"), var("y"), var("z")
_low = var("low", where=is_one_number)
_high = var("high", where=is_one_number)

_CLIPPED = (DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64)
"""Types that the runtime clips by comparing, with the bounds as they stand."""


def _bounds(node: Node) -> tuple[Any, Any] | None:
    """What a Clip or Relu lets through, the least and the greatest; None if a bound is not known."""
    dtype = node.result.dtype
    if dtype not in _CLIPPED:
        return None
    scalar = dtype.numpy.type
    if node.op_type == "Relu":
        return (scalar(0), scalar(np.inf)) if dtype.is_float else (scalar(0), np.iinfo(dtype.numpy).max)
    limits = np.finfo(dtype.numpy) if dtype.is_float else np.iinfo(dtype.numpy)
    found = []
    for name, default in (("min", limits.min), ("max", limits.max)):
        bound = node.param(name)
        if bound is not None and not isinstance(bound, (int, float)):
            return None
        found.append(scalar(default if bound is None else bound))
    low, high = found
    return (low, high) if low <= high else None


def _clipped(number: Any, low: Any, high: Any) -> Any:
    """What a Clip makes of a number, keeping its zero where both are zero."""
    return low if number < low else high if number > high else number


_INNER = op.one_of("Clip", "Relu")(x, ...)


@rule(
    op.one_of("Clip", "Relu")(_INNER, ...),
    before="""(float[N,3] x) => (float[N,3] y) <float a = {-1.0}, float c = {6.0}, float d = {4.0}>
              { t = Clip(x, a, c)  y = Clip(t, , d) }""",
    after="(float[N,3] x) => (float[N,3] y) <float a = {-1.0}, float d = {4.0}> { y = Clip(x, a, d) }",
    unless=[
        "(float[3] x, float a) => (float[3] y) <float c = {6.0}> { t = Clip(x, a)  y = Clip(t, , c) }",
        "(float[3] x) => (float[3] y) { t = Relu(x)  y = Relu(t) }",
        """(float[3] x) => (float[3] y) <float a = {6.0}, float c = {-1.0}, float d = {2.0}>
           { t = Clip(x, a, c)  y = Clip(t, , d) }""",
    ],
    keep=(_INNER,),
    opsets=(12, None),
)
def clip_twice(m: Match, b: Builder) -> Value | Miss:
    """Two limits in a row are one, and none where the first leaves nothing to the second."""
    inner = m.node(_INNER)
    first, second = _bounds(inner), _bounds(m.root)
    if first is None or second is None or inner.op_type == m.root.op_type == "Relu":
        return b.no("a bound is computed at run time, or they cross, or there is nothing to clip")
    low, high = (_clipped(bound, *second) for bound in first)
    if (low, high) == first:
        kept: Value = m[_INNER]
        return kept
    if m[_INNER].sole_use() is None:
        return b.no("the first limit is read by others and would stay")
    made: Value = b.Clip(m[x], min=low, max=high)
    return made


def _limited(m: Match, b: Builder) -> Value | Miss:
    low, high = m[_low], m[_high]
    if m[x].dtype not in _CLIPPED or not low.const.scalar() <= high.const.scalar():
        return b.no("the bounds cross, or are no numbers, or the runtime clips the type otherwise")
    if not same_type(m[x], m.root.result):
        return b.no("a bound may widen the operand")
    made: Value = b.Clip(m[x], min=low.const.scalar(), max=high.const.scalar())
    return made


@rule(
    op.Min(op.Max(x, _low), _high),
    before="(float[N,3] x) => (float[N,3] y) <float a = {0.0}, float c = {6.0}> { t = Max(x, a)  y = Min(t, c) }",
    after="(float[N,3] x) => (float[N,3] y) <float a = {0.0}, float c = {6.0}> { y = Clip(x, a, c) }",
    unless=[
        "(float[3] x) => (float[3] y) <float a = {6.0}, float c = {0.0}> { t = Max(x, a)  y = Min(t, c) }",
        "(float[3] x) => (float[3] y) <float[3] a = {0,1,2}, float c = {6.0}> { t = Max(x, a)  y = Min(t, c) }",
        "(float x) => (float[1] y) <float[1] a = {0.0}, float c = {6.0}> { t = Max(x, a)  y = Min(t, c) }",
        "(float[3] x) => (float[3] y) <float a = {0.0}, float c = {nan}> { t = Max(x, a)  y = Min(t, c) }",
    ],
    numeric="Z",
    opsets=(12, None),
)
def minimum_of_maximum(m: Match, b: Builder) -> Value | Miss:
    """A Min of a Max with stored numbers is a Clip, but for the sign of zero."""
    return _limited(m, b)


@rule(
    op.Max(op.Min(x, _high), _low),
    before="(float[N,3] x) => (float[N,3] y) <float a = {0.0}, float c = {6.0}> { t = Min(x, c)  y = Max(t, a) }",
    after="(float[N,3] x) => (float[N,3] y) <float a = {0.0}, float c = {6.0}> { y = Clip(x, a, c) }",
    unless=["(float[3] x) => (float[3] y) <float a = {6.0}, float c = {0.0}> { t = Min(x, c)  y = Max(t, a) }"],
    numeric="Z",
    opsets=(12, None),
)
def maximum_of_minimum(m: Match, b: Builder) -> Value | Miss:
    """A Max of a Min with stored numbers is a Clip, but for the sign of zero."""
    return _limited(m, b)
