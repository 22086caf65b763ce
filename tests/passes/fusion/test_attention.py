"""Attention in every layout and spelling gives what the parts gave, for every size and every mask they took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, checker, parser
from sessions import session

from graphopt import optimize

PASSES = ["fusion.attention", "common_subexpressions", "pruning"]
FUSED = ("Attention", "MultiHeadAttention")
WEIGHT = "float[4,24] w = {" + ",".join(str((3 * place % 11 - 5) / 8) for place in range(96)) + "}"
BIAS = "float[24] c = {" + ",".join(str((5 * place % 7 - 3) / 4) for place in range(24)) + "}"
LAYER = "l = MatMul(x, w)  a = Add(l, c)"
"""24 columns: three times two heads of four."""
END = "j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o)"
HEADS = "h = Reshape(a, s)  t = Transpose<perm = [0,2,1,3]>(h)  q, k, v = Split<axis = 1>(t, p)"
NUMBERS = "int64[4] s = {0,0,6,4}, int64[3] p = {2,2,2}, int64[3] o = {0,0,8}, float r = {0.5}, float two = {2}"
SIZES = ({"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 3, "S": 4})
EMPTY = ({"B": 0, "S": 3}, {"B": 2, "S": 0})


def fused(
    text: str,
    *sizes: Mapping[str, int],
    opset: int = 18,
    given: Mapping[str, Any] | None = None,
    passes: list[str] | None = None,
    target: str = "ort-cpu",
) -> tuple[ModelProto, Counter[str]]:
    """The optimized model, which gives the same for feeds of such sizes, and its operators."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\ng {text}')
    checker.check_model(model)
    result = optimize(model, target=target, passes=passes or PASSES, strict=True).model
    before, after = session(model), session(result)
    rng = np.random.default_rng(1)
    for size in sizes or SIZES:
        feeds = {}
        for item in before.get_inputs():
            shape = [size[dim] if isinstance(dim, str) else dim for dim in item.shape]
            if given is not None and item.name in given:
                feeds[item.name] = given[item.name]
            elif item.type == "tensor(bool)":
                feeds[item.name] = rng.random(shape) < 0.6
            else:
                feeds[item.name] = rng.standard_normal(shape).astype(np.float32)
        for left, right in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert left.shape == right.shape
            np.testing.assert_allclose(left, right, rtol=3e-6, atol=3e-6)
    return result, Counter(node.op_type for node in result.graph.node if node.op_type != "Constant")


def only(model: ModelProto) -> Any:
    """The attributes of the only fused operator."""
    (node,) = [node for node in model.graph.node if node.op_type in FUSED]
    return {item.name: item.f or item.i or list(item.ints) for item in node.attribute}


def operands(model: ModelProto) -> list[bool]:
    """Which operands the only fused operator has."""
    (node,) = [node for node in model.graph.node if node.op_type in FUSED]
    return [bool(name) for name in node.input]


SCALES = {
    "after": ("u = Transpose<perm = [0,1,3,2]>(k)  d0 = MatMul(q, u)  d = Mul(d0, r)", 0.5),
    "after, divided": ("u = Transpose<perm = [0,1,3,2]>(k)  d0 = MatMul(q, u)  d = Div(d0, two)", 0.5),
    "queries": ("u = Transpose<perm = [0,1,3,2]>(k)  qs = Mul(r, q)  d = MatMul(qs, u)", 0.5),
    "keys": ("u = Transpose<perm = [0,1,3,2]>(k)  ks = Div(u, two)  d = MatMul(q, ks)", 0.5),
    "keys before": ("ks = Div(k, two)  u = Transpose<perm = [0,1,3,2]>(ks)  d = MatMul(q, u)", 0.5),
    "both": ("qs = Mul(q, r)  ks = Mul(k, r)  u = Transpose<perm = [0,1,3,2]>(ks)  d = MatMul(qs, u)", 0.25),
    "none": ("u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)", 1.0),
}


@pytest.mark.parametrize("spelling", SCALES)
def test_scale_anywhere(spelling: str) -> None:
    product, scale = SCALES[spelling]
    model, found = fused(
        f"(float[B,S,4] x) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}>"
        f"{{ {LAYER} {HEADS} {product}  g = Softmax<axis = -1>(d)  i = MatMul(g, v) {END} }}",
        *SIZES,
        *EMPTY,
    )
    assert found == {"Attention": 1}
    assert only(model)["scale"] == scale
    assert only(model)["num_heads"] == 2


PACKINGS = {
    "third axis, gathered": (
        "h = Reshape(a, s5)  t = Transpose<perm = [2,0,3,1,4]>(h)  q = Gather<axis = 0>(t, zero)"
        "  k = Gather<axis = 0>(t, one)  v = Gather<axis = 0>(t, minus)"
    ),
    "third axis, split": (
        "h = Reshape(a, s5)  t = Transpose<perm = [2,0,3,1,4]>(h)  q1, k1, v1 = Split<axis = 0>(t, ones)"
        "  q = Squeeze(q1, first)  k = Squeeze(k1, first)  v = Squeeze(v1, first)"
    ),
    "inside each head": ("h = Reshape(a, sn)  t = Transpose<perm = [0,2,1,3]>(h)  q, k, v = Split<axis = 3>(t, fours)"),
    "inside each head, five axes": (
        "h = Reshape(a, sn5)  q0 = Gather<axis = 3>(h, zero)  q = Transpose<perm = [0,2,1,3]>(q0)"
        "  k0 = Gather<axis = 3>(h, one)  k = Transpose<perm = [0,2,1,3]>(k0)"
        "  v0 = Gather<axis = 3>(h, minus)  v = Transpose<perm = [0,2,1,3]>(v0)"
    ),
    "sliced": (
        "q0 = Slice(a, b0, b1, last)  k0 = Slice(a, b1, b2, last)  v0 = Slice(a, b2, b3, last)"
        "  q1 = Reshape(q0, s2)  k1 = Reshape(k0, s2)  v1 = Reshape(v0, s2)  q = Transpose<perm = [0,2,1,3]>(q1)"
        "  k = Transpose<perm = [0,2,1,3]>(k1)  v = Transpose<perm = [0,2,1,3]>(v1)"
    ),
    "keys first": "h = Reshape(a, s)  t = Transpose<perm = [0,2,1,3]>(h)  k, v, q = Split<axis = 1>(t, p)",
}
PLACES = (
    "int64[5] s5 = {0,0,3,2,4}, int64 zero = {0}, int64 one = {1}, int64 minus = {-1}, int64[3] ones = {1,1,1},"
    "int64[1] first = {0}, int64[4] sn = {0,0,2,12}, int64[3] fours = {4,4,4}, int64[5] sn5 = {0,0,2,3,4},"
    "int64[1] b0 = {0}, int64[1] b1 = {8}, int64[1] b2 = {16}, int64[1] b3 = {24}, int64[1] last = {2},"
    "int64[4] s2 = {0,0,2,4}"
)
CORE = "u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)"


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_in_any_order(packing: str) -> None:
    """Columns of the weight are put in order where they are not."""
    _, found = fused(
        f"(float[B,S,4] x) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}, {PLACES}>"
        f"{{ {LAYER} {PACKINGS[packing]} {CORE} {END} }}"
    )
    assert found == {"Attention": 1}


def test_batch_folded_into_heads() -> None:
    """Three axes, batch and heads as one, and two sums with masks before and after they come apart."""
    _, found = fused(
        f"(float[B,S,4] x, float[B,1,1,S] m, float[1,S,S] n) => (float[B,S,8] y)"
        f"""<{WEIGHT}, {BIAS}, {NUMBERS}, int64[1] heads = {{2}}, int64[1] minus = {{-1}}, int64[1] four = {{4}}>
        {{ {LAYER} {HEADS}
           b = Shape<start = 0, end = 1>(x)  n0 = Shape<start = 1, end = 2>(x)  bn = Mul(b, heads)
           fold = Concat<axis = 0>(bn, n0, four)  apart = Concat<axis = 0>(b, heads, n0, n0)
           back = Concat<axis = 0>(bn, n0, n0)  out = Concat<axis = 0>(b, heads, n0, four)
           q3 = Reshape(q, fold)  k3 = Reshape(k, fold)  v3 = Reshape(v, fold)  u = Transpose<perm = [0,2,1]>(k3)
           d0 = MatMul(q3, u)  d1 = Add(d0, n)  d2 = Reshape(d1, apart)  d3 = Add(d2, m)  g0 = Softmax<axis = -1>(d3)
           g = Reshape(g0, back)  i3 = MatMul(g, v3)  i = Reshape(i3, out) {END} }}"""
    )
    assert found["Attention"] == 1
    assert not found["Softmax"]


def test_sequence_before_batch() -> None:
    """The layout of older attention layers: `[sequence, batch, columns]`, heads folded into the batch."""
    _, found = fused(
        """(float[5,B,8] q0, float[7,B,8] k0, float[7,B,8] v0) => (float[5,B,8] y)
        <int64[3] sq = {5,-1,4}, int64[3] sk = {7,-1,4}, int64[3] o = {5,-1,8}>
        { q1 = Reshape(q0, sq)  q = Transpose<perm = [1,0,2]>(q1)  k1 = Reshape(k0, sk)
           u = Transpose<perm = [1,2,0]>(k1)  v1 = Reshape(v0, sk)  v = Transpose<perm = [1,0,2]>(v1)
           d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [1,0,2]>(i)
           y = Reshape(j, o) }""",
        {"B": 1},
        {"B": 3},
    )
    assert found["MultiHeadAttention"] == 1
    assert not found["Softmax"]


@pytest.mark.parametrize("end", ["y = Reshape(j, o)", "j2 = Reshape(j, flat)  y = Relu(j2)"])
def test_layer_of_rows_before_batch(end: str) -> None:
    """The layer's operand is turned, not its result."""
    rank = "5,B,8" if "o)" in end else "N,8"
    _, found = fused(
        f"""(float[B,5,4] x0) => (float[{rank}] y)
        <{WEIGHT}, {BIAS}, int64[4] s5 = {{0,-1,3,8}}, int64[3] fold = {{5,-1,4}}, int64[3] o = {{5,-1,8}},
         int64[2] flat = {{-1,8}}, int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}>
        {{ x = Transpose<perm = [1,0,2]>(x0)  {LAYER} h = Reshape(a, s5)  q0 = Gather<axis = 2>(h, zero)
           k0 = Gather<axis = 2>(h, one)  v0 = Gather<axis = 2>(h, two)  q1 = Reshape(q0, fold)
           k1 = Reshape(k0, fold)  v1 = Reshape(v0, fold)  q = Transpose<perm = [1,0,2]>(q1)
           u = Transpose<perm = [1,2,0]>(k1)  v = Transpose<perm = [1,0,2]>(v1)
           d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [1,0,2]>(i) {end} }}""",
        {"B": 1},
        {"B": 3},
    )
    assert found["Attention"] == 1
    assert found["Transpose"] == 1


def test_layer_between_turns() -> None:
    """The next layer is computed before the attention is turned, and the turns go away."""
    _, found = fused(
        f"""(float[B,5,4] x0) => (float[B,5,8] y)
        <{WEIGHT}, {BIAS}, int64[4] s5 = {{0,-1,3,8}}, int64[3] fold = {{5,-1,4}}, int64[3] o = {{5,-1,8}},
         int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, float[8] c2 = {{1,2,3,4,5,6,7,8}},
         float[8,8] w2 = {{{",".join(str(place % 5 - 2) for place in range(64))}}}>
        {{ x = Transpose<perm = [1,0,2]>(x0)  {LAYER} h = Reshape(a, s5)  q0 = Gather<axis = 2>(h, zero)
           k0 = Gather<axis = 2>(h, one)  v0 = Gather<axis = 2>(h, two)  q1 = Reshape(q0, fold)
           k1 = Reshape(k0, fold)  v1 = Reshape(v0, fold)  q = Transpose<perm = [1,0,2]>(q1)
           u = Transpose<perm = [1,2,0]>(k1)  v = Transpose<perm = [1,0,2]>(v1)
           d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)  j = Transpose<perm = [1,0,2]>(i)
           j1 = Reshape(j, o)  j2 = MatMul(j1, w2)  j3 = Add(c2, j2)  y = Transpose<perm = [1,0,2]>(j3) }}""",
        {"B": 1},
        {"B": 3},
    )
    assert found == {"Attention": 1, "MatMul": 1, "Add": 1}


MASKS = {
    "keys": ("float[B,1,1,S] m", "f = Add(d, m)"),
    "all": ("float[B,2,S,S] m", "f = Add(m, d)"),
    "heads": ("float[2,S,S] m", "f = Add(d, m)"),
    "matrix": ("float[S,S] m", "f = Add(d, m)"),
    "row": ("float[S] m", "f = Add(d, m)"),
    "one batch": ("float[1,1,S,S] m", "f = Add(d, m)"),
    "no place for a key": ("float[B,1,S,1] m", "f = Add(d, m)"),
    "two": ("float[B,1,1,S] m, float[2,S,S] n", "f0 = Add(d, m)  f = Add(f0, n)"),
    "subtracted": ("float[B,1,S,S] m", "f = Sub(d, m)"),
    "scaled afterwards": ("float[B,1,1,S] m", "f0 = Add(d, m)  f = Mul(f0, r)"),
    "chosen": ("bool[B,1,1,S] b", "m = Where(b, zero, low)  f = Add(d, m)"),
    "scores or a number": ("bool[B,1,1,S] b", "f = Where(b, d, low)"),
    "a number or scores": ("bool[B,1,S,S] b", "f = Where(b, low, d)"),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_stay_sums(mask: str) -> None:
    """Whatever a mask holds, rows that see nothing among it."""
    inputs, sums = MASKS[mask]
    model, found = fused(
        f"(float[B,S,4] x, {inputs}) => (float[B,S,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, float zero = {{0}}, float low = {{-3.4028234663852886e38}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  {sums}"
        f"  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}",
        *SIZES,
        *EMPTY,
    )
    assert found["Attention"] == 1
    assert not found["Softmax"]
    assert operands(model) == [True, True, True, False, False, True]


def test_layers_share_what_they_add() -> None:
    """Two attentions with one mask stretch it once."""
    core = "u{0} = Transpose<perm = [0,1,3,2]>(k{0})  d{0} = MatMul(q{0}, u{0})  f{0} = Add(d{0}, m)"
    rest = "g{0} = Softmax<axis = -1>(f{0})  i{0} = MatMul(g{0}, v{0})  j{0} = Transpose<perm = [0,2,1,3]>(i{0})"
    heads = (
        "h{0} = Reshape(a{0}, s)  t{0} = Transpose<perm = [0,2,1,3]>(h{0})  q{0}, k{0}, v{0} = Split<axis = 1>(t{0}, p)"
    )
    one = "{{0}} {{1}} {{2}} ".replace("{{0}}", heads).replace("{{1}}", core).replace("{{2}}", rest)
    _, found = fused(
        f"(float[B,S,4] x, float[B,1,1,S] m) => (float[B,S,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, float[8,24] w2 = {{{','.join(['0.125'] * 192)}}}>"
        f"{{ l1 = MatMul(x, w)  a1 = Add(l1, c)  {one.format(1)} o1 = Reshape(j1, o)"
        f"   l2 = MatMul(o1, w2)  a2 = Add(l2, c)  {one.format(2)} y = Reshape(j2, o) }}"
    )
    assert found["Attention"] == 2
    assert found["Expand"] == 1


GUARDED = "g0 = Softmax<axis = -1>(f)  n = IsNaN(g0)  g = Where(n, zero, g0)  i = MatMul(g, v)"


@pytest.mark.parametrize("inputs", ["bool[B,1,1,S] b", "bool[B,1,S,S] b", "bool[B,2,S,S] b", "bool[S,S] b"])
def test_rows_that_see_nothing_give_zeros(inputs: str) -> None:
    _, found = fused(
        f"(float[B,S,4] x, {inputs}) => (float[B,S,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, float zero = {{0}}, float low = {{-inf}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  m = Where(b, zero, low)"
        f"  f = Add(d, m)  {GUARDED} {END} }}",
        {"B": 2, "S": 1},
        {"B": 3, "S": 2},
        {"B": 5, "S": 3},
    )
    assert found["Attention"] == 1
    assert not found["Softmax"]


APART = """qh = Reshape(q, s)  qt = Transpose<perm = [0,2,1,3]>(qh)  kh = Reshape(k, s)
    kt = Transpose<perm = [0,2,3,1]>(kh)  vh = Reshape(v, s)  vt = Transpose<perm = [0,2,1,3]>(vh)
    d = MatMul(qt, kt)"""


@pytest.mark.parametrize(
    ("inputs", "masked"),
    [
        ("bool[B,1,1,S] b", "f = Where(b, d, low)"),
        ("bool[B,1,1,S] b", "m = Where(b, zero, low)  f = Add(d, m)"),
        ("bool[S,S] b", "f = Where(b, d, low)"),
        ("bool[B,2,S,S] b", "m = Where(b, zero, low)  f = Add(d, m)"),
        ("bool[B,1,1,S] b, bool[S,S] c", "e = Where(b, d, low)  f = Where(c, e, low)"),
        ("float[B,1,S,S] b", "f = Add(d, b)"),
        ("float[B,2,1,S] b", "f = Add(d, b)"),
        ("float[S] b", "f = Add(d, b)"),
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_guard_of_probabilities_hides_bad_values(inputs: str, masked: str, bad: float) -> None:
    text = (
        f"(float[B,S,4] q, float[B,S,4] k, float[B,S,4] v, {inputs}) => (float[B,S,4] y)"
        f"<int64[4] s = {{0,0,2,2}}, int64[3] o = {{0,0,4}}, float zero = {{0}}, float low = {{-inf}}>"
        f"{{ {APART} {masked} {GUARDED.replace('v)', 'vt)')} {END} }}"
    )
    batch, size = 4, 3
    rng = np.random.default_rng(4)
    given: dict[str, Any] = {"v": rng.standard_normal((batch, size, 4)).astype(np.float32)}
    given["v"][0, 1, 2] = given["v"][1, 0, 0] = bad
    for kind, dims, name in re.findall(r"(bool|float)\[([^]]*)\] (.)", inputs):
        shape = [{"B": batch, "S": size}.get(dim) or int(dim) for dim in dims.split(",")]
        seen = rng.random(shape) < 0.6
        seen.reshape(-1)[:size] = False
        given[name] = seen if kind == "bool" else np.where(seen, 0, -np.inf).astype(np.float32)
    _, found = fused(text, {"B": batch, "S": size}, given=given)
    assert found["MultiHeadAttention"] == 1
    assert not found["Softmax"]


def test_finite_masks_need_no_guard() -> None:
    _, found = fused(
        f"(float[B,S,4] x, bool[B,1,1,S] b) => (float[B,S,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, float zero = {{0}}, float low = {{-3.4028234663852886e38}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  m = Where(b, zero, low)"
        f"  f = Add(d, m)  {GUARDED} {END} }}"
    )
    assert not found["IsNaN"]
    assert found["Where"] == 1


RANGE = "n0 = Shape<start = 1, end = 2>(x)  n = Squeeze(n0, first)  places = Range(zero, n, one)"
CAUSAL = {
    "keys up to queries": (
        f"{RANGE} c0 = Unsqueeze(places, rows)  c1 = Unsqueeze(places, last)  b = LessOrEqual(c0, c1)",
        1,
    ),
    "queries from keys on": (
        f"{RANGE} c0 = Unsqueeze(places, rows)  c1 = Unsqueeze(places, last)  b = GreaterOrEqual(c1, c0)",
        1,
    ),
    "not later": (
        f"{RANGE} c0 = Unsqueeze(places, rows)  c1 = Unsqueeze(places, last)  b0 = Greater(c0, c1)  b = Not(b0)",
        1,
    ),
    "earlier only": (f"{RANGE} c0 = Unsqueeze(places, rows)  c1 = Unsqueeze(places, last)  b = Less(c0, c1)", 0),
    "later": (f"{RANGE} c0 = Unsqueeze(places, rows)  c1 = Unsqueeze(places, last)  b = LessOrEqual(c1, c0)", 0),
    "shifted": (
        f"{RANGE} pl = Add(places, one)  c0 = Unsqueeze(pl, rows)  c1 = Unsqueeze(places, last)"
        "  b = LessOrEqual(c0, c1)",
        0,
    ),
}


@pytest.mark.parametrize("mask", CAUSAL)
@pytest.mark.parametrize("low", ["-inf", "-3.4028234663852886e38"])
def test_causal_masks_are_an_attribute(mask: str, low: str) -> None:
    text, count = CAUSAL[mask]
    model, found = fused(
        f"(float[B,S,4] x) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}, float none = {{0}}, float low = {{{low}}},"
        f"int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[1] rows = {{0}}, int64[1] last = {{1}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  {text}  m = Where(b, none, low)"
        f"  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}",
        {"B": 2, "S": 4},
        {"B": 1, "S": 1},
    )
    assert found["Attention"] == 1
    assert only(model).get("unidirectional", 0) == count
    assert len(operands(model)) == (3 if count else 6)


@pytest.mark.parametrize(("rows", "count"), [("0,-inf,-inf, 0,0,-inf, 0,0,0", 1), ("0,-inf,0, 0,0,-inf, 0,0,0", 0)])
def test_stored_causal_masks(rows: str, count: int) -> None:
    model, found = fused(
        f"(float[B,3,4] x) => (float[B,3,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}, float[1,1,3,3] m = {{{rows}}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)"
        f"  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}",
        {"B": 2},
    )
    assert found["Attention"] == 1
    assert only(model).get("unidirectional", 0) == count


CACHED = f"""(float[B,S,4] x, float[B,2,P,4] pk, float[B,2,P,4] pv, float[B,1,S,T] m)
    => (float[B,S,8] y, float[B,2,T,4] kk, float[B,2,T,4] vv) <{WEIGHT}, {BIAS}, {NUMBERS}>
    {{ {LAYER} {HEADS} kk = Concat<axis = 2>(pk, k)  vv = Concat<axis = -2>(pv, v)
       u = Transpose<perm = [0,1,3,2]>(kk)  d = MatMul(q, u)  f = Add(d, m)  g = Softmax<axis = -1>(f)
       i = MatMul(g, vv) {END} }}"""
LENGTHS = ({"B": 2, "S": 3, "P": 2, "T": 5}, {"B": 1, "S": 1, "P": 4, "T": 5}, {"B": 2, "S": 3, "P": 0, "T": 3})


def test_caches_go_in_and_come_out() -> None:
    """What is returned keeps its name; the bias of the layer stays with the operator."""
    model, found = fused(CACHED, *LENGTHS)
    assert found["MultiHeadAttention"] == 1
    assert not found["Concat"] or found["Expand"]
    assert [item.name for item in model.graph.output] == ["y", "kk", "vv"]
    assert operands(model)[3]
    assert found["Add"] == 1  # of two lengths: that the mask has a place for each key is not known


def test_a_mask_of_one_place_for_all_keys_of_a_cache() -> None:
    wide = [{**sizes, "M": count} for sizes in LENGTHS for count in (1, sizes["T"])]
    _, found = fused(CACHED.replace("float[B,1,S,T] m", "float[B,1,S,M] m"), *wide)
    assert found["MultiHeadAttention"] == 1


LOWS = {"-1e9": -1e9, "the lowest": -3.4028234663852886e38}


@pytest.mark.parametrize("low", LOWS)
@pytest.mark.parametrize(
    "first", ["d1 = MatMul(q, u)", "d1 = Add(d, m)", "d1 = Where(n, low, d)", "d1 = Where(n, end, d)"]
)
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_rows_of_nothing_but_numbers_that_hide(low: str, first: str, scale: float) -> None:
    """All keys count the same where all scores were replaced, whatever they were and whatever was added before."""
    text = f"""(float[B,S,4] x, float[B,1,S,S] m, bool[S,S] n, bool[B,1,S,S] hide) => (float[B,S,8] y)
        <{WEIGHT}, {BIAS}, {NUMBERS}, float low = {{{LOWS[low]}}}, float end = {{-3.4028234663852886e38}}>
        {{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  {first}
           f = Where(hide, low, d1)  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}"""
    batch, length = 2, 5
    hidden = np.random.default_rng(3).random((batch, 1, length, length)) < 0.5
    hidden[0, 0, 1:3], hidden[1, 0, 4] = True, False
    for content in (0.0, -1e9, -3.4028234663852886e38, -np.inf):
        given = {
            "x": (scale * np.random.default_rng(4).standard_normal((batch, length, 4))).astype(np.float32),
            "m": np.where(hidden[:, :, ::-1], content, 0).astype(np.float32),
            "n": hidden[0, 0, ::-1],
            "hide": hidden,
        }
        _, found = fused(text, {"B": batch, "S": length}, given=given)
        is_alone = low != "-1e9" or "MatMul" in first or "low" in first
        assert found["Attention"] == is_alone


def test_the_shape_of_scores_is_told_from_queries_and_keys() -> None:
    """What is added may be stretched to the shape that it asks the scores for."""
    _, found = fused(
        f"(float[B,S,4] x, float[1,1,S] m) => (float[B,S,8] y, int64[2] z)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, int64[3] fold = {{-1,3,4}}, int64[4] apart = {{-1,2,3,4}}>"
        f"{{ {LAYER} {HEADS} qf = Reshape(q, fold)  kf = Reshape(k, fold)  vf = Reshape(v, fold)"
        f"  u = Transpose<perm = [0,2,1]>(kf)  d = MatMul(qf, u)  e = Shape(d)  z = Shape<start = -3, end = -1>(d)"
        f"  n = Expand(m, e)  f = Add(d, n)  g = Softmax<axis = -1>(f)  i0 = MatMul(g, vf)  i = Reshape(i0, apart)"
        f"  {END} }}".replace("[B,S,", "[B,3,").replace("[1,1,S]", "[1,1,3]"),
        {"B": 2},
        {"B": 1},
        passes=["shapes", *PASSES],
    )
    assert found["Attention"] == 1
    assert not found["MatMul"]


@pytest.mark.parametrize("mask", ["bool[B,1,3,3] b", "bool[3,3] b"])
def test_scores_folded_and_values_apart(mask: str) -> None:
    """Batch and heads are one axis in the first product, and two in the second."""
    _, found = fused(
        f"(float[B,3,4] x, {mask}) => (float[B,3,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, int64[3] fold = {{-1,3,4}}, int64[4] apart = {{-1,2,3,3}},"
        f" float low = {{-inf}}>"
        f"{{ {LAYER} {HEADS} qf = Reshape(q, fold)  kf = Reshape(k, fold)  u = Transpose<perm = [0,2,1]>(kf)"
        f"  d0 = MatMul(qf, u)  d = Reshape(d0, apart)  f = Where(b, d, low)  g0 = Softmax<axis = -1>(f)"
        f"  n = IsNaN(g0)  z = Sub(r, r)  zero = Mul(z, z)  g = Where(n, zero, g0)  i = MatMul(g, v) {END} }}",
        {"B": 2},
        {"B": 1},
        passes=["constant_folding", *PASSES],
    )
    assert found["Attention"] == 1
    assert not found["MatMul"]


def test_heads_that_no_view_tells_apart() -> None:
    """Queries whose batch and heads are one axis that nothing divides are divided, and not taken for one head."""
    text = f"""(float[8,1,3,4] x, float[4,3,8] k0, float[4,3,8] v0) => (float[4,3,8] y)
        <int64[3] fold = {{8,3,4}}, int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}, int64[4] apart = {{4,2,3,3}}>
        {{ q = Reshape(x, fold)  k1 = Reshape(k0, s)  k2 = Transpose<perm = [0,2,3,1]>(k1)
           fk = Constant<value = int64[3] {{8,4,3}}>()  u = Reshape(k2, fk)  v1 = Reshape(v0, s)
           v = Transpose<perm = [0,2,1,3]>(v1)  d0 = MatMul(q, u)  d = Reshape(d0, apart)  g = Softmax<axis = -1>(d)
           i = MatMul(g, v) {END} }}"""
    _, found = fused(text, {})
    assert found["MultiHeadAttention"] == 1


def test_heads_that_only_one_size_of_the_batch_leaves() -> None:
    """Where an exporter took one batch for granted, queries have twice as many heads as batches: two, to meet keys."""
    _, found = fused(
        f"""(float[B,3,8] x, float[1,4,8] k0, float[1,4,8] v0) => (float[1,3,8] y)
            <int64[4] one = {{1,3,-1,4}}, int64[4] s = {{0,0,2,4}}, int64[3] o = {{1,3,8}}>
            {{ h = Reshape(x, one)  q = Transpose<perm = [0,2,1,3]>(h)  k1 = Reshape(k0, s)
               u = Transpose<perm = [0,2,3,1]>(k1)  v1 = Reshape(v0, s)  v = Transpose<perm = [0,2,1,3]>(v1)
               d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v) {END} }}""",
        {"B": 1},
    )
    assert found["MultiHeadAttention"] == 1


@pytest.mark.parametrize("queries", ["float[2,2,2,4] q", "float[1,2,2,4] q", "float[4,2,4] q"])
def test_learned_queries(queries: str) -> None:
    """Constants that meet computed keys: of each batch, of one for all, or with batch and heads as one axis."""
    is_folded = queries.startswith("float[4")
    numbers = ",".join(str((3 * place % 7 - 3) / 2) for place in range(16 if "[1," in queries else 32))
    keys = "k2 = Reshape(k1, fold)" if is_folded else "k2 = Identity(k1)"
    values = "v2 = Reshape(v1, fold)" if is_folded else "v2 = Identity(v1)"
    turned, end = ("0,2,1", "i = Reshape(i0, apart)") if is_folded else ("0,1,3,2", "i = Identity(i0)")
    text = f"""(float[2,3,8] k0, float[2,3,8] v0, float[3] m) => (float[2,2,8] y)
        <{queries} = {{{numbers}}}, int64[4] s = {{0,0,2,4}}, int64[3] fold = {{4,3,4}}, int64[4] apart = {{2,2,2,4}},
         int64[3] o = {{0,0,8}}>
        {{ k3 = Reshape(k0, s)  k1 = Transpose<perm = [0,2,1,3]>(k3)  {keys}  u = Transpose<perm = [{turned}]>(k2)
           v3 = Reshape(v0, s)  v1 = Transpose<perm = [0,2,1,3]>(v3)  {values}  d = MatMul(q, u)  f = Add(d, m)
           g = Softmax<axis = -1>(f)  i0 = MatMul(g, v2)  {end} {END} }}"""
    _, found = fused(text, {}, passes=["identities", "constant_folding", *PASSES])
    assert found["MultiHeadAttention"] == 1
    assert not found["MatMul"]


def test_queries_of_one_batch_for_the_keys_of_all() -> None:
    _, found = fused(
        f"""(float[1,S,8] x, float[B,T,8] k0, float[B,T,8] v0, float[B,1,S,T] m) => (float[B,S,8] y)
            <int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}>
            {{ h = Reshape(x, s)  q = Transpose<perm = [0,2,1,3]>(h)  k1 = Reshape(k0, s)
               u = Transpose<perm = [0,2,3,1]>(k1)  v1 = Reshape(v0, s)  v = Transpose<perm = [0,2,1,3]>(v1)
               d = MatMul(q, u)  f = Add(d, m)  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}""",
        {"B": 2, "S": 3, "T": 5},
        {"B": 1, "S": 1, "T": 4},
    )
    assert found["MultiHeadAttention"] == 1
    assert not found["MatMul"]


def test_a_size_that_an_exporter_took_for_granted_is_named() -> None:
    """Queries are one position each by now: right for one position only, which fixing the dim tells."""
    text = f"""(float[B,S,8] x, float[B,S,8] k0, float[B,S,8] v0) => (float[N,1,8] y)
        <int64[4] one = {{-1,2,1,4}}, int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}>
        {{ q = Reshape(x, one)  k1 = Reshape(k0, s)  u = Transpose<perm = [0,2,3,1]>(k1)  v1 = Reshape(v0, s)
           v = Transpose<perm = [0,2,1,3]>(v1)  d = MatMul(q, u)  g = Softmax<axis = -1>(d)  i = MatMul(g, v)
           {END} }}"""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    result = optimize(model, target="ort-cpu", passes=PASSES, strict=True)
    assert not any(node.op_type in FUSED for node in result.model.graph.node)
    assert any("B*S and B; where S is 1 they are the same: fix that dim" in note for note in result.report.notes)
    fixed = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text.replace("[B,S,", "[B,1,")}')
    fixed = optimize(fixed, target="ort-cpu", passes=PASSES, strict=True).model
    assert any(node.op_type in FUSED for node in fixed.graph.node)


def test_a_cache_that_nobody_reads_is_put_together_before() -> None:
    text = CACHED.replace(", float[B,2,T,4] kk, float[B,2,T,4] vv)", ")")
    model, found = fused(text, *LENGTHS)
    assert found["MultiHeadAttention"] == 1
    assert operands(model)[:3] == [True, True, True]
    assert len(operands(model)) == 6


def test_caches_of_a_causal_attention() -> None:
    ranges = """sh = Shape(pk)  past = Gather(sh, at)  n0 = Shape<start = 1, end = 2>(x)  n = Squeeze(n0, first)
      all = Add(past, n)  rows = Range(past, all, one)  cols = Range(zero, all, one)  c1 = Unsqueeze(rows, last)
      b = LessOrEqual(cols, c1)  m = Where(b, none, low)"""
    text = CACHED.replace(", float[B,1,S,T] m", "").replace("u = Tr", f"{ranges} u = Tr")
    numbers = "int64 at = {2}, int64[1] first = {0}, int64[1] last = {1}, int64 one = {1}, int64 zero = {0}"
    text = text.replace(NUMBERS, f"{NUMBERS}, {numbers}, float none = {{0}}, float low = {{-inf}}")
    model, found = fused(text, *LENGTHS)
    assert found["MultiHeadAttention"] == 1
    assert only(model)["unidirectional"] == 1


def test_cross_attention_leaves_biases_to_the_operator() -> None:
    weights = ", ".join(
        f"float[4,4] w{name} = {{{','.join(str((place * step % 9 - 4) / 4) for place in range(16))}}},"
        f"float[4] c{name} = {{{step},1,-1,0.5}}"
        for name, step in (("q", 2), ("k", 5), ("v", 7))
    )
    heads = "int64[4] s = {0,0,2,2}, int64[3] o = {0,0,4}"
    layers = " ".join(
        f"{name}0 = MatMul({x}, w{name})  {name}1 = Add(c{name}, {name}0)  {name}2 = Reshape({name}1, s)"
        f" {name} = Transpose<perm = [0,2,1,3]>({name}2)"
        for name, x in (("q", "x"), ("k", "z"), ("v", "z"))
    )
    model, found = fused(
        f"(float[B,S,4] x, float[B,T,4] z) => (float[B,S,4] y) <{weights}, {heads}> {{ {layers} {CORE} {END} }}",
        {"B": 2, "S": 3, "T": 5},
        {"B": 1, "S": 1, "T": 1},
    )
    assert found == {"MultiHeadAttention": 1, "MatMul": 3}
    assert operands(model) == [True] * 4


@pytest.mark.parametrize(("target", "operator"), [("ort-cpu", "Attention"), ("ort-cuda", "MultiHeadAttention")])
def test_values_of_another_width(target: str, operator: str) -> None:
    """Attention gets them wrong on CUDA."""
    text = (
        f"(float[B,S,4] x) => (float[B,S,16] y)"
        f"<{WEIGHT}, {BIAS}, int64[3] parts = {{4,4,16}}, int64[4] s = {{0,0,2,2}}, int64[4] z = {{0,0,2,8}},"
        f" int64[3] o = {{0,0,16}}>"
        f"{{ {LAYER} q0, k0, v0 = Split<axis = 2>(a, parts)  q1 = Reshape(q0, s)  k1 = Reshape(k0, s)"
        f"  v1 = Reshape(v0, z)  q = Transpose<perm = [0,2,1,3]>(q1)  k = Transpose<perm = [0,2,1,3]>(k1)"
        f"  v = Transpose<perm = [0,2,1,3]>(v1)  {CORE} {END} }}"
    )
    _, found = fused(text, target=target)
    assert found[operator] == 1
    assert not found["Softmax"]


def test_products_by_gemm() -> None:
    """A layer of two axes between views."""
    _, found = fused(
        f"(float[B,5,4] x) => (float[B,5,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}, int64[2] flat = {{-1,4}},"
        f"int64[4] s4 = {{-1,5,6,4}}>"
        f"{{ x2 = Reshape(x, flat)  a = Gemm(x2, w, c)  h = Reshape(a, s4)  t = Transpose<perm = [0,2,1,3]>(h)"
        f"  q, k, v = Split<axis = 1>(t, p)  {CORE} {END} }}",
        {"B": 2},
    )
    assert found["Attention"] == 1
    assert not found["Gemm"]


def test_rows_on_two_axes() -> None:
    """Places of an image: axes that become the sequence."""
    _, found = fused(
        f"(float[B,2,3,4] x) => (float[B,2,3,8] y) <{WEIGHT}, {BIAS}, int64[4] s = {{0,6,6,4}}, int64[3] p = {{2,2,2}},"
        f"int64[4] o = {{0,2,3,8}}> {{ {LAYER} {HEADS} {CORE} {END} }}",
        {"B": 2},
    )
    assert found == {"Attention": 1, "Reshape": 2}


def test_standard_operator() -> None:
    """The operator of opset 23, with a mask of truth values."""
    _, found = fused(
        f"(float[B,S,4] x, bool[B,1,S,S] m) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}>"
        f"{{ {LAYER} {HEADS} i = Attention<scale = 0.25>(q, k, v, m) {END} }}",
        {"B": 2, "S": 3},
        {"B": 4, "S": 1},
        opset=23,
    )
    assert found["Attention"] == 1
    assert found["MatMul"] == 0


def test_standard_operator_of_three_axes() -> None:
    model, found = fused(
        "(float[B,S,6] q, float[B,S,6] k, float[B,S,6] v) => (float[B,S,6] y)"
        "{ y = Attention<q_num_heads = 3, kv_num_heads = 3, is_causal = 1>(q, k, v) }",
        opset=23,
    )
    assert found == {"MultiHeadAttention": 1}
    assert only(model)["unidirectional"] == 1


LEFT = {
    "probabilities are read": ("g = Softmax<axis = -1>(d)  i = MatMul(g, v)", "float[B,2,S,S] g"),
    "scores are read": ("g = Softmax<axis = -1>(d)  i = MatMul(g, v)", "float[B,2,S,S] d"),
    "dropout in training": ("g0 = Softmax<axis = -1>(d)  g = Dropout(g0, r, yes)  i = MatMul(g, v)", ""),
    "another axis": ("g = Softmax<axis = 2>(d)  i = MatMul(g, v)", ""),
    "softmax of the values' side": (
        "g = Softmax<axis = -1>(d)  vt = Transpose<perm = [0,1,3,2]>(v)  i0 = MatMul(vt, g)"
        "  i = Transpose<perm = [0,1,3,2]>(i0)",
        "",
    ),
    "bounded scores": (
        "d1 = Div(d, two)  d2 = Tanh(d1)  d3 = Mul(d2, two)  g = Softmax<axis = -1>(d3)  i = MatMul(g, v)",
        "",
    ),
    "a number that hides little": ("f = Where(b, d, low)  g = Softmax<axis = -1>(f)  i = MatMul(g, v)", ""),
    "more rows than queries": ("f = Add(d, many)  g = Softmax<axis = -1>(f)  i = MatMul(g, v)", ""),
}


@pytest.mark.parametrize("case", LEFT)
def test_left_alone(case: str) -> None:
    core, output = LEFT[case]
    size = "1" if case == "more rows than queries" else "S"
    rows = "3" if case == "more rows than queries" else size
    outputs = f"float[B,{rows},8] y" + (f", {output}" if output else "")
    text = (
        f"(float[B,{size},4] x, bool[B,1,1,{size}] b, float[3,{size}] many) => ({outputs})"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, bool yes = {{1}}, float low = {{-5}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  {core} {END} }}"
    )
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    checker.check_model(model)
    result = optimize(model, target="ort-cpu", passes=PASSES, strict=True)
    assert not any(node.op_type in FUSED for node in result.model.graph.node)
    assert any("was left alone" in note for note in result.report.notes) or case == "softmax of the values' side"


@pytest.mark.parametrize(("level", "count"), [("default", 0), ("fast-math", 1)])
def test_numbers_that_hide_most_scores(level: str, count: int) -> None:
    """What older exporters put in place of scores hides them unless they are in the thousands."""
    text = (
        f"(float[B,S,4] x, bool[B,1,1,S] b) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}, float low = {{-10000}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, u)  f = Where(b, d, low)"
        f"  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}"
    )
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    result = optimize(model, target="ort-cpu", passes=PASSES, strict=True, level=level).model
    assert sum(node.op_type in FUSED for node in result.graph.node) == count


def test_nothing_for_other_targets() -> None:
    text = f"(float[B,S,4] x) => (float[B,S,8] y) <{WEIGHT}, {BIAS}, {NUMBERS}> {{ {LAYER} {HEADS} {CORE} {END} }}"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    result = optimize(model, strict=True).model
    assert all(node.domain == "" for node in result.graph.node)


def test_each_head_scaled_in_its_own_way() -> None:
    """What scores are multiplied by head by head goes to the queries."""
    _, found = fused(
        "(float[B,S,4] x, float[B,1,S,S] m) => (float[B,S,8] y)"
        f"<{WEIGHT}, {BIAS}, {NUMBERS}, float[2,1,1] z = {{2,-3}}>"
        f"{{ {LAYER} {HEADS} u = Transpose<perm = [0,1,3,2]>(k)  d0 = MatMul(q, u)  d = Mul(d0, z)  f = Add(d, m)"
        f"  g = Softmax<axis = -1>(f)  i = MatMul(g, v) {END} }}"
    )
    assert found["MultiHeadAttention"] == 1
    assert not found["Softmax"]


def test_shared_weights_stay_one() -> None:
    """Two attentions of one layer's weights, whose columns are put in order, share the new ones."""
    one = (
        "l{0} = MatMul({1}, w)  h{0} = Reshape(l{0}, sn)  t{0} = Transpose<perm = [0,2,1,3]>(h{0})"
        "  q{0}, k{0}, v{0} = Split<axis = 3>(t{0}, f3)  u{0} = Transpose<perm = [0,1,3,2]>(k{0})"
        "  d{0} = MatMul(q{0}, u{0})  g{0} = Softmax<axis = -1>(d{0})  i{0} = MatMul(g{0}, v{0})"
        "  j{0} = Transpose<perm = [0,2,1,3]>(i{0})  y{0} = Reshape(j{0}, o)"
    )
    weight = "float[4,12] w = {" + ",".join(str((7 * place % 13 - 6) / 8) for place in range(48)) + "}"
    model, found = fused(
        f"(float[B,S,4] x) => (float[B,S,4] y2)"
        f"<{weight}, int64[4] sn = {{0,0,2,6}}, int64[3] f3 = {{2,2,2}}, int64[3] o = {{0,0,4}}>"
        f"{{ {one.format(1, 'x')} {one.format(2, 'y1')} }}"
    )
    assert found == {"Attention": 2}
    used = {node.input[1] for node in model.graph.node if node.op_type == "Attention"}
    assert len(used) == 1


@pytest.mark.parametrize(("low", "mask", "count"), [(-10000, "bool", 1), (-1e9, "bool", 0), (-10000, "float", 0)])
def test_masks_of_single_precision_hold_what_half_precision_does(low: float, mask: str, count: int) -> None:
    """Minus infinity in rows of nothing else is no number that hides but NaN, or zeros on CUDA."""
    text = f"""(float16[B,S,8] q, float16[B,S,8] k, float16[B,S,8] v, {mask}[B,1,1,S] m) => (float16[B,S,8] y)
        <int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}, float one = {{1}}, float low = {{{low}}}>
        {{ q1 = Reshape(q, s)  q2 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, s)
           k2 = Transpose<perm = [0,2,3,1]>(k1)  v1 = Reshape(v, s)  v2 = Transpose<perm = [0,2,1,3]>(v1)
           d0 = MatMul(q2, k2)  d = Cast<to = 1>(d0)  t = Cast<to = 1>(m)  l = Sub(one, t)  n = Mul(l, low)
           f = Add(d, n)  g0 = Softmax<axis = -1>(f)  g = Cast<to = 10>(g0)  i = MatMul(g, v2)
           j = Transpose<perm = [0,2,1,3]>(i)  y = Reshape(j, o) }}"""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    result = optimize(model, target="ort-cuda", passes=PASSES, strict=True).model
    assert sum(node.op_type in FUSED for node in result.graph.node) == count


@pytest.mark.parametrize(("count", "causal"), [(2, 1), (5, 0)])
def test_behind_a_cache_the_operator_counts_queries_from_its_end(count: int, causal: int) -> None:
    total = count + 1
    hidden = ",".join("-inf" if key > row + total - 2 else "0" for row in range(2) for key in range(total))
    model, found = fused(
        f"""(float[1,2,8] x, float[1,2,{count},4] k, float[1,2,{count},4] v, float[1,2,1,4] pk, float[1,2,1,4] pv)
            => (float[1,2,8] y, float[1,2,{total},4] kk, float[1,2,{total},4] vv)
            <int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}, float[1,1,2,{total}] m = {{{hidden}}}>
            {{ h = Reshape(x, s)  q = Transpose<perm = [0,2,1,3]>(h)  kk = Concat<axis = 2>(pk, k)
               vv = Concat<axis = 2>(pv, v)  u = Transpose<perm = [0,1,3,2]>(kk)  d = MatMul(q, u)  f = Add(d, m)
               g = Softmax<axis = -1>(f)  i = MatMul(g, vv) {END} }}""",
        {},
    )
    assert found["MultiHeadAttention"] == 1
    assert only(model).get("unidirectional", 0) == causal


@pytest.mark.parametrize(("values", "cached"), [("vc, v4", True), ("v4, vc", False)])
def test_values_in_front_of_their_cache_are_no_cache(values: str, cached: bool) -> None:
    """New keys and new values are as many, or the operator takes neither."""
    model, found = fused(
        f"""(float[1,S,8] q, float[1,S,8] k, float[1,S,8] v, float[1,2,P,4] kc, float[1,2,P,4] vc)
            => (float[1,S,8] y, float[1,2,N,4] kk, float[1,2,N,4] vv)
            <int64[4] s = {{0,0,2,4}}, int64[3] o = {{0,0,8}}, float c = {{0.5}}> {{
            q1 = Reshape(q, s)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, s)
            k4 = Transpose<perm = [0,2,1,3]>(k1)  v1 = Reshape(v, s)  v4 = Transpose<perm = [0,2,1,3]>(v1)
            kk = Concat<axis = 2>(kc, k4)  vv = Concat<axis = 2>({values})  kt = Transpose<perm = [0,1,3,2]>(kk)
            d = MatMul(q4, kt)  e = Mul(d, c)  p = Softmax<axis = -1>(e)  i = MatMul(p, vv)  {END}
        }}""",
        {"S": 2, "P": 5},
        {"S": 1, "P": 1},
    )
    assert found["MultiHeadAttention"] == 1
    assert (found["Concat"] == 0) == cached
    assert len(model.graph.output) == 3
