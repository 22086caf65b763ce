"""Sequences and optionals."""

from __future__ import annotations

from graphopt.analysis.shapes.bodies import either_type
from graphopt.analysis.shapes.common import UNKNOWN, Fact, Facts, axis_of, one, transfer
from graphopt.ir import Node, OptionalType, SequenceType, TensorType, Type, Value
from graphopt.tensors import DType


def element_of(value: Value | None) -> Type | None:
    """What holds of every element of a sequence, or of what an optional holds."""
    if value is not None and isinstance(value.type, SequenceType | OptionalType):
        return value.type.element
    return None


@transfer("SequenceConstruct")
def sequence_construct(node: Node) -> Facts:
    """A sequence of the operands."""
    types = [None if value is None else value.type for value in node.operands]
    element = types[0]
    for other in types[1:]:
        element = either_type(element, other)
    return (Fact(SequenceType(element)),)


@transfer("SequenceEmpty")
def sequence_empty(node: Node) -> Facts:
    """A sequence of nothing."""
    dtype = node.param("dtype")
    return (Fact(SequenceType(TensorType(DType(dtype) if isinstance(dtype, int) else DType.FLOAT))),)


@transfer("SequenceInsert")
def sequence_insert(node: Node) -> Facts:
    """A sequence with one element more."""
    added = node.operand(1)
    element = either_type(element_of(node.operands[0]), None if added is None else added.type)
    return (Fact(SequenceType(element)),)


@transfer("SequenceErase")
def sequence_erase(node: Node) -> Facts:
    """A sequence with one element less."""
    value = node.operands[0]
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("SequenceAt")
def sequence_at(node: Node) -> Facts:
    """One element."""
    return (Fact(element_of(node.operands[0])),)


@transfer("SequenceLength")
def sequence_length(node: Node) -> Facts:
    """How many elements there are."""
    return one(DType.INT64, ())


@transfer("ConcatFromSequence")
def concat_from_sequence(node: Node) -> Facts:
    """All elements along an axis, an old or a new one."""
    element = element_of(node.operands[0])
    if not isinstance(element, TensorType):
        return (UNKNOWN,)
    axis, is_new = node.param("axis"), node.param("new_axis")
    if element.shape is None or not isinstance(axis, int):
        return one(element.dtype, None)
    place = axis_of(axis, len(element.shape) + (1 if is_new else 0))
    if place is None:
        return one(element.dtype, None)
    return one(element.dtype, (*element.shape[:place], None, *element.shape[place + (0 if is_new else 1) :]))


@transfer("Optional")
def optional(node: Node) -> Facts:
    """The operand, or nothing."""
    value = node.operand(0)
    return (UNKNOWN if value is None or value.type is None else Fact(OptionalType(value.type)),)


@transfer("OptionalHasElement")
def optional_has_element(node: Node) -> Facts:
    """Whether there is something."""
    return one(DType.BOOL, ())


@transfer("OptionalGetElement")
def optional_get_element(node: Node) -> Facts:
    """What is there."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    return (Fact(value.type.element if isinstance(value.type, OptionalType) else value.type),)
