"""NodeProto to what a node is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, NodeProto

from graphopt.errors import ModelError
from graphopt.onnxio import protos
from graphopt.onnxio.tensors import TensorReader
from graphopt.onnxio.wire import BYTES, fields
from graphopt.tensors import DType, Tensor

_SMALL = 2048
"""Bytes up to which a message is parsed whole; a longer one is walked, for it may hold weights or bodies."""
_CONSTANT_DTYPES = {
    "value_float": DType.FLOAT,
    "value_floats": DType.FLOAT,
    "value_int": DType.INT64,
    "value_ints": DType.INT64,
    "value_string": DType.STRING,
    "value_strings": DType.STRING,
}


@dataclass(slots=True)
class NodeParts:
    """What one `NodeProto` says.

    Attributes:
        head: The message; its attributes may be missing.
        inputs: Operand names, "" for an omitted one.
        outputs: Result names; omitted ones at the end are dropped.
        attributes: Attributes in IR form, without bodies.
        bodies: Where each body lies, by attribute; one of a list of graphs is `name[i]`.
    """

    head: NodeProto
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_node(tensors: TensorReader, start: int, end: int) -> NodeParts:
    """The parts of the `NodeProto` between two offsets; tensors in it stay where they are.

    Raises:
        ModelError: it is damaged, or a name is not UTF-8.
    """
    try:
        parts = _read_node(tensors, start, end)
    except DecodeError as error:
        raise ModelError(f"the node at byte {start} is damaged ({error}); fetch the file again") from error
    head = parts.head
    parts.inputs, parts.outputs = list(head.input), list(head.output)
    names = (head.name, head.op_type, head.domain, head.overload, *parts.inputs, *parts.outputs, *parts.attributes)
    if bytes in map(type, names):  # how protobuf hands over text that is not UTF-8
        raise ModelError(f"the node at byte {start} has a name that is not UTF-8; export the model again")
    while parts.outputs and not parts.outputs[-1]:
        parts.outputs.pop()
    return parts


def _read_node(tensors: TensorReader, start: int, end: int) -> NodeParts:
    view = tensors.view
    proto = _parsed_whole(view, start, end) if end - start <= _SMALL else None
    if proto is not None and not any(item.HasField("g") or item.graphs for item in proto.attribute):
        parts = NodeParts(proto)
        for item in proto.attribute:
            parts.attributes[item.name] = protos.attribute_value(item, tensors.from_proto)
        return parts
    head = bytearray()
    attributes: list[tuple[int, int]] = []
    for number, kind, begin, payload, stop in fields(view, start, end):
        if number == 5 and kind == BYTES:
            attributes.append((payload, stop))
        else:
            head += view[begin:stop]
    parts = NodeParts(NodeProto.FromString(bytes(head)))
    for place in attributes:
        _read_attribute(tensors, *place, parts)
    return parts


def _parsed_whole(view: memoryview, start: int, end: int) -> NodeProto | None:
    try:
        proto: NodeProto = NodeProto.FromString(bytes(view[start:end]))
    except DecodeError:
        return None  # walking it tells what is wrong, and where
    return proto


def _read_attribute(tensors: TensorReader, start: int, end: int, parts: NodeParts) -> None:
    """Read one attribute; graphs are noted, a tensor's bytes stay in the file."""
    name, tensor = "", None
    graphs: list[tuple[int, int]] = []
    is_list = False
    for number, kind, _, payload, stop in fields(tensors.view, start, end):
        if kind != BYTES:
            continue
        if number == 1:
            name = tensors.text(payload, stop)
        elif number == 5:
            tensor = (payload, stop)
        elif number in (6, 11):
            graphs.append((payload, stop))
            is_list = number == 11
    if graphs:
        parts.bodies.update((f"{name}[{i}]" if is_list else name, place) for i, place in enumerate(graphs))
    elif tensor is not None:
        parts.attributes[name] = tensors.read(*tensor)[1]
    else:
        proto = AttributeProto.FromString(bytes(tensors.view[start:end]))
        parts.attributes[name] = protos.attribute_value(proto, tensors.from_proto)


def constant_tensor(parts: NodeParts) -> Tensor | None:
    """The data of a `Constant` node; None for any other node, and where it is sparse or the caller's of a function."""
    head = parts.head
    if head.op_type != "Constant" or head.domain not in ("", "ai.onnx") or len(parts.outputs) != 1 or parts.inputs:
        return None
    if len(parts.attributes) != 1 or parts.bodies:
        return None
    ((name, value),) = parts.attributes.items()
    if isinstance(value, Tensor):
        return value if name == "value" else None
    dtype = _CONSTANT_DTYPES.get(name)
    if dtype is None or not isinstance(value, (int, float, str, bytes, tuple)):
        return None
    try:
        return Tensor.of(np.array(value, dtype=dtype.numpy), dtype)
    except (ValueError, TypeError) as error:
        raise ModelError(f"the constant '{parts.outputs[0]}' holds no {name}; export the model again") from error
