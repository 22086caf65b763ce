"""Group normalization in every spelling, judged by what the operator is documented to compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser
from stand_ins import with_stand_ins

import graphopt
from graphopt.runtime import judge
from graphopt.runtime.session import CUDA, starts

_CONSTANTS = """<int64[3] g = {0,2,-1}, float[2] p = {1,2}, float[2] q = {0,1}, int64[4] d = {2,8,3,5}, float[60] one,
    float[8] w = {1,2,3,4,5,6,7,8}, float[8] c = {0,1,0,1,0,1,0,1}, float[8,1,1] wc = {1,2,3,4,5,6,7,8},
    float[1,8,1,1] cc = {0,1,0,1,0,1,0,1}, float eps = {0.001}, float two = {2.0}, int64[1] last = {2}>""".replace(
    "float[60] one", f"float[60] one = {{{','.join(['1'] * 60)}}}"
)
_ENDS = "g (float[2,8,3,5] x, float[2,8,1,1] e) => (float[2,8,3,5] y)"
SPELLINGS = {
    "InstanceNormalization": (
        17,
        """r = Reshape(x, g)  i = InstanceNormalization<epsilon = 0.001>(r, p, q)  o = Reshape(i, d)
           m = Mul(wc, o)  a = Add(m, cc)  s = Sigmoid(a)  y = Mul(a, s)""",
    ),
    "without scale": (17, "r = Reshape(x, g)  i = InstanceNormalization(r, p, q)  y = Reshape(i, d)"),
    "LayerNormalization": (
        17,
        """r = Reshape(x, g)  i = LayerNormalization<axis = -1, epsilon = 0.001>(r, one)  o = Reshape(i, d)
           m = Mul(wc, o)  y = Add(m, cc)""",
    ),
    "parts": (
        18,
        """r = Reshape(x, g)  u = ReduceMean(r, last)  f = Sub(r, u)  h = Mul(f, f)  v = ReduceMean(h, last)
           k = Add(v, eps)  z = Sqrt(k)  i = Div(f, z)  o = Reshape(i, d)  m = Mul(o, wc)  y = Add(m, cc)""",
    ),
    "scale of each group": (18, "y = GroupNormalization<num_groups = 2>(x, p, q)"),
    "scale of each channel": (21, "a = GroupNormalization<num_groups = 2>(x, w, c)  s = Sigmoid(a)  y = Mul(a, s)"),
    "a sum for each image": (21, "t = Add(x, e)  y = GroupNormalization<num_groups = 4>(t, w, c)"),
}


def optimized(text: str, opset: int, level: str = "fast-math") -> tuple[ModelProto, ModelProto, list[str]]:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{_ENDS} {_CONSTANTS} {{ {text} }}')
    result = graphopt.optimize(model, target="ort-cuda", level=level).model
    return model, result, [node.op_type for node in result.graph.node]


def _feed() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 8, 3, 5), "e": (2, 8, 1, 1)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def holds(before: ModelProto, after: ModelProto) -> None:
    after.opset_import[0].version = max(after.opset_import[0].version, 18)
    verdict = judge(before, with_stand_ins(after), "R", [_feed()])
    assert verdict.ok, verdict.reason
    assert verdict.feeds == 1


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_becomes_the_operator(name: str) -> None:
    opset, text = SPELLINGS[name]
    before, after, operators = optimized(text, opset)
    kind = "SkipGroupNorm" if "sum" in name else "GroupNorm"
    assert operators.count(kind) == 1
    assert set(operators) <= {kind, "Transpose", "Reshape"}
    holds(before, after)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SPELLINGS)
def test_the_kernel_computes_it(name: str) -> None:
    if not starts(CUDA):
        pytest.skip("the CUDA provider does not start here")
    opset, text = SPELLINGS[name]
    before, after, _ = optimized(text, opset)
    verdict = judge(before, after, "R", [_feed()], provider="cuda")
    assert verdict.ok, verdict.reason
    assert verdict.feeds == 1


def test_sums_and_normalizations_stay_with_the_channels_last() -> None:
    before, after, operators = optimized(
        """a = GroupNormalization<num_groups = 2>(x, w, c)  f = Sigmoid(a)  h = Mul(a, f)  t = Add(h, x)
           b = GroupNormalization<num_groups = 4>(t, w, c)  u = Add(b, t)
           y = GroupNormalization<num_groups = 2>(u, w, c)""",
        21,
    )
    assert operators.count("SkipGroupNorm") == 2
    assert operators.count("GroupNorm") == 1
    assert operators.count("Transpose") == 2
    holds(before, after)


def test_it_is_no_part_of_the_default_level() -> None:
    opset, text = SPELLINGS["scale of each channel"]
    assert "GroupNorm" not in optimized(text, opset, "default")[2]
