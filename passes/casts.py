"""Casts of casts, of constants and before what does not mind the type: fewer of them, over fewer elements."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._proofs import HALVES

x, y = var("x"), var("y")
_MAX_CHAIN = 8
_SMALL = 1 << 16
"""Bytes of a constant that may be stored in another type beside its own."""
_MOVES = ("Expand", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
"""They move the elements of their first operand, whatever the type."""
_DIGITS = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT: 24, DType.DOUBLE: 53}
"""Binary digits that a floating-point number holds."""
_HALF_RANGE = {DType.FLOAT16: 15, DType.BFLOAT16: 127, DType.FLOAT: 127, DType.DOUBLE: 1023}
"""The greatest exponent."""


def holds(wide: DType, narrow: DType) -> bool:
    """True if every number of the one type is a number of the other."""
    if wide is narrow:
        return True
    if narrow is DType.BOOL:
        return wide.is_integer or wide in _DIGITS
    if narrow.is_integer and narrow.bits >= 8:
        digits = narrow.bits - narrow.is_signed
        if wide.is_integer and wide.bits >= 8:
            return wide.bits - wide.is_signed >= digits and (wide.is_signed or not narrow.is_signed)
        # The least number has one digit more than the others, but it is a power of two.
        return wide in _DIGITS and _DIGITS[wide] >= digits and _HALF_RANGE[wide] >= digits
    if narrow in _DIGITS and wide in _DIGITS:
        return _DIGITS[wide] >= _DIGITS[narrow] and _HALF_RANGE[wide] >= _HALF_RANGE[narrow]
    return False


def _meets(source: DType | None, middle: DType | None, target: DType | None) -> bool:
    """True if casting by way of the middle type gives what casting at once does."""
    if source is None or middle is None or target is None or not holds(middle, source):
        return False
    if target is source or target is DType.BOOL:
        return True
    if target.is_integer and target.bits >= 8:
        # What does not fit becomes something else, which depends on the type it comes from.
        return not source.is_float and (not middle.is_float or holds(target, source))
    return target in _DIGITS and (target not in HALVES or holds(target, source))


_FIRST = op.Cast(x)


@rule(
    op.Cast(_FIRST),
    before="(bool[N] x) => (float[N] y) { a = Cast<to = 7>(x)  b = Cast<to = 1>(a)  y = Relu(b) }",
    after="(bool[N] x) => (float[N] y) { b = Cast<to = 1>(x)  y = Relu(b) }",
    unless=[
        "(float[N] x) => (float[N] y) { a = Cast<to = 10>(x)  b = Cast<to = 1>(a)  y = Relu(b) }",
        "(float[N] x) => (float[N] y) { a = Cast<to = 7>(x)  b = Cast<to = 1>(a)  y = Relu(b) }",
        "(float[N] x) => (int64[N] y) { a = Cast<to = 11>(x)  b = Cast<to = 7>(a)  y = Abs(b) }",
        "(int64[N] x) => (bool[N] y) { a = Cast<to = 6>(x)  b = Cast<to = 9>(a)  y = Not(b) }",
        "(int64[N] x) => (int64[N] y) { a = Cast<to = 11>(x)  b = Cast<to = 7>(a)  y = Abs(b) }",
        # The first one is needed anyway.
        """(bool[N] x) => (float[N] y, int64[N] z)
           { a = Cast<to = 7>(x)  b = Cast<to = 1>(a)  y = Relu(b)  z = Abs(a) }""",
    ],
    keep=(_FIRST,),
)
def merge_casts(m: Match, b: Builder) -> Value | Miss:
    """A Cast by way of a type that holds every number goes there at once, or back to where it was."""
    source, target = m[x].dtype, m.root.results[0].dtype
    if not _meets(source, m[_FIRST].dtype, target):
        return b.no("the type between may lose something")
    if target is source:
        value: Value = m[x]
        return value
    if m[_FIRST].users != [m.root] or m.node(_FIRST).is_pinned:
        return b.no("the first one is needed anyway")
    cast: Value = b.like(m.root, m[x])
    return cast


@graph_pass(
    before="""(bool[N,1,4] x, int64[3] s) => (float[K,L,M] y) {
              a = Cast<to = 6>(x)  b = Transpose<perm = [2,1,0]>(a)  c = Expand(b, s)  d = Cast<to = 1>(c)
              y = Relu(d) }""",
    after="""(bool[N,1,4] x, int64[3] s) => (float[K,L,M] y)
             { a = Cast<to = 1>(x)  b = Transpose<perm = [2,1,0]>(a)  c = Expand(b, s)  y = Relu(c) }""",
    unless=[
        """(float[N,4] x) => (float[4,N] y)
           { a = Cast<to = 6>(x)  b = Transpose<perm = [1,0]>(a)  d = Cast<to = 1>(b)  y = Relu(d) }""",
        """(bool[N,4] x) => (float[4,N] y, int32[4,N] z)
           { a = Cast<to = 6>(x)  b = Transpose<perm = [1,0]>(a)  z = Neg(b)  d = Cast<to = 1>(b)  y = Relu(d) }""",
        """(int64[N,4] x) => (float[4,N] y)
           { b = Transpose<perm = [1,0]>(x)  d = Cast<to = 1>(b)  y = Relu(d) }""",
    ],
)
def casts_meet(graph: Graph, context: Context) -> None:
    """Casts with nothing but movement between them are one, and so is one with a constant."""
    for cast in sorted(graph.of_kind("Cast"), key=lambda node: (node.rank, node.serial)):
        if cast.graph is not graph or cast.is_pinned or context.keeps(cast) or cast.operands[0] is None:
            continue
        moves = _moves_before(cast)
        b = context.builder(graph)
        value = _cast_before(b, cast, moves) if moves and not any(map(context.keeps, moves)) else None
        if value is None:
            continue
        for move in moves:
            value = b.like(move, value, *move.operands[1:])
        with context.rewrite(graph):
            first = moves[0].operands[0]
            context.replace(cast.results[0], value, b)
            for node in (*moves[::-1], *([] if first is None else [first.producer])):
                if node.is_operator and node.graph is graph and not node.is_used and not context.keeps(node):
                    graph.erase(node)


def _cast_before(b: Builder, cast: Node, moves: list[Node]) -> Value | None:
    """What stands before movements, in the type a Cast behind them gives; None if that saves nothing."""
    start, target = moves[0].operands[0], cast.results[0].dtype
    if start is None or target is None:
        return None
    maker = start.producer
    if start.const is not None and _may_store(start, target):
        stored: Value = b.like(cast, start)
        return stored
    before = maker.operands[0] if maker.is_op("Cast") and _is_free(maker, moves[0]) else None
    if before is None or not _meets(before.dtype, start.dtype, target):
        return None
    moved: Value = before if before.dtype is target else b.like(cast, before)
    return moved


def _moves_before(cast: Node) -> list[Node]:
    """The operators that only move, right before a Cast and for nobody else, in their order."""
    moves: list[Node] = []
    node = cast
    while len(moves) < _MAX_CHAIN:
        value = node.operands[0]
        if value is None or not _is_free(value.producer, node) or not _only_moves(value.producer):
            break
        node = value.producer
        moves.insert(0, node)
    return moves


def _is_free(node: Node, reader: Node) -> bool:
    is_only_reader = len(node.results) == 1 and node.results[0].users == [reader]
    return node.is_operator and node.graph is reader.graph and not node.is_pinned and is_only_reader


def _only_moves(node: Node) -> bool:
    first = node.operand(0)
    return node.op_type in _MOVES and node.is_op(node.op_type) and first is not None and first not in node.operands[1:]


def _may_store(value: Value, target: DType) -> bool:
    tensor = value.const
    if tensor is None or value.producer.is_pinned or not target.bits or not tensor.dtype.bits:
        return False
    size = tensor.size * target.bits // 8
    return size <= _SMALL or (size <= tensor.nbytes and all(_is_cast(value, user, target) for user in value.users))


def _is_cast(value: Value, user: Node, target: DType) -> bool:
    """True if a reader only moves a constant on the way to a Cast to this type, so that nobody needs it as it is."""
    for _ in range(_MAX_CHAIN):
        if user.is_op("Cast"):
            return user.results[0].dtype is target
        if not _only_moves(user) or user.operands[0] is not value:
            return False
        value = user.results[0]
        if len(value.uses) != 1:
            return False
        user = value.users[0]
    return False


@rule(
    op.CastLike(x, y),
    before="(float[N] x, int64[M] z) => (int64[N] y) { a = CastLike(x, z)  y = Abs(a) }",
    after="(float[N] x, int64[M] z) => (int64[N] y) { a = Cast<to = 7>(x)  y = Abs(a) }",
    unless=["(float[N] x, int64[M] z) => (int64[N] y) { a = Cast<to = 7>(x)  y = Abs(a) }"],
)
def cast_like_known_type(m: Match, b: Builder) -> Value | Miss:
    """A CastLike to a type that is known is a Cast, which reads one operand less."""
    if m[y].dtype is None:
        return b.no("the type is not known")
    saturate = m.root.attributes.get("saturate")
    result: Value = b.Cast(m[x], to=int(m[y].dtype), saturate=saturate)
    return result


_INDEX = op.Cast(y)


@rule(
    op.one_of("Gather", "GatherElements")(x, _INDEX),
    before="(float[N,4] x, int32[M] i) => (float[M,4] y) { j = Cast<to = 7>(i)  a = Gather(x, j)  y = Relu(a) }",
    after="(float[N,4] x, int32[M] i) => (float[M,4] y) { a = Gather(x, i)  y = Relu(a) }",
    unless=[
        "(float[N,4] x, int64[M] i) => (float[M,4] y) { j = Cast<to = 6>(i)  a = Gather(x, j)  y = Relu(a) }",
        "(float[N,4] x, float[M] i) => (float[M,4] y) { j = Cast<to = 7>(i)  a = Gather(x, j)  y = Relu(a) }",
    ],
)
def index_without_cast(m: Match, b: Builder) -> Value | Miss:
    """Indices may be of 32 bits: they need not be cast to 64."""
    if m[y].dtype is not DType.INT32:
        return b.no("the indices have another type")
    result: Value = b.like(m.root, m[x], m[y])
    return result


@rule(
    op.Not(op.Cast(x)),
    before="(int64[N] x) => (bool[N] y) { a = Cast<to = 9>(x)  y = Not(a) }",
    after="(int64[N] x) => (bool[N] y) <int64 z = {0}> { y = Equal(x, z) }",
    unless=[
        "(bool[N] x) => (bool[N] y) { a = And(x, x)  y = Not(a) }",
        "(float16[N] x) => (bool[N] y) { a = Cast<to = 9>(x)  y = Not(a) }",
    ],
)
def is_zero(m: Match, b: Builder) -> Value | Miss:
    """What is not true as a number is 0."""
    if m[x].dtype not in (DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64) or not _compares(m.root, m[x].dtype):
        return b.no("a comparison of this type has no kernel everywhere")
    result: Value = b.Equal(m[x], b.constant(np.zeros((), dtype=m[x].dtype.numpy)))
    return result


def _compares(node: Node, dtype: DType | None) -> bool:
    return node.opset >= 11 or dtype in (DType.INT32, DType.INT64)
