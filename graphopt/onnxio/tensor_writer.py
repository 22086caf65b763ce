"""Tensor to TensorProto; bytes that lie in a file stay there until the file is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from onnx import SparseTensorProto

from graphopt.onnxio.wire import BYTES, Message, Piece, fields
from graphopt.tensors import DType, Tensor

Place: TypeAlias = Callable[[str, Tensor], Mapping[str, str] | None]
"""Decides for a tensor by name whether its bytes go to an external file; returns its `external_data` entries if so."""
_BY_THE_KERNEL = 4096
"""Bytes from which a copy inside the kernel pays."""
_CARRIED = (12, 16)
"""Doc string and metadata of a `TensorProto`; what comes after them is unknown here."""


def write_tensor(
    tensor: Tensor, name: str, entries: Mapping[str, str] | None = None, original: memoryview | None = None
) -> Message:
    """A `TensorProto`, with its bytes inside or external.

    Args:
        tensor: The data.
        name: Its name, "" for none.
        entries: `external_data` entries if the bytes are elsewhere.
        original: The message it was read from; doc string, metadata and unknown fields are taken over.
    """
    out = Message()
    for size in tensor.shape:
        out.varint(1, size)
    out.varint(2, int(tensor.dtype))
    if entries is None and tensor.dtype is DType.STRING:
        for item in tensor.numpy().reshape(-1):
            out.payload(6, bytes(item))
    if name:
        out.text(8, name)
    if entries is None and tensor.dtype is not DType.STRING:
        out.payload(9, tensor.region or (tensor if tensor.is_computed else tensor.raw()))
    carried = [] if original is None else list(fields(original, 0, len(original)))
    for number, _, begin, _, end in carried:
        if original is not None and number == _CARRIED[0]:
            out.raw(original[begin:end])
    if entries is not None:
        for key, value in entries.items():
            out.entry(13, key, value)
        out.varint(14, 1)
    for number, _, begin, _, end in carried:
        if original is not None and number >= _CARRIED[1]:
            out.raw(original[begin:end])
    return out


def name_in(message: memoryview | None) -> str:
    """The name a `TensorProto` has, "" for none."""
    for number, kind, _, payload, end in () if message is None else fields(message, 0, len(message)):
        if message is not None and number == 8 and kind == BYTES:
            return str(message[payload:end], "utf-8")
    return ""


def as_read(tensor: Tensor, message: memoryview) -> list[Piece]:
    """A `TensorProto` as read; its data, if long, as a region of the file so that the kernel copies it."""
    region = tensor.region
    if region is None or region.length < _BY_THE_KERNEL:
        return [message]
    for number, kind, _, payload, end in fields(message, 0, len(message)):
        if number == 9 and kind == BYTES and end - payload == region.length:
            return [message[:payload], region, message[end:]]
    return [message]


def write_sparse(message: memoryview, name: str) -> bytes:
    """A `SparseTensorProto` as read, under another name if need be."""
    proto = SparseTensorProto.FromString(bytes(message))
    if proto.values.name == name:
        return bytes(message)
    proto.values.name = name
    return bytes(proto.SerializeToString())
