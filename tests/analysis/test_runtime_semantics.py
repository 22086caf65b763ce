"""Where the runtime's kernels differ from plain arithmetic: claims hold, and optimized models compute the same."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import numpy as np
import pytest
from inference_checks import compare, exposed, inferred, session
from onnx import ModelProto

from graphopt import optimize
from graphopt.analysis.shapes.contents import fitted
from graphopt.ir import Symbol
from graphopt.ir.symbol import floordiv, magnitude, maximum, minimum, opaque
from graphopt.onnxio import parse_text
from graphopt.tensors import DType

Sizes: TypeAlias = tuple[dict[str, tuple[int, ...]], ...]
"""Shapes of the inputs, for each run."""


def _x(*shapes: tuple[int, ...]) -> Sizes:
    return tuple({"x": shape} for shape in shapes)


# fmt: off
CASES: dict[str, tuple[str, Sizes]] = {
    "int32 product wraps": ("""(float[N] x) => (int32[1] y, bool[1] z) <int32[1] k = {1073741824}, int32[1] c = {0}> {
        s = Shape(x)  i = Cast<to = 6>(s)  y = Mul(i, k)  z = Less(y, c) }""", _x((1,), (2,), (3,), (4,))),
    "int64 product wraps": ("""(float[N] x) => (int64[1] y, bool[1] z)
        <int64[1] k = {4611686018427387904}, int64[1] c = {0}> {
        s = Shape(x)  y = Mul(s, k)  z = Less(y, c) }""", _x((1,), (2,), (3,), (4,))),
    "int64 sum wraps": ("""(float[N] x) => (bool[1] z) <int64[1] k = {9223372036854775807}, int64[1] c = {0}> {
        s = Shape(x)  y = Add(s, k)  z = Less(y, c) }""", _x((0,), (1,))),
    "int64 hash wraps": ("""(float[N] x) => (bool[1] z)
        <int64[1] k = {1664525}, int64[1] a = {1013904223}, int64[1] c = {0}> {
        s = Shape(x)  p = Mul(s, k)  q = Add(p, a)  t = Mul(q, k)  u = Add(t, a)  v = Mul(u, k)  w = Add(v, a)
        z = Less(w, c) }""", _x((1,), (2,), (7,), (100,))),
    "int32 hash wraps": ("""(float[N] x) => (bool[1] z)
        <int32[1] k = {1664525}, int32[1] a = {1013904223}, int32[1] c = {0}> {
        s = Shape(x)  i = Cast<to = 6>(s)  p = Mul(i, k)  q = Add(p, a)  t = Mul(q, k)  u = Add(t, a)
        z = Less(u, c) }""", _x((1,), (2,), (7,), (100,), (1000,))),
    "int32 square wraps": ("""(bool[N] x) => (bool[1] z) <int32[1] c = {0}> {
        s = Shape(x)  i = Cast<to = 6>(s)  y = Mul(i, i)  z = Less(y, c) }""", _x((2,), (46341,), (65536,))),
    "int64 power wraps": ("""(bool[N] x) => (bool[1] z) <int64[1] c = {0}> {
        s = Shape(x)  a = Mul(s, s)  b = Mul(a, a)  y = Mul(b, b)  z = Less(y, c) }""", _x((2,), (235,), (256,))),
    "double is rounded": ("""(float[N] x) => (bool[1] z)
        <double[1] k = {4503599627370497.0}, double[1] c = {4503599627370497.0}> {
        s = Shape(x)  d = Cast<to = 11>(s)  y = Mul(d, k)  w = Sub(y, c)  v = Sub(w, c)  u = Sub(v, c)
        e = Cast<to = 7>(u)  zero = Cast<to = 7>(d)  t = Sub(zero, zero)  z = Equal(e, t) }""", _x((2,), (3,))),
    "running sum wraps": ("""(int32[2] x) => (int32[2] y) <int32[2] a = {2147483647, 1}, int64 ax = {0}> {
        p = CumSum(a, ax)  y = Add(x, p) }""", _x((2,))),
    "running sum of dims wraps": ("""(float[N] x) => (int64[2] y) <int64[1] k = {9223372036854775807}, int64 ax = {0}> {
        s = Shape(x)  v = Concat<axis = 0>(k, s)  y = CumSum(v, ax) }""", _x((2,))),
    "single precision ends": ("""(float[2] x) => (float[2] y) <float[1] a = {1e30}> {
        p = Mul(a, a)  y = Add(x, p) }""", _x((2,))),
    "single precision is rounded once": ("""(int64[1] x) => (int64[1] y) <int64[1] a = {1152921573326323713}> {
        f = Cast<to = 1>(a)  p = Cast<to = 7>(f)  y = Add(x, p) }""", _x((1,))),
    "integer power": ("""(int64[1] x) => (int64[1] y) <int64[1] a = {101}, int64[1] b = {8}> {
        p = Pow(a, b)  y = Add(x, p) }""", _x((1,))),
    "integer power of a dim": ("""(bool[1001] x) => (int64[1] y) <int64[1] b = {6}> {
        s = Shape(x)  y = Pow(s, b) }""", _x((1001,))),
    "integer power of a free dim": ("""(bool[N] x) => (bool[1] y) <int64[1] b = {8}, int64[1] c = {0}> {
        s = Shape(x)  p = Pow(s, b)  y = Less(p, c) }""", _x((3,), (300,))),
    "product in double": ("""(int64[1] x) => (int64[1] y) <int64[2] a = {94906267, 94906269}, int64[1] ax = {0}> {
        p = ReduceProd(a, ax)  y = Add(x, p) }""", _x((1,))),
    "int32 product saturates": ("""(int32[1] x) => (int32[1] y) <int32[2] a = {65536, 65536}, int64[1] ax = {0}> {
        p = ReduceProd(a, ax)  y = Add(x, p) }""", _x((1,))),
    "sum in double": ("""(int64[1] x) => (int64[1] y) <int64[2] a = {9007199254740993, 1}, int64[1] ax = {0}> {
        p = ReduceSum(a, ax)  y = Add(x, p) }""", _x((1,))),
    "remainder in double": ("""(int64[1] x) => (int64[1] y) <int64[1] a = {9007199254740993}, int64[1] b = {1000}> {
        p = Mod<fmod = 1>(a, b)  y = Add(x, p) }""", _x((1,))),
    "sign of long integers": ("""(int64[3] x) => (int64[3] y) <int64[3] a = {2147483648, -2147483649, 7}> {
        p = Sign(a)  y = Add(x, p) }""", _x((3,))),
    "sign of a multiple": ("""(float[N] x) => (int64[1] y) <int64[1] k = {2147483648}> {
        s = Shape(x)  p = Mul(s, k)  q = Add(p, k)  y = Sign(q) }""", _x((0,), (1,))),
    "extremes of long integers": ("""(int64[2] x) => (int64[2] y) <int64[2] a = {2147483648, 5}, int64[2] b = {0, 9}> {
        p = Min(a, b)  q = Max(a, b)  r = Add(p, q)  w = Sub(p, q)  v = Mul(r, w)  y = Add(x, v) }""", _x((2,))),
    "slice from before the first": ("""(float[2, 3, 4] x) => (int64[N] y)
        <int64[1] s = {-10}, int64[1] e = {-100}, int64[1] a = {0}, int64[1] st = {-1}> {
        h = Shape(x)  y = Slice(h, s, e, a, st) }""", _x((2, 3, 4))),
    "rows from before the first": ("""(float[N, 2] x) => (int64[2] y)
        <int64[1] s = {-10}, int64[1] e = {-100}, int64[1] a = {0}, int64[1] st = {-1}> {
        h = Slice(x, s, e, a, st)  y = Shape(h) }""", _x((0, 2), (1, 2), (3, 2), (12, 2))),
    "slopes larger than the operand": ("""(float[1, 3] x, float[2, 3] s) => (int64[2] y) {
        p = PRelu(x, s)  y = Shape(p) }""", ({"x": (1, 3), "s": (2, 3)},)),
    "reduced axis of 1": ("""(float[N, 1] x) => (int64[B] y) <int64[1] a = {-1}> {
        r = ReduceSum<keepdims = 1>(x, a)  y = Shape(r) }""", _x((0, 1), (2, 1))),
    "no axes and no rank": ("""(float[N] x, int64[R] t) => (int64[B] y) {
        w = Shape(x)  q = Concat<axis = 0>(w, w)  z = Expand(x, q)
        r = ReduceSum<keepdims = 0, noop_with_empty_axes = 1>(z)  y = Shape(r) }""", ({"x": (2,), "t": (2,)},)),
}
# fmt: on
for _op in ("ReduceSum", "ReduceMean", "ReduceMax"):
    for _keep in (0, 1):
        for _axes in ("-1", "1", "-1, 0", "0, -2", "-2", "0, 1"):
            for _dims in ("N, 3", "N, M", "0, 3"):
                _count = _axes.count(",") + 1
                CASES[f"{_op} {_keep} of {_dims} over {_axes}"] = (
                    f"(float[{_dims}] x) => (int64[B] y) <int64[{_count}] a = {{{_axes}}}> {{"
                    f" r = {_op}<keepdims = {_keep}>(x, a)  y = Shape(r) }}",
                    _x((0, 3)) if _dims[0] == "0" else _x((0, 3), (2, 3)),
                )
for _keep in (0, 1):
    CASES[f"ArgMax {_keep}"] = (
        f"(float[N, 3] x) => (int64[B] y) {{ r = ArgMax<keepdims = {_keep}, axis = -1>(x)  y = Shape(r) }}",
        _x((0, 3), (2, 3)),
    )
for _op in ("MaxPool", "AveragePool", "LpPool"):
    for _ceil in (0, 1):
        CASES[f"dilated {_op} {_ceil}"] = (
            f"(float[1, 1, 8] x) => (int64[3] y) {{ p = {_op}<kernel_shape = [3], dilations = [2],"
            f' ceil_mode = {_ceil}, auto_pad = "SAME_UPPER">(x)  y = Shape(p) }}',
            _x((1, 1, 8)),
        )
for _kernel in (1, 2, 3):
    for _pad in ("SAME_UPPER", "SAME_LOWER"):
        CASES[f"ConvTranspose {_kernel} {_pad}"] = (
            f"(float[1, 1, 7] x) => (int64[3] y) <float[1, 1, {_kernel}] w = {{{', '.join(['2'] * _kernel)}}}> {{"
            f' p = ConvTranspose<kernel_shape = [{_kernel}], strides = [2], auto_pad = "{_pad}">(x, w)'
            "  y = Shape(p) }",
            _x((1, 1, 7)),
        )


def _feeds(model: ModelProto, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    types = {value.name: DType(value.type.tensor_type.elem_type) for value in model.graph.input}
    return {name: np.ones(shapes[name], dtype.numpy) for name, dtype in types.items()}


@pytest.mark.parametrize("name", CASES)
def test_claims_hold_and_results_stay(name: str) -> None:
    text, sizes = CASES[name]
    model = parse_text(text, {"": 21})
    result = optimize(model, level="exact", strict=True).model
    graph, runtime = inferred(model), session(exposed(model))
    for shapes in sizes:
        feeds = _feeds(model, shapes)
        outcome = compare(graph, runtime, feeds)
        assert not outcome.failed
        assert not outcome.lies, (shapes, outcome.lies)
        before, after = (session(each).run(None, feeds) for each in (model, result))
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(old, new, err_msg=f"{name} {shapes}")
            assert old.dtype == new.dtype


@pytest.mark.parametrize("seed", range(6))
def test_slices_of_shapes(seed: int) -> None:
    chance = random.Random(seed)
    places = (-(2**63), -(2**31), -9, -4, -3, -2, -1, 0, 1, 2, 3, 4, 9, 2**31 - 1, 2**63 - 1)
    told = 0
    for _ in range(30):
        start, end, step = chance.choice(places), chance.choice(places), chance.choice((-3, -2, -1, 1, 2, 3))
        model = parse_text(
            f"(float[2, 3, N] x) => (int64[A] y, float[B, 3, N] z, float[2, 3, C] w)"
            f" <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] b = {{2}},"
            f" int64[1] k = {{{step}}}> {{"
            " h = Shape(x)  y = Slice(h, s, e, a, k)  z = Slice(x, s, e, a, k)  w = Slice(x, s, e, b, k) }",
            {"": 21},
        )
        graph, runtime = inferred(model), session(exposed(model))
        for size in (0, 1, 3):
            outcome = compare(graph, runtime, {"x": np.ones((2, 3, size), np.float32)})
            assert not outcome.lies, (start, end, step, size, outcome.lies)
            told += outcome.dims
    assert told


def test_magnitudes_count_the_dims_of_one_input_together() -> None:
    batch, length, other = Symbol(("x", 0)), Symbol(("x", 1)), Symbol(("y", 0))
    assert magnitude(-7, 100) == 7
    assert magnitude(3 * batch - 2, 100) == 302
    assert magnitude(batch * length, 100) == 100
    assert magnitude(batch * other, 100) == 100**2
    assert magnitude(batch * batch * length, 100) == 100**2
    assert magnitude(batch - 7 * (batch // 7), 100) == 6
    assert magnitude(floordiv(batch + 6, 7) * floordiv(length + 6, 7), 100) == 100 + 100 + 100 + 1
    assert magnitude(minimum(batch * 1000, 512), 100) == 512
    assert magnitude(maximum(batch * 1000, other), 100) == 1000 * 100 + 100
    assert magnitude(opaque("anything", batch), 100) is None
    assert magnitude(opaque("dim", batch, nonnegative=True), 100) == 100


def test_arithmetic_that_may_wrap_is_unknown() -> None:
    size = Symbol(("x", 0))
    assert fitted(size * 2**10, DType.INT32) is size * 2**10
    assert fitted(size * 2**12, DType.INT32) is None
    assert fitted(size * 2**32, DType.INT64) is size * 2**32
    assert fitted(size * 2**34, DType.INT64) is None
    assert fitted(size * size * 12, DType.INT64) is None
    assert fitted(size * 2**24, DType.DOUBLE) is None
    assert fitted(2**130, DType.FLOAT) is None
