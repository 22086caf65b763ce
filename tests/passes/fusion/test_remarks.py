"""Why attentions and normalizations were left alone: `explain` names what stands in the way, and what would help."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import graphopt
import passes
from graphopt.runtime import judge


def model(text: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\ng {text}')


def remarks(made: ModelProto, *rules: str, **options: Any) -> tuple[str, ...]:
    """What graph passes remark on a model."""
    return tuple(
        note for item in graphopt.explain(made, rules, **{"target": "ort-cpu", **options}) for note in item.notes
    )


def kinds(made: ModelProto, **options: Any) -> list[str]:
    result = graphopt.optimize(made, **{"target": "ort-cpu", "strict": True, **options})
    return [node.op_type for node in result.model.graph.node]


# --- attention --------------------------------------------------------------------------------------------------------

SIDES = "(float[2,2,3,8] q, float[2,2,5,8] k, float[2,2,5,8] v)"
TURNED = "t = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, t)"
PRODUCTS = {
    "made by Einsum": '{ d = Einsum<equation = "bhid,bhjd->bhij">(q, k)  p = Softmax<axis = -1>(d)  y = MatMul(p, v) }',
    "go into Einsum": f'{{ {TURNED}  p = Softmax<axis = -1>(d)  y = Einsum<equation = "bhij,bhjd->bhid">(p, v) }}',
    "made by Relu": f"{{ {TURNED}  c = Relu(d)  p = Softmax<axis = -1>(c)  y = MatMul(p, v) }}",
    "go into Sqrt": f"{{ {TURNED}  p = Softmax<axis = -1>(d)  c = Sqrt(p)  y = MatMul(c, v) }}",
    "takes its logarithm": f"{{ {TURNED}  p = LogSoftmax<axis = -1>(d)  y = MatMul(p, v) }}",
    "are a result of the graph": f"{{ {TURNED}  y = Softmax<axis = -1>(d) }}",
}


@pytest.mark.parametrize("words", PRODUCTS)
def test_what_stands_between_is_named(words: str) -> None:
    shape = "float[2,2,3,5]" if "result" in words else "float[2,2,3,8]"
    found = remarks(model(f"{SIDES} => ({shape} y) {PRODUCTS[words]}"), "fusion.attention/attention_apart")
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("words", [words for words in PRODUCTS if "logarithm" not in words])
def test_by_the_pass_for_shared_heads_too(words: str) -> None:
    shape = "float[2,2,3,5]" if "result" in words else "float[2,2,3,8]"
    found = remarks(model(f"{SIDES} => ({shape} y) {PRODUCTS[words]}"), "fusion.grouped_attention/any_mask")
    assert any(words in note for note in found)


def test_a_softmax_without_products_is_none() -> None:
    text = "(float[2,5] x) => (float[2,5] y) { r = Relu(x)  y = Softmax<axis = -1>(r) }"
    assert remarks(model(text), "fusion.attention", "fusion.grouped_attention") == ()
    text = f"{SIDES} => (float[2,2,3,5] y) {{ {TURNED}  y = Softmax<axis = 1>(d) }}"
    assert not any("softmax at" in note for note in remarks(model(text), "fusion.attention"))


def test_what_was_told_aside_is_no_news_in_the_report() -> None:
    made = model(f"{SIDES} => (float[2,2,3,8] y) {PRODUCTS['go into Sqrt']}")
    plain = model(f"{SIDES} => (float[2,2,3,8] y) {PRODUCTS['takes its logarithm']}")
    assert any("Sqrt" in note for note in graphopt.optimize(made, target="ort-cpu").report.notes)
    assert not any("logarithm" in note for note in graphopt.optimize(plain, target="ort-cpu").report.notes)


# --- attention of opset 23 --------------------------------------------------------------------------------------------


def modern(mask: str = "") -> ModelProto:
    declared = f", float[{mask}] m" if mask else ""
    scores = "a = Add(d, m)  p = Softmax<axis = -1>(a)" if mask else "p = Softmax<axis = -1>(d)"
    text = f"""(float[B,2,S,8] q, float[B,2,S,8] k, float[B,2,S,8] v{declared}) => (float[B,2,S,8] y) {{
        t = Transpose<perm = [0,1,3,2]>(k)  d = MatMul(q, t)  {scores}  y = MatMul(p, v) }}"""
    return model(text, 23)


def test_empty_operands_are_a_matter_of_options() -> None:
    text = """(float[B,S,16] x) => (float[B,2,S,8] y) <int64[4] s = {0,0,2,8}> {
        h = Reshape(x, s)  q = Transpose<perm = [0,2,1,3]>(h)  r = Relu(q)  t = Transpose<perm = [0,1,3,2]>(r)
        d = MatMul(q, t)  p = Softmax<axis = -1>(d)  y = MatMul(p, q) }"""
    options = {"target": "portable", "opset": 23}
    (note,) = remarks(model(text, 23), "modern_attention/attention", **options)
    assert "--aggressive modern_attention" in note
    assert "--fix-dim" in note
    assert "Attention" in kinds(model(text, 23), aggressive=["modern_attention"], **options)
    assert "Attention" in kinds(model(text, 23), fix_dims={"B": 1, "S": 3}, **options)


def test_dims_of_one_name_are_a_matter_of_another() -> None:
    options = {"target": "portable", "opset": 23, "aggressive": ["modern_attention"]}
    (note,) = remarks(modern(), "modern_attention/attention", **options)
    assert "different batches: B, B and B; --trust-dim-names" in note
    assert "Attention" in kinds(modern(), trust_dim_names=True, **options)


@pytest.mark.parametrize(("mask", "words"), [("1,1,1,S", "this one has [1, S]"), ("S,S", "hide all keys of a query")])
def test_masks_that_the_operator_does_not_take(mask: str, words: str) -> None:
    options = {"target": "portable", "opset": 23, "aggressive": ["modern_attention"], "trust_dim_names": True}
    (note,) = remarks(modern(mask=mask), "modern_attention/attention", **options)
    assert words in note
    assert "--trust-dim-names" not in note


# --- normalizations ---------------------------------------------------------------------------------------------------

SCALE = "float[8] w = {1.0,0.5,2.0,1.5,-1.0,0.25,3.0,1.0}, float two = {2.0}, float eps = {0.00001}"
MEAN = "p = Pow(x, two)  v = ReduceMean<axes = [-1]>(p)"
FIRST = {
    "rms": f"{MEAN}  e = Add(v, eps)  s = Sqrt(e)  f = Mul(w, x)  y = Div(f, s)",
    "rms, one over the root": f"{MEAN}  e = Add(v, eps)  s = Sqrt(e)  r = Reciprocal(s)  f = Mul(x, w)  y = Mul(f, r)",
    "layer": """m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
        e = Add(v, eps)  s = Sqrt(e)  f = Mul(w, d)  y = Div(f, s)""",
    "layer with bias": """m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Mul(d, d)  v = ReduceMean<axes = [-1]>(p)
        e = Add(v, eps)  s = Sqrt(e)  f = Mul(d, w)  g = Div(f, s)  y = Add(g, w)""",
}


@pytest.mark.parametrize("name", FIRST)
def test_the_scale_may_come_first(name: str) -> None:
    made = model(f"(float[B,S,8] x) => (float[B,S,8] y) <{SCALE}> {{ {FIRST[name]} }}")
    result = graphopt.optimize(made, target="ort-cpu", strict=True).model
    expected = "SimplifiedLayerNormalization" if "rms" in name else "LayerNormalization"
    assert [node.op_type for node in result.graph.node] == [expected]
    random = np.random.default_rng(3)
    for size in (1e-3, 1.0, 1e4):
        feeds = {"x": (random.standard_normal((2, 3, 8)) * size).astype(np.float32)}
        verdict = judge(made, result, "R", [feeds])
        assert verdict.ok, verdict.reason
        assert verdict.feeds == 1


@pytest.mark.parametrize("scale", ["float[8] z", "float[1,8] z", "float[3,8] z", "float z"])
def test_a_scale_of_another_shape_is_none(scale: str) -> None:
    text = f"(float[2,3,8] x, {scale}) => (float[2,3,8] y) <{SCALE}> {{ {FIRST['rms'].replace('Mul(w', 'Mul(z')} }}"
    (*_, note) = remarks(model(text), "fusion.normalizations/rms_normalization") or ("",)
    assert ("SimplifiedLayerNormalization" in kinds(model(text))) == (scale == "float[8] z")
    assert bool(note) == (scale != "float[8] z")
    if note:
        assert "something else is divided by the root" in note


REASONS = {
    "nothing is added to the variance": f"{MEAN}  s = Sqrt(v)  y = Div(x, s)",
    "root stands Sub": f"{MEAN}  e = Sub(v, eps)  s = Sqrt(e)  y = Div(x, s)",
    "number added to it stands Mul": f"{MEAN}  a = Mul(v, two)  e = Add(a, eps)  s = Sqrt(e)  y = Div(x, s)",
    "not one number that is known": f"{MEAN}  e = Add(v, z)  s = Sqrt(e)  y = Div(x, s)",
    "last axes": "p = Pow(x, two)  v = ReduceMean<axes = [1]>(p)  e = Add(v, eps)  s = Sqrt(e)  y = Div(x, s)",
    "goes into Exp": f"{MEAN}  e = Add(v, eps)  s = Sqrt(e)  h = Exp(s)  y = Div(x, h)",
    "something else is divided": f"{MEAN}  e = Add(v, eps)  s = Sqrt(e)  h = Exp(x)  y = Div(h, s)",
    "read in several places": f"{MEAN}  e = Add(v, eps)  s = Sqrt(e)  h = Div(x, s)  y = Mul(h, s)",
}


@pytest.mark.parametrize("words", REASONS)
def test_why_a_normalization_stays_in_parts(words: str) -> None:
    text = f"(float[2,3,8] x, float z) => (float[2,3,8] y) <{SCALE}> {{ {REASONS[words]} }}"
    (note,) = remarks(model(text), "fusion.normalizations")
    assert words in note


def test_a_norm_or_a_deviation_by_itself_is_no_near_miss() -> None:
    text = f"(float[2,3,8] x) => (float[2,3,1] y) <{SCALE}> {{ {MEAN}  y = Sqrt(v) }}"
    assert remarks(model(text), "fusion.normalizations") == ()


@pytest.mark.parametrize("is_lowered", [False, True])
def test_a_deviation_raised_to_float_gives_float(is_lowered: bool) -> None:
    end = "z = Div(c, s)  y = Cast<to = 10>(z)" if is_lowered else "y = Div(c, s)"
    text = f"""(float16[2,3,8] x) => ({"float16" if is_lowered else "float"}[2,3,8] y) <{SCALE}> {{
        m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  c = Cast<to = 1>(d)  p = Pow(c, two)
        v = ReduceMean<axes = [-1]>(p)  e = Add(v, eps)  s = Sqrt(e)  {end} }}"""
    made = model(text)
    result = graphopt.optimize(made, target="ort-cpu", strict=True)
    assert ("LayerNormalization" in [node.op_type for node in result.model.graph.node]) == is_lowered
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float16)}
    verdict = judge(made, result.model, "R", [feeds])
    assert verdict.ok, verdict.reason
    assert verdict.feeds == 1
    told = any("computed in float and not cast back to float16" in note for note in result.report.notes)
    assert told == (not is_lowered)


def test_trusting_names_is_advised_where_it_helps() -> None:
    text = """(float[B,S,8] x, float[B,S,8] z) => (float[B,S,8] y) <float[8] w = {1,2,3,4,5,6,7,8}> {
        a = Add(x, z)  y = LayerNormalization<axis = -1>(a, w) }"""
    rule, options = "fusion.residual_normalization/skip_layer_normalization", {"target": "ort-cuda"}
    (note,) = remarks(model(text), rule, **options)
    assert "--trust-dim-names" in note
    assert "SkipLayerNormalization" in kinds(model(text), trust_dim_names=True, **options)
    (note,) = remarks(model(text.replace("float[B,S,8] z", "float[B,T,8] z")), rule, **options)
    assert "--trust-dim-names" not in note


# --- names of element types -------------------------------------------------------------------------------------------


def test_element_types_have_names() -> None:
    text = f"{SIDES} => (float[2,2,3,8] y) {{ {TURNED}  p = Softmax<axis = -1>(d)  y = MatMul(p, v) }}"
    (note,) = remarks(model(text.replace("float", "double")), "fusion.attention/attention_apart")
    assert note.endswith("MultiHeadAttention for double")


def test_no_remark_formats_an_element_type_as_a_number() -> None:
    """An element type is an integer to Python, and would read `11`."""
    for path in sorted(Path(passes.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FormattedValue):
                value = node.value
                name = (
                    value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
                )
                assert not name.endswith("dtype"), f"{path.name}:{node.lineno}: use type_name"
