"""Slices and Splits of one tensor: the fewest operators that give all its parts."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Context, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._proofs import axis_of, same_dim, same_shape
from passes._selections import selection_of, size_along
from passes._view_shapes import axes_given

_MAX_PLACES = 1 << 12
_MIN_BLOCK = 16
"""A Gather copies that many neighbouring elements at once at least, or it is slower than what it replaces."""


@graph_pass(
    before="""(float[N,8] x) => (float[N,3] y, float[N,5] z)
              <int64[1] o = {0}, int64[1] k = {3}, int64[1] e = {2147483647}, int64[1] a = {1}>
              { u = Slice(x, o, k, a)  v = Slice(x, k, e, a)  y = Relu(u)  z = Relu(v) }""",
    after="""(float[N,8] x) => (float[N,3] y, float[N,5] z) <int64[2] p = {3,5}>
             { u, v = Split<axis = 1>(x, p)  y = Relu(u)  z = Relu(v) }""",
    unless=[
        """(float[N,8] x) => (float[N,3] y, float[N,6] z)
           <int64[1] o = {0}, int64[1] j = {2}, int64[1] k = {3}, int64[1] e = {8}, int64[1] a = {1}>
           { u = Slice(x, o, k, a)  v = Slice(x, j, e, a)  y = Relu(u)  z = Relu(v) }""",
        """(float[N,8] x) => (float[N,3] y, float[N,4] z)
           <int64[1] o = {0}, int64[1] j = {4}, int64[1] k = {3}, int64[1] e = {8}, int64[1] a = {1}>
           { u = Slice(x, o, k, a)  v = Slice(x, j, e, a)  y = Relu(u)  z = Relu(v) }""",
    ],
)
def split_instead_of_slices(graph: Graph, context: Context) -> None:
    """Slices that share a tensor out among them are one Split."""
    found: dict[tuple[Value, int], dict[int, tuple[int, Value]]] = {}
    for node in sorted(graph.of_kind("Slice"), key=lambda node: (node.rank, node.serial)):
        if node.is_pinned or context.keeps(node):
            continue
        selection = selection_of(node.results[0])
        if selection is None or not len(selection.places) or (np.diff(selection.places) != 1).any():
            continue
        parts = found.setdefault((selection.source, selection.axis), {})
        first = int(selection.places[0])
        parts[first] = (-1, node.results[0]) if first in parts else (len(selection.places), node.results[0])
    for (source, axis), parts in found.items():
        _split(graph, context, source, axis, parts)


def _split(graph: Graph, context: Context, source: Value, axis: int, parts: dict[int, tuple[int, Value]]) -> None:
    """Replace the Slices that begin at those places by one Split, if they fit together."""
    place, values, sizes = 0, [], []
    while place in parts:
        size, value = parts[place]
        if size < 0:
            return
        values.append(value)
        sizes.append(size)
        place += size
    if len(values) < 2 or len(values) < len(parts) or place != size_along(source, axis):
        return
    if source.producer.graph is None or any(value.producer.graph is not graph for value in values):
        return  # one of them was replaced a moment ago: next time
    b = context.builder(graph)
    results = b.Split(source, split=sizes, axis=axis, outputs=len(sizes))
    with context.rewrite(graph):
        for node in b.nodes:
            graph.insert(node, rank=values[0].producer.rank)
        for old, new in zip(values, results, strict=True):
            graph.replace_uses(old, new)
            graph.erase(old.producer)


@graph_pass(
    before="""(float[N,2,8] x) => (float[N,8] y, float[N,8] z) <int64[1] a = {1}>
              { u, v = Split<axis = 1, num_outputs = 2>(x)  s = Squeeze(u, a)  t = Squeeze(v, a)
                y = Relu(s)  z = Relu(t) }""",
    after="""(float[N,2,8] x) => (float[N,8] y, float[N,8] z) <int64 i = {0}, int64 j = {1}>
             { s = Gather<axis = 1>(x, i)  t = Gather<axis = 1>(x, j)  y = Relu(s)  z = Relu(t) }""",
    unless=[
        """(float[N,2,8] x) => (float[N,8] y, float[N,1,8] z) <int64[1] a = {1}>
           { u, v = Split<axis = 1, num_outputs = 2>(x)  s = Squeeze(u, a)  y = Relu(s)  z = Relu(v) }""",
        """(float[1,4,8] x) => (float[2,8] y, float[2,8] z) <int64[1] a = {0}>
           { u, v = Split<axis = 1, num_outputs = 2>(x)  s = Squeeze(u, a)  t = Squeeze(v, a)
             y = Relu(s)  z = Relu(t) }""",
        # Where the last one is, nobody knows.
        """(float[N,M,8] x, int64[2] p) => (float[N,8] y) <int64[1] a = {1}>
           { u, v = Split<axis = 1>(x, p)  s = Squeeze(v, a)  y = Relu(s) }""",
    ],
)
def gathers_instead_of_split(graph: Graph, context: Context) -> None:
    """Single places split off and squeezed are one Gather each."""
    for node in sorted(graph.of_kind("Split"), key=lambda node: (node.rank, node.serial)):
        if node.is_pinned or context.keeps(node):
            continue
        squeezes = _squeezes(node, context)
        if squeezes is None:
            continue
        source = node.operands[0]
        assert source is not None
        for place, squeeze in squeezes.items():
            b = context.builder(graph)
            index = np.array(place, dtype=np.int64)
            context.replace(squeeze.results[0], b.Gather(source, index, axis=node.param("axis")), b)
        if not node.is_used:
            with context.rewrite(graph):
                graph.erase(node)


def _squeezes(node: Node, context: Context) -> dict[int, Node] | None:
    """The only reader of each result of a Split by its place, if all of them squeeze the axis, which is 1."""
    axis = axis_of(node, node.operands[0].rank) if node.operands[0] is not None else None
    found: dict[int, Node] = {}
    place: int | None = 0
    for result in node.results:
        first, size = place, None if axis is None else size_along(result, axis)
        place = None if first is None or size is None else first + size
        if not result.is_used:
            continue
        use = result.sole_use()
        user = None if use is None else use[0]
        if axis is None or first is None or user is None or not user.is_op("Squeeze") or size != 1:
            return None
        if user.graph is not node.graph or user.is_pinned or context.keeps(user):
            return None
        if axes_given(user) != (axis,):
            return None
        found[first] = user
    return found or None


# --- places repeated

x = var("x")
_UNIT = op.Unsqueeze(x, ...)
_EXPANDED = op.Expand(_UNIT, ...)


@rule(
    op.Reshape(_EXPANDED, ...),
    before="""(float[N,2,M,16] x) => (float[N,6,M,16] y)
              <int64[1] a = {2}, int64[5] e = {1,1,3,1,1}, int64[4] s = {0,6,-1,16}>
              { u = Unsqueeze(x, a)  v = Expand(u, e)  w = Reshape(v, s)  y = Relu(w) }""",
    after="""(float[N,2,M,16] x) => (float[N,6,M,16] y) <int64[6] i = {0,0,0,1,1,1}>
             { w = Gather<axis = 1>(x, i)  y = Relu(w) }""",
    unless=[
        """(float[N,2,4] x) => (float[N,6,4] y) <int64[1] a = {2}, int64[4] e = {1,1,3,1}, int64[3] s = {0,6,4}>
           { u = Unsqueeze(x, a)  v = Expand(u, e)  w = Reshape(v, s)  y = Relu(w) }""",
        """(float[N,2,16] x) => (float[N,2,48] y) <int64[1] a = {2}, int64[4] e = {1,1,3,1}, int64[3] s = {0,2,48}>
           { u = Unsqueeze(x, a)  v = Expand(u, e)  w = Reshape(v, s)  y = Relu(w) }""",
        """(float[N,2,1,16] x) => (float[N,6,5,16] y)
           <int64[1] a = {2}, int64[5] e = {1,1,3,5,1}, int64[4] s = {0,6,5,16}>
           { u = Unsqueeze(x, a)  v = Expand(u, e)  w = Reshape(v, s)  y = Relu(w) }""",
    ],
)
def repeated_places(m: Match, b: Builder) -> Value | Miss:
    """An axis whose every place is repeated is a Gather of each place several times."""
    axes, wide, dims = axes_given(m.node(_UNIT)), m[_EXPANDED].shape, m[x].shape
    if axes is None or len(axes) != 1 or axes[0] < 1 or wide is None or dims is None:
        return b.no("not one axis, or the shape is not known")
    axis = axes[0] - 1
    size, count = size_along(m[x], axis), size_along(m[_EXPANDED], axis + 1)
    if size is None or count is None or size * count > _MAX_PLACES:
        return b.no("how often is not known, or too often")
    block = [dim for dim in dims[axis + 1 :] if isinstance(dim, int)]
    if int(np.prod(block)) < _MIN_BLOCK:
        return b.no("a Gather of single elements is slow")
    if len(wide) != len(dims) + 1 or not all(map(same_dim, (*wide[: axis + 1], *wide[axis + 2 :]), dims)):
        return b.no("it grows along other axes")
    result: Value = b.Gather(m[x], np.repeat(np.arange(size, dtype=np.int64), count), axis=axis)
    return result if same_shape(result, m.root.results[0]) else b.no("it is reshaped to another shape")
