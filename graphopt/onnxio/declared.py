"""Declared types: editing them without losing what else the message says, and making them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from onnx import ValueInfoProto

from graphopt.ir import TensorType, Type, Value
from graphopt.onnxio import protos
from graphopt.tensors import DType

_BROADCAST = re.compile(r"broadcast\(([\w.]+)(?:, \1)+\)")
"""Of two dims that have one name; what is a name here need not be equal at run time."""
_LONG = 60


def fix_declared_dims(
    declared: bytes, by_name: Mapping[str, int], by_axis: Mapping[int, int] | None = None, rank: int = 0
) -> bytes:
    """A serialized `ValueInfoProto` with some dims replaced by sizes.

    Args:
        declared: The message.
        by_name: Sizes by dim name.
        by_axis: Sizes by axis.
        rank: The rank to give a type that declares none.
    """
    if not declared:
        return declared
    proto = ValueInfoProto.FromString(declared)
    if not proto.type.HasField("tensor_type"):
        return declared
    shape = proto.type.tensor_type.shape
    if by_axis and not proto.type.tensor_type.HasField("shape"):
        for _ in range(rank):
            shape.dim.add()
    for axis, dim in enumerate(shape.dim if proto.type.tensor_type.HasField("shape") else ()):
        if by_axis and axis in by_axis:
            dim.dim_value = by_axis[axis]
        elif dim.dim_param in by_name:
            dim.dim_value = by_name[dim.dim_param]
    return bytes(proto.SerializeToString())


def declaration_of(value: Value, name: str) -> bytes:
    """A serialized `ValueInfoProto` of a value that comes into the signature.

    What was inferred goes before what the file says of the value, which may be wrong; where nothing was inferred the
    file's word is all there is.

    Args:
        value: The value, its type inferred.
        name: Its name in the signature.

    Returns:
        The message; without a type if nothing is known.
    """
    proto = ValueInfoProto() if value.declared is None else ValueInfoProto.FromString(value.declared)
    proto.name = name
    found = protos.type_proto(value.type)
    if found is None:
        return bytes(proto.SerializeToString())
    for dim in found.tensor_type.shape.dim if found.HasField("tensor_type") else ():
        if dim.dim_param:
            dim.dim_param = _short(dim.dim_param)
    if found.HasField("tensor_type") and proto.type.HasField("tensor_type"):
        _fill_dims(found.tensor_type, proto.type.tensor_type)
    if not (isinstance(value.type, TensorType) or value.declared is None):
        return bytes(proto.SerializeToString())  # of sequences and the like the file says more
    proto.type.CopyFrom(found)
    return bytes(proto.SerializeToString())


def _short(text: str) -> str:
    """A name for a dim: a sum or product of names as it is, anything longer by a digest, the same each time."""
    plain = _BROADCAST.sub(r"\1", text)
    return f"size_{hashlib.sha256(plain.encode()).hexdigest()[:6]}" if "(" in plain or len(plain) > _LONG else plain


def _fill_dims(found: Any, stated: Any) -> None:
    """Take over dims that were not inferred, if the ranks agree."""
    if not stated.HasField("shape"):
        return
    if not found.HasField("shape"):
        found.shape.CopyFrom(stated.shape)
        return
    if len(found.shape.dim) != len(stated.shape.dim):
        return
    for dim, other in zip(found.shape.dim, stated.shape.dim, strict=True):
        if dim.WhichOneof("value") is None:
            dim.CopyFrom(other)


def with_dtype(declared: bytes | None, value: Value, name: str, dtype: DType) -> bytes:
    """A serialized `ValueInfoProto` with another element type, everything else as declared or known."""
    proto = ValueInfoProto.FromString(declared if declared else declaration_of(value, name))
    proto.name = name
    proto.type.tensor_type.elem_type = int(dtype)
    return bytes(proto.SerializeToString())


def declared_type(declared: bytes) -> Type | None:
    """The type a `ValueInfoProto` states, its dims included; None where it states none."""
    proto = ValueInfoProto.FromString(declared)
    return protos.type_of(proto.type, proto.name)
