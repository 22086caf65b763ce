"""Truth values that are known before a run: comparisons of positions and sizes, which are never negative."""

from __future__ import annotations

import numpy as np

from graphopt import Node, Value, symbol
from passes._numbers import is_all

_MOVES = ("Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")
_DEPTH = 12
_LIMIT = 1 << 12


def known_truth(value: Value | None, depth: int = _DEPTH) -> bool | None:
    """What a truth value is throughout, on every run; None if that is not known."""
    if value is None or depth == 0:
        return None
    if value.const is not None:
        return True if is_all(value, True) else False if is_all(value, False) else None
    node = value.producer
    if not node.is_operator or node.domain != "" or not node.has_latest_meaning:
        return None
    if node.op_type in _MOVES:
        return known_truth(node.operand(0), depth - 1)
    if node.op_type == "Not":
        inner = known_truth(node.operand(0), depth - 1)
        return None if inner is None else not inner
    if node.op_type in ("And", "Or"):
        return _junction(node, depth)
    return _comparison(node, depth)


def _junction(node: Node, depth: int) -> bool | None:
    absorbing = node.op_type == "Or"
    sides = [known_truth(operand, depth - 1) for operand in node.operands]
    if absorbing in sides:
        return absorbing
    return not absorbing if None not in sides else None


def _comparison(node: Node, depth: int) -> bool | None:
    """A comparison of integers by the least that one side can be and the number on the other."""
    if len(node.operands) != 2:
        return None
    left, right = node.operands
    if left is None or left.dtype is None or not left.dtype.is_integer:
        return None
    op_type = {"Greater": "Less", "GreaterOrEqual": "LessOrEqual"}.get(node.op_type, node.op_type)
    if op_type != node.op_type:
        left, right = right, left  # now it reads: left is less than right
    below = _is_below(left, right, depth, strictly=True)
    if op_type == "Less":
        return True if below else False if _is_below(right, left, depth, strictly=False) else None
    if op_type == "LessOrEqual":
        if below or _is_below(left, right, depth, strictly=False):
            return True
        return False if _is_below(right, left, depth, strictly=True) else None
    if op_type == "Equal" and (below or _is_below(right, left, depth, strictly=True)):
        return False
    return None


def _is_below(left: Value | None, right: Value | None, depth: int, *, strictly: bool) -> bool:
    """True if the greatest of a constant is at most (or below) the least that a value can be."""
    if left is None or left.const is None or not 0 < left.const.size <= _LIMIT:
        return False
    least = least_of(right, depth)
    greatest = int(left.const.numpy().max())
    return least is not None and (greatest < least if strictly else greatest <= least)


def least_of(value: Value | None, depth: int = _DEPTH) -> int | None:
    """A number that no element of an integer tensor is below; None if none is known."""
    if value is None or depth == 0 or value.dtype is None or not value.dtype.is_integer:
        return None
    if value.const is not None:
        return int(value.const.numpy().min()) if 0 < value.const.size <= _LIMIT else None
    if value.elements and all(item is not None for item in value.elements):
        lows = [symbol.bounds(item)[0] for item in value.elements if item is not None]
        known = [low for low in lows if low is not None]
        if len(known) == len(value.elements):
            return min(known)
    node = value.producer
    if not node.is_operator or node.domain != "" or not node.has_latest_meaning:
        return None
    return _least_of_operator(node, depth)


def _least_of_operator(node: Node, depth: int) -> int | None:
    op_type = node.op_type
    if op_type in ("Shape", "Size", "ArgMax", "ArgMin", "NonZero"):
        return 0
    if op_type in _MOVES or op_type == "Gather":
        return least_of(node.operand(0), depth - 1)
    if op_type == "Range":
        start, step = node.operands[0], node.operands[2]
        rises = step is not None and step.const is not None and step.const.size == 1 and step.const.scalar() > 0
        return least_of(start, depth - 1) if rises else None
    if op_type == "Max":
        lows = [least_of(operand, depth - 1) for operand in node.operands]
        known = [low for low in lows if low is not None]
        return max(known, default=None)
    if op_type in ("Concat", "Min"):
        lows = [least_of(operand, depth - 1) for operand in node.operands]
        known = [low for low in lows if low is not None]
        return min(known) if known and len(known) == len(lows) else None
    if op_type == "Where":
        pair = [least_of(operand, depth - 1) for operand in node.operands[1:]]
        known = [low for low in pair if low is not None]
        return min(known) if len(known) == 2 else None
    if op_type == "Cast":
        operand, dtype = node.operand(0), node.result.dtype
        if operand is None or operand.dtype is None or dtype is None or not operand.dtype.is_integer:
            return None
        widens = np.can_cast(operand.dtype.numpy, dtype.numpy)
        return least_of(operand, depth - 1) if widens else None
    return None
