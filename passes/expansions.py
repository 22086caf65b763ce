"""Expands that a broadcasting operator makes needless."""

from __future__ import annotations

import numpy as np

from graphopt import (
    Builder,
    Context,
    Expr,
    Graph,
    Kind,
    Node,
    Tensor,
    Value,
    graph_pass,
    is_elementwise,
    is_position_independent,
    symbol,
)
from passes._index_grids import COMPARISONS, least_and_most, truth_of
from passes._proofs import HALVES, axis_of, same_dim, same_shape, same_type
from passes._runtime_embedding import counts_positions
from passes._storing import erase_dead, may_go

_READ = 1 << 16
_LONGEST = 256
"""How many operators an expanded tensor is followed through."""


@graph_pass(
    before="""
        (float[2, 3] x, float[1, 3] y) => (float[2, 3] z) {
            shape = Shape(x)
            wide = Expand(y, shape)
            half = Neg(wide)
            z = Add(x, half)
        }
    """,
    after="(float[2, 3] x, float[1, 3] y) => (float[2, 3] z) { half = Neg(y)  z = Add(x, half) }",
    unless=[
        "(float[1, 3] y) => (float[2, 3] z) <int64[2] s = {2, 1}> { wide = Expand(y, s)  z = Neg(wide) }",
        """
        (float[1, 3] x, float[1, 3] y) => (float[2, 3] z) <int64[2] s = {2, 1}> {
            wide = Expand(y, s)
            z = Add(x, wide)
        }
        """,
        # An empty lookup finds everything, one of all positions may not.
        """
        (int64[N, M] ids) => (float[N, M, 2] y)
        <float[4, 2] words = {1,2,3,4,5,6,7,8}, float[3, 2] places = {1,2,3,4,5,6},
         int64 o = {0}, int64 i = {1}, int64[1] a = {0}> {
            s = Shape(ids)
            n = Gather(s, i)
            r = Range(o, n, i)
            p = Unsqueeze(r, a)
            e = Expand(p, s)
            f = Gather(words, ids)
            c = Gather(places, e)
            y = Add(f, c)
        }
        """,
        # Positions of an embedding before an attention: the runtime fuses it all, and knows it by the Expand.
        """
        (int64[N, M] ids) => (float[N, M, 2] q, float[N, M, 2] k, float[N, M, 2] v)
        <float[4, 2] words = {1,2,3,4,5,6,7,8}, float[3, 2] places = {1,2,3,4,5,6},
         float[2] g = {1,2}, float[2] h = {1,2}, float[2, 2] w = {1,2,3,4}, float[2, 2] u = {4,5,6,7},
         float[2, 2] t = {3,2,1,0}, int64 o = {0}, int64 i = {1}, int64[1] a = {0}> {
            s = Shape(ids)
            n = Gather(s, i)
            r = Range(o, n, i)
            p = Unsqueeze(r, a)
            e = Expand(p, s)
            f = Gather(words, ids)
            c = Gather(places, e)
            b = Add(f, c)
            y = LayerNormalization(b, g, h)
            q = MatMul(y, w)
            k = MatMul(y, u)
            v = MatMul(y, t)
        }
        """,
    ],
)
def needless_expands(graph: Graph, context: Context) -> None:
    """A tensor is not expanded before an operator that stretches it anyway, be it behind others that work by element.

    Indices may be small, too: what a Gather finds is stretched instead. The same goes for what is one number all over:
    a ConstantOfShape, a comparison of counters that always holds or never.
    """
    for op_type in ("Expand", "ConstantOfShape", *COMPARISONS):
        for node in graph.of_kind(op_type):
            if node.graph is None or not node.has_latest_meaning or not may_go(node, context):
                continue
            if counts_positions(node):
                context.note("the runtime knows an embedding by its expanded positions")
            else:
                _make_small(graph, context, node)


def _make_small(graph: Graph, context: Context, node: Node) -> None:
    builder = context.builder(graph)
    value = _small(node, builder)
    ends = None if value is None else _followed(node, value, builder, context)
    if ends:
        old = [operand.producer for operand in node.operands if operand is not None]
        with context.rewrite(graph):
            for made in builder.nodes:
                if made.is_constant:
                    made.stored_as_node = graph.model.ir_version < 4
                graph.insert(made, rank=node.rank)
            for before, after in ends:
                _take_over(graph, before, after)
            erase_dead([*(before.producer for before, _ in ends), *old], context)


def _small(node: Node, builder: Builder) -> Value | None:
    """What a result is that was stretched, or is the same everywhere."""
    if node.op_type == "Expand":
        return node.operand(0)
    rank, dtype = node.results[0].rank, node.results[0].dtype
    if rank is None or dtype is None:
        return None
    if node.op_type == "ConstantOfShape":
        fill = node.param("value")
        item = fill.numpy().reshape(-1)[0] if isinstance(fill, Tensor) else np.float32(0)
        return builder.constant(np.full((1,) * rank, item, dtype.numpy), dtype)
    truth = truth_of(node)
    return None if truth is None else builder.constant(np.full((1,) * rank, truth))


def _take_over(graph: Graph, before: Value, after: Value) -> None:
    if not after.producer.name:
        after.producer.name = before.producer.name
    graph.replace_uses(before, after)


def _followed(node: Node, value: Value, builder: Builder, context: Context) -> list[tuple[Value, Value]] | None:
    """Results and what stands for them, found by going on with the small tensor until shapes are as before."""
    smaller = {node.results[0]: value}
    waiting = [node.results[0]]
    ends: list[tuple[Value, Value]] = []
    done: dict[Node, None] = {}
    while waiting:
        for user in waiting.pop().users:
            if user in done:
                continue
            done[user] = None
            if len(done) > _LONGEST or user.graph is not node.graph or not _is_stretching(user, smaller, context):
                return None
            operands = [None if old is None else smaller.get(old, old) for old in user.operands]
            made: Value = builder.like(user, *operands)
            if not _keeps_bits(user, made):
                return None
            if same_type(user.results[0], made):
                ends.append((user.results[0], made))
            elif user.results[0].rank != made.rank:
                return None
            else:
                smaller[user.results[0]] = made
                waiting.append(user.results[0])
    # One that reads the large tensor by another way would keep it.
    return None if any(value in smaller for made in builder.nodes for value in made.operands) else ends


def _is_stretching(user: Node, smaller: dict[Value, Value], context: Context) -> bool:
    """True if an operator computes each element alone, from what stands there, or looks it up."""
    if user.kind is not Kind.OPERATOR or len(user.results) != 1 or user.domain != "" or not user.has_latest_meaning:
        return False
    if not may_go(user, context):
        return False
    if user.op_type == "Gather":
        return user.operands[0] not in smaller
    if not is_elementwise(user.domain, user.op_type) or user.op_type in ("Clip", "PRelu", "CastLike", "Dropout"):
        return False
    return not any(value is None or value.dtype in HALVES for value in (*user.operands, *user.results))


def _keeps_bits(user: Node, made: Value) -> bool:
    """True if the kernel gives the same bits for each element of the small tensors."""
    if user.op_type == "Gather":
        return _finds_all(user, made.producer)
    if user.op_type == "Where" and all(
        value is not None and _has_no_negative_zero(value) for value in made.producer.operands[1:]
    ):
        return True  # the kernel joins what it has chosen with zeros for the rest
    read = user.operands[1 if user.op_type == "Where" else 0]
    assert read is not None
    same_form = all(
        old is not None and new is not None and _form(old, user.results[0]) == _form(new, made) != ""
        for old, new in zip(user.operands, made.producer.operands, strict=True)
    )
    return is_position_independent(user.op_type, read.dtype, same_form=same_form)


def _finds_all(large: Node, small: Node) -> bool:
    """True if looking up what was not expanded cannot fail where an Expand to nothing made an empty lookup of it."""
    data, before, after = large.operands[0], large.operands[1], small.operands[1]
    if data is None or before is None or after is None or before.shape is None or after.shape is None:
        return False
    kept = (None,) * (len(before.shape) - len(after.shape)) + after.shape
    if all(
        same_dim(old, new) or (new is not None and symbol.is_positive(new))
        for old, new in zip(kept, before.shape, strict=True)
    ):
        return True
    axis = axis_of(large, data.rank)
    size = None if axis is None or data.shape is None else data.shape[axis]
    low, high = least_and_most(after)
    return size is not None and low is not None and high is not None and _is_within(low, high, size)


def _is_within(low: int, high: int, size: int | Expr) -> bool:
    return symbol.is_nonnegative(size + low) and symbol.is_positive(size - high)


def _has_no_negative_zero(value: Value) -> bool:
    if value.const is None or value.const.size > _READ:
        return False
    array = value.const.numpy()
    return not bool(((array == 0) & np.signbit(array)).any()) if array.dtype.kind == "f" else True


def _form(value: Value, result: Value) -> str:
    """How an operand lies in the result: as one number, or as a whole."""
    if value.shape is not None and all(dim == 1 for dim in value.shape):
        return "number"
    return "whole" if same_shape(value, result) else ""
