"""Functions of symbolic integers that use facts: division, minimum, maximum, broadcasting, opaque functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd

from graphopt.ir.symbol_expr import (
    MAX_TERMS,
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
    sorted_terms,
    terms_of,
)
from graphopt.ir.symbol_facts import (
    always_at_most,
    always_equal,
    bounds,
    is_nonnegative,
    is_nonzero,
    is_positive,
    never_equal,
)

_RESERVED = ("floordiv", "truncdiv", "min", "max", "sum", "product", "broadcast")
DEFINITIONS: dict[str, Callable[..., Integer]] = {}
_MAX_DIVISION_STEPS = 4 * MAX_TERMS


# --- division


def floordiv(dividend: Integer, divisor: Integer, *, assume_nonzero: bool = False) -> Integer:
    """The quotient rounded towards minus infinity, as Python's `//`.

    Args:
        dividend: What is divided.
        divisor: What it is divided by. Factors that may be 0 are not cancelled unless `assume_nonzero`.
        assume_nonzero: The caller's word that the divisor is not 0, so that `floordiv(n*s, s)` is `n`.

    Raises:
        ZeroDivisionError: The divisor is the number 0.
    """
    if isinstance(divisor, int):
        if isinstance(dividend, int):
            return dividend // divisor
        if divisor == 0:
            raise ZeroDivisionError(f"{dividend} is divided by 0; check for a zero divisor before")
        return _floordiv_by_number(dividend, divisor) if divisor > 0 else floordiv(multiply(dividend, -1), -divisor)
    if sorted_terms(divisor.terms)[0][1] < 0:
        dividend, divisor = multiply(dividend, -1), multiply(divisor, -1)
    cancelled = assume_nonzero or is_nonzero(divisor)
    if cancelled:
        exact = divide_exactly(dividend, divisor)
        if exact is not None:
            return exact
    common = _common_factor(terms_of(dividend), terms_of(divisor), atoms=cancelled)
    if common != 1:
        reduced = divide_exactly(dividend, common), divide_exactly(divisor, common)
        if reduced[0] is not None and reduced[1] is not None:
            return floordiv(reduced[0], reduced[1], assume_nonzero=assume_nonzero)
    low, high = bounds(dividend)
    if low is not None and low >= 0 and high is not None and always_at_most(high + 1, divisor):
        return 0
    return Application("floordiv", (dividend, divisor))


def _floordiv_by_number(dividend: Expr, divisor: int) -> Integer:
    """`dividend // divisor` for a positive divisor; every step holds for all integers."""
    quotient: Terms = {}
    rest: Terms = {}
    for monomial, coefficient in terms_of(dividend).items():
        # Coefficients keep their sign (-n // 7, not 6*n // 7 - n); the constant goes into range(divisor).
        whole = abs(coefficient) // divisor * (1 if coefficient > 0 else -1) if monomial else coefficient // divisor
        if whole:
            quotient[monomial] = whole
        if coefficient != whole * divisor:
            rest[monomial] = coefficient - whole * divisor
    constant = rest.pop((), 0)
    common = gcd(divisor, *rest.values())
    divisor //= common
    if not rest or divisor == 1:
        return add(from_terms(quotient), from_terms({monomial: value // common for monomial, value in rest.items()}))
    rest = {monomial: value // common for monomial, value in rest.items()}
    return add(from_terms(quotient), _floordiv_reduced(rest, constant // common, divisor))


def _floordiv_reduced(rest: Terms, constant: int, divisor: int) -> Integer:
    if sorted_terms(rest)[0][1] < 0:
        # floor(-p / k) is -floor((p + k - 1) / k): both spellings of a ceiling become one.
        negated = {monomial: -value for monomial, value in rest.items()}
        return multiply(_floordiv_reduced(negated, divisor - 1 - constant, divisor), -1)
    whole = from_terms({**rest, (): constant} if constant else rest)
    low, high = bounds(whole)
    if low is not None and high is not None and low // divisor == high // divisor:
        return low // divisor
    inner = [atom for atom, value in _linear(rest) if value == 1 and _is_quotient_by_number(atom)]
    if len(inner) == 1:
        # (y + x//m) // k is (m*y + x) // (m*k).
        numerator, by = inner[0].args
        if not isinstance(numerator, str) and isinstance(by, int):
            return floordiv(multiply(whole - inner[0], by) + numerator, by * divisor)
    return Application("floordiv", (whole, divisor))


def _linear(terms: Terms) -> list[tuple[Application, int]]:
    pairs = ((monomial[0], value) for monomial, value in terms.items() if len(monomial) == 1)
    return [(atom, value) for atom, value in pairs if isinstance(atom, Application)]


def _is_quotient_by_number(atom: Application) -> bool:
    return atom.name == "floordiv" and isinstance(atom.args[1], int)


def mod(dividend: Integer, divisor: Integer, *, assume_nonzero: bool = False) -> Integer:
    """The remainder with the divisor's sign, as Python's `%`: `dividend - divisor * (dividend // divisor)`.

    Raises:
        ZeroDivisionError: The divisor is the number 0.
    """
    return dividend - multiply(divisor, floordiv(dividend, divisor, assume_nonzero=assume_nonzero))


def ceildiv(dividend: Integer, divisor: Integer, *, assume_nonzero: bool = False) -> Integer:
    """The quotient rounded towards plus infinity.

    Raises:
        ZeroDivisionError: The divisor is the number 0.
    """
    return multiply(floordiv(multiply(dividend, -1), divisor, assume_nonzero=assume_nonzero), -1)


def truncdiv(dividend: Integer, divisor: Integer, *, assume_nonzero: bool = False) -> Integer:
    """The quotient rounded towards 0, as ONNX's integer `Div`: a floor division only where signs are proved.

    Raises:
        ZeroDivisionError: The divisor is the number 0.
    """
    if isinstance(divisor, int):
        if divisor == 0:
            raise ZeroDivisionError(f"{dividend} is divided by 0; check for a zero divisor before")
        if divisor < 0:
            return multiply(truncdiv(dividend, -divisor), -1)
    if is_nonnegative(divisor):
        if is_nonnegative(dividend):
            return floordiv(dividend, divisor, assume_nonzero=assume_nonzero)
        if is_nonnegative(multiply(dividend, -1)):
            return multiply(floordiv(multiply(dividend, -1), divisor, assume_nonzero=assume_nonzero), -1)
    if assume_nonzero or is_nonzero(divisor):
        exact = divide_exactly(dividend, divisor)
        if exact is not None:
            return exact
    return Application("truncdiv", (dividend, divisor))


def truncmod(dividend: Integer, divisor: Integer, *, assume_nonzero: bool = False) -> Integer:
    """The remainder with the dividend's sign, as ONNX's `Mod` with `fmod=1`.

    Raises:
        ZeroDivisionError: The divisor is the number 0.
    """
    return dividend - multiply(divisor, truncdiv(dividend, divisor, assume_nonzero=assume_nonzero))


def divide_exactly(dividend: Integer, divisor: Integer) -> Integer | None:
    """The polynomial `q` with `q * divisor == dividend` for all dims, None if there is none or it is too big.

    The equation holds everywhere, also where the divisor is 0. That `q` is *the* quotient assumes that the divisor is
    not 0 there: `divide_exactly(n*s, s)` is `n`, but with `s == 0` any number times `s` gives `n*s`. Ask
    `is_nonzero(divisor)` whether that assumption is proved.
    """
    if isinstance(divisor, int) and isinstance(dividend, int):
        return dividend // divisor if divisor and dividend % divisor == 0 else None
    if divisor == 0:
        return None
    divisor_terms = sorted_terms(terms_of(divisor))
    lead, factor = divisor_terms[0]
    rest = dict(terms_of(dividend))
    quotient: Terms = {}
    while rest:
        if len(quotient) >= _MAX_DIVISION_STEPS:
            return None
        monomial, value = sorted_terms(rest)[0] if len(divisor_terms) > 1 else next(iter(rest.items()))
        part = _without(monomial, lead)
        if part is None or value % factor:
            return None
        quotient[part] = value // factor
        product = multiply(from_terms({part: value // factor}), divisor)
        remainder = add(from_terms(rest), multiply(product, -1))
        if isinstance(remainder, Application) and remainder.name == "sum":
            return None
        rest = dict(terms_of(remainder))
    return from_terms(quotient)


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _common_factor(left: Terms, right: Terms, atoms: bool) -> Integer:
    """The greatest number, times the atoms if asked for, that divides every term of both."""
    monomials = [*left, *right]
    shared: list[Atom] = []
    if atoms and monomials:
        for atom in dict.fromkeys(monomials[0]):
            shared.extend([atom] * min(monomial.count(atom) for monomial in monomials))
    return from_terms({tuple(shared): gcd(*left.values(), *right.values())})


# --- minimum, maximum, other functions


def minimum(*args: Integer) -> Integer:
    """The least of one or more integers."""
    return _extreme("min", args)


def maximum(*args: Integer) -> Integer:
    """The greatest of one or more integers."""
    return _extreme("max", args)


def _extreme(name: str, args: tuple[Integer, ...]) -> Integer:
    flat: dict[Integer, None] = {}
    for arg in args:
        nested = arg.args if isinstance(arg, Application) and arg.name == name else (arg,)
        flat.update((piece, None) for piece in nested if not isinstance(piece, str))
    kept: list[Integer] = []
    for arg in sorted(flat, key=order_key):
        if any(_beats(name, other, arg) for other in kept):
            continue
        kept = [other for other in kept if not _beats(name, arg, other)]
        kept.append(arg)
    if not kept:
        raise ValueError(f"{name} needs at least one integer")
    return kept[0] if len(kept) == 1 else Application(name, tuple(kept))


def _beats(name: str, winner: Integer, loser: Integer) -> bool:
    return always_at_most(winner, loser) if name == "min" else always_at_most(loser, winner)


def opaque(name: str, *args: int | str | Expr, nonnegative: bool = False) -> Application:
    """An integer of which nothing is known but that it is a function `name` of `args`, and at least 0 if `nonnegative`.

    Raises:
        ValueError: `name` has a meaning here; call that function instead.
    """
    if name in _RESERVED:
        raise ValueError(f"{name} has a meaning of its own; call the function of that name, or choose another name")
    return Application(name, args, nonnegative)


def broadcast(*args: Integer) -> Integer:
    """The size that dims of one or more sizes broadcast to: the one that is not 1, where they do broadcast."""
    flat: dict[Integer, None] = {}
    for arg in args:
        nested = arg.args if isinstance(arg, Application) and arg.name == "broadcast" else (arg,)
        flat.update((piece, None) for piece in nested if not isinstance(piece, str) and piece != 1)
    kept: list[Integer] = []
    for arg in sorted(flat, key=order_key):
        if never_equal(arg, 1):
            return arg
        if not any(always_equal(other, arg) for other in kept):
            kept.append(arg)
    kept = [arg for arg in kept if not any(_is_cut_of(arg, other) for other in kept)]
    return Application("broadcast", tuple(kept)) if len(kept) > 1 else kept[0] if kept else 1


def _is_cut_of(arg: Integer, whole: Integer) -> bool:
    """True for `min(whole, k)` with positive `k`: where that is less than `whole` and not 1, they do not broadcast.

    So it is for `reduced_dim(whole, ...)`, which is 1 or `whole`, and for `size_or(whole, other)`, which is `whole` or
    where that is 0 broadcasts with it to 0.
    """
    if not isinstance(arg, Application) or whole not in arg.args:
        return False
    if arg.name in ("reduced_dim", "size_or"):
        return arg.args[0] is whole
    if arg.name != "min":
        return False
    return all(piece is whole or (not isinstance(piece, str) and is_positive(piece)) for piece in arg.args)


def define(name: str, function: Callable[..., Integer]) -> None:
    """Give an opaque function a meaning for `substitute`: `function` gets its arguments, some of which are now others.

    Raises:
        ValueError: `name` has a meaning here already.
    """
    if name in _RESERVED:
        raise ValueError(f"{name} has a meaning of its own; choose another name")
    DEFINITIONS[name] = function


def product_of(factors: Iterable[Integer | None]) -> Integer | None:
    """The product; None if a factor is unknown and none is 0."""
    result: Integer = 1
    unknown = False
    for factor in factors:
        if factor is None:
            unknown = True
        else:
            result = multiply(result, factor)
    return None if unknown and result != 0 else result


def sum_of(parts: Iterable[Integer | None]) -> Integer | None:
    """The sum; None if a part is unknown."""
    result: Integer = 0
    for part in parts:
        if part is None:
            return None
        result = add(result, part)
    return result
