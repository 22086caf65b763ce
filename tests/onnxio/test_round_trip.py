from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnxio_models import MODELS, info, model_of, node, numbers, out_of_order, same_name_constants

from graphopt.errors import ModelError
from graphopt.ir import Kind, OpaqueType, OptionalType, SequenceType, TensorType, check_model
from graphopt.onnxio import load, metadata_of, save, to_proto, write_model
from graphopt.schema import RefAttribute, UnreadAttribute
from graphopt.tensors import DType

ALL = sorted(MODELS)


def written(model: ModelProto) -> ModelProto:
    return to_proto(load(model))


UNCHECKED = {
    "attribute_forms": "an attribute without type",
    "containers": "an input without type",
    "dims": "an input without rank",
    "element_types": "types the checker does not know yet",
    "functions": "opsets that differ from the model's",
    "nothing": "a graph without name",
    "old": "no opset",
    "omitted": "an output without rank",
    "outputs_of_all_sorts": "an output twice",
    "unknown_fields": "fields the checker does not know",
}


@pytest.mark.parametrize("name", [name for name in ALL if name not in UNCHECKED])
def test_the_zoo_is_valid(name: str) -> None:
    onnx.checker.check_model(MODELS[name]())


@pytest.mark.parametrize("name", ALL)
def test_bytes_come_back(name: str) -> None:
    data = MODELS[name]().SerializeToString()
    graph = load(data)
    check_model(graph.model)
    assert write_model(graph.model).to_bytes() == data


@pytest.mark.parametrize("name", ALL)
def test_bytes_come_back_through_files(name: str, tmp_path: Path) -> None:
    data = MODELS[name]().SerializeToString()
    path, other = tmp_path / "model.onnx", tmp_path / "other.onnx"
    path.write_bytes(data)
    assert save(load(path), other) is False
    assert other.read_bytes() == data
    save(load(path), path)
    assert path.read_bytes() == data
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "other.onnx"]


@pytest.mark.parametrize("name", ALL)
def test_a_message_is_not_changed(name: str) -> None:
    model = MODELS[name]()
    data = model.SerializeToString()
    graph = load(model)
    for item in graph.nodes():
        graph.rename(item, "renamed")
    assert model.SerializeToString() == data


@pytest.mark.parametrize("name", ALL)
def test_rewritten_nodes_say_the_same(name: str) -> None:
    """Every node is edited and edited back under a name of its own, so that none is written as it was read."""
    original = MODELS[name]()
    graph = load(original)
    for scope in graph.model.graphs():
        for item in scope.all_nodes():
            if item.kind in (Kind.OPERATOR, Kind.CONSTANT) and not item.is_pinned and (item.is_operator or item.name):
                scope.rename(item, f"{item.name}!")
    back = to_proto(graph)
    assert back.SerializeToString() != original.SerializeToString() or not original.graph.node
    _unname(back)
    _unname(original)
    assert back == original


def _unname(model: ModelProto) -> None:
    """Take out of nodes what renaming changes, and what may be written in several ways."""
    lists = [model.graph.node, *(function.node for function in model.functions)]
    while lists:
        for item in lists.pop():
            for name in ("name", "domain"):
                if not getattr(item, name).strip("!"):
                    item.ClearField(name)
            item.name = item.name.rstrip("!")
            for names in (item.input, item.output):
                while names and not names[-1]:
                    names.pop()
            ordered = sorted(item.attribute, key=lambda attribute: attribute.name)
            del item.attribute[:]
            item.attribute.extend(ordered)
            for attribute in item.attribute:
                if attribute.HasField("g") or attribute.graphs:
                    attribute.ClearField("doc_string")
                lists += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]


# --- what the graph knows


def test_metadata() -> None:
    assert metadata_of(load(MODELS["words"]()).model) == {"k": "v", "": ""}


def test_types_of_inputs_are_evidence_and_of_others_only_elements() -> None:
    graph = load(MODELS["dims"]())
    x, u, s, r = graph.inputs
    assert [str(value.type) for value in (x, u, s, r)] == ["float[batch,2]", "float[u.0,batch]", "float", "float[]"]
    assert x.shape is not None
    assert u.shape is not None
    assert x.shape[0] != u.shape[1]
    h = graph.nodes()[0].result
    assert h.type == TensorType(DType.FLOAT)
    assert graph.outputs[0].type == TensorType(DType.FLOAT)


def test_containers_have_types() -> None:
    graph = load(MODELS["containers"]())
    types = {value.name: value.type for value in graph.inputs}
    assert types["q"] == SequenceType(TensorType(DType.FLOAT))
    assert isinstance(types["m"], OpaqueType)
    assert types["bare"] is None
    optional = next(item for item in graph.nodes() if item.op_type == "Optional").result
    assert optional.type == OptionalType(SequenceType(TensorType(DType.FLOAT)))
    empty = graph.nodes()[3]
    assert isinstance(empty.attributes["type"], UnreadAttribute)


def test_every_element_type_reads_alike_raw_and_typed() -> None:
    model = MODELS["element_types"]()
    constants = {item.result.name: item.tensor for item in load(model).constants()}
    for proto in model.graph.initializer:
        tensor = constants[proto.name]
        assert tensor is not None
        if proto.data_type == TensorProto.STRING:
            continue
        assert tensor.numpy().tobytes() == numpy_helper.to_array(proto).tobytes()
        if proto.name.endswith("_raw"):
            typed = constants[proto.name.replace("_raw", "_typed")]
            assert typed is not None
            assert tensor.equals(typed)


def test_constants_in_every_form() -> None:
    constants = [item.tensor for item in load(MODELS["constant_forms"]()).constants()]
    assert [tensor.dtype.name for tensor in constants if tensor is not None] == [
        "FLOAT", "BFLOAT16", "FLOAT", "FLOAT", "INT64", "INT64", "STRING", "STRING", "INT4", "STRING",
    ]  # fmt: skip
    assert [tensor.tolist() for tensor in constants[1:] if tensor is not None] == [
        [1, 2], 1.5, [1.0, 2.0], -3, [1, 2], b"s", [b"s", b"t"], [1, -2, 3], [b"word"],
    ]  # fmt: skip


def test_attributes_in_every_form() -> None:
    (odd,) = load(MODELS["attribute_forms"]()).nodes()
    plain = {name: value for name, value in odd.attributes.items() if not isinstance(value, UnreadAttribute)}
    assert plain.pop("t").tolist() == [1.0, 2.0]
    assert [tensor.tolist() for tensor in plain.pop("tensors")] == [[1.0, 2.0]] * 2
    assert plain == {
        "f": 1.5, "i": -7, "s": "text", "fs": (1.0, 2.0), "ints": (1, 2), "strings": ("a", "b"), "empty_floats": (),
        "empty_strings": (), "untyped": 3,
    }  # fmt: skip
    assert list(odd.bodies) == ["graph", "graphs[0]", "graphs[1]", "graphs[2]"]
    assert [value.name for value in odd.results] == ["y", "", "z"]
    assert odd.operands[1] is None


def test_attributes_left_alone_keep_their_kind() -> None:
    graph = load(MODELS["attribute_forms"]())
    (odd,) = graph.nodes()
    graph.set_attribute(odd, "i", 8)
    kinds = {item.name: item.type for item in to_proto(graph).graph.node[0].attribute}
    assert kinds["empty_floats"] == AttributeProto.FLOATS
    assert kinds["empty_strings"] == AttributeProto.STRINGS
    assert kinds["i"] == AttributeProto.INT


def test_new_attributes_take_their_kind_from_the_schema() -> None:
    graph = load(model_of([node("Relu", ["x"], ["y"])]))
    x = graph.inputs[0]
    attributes = {"activations": [], "activation_alpha": [], "activation_beta": [1, 2], "clip": 3, "hidden_size": 2}
    item = graph.make_node("LSTM", [x, x, x], attributes=attributes)
    graph.insert(item)
    graph.set_outputs([item.results[0]])
    found = {entry.name: entry for entry in to_proto(graph).graph.node[-1].attribute}
    kinds = {name: AttributeProto.AttributeType.Name(entry.type) for name, entry in found.items()}
    assert kinds == {
        "activations": "STRINGS", "activation_alpha": "FLOATS", "activation_beta": "FLOATS", "clip": "FLOAT",
        "hidden_size": "INT",
    }  # fmt: skip
    assert list(found["activation_beta"].floats) == [1.0, 2.0]
    assert found["clip"].f == 3.0


def test_functions() -> None:
    model = load(MODELS["functions"]()).model
    assert list(model.functions) == [("mine", "F", ""), ("mine", "F", "one"), ("mine", "Chooser", "")]
    first = model.functions["mine", "F", ""]
    assert dict(first.graph.opsets) == {"": 12}
    assert first.attributes == ("slope",)
    assert first.attribute_defaults == {"beta": 2.0}
    leaky, softmax, _ = first.graph.nodes()
    assert leaky.attributes["alpha"] == RefAttribute("slope", AttributeProto.FLOAT)
    assert not softmax.has_latest_meaning
    assert [value.name for value in first.graph.inputs] == ["a", "b"]


def test_an_edited_function_keeps_the_rest() -> None:
    original = MODELS["functions"]()
    graph = load(original)
    second = graph.model.functions["mine", "F", "one"]
    (add,) = second.graph.nodes()
    second.graph.set_operands(add, [add.operands[1], add.operands[0]])
    back = to_proto(graph)
    assert list(back.functions[1].node[1].input) == ["c", "a"]
    back.functions[1].node[1].CopyFrom(original.functions[1].node[1])
    assert back == original


def test_a_changed_opset_of_a_function_is_written() -> None:
    graph = load(MODELS["functions"]())
    graph.model.functions["mine", "F", ""].graph.set_opset("", 13)
    graph.set_opset("com.microsoft", 1)
    back = to_proto(graph)
    assert [entry.version for entry in back.functions[0].opset_import] == [13]
    assert [entry.domain for entry in back.opset_import] == ["", "mine", "com.microsoft"]


def test_overridable_initializers_are_inputs_with_a_default() -> None:
    graph = load(MODELS["overridable"]())
    w, x = graph.inputs
    assert (w.name, x.name) == ("w", "x")
    assert w.const is None
    assert w.producer.default is not None
    assert w.producer.default.tolist() == [1.0, 2.0]


def test_before_ir_4_listed_initializers_are_constants() -> None:
    graph = load(MODELS["mirrored"]())
    assert [value.name for value in graph.inputs] == ["x"]
    assert [item.result.name for item in graph.constants()] == ["w", "v"]
    new = graph.add_constant(graph.constants()[0].tensor)  # type: ignore[arg-type]
    graph.set_operand(graph.nodes()[0], 0, new)
    back = to_proto(graph)
    onnx.checker.check_model(back)
    assert back.graph.node[0].op_type == "Constant"


def test_what_training_and_annotations_name_is_kept() -> None:
    assert [item.is_pinned for item in load(MODELS["training"]()).constants()] == [True, True]
    pinned = {item.result.name: item.is_pinned for item in load(MODELS["quantized"]()).constants()}
    assert pinned == {"scale": True, "zero": False, "other": True}


def test_annotations_follow_renamed_tensors_and_go_with_them() -> None:
    model = MODELS["quantized"]()
    model.graph.node.insert(0, node("Identity", ["x"], ["h"]))
    model.graph.node[1].input[0] = "h"
    model.graph.quantization_annotation[0].tensor_name = "h"
    graph = load(model)
    h = graph.nodes()[0].result
    graph.rename(h, "y")  # the output's name, so that export finds another
    (annotation,) = to_proto(graph).graph.quantization_annotation
    assert annotation.tensor_name == to_proto(graph).graph.node[0].output[0] == "identity_output"
    graph.replace_uses(h, graph.inputs[0])
    graph.erase(h.producer)
    assert len(to_proto(graph).graph.quantization_annotation) == 0


def test_value_infos_follow_their_values() -> None:
    graph = load(MODELS["dims"]())
    h = graph.nodes()[0].result
    new = graph.make_node("Abs", [graph.inputs[0]])
    graph.insert(new, rank=1)
    graph.replace_uses(h, new.result)
    graph.erase(h.producer)
    infos = {entry.name: entry for entry in to_proto(graph).graph.value_info}
    assert list(infos) == ["never", "h"]
    graph.retype(new.result, TensorType(DType.INT64))
    assert [entry.name for entry in to_proto(graph).graph.value_info] == ["never"]


def test_inputs_without_type_stay_so() -> None:
    assert not written(MODELS["containers"]()).graph.input[3].type.HasField("tensor_type")


# --- files that are not as they should be


def test_nodes_out_of_order_are_put_in_order() -> None:
    original = out_of_order()
    back = written(original)
    assert [item.op_type for item in back.graph.node] == ["Relu", "Neg"]
    onnx.checker.check_model(back)
    assert sorted(item.SerializeToString() for item in back.graph.node) == sorted(
        item.SerializeToString() for item in original.graph.node
    )


def test_of_constants_with_one_name_the_last_counts() -> None:
    graph = load(same_name_constants())
    (add,) = graph.nodes()
    operand = add.operands[1]
    assert operand is not None
    assert operand.const is not None
    assert operand.const.tolist() == [2.0, 2.0]
    back = to_proto(graph)
    assert len({name for item in back.graph.node for name in item.output}) == 3
    onnx.checker.check_model(back)


def test_of_initializers_with_one_name_the_last_counts() -> None:
    model = model_of([node("Add", ["x", "w"], ["y"])], initializers=[numbers("w", 1, 2), numbers("w", 3, 4)])
    operand = load(model).nodes()[0].operands[1]
    assert operand is not None
    assert operand.const is not None
    assert operand.const.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: model_of([node("Relu", ["gone"], ["y"])]), "node 'Relu' reads 'gone', which nothing defines"),
        (lambda: model_of([], outputs=[info("gone")]), "an output of the graph reads 'gone'"),
        (lambda: model_of([node("Relu", ["x"], ["y"])] * 2), "two values are called 'y'"),
        (lambda: model_of([node("Relu", ["y"], ["x"]), node("Neg", ["x"], ["y"])]), "two values are called 'x'"),
        (lambda: model_of([], [info("x"), info("x")], [info("x")]), "two inputs are called 'x'"),
        (lambda: model_of([node("Relu", ["y"], ["y"], name="self")]), "these nodes feed each other: self"),
        (
            lambda: model_of(
                [node("Relu", ["b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second")], outputs=[]
            ),
            "feed each other: (first -> second|second -> first); make one of them read something else",
        ),
        (lambda: model_of([], opset_imports=[]), "imports no operator set"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(model: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(model())  # type: ignore[operator]


def test_a_cycle_through_a_body_is_found() -> None:
    body = helper.make_graph([node("Neg", ["y"], ["n"])], "body", [], [info("n")])
    nodes = [
        node("If", ["c"], ["z"], name="the_if", then_branch=body, else_branch=body),
        node("Relu", ["z"], ["y"], name="r"),
    ]
    with pytest.raises(ModelError, match=r"(the_if -> r|r -> the_if)"):
        load(model_of(nodes, [info("x"), info("c", [], TensorProto.BOOL)]))


def test_two_functions_of_one_name() -> None:
    model = MODELS["functions"]()
    model.functions[1].overload = ""
    with pytest.raises(ModelError, match="two functions mine:F"):
        load(model)


def test_deep_nesting_is_refused_before_the_stack_ends() -> None:
    def wrap(inner: bytes) -> bytes:
        """The bytes of an If whose then branch holds a node."""
        graph = b"\x0a" + _length(inner) + inner
        attribute = b"\x0a\x01g\x32" + _length(graph) + graph
        return b"\x22\x02If\x2a" + _length(attribute) + attribute

    for depth, message in ((30, "reads|nothing"), (40, "nest deeper than 31"), (3000, "nest deeper than 31")):
        item = b"\x22\x04Relu"
        for _ in range(depth):
            item = wrap(item)
        graph = b"\x0a" + _length(item) + item
        data = b"\x08\x08\x3a" + _length(graph) + graph + b"\x42\x02\x10\x11"
        if depth < 31:
            assert len(list(load(data).bodies_inside())) == depth
            continue
        with pytest.raises(ModelError, match=message):
            load(data)


def _length(data: bytes) -> bytes:
    from graphopt.onnxio.wire import encode_varint

    return encode_varint(len(data))


def test_names_that_are_not_text() -> None:
    data = MODELS["words"]().SerializeToString()
    for old, new in ((b"relu/1", b"relu\xff1"), (b"\x42\x01w", b"\x42\x01\xff")):
        assert old in data
        with pytest.raises(ModelError, match="not UTF-8"):
            load(data.replace(old, new))


def test_an_element_type_nobody_knows() -> None:
    model = model_of([node("Relu", ["x"], ["y"])], initializers=[TensorProto(name="w", data_type=77, dims=[2])])
    with pytest.raises(ModelError, match="tensor 'w' has element type 77"):
        load(model)


@pytest.mark.parametrize("where", ["initializer", "constant", "large constant"])
def test_data_that_does_not_fit_type_and_shape(where: str) -> None:
    size = 4000 if where.startswith("large") else 2
    tensor = numpy_helper.from_array(np.zeros(size, np.float32), "w")
    tensor.dims[0] = size + 1
    item = node("Relu", ["x"], ["y"]) if where == "initializer" else node("Constant", [], ["y"], value=tensor)
    with pytest.raises(ModelError, match=f"needs {4 * size + 4} bytes by its type and shape but holds {4 * size}"):
        load(model_of([item], initializers=[tensor] if where == "initializer" else []))


def test_data_in_typed_fields_is_found_wrong_when_read() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], float_data=[1.0])
    constant = load(model_of([node("Relu", ["x"], ["y"])], initializers=[tensor])).constants()[0].tensor
    assert constant is not None
    with pytest.raises(ModelError, match="does not fit its type and shape"):
        constant.numpy()
