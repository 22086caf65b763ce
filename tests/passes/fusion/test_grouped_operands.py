"""What GroupQueryAttention computes by itself: rotations in any position of the cache, and operands side by side."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, checker, helper, parser
from sessions import session

from graphopt import load, optimize
from graphopt.analysis.inference import Inference

HALVES = """{x}_a, {x}_b = Split<axis = 3, num_outputs = 2>({x}4)  {x}_n = Neg({x}_b)
    {x}_u = Concat<axis = -1>({x}_n, {x}_a)  {x}_p = Mul({x}4, cos)  {x}_s = Mul({x}_u, sin)
    {x}r = Add({x}_p, {x}_s)"""
PAIRS = """{x}_a = Slice({x}4, c0, c16, c3, c2)  {x}_b = Slice({x}4, c1, c16, c3, c2)  {x}_n = Neg({x}_b)
    {x}_v = Unsqueeze({x}_n, c4)  {x}_w = Unsqueeze({x}_a, c4)  {x}_j = Concat<axis = 4>({x}_v, {x}_w)
    {x}_u = Reshape({x}_j, like)  {x}_p = Mul({x}4, cos)  {x}_s = Mul({x}_u, sin)
    {x}r = Add({x}_p, {x}_s)"""
TWICE = {
    HALVES: "e = Concat<axis = -1>(f, f)",
    PAIRS: "f1 = Unsqueeze(f, c3)  f2 = Concat<axis = 3>(f1, f1)  e = Reshape(f2, wide)",
}
COUNTED = """ps = Shape<start = 2, end = 3>(kp)  past = Squeeze(ps)
    rs = Shape<start = 1, end = 2>(q)  row = Squeeze(rs)
    first = Add(past, shift)  end = Add(first, row)  range = Range(first, end, one)  ids = Unsqueeze(range, c0)"""
GIVEN = "ids = Identity(position_ids)"


def decoder(
    batch: int, rows: int, form: str = HALVES, positions: str = COUNTED, past: object = "P", shift: int = 0
) -> str:
    """An attention behind a cache, with queries and keys turned by the positions."""
    ids = f", int64[{batch},{rows}] position_ids" if positions == GIVEN else ""
    causal = ",".join("1" if column <= row else "0" for row in range(rows) for column in range(rows))
    mask = (
        "sees = ConstantOfShape<value = bool[1] {1}>(seen)  m0 = Concat<axis = 1>(sees, causal)"
        "  m = Where(m0, none, low)"
        if rows > 1
        else "m = Identity(none)"
    )
    return f"""(float[{batch},{rows},64] q, float[{batch},{rows},32] k, float[{batch},{rows},32] v,
        float[{batch},2,{past},16] kp, float[{batch},2,{past},16] vp{ids}) =>
        (float[{batch},{rows},64] y, float[{batch},2,N,16] ko, float[{batch},2,N,16] vo)
        <int64[4] qh = {{0,0,4,16}}, int64[4] kh = {{0,0,2,16}}, int64[3] o = {{0,0,64}}, float scale = {{0.25}},
         int64[4] each = {{0,0,1,1}}, int64 one = {{1}}, int64 shift = {{{shift}}}, int64[1] c0 = {{0}},
         int64[1] c1 = {{1}},
         int64[1] c2 = {{2}}, int64[1] c3 = {{3}}, int64[1] c4 = {{4}}, int64[1] c16 = {{16}},
         int64[1] rows = {{{rows}}},
         int64[4] like = {{0,0,0,16}}, int64[3] wide = {{0,0,16}}, float none = {{0.0}}, float low = {{-3.4e38}},
         bool[{rows},{rows}] causal = {{{causal}}},
         float[8] w = {{1.0,0.5,0.25,0.125,0.0625,0.03125,0.015625,0.0078125}}> {{
        {positions}  at = Cast<to = 1>(ids)  at3 = Unsqueeze(at, c2)  f = Mul(at3, w)  {TWICE[form]}
        cos3 = Cos(e)  sin3 = Sin(e)  cos = Unsqueeze(cos3, c1)  sin = Unsqueeze(sin3, c1)
        q1 = Reshape(q, qh)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, kh)
        k4 = Transpose<perm = [0,2,1,3]>(k1)
        v1 = Reshape(v, kh)  v4 = Transpose<perm = [0,2,1,3]>(v1)  {form.format(x="q")}  {form.format(x="k")}
        ko = Concat<axis = 2>(kp, kr)  vo = Concat<axis = 2>(vp, v4)
        kg = Gather<axis = 1>(ko, each)  vg = Gather<axis = 1>(vo, each)  kt = Transpose<perm = [0,1,3,2]>(kg)
        before = Shape<start = 2, end = 3>(kp)  seen = Concat<axis = 0>(rows, before)  {mask}
        d = MatMul(qr, kt)  g = Mul(d, scale)  z = Add(g, m)  t = Softmax<axis = -1>(z)  h = MatMul(t, vg)
        i = Transpose<perm = [0,2,1,3]>(h)  y = Reshape(i, o) }}"""


def model_of(text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>\ng {text}')
    checker.check_model(model)
    return model


def optimized(text: str, *sizes: dict[str, int], **options: Any) -> tuple[ModelProto, Counter[str]]:
    """The result and its operators; it gives the same numbers for feeds of such sizes."""
    model = model_of(text)
    result = optimize(model, **{"target": "ort-cpu", "strict": True, **options}).model
    before, after = session(model), session(result)
    rng = np.random.default_rng(2)
    for size in sizes or ({},):
        feeds: dict[str, Any] = {}
        for item in before.get_inputs():
            shape = [size[dim] if isinstance(dim, str) else dim for dim in item.shape]
            feeds[item.name] = (
                rng.integers(0, 9, shape) if "int64" in item.type else rng.standard_normal(shape).astype(np.float32)
            )
        for left, right in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert left.shape == right.shape
            np.testing.assert_allclose(left, right, rtol=3e-6, atol=3e-6)
    return result, Counter(node.op_type for node in result.graph.node)


def attention(model: ModelProto) -> tuple[list[str], dict[str, Any]]:
    """Operands and attributes of the only GroupQueryAttention."""
    (node,) = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    return list(node.input), {item.name: helper.get_attribute_value(item) for item in node.attribute}


def is_inside(model: ModelProto) -> bool:
    """True if the operator turns queries and keys."""
    names = {node.op_type for node in model.graph.node}
    return bool(attention(model)[1].get("do_rotary")) and "RotaryEmbedding" not in names


@pytest.mark.parametrize("form", [HALVES, PAIRS])
@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (1, 3)])
@pytest.mark.parametrize("shift", [0, 1])
def test_positions_behind_the_cache(form: str, batch: int, rows: int, shift: int) -> None:
    text = decoder(batch, rows, form, shift=shift)
    result, found = optimized(text, {"P": 4}, {"P": 0}, {"P": 17})
    assert is_inside(result)
    assert attention(result)[1]["rotary_interleaved"] == (form == PAIRS)
    assert not {"Softmax", "Transpose", "Neg"} & set(found)


def test_heads_that_are_normalized_before_they_are_turned() -> None:
    text = decoder(2, 1)
    for x in "qk":
        text = text.replace(
            f"{x}4 = Transpose<perm = [0,2,1,3]>({x}1)", f"{x}0 = Transpose<perm = [0,2,1,3]>({x}1)  {x}4 = NORM({x}0)"
        )
    text = text.replace("NORM(q0)", "LayerNormalization<axis = -1>(q0, weight)")
    text = text.replace("NORM(k0)", "LayerNormalization<axis = -1>(k0, weight)")
    weight = f"float[16] weight = {{{','.join(['0.5', '1.5'] * 8)}}}, "
    result, found = optimized(text.replace("<int64[4] qh", f"<{weight} int64[4] qh"), {"P": 4}, {"P": 0})
    assert is_inside(result)
    assert found["Gather"] <= 1  # heads are not repeated


@pytest.mark.parametrize("rows", [1, 3])
def test_any_positions_of_one_batch(rows: int) -> None:
    result, _ = optimized(decoder(1, rows, positions=GIVEN), {"P": 4}, {"P": 0})
    assert is_inside(result)
    assert attention(result)[0][9:10] in ([], [""])  # none are told


def test_positions_of_each_batch_are_told_where_there_is_a_cache() -> None:
    result, _ = optimized(decoder(2, 1, positions=GIVEN, past=4))
    assert is_inside(result)
    assert attention(result)[0][9]
    # A run without earlier positions takes the first one only, and so may all runs of earlier versions.
    for text, options in (
        (decoder(2, 1, positions=GIVEN), {}),
        (decoder(2, 1, positions=GIVEN, past=4), {"ort_version": "1.30"}),
    ):
        result, found = optimized(text, {"P": 4}, {"P": 0}, **options)
        assert found["RotaryEmbedding"] == 2
        assert not is_inside(result)


def with_table(first: str, rows: int = 2, told: str = "p", table: int = 40) -> str:
    """An attention whose queries and keys are turned by rows of a stored table."""
    numbers = ",".join(f"{value:.4f}" for value in np.random.default_rng(0).standard_normal(8 * table))
    return f"""(float[1,{rows},64] q, float[1,{rows},32] k, float[1,{rows},32] v, float[1,2,P,16] kp,
        float[1,2,P,16] vp)
        => (float[1,{rows},64] y, float[1,2,N,16] ko, float[1,2,N,16] vo)
        <float[{table},8] c = {{{numbers}}}, float[{table},8] s = {{{numbers}}}, int64[1] rows = {{{rows}}},
         int64[1] one = {{1}}, int64 step = {{1}}, int64[1] zero = {{0}}> {{
        past = Shape<start = 2, end = 3>(kp)  all = Add(past, rows)  last0 = Sub(all, one)  last = Cast<to = 6>(last0)
        total = Cast<to = 6>(all)  {first}
        qr = com.microsoft.RotaryEmbedding(q, {told}, c, s)  kr = com.microsoft.RotaryEmbedding(k, {told}, c, s)
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>
                    (qr, kr, v, kp, vp, last, total) }}"""


RANGE = "f = Squeeze(p)  e0 = Squeeze(rows)  e = Add(f, e0)  r = Range(f, e, step)  ids = Unsqueeze(r, zero)"


@pytest.mark.parametrize(("more", "told"), [("", "p"), (RANGE, "ids")])
def test_a_table_of_all_positions_is_given_as_it_is(more: str, told: str) -> None:
    result, found = optimized(with_table(f"p = Identity(past) {more}", told=told), {"P": 5}, {"P": 0}, {"P": 38})
    assert is_inside(result)
    assert not {"Concat", "Slice", "Gather", "ConstantOfShape"} & set(found)


@pytest.mark.parametrize(("more", "told"), [("", "p"), (RANGE, "ids")])
def test_rows_that_begin_elsewhere_are_put_behind_as_many_as_are_cached(more: str, told: str) -> None:
    result, found = optimized(with_table(f"p = Add(past, one) {more}", told=told), {"P": 5}, {"P": 0}, {"P": 37})
    assert is_inside(result)
    assert found["Concat"]


def test_what_is_kept_by_name_stays() -> None:
    text = with_table("p = Identity(past)")
    for name in ("qr", "kr", "y"):
        result, _ = optimized(text, {"P": 5}, keep=[name])
        assert not is_inside(result)


def test_heads_of_other_sizes_stay() -> None:
    # Heads of 8, of which the operator turns none, and tables of 4.
    text = with_table("p = Identity(past)").replace("[40,8]", "[80,4]").replace("num_heads = 4", "num_heads = 8")
    text = text.replace("kv_num_heads = 2", "kv_num_heads = 4").replace("[1,2,P,16]", "[1,4,P,8]")
    result, found = optimized(text.replace("[1,2,N,16]", "[1,4,N,8]"), {"P": 5})
    assert found["RotaryEmbedding"] == 2
    assert not is_inside(result)


def test_a_part_of_each_head() -> None:
    text = with_table("p = Identity(past)").replace("num_heads = 4", "num_heads = 2")
    text = text.replace("kv_num_heads = 2", "kv_num_heads = 1").replace("[1,2,P,16]", "[1,1,P,32]")
    text = text.replace("[1,2,N,16]", "[1,1,N,32]")
    for name, heads in (("q", 2), ("k", 1)):
        old = f"com.microsoft.RotaryEmbedding({name},"
        text = text.replace(
            old, f"com.microsoft.RotaryEmbedding<num_heads = {heads}, rotary_embedding_dim = 16>({name},"
        )
    result, _ = optimized(text, {"P": 5}, {"P": 0})
    assert is_inside(result)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_are_moved_after_they_are_turned(heads: int) -> None:
    text = with_table("p = Identity(past)").replace("[1,2,P,16]", f"[1,{heads},P,16]")
    text = text.replace("[1,2,N,16]", f"[1,{heads},N,16]").replace("float[1,2,32] k", f"float[1,{heads},2,16] k")
    text = text.replace("float[1,2,32] v", f"float[1,2,{16 * heads}] v").replace(
        "kv_num_heads = 2", f"kv_num_heads = {heads}"
    )
    moved = "km = Transpose<perm = [0,2,1,3]>(k4)" if heads > 1 else "km = Identity(k4)"
    text = text.replace(
        "kr = com.microsoft.RotaryEmbedding(k, p, c, s)", "k4 = com.microsoft.RotaryEmbedding(k, p, c, s) MOVED"
    )
    text = text.replace("MOVED", f"{moved}  kr = Reshape(km, flat)").replace(
        "<float[40,8] c", "<int64[3] flat = {1,2,-1}, float[40,8] c"
    )
    result, _ = optimized(text, {"P": 5}, {"P": 0})
    assert is_inside(result)


PACKED = """(float[1,2,128] x, float[1,2,P,16] kp, float[1,2,P,16] vp) =>
    (float[1,2,64] y, float[1,2,N,16] ko, float[1,2,N,16] vo)
    <int64[1] rows = {2}, int64[1] one = {1}, int64[1] z = {0}, int64[1] e1 = {64}, int64[1] e2 = {96},
     int64[1] e3 = {128},
     int64[1] axis = {2}, int64[2] n = {96,32}, int64[2] n2 = {64,32}> {
    past = Shape<start = 2, end = 3>(kp)  all = Add(past, rows)  last0 = Sub(all, one)  last = Cast<to = 6>(last0)
    total = Cast<to = 6>(all)  CUT
    y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(q, k, v, kp, vp, last, total) }"""


@pytest.mark.parametrize(
    "cut",
    [
        "q = Slice(x, z, e1, axis)  k = Slice(x, e1, e2, axis)  v = Slice(x, e2, e3, axis)",
        "qk, v = Split<axis = 2>(x, n)  q, k = Split<axis = -1>(qk, n2)",
    ],
)
def test_operands_side_by_side(cut: str) -> None:
    only = ["fusion.grouped_operands"]
    result, found = optimized(PACKED.replace("CUT", cut), {"P": 3}, {"P": 0}, passes=only)
    assert attention(result)[0][:3] == ["x", "", ""]
    assert not {"Split", "Slice"} & set(found)
    result, _ = optimized(PACKED.replace("CUT", cut), {"P": 3}, passes=only, keep=["k"])
    assert attention(result)[0][:3] == ["q", "k", "v"]


def test_a_whole_layer_is_two_products_and_one_attention() -> None:
    text = decoder(2, 1).replace("float[2,1,64] q, float[2,1,32] k, float[2,1,32] v", "float[2,1,24] x")
    text = text.replace("q1 = Reshape", "q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)  q1 = Reshape")
    text = text.replace("(q)  row", "(x)  row").replace("y = Reshape(i, o)", "j = Reshape(i, o)  y = MatMul(j, wo)")
    rng = np.random.default_rng(1)
    weights = "".join(
        f"float[{rows},{width}] w{name} = {{{','.join(f'{value:.3f}' for value in rng.random(rows * width) / 9)}}}, "
        for name, rows, width in (("q", 24, 64), ("k", 24, 32), ("v", 24, 32), ("o", 64, 64))
    )
    result, found = optimized(text.replace("<int64[4] qh", f"<{weights} int64[4] qh"), {"P": 4}, {"P": 0})
    assert is_inside(result)
    assert attention(result)[0][1:3] == ["", ""]
    assert found["MatMul"] == 2
    assert not {"Split", "Slice", "Transpose"} & set(found)


@pytest.mark.parametrize(("operands", "cached"), [("x, , , kp, vp", (1, 2, 7, 16)), ("x, , , , ", (1, 2, 2, 16))])
def test_shapes_of_packed_operands(operands: str, cached: tuple[int, ...]) -> None:
    total = cached[2]
    graph = load(
        model_of(f"""(float[1,2,128] x, float[1,2,5,16] kp, float[1,2,5,16] vp)
            => (float[A,C,D] y, float[E,F,G,H] ko, float[I,J,K,L] vo)
        <int32[1] last = {{{total - 1}}}, int32[1] total = {{{total}}}> {{
        y, ko, vo = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>({operands}, last, total) }}""")
    )
    Inference(graph.model).run()
    assert [value.shape for value in graph.outputs] == [(1, 2, 64), cached, cached]
