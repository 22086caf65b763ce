"""Fused models at empty inputs: their kernels may fail there, which is said; all else must be equal."""

from __future__ import annotations

import graphopt
from graphopt.onnxio import parse_text

STEP = """(float[B,1,32] q, float[B,1,16] k, float[B,1,16] v) => (float[B,1,32] y)
          <int64[4] qs = {0,1,4,8}, int64[4] ks = {0,1,2,8}, int64[4] each = {0,0,1,1}, int64[3] o = {0,1,32},
           float scale = {0.5}> {
    q1 = Reshape(q, qs)  q4 = Transpose<perm = [0,2,1,3]>(q1)  k1 = Reshape(k, ks)  k4 = Transpose<perm = [0,2,1,3]>(k1)
    v1 = Reshape(v, ks)  v4 = Transpose<perm = [0,2,1,3]>(v1)  kr = Gather<axis = 1>(k4, each)
    vr = Gather<axis = 1>(v4, each)  kt = Transpose<perm = [0,1,3,2]>(kr)  d = MatMul(q4, kt)  e = Mul(d, scale)
    p = Softmax<axis = -1>(e)  r = MatMul(p, vr)  t = Transpose<perm = [0,2,1,3]>(r)  y = Reshape(t, o)
}"""


def test_an_operator_that_takes_nothing_empty_is_remarked_on_and_no_difference() -> None:
    original = parse_text(STEP, {"": 21})
    fused = graphopt.optimize(original, target="ort-cpu", aggressive=("fusion.grouped_attention",)).model
    assert "GroupQueryAttention" in [node.op_type for node in fused.graph.node]
    found = graphopt.verify(original, fused, provider="cpu")
    assert found.verdict == "equal"
    assert any("take nothing empty" in note and "--target portable" in note for note in found.notes)
    assert any("take nothing empty" in feed.outcome for feed in found.feeds)


def test_failing_at_empty_inputs_is_a_difference_where_nothing_was_fused() -> None:
    original = parse_text("(float[B,3] x) => (float[B,3] y) { y = Relu(x) }", {"": 21})
    text = """(float[B,3] x) => (float[B,3] y) <int64 first = {0}>
              { r = Relu(x)  g = Gather<axis = 0>(x, first)  z = Sub(g, g)  y = Add(r, z) }"""
    found = graphopt.verify(original, parse_text(text, {"": 21}), provider="cpu")
    assert found.verdict == "different"
    assert "the rewritten model does not" in found.reason


def test_a_fused_model_that_is_wrong_stays_different() -> None:
    original = parse_text("(float[B,4] x) => (float[B,4] y) { s = Sigmoid(x)  y = Mul(x, s) }", {"": 21})
    wrong = parse_text(
        "(float[B,4] x) => (float[B,4] y) { y = com.microsoft.QuickGelu<alpha = 1.01>(x) }",
        {"": 21, "com.microsoft": 1},
    )
    assert graphopt.verify(original, wrong, provider="cpu").verdict == "different"
