"""A tensor that is viewed in another shape anyway is viewed once: what is computed of it is computed in that shape."""

from __future__ import annotations

from graphopt import Builder, Context, Graph, Node, Value, graph_pass
from passes._proofs import same_shape
from passes._view_carriers import carried, change, is_exact, may_carry
from passes._view_shapes import VIEWS, is_view

_MOST_READERS = 16
"""Readers of a tensor that are looked at."""


@graph_pass(
    before="""(float[N,6] x) => (float[N,6,1] y) <float c = {3.0}, int64[1] a = {2}>
              { u = Unsqueeze(x, a)  e = Mul(x, c)  v = Unsqueeze(e, a)  y = Add(u, v) }""",
    after="""(float[N,6] x) => (float[N,6,1] y) <float c = {3.0}, int64[1] a = {2}>
             { u = Unsqueeze(x, a)  v = Mul(u, c)  y = Add(u, v) }""",
    unless=[
        # Another shape.
        """(float[2,6] x) => (float[2,6,1] y, float[2,3,2] z) <float c = {3.0}, int64[1] a = {2}, int64[3] s = {2,3,2}>
           { u = Reshape(x, s)  e = Mul(x, c)  v = Unsqueeze(e, a)  y = Exp(v)  z = Exp(u) }""",
        # What is computed is needed in its own shape too.
        """(float[2,6] x) => (float[2,6,1] y, float[2,6] e) <float c = {3.0}, int64[1] a = {2}>
           { u = Unsqueeze(x, a)  e = Mul(x, c)  v = Unsqueeze(e, a)  y = Add(u, v) }""",
        # Each row by a number of its own.
        """(float[2,6] x, float[2,1] c) => (float[12] y) <int64[1] s = {12}>
           { u = Reshape(x, s)  e = Mul(x, c)  v = Reshape(e, s)  y = Add(u, v) }""",
        "(float[2,6] x) => (float[2,6,1] y) <int64[1] a = {2}> { e = Abs(x)  v = Unsqueeze(e, a)  y = Exp(v) }",
    ],
)
def compute_in_view(graph: Graph, context: Context) -> None:
    """What is computed element by element and then viewed as its operand is, is computed of the view."""
    for op_type in VIEWS:
        for view in graph.of_kind(op_type):
            value = view.operand(0)
            if value is None or not is_view(view) or view.is_pinned or context.keeps(view):
                continue
            node = value.producer
            if node.graph is not graph or not may_carry(node) or value.users != [view] or not _is_free(node, context):
                continue
            built = _beside_twin(node, view, graph, context)
            if built is not None:
                with context.rewrite(graph):
                    context.replace(view.result, *built)
                    if not node.is_used:
                        graph.erase(node)


def _is_free(node: Node, context: Context) -> bool:
    return not (node.is_pinned or context.keeps(node)) and len(node.results) == 1 and is_exact(node)


def _beside_twin(node: Node, view: Node, graph: Graph, context: Context) -> tuple[Value, Builder] | None:
    """The node's result, computed of a view of an operand that there is already; None if there is no such view."""
    for operand in dict.fromkeys(node.operands):
        if operand is None or operand.const is not None or len(operand.users) > _MOST_READERS:
            continue
        for twin in operand.users:
            if twin is view or twin.graph is not node.graph or not is_view(twin) or twin.operand(0) is not operand:
                continue
            if not same_shape(twin.result, view.result):
                continue
            shapes, b = change(operand, twin.result), context.builder(graph)
            result = None if shapes is None else carried(b, node, shapes)
            if result is None or sum(made.is_operator for made in b.nodes) > 1:
                continue
            if same_shape(result, view.result) and result.dtype is view.result.dtype:
                return result, b
    return None
