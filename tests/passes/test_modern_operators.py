"""One operator for many: every spelling exporters use is found, nothing that only looks like it is, nothing unasked."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from pass_runs import assert_equal, floats, model_of, operators

from graphopt import optimize

PASSES = ["modern_operators", "modern_attention", "pruning"]


def modern(text: str, opset: int, shape: tuple[int, ...] = (2, 5, 4), *, numeric: str = "R") -> dict[str, int]:
    """The operators of a model when its own opset is asked for; it gives the same numbers."""
    model = model_of(f"g {text}", opset=opset, ir_version=11)
    result = optimize(model, opset=opset, passes=PASSES, strict=True).model
    feeds = [{info.name: floats(*shape) for info in model.graph.input}]
    assert_equal(model, result, feeds, numeric)
    assert operators(optimize(model, strict=True, passes=PASSES).model) == operators(model), "never without being asked"
    return operators(result)


ERF = "<float c = {1.4142135}, float d = {0.70710677}, float one = {1.0}, float half = {0.5}, float two = {2.0}>"


@pytest.mark.parametrize(
    "body",
    [
        "z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)",
        "z = Mul(x, d)  e = Erf(z)  a = Add(one, e)  m = Mul(a, x)  y = Mul(half, m)",
        "z = Mul(d, x)  e = Erf(z)  a = Add(e, one)  h = Mul(x, half)  y = Mul(h, a)",
        "z = Div(x, c)  e = Erf(z)  a = Add(e, one)  h = Mul(a, half)  y = Mul(x, h)",
        "z = Div(x, c)  e = Erf(z)  a = Add(e, one)  h = Div(x, two)  y = Mul(h, a)",
    ],
)
def test_spellings_of_gelu(body: str) -> None:
    text = f"(float[2,5,4] x) => (float[2,5,4] y) {ERF} {{ {body} }}"
    assert modern(text, 20) == {"Gelu": 1}
    assert "Gelu" not in modern(text, 19)


TANH = """<float three = {3.0}, float two = {2.0}, float c = {0.044715}, float r = {0.79788456},
          float one = {1.0}, float half = {0.5}>"""


@pytest.mark.parametrize(
    "inner",
    [
        "p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)",
        "p2 = Mul(x, x)  p = Mul(x, p2)  q = Mul(c, p)  s = Add(q, x)  z = Mul(r, s)",
        "p2 = Mul(x, x)  p = Mul(p2, x)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)",
        "p2 = Mul(x, x)  k = Mul(x, c)  q = Mul(k, p2)  s = Add(x, q)  z = Mul(s, r)",
        "p2 = Pow(x, two)  k = Mul(p2, c)  s = Add(k, one)  w = Mul(x, r)  z = Mul(w, s)",
        "k = Mul(x, c)  p2 = Mul(k, x)  s = Add(one, p2)  w = Mul(r, x)  z = Mul(s, w)",
    ],
)
@pytest.mark.parametrize("outer", ["h = Mul(x, half)  y = Mul(h, a)", "h = Mul(x, a)  y = Mul(h, half)"])
def test_spellings_of_its_approximation(inner: str, outer: str) -> None:
    text = f"(float[2,5,4] x) => (float[2,5,4] y) {TANH} {{ {inner} t = Tanh(z)  a = Add(t, one)  {outer} }}"
    assert modern(text, 20) == {"Gelu": 1}


NORM = """<int64[1] axes = {-1}, float two = {2.0}, float one = {1.0}, float eps = {0.00001},
          float[4] w = {1.0,2.0,0.5,1.5}, float[1,1,4] c = {0.0,0.1,0.2,0.3}>"""
CENTRED = """m = ReduceMean(x, axes)  d = Sub(x, m)  {square}  v = ReduceMean(p, axes)
             e = Add(v, eps)  s = Sqrt(e)  {quotient}"""


@pytest.mark.parametrize("square", ["p = Pow(d, two)", "p = Mul(d, d)"])
@pytest.mark.parametrize(
    "quotient", ["n = Div(d, s)", "r = Reciprocal(s)  n = Mul(d, r)", "r = Div(one, s)  n = Mul(r, d)"]
)
@pytest.mark.parametrize(
    "rest",
    [
        "f = Mul(n, w)  y = Add(f, c)",
        "f = Mul(w, n)  y = Add(c, f)",
        "y = Mul(n, w)",
        "y = Add(n, c)",
        "y = Identity(n)",
    ],
)
def test_spellings_of_layer_normalization(square: str, quotient: str, rest: str) -> None:
    body = CENTRED.format(square=square, quotient=quotient)
    found = modern(f"(float[2,5,4] x) => (float[2,5,4] y) {NORM} {{ {body} {rest} }}", 18)
    found.pop("Identity", None)
    assert found == {"LayerNormalization": 1}


def test_layer_normalization_as_tensorflow_spells_it() -> None:
    body = """m = ReduceMean(x, axes)  d = Sub(x, m)  p = Mul(d, d)  v = ReduceMean(p, axes)
              e = Add(v, eps)  s = Sqrt(e)  r = Reciprocal(s)  g = Mul(r, w)
              a = Mul(x, g)  b = Mul(m, g)  h = Sub(c, b)  y = Add(a, h)"""
    assert modern(f"(float[2,5,4] x) => (float[2,5,4] y) {NORM} {{ {body} }}", 18) == {"LayerNormalization": 1}


@pytest.mark.parametrize(
    "quotient", ["n = Div(x, s)", "r = Reciprocal(s)  n = Mul(x, r)", "r = Div(one, s)  n = Mul(r, x)"]
)
@pytest.mark.parametrize("rest", ["y = Mul(n, w)", "y = Mul(w, n)", "y = Relu(n)"])
def test_spellings_of_rms_normalization(quotient: str, rest: str) -> None:
    body = f"p = Pow(x, two)  v = ReduceMean(p, axes)  e = Add(v, eps)  s = Sqrt(e)  {quotient}  {rest}"
    found = modern(f"(float[2,5,4] x) => (float[2,5,4] y) {NORM} {{ {body} }}", 23)
    found.pop("Relu", None)
    assert found == {"RMSNormalization": 1}


def test_half_precision_around_a_normalization_in_single() -> None:
    text = """(float16[2,5,4] x) => (float16[2,5,4] y)
              <int64[1] axes = {-1}, float eps = {0.00001}, float16[4] w = {15360,16384,14336,15872}> {
        q = Cast<to = 1>(x)
        p = Mul(q, q)  v = ReduceMean(p, axes)  e = Add(v, eps)  s = Sqrt(e)  n = Div(q, s)
        h = Cast<to = 10>(n)
        y = Mul(w, h)
    }"""
    model = model_of(f"g {text}", opset=23, ir_version=11)
    result = optimize(model, opset=23, passes=PASSES, strict=True).model
    assert operators(result) == {"RMSNormalization": 1}
    assert_equal(model, result, [{"x": floats(2, 5, 4).astype(np.float16)}], "R")


@pytest.mark.parametrize(
    ("shape", "size"), [("float[2,5,1]", 1), ("float[2,5,n]", 4)], ids=["one element", "unknown size"]
)
def test_what_the_kernel_refuses_stays(shape: str, size: int) -> None:
    body = CENTRED.format(square="p = Mul(d, d)", quotient="y = Div(d, s)")
    found = modern(f"({shape} x) => ({shape} y) {NORM} {{ {body} }}", 18, (2, 5, size))
    assert "LayerNormalization" not in found


ATTENTION = """(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y)
    <float r = {0.5}, float two = {2.0}, float[3,3] m = {0,-9,-9,0,0,-9,0,0,0}>"""


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  p = Softmax(s)  y = MatMul(p, v)",
        """t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  c = Div(s, two)  a = Add(c, m)
           p = Softmax(a)  y = MatMul(p, v)""",
        """t = Transpose<perm = [0,1,3,2]>(k)  c = Mul(q, r)  u = Mul(t, r)  s = MatMul(c, u)  a = Add(m, s)
           p = Softmax<axis = 3>(a)  y = MatMul(p, v)""",
    ],
)
def test_spellings_of_attention(body: str) -> None:
    assert modern(f"{ATTENTION} {{ {body} }}", 23, (1, 2, 3, 4)) == {"Attention": 1}


def test_attention_that_may_be_empty_is_left_to_the_aggressive_form() -> None:
    text = """(float[n,2,3,4] q) => (float[n,2,3,4] y) {
        t = Transpose<perm = [0,1,3,2]>(q)  s = MatMul(q, t)  p = Softmax(s)  y = MatMul(p, q)
    }"""
    model = model_of(f"g {text}", opset=23, ir_version=11)

    def found(**options: list[str]) -> bool:
        return "Attention" in operators(optimize(model, opset=23, passes=PASSES, **options).model)  # type: ignore[arg-type]

    assert not found()
    assert found(aggressive=["modern_attention"])


def _rotary(cut: str, heads: int = 2) -> ModelProto:
    return model_of(
        f"""g (float[2,{heads},3,4] x, float[1,3,2] f) => (float[2,{heads},3,4] y)
        <int64[1] zero = {{0}}, int64[1] half = {{2}}, int64[1] end = {{99}}, int64[1] last = {{-1}},
         int64[1] one = {{1}}, int64[2] parts = {{2, 2}}, float k = {{1.5}}> {{
            e = Concat<axis = -1>(f, f)  c3 = Cos(e)  s3 = Sin(e)  c2 = Mul(c3, k)  s2 = Mul(s3, k)
            c = Unsqueeze(c2, one)  s = Unsqueeze(s2, one)  {cut}
            n = Neg(b)  r = Concat<axis = 3>(n, a)  p = Mul(x, c)  q = Mul(r, s)  y = Add(p, q)
        }}""",
        opset=23,
        ir_version=11,
    )


@pytest.mark.parametrize(
    "cut", ["a = Slice(x, zero, half, last)  b = Slice(x, half, end, last)", "a, b = Split<axis = -1>(x, parts)"]
)
def test_spellings_of_rotary_embeddings(cut: str) -> None:
    model = _rotary(cut)
    result = optimize(model, opset=23, passes=PASSES, strict=True).model
    assert operators(result)["RotaryEmbedding"] == 1
    assert "Neg" not in operators(result)
    assert_equal(model, result, [{"x": floats(2, 2, 3, 4), "f": floats(1, 3, 2)}], "R")


def test_halves_in_the_other_order_are_no_rotary_embedding() -> None:
    model = _rotary("b, a = Split<axis = -1>(x, parts)")
    assert "RotaryEmbedding" not in operators(optimize(model, opset=23, passes=PASSES, strict=True).model)
