"""Keeps sums apart from the normalizations behind them, which the CPU provider is slower to compute together.

SkipLayerNormalization takes five to ten times as long there as an addition and a LayerNormalization,
SkipSimplifiedLayerNormalization three times, and both round worse. Where the runtime can tell that both addends have
the same shape of three dims, it makes the first one by itself, of an Add; a Sum of two is computed likewise and stays.
Operators that a model brings with it are only taken apart at the level fast-math.
"""

from __future__ import annotations

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._proofs import same_dim, same_shape
from passes._runtime_sums import is_better_hidden

TARGETS = ("ort-cpu",)

x, y = var("x"), var("y")

_JOINED = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
_SUM = 3
_EPSILON = 1e-12
"""What the runtime takes where the node says nothing."""


@graph_pass(
    before="""(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c, float[4] b) => (float[2,5,4] y, float[2,5,4] t)
              { y, , , t = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c, b) }""",
    after="""(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c, float[4] b) => (float[2,5,4] y, float[2,5,4] t) {
        a = Add(x, b)
        t = Add(a, r)
        y = LayerNormalization<axis = -1, epsilon = 0.001>(t, w, c)
    }""",
    unless=[
        # What is skipped is not known to be what the kernel would take.
        """(float[2,5,4] x, float[A,B,C] r, float[4] w, float[4] c) => (float[2,5,4] y)
           { y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c) }""",
        # The runtime's LayerNormalization wants more than one number.
        """(float[2,5,N] x, float[2,5,N] r, float[N] w, float[N] c) => (float[2,5,N] y)
           { y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c) }""",
        """(float16[2,5,4] x, float16[2,5,4] r, float16[4] w, float16[4] c) => (float16[2,5,4] y)
           { y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c) }""",
        # A statistic that is read.
        """(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y, float[2,5,1] m)
           { y, m = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c) }""",
    ],
    numeric="R",
    largest=1e12,
    opset=17,
)
def sum_taken_out(graph: Graph, context: Context) -> None:
    """A normalization that adds by itself is an addition and a normalization."""
    # The kernel rounds so much worse than its parts that what is nearer to the truth is further from the original.
    if context.options.level != "fast-math":
        return
    for op_type in _JOINED:
        for node in graph.of_kind(op_type, "com.microsoft"):
            reason = _take_out(graph, node, context)
            if reason:
                context.note(f"{op_type} stays one operator: {reason}")


def _take_out(graph: Graph, node: Node, context: Context) -> str:
    value, skip, scale = node.operand(0), node.operand(1), node.operand(2)
    is_centred = node.op_type == "SkipLayerNormalization"
    shift, bias = (node.operand(3), node.operand(4)) if is_centred else (None, node.operand(3))
    if value is None or skip is None or scale is None or node.is_pinned or context.keeps(node):
        return ""
    if value.dtype is not DType.FLOAT or any(item.is_used for item in node.results[1:_SUM]):
        return "it is not in single precision, or a statistic is read"
    width = value.shape[-1] if value.shape else None
    if value.rank not in (2, 3) or not isinstance(width, int) or width < 2:
        return "how many numbers it goes over is not known, or one"
    if not _is_stretched(skip, value) or any(
        item is not None and item.shape != (width,) for item in (scale, shift, bias)
    ):
        return "the shapes of its operands are not known to be what they must be"
    simplified = "RMSNormalization" if graph.opsets.get("", 0) >= 23 else "SimplifiedLayerNormalization"
    b = context.builder(graph)
    total = b.Add(value if bias is None else b.Add(value, bias), skip)
    epsilon = node.attributes.get("epsilon", _EPSILON)
    operands = [total, scale] if shift is None else [total, scale, shift]
    made = b.apply(
        "LayerNormalization" if is_centred else simplified, operands, parameters={"axis": -1, "epsilon": epsilon}
    )
    with context.rewrite(graph):
        if len(node.results) > _SUM:
            for item in b.nodes:
                graph.insert(item, rank=node.rank)
            graph.replace_uses(node.results[_SUM], total)
        context.replace(node.results[0], made, b)
        if node.graph is graph and not node.is_used:
            graph.erase(node)
    return ""


def _is_stretched(skip: Value, value: Value) -> bool:
    """True if the sum has the shape of the value."""
    if skip.shape is None or value.shape is None:
        return False
    is_repeated = skip.rank == 2 or (skip.rank == 3 and skip.shape[0] == 1)
    return same_shape(skip, value) or (
        value.rank == 3 and is_repeated and all(map(same_dim, skip.shape[-2:], value.shape[-2:]))
    )


@rule(
    op.Add(x, y),
    before="""(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y)
              { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w, c) }""",
    after="""(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y)
             { t = Sum(x, r)  y = LayerNormalization<axis = -1>(t, w, c) }""",
    unless=[
        # The runtime joins only what nobody else reads.
        """(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y, float[2,5,4] t)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w, c) }""",
        """(float[2,2,5,4] x, float[2,2,5,4] r, float[4] w, float[4] c) => (float[2,2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w, c) }""",
        """(double[2,5,4] x, double[2,5,4] r, double[4] w, double[4] c) => (double[2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w, c) }""",
        # Something random in between.
        """(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y)
           <float share = {0.5}, bool yes = {1}>
           { t = Add(x, r)  d = Dropout(t, share, yes)  y = LayerNormalization<axis = -1>(d, w, c) }""",
        "(float[5,4] x, float[5,4] r, float[4] c) => (float[5,4] y) { t = Add(x, r)  y = LayerNormalization(c, t) }",
        "(float[5,4] x, float[5,4] r) => (float[5,4] y) { t = Add(x, r)  y = Softmax(t) }",
    ],
    opsets=(8, None),
)
def hidden_sum(m: Match, b: Builder) -> Value | Miss:
    """An Add that only a LayerNormalization reads is a Sum, which gives the same bits."""
    if not is_better_hidden(m.root.results[0], b.target.name):
        return b.no("the runtime would not join it with a normalization, or that is not slower")
    made: Value = b.Sum(m[x], m[y])
    return made
