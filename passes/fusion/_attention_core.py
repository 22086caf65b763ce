"""An attention found from its softmax: what it multiplies, scales, masks and gives, whatever is written around it.

`find_attention(softmax, context)` walks from a Softmax down to the product with the values and up to the product of
queries and keys, and from there through every view to the layers that made the three of them. It returns an
`AttentionCore`, or a sentence that says why this is no attention that can be described. It changes nothing.

How to use it: decide on an operator; build it from `core.query`, `core.key` and `core.value`, whose `layouts` list
every tensor on the way from the product up to the layer, each with its axes (`highest(side, core.heads)` picks the one
nearest to the layer whose rows are `[batch, sequence, columns]`), and from `core.scale`, `core.softcap` and
`core.masks`; then put the new value in place of `core.output` with `replace(core, new, builder, context)`, which takes
away what nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt import Builder, Context, DType, Expr, Graph, Node, Value, symbol
from passes._dim_names import hint_for_sizes
from passes._proofs import Dim
from passes.fusion._attention_layout import COLUMNS, ROWS, is_same
from passes.fusion._attention_rows import Rows
from passes.fusion._attention_scores import (
    FLOATS,
    Mask,
    Scores,
    distance,
    doubt_of_cover,
    down,
    is_over_last,
    shapes_of,
    up,
)
from passes.fusion._attention_sides import Heads, Side, merged_behind, merged_width, side_of

__all__ = ["AttentionCore", "Mask", "Side", "distance", "erase_unread", "find_attention", "replace"]


_LARGEST_SCALE = 2.0**16
"""Of scores that overflow each kernel makes something else."""


@dataclass(slots=True)
class AttentionCore:
    """An attention.

    Attributes:
        softmax: The Softmax.
        product: The product of queries and keys.
        root: The product with the values.
        query: The queries.
        key: The keys, `rows` of them.
        value: The values; their `width` may differ.
        heads: How many heads.
        scale: What the product of queries and keys is multiplied by, all scales taken together.
        softcap: The bound of the scores by a scaled Tanh, 0 for none; it is applied after the scale.
        masks: What is added to the scores or replaces them, in the order in which it happens, after the softcap.
        is_guarded: True if NaN after the softmax becomes 0: rows that see no key at all give zeros.
        is_causal: True if, beside the masks, each query sees the keys up to its own position only.
        head_scales: What the scores of each head are multiplied by beside `scale`; None for nothing.
        is_shared: True if keys and values have one head, which the products stretch to those of the queries.
        shapes: What asks for the shape of the scores, and has to be told from queries and keys.
        precision: The type the softmax is computed in, None where it is that of the operands.
        nodes: What is private to the attention: product, masks' operators, softmax, guard and root.
        output: The value that the attention ends in: rows of heads if it has that form, else the root's result.
        merged: True if `output` holds all heads of a position in order, `[batch, sequence, heads * width]` or a view.
        views: The nodes between root and output.
    """

    softmax: Node
    product: Node
    root: Node
    query: Side
    key: Side
    value: Side
    heads: int
    scale: float
    softcap: float
    masks: tuple[Mask, ...]
    is_guarded: bool
    precision: DType | None
    nodes: dict[Node, None]
    output: Value
    merged: Rows | None
    views: tuple[Node, ...] = ()
    is_causal: bool = False
    head_scales: NDArray[np.float64] | None = None
    is_shared: bool = False
    shapes: tuple[Node, ...] = ()

    @property
    def dtype(self) -> DType:
        """The element type of the operands."""
        found = self.root.results[0].dtype
        assert found is not None
        return found

    @property
    def sides(self) -> tuple[Side, Side, Side]:
        """Queries, keys and values."""
        return self.query, self.key, self.value


def find_attention(
    softmax: Node, context: Context, *, by_head: bool = False, shared: bool = False, shaped: bool = False
) -> AttentionCore | str:
    """The attention around a Softmax, or why there is none.

    Args:
        softmax: A Softmax of the standard domain.
        context: The run; nodes that the user keeps are left alone.
        by_head: Also one whose heads are scaled each by a number of its own, `head_scales`.
        shared: Also one whose keys and values have a single head, `is_shared`.
        shaped: Also one whose scores are asked for their shape, `shapes`.

    Returns:
        The attention, or a sentence without a full stop.
    """
    scores = softmax.operand(0)
    if scores is None or scores.rank is None or not is_over_last(softmax, scores.rank):
        return "the softmax is not over the last axis"
    found = down(softmax)
    if isinstance(found, str):
        return found
    root, is_guarded, nodes, precision = found
    met = Scores([], nodes=nodes)
    product = up(scores, met, precision)
    if isinstance(product, str):
        return product
    if met.head_scales is not None and not by_head:
        return "the scores of each head are multiplied by a number of their own"
    met.nodes[product] = None
    shapes = shapes_of(product, context) if shaped else ()
    doubt = doubt_of_cover(met.nodes, root, context, shapes)
    if doubt:
        return doubt
    core = _described(softmax, product, root, met, is_guarded, precision, shared)
    if isinstance(core, AttentionCore):
        core.shapes = shapes
    return core


def _described(
    softmax: Node, product: Node, root: Node, met: Scores, is_guarded: bool, precision: DType | None, shared: bool
) -> AttentionCore | str:
    query, key, value = product.operands[0], product.operands[1], root.operands[1]
    if query is None or key is None or value is None:
        return "an operand is missing"
    if query.dtype not in FLOATS or query.dtype is not value.dtype:
        return "the element types differ"
    shapes = [item.shape for item in (query, key, value)]
    if query.shape is None or key.shape is None or value.shape is None:
        return "shapes are unknown"
    if len(value.shape) != len(query.shape) and {len(value.shape), len(query.shape)} != {3, 4}:
        return f"scores are made of tensors of {len(query.shape)} axes, and meet values of {len(value.shape)}"
    if doubt := _doubt_of_batches([item.shape for item in (query, key, value) if item.shape is not None]):
        return doubt
    if key.const is not None or value.const is not None:
        return "keys or values are constant"
    width, value_width = query.shape[-1], value.shape[-1]
    if not isinstance(width, int) or key.shape[-2] != width:
        width = key.shape[-2]
    if not isinstance(width, int) or not isinstance(value_width, int):
        return f"the size of a head is unknown{hint_for_sizes(width, value_width)}"
    heads = Heads()
    least, rank = sorted((len(query.shape), len(value.shape)))
    is_shared = False
    if rank > 3:
        # Where scores are folded between the products, those of three axes tell nothing by themselves.
        counts = [shape[-3] if shape is not None and len(shape) > 3 else None for shape in shapes]
        is_shared = shared and counts[1:] == [1, 1] and isinstance(counts[0], int) and counts[0] > 1
        apart = [shape[-3] for shape in shapes if shape is not None and len(shape) > 3][: 1 if is_shared else None]
        known = [count for count in apart if isinstance(count, int)]
        heads.count = known[0] if known else None
        wanted = heads.count if heads.count is not None else apart[0]
        if not all(is_same(count, wanted) or _is_forced(count, heads.count) for count in apart):
            return "queries, keys and values have different numbers of heads, or may have"
        end = merged_width(root)
        if heads.count is None and end is not None and value_width and end % value_width == 0:
            heads.count = end // value_width
        if heads.count is None:
            return "the number of heads is unknown"
    sides = []
    for item, axes, size in (
        (query, (ROWS, COLUMNS), width),
        (key, (COLUMNS, ROWS), width),
        (value, (ROWS, COLUMNS), value_width),
    ):
        own = Heads(1) if is_shared and item is not query else heads
        side = side_of(item, axes, size, own, is_scaled=item is not value)
        sides.append(side)
    # How many heads there are may only have come out with the keys.
    if least == 3:
        sides = [
            side_of(item, axes, size, heads, is_scaled=item is not value)
            for item, axes, size in (
                (query, (ROWS, COLUMNS), width),
                (key, (COLUMNS, ROWS), width),
                (value, (ROWS, COLUMNS), value_width),
            )
        ]
    if heads.is_torn:
        return "queries, keys and values are divided into different numbers of heads"
    count = heads.count or 1
    output, rows, views = merged_behind(root, count, value_width, sides)
    scale = met.factor * sides[0].scale * sides[1].scale
    if not 0 < abs(scale) < _LARGEST_SCALE:
        return "the scale is no number, 0, or so large that scores overflow"
    return AttentionCore(
        softmax,
        product,
        root,
        sides[0],
        sides[1],
        sides[2],
        count,
        scale,
        met.softcap,
        tuple(reversed(met.masks)),
        is_guarded,
        precision,
        met.nodes,
        output,
        rows,
        views,
        head_scales=met.head_scales,
        is_shared=is_shared,
    )


def _doubt_of_batches(shapes: Sequence[tuple[Dim, ...]]) -> str:
    """Why batches of several axes may be stretched on the way: as one axis they tell nothing of that."""
    parts = [shape[:-3] for shape in shapes if len(shape) > 4]
    if all(all(map(is_same, item, parts[0])) for item in parts):
        return ""
    return "the batches of queries, keys and values have several axes, not all of them the same"


def _is_forced(count: Dim, heads: int | None) -> bool:
    """True for a multiple of a number of heads: no product stretches it, so that it is that number where one runs."""
    if heads is None or heads < 2 or not isinstance(count, Expr):
        return False
    return symbol.divide_exactly(count, heads) is not None


def replace(
    core: AttentionCore,
    new: Value,
    builder: Builder,
    context: Context,
    others: Sequence[tuple[Value, Value]] = (),
    layers: Sequence[Node] = (),
) -> None:
    """Put a value in place of what the attention gives, and take away what nobody reads any more.

    Args:
        core: The attention.
        new: A value of the type of `core.output`.
        builder: What made it.
        context: The run.
        others: More values with what stands for them.
        layers: Nodes above queries, keys and values that may be unread now.
    """
    graph = core.root.graph
    assert graph is not None
    gone = [*core.views, *core.nodes, *(old.producer for old, _ in others)]
    gone += (layout.value.producer for side in core.sides for layout in side.layouts[:-1])
    gone += layers
    with context.rewrite(graph):
        context.replace(core.output, new, builder)
        for old, value in others:
            graph.replace_uses(old, value)
        erase_unread(graph, gone, context)


def erase_unread(graph: Graph, nodes: Sequence[Node], context: Context) -> None:
    """Take away nodes that nobody reads, and then those that only they read, among `nodes` alone."""
    pending = list(dict.fromkeys(nodes))
    left = dict.fromkeys(pending)
    while pending:
        node = pending.pop()
        if node.graph is not graph or node.is_used or node.is_pinned or context.keeps(node) or not node.is_operator:
            continue
        makers = [value.producer for value in node.operands if value is not None]
        graph.erase(node)
        pending += [maker for maker in makers if maker in left]
