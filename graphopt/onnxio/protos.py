"""Small conversions between protobuf messages and IR objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import AttributeProto, TensorProto, TypeProto

from graphopt.ir.symbol import Symbol
from graphopt.ir.types import Dim, OpaqueType, OptionalType, SequenceType, TensorType, Type
from graphopt.schema import RefAttribute, UnreadAttribute
from graphopt.tensors import DType, Tensor

_SCALAR_FIELDS: dict[int, str] = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i"}
_LIST_FIELDS: dict[int, str] = {AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints"}
_LEGACY_FIELDS = (
    ("f", AttributeProto.FLOAT),
    ("i", AttributeProto.INT),
    ("s", AttributeProto.STRING),
    ("t", AttributeProto.TENSOR),
    ("g", AttributeProto.GRAPH),
)
_LEGACY_LISTS = (
    ("floats", AttributeProto.FLOATS),
    ("ints", AttributeProto.INTS),
    ("strings", AttributeProto.STRINGS),
    ("tensors", AttributeProto.TENSORS),
    ("graphs", AttributeProto.GRAPHS),
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


def attribute_value(proto: AttributeProto, read_tensor: Callable[[TensorProto], Tensor]) -> Any:
    """An attribute in IR form; graphs are not read here."""
    kind = attribute_kind(proto)
    if proto.ref_attr_name:
        return RefAttribute(proto.ref_attr_name, kind)
    if kind in _SCALAR_FIELDS:
        return getattr(proto, _SCALAR_FIELDS[kind])
    if kind in _LIST_FIELDS:
        return tuple(getattr(proto, _LIST_FIELDS[kind]))
    if kind == AttributeProto.STRING:
        return text_of(proto.s)
    if kind == AttributeProto.STRINGS:
        return tuple(text_of(item) for item in proto.strings)
    if kind == AttributeProto.TENSOR:
        return read_tensor(proto.t)
    if kind == AttributeProto.TENSORS:
        return tuple(read_tensor(item) for item in proto.tensors)
    return UnreadAttribute(bytes(proto.SerializeToString()))


def attribute_proto(name: str, value: Any, kind: int | None = None) -> AttributeProto:
    """An attribute message of an IR value.

    Args:
        name: The attribute's name.
        value: Its value.
        kind: What the operator's schema says it is; None to go by the value. A number alone does not say whether it is
            an integer or a float, and an empty tuple says nothing.
    """
    if isinstance(value, UnreadAttribute):
        unread: AttributeProto = AttributeProto.FromString(value.proto)
        return unread
    proto = AttributeProto(name=name)
    if isinstance(value, RefAttribute):
        proto.ref_attr_name = value.name
        proto.type = value.kind  # type: ignore[assignment]
        return proto
    chosen = _kind_of(value) if kind in (None, AttributeProto.UNDEFINED) else kind
    if isinstance(value, tuple) and chosen not in _KINDS_OF_LISTS:
        chosen = _kind_of(value)
    proto.type = chosen  # type: ignore[assignment]
    if chosen == AttributeProto.INT:
        proto.i = int(value)
    elif chosen == AttributeProto.FLOAT:
        proto.f = float(value)
    elif chosen == AttributeProto.STRING:
        proto.s = _bytes(value)
    elif chosen == AttributeProto.TENSOR:
        proto.t.CopyFrom(tensor_proto(value))
    elif chosen == AttributeProto.INTS:
        proto.ints.extend(int(item) for item in value)
    elif chosen == AttributeProto.FLOATS:
        proto.floats.extend(float(item) for item in value)
    elif chosen == AttributeProto.STRINGS:
        proto.strings.extend(_bytes(item) for item in value)
    elif chosen == AttributeProto.TENSORS:
        proto.tensors.extend(tensor_proto(item) for item in value)
    return proto


_KINDS_OF_LISTS = (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS, AttributeProto.TENSORS)


def _kind_of(value: Any) -> int:
    if isinstance(value, tuple):
        kinds = {_kind_of(item) for item in value}
        if kinds == {int(AttributeProto.STRING)}:
            return int(AttributeProto.STRINGS)
        if kinds == {int(AttributeProto.TENSOR)}:
            return int(AttributeProto.TENSORS)
        return int(AttributeProto.FLOATS if AttributeProto.FLOAT in kinds else AttributeProto.INTS)
    if isinstance(value, int):
        return int(AttributeProto.INT)
    if isinstance(value, float):
        return int(AttributeProto.FLOAT)
    return int(AttributeProto.STRING if isinstance(value, (str, bytes)) else AttributeProto.TENSOR)


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
        dtype = DType.from_code(proto.tensor_type.elem_type)
        if dtype is DType.UNDEFINED:
            return None  # a declaration need not be understood
        if input_name is None or not proto.tensor_type.HasField("shape"):
            return TensorType(dtype)
        dims = enumerate(proto.tensor_type.shape.dim)
        return TensorType(dtype, tuple(_dim(dim, input_name, axis) for axis, dim in dims))
    if kind == "sequence_type":
        return SequenceType(type_of(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_of(proto.optional_type.elem_type))
    return None if kind is None else OpaqueType(bytes(proto.SerializeToString()))


def _dim(proto: Any, input_name: str, axis: int) -> Dim:
    if proto.HasField("dim_value") and proto.dim_value >= 0:
        return int(proto.dim_value)
    # Two inputs may share a dim name and still differ in size: the runtime does not compare them.
    name = proto.dim_param if isinstance(proto.dim_param, str) else ""  # bytes where it is not UTF-8
    return Symbol((input_name, axis), name or f"{input_name}.{axis}")


def type_proto(type: Type | None) -> TypeProto | None:
    """A message of an IR type, symbolic dims by their text; None where nothing is known."""
    if type is None:
        return None
    proto = TypeProto()
    if isinstance(type, OpaqueType):
        proto.ParseFromString(type.proto)
        return proto
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
