"""Other element types for inputs and outputs."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from graphopt.errors import UsageError
from graphopt.onnxio import load, to_proto
from graphopt.onnxio.casting import cast_ends, dtype_of, is_exact
from graphopt.tensors import DType

TEXT = """<ir_version: 9, opset_import: ["": 20]>
    g (float[N,3] x, string[N] s) => (float[N,3] y, float[N,3] u, string[N] s2) {
        h = Neg(x) y = Relu(h) u = Abs(y) s2 = Identity(s) }"""


def test_an_input_is_cast_inside() -> None:
    graph = load(parser.parse_model(TEXT))
    (note,) = cast_ends(graph, {"x": "uint8"})
    assert "uint8 now, and cast to float inside" in note
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    makers = {name: node for node in proto.graph.node for name in node.output}
    assert makers[makers["h"].input[0]].op_type == "Cast"


def test_an_output_is_cast_at_the_end_and_readers_inside_see_what_they_saw() -> None:
    graph = load(parser.parse_model(TEXT))
    cast_ends(graph, {"y": "double"})
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    makers = {name: node for node in proto.graph.node for name in node.output}
    assert makers["y"].op_type == "Cast"
    assert makers["u"].input[0] == makers["y"].input[0]


def test_an_output_loses_nothing_unasked() -> None:
    graph = load(parser.parse_model(TEXT))
    with pytest.raises(UsageError, match="--allow-lossy"):
        cast_ends(graph, {"y": "float16"})
    (note,) = cast_ends(graph, {"y": "float16"}, allow_lossy=True)
    assert "as allowed" in note


def test_the_type_there_is_changes_nothing() -> None:
    graph = load(parser.parse_model(TEXT))
    assert cast_ends(graph, {"x": "float32", "y": "float"}) == []
    assert graph.changes == 0


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("xx", "uint8", "did you mean 'x'"),
        ("x", "unit8", "did you mean 'uint8'"),
        ("x", "string", "no element type"),
        ("s", "uint8", "no cast"),
        ("s2", "uint8", "no cast"),
    ],
)
def test_what_cannot_be_cast(name: str, word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cast_ends(load(parser.parse_model(TEXT)), {name: word})


def test_an_old_opset_knows_fewer_types() -> None:
    text = '<ir_version: 6, opset_import: ["": 11]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    with pytest.raises(UsageError, match="raise the opset"):
        cast_ends(load(parser.parse_model(text)), {"x": "bfloat16"})


def test_what_is_input_and_output_keeps_its_type() -> None:
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }'
    with pytest.raises(UsageError, match="input and an output"):
        cast_ends(load(parser.parse_model(text)), {"x": "uint8"})


@pytest.mark.parametrize(
    ("given", "wanted", "exact"),
    [
        ("uint8", "float16", True),
        ("int16", "float16", False),
        ("int16", "float", True),
        ("int32", "float", False),
        ("int32", "double", True),
        ("uint32", "int64", True),
        ("int64", "int32", False),
        ("int8", "uint8", False),
        ("bool", "uint8", True),
        ("uint8", "bool", False),
        ("float16", "float", True),
        ("float", "float16", False),
        ("bfloat16", "float", True),
        ("bfloat16", "float16", False),
        ("float16", "bfloat16", False),
        ("uint8", "bfloat16", True),
        ("float", "int64", False),
        ("float8e5m2", "float16", True),
    ],
)
def test_which_casts_are_exact(given: str, wanted: str, exact: bool) -> None:
    assert is_exact(dtype_of(given), dtype_of(wanted)) is exact


def test_words_for_types() -> None:
    assert dtype_of("float32") is dtype_of("float") is DType.FLOAT
