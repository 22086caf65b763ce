"""Batch, sequence and heads are told apart by what moves them: equal sizes do not make axes the same."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from onnx import parser
from sessions import session

from graphopt import optimize

FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
STRAIGHT = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}
PERMS = list(permutations(range(4)))
SQUARES = ((2, 2), (3, 3), (1, 1), (1, 3), (3, 1))
PASSES = ["fusion.grouped_attention", "fusion.attention", "common_subexpressions", "pruning"]


def weights(name: str, width: int, seed: int) -> str:
    numbers = np.random.default_rng(seed).integers(-9, 9, (4, width)).reshape(-1) / 8
    return f"float[4,{width}] {name} = {{{','.join(map(str, numbers))}}}"


THREE = ", ".join(weights(f"w{name}", 4, place) for place, name in enumerate("qkv"))
LAYERS = "ql = MatMul(x, wq)  kl = MatMul(x, wk)  vl = MatMul(x, wv)"
ONE = weights("w", 12, 7)
PACKED = "l = MatMul(x, w)  ql, kl, vl = Split<axis = 2>(l, parts)"
GIVEN = "ql = Identity(xq)  kl = Identity(xk)  vl = Identity(xv)"
BODY = """q4 = Reshape(ql, s)  k4 = Reshape(kl, s)  v4 = Reshape(vl, s)
    q = Transpose<perm = [Q]>(q4)  k = Transpose<perm = [K]>(k4)  v = Transpose<perm = [V]>(v4)
    d = MatMul(q, k)  e = Mul(d, c)  p = Softmax<axis = -1>(e)  r = MatMul(p, v)  y = Transpose<perm = [0,2,1,3]>(r)"""
SOURCES = {
    "Attention": ("float[B,S,4] x", THREE, LAYERS),
    "packed": ("float[B,S,4] x", ONE + ", int64[3] parts = {4,4,4}", PACKED),
    "MultiHeadAttention": ("float[B,S,4] xq, float[B,S,4] xk, float[B,S,4] xv", "int64 unread = {0}", GIVEN),
}


def fixed(text: str, batch: int, rows: int) -> str:
    return text.replace("[B,S,", f"[{batch},{rows},")


def compare(text: str, sizes: tuple[tuple[int, int], ...], passes: list[str] | None = None) -> Counter[str]:
    """The operators of an optimized model, which gives the same for all sizes that the model takes."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    result = optimize(model, target="ort-cpu", passes=passes or PASSES, strict=True).model
    found = Counter(node.op_type for node in result.graph.node)
    if not any(found[name] for name in FUSED):
        return found
    before, after = session(model), session(result)
    rng = np.random.default_rng(1)
    for batch, rows in sizes:
        feeds = {}
        for item in before.get_inputs():
            shape = [{"B": batch, "S": rows}.get(dim, dim) for dim in item.shape]
            feeds[item.name] = rng.standard_normal(shape).astype(np.float32)
        try:
            (left,) = before.run(None, feeds)
        except Exception:
            continue  # what the model refuses, nobody asks of the result
        (right,) = after.run(None, feeds)
        assert left.shape == right.shape, (batch, rows)
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5, err_msg=f"batch {batch}, sequence {rows}")
    return found


def attention(source: str, perms: dict[str, tuple[int, ...]]) -> str:
    inputs, constants, layers = SOURCES[source]
    body = BODY
    for name, perm in perms.items():
        body = body.replace(f"[{name.upper()}]", f"[{','.join(map(str, perm))}]")
    head = f"({inputs}) => (float[U,V,W,Z] y) <{constants}, int64[4] s = {{0,0,2,2}}, float c = {{0.5}}>"
    return f"{head} {{ {layers} {body} }}"


@pytest.mark.parametrize("side", ["q", "k", "v"])
@pytest.mark.parametrize("source", SOURCES)
def test_one_operand_in_every_order(source: str, side: str) -> None:
    fused = 0
    for perm in PERMS:
        text = attention(source, STRAIGHT | {side: perm})
        fused += any(compare(text, SQUARES)[name] for name in FUSED)
        for batch, rows in SQUARES:
            try:
                compare(fixed(text, batch, rows), ((batch, rows),))
            except Exception as error:  # what does not run is no model
                if "ShapeInference" not in str(error) and "Incompatible" not in str(error):
                    raise
    assert fused  # the straight one at least


@pytest.mark.parametrize("source", SOURCES)
def test_all_operands_in_one_order(source: str) -> None:
    for place, other in permutations(range(4), 2):
        order = [0, 2, 1, 3]
        order[place], order[other] = order[other], order[place]
        straight = tuple(order)
        text = attention(source, {"q": straight, "v": straight, "k": (*straight[:2], straight[3], straight[2])})
        compare(text, SQUARES)


PARTED = """({x}) => (float[U,V,W,Z] y) <int64[{n}] apart = {{{apart}}}, int64[4] s = {{2,6,2,2}}, float c = {{0.5}},
    int64[4] four = {{2,6,2,2}}> {{ {made}
    q = Transpose<perm = [0,2,1,3]>(q4)  k = Transpose<perm = [0,2,3,1]>(k4)  v = Transpose<perm = [0,2,1,3]>(v4)
    d = MatMul(q, k)  e = Mul(d, c)  p = Softmax<axis = -1>(e)  r = MatMul(p, v)  y = Identity(r) }}"""


def parted(shape: str, apart: str, perm: str, turned: str, others: str = "float[2,6,2,2]") -> str:
    """An attention of which one operand is made by dividing an axis, turning its factors and joining them again."""
    names = {name: f"{name}4 = Identity(x{name})" for name in "qkv"}
    names[turned] = (
        f"{turned}a = Reshape(x{turned}, apart)  {turned}b = Transpose<perm = [{perm}]>({turned}a)  "
        f"{turned}4 = Reshape({turned}b, four)"
    )
    inputs = ", ".join(f"{shape if name == turned else others} x{name}" for name in "qkv")
    count = apart.count(",") + 1
    return PARTED.format(x=inputs, n=count, apart=apart, made="  ".join(names.values()))


@pytest.mark.parametrize("turned", ["q", "k", "v"])
@pytest.mark.parametrize(
    ("shape", "apart", "perm"),
    [
        ("float[2,6,4]", "2,2,3,2,2", "0,1,2,3,4"),  # as they are
        ("float[2,6,4]", "2,2,3,2,2", "0,2,1,3,4"),  # positions in another order
        ("float[2,6,4]", "2,3,2,2,2", "0,2,1,3,4"),
        ("float[2,6,4]", "2,6,2,2", "0,1,3,2"),  # elements of heads
        ("float[2,6,2,2]", "2,6,2,2", "0,1,3,2"),
        ("float[6,2,4]", "3,2,2,2,2", "2,0,1,3,4"),
        ("float[6,2,4]", "3,2,2,2,2", "2,1,0,3,4"),
        ("float[12,1,4]", "6,2,2,2", "1,0,2,3"),  # sequence and batch on one axis
        ("float[12,4]", "6,2,2,2", "1,0,2,3"),
        ("float[12,4]", "2,6,2,2", "0,1,2,3"),
    ],
)
def test_factors_of_an_axis_keep_their_order(shape: str, apart: str, perm: str, turned: str) -> None:
    compare(parted(shape, apart, perm, turned), ((2, 6),))


@pytest.mark.parametrize(("apart", "perm"), [("2,3,4,2,2", "0,1,2,3,4"), ("2,3,4,2,2", "1,0,2,3,4")])
def test_batches_of_two_axes(apart: str, perm: str) -> None:
    text = parted("float[6,4,4]", apart, perm, "k", others="float[6,4,2,2]").replace("{2,6,2,2}", "{6,4,2,2}")
    compare(text, ((6, 4),))


@pytest.mark.parametrize("query", ["[1,6,2,4,2]", "[6,1,2,4,2]"])
def test_batches_that_stretch_each_other(query: str) -> None:
    text = (
        f"(float{query} q, float[1,6,2,4,2] t, float[1,6,2,4,2] v) => (float[U,V,W,X,Z] y) <float c = {{0.5}}> {{"
        "k = Transpose<perm = [0,1,2,4,3]>(t)  d = MatMul(q, k)  e = Mul(d, c)  p = Softmax<axis = -1>(e)"
        "y = MatMul(p, v) }"
    )
    compare(text, ((0, 0),))


def test_heads_that_may_stretch() -> None:
    text = (
        "(float[B,2,S,2] q, float[B,N,2,S] k, float[B,N,S,2] v) => (float[B,2,S,2] y) <float c = {0.5}> {"
        "d = MatMul(q, k)  e = Mul(d, c)  p = Softmax<axis = -1>(e)  y = MatMul(p, v) }"
    )
    assert not any(compare(text, ())[name] for name in FUSED)


@pytest.mark.parametrize("perm", ["0,2,1,3", "2,0,1,3"])
@pytest.mark.parametrize("shape", ["0,-1,4", "-1,4", "-1,1,4", "1,-1,4", "2,-1,4"])
def test_results_in_every_shape(perm: str, shape: str) -> None:
    straight = attention("MultiHeadAttention", STRAIGHT).replace("y = Transpose<perm = [0,2,1,3]>(r)", "")
    rank = shape.count(",") + 1
    text = straight.replace("float c", f"int64[{rank}] o = {{{shape}}}, float c").replace(
        "(float[U,V,W,Z] y)", f"(float[{','.join('UVWZ'[:rank])}] y)"
    )
    text = text.replace(" }", f" t = Transpose<perm = [{perm}]>(r)  y = Reshape(t, o) }}")
    compare(text, ((2, 3), (2, 2), (4, 1), (1, 4)))
    compare(fixed(text, 2, 2), ((2, 2),))
    compare(fixed(text, 4, 2), ((4, 2),))


GROUPED = """(float[B,S,32] xq, float[B,S,16] xk, float[B,S,16] xv) => (float[U,V,W,Z] y)
    <int64[4] sq = {0,0,4,8}, int64[4] sk = {0,0,2,8}, int64[4] each = {0,0,1,1}, float c = {0.5}> {
    q4 = Reshape(xq, sq)  k4 = Reshape(xk, sk)  v4 = Reshape(xv, sk)
    q = Transpose<perm = [Q]>(q4)  k5 = Transpose<perm = [K]>(k4)  v5 = Transpose<perm = [V]>(v4)
    kr = Gather<axis = 1>(k5, each)  v = Gather<axis = 1>(v5, each)  k = Transpose<perm = [0,1,3,2]>(kr)
    d = MatMul(q, k)  e = Mul(d, c)  MASK p = Softmax<axis = -1>(a)  r = MatMul(p, v)
    y = Transpose<perm = [0,2,1,3]>(r) }"""


@pytest.mark.parametrize("side", ["q", "k", "v"])
@pytest.mark.parametrize(("batch", "rows"), SQUARES)
def test_shared_heads_in_every_order(side: str, batch: int, rows: int) -> None:
    mask = np.where(np.tri(rows), 0.0, -np.inf).reshape(-1)
    numbers = ",".join(map(str, mask))
    fused = 0
    for perm in [(0, 2, 1, 3), (1, 2, 0, 3)]:
        text = GROUPED.replace("MASK", "a = Add(e, m)")
        text = text.replace("float c", f"float[{rows},{rows}] m = {{{numbers}}}, float c")
        for name in "qkv":
            order = perm if name == side else (0, 2, 1, 3)
            text = text.replace(f"[{name.upper()}]", f"[{','.join(map(str, order))}]")
        fused += compare(fixed(text, batch, rows), ((batch, rows),))["GroupQueryAttention"]
    assert fused
