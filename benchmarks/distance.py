"""How far apart two arrays are, for every dtype ONNX Runtime returns, NaN, infinities and masks included."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

LEAST_EPSILONS = 16  # noise is never taken to be less than this many epsilons of the output's scale
CEILING = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}  # of the output's scale
HUGE = 1e30  # numbers above are masks, not scale


def is_float(array: np.ndarray[Any, Any]) -> bool:
    """Say whether an array holds float numbers, bfloat16 and the like included."""
    return array.dtype.kind in "fc" or array.dtype.name in CEILING


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Say whether two arrays of one dtype and shape hold the same bits, one NaN being as good as another."""
    if not is_float(a):
        return bool(np.array_equal(a, b)) or (a.dtype.kind == "V" and a.tobytes() == b.tobytes())
    bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b)]
    if np.array_equal(bits[0], bits[1]):
        return True
    equal = (bits[0] == bits[1]).reshape(-1, a.dtype.itemsize).all(-1)
    return bool(np.all(equal | (np.isnan(a) & np.isnan(b)).reshape(-1)))


def difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays of one shape; infinite where NaN or infinity is on one side only."""
    if a.dtype == b.dtype and same_bits(a, b):
        return 0.0
    if not is_float(a):
        return float("inf")
    wide_a, wide_b = widen(a), widen(b)
    with np.errstate(all="ignore"):
        apart = np.abs(wide_a - wide_b)
    apart = np.where((wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b)), 0.0, apart)
    apart = np.where(np.isnan(apart), np.inf, apart)
    rounding = epsilon(a) * LEAST_EPSILONS * np.where(np.abs(wide_a) > HUGE, np.abs(wide_a), 0.0)
    return float(np.where(np.isfinite(rounding) & (apart <= rounding), 0.0, apart).max())


def widen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array in double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def epsilon(array: np.ndarray[Any, Any]) -> float:
    """Return the spacing of a float dtype at 1."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(array.real.dtype if array.dtype.kind == "c" else array.dtype).eps)


def scale(array: np.ndarray[Any, Any]) -> float:
    """Return the largest size among the numbers that are finite and no mask."""
    sizes = np.abs(widen(array)).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes < HUGE)]
    return float(sizes.max()) if sizes.size else 0.0
