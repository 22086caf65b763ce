"""Types of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from graphopt.ir.symbol import Expr
from graphopt.tensors.dtype import DType

Dim: TypeAlias = int | Expr | None
"""A dim: a number, an expression over input dims, or unknown."""
Shape: TypeAlias = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: element type and shape; `shape` None is an unknown rank."""

    dtype: DType
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        """The number of dims, None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every dim is a number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        """The type in ONNX's text syntax, unknown dims as `?`."""
        if self.shape is None:
            return f"{self.dtype.text}[]"
        dims = ",".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype.text}[{dims}]" if self.shape else self.dtype.text


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence of values of one type."""

    element: Type | None

    def __str__(self) -> str:
        """The type in ONNX's text syntax."""
        return f"seq({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value of the element type, or nothing."""

    element: Type | None

    def __str__(self) -> str:
        """The type in ONNX's text syntax."""
        return f"optional({self.element})"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A map, sparse tensor or vendor's type, carried through as its serialized `TypeProto`."""

    proto: bytes

    def __str__(self) -> str:
        """A word, since the text syntax has none for most of them."""
        return "opaque"


Type: TypeAlias = TensorType | SequenceType | OptionalType | OpaqueType


def merge_types(known: Type | None, found: Type | None) -> Type | None:
    """What two true statements about one value say together; where they disagree, `known` wins."""
    if known is None or found is None:
        return found if known is None else known
    if isinstance(known, TensorType) and isinstance(found, TensorType):
        dtype = found.dtype if known.dtype is DType.UNDEFINED else known.dtype
        return TensorType(dtype, _merge_shapes(known.shape, found.shape))
    if isinstance(known, SequenceType) and isinstance(found, SequenceType):
        return SequenceType(merge_types(known.element, found.element))
    if isinstance(known, OptionalType) and isinstance(found, OptionalType):
        return OptionalType(merge_types(known.element, found.element))
    return known


def _merge_shapes(known: Shape | None, found: Shape | None) -> Shape | None:
    if known is None or found is None:
        return found if known is None else known
    if len(known) != len(found):
        return known
    return tuple(_merge_dims(left, right) for left, right in zip(known, found, strict=True))


def _merge_dims(known: Dim, found: Dim) -> Dim:
    """A number says more than an expression, an expression more than nothing."""
    if known is None or (isinstance(found, int) and not isinstance(known, int)):
        return found
    return known


def contradict(left: Type | None, right: Type | None) -> bool:
    """True if no value can have both types."""
    if left is None or right is None:
        return False
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        if DType.UNDEFINED not in (left.dtype, right.dtype) and left.dtype is not right.dtype:
            return True
        if left.shape is None or right.shape is None:
            return False
        if len(left.shape) != len(right.shape):
            return True
        pairs = zip(left.shape, right.shape, strict=True)
        return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if isinstance(left, OpaqueType) or isinstance(right, OpaqueType):
        return False
    if type(left) is not type(right):
        return True
    if isinstance(left, TensorType) or isinstance(right, TensorType):
        return True
    return contradict(left.element, right.element)
