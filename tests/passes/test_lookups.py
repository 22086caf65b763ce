"""Lookups of the first rows and columns of a matrix, at pairs of counters."""

from __future__ import annotations

import numpy as np
import pytest

import passes.constant_folding
import passes.lookups
import passes.pruning
import passes.shapes
from tests.passes.pass_runs import assert_equal, model_of, nodes_of, run

_MASK = """g (bool[A, B] mask, int64[R, C] ids) => (bool[R, 1, 1, C] y)
    <int64 zero = {0}, int64 one = {1}, int64[3] a = {1, 2, 3}, int64[3] b = {0, 1, 2}, int64[1] last = {-1}> {
        shape = Shape(ids)
        rows = Gather<axis = 0>(shape, zero)
        width = Gather<axis = 0>(shape, one)
        i = Range(zero, rows, one)
        j = Range(zero, width, one)
        ii = Unsqueeze(i, a)
        jj = Unsqueeze(j, b)
        size = Max(ii, jj)
        whole = Shape(size)
        ie = Expand(ii, whole)
        je = Expand(jj, whole)
        iu = Unsqueeze(ie, last)
        ju = Unsqueeze(je, last)
        places = Concat<axis = -1>(iu, ju)
        found = GatherND(mask, places)
        y = Not(found)
    }"""


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        ((3, 5), (3, 5)),
        ((3, 5), (2, 4)),
        ((3, 5), (1, 1)),
        # Nothing is looked up, so that nothing is missing.
        ((1, 5), (3, 0)),
        ((0, 0), (3, 0)),
        ((3, 1), (0, 4)),
        ((2, 2), (0, 0)),
    ],
)
def test_rows_and_columns_of_a_mask(mask: tuple[int, int], ids: tuple[int, int]) -> None:
    model = model_of(_MASK, opset=18)
    result = run(model, passes.pruning, passes.constant_folding, passes.shapes, passes.lookups)
    feeds = {"mask": np.arange(mask[0] * mask[1]).reshape(mask) % 3 == 0, "ids": np.zeros(ids, np.int64)}
    assert_equal(model, result, [feeds])
    operators = [node.op_type for node in nodes_of(result.graph)]
    assert "GatherND" not in operators
    assert "Range" not in operators
    assert "Slice" in operators


def test_columns_before_rows_stay() -> None:
    model = model_of(_MASK.replace("(iu, ju)", "(ju, iu)"), opset=18)
    result = run(model, passes.pruning, passes.constant_folding, passes.shapes, passes.lookups)
    assert "GatherND" in [node.op_type for node in nodes_of(result.graph)]
