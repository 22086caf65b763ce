"""Attention of decoders that share keys and values: caches, masks, sizes, and what must stay as it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, checker, helper, parser
from sessions import session

from graphopt import Context, load, optimize
from graphopt.analysis.inference import Inference
from passes.fusion._attention_core import find_attention
from passes.fusion._grouped_causal import Hiding, hidden_by

PASSES = ["fusion.grouped_attention", "shapes", "common_subexpressions", "pruning"]
HEADS = """q1 = Reshape(q, qs)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, ks)
    k4 = Transpose<perm = [0,2,1,3]>(k1)  v1 = Reshape(v, ks)  v4 = Transpose<perm = [0,2,1,3]>(v1)"""
SHAPES = "int64[4] qs = {0,0,4,8}, int64[4] ks = {0,0,2,8}, int64[3] o = {0,0,32}, float scale = {0.5}"
GATHER = "kr = Gather<axis = 1>(ko, each)  vr = Gather<axis = 1>(vo, each)"
EXPAND = """k5 = Unsqueeze(ko, two)  kw = Expand(k5, pairs)  kr = Reshape(kw, flat)
    v5 = Unsqueeze(vo, two)  vw = Expand(v5, pairs)  vr = Reshape(vw, flat)"""
REPEATS = """int64[4] each = {0,0,1,1}, int64[1] two = {2}, int64[5] pairs = {1,1,2,1,1}, int64[4] flat = {0,4,-1,8}"""
END = "p = Softmax<axis = -1>(a)  r = MatMul(p, vr)  t = Transpose<perm = [0,2,1,3]>(r)  y = Reshape(t, o)"


def decoder(
    batch: object, rows: object, mask: str = "", dims: str = "", repeat: str = GATHER, dtype: str = "float"
) -> str:
    """An attention behind a cache; `mask` makes m, `dims` declares what it reads."""
    add = "a = Add(e, m)" if mask or dims else "a = Identity(e)"
    half = "0.5" if dtype == "float" else "14336"  # half precision is spelt by its bits
    shapes = SHAPES.replace("float scale = {0.5}", f"{dtype} scale = {{{half}}}")
    text = f"""({dtype}[{batch},{rows},32] q, {dtype}[{batch},{rows},16] k, {dtype}[{batch},{rows},16] v,
        {dtype}[{batch},2,P,8] kp, {dtype}[{batch},2,P,8] vp{dims}) =>
        ({dtype}[{batch},{rows},32] y, {dtype}[{batch},2,N,8] ko, {dtype}[{batch},2,N,8] vo)
        <{shapes}, {REPEATS},
         float none = {{0.0}}, float low = {{-3.4e38}}, int64 zero = {{0}}, int64 one = {{1}}, int64[1] second = {{1}},
         int64[1] third = {{2}}, int64[1] fourth = {{3}}>
        {{ {HEADS}  ko = Concat<axis = 2>(kp, k4)  vo = Concat<axis = 2>(vp, v4)  {repeat}
           kt = Transpose<perm = [0,1,3,2]>(kr)  d = MatMul(q4, kt)  e = Mul(d, scale)  {mask}  {add}  {END} }}"""
    return text if add != "a = Identity(e)" else text.replace("a = Identity(e)", "").replace("(a)", "(e)")


PLACES = """ps = Shape<start = 2, end = 3>(kp)  past = Squeeze(ps)  rs = Shape<start = 1, end = 2>(q)  row = Squeeze(rs)
    end = Add(past, row)  at = Range(past, end, one)  of = Range(zero, end, one)  ats = Unsqueeze(at, second)"""
CAUSAL = f"{PLACES}  c = LessOrEqual(of, ats)  m = Where(c, none, low)"


def model_of(text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    checker.check_model(model)
    return model


def attributes_of(model: ModelProto) -> dict[str, Any]:
    """The attributes of the only GroupQueryAttention."""
    (node,) = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def grouped(
    text: str, *sizes: dict[str, int], expected: bool | dict[str, Any] | None = True, **options: Any
) -> Counter[str]:
    """The operators left of a model, which gives the same numbers for feeds of such sizes.

    Args:
        text: The model.
        sizes: Of its free dims.
        expected: If it has the operator, or what some of its attributes are; None for either.
        options: For `optimize`.
    """
    model = model_of(text)
    result = optimize(model, **{"target": "ort-cpu", "passes": PASSES, "strict": True, **options}).model
    found = Counter(node.op_type for node in result.graph.node)
    assert expected is None or bool(found["GroupQueryAttention"]) is bool(expected), found
    if isinstance(expected, dict):
        attributes = {"causal": 1, "softcap": 0.0, "local_window_size": -1} | attributes_of(result)
        assert {name: attributes[name] for name in expected} == expected
    before, after = session(model), session(result)
    rng = np.random.default_rng(2)
    for size in sizes or ({},):
        feeds: dict[str, Any] = {}
        for item in before.get_inputs():
            shape = [size[dim] if isinstance(dim, str) else dim for dim in item.shape]
            if item.type == "tensor(bool)":
                feeds[item.name] = rng.random(shape) > 0.5
                feeds[item.name][:1] = False  # a batch that sees nothing
            else:
                kind = np.float16 if item.type == "tensor(float16)" else np.float32
                feeds[item.name] = rng.standard_normal(shape).astype(kind)
        for left, right in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert left.shape == right.shape
            bound = 5e-3 if left.dtype == np.float16 else 3e-6
            np.testing.assert_allclose(left.astype(np.float64), right.astype(np.float64), rtol=bound, atol=bound)
    return found


@pytest.mark.parametrize("repeat", [GATHER, EXPAND])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_one_position_behind_a_cache(repeat: str, dtype: str) -> None:
    found = grouped(decoder(2, 1, repeat=repeat, dtype=dtype), {"P": 3}, {"P": 0}, {"P": 17})
    assert not {"Softmax", "Transpose", "Gather", "MatMul"} & set(found)


def test_masks_of_one_position_are_added() -> None:
    mask = "s = Where(b, none, low)  m = Unsqueeze(s, second)"
    grouped(decoder(2, 1, mask, ", bool[2,1,T] b"), {"P": 3, "T": 4}, {"P": 3, "T": 1}, {"P": 0, "T": 1})


def test_several_positions_of_one_batch() -> None:
    found = grouped(decoder(1, 3, CAUSAL), {"P": 4}, {"P": 0})
    assert "Where" not in found


def test_several_positions_of_several_batches_are_left_to_other_operators() -> None:
    grouped(decoder(2, 3, CAUSAL), {"P": 4}, expected=False)


def test_free_dims_need_the_aggressive_form() -> None:
    text = decoder(1, "S", CAUSAL)
    grouped(text, {"P": 4, "S": 2}, {"P": 0, "S": 3}, expected=False)
    grouped(text, {"P": 4, "S": 2}, {"P": 0, "S": 3}, {"P": 4, "S": 1}, aggressive=["fusion.grouped_attention"])


@pytest.mark.parametrize(
    "mask",
    [
        f"{PLACES}  c = Less(of, ats)  m = Where(c, none, low)",
        f"{PLACES}  c = GreaterOrEqual(of, ats)  m = Where(c, none, low)",
        f"{PLACES}  c = LessOrEqual(of, ats)  m = Where(c, low, none)",
        f"{PLACES}  up = Add(of, one)  c = LessOrEqual(up, ats)  m = Where(c, none, low)",
        f"{PLACES}  c0 = LessOrEqual(of, ats)  c = Cast<to = 9>(c0)  m = Where(c, none, none)",
    ],
)
def test_masks_that_let_see_other_keys_are_added_whole(mask: str) -> None:
    text = decoder(1, 3, mask)
    grouped(text, {"P": 4}, {"P": 0}, expected={"causal": 0})
    grouped(text, {"P": 4}, expected=False, ort_version="1.30")


@pytest.mark.parametrize(
    "mask",
    [
        f"{PLACES}  c = Greater(of, ats)  m = Where(c, low, none)",
        f"{PLACES}  c = GreaterOrEqual(ats, of)  m = Where(c, none, low)",
        f"{PLACES}  up = Add(ats, one)  c = Less(of, up)  m = Where(c, none, low)",
        f"{PLACES}  g = Greater(of, ats)  c = Not(g)  m = Where(c, none, low)",
        f"{PLACES}  c0 = LessOrEqual(of, ats)  g = And(c0, c0)  c = Unsqueeze(g, first)  m = Where(c, none, low)",
    ],
)
def test_spellings_of_the_causal_mask(mask: str) -> None:
    text = decoder(1, 3, mask).replace("int64[1] second = {1}", "int64[1] first = {0}, int64[1] second = {1}")
    assert "Where" not in grouped(text, {"P": 4})


def test_what_hides_more_at_the_level_that_allows_it() -> None:
    mask = CAUSAL.replace("m = Where(c, none, low)", "h = And(c, b)  m = Where(h, none, low)")
    text = decoder(1, 3, mask, ", bool[1,1,1,T] b")
    grouped(text, {"P": 4, "T": 7}, expected=False, ort_version="1.30")
    # What it gives to a query that sees no key differs; that the operator is there is all that is promised.
    options = {"target": "ort-cpu", "passes": PASSES, "level": "fast-math", "ort_version": "1.30"}
    assert attributes_of(optimize(model_of(text), **options).model) == {"num_heads": 4, "kv_num_heads": 2, "scale": 0.5}


def test_what_hides_more_is_added_whole_so_that_rows_without_keys_stay() -> None:
    mask = CAUSAL.replace("m = Where(c, none, low)", "h = And(c, b)  m = Where(h, none, low)")
    grouped(decoder(1, 3, mask, ", bool[1,1,1,T] b"), {"P": 4, "T": 7}, expected={"causal": 0})
    infinite = decoder(2, 1, "s = Where(b, none, low)  m = Unsqueeze(s, second)", ", bool[2,1,T] b")
    for low in ("-3.4e38", "-3.4028234663852886e38", "-1e38", "-1e30", "-inf"):
        # The causal form gives zeros to a query that sees nothing but lowest numbers, and the model a mean.
        text = infinite.replace("low = {-3.4e38}", f"low = {{{low}}}")
        grouped(text, {"P": 3, "T": 4}, {"P": 0, "T": 1}, expected={"causal": 0})


@pytest.mark.parametrize("low", ["-3.4028234663852886e38", "-inf"])
@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (1, 1), (1, 3)])
def test_stored_masks_that_hide_all_keys(low: str, batch: int, rows: int) -> None:
    hidden = ",".join([low] * (3 + rows) * rows)
    text = decoder(batch, rows, "m = Identity(all)").replace("P,8]", "3,8]").replace("N,8]", f"{3 + rows},8]")
    text = text.replace("int64 zero", f"float[{rows},{3 + rows}] all = {{{hidden}}}, int64 zero")
    grouped(text, expected={"causal": 0})


def test_rows_without_keys_give_nothing_where_the_model_takes_care() -> None:
    mask = CAUSAL.replace("m = Where(c, none, low)", "h = And(c, b)  m = Where(h, none, low)")
    text = decoder(1, 3, mask, ", bool[1,1,1,T] b").replace("float low = {-3.4e38}", "float low = {-inf}")
    text = text.replace(
        "p = Softmax<axis = -1>(a)", "p0 = Softmax<axis = -1>(a)  n = IsNaN(p0)  p = Where(n, none, p0)"
    )
    grouped(text, {"P": 4, "T": 7}, expected={"causal": 0})


def test_keys_whose_heads_come_first() -> None:
    text = decoder(2, 1).replace("float[2,1,16] k", "float[2,2,1,8] k4").replace("k1 = Reshape(k, ks)", "")
    text = text.replace("k4 = Transpose<perm = [0,2,1,3]>(k1)", "")
    assert grouped(text, {"P": 4}, {"P": 0})["MatMul"] == 0
    # Several rows are moved only where that is sure to win.
    text = decoder(1, 3, CAUSAL).replace("float[1,3,16] k", "float[1,2,3,8] k4").replace("k1 = Reshape(k, ks)", "")
    grouped(text.replace("k4 = Transpose<perm = [0,2,1,3]>(k1)", ""), {"P": 4}, expected=False)


WINDOWS = [
    "far = Sub(ats, reach)  g = Greater(of, far)",
    "far = Sub(ats, reach)  h = LessOrEqual(of, far)  g = Not(h)",
    "near = Add(of, reach)  g = Greater(near, ats)",
    "far = Sub(ats, less)  g = GreaterOrEqual(of, far)",
    "near = Add(of, reach)  g = Less(ats, near)",
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", [(1, 3), (2, 1)])
def test_windows_of_keys(window: str, batch: tuple[int, int]) -> None:
    mask = f"{PLACES}  c = LessOrEqual(of, ats)  {window}  s = And(c, g)  m = Where(s, none, low)"
    text = decoder(*batch, mask).replace("int64 one = {1}", "int64 one = {1}, int64 reach = {2}, int64 less = {1}")
    found = grouped(text, {"P": 4}, {"P": 0}, {"P": 9}, expected={"local_window_size": 2})
    assert "Where" not in found
    # Earlier versions saw one key more.
    grouped(text, {"P": 4}, expected=None if batch == (2, 1) else False, ort_version="1.30")


@pytest.mark.parametrize(
    "window",
    [
        "far = Sub(ats, reach)  g = Less(of, far)",
        "far = Sub(ats, reach)  g = Greater(ats, far)",
        "far = Sub(ats, past)  g = Greater(of, far)",
        "far = Sub(ats, zero)  g = Greater(of, far)",
    ],
)
def test_what_is_no_window(window: str) -> None:
    mask = f"{PLACES}  c = LessOrEqual(of, ats)  {window}  s = And(c, g)  m = Where(s, none, low)"
    text = decoder(1, 3, mask).replace("int64 one = {1}", "int64 one = {1}, int64 reach = {2}")
    grouped(text, {"P": 4}, {"P": 9}, expected={"local_window_size": -1, "causal": 0})


BOUND = ("e = Mul(d, scale)", "x = Mul(d, by)  w = Tanh(x)  e = Mul(w, cap)")


def bounded(*sizes: object, mask: str = "", dims: str = "", dtype: str = "float") -> str:
    """An attention whose scores are at most 2."""
    text = decoder(*sizes, mask, dims, dtype=dtype).replace(*BOUND)
    numbers = ("0.25", "2.0") if dtype == "float" else ("13312", "16384")
    return text.replace("int64 zero =", f"{dtype} by = {{{numbers[0]}}}, {dtype} cap = {{{numbers[1]}}}, int64 zero =")


def test_bounded_scores_of_one_position() -> None:
    found = grouped(bounded(2, 1), {"P": 3}, {"P": 0}, expected={"softcap": 2.0, "scale": 0.5})
    assert "Tanh" not in found
    mask = "s = Where(b, none, low)  m = Unsqueeze(s, second)"
    grouped(bounded(2, 1, mask=mask, dims=", bool[2,1,T] b"), {"P": 3, "T": 4}, expected={"softcap": 2.0})


def test_bounded_scores_of_several_positions_have_their_own_tanh_on_the_cpu() -> None:
    grouped(bounded(1, 3, mask=CAUSAL), {"P": 3}, expected=False)
    half = bounded(1, 3, mask=CAUSAL, dtype="float16").replace("float none = {0.0}", "float16 none = {0}")
    half = half.replace("float low = {-3.4e38}", "float16 low = {64511}")  # the lowest number, by its bits
    grouped(half, {"P": 3}, {"P": 0}, expected={"softcap": 2.0}, target="ort-cuda")


def test_a_bound_above_the_mask_stays() -> None:
    text = bounded(2, 1, mask="g = Neg(e)", dims=", float[2,1,1,T] m")
    text = text.replace("x = Mul(d, by)", "x0 = Mul(d, by)  x = Add(x0, m)").replace("a = Add(e, m)", "a = Neg(g)")
    grouped(text, {"P": 3, "T": 4}, expected=False)


def alone(batch: int, rows: int, mask: str = "", repeat: str = "") -> str:
    """Four heads of queries and one of keys and values, which the product stretches unless `repeat` does."""
    text = decoder(batch, rows, mask).replace("16]", "8]").replace(",2,P", ",1,P").replace(",2,N", ",1,N")
    text = text.replace("{0,0,2,8}", "{0,0,1,8}").replace(GATHER, repeat or "kr = Identity(ko)  vr = Identity(vo)")
    return text.replace("{0,0,1,1}", "{0,0,0,0}")


@pytest.mark.parametrize("repeat", ["", GATHER])
@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (1, 3)])
def test_one_head_of_keys(batch: int, rows: int, repeat: str) -> None:
    text = alone(batch, rows, CAUSAL, repeat)
    grouped(text, {"P": 4}, {"P": 0}, expected={"kv_num_heads": 1, "num_heads": 4})


def test_values_of_all_heads_beside_one_of_keys() -> None:
    text = decoder(2, 1).replace("kr = Gather<axis = 1>(ko, each)", "kr = Slice(ko, first, second, second)")
    grouped(text.replace("int64 zero =", "int64[1] first = {0}, int64 zero ="), {"P": 4}, expected=False)


def test_a_prompt_whose_keys_begin_a_cache_gives_them_on_cuda() -> None:
    text = f"""(float16[2,3,32] q, float16[2,3,16] k, float16[2,3,16] v) =>
        (float16[2,3,32] y, float16[2,2,3,8] k4, float16[2,2,3,8] v4)
        <{SHAPES.replace("float scale = {0.5}", "float16 scale = {14336}")}, {REPEATS},
         float16[3,3] m = {{0, 64512, 64512, 0, 0, 64512, 0, 0, 0}}>
        {{ {HEADS}  kr = Gather<axis = 1>(k4, each)  vr = Gather<axis = 1>(v4, each)
           kt = Transpose<perm = [0,1,3,2]>(kr)  d = MatMul(q4, kt)  e = Mul(d, scale)  a = Add(e, m)  {END} }}"""
    assert "Transpose" not in grouped(text, target="ort-cuda")
    assert grouped(text)["Transpose"] == 2


def test_the_kernel_of_cuda_gives_all_results() -> None:
    text = decoder(2, 1, dtype="float16").replace(", float16[2,2,N,8] ko, float16[2,2,N,8] vo)", ")")
    result = optimize(model_of(text), target="ort-cuda").model
    assert [len(node.output) for node in result.graph.node if node.op_type == "GroupQueryAttention"] == [3]


def test_a_mask_needs_a_version_that_takes_it() -> None:
    text = decoder(2, 1, "s = Where(b, none, low)  m = Unsqueeze(s, second)", ", bool[2,1,T] b")
    grouped(text, {"P": 3, "T": 4}, expected=False, ort_version="1.20")
    grouped(decoder(2, 1), {"P": 3}, ort_version="1.20")


def test_cuda_has_it_in_half_precision_only() -> None:
    for dtype, expected in (("float", False), ("float16", True)):
        result = optimize(model_of(decoder(2, 1, dtype=dtype)), target="ort-cuda", passes=PASSES).model
        assert any(node.op_type == "GroupQueryAttention" for node in result.graph.node) is expected


def test_kept_names_stay() -> None:
    result = optimize(model_of(decoder(2, 1)), target="ort-cpu", passes=PASSES, keep=["ko"]).model
    assert not any(node.op_type == "GroupQueryAttention" for node in result.graph.node)


@pytest.mark.parametrize(
    ("mask", "hiding"),
    [
        ("t = ConstantOfShape<value = bool {1}>(s)  c = Trilu<upper = 0>(t)  m = Where(c, z, l)", Hiding(True, False)),
        ("t = ConstantOfShape<value = float {-inf}>(s)  m = Trilu<upper = 1>(t, above)", Hiding(True, False)),
        ("t = ConstantOfShape<value = float {-inf}>(s)  m = Trilu<upper = 1>(t)", Hiding(False, True)),
        ("t = ConstantOfShape<value = float {-3.0}>(s)  m = Trilu<upper = 1>(t, above)", Hiding(False, True)),
        (
            "t = ConstantOfShape<value = bool {1}>(s)  c = Trilu<upper = 1>(t, above)  m = Where(c, l, z)",
            Hiding(True, False),
        ),
        ("t = ConstantOfShape<value = bool {1}>(s)  c = Trilu<upper = 1>(t)  m = Where(c, l, z)", Hiding(False, True)),
        (
            "t = ConstantOfShape<value = bool {1}>(s)  c = Trilu<upper = 0>(t, behind)  m = Where(c, l, z)",
            Hiding(False, True, 2),
        ),
        ("t = ConstantOfShape<value = bool {1}>(s)  c = Trilu(t, behind)  m = Where(c, z, l)", Hiding(False, True, 3)),
        ("t = ConstantOfShape<value = bool {1}>(s)  c = Trilu<upper = 0>(t)  m = Where(c, l, z)", Hiding(False, True)),
    ],
)
def test_triangles(mask: str, hiding: Hiding) -> None:
    text = f"""(float[1,2,N,8] q, float[1,2,8,N] k, float[1,2,N,8] v) => (float[1,2,N,8] y)
        <float z = {{0.0}}, float l = {{-inf}}, int64 above = {{1}}, int64 behind = {{-2}}, int64[2] places = {{2, 2}}>
        {{ sh = Shape(q)  s = Gather(sh, places)  {mask}  d = MatMul(q, k)  a = Add(d, m)  p = Softmax<axis = -1>(a)
           y = MatMul(p, v) }}"""
    text = text.replace("t = ConstantOfShape<value = bool {1}>(s)", "o = Expand(yes, s)  t = Cast<to = 9>(o)")
    text = text.replace("<float z", "<int64 yes = {1}, float low = {-inf}, float mild = {-3.0}, float z")
    text = text.replace("ConstantOfShape<value = float {-inf}>(s)", "Expand(low, s)")
    text = text.replace("ConstantOfShape<value = float {-3.0}>(s)", "Expand(mild, s)")
    graph = load(model_of(text))
    context = Context(Inference(graph.model))
    context.inference.run()
    core = find_attention(graph.of_kind("Softmax")[0], context)
    assert not isinstance(core, str), core
    assert hidden_by(core) == hiding
