"""Patterns: what they match, what they refuse, and what a miss says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt import Graph, Match, attr, const, load, op, var
from graphopt.ir import Node
from graphopt.onnxio import parse_text
from graphopt.rewrite import Matcher, Miss, is_uniform
from graphopt.rewrite.pattern import Application
from graphopt.tensors import DType, Tensor


def graph_of(text: str, opset: int = 21) -> Graph:
    return load(parse_text(text, {"": opset, "com.microsoft": 1}))


def try_at(graph: Graph, pattern: Application, op_type: str, **options: Any) -> Match | Miss:
    (root,) = [node for node in graph.nodes() if node.op_type == op_type]
    return Matcher(pattern, **options).match(root)


def test_variables_bind_values_and_attributes() -> None:
    x, p = var("x"), attr("perm")
    graph = graph_of("(float[2,3] x) => (float[3,2] y) { y = Transpose<perm=[1,0]>(x) }")
    found = try_at(graph, op.Transpose(x, perm=p), "Transpose")
    assert isinstance(found, Match)
    assert found[x] is graph.inputs[0]
    assert found[p] == (1, 0)


def test_the_same_variable_is_the_same_value() -> None:
    x = var("x")
    same = graph_of("(float[2] a, float[2] b) => (float[2] y) { y = Add(a, a) }")
    other = graph_of("(float[2] a, float[2] b) => (float[2] y) { y = Add(a, b) }")
    assert isinstance(try_at(same, op.Add(x, x), "Add"), Match)
    assert isinstance(try_at(other, op.Add(x, x), "Add"), Miss)


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (11, "(float[2,1] x) => (float[2] y) { y = Squeeze<axes=[1]>(x) }"),
        (13, "(float[2,1] x) => (float[2] y) <int64[1] a = {1}> { y = Squeeze(x, a) }"),
    ],
)
def test_a_parameter_reads_alike_as_attribute_and_operand(opset: int, text: str) -> None:
    axes = attr("axes")
    found = try_at(graph_of(text, opset), op.Squeeze(var("x"), axes=axes), "Squeeze")
    assert isinstance(found, Match)
    assert found[axes] == (1,)


def test_defaults_are_filled_in() -> None:
    axis = attr("axis")
    graph = graph_of("(float[2] x) => (float[2] y) { y = Softmax(x) }")
    found = try_at(graph, op.Softmax(var("x"), axis=axis), "Softmax")
    assert isinstance(found, Match)
    assert found[axis] == -1


def test_a_parameter_computed_at_run_time_is_a_miss() -> None:
    graph = graph_of("(float[2,1] x, int64[1] a) => (float[2] y) { y = Squeeze(x, a) }")
    missed = try_at(graph, op.Squeeze(var("x"), axes=attr("axes")), "Squeeze")
    assert isinstance(missed, Miss)
    assert "run time" in missed.reason


def test_omitted_and_extra_operands() -> None:
    x, c = var("x"), const()
    lower = graph_of("(float[2] x) => (float[2] y) <float c = {1}> { y = Clip(x, c) }")
    upper = graph_of("(float[2] x) => (float[2] y) <float c = {1}> { y = Clip(x, , c) }")
    assert isinstance(try_at(upper, op.Clip(x, None, c), "Clip"), Match)
    assert isinstance(try_at(lower, op.Clip(x, None, c), "Clip"), Miss)
    assert isinstance(try_at(lower, op.Clip(x), "Clip"), Miss)
    assert isinstance(try_at(lower, op.Clip(x, ...), "Clip"), Match)


def test_an_operator_that_meant_something_else_is_another_operator() -> None:
    graph = graph_of("(float[2,3] x) => (float[2,3] y) { y = Softmax<axis=1>(x) }", opset=11)
    missed = try_at(graph, op.Softmax(var("x")), "Softmax")
    assert isinstance(missed, Miss)
    assert "this opset" in missed.reason


def test_the_result_number_counts() -> None:
    text = "(float[4] x) => (float[2] y) { a, b = Split<num_outputs=2>(x) y = Relu(b) }"
    second, first = op.Relu(op.Split(var("x"), ...)[1]), op.Relu(op.Split(var("x"), ...))
    assert isinstance(try_at(graph_of(text), second, "Relu"), Match)
    assert isinstance(try_at(graph_of(text), first, "Relu"), Miss)


@pytest.mark.parametrize(
    "text",
    [
        "(float[2] x) => (float[2] y, float[2] t) { t = Neg(x) y = Neg(t) }",
        "(float[2] x) => (float[2] y, float[2] z) { t = Neg(x) y = Neg(t) z = Abs(t) }",
    ],
)
def test_an_inner_value_somebody_else_needs_is_a_miss_unless_kept(text: str) -> None:
    inner = op.Neg(var("x"))
    pattern = op.Neg(inner)
    graph = graph_of(text)
    root = next(node for node in graph.nodes() if node.op_type == "Neg" and node.operands[0] is not graph.inputs[0])
    assert isinstance(Matcher(pattern).match(root), Miss)
    assert isinstance(Matcher(pattern, keep=(inner,)).match(root), Match)


def test_an_inner_value_of_another_graph_is_a_miss() -> None:
    text = """(bool c, float[2] x) => (float[2] y) {
        t = Neg(x)
        y = If(c) <then_branch = a () => (float[2] u) { u = Neg(t) }, else_branch = b () => (float[2] v) { v = Abs(x) }>
    }"""
    graph = graph_of(text)
    root: Node = next(node for node in graph.of_kind("If")[0].nested() if node.op_type == "Neg")
    missed = Matcher(op.Neg(op.Neg(var("x")))).match(root)
    assert isinstance(missed, Miss)
    assert "same graph" in missed.reason


def test_other_domains_and_alternatives() -> None:
    x = var("x")
    graph = graph_of("(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }")
    assert isinstance(try_at(graph, op.domain("com.microsoft").Gelu(x), "Gelu"), Match)
    assert isinstance(try_at(graph, op.Gelu(x), "Gelu"), Miss)
    either = op.one_of("Relu", "Abs")(x)
    assert isinstance(try_at(graph_of("(float[2] x) => (float[2] y) { y = Abs(x) }"), either, "Abs"), Match)


@pytest.mark.parametrize(
    ("data", "wanted", "expected"),
    [
        ([1.0, 1.0], 1, True),
        ([1.0, 2.0], 1, False),
        ([0.0], 0, True),
        ([-0.0], 0, False),
        ([-0.0], -0.0, True),
        ([0.0, -0.0], 0.0, False),
        ([float("nan")], 0, False),
        ([], 1, False),
    ],
)
def test_uniform_constants(data: list[float], wanted: float, expected: bool) -> None:
    graph = graph_of("(float[2] x) => (float[2] y) { y = Abs(x) }")
    value = graph.add_constant(Tensor.from_numpy(np.array(data, np.float32)))
    assert is_uniform(value, wanted) is expected


def test_a_condition_on_a_variable() -> None:
    x = var("x", dtype=(DType.FLOAT, DType.DOUBLE), rank=2)
    flat = graph_of("(float[2] x) => (float[2] y) { y = Abs(x) }")
    missed = try_at(flat, op.Abs(x), "Abs")
    assert isinstance(missed, Miss)
    assert "rank 2" in missed.reason


@pytest.mark.parametrize("text", ["a = Add(k, x)", "a = Add(x, k)"])
@pytest.mark.parametrize("last", ["y = Mul(a, w)", "y = Mul(w, a)"])
def test_operands_that_commute_match_in_either_order(text: str, last: str) -> None:
    x, w, k = var("x"), var("w", rank=2), const("k")
    inner = op.Add(x, k)
    graph = graph_of(f"(float[2] x, float[2,2] w) => (float[2,2] y) <float[2] k = {{1.0,2.0}}> {{ {text}  {last} }}")
    found = try_at(graph, op.Mul(inner, w), "Mul")
    assert isinstance(found, Match)
    assert (found[x].name, found[k].name, found[w].name) == ("x", "k", "w")


def test_a_choice_made_early_is_taken_back_for_one_that_fails_late() -> None:
    x, y = var("x"), var("y")
    graph = graph_of(
        "(float[2] p, float[2] q) => (float[2] z) { a = Exp(p)  b = Exp(q)  s = Add(a, b)  z = Sub(s, p) }"
    )
    found = try_at(graph, op.Sub(op.Add(op.Exp(x), op.Exp(y)), y), "Sub")
    assert isinstance(found, Match)
    assert (found[x].name, found[y].name) == ("q", "p")


def test_operands_that_do_not_commute_keep_their_order() -> None:
    x, k = var("x"), const("k")
    text = "(float[2] x) => (float[2] y) <float[2] k = {{1.0,2.0}}> {{ y = {}(k, x) }}"
    for operator in ("Sub", "Div", "Max"):
        graph = graph_of(text.format(operator))
        assert isinstance(try_at(graph, op.one_of("Sub", "Div", "Max")(x, k), operator), Miss)
    integers = graph_of("(int64[2] x) => (int64[2] y) <int64[2] k = {1,2}> { y = Max(k, x) }")
    assert isinstance(try_at(integers, op.Max(x, k), "Max"), Match)
