"""Lookups whose indices only count: what they give is a part of the table in its own order."""

from __future__ import annotations

from graphopt import Context, DType, Graph, Node, graph_pass, symbol
from passes._index_grids import Rows, rows_of
from passes._proofs import Dim, same_dim
from passes._shape_making import Maker
from passes._shape_plan import Plan
from passes._shape_region import region_of
from passes._shape_sources import Sources, places_of
from passes._storing import erase_dead, may_go

_ALLOWS_ZERO = 14
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


@graph_pass(
    before="""
        (bool[B, L] mask) => (bool[B, 1, 1, L] y) <
            int64 zero = {0}, int64 one = {1}, int64[3] a = {1, 2, 3}, int64[3] b = {0, 1, 2}, int64[4] t = {0, 1, 1, 0}
        > {
            shape = Shape(mask)
            rows = Gather<axis = 0>(shape, zero)
            width = Gather<axis = 0>(shape, one)
            i = Range(zero, rows, one)
            j = Range(zero, width, one)
            ii = Unsqueeze(i, a)
            jj = Unsqueeze(j, b)
            starts = Mul(ii, width)
            places = Add(starts, jj)
            flat = Flatten<axis = 2>(mask)
            found = Gather<axis = 0>(flat, places)
            y = Reshape(found, t)
        }
    """,
    after="(bool[B, L] mask) => (bool[B, 1, 1, L] y) <int64[2] axes = {1, 2}> { y = Unsqueeze(mask, axes) }",
    unless=[
        # Columns are looked up as rows.
        """
        (bool[N, N] mask) => (bool[N, N] y) <int64 zero = {0}, int64 one = {1}, int64[1] a = {1}, int64[1] b = {0}> {
            shape = Shape(mask)
            width = Gather<axis = 0>(shape, one)
            i = Range(zero, width, one)
            jj = Unsqueeze(i, b)
            ii = Unsqueeze(i, a)
            starts = Mul(jj, width)
            places = Add(starts, ii)
            m = Constant<value_ints = [-1]>()
            flat = Reshape(mask, m)
            y = Gather<axis = 0>(flat, places)
        }
        """,
    ],
)
def counted_rows(graph: Graph, context: Context) -> None:
    """A matrix that is looked up at every row and column in order is that matrix, or its first rows and columns.

    Where the table might have fewer rows or columns than are asked for, the shape asked for is spelled out: an empty
    lookup does not fail.
    """
    for op_type in ("Gather", "GatherND"):
        for node in graph.of_kind(op_type):
            rows = rows_of(node) if may_go(node, context) else None
            if rows is not None:
                _replace(graph, context, node, rows)


def _replace(graph: Graph, context: Context, node: Node, rows: Rows) -> None:
    node, shape, kept_axes = _viewed(node, rows, context)
    assert rows.matrix.shape is not None
    builder = context.builder(graph)
    axes = [axis for axis in range(len(shape)) if axis not in kept_axes]
    value = rows.matrix
    cuts = [
        (axis, size, count)
        for axis, (size, count) in enumerate(zip(rows.matrix.shape, rows.counts, strict=True))
        if size is None or not symbol.always_equal(size, count)
    ]
    if cuts:
        places = places_of(graph)
        region = region_of(graph, context, places)
        plan = Plan(Sources(graph, places, region.live), graph.opsets.get("", 0))
        for inner in region.nodes:
            for result in inner.results:
                if result.dtype is DType.INT64 and result.rank in (0, 1) and result.elements:
                    plan.offer(result, result.elements, places[inner])
        maker = Maker(builder, region)
        ends = plan.get(tuple(count for _, _, count in cuts), False, DType.INT64, places[node])
        if ends is None or any(dim is None for dim in shape):
            return
        is_enough = all(size is not None and symbol.always_at_most(count, size) for _, size, count in cuts)
        whole = None if is_enough else plan.get(shape, False, DType.INT64, places[node])
        if not is_enough and (whole is None or graph.opsets.get("", 0) < _ALLOWS_ZERO):
            return
        if 2 + len(plan.nodes) >= _dying(node):
            return
        cut_axes = [axis for axis, _, _ in cuts]
        value = builder.Slice(value, starts=[0] * len(cuts), ends=maker.make(ends), axes=cut_axes)
        if whole is not None:
            value = builder.Reshape(value, maker.make(whole), allowzero=1)
    elif _dying(node) < 2:
        return
    if value.rank == 2 and axes:
        value = builder.Unsqueeze(value, axes=axes)
    old = [operand.producer for operand in node.operands if operand is not None]
    context.replace(node.result, value, builder)
    erase_dead(old, context)


def _viewed(node: Node, rows: Rows, context: Context) -> tuple[Node, tuple[Dim, ...], tuple[int, ...]]:
    """The last of the views behind a lookup that put in or take out axes of size 1, its shape, and the other axes."""
    shape, axes = node.results[0].shape, rows.axes
    assert shape is not None
    sizes = [shape[axis] for axis in axes]
    while True:
        use = node.results[0].sole_use()
        if use is None or use[0].graph is not node.graph or use[0].op_type not in _VIEWS or use[1] != 0:
            return node, shape, axes
        after = use[0].results[0].shape
        if after is None or not may_go(use[0], context):
            return node, shape, axes
        found = tuple(axis for axis, dim in enumerate(after) if dim != 1)
        if len(found) != 2 or not all(same_dim(after[axis], size) for axis, size in zip(found, sizes, strict=True)):
            return node, shape, axes
        node, shape, axes = use[0], after, found


def _dying(node: Node) -> int:
    """How many operators go with one: those whose every reader goes."""
    dying = {node: None}
    stack = [node]
    while stack:
        for value in stack.pop().operands:
            producer = None if value is None else value.producer
            if producer is None or producer in dying or not producer.is_operator or producer.graph is not node.graph:
                continue
            if all(user in dying for result in producer.results for user, _ in result.uses):
                dying[producer] = None
                stack.append(producer)
    return len(dying)
