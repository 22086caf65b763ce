"""New names, and whoever refers to the old ones."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import pytest
from onnx import helper, parser

from graphopt.errors import UsageError
from graphopt.onnxio import load, metadata_of, to_proto
from graphopt.onnxio.renaming import rename_all

TEXT = """<ir_version: 9, opset_import: ["": 20]> g (bool c, float[2] x) => (float[2] y, float[2] u)
    <float[2] w = {1.0, 2.0}> {
    [first] h = Mul(x, w) [u] u = Neg(h)
    [choice] y = If(c) <then_branch = t () => (float[2] tv) { [inside] inner = Add(h, x) tv = Neg(inner) },
               else_branch = e () => (float[2] ev) { ev = Identity(h) }> }"""


def renamed(names: Mapping[str, str], text: str = TEXT) -> onnx.ModelProto:
    graph = load(parser.parse_model(text))
    rename_all(graph, names)
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_everything_that_has_a_name() -> None:
    proto = renamed({"x": "image", "y": "scores", "w": "weight", "h": "hidden", "first": "start", "inner": "sum"})
    assert [item.name for item in proto.graph.input] == ["c", "image"]
    assert [item.name for item in proto.graph.output] == ["scores", "u"]
    assert [item.name for item in proto.graph.initializer] == ["weight"]
    assert list(proto.graph.node[0].input) == ["image", "weight"]
    assert (proto.graph.node[0].name, proto.graph.node[0].output[0]) == ("start", "hidden")
    body = proto.graph.node[2].attribute[0].g
    assert list(body.node[0].input) == ["hidden", "image"]
    assert body.node[0].output[0] == "sum"


def test_names_may_change_places() -> None:
    proto = renamed({"y": "u", "u": "y"})
    assert [item.name for item in proto.graph.output] == ["u", "y"]
    assert {node.op_type: node.output[0] for node in proto.graph.node} == {"Mul": "h", "Neg": "y", "If": "u"}


def test_one_name_of_a_node_and_a_value() -> None:
    proto = renamed({"u": "negated"})
    assert (proto.graph.node[1].name, proto.graph.node[1].output[0]) == ("negated", "negated")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"x": "w"}, "value called 'w' already"),
        ({"x": "inner"}, "value called 'inner' already"),
        ({"first": "choice"}, "node called 'choice' already"),
        ({"x": "new", "w": "new"}, "both be called 'new'"),
        ({"ww": "new"}, "did you mean 'w'"),
        ({"x": ""}, "needs a name"),
    ],
)
def test_collisions_and_unknown_names_are_refused(names: Mapping[str, str], message: str) -> None:
    graph = load(parser.parse_model(TEXT))
    with pytest.raises(UsageError, match=message):
        rename_all(graph, names)
    assert graph.changes == 0


def test_quantization_annotations_follow() -> None:
    proto = parser.parse_model(TEXT)
    for tensor, scale in (("h", "w"), ("w", "h")):
        annotation = proto.graph.quantization_annotation.add(tensor_name=tensor)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)
    graph = load(proto)
    notes = rename_all(graph, {"h": "w", "w": "h", "x": "image"})
    assert notes == ["2 quantization annotations renamed along"]
    after = [
        (item.tensor_name, item.quant_parameter_tensor_names[0].value)
        for item in to_proto(graph).graph.quantization_annotation
    ]
    assert after == [("w", "h"), ("h", "w")]


def test_metadata_follows_where_its_key_says_that_it_holds_names() -> None:
    proto = parser.parse_model(TEXT)
    helper.set_model_props(
        proto, {"input_names": "c, x", "outputs": '{"y": ["y", 1]}', "task": "y", "author": "x and others"}
    )
    graph = load(proto)
    notes = rename_all(graph, {"x": "image", "y": "scores"})
    assert metadata_of(graph.model) == {
        "input_names": "c,image",
        "outputs": '{"scores": ["scores", 1]}',
        "task": "y",
        "author": "x and others",
    }
    assert any("left alone" in note and "task" in note for note in notes)
    assert {entry.key: entry.value for entry in to_proto(graph).metadata_props} == metadata_of(graph.model)


def test_what_training_refers_to_keeps_its_name() -> None:
    proto = parser.parse_model(TEXT)
    proto.training_info.add().update_binding.add(key="w", value="h")
    with pytest.raises(UsageError, match="training refers to 'w'"):
        rename_all(load(proto), {"w": "weight"})
