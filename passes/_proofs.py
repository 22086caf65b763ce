"""What rules must prove before a value may stand for another, and parameters as far as they are known."""

from __future__ import annotations

from typing import TypeAlias

from graphopt import NOT_CONSTANT, DType, Expr, Node, Value, symbol

Dim: TypeAlias = int | Expr | None
"""A number, an expression over input dims, or unknown."""

HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})
"""Types most kernels of the CPU provider compute in float32: on the way a signaling NaN becomes a quiet one."""

WHOLE = 2**31 - 1
"""What ONNX recommends as the end of a slice that reaches to the end of a dim of unknown size; larger ends do too."""


def same_dim(left: Dim, right: Dim) -> bool:
    """True if two dims are equal on every run; unknown dims prove nothing."""
    return left is not None and right is not None and symbol.always_equal(left, right)


def same_shape(left: Value, right: Value) -> bool:
    """True if two tensors have equal shapes on every run."""
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        return False
    return all(map(same_dim, left.shape, right.shape))


def is_never_empty(value: Value) -> bool:
    """True if no dim can be 0."""
    return value.shape is not None and all(dim is not None and symbol.is_positive(dim) for dim in value.shape)


def type_name(dtype: DType | None) -> str:
    """An element type as remarks name it: `float`, `double`, `float16`."""
    return "an unknown element type" if dtype is None else dtype.text


def same_type(left: Value, right: Value) -> bool:
    """True if two tensors have the same element type and equal shapes on every run."""
    return left.dtype is not None and left.dtype is right.dtype and same_shape(left, right)


def contents(node: Node, name: str) -> tuple[Dim, ...] | None:
    """The elements of a one-dimensional parameter, as far as they follow from constants and shapes.

    Returns:
        Numbers, expressions and None for what is unknown; None if not even their count is known or nothing is given.
    """
    found = node.param(name)
    if found is NOT_CONSTANT:
        position = node.param_operand(name)
        value = None if position is None else node.operand(position)
        return None if value is None or value.rank != 1 else value.elements
    return found if isinstance(found, tuple) else None


def is_given(node: Node, name: str) -> bool:
    """True unless the model says nothing of a parameter, or gives an empty list."""
    found = node.param(name)
    return found is not None and found != ()


def axes_of(node: Node, rank: int | None, name: str = "axes") -> tuple[int, ...] | None:
    """A list of axes counted from the front; None if an axis is unknown or outside the rank."""
    if rank is None:
        return None
    return counted(contents(node, name), rank)


def counted(axes: tuple[Dim, ...] | None, rank: int) -> tuple[int, ...] | None:
    """Axes counted from the front; None if one is unknown or outside the rank."""
    if axes is None:
        return None
    places = [axis for axis in axes if isinstance(axis, int) and -rank <= axis < rank]
    return tuple(axis % rank for axis in places) if len(places) == len(axes) else None


def axis_of(node: Node, rank: int | None, name: str = "axis") -> int | None:
    """One axis counted from the front; None if it is unknown or outside the rank."""
    axis = node.param(name)
    return axis % rank if rank and isinstance(axis, int) and -rank <= axis < rank else None
