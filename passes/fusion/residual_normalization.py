"""Gives a normalization the sum it reads: two tensors and a bias are added and normalized in one kernel.

The sum itself is its fourth result, for the next residual. For CUDA only: the kernel of the CPU provider takes several
times as long as the addition and the normalization one after the other, and rounds worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._dim_names import hint_for_pairs
from passes._proofs import same_dim, same_shape, type_name
from passes._vectors import as_vector, is_last_axis_vector
from passes.fusion import CUDA_ONLY

TARGETS = CUDA_ONLY

_SUM = 3
"""The result that is the sum before it is normalized."""


@dataclass(frozen=True, slots=True)
class _Addends:
    """What is added up.

    Attributes:
        value: The one that has the shape of the sum.
        skip: The other, which may be the same for the whole batch.
        bias: One number for each element of the last axis, added to one of them before.
        biased: The node that adds it.
    """

    value: Value
    skip: Value
    bias: Value | None = None
    biased: Node | None = None


@graph_pass(
    before="""(float[2,5,4] x, float[2,5,4] r) => (float[2,5,4] y, float[2,5,4] z)
              <float[4] b = {0.5, 1, -1, 2}, float[4] w = {1, 0.5, 2, 1.5}, float[4] c = {0, 0.1, 0.2, 0.3}> {
        a = Add(x, b)
        t = Add(a, r)
        y = LayerNormalization<axis = -1, epsilon = 0.001>(t, w, c)
        z = Relu(t)
    }""",
    after="""(float[2,5,4] x, float[2,5,4] r) => (float[2,5,4] y, float[2,5,4] z)
             <float[4] b = {0.5, 1, -1, 2}, float[4] w = {1, 0.5, 2, 1.5}, float[4] c = {0, 0.1, 0.2, 0.3}> {
        y, , , t = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, w, c, b)
        z = Relu(t)
    }""",
    unless=[
        # Another axis than the last.
        """(float[2,4,4] x, float[2,4,4] r, float[4,4] w) => (float[2,4,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = 1>(t, w) }""",
        # Statistics that are read.
        """(float[2,5,4] x, float[2,5,4] r, float[4] w, float[4] c) => (float[2,5,4] y, float[2,5,1] m)
           { t = Add(x, r)  y, m = LayerNormalization<axis = -1>(t, w, c) }""",
        # Addends that the operator does not stretch, or may not be equal.
        """(float[2,1,4] x, float[1,5,4] r, float[4] w) => (float[2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        """(float[2,5,4] x, float[2,1,4] r, float[4] w) => (float[2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        """(float[N,5,4] x, float[M,5,4] r, float[4] w) => (float[K,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        # More dims, or fewer, than the kernel takes.
        """(float[2,2,5,4] x, float[2,2,5,4] r, float[4] w) => (float[2,2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        """(float[4] x, float[4] r, float[4] w) => (float[4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        # A scale that is made of the sum, which is read elsewhere too.
        """(float[4,4] x, float[4,4] r) => (float[4,4] y) {
            t = Add(x, r)  w = ReduceMean<axes = [0], keepdims = 0>(t)  y = LayerNormalization<axis = -1>(t, w)
        }""",
        # There is no kernel for double, and none for a negative number.
        """(double[2,5,4] x, double[2,5,4] r, double[4] w) => (double[2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1>(t, w) }""",
        """(float[2,5,4] x, float[2,5,4] r, float[4] w) => (float[2,5,4] y)
           { t = Add(x, r)  y = LayerNormalization<axis = -1, epsilon = -0.001>(t, w) }""",
        # Something random in between.
        """(float[2,5,4] x, float[2,5,4] r, float[4] w) => (float[2,5,4] y) <float share = {0.5}, bool yes = {1}>
           { t = Add(x, r)  d = Dropout(t, share, yes)  y = LayerNormalization<axis = -1>(d, w) }""",
    ],
    numeric="R",
    largest=1e12,
    opset=17,
)
def skip_layer_normalization(graph: Graph, context: Context) -> None:
    """LayerNormalization of a sum is SkipLayerNormalization, which may add a bias too and give the sum."""
    for node in graph.of_kind("LayerNormalization"):
        _fuse(graph, node, context, "SkipLayerNormalization")


@graph_pass(
    before="""(float[2,5,4] x, float[5,4] r) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}> {
        t = Add(r, x)
        y = RMSNormalization<axis = -1, epsilon = 0.001>(t, w)
    }""",
    after="""(float[2,5,4] x, float[5,4] r) => (float[2,5,4] y) <float[4] w = {1.0, 0.5, 2.0, 1.5}> {
        y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, r, w)
    }""",
    unless=[
        """(float[2,5,4] x, float[5,4] r, float[5,4] w) => (float[2,5,4] y)
           { t = Add(r, x)  y = RMSNormalization<axis = 1>(t, w) }""",
        """(float[2,5,4] x, float[4] r, float[4] w) => (float[2,5,4] y)
           { t = Add(r, x)  y = RMSNormalization<axis = -1>(t, w) }""",
        """(float[2,5,4] x, float[2,5,4] r, float[1] w) => (float[2,5,4] y)
           { t = Add(r, x)  y = RMSNormalization<axis = -1>(t, w) }""",
        # An addend that stretches the rows, or the columns.
        """(float[2,1,4] x, float[2,5,4] r, float[4] w) => (float[2,5,4] y)
           { t = Add(r, x)  y = RMSNormalization<axis = -1>(t, w) }""",
        """(float[2,5,4] x, float[2,5,1] r, float[4] w) => (float[2,5,4] y)
           { t = Add(r, x)  y = RMSNormalization<axis = -1>(t, w) }""",
        """(float[2,5,4] x, float[2,5,4] r, float[4] w) => (float[2,5,4] y) <float share = {0.5}, bool yes = {1}>
           { t = Add(r, x)  d = Dropout(t, share, yes)  y = RMSNormalization<axis = -1>(d, w) }""",
    ],
    numeric="R",
    largest=1e12,
    opset=23,
)
def skip_rms_normalization(graph: Graph, context: Context) -> None:
    """RMSNormalization of a sum, under either name, is SkipSimplifiedLayerNormalization."""
    for node in [*graph.of_kind("RMSNormalization"), *graph.of_kind("SimplifiedLayerNormalization")]:
        _fuse(graph, node, context, "SkipSimplifiedLayerNormalization")


def _hint(total: Node) -> str:
    left, right = (item.shape if item is not None else None for item in total.operands)
    if left is None or right is None or len(left) != len(right):
        return ""
    return hint_for_pairs(*zip(left, right, strict=True))


def _fuse(graph: Graph, node: Node, context: Context, op_type: str) -> None:
    total = node.operand(0)
    scale, shift = node.operand(1), node.operand(2)
    if total is None or scale is None or not total.producer.is_op("Add") or total.producer.graph is not graph:
        return
    reason = _reason_against(node, total, scale, shift)
    addends = _addends(total) if not reason else None
    if not reason and addends is None:
        reason = (
            f"what is added before {node.op_type} is not known to have the same shape, or one for each of the batch"
            f"{_hint(total.producer)}"
        )
    if not reason and not context.target.runs(op_type, total.dtype):
        reason = f"{context.target.name} has no kernel of {op_type} for {type_name(total.dtype)}"
    if reason or addends is None:
        context.note(reason)
        return
    is_shared = len(total.users) > 1
    parts = [node, total.producer, *([] if addends.biased is None else [addends.biased])]
    if any(part.is_pinned or context.keeps(part) for part in parts):
        return
    if is_shared and not all(_is_given(value, graph) for value in (scale, shift, addends.bias)):
        context.note(f"what {node.op_type} scales by may be made of the sum that it reads")
        return
    b = context.builder(graph)
    operands: list[Value | None] = [addends.value, addends.skip, scale]
    if op_type == "SkipLayerNormalization":
        operands.append(shift)
    if addends.bias is not None:
        operands.append(as_vector(b, addends.bias))
    while operands[-1] is None:
        operands.pop()
    epsilon = node.param("epsilon")
    parameters = {"epsilon": 1e-5 if epsilon is None else epsilon}
    made = b.apply(
        op_type, operands, domain="com.microsoft", outputs=_SUM + 1 if is_shared else 1, parameters=parameters
    )
    for value in made[1:_SUM] if is_shared else ():
        value.name = ""  # the statistics, which the kernels leave out
    with context.rewrite(graph):
        context.replace(node.results[0], made[0] if is_shared else made, b)
        if is_shared:
            graph.replace_uses(total, made[_SUM])
        for part in parts:
            if part.graph is graph and not part.is_used:
                graph.erase(part)


def _reason_against(node: Node, total: Value, scale: Value, shift: Value | None) -> str:
    """Why the operator would compute something else; empty if nothing is known against it."""
    if any(value.is_used for value in node.results[1:]):
        return f"a statistic of {node.op_type} is read"
    if total.shape is None or total.rank not in (2, 3):
        return f"the sum before {node.op_type} has {total.rank} dims; the kernel that adds by itself takes 2 or 3"
    axis = node.param("axis")
    if axis is not None and axis not in (-1, total.rank - 1):
        return f"{node.op_type} goes over more than the last axis"
    if (node.param("epsilon") or 0) < 0:
        return f"the epsilon of {node.op_type} is negative, which the kernel that adds by itself does not take"
    for vector in (scale, shift):
        if vector is None:
            continue
        if vector.rank != 1 or vector.shape is None or not same_dim(vector.shape[0], total.shape[-1]):
            return f"the scale or shift of {node.op_type} is not one number for each element of the last axis"
        if vector.dtype is not total.dtype:
            return f"the scale or shift of {node.op_type} has another element type than the sum"
    return ""


def _addends(total: Value) -> _Addends | None:
    left, right = total.producer.operands
    if left is None or right is None:
        return None
    if same_shape(left, total) and _may_skip(right, total):
        value, skip = left, right
    elif same_shape(right, total) and _may_skip(left, total):
        value, skip = right, left
    else:
        return None
    for biased in (value, skip):
        found = _with_bias(biased, total)
        if found is not None:
            plain, bias = found
            pair = (plain, skip) if biased is value else (value, plain)
            return _Addends(*pair, bias, biased.producer)
    return _Addends(value, skip)


def _may_skip(skip: Value, total: Value) -> bool:
    """True if the kernel adds it to what has the shape of the sum: that shape, or one for every member of the batch.

    How long its first axis of three is need not be known: a sum of that shape exists only where it is 1 or the batch.
    """
    if skip.shape is None or total.shape is None:
        return False
    if same_shape(skip, total):
        return True
    return total.rank == 3 and skip.rank in (2, 3) and all(map(same_dim, skip.shape[-2:], total.shape[-2:]))


def _with_bias(value: Value, total: Value) -> tuple[Value, Value] | None:
    """What a bias is added to, and the bias, if nobody else reads that sum."""
    node = value.producer
    if not node.is_op("Add") or node.graph is not total.producer.graph or len(value.uses) != 1:
        return None
    for plain, bias in (node.operands, node.operands[::-1]):
        if plain is not None and bias is not None and bias.dtype is total.dtype and is_last_axis_vector(bias, plain):
            return plain, bias
    return None


def _is_given(value: Value | None, graph: Graph) -> bool:
    """True for what no node of the graph makes."""
    return value is None or not value.producer.is_operator or value.producer.graph is not graph
