"""How large symbolic integers can get, if no input holds more than so many elements.

A bound is a polynomial with positive coefficients over `max(dim, 1)`: it adds, multiplies and divides like the
expression it bounds, and the dims of one input in a product are known to be few together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from graphopt.ir.symbol_expr import Application, Atom, Expr, Integer, Symbol, order_key, terms_of
from graphopt.ir.symbol_facts import bounds, parts_of

_MAX_TERMS = 256
_Bound = dict[tuple[Atom, ...], int]
"""Coefficient by monomial."""
_LIKE_ARGUMENTS = {
    "slice_length": slice(0, 1),
    "reduced_dim": slice(0, 1),
    "size_or": slice(None),
    "filled_dim": slice(0, None, 2),
}
"""Of opaque functions that are at most one of their arguments, or 1, the arguments."""


def magnitude(expr: Integer, most: int) -> int | None:
    """The greatest absolute value of `expr` if no input holds more than `most` elements; None if there is no bound.

    The product of distinct dims of one input is taken to be at most `most`, also where another dim of it is 0; an
    opaque dim counts as an input of its own.
    """
    if not isinstance(expr, Expr):
        return abs(expr)
    bound = _bound(expr)
    return None if bound is None else sum(factor * _product(monomial, most) for monomial, factor in bound.items())


@lru_cache(maxsize=4096)
def _bound(expr: Expr) -> _Bound | None:
    found: dict[Expr, _Bound | None] = {}
    for part in parts_of(expr):
        low, high = bounds(part)
        if low is not None and high is not None:
            found[part] = {(): max(abs(low), abs(high))}
        elif isinstance(part, Symbol):
            found[part] = {(part,): 1}
        elif isinstance(part, Application):
            found[part] = _of_application(part, found)
        else:
            found[part] = _of_polynomial(part, found)
    return found[expr]


def _of_polynomial(expr: Expr, found: dict[Expr, _Bound | None]) -> _Bound | None:
    total: _Bound | None = {}
    for monomial, coefficient in terms_of(expr).items():
        product: _Bound | None = {(): abs(coefficient)}
        for atom in monomial:
            product = _times(product, found[atom])
        total = _plus(total, product)
    return total


def _of_application(atom: Application, found: dict[Expr, _Bound | None]) -> _Bound | None:
    args: list[_Bound | None] = [
        found[arg] if isinstance(arg, Expr) else {(): abs(arg)} for arg in atom.args if not isinstance(arg, str)
    ]
    match atom.name:
        case "floordiv" | "truncdiv":
            divisor = atom.args[1]
            by = abs(divisor) if isinstance(divisor, int) else 1
            first = args[0]
            return None if first is None else {monomial: -(-factor // by) for monomial, factor in first.items()}
        case "min" | "max" | "broadcast":
            return _greatest(args)
        case "sum":
            return _plus(*args)
        case "product":
            return _times(*args)
        case "single":  # rounding adds less than a half
            return _plus(args[0], args[0])
        case _ if atom.name in _LIKE_ARGUMENTS:
            return _greatest([*args[_LIKE_ARGUMENTS[atom.name]], {(): 1}])
        case _:
            return {(atom,): 1} if atom.nonnegative else None


def _plus(left: _Bound | None, right: _Bound | None) -> _Bound | None:
    if left is None or right is None:
        return None
    total = dict(left)
    for monomial, factor in right.items():
        total[monomial] = total.get(monomial, 0) + factor
    return total if len(total) <= _MAX_TERMS else None


def _times(left: _Bound | None, right: _Bound | None) -> _Bound | None:
    if left is None or right is None or len(left) * len(right) > _MAX_TERMS:
        return None
    total: _Bound = {}
    for first, factor in left.items():
        for second, other in right.items():
            monomial = tuple(sorted(first + second, key=order_key))
            total[monomial] = total.get(monomial, 0) + factor * other
    return total


def _greatest(args: Iterable[_Bound | None]) -> _Bound | None:
    total: _Bound = {}
    for arg in args:
        if arg is None:
            return None
        for monomial, factor in arg.items():
            total[monomial] = max(total.get(monomial, 0), factor)
    return total if len(total) <= _MAX_TERMS else None


def _product(monomial: tuple[Atom, ...], most: int) -> int:
    """The most that a product of dims can be: `most` for those of one input, again for those that are squared, ..."""
    powers: dict[object, int] = {}
    for atom in dict.fromkeys(monomial):
        key = atom.key if isinstance(atom, Symbol) else atom
        owner = key[0] if isinstance(key, tuple) else (key,)
        powers[owner] = max(powers.get(owner, 0), monomial.count(atom))
    return int(most ** sum(powers.values()))
