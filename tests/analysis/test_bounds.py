"""What is said to fail for certain does fail in the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from inference_checks import inferred, session
from operator_cases import Builder

from graphopt.analysis.bounds import certainly_fails

Shape = tuple[int, ...]
SIZES = (0, 1, 2, 5)


def fails(builder: Builder) -> bool:
    try:
        session(builder.model()).run(None, builder.feeds)
    except Exception:
        return True
    return False


def pairs() -> Iterator[tuple[Shape, Shape]]:
    for outer, left, right in product((0, 1, 3), SIZES, SIZES):
        yield (outer, left), (outer, right)


@pytest.mark.parametrize("op_type", ["Add", "Equal", "Pow", "Where", "Expand"])
def test_operands_that_do_not_broadcast(op_type: str) -> None:
    told = 0
    for left, right in pairs():
        builder = Builder(0)
        operands = [builder.tensor(list(left), rate=0)]
        if op_type == "Expand":
            operands.append(builder.constant(right))
        else:
            operands.append(builder.tensor(list(right), rate=0))
        if op_type == "Where":
            operands.insert(0, builder.tensor([1], bool, rate=0))
        builder.op(op_type, operands)
        told += hold(builder)
    assert told


def test_matrices_that_do_not_fit() -> None:
    told = 0
    for left, right, rows, columns in product(SIZES, SIZES, (0, 1, 3), (0, 4)):
        for batch in ((), (2,), (0,)):
            builder = Builder(0)
            operands = [builder.weights([*batch, rows, left]), builder.weights([right, columns])]
            builder.op("MatMul", operands)
            told += hold(builder)
    assert told


def test_targets_of_another_size() -> None:
    told = 0
    targets: list[Any] = [target for target in product((0, -1, 2, 3, 5), (0, -1, 1, 3, 5)) if target.count(-1) < 2]
    for shape, target in product(((0, 3), (2, 3), (2, 0), (0, 0), (1, 2, 3), (4,)), targets):
        builder = Builder(0)
        builder.op("Reshape", [builder.weights(list(shape)), builder.constant(np.array(target))])
        told += hold(builder)
    assert told


def hold(builder: Builder) -> bool:
    """Whether the node is said to fail; then it does."""
    (node,) = inferred(builder.model()).nodes()
    is_told = certainly_fails(node)
    assert not is_told or fails(builder), node
    return is_told
