"""Removes operators that undo or repeat one another: Neg of Neg, Not of Not, Relu of Relu, Abs of Neg, signs that meet.

A reciprocal of a reciprocal is another number, so that it is not among them.
"""

from __future__ import annotations

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._halves import for_halves, not_of_halves
from passes._proofs import HALVES

x, y = var("x"), var("y")

_WITH_NEG = (DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.INT32, DType.INT64)
"""Types for which the runtime has the arithmetic that signs are moved between."""


@rule(
    op.Neg(op.Neg(x)),
    before="(float[N,3] x) => (float[N,3] y) { n = Neg(x)  t = Neg(n)  y = Exp(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Exp(x) }",
    unless=["(float[2] x) => (float[2] y) { n = Abs(x)  y = Neg(n) }"],
)
@not_of_halves
def negate_twice(m: Match, b: Builder) -> Value | Miss:
    """The negation of a negation is the operand."""
    value: Value = m[x]
    return value


negate_twice_of_halves = for_halves(negate_twice)


@rule(
    op.Not(op.Not(x)),
    before="(bool[N,3] x) => (bool[N,3] y) { n = Not(x)  t = Not(n)  y = And(t, x) }",
    after="(bool[N,3] x) => (bool[N,3] y) { y = And(x, x) }",
    unless=["(bool[2] x, bool[2] z) => (bool[2] y) { n = And(x, z)  y = Not(n) }"],
)
def not_twice(m: Match, b: Builder) -> Value | Miss:
    """Not of Not is the operand."""
    value: Value = m[x]
    return value


@rule(
    op.BitwiseNot(op.BitwiseNot(x)),
    before="(int32[N,3] x) => (int32[N,3] y) { n = BitwiseNot(x)  t = BitwiseNot(n)  y = Abs(t) }",
    after="(int32[N,3] x) => (int32[N,3] y) { y = Abs(x) }",
    unless=["(int32[2] x) => (int32[2] y) { n = Neg(x)  y = BitwiseNot(n) }"],
)
def bitwise_not_twice(m: Match, b: Builder) -> Value | Miss:
    """The bitwise complement of a complement is the operand."""
    value: Value = m[x]
    return value


_STEADY = ("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")
_INNER = op.one_of(*_STEADY)(x)


@rule(
    op.one_of(*_STEADY)(_INNER),
    before="(float[N,3] x) => (float[N,3] y) { t = Relu(x)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    unless=[
        "(float[2] x) => (float[2] y) { t = Ceil(x)  y = Relu(t) }",
        "(float[2] x) => (float[2] y) { t = Sigmoid(x)  y = Sigmoid(t) }",
    ],
    keep=(_INNER,),
)
@not_of_halves
def repeat(m: Match, b: Builder) -> Value | Miss:
    """A second Relu, Abs, Sign or rounding of the same kind changes nothing."""
    inner: Value = m[_INNER]
    return inner if m.node(_INNER).op_type == m.root.op_type else b.no("the two differ")


repeat_of_halves = for_halves(repeat, keep=(_INNER,))

_ROUNDINGS = ("Ceil", "Floor", "Round")
_WHOLE = op.one_of(*_ROUNDINGS)(x)


@rule(
    op.one_of(*_ROUNDINGS)(_WHOLE),
    before="(float[N,3] x) => (float[N,3] y) { t = Floor(x)  y = Ceil(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Floor(x) }",
    unless=["(float[2] x) => (float[2] y) { t = Abs(x)  y = Ceil(t) }"],
    keep=(_WHOLE,),
)
@not_of_halves
def round_whole(m: Match, b: Builder) -> Value | Miss:
    """What is rounded already has nothing left to round, in whatever direction."""
    inner: Value = m[_WHOLE]
    return inner


round_whole_of_halves = for_halves(round_whole, keep=(_WHOLE,))

_NONNEGATIVE = op.one_of("Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Softmax")(x, ...)


@rule(
    op.one_of("Abs", "Relu")(_NONNEGATIVE),
    before="(float[N,3] x) => (float[N,3] y) { t = Softmax(x)  y = Relu(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Softmax(x) }",
    unless=[
        "(float[2] x) => (float[2] y) { t = Tanh(x)  y = Relu(t) }",
        "(float[2] x) => (float[2] y) { t = Sqrt(x)  y = Abs(t) }",
    ],
    keep=(_NONNEGATIVE,),
    numeric="Z",
)
def relu_of_nonnegative(m: Match, b: Builder) -> Value | Miss:
    """What is never negative is its own Relu and its own Abs, but for the sign of a NaN."""
    inner: Value = m[_NONNEGATIVE]
    return inner if inner.dtype in (DType.FLOAT, DType.DOUBLE) else b.no("integers wrap around")


@rule(
    op.Abs(op.Neg(x)),
    before="(float[N,3] x) => (float[N,3] y) { t = Neg(x)  y = Abs(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Abs(x) }",
    unless=["(float[2] x) => (float[2] y) { t = Neg(x)  y = Relu(t) }"],
)
@not_of_halves
def absolute_of_negation(m: Match, b: Builder) -> Value | Miss:
    """Abs does not see a sign."""
    made: Value = b.Abs(m[x])
    return made


absolute_of_negation_of_halves = for_halves(absolute_of_negation)


@rule(
    op.Mul(op.Abs(x), op.Abs(x)),
    before="(float[N,3] x) => (float[N,3] y) { t = Abs(x)  y = Mul(t, t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Mul(x, x) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { t = Abs(x)  s = Abs(z)  y = Mul(t, s) }"],
    numeric="Z",
)
def square_of_absolute(m: Match, b: Builder) -> Value | Miss:
    """A square does not see a sign."""
    made: Value = b.Mul(m[x], m[x])
    return made


# --- through what only moves elements

_MOVES = ("Expand", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""Operators that move, leave out or repeat elements of their first operand, whatever these are."""
_MAX_MOVES = 8
_UNDONE = ("BitwiseNot", "Neg", "Not")


@graph_pass(
    before="""(float[N,2,3] x) => (float[6,N] y) <int64[2] s = {0,6}>
              { n = Neg(x)  v = Reshape(n, s)  t = Transpose(v)  m = Neg(t)  y = Exp(m) }""",
    after="(float[N,2,3] x) => (float[6,N] y) <int64[2] s = {0,6}> { v = Reshape(x, s)  t = Transpose(v)  y = Exp(t) }",
    unless=[
        # What is in between is needed anyway.
        """(float[2,3] x) => (float[6] y, float[6] z) <int64[1] s = {6}>
           { n = Neg(x)  v = Reshape(n, s)  y = Neg(v)  z = Exp(v) }""",
        "(float[2,3] x) => (float[6] y) <int64[1] s = {6}> { n = Abs(x)  v = Reshape(n, s)  y = Neg(v) }",
        "(float[2,3] x) => (float[3,3] y) <int64[2] p = {0,0}> { n = Neg(x)  v = MatMul(n, x)  y = Neg(v) }",
    ],
)
def undo_through_moves(graph: Graph, context: Context) -> None:
    """A negation is undone by another one behind operators that only move elements."""
    for op_type in _UNDONE:
        for node in graph.of_kind(op_type):
            moves = _moves_before(node)
            inner = moves[-1].operands[0] if moves else None
            if inner is None or not inner.producer.is_op(op_type) or inner.producer.graph is not graph:
                continue
            if _stays(node, context) or not _is_private(moves, node, context) or inner.dtype in HALVES:
                continue
            with context.rewrite(graph):
                graph.set_operand(moves[-1], 0, inner.producer.operands[0])
                graph.replace_uses(node.result, moves[0].result)
                for gone in (node, inner.producer):
                    if not gone.is_used and not _stays(gone, context):
                        graph.erase(gone)


@graph_pass(
    before="""(float[N,2,3] x) => (float[N,6] y) <int64[2] s = {0,6}>
              { n = Relu(x)  v = Reshape(n, s)  r = Relu(v)  y = Log(r) }""",
    after="(float[N,2,3] x) => (float[N,6] y) <int64[2] s = {0,6}> { n = Relu(x)  v = Reshape(n, s)  y = Log(v) }",
    unless=[
        "(float[2,3] x) => (float[6] y) <int64[1] s = {6}> { n = Ceil(x)  v = Reshape(n, s)  y = Relu(v) }",
        "(float[2,3] x) => (float[6] y) <int64[1] s = {6}> { n = Sigmoid(x)  v = Reshape(n, s)  y = Sigmoid(v) }",
        "(float16[2,3] x) => (float16[6] y) <int64[1] s = {6}> { n = Relu(x)  v = Reshape(n, s)  y = Relu(v) }",
    ],
)
def repeat_through_moves(graph: Graph, context: Context) -> None:
    """A Relu, Abs, Sign or rounding changes nothing more behind operators that only move elements."""
    for op_type in _STEADY:
        for node in graph.of_kind(op_type):
            moves = _moves_before(node)
            inner = moves[-1].operands[0] if moves else None
            if inner is None or not inner.producer.is_op(op_type) or _stays(node, context):
                continue
            if inner.dtype not in HALVES:
                context.replace(node.result, moves[0].result)


def _moves_before(node: Node) -> list[Node]:
    """The operators that only move what a node reads, the last first."""
    found: list[Node] = []
    value = node.operand(0)
    while value is not None and len(found) < _MAX_MOVES:
        maker = value.producer
        if maker.graph is not node.graph or maker.op_type not in _MOVES or not maker.is_op(maker.op_type):
            break
        found.append(maker)
        value = maker.operands[0]
    return found


def _is_private(moves: list[Node], reader: Node, context: Context) -> bool:
    """True if nobody but a reader needs a chain of moves."""
    for node in moves:
        if _stays(node, context) or node.result.users != [reader] or node.operands.count(node.operands[0]) != 1:
            return False
        reader = node
    return True


def _stays(node: Node, context: Context) -> bool:
    return node.is_pinned or context.keeps(node)


# --- signs that meet


@rule(
    op.Sub(x, op.Neg(y)),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { n = Neg(z)  y = Sub(x, n) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { n = Neg(x)  y = Sub(n, z) }"],
    numeric="Z",
)
def subtract_negation(m: Match, b: Builder) -> Value | Miss:
    """X - -y is x + y; only the sign of a NaN can differ."""
    return b.Add(m[x], m[y]) if m[x].dtype in _WITH_NEG else b.no("the runtime may have no sum of the type")


@rule(
    op.Add(x, op.Neg(y)),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { n = Neg(z)  y = Add(n, x) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Sub(x, z) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { n = Neg(x)  y = Mul(n, z) }"],
    numeric="Z",
)
def add_negation(m: Match, b: Builder) -> Value | Miss:
    """X + -y is x - y; only the sign of a NaN can differ."""
    return b.Sub(m[x], m[y]) if m[x].dtype in _WITH_NEG else b.no("the runtime may have no difference of the type")


@rule(
    op.one_of("Mul", "Div")(op.Neg(x), op.Neg(y)),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { n = Neg(x)  s = Neg(z)  y = Div(n, s) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Div(x, z) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { n = Neg(x)  y = Mul(n, z) }"],
    numeric="Z",
)
def multiply_negations(m: Match, b: Builder) -> Value | Miss:
    """Two signs cancel in a product or quotient; only the sign of a NaN can differ."""
    if m.root.op_type == "Div" and not m[x].dtype.is_float:
        return b.no("the least integer divided by -1 overflows")
    made: Value = b.like(m.root, m[x], m[y])
    return made


@rule(
    op.Neg(op.Sub(x, y)),
    before="(float[N,3] x, float[3] z) => (float[N,3] y) { s = Sub(x, z)  y = Neg(s) }",
    after="(float[N,3] x, float[3] z) => (float[N,3] y) { y = Sub(z, x) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { s = Add(x, z)  y = Neg(s) }"],
    numeric="Z",
)
def negate_difference(m: Match, b: Builder) -> Value | Miss:
    """-(x - y) is y - x, but for the sign of zero."""
    made: Value = b.Sub(m[y], m[x])
    return made


@rule(
    op.Sqrt(op.Mul(x, x)),
    before="(float[N,3] x) => (float[N,3] y) { s = Mul(x, x)  y = Sqrt(s) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Abs(x) }",
    unless=["(float[2] x, float[2] z) => (float[2] y) { s = Mul(x, z)  y = Sqrt(s) }"],
    numeric="D",
)
def root_of_square(m: Match, b: Builder) -> Value | Miss:
    """The square root of a square is Abs, where the square neither overflows nor vanishes."""
    made: Value = b.Abs(m[x])
    return made


@rule(
    op.Exp(op.Log(x)),
    before="(float[N,3] x) => (float[N,3] y) { s = Log(x)  t = Exp(s)  y = Sigmoid(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Sigmoid(x) }",
    unless=["(float[2] x) => (float[2] y) { s = Sqrt(x)  y = Exp(s) }"],
    numeric="D",
)
def exponent_of_logarithm(m: Match, b: Builder) -> Value | Miss:
    """Exp of Log is the operand, unless that is negative."""
    value: Value = m[x]
    return value


@rule(
    op.Log(op.Exp(x)),
    before="(float[N,3] x) => (float[N,3] y) { s = Exp(x)  t = Log(s)  y = Sigmoid(t) }",
    after="(float[N,3] x) => (float[N,3] y) { y = Sigmoid(x) }",
    unless=["(float[2] x) => (float[2] y) { s = Exp(x)  y = Sqrt(s) }"],
    numeric="D",
)
def logarithm_of_exponent(m: Match, b: Builder) -> Value | Miss:
    """Log of Exp is the operand, unless the exponential overflows or vanishes."""
    value: Value = m[x]
    return value


_SOFTMAX = op.Softmax(x)


@rule(
    op.Log(_SOFTMAX),
    before="(float[N,3] x) => (float[N,3] y) { s = Softmax(x)  y = Log(s) }",
    after="(float[N,3] x) => (float[N,3] y) { y = LogSoftmax(x) }",
    unless=["(float[2,3] x) => (float[2,3] y) { s = Sigmoid(x)  y = Log(s) }"],
    numeric="D",
)
def logarithm_of_softmax(m: Match, b: Builder) -> Value | Miss:
    """Log of Softmax is LogSoftmax, which does not end at -inf where a probability vanishes."""
    made: Value = b.LogSoftmax(m[x], axis=m.node(_SOFTMAX).param("axis"))
    return made
