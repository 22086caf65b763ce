"""Why something that looks like a normalization over the last axes is none that an operator computes."""

from __future__ import annotations

from typing import Final

from graphopt import Node, Value
from passes._cover import number

_STEPS: Final = 4
_READERS: Final = ("Div", "Mul", "Reciprocal")


def base_of(square: Node) -> Value | None:
    """What a Pow or Mul squares; None if it does something else."""
    base = square.operand(0)
    if square.op_type == "Mul":
        return base if square.operand(1) is base else None
    exponent = square.operand(1)
    is_two = exponent is not None and exponent.const is not None and exponent.const.scalar() == 2
    return base if is_two and exponent is not None and exponent.rank == 0 else None


def unlike(square_root: Node, *, is_centred: bool) -> str:
    """Why the operand of a square root is no variance with one number added to it; empty if it is nothing like that.

    Args:
        square_root: A Sqrt, or a Pow that gives one over the root.
        is_centred: Whether a mean is to be subtracted before squaring, or is not.
    """
    value, between = square_root.operand(0), list[Node]()
    for _ in range(_STEPS):
        node = None if value is None else value.producer
        if node is None or not node.is_operator or node.domain != "":
            return ""
        if node.op_type in ("ReduceMean", "ReduceSum", "ReduceSumSquare"):
            break
        between.append(node)
        computed = [item for item in node.operands if item is not None and item.const is None]
        # Of two computed operands, one being the mean of squares, the other is what is added.
        value = next((item for item in computed if _is_mean(item)), computed[0] if len(computed) == 1 else None)
    else:
        return ""
    if node.op_type != "ReduceMean" or _is_deviation(node) != is_centred:
        return ""
    if not between:
        return "" if _root_is_alone(square_root) else "nothing is added to the variance before its root is taken"
    first = between[0]
    if first.op_type == "Add":
        if len(between) > 1:
            return f"between the mean of squares and the number added to it stands {between[1].op_type}"
        return "what is added to the variance is not one number that is known before the model runs"
    return f"between the mean of squares and its root stands {first.op_type}, where one number is to be added"


def _is_mean(value: Value) -> bool:
    return value.producer.is_op("ReduceMean")


def _is_deviation(mean: Node) -> bool | None:
    """True for the mean of squared differences from a mean, None for that of something else than squares."""
    value = mean.operand(0)
    square = None if value is None else value.producer
    base = base_of(square) if square is not None and square.op_type in ("Pow", "Mul") and square.domain == "" else None
    if base is None:
        return None
    maker = base.producer
    lifted = maker.operand(0) if maker.is_op("Cast") else None
    if lifted is not None:
        maker = lifted.producer
    subtracted = maker.operand(1) if maker.is_op("Sub") else None
    return subtracted is not None and _is_mean(subtracted)


def _root_is_alone(square_root: Node) -> bool:
    """True where nothing is divided by the root, so that it is a standard deviation or a norm."""
    readers = [user for value in square_root.results for user in value.users]
    behind = [user for reader in readers for value in reader.results for user in value.users]
    return not any(user.domain == "" and user.op_type in _READERS for user in (*readers, *behind))


def unlike_behind(square_root: Node) -> str:
    """Why what is read of a square root of a variance is no division of that whose variance it is."""
    root = square_root.results[0]
    users = root.users
    if any(not user.is_operator for user in users):
        return "the root of the variance is a result of the graph"
    if len(users) != 1:
        return "the root of the variance is read in several places"
    (user,) = users
    if user.op_type not in _READERS:
        return f"the root of the variance goes into {user.op_type}, not into a division"
    if number(user.operand(0), root) is not None or user.op_type == "Reciprocal":
        readers = user.results[0].users
        if len(readers) != 1 or not next(iter(readers)).is_op("Mul"):
            return "one over the root of the variance is not read by a single product"
    return (
        "something else is divided by the root of the variance than what it is the variance of, or that times a scale"
    )
