"""What operators broadcast by themselves need not be expanded, tiled or filled before."""

from __future__ import annotations

from collections.abc import Callable

from graphopt import (
    Builder,
    Context,
    Graph,
    Match,
    Miss,
    Node,
    Tensor,
    Value,
    const,
    graph_pass,
    is_elementwise,
    is_position_independent,
    op,
    rule,
    var,
)
from passes._layout_cost import is_free
from passes._permutation import perm_of
from passes._proofs import HALVES, contents, same_dim, same_shape

x, repeats = var("x"), var("repeats")

_ONE_BY_ONE = ("BitCast", "Cast", "CastLike", "Clip", "PRelu")
"""Elementwise operators that do not broadcast their first operand."""
_GROWING = ("ConstantOfShape", "Expand", "Tile")


@graph_pass(
    before="""(float[N,4] x, float[N,1] z) => (float[N,4] y)
              { s = Shape(x)  e = Expand(z, s)  y = Div(x, e) }""",
    after="(float[N,4] x, float[N,1] z) => (float[N,4] y) { s = Shape(x)  y = Div(x, z) }",
    unless=[
        # It is the Expand that makes the result as large as it is.
        """(float[1,4] x, float[1] z) => (float[3,4] y) <int64[2] s = {3,4}> { e = Expand(z, s)  y = Div(x, e) }""",
        "(float[N,4] x, float[1,4] z) => (float[N,4] y) { s = Shape(x)  e = Expand(z, s)  y = Concat<axis = 0>(x, e) }",
        "(float[N,4] x, float[M,1] z) => (float[K,4] y) <int64[2] s = {7,4}> { e = Expand(z, s)  y = Div(x, e) }",
        # A Tile of more than one element repeats all of them.
        "(float[4] x, float[2] z) => (float[4] y) <int64[1] s = {2}> { e = Tile(z, s)  y = Div(x, e) }",
        # A runtime computes it in another way there.
        "(float[N,4] x, float[1] z) => (float[N,4] y) { s = Shape(x)  e = Expand(z, s)  y = Pow(x, e) }",
        "(float16[N,4] x, float16[1] z) => (float16[N,4] y) { s = Shape(x)  e = Expand(z, s)  y = Add(x, e) }",
    ],
)
def broadcast_instead(graph: Graph, context: Context) -> None:
    """An Expand, Tile or ConstantOfShape goes where all its readers broadcast to the same shape by themselves."""
    _shrink(graph, context, _is_exact)


@graph_pass(
    before="""(float[N,4] x, float[1] z) => (float[N,4] y)
              { s = Shape(x)  e = Expand(z, s)  y = Pow(x, e) }""",
    after="(float[N,4] x, float[1] z) => (float[N,4] y) { s = Shape(x)  y = Pow(x, z) }",
    unless=[
        "(float[1,4] x, float[1] z) => (float[3,4] y) <int64[2] s = {3,4}> { e = Expand(z, s)  y = Pow(x, e) }",
        "(float[N,2] x, float[2,2] z) => (float[N,2] y) { s = Shape(x)  e = Expand(z, s)  y = MatMul(x, e) }",
    ],
    numeric="U",
)
def broadcast_with_rounding(graph: Graph, context: Context) -> None:
    """The same before operators that round otherwise where an operand is a number or a vector."""
    _shrink(graph, context, lambda node: is_elementwise(node.domain, node.op_type))


@graph_pass(
    before="""(float[B,N,4] x, float[1,4,3] z) => (float[B,N,3] y) <int64[2] o = {1,1}, int64[1] a = {0}> {
              b = Shape<start = 0, end = 1>(x)  s = Concat<axis = 0>(b, o)  e = Tile(z, s)  y = MatMul(x, e)
              t = Neg(b) }""",
    after="""(float[B,N,4] x, float[1,4,3] z) => (float[B,N,3] y) <int64[2] o = {1,1}, int64[1] a = {0}> {
             b = Shape<start = 0, end = 1>(x)  s = Concat<axis = 0>(b, o)  y = MatMul(x, z)  t = Neg(b) }""",
    unless=[
        """(float[2,4] x, float[4,1] z) => (float[2,3] y) <int64[2] s = {4,3}>
           { e = Expand(z, s)  y = MatMul(x, e) }""",
        """(float[4] x, float[1,4,3] z) => (float[5,3] y) <int64[3] s = {5,4,3}>
           { e = Expand(z, s)  y = MatMul(x, e) }""",
        # The dim that is summed over.
        "(float[N,4] x, float[1,3] z) => (float[N,3] y) <int64[2] s = {4,3}> { e = Expand(z, s)  y = MatMul(x, e) }",
        "(float[N,4] x, float[2,3] z) => (float[N,3] y) <int64[2] s = {2,1}> { e = Tile(z, s)  y = MatMul(x, e) }",
        "(float[N,2] x, float[4,3] z) => (float[N,3] y) <int64[2] s = {1,2}> { e = Tile(x, s)  y = MatMul(e, z) }",
    ],
    numeric="R",
)
def broadcast_with_sums(graph: Graph, context: Context) -> None:
    """The same before matrix products, which then run over more rows at once and add in another order."""
    _shrink(graph, context, lambda node: node.op_type == "MatMul" or is_elementwise(node.domain, node.op_type))


def _shrink(graph: Graph, context: Context, may_read: Callable[[Node], bool]) -> None:
    nodes = [node for op_type in _GROWING for node in graph.of_kind(op_type)]
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        result = node.results[0]
        if node.is_pinned or context.keeps(node) or not result.is_used or not node.is_op(node.op_type):
            continue
        if not all(_broadcasts(user, index) and may_read(user) for user, index in result.uses):
            continue
        b = context.builder(graph)
        source = _source(node, b)
        if source is None or not all(_gives_the_same(user, result, source, b) for user in result.users):
            continue
        if not _stretches(node, source) or any(_sums_over(*use, source) for use in result.uses):
            continue
        with context.rewrite(graph):
            if source.producer.graph is None:
                graph.insert(source.producer, rank=node.rank)
            for user, index in list(result.uses):
                assert user.graph is not None
                user.graph.set_operand(user, index, source)
            graph.erase(node)


def _source(node: Node, b: Builder) -> Value | None:
    """What is expanded, or the number that fills."""
    if node.op_type != "ConstantOfShape":
        return node.operands[0]
    fill = node.param("value")
    if not isinstance(fill, Tensor) or fill.size != 1:
        return None
    return b.constant(Tensor.of(fill.numpy().reshape(-1)[0].item(), fill.dtype))


def _broadcasts(node: Node, index: int) -> bool:
    """True if a node broadcasts the operand against its others."""
    if not node.is_op(node.op_type) or len(node.operands) < 2:
        return False
    if node.op_type == "MatMul":
        return True
    return is_elementwise("", node.op_type) and node.op_type not in _ONE_BY_ONE


def _gives_the_same(node: Node, old: Value, new: Value, b: Builder) -> bool:
    """True if a node's result has the same shape with one operand for another."""
    operands = [new if operand is old else operand for operand in node.operands]
    result: Value = b.like(node, *operands)
    return same_shape(result, node.results[0]) and result.dtype is node.results[0].dtype


def _stretches(node: Node, source: Value) -> bool:
    """True if only dims of size 1 are repeated, as broadcasting does; a Tile may repeat others."""
    old, new = source.shape, node.results[0].shape
    if node.op_type != "Tile":
        return True
    return (
        old is not None
        and new is not None
        and len(old) == len(new)
        and all(dim == 1 or same_dim(dim, size) for dim, size in zip(old, new, strict=True))
    )


def _sums_over(node: Node, index: int, source: Value) -> bool:
    """True if a MatMul sums over a dim of an operand that it must not find narrower."""
    if node.op_type != "MatMul":
        return False
    old, new = node.operands[index], source.shape
    if old is None or not old.shape or not new:
        return True
    axis = -2 if index == 1 and len(old.shape) > 1 else -1
    return len(new) < -axis or not same_dim(old.shape[axis], new[axis])


def _is_exact(node: Node) -> bool:
    if not is_elementwise(node.domain, node.op_type):
        return False
    dtype = None if not node.operands or node.operands[-1] is None else node.operands[-1].dtype
    if dtype in HALVES or any(value.dtype in HALVES for value in node.results):
        return False
    return is_position_independent(node.op_type, dtype, node.domain)


_EXPANDED = op.Expand(x, ...)


@rule(
    op.one_of("Abs", "Cast", "Ceil", "Exp", "Floor", "Neg", "Not", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Tanh")(
        _EXPANDED
    ),
    before="""(float[N,1] x, int64[2] s) => (int32[K,L] y)
              { e = Expand(x, s)  t = Cast<to = 6>(e)  y = Identity(t) }""",
    after="""(float[N,1] x, int64[2] s) => (int32[K,L] y)
             { t = Cast<to = 6>(x)  e = Expand(t, s)  y = Identity(e) }""",
    unless=[
        """(float[N,1] x, int64[2] s) => (int32[K,L] y, float[K,L] z)
           { e = Expand(x, s)  y = Cast<to = 6>(e)  z = Neg(e) }""",
        "(float16[N,1] x, int64[2] s) => (float16[K,L] y) { e = Expand(x, s)  y = Sqrt(e) }",
    ],
)
def expand_last(m: Match, b: Builder) -> Value | Miss:
    """An operator on single elements computes before an Expand, on fewer of them."""
    if m[x].dtype in HALVES or m.root.results[0].dtype in HALVES:
        return b.no("halves are rounded where the neighbours make it")
    if not is_position_independent(m.root.op_type, m[x].dtype):
        return b.no("the bits depend on the place")
    result: Value = b.Expand(b.like(m.root, m[x]), m.node(_EXPANDED).operands[1])
    return result


_TABLE = const("table")
_TILED = op.Tile(_TABLE, repeats)


@rule(
    op.Transpose(_TILED),
    before="""(int64[1] n) => (float[K,3,2] y)
              <float[1,2,3] c = {1,2,3,4,5,6}, int64[2] o = {1,1}>
              { r = Concat<axis = 0>(n, o)  t = Tile(c, r)  u = Transpose<perm = [0,2,1]>(t)  y = Relu(u) }""",
    after="""(int64[1] n) => (float[K,3,2] y)
             <float[1,2,3] c = {1,2,3,4,5,6}, int64[2] o = {1,1}>
             { r = Concat<axis = 0>(n, o)  t = Transpose<perm = [0,2,1]>(c)  u = Tile(t, r)  y = Relu(u) }""",
    unless=[
        """(int64[3] r) => (float[K,L,M] y) <float[1,2,3] c = {1,2,3,4,5,6}>
           { t = Tile(c, r)  u = Transpose<perm = [0,2,1]>(t)  y = Relu(u) }""",
        """(int64[1] n) => (float[K,L,M] y) <float[1,2,3] c = {1,2,3,4,5,6}, int64[2] o = {2,1}>
           { r = Concat<axis = 0>(n, o)  t = Tile(c, r)  u = Transpose<perm = [0,2,1]>(t)  y = Relu(u) }""",
    ],
)
def tile_last(m: Match, b: Builder) -> Value | Miss:
    """A weight is transposed before it is repeated, where the Transpose is folded into it."""
    perm, counts = perm_of(m.root), contents(m.node(_TILED), "repeats")
    if perm is None or counts is None or len(perm) != len(counts) or not is_free(m[_TABLE]):
        return b.no("the permutation or the repeats are not known, or the weight would be stored twice")
    if not all(axis == place or same_dim(counts[axis], counts[place]) for place, axis in enumerate(perm)):
        return b.no("the repeats would have to change places")
    result: Value = b.Tile(b.Transpose(m[_TABLE], perm=list(perm)), m[repeats])
    return result
