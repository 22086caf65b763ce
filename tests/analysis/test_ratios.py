"""Dims that Reshapes count by another input's dims, and what must be equal for a run to succeed."""

from __future__ import annotations

import pytest

from graphopt import Graph, Symbol, load, symbol
from graphopt.analysis.inference import Inference
from graphopt.onnxio import parse_text

_HEADS = """(float[B, S, 8] x, int64[C, T] ids, float[B, {met}, 1, 1] z, float[B, 1, 1, 1] o)
    => (float[C, D, U, 2] y, float[C, E, V, 2] w) <int64[2] rest = {{-1, 2}}> {{
    b = Shape<end = 1>(x)
    t = Shape<start = 1>(ids)
    target = Concat<axis = 0>(b, t, rest)
    r = Reshape<allowzero = 1>(x, target)
    h = Transpose<perm = [0, 2, 1, 3]>(r)
    y = Add(h, z)
    first, second = Split<axis = 2, num_outputs = 2>(x)
    q = Reshape<allowzero = 1>(first, target)
    i = Transpose<perm = [0, 2, 1, 3]>(q)
    w = Mul(i, {other})
}}"""
"""Four heads of x and two of its half for each row of `ids`, if there are as many rows."""


def inferred(text: str, opset: int = 18) -> Graph:
    graph = load(parse_text(text, {"": opset}))
    inference = Inference(graph.model)
    inference.run()
    assert not inference.conflicts
    return graph


def test_two_meetings_leave_one_ratio() -> None:
    text = _HEADS.format(met=4, other="k").replace("float[B, 1, 1, 1] o", "float[B, 2, 1, 1] k")
    graph = inferred(text)
    shapes = [node.results[0].shape for node in graph.of_kind("Reshape")]
    assert [shape and shape[2] for shape in shapes] == [4, 2]


def test_as_many_elements_make_two_inputs_alike() -> None:
    text = _HEADS.format(met=4, other="k").replace("float[B, 1, 1, 1] o", "float[B, 2, 1, 1] k")
    x, ids = inferred(text).inputs[:2]
    assert x.shape is not None
    assert ids.shape is not None
    assert x.shape[1] == ids.shape[1]


@pytest.mark.parametrize("met", [1, 4])
def test_one_meeting_says_too_little(met: int) -> None:
    # With four there may be one head for each of four times as many rows.
    graph = inferred(_HEADS.format(met=met, other="o"))
    (first, _) = graph.of_kind("Reshape")
    assert first.results[0].shape is not None
    assert not isinstance(first.results[0].shape[2], int)


def test_what_was_broadcast_is_what_it_is_counted_by() -> None:
    graph = inferred("""(float[B, S, 8] x, float[C, T, 8] z, float[8, 3] w) => (float[C, T, 3] y)
    <int64[2] p = {-1, 2}> {
        s = Add(x, z)
        lead = Shape<end = 2>(z)
        target = Concat<axis = 0>(lead, p)
        h = Reshape<allowzero = 1>(s, target)
        t = Transpose<perm = [0, 2, 1, 3]>(h)
        n = Neg(t)
        u = Transpose<perm = [0, 2, 1, 3]>(n)
        m = Constant<value_ints = [-1]>()
        back = Concat<axis = 0>(lead, m)
        v = Reshape<allowzero = 1>(u, back)
        y = MatMul(v, w)
    }""")
    (add,) = graph.of_kind("Add")
    assert add.results[0].shape == graph.inputs[1].shape


def test_what_copies_a_dim_where_it_is_empty_broadcasts_with_it_to_it() -> None:
    n, other = Symbol("n"), Symbol("m")
    copied = symbol.opaque("size_or", n, other, nonnegative=True)
    assert symbol.broadcast(n, copied) is n
    assert symbol.broadcast(other, copied) is not other


def test_a_zero_that_has_no_dim_to_copy_fails() -> None:
    graph = inferred("""(float[N, 2, M] x) => (float[A, 2, 3, C] y) <int64[2] p = {-1, 3}> {
        n = Shape<end = 1>(x)
        m = Shape<start = 2>(x)
        flat = Concat<axis = 0>(m, p)
        r = Reshape(x, flat)
        t = Constant<value_ints = [2, 3]>()
        whole = Concat<axis = 0>(n, t, m)
        y = Reshape(r, whole)
    }""")
    shape = graph.inputs[0].shape
    assert shape is not None
    assert isinstance(shape[2], Symbol)
    assert shape[2].least == 1


def test_windows_in_a_row_need_all_of_them() -> None:
    graph = inferred("""(float[N, 1, L] x, float[1, 1, 10] a, float[1, 1, 3] b) => (float[N, 1, K] y) {
        c = Conv<strides = [5]>(x, a)
        d = Conv<strides = [2]>(c, b)
        e = Conv<strides = [2]>(d, b)
        f = Conv<strides = [2]>(e, b)
        y = Conv<strides = [2]>(f, b)
    }""")
    shape = graph.inputs[0].shape
    assert shape is not None
    assert isinstance(shape[2], Symbol)
    # The last one sees 3 places, the one before 7, then 15 and 31.
    assert shape[2].least == 30 * 5 + 10


def test_what_was_broadcast_is_no_less_than_what_it_is_counted_by() -> None:
    # One head for four times as many rows would mean fewer rows than there are.
    graph = inferred("""(float[B, S, 8] x, float[B, T, 8] z, float[B, 4, 1, 1] o) => (float[B, 4, T, 2] y)
    <int64[2] p = {-1, 2}> {
        s = Add(x, z)
        lead = Shape<end = 2>(z)
        target = Concat<axis = 0>(lead, p)
        h = Reshape<allowzero = 1>(s, target)
        t = Transpose<perm = [0, 2, 1, 3]>(h)
        y = Add(t, o)
    }""")
    (reshape,) = graph.of_kind("Reshape")
    assert reshape.results[0].shape is not None
    assert reshape.results[0].shape[2] == 4


@pytest.mark.parametrize(("met", "is_size"), [(8, True), (16, False)])
def test_a_dim_that_would_not_fit_is_not_copied(met: int, is_size: bool) -> None:
    graph = inferred(f"""(float[B, 16, H] x, float[B, {met}, 1] o) => (float[B, {met}, C] y) <int64[1] p = {{-1}}> {{
        b = Shape<end = 1>(x)
        h = Shape<start = 2>(x)
        target = Concat<axis = 0>(b, h, p)
        r = Reshape(x, target)
        y = Add(r, o)
    }}""")
    (reshape,) = graph.of_kind("Reshape")
    x = graph.inputs[0]
    assert x.shape is not None
    assert reshape.results[0].shape is not None
    assert (reshape.results[0].shape[1] == x.shape[2]) is is_size
