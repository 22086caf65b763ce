"""Transposes cancel, merge, move to where less has to be moved, or fold into weights.

Converters from channels-last frameworks put a Transpose before and one behind every convolution. Between them stand
operators that do not care about the order of axes: they are turned around where that saves Transposes. What a graph
pass here turns, and what not, is decided by the bytes that Transposes move; they only ever fall.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, Graph, Match, Miss, Node, Tensor, Value, attr, const, graph_pass, op, rule, var
from passes._carriers import RESULT, Plan, plan_of
from passes._exactness import EXACT, SUMS, VALUES, class_of
from passes._layout_cost import Transposes, is_free
from passes._layout_regions import Division, MayTurn, grow
from passes._layout_turning import Turning
from passes._permutation import Perm, compose, inverse, is_identity, perm_of

x, y, z = var("x"), var("y"), var("z")
_MAX_ROUNDS = 20

# --- Transposes alone -------------------------------------------------------------------------------------------------

_INNER = op.Transpose(x)


@rule(
    op.Transpose(_INNER),
    before="""(float[2,3,4] x) => (float[4,2,3] y)
              { t = Transpose<perm = [1,2,0]>(x)  y = Transpose<perm = [1,2,0]>(t) }""",
    after="(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm = [2,0,1]>(x) }",
    unless=[
        "(float[2,3] x) => (float[3,2] y) { t = Relu(x)  y = Transpose(t) }",
        "(float[2,3] x) => (float[6] y) <int64[1] s = {6}> { t = Transpose(x)  u = Reshape(t, s)  y = Transpose(u) }",
    ],
    keep=(_INNER,),
)
def merge_transposes(m: Match, b: Builder) -> Value | Miss:
    """Two Transposes in a row are one with the composed permutation, or none."""
    first, second = perm_of(m.node(_INNER)), perm_of(m.root)
    if first is None or second is None or len(first) != len(second):
        return b.no("a permutation is not known")
    perm = compose(first, second)
    value: Value = m[x] if is_identity(perm) else b.Transpose(m[x], perm=list(perm))
    return value


@rule(
    op.Transpose(const()),
    before="""(float[2,3] x) => (float[2,3] y) <float[3,2] w = {1.0,2.0,3.0,4.0,5.0,6.0}>
              { t = Transpose(w)  y = Add(x, t) }""",
    after="""(float[2,3] x) => (float[2,3] y) <float[2,3] w = {1.0,3.0,5.0,2.0,4.0,6.0}> { y = Add(x, w) }""",
    unless=[
        "(float[2,3] x, float[3,2] w = {1,2,3,4,5,6}) => (float[2,3] y) { t = Transpose(w)  y = Add(x, t) }",
        "(float[2,3] x, float[3,2] w) => (float[2,3] y) { t = Transpose(w)  y = Add(x, t) }",
    ],
)
def transpose_of_constant(m: Match, b: Builder) -> Value | Miss:
    """The Transpose of a weight is another weight, if that one is small or nobody else reads it."""
    value, perm = m.root.operands[0], perm_of(m.root)
    if value is None or value.const is None or perm is None:
        return b.no("the permutation is not known")
    if not is_free(value):
        return b.no("the weight is large and has other readers: it would be stored twice")
    tensor = value.const
    shape = tuple(tensor.shape[axis] for axis in perm)
    return b.constant(Tensor(tensor.dtype, shape, lambda: np.ascontiguousarray(np.transpose(tensor.numpy(), perm))))


_TURNED = op.Transpose(x)


@rule(
    op.Shape(_TURNED),
    before="(float[N,3,M] x) => (int64[3] y) { t = Transpose<perm = [0,2,1]>(x)  y = Shape(t) }",
    after="""(float[N,3,M] x) => (int64[3] y) <int64[3] i = {0,2,1}> { s = Shape(x)  y = Gather<axis = 0>(s, i) }""",
    unless=["(float[N,3,M] x) => (int64[3] y) { t = Relu(x)  y = Shape(t) }"],
    keep=(_TURNED,),
    grows="the elements of the shape change places instead of those of the tensor",
)
def shape_of_transpose(m: Match, b: Builder) -> Value | Miss:
    """The shape of a Transpose is the shape of its operand, in another order."""
    perm = perm_of(m.node(_TURNED))
    if perm is None:
        return b.no("the permutation is not known")
    start, end = m.root.param("start") or 0, m.root.param("end")
    picked = np.array(perm[start:end], dtype=np.int64)
    shape: Value = b.Gather(b.Shape(m[x]), picked, axis=0)
    return shape
