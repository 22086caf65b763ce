"""Models with everything ONNX has, each made to be written back byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper, parser

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]


def info(name: str, dims: Any = (2,), dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, dims)


def numbers(name: str, *values: float) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32), name)


def model_of(
    nodes: list[NodeProto],
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    initializers: list[TensorProto] | None = None,
    **options: Any,
) -> ModelProto:
    """A model of one graph; inputs default to `x`, outputs to `y`."""
    graph_options = {key: options.pop(key) for key in ("value_info", "sparse_initializer") if key in options}
    graph = helper.make_graph(
        nodes,
        "main",
        [info("x")] if inputs is None else inputs,
        [info("y")] if outputs is None else outputs,
        initializers or [],
        **graph_options,
    )
    options.setdefault("ir_version", 10)
    options.setdefault("opset_imports", OPSETS)
    return helper.make_model(graph, **options)


def text(source: str) -> ModelProto:
    """A model in text syntax."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>\n{source}')


def node(op_type: str, operands: list[str], results: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, operands, results, **attributes)


RELU = [node("Relu", ["x"], ["y"])]
MODELS: dict[str, Callable[[], ModelProto]] = {}


def zoo(make: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
    MODELS[make.__name__] = make
    return make


@zoo
def words() -> ModelProto:
    """Doc strings, metadata, producer, versions, everywhere."""
    model = model_of(RELU, producer_name="tests", producer_version="7", doc_string="of the model", model_version=12)
    model.domain = "some.where"
    model.metadata_props.add(key="k", value="v")
    model.metadata_props.add(key="", value="")
    graph = model.graph
    graph.doc_string = "of the graph ✓"
    graph.metadata_props.add(key="graph", value="g")
    first = graph.node[0]
    first.doc_string, first.name = "of the node", "relu/1"
    first.metadata_props.add(key="node", value="n")
    graph.input[0].doc_string = "of the input"
    graph.input[0].metadata_props.add(key="input", value="i")
    graph.initializer.append(numbers("w", 1, 2))
    graph.initializer[0].doc_string = "of the weight"
    graph.initializer[0].metadata_props.add(key="weight", value="w")
    return model


@zoo
def dims() -> ModelProto:
    """Names, denotations, unknown dims, unknown ranks, scalars."""
    inputs = [info("x", ["batch", 2]), info("u", [None, "batch"]), info("s", []), info("r", None)]
    inputs[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    inputs[0].type.denotation = "TENSOR"
    nodes = [node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])]
    return model_of(nodes, inputs, [info("y", ["batch", 2])], value_info=[info("h", ["batch", 2]), info("never", [3])])


@zoo
def unknown_fields() -> ModelProto:
    """Fields nobody has defined yet, in every message."""
    model = model_of(RELU, initializers=[numbers("w", 1)], value_info=[info("h")])
    later = b"\xfa\x3f\x05later"  # field 1023, five bytes
    data = model.graph.node[0].SerializeToString() + later
    model.graph.node[0].ParseFromString(data)
    for message in (model.graph.initializer[0], model.graph.input[0], model.graph.output[0], model.graph):
        message.ParseFromString(message.SerializeToString() + later)
    model.ParseFromString(model.SerializeToString() + later)
    return model


@zoo
def functions() -> ModelProto:
    """Functions with opset imports of their own, overloads, attributes with and without default, value infos."""
    attribute = AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    leaky = node("LeakyRelu", ["a"], ["h"])
    leaky.attribute.append(attribute)
    first = helper.make_function(
        "mine", "F", ["a", "b"], ["o"],
        [leaky, node("Softmax", ["h"], ["s"]), node("Add", ["s", "b"], ["o"])],
        [helper.make_opsetid("", 12)], attributes=["slope"], doc_string="of the function",
        attribute_protos=[helper.make_attribute("beta", 2.0)], value_info=[info("h")],
    )  # fmt: skip
    second = helper.make_function(
        "mine", "F", ["a"], ["o"], [node("Constant", [], ["c"], value_float=1.0), node("Add", ["a", "c"], ["o"])],
        [helper.make_opsetid("", 18)], overload="one",
    )  # fmt: skip
    first.metadata_props.add(key="f", value="1")
    branch = helper.make_graph([node("Neg", ["a"], ["n"])], "b", [], [info("n")])
    third = helper.make_function(
        "mine", "Chooser", ["a", "c"], ["o"], [node("If", ["c"], ["o"], then_branch=branch, else_branch=branch)],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    calls = [
        node("F", ["x", "x"], ["h"], domain="mine", slope=0.5),
        node("F", ["h"], ["i"], domain="mine", overload="one"),
        node("Chooser", ["i", "c"], ["y"], domain="mine"),
    ]
    return model_of(calls, [info("x"), info("c", [], TensorProto.BOOL)], functions=[first, second, third])


@zoo
def sparse() -> ModelProto:
    """Sparse initializers, one of them the default of an input, and a sparse constant."""

    def of(name: str) -> Any:
        values = helper.make_tensor(name, TensorProto.FLOAT, [2], [1.0, 2.0])
        return helper.make_sparse_tensor(values, helper.make_tensor("", TensorProto.INT64, [2], [0, 3]), [4])

    constant = node("Constant", [], ["c"], sparse_value=of(""))
    nodes = [constant, node("Add", ["c", "w"], ["h"]), node("Add", ["h", "x"], ["y"])]
    return model_of(nodes, [info("x", [4])], [info("y", [4])], sparse_initializer=[of("w"), of("x")])


@zoo
def quantized() -> ModelProto:
    """Quantization annotations."""
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["y"])]
    model = model_of(
        nodes, outputs=[info("y", dtype=TensorProto.UINT8)],
        initializers=[numpy_helper.from_array(np.float32(0.5), "scale"), numpy_helper.from_array(np.uint8(3), "zero"),
                      numpy_helper.from_array(np.float32(0.5), "other")],
    )  # fmt: skip
    annotation = model.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="other")
    return model


@zoo
def training() -> ModelProto:
    """Training info that refers to initializers by name."""
    model = model_of([node("Add", ["x", "w"], ["y"])], initializers=[numbers("w", 1, 2), numbers("unused", 3, 4)])
    step = model.training_info.add()
    step.algorithm.CopyFrom(helper.make_graph([node("Neg", ["w"], ["new_w"])], "step", [], [info("new_w")]))
    step.update_binding.add(key="w", value="new_w")
    return model


@zoo
def mirrored() -> ModelProto:
    """IR version 3: every initializer is listed as an input."""
    return model_of(
        [node("Add", ["x", "w"], ["y"])], [info("w"), info("x"), info("v")],
        initializers=[numbers("w", 1, 2), numbers("v", 3, 4)], ir_version=3, opset_imports=[helper.make_opsetid("", 8)],
    )  # fmt: skip


@zoo
def overridable() -> ModelProto:
    """Initializers a caller may override, between others."""
    return model_of(
        [node("Add", ["x", "w"], ["h"]), node("Add", ["h", "v"], ["y"])], [info("w"), info("x")],
        initializers=[numbers("v", 3, 4), numbers("w", 1, 2), numbers("unused", 5)],
    )  # fmt: skip


@zoo
def strings() -> ModelProto:
    """String tensors and attributes, bytes that are no text among them."""
    tensor = helper.make_tensor("s", TensorProto.STRING, [2], [b"a\xff", "é".encode()])
    constants = [
        node("Constant", [], ["c"], value_string=b"\xff\x00"),
        node("Constant", [], ["d"], value_strings=[b"\xff", b"ok", b""]),
    ]  # fmt: skip
    nodes = [*constants, node("StringNormalizer", ["x"], ["y"], stopwords=["a", "b"], locale="en_US")]
    kind = TensorProto.STRING
    return model_of(nodes, [info("x", dtype=kind)], [info("y", dtype=kind), info("d", dtype=kind)], [tensor])


@zoo
def containers() -> ModelProto:
    """Sequences, optionals, maps."""
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    sequence = helper.make_sequence_type_proto(tensor)
    optional = helper.make_optional_type_proto(sequence)
    mapping = TypeProto()
    mapping.map_type.key_type = TensorProto.INT64
    mapping.map_type.value_type.CopyFrom(tensor)
    inputs = [info("x"), helper.make_value_info("q", sequence), helper.make_value_info("m", mapping)]
    inputs.append(helper.make_value_info("bare", TypeProto()))
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("Optional", ["s"], ["o"]),
        node("OptionalGetElement", ["o"], ["t"]),
        node("Optional", [], ["none"], type=tensor),
        node("SequenceAt", ["t", "i"], ["y"]),
    ]
    outputs = [info("y"), helper.make_value_info("o", optional), helper.make_value_info("m", mapping)]
    return model_of(nodes, inputs, outputs, [numpy_helper.from_array(np.int64(0), "i")])


@zoo
def element_types() -> ModelProto:
    """Every element type, in raw and in typed fields."""
    tensors = []
    for name, code in TensorProto.DataType.items():
        if code in (TensorProto.UNDEFINED, TensorProto.STRING):
            continue
        dtype = helper.tensor_dtype_to_np_dtype(code)
        array = np.array([1, 0, 1]).astype(dtype)
        raw = numpy_helper.from_array(array, f"{name}_raw")
        typed = helper.make_tensor(
            f"{name}_typed", code, [3], array.astype(np.complex64 if "COMPLEX" in name else np.float32)
        )
        tensors += [raw, typed]
    tensors.append(numpy_helper.from_array(np.zeros((0, 2), np.float32), "empty"))
    tensors.append(TensorProto(name="empty_typed", data_type=TensorProto.INT64, dims=[0]))
    tensors.append(TensorProto(name="none_typed", data_type=TensorProto.STRING, dims=[0]))
    return model_of(RELU, initializers=tensors)


@zoo
def constant_forms() -> ModelProto:
    """`Constant` in every form, small and large."""
    big = numpy_helper.from_array(np.arange(5000, dtype=np.float32))
    named = numpy_helper.from_array(np.array([1, 2], ml_dtypes.bfloat16), "its own name")
    forms: list[dict[str, Any]] = [
        {"value": big}, {"value": named}, {"value_float": 1.5}, {"value_floats": [1.0, 2.0]}, {"value_int": -3},
        {"value_ints": [1, 2]}, {"value_string": "s"}, {"value_strings": ["s", "t"]},
        {"value": helper.make_tensor("", TensorProto.INT4, [3], [1, -2, 3])},
        {"value": helper.make_tensor("", TensorProto.STRING, [1], ["word"])},
    ]  # fmt: skip
    nodes = [node("Constant", [], [f"c{i}"], name=f"constant {i}", **form) for i, form in enumerate(forms)]
    nodes[0].doc_string = "a long one"
    return model_of([*nodes, *RELU])


@zoo
def attribute_forms() -> ModelProto:
    """Attributes of every kind on an operator nobody knows."""
    tensor = numbers("t", 1, 2)
    graph = helper.make_graph([node("Neg", ["x"], ["n"])], "inner", [], [info("n")])
    odd = node(
        "Odd", ["x", "", "x"], ["y", "", "z"], domain="mine", f=1.5, i=-7, s="text", t=tensor, fs=[1.0, 2.0],
        ints=[1, 2], strings=["a", "b"], graph=graph,
    )  # fmt: skip
    odd.attribute.append(helper.make_attribute("graphs", [graph, GraphProto(name="second"), graph]))
    odd.attribute.append(helper.make_attribute("tensors", [tensor, tensor]))
    odd.attribute.append(helper.make_attribute("empty_floats", [], attr_type=AttributeProto.FLOATS))
    odd.attribute.append(helper.make_attribute("empty_strings", [], attr_type=AttributeProto.STRINGS))
    odd.attribute.append(helper.make_attribute("empty_graphs", [], attr_type=AttributeProto.GRAPHS))
    odd.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(TensorProto.FLOAT, [2])))
    odd.attribute.append(AttributeProto(name="untyped", i=3))
    odd.attribute[0].doc_string = "of the attribute"
    return model_of([odd], outputs=[info("y"), info("z")])


NESTED = """
main (float[2] x, bool c, int64 n) => (float[2] y) <float[2] w = {1.0, 2.0}>
{
    a = Relu(x)
    shape = Constant<value_ints = [1, 2]>()
    b = If (c) <
        then_branch = t () => (float[2] r) <float[2] k = {3.0, 4.0}> { p = Add(a, w)  r = Mul(p, k) },
        else_branch = e () => (float[2] r) {
            q, stack = Loop (n, c, a) <
                body = l (int64 i, bool g, float[2] s) => (bool go, float[2] so, float[2] each) {
                go = Identity(g)
                v = Add(s, w)
                so = If (g) <
                    then_branch = tt () => (float[2] d) { d = Sub(v, a) },
                    else_branch = ee () => (float[2] d) { d = Identity(w) }
                >
                each = Neg(so)
            }>
            r = Neg(q)
        }
    >
    rows = Reshape(x, shape)
    y, stacked = Scan (b, rows) <
        num_scan_inputs = 1, body = scan (float[2] sa, float[2] row) => (float[2] sb, float[2] out) {
        sb = Add(sa, row)
        out = Mul(sb, a)
    }>
}
"""


@zoo
def nested() -> ModelProto:
    """If, Loop and Scan inside one another, with captures, names used in several bodies, results without a name."""
    return text(NESTED)


@zoo
def shadowed() -> ModelProto:
    """Bodies whose inputs and initializers are called like outer values that they do not read."""
    body = helper.make_graph(
        [node("Identity", ["going"], ["go"]), node("Add", ["h", "w"], ["x_next"])], "body",
        [info("i", [], TensorProto.INT64), info("going", [], TensorProto.BOOL), info("h")],
        [info("go", [], TensorProto.BOOL), info("x_next")], [numbers("w", 5, 6)],
    )  # fmt: skip
    nodes = [node("Add", ["x", "w"], ["h"]), node("Loop", ["n", "c", "h"], ["y"], body=body)]
    initializers = [
        numbers("w", 1, 2),
        numpy_helper.from_array(np.int64(2), "n"),
        numpy_helper.from_array(np.array(True), "c"),
    ]
    return model_of(nodes, initializers=initializers)


@zoo
def outputs_of_all_sorts() -> ModelProto:
    """Outputs that are inputs, initializers and constants, and one value returned twice."""
    nodes = [node("Constant", [], ["c"], value_floats=[1.0, 2.0]), *RELU]
    outputs = [info("x"), info("y"), info("w"), info("c"), info("y")]
    return model_of(nodes, outputs=outputs, initializers=[numbers("w", 1, 2)])


@zoo
def omitted() -> ModelProto:
    """Operands and results left out, in the middle and at the end."""
    nodes = [
        node("Clip", ["x", "", "high"], ["a"]),
        node("Clip", ["a", "", ""], ["b"]),
        node("Dropout", ["b"], ["d", ""]),
        node("LSTM", ["q", "w", "r"], ["", "hidden", ""], hidden_size=2),
        node("Relu", ["d"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.zeros((1, 8, size), np.float32), name) for name, size in (("w", 3), ("r", 2))]
    outputs = [info("y"), info("hidden", None)]
    return model_of(
        nodes, [info("x"), info("q", [4, 1, 3])], outputs, [*weights, numpy_helper.from_array(np.float32(6), "high")]
    )


@zoo
def nothing() -> ModelProto:
    """No nodes, and a graph without a name."""
    model = model_of([], outputs=[info("x")])
    model.graph.ClearField("name")
    return model


@zoo
def old() -> ModelProto:
    """IR version 1 knows neither opset imports nor types of attributes."""
    model = model_of([node("LeakyRelu", ["x"], ["y"], alpha=0.5)], ir_version=1)
    model.ClearField("opset_import")
    model.graph.node[0].attribute[0].ClearField("type")
    return model


@zoo
def new_ir() -> ModelProto:
    """Configurations of devices, which IR version 11 added."""
    model = model_of(RELU, ir_version=11)
    model.configuration.add(name="two", num_devices=2)
    model.graph.node[0].device_configurations.add(configuration_id="two")
    return model


def out_of_order() -> ModelProto:
    """Nodes listed before what they read."""
    return model_of([node("Neg", ["h"], ["y"]), node("Relu", ["x"], ["h"])])


def same_name_constants() -> ModelProto:
    """Constants that share a name: the runtime takes the last."""
    first, last = (node("Constant", [], ["c"], value_floats=[number, number]) for number in (1.0, 2.0))
    return model_of([first, last, node("Add", ["x", "c"], ["y"])])
