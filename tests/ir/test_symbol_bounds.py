"""Dims with proved bounds, the size that dims broadcast to, and opaque functions that have a definition."""

from __future__ import annotations

import pickle
from itertools import product

import pytest

from graphopt.ir.symbol import (
    Integer,
    Symbol,
    bounds,
    broadcast,
    define,
    evaluate,
    is_positive,
    maximum,
    minimum,
    opaque,
)

N, M = Symbol("n"), Symbol("m")


def test_a_symbol_with_bounds_is_another_symbol() -> None:
    bounded = Symbol("n", least=1, most=512)
    assert bounded is not N
    assert bounded is Symbol("n", least=1, most=512)
    assert (bounded.key, bounded.label, bounded.least, bounded.most) == ("n", "n", 1, 512)
    assert (N.least, N.most) == (0, None)
    assert pickle.loads(pickle.dumps(bounded)) is bounded


def test_its_bounds_prove_more() -> None:
    bounded = Symbol("n", least=1, most=512)
    assert is_positive(bounded)
    assert bounds(2 * bounded - 1) == (1, 1023)
    assert minimum(bounded, 512) is bounded
    assert maximum(bounded, 1) is bounded
    assert not is_positive(N)


@pytest.mark.parametrize(
    ("args", "expected"),
    [((N, N), N), ((N, 1), N), ((1, 1), 1), ((N, 0), 0), ((N, 5), 5), ((N + 2, M), N + 2), ((N,), N)],
)
def test_the_size_that_dims_broadcast_to(args: tuple[Integer, ...], expected: Integer) -> None:
    assert broadcast(*args) is expected or broadcast(*args) == expected


def test_broadcasting_has_no_order_and_no_repetition() -> None:
    assert broadcast(N, M) is broadcast(M, N) is broadcast(broadcast(N, M), N, 1)
    assert bounds(broadcast(N, M)) == (0, None)
    assert str(broadcast(N, M)) == "broadcast(m, n)"


def test_broadcasting_is_right_wherever_it_is_defined() -> None:
    expressions = [N, M, N // 2, minimum(N, 7), minimum(N, M + 1), N - M + 3]
    for left, right in product(expressions, expressions):
        whole = broadcast(left, right)
        for n, m in product(range(10), range(10)):
            first, second = (evaluate(item, {N: n, M: m}) for item in (left, right))
            if first == second or 1 in (first, second):
                assert evaluate(whole, {N: n, M: m}) == (second if first == 1 else first)


def test_a_cut_that_broadcasts_with_the_whole_is_the_whole() -> None:
    assert broadcast(N, minimum(N, 512)) is N
    assert broadcast(N, minimum(N, M)) is not N  # with m = 0 and n = 1 it is 0


def test_an_opaque_function_with_a_definition_is_evaluated() -> None:
    define(
        "halved_for_this_test",
        lambda size: size // 2 if isinstance(size, int) else opaque("halved_for_this_test", size),
    )
    assert evaluate(opaque("halved_for_this_test", N + 1) * 3, {N: 8}) == 12
    with pytest.raises(ValueError, match="meaning of its own"):
        define("broadcast", lambda size: size)
