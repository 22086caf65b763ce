"""Slices and Gathers of one another, and of what was just put together, are fewer of them.

Exporters write one Slice per axis, and cut what they have just concatenated.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Match, Miss, Node, Value, op, rule, var
from passes._concats import parts_of
from passes._proofs import axis_of, same_dim
from passes._selections import (
    Cuts,
    Selection,
    cuts_of,
    selected,
    selection_of,
    size_along,
    sliced,
    then,
)

x, index = var("x"), var("index")

# --- a Slice of a Slice

_CUT = op.Slice(x, ...)


@rule(
    op.Slice(_CUT, ...),
    before="""(float[N,M] x) => (float[K,L] y)
              <int64[1] s = {1}, int64[1] e = {9}, int64[1] a = {0},
               int64[1] t = {-3}, int64[1] f = {2147483647}, int64[1] c = {1}>
              { u = Slice(x, s, e, a)  v = Slice(u, t, f, c)  y = Relu(v) }""",
    after="""(float[N,M] x) => (float[K,L] y) <int64[2] s = {1,-3}, int64[2] e = {9,2147483647}, int64[2] a = {0,1}>
             { v = Slice(x, s, e, a)  y = Relu(v) }""",
    unless=[
        # From the end of what is left: where that is, nobody knows.
        """(float[N] x) => (float[K] y) <int64[1] s = {1}, int64[1] e = {9}, int64[1] t = {-3}, int64[1] f = {-1}>
           { u = Slice(x, s, e)  v = Slice(u, t, f)  y = Relu(v) }""",
        # The first one is needed anyway.
        """(float[9] x) => (float[3] y, float[8] z) <int64[1] s = {1}, int64[1] e = {9}, int64[1] t = {3}>
           { z = Slice(x, s, e)  u = Relu(z)  y = Slice(u, s, t)  v = Slice(z, s, t)  w = Relu(v) }""",
        """(float[9] x, int64[1] s) => (float[K] y) <int64[1] e = {9}>
           { u = Slice(x, s, e)  v = Slice(u, s, e)  y = Relu(v) }""",
    ],
    keep=(_CUT,),
)
def merge_slices(m: Match, b: Builder) -> Value | Miss:
    """Slices in a row are one, along other axes or along the same."""
    first = cuts_of(m.node(_CUT))
    if first is None or m.node(_CUT).is_pinned:
        return b.no("the bounds of the first are not known, or it is kept by name")
    merged = {user: _merged(m[x], first, user) for user in m[_CUT].users}
    cuts = merged[m.root]
    if cuts is None or None in merged.values():
        return b.no("no single Slice does the same, or the first is needed by others")
    return sliced(b, m[x], cuts)


def _merged(value: Value, first: Cuts, user: Node) -> Cuts | None:
    second = cuts_of(user) if user.operand(0) is not None and user.op_type == "Slice" else None
    if second is None:
        return None
    cuts = dict(first)
    for axis, cut in second.items():
        size = value.shape[axis] if value.shape is not None and axis < len(value.shape) else None
        found = then(cuts[axis], cut, size) if axis in cuts else cut
        if found is None:
            return None
        cuts[axis] = found
    return cuts


# --- parts taken from what was put together

_WHOLE = op.Concat(x, ...)


@rule(
    op.Slice(_WHOLE, ...),
    before="""(float[2,N] x, float[2,M] z) => (float[1,N] y) <int64[1] s = {0}, int64[1] e = {1}>
              { u = Concat<axis = 0>(x, x, x)  v = Slice(u, s, e)  y = Relu(v) }""",
    after="""(float[2,N] x, float[2,M] z) => (float[1,N] y) <int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}>
             { v = Slice(x, s, e, a)  y = Relu(v) }""",
    unless=[
        """(float[N] x, float[M] z) => (float[K] y) <int64[1] s = {0}, int64[1] e = {2}>
           { u = Concat<axis = 0>(x, z)  v = Slice(u, s, e)  y = Relu(v) }""",
        """(float[2] x, float[2] z) => (float[2] y) <int64[1] s = {1}, int64[1] e = {3}>
           { u = Concat<axis = 0>(x, z)  v = Slice(u, s, e)  y = Relu(v) }""",
    ],
    keep=(_WHOLE,),
)
def slice_of_concat(m: Match, b: Builder) -> Value | Miss:
    """A Slice of a Concat that keeps whole operands, or part of one, takes just those."""
    parts, cuts = parts_of(m.node(_WHOLE)), cuts_of(m.root)
    if parts is None or cuts is None or parts.axis not in cuts:
        return b.no("the sizes or bounds are not known")
    cut = cuts.pop(parts.axis)
    found = parts.covered_by(cut)
    if found is None:
        return b.no("it cuts more than one operand, or where is not known")
    values, rest = found
    if rest is not None:
        cuts[parts.axis] = rest
    if len(values) > 1 and (cuts or m[_WHOLE].users != [m.root] or m.node(_WHOLE).is_pinned):
        return b.no("there would be as many operators")
    if cuts and (m[_WHOLE].users != [m.root] or m.node(_WHOLE).is_pinned):
        return b.no("the Concat is needed anyway")
    value = values[0] if len(values) == 1 else b.Concat(*values, axis=parts.axis)
    return sliced(b, value, cuts)


@rule(
    op.Gather(_WHOLE, index),
    before="""(float[2,1,N] x, float[2,1,N] z) => (float[2,N] y) <int64 i = {-1}>
              { u = Concat<axis = 1>(x, z)  v = Gather<axis = 1>(u, i)  y = Relu(v) }""",
    after="""(float[2,1,N] x, float[2,1,N] z) => (float[2,N] y) <int64[1] a = {1}>
             { v = Squeeze(z, a)  y = Relu(v) }""",
    unless=[
        """(float[N] x, float[M] z) => (float y) <int64 i = {1}>
           { u = Concat<axis = 0>(x, z)  v = Gather(u, i)  y = Relu(v) }""",
        """(float[2] x, float[2] z, int64 i) => (float y)
           { u = Concat<axis = 0>(x, z)  v = Gather(u, i)  y = Relu(v) }""",
    ],
    keep=(_WHOLE,),
)
def gather_of_concat(m: Match, b: Builder) -> Value | Miss:
    """A Gather of one place of a Concat reads the operand that holds it."""
    whole = m.node(_WHOLE)
    parts, value = parts_of(whole), m[index]
    place = value.const.scalar() if value.const is not None and value.rank == 0 else None
    if parts is None or place is None or parts.axis != axis_of(m.root, m[_WHOLE].rank):
        return b.no("the place is not known")
    found = parts.holding(int(place))
    if found is None:
        return b.no("the operand that holds the place is not known")
    value, offset = found
    unit = size_along(value, parts.axis) == 1
    stacked = unit and value.producer.is_op("Unsqueeze")
    if not stacked and (m[_WHOLE].users != [m.root] or whole.is_pinned):
        return b.no("the Concat is needed anyway")
    result: Value = (
        b.Squeeze(value, axes=[parts.axis]) if unit else selected(b, value, parts.axis, np.array([offset]), False)
    )
    return result


@rule(
    op.Split(_WHOLE, ...),
    before="""(float[2,N] x, float[3,N] z) => (float[2,N] y, float[3,N] w) <int64[2] p = {2,3}>
              { u = Concat<axis = 0>(x, z)  s, t = Split(u, p)  y = Relu(s)  w = Relu(t) }""",
    after="(float[2,N] x, float[3,N] z) => (float[2,N] y, float[3,N] w) { y = Relu(x)  w = Relu(z) }",
    unless=[
        """(float[2,N] x, float[3,N] z) => (float[3,N] y, float[2,N] w) <int64[2] p = {3,2}>
           { u = Concat<axis = 0>(x, z)  s, t = Split(u, p)  y = Relu(s)  w = Relu(t) }"""
    ],
    keep=(_WHOLE,),
)
def split_of_concat(m: Match, b: Builder) -> tuple[Value, ...] | Miss:
    """A Split of a Concat where it was put together gives the operands."""
    parts, axis = parts_of(m.node(_WHOLE)), axis_of(m.root, m[_WHOLE].rank)
    if parts is None or axis is None or parts.axis != axis or len(parts.values) != len(m.root.results):
        return b.no("the parts are not known, or others")
    for part, result in zip(parts.values, m.root.results, strict=True):
        if part.shape is None or result.shape is None or not same_dim(part.shape[axis], result.shape[axis]):
            return b.no("it is split elsewhere")
    return tuple(parts.values)


# --- a choice of a choice

_CHOICE = op.one_of("Slice", "Gather")(x, ...)


@rule(
    op.one_of("Slice", "Gather")(_CHOICE, ...),
    before="""(float[9,4] x) => (float[4] y) <int64[1] s = {2}, int64[1] e = {8}, int64 i = {-1}>
              { u = Slice(x, s, e)  v = Gather(u, i)  y = Relu(v) }""",
    after="(float[9,4] x) => (float[4] y) <int64 i = {7}> { v = Gather(x, i)  y = Relu(v) }",
    unless=[
        """(float[N,4] x) => (float[4] y) <int64[1] s = {2}, int64[1] e = {8}, int64 i = {-1}>
           { u = Slice(x, s, e)  v = Gather(u, i)  y = Relu(v) }""",
        """(float[9,4] x) => (float[6] y) <int64[1] s = {2}, int64[1] e = {8}, int64 i = {-1}>
           { u = Slice(x, s, e)  v = Gather<axis = 1>(u, i)  y = Relu(v) }""",
        # The first choice is needed anyway.
        """(float[9,4] x) => (float[4] y, float[6,4] z) <int64[1] s = {2}, int64[1] e = {8}, int64 i = {-1}>
           { z = Slice(x, s, e)  v = Gather(z, i)  y = Relu(v) }""",
    ],
    keep=(_CHOICE,),
)
def merge_selections(m: Match, b: Builder) -> Value | Miss:
    """A choice of places from a choice along the same axis is one choice."""
    first = selection_of(m[_CHOICE])
    if first is None or not first.keeps_axis or m.node(_CHOICE).is_pinned:
        return b.no("the places of the first are not known, or it is kept by name")
    chosen = {user: _chosen(user, m[_CHOICE], first) for user in m[_CHOICE].users}
    second = chosen[m.root]
    if second is None or None in chosen.values():
        return b.no("the places are not known, or along different axes, or the first choice is needed by others")
    return selected(b, m[x], first.axis, first.places[second.places], second.keeps_axis)


def _chosen(user: Node, value: Value, first: Selection) -> Selection | None:
    if (
        user.op_type not in ("Gather", "Slice")
        or user.graph is not value.producer.graph
        or user.operand(0) is not value
    ):
        return None
    second = selection_of(user.results[0])
    return second if second is not None and second.axis == first.axis else None
