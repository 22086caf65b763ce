"""Gives products of two computed matrices the transposes and scales around them, which FusedMatMul does on the way.

Products by constant matrices stay: their scales go into the weights, and the runtime makes one Gemm of them and their
bias. It comes after the attentions, which are known by plain products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from graphopt import Context, DType, Graph, Node, Value, graph_pass, symbol
from passes._cover import number
from passes._proofs import same_dim
from passes.fusion import RUNTIME

TARGETS = RUNTIME

_MICROSOFT = "com.microsoft"
_LEAST, _MOST = 1e-30, 1e30
"""What a scale may be: beyond that it meets the ends of float32 on its way."""


@dataclass(slots=True)
class _Side:
    """One of the matrices.

    Attributes:
        value: What the product reads.
        turned: Its last two axes change places.
        from_front: Its first axis goes behind the batch, before the last.
    """

    value: Value
    turned: bool = False
    from_front: bool = False


@dataclass(slots=True)
class _Product:
    """A product with what is around it.

    Attributes:
        nodes: The parts that go.
        root: The last of them, which gives the result.
        alpha: What the product is multiplied by.
    """

    left: _Side
    right: _Side
    root: Node
    alpha: float = 1.0
    nodes: dict[Node, None] = field(default_factory=dict)


@graph_pass(
    before="""(float[2,3,4] a, float[2,5,4] x) => (float[2,3,5] y) <float c = {0.5}> {
        t = Transpose<perm = [0,2,1]>(x)
        p = MatMul(a, t)
        y = Mul(p, c)
    }""",
    after="""(float[2,3,4] a, float[2,5,4] x) => (float[2,3,5] y) {
        y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(a, x)
    }""",
    unless=[
        # A constant matrix, which the scale goes into.
        """(float[2,3,4] a) => (float[2,3,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}, float c = {0.5}>
           { p = MatMul(a, w)  y = Mul(p, c) }""",
        # A scale for each column, and one that is no number before the model runs.
        """(float[2,3,4] a, float[2,4,2] x) => (float[2,3,2] y) <float[2] c = {0.5, 2.0}>
           { p = MatMul(a, x)  y = Mul(p, c) }""",
        "(float[2,3,4] a, float[2,4,2] x, float c) => (float[2,3,2] y) { p = MatMul(a, x)  y = Mul(p, c) }",
        # A number that is divided, one that stretches, and nothing at all.
        "(float[2,3,4] a, float[2,4,2] x) => (float[2,3,2] y) <float c = {0.5}> { p = MatMul(a, x)  y = Div(c, p) }",
        "(float[3,4] a, float[4,2] x) => (float[1,3,2] y) <float[1,1,1] c = {0.5}> { p = MatMul(a, x)  y = Mul(p, c) }",
        "(float[2,3,4] a, float[2,4,2] x) => (float[2,3,2] y) <float c = {0.0}> { p = MatMul(a, x)  y = Mul(p, c) }",
        # Other transposes, and one that somebody else reads.
        """(float[2,3,4,5] a, float[2,3,5,4] x) => (float[3,2,4,4] y) {
            t = Transpose<perm = [1,0,2,3]>(a)  u = Transpose<perm = [1,0,2,3]>(x)  y = MatMul(t, u)
        }""",
        """(float[2,3,4] a, float[2,5,4] x) => (float[2,3,5] y, float[2,4,5] t)
           { t = Transpose<perm = [0,2,1]>(x)  y = MatMul(a, t) }""",
        # Nothing to sum over, perhaps: the kernel leaves its result as it finds it.
        """(float[2,3,K] a, float[2,5,K] x) => (float[2,3,5] y)
           { t = Transpose<perm = [0,2,1]>(x)  y = MatMul(a, t) }""",
        # The runtime makes a Gemm of it.
        """(float[3,4] a, float[5,4] x) => (float[3,5] y) <float[5] c = {1,2,3,4,5}>
           { t = Transpose<perm = [1,0]>(x)  p = MatMul(a, t)  y = Add(p, c) }""",
        # Something random in between, and a type without a kernel.
        """(float[2,3,4] a, float[2,4,2] x) => (float[2,3,2] y) <float c = {0.5}, float share = {0.5}, bool yes = {1}>
           { p = MatMul(a, x)  d = Dropout(p, share, yes)  y = Mul(d, c) }""",
        """(bfloat16[2,3,4] a, bfloat16[2,5,4] x) => (bfloat16[2,3,5] y)
           { t = Transpose<perm = [0,2,1]>(x)  y = MatMul(a, t) }""",
        # The attribute has no more than the digits of float32.
        """(double[2,3,4] a, double[2,4,2] x) => (double[2,3,2] y) <double c = {0.1}>
           { p = MatMul(a, x)  y = Mul(p, c) }""",
        # A vector has nothing to turn.
        "(float[4] a, float[4,2] x) => (float[2] y) <float c = {0.5}> { p = MatMul(a, x)  y = Mul(p, c) }",
    ],
    numeric="R",
    largest=1e9,
)
def scaled_and_turned(graph: Graph, context: Context) -> None:
    """A product with transposes before it and scales around it is FusedMatMul."""
    for node in [*graph.of_kind("MatMul"), *graph.of_kind("FusedMatMul", _MICROSOFT)]:
        if node.graph is graph and not _stays(node, context):
            _fuse(graph, node, context)


def _fuse(graph: Graph, node: Node, context: Context) -> None:
    left, right = node.operand(0), node.operand(1)
    if left is None or right is None or left.const is not None or right.const is not None:
        return
    if (left.rank or 0) < 2 or (right.rank or 0) < 2 or not context.target.runs("FusedMatMul", left.dtype):
        return
    sides = [
        _Side(value, bool(node.attributes.get(f"trans{name}", 0)), bool(node.attributes.get(f"transBatch{name}", 0)))
        for value, name in ((left, "A"), (right, "B"))
    ]
    alpha = node.attributes.get("alpha", 1.0)
    product = _Product(sides[0], sides[1], node, alpha if isinstance(alpha, float) else 1.0)
    for side in sides:
        _before(product, side, context)
    _after(product, context)
    if not product.nodes or _becomes_gemm(product):
        return
    inner = [side.value.shape[_inner(side, place)] for place, side in enumerate(sides) if side.value.shape is not None]
    if not any(dim is not None and symbol.is_positive(dim) for dim in inner):
        context.note("a product stays plain: what it sums over may be empty, of which FusedMatMul makes no zeros")
        return
    if any(side.from_front for side in sides) and not _have_equal_batches(*sides):
        return
    if not _LEAST < abs(product.alpha) < _MOST or not _fits(product.alpha, left.dtype):
        context.note(f"a scale of {product.alpha:g} around a product stays")
        return
    b = context.builder(graph)
    attributes: dict[str, object] = {}
    for side, name in zip(sides, "AB", strict=True):
        attributes |= {f"trans{name}": 1} if side.turned else {}
        attributes |= {f"transBatch{name}": 1} if side.from_front else {}
    if product.alpha != 1.0:
        attributes["alpha"] = product.alpha
    fused = b.microsoft.FusedMatMul(sides[0].value, sides[1].value, **attributes)
    gone = list(dict.fromkeys((node, *product.nodes)))
    with context.rewrite(graph):
        context.replace(product.root.results[0], fused, b)
        pending = True
        while pending:
            unread = [part for part in gone if part.graph is graph and not part.is_used]
            pending = bool(unread)
            for part in unread:
                graph.erase(part)


def _stays(node: Node, context: Context) -> bool:
    return node.is_pinned or context.keeps(node) or (node.domain == "" and not node.has_latest_meaning)


def _is_product(node: Node) -> bool:
    return node.is_op("MatMul") or node.is_op("FusedMatMul", _MICROSOFT)


def _before(product: _Product, side: _Side, context: Context) -> None:
    """Take in what is done to one matrix before it is multiplied, as far as nobody else reads it."""
    while True:
        value, node = side.value, side.value.producer
        if not node.is_operator or node.graph is not product.root.graph or _stays(node, context):
            return
        if node.is_op("Transpose") and all(map(_is_product, value.users)):
            if not _turn(side, node):
                return
        elif len(value.uses) != 1:
            return
        elif (found := _scale(node)) is not None:
            side.value, factor = found
            product.alpha *= factor
        else:
            return
        product.nodes[node] = None


def _turn(side: _Side, node: Node) -> bool:
    """Take a Transpose into the flags of a side, if they can say it."""
    perm, x = node.param("perm"), node.operand(0)
    if not isinstance(perm, tuple) or x is None or side.from_front:
        return False
    rank = len(perm)
    inner = tuple(range(rank - 2))
    if perm == (*inner, rank - 1, rank - 2):
        side.turned = not side.turned
    elif rank > 2 and not side.turned and perm == (*range(1, rank - 1), 0, rank - 1):
        side.from_front = True
    elif rank > 2 and not side.turned and perm == (*range(1, rank), 0):
        side.from_front = side.turned = True
    else:
        return False
    side.value = x
    return True


def _after(product: _Product, context: Context) -> None:
    """Take in the scales behind a product."""
    while True:
        result = product.root.results[0]
        use = result.sole_use()
        if use is None or use[0].graph is not product.root.graph or _stays(use[0], context):
            return
        found = _scale(use[0])
        if found is None or found[0] is not result:
            return
        product.root = use[0]
        product.alpha *= found[1]
        product.nodes[product.root] = None


def _scale(node: Node) -> tuple[Value, float] | None:
    """What is multiplied by one constant number, and that number."""
    if not (node.is_op("Mul") or node.is_op("Div")):
        return None
    left, right = node.operand(0), node.operand(1)
    value, factor = left, number(right, left)
    if factor is not None and node.op_type == "Div":
        factor = 1.0 / factor if factor else None
    if factor is None and node.op_type == "Mul":
        value, factor = right, number(left, right)
    if value is None or factor is None or value.const is not None or not _fits(factor, node.results[0].dtype):
        return None
    return value, factor


def _fits(factor: float, dtype: DType | None) -> bool:
    """True if an attribute, which has the digits of float32, tells the factor of a product of this dtype."""
    return dtype is not DType.DOUBLE or float(np.float32(factor)) == factor


def _inner(side: _Side, place: int) -> int:
    """The axis that is summed over, of a matrix as it lies."""
    is_last = side.turned == (place == 1)
    return -1 if is_last else 0 if side.from_front else -2


def _becomes_gemm(product: _Product) -> bool:
    """True if a bias is added to a product of two matrices."""
    result = product.root.results[0]
    return result.rank == 2 and any(
        user.is_op("Add") and any(item is not None and item.const is not None for item in user.operands)
        for user in result.users
    )


def _have_equal_batches(left: _Side, right: _Side) -> bool:
    """True if neither side is stretched along the batch: the kernel counts it from the dims as they lie."""
    batches = [_batch(side) for side in (left, right)]
    return len(batches[0]) == len(batches[1]) and all(map(same_dim, *batches))


def _batch(side: _Side) -> tuple[object, ...]:
    shape = side.value.shape or ()
    return shape[1:-1] if side.from_front else shape[:-2]
