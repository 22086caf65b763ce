"""Symbolic integers: hash-consed polynomials with integer coefficients over atoms.

An atom is a `Symbol` (a dim) or an `Application` (floor division, minimum, ... of other expressions). Every expression
exists once: equal polynomials are the same object, so equality is `is` and hashing costs nothing. A result without
atoms is a plain `int`. Dims being at least 0 is the only axiom; nothing here assumes a dim to be at least 1.

The functions that need facts (`floordiv`, `minimum`, ...) are in `graphopt.ir.symbol`, which is what to import.
"""

from __future__ import annotations

import operator
from hashlib import blake2b
from threading import RLock
from typing import Any, NoReturn, SupportsIndex, TypeAlias
from weakref import WeakValueDictionary

MAX_TERMS = 64
"""A sum or product of more terms is kept as an application of `sum` or `product` instead of being expanded."""
MAX_DEGREE = 24
MAX_BITS = 192
"""The most bits of a coefficient of an expanded product."""
MAX_TEXT = 160
"""Longer texts of applications are cut, and told apart by a digest."""

Integer: TypeAlias = "int | Expr"
Monomial: TypeAlias = "tuple[Atom, ...]"
"""The atoms of a product, in their order, repeated for powers; the empty tuple is the constant term."""
Terms: TypeAlias = "dict[Monomial, int]"

_LOCK = RLock()
_EXPRESSIONS: WeakValueDictionary[frozenset[tuple[Monomial, int]], Expr] = WeakValueDictionary()
_ATOMS: WeakValueDictionary[tuple[Any, ...], Atom] = WeakValueDictionary()


class Expr:
    """An immutable integer expression that is not a constant; equal expressions are one object."""

    __slots__ = ("__weakref__", "_digest", "_lower", "_terms", "_text", "_upper")

    _terms: Terms
    _text: str | None
    _digest: bytes | None
    _lower: int | str | None
    _upper: int | str | None
    """Bounds once they are known; a `str` until then (see `symbol_facts`)."""

    __array_ufunc__ = None  # numpy integers leave the operation to this class

    def __new__(cls, *_arguments: object, **_names: object) -> Any:
        """Refuse: expressions come from arithmetic on symbols."""
        raise TypeError("make expressions by arithmetic on Symbol(key, label)")

    @property
    def terms(self) -> Terms:
        """Coefficient by monomial; not to be changed."""
        return self._terms

    @property
    def constant(self) -> int:
        """The constant term."""
        return self._terms.get((), 0)

    def __add__(self, other: SupportsIndex | Expr) -> Integer:
        return add(self, other if isinstance(other, Expr) else _integer(other))

    def __radd__(self, other: SupportsIndex) -> Integer:
        return add(self, _integer(other))

    def __sub__(self, other: SupportsIndex | Expr) -> Integer:
        return add(self, multiply(other, -1) if isinstance(other, Expr) else -_integer(other))

    def __rsub__(self, other: SupportsIndex) -> Integer:
        return add(multiply(self, -1), _integer(other))

    def __mul__(self, other: SupportsIndex | Expr) -> Integer:
        return multiply(self, other if isinstance(other, Expr) else _integer(other))

    def __rmul__(self, other: SupportsIndex) -> Integer:
        return multiply(self, _integer(other))

    def __neg__(self) -> Integer:
        return multiply(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __pow__(self, exponent: int) -> Integer:
        if exponent < 0:
            raise ValueError("the exponent must be at least 0; use floordiv to divide")
        result: Integer = 1
        for _ in range(exponent):
            result = multiply(result, self)
        return result

    def __floordiv__(self, other: SupportsIndex | Expr) -> Integer:
        from graphopt.ir.symbol_functions import floordiv

        return floordiv(self, other if isinstance(other, Expr) else _integer(other))

    def __rfloordiv__(self, other: SupportsIndex) -> Integer:
        from graphopt.ir.symbol_functions import floordiv

        return floordiv(_integer(other), self)

    def __mod__(self, other: SupportsIndex | Expr) -> Integer:
        from graphopt.ir.symbol_functions import mod

        return mod(self, other if isinstance(other, Expr) else _integer(other))

    def __rmod__(self, other: SupportsIndex) -> Integer:
        from graphopt.ir.symbol_functions import mod

        return mod(_integer(other), self)

    def __bool__(self) -> NoReturn:
        # `if dim:` and `dim or 1` would silently take an unknown dim for a non-zero one.
        raise TypeError(f"whether {self} is 0 is not known; ask is_positive() or never_equal() instead")

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = self._text = _polynomial_text(self)
        return text

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return from_items, (tuple(sorted(self._terms.items(), key=_term_key)),)


class Atom(Expr):
    """An expression that is not a sum or product of others."""

    __slots__ = ("_order",)

    _order: tuple[int, str, bytes]
    """The same in every process: symbols first, then by text; the digest tells equal texts apart."""

    @property
    def terms(self) -> Terms:
        """The polynomial `1 * self`, made anew since an atom that held it would hold itself."""
        return {(self,): 1}

    @property
    def constant(self) -> int:
        """The constant term, 0."""
        return 0


class Symbol(Atom):
    """A dim, known to be at least 0. Symbols with equal key, label and bounds are one object."""

    __slots__ = ("_key", "_label", "_least", "_most")

    _key: str | tuple[str | int, ...]
    _label: str
    _least: int
    _most: int | None

    def __new__(
        cls, key: str | tuple[str | int, ...], label: str | None = None, least: int = 0, most: int | None = None
    ) -> Symbol:
        """The symbol of `key`.

        Args:
            key: What the dim is, for example `("input_ids", 0)`, or a dim name that is trusted.
            label: How it prints; made from the key by default. Need not be unique.
            least: The least it can be: more than 0 only where it is proved that a run with less fails.
            most: The most it can be, if a bound is proved.
        """
        if label is None:
            label = key if isinstance(key, str) else f"{key[0]}[{','.join(map(str, key[1:]))}]"
        identity = (key, label, least, most)
        found = _ATOMS.get(identity)
        if found is None:
            with _LOCK:
                found = _ATOMS.get(identity)
                if found is None:
                    made = object.__new__(cls)
                    made._key, made._label, made._text = key, label, label
                    bounds = (f"{least} {most}",) if least or most is not None else ()
                    made._digest = _digest_of("symbol", repr(key), label, *bounds)
                    made._order = (0, label, made._digest)
                    made._least, made._most = made._lower, made._upper = least, most
                    _ATOMS[identity] = found = made
        assert isinstance(found, Symbol)
        return found

    @property
    def key(self) -> str | tuple[str | int, ...]:
        """What the dim is: `(input name, axis)` or a trusted dim name."""
        return self._key

    @property
    def label(self) -> str:
        """How it prints."""
        return self._label

    @property
    def least(self) -> int:
        """The least it can be."""
        return self._least

    @property
    def most(self) -> int | None:
        """The most it can be, None if there is no bound."""
        return self._most

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self._key, self._label, self._least, self._most)


class Application(Atom):
    """A function of expressions that stays as it is: `floordiv`, `truncdiv`, `min`, `max`, or any other name."""

    __slots__ = ("_args", "_name", "_nonnegative")

    _name: str
    _args: tuple[int | str | Expr, ...]
    _nonnegative: bool

    def __new__(cls, name: str, args: tuple[int | str | Expr, ...], nonnegative: bool = False) -> Application:
        """The application of `name` to `args` as they are; `nonnegative` is the maker's word that it is at least 0."""
        identity = (name, args, nonnegative)
        found = _ATOMS.get(identity)
        if found is None:
            with _LOCK:
                found = _ATOMS.get(identity)
                if found is None:
                    made = object.__new__(cls)
                    made._name, made._args, made._nonnegative = identity
                    made._digest = _digest_of(name, str(nonnegative), *map(_part_digest, args))
                    made._text = _application_text(name, args, made._digest)
                    made._order = (1, made._text, made._digest)
                    made._lower = made._upper = "?"
                    _ATOMS[identity] = found = made
        assert isinstance(found, Application)
        return found

    @property
    def name(self) -> str:
        """The function."""
        return self._name

    @property
    def args(self) -> tuple[int | str | Expr, ...]:
        """What it is applied to."""
        return self._args

    @property
    def nonnegative(self) -> bool:
        """True if whoever made it promised that it is at least 0."""
        return self._nonnegative

    def __reduce__(self) -> tuple[Any, ...]:
        return Application, (self._name, self._args, self._nonnegative)


# --- arithmetic


def add(left: Integer, right: Integer) -> Integer:
    """The sum."""
    if type(left) is int:
        if type(right) is int:
            return left + right
        left, right = right, left
    terms = dict(terms_of(left))
    for monomial, coefficient in terms_of(right).items():
        total = terms.get(monomial, 0) + coefficient
        if total:
            terms[monomial] = total
        else:
            del terms[monomial]
    return from_terms(terms) if len(terms) <= MAX_TERMS else _unexpanded("sum", left, right)


def multiply(left: Integer, right: Integer) -> Integer:
    """The product."""
    if type(left) is int:
        left, right = right, left
    if type(right) is int:
        if type(left) is int:
            return left * right
        if right == 1:
            return left
        if right == 0:
            return 0
        terms = {monomial: coefficient * right for monomial, coefficient in terms_of(left).items()}
    else:
        terms = {}
        for first, factor in terms_of(left).items():
            for second, coefficient in terms_of(right).items():
                monomial = _merge(first, second) if first and second else first or second
                total = terms.get(monomial, 0) + factor * coefficient
                if total:
                    terms[monomial] = total
                else:
                    del terms[monomial]
    if len(terms) > MAX_TERMS or any(len(m) > MAX_DEGREE or c.bit_length() > MAX_BITS for m, c in terms.items()):
        return _unexpanded("product", left, right)
    return from_terms(terms)


def terms_of(expr: Integer) -> Terms:
    """Coefficient by monomial; not to be changed."""
    if isinstance(expr, Expr):
        return {(expr,): 1} if isinstance(expr, Atom) else expr._terms
    return {(): int(expr)} if expr else {}


def from_terms(terms: Terms) -> Integer:
    """The expression with these terms: monomials in order, coefficients not 0; `terms` must not change afterwards."""
    if len(terms) < 2:
        if not terms:
            return 0
        ((monomial, coefficient),) = terms.items()
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    identity = frozenset(terms.items())
    found = _EXPRESSIONS.get(identity)
    if found is None:
        with _LOCK:
            found = _EXPRESSIONS.get(identity)
            if found is None:
                found = object.__new__(Expr)
                found._terms = terms
                found._text = found._digest = None
                found._lower = found._upper = "?"
                _EXPRESSIONS[identity] = found
    return found


def from_items(items: tuple[tuple[Monomial, int], ...]) -> Integer:
    """The expression with these (monomial, coefficient) pairs; used to copy and unpickle."""
    return from_terms(dict(items))


def sorted_terms(terms: Terms) -> list[tuple[Monomial, int]]:
    """The terms as they print, in the same order in every process: by degree, then by atoms, the constant last."""
    return sorted(terms.items(), key=_term_key)


def _term_key(term: tuple[Monomial, int]) -> tuple[int, list[tuple[int, str, bytes]]]:
    return -len(term[0]), [atom._order for atom in term[0]]


def _atom_key(atom: Atom) -> tuple[int, str, bytes]:
    return atom._order


def _merge(first: Monomial, second: Monomial) -> Monomial:
    if len(first) == 1 == len(second):
        return first + second if first[0]._order <= second[0]._order else second + first
    return tuple(sorted(first + second, key=_atom_key))


def _unexpanded(name: str, left: Integer, right: Integer) -> Integer:
    assert isinstance(left, Expr)
    if isinstance(right, Expr) and order_key(right) < order_key(left):
        left, right = right, left
    return Application(name, (left, right))


def _integer(value: SupportsIndex) -> int:
    return value if type(value) is int else int(operator.index(value))


# --- text and digests


def order_key(expr: int | str | Expr) -> tuple[int, int | str, bytes]:
    """A key to sort arguments by, the same in every process: numbers, then atoms, then sums, then words."""
    if isinstance(expr, str):
        return 4, expr, b""
    if isinstance(expr, Atom):
        return 1 + expr._order[0], expr._order[1], expr._order[2]
    return (3, str(expr), _part_digest(expr)) if isinstance(expr, Expr) else (0, expr, b"")


def _digest_of(*parts: str | bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _part_digest(part: int | str | Expr) -> bytes:
    if not isinstance(part, Expr):
        return f"{type(part).__name__} {part}".encode("utf-8", "surrogatepass")
    if part._digest is None:
        pieces: list[str | bytes] = ["polynomial"]
        for monomial, coefficient in sorted_terms(part._terms):
            pieces.append(f"{len(monomial)} {coefficient}")
            pieces.extend(atom._order[2] for atom in monomial)
        part._digest = _digest_of(*pieces)
    return part._digest


def _polynomial_text(expr: Expr) -> str:
    pieces: list[str] = []
    for monomial, coefficient in sorted_terms(expr.terms):
        sign = "-" if coefficient < 0 else "+"
        pieces.append(f" {sign} " if pieces else sign.strip("+"))
        factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []
        alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and len(pieces) > 1))
        for atom in dict.fromkeys(monomial):
            power = monomial.count(atom)
            text = str(atom) if alone or not _is_quotient(atom) else f"({atom})"
            factors.append(text if power == 1 else f"{text}**{power}")
        pieces.append("*".join(factors))
    return "".join(pieces)


def _application_text(name: str, args: tuple[int | str | Expr, ...], digest: bytes) -> str:
    if name == "floordiv":
        text = "//".join(str(arg) if isinstance(arg, int | Symbol) else f"({arg})" for arg in args)
    else:
        text = f"{name}({', '.join(map(str, args))})"
    return text if len(text) <= MAX_TEXT else f"{name}(...{digest.hex()[:8]})"


def _is_quotient(atom: Atom) -> bool:
    return isinstance(atom, Application) and atom.name == "floordiv"
