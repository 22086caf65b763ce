"""Element types, numbered as in `onnx.TensorProto.DataType`."""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper


class DType(IntEnum):
    """An ONNX element type."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of one unpacked element; `object` for strings.

        Raises:
            TypeError: the installed onnx has none, for it is older than the element type.
        """
        return _numpy(self)

    @property
    def bits(self) -> int:
        """Bits of one element as stored in `raw_data`; 0 for strings, whose size varies."""
        return _bits(self)

    @property
    def is_float(self) -> bool:
        """True for every floating-point type, the 16, 8 and 4 bit ones included."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; bool is not an integer."""
        return self in _SIGNED or self in _UNSIGNED

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return self in _SIGNED

    @property
    def text(self) -> str:
        """The name in ONNX's text syntax, for example `float` or `int64`."""
        return self.name.lower()

    @staticmethod
    def from_code(code: int) -> DType:
        """The type of a number in a file; `UNDEFINED` for one that is not known here."""
        return _BY_CODE.get(code, DType.UNDEFINED)

    @staticmethod
    def from_numpy(dtype: np.dtype[Any]) -> DType:
        """The ONNX type of a numpy type; bytes, str and object are strings.

        Raises:
            TypeError: ONNX has no such type.
        """
        return _from_numpy(dtype)


_BY_CODE = {int(dtype): dtype for dtype in DType}
_SUB_BYTE_BITS = {
    DType.UINT2: 2,
    DType.INT2: 2,
    DType.UINT4: 4,
    DType.INT4: 4,
    DType.FLOAT4E2M1: 4,
    DType.FLOAT6E2M3: 6,
    DType.FLOAT6E3M2: 6,
}
_SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.INT4, DType.INT2})
_UNSIGNED = frozenset({DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.UINT4, DType.UINT2})
_FLOATS = frozenset({DType.DOUBLE, DType.BFLOAT16} | {dtype for dtype in DType if dtype.name.startswith("FLOAT")})
assert ml_dtypes  # its import registers bfloat16, float8 and the sub-byte types with numpy


@cache
def _numpy(dtype: DType) -> np.dtype[Any]:
    if dtype in (DType.STRING, DType.UNDEFINED):
        return np.dtype(object)
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(int(dtype)))
    except KeyError:
        raise TypeError(f"the installed onnx does not know {dtype.name}; upgrade onnx") from None


@cache
def _bits(dtype: DType) -> int:
    if dtype in (DType.STRING, DType.UNDEFINED):
        return 0
    return _SUB_BYTE_BITS.get(dtype) or dtype.numpy.itemsize * 8


@cache
def _from_numpy(dtype: np.dtype[Any]) -> DType:
    if dtype.kind in "OSU":
        return DType.STRING
    try:
        return DType(helper.np_dtype_to_tensor_dtype(dtype.newbyteorder("=")))
    except (KeyError, ValueError):
        raise TypeError(f"ONNX has no element type for numpy's {dtype}; convert the array first") from None
