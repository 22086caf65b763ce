"""GroupQueryAttention as it stands for an attention: what it gets, and what takes its results."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Builder, Context, DType, Value
from passes.fusion._attention_core import AttentionCore, Mask, erase_unread
from passes.fusion._attention_layout import is_same
from passes.fusion._attention_masks import cleared, is_cleared, length_of, times, with_mask
from passes.fusion._attention_operands import given_back
from passes.fusion._grouped_sides import Shared, rows_of_heads


@dataclass(frozen=True, slots=True)
class Plan:
    """What the operator gets.

    Attributes:
        key: Keys, before they are repeated.
        value: Likewise.
        masks: The masks that are left to it.
        window: How many keys each query sees up to its own place; None for all.
        is_causal: True if it hides the keys behind a query's own place itself.
    """

    key: Shared
    value: Shared
    masks: tuple[Mask, ...]
    window: int | None
    is_causal: bool

    @property
    def outputs(self) -> tuple[Value | None, Value | None]:
        """What stands for all keys and all values in the model, if anybody reads that."""
        found = [item.cache.present if item.cache is not None else item.present for item in (self.key, self.value)]
        return found[0], found[1]


def fuse(core: AttentionCore, plan: Plan, context: Context) -> str:
    """Put the operator in place of an attention; why not, if not."""
    graph = core.root.graph
    assert graph is not None
    b = context.builder(graph)
    # On the CPU more than one row is moved in as much time as the operator saves.
    turns = context.target.is_cuda or core.query.rows == 1
    query = rows_of_heads(b, core.query, core.heads, turns=turns)
    key, value = (rows_of_heads(b, item.new, item.heads, turns=turns) for item in (plan.key, plan.value))
    if query is None or key is None or value is None:
        return "queries, keys or values are no rows of heads, or none that a Reshape can ask for"
    total = _total(b, query, plan.key)
    bias = _bias(core, plan.masks, b, query, total)
    factor = None
    if bias is not None and is_cleared(core):
        bias, factor = cleared(core, b, bias)
    pasts = [None if item.cache is None else item.cache.past for item in (plan.key, plan.value)]
    operands = [query, key, value, *pasts, _last(b, query, total), _as_int32(b, total)]
    if bias is not None:
        operands += [None, None, None, bias]
    # The kernel of CUDA writes all three, whether they are read or not.
    is_whole = context.target.is_cuda or plan.outputs != (None, None)
    made = b.microsoft.GroupQueryAttention(
        *operands,
        num_heads=core.heads,
        kv_num_heads=plan.key.heads,
        scale=core.scale,
        softcap=core.softcap or None,
        local_window_size=plan.window,
        causal=None if plan.is_causal else 0,
        outputs=3 if is_whole else 1,
    )
    results = made if isinstance(made, tuple) else (made,)
    result = results[0] if factor is None else times(core, results[0], factor, b)
    ended = given_back(core, result, b)
    if isinstance(ended, str):
        return ended
    _put(core, plan, ended, results[1:], b, context)
    return ""


def _put(
    core: AttentionCore, plan: Plan, ended: Value, caches: tuple[Value, ...], b: Builder, context: Context
) -> None:
    graph = core.root.graph
    assert graph is not None
    sides = (core.query, core.key, core.value, plan.key.side, plan.value.side, plan.key.new, plan.value.new)
    gone = [*core.views, *core.nodes, *(mask.node for mask in core.masks)]
    gone += [layout.value.producer for side in sides for layout in side.layouts]
    gone += [mask.value.producer for mask in core.masks]
    gone += [
        value.producer for node in gone for value in node.operands if value is not None and value.producer not in gone
    ]
    with context.rewrite(graph):
        context.replace(core.output, ended, b)
        # Keys and values may be one value: either result stands for it.
        for old, new in dict(zip(plan.outputs, caches, strict=False)).items():
            if old is not None:
                context.replace(old, new, b)
        erase_unread(graph, gone, context)


def _total(b: Builder, query: Value, key: Shared) -> Value:
    """How many keys there are, as a list of one."""
    rows = length_of(b, query, 1)
    if key.cache is None:
        return rows
    before = length_of(b, key.cache.past, 2)
    if before.const is not None and rows.const is not None:
        return b.constant([int(before.const.scalar()) + int(rows.const.scalar())], DType.INT64)
    total: Value = b.Add(before, rows)
    return total


def _last(b: Builder, query: Value, total: Value) -> Value:
    """For each batch how many keys are before the last one."""
    batch = (query.shape or (None,))[0]
    if total.const is not None:
        last = b.constant([int(total.const.scalar()) - 1], DType.INT32)
    else:
        last = b.Cast(b.Sub(total, b.constant([1], DType.INT64)), to=int(DType.INT32))
    if batch == 1:
        return last
    if last.const is not None and isinstance(batch, int):
        return b.constant([int(last.const.scalar())] * batch, DType.INT32)
    every: Value = b.Expand(last, length_of(b, query, 0))
    return every


def _as_int32(b: Builder, total: Value) -> Value:
    if total.const is not None:
        return b.constant([int(total.const.scalar())], DType.INT32)
    made: Value = b.Cast(total, to=int(DType.INT32))
    return made


def _bias(core: AttentionCore, masks: tuple[Mask, ...], b: Builder, query: Value, keys: Value) -> Value | None:
    """What is added to the scores, `[batch or 1, heads or 1, queries, keys]`."""
    total: Value | None = None
    for mask in masks:
        total = with_mask(core, mask, b, total)
    if total is None:
        return None
    if (total.rank or 0) < 4:
        total = b.Unsqueeze(total, axes=list(range(4 - (total.rank or 0))))
    shape = total.shape
    if shape is not None and is_same(shape[-2], core.query.rows) and is_same(shape[-1], core.key.rows):
        return total
    one = b.constant([1], DType.INT64)
    stretched: Value = b.Expand(total, b.Concat(one, one, length_of(b, query, 1), keys, axis=0))
    return stretched
