"""What the runtime's own operators are written to compute, against its kernels or against standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from graphopt.errors import ExecutionError
from graphopt.onnxio import parse_text
from graphopt.runtime.double import in_double
from graphopt.runtime.session import JUDGE, Session
from graphopt.runtime.truth import Reference

OPSETS = {"": 21, "com.microsoft": 1}
FLOAT, INT32, INT64 = 1, 6, 7


def model(text: str) -> ModelProto:
    return parse_text(text, OPSETS)


def feeds_of(proto: ModelProto, high: int = 2) -> dict[str, Any]:
    """Random floats; small whole numbers, by themselves ones."""
    rng = np.random.default_rng(2)
    feeds: dict[str, Any] = {}
    for item in proto.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        if item.type.tensor_type.elem_type == FLOAT:
            feeds[item.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            dtype = {INT32: np.int32, INT64: np.int64}[item.type.tensor_type.elem_type]
            feeds[item.name] = rng.integers(1, high, shape).astype(dtype)
    return feeds


def exactly(text: str, feeds: dict[str, Any]) -> dict[str, Any]:
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    return Reference(in_double(model(text).SerializeToString())).run(wide)


def same(got: dict[str, Any], exact: dict[str, Any]) -> None:
    for output, value in got.items():
        if value.dtype == np.float32:
            assert exact[output].dtype == np.float64
            np.testing.assert_allclose(value, exact[output], rtol=4e-6, atol=4e-6)
        else:
            np.testing.assert_array_equal(value, exact[output])


NORMALIZED = "float[2,3,8] x, float[2,3,8] r, float[8] w, float[8] c, float[8] b"
SKIP = "com.microsoft.SkipLayerNormalization<epsilon = 0.001>"
RMS = "com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>"
ROWS = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v, float[24] c, float[2,2,3,5] m"
PAST = "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,4,4] pk, float[2,2,4,4] pv"
LAYERS = "float[2,3,4] x, float[4,24] w, float[24] c, int32[2,5] m, float[2,2,2,2,4] p"
MULTI = "com.microsoft.MultiHeadAttention"
ATTENTION = "com.microsoft.Attention"
ROTARY = "com.microsoft.RotaryEmbedding"
TABLES = "float[9,4] c, float[9,4] s"
WIDE = TABLES.replace(",4]", ",8]")
PRODUCT = "com.microsoft.FusedMatMul"
EMBED = "com.microsoft.EmbedLayerNormalization<epsilon = 0.001>"
EMBEDDED = "float[9,8] t, float[9,8] u, float[9,8] z, float[8] w, float[8] b"
GROUPED = "com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2"
PROMPT = "float[2,3,32] q, float[2,3,16] k, float[2,3,16] v"
CACHED = "float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, float[1,2,4,8] pk, float[1,2,4,8] pv"
STEP = "float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,4,8] pk, float[2,2,4,8] pv"
BOTH = "float[1,2,7,8] kk, float[1,2,7,8] vv"
LAST = "<int32[2] l = {2,2}, int32[1] t = {3}>"
OPERATORS = {
    "a sum normalized": f"({NORMALIZED}) => (float[2,3,8] y, float[2,3,8] s) {{ y, , , s = {SKIP}(x, r, w, c, b) }}",
    "without shift": f"({NORMALIZED}) => (float[2,3,8] y) {{ y = {SKIP}(x, r, w) }}",
    "mean square": f"({NORMALIZED}) => (float[2,3,8] y, float[2,3,8] s) {{ y, , , s = {RMS}(x, r, w, b) }}",
    "mean square alone": "(float[2,3,8] x, float[8] w) => (float[2,3,8] y) { y = SimplifiedLayerNormalization(x, w) }",
    "mean square of two axes": "(float[2,3,8] x, float[3,8] w) => (float[2,3,8] y)"
    " { y = SimplifiedLayerNormalization<axis = 1, epsilon = 0.01>(x, w) }",
    "gelu": "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.Gelu(x) }",
    "biased gelu": "(float[2,8] x, float[8] b) => (float[2,8] y) { y = com.microsoft.BiasGelu(x, b) }",
    "fast gelu": "(float[2,8] x, float[8] b) => (float[2,8] y) { y = com.microsoft.FastGelu(x, b) }",
    "quick gelu": "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.QuickGelu<alpha = 1.5>(x) }",
    "product": f"(float[2,3,4] x, float[2,4,5] w) => (float[2,3,5] y) {{ y = {PRODUCT}<alpha = 0.3>(x, w) }}",
    "product, turned": f"(float[2,4,3] x, float[2,5,4] w) => (float[2,3,5] y)"
    f" {{ y = {PRODUCT}<transA = 1, transB = 1>(x, w) }}",
    "heads": f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2>(q, k, v, c, , m) }}",
    "heads, scaled": f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2, scale = 0.3>(q, k, v) }}",
    "heads, cached": f"({PAST}) => (float[2,3,8] y, float[2,2,7,4] kk, float[2,2,7,4] vv)"
    f" {{ y, kk, vv = {MULTI}<num_heads = 2, unidirectional = 1>(q, k, v, , , , pk, pv) }}",
    "layers": f"({LAYERS}) => (float[2,3,8] y) {{ y = {ATTENTION}<num_heads = 2>(x, w, c) }}",
    "layers, cached": f"({LAYERS}) => (float[2,3,8] y, float[2,2,2,5,4] z)"
    f" {{ y, z = {ATTENTION}<num_heads = 2, unidirectional = 1>(x, w, c, m, p) }}",
    "turned rows": f"(float[2,3,16] x, int64[2,3] p, {TABLES}) => (float[2,3,16] y) {{ y = {ROTARY}(x, p, c, s) }}",
    "turned from a place": f"(float[2,3,16] x, int64[1] p, {TABLES}) => (float[2,3,16] y)"
    f" {{ y = {ROTARY}(x, p, c, s) }}",
    "turned heads": f"(float[2,3,2,8] x, int64[2,2] p, {TABLES}) => (float[2,3,2,8] y)"
    f" {{ y = {ROTARY}<interleaved = 1>(x, p, c, s) }}",
    "turned in part": f"(float[2,3,24] x, int64[2,3] p, {TABLES}) => (float[2,3,24] y)"
    f" {{ y = {ROTARY}<num_heads = 2, rotary_embedding_dim = 8>(x, p, c, s) }}",
    "turned heads in part": f"(float[2,2,3,12] x, int64[2,3] p, {TABLES}) => (float[2,2,3,12] y)"
    f" {{ y = {ROTARY}<num_heads = 2, rotary_embedding_dim = 8, interleaved = 1>(x, p, c, s) }}",
    "embedded": f"(int32[2,3] i, int32[2,3] k, {EMBEDDED}, int32[2,3] m)"
    f" => (float[2,3,8] y, int32[2] n, float[2,3,8] e) {{ y, n, e = {EMBED}(i, k, t, u, z, w, b, m) }}",
    "embedded at places": f"(int32[2,3] i, int32[1,3] p, {EMBEDDED})"
    f" => (float[2,3,8] y, int32[2] n) {{ y, n = {EMBED}(i, , t, u, , w, b, , p) }}",
    "shared keys": f"({PROMPT}) => (float[2,3,32] y) {LAST} {{ y = {GROUPED}>(q, k, v, , , l, t) }}",
    "shared keys, packed": f"(float[2,3,64] x) => (float[2,3,32] y) {LAST} {{ y = {GROUPED}>(x, , , , , l, t) }}",
    "shared keys, all seen": f"({PROMPT}, float[2,1,3,3] m) => (float[2,3,32] y) {LAST}"
    f" {{ y = {GROUPED}, causal = 0, scale = 0.3>(q, k, v, , , l, t, , , , m) }}",
    "shared keys in a window": f"({PROMPT}) => (float[2,3,32] y) {LAST}"
    f" {{ y = {GROUPED}, local_window_size = 2>(q, k, v, , , l, t) }}",
    "shared keys, cached": f"({CACHED}, float[1,4,3,7] m) => (float[1,3,32] y, {BOTH})"
    f" <int32[1] l = {{6}}, int32[1] t = {{7}}> {{ y, kk, vv = {GROUPED}>(q, k, v, pk, pv, l, t, , , , m) }}",
    "shared keys, bounded": f"({CACHED}, float[1,1,3,7] m) => (float[1,3,32] y, {BOTH})"
    f" <int32[1] l = {{6}}, int32[1] t = {{7}}>"
    f" {{ y, kk, vv = {GROUPED}, softcap = 0.5>(q, k, v, pk, pv, l, t, , , , m) }}",
    # The kernel turns heads of 16 elements and multiples of it.
    "shared keys, turned": f"({CACHED.replace('32]', '64]').replace(',16]', ',32]').replace('4,8]', '4,16]')}, {WIDE})"
    f" => (float[1,3,64] y, {BOTH.replace(',8]', ',16]')}) <int32[1] l = {{6}}, int32[1] t = {{7}}>"
    f" {{ y, kk, vv = {GROUPED}, do_rotary = 1, rotary_interleaved = 1>(q, k, v, pk, pv, l, t, c, s) }}",
    "shared keys, one step": f"({STEP.replace('32]', '64]').replace(',16]', ',32]').replace('4,8]', '4,16]')}, {WIDE})"
    " => (float[2,1,64] y, float[2,2,5,16] kk, float[2,2,5,16] vv) <int32[2] l = {4,4}, int32[1] t = {5}>"
    f" {{ y, kk, vv = {GROUPED}, do_rotary = 1>(q, k, v, pk, pv, l, t, c, s) }}",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_the_runtime_compute_what_it_computes(name: str) -> None:
    proto = model(OPERATORS[name])
    # Positions and words are of several rows of the tables; a mask is of ones.
    feeds = feeds_of(proto, high=7 if name.startswith(("turned", "embedded")) else 2)
    if name == "embedded":
        feeds["m"] = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    same(Session(proto.SerializeToString(), JUDGE).run(feeds), exactly(OPERATORS[name], feeds))


def test_a_result_that_has_no_name_is_no_operand_of_the_next_operator() -> None:
    """The evaluator keeps it under the empty name, which is that of an operand that is left out, too."""
    text = f"""({NORMALIZED}) => (float[2,3,8] y, float[2,3,8] s) {{
        n, , , s = {SKIP}(x, r, w, c, b)  y = {MULTI}<num_heads = 2>(n, n, n, , , )
    }}"""
    feeds = feeds_of(model(text))
    same(Session(model(text).SerializeToString(), JUDGE).run(feeds), exactly(text, feeds))


IMAGE = "float[2,4,3,6] x, float[6] w, float[6] b, float[2,6] r, float[6] c"
FIRST = "float[2,6,4,3] x, float[6] w, float[6] b, float[2,6,4,3] r, float[6] c"
NORM = "com.microsoft.GroupNorm<groups = 3, epsilon = 0.01, activation = ACT, channels_last = LAST>"
SUM = NORM.replace("GroupNorm", "SkipGroupNorm")
SILU = "g = Sigmoid(n)  y = Mul(n, g)"
GROUPS = "GroupNormalization<num_groups = 3, epsilon = 0.01>"
TWICE = {
    "added": (
        "(float[2,3,8] x, float[8] b, float[2,3,8] r) => (float[2,3,8] y) { y = com.microsoft.BiasAdd(x, b, r) }",
        "(float[2,3,8] x, float[8] b, float[2,3,8] r) => (float[2,3,8] y) { a = Add(x, b)  y = Add(a, r) }",
    ),
    "gated": (
        "(float[2,3,8] x, float[8] b) => (float[2,3,4] y) { y = com.microsoft.BiasSplitGelu(x, b) }",
        "(float[2,3,8] x, float[8] b) => (float[2,3,4] y)"
        " { a = Add(x, b)  l, r = Split<axis = -1, num_outputs = 2>(a)  g = Gelu(r)  y = Mul(l, g) }",
    ),
    "groups": (
        f"({FIRST}) => (float[2,6,4,3] y) {{ y = {NORM.replace('ACT', '0').replace('LAST', '0')}(x, w, b) }}",
        f"({FIRST}) => (float[2,6,4,3] y) {{ y = {GROUPS}(x, w, b) }}",
    ),
    "groups, channels last": (
        f"({IMAGE}) => (float[2,4,3,6] y) {{ y = {NORM.replace('ACT', '1').replace('LAST', '1')}(x, w, b) }}",
        f"({IMAGE}) => (float[2,4,3,6] y) {{ t = Transpose<perm = [0,3,1,2]>(x)  m = {GROUPS}(t, w, b)"
        f" n = Transpose<perm = [0,2,3,1]>(m)  {SILU} }}",
    ),
    "groups of a sum": (
        f"({FIRST}) => (float[2,6,4,3] y, float[2,6,4,3] s)"
        f" {{ y, s = {SUM.replace('ACT', '1').replace('LAST', '0')}(x, w, b, r, c) }}",
        f"({FIRST}) => (float[2,6,4,3] y, float[2,6,4,3] s) <int64[2] two = {{1,2}}>"
        f" {{ a = Add(x, r)  k = Unsqueeze(c, two)  s = Add(a, k)  n = {GROUPS}(s, w, b)  {SILU} }}",
    ),
    "groups of a sum, channels last": (
        f"({IMAGE}) => (float[2,4,3,6] y, float[2,4,3,6] s)"
        f" {{ y, s = {SUM.replace('ACT', '0').replace('LAST', '1')}(x, w, b, r) }}",
        f"({IMAGE}) => (float[2,4,3,6] y, float[2,4,3,6] s) <int64[2] two = {{1,2}}>"
        f" {{ k = Unsqueeze(r, two)  s = Add(x, k)  t = Transpose<perm = [0,3,1,2]>(s)"
        f" m = {GROUPS}(t, w, b)  y = Transpose<perm = [0,2,3,1]>(m) }}",
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_operators_that_only_cuda_has_compute_what_standard_ones_do(name: str) -> None:
    fused, parts = TWICE[name]
    feeds = feeds_of(model(fused))
    same(Session(model(parts).SerializeToString(), JUDGE).run(feeds), exactly(fused, feeds))


@pytest.mark.parametrize(
    "text",
    [
        f"({ROWS}) => (float[2,3,8] y) {{ y = {MULTI}<num_heads = 2, do_rotary = 1>(q, k, v) }}",
        f"({LAYERS}) => (float[2,3,8] y) {{ y = {ATTENTION}<num_heads = 2, qkv_hidden_sizes = [8,8,8]>(x, w, c) }}",
        "(float[2,8] x) => (float[2,8] y) { y = com.microsoft.Trilu(x) }",
        f"(float[2,3,16] x, int64[2,3] p, {TABLES}) => (float[2,3,16] y)"
        f" {{ y = {ROTARY}<is_packed_batching = 1>(x, p, c, s) }}",
        f"(float[2,3,16] x, int64[2,3] p, {TABLES}) => (float[2,3,16] y) {{ y = {ROTARY}<scale = 0.5>(x, p, c, s) }}",
        f"(float[2,9,16] x, int64[1] p, {TABLES}) => (float[2,9,16] y) {{ y = {ROTARY}(x, p, c, s) }}",
        f"(float[2,3,4] x, float[2,4,5] w) => (float[2,3,5] y) {{ y = {PRODUCT}<transBatchA = 1>(x, w) }}",
        f"({PROMPT}) => (float[2,3,32] y) <int32[2] l = {{1,2}}, int32[1] t = {{3}}>"
        f" {{ y = {GROUPED}>(q, k, v, , , l, t) }}",
        f"({CACHED}) => (float[1,3,32] y) <int32[1] l = {{4}}, int32[1] t = {{5}}>"
        f" {{ y = {GROUPED}>(q, k, v, pk, pv, l, t) }}",
        f"({PROMPT}) => (float[2,3,32] y) {LAST} {{ y = {GROUPED}, smooth_softmax = 1>(q, k, v, , , l, t) }}",
        f"({PROMPT}, float[4] h) => (float[2,3,32] y) {LAST} {{ y = {GROUPED}>(q, k, v, , , l, t, , , , , h) }}",
        f"(int32[2,3] i, {EMBEDDED}, int32[2,3] m) => (float[2,3,8] y) <int32[2,3] o = {{0,1,1,1,1,1}}>"
        f" {{ y, n = {EMBED}(i, , t, u, , w, b, o) }}",
        f"(int32[2,3] i, {EMBEDDED}) => (float[2,3,8] y) {{ j = Neg(i)  y = {EMBED}(j, , t, u, , w, b) }}",
    ],
)
def test_forms_that_are_not_written_there_give_no_truth(text: str) -> None:
    feeds = feeds_of(model(text))
    with pytest.raises(ExecutionError, match="no float64 run by the reference"):
        exactly(text, feeds)
