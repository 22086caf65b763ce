"""Views of views are one view, or none: reshapes, squeezes, unsqueezes and what does no more than they."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import Builder, Context, Graph, Match, Miss, Node, Value, graph_pass, op, rule, var
from passes._permutation import inverse, perm_of, permuted
from passes._proofs import Dim, same_dim
from passes._reshape_carrier import carried, splits_heads
from passes._view_factors import composed, factors_of
from passes._view_shapes import LIKE_VIEWS, VIEWS, View, free_place, is_view, target_of, view_of
from passes._view_sinking import sink

x = var("x")

_MAX_CHAIN = 8
"""How many views in a row are looked at together."""

_INNER = op.one_of(*LIKE_VIEWS)(x, ...)


@rule(
    op.one_of(*LIKE_VIEWS)(_INNER, ...),
    before="""(float[N,6,4] x) => (float[N,2,12] y) <int64[3] s = {0,4,6}, int64[3] t = {0,2,12}>
              { a = Reshape(x, s)  b = Reshape(a, t)  y = Relu(b) }""",
    after="(float[N,6,4] x) => (float[N,2,12] y) <int64[3] t = {0,2,12}> { b = Reshape(x, t)  y = Relu(b) }",
    unless=[
        "(float[2,6] x) => (float[3,4] y) <int64[2] s = {3,4}> { a = Relu(x)  y = Reshape(a, s) }",
        # What is in between is needed anyway.
        """(float[2,6] x) => (float[12] y, float[3,4] z) <int64[1] s = {12}, int64[2] t = {3,4}>
           { a = Reshape(x, s)  y = Relu(a)  b = Reshape(a, t)  z = Relu(b) }""",
        # The runtime refuses -1 beside a size of 0, and takes an empty batch now.
        """(float[N,2,M] x) => (float[N,K] y) <int64[1] p = {0}>
           { a = Unsqueeze(x, p)  b = Flatten<axis = 2>(a)  y = Relu(b) }""",
        # Attention is known by its Transpose.
        """(float[2,1,6] x) => (float[2,2,1,3] y) <int64[4] s = {2,1,2,3}>
           { a = Reshape(x, s)  b = Transpose<perm = [0,2,1,3]>(a)  y = Relu(b) }""",
        # And by its mask.
        """(int32[N,M] x) => (float[N,1,1,M] y) <int64[1] p = {1}, int64[1] q = {2}, float c = {1}>
           { a = Unsqueeze(x, p)  b = Unsqueeze(a, q)  d = Cast<to = 1>(b)  y = Sub(c, d) }""",
        "(float[2,3] x) => (float[3,2] y) <int64[2] s = {2,3}> { a = Reshape(x, s)  y = Transpose(a) }",
    ],
    keep=(_INNER,),
)
def merge_views(m: Match, b: Builder) -> Value | Miss:
    """Views in a row are one view, or none where the shape ends as it began."""
    if not is_view(m.root) or not is_view(m.node(_INNER)):
        return b.no("an operator is no view")
    if _makes_mask(m.root, m.node(_INNER)):
        return b.no("runtimes know attention by a mask made in this way")
    chains = _chains(m.root)
    views = [view_of(_source(chain), chain) for chain in chains]
    for chain, view in zip(chains, views, strict=True):
        if view is not None and not view.op_type:
            return _source(chain)
    for chain, view in zip(chains, views, strict=True):
        if view is not None and _dies(chain):
            return view.build(b, _source(chain))
    return b.no("no single view does the same and makes another needless")


def _makes_mask(last: Node, inner: Node) -> bool:
    """True for the two Unsqueezes with which a mask of attention begins: its inverse is subtracted from 1."""
    if not last.op_type == inner.op_type == "Unsqueeze" or last.results[0].rank not in (4, None):
        return False
    readers = [reader for user in last.results[0].users for reader in (user, *_users_of_cast(user))]
    return any(reader.op_type == "Sub" and reader.operands[0] not in last.results for reader in readers)


def _users_of_cast(node: Node) -> list[Node]:
    return node.results[0].users if node.op_type == "Cast" else []


def _chains(last: Node) -> list[list[Node]]:
    """The views that end with that node, the shortest chain first; each of two or more."""
    chain, found = [last], []
    while len(chain) < _MAX_CHAIN:
        value = _source(chain)
        if not is_view(value.producer) or value.producer.graph is not last.graph:
            break
        chain = [value.producer, *chain]
        found.append(chain)
    return found


def _source(chain: list[Node]) -> Value:
    value = chain[0].operands[0]
    assert value is not None  # `is_view` says so
    return value


def _dies(chain: list[Node]) -> bool:
    """True if the view before the last one is needed no more, once its other readers are merged alike."""
    source, before = _source(chain), chain[:-1]
    if before[-1].is_pinned:
        return False
    return all(
        user is chain[-1]
        or (place == 0 and is_view(user) and user.graph is chain[-1].graph and view_of(source, [*before, user]))
        for user, place in before[-1].results[0].uses
    )


_FIRST = op.one_of(*VIEWS)(x, ...)
_TURNED = op.Transpose(_FIRST)


@rule(
    op.one_of(*VIEWS)(_TURNED, ...),
    before="""(float[5,2,8] x) => (float[2,4,5,2] y) <int64[3] s = {5,8,2}, int64[4] t = {2,4,5,2}>
              { a = Reshape(x, s)  b = Transpose<perm = [1,0,2]>(a)  c = Reshape(b, t)  y = Relu(c) }""",
    after="""(float[5,2,8] x) => (float[2,4,5,2] y) <int64[4] s = {5,2,4,2}>
             { a = Reshape(x, s)  b = Transpose<perm = [1,2,0,3]>(a)  y = Relu(b) }""",
    unless=[
        # What is merged stood apart before.
        """(float[6,4] x) => (float[2,12] y) <int64[3] s = {2,3,4}, int64[2] t = {2,12}>
           { a = Reshape(x, s)  b = Transpose<perm = [0,2,1]>(a)  c = Reshape(b, t)  y = Relu(c) }""",
        """(float[5,2,8] x) => (float[2,4,5,2] y, float[5,8,2] z) <int64[3] s = {5,8,2}, int64[4] t = {2,4,5,2}>
           { a = Reshape(x, s)  z = Relu(a)  b = Transpose<perm = [1,0,2]>(a)  c = Reshape(b, t)  y = Relu(c) }""",
    ],
)
def view_before_transpose(m: Match, b: Builder) -> Value | Miss:
    """A view behind a Transpose that takes no axes together is part of the view before it."""
    last, perm = m.root, perm_of(m.node(_TURNED))
    if perm is None or not is_view(last) or not is_view(m.node(_FIRST)):
        return b.no("an operator is no view, or the permutation is not known")
    found = carried(last, inverse(perm), to_result=True)
    shape, source = last.results[0].shape, m[x].shape
    if found is None or shape is None or source is None:
        return b.no("the Transpose takes apart what the view behind it merges")
    wanted = permuted(shape, found[1])
    target = target_of(source, wanted)
    if target is None:
        return b.no("no Reshape to numbers gives that shape")
    value = m[x] if _same(source, wanted) else View("Reshape", target).build(b, m[x])
    turned: Value = b.Transpose(value, perm=list(inverse(found[1])))
    return turned


_INNER_TURN = op.Transpose(x)
_BETWEEN = op.one_of(*VIEWS)(_INNER_TURN, ...)


@rule(
    op.Transpose(_BETWEEN),
    before="""(float[N,4,6] x) => (float[M,3,4] y)
              <int64[3] s = {-1,2,6}, int64[4] t = {-1,2,2,6}, int64[3] u = {-1,3,4}> {
              a = Reshape(x, s)
              b = Transpose<perm = [0,2,1]>(a)
              c = Reshape(b, t)
              d = Transpose<perm = [0,2,3,1]>(c)
              e = Reshape(d, u)
              y = Relu(e) }""",
    after="""(float[N,4,6] x) => (float[M,3,4] y)
             <int64[3] s = {-1,2,6}, int64[5] t = {-1,2,2,2,3}, int64[4] v = {0,2,6,2}, int64[3] u = {-1,3,4}> {
             a = Reshape(x, s)
             c = Reshape(a, t)
             b = Transpose<perm = [0,3,4,2,1]>(c)
             d = Reshape(b, v)
             e = Reshape(d, u)
             y = Relu(e) }""",
    unless=[
        # There would be as many operators.
        """(float[2,3,4] x) => (float[6,2,2] y) <int64[3] s = {2,2,6}>
           { b = Transpose<perm = [0,2,1]>(x)  c = Reshape(b, s)  y = Transpose<perm = [2,0,1]>(c) }""",
        # 3 and 4 have no common factor.
        """(float[6,4] x) => (float[2,3,4] y) <int64[2] s = {3,8}, int64[2] t = {3,8}, int64[3] u = {2,3,4}> {
           a = Reshape(x, s)
           b = Transpose<perm = [1,0]>(a)
           c = Reshape(b, t)
           d = Transpose<perm = [1,0]>(c)
           y = Reshape(d, u) }""",
    ],
)
def transposes_with_view_between(m: Match, b: Builder) -> Value | Miss:
    """Two Transposes with a view in between are one between views, of which there are others already."""
    first, second = perm_of(m.node(_INNER_TURN)), perm_of(m.root)
    middle, result, source = m[_INNER_TURN].shape, m.root.results[0], m[x].shape
    between = m[_BETWEEN].shape
    if first is None or second is None or middle is None or between is None or source is None or result.shape is None:
        return b.no("a permutation or shape is not known")
    if not is_view(m.node(_BETWEEN)) or splits_heads(m.node(_BETWEEN)):
        return b.no("it is no view, or one that runtimes know attention by")
    factors = factors_of(middle, between)
    if factors is None:
        return b.no("the axes have no common factors")
    shape, perm = composed(first, factors, second)
    turned = permuted(shape, perm)
    targets = target_of(source, shape), target_of(turned, result.shape)
    if targets[0] is None or targets[1] is None:
        return b.no("a shape cannot be written")
    before, behind = _same(source, shape), _same(turned, result.shape)
    saved = before + behind
    saved += not before and _joins(m[x].producer, m.node(_INNER_TURN), shape)
    saved += not behind and all(_follows(user, result, turned) for user in result.users)
    if not saved:
        return b.no("there would be as many operators")
    value = m[x] if before else View("Reshape", targets[0]).build(b, m[x])
    value = b.Transpose(value, perm=list(perm))
    return value if behind else View("Reshape", targets[1]).build(b, value)


def _joins(node: Node, reader: Node, shape: Sequence[Dim]) -> bool:
    """True if a view that nobody else reads can give that shape at once."""
    if not is_view(node) or node.graph is not reader.graph or node.is_pinned or node.results[0].users != [reader]:
        return False
    source = node.operands[0]
    return source is not None and source.shape is not None and target_of(source.shape, shape) is not None


def _follows(node: Node, value: Value, shape: Sequence[Dim]) -> bool:
    """True if a reader is a view that can read that shape."""
    if not is_view(node) or node.operands[0] is not value or value in node.operands[1:] or node.is_pinned:
        return False
    wanted = node.results[0].shape
    return wanted is not None and target_of(shape, wanted, free_place(node)) is not None


def _same(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    return len(left) == len(right) and all(map(same_dim, left, right))


# --- views among other operators


@graph_pass(
    before="""(float[N,4,6] x, float[6] c) => (float[N,4,6] y) <int64[2] s = {-1,6}, int64[3] t = {-1,4,6}>
              { a = Reshape(x, s)  e = Erf(a)  d = Mul(e, c)  b = Reshape(d, t)  y = Relu(b) }""",
    after="(float[N,4,6] x, float[6] c) => (float[N,4,6] y) { e = Erf(x)  d = Mul(e, c)  y = Relu(d) }",
    unless=[
        # The view would only be elsewhere.
        "(float[4,6] x) => (float[24] y) <int64[1] s = {-1}> { a = Reshape(x, s)  b = Erf(a)  y = Neg(b) }",
        # One row for every row of what the view makes.
        """(float[2,4,6] x, float[8,1] c) => (float[2,4,6] y) <int64[2] s = {8,6}, int64[3] t = {2,4,6}>
           { a = Reshape(x, s)  d = Mul(a, c)  b = Reshape(d, t)  y = Relu(b) }""",
        # What is in between is needed.
        """(float[2,4,6] x) => (float[2,4,6] y, float[8,6] z) <int64[2] s = {8,6}, int64[3] t = {4,2,6}>
           { a = Reshape(x, s)  d = Erf(a)  b = Reshape(d, t)  y = Relu(b)  z = Relu(d) }""",
        # Rounded only where the neighbours make it.
        """(float16[2,4,6] x) => (float16[2,4,6] y) <int64[2] s = {8,6}, int64[3] t = {2,4,6}>
           { a = Reshape(x, s)  d = Erf(a)  b = Reshape(d, t)  y = Relu(b) }""",
    ],
)
def sink_views(graph: Graph, context: Context) -> None:
    """A view moves past operators that do not see it, where it then meets another view and one of them goes."""
    sink(graph, context, exact=True)


@graph_pass(
    before="""(float[N,4,6] x) => (float[N,4,2] y)
              <int64[2] s = {-1,6}, int64[3] t = {-1,4,2}, float[6,2] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[2] c = {1,2}>
              { a = Reshape(x, s)  d = Gemm(a, w, c)  b = Reshape(d, t)  y = Relu(b) }""",
    after="""(float[N,4,6] x) => (float[N,4,2] y)
             <float[6,2] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[2] c = {1,2}>
             { d = MatMul(x, w)  e = Add(d, c)  y = Relu(e) }""",
    unless=[
        """(float[2,4,6] x, float[6,2] w, float[8,2] c) => (float[2,4,2] y) <int64[2] s = {8,6}, int64[3] t = {2,4,2}>
           { a = Reshape(x, s)  d = Gemm(a, w, c)  b = Reshape(d, t)  y = Relu(b) }""",
        """(float[2,4,6] x, float[6,2] w) => (float[2,4,2] y) <int64[2] s = {8,6}, int64[3] t = {2,4,2}>
           { a = Reshape(x, s)  d = Gemm<alpha = 0.5>(a, w)  b = Reshape(d, t)  y = Relu(b) }""",
        """(float[2,4,6] x, float[6,2] w, float[2] c) => (float[8,2] y) <int64[2] s = {8,6}>
           { a = Reshape(x, s)  d = Gemm(a, w, c)  y = Relu(d) }""",
    ],
    numeric="R",
)
def sink_views_past_sums(graph: Graph, context: Context) -> None:
    """The same past operators that then add in another order: Gemm becomes MatMul and Add on more axes."""
    sink(graph, context, exact=False)
