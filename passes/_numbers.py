"""Operands that hold one number throughout, whether stored, filled or expanded."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import Tensor, Value, is_uniform

_MOVES = ("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
_STEPS = 8

Array = np.ndarray[Any, Any]


def is_all(value: Value | None, number: float | bool) -> bool:
    """True if every element of a tensor is `number`, sign of zero included; that of an empty tensor may be anything."""
    for _ in range(_STEPS):
        if value is None:
            return False
        node = value.producer
        if node.is_op("ConstantOfShape"):
            return _is_fill(node.param("value"), number)
        if not node.is_operator or node.domain != "" or node.op_type not in _MOVES:
            return is_uniform(value, number)
        value = node.operand(0)
    return False


def _is_fill(fill: object, number: float | bool) -> bool:
    if fill is None:
        return number == 0 and not np.signbit(number)
    if not isinstance(fill, Tensor) or fill.size != 1 or not fill.dtype.bits:
        return False
    found = fill.numpy().reshape(-1)[0]
    return bool(found == number) and (not fill.dtype.is_float or bool(np.signbit(found)) == bool(np.signbit(number)))


def is_one_number(value: Value | None) -> bool:
    """True for a constant of one element of a number type."""
    return value is not None and value.const is not None and value.const.size == 1 and bool(value.const.dtype.bits)
