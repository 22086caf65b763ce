"""Constants that meet: sums, products and quotients of stored numbers, made once.

Integers wrap around as they do at run time. Floats are computed in float64 and rounded once; a result that overflows,
vanishes or turns subnormal is refused, since what stands for two ordinary numbers must be one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import DType, Tensor, Value

_LIMIT = 1 << 16
"""Elements of a constant that is worth computing anew."""

Array = np.ndarray[Any, Any]


def product(left: Value, right: Value) -> Tensor | None:
    """Left * right; None if it grows or is no ordinary number."""
    return _combine(np.multiply, left, right, is_factor=True)


def quotient(left: Value, right: Value) -> Tensor | None:
    """Left / right for floats; None if it grows or is no ordinary number."""
    if left.dtype is None or not left.dtype.is_float:
        return None
    return _combine(np.divide, left, right, is_factor=True)


def total(left: Value, right: Value) -> Tensor | None:
    """Left + right; None if it grows or overflows."""
    return _combine(np.add, left, right, is_factor=False)


def difference(left: Value, right: Value) -> Tensor | None:
    """Left - right; None if it grows or overflows."""
    return _combine(np.subtract, left, right, is_factor=False)


def negated(value: Value) -> Tensor | None:
    """-value; None if it is too large, or unsigned."""
    tensor, dtype = value.const, value.dtype
    if tensor is None or dtype is None or tensor.size > _LIMIT or not (dtype.is_float or dtype.is_signed):
        return None
    return Tensor.from_numpy(np.negative(tensor.numpy()), dtype)


def is_exact_sum(left: Value, right: Value, result: Tensor, *, minus: bool = False) -> bool:
    """True if a float sum (or difference) of constants, as stored, was not rounded."""
    first, second = _wide(left.const), _wide(right.const)
    with np.errstate(all="ignore"):
        second = -second if minus else second
        found = first + second
        # What float64 itself has rounded shows when either part is taken away again.
        is_whole = (found - first == second) & (found - second == first)
    return bool((is_whole & (found == _wide(result))).all())


def _combine(operation: Any, left: Value, right: Value, *, is_factor: bool) -> Tensor | None:
    first, second, dtype = left.const, right.const, left.dtype
    if first is None or second is None or dtype is None or dtype is not right.dtype:
        return None
    if max(first.size, second.size) > _LIMIT or 0 in (first.size, second.size):
        return None
    if dtype.is_integer and dtype.bits >= 8:
        with np.errstate(all="ignore"):
            found = operation(first.numpy(), second.numpy()).astype(dtype.numpy)
        return _small(found, first, second, dtype)
    if not dtype.is_float or dtype.bits < 16:
        return None
    with np.errstate(all="ignore"):
        exact = operation(_wide(first), _wide(second))
        found = np.asarray(exact).astype(dtype.numpy)
        sizes = np.abs(_wide_of(found))
    if not np.isfinite(sizes).all():
        return None
    if is_factor and not _are_ordinary(sizes, dtype):
        return None
    return _small(found, first, second, dtype)


def _small(found: Array, first: Tensor, second: Tensor, dtype: DType) -> Tensor | None:
    array = np.asarray(found)
    return Tensor.from_numpy(array, dtype) if array.size <= max(first.size, second.size) else None


_LEAST = {DType.FLOAT16: 2.0**-14, DType.BFLOAT16: 2.0**-126, DType.FLOAT: 2.0**-126, DType.DOUBLE: 2.0**-1022}


def _are_ordinary(sizes: Array, dtype: DType) -> bool:
    least = _LEAST.get(dtype)
    return least is not None and bool((sizes >= least).all())


def is_ordinary(value: Value) -> bool:
    """True for a constant of floats that are finite, not 0 and not subnormal."""
    if value.const is None or value.dtype is None or value.const.size > _LIMIT:
        return False
    sizes = np.abs(_wide(value.const))
    return bool(np.isfinite(sizes).all()) and _are_ordinary(sizes, value.dtype)


def _wide(tensor: Tensor | None) -> Array:
    assert tensor is not None
    return _wide_of(tensor.numpy())


def _wide_of(array: Array) -> Array:
    wide: Array = np.asarray(array).astype(np.float64)
    return wide
