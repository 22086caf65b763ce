"""Merges reductions with what follows: Squeeze and Unsqueeze of the reduced axes, a second reduction of the same kind.

Maxima and minima of integers are the same in any order. Of floats, the runtime loses another NaN in another order, so
that these are class D; sums and means are added in another order: class R.
"""

from __future__ import annotations

from graphopt import Builder, DType, Match, Miss, Node, Value, op, rule, var
from passes._proofs import axes_of, axis_of, contents, is_given, is_never_empty

x, y = var("x"), var("y")

_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)
_REDUCED = op.one_of(*_REDUCTIONS, "ArgMax", "ArgMin")(x, ...)


def _reduced_axes(node: Node) -> frozenset[int] | None:
    """The axes a reduction takes, counted from the front; None if they are not known, or none are taken."""
    value = node.operand(0)
    rank = None if value is None else value.rank
    if node.op_type in ("ArgMax", "ArgMin"):
        axis = axis_of(node, rank)
        return None if axis is None else frozenset((axis,))
    if rank is None:
        return None
    if not is_given(node, "axes"):
        return None if node.param("noop_with_empty_axes") == 1 else frozenset(range(rank))
    axes = axes_of(node, rank)
    return None if axes is None else frozenset(axes)


def _own_axes(node: Node, rank: int | None) -> frozenset[int] | None:
    axes = axes_of(node, rank)
    return None if axes is None else frozenset(axes)


@rule(
    op.Squeeze(_REDUCED, ...),
    before="""(float[N,3,4] x) => (float[N] y) <int64[2] a = {1,-1}, int64[2] s = {2,1}>
              { t = ReduceMean(x, a)  y = Squeeze(t, s) }""",
    after="(float[N,3,4] x) => (float[N] y) <int64[2] a = {1,-1}> { y = ReduceMean<keepdims = 0>(x, a) }",
    unless=[
        """(float[1,3,4] x) => (float[3,1] y) <int64[1] a = {2}, int64[1] s = {0}>
           { t = ReduceMean(x, a)  y = Squeeze(t, s) }""",
        """(float[2,3,4] x) => (float[2,1] y) <int64[2] a = {1,2}, int64[1] s = {1}>
           { t = ReduceMean(x, a)  y = Squeeze(t, s) }""",
        """(float[2,1,4] x) => (float[2] y) <int64[1] a = {2}, int64[1] s = {1}>
           { t = ReduceMean<keepdims = 0>(x, a)  y = Squeeze(t, s) }""",
    ],
)
def squeeze_of_reduction(m: Match, b: Builder) -> Value | Miss:
    """Axes that a reduction keeps and a Squeeze drops need not be kept."""
    inner = m.node(_REDUCED)
    axes = _reduced_axes(inner)
    rank = m[x].rank
    if inner.param("keepdims") != 1 or axes is None:
        return b.no("the reduction keeps no axes, or they are not known")
    drops_all = not is_given(m.root, "axes") and len(axes) == rank
    if not drops_all and (not is_given(m.root, "axes") or _own_axes(m.root, rank) != axes):
        return b.no("the Squeeze drops other axes")
    made: Value = b.like(inner, *inner.operands, keepdims=0)
    return made


@rule(
    op.Unsqueeze(_REDUCED, ...),
    before="""(float[N,3,4] x) => (float[N,1,4] y) <int64[1] a = {1}, int64[1] s = {-2}>
              { t = ReduceMax<keepdims = 0>(x, a)  y = Unsqueeze(t, s) }""",
    after="(float[N,3,4] x) => (float[N,1,4] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
    unless=[
        """(float[2,3,4] x) => (float[1,2,4] y) <int64[1] a = {1}, int64[1] s = {0}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = Unsqueeze(t, s) }""",
        """(float[2,3,4] x) => (float[2,1,1,4] y) <int64[1] a = {1}, int64[1] s = {1}>
           { t = ReduceMax(x, a)  y = Unsqueeze(t, s) }""",
        """(float[N,3,4] x) => (float[N,1,4] y) <int64[1] a = {-2}, int64[1] s = {1}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = Unsqueeze(t, s) }""",
    ],
)
def unsqueeze_of_reduction(m: Match, b: Builder) -> Value | Miss:
    """Axes that a reduction drops and an Unsqueeze puts back can be kept."""
    inner = m.node(_REDUCED)
    axes = _reduced_axes(inner)
    if inner.param("keepdims") != 0 or axes is None or _own_axes(m.root, m[x].rank) != axes:
        return b.no("the reduction keeps its axes, or the Unsqueeze puts others in")
    if not _has_plain_shape(inner):
        return b.no("the operand may be empty, and axes count from the end")
    made: Value = b.like(inner, *inner.operands, keepdims=1)
    return made


def _has_plain_shape(node: Node) -> bool:
    """True unless the runtime may take a wrong shape for an empty operand, as it does where axes count from the end."""
    value = node.operand(0)
    axes = contents(node, "axes") if is_given(node, "axes") else ()
    if value is not None and is_never_empty(value):
        return True
    return axes is not None and all(isinstance(axis, int) and axis >= 0 for axis in axes)


# --- reductions of reductions

_FIRST = op.one_of("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean")(x, ...)


def _merged(m: Match, b: Builder) -> Value | Miss:
    inner, root = m.node(_FIRST), m.root
    first, second = _reduced_axes(inner), _reduced_axes(root)
    rank = m[x].rank
    keeps = root.param("keepdims")
    if inner.op_type != root.op_type or first is None or second is None or rank is None:
        return b.no("the two differ, or their axes are not known")
    if not (_has_plain_shape(inner) and _has_plain_shape(root)):
        return b.no("the operand may be empty, and axes count from the end")
    if inner.param("keepdims") == 1:
        axes = first | second
        if keeps == 0 and first - second:
            return b.no("the first keeps an axis that the second does not drop")
    elif keeps == 1:
        return b.no("the first drops axes and the second keeps its own")
    else:
        left = [axis for axis in range(rank) if axis not in first]
        axes = first | {left[axis] for axis in second}
    made: Value = b.apply(root.op_type, (m[x],), parameters={"axes": sorted(axes), "keepdims": keeps})
    return made


@rule(
    op.one_of("ReduceMax", "ReduceMin", "ReduceSum")(_FIRST, ...),
    before="""(int32[N,3,4] x) => (int32[N] y) <int64[1] a = {1}, int64[1] s = {1}>
              { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMax<keepdims = 0>(t, s) }""",
    after="(int32[N,3,4] x) => (int32[N] y) <int64[2] a = {1,2}> { y = ReduceMax<keepdims = 0>(x, a) }",
    unless=[
        """(int32[2,3,4] x) => (int32[2] y) <int64[1] a = {1}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMin<keepdims = 0>(t, a) }""",
        """(int32[2,3,4] x) => (int32[2,1] y) <int64[1] a = {1}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMax(t, a) }""",
        """(int32[2,3,4] x) => (int32[2,1] y) <int64[1] a = {1}, int64[1] s = {2}>
           { t = ReduceMax(x, a)  y = ReduceMax<keepdims = 0>(t, s) }""",
        """(float[2,3,4] x) => (float[2] y) <int64[1] a = {1}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMax<keepdims = 0>(t, a) }""",
    ],
)
def reduce_integers_twice(m: Match, b: Builder) -> Value | Miss:
    """Two maxima, minima or sums of 32-bit integers in a row are one over all axes."""
    return (
        _merged(m, b) if m[x].dtype is DType.INT32 else b.no("floats are rounded, 64-bit integers go through float64")
    )


@rule(
    op.one_of("ReduceSum", "ReduceMean")(_FIRST, ...),
    before="""(float[2,3,4] x) => (float[2,1,1] y) <int64[1] a = {1}, int64[1] s = {2}>
              { t = ReduceMean(x, a)  y = ReduceMean(t, s) }""",
    after="(float[2,3,4] x) => (float[2,1,1] y) <int64[2] a = {1,2}> { y = ReduceMean(x, a) }",
    unless=[
        """(float[2,3,4] x) => (float[2] y) <int64[1] a = {1}>
           { t = ReduceSum<keepdims = 0>(x, a)  y = ReduceMean<keepdims = 0>(t, a) }""",
        """(int64[2,3,4] x) => (int64[2] y) <int64[1] a = {1}>
           { t = ReduceMean<keepdims = 0>(x, a)  y = ReduceMean<keepdims = 0>(t, a) }""",
    ],
    numeric="R",
)
def reduce_floats_twice(m: Match, b: Builder) -> Value | Miss:
    """Two sums or means of floats in a row are one over all axes."""
    is_float = m[x].dtype is not None and m[x].dtype.is_float
    return _merged(m, b) if is_float else b.no("a mean of integers is rounded twice")


@rule(
    op.one_of("ReduceMax", "ReduceMin")(_FIRST, ...),
    before="""(float[2,3,4] x) => (float[2] y) <int64[1] a = {1}>
              { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMax<keepdims = 0>(t, a) }""",
    after="(float[2,3,4] x) => (float[2] y) <int64[2] a = {1,2}> { y = ReduceMax<keepdims = 0>(x, a) }",
    unless=[
        """(float[2,3,4] x) => (float[2] y) <int64[1] a = {1}>
           { t = ReduceMax<keepdims = 0>(x, a)  y = ReduceMin<keepdims = 0>(t, a) }""",
    ],
    numeric="D",
)
def reduce_extremes_twice(m: Match, b: Builder) -> Value | Miss:
    """Two maxima or minima of floats in a row are one over all axes, where there is no NaN."""
    return _merged(m, b)
