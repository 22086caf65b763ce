"""Writes the attention of decoders whose queries share keys and values as GroupQueryAttention.

The operator takes keys and values once, not once for each head that reads them, with their cache. It lets each query
see the keys up to its own place, so a mask must be proven to hide the others; a window of keys that it hides as well is
an attribute, and what else it hides goes into the operand `attention_bias`. It is the only operator that bounds scores
(softcap), so it also takes bounded ones whose heads share nothing. Two limits keep it from most models with free dims,
where other operators are used: its kernel stops the process on an empty batch, and refuses several batches of several
positions behind a cache. Where dims may be 0, it is written in the aggressive form of this pass only.
Scores are taken to be finite: one of NaN or infinity that the model puts a number in place of, or whose probabilities
it guards against NaN, may show in the result.
"""

from __future__ import annotations

from dataclasses import replace

from graphopt import Context, Graph, Node, graph_pass, symbol
from passes._proofs import Dim, type_name
from passes.fusion import RUNTIME
from passes.fusion._attention_core import AttentionCore, Mask, find_attention
from passes.fusion._attention_masks import doubt_of, has_infinity
from passes.fusion._attention_near import is_between_products
from passes.fusion._grouped_build import Plan, fuse
from passes.fusion._grouped_causal import hidden_by
from passes.fusion._grouped_sides import Shared, are_beside, shared_side

TARGETS = RUNTIME

_BIAS_SINCE = (1, 22)
"""The first version of ONNX Runtime whose operator takes what is added to the scores."""

_NEW = (1, 31)
"""The first version known to see as many keys as a window says, where earlier ones saw one more, and any if asked."""

_HEAD_STEP, _LONGEST_HEAD = 8, 256
"""Sizes of heads are multiples of the one, and on CUDA at most the other."""

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

_ALL_SEEN = (
    _STEP.replace(",\n            float[2,1,1,M] m)", ")")
    .replace("a = Add(e, m)", "")
    .replace("Softmax<axis = -1>(a)", "Softmax<axis = -1>(e)")
)

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

_WINDOW = _PROMPT.replace("0.0,-inf,-inf,0.0,0.0,-inf,0.0,0.0,0.0", "0.0,-inf,-inf,0.0,0.0,-inf,-inf,0.0,0.0")

_BOUNDED = _STEP.replace("e = Mul(d, scale)", "f = Mul(d, by)  g = Tanh(f)  e = Mul(g, cap)").replace(
    "float scale = {0.5}", "float by = {0.25}, float cap = {2.0}"
)

_PROBABILITIES = _STEP.replace("float[2,1,32] y,", "float[2,4,1,K] p, float[2,1,32] y,")

_MASK_GIVEN = """(float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, bool[1,1,1,3] c) => (float[1,3,32] y)
             <bool[3,3] b = {1,0,0,1,1,0,1,1,1}, float none = {0.0}, float low = {-3.4e38},
              int32[1] last = {2}, int32[1] total = {3}> {
        s = And(b, c)  m = Where(s, none, low)
        y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5, causal = 0>
            (q, k, v, , , last, total, , , , m)
    }"""


@graph_pass(
    before=_ALL_SEEN,
    after="""(float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,P,8] kp, float[2,2,P,8] vp)
             => (float[2,1,32] y, float[2,2,N,8] ko, float[2,2,N,8] vo) <int64[1] one = {1}, int64[1] batch = {2}> {
        n = Shape<start = 2, end = 3>(kp)  l = Add(n, one)
        s1 = Sub(l, one)  s2 = Cast<to = 6>(s1)  s = Expand(s2, batch)  t = Cast<to = 6>(l)
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>
                    (q, k, v, kp, vp, s, t)
    }""",
    unless=[
        _HIDES_MORE,
        # A single position that a mask of the lowest number may hide all keys of: a mean of values, and not zeros.
        _STEP.replace("d = MatMul", "i = Where(c, none, low)  m = Unsqueeze(i, two)  d = MatMul")
        .replace("float[2,1,1,M] m)", "bool[2,M] c)")
        .replace("{0.5}", "{0.5}, float none = {0.0}, float low = {-3.4e38}, int64[2] two = {1,2}"),
        _ALL_SEEN.replace("each = {0,0,1,1}", "each = {0,1,0,1}"),
        _ALL_SEEN.replace("float[2,1,32] y,", "float[2,4,1,K] p, float[2,1,32] y,"),
        _ALL_SEEN.replace("[2,1,32]", "[B,1,32]").replace("{2,1,4,8}", "{0,1,4,8}").replace("{2,1,32}", "{0,1,32}"),
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
    _rewrite(graph, context, _PLAIN)


@graph_pass(
    before=_WINDOW,
    after="""(float[1,3,32] q, float[1,3,16] k, float[1,3,16] v) => (float[1,3,32] y)
             <int32[1] last = {2}, int32[1] total = {3}> {
        y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5, local_window_size = 2>
            (q, k, v, , , last, total)
    }""",
    unless=[
        _PROMPT,
        _WINDOW.replace("-inf,0.0,0.0}", "-inf,-1.0,0.0}"),
        _WINDOW.replace("0.0,0.0,-inf,-inf,0.0,0.0}", "-inf,0.0,-inf,-inf,0.0,0.0}").replace(
            "-inf,0.0,0.0}", "0.0,0.0,0.0}"
        ),
    ],
    numeric="R",
)
def window_of_keys(graph: Graph, context: Context) -> None:
    """The same where each query sees a number of keys up to its own place, which the operator takes as a window."""
    _rewrite(graph, context, _WINDOWED)


@graph_pass(
    before=_HIDES_MORE,
    after=_MASK_GIVEN,
    unless=[
        _PROMPT,
        _PROBABILITIES,
        _HIDES_MORE.replace("{-3.4e38}", "{-1e5}")
        .replace("m = Where(s, none, low)", "")
        .replace("a = Add(e, m)", "a = Where(s, e, low)"),
    ],
    numeric="R",
)
def any_mask(graph: Graph, context: Context) -> None:
    """The same with any other mask: the operator adds all of it, so that rows that see no key stay what they are."""
    _rewrite(graph, context, _MASKED)


@graph_pass(
    before=_BOUNDED,
    after="""(float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,P,8] kp, float[2,2,P,8] vp, float[2,1,1,M] m)
             => (float[2,1,32] y, float[2,2,N,8] ko, float[2,2,N,8] vo)
             <int64[1] one = {1}, int64[1] two = {2}> {
        n = Shape<start = 2, end = 3>(kp)  l = Add(n, one)  d = Concat<axis = 0>(one, one, one, l)  b = Expand(m, d)
        s1 = Sub(l, one)  s2 = Cast<to = 6>(s1)  s = Expand(s2, two)  t = Cast<to = 6>(l)
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5, softcap = 2.0,
                    causal = 0>(q, k, v, kp, vp, s, t, , , , b)
    }""",
    unless=[
        _STEP,
        _BOUNDED.replace("g = Tanh(f)", "h = Add(f, m)  g = Tanh(h)"),
        _BOUNDED.replace("float[2,1,32] y,", "float[2,4,1,K] g, float[2,1,32] y,"),
        # Several positions, where a Tanh of its own is faster on the CPU.
        _PROMPT.replace("e = Mul(d, scale)", "f = Mul(d, by)  g = Tanh(f)  e = Mul(g, cap)").replace(
            "float scale = {0.5}", "float by = {0.25}, float cap = {2.0}"
        ),
    ],
    numeric="R",
)
def bounded_scores(graph: Graph, context: Context) -> None:
    """Scores that a Tanh bounds before the mask are bounded by the operator, whether heads share keys or not."""
    _rewrite(graph, context, _BOUND)


@graph_pass(
    before=_HIDES_MORE,
    after=_MASK_GIVEN.replace(", causal = 0", ""),
    unless=[_PROBABILITIES],
    numeric="D",
)
def padded_grouped_attention(graph: Graph, context: Context) -> None:
    """For earlier versions where a mask may hide all keys of a query: what such a query gives, padding, differs."""
    _rewrite(graph, context, _PADDED)


_PLAIN, _WINDOWED, _MASKED, _BOUND, _PADDED = "plain", "windowed", "masked", "bounded", "padded"


def _rewrite(graph: Graph, context: Context, kind: str) -> None:
    for node in [node for node in graph.order() if node.op_type == "Softmax" and node.domain == ""]:
        core = find_attention(node, context, shared=True)
        plan = None if isinstance(core, str) else _plan(core, context, kind == _PADDED)
        if isinstance(core, str) or plan is None:
            if is_between_products(node):
                reason = core if isinstance(core, str) else "no heads of queries share keys and values"
                context.aside(f"the softmax at {_label(node)} was left alone: {reason}")
            continue
        if isinstance(plan, Plan) and kind not in (_kind_of(core, plan), _PADDED):
            continue
        reason = plan if isinstance(plan, str) else fuse(core, plan, context)
        if reason:
            context.note(f"{_label(node)}: {reason}")


def _label(softmax: Node) -> str:
    return softmax.name or softmax.results[0].name or "a softmax"


def _kind_of(core: AttentionCore, plan: Plan) -> str:
    if core.softcap:
        return _BOUND
    return _WINDOWED if plan.window is not None else _PLAIN if plan.is_causal else _MASKED


def _plan(core: AttentionCore, context: Context, is_padded: bool) -> Plan | str | None:
    """What the operator gets; why nothing, None for attentions that are nothing like it."""
    key, value = (shared_side(side, core, unshared=core.softcap != 0) for side in (core.key, core.value))
    if key is None or value is None or key.heads != value.heads:
        return None
    if not context.target.is_cuda:
        # Asked for all keys and values, the kernel of the CPU goes in tiles, where rows of NaN become 0.
        key, value = (replace(item, present=None) for item in (key, value))
    if not context.target.runs("GroupQueryAttention", core.dtype):
        return f"{context.target.name} has no kernel of GroupQueryAttention for {type_name(core.dtype)}"
    if core.precision is not None and not context.target.is_cuda:
        return "the softmax is computed in another precision"
    if core.query.width != core.value.width or core.query.width % _HEAD_STEP:
        return f"the size of a head is no multiple of {_HEAD_STEP}, or not that of the values"
    if context.target.is_cuda and core.query.width > _LONGEST_HEAD:
        return f"a head has more than {_LONGEST_HEAD} elements"
    if core.softcap and not context.target.is_cuda and (core.query.rows != 1 or key.heads == core.heads):
        return f"the kernel of {context.target.name} is slower than a Tanh, but for one position and shared keys"
    hiding = _left_to_masks(core, context, is_padded)
    if isinstance(hiding, str):
        return hiding
    masks, window, is_causal = hiding
    return _doubt_of_sizes(core, key, value, context) or Plan(key, value, masks, window, is_causal)


def _left_to_masks(
    core: AttentionCore, context: Context, is_padded: bool
) -> tuple[tuple[Mask, ...], int | None, bool] | str:
    """The masks that the operator gets, the window that stands for them, and if it hides the keys behind itself."""
    hiding, is_new = hidden_by(core), context.target.release >= _NEW
    if hiding.future and not hiding.more:
        return (), None, True
    if hiding.future and hiding.window is not None and is_new:
        return (), hiding.window, True
    # A single query may see all keys, but the causal form makes 0 of a row of the lowest numbers, the other a mean.
    is_causal = hiding.future and (is_padded or not core.masks)
    if not is_causal and not is_new:
        if not hiding.future:
            return "the mask is not known to hide the keys behind a query's own place"
        return "a query that may see no key at all would see other keys than before"
    return _doubt_of_bias(core, context) or (core.masks, None, is_causal)


def _doubt_of_bias(core: AttentionCore, context: Context) -> str:
    """Why the masks cannot be what the operator adds to the scores."""
    if not core.masks:
        return ""
    if context.target.release < _BIAS_SINCE:
        return f"the kernel of {context.target.name} takes no mask"
    if context.target.is_cuda and not (core.softcap and context.target.release >= _NEW):
        return f"{context.target.name} has a faster operator for masks"
    if context.target.is_cuda and has_infinity(core):
        return "what a query gives that sees no key may differ"
    for mask in core.masks:
        shape = mask.value.shape
        if shape is None or len(shape) > 4 or (len(mask.shape) != 4 and len(shape) > 2 and shape[-3] != 1):
            return "the axes of a mask are not those of batches and heads apart"
    return doubt_of(core)


def _doubt_of_sizes(core: AttentionCore, key: Shared, value: Shared, context: Context) -> str:
    rows, batch = core.query.rows, core.query.batch
    if (key.cache is None) != (value.cache is None) or not are_beside(core, key.new, value.new):
        return "keys and values are not those of the queries' own positions"
    if key.cache is not None and rows != 1 and batch != 1:
        return "the operator refuses several batches of several positions behind a cache"
    if not context.is_aggressive and not (_is_some(rows) and _is_some(batch)):
        return "the operator fails on empty operands; for models that get none, use the aggressive form of this pass"
    for item in (key, value):
        present = item.present if item.cache is None else item.cache.present
        maker = core.root if present is None else present.producer
        if maker.is_pinned or context.keeps(maker):
            return "a part of it is kept by name"
    return ""


def _is_some(dim: Dim) -> bool:
    return dim is not None and symbol.is_positive(dim)
