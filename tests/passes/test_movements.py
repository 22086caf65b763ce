"""The passes on views, slices, concatenations, casts and pads, together over random models and in their helpers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from graphopt import DType
from graphopt.ir import Symbol
from graphopt.runtime import judge
from passes import (
    broadcasting,
    casts,
    concatenation,
    identities,
    movements,
    padding,
    pruning,
    slicing,
    splitting,
    views,
)
from passes._selections import Cut, then
from passes._view_shapes import target_of
from tests.passes.pass_runs import assert_equal, floats, model_of, operators, run
from tests.passes.random_movements import random_model

_ALL = (pruning, identities, casts, broadcasting, slicing, concatenation, splitting, padding, views, movements)
_FAR = 2**31 - 1


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_random_models(start: int) -> None:
    before = after = 0
    for seed in range(start, start + 20):
        model, feeds = random_model(seed)
        level = "exact" if seed % 2 else "default"
        result = run(model, *_ALL, level=level)
        before, after = before + len(model.graph.node), after + len(result.graph.node)
        verdict = judge(model, result, "E" if level == "exact" else "R", feeds)
        assert verdict.ok, f"seed {seed}: {verdict.reason}"
    assert after < 0.9 * before


def test_one_cut_for_two() -> None:
    ends = (-_FAR, -3, -1, 0, 2, 4, _FAR)
    cuts = [Cut(start, end, step) for start in (-3, 0, 1, 3) for end in ends for step in (1, 2, -1)]
    cuts = [cut for cut in cuts if cut.step > 0 or cut.end < _FAR]
    found = 0
    for first, second, size in itertools.product(cuts, cuts, range(6)):
        inner = first.places(size)
        expected = [inner[place] for place in second.places(len(inner))]
        for known in (size, None):
            merged = then(first, second, known)
            if merged is not None:
                assert list(merged.places(size)) == expected, (first, second, size)
                found += known is None
    assert found > 1000


def test_targets_take_every_size() -> None:
    batch, width = Symbol(("x", 0), "batch"), Symbol(("x", 1), "width")
    cases: list[tuple[Any, Any, tuple[int, ...] | None]] = [
        ((batch, 4, 6), (batch, 24), (0, 24)),
        ((batch, 4, 6), (batch * 4, 6), (-1, 6)),
        ((batch, width, 6), (batch, width, 2, 3), (0, 0, 2, 3)),
        ((batch, width, 6), (batch * width, 6), (-1, 6)),
        ((batch * width, 6), (batch, width, 6), None),
        # -1 beside a dim that may be 0 is refused for an empty batch.
        ((batch, 2, width), (batch, 2 * width), None),
        ((0, 3), (0, 7), (0, 7)),
        ((3, 0), (0, 3), (-1, 3)),
    ]
    for source, result, target in cases:
        assert target_of(source, result) == target
    assert target_of((batch, 2, width), (batch, 2 * width), free=1) == (0, -1)


def test_types_that_hold_others() -> None:
    types = (DType.BOOL, DType.INT8, DType.UINT8, DType.INT32, DType.UINT32, DType.INT64, DType.FLOAT16)
    types += (DType.FLOAT, DType.DOUBLE)
    for wide, narrow in itertools.product(types, types):
        if narrow is DType.BOOL or wide is DType.BOOL:
            continue
        expected = np.can_cast(narrow.numpy, wide.numpy, "safe")
        if narrow is DType.INT64 and wide is DType.DOUBLE:
            expected = False  # numpy calls that safe
        assert casts.holds(wide, narrow) is expected, (wide, narrow)


def test_windows_of_an_image_are_one_gather() -> None:
    model = model_of(
        """g (float[N,64,16] x) => (float[M,16,16] y)
           <int64[4] s = {-1,8,8,16}, int64[1] o = {0}, int64[1] k = {2}, int64[1] e = {9}, int64[1] r = {1},
            int64[1] c = {2}, int64[6] t = {-1,2,4,2,4,16}, int64[3] u = {-1,16,16}> {
           a = Reshape(x, s)
           b = Slice(a, k, e, r)
           d = Slice(a, o, k, r)
           f = Concat<axis = 1>(b, d)
           h = Slice(f, k, e, c)
           i = Slice(f, o, k, c)
           j = Concat<axis = 2>(h, i)
           l = Reshape(j, t)
           m = Transpose<perm = [0,1,3,2,4,5]>(l)
           n = Reshape(m, u)
           y = Relu(n) }"""
    )
    result = run(model, *_ALL)
    assert operators(result) == {"Gather": 1, "Reshape": 1, "Relu": 1}
    assert_equal(model, result, [{"x": floats(size, 64, 16)} for size in (0, 1, 3)])


def test_a_pair_of_reshapes_around_a_product_of_rows_goes() -> None:
    model = model_of(
        """g (float[N,M,4] x, float[4,6] w, float[6] c) => (float[N,M,6] y) <int64[2] s = {-1,4}, int64[1] e = {6}> {
           a = Reshape(x, s)
           b = MatMul(a, w)
           d = Add(b, c)
           f = Shape<start = 0, end = 2>(x)
           h = Concat<axis = 0>(f, e)
           i = Reshape(d, h)
           y = Relu(i) }"""
    )
    feeds = [{"x": floats(*size, 4), "w": floats(4, 6), "c": floats(6)} for size in ((2, 3), (1, 1), (0, 2))]
    result = run(model, *_ALL)
    assert_equal(model, result, feeds)


def test_kept_nodes_stay() -> None:
    model = model_of(
        """g (float[2,3,4] x) => (float[24] y) <int64[2] s = {6,4}, int64[1] t = {24}>
           { a = Reshape(x, s)  b = Reshape(a, t)  y = Relu(b) }"""
    )
    assert operators(run(model, *_ALL)) == {"Reshape": 1, "Relu": 1}
    assert operators(run(model, *_ALL, keep=["a"])) == {"Reshape": 2, "Relu": 1}


def test_a_part_behind_a_longer_one_is_picked_from_where_it_is() -> None:
    model = model_of(
        """g (float[N,4,3] x) => (float[N,3] y) <int64[2] p = {3,1}, int64[1] a = {1}>
           { u, v = Split<axis = 1>(x, p)  s = Squeeze(v, a)  y = Relu(s) }"""
    )
    result = run(model, splitting)
    assert operators(result) == {"Gather": 1, "Relu": 1}
    assert_equal(model, result, ({"x": floats(2, 4, 3)},))
