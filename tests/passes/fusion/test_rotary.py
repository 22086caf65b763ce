"""Rotary embeddings: every layout and spelling gives what the parts gave, for every size they took."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import checker, parser
from sessions import session

from graphopt import optimize

PASSES = ["fusion.rotary", "shapes", "common_subexpressions", "pruning"]
ANGLES = "e = Concat<axis = -1>(f, f)  c3 = Cos(e)  s3 = Sin(e)  c = Unsqueeze(c3, lift)  s = Unsqueeze(s3, lift)"
TURN = "a = Slice(x, zero, half, last)  b = Slice(x, half, end, last)  n = Neg(b)  r = Concat<axis = -1>(n, a)"
SUM = "p = Mul(x, c)  q = Mul(r, s)  y = Add(p, q)"
NUMBERS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] half = {4}, int64[1] end = {8}"


def rotated(text: str, *sizes: dict[str, int], opset: int = 17, count: int = 1, trust: bool = False) -> dict[str, int]:
    """The operators left of a model that gives the same for feeds of such sizes; `count` rotations are found."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\ng {text}')
    checker.check_model(model)
    result = optimize(model, target="ort-cpu", passes=PASSES, strict=True, trust_dim_names=trust).model
    found = dict(Counter(node.op_type for node in result.graph.node if node.op_type != "Constant"))
    assert found.get("RotaryEmbedding", 0) == count, found
    before, after = session(model), session(result)
    rng = np.random.default_rng(1)
    for size in sizes or ({},):
        feeds = {}
        for item in before.get_inputs():
            shape = [size[dim] if isinstance(dim, str) else dim for dim in item.shape]
            if item.type == "tensor(int64)":
                feeds[item.name] = rng.integers(-3, 4, shape)
            else:
                kind = np.float16 if item.type == "tensor(float16)" else np.float32
                feeds[item.name] = rng.standard_normal(shape).astype(kind)
        for left, right in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert left.shape == right.shape
            bound = 4e-3 if left.dtype == np.float16 else 2e-6
            np.testing.assert_allclose(left.astype(np.float64), right.astype(np.float64), rtol=bound, atol=bound)
    return found


def test_one_table_for_all_batches() -> None:
    found = rotated(
        f"""(float[B,3,S,8] x, int64[B,S] ids) => (float[B,3,S,8] y)
            <{NUMBERS}, int64[1] lift = {{1}}, int64[1] last = {{3}}, float[4] w = {{1.0, 0.5, 0.25, 0.125}},
             int64 start = {{0}}, int64 by = {{1}}, int64 axis = {{2}}, int64[2] around = {{0, 2}}>
            {{ shape = Shape(x)  n0 = Gather(shape, axis)  t = Range(start, n0, by)  u = Unsqueeze(t, around)
               v = Cast<to = 1>(u)  f = Mul(v, w)  {ANGLES}  {TURN}  {SUM} }}""",
        {"B": 2, "S": 5},
        {"B": 0, "S": 5},
        {"B": 2, "S": 0},
        {"B": 1, "S": 1},
    )
    assert "Neg" not in found
    assert found["Cos"] == 1


def with_positions(ids: str) -> str:
    """A rotation by the positions of an input with such dims."""
    return f"""(float[B,S,24] h, int64[{ids}] ids) => (float[X,3,Y,8] y)
        <{NUMBERS}, int64[1] lift = {{1}}, int64[1] last = {{3}}, float[4] w = {{1.0, 0.5, 0.25, 0.125}},
         int64[4] shape = {{0, 0, 3, 8}}>
        {{ g = Reshape(h, shape)  x = Transpose<perm = [0,2,1,3]>(g)  u = Unsqueeze(ids, two)  v = Cast<to = 1>(u)
           f = Mul(v, w)  {ANGLES}  {TURN}  {SUM} }}"""


@pytest.mark.parametrize("trust", [False, True])
def test_positions_of_each_batch(trust: bool) -> None:
    found = rotated(
        with_positions("B,S"), {"B": 2, "S": 5}, {"B": 0, "S": 5}, {"B": 2, "S": 0}, {"B": 3, "S": 1}, trust=trust
    )
    assert "Expand" not in found


def test_positions_of_dims_with_other_names_stretch_what_is_turned() -> None:
    sizes = [{"B": b, "S": s, "A": a, "T": t} for b, a in ((2, 2), (2, 1), (1, 2)) for s, t in ((3, 3), (1, 3), (3, 1))]
    rotated(with_positions("A,T"), *sizes, {"B": 0, "S": 3, "A": 0, "T": 3}, {"B": 0, "S": 3, "A": 1, "T": 3})


def test_positions_of_one_batch_serve_all() -> None:
    rotated(with_positions("1,S"), {"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 0, "S": 3}, {"B": 2, "S": 0})


def test_positions_need_an_opset_that_counts() -> None:
    text = with_positions("B,S").replace("Unsqueeze(ids, two)", "Unsqueeze<axes = [2]>(ids)")
    text = text.replace("Unsqueeze(c3, lift)", "Unsqueeze<axes = [1]>(c3)").replace(
        "Unsqueeze(s3, lift)", "Unsqueeze<axes = [1]>(s3)"
    )
    rotated(text, {"B": 2, "S": 3}, opset=11)
    rotated(text, {"B": 2, "S": 3}, opset=10, count=0)


@pytest.mark.parametrize(("perm", "lift"), [("[0,2,1,3]", 1), ("[0,1,2,3]", 2)])
def test_heads_before_and_behind_positions(perm: str, lift: int) -> None:
    shape = "B,3,S,8" if lift == 1 else "B,S,3,8"
    found = rotated(
        f"""(float[B,S,24] h) => (float[{shape}] y)
            <{NUMBERS}, int64[4] shape = {{0, 0, 3, 8}}, int64[1] last = {{3}}, int64[1] axis = {{1}},
             int64[1] lift = {{{lift}}}, float[1,7,4] f = {{{", ".join(str(i / 28) for i in range(28))}}}>
            {{ g = Reshape(h, shape)  x = Transpose<perm = {perm}>(g)  e = Concat<axis = -1>(f, f)  hs = Shape(h)
               len = Slice(hs, one, two)  c2 = Cos(e)  s2 = Sin(e)  c3 = Slice(c2, zero, len, axis)
               s3 = Slice(s2, zero, len, axis)  c = Unsqueeze(c3, lift)  s = Unsqueeze(s3, lift)  {TURN}  {SUM} }}""",
        {"B": 2, "S": 5},
        {"B": 1, "S": 1},
        {"B": 0, "S": 2},
    )
    assert "Neg" not in found


def test_a_part_of_each_head() -> None:
    found = rotated(
        """(float[2,3,5,12] w, float[5,4] c2, float[5,4] s2) => (float[2,3,5,12] y)
           <int64[2] parts = {8, 4}, int64[2] halves = {4, 4}>
           { x, rest = Split<axis = 3>(w, parts)  c = Concat<axis = -1>(c2, c2)  s = Concat<axis = -1>(s2, s2)
             a, b = Split<axis = 3>(x, halves)  n = Neg(b)  r = Concat<axis = -1>(n, a)
             p = Mul(x, c)  q = Mul(r, s)  t = Add(q, p)  y = Concat<axis = -1>(t, rest) }"""
    )
    assert set(found) == {"RotaryEmbedding"}


def test_a_part_that_is_put_elsewhere_stays_apart() -> None:
    found = rotated(
        """(float[2,3,5,12] w, float[5,4] c2, float[5,4] s2) => (float[2,3,5,12] y)
           <int64[2] parts = {8, 4}, int64[2] halves = {4, 4}>
           { x, rest = Split<axis = 3>(w, parts)  c = Concat<axis = -1>(c2, c2)  s = Concat<axis = -1>(s2, s2)
             a, b = Split<axis = 3>(x, halves)  n = Neg(b)  r = Concat<axis = -1>(n, a)
             p = Mul(x, c)  q = Mul(r, s)  t = Add(q, p)  y = Concat<axis = -1>(rest, t) }"""
    )
    assert found["Concat"] == 1


def test_heads_of_a_packed_layer_are_split_before_they_move() -> None:
    found = rotated(
        """(float[B,S,32] h, float[1,S,4] f) => (float[B,3,S,8] y, float[B,1,S,8] v)
           <int64[4] shape = {0, 0, 4, 8}, int64[2] parts = {3, 1}, int64[2] halves = {4, 4}, int64[1] one = {1}>
           { g = Reshape(h, shape)  t = Transpose<perm = [0,2,1,3]>(g)  x, v = Split<axis = 1>(t, parts)
             e = Concat<axis = -1>(f, f)  c3 = Cos(e)  s3 = Sin(e)  c = Unsqueeze(c3, one)  s = Unsqueeze(s3, one)
             a, b = Split<axis = 3>(x, halves)  n = Neg(b)  r = Concat<axis = -1>(n, a)
             p = Mul(x, c)  q = Mul(r, s)  y = Add(q, p) }""",
        {"B": 2, "S": 5},
        {"B": 0, "S": 5},
    )
    assert found["Split"] == 1


def test_heads_that_part_behind_it_part_before_they_move() -> None:
    found = rotated(
        """(float[B,S,24] h, float[1,S,4] f) => (float[B,2,S,8] y, float[B,1,S,8] z)
           <int64[4] shape = {0, 0, 3, 8}, int64[2] parts = {2, 1}, int64[2] halves = {4, 4}, int64[1] one = {1}>
           { g = Reshape(h, shape)  x = Transpose<perm = [0,2,1,3]>(g)  e = Concat<axis = -1>(f, f)  c3 = Cos(e)
             s3 = Sin(e)  c = Unsqueeze(c3, one)  s = Unsqueeze(s3, one)  a, b = Split<axis = 3>(x, halves)  n = Neg(b)
             r = Concat<axis = -1>(n, a)  p = Mul(x, c)  q = Mul(r, s)  t = Add(q, p)
             y, z = Split<axis = 1>(t, parts) }""",
        {"B": 2, "S": 5},
        {"B": 0, "S": 5},
    )
    assert (found["Split"], found["Transpose"]) == (1, 2)


@pytest.mark.parametrize(
    ("x", "angles"), [("5,3,8", "5,1,8"), ("2,5,8", "1,5,8"), ("2,5,8", "2,5,8"), ("2,5,8", "5,8"), ("2,1,5,8", "5,8")]
)
def test_other_ranks(x: str, angles: str) -> None:
    half = angles[:-1] + "4"
    rotated(
        f"""(float[{x}] x, float[{half}] f, float[{half}] g) => (float[{x}] y)
            <int64[2] halves = {{4, 4}}>
            {{ c = Concat<axis = -1>(f, f)  s = Concat<axis = -1>(g, g)
               a, b = Split<axis = -1>(x, halves)  n = Neg(b)  r = Concat<axis = -1>(n, a)  {SUM} }}"""
    )


@pytest.mark.parametrize("twice", ["halves", "pairs"])
def test_tables_that_are_stored(twice: str) -> None:
    row = [0.1, 0.2, 0.3, 0.4]
    table = [value + place for place in range(7) for value in (row * 2 if twice == "halves" else np.repeat(row, 2))]
    rotated(
        f"""(float[B,2,S,8] x, int64[B,S] ids) => (float[B,2,S,8] y)
            <float[7,8] t = {{{", ".join(f"{value:.2f}" for value in table)}}}, {NUMBERS}, int64[1] lift = {{1}},
             int64[1] last = {{3}}>
            {{ c3 = Gather(t, ids)  s3 = Neg(c3)  c = Unsqueeze(c3, lift)  s = Unsqueeze(s3, lift)  {TURN}  {SUM} }}""",
        {"B": 2, "S": 5},
        {"B": 0, "S": 5},
        count=1 if twice == "halves" else 0,
    )


def test_halves_are_no_pairs() -> None:
    pairs = """a = Slice(x, zero, end, last, two)  b = Slice(x, one, end, last, two)  n = Neg(b)
               u = Unsqueeze(n, tail)  w = Unsqueeze(a, tail)  j = Concat<axis = -1>(u, w)  r = Reshape(j, whole)"""
    for angles, count in (("e = Concat<axis = -1>(f, f)", 0), ("e = Gather<axis = -1>(f, each)", 1)):
        rotated(
            f"""(float[2,3,5,8] x, float[1,1,5,4] f) => (float[2,3,5,8] y)
                <{NUMBERS}, int64[1] last = {{3}}, int64[1] tail = {{-1}}, int64[4] whole = {{2, 3, 5, 8}},
                 int64[8] each = {{0, 0, 1, 1, 2, 2, 3, 3}}>
                {{ {angles}  c = Cos(e)  s = Sin(e)  {pairs}  {SUM} }}""",
            count=count,
        )


def test_pairs_computed_apart() -> None:
    found = rotated(
        """(float[2,5,3,8] x, float[2,5,1,4] c, float[2,5,1,4] s) => (float[2,5,3,8] y)
           <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807},
            int64[1] last = {-1}, int64[4] whole = {2, 5, 3, 8}>
           { a = Slice(x, zero, end, last, two)  b = Slice(x, one, end, last, two)
             ac = Mul(a, c)  bs = Mul(s, b)  as = Mul(a, s)  bc = Mul(b, c)  f = Sub(ac, bs)  g = Add(as, bc)
             u = Unsqueeze(f, last)  w = Unsqueeze(g, last)  j = Concat<axis = -1>(u, w)  y = Reshape(j, whole) }"""
    )
    assert "Sub" not in found


def test_halves_in_half_precision() -> None:
    found = rotated(
        f"""(float16[B,2,S,8] x, float[B,S,4] f) => (float16[B,2,S,8] y)
            <{NUMBERS}, int64[1] lift = {{1}}, int64[1] last = {{3}}, float scaling = {{1.25}}>
            {{ e = Concat<axis = -1>(f, f)  c1 = Cos(e)  c2 = Mul(c1, scaling)  c3 = Cast<to = 10>(c2)
               s1 = Sin(e)  s2 = Mul(scaling, s1)  s3 = Cast<to = 10>(s2)
               c = Unsqueeze(c3, lift)  s = Unsqueeze(s3, lift)  {TURN}  {SUM} }}""",
        {"B": 2, "S": 5},
    )
    assert found["Cos"] == 1


def test_angles_that_differ_by_head_are_left_alone() -> None:
    rotated(
        f"""(float[2,3,5,8] x, float[1,3,5,4] f) => (float[2,3,5,8] y)
            <{NUMBERS}, int64[1] last = {{3}}>
            {{ e = Concat<axis = -1>(f, f)  c = Cos(e)  s = Sin(e)  {TURN}  {SUM} }}""",
        count=0,
    )
