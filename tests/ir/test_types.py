from __future__ import annotations

import itertools

import pytest

from graphopt.ir import OpaqueType, OptionalType, SequenceType, Symbol, TensorType, Type, contradict, merge_types
from graphopt.tensors import DType

N = Symbol(("x", 0), "n")
KNOWN = TensorType(DType.FLOAT, (2, 3))
TYPES: list[Type | None] = [
    None,
    TensorType(DType.FLOAT),
    TensorType(DType.UNDEFINED, (2, None)),
    TensorType(DType.FLOAT, (None, 3)),
    TensorType(DType.FLOAT, (N, 3)),
    KNOWN,
]


@pytest.mark.parametrize(("left", "right"), list(itertools.product(TYPES, TYPES)))
def test_true_statements_add_up(left: Type | None, right: Type | None) -> None:
    assert not contradict(left, right)
    merged = merge_types(left, right)
    assert not contradict(merged, left)
    assert not contradict(merged, right)
    assert merge_types(merged, left) == merged
    if KNOWN in (left, right):
        assert merged == KNOWN


def test_where_they_disagree_the_first_stands() -> None:
    other = TensorType(DType.INT32, (2, 4))
    assert merge_types(KNOWN, other) == KNOWN
    assert merge_types(KNOWN, TensorType(DType.FLOAT, (2,))) == KNOWN
    assert merge_types(KNOWN, SequenceType(None)) == KNOWN


def test_elements_add_up_too() -> None:
    assert merge_types(SequenceType(None), SequenceType(KNOWN)) == SequenceType(KNOWN)
    assert merge_types(OptionalType(TensorType(DType.FLOAT)), OptionalType(KNOWN)) == OptionalType(KNOWN)
    assert merge_types(OpaqueType(b"a"), OpaqueType(b"b")) == OpaqueType(b"a")


@pytest.mark.parametrize(
    "other",
    [
        TensorType(DType.INT32, (2, 3)),
        TensorType(DType.FLOAT, (2, 4)),
        TensorType(DType.FLOAT, (2, 3, 1)),
        TensorType(DType.FLOAT, ()),
        SequenceType(KNOWN),
        OptionalType(KNOWN),
    ],
)
def test_contradictions(other: Type) -> None:
    assert contradict(KNOWN, other)
    assert contradict(other, KNOWN)


def test_contradictions_of_elements() -> None:
    assert contradict(SequenceType(KNOWN), SequenceType(TensorType(DType.INT64)))
    assert contradict(SequenceType(KNOWN), OptionalType(KNOWN))
    assert not contradict(SequenceType(KNOWN), SequenceType(None))
    assert not contradict(OpaqueType(b"a"), KNOWN)


def test_text() -> None:
    assert str(KNOWN) == "float[2,3]"
    assert str(TensorType(DType.FLOAT, (N, None))) == "float[n,?]"
    assert str(TensorType(DType.FLOAT, ())) == "float"
    assert str(TensorType(DType.FLOAT)) == "float[]"
    assert str(SequenceType(OptionalType(KNOWN))) == "seq(optional(float[2,3]))"
    assert str(OpaqueType(b"")) == "opaque"
    assert TensorType(DType.FLOAT, (2, 3)).is_static
    assert not TensorType(DType.FLOAT, (N,)).is_static
    assert TensorType(DType.FLOAT).rank is None
