"""Gelu and its approximation by a hyperbolic tangent, in whatever order and factors exporters write them."""

from __future__ import annotations

import math

from graphopt import Node, Value
from passes._cover import Cover, is_number, other, sole_user, with_number

_HALF_POWER = math.sqrt(0.5)
_TANH_FACTOR = math.sqrt(2 / math.pi)
_CUBE_FACTOR = 0.044715


def gelu_around(inner: Node) -> tuple[Cover, Value] | None:
    """The Gelu that an Erf, or the approximation that a Tanh, is the middle of.

    It goes from the middle forward to the product and back to its factor.

    Returns:
        The nodes of it, whose root gives the result, and what it is of.
    """
    plus_one = sole_user(inner.results[0], "Add")
    if plus_one is None or with_number(plus_one, 1.0) is not inner.results[0]:
        return None
    found = _product(plus_one.results[0])
    if found is None:
        return None
    x, root = found
    cover = Cover(root)
    for value in root.operands:
        node = cover.enter(value, "Mul", "Add")
        for deeper in node.operands if node is not None and node.op_type == "Mul" else ():
            cover.enter(deeper, "Add")
    cover.enter(inner.results[0], inner.op_type)
    is_argument = _is_erf_argument if inner.op_type == "Erf" else _is_tanh_argument
    return (cover, x) if is_argument(cover, inner.operand(0), x) else None


def _product(factor: Value) -> tuple[Value, Node] | None:
    """X and the last node of the product of a factor, x and one half, in any order."""
    first = sole_user(factor, "Mul")
    if first is None:
        return None
    beside = other(first, factor)
    if beside is None:
        return None
    halved = beside.producer
    if halved.op_type == "Mul" and halved.domain == "" and len(beside.users) == 1:
        x = with_number(halved, 0.5)
        if x is not None:
            return x, first
    if halved.op_type == "Div" and halved.domain == "" and is_number(halved.operand(1), 2.0, halved.operand(0)):
        x = halved.operand(0)
        return None if x is None else (x, first)
    second = sole_user(first.results[0], "Mul")
    if second is None:
        return None
    if with_number(second, 0.5) is first.results[0]:
        return beside, second
    if with_number(first, 0.5) is factor:
        x = other(second, first.results[0])
        return None if x is None else (x, second)
    return None


def _is_erf_argument(cover: Cover, value: Value | None, x: Value) -> bool:
    """True for x over the root of two."""
    node = cover.enter(value, "Div", "Mul")
    if node is None:
        return False
    if node.op_type == "Mul":
        return with_number(node, _HALF_POWER) is x
    return node.operand(0) is x and is_number(node.operand(1), math.sqrt(2), x)


def _is_tanh_argument(cover: Cover, value: Value | None, x: Value) -> bool:
    """True for r·(x + c·x³), and for x·r·(1 + c·x²)."""
    node = cover.enter(value, "Mul")
    if node is None:
        return False
    total = with_number(node, _TANH_FACTOR)
    if total is not None:
        return _is_cubic_sum(cover, total, x)
    for left, right in (node.operands, node.operands[::-1]):
        factor = cover.copy()
        scaled = factor.enter(left, "Mul")
        if scaled is not None and with_number(scaled, _TANH_FACTOR) is x and _is_square_sum(factor, right, x):
            cover.enter(left, "Mul")
            return _is_square_sum(cover, right, x)
    return False


def _is_cubic_sum(cover: Cover, value: Value, x: Value) -> bool:
    total = cover.enter(value, "Add")
    node = None if total is None else cover.enter(other(total, x), "Mul")
    if node is None:
        return False
    cube = with_number(node, _CUBE_FACTOR)
    if cube is not None:
        return _is_power(cover, cube, x, 3)
    # c·x times x², or x times c·x²
    for left, right in (node.operands, node.operands[::-1]):
        scaled = left.producer if left is not None else None
        if scaled is None or scaled.op_type != "Mul" or scaled.domain != "":
            continue
        inner = with_number(scaled, _CUBE_FACTOR)
        if inner is x and _is_power(cover, right, x, 2):
            return cover.enter(left, "Mul") is not None
        if inner is not None and right is x and _is_power(cover, inner, x, 2):
            return cover.enter(left, "Mul") is not None
    return False


def _is_square_sum(cover: Cover, value: Value | None, x: Value) -> bool:
    total = cover.enter(value, "Add")
    term = None if total is None else with_number(total, 1.0)
    node = cover.enter(term, "Mul")
    if node is None:
        return False
    square = with_number(node, _CUBE_FACTOR)
    if square is not None:
        return _is_power(cover, square, x, 2)
    scaled = cover.enter(other(node, x), "Mul")
    return scaled is not None and with_number(scaled, _CUBE_FACTOR) is x


def _is_power(cover: Cover, value: Value | None, x: Value, exponent: int) -> bool:
    """True for x to that power, as Pow or as products."""
    node = cover.enter(value, "Pow", "Mul")
    if node is None:
        return False
    if node.op_type == "Pow":
        found = node.operand(1)
        given = None if found is None or found.const is None or found.const.rank else found.const.scalar()
        return node.operand(0) is x and given == exponent
    rest = other(node, x)
    return rest is x if exponent == 2 else _is_power(cover, rest, x, exponent - 1)
