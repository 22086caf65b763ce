"""Sequences that are put together and taken apart again in one graph: what is read of them is computed from tensors."""

from __future__ import annotations

from graphopt import Builder, Context, DType, Graph, Match, Miss, Node, Value, attr, graph_pass, op, rule, var
from passes._proofs import axis_of

x, y = var("x"), var("y")

_MADE = op.SequenceConstruct(...)
_POSITION = attr("position")


@rule(
    op.ConcatFromSequence(_MADE),
    before="""(float[N,3] x, float[M,3] z) => (float[K,3] y)
              { s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 0>(s) }""",
    after="(float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Concat<axis = 0>(x, z) }",
    unless=[
        """(float[2] x, float[2] z) => (float[2,2] y)
           { s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 0, new_axis = 1>(s) }""",
        """(float[2] x, float[2] z) => (float[4] y, seq(float[2]) s)
           { s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis = 0>(s) }""",
    ],
)
def concat_of_sequence(m: Match, b: Builder) -> Value | Miss:
    """What is put into a sequence only to be put together is put together at once; one tensor gets its new axis."""
    parts, axis = m.node(_MADE).operands, m.root.param("axis")
    if not m.root.param("new_axis"):
        made: Value = b.Concat(*parts, axis=axis)
        return made
    if len(parts) > 1:
        return b.no("each part needs an axis of its own: more operators than there are")
    stacked: Value = b.Unsqueeze(parts[0], axes=[axis])
    return stacked


@rule(
    op.SequenceInsert(_MADE, y, position=_POSITION),
    before="""(float[2] x, float[3] z) => (seq(float[N]) y) <int64 i = {0}>
              { s = SequenceConstruct(x)  y = SequenceInsert(s, z, i) }""",
    after="(float[2] x, float[3] z) => (seq(float[N]) y) { y = SequenceConstruct(z, x) }",
    unless=[
        """(float[2] x, float[3] z, int64 i) => (seq(float[N]) y)
           { s = SequenceConstruct(x)  y = SequenceInsert(s, z, i) }""",
        """(float[2] x, float[3] z) => (seq(float[N]) y) <int64 i = {3}>
           { s = SequenceConstruct(x)  y = SequenceInsert(s, z, i) }""",
        "(seq(float[N]) s, float[3] z) => (seq(float[N]) y) { y = SequenceInsert(s, z) }",
    ],
)
def insert_into_sequence(m: Match, b: Builder) -> Value | Miss:
    """A tensor inserted into a sequence just made is one more that it is made of."""
    parts = [value for value in m.node(_MADE).operands if value is not None]
    place = len(parts) if m.root.operand(2) is None else m[_POSITION]
    if not isinstance(place, int) or not -len(parts) <= place <= len(parts):
        return b.no("there is no such place: the model fails")
    parts.insert(place, m[y])
    made: Value = b.SequenceConstruct(*parts)
    return made


_EMPTY = op.SequenceEmpty()


@rule(
    op.SequenceInsert(_EMPTY, y, ...),
    before="(float[3] z) => (seq(float[N]) y) { s = SequenceEmpty()  y = SequenceInsert(s, z) }",
    after="(float[3] z) => (seq(float[N]) y) { y = SequenceConstruct(z) }",
    unless=[
        "(float[3] z, int64 i) => (seq(float[N]) y) { s = SequenceEmpty()  y = SequenceInsert(s, z, i) }",
        "(float[3] z) => (seq(float[N]) y, seq(float[N]) s) { s = SequenceEmpty()  y = SequenceInsert(s, z) }",
    ],
)
def insert_into_empty_sequence(m: Match, b: Builder) -> Value | Miss:
    """A tensor inserted into an empty sequence makes a sequence of one."""
    if m.root.operand(2) is not None and m.root.param("position") != 0:
        return b.no("the place may be none: the model fails")
    made: Value = b.SequenceConstruct(m[y])
    return made


@graph_pass(
    before="""(float[N,4] x) => (float[N] y, float[N] z) <int64 i = {1}, int64 j = {-1}>
              { s = SplitToSequence<axis = 1, keepdims = 0>(x)
                a = SequenceAt(s, i)  y = Relu(a)  b = SequenceAt(s, j)  z = Relu(b) }""",
    after="""(float[N,4] x) => (float[N] y, float[N] z) <int64 i = {1}, int64 j = {-1}>
             { a = Gather<axis = 1>(x, i)  y = Relu(a)  b = Gather<axis = 1>(x, j)  z = Relu(b) }""",
    unless=[
        """(float[N,4] x, int64 i) => (float[N] y)
           { s = SplitToSequence<axis = 1, keepdims = 0>(x)  y = SequenceAt(s, i) }""",
        """(float[4,N] x) => (float[2,N] y, seq(float[2,N]) s) <int64 i = {1}, int64 two = {2}>
           { s = SplitToSequence(x, two)  y = SequenceAt(s, i) }""",
        """(float[4,N] x, int64 n) => (float[M,N] y) <int64 i = {1}>
           { s = SplitToSequence(x, n)  y = SequenceAt(s, i) }""",
    ],
)
def elements_of_split(graph: Graph, context: Context) -> None:
    """A tensor split into a sequence of which single parts are taken: each of them is a slice of it, or one row."""
    for split in graph.of_kind("SplitToSequence"):
        readers = split.result.users
        if split.is_pinned or context.keeps(split) or not readers:
            continue
        b = context.builder(graph)
        parts = {reader: _part(split, reader, graph, b) for reader in readers}
        if any(part is None or reader.is_pinned or context.keeps(reader) for reader, part in parts.items()):
            continue
        with context.rewrite(graph):
            for node in b.nodes:
                graph.insert(node, rank=split.rank)
            for reader, part in parts.items():
                assert part is not None
                graph.replace_uses(reader.result, part)
                graph.erase(reader)
            graph.erase(split)


def _part(split: Node, reader: Node, graph: Graph, b: Builder) -> Value | None:
    """What a reader takes out of the sequence; None if it is not known."""
    data = split.operand(0)
    if not reader.is_op("SequenceAt") or reader.graph is not graph or data is None or data.shape is None:
        return None
    place, axis = reader.param("position"), axis_of(split, data.rank)
    if not isinstance(place, int) or axis is None or reader.operand(0) is not split.result:
        return None
    if split.operand(1) is None and split.param("keepdims") == 0:
        row: Value = b.Gather(data, b.constant(place, DType.INT64), axis=axis)
        return row
    bounds = _bounds(split, data.shape[axis], place)
    if bounds is None:
        return None
    part: Value = b.Slice(data, starts=[bounds[0]], ends=[bounds[1]], axes=[axis])
    return part


def _bounds(split: Node, size: object, place: int) -> tuple[int, int] | None:
    """Where a part begins and ends."""
    sizes = split.operand(1)
    constant = None if sizes is None else sizes.const
    if sizes is not None and constant is None:
        return None
    given = [1] if constant is None else constant.tolist()
    if isinstance(given, list) and constant is not None:
        ends = [sum(given[: index + 1]) for index in range(len(given))]
    elif isinstance(size, int):
        step = given[0] if isinstance(given, list) else given
        ends = [min(end, size) for end in range(step, size + step, step)] if step > 0 else []
    else:
        return None
    if not -len(ends) <= place < len(ends):
        return None
    place %= len(ends)
    return (ends[place - 1] if place else 0), ends[place]
