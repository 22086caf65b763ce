"""Addends of layers: one number for each element of the last axis."""

from __future__ import annotations

from graphopt import Builder, Tensor, Value
from passes._proofs import same_dim


def is_last_axis_vector(vector: Value, of: Value) -> bool:
    """True if a value holds one number for each element of the last axis of another, which adding it does not widen.

    Dims of size 1 before them may stand there only if it is constant.
    """
    if vector.shape is None or of.shape is None or not 0 < len(vector.shape) <= len(of.shape):
        return False
    if not same_dim(vector.shape[-1], of.shape[-1]) or any(dim != 1 for dim in vector.shape[:-1]):
        return False
    return len(vector.shape) == 1 or vector.const is not None


def as_vector(b: Builder, vector: Value) -> Value:
    """The same with one axis."""
    tensor = vector.const
    if vector.rank == 1 or tensor is None:
        return vector
    return b.constant(Tensor.from_numpy(tensor.numpy().reshape(-1), tensor.dtype))
