"""Writes the embeddings of BERT and its kin, looked up, added and normalized, as one operator.

EmbedLayerNormalization refuses what Gather takes: negative indexes, which count from the end of a table. So it computes
something else on a part of what it may be fed, and is written at level `fast-math` only. What else it asks for must be
proved: indexes of words and segments of equal shapes, which for two inputs of the model holds where dims of equal names
are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, DType, Graph, Node, Value, graph_pass
from passes._proofs import axes_of, contents, same_dim, same_shape, type_name
from passes.fusion import RUNTIME

TARGETS = RUNTIME

_OP_TYPE = "EmbedLayerNormalization"
_INDEXES = (DType.INT64, DType.INT32)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Rows of a table: `node` looks them up; `ids` is None where they are 0, 1, … for every batch."""

    node: Node
    table: Value
    ids: Value | None


@graph_pass(
    before="""(int64[2,3] i, int64[2,3] g) => (float[2,3,4] y)
              <float[6,4] words = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6},
               float[5,4] places = {1,0,2,0,3,0,1,1,2,2,0,0,4,1,2,2,1,1,1,2}, float[2,4] kinds = {0,1,0,2,1,1,2,2},
               int64[1,3] p = {0,1,2}, float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        a = Gather(words, i)
        b = Gather(kinds, g)
        d = Add(a, b)
        e = Gather(places, p)
        f = Add(d, e)
        y = LayerNormalization<axis = -1, epsilon = 0.001>(f, w, c)
    }""",
    after="""(int64[2,3] i, int64[2,3] g) => (float[2,3,4] y)
             <float[6,4] words = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6},
              float[5,4] places = {1,0,2,0,3,0,1,1,2,2,0,0,4,1,2,2,1,1,1,2}, float[2,4] kinds = {0,1,0,2,1,1,2,2},
              float[4] w = {1.0, 0.5, 2.0, 1.5}, float[4] c = {0.0, 0.1, 0.2, 0.3}> {
        k = Cast<to = 6>(i)
        l = Cast<to = 6>(g)
        y, m = com.microsoft.EmbedLayerNormalization<epsilon = 0.001>(k, l, words, places, kinds, w, c)
    }""",
    unless=[
        # Segments that are looked up once for all batches.
        """(int64[2,3] i, int64[1,3] g, float[6,4] words, float[5,4] places, float[2,4] kinds, float[4] w, float[4] c)
           => (float[2,3,4] y) <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  b = Gather(kinds, g)  d = Add(a, b)  e = Gather(places, p)  f = Add(d, e)
            y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        # One table is not enough, four are too many.
        """(int64[2,3] i, float[6,4] words, float[2,3,4] x, float[4] w, float[4] c) => (float[2,3,4] y) {
            a = Gather(words, i)  d = Add(a, x)  y = LayerNormalization<axis = -1>(d, w, c)
        }""",
        # Columns instead of rows.
        """(int64[2,4] i, float[3,6] words, float[5,4] places, float[4] w, float[4] c) => (float[3,2,4] y)
           <int64[2,4] p = {0,1,2,3,0,1,2,3}> {
            a = Gather<axis = 1>(words, i)  e = Gather(places, p)  f = Add(a, e)
            y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        # The kernel asks for a shift.
        """(int64[2,3] i, float[6,4] words, float[5,4] places, float[4] w) => (float[2,3,4] y)
           <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  y = LayerNormalization<axis = -1>(f, w)
        }""",
        # A table of one column, which the sum stretches.
        """(int64[2,3] i, float[6,4] words, float[5,1] places, float[4] w, float[4] c) => (float[2,3,4] y)
           <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        # Places that are counted from one, or backwards.
        """(int64[2,3] i, float[6,4] words, float[5,4] places, float[4] w, float[4] c) => (float[2,3,4] y)
           <int64[1,3] p = {1,2,3}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        # A sum that is a result, and something random in between.
        """(int64[2,3] i, float[6,4] words, float[5,4] places, float[4] w, float[4] c)
           => (float[2,3,4] y, float[2,3,4] f) <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        """(int64[2,3] i, float[6,4] words, float[5,4] places, float[4] w, float[4] c) => (float[2,3,4] y)
           <int64[1,3] p = {0,1,2}, float share = {0.5}, bool yes = {1}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  d = Dropout(f, share, yes)
            y = LayerNormalization<axis = -1>(d, w, c)
        }""",
        # No kernel, and a number that it refuses.
        """(int64[2,3] i, double[6,4] words, double[5,4] places, double[4] w, double[4] c) => (double[2,3,4] y)
           <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)  y = LayerNormalization<axis = -1>(f, w, c)
        }""",
        """(int64[2,3] i, float[6,4] words, float[5,4] places, float[4] w, float[4] c) => (float[2,3,4] y)
           <int64[1,3] p = {0,1,2}> {
            a = Gather(words, i)  e = Gather(places, p)  f = Add(a, e)
            y = LayerNormalization<axis = -1, epsilon = -0.001>(f, w, c)
        }""",
    ],
    numeric="D",
    opset=17,
)
def embed_layer_normalization(graph: Graph, context: Context) -> None:
    """LayerNormalization of rows looked up in tables for words, places and kinds is EmbedLayerNormalization."""
    for node in graph.of_kind("LayerNormalization"):
        reason = _fuse(graph, node, context)
        if reason:
            context.note(f"an embedding stays in parts: {reason}")


def _fuse(graph: Graph, node: Node, context: Context) -> str:
    """Replace one; else say why it looks like an embedding but is none, empty where it does not even look so."""
    total, scale, shift = node.operand(0), node.operand(1), node.operand(2)
    inside = _sums(total)
    leaves = _leaves(total, inside)
    if total is None or len(leaves) not in (2, 3) or not all(leaf.producer.is_op("Gather") for leaf in leaves):
        return ""
    axis = node.param("axis")
    if total.rank != 3 or (axis is not None and axis not in (-1, 2)) or any(item.is_used for item in node.results[1:]):
        return "it is normalized over other axes than the last of three, or a statistic is read"
    if scale is None or shift is None or scale.rank != 1 or shift.rank != 1:
        return "the normalization has no scale or no shift of one number for each element"
    if not context.target.runs(_OP_TYPE, total.dtype):
        return f"{context.target.name} has no kernel of {_OP_TYPE} for {type_name(total.dtype)}"
    if total.shape is None or not all(
        item.shape is not None and item.dtype is total.dtype and same_dim(item.shape[0], total.shape[2])
        for item in (scale, shift)
    ):
        return "scale or shift do not have the size of the last axis"
    found = _roles([_lookup(leaf) for leaf in leaves], total)
    if found is None:
        return "which indexes are words', places' and kinds' is not known, or that their shapes are equal"
    words, places, kinds = found
    if not all(same_dim((item.table.shape or (None, None))[1], total.shape[2]) for item in found if item is not None):
        return "a table has other columns than the sum"
    if (node.param("epsilon") or 0) < 0:
        return "the kernel takes no negative epsilon"
    parts = [node, *inside, *(item.node for item in found if item is not None)]
    if any(part.is_pinned or context.keeps(part) for part in parts):
        return ""
    readers = {part: [user for user in part.results[0].users if user not in parts] for part in inside}
    ids = words.ids
    assert ids is not None
    for part, users in readers.items():
        if any(not user.is_op("Shape") for user in users):
            return "a sum inside it is read elsewhere"
        if users and not same_shape(part.results[0], node.results[0]):
            return "the shape of a sum inside it is asked for, and not known to be that of the whole"
    b = context.builder(graph)
    operands = [_short(b, ids), None, words.table, places.table, None, scale, shift]
    if kinds is not None:
        operands[1], operands[4] = _short(b, kinds.ids), kinds.table
    if places.ids is not None:
        operands += [None, _short(b, places.ids)]
    epsilon = node.param("epsilon")
    made = b.apply(
        _OP_TYPE,
        operands,
        domain="com.microsoft",
        outputs=2,
        parameters={"epsilon": 1e-5 if epsilon is None else epsilon},
    )
    with context.rewrite(graph):
        context.replace(node.results[0], made[0], b)
        for part, users in readers.items():
            if users:
                graph.replace_uses(part.results[0], made[0])
        for part in parts:
            if part.graph is graph and not part.is_used:
                graph.erase(part)
    return ""


def _sums(total: Value | None) -> list[Node]:
    """The additions below a value, itself first, that lead to at most three leaves."""
    found: list[Node] = []
    pending = [total]
    while pending and len(found) < 3:
        value = pending.pop(0)
        if value is not None and value.producer.is_op("Add") and (total is None or _graph(value) is _graph(total)):
            found.append(value.producer)
            pending += value.producer.operands
    return found


def _graph(value: Value) -> Graph | None:
    return value.producer.graph


def _leaves(total: Value | None, inside: list[Node]) -> list[Value]:
    return [
        value
        for node in inside
        for value in node.operands
        if value is not None and value.producer not in inside and total is not None and _graph(value) is _graph(total)
    ]


def _lookup(leaf: Value) -> _Lookup | None:
    """Rows of a matrix by a matrix of indexes."""
    node = leaf.producer
    table, ids = node.operand(0), node.operand(1)
    if table is None or ids is None or node.param("axis") != 0 or table.rank != 2 or ids.rank != 2:
        return None
    return _Lookup(node, table, ids) if ids.dtype in _INDEXES else None


def _roles(lookups: list[_Lookup | None], total: Value) -> tuple[_Lookup, _Lookup, _Lookup | None] | None:
    """Words, places and kinds: places are those that are counted, or else the smaller table of positions."""
    known = [item for item in lookups if item is not None]
    if len(known) != len(lookups):
        return None
    counted = [item for item in known if _counts(item, total)]
    whole = [item for item in known if item not in counted and _is_whole(item, total)]
    if len(counted) == 1 and len(whole) == len(known) - 1:
        places = _Lookup(counted[0].node, counted[0].table, None)
    elif not counted and len(whole) == len(known):
        # All are looked up for each batch: any may stand in any place, for they are added up all the same.
        places = whole.pop()
    else:
        return None
    return whole[0], places, whole[1] if len(whole) == 2 else None


def _is_whole(item: _Lookup, total: Value) -> bool:
    """True if it has an index for each element of each batch."""
    assert item.ids is not None
    shape, wanted = item.ids.shape, total.shape
    return shape is not None and wanted is not None and all(map(same_dim, shape, wanted[:2]))


def _counts(item: _Lookup, total: Value) -> bool:
    """True for rows 0, 1, … of the table, one for each place."""
    ids = item.ids
    if ids is None or ids.shape is None or ids.shape[0] != 1 or total.shape is None:
        return False
    if _is_counter(ids):
        return same_dim(ids.shape[1], total.shape[1])
    node = ids.producer
    if node.is_op("Unsqueeze") and axes_of(node, 2) == (0,):
        return _is_range(node.operand(0)) and same_dim(ids.shape[1], total.shape[1])
    # A part of a longer counter: where it is too short for what it is added to, that fails, unless it is just one.
    source = node.operand(0) if node.is_op("Slice") else None
    if source is None or not _is_counter(source) or source.const is None or source.const.shape[1] < 2:
        return False
    ends, steps = contents(node, "ends"), node.param("steps")
    is_front = axes_of(node, 2) == (1,) and contents(node, "starts") == (0,) and steps in (None, (1,))
    return is_front and ends is not None and len(ends) == 1 and same_dim(ends[0], total.shape[1])


def _is_counter(value: Value) -> bool:
    tensor = value.const
    if tensor is None or tensor.rank != 2 or tensor.shape[0] != 1:
        return False
    return bool(np.array_equal(tensor.numpy()[0], np.arange(tensor.shape[1])))


def _is_range(value: Value | None) -> bool:
    node = None if value is None else value.producer
    return node is not None and node.is_op("Range") and node.param("start") == 0 and node.param("delta") == 1


def _short(b: Builder, ids: Value | None) -> Value | None:
    """Indexes in the type the kernel takes."""
    if ids is None or ids.dtype is DType.INT32:
        return ids
    if ids.const is not None:
        return b.constant(ids.const.numpy().astype(np.int32), DType.INT32)
    short: Value = b.Cast(ids, to=int(DType.INT32))
    return short
