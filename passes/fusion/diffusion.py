"""Writes the feed-forward layers and residuals of diffusion networks as the kernels ONNX Runtime has for their widths.

BiasSplitGelu and BiasAdd take three dims and a few widths only. They start one block of threads for each row, and fail
where there is none: where a dim may be 0, they are written in the aggressive mode. A gated layer that this leaves out
becomes two, which is the next best on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from graphopt import Builder, Context, Graph, Node, Tensor, Value, graph_pass
from passes._constant_products import product_of, weight_of
from passes._cover import Cover
from passes._proofs import is_never_empty, same_dim, same_shape, type_name
from passes._vectors import as_vector, is_last_axis_vector
from passes._weights import Array
from passes.fusion import CUDA_ONLY

TARGETS = CUDA_ONLY

_GATED_WIDTHS = (2560, 5120, 10240)
"""What BiasSplitGelu reads: twice the widths it writes."""
_SUM_WIDTHS = (320, 640, 1280)
_MICROSOFT = "com.microsoft"


@graph_pass(
    before="""(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y) {
        s = Add(c, x)
        l, r = Split<axis = -1, num_outputs = 2>(s)
        g = com.microsoft.Gelu(r)
        y = Mul(l, g)
    }""",
    after="""(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y) { y = com.microsoft.BiasSplitGelu(x, c) }""",
    unless=[
        # The other half is gated.
        """(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(l)  y = Mul(r, g)
        }""",
        # A width that there is no kernel for.
        """(float[2,3,256] x, float[256] c) => (float[2,3,128] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # Not halves, and not of the last axis.
        """(float[2,3,2560] x, float[2560] c) => (float[2,3,2559] y) <int64[2] n = {1, 2559}> {
            s = Add(c, x)  l, r = Split<axis = -1>(s, n)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[2,2,2560] x, float[2560] c) => (float[2,1,2560] y) {
            s = Add(c, x)  l, r = Split<axis = 1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # Two or four dims.
        """(float[3,2560] x, float[2560] c) => (float[3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # The sum is a result, or what is gated is read again.
        """(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y, float[2,3,2560] s) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  m = Mul(l, g)
            y = Mul(m, l)
        }""",
        # Rows there may be none of, another sum, another type.
        """(float[2,N,2560] x, float[2560] c) => (float[2,N,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[2,3,2560] x, float[3,2560] c) => (float[2,3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(double[2,3,2560] x, double[2560] c) => (double[2,3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # A value that the bias stretches, and something random in between.
        """(float[2,3,1] x, float[2560] c) => (float[2,3,1280] y) {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[2,3,2560] x, float[2560] c) => (float[2,3,1280] y) <float share = {0.5}, bool yes = {1}> {
            s = Add(c, x)  l, r = Split<axis = -1, num_outputs = 2>(s)  g = com.microsoft.Gelu(r)
            d = Dropout(g, share, yes)  y = Mul(l, d)
        }""",
    ],
    numeric="R",
    opset=18,
)
def bias_split_gelu(graph: Graph, context: Context) -> None:
    """One half of a biased layer times the Gelu of the other is BiasSplitGelu."""
    for gate in _gates(graph):
        _fuse(gate, context)


@graph_pass(
    before="""(float[N,3,2] x) => (float[N,3,2] y)
              <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
        p = MatMul(x, w)
        s = Add(p, c)
        l, r = Split<axis = -1, num_outputs = 2>(s)
        g = com.microsoft.Gelu(r)
        y = Mul(l, g)
    }""",
    after="""(float[N,3,2] x) => (float[N,3,2] y)
             <float[2,2] u = {1,2, 5,6}, float[2] a = {1,-1}, float[2,2] v = {3,4, 7,8}, float[2] b = {2,-2}> {
        q = MatMul(x, v)
        g = com.microsoft.BiasGelu(q, b)
        p = MatMul(x, u)
        l = Add(p, a)
        y = Mul(l, g)
    }""",
    unless=[
        # Somebody else reads the weight, the product, or one of the halves.
        """(float[N,3,2] x, float[N,3,2] z) => (float[N,3,2] y, float[N,3,4] o)
           <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
            o = MatMul(z, w)  p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = -1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[N,3,2] x) => (float[N,3,2] y, float[N,3,4] p)
           <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
            p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = -1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[N,3,2] x) => (float[N,3,2] y, float[N,3,2] l)
           <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
            p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = -1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # A weight that is fed, and no bias.
        """(float[N,3,2] x, float[2,4] w) => (float[N,3,2] y) <float[4] c = {1,-1,2,-2}> {
            p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = -1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[N,3,2] x) => (float[N,3,2] y) <float[2,4] w = {1,2,3,4, 5,6,7,8}> {
            p = MatMul(x, w)  l, r = Split<axis = -1, num_outputs = 2>(p)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        # A half multiplied by its own Gelu.
        """(float[N,3,2] x) => (float[N,3,2] y, float[N,3,2] l)
           <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
            p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = -1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(r, g)
        }""",
        # Halves of another axis, and something random in between.
        """(float[N,4,2] x) => (float[N,2,4] y) <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}> {
            p = MatMul(x, w)  s = Add(p, c)  l, r = Split<axis = 1, num_outputs = 2>(s)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
        """(float[N,3,2] x) => (float[N,3,2] y)
           <float[2,4] w = {1,2,3,4, 5,6,7,8}, float[4] c = {1,-1,2,-2}, float share = {0.5}, bool yes = {1}> {
            p = MatMul(x, w)  s = Add(p, c)  d = Dropout(s, share, yes)  l, r = Split<axis = -1, num_outputs = 2>(d)
            g = com.microsoft.Gelu(r)  y = Mul(l, g)
        }""",
    ],
    numeric="R",
    opset=18,
)
def gated_layers(graph: Graph, context: Context) -> None:
    """Where BiasSplitGelu does not fit, each half is a layer of its own, and Gelu takes its bias."""
    for gate in _gates(graph):
        _part(gate, context)


@dataclass(frozen=True, slots=True)
class _Gate:
    """One half of a sum times the Gelu of the other.

    Attributes:
        cover: The nodes from the sum on; its root is the product.
        add: The sum.
        gated: Which half Gelu is of.
    """

    cover: Cover
    add: Node
    gated: int


def _gates(graph: Graph) -> list[_Gate]:
    gelus = [*graph.of_kind("Gelu", _MICROSOFT), *graph.of_kind("Gelu")]
    gates = [_gate(node) for node in gelus if node.graph is graph]
    return [gate for gate in gates if gate is not None]


def _gate(gelu: Node) -> _Gate | None:
    if not gelu.domain and gelu.param("approximate") != "none":
        return None
    use, half = gelu.results[0].sole_use(), gelu.operand(0)
    if use is None or half is None or not use[0].is_op("Mul") or use[0].graph is not gelu.graph:
        return None
    product, split = use[0], half.producer
    other = product.operand(1 - use[1])
    if not split.is_op("Split") or len(split.results) != 2 or other is not split.results[1 - half.index]:
        return None
    cover = Cover(product)
    cover.nodes |= {gelu: None, split: None}
    total = split.operand(0)
    add = cover.enter(total, "Add")
    if add is None or total is None or total.rank is None or split.param("axis") not in (-1, total.rank - 1):
        return None
    if half.shape is None or other.shape is None or not same_dim(half.shape[-1], other.shape[-1]):
        return None
    return _Gate(cover, add, half.index)


def _fuse(gate: _Gate, context: Context) -> None:
    total = gate.add.results[0]
    found = _value_and_bias(gate.add)
    if found is None or total.rank != 3 or gate.gated != 1 or total.shape is None:
        return
    width = total.shape[2]
    if width not in _GATED_WIDTHS:
        context.note(f"a gated Gelu is not BiasSplitGelu: that has no kernel for a width of {width}")
        return
    if not context.target.runs("BiasSplitGelu", total.dtype):
        context.note(f"a gated Gelu is not BiasSplitGelu: {context.target.name} has none for {type_name(total.dtype)}")
        return
    value, bias = found
    if _has_rows(value, context, "a gated Gelu is not BiasSplitGelu"):
        gate.cover.replace(context, lambda b: b.microsoft.BiasSplitGelu(value, as_vector(b, bias)))


def _part(gate: _Gate, context: Context) -> None:
    found = _value_and_bias(gate.add)
    product = None if found is None else gate.cover.enter(found[0], "MatMul")
    layer = None if product is None else product_of(product)
    if found is None or layer is None or found[1].const is None:
        return
    bias, weight = found[1].const, layer.weight
    if len(weight_of(layer).uses) != 1 or bias.dtype is not weight.dtype:
        context.note("a gated layer stays whole: somebody else reads its weight")
        return
    if not context.target.runs("BiasGelu", weight.dtype) or weight.shape[1] % 2:
        return
    x, half, vector = layer.operand, weight.shape[1] // 2, bias.numpy().reshape(-1)

    def build(b: Builder) -> Value:
        sides = []
        for place in (0, 1):
            columns = slice(place * half, (place + 1) * half)
            shape = (weight.shape[0], half)
            # Taken when it is read, and not held: both together would be a copy of the weight.
            part = Tensor.computed(weight.dtype, shape, partial(_columns, weight, columns))
            of = b.MatMul(x, b.constant(part))
            addend = b.constant(Tensor.from_numpy(np.ascontiguousarray(vector[columns]), bias.dtype))
            sides.append(b.microsoft.BiasGelu(of, addend) if place == gate.gated else b.Add(of, addend))
        result: Value = b.Mul(*sides)
        return result

    gate.cover.replace(context, build)


def _columns(weight: Tensor, which: slice) -> Array:
    return np.ascontiguousarray(weight.numpy()[:, which])


@graph_pass(
    before="""(float[2,3,320] x, float[320] c, float[2,3,320] r) => (float[2,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
    after="""(float[2,3,320] x, float[320] c, float[2,3,320] r) => (float[2,3,320] y) {
        y = com.microsoft.BiasAdd(x, c, r)
    }""",
    unless=[
        """(float[2,3,321] x, float[321] c, float[2,3,321] r) => (float[2,3,321] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        """(float[3,320] x, float[320] c, float[3,320] r) => (float[3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        # A residual or a sum that is stretched.
        """(float[2,3,320] x, float[320] c, float[1,3,320] r) => (float[2,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        """(float[2,1,320] x, float[320] c, float[2,3,320] r) => (float[2,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        # What is added is no vector, or the sum is read again.
        """(float[2,3,320] x, float[3,320] c, float[2,3,320] r) => (float[2,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        """(float[2,3,320] x, float[320] c, float[2,3,320] r) => (float[2,3,320] y, float[2,3,320] s) {
            s = Add(c, x)  y = Add(r, s)
        }""",
        """(float[N,3,320] x, float[320] c, float[N,3,320] r) => (float[N,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        """(double[2,3,320] x, double[320] c, double[2,3,320] r) => (double[2,3,320] y)
           { s = Add(c, x)  y = Add(r, s) }""",
        """(float[2,3,320] x, float[320] c, float[2,3,320] r) => (float[2,3,320] y)
           <float share = {0.5}, bool yes = {1}>
           { s = Add(c, x)  d = Dropout(s, share, yes)  y = Add(r, d) }""",
    ],
    numeric="R",
)
def bias_add(graph: Graph, context: Context) -> None:
    """A value, a vector along its last axis and a residual added up are BiasAdd."""
    for root in graph.of_kind("Add"):
        if root.graph is not graph or root.results[0].rank != 3 or not root.has_latest_meaning:
            continue
        for place in (0, 1):
            if _add(root, place, context):
                break


def _add(root: Node, place: int, context: Context) -> bool:
    cover = Cover(root)
    inner, residual = cover.enter(root.operand(place), "Add"), root.operand(1 - place)
    found = None if inner is None else _value_and_bias(inner)
    if found is None or residual is None or not cover.is_private or not same_shape(found[0], residual):
        return False
    value, bias = found
    if value.rank != 3 or value.shape is None or value.shape[2] not in _SUM_WIDTHS:
        return False
    if not context.target.runs("BiasAdd", value.dtype) or not _has_rows(value, context, "a biased sum stays in parts"):
        return False
    return cover.replace(context, lambda b: b.microsoft.BiasAdd(value, as_vector(b, bias), residual))


def _value_and_bias(add: Node) -> tuple[Value, Value] | None:
    """What an Add adds: a vector along the last axis of the other."""
    left, right = add.operand(0), add.operand(1)
    if left is None or right is None:
        return None
    for value, bias in ((left, right), (right, left)):
        if (value.rank or 0) > 1 and is_last_axis_vector(bias, value):
            return value, bias
    return None


def _has_rows(value: Value, context: Context, consequence: str) -> bool:
    if context.is_aggressive or is_never_empty(value):
        return True
    context.note(
        f"{consequence}: dims may be 0 and the kernel fails there; fix them with --fix-dim, or run it aggressively"
    )
    return False
