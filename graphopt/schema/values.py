"""Attribute values that are neither numbers, strings nor tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefAttribute:
    """Inside a function: the value is the caller's attribute of that name. `kind` is `AttributeProto.type`."""

    name: str
    kind: int


@dataclass(frozen=True, slots=True)
class UnreadAttribute:
    """A sparse tensor or type, carried through as the serialized `AttributeProto` it was read from."""

    proto: bytes
