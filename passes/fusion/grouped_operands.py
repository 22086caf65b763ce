"""Gives GroupQueryAttention what is computed before it: the rotation of queries and keys, and all three as one tensor.

The operator turns queries and keys by tables of cosines and sines, and gives the turned keys out as part of the cache.
It also takes queries, keys and values side by side, as one layer gives them. Either saves the kernels that write and
read all of them once more. Both are decided once the operator is there and equal tables are one value.
"""

from __future__ import annotations

from graphopt import Builder, Context, Graph, Node, Value, graph_pass
from passes.fusion import RUNTIME
from passes.fusion._attention_core import erase_unread
from passes.fusion._grouped_rotary import (
    MICROSOFT,
    Chain,
    Lengths,
    chain_of,
    counts_from_past,
    lengths_of,
    replayed,
    tables_for,
    turn_of,
)

TARGETS = RUNTIME

_OPERATOR = "GroupQueryAttention"
_COSINE, _SINE, _POSITIONS = 7, 8, 9
_LONGEST_HEAD = 256
"""Elements of a head that the kernel of CUDA turns or takes apart."""

_TURNED = """(float[1,3,64] q, float[1,3,32] k, float[1,3,32] v, float[1,2,4,16] kp, float[1,2,4,16] vp,
              float[3,8] c, float[3,8] s) => (float[1,3,64] y, float[1,2,7,16] ko, float[1,2,7,16] vo)
             <int64[1] zero = {0}, int32[1] last = {6}, int32[1] total = {7}> {
    qr = com.microsoft.RotaryEmbedding<interleaved = 0>(q, zero, c, s)
    kr = com.microsoft.RotaryEmbedding<interleaved = 0>(k, zero, c, s)
    y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>
                (qr, kr, v, kp, vp, last, total)
}"""

_PACKED = """(float[2,3,128] x) => (float[2,3,64] y) <int64[3] n = {64,32,32}, int32[2] last = {2,2},
                                               int32[1] total = {3}> {
    q, k, v = Split<axis = 2>(x, n)
    y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>(q, k, v, , , last, total)
}"""

_OTHER_TABLES = _TURNED.replace("float[3,8] s)", "float[3,8] s, float[3,8] c2)").replace(
    "(k, zero, c, s)", "(k, zero, c2, s)"
)
_NARROWER = _TURNED.replace("float[3,8] s)", "float[3,8] s, float[3,4] c2, float[3,4] s2)").replace(
    "<interleaved = 0>(k, zero, c, s)", "<interleaved = 0, num_heads = 2, rotary_embedding_dim = 8>(k, zero, c2, s2)"
)


@graph_pass(
    before=_TURNED,
    after="""(float[1,3,64] q, float[1,3,32] k, float[1,3,32] v, float[1,2,4,16] kp, float[1,2,4,16] vp,
              float[3,8] c, float[3,8] s) => (float[1,3,64] y, float[1,2,7,16] ko, float[1,2,7,16] vo)
             <float[4,8] none = {0,0,0,0,0,0,0,0, 0,0,0,0,0,0,0,0, 0,0,0,0,0,0,0,0, 0,0,0,0,0,0,0,0},
              int32[1] last = {6}, int32[1] total = {7}> {
        cc = Concat<axis = 0>(none, c)  ss = Concat<axis = 0>(none, s)
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5, do_rotary = 1,
                    rotary_interleaved = 0>(q, k, v, kp, vp, last, total, cc, ss)
    }""",
    unless=[
        # Keys that are turned by other tables, in another layout, to another width, or not at all.
        _OTHER_TABLES,
        _TURNED.replace("<interleaved = 0>(k", "<interleaved = 1>(k"),
        _NARROWER,
        _TURNED.replace("(qr, kr, v", "(qr, k, v").replace("kr = com", "kk = com"),
        # Turned queries or keys that somebody else reads.
        _TURNED.replace("(float[1,3,64] y,", "(float[1,3,64] qr, float[1,3,64] y,"),
        _TURNED.replace("(float[1,3,64] y,", "(float[1,3,64] y, float[1,3,32] z,").replace(
            "kr = com", "z = Neg(kr)  kr = com"
        ),
        # A cache that is longer than it is full, whose length is not where the new positions begin.
        _TURNED.replace("{6}", "{4}").replace("{7}", "{5}").replace("[1,2,7,16]", "[1,2,L,16]"),
        # Batches with positions of their own in a first run.
        """(float[2,3,64] q, float[2,3,32] k, float[2,3,32] v, float[9,8] c, float[9,8] s, int64[2,3] p)
           => (float[2,3,64] y) <int32[2] last = {2,2}, int32[1] total = {3}> {
            qr = com.microsoft.RotaryEmbedding(q, p, c, s)  kr = com.microsoft.RotaryEmbedding(k, p, c, s)
            y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(qr, kr, v, , , last, total)
        }""",
    ],
    numeric="R",
)
def rotation_inside(graph: Graph, context: Context) -> None:
    """Queries and keys that are turned before GroupQueryAttention are turned by it, in rows behind the cache's."""
    for node in list(graph.of_kind(_OPERATOR, MICROSOFT)):
        if node.is_pinned or context.keeps(node) or node.attributes.get("do_rotary") or node.operand(_COSINE):
            continue
        if node.operand(1) is None:
            continue
        lengths = lengths_of(node)
        reason = lengths if isinstance(lengths, str) else _turn_inside(node, lengths, context)
        if reason:
            context.note(f"{node.name or node.results[0].name or _OPERATOR}: {reason}")


@graph_pass(
    before=_PACKED,
    after="""(float[2,3,128] x) => (float[2,3,64] y) <int32[2] last = {2,2}, int32[1] total = {3}> {
        y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, scale = 0.5>(x, , , , , last, total)
    }""",
    unless=[
        _PACKED.replace("q, k, v = Split", "k, q, v = Split").replace("{64,32,32}", "{32,64,32}"),
        _PACKED.replace("q, k, v = Split", "q, v, k = Split"),
        _PACKED.replace("(float[2,3,64] y)", "(float[2,3,64] y, float[2,3,32] v)"),
        _PACKED.replace("[2,3,128]", "[2,3,160]")
        .replace("int64[3] n = {64,32,32}", "int64[4] n = {64,32,32,32}")
        .replace("k, v =", "k, v, w ="),
    ],
    numeric="E",
)
def packed_operands(graph: Graph, context: Context) -> None:
    """Queries, keys and values cut from one tensor, side by side, go into GroupQueryAttention as that tensor."""
    for node in list(graph.of_kind(_OPERATOR, MICROSOFT)):
        lengths = None if node.operand(1) is None else lengths_of(node)
        if not isinstance(lengths, Lengths) or node.is_pinned or context.keeps(node):
            continue
        reason = _pack(node, lengths, context)
        if reason:
            context.note(f"{node.name or node.results[0].name or _OPERATOR}: {reason}")


def _turn_inside(node: Node, lengths: Lengths, context: Context) -> str | None:
    graph = node.graph
    assert graph is not None
    turn = turn_of(node, lengths, context)
    if turn is None or isinstance(turn, str):
        return turn
    if not counts_from_past(node, lengths):
        return "the cache is not known to be as long as it is full"
    if context.target.is_cuda and lengths.size > _LONGEST_HEAD:
        return f"heads of more than {_LONGEST_HEAD} elements"
    b = context.builder(graph)
    tables = tables_for(b, turn, node, lengths, context)
    if isinstance(tables, str):
        return tables
    made: dict[Node, tuple[Value, ...]] = {}
    operands: list[Value | None] = [*node.operands, *[None] * (_POSITIONS + 1 - len(node.operands))]
    for place, chain in enumerate((turn.query, turn.key)):
        x = chain.source.producer.operand(0)
        assert x is not None
        operands[place] = replayed(b, chain, x, made)
    operands[_COSINE], operands[_SINE], operands[_POSITIONS] = tables.cosine, tables.sine, tables.positions
    parameters = {**node.attributes, "do_rotary": 1, "rotary_interleaved": int(turn.is_interleaved)}
    _put(b, node, operands, parameters, turn.nodes, context)
    return None


def _pack(node: Node, lengths: Lengths, context: Context) -> str | None:
    chains = [chain_of(node.operand(place)) for place in range(3)]
    found = [chain for chain in chains if chain is not None and chain.views]
    if len(found) < 3 or any(chain.source is not found[0].source for chain in found):
        return None
    width, shared = lengths.heads * lengths.size, lengths.shared * lengths.size
    source = found[0].source
    if [chain.start for chain in found] != [0, width, width + shared]:
        return "queries, keys and values lie in another order than the operator takes them apart in"
    if not source.shape or source.shape[-1] != width + 2 * shared:
        return "there is more than queries, keys and values side by side"
    if context.target.is_cuda and lengths.size > _LONGEST_HEAD:
        return f"heads of more than {_LONGEST_HEAD} elements"
    doubt = _doubt_of_views(node, found, context)
    if doubt:
        return doubt
    graph = node.graph
    assert graph is not None
    views = [view.producer for chain in found for view in chain.views]
    _put(context.builder(graph), node, [source, None, None, *node.operands[3:]], dict(node.attributes), views, context)
    return None


def _doubt_of_views(node: Node, chains: list[Chain], context: Context) -> str:
    """Why the nodes that cut stay, beside which packed operands win nothing."""
    views = dict.fromkeys(view.producer for chain in chains for view in chain.views)
    for view in views:
        if view.is_pinned or context.keeps(view) or view.graph is not node.graph:
            return "queries, keys or values are kept by name"
        if any(user is not node and user not in views for result in view.results for user in result.users):
            return "queries, keys or values are read elsewhere"
    return ""


def _put(
    b: Builder,
    node: Node,
    operands: list[Value | None],
    parameters: dict[str, object],
    before: list[Node],
    context: Context,
) -> None:
    """Put the operator with other operands in place of itself."""
    graph = node.graph
    assert graph is not None
    while operands[-1] is None:
        operands.pop()
    found = b.apply(_OPERATOR, operands, domain=MICROSOFT, outputs=len(node.results), parameters=parameters)
    results = found if isinstance(found, tuple) else (found,)
    makers = [value.producer for value in node.operands if value is not None]
    with context.rewrite(graph):
        for made in b.nodes:
            if made.graph is None:
                graph.insert(made, rank=node.rank)
        results[0].producer.name = node.name
        for old, new in zip(node.results, results, strict=True):
            graph.replace_uses(old, new)
        erase_unread(graph, [node, *makers, *before], context)
