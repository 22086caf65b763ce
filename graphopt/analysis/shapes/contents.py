"""Arithmetic on the contents of small tensors: integers, expressions over input dims, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.analysis.shapes.common import FLOAT_CARRIERS, INTEGER_CARRIERS, Array, content_array, contents
from graphopt.ir import Dim, Expr, Node, Value
from graphopt.ir.symbol import (
    Application,
    Integer,
    bounds,
    compare,
    define,
    divide_exactly,
    is_nonnegative,
    is_nonzero,
    magnitude,
    maximum,
    minimum,
    mod,
    never_equal,
    opaque,
    truncdiv,
    truncmod,
)
from graphopt.tensors import DType

Operation = Callable[[Any, Any], Any]
EXACT = {DType.DOUBLE: 1 << 53, DType.FLOAT: 1 << 24, DType.FLOAT16: 1 << 11, DType.BFLOAT16: 1 << 8}
"""Whole numbers up to these are exact in a floating-point type."""
_LARGEST_SINGLE = int(np.finfo(np.float32).max)
_RANGE = {DType.INT32: 2**31, DType.INT64: 2**63, DType.BOOL: 2}
MOST = 1 << 30
_MOST_IN_INT32 = 1 << 20
"""Symbolic arithmetic is judged as if no input held more elements than these."""
IN_DOUBLE = 1 << 53
"""Where the runtime computes integers in double, it is exact up to here."""
SHORT = (1 << 31) - 1
"""Some integer kernels of the runtime look at 32 bits only."""


def is_exact(item: Dim, dtype: DType | None) -> bool:
    """True if a value of this type can hold exactly this number.

    Whether symbolic arithmetic in int32, int64 and double overflows is judged as if no input held more than 2**30
    elements, in int32 2**20. A float does not hold the size of a long recording, so there a bound must be provable.
    """
    if item is None or dtype is None:
        return False
    limit = EXACT.get(dtype)
    if limit is None:
        end = _RANGE.get(dtype, 0)
        return -end <= item < end if isinstance(item, int) else is_within(item, end - 1, dtype)
    if dtype is DType.DOUBLE and isinstance(item, Expr):
        return is_within(item, limit)
    low, high = bounds(item)
    return low is not None and high is not None and -limit <= low and high <= limit


def is_within(item: Integer, limit: int, dtype: DType | None = None) -> bool:
    """True if the absolute value is at most `limit`, as far as inputs are no larger than can be expected."""
    size = magnitude(item, _MOST_IN_INT32 if dtype is DType.INT32 else MOST)
    return size is not None and size <= limit


def fitted(item: Dim, dtype: DType | None) -> Dim:
    """What a value of this type holds where the exact result is `item`; None where that is not known."""
    if item is None or is_exact(item, dtype):
        return item
    if dtype is not DType.FLOAT or (isinstance(item, int) and abs(item) > _LARGEST_SINGLE):
        return None
    return single(item)


def single(item: Integer) -> Integer:
    """A whole number rounded to single precision, which is a whole number again.

    Raises:
        OverflowError: It is a number that single precision does not reach.
    """
    if not isinstance(item, Expr):
        fits = -(1 << 63) <= item < 1 << 63
        # By way of double it would be rounded twice.
        return int(np.int64(item).astype(np.float32)) if fits else int(np.float32(item))
    if is_exact(item, DType.FLOAT):
        return item
    factors = list(item.terms.items())
    if len(factors) == 1:
        (monomial, factor) = factors[0]
        atom = monomial[0]
        is_rounded = len(monomial) == 1 and isinstance(atom, Application) and atom.name == "single"
        if is_rounded and abs(factor) & (abs(factor) - 1) == 0:  # a power of two changes the exponent only
            return item
    return opaque("single", item, nonnegative=is_nonnegative(item))


define("single", single)


def paired(node: Node, operation: Operation, dtype: DType | None) -> Array | None:
    """The contents of the result of an elementwise operator of two operands."""
    left, right = node.operand(0), node.operand(1)
    if contents(left) is None or contents(right) is None:
        return None
    return zipped(content_array(left), content_array(right), operation, dtype)


def zipped(left: Array | None, right: Array | None, operation: Operation, dtype: DType | None) -> Array | None:
    """`operation` on the elements of two arrays broadcast to each other."""
    if left is None or right is None:
        return None
    if left.shape != right.shape:
        try:
            left, right = np.broadcast_arrays(left, right)
        except ValueError:
            return None
    result = np.empty(left.shape, dtype=object)
    flat = result.reshape(-1)
    for index, (one, other) in enumerate(zip(left.reshape(-1), right.reshape(-1), strict=True)):
        flat[index] = None if one is None or other is None else fitted(operation(one, other), dtype)
    return result


def mapped(value: Value | None, operation: Callable[[Any], Any], dtype: DType | None) -> Array | None:
    """`operation` on every element of an operand."""
    array = content_array(value)
    if array is None:
        return None
    result = np.empty(array.shape, dtype=object)
    flat = result.reshape(-1)
    for index, item in enumerate(array.reshape(-1)):
        flat[index] = None if item is None else fitted(operation(item), dtype)
    return result


# --- operations


def add(left: Integer, right: Integer) -> Dim:
    """The sum."""
    return left + right


def subtract(left: Integer, right: Integer) -> Dim:
    """The difference."""
    return left - right


def multiply(left: Integer, right: Integer) -> Dim:
    """The product."""
    return left * right


def divide(left: Integer, right: Integer) -> Dim:
    """ONNX's integer division; the runtime fails on a divisor of 0."""
    return None if isinstance(right, int) and right == 0 else truncdiv(left, right, assume_nonzero=True)


def divide_floats(left: Integer, right: Integer) -> Dim:
    """A floating-point division that leaves no rest; of 0 by 0 it would be NaN, so the divisor must be known."""
    return divide_exactly(left, right) if isinstance(right, int) and right > 0 else None


def modulo(left: Integer, right: Integer) -> Dim:
    """The remainder with the sign of the divisor."""
    return None if isinstance(right, int) and right == 0 else mod(left, right, assume_nonzero=True)


def modulo_towards_zero(left: Integer, right: Integer) -> Dim:
    """The remainder with the sign of the dividend, which the runtime computes in double."""
    if not is_within(left, IN_DOUBLE) or not is_within(right, IN_DOUBLE):
        return None
    return None if isinstance(right, int) and right == 0 else truncmod(left, right, assume_nonzero=True)


def power(base: Integer, exponent: Integer) -> Dim:
    """A power with a small constant exponent, which the runtime computes in double."""
    if not isinstance(exponent, int) or not 0 <= exponent <= 8:
        return None
    result = base**exponent
    return result if is_within(result, IN_DOUBLE) else None


def least(left: Integer, right: Integer) -> Dim:
    """The minimum."""
    return minimum(left, right)


def greatest(left: Integer, right: Integer) -> Dim:
    """The maximum."""
    return maximum(left, right)


def short(operation: Operation) -> Operation:
    """The operation where both numbers fit 32 bits: of longer ones kernels of the runtime see a part only."""

    def on_short(left: Integer, right: Integer) -> Dim:
        found: Dim = operation(left, right) if is_within(left, SHORT) and is_within(right, SHORT) else None
        return found

    return on_short


def absolute(item: Integer) -> Dim:
    """The absolute value."""
    return maximum(item, -item)


def sign(item: Integer) -> Dim:
    """The sign where it is provable and the number fits 32 bits: of longer ones the runtime sees a part only."""
    return compare(item, 0) if is_within(item, SHORT) else None


def equal(left: Integer, right: Integer) -> Dim:
    """1, 0 or unknown."""
    order = compare(left, right)
    if order is not None:
        return int(order == 0)
    return 0 if never_equal(left, right) else None


def less(left: Integer, right: Integer) -> Dim:
    """1, 0 or unknown."""
    return _told(compare_bounds(right - left, 1))


def at_most(left: Integer, right: Integer) -> Dim:
    """1, 0 or unknown."""
    return _told(compare_bounds(right - left, 0))


def compare_bounds(difference: Integer, least_value: int) -> bool | None:
    """Whether a difference is at least a number, None if that is not provable."""
    low, high = bounds(difference)
    if low is not None and low >= least_value:
        return True
    return False if high is not None and high < least_value else None


def _told(answer: bool | None) -> Dim:
    return None if answer is None else int(answer)


def all_of(left: Integer, right: Integer) -> Dim:
    """Logical and of 0 and 1."""
    return int(bool(left) and bool(right)) if isinstance(left, int) and isinstance(right, int) else None


def any_of(left: Integer, right: Integer) -> Dim:
    """Logical or of 0 and 1."""
    return int(bool(left) or bool(right)) if isinstance(left, int) and isinstance(right, int) else None


def one_of(left: Integer, right: Integer) -> Dim:
    """Logical exclusive or of 0 and 1."""
    return int(bool(left) != bool(right)) if isinstance(left, int) and isinstance(right, int) else None


def truth(item: Integer) -> Dim:
    """What a cast to bool gives."""
    return int(item != 0) if not isinstance(item, Expr) else 1 if is_nonzero(item) else None


def converted(item: Integer, source: DType | None, target: DType | None) -> Dim:
    """What a cast of a whole number gives."""
    if source not in INTEGER_CARRIERS | FLOAT_CARRIERS:
        return None
    return truth(item) if target is DType.BOOL else item
