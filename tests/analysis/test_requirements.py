"""Equations that operators demand of dims."""

from __future__ import annotations

import pytest

from graphopt import Graph, load
from graphopt.analysis.inference import Inference
from graphopt.onnxio import parse_text

_HEADS = """(float[B, S, 64] x, float[C, T] ids, float[64, 32] w) => (float[C, U, 32] y) <int64[1] rest = {{-1}}> {{
    lead = Shape<end = 2>(ids)
    target = Concat<axis = 0>(lead, rest)
    r = Reshape(x, target)
    y = {layer}
}}"""


def inferred(text: str) -> Graph:
    graph = load(parse_text(text, {"": 18}))
    inference = Inference(graph.model)
    inference.run()
    assert not inference.conflicts
    return graph


def last_dim(graph: Graph, op_type: str) -> object:
    (node,) = graph.of_kind(op_type)
    assert node.results[0].shape is not None
    return node.results[0].shape[-1]


def test_what_a_product_is_given_has_its_inner_dim() -> None:
    assert last_dim(inferred(_HEADS.format(layer="MatMul(r, w)")), "Reshape") == 64


def test_without_a_product_nothing_is_known() -> None:
    assert not isinstance(last_dim(inferred(_HEADS.format(layer="Neg(r)")), "Reshape"), int)


def test_a_product_that_nobody_needs_says_nothing() -> None:
    text = _HEADS.format(layer="Neg(r)\n z = MatMul(r, w)")
    assert not isinstance(last_dim(inferred(text), "Reshape"), int)


def test_a_product_in_a_branch_says_nothing() -> None:
    text = """(float[B, S, 64] x, float[C, T] ids, float[64, 32] w, bool c) => (float[C, U, V] y)
    <int64[1] rest = {-1}> {
        lead = Shape<end = 2>(ids)
        target = Concat<axis = 0>(lead, rest)
        r = Reshape(x, target)
        y = If (c) <
            then_branch = t () => (float[C, U, V] p) { p = MatMul(r, w) },
            else_branch = e () => (float[C, U, V] q) { q = Neg(r) }
        >
    }"""
    assert not isinstance(last_dim(inferred(text), "Reshape"), int)


@pytest.mark.parametrize(("transposed", "shape"), [(0, "64, 32"), (1, "32, 64")])
def test_gemm_as_it_is_transposed(transposed: int, shape: str) -> None:
    text = f"""(float[B, 64] x, float[C, T] ids, float[{shape}] w) => (float[C, 32] y) <int64[1] rest = {{-1}}> {{
        lead = Shape<end = 1>(ids)
        target = Concat<axis = 0>(lead, rest)
        r = Reshape(x, target)
        y = Gemm<transB = {transposed}>(r, w)
    }}"""
    assert last_dim(inferred(text), "Reshape") == 64


def test_of_two_names_the_simpler_stays() -> None:
    text = """(float[B, S, L] x, float[B, T, L] z, float[L, 8] w) => (float[B, U, 8] y) {
        s = Add(x, z)
        y = MatMul(s, w)
    }"""
    graph = inferred(text)
    (node,) = graph.of_kind("MatMul")
    left, right = node.operands
    assert left is not None
    assert right is not None
    assert left.shape is not None
    assert right.shape is not None
    assert left.shape[-1] == right.shape[0]
