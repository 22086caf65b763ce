"""Products with transposes and scales: every kind of transpose, stretched operands, empty ones, half precision."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

import graphopt
from graphopt.runtime import judge
from graphopt.runtime.session import full_provider_name, starts


def fused(text: str, target: str = "ort-cpu") -> tuple[ModelProto, ModelProto, list[str]]:
    """A model, what becomes of it for the target, and the operators in that."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    result = graphopt.optimize(model, target=target).model
    return model, result, [node.op_type for node in result.graph.node]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def provider(request: pytest.FixtureRequest) -> str:
    """Where results are judged."""
    name = str(request.param)
    if not starts(full_provider_name(name)):
        pytest.skip(f"the provider {name} does not start here")
    return name


def hold(before: ModelProto, after: ModelProto, provider: str, **shapes: tuple[int, ...]) -> None:
    """Class R holds on these inputs, and the original runs on them."""
    rng = np.random.default_rng(0)
    dtypes = {info.name: info.type.tensor_type.elem_type for info in before.graph.input}
    feed = {
        name: rng.standard_normal(shape).astype(np.float16 if dtypes[name] == 10 else np.float32)
        for name, shape in shapes.items()
    }
    verdict = judge(before, after, "R", [feed], provider=provider)
    assert verdict.ok, verdict.reason
    assert verdict.feeds == 1


@pytest.mark.parametrize(
    ("perm", "shape", "attributes"),
    [
        ((0, 1, 3, 2), (2, 3, 4, 5), {"transA"}),
        ((1, 2, 0, 3), (5, 2, 3, 4), {"transBatchA"}),
        ((1, 2, 3, 0), (4, 2, 3, 5), {"transBatchA", "transA"}),
    ],
)
def test_the_left_matrix_is_turned(
    provider: str, perm: tuple[int, ...], shape: tuple[int, ...], attributes: set[str]
) -> None:
    dims = ",".join(map(str, shape))
    before, after, operators = fused(f"""g (float[{dims}] a, float[2,3,4,6] b) => (float[2,3,5,6] y)
        {{ t = Transpose<perm = [{",".join(map(str, perm))}]>(a)  y = MatMul(t, b) }}""")
    assert operators == ["FusedMatMul"]
    assert {item.name for item in after.graph.node[0].attribute} == attributes
    hold(before, after, provider, a=shape, b=(2, 3, 4, 6))


@pytest.mark.parametrize(
    ("perm", "shape", "attributes"),
    [
        ((0, 2, 1), (2, 6, 4), {"transB"}),
        ((1, 0, 2), (4, 2, 6), {"transBatchB"}),
        ((1, 2, 0), (6, 2, 4), {"transBatchB", "transB"}),
    ],
)
def test_the_right_matrix_is_turned(
    provider: str, perm: tuple[int, ...], shape: tuple[int, ...], attributes: set[str]
) -> None:
    dims = ",".join(map(str, shape))
    before, after, operators = fused(f"""g (float[2,5,4] a, float[{dims}] b) => (float[2,5,6] y)
        {{ t = Transpose<perm = [{",".join(map(str, perm))}]>(b)  y = MatMul(a, t) }}""")
    assert operators == ["FusedMatMul"]
    assert {item.name for item in after.graph.node[0].attribute} == attributes
    hold(before, after, provider, a=(2, 5, 4), b=shape)


def test_a_batch_that_is_stretched_is_not_taken_from_the_front(provider: str) -> None:
    before, after, operators = fused("""g (float[5,1,4] a, float[2,4,6] b) => (float[2,5,6] y)
        { t = Transpose<perm = [1,0,2]>(a)  y = MatMul(t, b) }""")
    assert "FusedMatMul" not in operators
    hold(before, after, provider, a=(5, 1, 4), b=(2, 4, 6))


def test_turned_twice_is_not_turned() -> None:
    _, _, operators = fused("""g (float[2,4,4] a, float[2,4,4] b) => (float[2,4,4] y) <float c = {0.25}>
        { t = Transpose<perm = [0,2,1]>(a)  u = Mul(t, c)  v = Transpose<perm = [0,2,1]>(u)  y = MatMul(v, b) }""")
    assert operators == ["FusedMatMul"]


def test_a_transpose_that_several_products_read(provider: str) -> None:
    before, after, operators = fused("""g (float[2,3,4] a, float[2,5,4] b) => (float[2,3,5] y) {
        t = Transpose<perm = [0,2,1]>(b)  p = MatMul(a, t)  f = Tanh(p)  h = MatMul(f, b)  q = MatMul(h, t)
        y = Sigmoid(q)
    }""")
    assert operators == ["FusedMatMul", "Tanh", "MatMul", "FusedMatMul", "Sigmoid"]
    hold(before, after, provider, a=(2, 3, 4), b=(2, 5, 4))


def test_scales_on_all_sides_become_one(provider: str) -> None:
    before, after, operators = fused("""g (float[2,3,4] a, float[2,5,4] b) => (float[2,3,5] y)
        <float c = {0.5}, float d = {8.0}, float e = {-3.0}> {
            s = Mul(c, a)  t = Transpose<perm = [0,2,1]>(b)  u = Div(t, d)  p = MatMul(s, u)  y = Mul(p, e)
        }""")
    assert operators == ["FusedMatMul"]
    attributes = {item.name: item.f or item.i for item in after.graph.node[0].attribute}
    assert attributes == {"transB": 1, "alpha": pytest.approx(-3.0 / 16.0)}
    hold(before, after, provider, a=(2, 3, 4), b=(2, 5, 4))


def test_matrices_of_other_ranks_and_stretched_batches(provider: str) -> None:
    before, after, operators = fused("""g (float[7,1,3,4] a, float[2,5,4] b) => (float[7,2,3,5] y) <float c = {0.5}>
        { t = Transpose<perm = [0,2,1]>(b)  p = MatMul(a, t)  y = Mul(p, c) }""")
    assert operators == ["FusedMatMul"]
    hold(before, after, provider, a=(7, 1, 3, 4), b=(2, 5, 4))


@pytest.mark.parametrize(("n", "m"), [(0, 5), (3, 0), (0, 0), (3, 5)])
def test_empty_matrices(provider: str, n: int, m: int) -> None:
    before, after, operators = fused("""g (float[2,N,4] a, float[2,M,4] b) => (float[2,N,M] y) <float c = {0.5}>
        { t = Transpose<perm = [0,2,1]>(b)  p = MatMul(a, t)  y = Mul(p, c) }""")
    assert operators == ["FusedMatMul"]
    hold(before, after, provider, a=(2, n, 4), b=(2, m, 4))


@pytest.mark.parametrize("perm", ["0,2,1", "1,2,0", "1,0,2"])
def test_a_sum_over_nothing_is_zero_and_the_kernel_does_not_say_so(provider: str, perm: str) -> None:
    before, after, operators = fused(f"""g (float[X,Y,Z] a, float[2,M,6] b) => (float[N,P,6] y) <float c = {{0.5}}>
        {{ t = Transpose<perm = [{perm}]>(a)  p = MatMul(t, b)  y = Mul(p, c) }}""")
    assert "FusedMatMul" not in operators
    turned = tuple(int(axis) for axis in perm.split(","))
    lies = [0, 0, 0]
    for axis, size in zip(turned, (2, 3, 0), strict=True):
        lies[axis] = size
    hold(before, after, provider, a=tuple(lies), b=(2, 0, 6))


def test_half_precision(provider: str) -> None:
    before, after, operators = fused("""g (float16[2,3,64] a, float16[2,5,64] b) => (float16[2,3,5] y)
        <float16 c = {12288}> { t = Transpose<perm = [0,2,1]>(b)  p = MatMul(a, t)  y = Mul(p, c) }""")
    assert operators == ["FusedMatMul"]
    hold(before, after, provider, a=(2, 3, 64), b=(2, 5, 64))


def test_nothing_changes_for_any_runtime() -> None:
    _, _, operators = fused(
        """g (float[2,3,4] a, float[2,5,4] b) => (float[2,3,5] y)
        { t = Transpose<perm = [0,2,1]>(b)  y = MatMul(a, t) }""",
        "portable",
    )
    assert operators == ["Transpose", "MatMul"]
