"""ONNX's own inference of one node, for operators that have no transfer function here.

Dims go in under names of their own and come out by them, so what ONNX takes to be equal is equal.
"""

from __future__ import annotations

import logging
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper, shape_inference

from graphopt.analysis.shapes.common import UNKNOWN, Fact, Facts
from graphopt.ir import Dim, Expr, Node, OptionalType, SequenceType, TensorType, Type
from graphopt.schema import RefAttribute, UnreadAttribute
from graphopt.tensors import DType, Tensor

_LOGGER = logging.getLogger(__name__)
_DATA_LIMIT = 64


def infer(node: Node) -> Facts:
    """What ONNX's inference says of the results of one node; nothing where ONNX does not know the operator."""
    operator = node.schema
    if operator is None or any(isinstance(value, RefAttribute) for value in node.attributes.values()):
        return ()
    schema = onnx.defs.get_schema(node.op_type, node.opset, node.domain)
    if not schema.has_type_and_shape_inference_function:
        return _fixed_types(node)
    names: dict[str, Expr] = {}
    types, data = {}, {}
    for index, value in enumerate(node.operands):
        proto = None if value is None else _type_proto(value.type, names)
        if value is not None and proto is not None:
            types[f"i{index}"] = proto
            tensor = value.const
            if tensor is not None and tensor.size <= _DATA_LIMIT:
                data[f"i{index}"] = _tensor_proto(tensor)
    try:
        found = shape_inference.infer_node_outputs(
            schema,
            _node_proto(node),
            types,
            data,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in _opsets(node)],
        )
    except (shape_inference.InferenceError, RuntimeError, ValueError, TypeError) as error:
        _LOGGER.debug("ONNX infers nothing of %r: %s", node, error)
        return _fixed_types(node)
    facts = [
        Fact(_type_of(found[f"o{index}"], names)) if f"o{index}" in found else UNKNOWN
        for index in range(len(node.results))
    ]
    return tuple(facts)


def _opsets(node: Node) -> list[tuple[str, int]]:
    return [] if node.graph is None else list(node.graph.opsets.items())


def _fixed_types(node: Node) -> Facts:
    """Element types where the schema allows but one."""
    operator = node.schema
    if operator is None or not operator.outputs:
        return ()
    names = {f"tensor({dtype.text})": dtype for dtype in DType}
    facts = []
    for index in range(len(node.results)):
        formal = operator.outputs[min(index, len(operator.outputs) - 1)]
        dtype = names.get(next(iter(formal.dtypes))) if len(formal.dtypes) == 1 else None
        facts.append(UNKNOWN if dtype is None else Fact(TensorType(dtype)))
    return tuple(facts)


# --- messages


def _node_proto(node: Node) -> NodeProto:
    proto = NodeProto()
    if node.origin is not None and node.is_intact:
        proto.ParseFromString(bytes(node.origin.proto))
        del proto.input[:], proto.output[:]
    else:
        proto.op_type, proto.domain = node.op_type, node.domain
        proto.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    proto.input.extend("" if value is None else f"i{index}" for index, value in enumerate(node.operands))
    proto.output.extend(f"o{index}" for index in range(len(node.results)))
    return proto


def _attribute(name: str, value: Any) -> AttributeProto:
    if isinstance(value, UnreadAttribute):
        return AttributeProto.FromString(value.proto)
    if isinstance(value, Tensor):
        return helper.make_attribute(name, _tensor_proto(value))
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return helper.make_attribute(name, [_tensor_proto(item) for item in value])
    if value == ():
        return helper.make_attribute(name, [], attr_type=AttributeProto.INTS)
    return helper.make_attribute(name, value)


def _tensor_proto(tensor: Tensor) -> TensorProto:
    proto = TensorProto(data_type=int(tensor.dtype), dims=tensor.shape)
    if tensor.dtype is DType.STRING:
        proto.string_data.extend(bytes(item) for item in tensor.numpy().reshape(-1))
    else:
        proto.raw_data = bytes(tensor.raw())
    return proto


def _type_proto(type: Type | None, names: dict[str, Expr]) -> TypeProto | None:
    if isinstance(type, TensorType):
        proto = TypeProto()
        proto.tensor_type.elem_type = int(type.dtype)
        if type.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in type.shape:
                entry = proto.tensor_type.shape.dim.add()
                if isinstance(dim, int):
                    entry.dim_value = dim
                elif dim is not None:
                    entry.dim_param = _name(dim, names)
        return proto
    if isinstance(type, SequenceType | OptionalType):
        inner = _type_proto(type.element, names)
        if inner is None:
            return None
        proto = TypeProto()
        (proto.sequence_type if isinstance(type, SequenceType) else proto.optional_type).elem_type.CopyFrom(inner)
        return proto
    return None if type is None else TypeProto.FromString(type.proto)


def _name(dim: Expr, names: dict[str, Expr]) -> str:
    for name, known in names.items():
        if known is dim:
            return name
    name = f"d{len(names)}"
    names[name] = dim
    return name


def _type_of(proto: TypeProto, names: dict[str, Expr]) -> Type | None:
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        if proto.tensor_type.elem_type == 0:
            return None
        dtype = DType(proto.tensor_type.elem_type)
        if not proto.tensor_type.HasField("shape"):
            return TensorType(dtype)
        return TensorType(dtype, tuple(_dim(entry, names) for entry in proto.tensor_type.shape.dim))
    if kind == "sequence_type":
        return SequenceType(_type_of(proto.sequence_type.elem_type, names))
    if kind == "optional_type":
        return OptionalType(_type_of(proto.optional_type.elem_type, names))
    return None


def _dim(entry: Any, names: dict[str, Expr]) -> Dim:
    if entry.HasField("dim_value"):
        return int(entry.dim_value) if entry.dim_value >= 0 else None
    return names.get(entry.dim_param)
