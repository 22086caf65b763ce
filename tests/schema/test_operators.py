from __future__ import annotations

import pytest
from onnx import AttributeProto, defs

from graphopt.schema import epoch_start, epochs, is_latest_meaning, latest_opset, min_ir_version, operator
from graphopt.tensors import DType


def test_an_operator_is_the_version_the_opset_selects() -> None:
    old, new = operator("", "Softmax", 12), operator("", "Softmax", 13)
    assert old is not None
    assert new is not None
    assert (old.since, new.since) == (11, 13)
    assert (old.defaults["axis"], new.defaults["axis"]) == (1, -1)
    assert operator("", "Softmax", 12) is old


@pytest.mark.parametrize(
    ("domain", "name", "opset"), [("", "Softmax", 0), ("", "NoSuch", 17), ("com.microsoft", "FusedMatMul", 1)]
)
def test_what_onnx_does_not_know_is_none(domain: str, name: str, opset: int) -> None:
    assert operator(domain, name, opset) is None


def test_a_newer_opset_than_this_onnx_knows_means_the_newest() -> None:
    assert operator("", "Relu", 10_000) is not None


def test_formals() -> None:
    clip = operator("", "Clip", 13)
    assert clip is not None
    assert [(formal.name, formal.optional) for formal in clip.inputs] == [
        ("input", False),
        ("min", True),
        ("max", True),
    ]
    assert (clip.min_inputs, clip.max_inputs, clip.min_outputs, clip.max_outputs) == (1, 3, 1, 1)
    assert clip.input_index("max") == 2
    assert clip.input_index("nothing") is None
    assert DType.FLOAT16 in clip.input_dtypes(0)
    concat = operator("", "Concat", 13)
    assert concat is not None
    assert concat.inputs[0].variadic
    assert concat.input_dtypes(5) == concat.input_dtypes(0)
    assert concat.required == {"axis"}


@pytest.mark.parametrize(
    ("name", "opset", "old", "new"), [("TopK", 11, "k", "K"), ("Pad", 13, "value", "constant_value")]
)
def test_a_parameter_that_was_renamed_is_found_by_either_name(name: str, opset: int, old: str, new: str) -> None:
    found = operator("", name, opset)
    assert found is not None
    assert found.input_index(old) == found.input_index(new) is not None


def test_attributes_have_their_kinds() -> None:
    conv = operator("", "Conv", 11)
    assert conv is not None
    assert conv.attributes["pads"] == AttributeProto.INTS
    assert conv.attributes["auto_pad"] == AttributeProto.STRING
    assert conv.defaults["auto_pad"] == "NOTSET"
    loop = operator("", "Loop", 16)
    assert loop is not None
    assert loop.attributes["body"] == AttributeProto.GRAPH


def test_every_operator_of_every_opset_converts() -> None:
    for schema in defs.get_all_schemas_with_history():
        found = operator(schema.domain, schema.name, schema.since_version)
        assert found is None or found.since == schema.since_version


def test_meanings() -> None:
    assert is_latest_meaning("", "Softmax", 13)
    assert not is_latest_meaning("", "Softmax", 12)
    assert is_latest_meaning("com.microsoft", "Softmax", 1)
    assert epoch_start("Relu") == 1


def test_meaning_of_one_form() -> None:
    assert epoch_start("BatchNormalization") == 7
    assert is_latest_meaning("", "BatchNormalization", 14)
    assert not is_latest_meaning("", "BatchNormalization", 13)
    assert is_latest_meaning("", "BatchNormalization", 9, outputs=1)
    assert not is_latest_meaning("", "BatchNormalization", 9, outputs=5)
    assert not is_latest_meaning("", "BatchNormalization", 6, outputs=1)
    assert not is_latest_meaning("", "BatchNormalization", 7, outputs=1, attributes={"spatial": 0})


def test_every_change_of_meaning_is_a_version_of_that_operator() -> None:
    versions: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            versions.setdefault(schema.name, set()).add(schema.since_version)
    assert {
        name for name, start in epochs._FIRST_OPSET_OF_TODAYS_MEANING.items() if start not in versions.get(name, ())
    } == set()


def test_versions() -> None:
    assert latest_opset() == defs.onnx_opset_version()
    assert latest_opset("ai.onnx.ml") >= 5
    assert latest_opset("nobody's") == 1
    assert min_ir_version(8) == 3
    assert min_ir_version(21) == 10
