"""Removes arithmetic on one operand or one element: sums of one, reductions of unit axes, pools of one pixel, choices.

What comes out is what went in, but not always bit by bit: a sum starts from 0.0 and makes that of -0.0, a maximum
starts from the least finite number and loses -inf. Each rule carries the class of what ONNX Runtime's kernel does.
"""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, is_uniform, op, rule, var
from passes import _noops as noops
from passes._proofs import HALVES, is_never_empty

x, y, c = var("x"), var("y"), var("c")


def _operand(m: Match, b: Builder, does_nothing: bool, doubt: str) -> Value | Miss:
    """What the operator reads, if it is proved that this is also what it gives."""
    value: Value = m[x]
    return value if does_nothing else b.no(doubt)


@rule(
    op.one_of("Max", "Min", "Sum")(x),
    before="(float[2] x) => (float[2] y) { t = Sum(x)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=[
        "(float[2] x) => (float[2] y) { t = Sum(x, x)  y = Relu(t) }",
        "(float16[2] x) => (float16[2] y) { t = Sum(x)  y = Relu(t) }",
    ],
)
def sum_of_one(m: Match, b: Builder) -> Value | Miss:
    """A Sum, Min or Max of one operand is that operand."""
    exact = m[x].dtype is not None and m[x].dtype not in HALVES
    return _operand(m, b, exact, "the kernel computes in another type")


@rule(
    op.one_of("Max", "Mean", "Min", "Sum")(x),
    before="(float[2] x) => (float[2] y) { t = Mean(x)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { t = Mean(x, z)  y = Relu(t) }"],
    numeric="Z",
)
def mean_of_one(m: Match, b: Builder) -> Value | Miss:
    """A Mean of one operand is that operand; so are Sum, Min and Max of halves."""
    return _operand(m, b, True, "")


_REDUCTION = op.one_of(*noops.EXTREMES, *noops.SUMS)(x, ...)


@rule(
    _REDUCTION,
    before="(float[2,3] x) => (float[2,3] y) { t = ReduceSum<noop_with_empty_axes = 1>(x)  y = Relu(t) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[1,1] y) { t = ReduceSum(x)  y = Relu(t) }",
        """(float[2,3] x) => (float[2,1] y) <int64[1] a = {1}>
           { t = ReduceSum<noop_with_empty_axes = 1>(x, a)  y = Relu(t) }""",
        "(float[2,3] x) => (float[2,3] y) { t = ReduceL1<noop_with_empty_axes = 1>(x)  y = Log(t) }",
        # ONNX Runtime before 1.30 reduces an empty operand all the same.
        "(float[N] x) => (float[N] y) { t = ReduceSum<noop_with_empty_axes = 1>(x)  y = Relu(t) }",
    ],
)
def reduction_over_no_axes(m: Match, b: Builder) -> Value | Miss:
    """A reduction without axes, where that means none, is its operand."""
    does_nothing = noops.reduces_nothing(m.root) and is_never_empty(m[x])
    return _operand(m, b, does_nothing, "there are axes, or none means all, or the operand may be empty")


@rule(
    _REDUCTION,
    before="(float[N,1] x) => (float[N,1] y) <int64[1] a = {-1}> { t = ReduceMax(x, a)  y = Relu(t) }",
    after="(float[N,1] x) => (float[N,1] y) { y = Relu(x) }",
    unless=[
        "(float[2,1] x) => (float[2] y) <int64[1] a = {1}> { t = ReduceMax<keepdims = 0>(x, a)  y = Relu(t) }",
        "(float[N,1] x) => (float[1,1] y) { t = ReduceMax(x)  y = Relu(t) }",
        "(float[2,1] x) => (float[2,1] y) <int64[1] a = {1}> { t = ReduceSum(x, a)  y = Relu(t) }",
        "(int64[2,1] x) => (int64[2,1] y) <int64[1] a = {1}> { t = ReduceSum(x, a)  y = Abs(t) }",
    ],
)
def maximum_over_unit_axes(m: Match, b: Builder) -> Value | Miss:
    """A maximum or minimum over axes of size 1 is its operand; so are sums and products of 32-bit integers."""
    exact = noops.reduces_unit_axes(m.root, m[x]) and noops.is_exact_for_one(m.root, m[x].dtype)
    return _operand(m, b, exact, "an axis may be longer or go away, or the kernel changes bits")


@rule(
    _REDUCTION,
    before="(float[N,1] x) => (float[N,1] y) <int64[1] a = {1}> { t = ReduceMean(x, a)  y = Relu(t) }",
    after="(float[N,1] x) => (float[N,1] y) { y = Relu(x) }",
    unless=[
        "(float[2,1] x) => (float[2] y) <int64[1] a = {1}> { t = ReduceMean<keepdims = 0>(x, a)  y = Relu(t) }",
        "(float[2,M] x) => (float[2,1] y) <int64[1] a = {1}> { t = ReduceMean(x, a)  y = Relu(t) }",
        "(int64[2,1] x) => (int64[2,1] y) <int64[1] a = {1}> { t = ReduceMean(x, a)  y = Abs(t) }",
        "(float[2,1] x) => (float[2,1] y) <int64[1] a = {1}> { t = ReduceSumSquare(x, a)  y = Relu(t) }",
    ],
    numeric="Z",
)
def mean_over_unit_axes(m: Match, b: Builder) -> Value | Miss:
    """A sum, mean or product of floats over axes of size 1 is its operand, but for the sign of zero."""
    is_float = m[x].dtype is not None and m[x].dtype.is_float
    return _operand(m, b, is_float and noops.reduces_unit_axes(m.root, m[x]), "an axis may be longer or go away")


@rule(
    op.MaxPool(x),
    before="(float[1,2,N,M] x) => (float[1,2,N,M] y) { t = MaxPool<kernel_shape = [1,1]>(x)  y = Relu(t) }",
    after="(float[1,2,N,M] x) => (float[1,2,N,M] y) { y = Relu(x) }",
    unless=[
        "(float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape = [1,1], strides = [2,2]>(x) }",
        "(float[1,1,2,2] x) => (float[1,1,3,2] y) { y = MaxPool<kernel_shape = [2,1], pads = [1,0,1,0]>(x) }",
        "(float[1,1,4] x) => (float[1,1,4] y) { t = MaxPool<kernel_shape = [1]>(x)  y = Relu(t) }",
        "(float[1,1,2,2] x) => (float[1,1,2,2] y, int64[1,1,2,2] i) { y, i = MaxPool<kernel_shape = [1,1]>(x) }",
    ],
)
def max_pool_of_single_pixels(m: Match, b: Builder) -> Value | Miss:
    """A MaxPool with a window of one pixel that looks everywhere is its operand."""
    exact = noops.pools_single_pixels(m.root) and noops.max_pool_is_exact(m[x])
    return _operand(m, b, exact, "the window is larger or skips pixels, or the kernel loses -inf")


@rule(
    op.AveragePool(x),
    before="(float[1,2,N,M] x) => (float[1,2,N,M] y) { t = AveragePool<kernel_shape = [1,1]>(x)  y = Relu(t) }",
    after="(float[1,2,N,M] x) => (float[1,2,N,M] y) { y = Relu(x) }",
    unless=[
        "(float[1,1,4] x) => (float[1,1,2] y) { t = AveragePool<kernel_shape = [1], strides = [2]>(x)  y = Relu(t) }",
        "(float[1,1,4] x) => (float[1,1,5] y) { t = AveragePool<kernel_shape = [2], pads = [1,1]>(x)  y = Relu(t) }",
    ],
    numeric="Z",
)
def average_of_single_pixels(m: Match, b: Builder) -> Value | Miss:
    """An AveragePool with a window of one pixel that looks everywhere is its operand."""
    return _operand(m, b, noops.pools_single_pixels(m.root), "the window is larger or skips pixels")


@rule(
    op.GlobalAveragePool(x),
    before="(float[N,C,1,1] x) => (float[N,C,1,1] y) { t = GlobalAveragePool(x)  y = Relu(t) }",
    after="(float[N,C,1,1] x) => (float[N,C,1,1] y) { y = Relu(x) }",
    unless=["(float[N,C,1,M] x) => (float[N,C,1,1] y) { t = GlobalAveragePool(x)  y = Relu(t) }"],
    numeric="Z",
)
def average_of_one_pixel(m: Match, b: Builder) -> Value | Miss:
    """The average of images of one pixel is those images."""
    return _operand(m, b, noops.has_single_pixel(m[x]), "an image may have more pixels")


@rule(
    op.one_of("MaxPool", "GlobalMaxPool")(x),
    before="(float[N,C,1,1] x) => (float[N,C,1,1] y) { t = GlobalMaxPool(x)  y = Relu(t) }",
    after="(float[N,C,1,1] x) => (float[N,C,1,1] y) { y = Relu(x) }",
    unless=[
        "(float[N,C,2,1] x) => (float[N,C,1,1] y) { t = GlobalMaxPool(x)  y = Relu(t) }",
        "(float[1,1,4] x) => (float[1,1,3] y) { t = MaxPool<kernel_shape = [2]>(x)  y = Relu(t) }",
    ],
    numeric="D",
)
def maximum_of_single_pixels(m: Match, b: Builder) -> Value | Miss:
    """The maximum of one pixel is that pixel; the runtime makes the least finite number of -inf."""
    is_global = m.root.op_type == "GlobalMaxPool"
    single = noops.has_single_pixel(m[x]) if is_global else noops.pools_single_pixels(m.root)
    return _operand(m, b, single, "the window may have more pixels")


@rule(
    op.Clip(x),
    before="(int32[2] x) => (int32[2] y) { t = Clip(x)  y = Abs(t) }",
    after="(int32[2] x) => (int32[2] y) { y = Abs(x) }",
    unless=[
        "(float[2] x) => (float[2] y) { t = Clip(x)  y = Abs(t) }",
        "(int32[2] x) => (int32[2] y) <int32 low = {0}> { t = Clip(x, low)  y = Abs(t) }",
    ],
    opsets=(11, None),
)
def clip_without_bounds(m: Match, b: Builder) -> Value | Miss:
    """A Clip of integers without bounds is its operand; that of floats takes infinities to the largest number."""
    return _operand(m, b, m[x].dtype is not None and m[x].dtype.is_integer, "infinities are clipped")


# --- Where


_EQUAL = op.Where(c, x, x)


@rule(
    _EQUAL,
    before="(bool[3] c, int64[N,3] x) => (int64[N,3] y) { t = Where(c, x, x)  y = Abs(t) }",
    after="(bool[3] c, int64[N,3] x) => (int64[N,3] y) { y = Abs(x) }",
    unless=[
        "(bool[2,3] c, int64[3] x) => (int64[2,3] y) { t = Where(c, x, x)  y = Abs(t) }",
        "(bool[N] c, int64[M] x) => (int64[K] y) { t = Where(c, x, x)  y = Abs(t) }",
        "(bool[2] c, float[2] x) => (float[2] y) { t = Where(c, x, x)  y = Abs(t) }",
    ],
)
def where_of_equal_branches(m: Match, b: Builder) -> Value | Miss:
    """A Where between a value and itself is that value."""
    return _operand(m, b, noops.is_branch(m[x], m.root.result, is_float=False), "it may widen, or hold floats")


@rule(
    _EQUAL,
    before="(bool[3] c, float[N,3] x) => (float[N,3] y) { t = Where(c, x, x)  y = Relu(t) }",
    after="(bool[3] c, float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=["(bool[2,3] c, float[3] x) => (float[2,3] y) { t = Where(c, x, x)  y = Relu(t) }"],
    numeric="Z",
)
def where_of_equal_floats(m: Match, b: Builder) -> Value | Miss:
    """A Where between a float value and itself is that value; the runtime may make 0.0 of -0.0."""
    return _operand(m, b, noops.is_branch(m[x], m.root.result, is_float=True), "the condition may widen it")


@rule(
    op.Where(c, x, y),
    before="(int64[N,3] x) => (int64[N,3] y) <bool[3] c = {1,1,1}, int64 z = {7}> { t = Where(c, x, z)  y = Abs(t) }",
    after="(int64[N,3] x) => (int64[N,3] y) { y = Abs(x) }",
    unless=[
        "(int64[2,3] x) => (int64[2,3] y) <bool[3] c = {1,0,1}, int64 z = {7}> { t = Where(c, x, z)  y = Abs(t) }",
        "(int64[3] x) => (int64[2,3] y) <bool[2,1] c = {1,1}, int64 z = {7}> { t = Where(c, x, z)  y = Abs(t) }",
        "(int64[3] x, int64[2,3] z) => (int64[2,3] y) <bool c = {1}> { t = Where(c, x, z)  y = Abs(t) }",
        "(float[3] x) => (float[3] y) <bool c = {1}, float z = {7}> { t = Where(c, x, z)  y = Abs(t) }",
    ],
)
def where_of_one_branch(m: Match, b: Builder) -> Value | Miss:
    """A Where whose condition is the same throughout is the branch it always takes."""
    return _chosen(m, b, is_float=False)


@rule(
    op.Where(c, x, y),
    before="(float[N,3] x) => (float[N,3] y) <bool[3] c = {0,0,0}, float z = {7}> { t = Where(c, z, x)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[2,3] x) => (float[2,3] y) <bool[3] c = {1,0,1}, float z = {7}> { t = Where(c, x, z)  y = Relu(t) }",
        "(float[3] x, float[2,3] z) => (float[2,3] y) <bool c = {1}> { t = Where(c, x, z)  y = Relu(t) }",
    ],
    numeric="Z",
)
def where_of_one_float_branch(m: Match, b: Builder) -> Value | Miss:
    """A Where of floats whose condition is the same throughout is one branch; the runtime may make 0.0 of -0.0."""
    return _chosen(m, b, is_float=True)


def _chosen(m: Match, b: Builder, *, is_float: bool) -> Value | Miss:
    branch: Value | None = m[x] if is_uniform(m[c], True) else m[y] if is_uniform(m[c], False) else None
    if branch is None or not noops.is_branch(branch, m.root.result, is_float=is_float):
        return b.no("either branch may be taken, or the other one widens this one")
    return branch
