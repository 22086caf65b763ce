"""What may stand in an attention mask."""

from __future__ import annotations

import numpy as np

from graphopt import Node, Value

_LIMIT = 64
_MAKING = frozenset(
    (
        *("Add", "Cast", "Concat", "ConstantOfShape", "Expand", "Gather", "Identity", "Max", "Min", "Mul", "Neg"),
        *("Reshape", "Slice", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)


def is_finite_mask(mask: Value) -> bool:
    """True if a mask is computed from finite constants and from truth values or integers, in ways that keep it finite.

    A query that may see no key at all gives NaN in parts and zeros as Attention; with finite masks there is none.
    """
    pending, seen = [mask], {mask: None}
    while pending:
        value = pending.pop()
        if len(seen) > _LIMIT:
            return False
        if value.dtype is not None and not value.dtype.is_float:
            continue
        if value.const is not None:
            if not bool(np.isfinite(value.const.numpy()).all()):
                return False
            continue
        node = value.producer
        if not node.is_operator or node.domain != "" or node.op_type not in _MAKING or not _is_filled_finitely(node):
            return False
        for operand in node.operands:
            if operand is not None and operand not in seen:
                seen[operand] = None
                pending.append(operand)
    return True


def _is_filled_finitely(node: Node) -> bool:
    if node.op_type != "ConstantOfShape":
        return True
    filled = node.param("value")
    return filled is None or bool(np.isfinite(filled.numpy()).all())
