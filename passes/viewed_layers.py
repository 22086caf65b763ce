"""Folds factors, addends and normalizations into a layer behind views: transposes, reshapes, squeezes.

Exporters scale a query after they have split it into heads, and normalize rows after they have flattened them. The
views only arrange what the layer gave, so that the arithmetic may as well stand before them, where the layer takes it.
"""

from __future__ import annotations

from graphopt import Builder, Context, Graph, Miss, Node, Value, graph_pass
from passes._affine import addend, multiplier, normalization_of
from passes._layers import LAYERS, Layer, along, biased_product, layer_of, with_output
from passes._proofs import axes_of, same_dim
from passes._weights import Array

_VIEWS = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_ARITHMETIC = ("Add", "BatchNormalization", "Div", "Mul", "Sub")


@graph_pass(
    before="""(float[N,4,2] x) => (float[N,2,4,1] y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}, float f = {4},
              int64[4] s = {0,4,2,1}>
              { p = MatMul(x, w)  z = Add(p, b)  r = Reshape(z, s)  t = Transpose<perm = [0,2,1,3]>(r)
                d = Div(t, f)  y = Relu(d) }""",
    after="""(float[N,4,2] x) => (float[N,2,4,1] y) <float[2,2] w = {0.25,0.5,0.75,1}, float[2] b = {0.25,0.5},
             int64[4] s = {0,4,2,1}>
             { p = MatMul(x, w)  z = Add(p, b)  r = Reshape(z, s)  t = Transpose<perm = [0,2,1,3]>(r)
               y = Relu(t) }""",
    unless=[
        # Without a bias there is nothing for a shift to go into.
        """(float[N,4,2] x) => (float[N,8] y) <float[2,2] w = {1,2,3,4}, float f = {4}, int64[2] s = {0,8}>
           { p = MatMul(x, w)  r = Reshape(p, s)  d = Add(r, f)  y = Relu(d) }""",
        # One factor for each place of a row, not for each channel.
        """(float[N,2,2] x) => (float[N,4] y) <float[2,2] w = {1,2,3,4}, float[4] f = {1,2,3,4}, int64[2] s = {0,4}>
           { p = MatMul(x, w)  r = Reshape(p, s)  d = Mul(r, f)  y = Relu(d) }""",
        """(float[3,2] x) => (float[2,3] y) <float[2,2] w = {1,2,3,4}, float[3] f = {1,2,3}>
           { p = MatMul(x, w)  r = Transpose<perm = [1,0]>(p)  d = Mul(r, f)  y = Relu(d) }""",
        # The view has another user.
        """(float[3,2] x) => (float[2,3] y, float[2,3] t) <float[2,2] w = {1,2,3,4}, float f = {2}>
           { p = MatMul(x, w)  t = Transpose<perm = [1,0]>(p)  y = Mul(t, f) }""",
        # More dims come out than went in.
        """(float[3,2] x) => (float[1,2,3] y) <float[2,2] w = {1,2,3,4}, float[1,1,1] f = {2}>
           { p = MatMul(x, w)  t = Transpose<perm = [1,0]>(p)  d = Mul(t, f)  y = Relu(d) }""",
    ],
    numeric="R",
)
def arithmetic_behind_views(graph: Graph, context: Context) -> None:
    """Arithmetic by constants behind views of a layer goes into the weight and bias of the layer."""
    found = [node for op_type in _ARITHMETIC for node in graph.of_kind(op_type) if node.has_latest_meaning]
    for node in sorted(found, key=lambda node: (node.rank, node.serial)):
        if not _may_go(node, context):
            continue
        operand = _operand(node)
        views = [] if operand is None else _views(operand, graph, context)
        layer = _layer(views[-1].operands[0], graph) if views else None
        affine = None if layer is None else _affine(node, views, layer)
        if layer is None or affine is None or (affine[0] is None and not _takes_shift(layer)):
            continue
        builder = context.builder(graph)
        made = with_output(layer, builder, *affine)
        if not isinstance(made, Miss):
            _put(node, views, layer, made, builder, context)


def _may_go(node: Node, context: Context) -> bool:
    return not (node.is_pinned or context.keeps(node))


def _operand(node: Node) -> Value | None:
    """What the arithmetic is applied to, if the rest is constant."""
    operands = node.operands[:1] if node.op_type == "BatchNormalization" else node.operands
    values = [value for value in operands if value is None or value.const is None]
    if len(values) != 1 or (node.op_type in ("Div", "Sub") and values[0] is not node.operands[0]):
        return None
    return values[0]


def _views(value: Value, graph: Graph, context: Context) -> list[Node]:
    """The views a value came through, last first, as far as nobody else reads what is between."""
    views: list[Node] = []
    while value.sole_use() is not None and value.producer.graph is graph:
        node = value.producer
        source = node.operand(0)
        if node.op_type not in _VIEWS or not node.is_op(node.op_type) or source is None or not _may_go(node, context):
            break
        views.append(node)
        value = source
    return views


def _layer(value: Value | None, graph: Graph) -> Layer | None:
    """The layer that gives a value which nobody else reads, with the bias behind a MatMul."""
    if value is None or value.sole_use() is None or value.producer.graph is not graph:
        return None
    node = value.producer
    if node.is_op("Add") or node.is_op("Sub"):
        products = [item for item in node.operands if item is not None and item.producer.is_op("MatMul")]
        if len(products) != 1 or products[0].sole_use() is None or products[0].producer.graph is not graph:
            return None
        found = biased_product(node, products[0].producer)
    else:
        if node.op_type not in LAYERS or not node.is_op(node.op_type):
            return None
        found = layer_of(node)
    return None if isinstance(found, str) or node.is_pinned or found.node.is_pinned else found


def _takes_shift(layer: Layer) -> bool:
    """True if a shift needs no operator of its own."""
    return layer.node.op_type != "MatMul" or layer.bias is not None


def _affine(node: Node, views: list[Node], layer: Layer) -> tuple[Array | None, Array | None] | None:
    """Scale and shift, for each channel of the layer; None if the arithmetic is something else."""
    axis = _axis_behind(views, layer)
    result = views[0].results[0]
    if node.op_type == "BatchNormalization":
        affine = normalization_of(node)
        if isinstance(affine, str) or axis != 1 or affine[0].size != layer.channels:
            return None
        return affine if layer.dtype is node.results[0].dtype else None
    constant = next(value.const for value in node.operands if value is not None and value.const is not None)
    if constant is None or constant.dtype is not layer.dtype or result.rank is None:
        return None
    from_end = 0 if axis is None else axis - result.rank
    numbers = along(constant, from_end, None if axis is None else layer.channels, result.rank)
    if numbers is None:
        return None
    if node.op_type in ("Mul", "Div"):
        factor = multiplier(node, numbers)
        return None if factor is None else (factor, None)
    shift = addend(node, numbers)
    return None if shift is None else (None, shift)


def _axis_behind(views: list[Node], layer: Layer) -> int | None:
    """Where the channels of a layer are behind the views; None if they are not one whole axis there."""
    rank = views[-1].operands[0].rank if views[-1].operands[0] is not None else None
    axis = None if rank is None or layer.channels is None else rank + layer.axis
    for view in reversed(views):
        axis = None if axis is None else _axis_after(view, axis)
    return axis


def _axis_after(view: Node, axis: int) -> int | None:
    source, result = view.operands[0], view.results[0]
    assert source is not None
    if source.shape is None or result.shape is None:
        return None
    if view.op_type == "Transpose":
        perm = view.param("perm") or tuple(reversed(range(len(source.shape))))
        return perm.index(axis) if isinstance(perm, tuple) and axis in perm else None
    if view.op_type == "Unsqueeze":
        added = axes_of(view, result.rank)
        return None if added is None else [place for place in range(len(result.shape)) if place not in added][axis]
    if view.op_type == "Squeeze":
        gone = axes_of(view, source.rank)
        return None if gone is None or axis in gone else axis - sum(place < axis for place in gone)
    # A row-major view keeps an axis whole where what stands behind it has the same shape.
    behind = len(source.shape) - axis
    if behind > len(result.shape) or not all(map(same_dim, source.shape[axis:], result.shape[-behind:])):
        return None
    return len(result.shape) - behind


def _put(node: Node, views: list[Node], layer: Layer, made: Value, builder: Builder, context: Context) -> None:
    """Replace arithmetic, views and layer by the new layer and views like those there were."""
    graph, source = node.graph, views[-1].operands[0]
    assert graph is not None
    assert source is not None
    made.producer.name = source.producer.name
    for view in reversed(views):
        made = builder.like(view, made, *view.operands[1:])
        made.producer.name = view.name
    with context.rewrite(graph):
        for item in builder.nodes:
            graph.insert(item, rank=node.rank)
        graph.replace_uses(node.results[0], made)
        for old in dict.fromkeys((node, *views, source.producer, layer.node)):
            graph.erase(old)
