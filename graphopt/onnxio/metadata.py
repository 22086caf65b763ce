"""The `metadata_props` of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import StringStringEntryProto

from graphopt.ir import Model
from graphopt.onnxio.wire import Message, fields, piece_bytes

METADATA = 14
"""The field of `ModelProto`."""


def metadata_of(model: Model) -> dict[str, str]:
    """The model's metadata as text by key."""
    entries = (entry_of(piece) for number, piece in model.details.get("fields", []) if number == METADATA)
    return {entry.key: entry.value for entry in entries}


def is_replaced(number: int, piece: Any, stamp: Mapping[str, str]) -> bool:
    """True if a field of the model is a metadata entry that `stamp` gives another value: keys must not repeat."""
    return bool(stamp) and number == METADATA and entry_of(piece).key in stamp


def write_stamp(out: Message, stamp: Mapping[str, str]) -> None:
    """Append metadata entries to a model."""
    for key, value in stamp.items():
        out.entry(METADATA, key, value)


def entry_of(piece: Any) -> StringStringEntryProto:
    """The entry in a metadata field of the model."""
    raw = piece_bytes(piece)
    # The piece is a whole field: its tag and length come first.
    _, _, _, payload, stop = next(fields(memoryview(raw), 0, len(raw)))
    entry: StringStringEntryProto = StringStringEntryProto.FromString(bytes(raw[payload:stop]))
    return entry
