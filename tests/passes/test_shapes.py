"""Shapes: constant targets, the fewest nodes for what only a run knows, lookups that count, needless expands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import passes.constant_folding
import passes.expansions
import passes.lookups
import passes.pruning
import passes.shapes
from tests.passes.pass_runs import assert_equal, model_of, nodes_of, run


def tensor(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def changed(text: str, feeds: Sequence[dict[str, Any]], *, opset: int = 18, **options: Any) -> list[str]:
    model = model_of(text, opset=opset)
    result = run(
        model, passes.pruning, passes.constant_folding, passes.shapes, passes.lookups, passes.expansions, **options
    )
    assert_equal(model, result, feeds)
    return [node.op_type for node in nodes_of(result.graph) if node.op_type != "Constant"]


# --- targets


def test_dims_in_place_are_copied() -> None:
    text = """g (float[B, S, 6] x) => (float[B, S, 2, 3] y) <int64[2] tail = {2, -1}> {
        shape = Shape(x)
        head = Shape<end = 2>(x)
        target = Concat<axis = 0>(head, tail)
        y = Reshape(x, target)
    }"""
    feeds = [{"x": tensor(b, s, 6)} for b in (1, 2, 3) for s in (1, 2, 5)]
    assert changed(text, feeds) == ["Reshape"]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_the_rest_is_not_asked_for_beside_a_dim_that_may_be_empty(rows: int) -> None:
    text = """g (float[B, 2, S] x) => (float[N, S] y) <int64[1] two = {2}> {
        b = Shape<end = 1>(x)
        s = Shape<start = 2>(x)
        n = Mul(b, two)
        target = Concat<axis = 0>(n, s)
        y = Reshape(x, target)
    }"""
    found = changed(text, [{"x": tensor(rows, 2, size)} for size in (0, 1, 4)])
    assert "Shape" in found


def test_the_rest_is_asked_for_where_the_original_did() -> None:
    text = """g (float[B, 2, S] x) => (float[N, S] y) <int64[1] two = {2}, int64[1] rest = {-1}> {
        b = Shape<end = 1>(x)
        n = Mul(b, two)
        target = Concat<axis = 0>(n, rest)
        y = Reshape(x, target)
    }"""
    changed(text, [{"x": tensor(rows, 2, size)} for rows in (1, 2) for size in (1, 4)])


def test_literal_zeros_are_no_copies() -> None:
    text = """g (float[B, S] x) => (float[S, B] y) {
        b = Shape<end = 1>(x)
        s = Shape<start = 1>(x)
        target = Concat<axis = 0>(s, b)
        y = Reshape<allowzero = 1>(x, target)
    }"""
    found = changed(text, [{"x": tensor(b, s)} for b in (0, 1, 3) for s in (0, 1, 2)])
    assert "Shape" in found
    kept = """g (float[B, S, 6] x) => (float[B, S, 2, 3] y) <int64[2] tail = {2, 3}> {
        head = Shape<end = 2>(x)
        target = Concat<axis = 0>(head, tail)
        y = Reshape<allowzero = 1>(x, target)
    }"""
    assert changed(kept, [{"x": tensor(b, s, 6)} for b in (0, 1, 3) for s in (0, 1, 2)]) == ["Reshape"]


def test_an_expand_says_only_what_it_stretches() -> None:
    text = """g (float[B, 1, S] x) => (float[B, 4, S] y) <int64[1] four = {4}> {
        b = Shape<end = 1>(x)
        s = Shape<start = 2>(x)
        target = Concat<axis = 0>(b, four, s)
        y = Expand(x, target)
    }"""
    assert changed(text, [{"x": tensor(b, 1, s)} for b in (0, 1, 3) for s in (0, 1, 2)]) == ["Expand"]


@pytest.mark.parametrize("back", [0, 1, 2])
def test_bounds_of_slices_are_counted_from_the_end(back: int) -> None:
    text = f"""g (float[B, S] x) => (float[B, T] y)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] back = {{{back}}}> {{
        s = Shape<start = 1>(x)
        end = Sub(s, back)
        y = Slice(x, zero, end, one)
    }}"""
    found = changed(text, [{"x": tensor(2, s)} for s in range(6)])
    assert ("Shape" in found) == (back == 2)  # of an axis of size 1 the end is -1, the last but one


def test_scales_are_given_where_they_are_the_same_numbers() -> None:
    text = """g (float[N, 2, 4, 4] x) => (float[N, 2, 8, 12] y) <int64[2] size = {8, 12}> {
        head = Shape<end = 2>(x)
        sizes = Concat<axis = 0>(head, size)
        y = Resize<mode = "linear">(x, , , sizes)
    }"""
    assert changed(text, [{"x": tensor(n, 2, 4, 4)} for n in (1, 2)]) == ["Resize"]


# --- fewest nodes


@pytest.mark.parametrize("opset", [11, 13, 14, 15, 18, 21])
def test_one_vector_for_all_layers(opset: int) -> None:
    layers = "\n".join(
        f"""
        s{i} = Shape(x{i})
        b{i} = Gather<axis = 0>(s{i}, first)
        l{i} = Gather<axis = 0>(s{i}, second)
        t{i} = Concat<axis = 0>(b{i}, l{i}, width)
        flat{i} = Reshape(x{i}, matrix)
        n{i} = Neg(flat{i})
        x{i + 1} = Reshape(n{i}, t{i})
        """
        for i in range(4)
    )
    text = f"""g (float[B, S, 8] x0) => (float[B, S, 8] x4)
    <int64[1] first = {{0}}, int64[1] second = {{1}}, int64[1] width = {{8}}, int64[1] matrix = {{-1}}> {{
        {layers}
    }}"""
    found = changed(text, [{"x0": tensor(b, s, 8)} for b in (0, 1, 3) for s in (0, 1, 2)], opset=opset)
    assert found.count("Shape") == 1
    assert not {"Concat", "Gather", "Slice"} & set(found)


def test_a_returned_size_stays() -> None:
    text = """g (float[B, S] x) => (int64[2] y, int64 n) <int64 zero = {0}> {
        y = Shape(x)
        n = Gather<axis = 0>(y, zero)
    }"""
    assert sorted(changed(text, [{"x": tensor(2, 3)}])) == ["Gather", "Shape"]


def test_what_is_read_for_its_shape_only_goes() -> None:
    text = """g (float[B, 4] x) => (float[B, 4] y) <float one = {1}> {
        a = Neg(x)
        b = Exp(a)
        s = Shape(b)
        c = Expand(one, s)
        y = Add(x, c)
    }"""
    assert changed(text, [{"x": tensor(b, 4)} for b in (0, 1, 3)]) == ["Add"]


def test_bodies_read_what_is_around_them() -> None:
    text = """g (float[B, S] x, bool c) => (float[B, S] y) {
        s = Shape(x)
        y = If (c) <
            then_branch = t () => (float[B, S] p) { o = ConstantOfShape(s)  p = Add(o, x) },
            else_branch = e () => (float[B, S] q) { z = Shape(x)  r = Shape(x)  o = ConstantOfShape(z)
                w = ConstantOfShape(r)  v = Add(o, w)  q = Sub(x, v) }
        >
    }"""
    feeds = [{"x": tensor(b, s), "c": np.array(flag)} for b in (0, 1, 2) for s in (0, 1, 3) for flag in (False, True)]
    changed(text, feeds)


def _program(chance: random.Random) -> str:
    """Integer arithmetic on the shapes of two inputs, read by operators of several kinds."""
    lines = ["s0 = Shape(x)", "s1 = Shape(z)"]
    vectors = [("s0", 3), ("s1", 2)]
    for index in range(chance.randint(2, 10)):
        name = f"v{index}"
        source, size = chance.choice(vectors)
        kind = chance.randrange(6)
        if kind == 0:
            picks = [chance.randrange(size) for _ in range(chance.randint(1, 3))]
            lines.append(f"i{index} = Constant<value_ints = {picks}>()")
            lines.append(f"{name} = Gather<axis = 0>({source}, i{index})")
            vectors.append((name, len(picks)))
        elif kind == 1:
            other, more = chance.choice(vectors)
            lines.append(f"{name} = Concat<axis = 0>({source}, {other})")
            vectors.append((name, size + more))
        elif kind == 2:
            lines.append(f"c{index} = Constant<value_ints = [{chance.randint(1, 4)}]>()")
            lines.append(f"{name} = {chance.choice(('Mul', 'Add', 'Div'))}({source}, c{index})")
            vectors.append((name, size))
        elif kind == 3:
            start = chance.randrange(size)
            end = chance.randint(start + 1, size)
            lines.append(f"a{index} = Constant<value_ints = [{start}]>()")
            lines.append(f"b{index} = Constant<value_ints = [{end}]>()")
            lines.append(f"{name} = Slice({source}, a{index}, b{index})")
            vectors.append((name, end - start))
        elif kind == 4:
            numbers = [chance.randint(1, 3) for _ in range(chance.randint(1, 2))]
            lines.append(f"c{index} = Constant<value_ints = {numbers}>()")
            lines.append(f"{name} = Concat<axis = 0>(c{index}, {source})")
            vectors.append((name, size + len(numbers)))
        else:
            lines.append(f"f{index} = Cast<to = 6>({source})")
            lines.append(f"{name} = Cast<to = 7>(f{index})")
            vectors.append((name, size))
    picked = [vector for vector in vectors if vector[1] <= 5]
    outputs = []
    for index in range(chance.randint(2, 5)):
        source, size = chance.choice(picked)
        kind = chance.randrange(4)
        result = f"y{index}"
        if kind == 0:
            lines.append(f"{result} = ConstantOfShape({source})")
        elif kind == 1:
            lines.append(f"{result} = Expand(unit, {source})")
        elif kind == 2:
            lines.append(f"k{index} = Constant<value_int = {chance.randrange(size)}>()")
            lines.append(f"n{index} = Gather<axis = 0>({source}, k{index})")
            lines.append(f"{result} = Range(zero, n{index}, one)")
        else:
            lines.append(f"{result} = Cast<to = 1>({source})")
        dims = ", ".join(f"d{index}_{axis}" for axis in range(size if kind < 2 else 1))
        outputs.append(("int64" if kind == 2 else "float") + f"[{dims}] {result}")
    body = "\n".join(lines)
    return f"""g (float[A, B, 3] x, float[B, C] z) => ({", ".join(outputs)})
    <int64 zero = {{0}}, int64 one = {{1}}, float unit = {{1}}> {{
        {body}
    }}"""


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    chance = random.Random(seed)
    text = _program(chance)
    sizes = [0, 1, 2, 3]
    feeds = [
        {
            "x": tensor(chance.choice(sizes), chance.choice(sizes), 3),
            "z": tensor(chance.choice(sizes), chance.choice(sizes)),
        }
        for _ in range(5)
    ]
    opset = chance.choice((13, 14, 15, 18))
    model = model_of(text, opset=opset)
    before = sum(node.op_type != "Constant" for node in nodes_of(model.graph))
    assert len(changed(text, feeds, opset=opset)) <= before


# --- lookups

_LOOKUP = """g (float[B, S] x, bool[M, L] mask) => (bool[B, 1, 1, L] y)
<int64 zero = {0}, int64 one = {1}, int64[3] a = {1, 2, 3}, int64[3] b = {0, 1, 2}> {
    shape = Shape(x)
    rows = Gather<axis = 0>(shape, zero)
    form = Shape(mask)
    width = Gather<axis = 0>(form, one)
    i = Range(zero, rows, one)
    j = Range(zero, width, one)
    ii = Unsqueeze(i, a)
    jj = Unsqueeze(j, b)
    starts = Mul(ii, width)
    places = Add(starts, jj)
    flat = Flatten<axis = 2>(mask)
    found = Gather<axis = 0>(flat, places)
    last = Constant<value_ints = [4]>()
    y = Squeeze(found, last)
}"""


def mask_of(rows: int, columns: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows * 7 + columns).integers(0, 2, (rows, columns)).astype(bool)


def test_the_first_rows_are_cut_off() -> None:
    sizes = [(2, 2, 3), (1, 4, 3), (0, 2, 3), (2, 2, 0), (3, 1, 0), (0, 0, 0), (0, 0, 2), (3, 2, 0)]
    feeds = [{"x": tensor(rows, 2), "mask": mask_of(held, width)} for rows, held, width in sizes]
    found = changed(_LOOKUP, feeds)
    assert "Gather" not in found
    assert "Range" not in found


def test_before_literal_zeros_the_lookup_stays() -> None:
    feeds = [{"x": tensor(2, 2), "mask": mask_of(2, 3)}]
    assert "Range" in changed(_LOOKUP, feeds, opset=13)


def test_pairs_of_a_row_and_a_column() -> None:
    text = """g (float[B, S] x, bool[M, L] mask) => (bool[B, 1, 1, L] y)
    <int64 zero = {0}, int64 one = {1}, int64[4] a = {1, 2, 3, 4}, int64[4] b = {0, 1, 2, 4}> {
        shape = Shape(x)
        rows = Gather<axis = 0>(shape, zero)
        form = Shape(mask)
        width = Gather<axis = 0>(form, one)
        i = Range(zero, rows, one)
        j = Range(zero, width, one)
        ii = Unsqueeze(i, a)
        jj = Unsqueeze(j, b)
        both = Add(ii, jj)
        all = Shape(both)
        left = Expand(ii, all)
        right = Expand(jj, all)
        pairs = Concat<axis = -1>(left, right)
        y = GatherND(mask, pairs)
    }"""
    sizes = [(2, 2, 3), (1, 4, 3), (0, 2, 3), (3, 1, 0)]
    feeds = [{"x": tensor(rows, 2), "mask": mask_of(held, width)} for rows, held, width in sizes]
    found = changed(text, feeds)
    assert "GatherND" not in found
    assert "Range" not in found


# --- expands


def test_a_comparison_that_always_holds_is_not_computed() -> None:
    text = """g (bool[B, 1, 1, S] mask) => (float[B, 1, S, S] y)
    <int64 zero = {0}, int64 one = {1}, int64 last = {3}, int64[3] a = {0, 1, 3}, float low = {-3}, float none = {0}> {
        shape = Shape(mask)
        n = Gather<axis = 0>(shape, last)
        i = Range(zero, n, one)
        u = Unsqueeze(i, a)
        always = GreaterOrEqual(u, zero)
        both = And(always, mask)
        bias = Where(both, none, low)
        numbers = Cast<to = 1>(mask)
        columns = Transpose<perm = [0, 1, 3, 2]>(numbers)
        scores = MatMul(columns, numbers)
        y = Add(scores, bias)
    }"""
    feeds = [{"mask": mask_of(b, s).reshape(b, 1, 1, s)} for b in (0, 1, 2) for s in (0, 1, 3)]
    assert not {"Range", "Shape", "GreaterOrEqual"} & set(changed(text, feeds))


def test_an_expand_that_gives_the_result_its_size_stays() -> None:
    text = """g (float[B, 4] x, float[1, 4] w) => (float[B, 4] y) {
        s = Shape(x)
        e = Expand(w, s)
        y = Neg(e)
    }"""
    assert "Expand" in changed(text, [{"x": tensor(b, 4), "w": tensor(1, 4)} for b in (0, 1, 3)])


def test_a_stretched_choice_of_negative_zero_stays() -> None:
    text = """g (bool[B, 4] c, float[B, 4] x) => (float[B, 4] y) <float[1] zero = {-0.0}, float one = {1}> {
        s = Shape(c)
        e = Expand(zero, s)
        w = Where(c, e, one)
        y = Add(x, w)
    }"""
    feeds = [{"c": mask_of(b, 4), "x": -np.zeros((b, 4), np.float32)} for b in (1, 3)]
    changed(text, feeds)
