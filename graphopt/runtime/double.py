"""A model with its float32 and float16 parts in float64: the truth that errors are measured against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

_FLOAT, _FLOAT16, _DOUBLE, _BFLOAT16 = 1, 10, 11, 16
_NARROW = (_FLOAT, _FLOAT16, _BFLOAT16)


def in_double(model: bytes | str) -> bytes:
    """The model with inputs, weights, attributes and casts of float32, float16 and bfloat16 in double.

    The runtime decides later whether it has kernels for that; quantizing operators, and operators of other domains,
    mostly have none.

    Raises:
        ValueError: The model is too large or refers to data outside.
    """
    import onnx

    proto = onnx.load(model, load_external_data=True) if isinstance(model, str) else onnx.ModelProto.FromString(model)
    for graph in graphs(proto):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for sparse in graph.sparse_initializer:
            _widen_tensor(sparse.values)
        for value in (*graph.input, *graph.output):
            _widen_type(value.type)
        del graph.value_info[:]
        for node in graph.node:
            _widen_node(node)
    for function in proto.functions:
        del function.value_info[:]
        for node in function.node:
            _widen_node(node)
    return bytes(proto.SerializeToString())


def graphs(proto: Any) -> Iterator[Any]:
    """The main graph of a model and every body in it, those of its functions included."""
    todo = [proto.graph]
    todo += [item for function in proto.functions for node in function.node for item in bodies(node)]
    while todo:
        graph = todo.pop()
        yield graph
        for node in graph.node:
            todo += bodies(node)


def bodies(node: Any) -> list[Any]:
    """The bodies of one node."""
    found = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def _widen_type(type_proto: Any) -> None:
    kind = type_proto.WhichOneof("value")
    if kind == "tensor_type" and type_proto.tensor_type.elem_type in _NARROW:
        type_proto.tensor_type.elem_type = _DOUBLE
    elif kind == "sequence_type":
        _widen_type(type_proto.sequence_type.elem_type)
    elif kind == "optional_type":
        _widen_type(type_proto.optional_type.elem_type)


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type not in _NARROW:
        return
    from onnx import numpy_helper

    if tensor.data_location == 1:
        raise ValueError("the model refers to data outside of it")
    array = numpy_helper.to_array(tensor)
    if tensor.data_type == _BFLOAT16 and array.dtype == np.uint16:
        array = array.view(ml_dtypes.bfloat16)
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array).astype(np.float64), name))


# Operators whose dtype attribute says what they make, with the attribute's name.
_DTYPE_ATTRIBUTES = {
    "Cast": "to",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
    "HannWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "Bernoulli": "dtype",
    "SequenceEmpty": "dtype",
}


def _widen_node(node: Any) -> None:
    if node.domain not in ("", "ai.onnx"):
        return
    dtype_attribute = _DTYPE_ATTRIBUTES.get(node.op_type)
    has_dtype = False
    for attribute in node.attribute:
        if attribute.name == dtype_attribute and attribute.i in _NARROW:
            attribute.i = _DOUBLE
        has_dtype |= attribute.name == dtype_attribute
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        for tensor in attribute.tensors:
            _widen_tensor(tensor)
        if attribute.HasField("tp"):
            _widen_type(attribute.tp)
    if node.op_type == "Constant":
        _widen_constant(node)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        from onnx import helper

        node.attribute.append(helper.make_attribute("value", helper.make_tensor("value", _DOUBLE, [1], [0.0])))
    elif node.op_type in ("RandomNormal", "RandomUniform", "SequenceEmpty") and not has_dtype:
        attribute = node.attribute.add()
        attribute.name, attribute.type, attribute.i = "dtype", 2, _DOUBLE


def _widen_constant(node: Any) -> None:
    """`value_float` and `value_floats` make float32 whatever happens; write them as tensors of double."""
    from onnx import helper

    for attribute in list(node.attribute):
        if attribute.name == "value_float":
            value: Any = np.float64(np.float32(attribute.f))
        elif attribute.name == "value_floats":
            value = np.asarray(attribute.floats, dtype=np.float32).astype(np.float64)
        else:
            continue
        array = np.asarray(value)
        tensor = helper.make_tensor("value", _DOUBLE, array.shape, array.reshape(-1).tolist())
        node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("value", tensor))
