"""Protobuf's wire format: walking fields without parsing them, and writing messages without holding them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from graphopt.errors import TruncatedModelError
from graphopt.tensors import FileRegion, Tensor

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Field: TypeAlias = tuple[int, int, int, int, int]
"""Field number, wire type, where the field begins, where its payload begins, where it ends. Offsets into the buffer."""
_CUT_SHORT = "the file is not a complete ONNX model"


def read_varint(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """A varint and the position after it.

    Raises:
        TruncatedModelError: it does not end before `end`, or is longer than ten bytes.
    """
    begin = position
    result = shift = 0
    while position < end and shift < 70:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise TruncatedModelError(f"{_CUT_SHORT}: the number at byte {begin} does not end; fetch the file again", begin)


def fields(buffer: memoryview, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets, in their order.

    Raises:
        TruncatedModelError: a length points past the end, or a wire type does not exist; `offset` says where.
    """
    position = start
    while position < end:
        begin = position
        # Numbers below 128 are one byte: nearly all tags are, and most lengths.
        tag = buffer[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(buffer, begin, end)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, payload = read_varint(buffer, position, end)
            position = payload + length
        elif kind == VARINT:
            payload = position
            _, position = read_varint(buffer, position, end)
        elif kind == FIXED32:
            payload, position = position, position + 4
        elif kind == FIXED64:
            payload, position = position, position + 8
        else:
            number, payload = 0, position
        if number == 0:
            raise TruncatedModelError(
                f"the file is not an ONNX model: byte {begin} starts no field of a protobuf message; "
                "check that it is the .onnx file itself",
                begin,
            )
        if position > end:
            raise TruncatedModelError(
                f"{_CUT_SHORT}: the field at byte {begin} needs {position - payload} bytes "
                f"but {end - payload} are left; fetch the file again",
                begin,
            )
        yield number, kind, begin, payload, position


def encode_varint(value: int) -> bytes:
    """A number as varint; negative ones as 64-bit two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


Piece: TypeAlias = bytes | memoryview | FileRegion | Tensor
"""Bytes at hand, bytes in a file, or those of a tensor that is computed when it is read."""


def piece_bytes(piece: Piece) -> bytes | memoryview:
    """The bytes of a piece, without copying them."""
    if isinstance(piece, FileRegion):
        return piece.view()
    return piece.raw() if isinstance(piece, Tensor) else piece


def piece_length(piece: Piece) -> int:
    """How many bytes a piece has."""
    if isinstance(piece, FileRegion):
        return piece.length
    return piece.nbytes if isinstance(piece, Tensor) else len(piece)


@dataclass(slots=True)
class Message:
    """A message being written: pieces that are copied only when the file is."""

    pieces: list[Piece] = field(default_factory=list)
    length: int = 0

    def raw(self, piece: Piece) -> None:
        """Append bytes that are complete fields already."""
        self.pieces.append(piece)
        self.length += piece_length(piece)

    def varint(self, number: int, value: int) -> None:
        """Append an integer field."""
        self.raw(encode_varint(number << 3 | VARINT) + encode_varint(value))

    def payload(self, number: int, piece: Piece) -> None:
        """Append a bytes field."""
        self.raw(encode_varint(number << 3 | BYTES) + encode_varint(piece_length(piece)))
        self.raw(piece)

    def text(self, number: int, value: str) -> None:
        """Append a string field."""
        self.payload(number, value.encode())

    def entry(self, number: int, key: str, value: str) -> None:
        """Append a `StringStringEntryProto`."""
        inner = Message()
        inner.text(1, key)
        inner.text(2, value)
        self.message(number, inner)

    def message(self, number: int, inner: Message) -> None:
        """Append a message field."""
        self.raw(encode_varint(number << 3 | BYTES) + encode_varint(inner.length))
        self.extend(inner)

    def extend(self, other: Message) -> None:
        """Append the fields of another message."""
        self.pieces.extend(other.pieces)
        self.length += other.length

    def to_bytes(self) -> bytes:
        """The whole message in memory."""
        return b"".join(piece_bytes(piece) for piece in self.pieces)
