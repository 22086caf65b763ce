"""A constant: type, shape and size at no cost, bytes on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, numpy_helper

from graphopt.tensors.dtype import DType
from graphopt.tensors.region import FileRegion

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Source: TypeAlias = FileRegion | memoryview | Array | Callable[[], Array]
_SAMPLE = 256
_BLOCK = 1 << 20


class Tensor:
    """An immutable constant.

    The bytes lie in a file (`FileRegion`), in memory (`memoryview` in the layout of `raw_data`, or an array), or are
    decoded by a function when first asked for. Nothing is copied until `numpy()` has to unpack sub-byte elements.
    """

    __slots__ = ("_array", "_fingerprint", "_is_kept", "_source", "dtype", "shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...], source: Source) -> None:
        self.dtype = dtype
        self.shape = shape
        self._source = source
        self._is_kept = not isinstance(source, FileRegion)  # a view of a mapping costs nothing to make again
        self._array: Array | None = None
        self._fingerprint: tuple[object, ...] | None = None

    @classmethod
    def computed(cls, dtype: DType, shape: tuple[int, ...], function: Callable[[], Array]) -> Tensor:
        """A large tensor that is computed whenever it is read, and never held in memory between readings."""
        tensor = cls(dtype, shape, function)
        tensor._is_kept = False
        return tensor

    @classmethod
    def from_numpy(cls, array: Array, dtype: DType | None = None) -> Tensor:
        """A tensor over an array; the array is kept, not copied, and must not change afterwards."""
        dtype = DType.from_numpy(array.dtype) if dtype is None else dtype
        if dtype is DType.STRING:
            array = as_strings(array)
        return cls(dtype, tuple(int(size) for size in array.shape), array.astype(dtype.numpy, copy=False))

    @classmethod
    def of(cls, value: Any, dtype: DType) -> Tensor:
        """A tensor of a Python number or nested list of them."""
        return cls.from_numpy(np.array(value, dtype=dtype.numpy), dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes as stored in `raw_data`; for strings, those of their characters."""
        if self.dtype is DType.STRING:
            return sum(len(item) for item in self.numpy().reshape(-1))
        return (self.size * self.dtype.bits + 7) // 8

    @property
    def is_computed(self) -> bool:
        """True if the elements are computed whenever they are read."""
        return callable(self._source) and not self._is_kept

    @property
    def region(self) -> FileRegion | None:
        """Where the bytes lie in a file, if that is where they are."""
        return self._source if isinstance(self._source, FileRegion) else None

    def numpy(self) -> Array:
        """The elements as a read-only array; strings are an object array of `bytes`."""
        if self._array is not None:
            return self._array
        array = self._read()
        array.flags.writeable = False
        if self._is_kept:
            self._array = array
        return array

    def _read(self) -> Array:
        source = self._source
        if callable(source):
            return source().reshape(self.shape).view()
        if isinstance(source, np.ndarray):
            return source.view()
        view = source.view() if isinstance(source, FileRegion) else source
        if self.dtype.bits < 8:
            proto = TensorProto(data_type=int(self.dtype), dims=self.shape, raw_data=bytes(view))
            return np.asarray(numpy_helper.to_array(proto))
        return np.frombuffer(view, dtype=self.dtype.numpy, count=self.size).reshape(self.shape)

    def raw(self) -> memoryview:
        """The bytes in the little-endian layout of `raw_data`.

        Raises:
            TypeError: strings have no such layout.
        """
        if self.dtype is DType.STRING:
            raise TypeError("a string tensor has no raw form; use numpy()")
        if isinstance(self._source, FileRegion):
            return self._source.view()
        if isinstance(self._source, memoryview):
            return self._source
        array = self.numpy()
        if self.dtype.bits < 8:
            return memoryview(numpy_helper.from_array(array).raw_data)
        return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def scalar(self) -> Any:
        """The only element as a Python number, bool or `bytes`; None if there is not exactly one."""
        if self.size != 1:
            return None
        element = self.numpy().reshape(-1)[0]
        return element if isinstance(element, bytes) else element.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; of a scalar, the number."""
        return self.numpy().tolist()

    def fingerprint(self) -> tuple[object, ...]:
        """A key that equal tensors share: type, shape and three samples of the bytes, read in microseconds."""
        if self._fingerprint is None:
            self._fingerprint = self._sampled()
        return self._fingerprint

    def _sampled(self) -> tuple[object, ...]:
        if self.dtype is DType.STRING:
            return (self.dtype, self.shape, tuple(self.numpy().reshape(-1)))
        raw = self.raw()
        middle = len(raw) // 2
        samples = (bytes(raw[:_SAMPLE]), bytes(raw[middle : middle + _SAMPLE]), bytes(raw[-_SAMPLE:]))
        return (self.dtype, self.shape, samples)

    def equals(self, other: Tensor) -> bool:
        """True for the same type, shape and bytes: 0.0 and -0.0 differ, a NaN equals one of the same payload."""
        if self is other:
            return True
        if self.dtype is not other.dtype or self.shape != other.shape:
            return False
        if self.dtype is DType.STRING:
            return bool(np.array_equal(self.numpy(), other.numpy()))
        if self.region is not None and self.region == other.region:
            return True
        left, right = np.frombuffer(self.raw(), np.uint8), np.frombuffer(other.raw(), np.uint8)
        # Compared in blocks: one mismatch ends it, and no temporary is as large as the weight.
        return left.size == right.size and all(
            np.array_equal(left[start : start + _BLOCK], right[start : start + _BLOCK])
            for start in range(0, left.size, _BLOCK)
        )

    def __repr__(self) -> str:
        """One line: type and shape, and the elements when they are few."""
        head = f"{self.dtype.text}{list(self.shape)}"
        return f"{head} {self.tolist()}" if self.size <= 8 else head


def as_strings(array: Array) -> Array:
    """An array of text or bytes as an object array of `bytes`, the form of string tensors here."""
    encoded = [item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1).tolist()]
    strings = np.empty(len(encoded), dtype=object)
    strings[:] = encoded
    return strings.reshape(array.shape)
