"""Tensors stacked along a new axis are put together along the next one and get the axis afterwards, all at once."""

from __future__ import annotations

from graphopt import Builder, Context, Graph, Kind, Node, Tensor, Value, graph_pass
from passes._concats import axis_of_concat
from passes._proofs import same_dim
from passes._view_shapes import View, is_view, target_of

_PICKS = ("Gather", "Slice", "Split")


@graph_pass(
    before="""(float[N,2,3] x) => (float[N,2,2,3] y) <int64[1] a = {1}>
              { e = Exp(x)  f = Sqrt(x)  u = Unsqueeze(e, a)  v = Unsqueeze(f, a)
                c = Concat<axis = 1>(u, v)  y = Relu(c) }""",
    after="""(float[N,2,3] x) => (float[N,2,2,3] y) <int64[4] s = {0,2,2,3}>
             { e = Exp(x)  f = Sqrt(x)  c = Concat<axis = 1>(e, f)  r = Reshape(c, s)  y = Relu(r) }""",
    unless=[
        # The new axis is the last one: the elements would stand in another order.
        """(float[2,3] x) => (float[2,3,2] y) <int64[1] a = {2}>
           { e = Exp(x)  f = Sqrt(x)  u = Unsqueeze(e, a)  v = Unsqueeze(f, a)
             c = Concat<axis = 2>(u, v)  y = Relu(c) }""",
        # As many operators as before.
        """(float[2,3] x, float[1,2,3] z) => (float[2,2,3] y) <int64[1] a = {0}>
           { u = Unsqueeze(x, a)  c = Concat<axis = 0>(u, z)  y = Relu(c) }""",
        """(float[2,3] x) => (float[2,2,3] y, float[1,2,3] z) <int64[1] a = {0}>
           { e = Exp(x)  f = Sqrt(x)  z = Unsqueeze(e, a)  v = Unsqueeze(f, a)
             c = Concat<axis = 0>(z, v)  y = Relu(c) }""",
        # Keys and values of an attention: the runtime knows them by that.
        """(float[2,3] x) => (float[2,2,3] y) <int64[1] a = {0}>
           { e = Exp(x)  f = Sqrt(x)  u = Unsqueeze(e, a)  v = Unsqueeze(f, a)  y = Concat<axis = 0>(u, v) }""",
        # Of a stack the parts can be taken.
        """(float[2,3] x, int64 i) => (float[2,3] y) <int64[1] a = {0}>
           { e = Exp(x)  f = Sqrt(x)  u = Unsqueeze(e, a)  v = Unsqueeze(f, a)
             c = Concat<axis = 0>(u, v)  y = Gather(c, i) }""",
    ],
)
def axis_after_concat(graph: Graph, context: Context) -> None:
    """Parts that each get an axis to be put together along get it afterwards as one."""
    for node in graph.of_kind("Concat"):
        if node.is_pinned or context.keeps(node) or len(node.operands) < 2 or _is_known_otherwise(node):
            continue
        axis, b = axis_of_concat(node), context.builder(graph)
        parts = None if axis is None else [_without(value, axis, b) for value in node.operands]
        if axis is None or parts is None or None in parts or len(_needless(node, context)) < 2:
            continue
        joined = _joined(node, [part for part in parts if part is not None], axis, b)
        if joined is not None:
            views = _needless(node, context)
            with context.rewrite(graph):
                context.replace(node.result, joined, b)
                for view in views:
                    if not view.is_used:
                        graph.erase(view)


def _is_known_otherwise(node: Node) -> bool:
    users = node.result.users
    return any(user.op_type in _PICKS for user in users) or (
        len(node.operands) == 2 and any(user.kind is Kind.RETURN for user in users)
    )


def _without(value: Value | None, axis: int, b: Builder) -> Value | None:
    """A part before it got the axis; None if that is not what made it."""
    if value is None or value.shape is None or value.shape[axis] != 1:
        return None
    shape = (*value.shape[:axis], *value.shape[axis + 1 :])
    if value.const is not None:
        sizes = tuple(dim for dim in shape if isinstance(dim, int))
        tensor = value.const
        return b.constant(Tensor(tensor.dtype, sizes, lambda: tensor.numpy().reshape(sizes)))
    view = value.producer
    source = view.operand(0) if is_view(view) else None
    if source is None or source.shape is None or len(source.shape) != len(shape):
        return None
    return source if all(map(same_dim, source.shape, shape)) else None


def _needless(node: Node, context: Context) -> list[Node]:
    """The views that nobody but a Concat needs."""
    makers = dict.fromkeys(value.producer for value in node.operands if value is not None and value.const is None)
    return [
        maker
        for maker in makers
        if maker.graph is node.graph and maker.result.users == [node] and not (maker.is_pinned or context.keeps(maker))
    ]


def _joined(node: Node, parts: list[Value], axis: int, b: Builder) -> Value | None:
    """The parts put together and viewed with the new axis."""
    shape, result = parts[0].shape, node.result.shape
    if shape is None or result is None:
        return None
    if axis == len(shape):
        if not axis or shape[-1] != 1:
            return None
        axis -= 1
    whole: Value = b.Concat(*parts, axis=axis)
    target = None if whole.shape is None else target_of(whole.shape, result)
    return None if target is None else View("Reshape", target).build(b, whole)
