"""Writes the attention of decoders whose queries share keys and values as GroupQueryAttention.

The operator takes keys and values once, not once for each head that reads them, with their cache. It lets each query
see the keys up to its own place, so a mask must be proven to hide the others; what else a mask hides goes into its
operand `attention_bias`. Two limits keep it from most models with free dims, where other operators are used: its kernel
stops the process on an empty batch, and refuses several batches of several positions behind a cache. Where dims may be
0, it is written in the aggressive form of this pass only.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Builder, Context, DType, Graph, Value, graph_pass, symbol
from passes._proofs import Dim
from passes.fusion import RUNTIME
from passes.fusion._attention_core import AttentionCore, Mask, erase_unread, find_attention
from passes.fusion._attention_layout import is_same
from passes.fusion._attention_masks import doubt_of, is_finite, length_of, with_mask
from passes.fusion._attention_operands import given_back
from passes.fusion._grouped_causal import hidden_by
from passes.fusion._grouped_sides import Shared, are_beside, rows_of_heads, shared_side

TARGETS = RUNTIME

_BIAS_SINCE = (1, 22)
"""The first version of ONNX Runtime whose operator takes what is added to the scores."""

_HEAD_STEP = 8
"""Sizes of heads are multiples of it."""

_STEP = """(float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,P,8] kp, float[2,2,P,8] vp,
            float[2,1,1,M] m) => (float[2,1,32] y, float[2,2,N,8] ko, float[2,2,N,8] vo)
          <int64[4] qs = {2,1,4,8}, int64[4] ks = {2,1,2,8}, int64[4] each = {0,0,1,1}, int64[3] o = {2,1,32},
           float scale = {0.5}> {
    q1 = Reshape(q, qs)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, ks)  k4 = Transpose<perm = [0,2,1,3]>(k1)
    v1 = Reshape(v, ks)  v4 = Transpose<perm = [0,2,1,3]>(v1)  ko = Concat<axis = 2>(kp, k4)
    vo = Concat<axis = 2>(vp, v4)  kr = Gather<axis = 1>(ko, each)  vr = Gather<axis = 1>(vo, each)
    kt = Transpose<perm = [0,1,3,2]>(kr)  d = MatMul(q4, kt)  e = Mul(d, scale)  a = Add(e, m)
    p = Softmax<axis = -1>(a)  r = MatMul(p, vr)  t = Transpose<perm = [0,2,1,3]>(r)  y = Reshape(t, o)
}"""

_PROMPT = """(float[1,3,32] q, float[1,3,16] k, float[1,3,16] v) => (float[1,3,32] y)
            <int64[4] qs = {1,3,4,8}, int64[4] ks = {1,3,2,8}, int64[4] each = {0,0,1,1}, int64[3] o = {1,3,32},
             float scale = {0.5}, float[3,3] m = {0.0,-inf,-inf,0.0,0.0,-inf,0.0,0.0,0.0}> {
    q1 = Reshape(q, qs)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, ks)  k4 = Transpose<perm = [0,2,1,3]>(k1)
    v1 = Reshape(v, ks)  v4 = Transpose<perm = [0,2,1,3]>(v1)  kr = Gather<axis = 1>(k4, each)
    vr = Gather<axis = 1>(v4, each)  kt = Transpose<perm = [0,1,3,2]>(kr)  d = MatMul(q4, kt)  e = Mul(d, scale)
    a = Add(e, m)  p = Softmax<axis = -1>(a)  r = MatMul(p, vr)  t = Transpose<perm = [0,2,1,3]>(r)  y = Reshape(t, o)
}"""

_HIDES_MORE = (
    _PROMPT.replace("v) =>", "v, bool[1,1,1,3] c) =>")
    .replace("float[3,3] m = {0.0,-inf,-inf,0.0,0.0,-inf,0.0,0.0,0.0}", "bool[3,3] b = {1,0,0,1,1,0,1,1,1}, _")
    .replace("_>", "float none = {0.0}, float low = {-3.4e38}>")
    .replace("q1 =", "s = And(b, c)  m = Where(s, none, low)  q1 =")
)


@graph_pass(
    before=_STEP,
    after="""(float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,P,8] kp, float[2,2,P,8] vp, float[2,1,1,M] m)
             => (float[2,1,32] y, float[2,2,N,8] ko, float[2,2,N,8] vo)
             <int64[1] one = {1}, int64[1] two = {2}> {
        n = Shape<start = 2, end = 3>(kp)  l = Add(n, one)  d = Concat<axis = 0>(one, one, one, l)  b = Expand(m, d)
        s1 = Sub(l, one)  s2 = Cast<to = 6>(s1)  s = Expand(s2, two)  t = Cast<to = 6>(l)
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>
                    (q, k, v, kp, vp, s, t, , , , b)
    }""",
    unless=[
        _HIDES_MORE,
        _STEP.replace("each = {0,0,1,1}", "each = {0,1,0,1}"),
        _STEP.replace("float[2,1,32] y,", "float[2,4,1,K] p, float[2,1,32] y,"),
        _STEP.replace("[2,1,32]", "[B,1,32]").replace("{2,1,4,8}", "{0,1,4,8}").replace("{2,1,32}", "{0,1,32}"),
        _PROMPT.replace("0.0,-inf,-inf,", "0.0,0.0,-inf,"),
        _PROMPT.replace("{1,3,4,8}", "{1,3,8,4}")
        .replace("{1,3,2,8}", "{1,3,4,4}")
        .replace("each = {0,0,1,1}", "each = {0,0,1,1,2,2,3,3}")
        .replace("int64[4] each", "int64[8] each"),
    ],
    numeric="R",
)
def grouped_attention(graph: Graph, context: Context) -> None:
    """An attention of queries that share keys and values and see all up to their own place is GroupQueryAttention."""
    _rewrite(graph, context, is_padded=False)


@graph_pass(
    before=_HIDES_MORE,
    after="""(float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, bool[1,1,1,3] c) => (float[1,3,32] y)
             <bool[3,3] b = {1,0,0,1,1,0,1,1,1}, float none = {0.0}, float low = {-3.4e38},
              int32[1] last = {2}, int32[1] total = {3}> {
        s = And(b, c)  m = Where(s, none, low)
        y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>
            (q, k, v, , , last, total, , , , m)
    }""",
    unless=[_STEP.replace("float[2,1,32] y,", "float[2,4,1,K] p, float[2,1,32] y,")],
    numeric="D",
)
def padded_grouped_attention(graph: Graph, context: Context) -> None:
    """The same where a mask may hide all keys of a query: what such a query gives, padding, then differs."""
    _rewrite(graph, context, is_padded=True)


def _rewrite(graph: Graph, context: Context, *, is_padded: bool) -> None:
    for node in [node for node in graph.order() if node.op_type == "Softmax" and node.domain == ""]:
        core = find_attention(node, context)
        plan = None if isinstance(core, str) else _plan(core, context, is_padded)
        if isinstance(core, str) or plan is None:
            continue
        reason = plan if isinstance(plan, str) else _fuse(core, plan, context)
        if reason:
            context.note(f"{node.name or node.results[0].name or 'a softmax'}: {reason}")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the operator gets: shared keys and values, and the masks that are left to it."""

    key: Shared
    value: Shared
    masks: tuple[Mask, ...]


def _plan(core: AttentionCore, context: Context, is_padded: bool) -> _Plan | str | None:
    """What the operator gets; why nothing, None for attentions that are nothing like it."""
    key, value = shared_side(core.key, core.heads), shared_side(core.value, core.heads)
    if key is None or value is None or key.heads != value.heads:
        return None
    if not context.target.runs("GroupQueryAttention", core.dtype):
        return f"{context.target.name} has no kernel of GroupQueryAttention for {core.dtype}"
    if core.precision is not None:
        return "the softmax is computed in another precision"
    if core.query.width != core.value.width or core.query.width % _HEAD_STEP:
        return f"the size of a head is no multiple of {_HEAD_STEP}, or not that of the values"
    hiding = hidden_by(core)
    if not hiding.future:
        return "the mask is not known to hide the keys behind a query's own place"
    rows = core.query.rows
    needs_bias = hiding.more
    # A single query may see all keys, so what a mask leaves of them is the same in both.
    if needs_bias and rows != 1 and not is_padded:
        return "a query that may see no key at all would see other keys than before"
    masks = core.masks if needs_bias else ()
    if masks and not _takes_bias(context):
        return f"the kernel of {context.target.name} takes no mask"
    if masks and doubt_of(core):
        return doubt_of(core)
    if core.is_guarded and masks and not is_finite(core):
        return "queries that see no key give zeros, in the operator not"
    return _doubt_of_sizes(core, key, value, context) or _Plan(key, value, masks)


def _doubt_of_sizes(core: AttentionCore, key: Shared, value: Shared, context: Context) -> str:
    rows, batch = core.query.rows, core.query.batch
    if (key.cache is None) != (value.cache is None) or not are_beside(core, key.new, value.new):
        return "keys and values are not those of the queries' own positions"
    if key.cache is not None and rows != 1 and batch != 1:
        return "the operator refuses several batches of several positions behind a cache"
    if not context.is_aggressive and not (_is_some(rows) and _is_some(batch)):
        return "the operator fails on empty operands; for models that get none, use the aggressive form of this pass"
    for item in (key, value):
        maker = item.cache.present.producer if item.cache is not None else core.root
        if maker.is_pinned or context.keeps(maker):
            return "a part of it is kept by name"
    return ""


def _takes_bias(context: Context) -> bool:
    """True if the operator takes what is added to the scores: on CUDA only with an unfused kernel, if at all."""
    version = tuple(int(part) for part in context.target.version.split(".")[:2])
    return not context.target.is_cuda and version >= _BIAS_SINCE


def _is_some(dim: Dim) -> bool:
    return dim is not None and symbol.is_positive(dim)


def _fuse(core: AttentionCore, plan: _Plan, context: Context) -> str:
    graph = core.root.graph
    assert graph is not None
    b = context.builder(graph)
    query = rows_of_heads(b, core.query, core.heads)
    key, value = (rows_of_heads(b, item.new, item.heads) for item in (plan.key, plan.value))
    if query is None or key is None or value is None:
        return "the rows of queries, keys or values have no shape that a Reshape can ask for"
    total = _total(b, query, plan.key)
    bias = _bias(core, plan.masks, b, query, total)
    pasts = [None if item.cache is None else item.cache.past for item in (plan.key, plan.value)]
    operands = [query, key, value, *pasts, _last(b, query, total), _as_int32(b, total)]
    if bias is not None:
        operands += [None, None, None, bias]
    made = b.microsoft.GroupQueryAttention(
        *operands,
        num_heads=core.heads,
        kv_num_heads=plan.key.heads,
        scale=core.scale,
        softcap=core.softcap or None,
        outputs=1 if plan.key.cache is None else 3,
    )
    ended = given_back(core, made if plan.key.cache is None else made[0], b)
    if isinstance(ended, str):
        return ended
    _put(core, plan, ended, made, b, context)
    return ""


def _put(
    core: AttentionCore, plan: _Plan, ended: Value, made: Value | tuple[Value, ...], b: Builder, context: Context
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
        for item, new in zip((plan.key, plan.value), () if isinstance(made, Value) else made[1:], strict=False):
            if item.cache is not None:
                context.replace(item.cache.present, new, b)
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
