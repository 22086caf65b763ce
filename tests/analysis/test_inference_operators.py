"""Every operator family against the runtime: what is inferred holds at sizes the model was not made for."""

from __future__ import annotations

import pytest
from inference_checks import compare, inferred, session
from operator_cases import CASES, Builder

OPSETS = (17, 18, 21, 13, 11)
SEEDS = 10
LARGER = {"Program": 100, "Reshape:own": 40, "Slice": 40, "Slice:own": 30, "Vector:contents": 20}


@pytest.mark.parametrize("name", CASES)
def test_what_is_inferred_is_what_the_runtime_computes(name: str) -> None:
    ran = told = 0
    for seed in range(LARGER.get(name, SEEDS)):
        builder = Builder(seed * 1000 + sum(map(ord, name)), OPSETS[seed % len(OPSETS)])
        CASES[name](builder)
        model = builder.model()
        graph = inferred(model)
        try:
            runtime = session(model)
        except Exception:  # the operator, or this form of it, is not in this opset
            continue
        for turn in range(3):
            outcome = compare(graph, runtime, builder.resized() if turn else builder.feeds)
            assert not outcome.lies, f"seed {seed}: {outcome.lies[:3]}"
            ran += not outcome.failed
            told += outcome.dims
    assert ran
    assert told
