"""Computes once, on the whole, what is computed on every operand of a Concat, or on every part of a Split.

Only operators that give a number the same bits wherever it stands are moved, and none that the runtime fuses into the
layer above it.
"""

from __future__ import annotations

from graphopt import Context, DType, Graph, Node, Value, graph_pass, is_elementwise, is_position_independent
from passes._numbers import is_one_number
from passes._proofs import HALVES

_UNARY = frozenset(
    (
        *("Abs", "Cast", "Ceil", "Clip", "Cos", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log"),
        *("Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh", "IsNaN"),
    )
)
_BINARY = frozenset(("Add", "Sub", "Mul", "Div"))
_LAYERS = frozenset(
    (
        "Add",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Gemm",
        "InstanceNormalization",
        "LayerNormalization",
        "MatMul",
    )
)
"""Their results may be fused with an activation right behind them."""
_ACTIVATIONS = frozenset(("Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh", "Add", "Mul"))


@graph_pass(
    before="""(float[N,3] x, float[N,2] z, float[N,1] w) => (float[N,6] y)
              { s = Exp(x)  t = Exp(z)  u = Exp(w)  y = Concat<axis = 1>(s, t, u) }""",
    after="(float[N,3] x, float[N,2] z, float[N,1] w) => (float[N,6] y) { t = Concat<axis = 1>(x, z, w)  y = Exp(t) }",
    unless=[
        "(float[2,3] x, float[2,2] z) => (float[2,5] y) { s = Exp(x)  t = Sqrt(z)  y = Concat<axis = 1>(s, t) }",
        """(float[2,3] x, float[2,2] z) => (float[2,5] y, float[2,3] s)
           { s = Exp(x)  t = Exp(z)  y = Concat<axis = 1>(s, t) }""",
        "(float[2,3] x, float[2,2] z) => (float[2,5] y) { s = Log(x)  t = Log(z)  y = Concat<axis = 1>(s, t) }",
        """(float[2,3] x, double[2,2] z) => (int64[2,5] y)
           { s = Cast<to = 7>(x)  t = Cast<to = 7>(z)  y = Concat<axis = 1>(s, t) }""",
        """(float[2,3] x, float[2,2] z) => (float[2,5] y)
           { s = LeakyRelu<alpha = 0.1>(x)  t = LeakyRelu<alpha = 0.2>(z)  y = Concat<axis = 1>(s, t) }""",
        """(float[2,3] x, float[2,2] z, float[3,3] a, float[2,3] c) => (float[2,6] y)
           { m = MatMul(x, a)  n = MatMul(z, c)  s = Relu(m)  t = Relu(n)  y = Concat<axis = 1>(s, t) }""",
        "(float[2,3] x) => (float[2,6] y) { s = Exp(x)  y = Concat<axis = 1>(s, s) }",
    ],
)
def above_concat(graph: Graph, context: Context) -> None:
    """What every part of a Concat goes through, the whole goes through afterwards."""
    for node in graph.of_kind("Concat"):
        makers = [value.producer for value in node.operands if value is not None]
        if len(set(makers)) < len(node.operands) or len(makers) < 2 or not _are_alike(context, graph, node, makers):
            continue
        if any(value is None or value.sole_use() is None for value in node.operands):
            continue
        first, place = makers[0], _moved_operand(makers[0])
        parts = [maker.operand(place) for maker in makers]
        ranks = {None if part is None else part.rank for part in parts}
        if len(ranks) != 1 or None in ranks:
            continue  # a scalar is no part of a Concat
        builder = context.builder(graph)
        whole: Value = builder.like(node, *parts)
        operands = [whole if index == place else value for index, value in enumerate(first.operands)]
        with context.rewrite(graph):
            context.replace(node.result, builder.like(first, *operands), builder)
            for maker in makers:
                if not maker.is_used and maker.graph is graph:
                    graph.erase(maker)


@graph_pass(
    before="""(float[N,6] x) => (float[N,2] y, float[N,4] z) <int64[2] c = {2,4}>
              { s, t = Split<axis = 1>(x, c)  y = Neg(s)  z = Neg(t) }""",
    after="""(float[N,6] x) => (float[N,2] y, float[N,4] z) <int64[2] c = {2,4}>
             { n = Neg(x)  y, z = Split<axis = 1>(n, c) }""",
    unless=[
        "(float[2,4] x) => (float[2,2] y, float[2,2] z) { y, s = Split<axis = 1, num_outputs = 2>(x)  z = Neg(s) }",
        """(float[2,4] x) => (float[2,2] y, float[2,2] z)
           { s, t = Split<axis = 1, num_outputs = 2>(x)  y = Log(s)  z = Log(t) }""",
        """(float[2,4] x) => (float[2,2] y, float[2,2] z)
           { s, t = Split<axis = 1, num_outputs = 2>(x)  y = Neg(s)  z = Abs(t) }""",
    ],
)
def below_split(graph: Graph, context: Context) -> None:
    """What every part of a Split goes through, the whole goes through before."""
    for node in graph.of_kind("Split"):
        uses = [value.sole_use() for value in node.results]
        readers = [use[0] for use in uses if use is not None]
        source = node.operand(0)
        if len(readers) < len(uses) or len(readers) < 2 or source is None:
            continue
        if not _are_alike(context, graph, node, readers) or not node.has_latest_meaning:
            continue
        first, place = readers[0], _moved_operand(readers[0])
        if any(use is None or use[1] != place for use in uses):
            continue
        builder = context.builder(graph)
        operands = [source if index == place else value for index, value in enumerate(first.operands)]
        whole = builder.like(first, *operands)
        results = builder.like(node, whole, *node.operands[1:])
        with context.rewrite(graph):
            for part in builder.nodes:
                graph.insert(part, rank=node.rank)
            for reader, made in zip(readers, results, strict=True):
                graph.replace_uses(reader.result, made)
                graph.erase(reader)
            graph.erase(node)


def _moved_operand(node: Node) -> int:
    """The position of the operand that is a part; the others are numbers."""
    return 1 if node.op_type in _BINARY and is_one_number(node.operands[0]) else 0


def _are_alike(context: Context, graph: Graph, around: Node, nodes: list[Node]) -> bool:
    """True if nodes do the same to parts, exactly wherever these stand, and all may be moved."""
    if any(node.graph is not graph or not node.is_operator or node.domain != "" for node in (around, *nodes)):
        return False
    if any(node.is_pinned or context.keeps(node) or not node.has_latest_meaning for node in (around, *nodes)):
        return False
    first, place = nodes[0], _moved_operand(nodes[0])
    if first.op_type not in _UNARY | _BINARY or not is_elementwise(first.domain, first.op_type):
        return False
    part = first.operand(place)
    dtype = None if part is None else part.dtype
    if dtype is None or dtype in HALVES or first.result.dtype in HALVES or first.result.dtype is DType.UINT32:
        return False
    if not is_position_independent(first.op_type, dtype) or not all(_does_same(first, node, place) for node in nodes):
        return False
    if first.op_type in _ACTIVATIONS and around.op_type == "Concat":
        return not any(
            value is not None and value.producer.op_type in _LAYERS for node in nodes for value in node.operands
        )
    return True


def _does_same(first: Node, other: Node, place: int) -> bool:
    """True if two nodes differ in nothing but the part they compute with."""
    if other.op_type != first.op_type or len(other.operands) != len(first.operands):
        return False
    if dict(other.attributes) != dict(first.attributes) or _moved_operand(other) != place:
        return False
    left, right = first.operand(place), other.operand(place)
    if left is None or right is None or left.dtype is not right.dtype:
        return False
    return all(
        _is_same_number(one, two, right)
        for index, (one, two) in enumerate(zip(first.operands, other.operands, strict=True))
        if index != place
    )


def _is_same_number(one: Value | None, two: Value | None, part: Value) -> bool:
    if one is None or two is None:
        return one is two
    if not is_one_number(one) or one.const is None or two.const is None or part.rank is None:
        return False
    return one.const.rank <= part.rank and (one is two or one.const.equals(two.const))
