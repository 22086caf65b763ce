"""The shape of the scores of an attention, for those who ask for it once the scores are computed nowhere."""

from __future__ import annotations

from graphopt import Builder, DType, Node, Value, symbol
from passes.fusion._attention_core import AttentionCore, Side
from passes.fusion._attention_masks import length_of
from passes.fusion._attention_operands import projected


def shape_of_scores(core: AttentionCore, node: Node, b: Builder) -> Value:
    """What a Shape of the product of queries and keys gives, without the product.

    Args:
        core: The attention.
        node: The Shape, of some axes or all.
        b: The builder.
    """
    query, key = core.product.operands
    assert query is not None
    assert key is not None
    assert query.shape is not None
    last = len(query.shape) - 1
    ends = (int(node.attributes.get("start", 0)), int(node.attributes.get("end", last + 1)))
    dims = []
    for axis in range(last + 1)[slice(*ends)]:
        is_of_key = axis == last or (axis < last - 1 and query.shape[axis] == 1)
        side, value = (core.key, key) if is_of_key else (core.query, query)
        dims.append(_from_layer(core, side, value, axis, b))
    if len(dims) < 2:
        return dims[0] if dims else b.constant([], DType.INT64)
    result: Value = b.Concat(*dims, axis=0)
    return result


def _from_layer(core: AttentionCore, side: Side, value: Value, axis: int, b: Builder) -> Value:
    """The length of an axis, read from what the layer is applied to where that tells: the layer itself may go."""
    dim = (value.shape or ())[axis]
    found = projected(side, core.heads)
    source = side.source if found is None else found[0].x
    if dim is None or isinstance(dim, int):
        return length_of(b, value, axis)
    for place, own in enumerate(source.shape or ()):
        if own is None or isinstance(own, int):
            continue
        times = symbol.divide_exactly(dim, own)
        if times == 1:
            return length_of(b, source, place)
        if isinstance(times, int):
            counted: Value = b.Mul(length_of(b, source, place), b.constant([times], DType.INT64))
            return counted
    return length_of(b, value, axis)
