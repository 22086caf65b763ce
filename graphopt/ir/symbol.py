"""Symbolic integers, whole: what to import. Arithmetic, facts, division, minimum and maximum, substitution.

A dim is an `int` where it is known, an `Expr` where it is a function of input dims, None where it is unknown.
Functions here take and give ints and expressions; `product_of` and `sum_of` also take None.

    batch, seq = Symbol(("ids", 0), "batch"), Symbol(("ids", 1), "seq")
    str(2 * batch + seq // 2 - 1)                    # "2*batch + seq//2 - 1"
    divide_exactly(12 * batch * seq, 4 * seq)        # 3*batch
    is_nonnegative(seq - seq // 2)                   # True

Division is Python's, towards minus infinity; ONNX's integer `Div` is `truncdiv`, its `Mod` with `fmod=1` `truncmod`.
A quotient by an expression is undefined where that is 0, and all that is said of it holds where it is defined.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.ir.symbol_expr import Application, Atom, Expr, Integer, Symbol, add, multiply, order_key, terms_of
from graphopt.ir.symbol_facts import (
    always_at_most,
    always_equal,
    bounds,
    compare,
    is_nonnegative,
    is_nonzero,
    is_positive,
    never_equal,
    parts_of,
)
from graphopt.ir.symbol_functions import (
    DEFINITIONS,
    broadcast,
    ceildiv,
    define,
    divide_exactly,
    floordiv,
    maximum,
    minimum,
    mod,
    opaque,
    product_of,
    sum_of,
    truncdiv,
    truncmod,
)
from graphopt.ir.symbol_sizes import magnitude

__all__ = [
    "Application",
    "Atom",
    "Expr",
    "Integer",
    "Symbol",
    "add",
    "always_at_most",
    "always_equal",
    "bounds",
    "broadcast",
    "ceildiv",
    "compare",
    "define",
    "degree",
    "divide_exactly",
    "evaluate",
    "floordiv",
    "is_nonnegative",
    "is_nonzero",
    "is_positive",
    "magnitude",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "never_equal",
    "opaque",
    "product_of",
    "substitute",
    "sum_of",
    "symbols",
    "truncdiv",
    "truncmod",
]


def symbols(expr: Integer) -> tuple[Symbol, ...]:
    """The symbols in `expr` at any depth, sorted."""
    return tuple(sorted((part for part in parts_of(expr) if isinstance(part, Symbol)), key=order_key))


def degree(expr: Integer) -> int:
    """The most atoms multiplied in one term; 0 for a number."""
    return max(map(len, terms_of(expr)), default=0)


def substitute(expr: Integer, mapping: Mapping[Symbol, Integer] | Mapping[Atom, Integer]) -> Integer:
    """`expr` with atoms replaced, all at once and at any depth.

    Raises:
        ValueError: A symbol is given a negative number.
        ZeroDivisionError: A divisor becomes 0.
    """
    values: dict[Expr, Integer] = {}
    for atom, value in mapping.items():
        if isinstance(atom, Symbol) and isinstance(value, int) and value < 0:
            raise ValueError(f"dim {atom} cannot be {value}; dims are at least 0")
        values[atom] = int(value) if isinstance(value, int) else value
    for part in parts_of(expr):
        if part in values:
            continue
        if isinstance(part, Application):
            args = tuple(values[arg] if isinstance(arg, Expr) else arg for arg in part.args)
            values[part] = part if args == part.args else _apply(part, args)
        elif isinstance(part, Symbol):
            values[part] = part
        else:
            values[part] = _replaced(part, values)
    return values[expr] if isinstance(expr, Expr) else expr


def evaluate(expr: Integer, mapping: Mapping[Symbol, int] | Mapping[Atom, int]) -> int:
    """The number that `expr` is where each symbol (or opaque application) has the number given.

    Raises:
        ValueError: A number is missing, or negative for a symbol.
        ZeroDivisionError: A divisor is 0.
    """
    result = substitute(expr, mapping)
    if isinstance(result, Expr):
        missing = ", ".join(str(part) for part in parts_of(result) if isinstance(part, Symbol | Application))
        raise ValueError(f"no number is given for {missing}; add it to the mapping")
    return result


def _replaced(expr: Expr, values: dict[Expr, Integer]) -> Integer:
    total: Integer = 0
    for monomial, coefficient in expr.terms.items():
        product: Integer = coefficient
        for atom in monomial:
            product = multiply(product, values[atom])
        total = add(total, product)
    return total


def _apply(atom: Application, args: tuple[int | str | Expr, ...]) -> Integer:
    numbers = [arg for arg in args if not isinstance(arg, str)]
    match atom.name:
        case "floordiv":
            return floordiv(*numbers)
        case "truncdiv":
            return truncdiv(*numbers)
        case "min":
            return minimum(*numbers)
        case "max":
            return maximum(*numbers)
        case "sum":
            return add(*numbers)
        case "product":
            return multiply(*numbers)
        case "broadcast":
            return broadcast(*numbers)
        case _ if atom.name in DEFINITIONS:
            return DEFINITIONS[atom.name](*args)
        case _:
            return Application(atom.name, args, atom.nonnegative)
