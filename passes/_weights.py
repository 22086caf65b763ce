"""Rewriting constant weights: computed in float64, rounded once, refused where that loses something."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from graphopt import DType, Tensor, Value

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

EPSILON = {DType.DOUBLE: 2.0**-52, DType.FLOAT: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
"""The element types weights are rewritten in, with the distance of 1 from the next number."""

_LARGEST = 1 << 28
"""Bytes of the largest weight that is rewritten: a new one lies in memory, one left alone stays in its file."""
_LARGEST_COPY = 1 << 16
"""Bytes of the largest weight that is copied because somebody else reads it too: one node is not worth more."""
_BLOCK = 1 << 20
_DEAD = 2.0**-40
"""A channel so much smaller than the largest one is noise, whatever rounding does to it."""


def doubt_of(weight: Value) -> str:
    """Why a weight should not be rewritten, "" if it may."""
    tensor = weight.const
    if tensor is None:
        return "the weight is no constant"
    if tensor.dtype not in EPSILON:
        return "the weight is no float"
    if tensor.nbytes > _LARGEST:
        return "the weight is too large to be worth it"
    if len(weight.uses) > 1 and tensor.nbytes > _LARGEST_COPY:
        return "somebody else reads the weight, and a copy would be large"
    return ""


def in_double(tensor: Tensor) -> Array:
    """The elements as float64."""
    return np.asarray(tensor.numpy().astype(np.float64))


def rounded(exact: Array, dtype: DType) -> Tensor | None:
    """A small constant in its element type; None if it overflows there."""
    with np.errstate(all="ignore"):
        array = exact.astype(dtype.numpy)
    return Tensor.from_numpy(array, dtype) if bool(np.isfinite(array.astype(np.float64)).all()) else None


def scaled(tensor: Tensor, factor: Array, axis: int) -> Tensor | None:
    """A weight times a factor.

    Args:
        tensor: The weight.
        factor: What to multiply with; broadcast to the weight's shape.
        axis: The weight's axis of output channels: precision is judged for each of them.

    Returns:
        None if an element is not finite or a channel falls among the subnormal numbers.
    """
    weight = tensor.numpy()
    factors = np.broadcast_to(factor, weight.shape)
    result = np.empty(weight.shape, tensor.dtype.numpy)
    rows = max(1, _BLOCK * len(weight) // max(1, weight.size)) if weight.ndim else 1
    judge = _Precision(tensor.dtype)
    with np.errstate(all="ignore"):
        if not weight.ndim:
            return rounded(weight.astype(np.float64) * factors, tensor.dtype)
        for start in range(0, len(weight), rows):
            block = slice(start, start + rows)
            exact = weight[block].astype(np.float64) * factors[block]
            result[block] = exact.astype(tensor.dtype.numpy)
            judge.add(exact, result[block].astype(np.float64), axis)
    return Tensor.from_numpy(result, tensor.dtype) if judge.is_kept else None


def combined(exact: Array, dtype: DType, axis: int) -> Tensor | None:
    """A weight computed in float64, in its element type; None as for `scaled`."""
    judge = _Precision(dtype)
    with np.errstate(all="ignore"):
        array = exact.astype(dtype.numpy)
        judge.add(exact, array.astype(np.float64), axis)
    return Tensor.from_numpy(array, dtype) if judge.is_kept else None


class _Precision:
    """Whether rounding keeps a weight, block by block: every output channel to the type's own precision."""

    def __init__(self, dtype: DType) -> None:
        self._epsilon = EPSILON[dtype]
        self._finite = True
        self._largest: list[Array] = []
        self._error: list[Array] = []
        self._by_row = False

    def add(self, exact: Array, array: Array, axis: int) -> None:
        """Look at the next rows."""
        self._finite = self._finite and bool(np.isfinite(array).all())
        if not self._finite or not exact.size:
            return
        others = tuple(place for place in range(exact.ndim) if place != axis % exact.ndim)
        self._by_row = axis % exact.ndim == 0
        self._largest.append(np.abs(exact).max(axis=others))
        self._error.append(np.abs(array - exact).max(axis=others))

    @property
    def is_kept(self) -> bool:
        """True if nothing seen so far was lost."""
        if not self._finite or not self._largest:
            return self._finite
        join = np.concatenate if self._by_row else np.max
        largest, error = join(self._largest, axis=0), join(self._error, axis=0)
        return bool(((error <= self._epsilon * largest) | (largest <= _DEAD * largest.max())).all())
