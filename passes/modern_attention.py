"""Writes attention and rotary embeddings as the standard operators of opset 23, where the user asked for an opset.

Never without being asked: the model would need a newer runtime. Only where ONNX Runtime computes them in one piece, for
float and half precision. Its Attention refuses empty operands: where dims may be 0, it is written in the aggressive
form of this pass only, and verifying tells whether the original takes empty inputs. Where queries, keys or mask come
from several inputs, that their dims agree may take `--trust-dim-names` besides.
"""

from __future__ import annotations

import math

from graphopt import Builder, Context, DType, Graph, Model, Node, Options, Value, graph_pass
from passes._cover import Cover, number, sole_user
from passes._dim_names import hint_for_pairs
from passes._masks import is_finite_mask
from passes._proofs import is_never_empty, same_dim, type_name
from passes._rotary import rotary_around
from passes.fusion._attention_near import is_between_products

_KERNELS = (DType.FLOAT, DType.FLOAT16)


def is_asked(model: Model, options: Options) -> bool:
    """Only where an opset is asked for, and only when the model has it."""
    return options.opset is not None and model.graph.opsets.get("") == options.opset


@graph_pass(
    before="""(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v, bool[3,5] b) => (float[1,2,3,4] y)
              <float r = {0.5}, float none = {0.0}, float low = {-100.0}> {
        t = Transpose<perm = [0,1,3,2]>(k)
        s = MatMul(q, t)
        c = Mul(s, r)
        m = Where(b, none, low)
        a = Add(c, m)
        p = Softmax<axis = -1>(a)
        y = MatMul(p, v)
    }""",
    after="""(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v, bool[3,5] b) => (float[1,2,3,4] y)
             <float none = {0.0}, float low = {-100.0}> {
        m = Where(b, none, low)
        y = Attention<scale = 0.5>(q, k, v, m)
    }""",
    unless=[
        """(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v) => (float[1,2,3,4] y) {
            t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  p = Softmax<axis = 1>(s)  y = MatMul(p, v)
        }""",
        """(float[1,2,3,4] q, float[1,1,5,4] k, float[1,2,5,4] v) => (float[1,2,3,4] y) {
            t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  p = Softmax<axis = -1>(s)  y = MatMul(p, v)
        }""",
        """(float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v, bool[3,5] b) => (float[1,2,3,4] y)
           <float none = {0.0}, float low = {-inf}> {
            t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  m = Where(b, none, low)  a = Add(s, m)
            p = Softmax<axis = -1>(a)  y = MatMul(p, v)
        }""",
    ],
    numeric="R",
    opset=23,
    largest=1e12,
)
def attention(graph: Graph, context: Context) -> None:
    """A softmax of scaled, masked products of queries and keys, times values, is Attention."""
    if graph.opsets.get("", 0) >= 23:
        for node in graph.of_kind("Softmax"):
            reason = _fuse_attention(node, context)
            if reason:
                context.note(f"attention stays in parts: {reason}")


def _fuse_attention(softmax: Node, context: Context) -> str:
    """Replace an attention; why not, if what looks like one is left alone."""
    root = sole_user(softmax.results[0], "MatMul")
    scores = softmax.operand(0)
    if root is None or root.operand(0) is not softmax.results[0] or scores is None:
        is_near = softmax.has_latest_meaning and is_between_products(softmax)
        return "the probabilities do not go straight into one product with values" if is_near else ""
    if scores.rank != 4 or softmax.param("axis") not in (-1, 3):
        return "the scores do not have batches and heads apart, or the softmax is not over their last axis"
    cover = Cover(root)
    cover.enter(softmax.results[0], "Softmax")
    mask = None
    total = cover.enter(scores, "Add")
    if total is not None:
        scores, mask = _scores_and_mask(total)
        if scores is None or mask is None:
            return "what is added to the mask is not a product of queries and keys, times a number"
    scale, scores = _unscaled(cover, scores)
    product = cover.enter(scores, "MatMul")
    if product is None:
        maker = None if scores is None else scores.producer
        return f"the scores are made by {maker.op_type}, not by a product" if maker and maker.is_operator else ""
    factor, query = _unscaled(cover, product.operand(0))
    other_factor, keys = _unscaled(cover, product.operand(1))
    scale *= factor * other_factor
    value = root.operand(1)
    if query is None or keys is None or value is None:
        return ""
    if not 0 < scale < math.inf:
        return "the scale is not positive"
    reason = _doubt_of(query, keys, value) or ("" if mask is None else _doubt_of_mask(mask, query, keys))
    if reason:
        return reason
    if not context.is_aggressive and not all(map(is_never_empty, (query, keys, value))):
        # The runtime's kernel refuses empty operands, which the parts take.
        return (
            "the operator fails on empty operands, and dims may be 0; for models that get none, fix the dims with "
            "--fix-dim, or use --aggressive modern_attention"
        )
    turned = cover.copy()
    transpose = turned.enter(keys, "Transpose")
    perm = transpose.param("perm") if transpose is not None and turned.is_private else None
    if perm in ((0, 1, 3, 2), (0, 2, 3, 1)):
        cover = turned

    def build(b: Builder) -> Value:
        source = transpose.operand(0) if transpose is not None else None
        if perm == (0, 1, 3, 2) and source is not None:
            key = source
        elif perm == (0, 2, 3, 1):
            key = b.Transpose(source, perm=[0, 2, 1, 3])
        else:
            key = b.Transpose(keys, perm=[0, 1, 3, 2])
        operands = [query, key, value] if mask is None else [query, key, value, mask]
        made: Value = b.apply("Attention", operands, parameters={"scale": scale})
        return made

    return "" if cover.replace(context, build) else "a part of it is read elsewhere, or kept"


def _scores_and_mask(total: Node) -> tuple[Value | None, Value | None]:
    """Which operand of the sum are the scores: the one that comes from a product of matrices."""
    for scores, mask in (total.operands, total.operands[::-1]):
        value = scores
        for _ in range(2):
            if value is not None and value.producer.is_op("MatMul"):
                return scores, mask
            if value is None or not (value.producer.is_op("Mul") or value.producer.is_op("Div")):
                break
            node = value.producer
            value = node.operand(1) if number(node.operand(0)) is not None else node.operand(0)
    return None, None


def _unscaled(cover: Cover, value: Value | None) -> tuple[float, Value | None]:
    """The number that a value is multiplied by, and the value without it."""
    branch = cover.copy()
    node = branch.enter(value, "Mul", "Div")
    if node is None:
        return 1.0, value
    left, right = node.operands
    factor, rest = number(right, left), left
    if factor is None and node.op_type == "Mul":
        factor, rest = number(left, right), right
    if not factor or not branch.is_private:
        return 1.0, value
    cover.enter(value, "Mul", "Div")
    return (factor if node.op_type == "Mul" else 1 / factor), rest


def _doubt_of(query: Value, keys: Value, value: Value) -> str:
    """Why batches and heads may not be the same throughout, so that something is broadcast."""
    if query.dtype not in _KERNELS or any(item.dtype is not query.dtype for item in (keys, value)):
        return f"the runtime has no kernel for {type_name(query.dtype)}"
    q, k, v = (item.shape for item in (query, keys, value))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return "queries, keys and values do not have batches and heads apart"
    for axis, name in enumerate(("batches", "numbers of heads")):
        if not (same_dim(q[axis], k[axis]) and same_dim(q[axis], v[axis])):
            hint = hint_for_pairs((q[axis], k[axis]), (q[axis], v[axis]))
            return f"queries, keys and values may have different {name}: {q[axis]}, {k[axis]} and {v[axis]}{hint}"
    if same_dim(k[3], v[2]):
        return ""
    return f"there may be as many keys as {k[3]} and as many values as {v[2]}{hint_for_pairs((k[3], v[2]))}"


def _doubt_of_mask(mask: Value, query: Value, keys: Value) -> str:
    """Why the runtime does not take something as a mask, or it may leave a query without a key to see."""
    shape, q, k = mask.shape, query.shape, keys.shape
    if shape is None or q is None or k is None or mask.dtype is not query.dtype or not 2 <= len(shape) <= 4:
        return "the mask has another type, or not two to four axes"
    wanted = (q[0], q[1], q[2], k[3])[4 - len(shape) :]
    if not (same_dim(shape[-2], q[2]) and same_dim(shape[-1], k[3])):
        found, all_of_it = (", ".join(map(str, item)) for item in (shape[-2:], wanted[-2:]))
        whole = hint_for_pairs(*zip(shape, wanted, strict=True)) if shape[-2] != 1 and shape[-1] != 1 else ""
        return f"the operator takes masks of the queries and keys, [{all_of_it}], and this one has [{found}]{whole}"
    if not all(dim == 1 or same_dim(dim, want) for dim, want in zip(shape[:-2], wanted[:-2], strict=True)):
        hint = hint_for_pairs(*zip(shape, wanted, strict=True))
        return f"the mask may have other batches or heads than the queries{hint}"
    return "" if is_finite_mask(mask) else "the mask may hide all keys of a query, which then gives another result"


@graph_pass(
    before="""(float[1,2,3,4] x, float[1,3,2] f) => (float[1,2,3,4] y)
              <int64[1] zero = {0}, int64[1] half = {2}, int64[1] end = {4}, int64[1] last = {3}, int64[1] one = {1}> {
        e = Concat<axis = -1>(f, f)
        c3 = Cos(e)
        s3 = Sin(e)
        c = Unsqueeze(c3, one)
        s = Unsqueeze(s3, one)
        a = Slice(x, zero, half, last)
        b = Slice(x, half, end, last)
        n = Neg(b)
        r = Concat<axis = -1>(n, a)
        p = Mul(x, c)
        q = Mul(r, s)
        y = Add(p, q)
    }""",
    after="""(float[1,2,3,4] x, float[1,3,2] f) => (float[1,2,3,4] y) <int64[1] one = {1}> {
        e = Concat<axis = -1>(f, f)
        c3 = Cos(e)
        s3 = Sin(e)
        dead_c = Unsqueeze(c3, one)
        dead_s = Unsqueeze(s3, one)
        c = Cos(f)
        s = Sin(f)
        y = RotaryEmbedding(x, c, s)
    }""",
    unless=[
        """(float[1,2,3,4] x, float[1,3,2] f, float[1,3,2] g) => (float[1,2,3,4] y)
           <int64[1] zero = {0}, int64[1] half = {2}, int64[1] end = {4}, int64[1] last = {3}, int64[1] one = {1}> {
            e = Concat<axis = -1>(f, g)  c3 = Cos(e)  s3 = Sin(e)  c = Unsqueeze(c3, one)  s = Unsqueeze(s3, one)
            a = Slice(x, zero, half, last)  b = Slice(x, half, end, last)  n = Neg(b)  r = Concat<axis = -1>(n, a)
            p = Mul(x, c)  q = Mul(r, s)  y = Add(p, q)
        }""",
    ],
    numeric="R",
    opset=23,
    largest=1e4,
)
def rotary_embedding(graph: Graph, context: Context) -> None:
    """Turning pairs of elements by angles, half against half, is RotaryEmbedding."""
    if graph.opsets.get("", 0) >= 23:
        for node in graph.of_kind("Neg"):
            rotary_around(node, context)
