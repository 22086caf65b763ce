"""What can be proved of symbolic integers from `dim >= 0` alone: bounds, signs, order.

A fact that is not provable here is reported as unknown, never guessed. Facts hold wherever the expression is defined,
that is wherever no divisor in it is 0.

Bounds come from interval arithmetic, sharpened by taking atoms apart: `floordiv(p, k)` is `(p - r) / k` for some
`0 <= r < k`, and a minimum equals one of its arguments and is below all of them. So `n - n//2 >= 0` and
`0 <= n - 7*(n//7) <= 6` are found.
"""

from __future__ import annotations

from math import gcd, inf
from typing import TypeAlias

from graphopt.ir.symbol_expr import (
    Application,
    Atom,
    Expr,
    Integer,
    Monomial,
    Terms,
    add,
    from_terms,
    multiply,
    order_key,
    terms_of,
)

MAX_SPLITS = 8
"""How many atoms may be taken apart for one bound."""
_HUGE = 1 << 256
"""Bounds beyond it are not told apart from none: they would grow with every product."""

_Number: TypeAlias = "int | float"
"""An int, or minus or plus infinity."""
_Interval: TypeAlias = "tuple[_Number, _Number]"


def bounds(expr: Integer) -> tuple[int | None, int | None]:
    """The least and greatest value that `expr` can take, as far as is provable; None is no bound."""
    if not isinstance(expr, Expr):
        return expr, expr
    low, high = _bounds(expr)
    return (None if isinstance(low, float) else low), (None if isinstance(high, float) else high)


def is_nonnegative(expr: Integer) -> bool:
    """True if `expr >= 0` is provable."""
    low = bounds(expr)[0]
    return low is not None and low >= 0


def is_positive(expr: Integer) -> bool:
    """True if `expr >= 1` is provable."""
    low = bounds(expr)[0]
    return low is not None and low >= 1


def is_nonzero(expr: Integer) -> bool:
    """True if `expr != 0` is provable."""
    if not isinstance(expr, Expr):
        return expr != 0
    low, high = _bounds(expr)
    if low > 0 or high < 0:
        return True
    common = gcd(*(coefficient for monomial, coefficient in expr.terms.items() if monomial))
    return expr.constant % common != 0


def always_equal(left: Integer, right: Integer) -> bool:
    """True if `left == right` is provable."""
    return left is right or bounds(left - right) == (0, 0)


def never_equal(left: Integer, right: Integer) -> bool:
    """True if `left != right` is provable."""
    return is_nonzero(left - right)


def always_at_most(left: Integer, right: Integer) -> bool:
    """True if `left <= right` is provable."""
    return left is right or is_nonnegative(right - left)


def compare(left: Integer, right: Integer) -> int | None:
    """-1, 0 or 1 if `left` is provably less than, equal to or greater than `right` for all dims; None otherwise."""
    low, high = bounds(left - right)
    if low is not None and low >= 0:
        return 1 if low > 0 else 0 if high == 0 else None
    return -1 if high is not None and high < 0 else None


def parts_of(expr: Integer) -> list[Expr]:
    """`expr` and every expression in it at any depth, each after those it holds, in an order without chance."""
    return _postorder(expr, known=False)


# --- intervals


def _bounds(expr: Expr) -> _Interval:
    if isinstance(expr._lower, str):
        for part in _postorder(expr, known=True):
            if isinstance(part, Application):
                low, high = _application_bounds(part)
                low = max(low, 0) if part.nonnegative else low
            else:
                low, high = _interval(part.terms)
                if len(part.terms) > 1 and _splittable(part.terms) is not None:
                    low, high = _lower(part, [MAX_SPLITS]), -_lower(multiply(part, -1), [MAX_SPLITS])
            part._upper = None if high > _HUGE else int(max(high, -_HUGE))
            part._lower = None if low < -_HUGE else int(min(low, _HUGE))
    return _known(expr)


def _known(expr: int | str | Expr) -> _Interval:
    if isinstance(expr, int):
        return expr, expr
    if isinstance(expr, str) or isinstance(expr._lower, str) or isinstance(expr._upper, str):
        return -inf, inf  # not found yet: a product made on the way that outgrew the limits
    return (-inf if expr._lower is None else expr._lower), (inf if expr._upper is None else expr._upper)


def _postorder(expr: Integer, known: bool) -> list[Expr]:
    """Expressions in dependency order; with `known`, only those without bounds. A loop, since chains may be long."""
    done: dict[Expr, None] = {}
    stack: list[tuple[Expr, bool]] = [(expr, False)] if isinstance(expr, Expr) else []
    while stack:
        part, ready = stack.pop()
        if part in done or (known and not isinstance(part._lower, str)):
            continue
        if ready:
            done[part] = None
            continue
        stack.append((part, True))
        if isinstance(part, Application):
            stack.extend((piece, False) for piece in reversed(part.args) if isinstance(piece, Expr))
        elif not isinstance(part, Atom):
            stack.extend((atom, False) for monomial in part.terms for atom in monomial)
    return list(done)


def _application_bounds(atom: Application) -> _Interval:
    intervals = [_known(arg) for arg in atom.args]
    match atom.name:
        case "floordiv":
            return _quotient_bounds(*intervals)
        case "truncdiv":
            (low, high), divisor = intervals
            if divisor[0] >= 0:
                return min(low, 0), max(high, 0)
            return -max(-low, high, 0), max(-low, high, 0)
        case "min":
            return min(low for low, _ in intervals), min(high for _, high in intervals)
        case "max":
            return max(low for low, _ in intervals), max(high for _, high in intervals)
        case "broadcast":
            return min(low for low, _ in intervals), max(high for _, high in intervals)
        case "sum":
            return _plus(intervals[0][0], intervals[1][0]), _plus(intervals[0][1], intervals[1][1])
        case "product":
            return _product(*intervals)
        case _:
            return -inf, inf


def _quotient_bounds(dividend: _Interval, divisor: _Interval) -> _Interval:
    if divisor[0] < 0:
        return -inf, inf
    least = max(divisor[0], 1)  # where the quotient is defined, the divisor is not 0
    greatest = divisor[1]
    low, high = dividend
    return _floor(low, greatest if low >= 0 else least), _floor(high, least if high >= 0 else greatest)


def _floor(dividend: _Number, divisor: _Number) -> _Number:
    if isinstance(dividend, float):
        return dividend if not isinstance(divisor, float) else (0 if dividend > 0 else -1)
    if isinstance(divisor, float):
        return 0 if dividend >= 0 else -1
    return dividend // divisor if divisor else 0


def _plus(left: _Number, right: _Number) -> _Number:
    return left if isinstance(left, float) else right if isinstance(right, float) else left + right


def _times(left: _Number, right: _Number) -> _Number:
    if not left or not right:
        return 0
    if isinstance(left, float) or isinstance(right, float):
        return inf if (left > 0) == (right > 0) else -inf
    return left * right


def _product(left: _Interval, right: _Interval) -> _Interval:
    corners = [_times(first, second) for first in left for second in right]
    return min(corners), max(corners)


def _interval(terms: Terms) -> _Interval:
    low: _Number = 0
    high: _Number = 0
    for monomial, coefficient in terms.items():
        least, greatest = _monomial_interval(monomial)
        if coefficient < 0:
            least, greatest = greatest, least
        low, high = _plus(low, _times(coefficient, least)), _plus(high, _times(coefficient, greatest))
    return low, high


def _monomial_interval(monomial: Monomial) -> _Interval:
    if len(monomial) == 1:
        return _known(monomial[0])
    whole: _Interval = (1, 1)
    for atom in dict.fromkeys(monomial):
        base = factor = _known(atom)
        power = monomial.count(atom)
        for _ in range(power - 1):
            factor = _product(factor, base)
        whole = _product(whole, (max(factor[0], 0), factor[1]) if power % 2 == 0 else factor)
    return whole


# --- atoms taken apart


def _lower(expr: Integer, splits: list[int]) -> _Number:
    """A lower bound of a polynomial whose atoms' bounds are known.

    Args:
        expr: The polynomial.
        splits: How many atoms may still be taken apart; one list for the whole search.
    """
    terms = terms_of(expr)
    direct = _interval(terms)[0]
    atom = _splittable(terms)
    if atom is None or not splits[0]:
        return direct
    splits[0] -= 1
    factor_terms, rest_terms = _separate(terms, atom)
    factor, rest = from_terms(factor_terms), from_terms(rest_terms)
    low, high = _interval(factor_terms)
    pieces = [piece for piece in atom.args if not isinstance(piece, str)]
    if atom.name == "floordiv":
        dividend, divisor = pieces
        if low < 0 < high:
            return direct
        assert isinstance(divisor, int)
        scaled = add(multiply(dividend, factor), multiply(rest, divisor))
        if high > 0:
            scaled = add(scaled, multiply(factor, 1 - divisor))
        found = _lower(scaled, splits)
        return max(direct, found if isinstance(found, float) else -(-found // divisor))
    found_each = [_lower(add(multiply(piece, factor), rest), splits) for piece in pieces]
    above_all = (high <= 0) if atom.name == "min" else (low >= 0)
    return max(direct, max(found_each) if above_all else min(found_each))


def _splittable(terms: Terms) -> Application | None:
    """The outermost atom that can be taken apart and is nowhere squared; None if that cannot help."""
    if len(terms) - (() in terms) < 2:
        return None
    atoms = {
        atom: None for monomial in terms for atom in monomial if isinstance(atom, Application) and _can_split(atom)
    }
    # Longer texts first: an atom is taken apart before those inside it, which may then cancel.
    for atom in sorted(atoms, key=lambda atom: (len(str(atom)), order_key(atom)), reverse=True):
        if all(monomial.count(atom) < 2 for monomial in terms):
            return atom
    return None


def _can_split(atom: Application) -> bool:
    return atom.name in ("min", "max") or (atom.name == "floordiv" and isinstance(atom.args[1], int))


def _separate(terms: Terms, atom: Atom) -> tuple[Terms, Terms]:
    """`terms` as `factor * atom + rest`."""
    factor: Terms = {}
    rest: Terms = {}
    for monomial, coefficient in terms.items():
        if atom not in monomial:
            rest[monomial] = coefficient
            continue
        index = monomial.index(atom)
        factor[monomial[:index] + monomial[index + 1 :]] = coefficient
    return factor, rest
