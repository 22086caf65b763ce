"""Attentions written as Attention or MultiHeadAttention, and why some are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphopt import Builder, Context, Graph, Node, Value, symbol
from passes._proofs import HALVES, Dim, type_name
from passes.fusion._attention_causal import is_unidirectional
from passes.fusion._attention_core import AttentionCore, distance, find_attention, replace
from passes.fusion._attention_layout import declared, is_same
from passes.fusion._attention_masks import (
    BiasKey,
    bias_key,
    bias_of,
    cleared,
    doubt_of,
    has_infinity,
    is_cleared,
    times,
)
from passes.fusion._attention_near import is_between_products
from passes.fusion._attention_operands import (
    Cache,
    cache_of,
    given_back,
    is_stretched,
    operand_in_rows,
    operands_apart,
    projected,
    stretched,
)
from passes.fusion._attention_projections import merged_weight
from passes.fusion._attention_rows import has_same_axes
from passes.fusion._attention_shapes import shape_of_scores
from passes.fusion._attention_standard import find_standard_attention


@dataclass(frozen=True, slots=True)
class Added:
    """What is added to the scores.

    Attributes:
        value: Of four axes; None for nothing.
        factor: What the result is multiplied by; None for nothing.
    """

    value: Value | None = None
    factor: Value | None = None


class Made:
    """What several attentions of one graph share."""

    def __init__(self) -> None:
        self.biases: dict[BiasKey, Added] = {}
        self.weights: dict[tuple[object, ...], Value] = {}


_CENTRES = ("Softmax", "LogSoftmax", "Attention")
_Caches: TypeAlias = tuple[Cache | None, Cache | None]
_Write: TypeAlias = Callable[[AttentionCore, _Caches, Builder, Context, Made], str]


def fuse(graph: Graph, context: Context, write: _Write, *, tells: bool) -> None:
    """Replace every attention that can be written in one way; say why others are left alone."""
    made = Made()
    for node in [node for node in graph.order() if node.domain == "" and node.op_type in _CENTRES]:
        if node.op_type == "LogSoftmax":
            if tells and is_between_products(node):
                context.aside(f"the softmax at {_label(node)} was left alone: no operator takes its logarithm")
            continue
        is_softmax = node.op_type == "Softmax"
        core = (
            find_attention(node, context, by_head=True, shaped=True)
            if is_softmax
            else find_standard_attention(node, context)
        )
        reason = core if isinstance(core, str) else _fused(core, graph, context, write, made)
        scores = node.operand(0)
        if not tells or not reason or scores is None:
            continue
        if node.op_type == "Attention" or distance(scores) < math.inf:
            context.note(f"the attention at {_label(node)} was left alone: {reason}")
        elif is_between_products(node):
            context.aside(f"the softmax at {_label(node)} was left alone: {reason}")


def _label(node: Node) -> str:
    return node.name or node.results[0].name or "a softmax"


def _fused(core: AttentionCore, graph: Graph, context: Context, write: _Write, made: Made) -> str:
    """Replace an attention; why not, if it is left alone."""
    caches = cache_of(core.key, core.heads), cache_of(core.value, core.heads)
    return _doubt_of(core, caches, context) or write(core, caches, context.builder(graph), context, made)


def _doubt_of(core: AttentionCore, caches: _Caches, context: Context) -> str:
    """Why no operator computes it."""
    if core.softcap:
        return "the scores are bounded by a Tanh, which neither operator does"
    query, key, value = core.sides
    is_lone = is_stretched(core)
    for side, cache in zip((key, value), caches, strict=True):
        # Putting keys behind a cache asks for equal batches.
        batch = side.batch if cache is None else cache.new.batch
        top = side.layouts[-1] if cache is None else cache.new.layouts[-1]
        if is_same(query.batch, batch) or (is_lone and cache is None):
            continue
        own = query.layouts[-1]
        # Of one tensor the batches may be one axis, however long.
        if own.value is not top.value or not has_same_axes(own.axes, top.axes):
            return _of_other_batches(query.batch, batch)
    if core.precision is not None and not context.target.is_cuda:
        return "the softmax is computed in another precision"
    is_half = context.target.is_cuda and core.dtype in HALVES
    if is_half and not core.is_guarded and has_infinity(core) and not _is_causal(core):
        return "a query that sees no key gives NaN, and zeros in half precision on CUDA"
    return doubt_of(core, is_loose=context.options.level == "fast-math")


def _of_other_batches(queries: Dim, keys: Dim) -> str:
    """That batches differ; exporters that take a size for granted write what only that size fits."""
    if queries is None or keys is None:
        return "queries and keys or values may be of different batches, whose sizes are not known"
    queries, keys = declared(queries), declared(keys)
    reason = f"queries and keys or values may be of different batches: {queries} and {keys}"
    for name in dict.fromkeys((*symbol.symbols(queries), *symbol.symbols(keys))):
        left, right = (symbol.substitute(item, {name: 1}) for item in (queries, keys))
        if symbol.always_equal(left, right):
            return f"{reason}; where {name.label} is 1 they are the same: fix that dim"
    return reason


def _is_causal(core: AttentionCore) -> bool:
    """True if every query sees its own position: no row is hidden throughout."""
    return is_unidirectional(core, None)


def as_attention(core: AttentionCore, caches: _Caches, b: Builder, context: Context, made: Made) -> str:
    """Write it as Attention, with the layers inside; why not, if it is left alone."""
    if not b.target.runs("Attention", core.dtype):
        return f"{b.target.name} has no kernel of Attention for {type_name(core.dtype)}"
    sizes = [core.heads * side.width for side in core.sides]
    if core.head_scales is not None:
        return "each head is scaled in its own way"
    if is_stretched(core):
        return "queries of one batch meet keys of several"
    if context.target.is_cuda and sizes[0] != sizes[2]:
        return "values have another width than keys, which Attention gets wrong on CUDA"
    parts = [projected(side, core.heads) for side in core.sides]
    known = [part for part in parts if part is not None]
    if len(known) < 3:
        return "queries, keys and values are not all layers with constant weights"
    first, rows = known[0]
    if any(item.x is not first.x for item, _ in known):
        return "queries, keys and values are layers of different tensors"
    if not all(has_same_axes(own.axes, rows.axes) for _, own in known):
        return "batch and sequence are other axes of the layers' operand for keys or values than for queries"
    nodes = dict.fromkeys(node for item, _ in known for node in item.nodes)
    nodes.update(dict.fromkeys(layout.value.producer for side in core.sides for layout in side.layouts))
    inside = {**core.nodes, **nodes}
    # Who asks for a shape will be told elsewhere.
    readers = (user for node in nodes for value in node.results for user in value.users)
    if any(user not in inside and not user.is_op("Shape") for user in readers):
        return "what a layer gives is read elsewhere"
    width = first.weight.shape[1 - first.axis] if first.weight.shape is not None else None
    if not isinstance(width, int) or first.x.shape is None:
        return "shapes are unknown"
    x = operand_in_rows(b, first.x, width, rows, core.query)
    if x is None:
        return "the rows of the layers' operand have no shape that a Reshape can ask for"
    is_pure = is_unidirectional(core, None)
    bias = Added() if is_pure else _bias(core, b, x, (x, 1), made)
    if isinstance(bias, str):
        return bias
    weight, vector = merged_weight(b, known, core.dtype, made.weights)
    result: Value = b.microsoft.Attention(
        *_trimmed(x, weight, vector, None, None, bias.value),
        num_heads=core.heads,
        scale=core.scale,
        unidirectional=1 if is_pure or core.is_causal else None,
        qkv_hidden_sizes=None if sizes[0] == sizes[2] else sizes,
    )
    return _put(core, result, b, context, made, bias)


def as_multi_head(core: AttentionCore, caches: _Caches, b: Builder, context: Context, made: Made) -> str:
    """Write it as MultiHeadAttention; why not, if it is left alone."""
    if not b.target.runs("MultiHeadAttention", core.dtype):
        return f"{b.target.name} has no kernel of MultiHeadAttention for {type_name(core.dtype)}"
    cached = [cache for cache in caches if cache is not None and _is_returned(cache, core)]
    if len(cached) < 2 or core.query.width != core.value.width or not is_same(*(cache.new.rows for cache in cached)):
        cached = []
    sides = core.sides if not cached else (core.query, cached[0].new, cached[1].new)
    apart = operands_apart(core, sides, b, takes_four=not cached)
    if isinstance(apart, str):
        return apart
    query = stretched(apart.query, apart.key, b) if is_stretched(core) else apart.query
    is_pure = is_unidirectional(core, cached[0].past if cached else None)
    if is_pure:
        bias: Added | str = Added()
    elif cached:
        bias = _bias(core, b, query, (apart.key, apart.keys_axis), made, cached[0].past)
    else:
        bias = _bias(core, b, query, (apart.key, apart.keys_axis), made)
    if isinstance(bias, str):
        return bias
    operands = [query, apart.key, apart.value, apart.bias, None, bias.value, *(cache.past for cache in cached)]
    results = b.microsoft.MultiHeadAttention(
        *_trimmed(*operands),
        num_heads=core.heads,
        scale=core.scale,
        unidirectional=1 if is_pure or core.is_causal else None,
        outputs=3 if cached else 1,
    )
    presents = [(cache.present, new) for cache, new in zip(cached, results[1:], strict=True)] if cached else []
    return _put(core, results[0] if cached else results, b, context, made, bias, presents)


def _is_returned(cache: Cache, core: AttentionCore) -> bool:
    """True if the whole is a result of the graph, too: the operator computes earlier and new ones only to give them."""
    inside = [*core.nodes, *(layout.value.producer for side in core.sides for layout in side.layouts)]
    others = [user for user in cache.present.users if user not in inside]
    return bool(others) and not any(user.is_operator for user in others) and cache.present.producer.graph is not None


def _trimmed(*operands: Value | None) -> list[Value | None]:
    found = list(operands)
    while found and found[-1] is None:
        found.pop()
    return found


def _bias(
    core: AttentionCore, b: Builder, query: Value, key: tuple[Value, int], made: Made, past: Value | None = None
) -> Added | str:
    known = made.biases.get(bias_key(core))
    if known is not None:
        return known
    found = bias_of(core, b, query, key, past)
    if found is None or isinstance(found, str):
        return Added() if found is None else found
    return Added(*cleared(core, b, found)) if is_cleared(core) else Added(found)


def _put(
    core: AttentionCore,
    result: Value,
    b: Builder,
    context: Context,
    made: Made,
    bias: Added,
    presents: Sequence[tuple[Value, Value]] = (),
) -> str:
    if bias.factor is not None:
        result = times(core, result, bias.factor, b)
    ended = given_back(core, result, b)
    if isinstance(ended, str):
        return ended
    layers = [node for side in core.sides for item in [projected(side, core.heads)] if item for node in item[0].nodes]
    shapes = [(node.results[0], shape_of_scores(core, node, b)) for node in core.shapes]
    replace(core, ended, b, context, [*presents, *shapes], layers)
    sizes = [dim for side in (core.query, core.key) for dim in side.layouts[0].value.shape or (None,)]
    if context.target.is_cuda and not all(dim is not None and symbol.is_positive(dim) for dim in sizes):
        context.note("on CUDA, attention as one operator takes no batch and no sequence of length 0")
    if bias.value is not None:
        made.biases[bias_key(core)] = bias
    return ""
