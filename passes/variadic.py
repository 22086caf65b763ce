"""Simplifies Sum, Max and Min: of equal operands, of one another, of two.

Sums of floats are rounded in their order, so that a Sum of Sums is class R. Maxima and minima of floats agree but for
the sign of zero.
"""

from __future__ import annotations

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._halves import for_halves, not_of_halves
from passes._proofs import same_type
from passes._runtime_sums import is_better_hidden

x, y = var("x"), var("y")
_EXTREMES = ("Max", "Min")
_SUMMED = (DType.FLOAT, DType.DOUBLE)
"""Types for which the runtime's Sum and Add do the same."""


@rule(
    op.one_of(*_EXTREMES)(x, x),
    before="(float[N,3] x) => (float[N,3] y) { t = Max(x, x)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { t = Max(x, z)  y = Exp(t) }"],
)
@not_of_halves
def extreme_of_equals(m: Match, b: Builder) -> Value | Miss:
    """The greater or lesser of a value and itself is that value."""
    value: Value = m[x]
    return value


extreme_of_equals_of_halves = for_halves(extreme_of_equals)


@rule(
    op.one_of(*_EXTREMES)(x, ...),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Max(x, z, x) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Max(x, z) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { y = Max(x, z) }"],
    numeric="Z",
)
def repeated_operand(m: Match, b: Builder) -> Value | Miss:
    """An operand that a Max or Min has twice counts once."""
    rest = list(dict.fromkeys(m.root.operands))
    if len(rest) == len(m.root.operands) or len(rest) < 2:
        return b.no("no operand is there twice, or there is only one")
    made: Value = b.like(m.root, *rest)
    return made


@graph_pass(
    before="(int64[N,3] x, int64[3] z, int64[3] w) => (int64[N,3] y) { t = Max(x, z)  y = Max(w, t) }",
    after="(int64[N,3] x, int64[3] z, int64[3] w) => (int64[N,3] y) { y = Max(w, x, z) }",
    unless=[
        "(float[2] x, float[2] z, float[2] w) => (float[2] y) { t = Max(x, z)  y = Max(w, t) }",
        "(int64[2] x, int64[2] z, int64[2] w) => (int64[2] y) { t = Min(x, z)  y = Max(w, t) }",
        "(int64[2] x, int64[2] z, int64[2] w) => (int64[2] y, int64[2] t) { t = Max(x, z)  y = Max(w, t) }",
    ],
)
def extreme_of_integer_extremes(graph: Graph, context: Context) -> None:
    """A Max of Max and a Min of Min of integers are one with all operands."""
    _flatten(graph, context, _EXTREMES, is_float=False)


@graph_pass(
    before="(float[N,3] x, float[3] z, float[3] w) => (float[N,3] y) { t = Max(x, z)  y = Max(t, w) }",
    after="(float[N,3] x, float[3] z, float[3] w) => (float[N,3] y) { y = Max(x, z, w) }",
    unless=["(float[2] x, float[2] z, float[2] w) => (float[2] y) { t = Sum(x, z)  y = Max(t, w) }"],
    numeric="Z",
)
def extreme_of_extremes(graph: Graph, context: Context) -> None:
    """A Max of Max and a Min of Min of floats are one with all operands, but for the sign of zero."""
    _flatten(graph, context, _EXTREMES, is_float=True)


@graph_pass(
    before="(float[N,3] x, float[3] z, float[3] w) => (float[N,3] y) { t = Sum(x, z)  y = Sum(w, t) }",
    after="(float[N,3] x, float[3] z, float[3] w) => (float[N,3] y) { y = Sum(w, x, z) }",
    unless=["(float[2] x, float[2] z, float[2] w) => (float[2] y) { t = Mean(x, z)  y = Sum(w, t) }"],
    numeric="R",
)
def sum_of_sums(graph: Graph, context: Context) -> None:
    """A Sum of Sums is one with all operands."""
    _flatten(graph, context, ("Sum",), is_float=True)


def _flatten(graph: Graph, context: Context, op_types: tuple[str, ...], *, is_float: bool) -> None:
    """Let operators take over the operands of private ones of the same kind; producers come first."""
    nodes = [node for op_type in op_types for node in graph.of_kind(op_type)]
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        if node.graph is not graph or not _may_change(context, node):
            continue
        dtype = node.result.dtype
        if dtype is None or dtype.is_float is not is_float:
            continue
        operands: list[Value | None] = []
        inner: list[Node] = []
        for place, value in enumerate(node.operands):
            producer = None if value is None or value.sole_use() != (node, place) else value.producer
            is_own = producer is not None and producer.is_op(node.op_type) and producer.graph is graph
            if producer is not None and is_own and _may_change(context, producer):
                operands.extend(producer.operands)
                inner.append(producer)
            else:
                operands.append(value)
        if inner:
            builder = context.builder(graph)
            with context.rewrite(graph):
                context.replace(node.result, builder.like(node, *operands), builder)
                for producer in inner:
                    graph.erase(producer)


def _may_change(context: Context, node: Node) -> bool:
    return not node.is_pinned and not context.keeps(node) and node.has_latest_meaning


@rule(
    op.Sum(x, y),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Sum(x, z) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }",
    unless=[
        "(float[2] x, float[2] z, float[2] w) => (float[2] y) { y = Sum(x, z, w) }",
        "(float16[2] x, float16[2] z) => (float16[2] y) { y = Sum(x, z) }",
    ],
    opsets=(8, None),
)
def sum_of_two(m: Match, b: Builder) -> Value | Miss:
    """A Sum of two is an Add, which other rules and the runtime's fusions look for."""
    if m[x].dtype not in _SUMMED:
        return b.no("the runtime sums the type otherwise")
    if is_better_hidden(m.root.results[0], b.target.name):
        return b.no("the runtime would join the Add with the normalization behind it, which is slower on the CPU")
    made: Value = b.Add(m[x], m[y])
    return made


@rule(
    op.Add(op.Mul(x, y), op.Mul(x, var("z"))),
    before="""(float[N,3] x, float[N,3] z, float[N,3] w) => (float[N,3] y)
              { s = Mul(x, z)  t = Mul(x, w)  y = Add(s, t) }""",
    after="(float[N,3] x, float[N,3] z, float[N,3] w) => (float[N,3] y) { s = Add(z, w)  y = Mul(x, s) }",
    unless=["(float[2] x, float[2] z, float[2] w) => (float[2] y) { s = Mul(x, z)  t = Div(x, w)  y = Add(s, t) }"],
    numeric="D",
)
def common_factor(m: Match, b: Builder) -> Value | Miss:
    """Two products with a common factor are one product with a sum, where that neither overflows nor cancels."""
    factors = [value for node in m.nodes[1:] for value in node.operands if value is not m[x]]
    if len(factors) != 2:
        return b.no("a factor is squared")
    made: Value = b.Mul(m[x], b.Add(*factors))
    return made if same_type(made, m.root.result) else b.no("the result may have another shape")
