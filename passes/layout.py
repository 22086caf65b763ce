"""Transposes cancel, merge, move to where less has to be moved, or fold into weights.

Converters from channels-last frameworks put a Transpose before and one behind every convolution. Between them stand
operators that do not care about the order of axes: they are turned around where that saves Transposes. What a graph
pass here turns, and what not, is decided by the bytes that Transposes move; they only ever fall.
"""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, Graph, Match, Miss, Node, Tensor, Value, const, graph_pass, op, rule, var
from passes._carriers import RESULT, plan_of
from passes._exactness import EXACT, SUMS, VALUES, class_of
from passes._layout_cost import Transposes, absorbed_by, is_free, is_same_sequence
from passes._layout_regions import MAX_REGION, SMALL_REGION, Division, MayTurn, grow
from passes._layout_turning import Turning
from passes._permutation import Perm, compose, identity, inverse, is_identity, perm_of

x, y, z = var("x"), var("y"), var("z")
_MAX_ROUNDS = 20
_EFFORT = 1
"""How often each node may on average be looked at in one round as part of a large region."""

# --- Transposes alone

_INNER = op.Transpose(x)


@rule(
    op.Transpose(_INNER),
    before="""(float[2,3,4] x) => (float[4,2,3] y)
              { t = Transpose<perm = [1,2,0]>(x)  y = Transpose<perm = [1,2,0]>(t) }""",
    after="(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm = [2,0,1]>(x) }",
    unless=[
        "(float[2,3] x) => (float[3,2] y) { t = Relu(x)  y = Transpose(t) }",
        "(float[2,3] x) => (float[6] y) <int64[1] s = {6}> { t = Transpose(x)  u = Reshape(t, s)  y = Transpose(u) }",
        # A runtime folds the second one, as it is, into the matrix product.
        """(float[2,3,2,3] x, float[2,2,2,3] z) => (float[2,2,2,2] y)
           { t = Transpose<perm = [0,2,1,3]>(x)  u = Transpose<perm = [0,1,3,2]>(t)  y = MatMul(z, u) }""",
        # The first one has another reader, and the second one moves nothing.
        """(float[1,2,3] x) => (float[3,2,1] z, float[1,3,2] y)
           { t = Transpose<perm = [2,1,0]>(x)  z = Relu(t)  y = Transpose<perm = [2,0,1]>(t) }""",
    ],
    keep=(_INNER,),
)
def merge_transposes(m: Match, b: Builder) -> Value | Miss:
    """Two Transposes in a row are one with the composed permutation, or none."""
    first, second = perm_of(m.node(_INNER)), perm_of(m.root)
    if first is None or second is None or len(first) != len(second):
        return b.no("a permutation is not known")
    perm = compose(first, second)
    is_folded = all(second in absorbed_by(*use, len(second)) for use in m.root.results[0].uses)
    if is_folded and not is_identity(perm):
        return b.no("the second one costs nothing where it stands, before a matrix product")
    own = identity(len(perm))
    if len(m[_INNER].uses) > 1 and is_same_sequence(m[_INNER], own, second) and not is_same_sequence(m[x], own, perm):
        return b.no("the first one is needed anyway, and the second one moves nothing")
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
    unless=[
        "(float[N,3,M] x) => (int64[3] y) { t = Relu(x)  y = Shape(t) }",
        # The Transpose is needed anyway.
        """(float[N,3,M] x) => (int64[3] y, float[N,M,3] z)
           { t = Transpose<perm = [0,2,1]>(x)  y = Shape(t)  z = Relu(t) }""",
    ],
    keep=(_TURNED,),
    grows="the elements of the shape change places instead of those of the tensor",
)
def shape_of_transpose(m: Match, b: Builder) -> Value | Miss:
    """The shape of a Transpose that nobody else reads is the shape of its operand, in another order."""
    perm = perm_of(m.node(_TURNED))
    if perm is None or any(user.op_type not in ("Shape", "Size") for user in m[_TURNED].users):
        return b.no("the permutation is not known, or the Transpose is needed anyway")
    start, end = m.root.param("start") or 0, m.root.param("end")
    picked = np.array(perm[start:end], dtype=np.int64)
    shape: Value = b.Gather(b.Shape(m[x]), picked, axis=0)
    return shape


# --- Transposes among other operators


@graph_pass(
    before="""(float[N,6,6,2] x) => (float[N,6,6,2] y) <float[2,2,1,1] w = {1.0,2.0,3.0,4.0}, float[2] b = {0.5,-0.5}> {
              xf = Transpose<perm = [0,3,1,2]>(x)
              c = Conv(xf, w)
              cl = Transpose<perm = [0,2,3,1]>(c)
              a = Add(cl, b)
              r = Relu(a)
              rf = Transpose<perm = [0,3,1,2]>(r)
              d = Conv(rf, w)
              y = Transpose<perm = [0,2,3,1]>(d) }""",
    after="""(float[N,6,6,2] x) => (float[N,6,6,2] y)
             <float[2,2,1,1] w = {1.0,2.0,3.0,4.0}, float[2,1,1] b = {0.5,-0.5}> {
              xf = Transpose<perm = [0,3,1,2]>(x)
              c = Conv(xf, w)
              a = Add(c, b)
              r = Relu(a)
              d = Conv(r, w)
              y = Transpose<perm = [0,2,3,1]>(d) }""",
    unless=[
        # One Transpose there would be one there.
        "(float[2,3,4] x) => (float[4,3,2] y) { t = Transpose(x)  y = Relu(t) }",
        # A matrix product is not computed axis by axis.
        "(float[2,3] x, float[2,3] z) => (float[2,2] y) { t = Transpose(z)  y = MatMul(x, t) }",
        # Sums are added in another order.
        """(float[2,3,4] x) => (float[2,4] y) <int64[1] i = {-1}>
           { t = Transpose<perm = [0,2,1]>(x)  y = ReduceSum<keepdims = 0>(t, i) }""",
        # The rank of an operand is not known.
        """(float[2,3] x, float[] z) => (float[] y)
           { t = Transpose(x)  a = Add(t, z)  y = Transpose<perm = [1,0]>(a) }""",
    ],
)
def sink_transposes(graph: Graph, context: Context) -> None:
    """Operators between Transposes are turned around where that leaves less to transpose."""
    _turn(graph, context, EXACT)


@graph_pass(
    before="""(float[N,2,4,4] x) => (float[N,2] y) <int64[2] i = {1,2}> {
              r = Relu(x)
              t = Transpose<perm = [0,2,3,1]>(r)
              y = ReduceMean<keepdims = 0>(t, i) }""",
    after="""(float[N,2,4,4] x) => (float[N,2] y) <int64[2] i = {2,3}> {
              r = Relu(x)
              y = ReduceMean<keepdims = 0>(r, i) }""",
    unless=[
        """(float[2,3,4] x) => (float[2,4] y) <int64[1] i = {-1}>
           { t = Transpose<perm = [0,2,1]>(x)  y = ReduceMax<keepdims = 0>(t, i) }""",
        "(float[2,3,4] x) => (float[4,3,2] y) { t = Transpose(x)  y = Softplus(t) }",
    ],
    numeric="R",
)
def sink_transposes_through_sums(graph: Graph, context: Context) -> None:
    """The same through operators that add in another order or round by position, and so change last bits."""
    _turn(graph, context, SUMS)


@graph_pass(
    before="""(float[2,3,4] x) => (float[2,3] y) <int64[1] i = {1}>
              { t = Transpose<perm = [0,2,1]>(x)  y = ReduceMax<keepdims = 0>(t, i) }""",
    after="""(float[2,3,4] x) => (float[2,3] y) <int64[1] i = {2}> { y = ReduceMax<keepdims = 0>(x, i) }""",
    unless=["(float[2,3,4] x) => (float[4,3,2] y) { t = Transpose(x)  y = Hardmax(t) }"],
    numeric="D",
)
def sink_transposes_through_maxima(graph: Graph, context: Context) -> None:
    """The same through maxima, minima and products, which another order of NaNs and overflows changes."""
    _turn(graph, context, VALUES)


def _turn(graph: Graph, context: Context, numeric: str) -> None:
    """Turn what pays, as long as it does.

    Args:
        graph: The graph.
        context: The surroundings.
        numeric: The class of the nodes this is about; those of stricter classes come along.
    """
    if not graph.of_kind("Transpose"):
        return
    transposes = Transposes(graph, context.keeps)
    allowed = (EXACT, SUMS, VALUES)[: (EXACT, SUMS, VALUES).index(numeric) + 1]

    def may_turn(node: Node) -> bool:
        free = node.graph is graph and not node.is_pinned and not context.keeps(node)
        return free and class_of(node) in allowed

    version, before = graph.version, transposes.total()
    for _ in range(_MAX_ROUNDS):
        if not _turn_once(context, transposes, may_turn, numeric):
            break
    after = transposes.total()
    if graph.version != version and (after[0] > before[0] or after[1] >= before[1]):
        context.take_back(f"Transposes moved {before[0]} bytes and would move {after[0]}")


def _turn_once(context: Context, transposes: Transposes, may_turn: MayTurn, numeric: str) -> bool:
    """Look around every Transpose once.

    Returns:
        Whether anything was turned.
    """
    tried: set[tuple[Node, object]] = set()
    has_changed, effort = False, _EFFORT * len(transposes.graph.nodes())
    for node in sorted(transposes.graph.of_kind("Transpose"), key=lambda node: (node.rank, node.serial)):
        for start, place, perm in _starts(node, transposes):
            plan = plan_of(start, place, perm) if may_turn(start) else None
            if plan is None or (start, plan.key) in tried:
                continue
            region = grow(transposes, may_turn, start, plan, MAX_REGION if effort > 0 else SMALL_REGION)
            effort -= len(region)
            tried.update((member, own.key) for member, own in region.items())
            if not any(class_of(member) == numeric for member in region):
                continue  # a region of stricter nodes is settled already
            chosen = Division(transposes, region).cheapest()
            if chosen:
                Turning(transposes, context).run(region, chosen)
                has_changed = True
    return has_changed


def _starts(node: Node, transposes: Transposes) -> list[tuple[Node, int, Perm]]:
    """The nodes at either side of a Transpose, and the permutation they would carry to make it needless."""
    perm = transposes.perm_of(node)
    operand = node.operands[0] if perm is not None else None
    if perm is None or operand is None or is_identity(perm) or operand.const is not None:
        return []
    users = [(user, index, inverse(perm)) for user, index in node.results[0].uses]
    return [*users, (operand.producer, RESULT, perm)]


# --- Transposes and matrix products

_A, _B = op.Transpose(x), op.Transpose(y)
_LEFT, _RIGHT = op.Gemm(_A, y, ...), op.Gemm(x, _B, ...)


@rule(
    _LEFT,
    before="(float[3,2] x, float[3,4] w) => (float[2,4] y) { t = Transpose(x)  y = Gemm(t, w) }",
    after="(float[3,2] x, float[3,4] w) => (float[2,4] y) { y = Gemm<transA = 1>(x, w) }",
    unless=["(float[2,3] x, float[3,4] w) => (float[2,4] y) { t = Relu(x)  y = Gemm(t, w) }"],
    numeric="R",
    keep=(_A,),
)
def transpose_before_gemm(m: Match, b: Builder) -> Value | Miss:
    """A Gemm transposes its first operand by itself."""
    if perm_of(m.node(_A)) != (1, 0):
        return b.no("the axes keep their order")
    result: Value = b.like(m.root, m[x], *m.root.operands[1:], transA=0 if m.root.param("transA") else 1)
    return result


@rule(
    _RIGHT,
    before="(float[2,3] x, float[4,3] w) => (float[2,4] y) { t = Transpose(w)  y = Gemm(x, t) }",
    after="(float[2,3] x, float[4,3] w) => (float[2,4] y) { y = Gemm<transB = 1>(x, w) }",
    unless=["(float[2,3] x, float[3,4] w) => (float[2,4] y) { t = Relu(w)  y = Gemm(x, t) }"],
    numeric="R",
    keep=(_B,),
)
def transpose_behind_gemm(m: Match, b: Builder) -> Value | Miss:
    """A Gemm transposes its second operand by itself."""
    if perm_of(m.node(_B)) != (1, 0):
        return b.no("the axes keep their order")
    result: Value = b.like(m.root, m[x], m[y], *m.root.operands[2:], transB=0 if m.root.param("transB") else 1)
    return result
