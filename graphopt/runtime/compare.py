"""How far two values are from each other: arrays of every dtype, sequences, maps, empty optionals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.runtime.values import Data

# Unit round-off of the output dtypes: the distance from 1 to the next number.
_EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "float4_e2m1fn": 0.5,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}


def eps(dtype: np.dtype[Any]) -> float:
    """Unit round-off of a float or complex dtype, 0 for the others."""
    return _EPS.get(dtype.name, 0.0)


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for every float and complex dtype, ml_dtypes included."""
    return dtype.name in _EPS


@dataclass(slots=True)
class Difference:
    """What sets two values apart.

    Attributes:
        identical: Same bits (NaN equals NaN).
        mismatch: Why they cannot be compared by number: dtype, shape, kind; empty where they can.
        error: Largest |difference| / scale; infinite where a NaN or an infinity stands on one side only.
        rms: Root of the mean squared difference / scale.
        absolute: Largest |difference|.
        scale: Largest finite |original|.
        mismatched: Elements that differ.
        elements: Elements compared.
        floating: Every element that differs is of a float dtype.
        epsilon: Unit round-off of the coarsest dtype compared.
        dtype: Name of the dtype, for ceilings.
    """

    identical: bool = True
    mismatch: str = ""
    error: float = 0.0
    rms: float = 0.0
    absolute: float = 0.0
    scale: float = 0.0
    mismatched: int = 0
    elements: int = 0
    floating: bool = True
    epsilon: float = 0.0
    dtype: str = ""

    def merge(self, other: Difference) -> None:
        """Take in the difference of another part of the same output."""
        self.identical &= other.identical
        self.mismatch = self.mismatch or other.mismatch
        if other.error >= self.error:
            self.rms = max(self.rms, other.rms)
            self.error, self.absolute, self.scale = other.error, max(self.absolute, other.absolute), other.scale
        self.mismatched += other.mismatched
        self.elements += other.elements
        self.floating &= other.floating
        if other.epsilon >= self.epsilon:
            self.epsilon, self.dtype = other.epsilon, other.dtype or self.dtype


def compare(original: Data, other: Data) -> Difference:
    """The difference of two values of one output."""
    if original is None or other is None:
        if original is other:
            return Difference()
        return _unlike("one side is an empty optional")
    if isinstance(original, list | tuple) or isinstance(other, list | tuple):
        return _sequences(original, other)
    if isinstance(original, dict) or isinstance(other, dict):
        return _maps(original, other)
    return _arrays(np.asarray(original), np.asarray(other))


def _unlike(why: str) -> Difference:
    return Difference(identical=False, mismatch=why, error=math.inf, absolute=math.inf, mismatched=1, floating=False)


def _sequences(original: Data, other: Data) -> Difference:
    if not (isinstance(original, list | tuple) and isinstance(other, list | tuple)):
        return _unlike("a sequence against something else")
    if len(original) != len(other):
        return _unlike(f"sequences of {len(original)} and {len(other)} elements")
    total = Difference()
    for left, right in zip(original, other, strict=True):
        total.merge(compare(left, right))
    return total


def _maps(original: Data, other: Data) -> Difference:
    if not (isinstance(original, dict) and isinstance(other, dict)):
        return _unlike("a map against something else")
    if list(map(str, original)) != list(map(str, other)):
        return _unlike("maps with different keys")
    total = Difference()
    for key, left in original.items():
        total.merge(compare(left, other[key]))
    return total


def _arrays(original: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Difference:
    if original.dtype != other.dtype:
        return _unlike(f"dtype {original.dtype.name} against {other.dtype.name}")
    if original.shape != other.shape:
        return _unlike(f"shape {_shape(original)} against {_shape(other)}")
    floating = is_float(original.dtype)
    result = Difference(elements=original.size, epsilon=eps(original.dtype), dtype=original.dtype.name)
    if original.size == 0:
        return result
    if same_bits(original, other):
        return result
    if original.dtype.kind in "OSU":
        wrong = np.asarray(original.astype(object) != other.astype(object)).reshape(-1)
        count = int(np.count_nonzero(wrong))
        return Difference(count == 0, "", math.inf if count else 0.0, 0.0, 0.0, count, original.size, False)
    left, right = _wide(original), _wide(other)
    result.scale = _scale(left)
    with np.errstate(all="ignore"):
        agree = (left == right) | (np.isnan(left) & np.isnan(right))
        gap = np.where(agree, 0.0, np.abs(left - right))
    bits_differ = _bits(original) != _bits(other) if original.dtype.kind != "c" else ~agree
    nan_both = np.isnan(left) & np.isnan(right)
    result.mismatched = int(np.count_nonzero(bits_differ & ~nan_both))
    result.identical = result.mismatched == 0
    result.floating = floating or bool(agree.all())
    largest = float(np.max(gap, initial=0.0)) if not np.isnan(gap).any() else math.inf
    result.absolute = largest
    if largest > 0:
        result.error = largest / result.scale if result.scale > 0 else math.inf
        mean = float(np.sqrt(np.mean(np.square(gap / largest)))) if math.isfinite(largest) else 1.0
        result.rms = mean * result.error
    return result


def _shape(array: np.ndarray[Any, Any]) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).reshape(-1)


def scale_of(value: Data) -> float:
    """Largest finite magnitude in a value."""
    if isinstance(value, list | tuple):
        return max((scale_of(item) for item in value), default=0.0)
    if isinstance(value, dict):
        return max((scale_of(item) for item in value.values()), default=0.0)
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OSU":
        return 0.0
    return _scale(_wide(value))


def _scale(values: np.ndarray[Any, Any]) -> float:
    magnitude = np.abs(values)
    return float(np.max(magnitude, initial=0.0, where=np.isfinite(magnitude)))


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize]
    return np.ascontiguousarray(array).reshape(-1).view(width)


def same_bits(original: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """True where dtype, shape and every bit agree; NaN payloads and the sign of zero count."""
    if original.dtype != other.dtype or original.shape != other.shape:
        return False
    if original.dtype.kind in "OSU":
        return bool(np.array_equal(original, other))
    if original.size == 0:
        return True
    left = np.ascontiguousarray(original).reshape(-1).view(np.uint8)
    right = np.ascontiguousarray(other).reshape(-1).view(np.uint8)
    return bool(np.array_equal(left, right))


def ulps(original: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Distance in representable numbers, elementwise, as float64; NaN against NaN is 0, against a number infinite."""
    width = original.dtype.itemsize
    signed = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[width]

    def line(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # Sign-and-magnitude bits laid on a line so that neighbours are one apart and +0 and -0 coincide.
        raw = np.ascontiguousarray(array).reshape(-1).view(signed).astype(np.int64)
        lowest = np.int64(-(1 << (8 * width - 1))) if width < 8 else np.int64(np.iinfo(np.int64).min)
        return np.where(raw < 0, lowest - raw, raw)

    left, right = _wide(original), _wide(other)
    with np.errstate(all="ignore"):
        distance = np.abs(line(original).astype(np.float64) - line(other).astype(np.float64))
        if width == 8:  # float64 cannot hold the difference exactly; count in integers where it is small
            exact = np.abs(line(original) - line(other)).astype(np.float64)
            distance = np.where(distance < 2.0**60, exact, distance)
    left_nan, right_nan = np.isnan(left), np.isnan(right)
    distance = np.where(left_nan & right_nan, 0.0, distance)
    return np.where(left_nan ^ right_nan, np.inf, distance)
