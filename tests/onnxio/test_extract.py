"""Nodes cut out of a graph run alone and give what they give inside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

from graphopt import Graph, load
from graphopt.onnxio import parse_text
from graphopt.onnxio.extract import extract
from graphopt.runtime.session import JUDGE, Session


def graph_of(text: str, opset: int = 17) -> Graph:
    return load(parse_text(text, {"": opset}))


def run(graph: Graph) -> dict[str, Any]:
    """What all operators of a graph without inputs give, extracted and run."""
    cut = extract(graph.order(), graph.outputs, {})
    feeds = {}
    for name, value in cut.inputs.items():
        assert value.const is not None
        feeds[name] = value.const.numpy()
    found = Session(cut.model.SerializeToString(), JUDGE).run(feeds)
    return {value.name or "": found[name] for name, value in cut.outputs.items()}


def test_constants_are_fed() -> None:
    graph = graph_of("() => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> { t = Mul(a, b)  y = Add(t, a) }")
    cut = extract(graph.order(), graph.outputs, {})
    assert not cut.model.graph.initializer
    assert [value.name for value in cut.inputs.values()] == ["a", "b"]
    assert [len(node.input) for node in cut.model.graph.node] == [2, 2]
    np.testing.assert_array_equal(run(graph)["y"], [4, 10])


def test_nodes_can_be_found_by_the_names_a_runtime_reports() -> None:
    graph = graph_of("() => (float[2] y) <float[2] a = {1, 2}> { t = Exp(a)  y = Neg(t) }")
    cut = extract(graph.order(), graph.outputs, {})
    assert [cut.nodes[node.name].op_type for node in cut.model.graph.node] == ["Exp", "Neg"]


def test_a_value_known_otherwise_is_an_input() -> None:
    graph = graph_of("(float[2] x) => (float[2] y) { t = Exp(x)  y = Neg(t) }")
    (exp, neg) = graph.order()
    with pytest.raises(ValueError, match="is not known"):
        extract([neg], neg.results, {})
    cut = extract([neg], neg.results, {exp.result: helper_tensor([1.0, 2.0])})
    assert [value is exp.result for value in cut.inputs.values()] == [True]


def helper_tensor(numbers: list[float]) -> Any:
    from graphopt import DType, Tensor

    return Tensor.of(numbers, DType.FLOAT)


def test_bodies_go_along_with_what_they_capture() -> None:
    graph = graph_of(
        """() => (float[2] y) <bool c = {1}, float[2] outer = {5, 6}> {
            y = If(c) <
                then_branch = t () => (float[2] u) <float[2] own = {1, 1}> { u = Add(own, outer) },
                else_branch = e () => (float[2] v) { v = Identity(outer) }
            >
        }"""
    )
    cut = extract(graph.order(), graph.outputs, {})
    assert [value.name for value in cut.inputs.values()] == ["c", "own", "outer"]
    assert not any(body.g.initializer for body in cut.model.graph.node[0].attribute)
    np.testing.assert_array_equal(run(graph)["y"], [6, 7])


def test_a_body_may_return_constants_and_outer_values() -> None:
    # Once a constant is an input of the model around it, a body may not return it as it stands.
    def branch(name: str, constant: str) -> Any:
        tensor = numpy_helper.from_array(np.array([1, 2], np.float32), constant)
        info = helper.make_tensor_value_info(constant, TensorProto.FLOAT, [2])
        return helper.make_graph([], name, [], [info], [tensor])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "p"), else_branch=branch("e", "q"))
    graph = helper.make_graph(
        [node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array(True), "c")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    np.testing.assert_array_equal(run(load(model))["y"], [1, 2])


def test_loops_and_nested_bodies() -> None:
    graph = graph_of(
        """() => (float[1] y, float[N, 1] all)
        <int64 n = {4}, bool go = {1}, float[1] start = {1}, float[1] step = {2}> {
            y, all = Loop(n, go, start) <
                body = b (int64 i, bool ci, float[1] s) => (bool co, float[1] so, float[1] kept) {
                    co = Identity(ci)
                    so = If(ci) <
                        then_branch = t () => (float[1] u) { u = Add(s, step) },
                        else_branch = e () => (float[1] v) { v = Identity(s) }
                    >
                    kept = Identity(so)
                }
            >
        }"""
    )
    found = run(graph)
    np.testing.assert_array_equal(found["y"], [9])
    np.testing.assert_array_equal(found["all"], [[3], [5], [7], [9]])


def test_left_out_operands_and_results_stay_left_out() -> None:
    x = numpy_helper.from_array(np.arange(4, dtype=np.float32), "x")
    top = numpy_helper.from_array(np.array(2, np.float32), "top")
    nodes = [helper.make_node("Clip", ["x", "", "top"], ["y"]), helper.make_node("Dropout", ["y"], ["d", ""])]
    outputs = [helper.make_tensor_value_info("d", TensorProto.FLOAT, [4])]
    graph = helper.make_graph(nodes, "g", [], outputs, [x, top])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = load(model)
    cut = extract(loaded.order(), loaded.outputs, {})
    assert list(cut.model.graph.node[0].input)[1] == ""
    assert [bool(name) for name in cut.model.graph.node[1].output] in ([True], [True, False])
    np.testing.assert_array_equal(run(loaded)["d"], [0, 1, 2, 2])


def test_attributes_are_those_of_now() -> None:
    graph = graph_of("() => (float[1, 2] y) <float[2, 1] a = {1, 2}> { y = Transpose<perm = [0, 1]>(a) }")
    (node,) = graph.order()
    graph.set_attribute(node, "perm", (1, 0))
    assert run(graph)["y"].shape == (1, 2)


def test_the_extract_is_a_valid_model_at_its_opset() -> None:
    graph = graph_of("() => (float[3] y) <float[1, 3] a = {1, 2, 3}> { y = Squeeze<axes = [0]>(a) }", opset=11)
    cut = extract(graph.order(), graph.outputs, {})
    assert cut.model.opset_import[0].version == 11
    for info in cut.model.graph.output:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
        info.type.tensor_type.shape.SetInParent()
        info.type.tensor_type.shape.dim.add()
    checker.check_model(cut.model)
    np.testing.assert_array_equal(run(graph)["y"], [1, 2, 3])


def test_only_the_opsets_in_use_are_imported() -> None:
    text = "() => (float[2] y) <float[2] a = {1, 4}> { y = Sqrt(a) }"
    graph = load(parse_text(text, {"": 17, "ai.onnx.ml": 99, "vendor": 3}))
    cut = extract(graph.order(), graph.outputs, {})
    assert [entry.domain for entry in cut.model.opset_import] == [""]
    np.testing.assert_array_equal(run(graph)["y"], [1, 2])


@pytest.mark.parametrize("name", ["INT4", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT16"])
def test_every_element_type_goes_through(name: str) -> None:
    # Rounding from float to the type and back tells whether its elements arrived.
    numbers = helper.make_tensor("a", TensorProto.DataType.Value(name), [3], [1.0, 2.0, -3.0])
    nodes = [helper.make_node("Cast", ["a"], ["f"], to=TensorProto.FLOAT), helper.make_node("Neg", ["f"], ["y"])]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])], [numbers])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    np.testing.assert_array_equal(run(load(model))["y"], [-1, -2, 3])
