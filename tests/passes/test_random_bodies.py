from __future__ import annotations

import numpy as np
import pytest
from onnx import checker
from pass_runs import assert_equal, floats, run
from random_bodies import random_model

import passes.branches as branches
import passes.common_subexpressions as common
import passes.functions as functions
import passes.identities as identities
import passes.loops as loops
import passes.pruning as pruning

FEEDS = [
    {"x": floats(2), "c": np.array(flag), "trips": np.array(count)} for flag in (True, False) for count in (0, 1, 3)
]


@pytest.mark.parametrize("seed", range(40))
def test_random_nests_give_the_same_bits(seed: int) -> None:
    model = random_model(seed)
    checker.check_model(model)
    assert_equal(model, run(model, pruning, common), FEEDS)


@pytest.mark.parametrize("level", ["exact", "default"])
@pytest.mark.parametrize("seed", range(100, 150))
def test_random_nests_and_calls_give_the_same_numbers(seed: int, level: str) -> None:
    model = random_model(seed)
    checker.check_model(model)
    result = run(model, functions, pruning, identities, common, branches, loops, level=level)
    assert_equal(model, result, FEEDS, "E" if level == "exact" else "Z")
