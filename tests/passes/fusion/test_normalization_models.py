"""Normalizations, residuals and activations of small nets as exporters spell them, for the targets of ONNX Runtime.

A model for CUDA is held against its original on the CPU provider, which has the same operators.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, load_model, numpy_helper, parser

import graphopt
from graphopt.runtime import judge
from graphopt.runtime.session import CUDA, starts

WEIGHTS: dict[str, tuple[int, ...]] = {
    "gamma": (8,), "beta": (8,), "w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,), "up": (8, 16),
    "words": (11, 8), "places": (6, 8), "kinds": (2, 8),
}  # fmt: skip


def net(text: str, opset: int = 17, dtype: Any = np.float32) -> ModelProto:
    """A model whose weights have the names and shapes above."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>\ng {text}')
    random = np.random.default_rng(1)
    for name, shape in WEIGHTS.items():
        if any(name in node.input for node in model.graph.node):
            model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(dtype), name))
    return model


def fused(model: ModelProto, target: str = "ort-cuda", **options: Any) -> tuple[ModelProto, Counter[str], list[str]]:
    """What becomes of a model, the operators of it that count here, and the remarks."""
    result = graphopt.optimize(model, target=target, strict=True, **options)
    kinds = Counter(f"{node.domain.replace('com.microsoft', 'ms')}:{node.op_type}" for node in result.model.graph.node)
    shape_work = ("Shape", "Gather", "Cast", "Slice", "Concat", "Reshape", "Unsqueeze", "Range", "Constant")
    for name in shape_work:
        kinds.pop(f":{name}", None)
    return result.model, kinds, result.report.notes


def hold(before: ModelProto, after: ModelProto, numeric: str = "R", **feeds: Any) -> None:
    """The result is as near the truth as its class promises, on a feed the original runs on."""
    verdict = judge(before, after, numeric, [feeds])
    assert verdict.ok, verdict.reason
    assert verdict.feeds == 1


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# --- one block of a transformer ---------------------------------------------------------------------------------------

TORCHSCRIPT_NORM = """m = ReduceMean<axes = [-1]>(t)  d = Sub(t, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
    e = Add(v, eps)  q = Sqrt(e)  o = Div(d, q)  f = Mul(o, gamma)  n = Add(f, beta)"""
NORM = "n = LayerNormalization<axis = -1, epsilon = 0.00001>(t, gamma, beta)"
ERF = """z = Div(h, root)  r = Erf(z)  a = Add(r, one)  k = Mul(h, a)  g = Mul(k, half)"""
TANH = """c3 = Pow(h, three)  k = Mul(c3, cube)  s = Add(h, k)  z = Mul(s, factor)  th = Tanh(z)  a = Add(th, one)
    hh = Mul(h, half)  g = Mul(hh, a)"""
NUMBERS = """<float two = {2.0}, float eps = {0.00001}, float one = {1.0}, float half = {0.5}, float three = {3.0},
    float root = {1.4142135}, float cube = {0.044715}, float factor = {0.7978846}>"""


@pytest.mark.parametrize(
    ("opset", "norm", "activation", "wanted"),
    [
        (13, TORCHSCRIPT_NORM, ERF, {"ms:BiasGelu": 1}),
        (17, NORM, ERF, {"ms:BiasGelu": 1}),
        (20, NORM, "g = Gelu(h)", {"ms:BiasGelu": 1}),
        (13, TORCHSCRIPT_NORM, TANH, {"ms:FastGelu": 1}),
        (20, NORM, 'g = Gelu<approximate = "tanh">(h)', {"ms:FastGelu": 1}),
        (17, NORM, "z = Mul(h, root)  r = Sigmoid(z)  g = Mul(h, r)", {"ms:QuickGelu": 1, ":Add": 1}),
        (17, NORM, "r = Sigmoid(h)  g = Mul(r, h)", {"ms:QuickGelu": 1, ":Add": 1}),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 0])
def test_a_block_that_normalizes_first(
    opset: int, norm: str, activation: str, wanted: dict[str, int], batch: int
) -> None:
    text = f"""(float[B,S,8] x, float[B,S,8] u) => (float[B,S,8] y) {NUMBERS} {{
        j = MatMul(x, up)  jj = MatMul(j, w2)  i = Add(jj, b2)  t = Add(x, i)  {norm}
        l = MatMul(n, w1)  h = Add(l, b1)  {activation}
        l2 = MatMul(g, w2)  h2 = Add(l2, b2)  y = Add(t, h2)  unused = Relu(u)
    }}"""
    model = net(text, opset)
    result, kinds, _ = fused(model)
    adds = 2 + (":Add" in wanted)
    assert kinds == {":MatMul": 4, "ms:SkipLayerNormalization": 1, **wanted, ":Add": adds}
    (skip,) = [node for node in result.graph.node if node.op_type == "SkipLayerNormalization"]
    assert len(skip.input) == 5, "the bias of the layer before goes along"
    assert [bool(name) for name in skip.output] == [True, False, False, True], "the sum is read by the next residual"
    hold(model, result, x=numbers(batch, 3, 8), u=numbers(batch, 3, 8))


@pytest.mark.parametrize(("opset", "name"), [(17, ":SimplifiedLayerNormalization"), (23, ":RMSNormalization")])
@pytest.mark.parametrize(
    "root",
    [
        "q = Sqrt(e)  r = Reciprocal(q)  o = Mul(t, r)",
        "q = Sqrt(e)  o = Div(t, q)",
        "q = Sqrt(e)  r = Div(one, q)  o = Mul(r, t)",
        "r = Pow(e, inverse)  o = Mul(t, r)",
    ],
)
@pytest.mark.parametrize("square", ["p = Pow(t, two)", "p = Mul(t, t)"])
def test_root_mean_squares_with_and_without_a_residual(opset: int, name: str, root: str, square: str) -> None:
    axes = "v = ReduceMean<axes = [-1]>(p)" if opset < 18 else "v = ReduceMean(p, axes)"
    norm = f"{square}  {axes}  e = Add(v, eps)  {root}  n = Mul(gamma, o)"
    constants = NUMBERS[:-1] + ", float inverse = {-0.5}, int64[1] axes = {-1}>"
    first = net(f"(float[B,S,8] t) => (float[B,S,8] y) {constants} {{ {norm}  y = MatMul(n, up) }}", opset)
    result, kinds, _ = fused(first)
    assert kinds == {name: 1, ":MatMul": 1}
    hold(first, result, t=numbers(2, 3, 8))
    later = net(
        f"""(float[B,S,8] x) => (float[B,S,8] y) {constants}
        {{ j = MatMul(x, up)  i = MatMul(j, w2)  t = Add(i, x)  {norm}  y = Add(t, n) }}""",
        opset,
    )
    result, kinds, _ = fused(later)
    assert kinds == {"ms:SkipSimplifiedLayerNormalization": 1, ":MatMul": 2, ":Add": 1}
    hold(later, result, x=numbers(2, 3, 8))
    for target in ("ort-cpu", "portable"):
        assert "ms:SkipSimplifiedLayerNormalization" not in fused(later, target)[1]


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_root_mean_squares_in_half_precision(target: str) -> None:
    model = net(
        """(float16[B,S,8] x) => (float16[B,S,8] y) <float two = {2.0}, float eps = {0.00001}> {
        c = Cast<to = 1>(x)  p = Pow(c, two)  v = ReduceMean<axes = [-1]>(p)  e = Add(v, eps)  q = Sqrt(e)
        r = Reciprocal(q)  o = Mul(c, r)  h = Cast<to = 10>(o)  n = Mul(gamma, h)  y = Relu(n)
    }""",
        dtype=np.float16,
    )
    result, kinds, _ = fused(model, target)
    assert kinds == {":SimplifiedLayerNormalization": 1, ":Relu": 1}
    assert not any(node.op_type == "Cast" for node in result.graph.node)
    hold(model, result, x=numbers(2, 3, 8, dtype=np.float16))


def test_a_scale_in_single_precision_stays_so() -> None:
    model = net(
        """(float16[B,S,8] x) => (float16[B,S,8] y) <float two = {2.0}, float eps = {0.00001}> {
        c = Cast<to = 1>(x)  p = Pow(c, two)  v = ReduceMean<axes = [-1]>(p)  e = Add(v, eps)  q = Sqrt(e)
        r = Reciprocal(q)  o = Mul(c, r)  n = Mul(gamma, o)  y = Cast<to = 10>(n)
    }"""
    )
    result, kinds, _ = fused(model)
    assert kinds == {":SimplifiedLayerNormalization": 1}
    assert sum(node.op_type == "Cast" for node in result.graph.node) == 2
    hold(model, result, x=numbers(2, 3, 8, dtype=np.float16))


def test_a_normalization_that_something_else_scales() -> None:
    """Queries are normalized and then turned by their positions: that factor is no scale of the operator."""
    model = net(
        """(float[B,S,8] t, float[B,S,8] turn) => (float[B,S,8] y) <float two = {2.0}, float eps = {0.00001}> {
        p = Pow(t, two)  v = ReduceMean<axes = [-1]>(p)  e = Add(v, eps)  q = Sqrt(e)  o = Div(t, q)  y = Mul(o, turn)
    }"""
    )
    result, kinds, _ = fused(model, "ort-cpu")
    assert kinds == {":SimplifiedLayerNormalization": 1, ":Mul": 1}
    hold(model, result, t=numbers(2, 3, 8), turn=numbers(2, 3, 8))


def test_an_older_opset_keeps_loading() -> None:
    """The runtime has LayerNormalization before ONNX has it; ONNX's checker does not know it there."""
    model = net(f"(float[B,S,8] t) => (float[B,S,8] y) {NUMBERS} {{ {TORCHSCRIPT_NORM}  y = Relu(n) }}", 11)
    result, kinds, _ = fused(model, "ort-cpu")
    assert kinds == {":LayerNormalization": 1, ":Relu": 1}
    assert {item.domain: item.version for item in result.opset_import}[""] == 11
    hold(model, result, t=numbers(2, 3, 8))
    again, kinds, _ = fused(result, "ort-cpu")
    assert kinds == {":LayerNormalization": 1, ":Relu": 1}
    hold(result, again, t=numbers(2, 3, 8))


# --- what a residual must be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skip", "shape"), [("float[B,S,8]", (1, 3, 8)), ("float[1,S,8]", (1, 3, 8)), ("float[S,8]", (3, 8))]
)
def test_residuals_of_inputs_are_added_inside_only_where_names_of_dims_are_trusted(
    skip: str, shape: tuple[int, ...]
) -> None:
    model = net(f"(float[B,S,8] x, {skip} r) => (float[B,S,8] y) {{ t = Add(r, x)  {NORM}  y = Relu(n) }}")
    _, kinds, notes = fused(model)
    assert kinds == {":Add": 1, ":LayerNormalization": 1, ":Relu": 1}
    assert any("not known to have the same shape" in note for note in notes)
    result, kinds, _ = fused(model, trust_dim_names=True)
    assert kinds == {"ms:SkipLayerNormalization": 1, ":Relu": 1}
    hold(model, result, x=numbers(1, 3, 8), r=numbers(*shape))


@pytest.mark.parametrize("batches", [(2, 2), (2, 1), (1, 1), (0, 1)])
def test_a_residual_that_may_be_of_one_batch(batches: tuple[int, int]) -> None:
    """What a mask of another batch went into has that of the sum; then the other can only be equal, or one for all."""
    model = net(
        f"""(float[B,3,8] x, float[C,3,8] mask) => (float[D,3,8] y)
        {{ a = Add(x, mask)  r = Sigmoid(a)  t = Add(mask, r)  {NORM}  y = Mul(n, t) }}"""
    )
    result, kinds, _ = fused(model)
    assert kinds == {"ms:SkipLayerNormalization": 1, ":Add": 1, ":Sigmoid": 1, ":Mul": 1}
    hold(model, result, x=numbers(batches[0], 3, 8), mask=numbers(batches[1], 3, 8, seed=1))


def test_two_normalizations_of_one_sum() -> None:
    """The first takes the sum, the second reads it from there."""
    model = net(
        f"""(float[B,S,8] x) => (float[B,S,8] y, float[B,S,8] t) {{ r = Sigmoid(x)  t = Add(r, x)  {NORM}
        n2 = LayerNormalization<axis = -1>(t, beta, gamma)  a = MatMul(n, up)  b = MatMul(a, w2)  y = Sub(b, n2) }}"""
    )
    result, kinds, _ = fused(model)
    assert kinds["ms:SkipLayerNormalization"] == kinds[":LayerNormalization"] == 1
    assert ":Add" not in kinds
    assert [value.name for value in result.graph.output] == ["y", "t"]
    hold(model, result, x=numbers(2, 3, 8))


def test_a_sum_that_a_branch_reads_too() -> None:
    model = net(
        f"""(float[B,S,8] x, bool c) => (float[B,S,8] y) {{ r = Sigmoid(x)  t = Add(r, x)  {NORM}
        z = If(c) <then_branch = g1 () => (float[B,S,8] o1) {{ o1 = Relu(t) }},
                   else_branch = g2 () => (float[B,S,8] o2) {{ o2 = Neg(t) }}>
        y = Add(n, z) }}"""
    )
    result, kinds, _ = fused(model)
    assert kinds["ms:SkipLayerNormalization"] == 1
    hold(model, result, x=numbers(2, 3, 8), c=np.array(True))


def test_nodes_the_user_keeps_stay() -> None:
    model = net(f"(float[2,3,8] x) => (float[2,3,8] y) {{ r = Sigmoid(x)  t = Add(r, x)  {NORM}  y = Relu(n) }}")
    assert fused(model, keep=["t"])[1][":Add"] == 1
    assert ":Add" not in fused(model)[1]


def test_the_bias_of_an_activation_stays_with_a_gemm_on_the_cpu() -> None:
    model = net(
        f"""(float[B,S,8] x) => (float[B,S,8] y) {NUMBERS}
        {{ l = MatMul(x, w1)  h = Add(l, b1)  {ERF}  y = MatMul(g, w2) }}"""
    )
    result, kinds, _ = fused(model, "ort-cpu")
    assert kinds == {":MatMul": 2, ":Add": 1, "ms:Gelu": 1}
    hold(model, result, x=numbers(2, 3, 8))


@pytest.mark.parametrize(
    ("name", "opset"), [("LayerNormalization", 13), ("SimplifiedLayerNormalization", 13), ("RMSNormalization", 23)]
)
def test_more_than_the_last_axis(name: str, opset: int) -> None:
    """The operator goes over several axes; the one that adds by itself does not."""
    axes = "axes = [-2, -1]" if opset < 18 else ""
    given = ", a" if opset >= 18 else ""
    mean = f"m = ReduceMean<{axes}>(t{given})  d = Sub(t, m)" if name == "LayerNormalization" else "d = Identity(t)"
    model = net(
        f"""(float[B,5,4] x) => (float[B,5,4] y) <int64[2] a = {{-2, -1}}, float two = {{2.0}},
        float eps = {{0.00001}}> {{ r = Sigmoid(x)  t = Add(x, r)  {mean}
        p = Pow(d, two)  v = ReduceMean<{axes}>(p{given})  e = Add(v, eps)
        q = Sqrt(e)  n = Div(d, q)  y = Relu(n)
    }}""".replace("<>", ""),
        opset,
    )
    result, kinds, notes = fused(model)
    assert kinds == {f":{name}": 1, ":Add": 1, ":Sigmoid": 1, ":Relu": 1}
    assert any("more than the last axis" in note for note in notes)
    hold(model, result, x=numbers(2, 5, 4))


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ("t = Dropout(s, ratio, training)", ""),
        ("t = Mul(s, s)", ""),
        ("t = Identity(s)", "may go over less than two numbers"),
    ],
)
def test_what_stays_in_parts(between: str, words: str) -> None:
    """A dropout that is training stands between a sum and its normalization; over one number none goes."""
    size = "W" if words else "8"
    model = net(
        f"""(float[2,3,{size}] x) => (float[2,3,{size}] y) <float ratio = {{0.5}}, bool training = {{1}},
        float two = {{2.0}}, float eps = {{0.00001}}, int64[1] a = {{-1}}> {{
        r = Sigmoid(x)  s = Add(x, r)  {between}  m = ReduceMean(t, a)  d = Sub(t, m)  p = Pow(d, two)
        v = ReduceMean(p, a)  e = Add(v, eps)  q = Sqrt(e)  y = Div(d, q)
    }}""",
        18,
    )
    _, kinds, notes = fused(model)
    assert "ms:SkipLayerNormalization" not in kinds
    assert (":LayerNormalization" in kinds) == (not words)
    assert any(words in note for note in notes) or not words


def test_the_runtime_makes_no_slow_kernel_of_a_sum_on_the_cpu(tmp_path: Path) -> None:
    """Its SkipLayerNormalization there takes several times as long as the addition and the normalization."""
    model = net(f"(float[2,3,8] x) => (float[2,3,8] y) {{ r = Sigmoid(x)  t = Add(x, r)  {NORM}  y = Relu(n) }}")
    result, kinds, _ = fused(model, "ort-cpu")
    assert kinds == {":Sigmoid": 1, ":Sum": 1, ":LayerNormalization": 1, ":Relu": 1}
    assert "SkipLayerNormalization" in as_run(model, tmp_path), "so it does by itself"
    assert "SkipLayerNormalization" not in as_run(result, tmp_path)
    hold(model, result, "E", x=numbers(2, 3, 8))
    assert fused(result, "portable")[1] == fused(model, "portable")[1], "elsewhere it is an Add"
    shared = net(f"(float[2,3,8] x) => (float[2,3,8] y) {{ r = Sigmoid(x)  t = Add(x, r)  {NORM}  y = Mul(n, t) }}")
    assert ":Sum" not in fused(shared, "ort-cpu")[1]


@pytest.mark.parametrize(
    ("node", "wanted", "opset"),
    [
        ("y, , , t = com.microsoft.SkipLayerNormalization(x, r, gamma, beta, b2)", ":LayerNormalization", 13),
        ("y = com.microsoft.SkipLayerNormalization(x, r, gamma)  t = Neg(x)", ":LayerNormalization", 17),
        ("y, , , t = com.microsoft.SkipSimplifiedLayerNormalization(x, r, gamma)", ":SimplifiedLayerNormalization", 17),
        ("y, , , t = com.microsoft.SkipSimplifiedLayerNormalization(x, r, gamma, b2)", ":RMSNormalization", 23),
    ],
)
@pytest.mark.parametrize("skip", ["2,3,8", "1,3,8", "3,8"])
def test_normalizations_that_add_are_taken_apart_on_the_cpu(node: str, wanted: str, opset: int, skip: str) -> None:
    """Models made by the runtime's own tools for transformers have them, for whatever provider they are run on."""
    model = net(f"(float[2,3,8] x, float[{skip}] r) => (float[2,3,8] y, float[2,3,8] t) {{ {node} }}", opset)
    assert not any(name in fused(model, "ort-cpu")[1] for name in (wanted, ":Sum"))  # nearer the truth, not to it
    result, kinds, _ = fused(model, "ort-cpu", level="fast-math")
    assert kinds.pop(wanted) == 1
    assert set(kinds) <= {":Add", ":Sum", ":Neg"}
    hold(model, result, x=numbers(2, 3, 8), r=numbers(*map(int, skip.split(","))))
    assert not any(name in fused(model, "ort-cuda")[1] for name in (wanted, ":Sum"))


def as_run(model: ModelProto, folder: Path) -> list[str]:
    """The operators that the runtime really runs."""
    path = folder / "as_run.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in load_model(path).graph.node]


# --- embeddings -------------------------------------------------------------------------------------------------------

BERT = f"""(int64[B,S] i, int64[B,S] g) => (float[B,S,8] y) <int64[1,6] counter = {{0, 1, 2, 3, 4, 5}},
    int64[1] o = {{0}}, int64[1] one = {{1}}> {{
    s = Shape<start = 1>(i)  p = Slice(counter, o, s, one)
    a = Gather(words, i)  b = Gather(kinds, g)  c = Add(a, b)  d = Gather(places, p)  t = Add(c, d)  {NORM}  y = Relu(n)
}}"""
ROBERTA = f"""(int64[B,S] i) => (float[B,S,8] y) <int64 pad = {{1}}, int64 axis = {{1}}> {{
    e = Equal(i, pad)  f = Not(e)  m = Cast<to = 7>(f)  c = CumSum(m, axis)  p = Mul(c, m)
    a = Gather(words, i)  d = Gather(places, p)  t = Add(d, a)  {NORM}  y = Relu(n)
}}"""
IDS = np.array([[4, 2, 1], [9, 0, 3]], np.int64)


@pytest.mark.parametrize("target", ["ort-cpu", "ort-cuda"])
def test_the_embedding_of_bert(target: str) -> None:
    model = net(BERT)
    assert "ms:EmbedLayerNormalization" not in fused(model, target, trust_dim_names=True)[1], "negative ids are legal"
    assert "ms:EmbedLayerNormalization" not in fused(model, target, level="fast-math")[1], "g may be of one batch"
    result, kinds, _ = fused(model, target, level="fast-math", trust_dim_names=True)
    assert kinds == {"ms:EmbedLayerNormalization": 1, ":Relu": 1}
    (node,) = [node for node in result.graph.node if node.op_type == "EmbedLayerNormalization"]
    assert len(node.input) == 7, "places that are counted need no operand"
    hold(model, result, i=IDS, g=IDS % 2)


def test_an_embedding_whose_places_depend_on_the_words() -> None:
    model = net(ROBERTA)
    result, kinds, _ = fused(model, level="fast-math")
    assert kinds["ms:EmbedLayerNormalization"] == 1
    (node,) = [node for node in result.graph.node if node.op_type == "EmbedLayerNormalization"]
    assert node.input[8]
    hold(model, result, i=IDS)


def test_an_embedding_that_is_none() -> None:
    """A table of which a part of one row may be stretched over all places."""
    text = BERT.replace("int64[1,6] counter = {0, 1, 2, 3, 4, 5}", "int64[1,1] counter = {0}")
    _, kinds, notes = fused(net(text), level="fast-math", trust_dim_names=True)
    assert "ms:EmbedLayerNormalization" not in kinds
    text = BERT.replace("{0, 1, 2, 3, 4, 5}", "{0, 1, 2, 3, 5, 4}")
    _, kinds, notes = fused(net(text), level="fast-math", trust_dim_names=True)
    assert "ms:EmbedLayerNormalization" not in kinds
    assert any("an embedding stays in parts" in note for note in notes)


# --- where CUDA starts ------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_cuda_gives_the_numbers_of_the_parts(dtype: str) -> None:
    """Empty rows, means far from zero and half precision are what its kernels might get wrong."""
    if not starts(CUDA):
        pytest.skip("the CUDA provider does not start here")
    kind = np.float32 if dtype == "float" else np.float16
    model = net(
        f"""({dtype}[B,S,8] x) => ({dtype}[B,S,8] y, {dtype}[B,S,16] g) {{
        j = MatMul(x, up)  jj = MatMul(j, w2)  i = Add(jj, b2)  t = Add(x, i)  {NORM}
        l = MatMul(n, w1)  h = Add(l, b1)  g = Gelu(h)  y = Sub(n, t)
    }}""",
        20,
        kind,
    )
    result, kinds, _ = fused(model)
    assert kinds["ms:SkipLayerNormalization"] == kinds["ms:BiasGelu"] == 1
    feeds = [{"x": numbers(2, rows, 8, dtype=kind) + kind(20)} for rows in (3, 0)]
    verdict = graphopt.verify(model, result, provider="cuda", feeds=feeds)
    assert verdict.verdict == "equal", verdict.reason
