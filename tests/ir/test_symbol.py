"""Symbolic integers: every operation is integer arithmetic, facts never lie, equal polynomials are one object."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt.ir import symbol as sym
from graphopt.ir.symbol import Expr, Integer, Symbol, ceildiv, divide_exactly, evaluate, floordiv
from graphopt.ir.symbol_expr import MAX_TERMS

BATCH, SEQ, HEIGHT = SYMBOLS = (Symbol(("ids", 0), "batch"), Symbol(("ids", 1), "seq"), Symbol("height"))

LIMITS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Tree = Any
"""An int, the index of a symbol as a str, or (operation, tree, tree)."""


def truncdiv(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (lambda a, b: a // b, lambda a, b: a // b),
    "%": (lambda a, b: a % b, lambda a, b: a % b),
    "ceildiv": (ceildiv, lambda a, b: -(-a // b)),
    "truncdiv": (sym.truncdiv, truncdiv),
    "truncmod": (sym.truncmod, lambda a, b: a - b * truncdiv(a, b)),
    "min": (sym.minimum, min),
    "max": (sym.maximum, max),
}
DIVISIONS = ("//", "%", "ceildiv", "truncdiv", "truncmod")


def trees(operations: tuple[str, ...]) -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.sampled_from("012"), st.integers(-9, 9))
    divisors = st.one_of(st.integers(1, 9), st.sampled_from([-1, -4, 12, "0", "1"]))

    def grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        plain = [name for name in operations if name not in DIVISIONS]
        options = [st.tuples(st.sampled_from(plain), inner, inner)]
        if divisions := [name for name in operations if name in DIVISIONS]:
            options.append(st.tuples(st.sampled_from(divisions), inner, divisors))
        return st.one_of(options)

    return st.recursive(leaves, grow, max_leaves=9)


TREES = trees(tuple(OPERATIONS))
VALUES = st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 40))] * 3)


def build(tree: Tree) -> Integer:
    if isinstance(tree, tuple):
        return OPERATIONS[tree[0]][0](build(tree[1]), build(tree[2]))
    return SYMBOLS[int(tree)] if isinstance(tree, str) else tree


def number(tree: Tree, values: tuple[int, ...]) -> int:
    if isinstance(tree, tuple):
        return OPERATIONS[tree[0]][1](number(tree[1], values), number(tree[2], values))
    return values[int(tree)] if isinstance(tree, str) else tree


def pair(tree: Tree, values: tuple[int, ...]) -> tuple[Integer, int] | None:
    """The expression and its number, None where it is undefined."""
    try:
        return build(tree), number(tree, values)
    except ZeroDivisionError:
        return None


def at(expr: Integer, values: tuple[int, ...]) -> int:
    return evaluate(expr, dict(zip(SYMBOLS, values, strict=True)))


# --- integer arithmetic


@LIMITS
@given(TREES, VALUES)
def test_operations_are_integer_arithmetic(tree: Tree, values: tuple[int, ...]) -> None:
    if (found := pair(tree, values)) is None:
        return
    expr, expected = found
    assert isinstance(expr, Expr) or type(expr) is int
    assert at(expr, values) == expected


@LIMITS
@given(TREES, st.sampled_from(["0", "1", "2", ("+", "0", 1), ("*", "1", "2"), ("-", "0", "1"), ("*", "0", 2)]), VALUES)
def test_divisors_that_the_caller_knows_not_to_be_zero(tree: Tree, by: Tree, values: tuple[int, ...]) -> None:
    for scale in (1, by):
        if (found := pair(("*", tree, scale), values)) is None or number(by, values) == 0:
            return
        expr, value = found
        divisor = number(by, values)
        assert at(floordiv(expr, build(by), assume_nonzero=True), values) == value // divisor
        assert at(sym.mod(expr, build(by), assume_nonzero=True), values) == value % divisor
        assert at(sym.truncdiv(expr, build(by), assume_nonzero=True), values) == truncdiv(value, divisor)


@LIMITS
@given(TREES, TREES, VALUES)
def test_exact_division(left: Tree, right: Tree, values: tuple[int, ...]) -> None:
    first, second = pair(left, values), pair(right, values)
    if first is None or second is None:
        return
    quotient = divide_exactly(first[0] * second[0], second[0])
    if second[0] != 0 and not any(isinstance(e, Expr) and "product" in str(e) for e in (first[0], second[0])):
        assert quotient is first[0] or quotient == first[0]
    other = divide_exactly(first[0], second[0])
    if other is not None:
        assert at(other, values) * second[1] == first[1]


@LIMITS
@given(TREES, TREES, TREES, VALUES)
def test_substitution_is_evaluation_at_other_values(
    tree: Tree, first: Tree, second: Tree, values: tuple[int, ...]
) -> None:
    try:
        inner = number(first, values), number(second, values), values[2]
        expected = number(tree, inner)
        mapping = {BATCH: build(first), SEQ: build(second)}
    except ZeroDivisionError:
        return
    if min(inner) < 0 or any(isinstance(value, int) and value < 0 for value in mapping.values()):
        return
    try:
        replaced = sym.substitute(build(tree), mapping)
    except ZeroDivisionError:
        return  # a divisor became the number 0 although the number is multiplied away
    assert at(replaced, values) == expected


# --- facts


@LIMITS
@given(TREES, TREES, VALUES)
def test_facts_never_lie(left: Tree, right: Tree, values: tuple[int, ...]) -> None:
    first, second = pair(left, values), pair(right, values)
    if first is None or second is None:
        return
    (a, x), (b, y) = first, second
    low, high = sym.bounds(a)
    assert low is None or low <= x
    assert high is None or x <= high
    assert x >= 0 or not sym.is_nonnegative(a)
    assert x >= 1 or not sym.is_positive(a)
    assert x != 0 or not sym.is_nonzero(a)
    assert x == y or not sym.always_equal(a, b)
    assert x != y or not sym.never_equal(a, b)
    assert x <= y or not sym.always_at_most(a, b)
    assert sym.compare(a, b) in (None, (x > y) - (x < y))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (BATCH + 1, (1, None)),
        (BATCH * SEQ, (0, None)),
        (-BATCH, (None, 0)),
        (SEQ - SEQ // 2, (0, None)),
        (SEQ % 7, (0, 6)),
        ((-SEQ) % 7, (0, 6)),
        (BATCH * (SEQ % 7), (0, None)),
        (sym.minimum(SEQ, 5), (0, 5)),
        (SEQ - sym.minimum(SEQ, 5), (0, None)),
        (sym.maximum(SEQ, 5) - SEQ, (0, 5)),
        (sym.minimum(SEQ, 5) - sym.minimum(SEQ, 3), (0, 5)),
        (sym.maximum(sym.minimum(SEQ, 10) - 3, 0), (0, 7)),
        (sym.opaque("count", "node"), (None, None)),
        (sym.opaque("count", "node", nonnegative=True), (0, None)),
        (7, (7, 7)),
    ],
    ids=str,
)
def test_bounds_that_must_be_found(expr: Integer, expected: tuple[int | None, int | None]) -> None:
    assert sym.bounds(expr) == expected


def test_order_and_equality_that_must_be_found() -> None:
    assert sym.always_equal(SEQ // 2 + (SEQ + 1) // 2, SEQ)
    assert sym.never_equal(2 * BATCH, 2 * SEQ + 1)
    assert not sym.always_equal(BATCH, SEQ)
    assert not sym.never_equal(BATCH, SEQ)
    assert sym.compare(SEQ + 1, SEQ // 2) == 1
    assert sym.compare(SEQ // 2, SEQ + 1) == -1
    assert sym.compare(SEQ, SEQ) == 0
    assert sym.compare(SEQ, BATCH) is None
    assert sym.always_at_most(SEQ // 2, SEQ)
    assert not sym.is_positive(SEQ)
    assert not sym.is_nonzero(SEQ * BATCH)


# --- canonical form


@LIMITS
@given(st.lists(st.tuples(st.lists(trees(("//", "min")), max_size=3), st.integers(-5, 5)), max_size=6), st.randoms())
def test_equal_polynomials_are_one_object(terms: list[tuple[list[Tree], int]], random: Any) -> None:
    def total(shuffled: bool) -> Integer:
        result: Integer = 0
        for factors, coefficient in random.sample(terms, len(terms)) if shuffled else terms:
            product: Integer = coefficient
            for factor in random.sample(factors, len(factors)) if shuffled else factors:
                product = build(factor) * product if shuffled else product * build(factor)
            result = product + result if shuffled else result + product
        return result

    try:
        left, right = total(False), total(True)
    except ZeroDivisionError:
        return
    if "sum" in str(left) or "product" in str(left):
        return
    assert left is right or (type(left) is int and left == right)
    assert left - right == 0


@LIMITS
@given(TREES, TREES, TREES)
def test_ring_laws_hold_by_identity(x: Tree, y: Tree, z: Tree) -> None:
    try:
        a, b, c = build(x), build(y), build(z)
    except ZeroDivisionError:
        return
    if any("sum" in str(e) or "product" in str(e) for e in (a * b * c, a + b + c)):
        return
    for left, right in [(a * (b + c), a * b + a * c), ((a - b) * (a + b), a * a - b * b), (a - a, 0), (a + b - b, a)]:
        assert left is right or left == right


@LIMITS
@given(trees(("+", "-")), st.integers(1, 9), trees(("+", "-")))
def test_multiples_leave_a_floor_division(x: Tree, divisor: int, y: Tree) -> None:
    a, b = build(x), build(y)
    assert sym.always_equal(floordiv(a + divisor * b, divisor) - b, floordiv(a, divisor))
    assert sym.always_equal((a // divisor) * divisor + a % divisor, a)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (2 * BATCH + SEQ // 2 - 1, "2*batch + seq//2 - 1"),
        (1 - BATCH, "-batch + 1"),
        (SEQ * BATCH + BATCH * SEQ * 3 - HEIGHT**2, "4*batch*seq - height**2"),
        (-(SEQ // 2), "-(seq//2)"),
        (3 * (SEQ // 2) * BATCH, "3*batch*(seq//2)"),
        ((SEQ + 6) // 7, "(seq + 6)//7"),
        (-((-SEQ) // 7), "(seq + 6)//7"),
        (ceildiv(SEQ, 7), "(seq + 6)//7"),
        ((SEQ + (-SEQ) % 7) // 7, "(seq + 6)//7"),
        ((((SEQ - 1) // 2 + 1) - 1) // 2 + 1, "(seq + 3)//4"),
        ((4 * SEQ + 3) // 6, "(2*seq + 1)//3"),
        ((7 * SEQ + 9) // 7, "seq + 1"),
        (SEQ // -2, "-((seq + 1)//2)"),
        (7 * (SEQ // 7) + SEQ % 7, "seq"),
        ((SEQ % 7) // 7, "0"),
        (sym.truncdiv(SEQ + 1, 2), "(seq + 1)//2"),
        (sym.truncdiv(-SEQ, 2), "-(seq//2)"),
        (sym.truncdiv(SEQ - 1, 2), "truncdiv(seq - 1, 2)"),
        (sym.truncdiv(6 * SEQ - 4, 2), "3*seq - 2"),
        (SEQ * BATCH // BATCH, "(batch*seq)//batch"),
        (floordiv(SEQ * BATCH, BATCH, assume_nonzero=True), "seq"),
        (floordiv(6 * SEQ * BATCH, 4 * BATCH, assume_nonzero=True), "seq + seq//2"),
        ((2 * SEQ) // 3, "(2*seq)//3"),
        ((SEQ * SEQ + 2 * SEQ + 1) // (SEQ + 1), "seq + 1"),
        (sym.minimum(SEQ, BATCH, 5, SEQ + 1, 9), "min(5, batch, seq)"),
        (sym.maximum(SEQ, sym.maximum(BATCH, 0)), "max(batch, seq)"),
        (sym.opaque("count", SEQ, "node"), "count(seq, node)"),
        (Symbol(("x", 1)), "x[1]"),
    ],
    ids=str,
)
def test_canonical_text(expr: Integer, text: str) -> None:
    assert str(expr) == text


@LIMITS
@given(TREES, VALUES)
def test_text_is_an_expression(tree: Tree, values: tuple[int, ...]) -> None:
    if (found := pair(tree, values)) is None or "..." in str(found[0]):
        return
    names: dict[str, Any] = {str(symbol): value for symbol, value in zip(SYMBOLS, values, strict=True)}
    functions = {"truncdiv": truncdiv, "sum": lambda *a: sum(a), "product": lambda a, b: a * b, "min": min, "max": max}
    assert eval(str(found[0]), functions, names) == found[1]


def test_exact_division_examples() -> None:
    assert divide_exactly(12 * BATCH * SEQ, SEQ * 4) is 3 * BATCH
    assert divide_exactly((BATCH + 1) * (SEQ + 2) * 3, (SEQ + 2) * (BATCH + 1)) == 3
    assert divide_exactly(BATCH * SEQ, SEQ) is BATCH
    assert divide_exactly(BATCH * SEQ, 2) is None
    assert divide_exactly(BATCH, BATCH * SEQ) is None
    assert divide_exactly(BATCH + SEQ, SEQ) is None
    assert divide_exactly(0, SEQ) == 0
    assert divide_exactly(12, 4) == 3
    assert divide_exactly(BATCH, 0) is None
    assert divide_exactly(5, SEQ) is None


# --- one object, in every way


PRINTER = """
import random, sys
from graphopt.ir import symbol as sym
names = ["batch", "seq", "height", "width", "N"]
random.seed(int(sys.argv[1]))
pairs = [(name, axis) for name in names for axis in (0, 1)]
random.shuffle(pairs)
made = {pair: sym.Symbol(pair, pair[0]) for pair in pairs}  # equal labels: only the key tells them apart
total = 0
for pair in pairs:
    total = total + made[pair] * made["seq", 0] + made[pair] // 3
parts = [made[pair] + 1 for pair in pairs]
random.shuffle(parts)
product = 1
for pair in sorted(pairs):
    product = product * (made[pair] + made["N", 1] // 2 + 1)
print(total); print(sym.minimum(*parts)); print(sym.maximum(*parts) % 5); print(product); print(sym.bounds(total))
print([s.key for s in sym.symbols(total)]); print((total * total) // 7)
"""


def test_the_same_in_every_process() -> None:
    root = str(Path(sym.__file__).parents[2])
    outputs = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        command = [sys.executable, "-c", PRINTER, seed]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        text = done.stdout.splitlines()
        assert len(text) == 7
        outputs.add("\n".join(text))
    assert len(outputs) == 1


def test_copies_are_the_same_object() -> None:
    expr = BATCH * SEQ + (SEQ + 1) // 2 - sym.minimum(BATCH, 3) + sym.opaque("f", BATCH, "x", nonnegative=True)
    assert isinstance(expr, Expr)
    assert copy.copy(expr) is expr
    assert copy.deepcopy(expr) is expr
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert pickle.loads(pickle.dumps(SEQ)) is SEQ


def test_threads_get_the_same_object() -> None:
    def work(_: int) -> list[Integer]:
        return [Symbol(("t", i)) * Symbol(("t", i + 1)) + (Symbol(("t", i)) + 3) // 4 for i in range(100)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert all(a is b for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_unused_expressions_are_freed() -> None:
    from graphopt.ir.symbol_expr import _ATOMS, _EXPRESSIONS

    gc.collect()
    before = len(_EXPRESSIONS), len(_ATOMS)
    kept = [(SEQ + i) // 11 + BATCH * i for i in range(500)]
    assert len(_EXPRESSIONS) > before[0] + 400
    del kept
    gc.collect()
    assert len(_EXPRESSIONS) <= before[0] + 2
    assert len(_ATOMS) <= before[1] + 2


def test_truth_is_refused() -> None:
    with pytest.raises(TypeError, match="whether batch is 0"):
        bool(BATCH)
    with pytest.raises(TypeError):
        Expr()
    with pytest.raises(TypeError):
        BATCH + 1.5  # type: ignore[operator]


def test_numpy_integers_are_integers() -> None:
    assert BATCH + np.int64(3) is BATCH + 3
    assert np.int64(3) + BATCH is BATCH + 3  # type: ignore[operator, unused-ignore]
    assert BATCH // np.int64(2) is BATCH // 2
    assert type((BATCH - BATCH) + np.int64(3) * 0) is not Expr


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="dims are at least 0"):
        evaluate(BATCH, {BATCH: -1})
    with pytest.raises(ValueError, match=r"no number is given for seq"):
        evaluate(BATCH + SEQ, {BATCH: 1})
    with pytest.raises(ZeroDivisionError):
        evaluate(BATCH // SEQ, {BATCH: 1, SEQ: 0})
    with pytest.raises(ZeroDivisionError):
        BATCH // 0
    with pytest.raises(ValueError, match="meaning of its own"):
        sym.opaque("min", BATCH)
    with pytest.raises(ValueError, match="at least 0"):
        BATCH**-1


def test_opaque_applications_are_kept_apart_and_can_be_given_numbers() -> None:
    one, other = sym.opaque("f", BATCH), sym.opaque("f", SEQ)
    assert one is sym.opaque("f", BATCH)
    assert one is not other
    assert sym.substitute(one, {BATCH: SEQ}) is other
    assert evaluate(one + 1, {one: 4}) == 5
    assert sym.symbols(one * other) == (BATCH, SEQ)
    assert sym.degree(one * other * 3 + 1) == 2
    assert sym.degree(3) == 0


def test_unknown_dims_in_products_and_sums() -> None:
    assert sym.product_of([2, BATCH, 3]) is 6 * BATCH
    assert sym.product_of([2, None]) is None
    assert sym.product_of([None, 0]) == 0
    assert sym.product_of([]) == 1
    assert sym.sum_of([BATCH, 1, BATCH]) is 2 * BATCH + 1
    assert sym.sum_of([BATCH, None]) is None


@LIMITS
@given(TREES, TREES, VALUES)
def test_broadcast_sizes(left: Tree, right: Tree, values: tuple[int, ...]) -> None:
    first, second = pair(left, values), pair(right, values)
    if first is None or second is None:
        return
    (a, x), (b, y) = first, second
    if x != y and 1 not in (x, y):
        return  # sizes that do not broadcast
    size = y if x == 1 else x
    assert at(sym.broadcast(a, b), values) == size
    low, high = sym.bounds(sym.broadcast(a, b))
    assert low is None or low <= size
    assert high is None or size <= high


def test_broadcast_examples() -> None:
    assert sym.broadcast(BATCH, 1) is BATCH
    assert sym.broadcast(BATCH, 5) == 5
    assert sym.broadcast(BATCH, SEQ + 2, 1) is SEQ + 2
    assert sym.broadcast(BATCH, SEQ) is sym.broadcast(SEQ, BATCH, SEQ)
    assert str(sym.broadcast(BATCH, SEQ)) == "broadcast(batch, seq)"
    assert sym.substitute(sym.broadcast(BATCH, SEQ), {BATCH: 1}) is SEQ
    assert sym.broadcast() == 1


def test_opaque_functions_can_be_given_a_meaning() -> None:
    sym.define("test_twice", lambda value: 2 * value)
    assert str(sym.opaque("test_twice", SEQ)) == "test_twice(seq)"
    assert evaluate(sym.opaque("test_twice", SEQ) + 1, {SEQ: 3}) == 7
    with pytest.raises(ValueError, match="meaning of its own"):
        sym.define("max", max)


# --- limits


def test_growth_is_bounded() -> None:
    many: Integer = 0
    for index in range(3 * MAX_TERMS):
        many = many + Symbol(("w", index))
    assert isinstance(many, Expr)
    assert len(many.terms) <= MAX_TERMS
    assert (
        evaluate(many, {Symbol(("w", index)): index for index in range(3 * MAX_TERMS)})
        == 3 * MAX_TERMS * (3 * MAX_TERMS - 1) // 2
    )

    power: Integer = SEQ + BATCH + 3
    for _ in range(40):
        power = power * power
    assert isinstance(power, Expr)
    assert sym.degree(power) < 30
    assert len(str(power)) < 300
    assert sym.bounds(power)[0] is not None


def test_long_chains_do_not_recurse() -> None:
    expr: Integer = SEQ
    for _ in range(5000):
        expr = sym.opaque("f", expr + 1) * 2
    assert sym.symbols(expr) == (SEQ,)
    assert sym.bounds(expr) == (None, None)
    assert sym.symbols(sym.substitute(expr, {SEQ: BATCH})) == (BATCH,)
    total: Integer = SEQ
    for _ in range(300):
        total = total * (total + 1)
    assert evaluate(total, {SEQ: 0}) == 0
    assert sym.is_nonnegative(total)


def test_building_is_quick() -> None:
    kept = BATCH * SEQ + HEIGHT
    assert min(repeat(lambda: BATCH * SEQ + HEIGHT, number=2000, repeat=5)) / 2000 < 40e-6
    assert isinstance(kept, Expr)
