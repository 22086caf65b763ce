"""The attention that the standard operator of opset 23 is."""

from __future__ import annotations

import math

from graphopt import Context, DType, Node, Value
from passes.fusion._attention_core import AttentionCore
from passes.fusion._attention_layout import COLUMNS, ROWS, Layout, is_same, walk_up
from passes.fusion._attention_rows import rows_of
from passes.fusion._attention_scores import FLOATS, Mask
from passes.fusion._attention_sides import Heads, Side, merged_behind, side_of, three


def find_standard_attention(node: Node, context: Context) -> AttentionCore | str:
    """The attention that the standard operator is: its own product, softmax and root.

    Args:
        node: An Attention of the standard domain.
        context: The run.

    Returns:
        The attention, or a sentence without a full stop.
    """
    query, key, value, mask = (node.operand(place) for place in range(4))
    if query is None or key is None or value is None or not query.shape or not key.shape or not value.shape:
        return "shapes are unknown"
    if any(node.operand(place) is not None for place in range(4, len(node.operands))):
        return "the standard operator reads a cache"
    if any(result.is_used for result in node.results[1:]) or node.is_pinned or context.keeps(node):
        return "the standard operator gives more than the attention"
    if int(node.param("softmax_precision") or 0) not in (0, int(query.dtype or 0), int(DType.FLOAT)):
        return "the softmax is computed in another precision"
    if any(int(node.attributes.get(name, -1)) != -1 for name in ("left_window_size", "right_window_size")):
        return "each query sees a window of keys"
    if (
        query.dtype not in FLOATS
        or query.dtype is not value.dtype
        or len({item.rank for item in (query, key, value)}) > 1
    ):
        return "the element types or the ranks differ"
    count = query.shape[1] if query.rank == 4 else node.param("q_num_heads")
    groups = key.shape[1] if key.rank == 4 else node.param("kv_num_heads")
    if not isinstance(count, int) or count < 1 or groups != count:
        return "heads are shared, or their number is unknown"
    sides: list[Side] = []
    for item in (query, key, value):
        shape = item.shape or ()
        size = shape[-1]
        if not isinstance(size, int) or size % (count if item.rank == 3 else 1):
            return "the size of a head is unknown"
        width = size // count if item.rank == 3 else size
        sides.append(_standard_side(item, count, width, is_scaled=item is not value))
    scale = node.attributes.get("scale")
    factor = float(scale) if isinstance(scale, float) else 1 / math.sqrt(sides[0].width)
    scores = (sides[0].batch, count, sides[0].rows, sides[1].rows)
    masks: tuple[Mask, ...] = ()
    if mask is not None:
        is_choice = mask.dtype is DType.BOOL
        masks = (Mask(node, mask, scores, scores, 1.0, -math.inf if is_choice else None),)
    output, rows = node.results[0], None
    views: tuple[Node, ...] = ()
    if query.rank == 4:
        output, rows, views = merged_behind(node, count, sides[2].width, sides)
    else:
        at = Layout(output, three(sides[0].batch, sides[0].rows, count, sides[2].width))
        rows = rows_of(at, count, sides[2].width)
    scale_of_all = factor * sides[0].scale * sides[1].scale
    softcap = float(node.param("softcap") or 0)
    is_causal = bool(node.param("is_causal"))
    if is_causal and (mask is not None or not is_same(sides[0].rows, sides[1].rows)):
        return "the standard operator is causal and masked, or queries and keys differ in number"
    return AttentionCore(
        node,
        node,
        node,
        sides[0],
        sides[1],
        sides[2],
        count,
        scale_of_all,
        softcap,
        masks,
        mask is not None,
        None,
        {node: None},
        output,
        rows,
        views,
        is_causal,
    )


def _standard_side(value: Value, heads: int, width: int, *, is_scaled: bool) -> Side:
    if value.rank == 4:
        return side_of(value, (ROWS, COLUMNS), width, Heads(heads), is_scaled=is_scaled)
    batch, rows = (value.shape or (None, None))[:2]
    layouts = walk_up(Layout(value, three(batch, rows, heads, width)), Heads(heads))
    return Side(layouts, batch, rows, width)
