"""Transposes: what carries them, what does not, what pays; quantized graphs, bodies, weights, real and random ones."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from pass_runs import assert_equal, floats, model_of, operators, run
from random_layouts import random_model

import passes.identities as identities
import passes.layout as layout
import passes.pruning as pruning
from graphopt import load, optimize
from graphopt.analysis import Inference
from graphopt.runtime import judge
from passes._layout_cost import Transposes
from passes._layout_regions import Division
from passes._permutation import compose, inverse, with_axes, without_axes
from passes._reshape_carrier import blocks_of

MODELS = Path(__file__).resolve().parents[2] / "models"
SHARED = Path(os.environ.get("GRAPHOPT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "models"
X = {"x": floats(2, 4, 5, 3)}
FIRST, LAST = "Transpose<perm = [0,3,1,2]>", "Transpose<perm = [0,2,3,1]>"


def transposes(text: str, *, level: str = "exact", opset: int = 18, feeds: Any = (X,)) -> int:
    """How many Transposes are left of a model that gives the same numbers."""
    model = model_of(f"g {text}", opset=opset)
    result = run(model, layout, level=level)
    assert_equal(model, result, feeds, "E" if level == "exact" else "R")
    return operators(result).get("Transpose", 0)


def cost(model: ModelProto) -> tuple[int, int]:
    """Bytes moved, and the price of that."""
    graph = load(model)
    Inference(graph.model).run()
    return Transposes(graph, lambda _: False).total()


# --- permutations and blocks


def test_permutations_against_numpy() -> None:
    random = np.random.default_rng(0)
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for _ in range(50):
        first, second = (tuple(int(axis) for axis in random.permutation(4)) for _ in range(2))
        assert (array.transpose(first).transpose(second) == array.transpose(compose(first, second))).all()
        assert (array.transpose(first).transpose(inverse(first)) == array).all()
        gone = [int(axis) for axis in random.permutation(4)[: random.integers(0, 4)]]
        kept = without_axes(first, gone)
        picked = array[tuple(0 if axis in gone else slice(None) for axis in range(4))]
        turned = array.transpose(first)[tuple(0 if axis in gone else slice(None) for axis in first)]
        assert (picked.transpose(kept) == turned).all()
        assert without_axes(with_axes(kept, gone), gone) == kept


def test_blocks_of_a_reshape() -> None:
    found = blocks_of((2, 3, 1, 4), (6, 2, 2))
    assert found is not None
    assert found.pairs == (((0, 1), (0,)), ((2,), (1, 2)))
    assert (found.dropped, found.added) == ((2,), ())
    assert blocks_of((2, 3), (4, 2)) is None
    assert blocks_of((0, 3), (3, 0)) is None
    assert blocks_of((None, 3), (None, 3)) is None


# --- what carries a Transpose


@pytest.mark.parametrize(
    "body",
    [
        "u = Relu(t)",
        "u = Cast<to = 1>(v)  v = Cast<to = 11>(t)",
        "u = Clip(t, zero, one)",
        "u = Add(t, one)",
        "u = Add(one, t)",
        "u = Mul(t, c)",
        "u = Sub(c, t)",
        "u = Add(t, hc)",
        "u = Mul(h1, t)",
        "u = PRelu(t, c)",
        "u = Sum(t, c, one, t)",
        "u = Pow(t, two)",
        "u = Concat<axis = -1>(t, t)",
        "u = Concat<axis = 1>(t, k)",
        "u, v = Split<axis = 3, num_outputs = 2>(t)",
        "u = Slice(t, i1, i3, i1)",
        "u = Slice(t, s2, e2)",
        "u = Pad(t, pads)",
        "u = Pad(t, i11, zero, i1_and_3)",
        "u = Softmax<axis = 1>(t)",
        "u = LogSoftmax<axis = 2>(t)",
        "u = CumSum(t, axis)",
        "u, v = TopK<axis = 3>(t, i1)",
        "u = Tile(t, repeats)",
        "u = Expand(t, shape)",
        "u = Gather<axis = 3>(t, i20)",
        "u = GatherElements<axis = 3>(t, elements)",
        "v = Unsqueeze(t, i1)  u = Squeeze(v, i1)",
        "v = ArgMax<axis = 3, keepdims = 1>(t)  u = Cast<to = 1>(v)",
        "q = QuantizeLinear(t, scale)  u = DequantizeLinear(q, scale)",
        "q = QuantizeLinear<axis = 3>(t, scales)  u = DequantizeLinear<axis = 3>(q, scales)",
        "v = Less(t, c)  u = Cast<to = 1>(v)",
        "u = Reshape(t, same)",
    ],
)
def test_between_two_transposes(body: str) -> None:
    """[2,4,5,3] is turned to the front, computed on, and turned back: no Transpose is needed."""
    weights = """<float zero = {0}, float one = {1}, float[1] two = {2}, float[4] c = {1,2,3,4}, float[3,4] hc =
        {1,2,3,4,5,6,7,8,9,10,11,12}, float[3,1] h1 = {1,2,3}, float[2,1,3,4] k = {1,2,3,4,5,6,7,8,9,10,11,12,
        1,2,3,4,5,6,7,8,9,10,11,12}, int64[1] i1 = {1}, int64[1] i3 = {3}, int64[2] s2 = {0,1}, int64[2] e2 = {1,9},
        int64[8] pads = {0,1,0,2,0,0,3,0}, int64[4] i11 = {1,0,0,2}, int64[2] i1_and_3 = {1,3}, int64 axis = {2},
        int64[4] repeats = {1,2,1,3}, int64[3] shape = {1,3,1}, int64[2] i20 = {2,0}, float scale = {0.1},
        float[4] scales = {0.1,0.2,0.3,0.4}, int64[2,5,3,1] elements = {0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,3,0,1,2,
        3,0,1,2,3,0,1}, int64[4] same = {0,5,3,-1}>"""
    parts = body.split("  ")
    ordered = "  ".join(sorted(parts, key=lambda part: part.startswith("u =")))
    perm_back = "[0,3,1,2]"
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] y) {weights} {{
        r = Neg(x)  t = {LAST}(r)  {ordered}  b = Transpose<perm = {perm_back}>(u)  y = Abs(b) }}"""
    assert transposes(text) == 0


@pytest.mark.parametrize(
    ("body", "rest"),
    [
        ("u = ReduceSum<keepdims = 1>(t, axes)  y = Transpose<perm = [0,3,1,2]>(u)", "float[A,B,C,D]"),
        ("y = ReduceMean<keepdims = 0>(t, axes)", "float[A,B]"),
        ("y = ReduceL2<keepdims = 0>(t, axes)", "float[A,B]"),
        ("u = Softplus(t)  y = Transpose<perm = [0,3,1,2]>(u)", "float[A,B,C,D]"),
        ("u = Max(t, c)  y = Transpose<perm = [0,3,1,2]>(u)", "float[A,B,C,D]"),
        ("u = Pow(t, c)  y = Transpose<perm = [0,3,1,2]>(u)", "float[A,B,C,D]"),
    ],
)
def test_what_changes_last_bits_only_moves_at_the_default_level(body: str, rest: str) -> None:
    text = f"""(float[2,4,5,3] x) => ({rest} y) <int64[2] axes = {{1,2}}, float[4] c = {{1,2,3,2}}>
        {{ r = Abs(x)  t = {LAST}(r)  {body} }}"""
    assert transposes(text) > 0
    assert transposes(text, level="default") == 0


@pytest.mark.parametrize("body", ["ReduceMax<keepdims = 0>(t, axes)", "ReduceProd<keepdims = 0>(t, axes)"])
def test_what_loses_a_nan_only_moves_at_fast_math(body: str) -> None:
    text = f"(float[2,4,5,3] x) => (float[A,B] y) <int64[2] axes = {{1,2}}> {{ t = {LAST}(x)  y = {body} }}"
    assert transposes(text, level="default") == 1
    model = model_of(f"g {text}")
    assert "Transpose" not in operators(run(model, layout, level="fast-math"))


@pytest.mark.parametrize(
    "text",
    [
        # Operands of unknown rank, of their own, or computed.
        f"""(float[2,4,5,3] x, float[N] v, int64[R] s) => (float[A,B,C,D] y)
            {{ z = Reshape(v, s)  t = {LAST}(x)  u = Add(t, z)  y = {FIRST}(u) }}""",
        # Reshape takes the blocks apart.
        f"""(float[2,4,5,3] x) => (float[A,B] y) <int64[2] s = {{2,-1}}> {{ t = {LAST}(x)  y = Reshape(t, s) }}""",
        # The axis is special, and not last any more.
        f"(float[2,4,5,3] x) => (float[A,B] y) {{ t = {LAST}(x)  y = Flatten<axis = 3>(t) }}",
        # These look at pixels and channels.
        f"(float[2,4,5,3] x) => (float[A,B,C,D] y) {{ t = {LAST}(x)  u = GlobalAveragePool(t)  y = {FIRST}(u) }}",
        f"""(float[2,4,5,4] x) => (float[A,B,C,D] y)
            {{ t = {LAST}(x)  u = DepthToSpace<blocksize = 2>(t)  y = {FIRST}(u) }}""",
        f"(float[2,4,5,3] x) => (float[A,B,C,D] y) {{ t = {LAST}(x)  u = Trilu(t)  y = {FIRST}(u) }}",
    ],
)
def test_what_does_not_carry_a_transpose(text: str) -> None:
    model = model_of(f"g {text}")
    assert operators(run(model, layout)) == operators(model)


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 18, 21])
def test_parameters_in_every_spelling(opset: int) -> None:
    """Slice, Pad, Squeeze, Unsqueeze and reductions changed from attributes to operands, at different opsets."""
    slices = "s = Slice<starts = [1], ends = [3], axes = [2]>(t)" if opset < 10 else "s = Slice(t, i1, i3, i2)"
    pads = "p = Pad<pads = [0,1,0,0,0,0,0,2]>(s)" if opset < 11 else "p = Pad(s, pads)"
    views = (
        "a = Unsqueeze<axes = [1]>(p)  u = Squeeze<axes = [1]>(a)"
        if opset < 13
        else "a = Unsqueeze(p, i1)  u = Squeeze(a, i1)"
    )
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] y)
        <int64[1] i1 = {{1}}, int64[1] i2 = {{2}}, int64[1] i3 = {{3}}, int64[8] pads = {{0,1,0,0,0,0,0,2}}>
        {{ t = {LAST}(x)  {slices}  {pads}  {views}  y = {FIRST}(u) }}"""
    assert transposes(text, opset=opset) == 0


def test_softmax_of_old_opsets_is_another_operator() -> None:
    text = f"(float[2,4,5,3] x) => (float[A,B,C,D] y) {{ t = {LAST}(x)  u = Softmax<axis = 3>(t)  y = {FIRST}(u) }}"
    assert transposes(text, opset=12) == 2
    assert transposes(text, opset=13) == 0


# --- operands that broadcast


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (3, 1), (5, 1, 1), (5, 3, 4), (1, 1, 1, 1), (2, 1, 1, 4)])
@pytest.mark.parametrize("is_weight", [True, False])
def test_operands_of_every_rank(shape: tuple[int, ...], is_weight: bool) -> None:
    """The classic failure: an operand of lower rank taken for one of rank 4."""
    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    numbers = ",".join(str(number) for number in range(int(np.prod(shape))))
    inputs, weights = (f", float{dims} z", "") if not is_weight else ("", f"<float{dims} z = {{{numbers}}}>")
    for body in ("Add(t, z)", "Mul(z, t)"):
        text = f"""(float[2,4,5,3] x{inputs}) => (float[A,B,C,D] y) {weights}
            {{ r = Neg(x)  t = {LAST}(r)  u = {body}  v = {FIRST}(u)  y = Abs(v) }}"""
        feed = {**X, "z": floats(*shape)} if not is_weight else X
        left = transposes(text, feeds=[feed])
        # An input with several long axes has to be turned instead: a smaller one than what was.
        assert left == (1 if not is_weight and shape == (5, 3, 4) else 0), (shape, left)


def test_where_with_a_scalar_branch() -> None:
    """What made TensorFlow drop its layout pass for eight years."""
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] y) <float zero = {{0}}>
        {{ t = {LAST}(x)  c = Less(t, zero)  u = Where(c, t, zero)  y = {FIRST}(u) }}"""
    assert transposes(text, level="default") == 0


# --- what pays


def test_a_transpose_moves_to_where_less_is_moved() -> None:
    before = f"(uint8[2,5,3,4] x) => (float[A,B,C,D] y) {{ c = Cast<to = 1>(x)  r = Relu(c)  y = {FIRST}(r) }}"
    model = model_of(f"g {before}")
    graph = load(run(model, layout))
    (transpose,) = graph.of_kind("Transpose")
    assert transpose.operands[0] is graph.inputs[0]  # a quarter of the bytes
    after = f"(float[2,4,5,3] x) => (float[A,B,C] y) <int64 i = {{0}}> {{ t = {LAST}(x)  y = Gather<axis = 1>(t, i) }}"
    graph = load(run(model_of(f"g {after}"), layout))
    (transpose,) = graph.of_kind("Transpose")
    assert transpose.operands[0] is not None
    assert transpose.operands[0].producer.op_type == "Gather"


def test_branches_that_do_not_pay_stay() -> None:
    """One of four readers wants the order that was there: the other three are turned, with one Transpose left."""
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] a, float[E,F,G,H] b, float[I,J,K,L] c, float[M,N,O,P] d) {{
        t = {LAST}(x)  u = Relu(t)
        a = {FIRST}(u)  b = {FIRST}(v)  v = Neg(u)  c = {FIRST}(w)  w = Abs(u)  d = GlobalMaxPool(u) }}"""
    text = text.replace("b = Transpose<perm = [0,3,1,2]>(v)  v = Neg(u)", f"v = Neg(u)  b = {FIRST}(v)").replace(
        "c = Transpose<perm = [0,3,1,2]>(w)  w = Abs(u)", f"w = Abs(u)  c = {FIRST}(w)"
    )
    assert transposes(text) == 1


def test_outputs_keep_their_order_names_and_shapes() -> None:
    text = f"""(float[N,4,5,3] x) => (float[N,5,3,4] t, float[N,5,3,4] u, float[N,4,5,3] y) {{
        t = {LAST}(x)  u = Relu(t)  v = Neg(u)  y = {FIRST}(v) }}"""
    model = model_of(f"g {text}")
    result = run(model, layout)
    assert list(result.graph.output) == list(model.graph.output)
    assert operators(result)["Transpose"] == 2
    assert_equal(model, result, [X, {"x": floats(1, 4, 5, 3)}, {"x": floats(0, 4, 5, 3)}])


def test_a_pass_that_does_not_pay_takes_itself_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Division, "cheapest", lambda self: frozenset(self._region))
    monkeypatch.setattr(layout, "_MAX_ROUNDS", 1)
    model = model_of(f"g (float[2,4,5,3] x) => (float[A,B,C,D] y) {{ t = {LAST}(x)  u = Relu(t)  y = Neg(u) }}")
    result = optimize(model, passes=["layout"], level="exact")
    assert any("taken back" in report.status for report in result.report.passes)
    assert operators(result.model) == operators(model)


def test_kept_transposes_and_nodes_stay() -> None:
    text = f"g (float[2,4,5,3] x) => (float[A,B,C,D] y) {{ t = {LAST}(x)  u = Relu(t)  y = {FIRST}(u) }}"
    for name, count in (("t", 2), ("u", 2), ("y", 2)):
        result = optimize(model_of(text), passes=["layout"], keep=[name], strict=True)
        assert operators(result.model)["Transpose"] == count
        assert name in [output for node in result.model.graph.node for output in node.output]


def test_a_matrix_product_takes_swapped_operands_for_free() -> None:
    """A runtime folds a swap of the last axes into MatMul: it is not merged into what stands before it."""
    text = """(float[2,3,4,5] x, float[2,4,3,5] z) => (float[A,B,C,D] y)
        { t = Transpose<perm = [0,2,1,3]>(x)  u = Transpose<perm = [0,1,3,2]>(t)  y = MatMul(z, u) }"""
    model = model_of(f"g {text}")
    assert operators(run(model, layout))["Transpose"] == 2
    far = """(float[2,3,4,5] x, float[2,3,4,5] z) => (float[A,B,C,D] y)
        { t = Transpose<perm = [0,1,3,2]>(x)  u = Neg(t)  y = MatMul(z, u) }"""
    graph = load(run(model_of(f"g {far}"), layout))
    product = graph.of_kind("MatMul")[0].operands[1]
    assert product is not None
    assert product.producer.op_type == "Transpose"


def test_attention_of_one_token_keeps_its_pattern() -> None:
    """The Transpose behind the Reshape that splits heads moves nothing, but runtimes fuse attention by it."""
    model = model_of("""g (float[N,1,8] x) => (float[A,B,C,D] y) <int64[4] s = {0,0,2,4}> {
        r = Reshape(x, s)  t = Transpose<perm = [0,2,1,3]>(r)  y = Relu(t) }""")
    assert operators(run(model, layout)) == operators(model)


def test_transposes_inside_gemm() -> None:
    text = """(float[3,2] x, float[4,3] w, float[4] c) => (float[A,B] y)
        { s = Transpose(x)  t = Transpose(w)  y = Gemm<alpha = 0.5>(s, t, c) }"""
    feeds = [{"x": floats(3, 2), "w": floats(4, 3), "c": floats(4)}]
    assert transposes(text, level="default", feeds=feeds) == 0
    assert transposes(text, feeds=feeds) == 2  # bits of the last place depend on how a matrix lies in memory


# --- weights


def _with_weight(readers: int, size: int) -> ModelProto:
    rows = size // 64
    nodes = []
    for reader in range(readers):
        nodes.append(helper.make_node("Transpose", ["w"], [f"t{reader}"], perm=[1, 0]))
        nodes.append(helper.make_node("Add", ["x", f"t{reader}"], [f"y{reader}"]))
    nodes.append(helper.make_node("Neg", ["w"], ["z"]) if readers > 1 else helper.make_node("Relu", ["x"], ["z"]))
    outputs = ["z", *(f"y{reader}" for reader in range(readers))]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, rows])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs],
        [numpy_helper.from_array(floats(rows, 16), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_weight_is_turned_if_it_is_small_or_nobody_else_reads_it() -> None:
    large = 1 << 20
    alone = _with_weight(1, large)
    assert "Transpose" not in operators(run(alone, layout, pruning))
    shared = _with_weight(2, large)
    result = run(shared, layout, pruning)
    assert operators(result)["Transpose"] == 2
    assert result.ByteSize() < shared.ByteSize() + 1000
    small = _with_weight(2, 4096)
    result = run(small, layout, pruning)
    assert "Transpose" not in operators(result)
    assert_equal(small, result, [{"x": floats(16, 64)}])


def test_an_overridable_weight_is_not_turned() -> None:
    text = "(float[2,3] x, float[3,2] w = {1,2,3,4,5,6}) => (float[2,3] y) { t = Transpose(w)  y = Add(x, t) }"
    assert transposes(text, feeds=[{"x": floats(2, 3)}, {"x": floats(2, 3), "w": floats(3, 2)}]) == 1


# --- quantized graphs, halves


def test_quantized_weights_stay_quantized() -> None:
    numbers = ",".join(["1,-2,3"] * 24)
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] y) <int8[3,3,4,2] w = {{{numbers}}}, float s = {{0.1}}>
        {{ d = DequantizeLinear(w, s)  k = Transpose<perm = [3,2,0,1]>(d)  y = Conv(x, k) }}"""
    model = model_of(f"g {text}")
    result = run(model, layout)
    assert operators(result) == {"Conv": 1, "DequantizeLinear": 1}
    assert {tensor.data_type for tensor in result.graph.initializer if len(tensor.dims)} == {TensorProto.INT8}
    assert_equal(model, result, [X])


def test_nothing_comes_between_a_quantized_value_and_its_readers() -> None:
    """A Transpose would cancel, but another would stand between Q and DQ, or between DQ and its reader."""
    text = f"""(float[2,4,5,3] x) => (float[A,B,C,D] y, float[E,F,G,H] z) <float s = {{0.1}}> {{
        t = {LAST}(x)  q = QuantizeLinear(t, s)  d = DequantizeLinear(q, s)  r = Relu(d)
        y = {FIRST}(r)  z = GlobalMaxPool(d) }}"""
    graph = load(run(model_of(f"g {text}"), layout))
    for node in graph.of_kind("QuantizeLinear"):
        assert [user.op_type for user in node.results[0].users] == ["DequantizeLinear"]
    for node in graph.of_kind("DequantizeLinear"):
        assert "Transpose" not in [user.op_type for user in node.results[0].users]


def test_halves_are_not_exact() -> None:
    text = f"(float16[2,4,5,3] x) => (float16[A,B,C,D] y) {{ t = {LAST}(x)  u = Neg(t)  y = {FIRST}(u) }}"
    model = model_of(f"g {text}")
    assert operators(run(model, layout))["Transpose"] == 2
    assert "Transpose" not in operators(run(model, layout, level="default"))


# --- bodies


def test_inside_branches_and_loops() -> None:
    model = model_of(f"""g (float[2,4,5,3] x, bool c, int64 n) => (float[A,B,C,D] y) <bool go = {{1}}> {{
        o = Neg(x)
        w = If (c) <
            then_branch = a () => (float[2,4,5,3] u) {{ t = {LAST}(o)  r = Relu(t)  u = {FIRST}(r) }},
            else_branch = b () => (float[2,4,5,3] v) {{ v = Abs(x) }}
        >
        y = Loop (n, go, w) <
            body = b (int64 i, bool d, float[2,4,5,3] s) => (bool e, float[2,4,5,3] z) {{
                e = Identity(d)  p = {LAST}(s)  q = Neg(p)  z = {FIRST}(q)
            }}
        >
    }}""")
    result = run(model, layout)
    assert "Transpose" not in operators(result)
    assert_equal(model, result, [{**X, "c": np.array(flag), "n": np.array(3)} for flag in (True, False)])


def test_a_value_captured_by_a_body_keeps_its_order() -> None:
    model = model_of(f"""g (float[2,4,5,3] x, bool c) => (float[A,B,C,D] y, float[E,F,G,H] z) {{
        t = {LAST}(x)  u = Relu(t)  y = {FIRST}(u)
        z = If (c) <
            then_branch = a () => (float[2,5,3,4] v) {{ v = Neg(u) }},
            else_branch = b () => (float[2,5,3,4] w) {{ w = Abs(t) }}
        >
    }}""")
    result = run(model, layout)
    assert_equal(model, result, [{**X, "c": np.array(flag)} for flag in (True, False)])


# --- shapes


@pytest.mark.parametrize(
    "body",
    [
        "u = Reshape(t, flat)  v = Relu(u)  w = Transpose<perm = [0,2,1]>(v)  y = Neg(w)",
        "u = Reshape(t, keep)  v = Relu(u)  w = Transpose<perm = [0,2,1]>(v)  y = Neg(w)",
    ],
)
def test_a_reshape_of_whole_blocks(body: str) -> None:
    text = f"""(float[N,4,5,3] x) => (float[A,B,C] y) <int64[3] flat = {{-1,15,4}}, int64[3] keep = {{0,15,4}}>
        {{ r = Abs(x)  t = {LAST}(r)  {body} }}"""
    assert transposes(text, feeds=[X, {"x": floats(1, 4, 5, 3)}, {"x": floats(0, 4, 5, 3)}]) == 0


def test_the_shape_of_a_transpose() -> None:
    text = f"""(float[N,4,5,3] x) => (int64[A] y, int64[B] z, int64 s)
        {{ t = {LAST}(x)  y = Shape(t)  z = Shape<start = 1, end = -1>(t)  s = Size(t) }}"""
    model = model_of(f"g {text}")
    result = run(model, layout)
    assert operators(result).get("Transpose", 0) <= 1
    assert_equal(model, result, [X, {"x": floats(1, 4, 5, 3)}])


# --- real and random models


def test_a_channels_last_export_loses_almost_all() -> None:
    path = MODELS / "channels_last.onnx"
    model = onnx.load(path)
    feed = {"image": np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)}
    assert operators(model)["Transpose"] == 23
    exact = run(model, identities, layout)
    assert operators(exact)["Transpose"] <= 4
    assert_equal(model, exact, [feed])
    default = run(model, identities, layout, level="default")
    assert operators(default)["Transpose"] <= 2
    assert judge(model, default, "D", [feed]).ok


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared models are not here; set GRAPHOPT_SHARED")
@pytest.mark.parametrize(("name", "before", "after"), [("basic_pitch_nmp", 21, 1), ("oskut_unrolled_rnn", 14, 2)])
def test_converted_models(name: str, before: int, after: int) -> None:
    result = optimize(SHARED / f"{name}.onnx", passes=["layout"], level="exact", strict=True)
    assert result.report.operators_before["Transpose"] == before
    assert result.report.operators_after["Transpose"] <= after


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_models(start: int) -> None:
    changed = 0
    for seed in range(start, start + 20):
        model, feeds = random_model(seed)
        graph = load(model)
        before = cost(run(model, identities))
        result = run(model, identities, layout)
        after = cost(result)
        assert after <= before, f"seed {seed}: {before} -> {after}"
        verdict = judge(model, result, "E", feeds)
        assert verdict.ok, f"seed {seed}: {verdict.reason}"
        changed += len(result.graph.node) != len(graph.nodes())
    assert changed > 5


def test_long_models_take_linear_time() -> None:
    seconds = []
    for blocks in (100, 400):
        nodes, x = [], "x"
        for block in range(blocks):
            names = [f"v{block}_{index}" for index in range(6)]
            nodes += [
                helper.make_node("Transpose", [x], [names[0]], perm=[0, 3, 1, 2]),
                helper.make_node("Conv", [names[0], "w"], [names[1]]),
                helper.make_node("Transpose", [names[1]], [names[2]], perm=[0, 2, 3, 1]),
                helper.make_node("Add", [names[2], "b"], [names[3]]),
                helper.make_node("Relu", [names[3]], [names[4]]),
                helper.make_node("Add", [names[4], x], [names[5]]),
            ]
            x = names[5]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, 8, 4])],
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, [None] * 4)],
            [numpy_helper.from_array(floats(4, 4, 1, 1), "w"), numpy_helper.from_array(floats(4), "b")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        began = time.process_time()
        result = optimize(model, passes=["layout"], strict=True)
        seconds.append(time.process_time() - began)
        assert result.report.operators_after["Transpose"] == 2
    assert seconds[1] < 12 * seconds[0] + 1
