"""Regions of a graph that multiply what they give by a factor when what they read is multiplied by it.

A region reaches from a value back to the one layer that it is made by, over operators that move elements, add up what
comes from the layer, and multiply it by something else: views of heads, rotary embeddings, repeated keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt import Context, Graph, Node, Value
from passes._constant_products import product_of, with_bias_of
from passes._layers import LAYERS, Layer, layer_of
from passes._permutation import perm_of
from passes._proofs import axis_of, same_shape
from passes._selections import size_along
from passes._weights import Array

_MOVERS = frozenset(
    (
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze"),
    )
)
_MOST_NODES = 24


@dataclass(frozen=True, slots=True)
class Root:
    """The layer a region begins at.

    Attributes:
        layer: The layer, with its bias.
        nodes: The operators it consists of, the last first.
        columns: True for the output channels that the region reads.
    """

    layer: Layer
    nodes: tuple[Node, ...]
    columns: Array

    @property
    def result(self) -> Value:
        """What the layer gives, bias included."""
        return self.nodes[0].results[0]


def root_of(value: Value, reader: Node, graph: Graph, context: Context) -> Root | None:
    """The layer whose channels a value scales with, if nobody beside `reader` sees these; None if there is none."""
    region: dict[Node, None] = {}
    starts: dict[Value, None] = {}
    front = [value]
    while front:
        item = front.pop()
        node = item.producer
        if node in region:
            continue
        if node.graph is not graph or not node.is_operator or node.domain != "" or len(region) > _MOST_NODES:
            return None
        above = None if _may_begin(item) else _operands_scaled(node, item)
        if above is None:
            starts[item] = None
            continue
        if node.is_pinned or context.keeps(node):
            return None
        region[node] = None
        front.extend(above)
    values = [*starts, *(result for node in region for result in node.results)]
    # What the reader reads twice, as queries and as keys, would be scaled twice.
    outside = [(item, user) for item in values for user, _ in item.uses if user not in region]
    if outside != [(value, reader)]:
        return None
    if any(item not in starts and not item.is_used for item in values):
        return None
    return _layer_of(list(starts), graph, context) if len(starts) == 1 else None


def _may_begin(value: Value) -> bool:
    """True for one part of several that a layer's channels are shared out to, and for a layer."""
    node = value.producer
    if node.op_type == "Split" and node.operand(0) is not None:
        # All parts of one Split may belong to the region, as in a rotary embedding.
        source = node.operands[0]
        return source is not None and _packed_chain(source) is not None and axis_of(node, source.rank) is not None
    return node.op_type in LAYERS


def _operands_scaled(node: Node, value: Value) -> list[Value] | None:
    """The operands that must be scaled for a result to be scaled; None if there are none, or it is not clear which."""
    first = node.operand(0)
    if node.op_type in _MOVERS and first is not None:
        values = node.operands if node.op_type == "Concat" else (first,)
        return [item for item in values if item is not None]
    if node.op_type in ("Add", "Sub"):
        both = [item for item in node.operands if item is not None]
        return None if any(item.const is not None or _is_product(item) for item in both) else both
    if node.op_type in ("Mul", "Div"):
        candidates = [item for item in node.operands[: 1 if node.op_type == "Div" else 2] if item is not None]
        scaled = [item for item in candidates if item.const is None and same_shape(item, value)]
        return scaled if len(scaled) == 1 else None
    return None


def _is_product(value: Value) -> bool:
    return value.producer.op_type in LAYERS


def _layer_of(starts: list[Value], graph: Graph, context: Context) -> Root | None:
    value = starts[0]
    layer = _layer(value, graph, context)
    if layer is not None:
        return Root(layer[0], layer[1], np.ones(layer[0].channels or 0, bool))
    node = value.producer
    if node.op_type not in ("Split", "Gather"):
        return None
    source = node.operands[0]
    chain = None if source is None else _packed_chain(source)
    if chain is None:
        return None
    return _packed(value, chain, graph, context)


def _layer(value: Value, graph: Graph, context: Context) -> tuple[Layer, tuple[Node, ...]] | None:
    """The layer that gives a value, and its operators."""
    node = value.producer
    nodes: tuple[Node, ...] = (node,)
    found: Layer | str | None = None
    if node.is_op("Add") or node.is_op("Sub"):
        products = [item for item in node.operands if item is not None and item.producer.is_op("MatMul")]
        if len(products) != 1 or products[0].sole_use() is None:
            return None
        nodes = (node, products[0].producer)
        plain = product_of(products[0].producer)
        found = None if plain is None else with_bias_of(plain, node)
    elif node.is_op("MatMul"):
        found = product_of(node)
    elif node.op_type in LAYERS and node.is_op(node.op_type):
        found = layer_of(node)
    if found is None or isinstance(found, str) or found.channels is None:
        return None
    if any(item.graph is not graph or item.is_pinned or context.keeps(item) for item in nodes):
        return None
    return found, nodes


# --- queries, keys and values from one layer


def _packed_chain(value: Value) -> tuple[Node, ...] | None:
    """The views between a layer and what is shared out, last first, none of which anybody else reads."""
    views: list[Node] = []
    while value.producer.op_type in ("Reshape", "Transpose"):
        node = value.producer
        source = node.operand(0)
        if source is None or source.sole_use() != (node, 0) or len(views) > 4:
            return None
        views.append(node)
        value = source
    node = value.producer
    if node.op_type in LAYERS:
        return tuple(views)
    is_biased = node.op_type in ("Add", "Sub") and any(item is not None and _is_product(item) for item in node.operands)
    return tuple(views) if is_biased else None


def _packed(part: Value, chain: tuple[Node, ...], graph: Graph, context: Context) -> Root | None:
    """The layer of which a value is one part, and the channels that make it."""
    node = part.producer
    source = node.operands[0]
    assert source is not None
    base = chain[-1].operands[0] if chain else source
    found = None if base is None else _layer(base, graph, context)
    if base is None or found is None or found[0].axis != -1 or base.rank is None or base.shape is None:
        return None
    # All that matters of a view is where it puts the channels: the other dims may be taken to be 1.
    places = np.arange(found[0].channels or 0).reshape(*[1] * (base.rank - 1), -1)
    for view in reversed(chain):
        moved = _moved(view, places)
        if moved is None:
            return None
        places = moved
    axis = axis_of(node, source.rank)
    if axis is None or places.shape[axis] != size_along(source, axis):
        return None
    if node.op_type == "Split":
        if any(user is not node for user in source.users):
            return None
        sizes = [size_along(item, axis) for item in node.results]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        taken = np.split(places, np.cumsum(known)[:-1], axis)[part.index]
    else:
        index = _index(node)
        if index is None or any(_index(user) in (None, index) for user in source.users if user is not node):
            return None
        if any(axis_of(user, source.rank) != axis for user in source.users):
            return None
        taken = np.take(places, [index], axis)
    columns = np.zeros(found[0].channels or 0, bool)
    columns[taken.reshape(-1)] = True
    return Root(found[0], found[1], columns)


def _index(node: Node) -> int | None:
    """The one place that a Gather takes; None if it is something else."""
    index = node.operand(1) if node.is_op("Gather") else None
    number = None if index is None or index.const is None else index.const.scalar()
    return number if isinstance(number, int) and number >= 0 else None


def _moved(view: Node, places: Array) -> Array | None:
    """Where a view puts the channels, which `places` numbers, in dims of 1 for all others."""
    dims = view.results[0].shape
    if dims is None:
        return None
    if view.op_type == "Transpose":
        perm = perm_of(view)
        return None if perm is None else places.transpose(perm)
    if places.size != places.shape[-1]:
        return None
    # The dims behind, as many as make all channels; what stands before them may be arranged anew.
    count = 1
    for behind, dim in enumerate(reversed(dims), 1):
        if not isinstance(dim, int):
            return None
        count *= dim
        if count == places.size:
            return places.reshape(*[1] * (len(dims) - behind), *dims[len(dims) - behind :])
    return None
