"""Concatenations of concatenations, and of parts of one tensor, become one operator or none."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, Graph, Node, Value, graph_pass
from passes._concats import axis_of_concat
from passes._selections import MAX_INDICES, Selection, selected, selection_of, size_along

_MIN_BLOCK = 16
"""A Gather copies that many neighbouring elements at once at least, or it is slower than the slices it replaces."""


@graph_pass(
    before="""(float[8,8,16] x) => (float[8,8,16] y)
              <int64[1] z = {0}, int64[1] k = {3}, int64[1] e = {8}, int64[1] a = {1}>
              { u = Slice(x, k, e, a)  v = Slice(x, z, k, a)  w = Concat<axis = 1>(u, v)  y = Relu(w) }""",
    after="""(float[8,8,16] x) => (float[8,8,16] y) <int64[8] i = {3,4,5,6,7,0,1,2}>
             { w = Gather<axis = 1>(x, i)  y = Relu(w) }""",
    unless=[
        # One element at a time, a Gather is slower.
        """(float[2,8] x) => (float[2,8] y) <int64[1] z = {0}, int64[1] k = {3}, int64[1] e = {8}, int64[1] a = {1}>
           { u = Slice(x, k, e, a)  v = Slice(x, z, k, a)  w = Concat<axis = 1>(u, v)  y = Relu(w) }""",
        """(float[2,N,16] x) => (float[2,M,16] y)
           <int64[1] z = {0}, int64[1] k = {3}, int64[1] e = {8}, int64[1] a = {1}>
           { u = Slice(x, k, e, a)  v = Slice(x, z, k, a)  w = Concat<axis = 1>(u, v)  y = Relu(w) }""",
        """(float[8,16] x, float[8,16] r) => (float[8,16] y) <int64[1] z = {0}, int64[1] k = {3}, int64[1] e = {8}>
           { u = Slice(x, k, e)  v = Slice(r, z, k)  w = Concat<axis = 0>(u, v)  y = Relu(w) }""",
    ],
)
def concat_of_selections(graph: Graph, context: Context) -> None:
    """Parts of one tensor put together are a choice of its places, or the tensor itself."""
    for node in _concats(graph, context):
        b = context.builder(graph)
        result = _chosen(node, b)
        if result is not None:
            _replace(context, node, result, b)


def _concats(graph: Graph, context: Context) -> list[Node]:
    nodes = sorted(graph.of_kind("Concat"), key=lambda node: (node.rank, node.serial))
    return [node for node in nodes if not node.is_pinned and not context.keeps(node)]


def _replace(context: Context, node: Node, result: Value, b: Builder) -> None:
    """Replace a node by what was built, and erase what made its operands where nobody else reads that."""
    graph, makers = node.graph, [value.producer for value in node.operands if value is not None]
    assert graph is not None
    with context.rewrite(graph):
        context.replace(node.results[0], result, b)
        for maker in dict.fromkeys(makers):
            if maker.is_operator and maker.graph is graph and not maker.is_used and not maker.is_pinned:
                graph.erase(maker)


def _chosen(node: Node, b: Builder) -> Value | None:
    """The choice that a Concat makes; None if it is none, or one that saves nothing."""
    axis = axis_of_concat(node)
    picked = [_picked(value, axis) for value in node.operands]
    parts = [item for item in picked if item is not None]
    if axis is None or len(picked) < 2 or len(parts) < len(picked):
        return None
    source = parts[0].source
    if any(part.source is not source for part in parts):
        return None
    places = np.concatenate([part.places for part in parts])
    result = selected(b, source, axis, places)
    if result is source:
        return source
    if len(places) > MAX_INDICES or (result.producer.op_type == "Gather" and _block(source, axis) < _MIN_BLOCK):
        return None
    return result if _lose_a_reader(node) else None


def _picked(value: Value | None, axis: int | None) -> Selection | None:
    """What an operand picks; a whole tensor picks all."""
    if value is None or axis is None:
        return None
    found = selection_of(value)
    if found is not None and found.keeps_axis and found.axis == axis:
        return found
    size = size_along(value, axis)
    return None if size is None else Selection(value, axis, np.arange(size, dtype=np.int64))


def _block(value: Value, axis: int) -> int:
    """How many neighbouring elements stand behind an axis, as far as that is known."""
    count = 1
    for dim in (value.shape or ())[axis + 1 :]:
        count *= dim if isinstance(dim, int) else 1
    return count


def _lose_a_reader(node: Node) -> bool:
    """True if some node that makes an operand is read by nobody else."""
    makers = dict.fromkeys(value.producer for value in node.operands if value is not None)
    return any(
        maker.is_operator
        and not maker.is_pinned
        and maker.op_type in ("Slice", "Gather", "Split")
        and all(user is node for result in maker.results for user in result.users)
        for maker in makers
    )


@graph_pass(
    before="""(float[2,N] x, float[2,M] z) => (float[2,K] y)
              { u = Concat<axis = 1>(x, z)  v = Concat<axis = -1>(z, u, x)  y = Relu(v) }""",
    after="(float[2,N] x, float[2,M] z) => (float[2,K] y) { v = Concat<axis = -1>(z, x, z, x)  y = Relu(v) }",
    unless=[
        """(float[2,2] x, float[2,2] z) => (float[4,4] y)
           { u = Concat<axis = 1>(x, z)  v = Concat<axis = 0>(u, u)  y = Relu(v) }""",
        """(float[2,N] x, float[2,M] z) => (float[2,K] y, float[2,L] w)
           { w = Concat<axis = 1>(x, z)  v = Concat<axis = 1>(z, w)  y = Relu(v)  t = Relu(w) }""",
    ],
)
def merge_concats(graph: Graph, context: Context) -> None:
    """A Concat among the operands of a Concat along the same axis gives its own operands."""
    for node in _concats(graph, context):
        axis = axis_of_concat(node)
        if node.graph is None or axis is None:
            continue
        operands: list[Value] = []
        pending = [value for value in node.operands[::-1] if value is not None]
        while pending:
            value = pending.pop()
            inner = value.producer
            is_alike = axis_of_concat(inner) == axis and inner.graph is graph and value.users == [node]
            if value in node.operands and is_alike and not inner.is_pinned and not context.keeps(inner):
                pending.extend(operand for operand in inner.operands[::-1] if operand is not None)
            else:
                operands.append(value)
        if len(operands) != len(node.operands):
            b = context.builder(graph)
            _replace(context, node, b.like(node, *operands), b)
