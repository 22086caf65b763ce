"""NodeProto to what a node is made of."""

from __future__ import annotations

from dataclasses import dataclass
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
        name: The node's name.
        op_type: Its operator.
        domain: The operator's domain, "" for the standard one.
        overload: Which of several functions of that name.
        inputs: Operand names, "" for an omitted one.
        outputs: Result names; omitted ones at the end are dropped.
        attributes: Attributes in IR form, without bodies.
        bodies: Where each body lies, by attribute; one of a list of graphs is `name[i]`.
    """

    name: str
    op_type: str
    domain: str
    overload: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]
    bodies: dict[str, tuple[int, int]]


def read_node(tensors: TensorReader, start: int, end: int) -> NodeParts:
    """The parts of the `NodeProto` between two offsets; tensors in it stay where they are.

    Raises:
        ModelError: it is damaged, or a name is not UTF-8.
    """
    raw = bytes(tensors.view[start:end]) if end - start <= _SMALL else b""
    try:
        parts = (_parsed_whole(tensors, raw) if raw else None) or _walked(tensors, start, end)
    except DecodeError as error:
        raise ModelError(f"the node at byte {start} is damaged ({error}); fetch the file again") from error
    if not raw or not raw.isascii():
        words = (parts.name, parts.op_type, parts.domain, parts.overload)
        if bytes in map(type, (*words, *parts.inputs, *parts.outputs, *parts.attributes)):
            # This is how protobuf hands over text that is not UTF-8.
            raise ModelError(f"the node at byte {start} has a name that is not UTF-8; export the model again")
    outputs = parts.outputs
    while outputs and not outputs[-1]:
        outputs.pop()
    return parts


def _parts(head: NodeProto) -> NodeParts:
    domain = head.domain
    return NodeParts(
        head.name,
        head.op_type,
        "" if domain == "ai.onnx" else domain,
        head.overload,
        list(head.input),
        list(head.output),
        {},
        {},
    )


def _parsed_whole(tensors: TensorReader, raw: bytes) -> NodeParts | None:
    """The parts of a message without bodies; None for others and where walking it will tell what is wrong."""
    try:
        proto = NodeProto.FromString(raw)
    except DecodeError:
        return None
    parts = _parts(proto)
    for item in proto.attribute:
        if item.HasField("g") or item.graphs:
            return None
        parts.attributes[item.name] = protos.attribute_value(item, tensors.from_proto)
    return parts


def _walked(tensors: TensorReader, start: int, end: int) -> NodeParts:
    """The parts of a message that may be large or have bodies."""
    view, head = tensors.view, bytearray()
    attributes: list[tuple[int, int]] = []
    for number, kind, begin, payload, stop in fields(view, start, end):
        if number == 5 and kind == BYTES:
            attributes.append((payload, stop))
        else:
            head += view[begin:stop]
    parts = _parts(NodeProto.FromString(bytes(head)))
    for place in attributes:
        _read_attribute(tensors, *place, parts)
    return parts


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
    if parts.op_type != "Constant" or parts.domain or parts.inputs or parts.bodies:
        return None
    if len(parts.outputs) != 1 or len(parts.attributes) != 1:
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
