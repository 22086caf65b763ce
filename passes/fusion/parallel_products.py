"""Makes one layer of the many that read one vector of each of the batch, such as the time in a diffusion network.

Each is little more than a call of its kernel. Their results are small, so that it costs nothing to have them all from
the start. Layers over longer values are put together only where their results meet again: those of `parallel_layers`.
Measured, and left apart: the two of a gated layer, which together are slower than one after the other from some hundred
rows on, and convolutions of one value.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._heads import has_same_types, split
from passes._parallel_parts import Part, are_shared_alike, built, kind_of, part_of
from passes.fusion import RUNTIME

TARGETS = RUNTIME

_FEWEST = 3
_LARGEST = 1 << 28
"""Bytes of the largest weight that is made."""
_READERS = frozenset(("Add", "Concat", "Mul", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
"""What may read a part: nothing that the runtime makes one operator of with its layer."""


@graph_pass(
    before="""(float[N,2] x, float[N,3] p, float[N,1] q, float[N,2] r) => (float[N,3] s, float[N,1] t, float[N,2] u)
              <float[3,2] a = {1,2,3,4,5,6}, float[3] i = {1,2,3}, float[1,2] b = {7,8}, float[1] j = {4},
               float[2,2] c = {9,1,2,3}, float[2] k = {5,6}> {
        d = Gemm<transB = 1>(x, a, i)  s = Mul(d, p)
        e = Gemm<transB = 1>(x, b, j)  t = Mul(e, q)
        f = Gemm<transB = 1>(x, c, k)  u = Mul(f, r)
    }""",
    after="""(float[N,2] x, float[N,3] p, float[N,1] q, float[N,2] r) => (float[N,3] s, float[N,1] t, float[N,2] u)
             <float[6,2] a = {1,2,3,4,5,6, 7,8, 9,1,2,3}, float[6] i = {1,2,3, 4, 5,6}, int64[3] n = {3,1,2}> {
        w = Gemm<transB = 1>(x, a, i)  d, e, f = Split<axis = 1>(w, n)
        s = Mul(d, p)  t = Mul(e, q)  u = Mul(f, r)
    }""",
    unless=[
        # Two of them.
        """(float[N,2] x, float[N,3] p, float[N,1] q) => (float[N,3] s, float[N,1] t)
           <float[3,2] a = {1,2,3,4,5,6}, float[3] i = {1,2,3}, float[1,2] b = {7,8}, float[1] j = {4}> {
            d = Gemm<transB = 1>(x, a, i)  s = Mul(d, p)  e = Gemm<transB = 1>(x, b, j)  t = Mul(e, q)
        }""",
        # A value of more than one vector for each of the batch.
        """(float[N,M,2] x, float[N,M,2] p) => (float[N,M,2] s, float[N,M,2] t, float[N,M,2] u)
           <float[2,2] a = {1,2,3,4}, float[2,2] b = {5,6,7,8}, float[2,2] c = {9,1,2,3}> {
            d = MatMul(x, a)  s = Mul(d, p)  e = MatMul(x, b)  t = Mul(e, p)  f = MatMul(x, c)  u = Mul(f, p)
        }""",
        # One is activated by the runtime's own operator, and one has another spelling.
        """(float[N,2] x, float[N,2] p) => (float[N,2] s, float[N,2] t, float[N,2] u)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}, float[2,2] c = {9,1,2,3}> {
            d = Gemm(x, a, i)  s = Relu(d)  e = Gemm(x, b, i)  t = Mul(e, p)  f = Gemm(x, c, i)  u = Mul(f, p)
        }""",
        """(float[N,2] x, float[N,2] p) => (float[N,2] s, float[N,2] t, float[N,2] u)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}, float[2,2] c = {9,1,2,3}> {
            d = Gemm<transB = 1>(x, a, i)  s = Mul(d, p)  e = Gemm(x, b, i)  t = Mul(e, p)
            f = Gemm(x, c, i)  u = Mul(f, p)
        }""",
        # Somebody else reads a weight.
        """(float[N,2] x, float[N,2] p) => (float[N,2] s, float[N,2] t, float[N,2] u, float[2,2] o)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}, float[2,2] c = {9,1,2,3}> {
            d = Gemm(x, a, i)  s = Mul(d, p)  e = Gemm(x, b, i)  t = Mul(e, p)  f = Gemm(x, c, i)  u = Mul(f, p)
            o = Relu(c)
        }""",
        # What one of them gives is a result.
        """(float[N,2] x, float[N,2] p) => (float[N,2] s, float[N,2] t, float[N,2] u, float[N,2] d)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}, float[2,2] c = {9,1,2,3}> {
            d = Gemm(x, a, i)  s = Mul(d, p)  e = Gemm(x, b, i)  t = Mul(e, p)  f = Gemm(x, c, i)  u = Mul(f, p)
        }""",
        # One matrix is fed, and what one reads is random.
        """(float[N,2] x, float[N,2] p, float[2,2] c) => (float[N,2] s, float[N,2] t, float[N,2] u)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}> {
            d = Gemm(x, a, i)  s = Mul(d, p)  e = Gemm(x, b, i)  t = Mul(e, p)  f = Gemm(x, c, i)  u = Mul(f, p)
        }""",
        """(float[N,2] x, float[N,2] p) => (float[N,2] s, float[N,2] t, float[N,2] u)
           <float[2,2] a = {1,2,3,4}, float[2] i = {1,2}, float[2,2] b = {7,8,9,1}, float[2,2] c = {9,1,2,3},
            float share = {0.5}, bool yes = {1}> {
            d = Gemm(x, a, i)  s = Mul(d, p)  e = Gemm(x, b, i)  t = Mul(e, p)  z = Dropout(x, share, yes)
            f = Gemm(z, c, i)  u = Mul(f, p)
        }""",
    ],
    numeric="R",
)
def one_layer_of_a_vector(graph: Graph, context: Context) -> None:
    """Three or more layers of one vector for each of the batch are one with a Split behind it."""
    found: dict[tuple[object, ...], list[Part]] = {}
    nodes = [node for op_type in ("MatMul", "Gemm") for node in graph.of_kind(op_type)]
    for node in sorted(nodes, key=lambda node: (node.rank, node.serial)):
        x = node.operand(0)
        if x is None or x.rank != 2 or len(x.uses) < _FEWEST:
            continue
        part = part_of(node, graph, context)
        if part is not None and part.result.is_used and all(_is_reader(user) for user in part.result.users):
            found.setdefault((*kind_of(part), x), []).append(part)
    for parts in found.values():
        if len(parts) >= _FEWEST:
            _merge(graph, context, parts)


def _is_reader(node: Node) -> bool:
    return node.op_type in _READERS and node.domain == ""


def _merge(graph: Graph, context: Context, parts: list[Part]) -> None:
    nodes = [part.layer.node for part in parts]
    if any(node.graph is not graph for node in nodes) or len({part.result for part in parts}) < len(parts):
        return
    if not are_shared_alike(parts):
        context.note("layers of one vector stay apart: somebody else reads one of their weights")
        return
    if sum(part.layer.weight.nbytes for part in parts) > _LARGEST:
        context.note("layers of one vector stay apart: their weights are very large")
        return
    b = context.builder(graph)
    whole = built(b, parts, {})
    values: list[Value] = split(b, whole, [part.width for part in parts], 1)
    olds = [part.result for part in parts]
    if not all(map(has_same_types, olds, values)):
        return
    rank = min(node.rank for node in nodes)
    with context.rewrite(graph):
        for made in b.nodes:
            graph.insert(made, rank=rank)
        for old, new in zip(olds, values, strict=True):
            graph.replace_uses(old, new)
        for node in [*(part.add for part in parts if part.add), *nodes]:
            graph.erase(node)
