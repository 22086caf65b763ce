"""Activations in parts: every spelling and element type that is found, and what only looks like one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, parser

import graphopt
from graphopt.runtime import judge


def model_of(
    body: str, dtype: str = "float", shape: str = "2,5,4", opset: int = 17, **constants: float | list[float]
) -> ModelProto:
    """A model of one input `x`, one output `y` and constants of the same element type."""
    types = f"{dtype}[{shape}]" if shape else dtype
    head = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{head}\ng ({types} x) => ({types} y) {{ {body} }}")
    kind = model.graph.input[0].type.tensor_type.elem_type
    for name, value in constants.items():
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
        model.graph.initializer.append(helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
    return model


def fused(model: ModelProto, target: str = "ort-cpu") -> tuple[ModelProto, dict[str, int], list[str]]:
    result = graphopt.optimize(model, target=target, strict=True)
    found = Counter(f"{node.domain.replace('com.microsoft', 'ms')}:{node.op_type}" for node in result.model.graph.node)
    return result.model, dict(found), result.report.notes


def hold(before: ModelProto, after: ModelProto, *shape: int) -> None:
    kind = np.float16 if before.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
    random = np.random.default_rng(0)
    feeds: list[dict[str, Any]] = [
        {"x": random.standard_normal(shape).astype(kind) * kind(scale)} for scale in (1, 1e-3, 30)
    ]
    verdict = judge(before, after, "R", feeds)
    assert verdict.ok, verdict.reason
    assert verdict.feeds == len(feeds)


ERF = {"c": 2**0.5, "d": 0.5**0.5, "one": 1.0, "half": 0.5, "two": 2.0}
TANH = {"three": 3.0, "two": 2.0, "c": 0.044715, "r": (2 / np.pi) ** 0.5, "one": 1.0, "half": 0.5}


@pytest.mark.parametrize("dtype", ["float", "float16"])
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
def test_spellings_of_gelu(body: str, dtype: str) -> None:
    for opset, wanted in ((13, "ms:Gelu"), (20, ":Gelu")):
        model = model_of(body, dtype, opset=opset, **ERF)
        result, found, _ = fused(model)
        assert found == {wanted: 1}
        hold(model, result, 2, 5, 4)


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    "inner",
    [
        "p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)",
        "p2 = Mul(x, x)  p = Mul(x, p2)  q = Mul(c, p)  s = Add(q, x)  z = Mul(r, s)",
        "p2 = Mul(x, x)  k = Mul(x, c)  q = Mul(k, p2)  s = Add(x, q)  z = Mul(s, r)",
        "p2 = Pow(x, two)  k = Mul(p2, c)  s = Add(k, one)  w = Mul(x, r)  z = Mul(w, s)",
    ],
)
@pytest.mark.parametrize("outer", ["h = Mul(x, half)  y = Mul(h, a)", "h = Mul(x, a)  y = Mul(h, half)"])
def test_spellings_of_its_approximation(inner: str, outer: str, dtype: str) -> None:
    model = model_of(f"{inner}  t = Tanh(z)  a = Add(t, one)  {outer}", dtype, **TANH)
    result, found, _ = fused(model)
    assert found == {"ms:FastGelu": 1}
    hold(model, result, 2, 5, 4)


def test_bfloat16_rounds_the_numbers_of_its_formula() -> None:
    """Its eight bits are farther from them than any other spelling may be; the CPU cannot run it."""
    inner = "p = Pow(x, three)  q = Mul(p, c)  s = Add(x, q)  z = Mul(s, r)  t = Tanh(z)  a = Add(t, one)"
    tanh = model_of(f"{inner}  h = Mul(x, half)  y = Mul(h, a)", "bfloat16", **TANH)
    assert fused(tanh, "ort-cuda")[1] == {"ms:FastGelu": 1}
    erf = model_of("z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  y = Mul(m, half)", "bfloat16", **ERF)
    assert fused(erf, "ort-cuda")[1] == {"ms:Gelu": 1}
    assert "ms:Gelu" not in fused(erf, "ort-cpu")[1]
    assert any("no kernel of Gelu for bfloat16" in note for note in fused(erf, "ort-cpu")[2])
    rounded = {**TANH, "c": 0.044677734375, "r": 0.796875}
    single = model_of(f"{inner}  h = Mul(x, half)  y = Mul(h, a)", **rounded)
    assert "ms:FastGelu" not in fused(single)[1], "in single precision these are other numbers"


@pytest.mark.parametrize("factor", [1.702, -1.0, 0.25, 0.0])
def test_any_factor_of_a_sigmoid_is_an_attribute(factor: float) -> None:
    model = model_of("z = Mul(c, x)  s = Sigmoid(z)  y = Mul(s, x)", c=factor)
    result, found, _ = fused(model)
    assert set(found) <= {"ms:QuickGelu", ":Mul"}, "a factor of zero is one half of x"
    hold(model, result, 2, 5, 4)


@pytest.mark.parametrize("factors", [[1.0, 1.5, 2.0, 1.702], [float("inf")], [float("nan")]])
def test_what_is_not_one_number_stays(factors: list[float]) -> None:
    model = model_of("z = Mul(x, c)  s = Sigmoid(z)  y = Mul(x, s)", c=factors)
    assert "ms:QuickGelu" not in fused(model)[1]


def test_silu_in_half_precision_and_of_a_single_number() -> None:
    for dtype, shape in (("float16", (2, 5, 4)), ("float", ())):
        model = model_of("s = Sigmoid(x)  y = Mul(x, s)", dtype, ",".join(map(str, shape)))
        result, found, _ = fused(model)
        assert found == {"ms:QuickGelu": 1}
        hold(model, result, *shape)


@pytest.mark.parametrize(
    ("activation", "on_cpu", "on_cuda"),
    [
        ("y = com.microsoft.Gelu(s)", {":Add": 1, "ms:Gelu": 1}, {"ms:BiasGelu": 1}),
        ("y = Gelu(s)", {":Add": 1, ":Gelu": 1}, {"ms:BiasGelu": 1}),
        ("y = com.microsoft.FastGelu(s)", {"ms:FastGelu": 1}, {"ms:FastGelu": 1}),
        ('y = Gelu<approximate = "tanh">(s)', {"ms:FastGelu": 1}, {"ms:FastGelu": 1}),
        ("y = com.microsoft.QuickGelu<alpha = 1.0>(s)", {":Add": 1, "ms:QuickGelu": 1}, {":Add": 1, "ms:QuickGelu": 1}),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_biases_go_where_a_kernel_reads_them(
    activation: str, on_cpu: dict[str, int], on_cuda: dict[str, int], dtype: str
) -> None:
    model = model_of(f"s = Add(b, x)  {activation}", dtype, opset=20, b=[0.5, -1.0, 2.0, 0.25])
    for target, wanted in (("ort-cpu", on_cpu), ("ort-cuda", on_cuda)):
        result, found, _ = fused(model, target)
        assert found == wanted
        hold(model, result, 2, 5, 4)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_biases_of_empty_tensors(rows: int) -> None:
    model = model_of("s = Add(x, b)  y = com.microsoft.Gelu(s)", shape="N,4", b=[0.5, -1.0, 2.0, 0.25])
    result, found, _ = fused(model, "ort-cuda")
    assert found == {"ms:BiasGelu": 1}
    hold(model, result, rows, 4)


def test_a_part_that_is_read_elsewhere_is_named_as_the_reason() -> None:
    model = model_of(
        "z = Div(x, c)  e = Erf(z)  a = Add(e, one)  m = Mul(x, a)  h = Mul(m, half)  y = Add(h, z)", **ERF
    )
    _, found, notes = fused(model)
    assert "ms:Gelu" not in found
    assert any("a part of it is read elsewhere" in note for note in notes)
