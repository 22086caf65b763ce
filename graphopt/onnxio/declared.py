"""Editing a declared type without losing what else the message says."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ValueInfoProto


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
