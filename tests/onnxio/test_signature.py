"""Other inputs and outputs: cutting a model, fixing dims, returning inner values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import pytest
from onnx import helper, parser

from graphopt.api import change_signature
from graphopt.errors import UsageError
from graphopt.ir import Graph
from graphopt.onnxio import load, to_proto
from graphopt.onnxio.cutting import around, needed_inputs
from graphopt.onnxio.signature import Signature

TWO = """<ir_version: 9, opset_import: ["": 20]> two (float[N,3] x, float[N,3] z) => (float[N,3] y, float[N,3] u)
    <float[3] w = {1.0, 2.0, 3.0}, float[3] spare = {1.0, 2.0, 3.0}>
    { [i] a = Identity(x) [m] b = Mul(a, w) [r] y = Relu(b) [d] u = Add(b, z) }"""
BRANCHES = """<ir_version: 9, opset_import: ["": 20]> choice (bool c, float[2] x) => (float[2] y) {
    h = Neg(x) q = Abs(h)
    y = If(c) <then_branch = t () => (float[2] tv) { inner = Add(h, q) tv = Neg(inner) },
               else_branch = e () => (float[2] ev) { ev = Identity(h) }> }"""


def changed(text: str, **options: Any) -> onnx.ModelProto:
    graph = load(parser.parse_model(text))
    change_signature(graph, Signature(**options))
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def refused(text: str, **options: Any) -> str:
    graph = load(parser.parse_model(text))
    with pytest.raises(UsageError) as error:
        change_signature(graph, Signature(**options))
    return str(error.value)


def ports(proto: onnx.ModelProto) -> tuple[list[str], list[str]]:
    return [item.name for item in proto.graph.input], [item.name for item in proto.graph.output]


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def dims(info: onnx.ValueInfoProto) -> list[Any]:
    return [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]


def test_a_model_begins_at_an_inner_value() -> None:
    proto = changed(TWO, inputs=["b", "z"])
    assert ports(proto) == (["b", "z"], ["y", "u"])
    assert operators(proto) == ["Relu", "Add"]
    assert not proto.graph.initializer
    assert dims(proto.graph.input[0]) == ["N", 3]


def test_inputs_come_in_the_order_asked_for() -> None:
    assert ports(changed(TWO, inputs=["z", "x"]))[0] == ["z", "x"]


def test_a_weight_may_become_an_input() -> None:
    proto = changed(TWO, inputs=["x", "z", "w"])
    assert ports(proto)[0] == ["x", "z", "w"]
    assert not proto.graph.initializer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inputs": ["b"]}, ("output 'u' still needs input 'z'", "read by d", "leave out")),
        ({"inputs": ["bb", "z"]}, ("no value 'bb'", "did you mean 'b'")),
        ({"inputs": ["b", "b", "z"]}, ("once",)),
        ({"inputs": ["a", "b", "z"]}, ("no output needs 'a'",)),
        ({"outputs": ["nothing"]}, ("no value 'nothing'", "outputs are")),
        ({"outputs": []}, ("at least one",)),
        ({"add_outputs": ["y"]}, ("output already",)),
        ({"fix_dims": {"M": 3}}, ("free dim", "N")),
        ({"fix_shapes": {"x": (2, 4)}}, ("does not fit",)),
    ],
)
def test_what_cannot_be_had_is_told(options: Mapping[str, Any], words: tuple[str, ...]) -> None:
    message = refused(TWO, **options)
    assert all(word in message for word in words), message


def test_an_output_that_needs_more_may_be_left_out() -> None:
    proto = changed(TWO, inputs=["b"], outputs=["y"])
    assert ports(proto) == (["b"], ["y"])
    assert operators(proto) == ["Relu"]


def test_an_inner_value_is_returned_too() -> None:
    proto = changed(TWO, add_outputs=["b"], fix_dims={"N": 4})
    assert ports(proto)[1] == ["y", "u", "b"]
    assert dims(proto.graph.output[2]) == [4, 3]


def test_all_at_once() -> None:
    proto = changed(
        TWO, inputs=["b", "z"], add_outputs=["b"], io_dtypes={"z": "uint8"}, rename={"b": "start"}, fix_dims={"N": 4}
    )
    assert ports(proto) == (["start", "z"], ["y", "u", "start"])
    assert proto.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert dims(proto.graph.input[0]) == [4, 3]


def test_bodies_read_the_new_input() -> None:
    proto = changed(BRANCHES, inputs=["c", "h"])
    assert ports(proto)[0] == ["c", "h"]
    assert operators(proto) == ["Abs", "If"]


def test_values_in_bodies_are_no_place_to_begin_or_end() -> None:
    assert "body of If" in refused(BRANCHES, inputs=["c", "inner"])
    assert "body of If" in refused(BRANCHES, add_outputs=["inner"])


def test_an_input_with_a_default_becomes_a_constant_unless_named() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[2] x, float[2] w = {1.0, 2.0}) => (float[2] y)
        { y = Mul(x, w) }"""
    proto = parser.parse_model(text)
    assert [item.name for item in proto.graph.input] == ["x", "w"]
    graph = load(proto)
    notes = change_signature(graph, Signature(inputs=["x"]))
    assert "now constants: w" in notes
    cut = to_proto(graph)
    assert ports(cut)[0] == ["x"]
    assert [item.name for item in cut.graph.initializer] == ["w"]
    assert ports(changed(text, inputs=["x", "w"]))[0] == ["x", "w"]


def test_before_ir_version_4_weights_stay_listed() -> None:
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "w", "y")]
    nodes = [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Mul", ["h", "w"], ["y"])]
    graph = helper.make_graph(nodes, "old", infos[:2], infos[2:], [weight])
    proto = helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 9)])
    loaded = load(proto)
    change_signature(loaded, Signature(inputs=["h"]))
    cut = to_proto(loaded)
    onnx.checker.check_model(cut)
    assert ports(cut)[0] == ["h", "w"]


def test_functions_nobody_calls_any_more_go() -> None:
    text = """<ir_version: 9, opset_import: ["": 20, "f": 1]> g (float[2] x) => (float[2] y)
        { h = f.Twice(x) y = Neg(h) }
        <domain: "f", opset_import: ["": 20]> Twice (p) => (q) { q = Add(p, p) }"""
    assert not changed(text, inputs=["h"]).functions
    assert changed(text, inputs=["x"]).functions


def test_types_do_not_speak_of_inputs_that_are_gone() -> None:
    graph = load(parser.parse_model(TWO))
    change_signature(graph, Signature(inputs=["b", "z"]))
    (value,) = [item for item in graph.inputs if item.name == "b"]
    assert value.shape is not None
    assert getattr(value.shape[0], "key", None) == ("b", 0)
    assert all(value.shape is None for node in graph.nodes() for value in node.results)


@pytest.mark.parametrize(
    ("name", "depth", "expected"),
    [
        ("m", 0, (["a"], ["b"])),
        ("b", 0, (["a"], ["b"])),
        ("m", 1, (["x", "z"], ["y", "u"])),
        ("r", 1, (["a"], ["b", "y"])),
    ],
)
def test_around_a_node(name: str, depth: int, expected: tuple[list[str], list[str]]) -> None:
    assert around(load(parser.parse_model(TWO)), name, depth) == expected


def test_around_a_node_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="did you mean"):
        around(load(parser.parse_model(TWO)), "mm", 1)


def test_around_a_node_in_a_body() -> None:
    with pytest.raises(UsageError, match="lies in a body of If 'y'"):
        around(load(parser.parse_model(BRANCHES)), "inner", 1)


def test_inputs_an_output_needs() -> None:
    graph: Graph = load(parser.parse_model(TWO))
    assert needed_inputs(graph, ["y"]) == ["x"]
    assert needed_inputs(graph, ["u"]) == ["x", "z"]
