"""Values as they cross into ONNX Runtime and back: type names, dtypes that numpy lacks, strings, sequences."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from graphopt.errors import ValueNotSupportedError

# A value fed to or read from a model: an array, a list (sequence), a dict (map) or None (an empty optional).
Data = Any

# The runtime's spelling of an element type -> (numpy dtype, code in onnx.TensorProto.DataType).
ELEMENT_TYPES: dict[str, tuple[np.dtype[Any], int]] = {
    "float": (np.dtype(np.float32), 1),
    "uint8": (np.dtype(np.uint8), 2),
    "int8": (np.dtype(np.int8), 3),
    "uint16": (np.dtype(np.uint16), 4),
    "int16": (np.dtype(np.int16), 5),
    "int32": (np.dtype(np.int32), 6),
    "int64": (np.dtype(np.int64), 7),
    "string": (np.dtype(object), 8),
    "bool": (np.dtype(np.bool_), 9),
    "float16": (np.dtype(np.float16), 10),
    "double": (np.dtype(np.float64), 11),
    "uint32": (np.dtype(np.uint32), 12),
    "uint64": (np.dtype(np.uint64), 13),
    "complex64": (np.dtype(np.complex64), 14),
    "complex128": (np.dtype(np.complex128), 15),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 16),
    "float8e4m3fn": (np.dtype(ml_dtypes.float8_e4m3fn), 17),
    "float8e4m3fnuz": (np.dtype(ml_dtypes.float8_e4m3fnuz), 18),
    "float8e5m2": (np.dtype(ml_dtypes.float8_e5m2), 19),
    "float8e5m2fnuz": (np.dtype(ml_dtypes.float8_e5m2fnuz), 20),
    "uint4": (np.dtype(ml_dtypes.uint4), 21),
    "int4": (np.dtype(ml_dtypes.int4), 22),
    "float4e2m1": (np.dtype(ml_dtypes.float4_e2m1fn), 23),
    "float8e8m0": (np.dtype(ml_dtypes.float8_e8m0fnu), 24),
    "uint2": (np.dtype(ml_dtypes.uint2), 25),
    "int2": (np.dtype(ml_dtypes.int2), 26),
}
# Dtypes for which the runtime's numpy interface raises or returns plain bytes.
_EXOTIC = frozenset(name for name, (_, code) in ELEMENT_TYPES.items() if code >= 16)
_SUB_BYTE = {"uint4": 2, "int4": 2, "float4e2m1": 2, "uint2": 4, "int2": 4}


def element_name(type_text: str) -> str | None:
    """The element type inside `tensor(...)`, or None where the type is not a plain tensor."""
    if type_text.startswith("tensor(") and type_text.endswith(")"):
        return type_text[len("tensor(") : -1]
    return None


def is_exotic(type_text: str) -> bool:
    """True for tensors whose elements numpy lacks (bfloat16, float8, sub-byte integers)."""
    return element_name(type_text) in _EXOTIC


def numpy_dtype(type_text: str) -> np.dtype[Any] | None:
    """The numpy dtype of a tensor type, None for other types and unknown elements."""
    entry = ELEMENT_TYPES.get(element_name(type_text) or "")
    return entry[0] if entry else None


def ort_element_name(dtype: np.dtype[Any]) -> str | None:
    """The runtime's name of a numpy (or ml_dtypes) dtype; strings are objects."""
    if dtype.kind in "OSU":
        return "string"
    for name, (candidate, _) in ELEMENT_TYPES.items():
        if candidate == dtype:
            return name
    return None


def pack(array: np.ndarray[Any, Any], name: str) -> bytes:
    """The little-endian bytes of an array as the runtime keeps them: sub-byte elements packed, lowest bits first."""
    per_byte = _SUB_BYTE.get(name)
    if per_byte is None:
        return np.ascontiguousarray(array).tobytes()
    bits = 8 // per_byte
    flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1) & ((1 << bits) - 1)
    flat = np.concatenate([flat, np.zeros(-flat.size % per_byte, np.uint8)]).reshape(-1, per_byte)
    packed = np.zeros(len(flat), np.uint8)
    for slot in range(per_byte):
        packed |= flat[:, slot] << (slot * bits)
    return packed.tobytes()


def unpack(raw: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array behind the runtime's bytes; the inverse of `pack`."""
    dtype, _ = ELEMENT_TYPES[name]
    per_byte = _SUB_BYTE.get(name)
    size = int(np.prod(shape, dtype=np.int64))
    if per_byte is None:
        return np.frombuffer(raw, dtype=dtype, count=size).reshape(shape).copy()
    bits = 8 // per_byte
    source = np.frombuffer(raw, np.uint8)
    flat = np.stack([(source >> (slot * bits)) & ((1 << bits) - 1) for slot in range(per_byte)], axis=1)
    flat = flat.reshape(-1)[:size].astype(np.uint8)
    if name in ("int4", "int2"):
        flat = (flat.astype(np.int16) - ((flat >> (bits - 1)).astype(np.int16) << bits)).astype(np.int8)
        return flat.astype(dtype).reshape(shape)
    if name == "float4e2m1":
        return flat.view(dtype).reshape(shape)
    return flat.astype(dtype).reshape(shape)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def to_ort(value: Data, type_text: str, ort: Any) -> Any:
    """Turn a value into what `InferenceSession.run` takes for an input of this type.

    Raises:
        ValueNotSupportedError: The runtime's Python interface cannot be given such a value.
    """
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [to_ort(item, "", ort) for item in value]
    if isinstance(value, dict):
        return value
    array = np.asarray(value)
    name = ort_element_name(array.dtype)
    if name == "string":
        return np.array([_text(item) for item in array.reshape(-1)], dtype=object).reshape(array.shape)
    if name not in _EXOTIC:
        return np.ascontiguousarray(array).reshape(array.shape)
    return _exotic_value(array, name, ort)


def _exotic_value(array: np.ndarray[Any, Any], name: str, ort: Any) -> Any:
    code = ELEMENT_TYPES[name][1]
    raw = pack(array, name)
    try:
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), code)
        room = value.tensor_size_in_bytes()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueNotSupportedError(f"the runtime cannot be given a tensor of {name}: {error}") from error
    if room != len(raw):
        raise ValueNotSupportedError(f"a tensor of {name} takes {room} bytes in the runtime, not {len(raw)}")
    if raw:
        ctypes.memmove(value.data_ptr(), raw, len(raw))
    return value


def to_ort_value(value: Any, ort: Any) -> Any:
    """An `OrtValue` for something that `to_ort` returned.

    Raises:
        ValueNotSupportedError: Sequences, maps and empty optionals have no such form.
    """
    if isinstance(value, ort.OrtValue):
        return value
    if not isinstance(value, np.ndarray):
        raise ValueNotSupportedError(
            "outputs of bfloat16, float8 or int4 cannot be read beside inputs that are not tensors"
        )
    return ort.OrtValue.ortvalue_from_numpy(value)


def from_ort_value(value: Any, name: str) -> Data:
    """Read an `OrtValue` of an exotic element type by its memory.

    Raises:
        ValueNotSupportedError: The value is no tensor in the memory of the host.
    """
    if not value.has_value():
        return None
    if not value.is_tensor() or value.device_name().lower() != "cpu":
        raise ValueNotSupportedError(f"an output of {name} lies outside the host's memory and cannot be read")
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return unpack(raw, name, shape)


def from_ort(value: Any) -> Data:
    """An output of `InferenceSession.run` in the form that the rest of graphopt compares."""
    if isinstance(value, list):
        return [from_ort(item) for item in value]
    if isinstance(value, dict):
        return {key: from_ort(item) for key, item in value.items()}
    if hasattr(value, "dense_shape"):  # a sparse tensor; its class lies deep inside the runtime
        return _from_sparse(value)
    return value


def _from_sparse(value: Any) -> Data:
    """A sparse tensor as a map of its parts."""
    try:
        indices = np.array(value.get_coo_data().indices())
        return {"shape": np.array(value.dense_shape()), "values": np.array(value.values()), "indices": indices}
    except (RuntimeError, AttributeError) as error:
        raise ValueNotSupportedError(f"a sparse output of this format cannot be read in Python: {error}") from error


def nbytes(value: Data) -> int:
    """Bytes of a value, strings counted roughly."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, list | tuple):
        return sum(nbytes(item) for item in value)
    if isinstance(value, dict):
        return sum(nbytes(item) for item in value.values())
    return 8
