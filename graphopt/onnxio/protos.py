"""Small conversions between protobuf messages and IR objects."""

from __future__ import annotations

from typing import Any

from onnx import AttributeProto, TensorProto, TypeProto, numpy_helper

from graphopt.ir.symbol import Symbol
from graphopt.ir.types import Dim, OpaqueType, OptionalType, SequenceType, TensorType, Type
from graphopt.schema import RefAttribute, UnreadAttribute
from graphopt.tensors import DType, Tensor

_PLAIN_LISTS = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints"}
_LEGACY_FIELDS = (
    ("f", AttributeProto.FLOAT),
    ("i", AttributeProto.INT),
    ("s", AttributeProto.STRING),
    ("t", AttributeProto.TENSOR),
)
_LEGACY_LISTS = (
    ("floats", AttributeProto.FLOATS),
    ("ints", AttributeProto.INTS),
    ("strings", AttributeProto.STRINGS),
    ("tensors", AttributeProto.TENSORS),
)


def text_of(raw: bytes) -> str | bytes:
    """A string attribute as text, or as bytes where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def attribute_kind(proto: AttributeProto) -> int:
    """The attribute's type; models older than IR version 2 leave it to the field that is set."""
    if proto.type != AttributeProto.UNDEFINED:
        return int(proto.type)
    for name, kind in _LEGACY_FIELDS:
        if proto.HasField(name):
            return int(kind)
    for name, kind in _LEGACY_LISTS:
        if len(getattr(proto, name)):
            return int(kind)
    return int(AttributeProto.INTS)


def attribute_value(proto: AttributeProto) -> Any:
    """An attribute in IR form; graphs are not read here."""
    kind = attribute_kind(proto)
    if proto.ref_attr_name:
        return RefAttribute(proto.ref_attr_name, kind)
    if kind == AttributeProto.INT:
        return proto.i
    if kind == AttributeProto.FLOAT:
        return proto.f
    if kind == AttributeProto.STRING:
        return text_of(proto.s)
    if kind in _PLAIN_LISTS:
        return tuple(getattr(proto, _PLAIN_LISTS[kind]))
    if kind == AttributeProto.STRINGS:
        return tuple(text_of(item) for item in proto.strings)
    if kind == AttributeProto.TENSOR:
        return tensor_of(proto.t)
    if kind == AttributeProto.TENSORS:
        return tuple(tensor_of(item) for item in proto.tensors)
    return UnreadAttribute(proto.SerializeToString())


def tensor_of(proto: TensorProto) -> Tensor:
    """A tensor held in memory by its message."""
    dtype, shape = DType(proto.data_type), tuple(proto.dims)
    if proto.HasField("raw_data"):
        return Tensor(dtype, shape, memoryview(proto.raw_data))
    return Tensor(dtype, shape, lambda: numpy_helper.to_array(proto))


_ELEMENT_FIELD = {tuple: "ints"}


def attribute_proto(name: str, value: Any) -> AttributeProto:
    """An attribute message of an IR value."""
    if isinstance(value, UnreadAttribute):
        return AttributeProto.FromString(value.proto)
    proto = AttributeProto(name=name)
    if isinstance(value, RefAttribute):
        proto.ref_attr_name = value.name
        proto.type = value.kind  # type: ignore[assignment]
        return proto
    if isinstance(value, (tuple, list)):
        return _list_attribute(proto, tuple(value))
    if isinstance(value, bool) or isinstance(value, int):
        proto.type, proto.i = AttributeProto.INT, int(value)
    elif isinstance(value, float):
        proto.type, proto.f = AttributeProto.FLOAT, value
    elif isinstance(value, (str, bytes)):
        proto.type, proto.s = AttributeProto.STRING, _bytes(value)
    elif isinstance(value, Tensor):
        proto.type = AttributeProto.TENSOR
        proto.t.CopyFrom(tensor_proto(value))
    else:
        raise TypeError(f"attribute '{name}' cannot hold {type(value).__name__}; use numbers, strings or a Tensor")
    return proto


def _list_attribute(proto: AttributeProto, values: tuple[Any, ...]) -> AttributeProto:
    if values and all(isinstance(item, (str, bytes)) for item in values):
        proto.type = AttributeProto.STRINGS
        proto.strings.extend(_bytes(item) for item in values)
    elif values and all(isinstance(item, Tensor) for item in values):
        proto.type = AttributeProto.TENSORS
        proto.tensors.extend(tensor_proto(item) for item in values)
    elif any(isinstance(item, float) for item in values):
        proto.type = AttributeProto.FLOATS
        proto.floats.extend(float(item) for item in values)
    else:
        proto.type = AttributeProto.INTS
        proto.ints.extend(int(item) for item in values)
    return proto


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def tensor_proto(tensor: Tensor, name: str = "") -> TensorProto:
    """A message that holds a tensor's bytes; for small tensors."""
    proto = TensorProto(data_type=int(tensor.dtype), dims=tensor.shape, name=name)
    if tensor.dtype is DType.STRING:
        proto.string_data.extend(bytes(item) for item in tensor.numpy().reshape(-1))
    else:
        proto.raw_data = bytes(tensor.raw())
    return proto


def type_of(proto: TypeProto, input_name: str | None = None) -> Type | None:
    """A type in IR form.

    Args:
        proto: The message.
        input_name: Given for an input of the main graph, whose dims the runtime checks: free dims become symbols of
            that input. Otherwise the dims are not evidence and only the element type is kept.
    """
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        if proto.tensor_type.elem_type == 0:
            return None
        dtype = DType(proto.tensor_type.elem_type)
        if input_name is None or not proto.tensor_type.HasField("shape"):
            return TensorType(dtype)
        dims = enumerate(proto.tensor_type.shape.dim)
        return TensorType(dtype, tuple(_dim(dim, input_name, axis) for axis, dim in dims))
    if kind == "sequence_type":
        return SequenceType(type_of(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_of(proto.optional_type.elem_type))
    return None if kind is None else OpaqueType(proto.SerializeToString())


def _dim(proto: Any, input_name: str, axis: int) -> Dim:
    if proto.HasField("dim_value") and proto.dim_value >= 0:
        return int(proto.dim_value)
    # Two inputs may share a dim name and still differ in size: the runtime does not compare them.
    return Symbol((input_name, axis), proto.dim_param or f"{input_name}.{axis}")


def type_proto(type: Type | None) -> TypeProto | None:
    """A message of an IR type, symbolic dims by their text; None where nothing is known."""
    if type is None:
        return None
    if isinstance(type, OpaqueType):
        return TypeProto.FromString(type.proto)
    proto = TypeProto()
    if isinstance(type, TensorType):
        proto.tensor_type.elem_type = int(type.dtype)
        if type.shape is not None:
            proto.tensor_type.shape.SetInParent()
            for dim in type.shape:
                entry = proto.tensor_type.shape.dim.add()
                if isinstance(dim, int):
                    entry.dim_value = dim
                elif dim is not None:
                    entry.dim_param = str(dim)
        return proto
    inner = type_proto(type.element)
    target = proto.sequence_type if isinstance(type, SequenceType) else proto.optional_type
    target.SetInParent()
    if inner is not None:
        target.elem_type.CopyFrom(inner)
    return proto
