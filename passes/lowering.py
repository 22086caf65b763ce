"""Writes operators that an older opset does not have in parts, where the user asked for that opset.

What ONNX defines by a function body is written by hand here, shorter. Halves are normalized in float32, as the
operators say. What is not here, or not in a form that is, stays, and the conversion names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphopt import Builder, Context, DType, Graph, Model, Node, Options, Value, graph_pass
from passes._attention_parts import attention_parts, rotated
from passes._replacing import replace_node

_HALVES = (DType.FLOAT16, DType.BFLOAT16)


def is_asked(model: Model, options: Options) -> bool:
    """Only where an opset is asked for that is older than the model's."""
    asked = options.opset
    return asked is not None and any(graph.opsets.get("", 0) > asked for graph in model.graphs())


def _lower(
    graph: Graph,
    context: Context,
    op_type: str,
    since: int,
    build: Callable[[Node, Builder], Sequence[Value | None] | None],
) -> None:
    """Write every application in parts if the opset asked for lies before the operator's first, or first such, one."""
    asked = context.options.opset
    if asked is None or asked >= since:
        return
    for node in graph.of_kind(op_type):
        if node.is_pinned or context.keeps(node) or not node.has_latest_meaning:
            continue
        builder = context.builder(graph)
        values = build(node, builder)
        if values is None:
            context.note(
                f"{op_type} '{node.name}' stays: sizes it takes are unknown, or it asks for more than is written here"
            )
        else:
            with context.rewrite(graph):
                replace_node(graph, node, values, builder)


def _read(node: Node, index: int = 0) -> Value:
    value = node.operand(index)
    assert value is not None
    return value


# --- activations


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { y = Gelu(x) }",
    after="""(float[2,3] x) => (float[2,3] y) <float c = {0.70710678}, float one = {1.0}, float half = {0.5}> {
        z = Mul(x, c)  e = Erf(z)  a = Add(e, one)  h = Mul(x, half)  y = Mul(h, a)
    }""",
    unless=["(float[2,3] x) => (float[2,3] y) { y = Relu(x) }"],
    numeric="R",
    opset=20,
    options={"opset": 19},
)
def gelu(graph: Graph, context: Context) -> None:
    """Gelu came with opset 20."""

    def build(node: Node, b: Builder) -> list[Value]:
        x = _read(node)
        if node.param("approximate") == "tanh":
            cube = b.Mul(b.Mul(b.Mul(x, x), x), 0.044715)
            inner = b.Tanh(b.Mul(b.Add(x, cube), math.sqrt(2 / math.pi)))
        else:
            inner = b.Erf(b.Mul(x, math.sqrt(0.5)))
        return [b.Mul(b.Mul(x, 0.5), b.Add(inner, 1.0))]

    _lower(graph, context, "Gelu", 20, build)


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { y = HardSwish(x) }",
    after="""(float[2,3] x) => (float[2,3] y) { s = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x)  y = Mul(x, s) }""",
    unless=["(float[2,3] x) => (float[2,3] y) { y = HardSigmoid(x) }"],
    numeric="R",
    opset=14,
    options={"opset": 13},
)
def hard_swish(graph: Graph, context: Context) -> None:
    """HardSwish came with opset 14."""
    alpha = 0.1666666716337204  # one sixth in float32, as the runtime reads it back
    _lower(
        graph,
        context,
        "HardSwish",
        14,
        lambda node, b: [b.Mul(_read(node), b.HardSigmoid(_read(node), alpha=alpha, beta=0.5))],
    )


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { y = Mish(x) }",
    after="(float[2,3] x) => (float[2,3] y) { s = Softplus(x)  t = Tanh(s)  y = Mul(x, t) }",
    unless=["(float[2,3] x) => (float[2,3] y) { y = Softplus(x) }"],
    numeric="U",
    opset=18,
    options={"opset": 17},
)
def mish(graph: Graph, context: Context) -> None:
    """Mish came with opset 18."""
    _lower(graph, context, "Mish", 18, lambda node, b: [b.Mul(_read(node), b.Tanh(b.Softplus(_read(node))))])


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { y = Swish(x) }",
    after="(float[2,3] x) => (float[2,3] y) { s = Sigmoid(x)  y = Mul(x, s) }",
    unless=["(float[2,3] x) => (float[2,3] y) { y = Sigmoid(x) }"],
    numeric="R",
    opset=24,
    options={"opset": 23},
)
def swish(graph: Graph, context: Context) -> None:
    """Swish came with opset 24."""

    def build(node: Node, b: Builder) -> list[Value]:
        x, alpha = _read(node), float(node.param("alpha"))
        return [b.Mul(x, b.Sigmoid(x if alpha == 1.0 else b.Mul(x, alpha)))]

    _lower(graph, context, "Swish", 24, build)


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { y = Celu<alpha = 2.0>(x) }",
    after="""(float[2,3] x) => (float[2,3] y) <float a = {2.0}, float b = {2.0}> {
        d = Div(x, a)  e = Elu<alpha = 1.0>(d)  y = Mul(e, b)
    }""",
    unless=["(float[2,3] x) => (float[2,3] y) { y = Elu(x) }"],
    numeric="R",
    opset=12,
    options={"opset": 11},
    largest=1e30,
)
def celu(graph: Graph, context: Context) -> None:
    """Celu came with opset 12."""

    def build(node: Node, b: Builder) -> list[Value]:
        alpha = float(node.param("alpha"))
        return [b.Mul(b.Elu(b.Div(_read(node), alpha), alpha=1.0), alpha)]

    _lower(graph, context, "Celu", 12, build)


# --- comparisons, casts, triangles


@graph_pass(
    before="(float[2,3] x, float[3] w) => (bool[2,3] y) { y = LessOrEqual(x, w) }",
    after="(float[2,3] x, float[3] w) => (bool[2,3] y) { l = Less(x, w)  e = Equal(x, w)  y = Or(l, e) }",
    unless=["(float[2,3] x, float[3] w) => (bool[2,3] y) { y = Less(x, w) }"],
    opset=12,
    options={"opset": 11},
)
def or_equal(graph: Graph, context: Context) -> None:
    """LessOrEqual and GreaterOrEqual came with opset 12; the negation of the opposite is another thing for NaN."""
    for op_type, strict in (("LessOrEqual", "Less"), ("GreaterOrEqual", "Greater")):
        _lower(
            graph,
            context,
            op_type,
            12,
            lambda node, b, strict=strict: [  # type: ignore[misc]  # bound at once
                b.Or(b.apply(strict, node.operands), b.Equal(*node.operands))
            ],
        )


@graph_pass(
    before="(float[2,3] x, int64[3] w) => (int64[2,3] y) { y = CastLike(x, w) }",
    after="(float[2,3] x, int64[3] w) => (int64[2,3] y) { y = Cast<to = 7>(x) }",
    unless=["(float[2,3] x) => (int64[2,3] y) { y = Cast<to = 7>(x) }"],
    opset=15,
    options={"opset": 14},
)
def cast_like(graph: Graph, context: Context) -> None:
    """CastLike came with opset 15."""

    def build(node: Node, b: Builder) -> list[Value] | None:
        dtype = _read(node, 1).dtype
        if dtype is None:
            return None
        given = {name: value for name, value in node.attributes.items() if name in ("saturate", "round_mode")}
        return [b.Cast(_read(node), to=int(dtype), **given)]

    _lower(graph, context, "CastLike", 15, build)


@graph_pass(
    before="(float[2,3,4] x) => (float[2,3,4] y) { y = Trilu<upper = 1>(x) }",
    after="""(float[2,3,4] x) => (float[2,3,4] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {1},
             int64 first_axis = {-2}, int64 last_axis = {-1}, int64 k = {0}, float none = {0.0}> {
        s = Shape(x)
        r = Gather(s, first_axis)
        c = Gather(s, last_axis)
        i = Range(zero, r, one)
        j = Range(zero, c, one)
        t = Unsqueeze(i, last)
        d = Sub(j, t)
        b = Less(d, k)
        y = Where(b, none, x)
    }""",
    unless=["(float[2,3,4] x) => (float[2,3,4] y) { y = Relu(x) }"],
    opset=14,
    options={"opset": 13},
)
def trilu(graph: Graph, context: Context) -> None:
    """Trilu came with opset 14: what lies on the wrong side of a diagonal becomes 0."""

    def build(node: Node, b: Builder) -> list[Value] | None:
        x, offset = _read(node), node.operand(1)
        dtype = x.dtype
        if dtype not in (DType.FLOAT, DType.INT64, DType.INT32, DType.DOUBLE, DType.UINT8):
            return None  # the runtime has no Where for others
        zero, one = b.constant(0, DType.INT64), b.constant(1, DType.INT64)
        dims = b.Shape(x)
        rows, columns = (b.Range(zero, b.Gather(dims, b.constant(axis, DType.INT64)), one) for axis in (-2, -1))
        beyond = b.Sub(columns, b.Unsqueeze(rows, axes=[1]))
        diagonal = b.constant(0, DType.INT64) if offset is None else offset
        wrong = b.Less(beyond, diagonal) if node.param("upper") else b.Greater(beyond, diagonal)
        return [b.Where(wrong, b.constant(0, dtype), x)]

    _lower(graph, context, "Trilu", 14, build)


# --- normalizations


def _stashed(node: Node, b: Builder) -> Value:
    """What is normalized, in the precision in which that happens."""
    x, stash = _read(node), node.param("stash_type")
    return b.Cast(x, to=int(stash)) if x.dtype in _HALVES and stash and int(stash) != int(x.dtype) else x


def _unstashed(node: Node, value: Value, b: Builder) -> Value:
    x = _read(node)
    made: Value = value if value.dtype is x.dtype or x.dtype is None else b.Cast(value, to=int(x.dtype))
    return made


def _last_axes(node: Node) -> list[int] | None:
    """The axes from `axis` on, counted from the back."""
    axis, rank = int(node.param("axis")), _read(node).rank
    if axis >= 0:
        if rank is None:
            return None
        axis -= rank
    return list(range(axis, 0))


@graph_pass(
    before="""(float[2,5,4] x) => (float[2,5,4] y)
              <float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        y = LayerNormalization(x, w, c)
    }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3},
              float eps = {0.00001}> {
        m = ReduceMean<axes = [-1]>(x)
        d = Sub(x, m)
        p = Mul(d, d)
        v = ReduceMean<axes = [-1]>(p)
        e = Add(v, eps)
        s = Sqrt(e)
        n = Div(d, s)
        f = Mul(n, w)
        y = Add(f, c)
    }""",
    unless=["(float[2,5,4] x) => (float[2,5,4] y) { y = Relu(x) }"],
    numeric="R",
    opset=17,
    options={"opset": 16},
    largest=1e12,
)
def layer_normalization(graph: Graph, context: Context) -> None:
    """LayerNormalization came with opset 17."""

    def build(node: Node, b: Builder) -> list[Value | None] | None:
        axes, epsilon = _last_axes(node), float(node.param("epsilon"))
        if axes is None:
            return None
        x = _stashed(node, b)
        mean = b.ReduceMean(x, axes=axes)
        deviation = b.Sub(x, mean)
        spread = b.Sqrt(b.Add(b.ReduceMean(b.Mul(deviation, deviation), axes=axes), epsilon))
        result = b.Mul(_unstashed(node, b.Div(deviation, spread), b), _read(node, 1))
        bias = node.operand(2)
        values: list[Value | None] = [result if bias is None else b.Add(result, bias)]
        for given in node.results[1:]:
            further = mean if given.index == 1 else b.Reciprocal(spread)
            values.append(further if given.is_used else None)
        return values

    _lower(graph, context, "LayerNormalization", 17, build)


@graph_pass(
    before="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}> {
        y = RMSNormalization<epsilon = 0.00001>(x, w)
    }""",
    after="""(float[2,5,4] x) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}, float eps = {0.00001},
              int64[1] a = {-1}> {
        p = Mul(x, x)
        v = ReduceMean(p, a)
        e = Add(v, eps)
        s = Sqrt(e)
        n = Div(x, s)
        y = Mul(n, w)
    }""",
    unless=["(float[2,5,4] x) => (float[2,5,4] y) { y = Relu(x) }"],
    numeric="R",
    opset=23,
    options={"opset": 22},
    largest=1e12,
)
def rms_normalization(graph: Graph, context: Context) -> None:
    """RMSNormalization came with opset 23."""

    def build(node: Node, b: Builder) -> list[Value] | None:
        axes, epsilon = _last_axes(node), float(node.param("epsilon"))
        if axes is None:
            return None
        x = _stashed(node, b)
        spread = b.Sqrt(b.Add(b.ReduceMean(b.Mul(x, x), axes=axes), epsilon))
        return [b.Mul(_unstashed(node, b.Div(x, spread), b), _read(node, 1))]

    _lower(graph, context, "RMSNormalization", 23, build)


@graph_pass(
    before="""(float[2,4,3,3] x) => (float[2,4,3,3] y)
              <float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        y = GroupNormalization<num_groups = 2>(x, w, c)
    }""",
    after="""(float[2,4,3,3] x) => (float[2,4,3,3] y)
              <float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3},
              int64[3] t = {0, 2, -1}, float[2] one = {1.0, 1.0}, float[2] none = {0.0, 0.0}, int64[2] a = {1, 2}> {
        g = Reshape(x, t)
        n = InstanceNormalization<epsilon = 0.00001>(g, one, none)
        s = Shape(x)
        r = Reshape(n, s)
        u = Unsqueeze(w, a)
        f = Mul(r, u)
        v = Unsqueeze(c, a)
        y = Add(f, v)
    }""",
    unless=["(float[2,5,4] x) => (float[2,5,4] y) { y = Relu(x) }"],
    numeric="R",
    opset=21,
    options={"opset": 20},
    largest=1e12,
)
def group_normalization(graph: Graph, context: Context) -> None:
    """GroupNormalization with a scale for each channel came with opset 21."""

    def build(node: Node, b: Builder) -> list[Value] | None:
        rank, groups = _read(node).rank, int(node.param("num_groups"))
        x = _stashed(node, b)
        if rank is None or x.dtype is None:
            return None
        grouped = b.Reshape(x, b.constant([0, groups, -1], DType.INT64))
        ones, zeros = (b.constant([number] * groups, x.dtype) for number in (1.0, 0.0))
        normal = b.InstanceNormalization(grouped, ones, zeros, epsilon=float(node.param("epsilon")))
        result = _unstashed(node, b.Reshape(normal, b.Shape(x)), b)
        scale, bias = _read(node, 1), _read(node, 2)
        if rank > 2:
            axes = list(range(1, rank - 1))
            return [b.Add(b.Mul(result, b.Unsqueeze(scale, axes=axes)), b.Unsqueeze(bias, axes=axes))]
        return [b.Add(b.Mul(result, scale), bias)]

    _lower(graph, context, "GroupNormalization", 21, build)


# --- attention


@graph_pass(
    before="""(float[1,2,3,4] x, float[1,3,2] c, float[1,3,2] s) => (float[1,2,3,4] y) {
        y = RotaryEmbedding(x, c, s)
    }""",
    after="""(float[1,2,3,4] x, float[1,3,2] c, float[1,3,2] s) => (float[1,2,3,4] y)
             <int64[1] h = {1}, int64[2] p = {2, 2}> {
        u = Unsqueeze(c, h)
        v = Unsqueeze(s, h)
        a, b = Split<axis = -1>(x, p)
        ca = Mul(u, a)
        sb = Mul(v, b)
        l = Sub(ca, sb)
        sa = Mul(v, a)
        cb = Mul(u, b)
        r = Add(sa, cb)
        y = Concat<axis = -1>(l, r)
    }""",
    unless=["(float[2,5,4] x) => (float[2,5,4] y) { y = Relu(x) }"],
    numeric="R",
    opset=23,
    options={"opset": 22},
)
def rotary_embedding(graph: Graph, context: Context) -> None:
    """RotaryEmbedding came with opset 23."""
    _lower(graph, context, "RotaryEmbedding", 23, rotated)


@graph_pass(
    before="""(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v) => (float[1,2,3,4] y) {
        y = Attention(q, k, v)
    }""",
    after="""(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v) => (float[1,2,3,4] y) <float r = {0.5}> {
        s = Mul(q, r)
        t = Transpose<perm = [0,1,3,2]>(k)
        m = MatMul(s, t)
        p = Softmax<axis = -1>(m)
        y = MatMul(p, v)
    }""",
    unless=["(float[2,5,4] x) => (float[2,5,4] y) { y = Relu(x) }"],
    numeric="R",
    opset=23,
    options={"opset": 22},
    largest=1e12,
)
def attention(graph: Graph, context: Context) -> None:
    """Attention came with opset 23."""
    _lower(graph, context, "Attention", 23, attention_parts)
