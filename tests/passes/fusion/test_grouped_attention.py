"""Attention of decoders that share keys and values: caches, masks, sizes, and what must stay as it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, checker, parser

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


def session(model: ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def model_of(text: str) -> ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\ng {text}')
    checker.check_model(model)
    return model


def grouped(text: str, *sizes: dict[str, int], expected: bool = True, **options: Any) -> Counter[str]:
    """The operators left of a model, which gives the same numbers for feeds of such sizes."""
    model = model_of(text)
    result = optimize(model, **{"target": "ort-cpu", "passes": PASSES, "strict": True, **options}).model
    found = Counter(node.op_type for node in result.graph.node)
    assert bool(found["GroupQueryAttention"]) is expected, found
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
def test_masks_that_let_see_other_keys(mask: str) -> None:
    grouped(decoder(1, 3, mask), {"P": 4}, expected=False)


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
    grouped(text, {"P": 4, "T": 7}, expected=False)
    # What it gives to a query that sees no key differs; that the operator is there is all that is promised.
    result = optimize(model_of(text), target="ort-cpu", passes=PASSES, level="fast-math").model
    assert any(node.op_type == "GroupQueryAttention" for node in result.graph.node)


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
    ],
)
def test_triangles(mask: str, hiding: Hiding) -> None:
    text = f"""(float[1,2,N,8] q, float[1,2,8,N] k, float[1,2,N,8] v) => (float[1,2,N,8] y)
        <float z = {{0.0}}, float l = {{-inf}}, int64 above = {{1}}, int64[2] places = {{2, 2}}>
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
