"""A Reshape that takes the rest for one axis says that no other is empty."""

from __future__ import annotations

import pytest
from onnx import parser

from graphopt import Symbol, load
from graphopt.analysis.inference import Inference

_TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,M,12] x) => (float[A,B,C,D] y) <int64[2] rest = {-1,4}, int64[1] z = {0}, int64[1] t = {2}> {
    s = Shape(x)
    d = Slice(s, z, t)
    r = Concat<axis = 0>(d, rest)
    v = Reshape<ALLOWS>(x, r)
    w = Transpose<perm = [0,2,1,3]>(v)
    n = Concat<axis = 0>(d, u)
    h = Reshape(w, n)
    y = Reshape(h, r)
}"""


@pytest.mark.parametrize(("allows_zero", "least"), [("", 1), ("<allowzero = 1>", 0)])
def test_minus_one_beside_an_empty_dim_is_refused(allows_zero: str, least: int) -> None:
    text = _TEXT.replace("<ALLOWS>", allows_zero).replace("= {2}>", "= {2}, int64[1] u = {12}>")
    if allows_zero:
        text = text.replace("y = Reshape(h, r)", "y = Reshape<allowzero = 1>(h, r)")
    graph = load(parser.parse_model(text))
    Inference(graph.model).run()
    _, length, _ = graph.inputs[0].shape or ()
    assert isinstance(length, Symbol)
    assert length.least == least
