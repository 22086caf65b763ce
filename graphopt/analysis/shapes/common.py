"""What the transfer functions share: facts, the table they are entered in, and how operands are read.

A transfer function takes a node and returns one `Fact` per result, as far as they follow from what is known of the
operands and attributes. It says what holds on every run that succeeds; of one that fails, anything may be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphopt.ir import NOT_CONSTANT, Dim, Expr, Kind, Node, Shape, TensorType, Type, Value
from graphopt.ir.symbol import Integer, broadcast, is_nonnegative, product_of
from graphopt.tensors import DType, Tensor

MAX_ELEMENTS = 64
"""Contents of larger tensors are not followed."""
CACHE = 4096
"""How many results of symbolic arithmetic each function remembers."""
UNBOUNDED = 2**31 - 1
"""A bound of at least this size is no bound: exporters write it for "to the end"."""
Elements: TypeAlias = tuple[Dim, ...]
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

INTEGER_CARRIERS = frozenset({DType.INT64, DType.INT32, DType.BOOL})
FLOAT_CARRIERS = frozenset({DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16})
CARRIERS = INTEGER_CARRIERS | FLOAT_CARRIERS
"""Element types whose contents are followed; of floats, those that are whole numbers and exact."""


class Fact(NamedTuple):
    """What is known of one result."""

    type: Type | None
    elements: Elements | None = None


UNKNOWN = Fact(None)
Facts: TypeAlias = "tuple[Fact, ...]"
Transfer: TypeAlias = Callable[[Node], Facts]
TRANSFERS: dict[tuple[str, str], Transfer] = {}


def transfer(*op_types: str, domain: str = "") -> Callable[[Transfer], Transfer]:
    """Enter a function as the transfer function of these operators."""

    def enter(function: Transfer) -> Transfer:
        for op_type in op_types:
            TRANSFERS[domain, op_type] = function
        return function

    return enter


# --- facts


def tensor(dtype: DType | None, shape: Sequence[Dim] | None, elements: Elements | None = None) -> Fact:
    """The fact of a tensor; nothing, where not even the element type is known."""
    if dtype is None or dtype is DType.UNDEFINED:
        return UNKNOWN
    return Fact(TensorType(dtype, None if shape is None else tuple(shape)), elements)


def one(dtype: DType | None, shape: Sequence[Dim] | None, elements: Elements | None = None) -> Facts:
    """The facts of an operator with one result."""
    return (tensor(dtype, shape, elements),)


def vector(dtype: DType | None, array: Array | None, shape: Sequence[Dim] | None) -> Facts:
    """The facts of one result whose contents are an object array, if they are known and few."""
    if array is None or array.size > MAX_ELEMENTS:
        return one(dtype, shape if array is None else array.shape)
    return one(dtype, array.shape, tuple(array.reshape(-1).tolist()))


# --- operands


def shape_of(value: Value | None) -> Shape | None:
    """The shape of an operand that may be omitted."""
    return None if value is None else value.shape


def dtype_of(value: Value | None) -> DType | None:
    """The element type of an operand that may be omitted."""
    return None if value is None else value.dtype


def rank_of(value: Value | None) -> int | None:
    """The rank of an operand that may be omitted."""
    shape = shape_of(value)
    return None if shape is None else len(shape)


def contents(value: Value | None) -> Elements | None:
    """What a small tensor holds, flattened; of a constant it is read once and kept."""
    if value is None:
        return None
    if value.elements is not None:
        return value.elements
    producer = value.producer
    if producer.kind is Kind.CONSTANT and producer.tensor is not None:
        value.elements = read_contents(producer.tensor)
    return value.elements


def read_contents(constant: Tensor) -> Elements | None:
    """The contents of a small constant of a followed type."""
    if constant.dtype not in CARRIERS or len(constant.shape) > 2 or constant.size > MAX_ELEMENTS:
        return None
    flat = constant.numpy().reshape(-1).tolist()
    if constant.dtype in INTEGER_CARRIERS:
        return tuple(int(item) for item in flat)
    found = tuple(_whole(float(item)) for item in flat)
    return None if flat and all(item is None for item in found) else found


def _whole(item: float) -> Dim:
    if item != item or item in (float("inf"), float("-inf")) or item != int(item):
        return None
    # The integer 0 stands for +0.0 only.
    return None if item == 0 and str(item)[0] == "-" else int(item)


def content_array(value: Value | None) -> Array | None:
    """The contents as an object array of the tensor's shape; None where either is not known."""
    elements = contents(value)
    if elements is None or value is None:
        return None
    shape = value.shape
    if shape is None or len(shape) > 2:
        return None
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    if len(shape) == 1:
        return array
    sizes = [size for size in shape if isinstance(size, int)]
    return array.reshape(sizes) if len(sizes) == len(shape) and prod(sizes) == len(elements) else None


def scalar_content(value: Value | None) -> Dim:
    """The only element of an operand, None if it is not known or there are several."""
    elements = contents(value)
    return elements[0] if elements is not None and len(elements) == 1 else None


def constant_array(value: Value | None, limit: int = 1 << 16) -> Array | None:
    """The data of a constant operand of at most `limit` elements."""
    if value is None or value.const is None or value.const.size > limit:
        return None
    return value.const.numpy()


def parameter(node: Node, name: str, position: int | None = None) -> Any:
    """A parameter that must be known numbers: like `node.param`, but operands computed from shapes count as known too.

    Returns:
        As `node.param`; `NOT_CONSTANT` where an operand is not known. A vector is a tuple, with `Expr` and None in it
        if the operand holds them.
    """
    found = node.param(name)
    if found is not NOT_CONSTANT:
        return found
    index = node.param_operand(name) if position is None else position
    value = None if index is None else node.operand(index)
    elements = contents(value)
    if elements is None or value is None or value.shape is None:
        return NOT_CONSTANT
    return elements[0] if value.shape == () else elements


def integers(node: Node, name: str) -> tuple[int, ...] | None:
    """A list parameter as numbers; None where it is absent or not all of it is known."""
    found = parameter(node, name)
    if isinstance(found, int):
        return (found,)
    if not isinstance(found, tuple) or not all(isinstance(item, int) for item in found):
        return None
    return found


def is_known_absent(node: Node, name: str) -> bool:
    """True if neither an attribute nor an operand gives the parameter."""
    return node.param(name) is None


# --- dims


def axis_of(axis: int, rank: int) -> int | None:
    """An axis counted from the front; None where there is no such axis."""
    if not -rank <= axis < rank:
        return None
    return axis + rank if axis < 0 else axis


def axes_of(axes: Iterable[int], rank: int) -> list[int] | None:
    """Axes counted from the front; None where one does not exist."""
    found = []
    for axis in axes:
        place = axis_of(axis, rank)
        if place is None:
            return None
        found.append(place)
    return found


def count_of(shape: Iterable[Dim]) -> Dim:
    """The number of elements."""
    return product_of(shape)


def static(shape: Iterable[Dim] | None) -> tuple[int, ...] | None:
    """The shape, if all of it is numbers."""
    if shape is None:
        return None
    sizes = tuple(size for size in shape if isinstance(size, int))
    return sizes if len(sizes) == len(tuple(shape)) else None


def plus(*parts: Dim) -> Dim:
    """The sum; None if a part is unknown."""
    total: Integer = 0
    for part in parts:
        if part is None:
            return None
        total = total + part
    return total


def times(left: Dim, right: Dim) -> Dim:
    """The product; None if a factor is unknown."""
    return None if left is None or right is None else left * right


def merge_dims(known: Dim, found: Dim) -> Dim:
    """Two true statements about one dim: a number says most, an unknown nothing."""
    if known is None or isinstance(found, int):
        return found
    return known


def agree(*shapes: Shape | None) -> Shape | None:
    """What is known of a shape that all of these are; None if none has a rank."""
    ranked = [shape for shape in shapes if shape is not None]
    if not ranked:
        return None
    first = ranked[0]
    for other in ranked[1:]:
        if len(other) != len(first):
            return first
        first = tuple(merge_dims(left, right) for left, right in zip(first, other, strict=True))
    return first


def broadcast_dim(left: Dim, right: Dim) -> Dim:
    """The size two dims broadcast to."""
    if left is right:
        return left
    if isinstance(left, int):
        return right if left == 1 else left
    if isinstance(right, int):
        return left if right == 1 else right
    if left is None or right is None:
        other = right if left is None else left
        return other if other is not None and is_nonnegative(other - 2) else None
    return _broadcast(left, right)


# Layers repeat the arithmetic of the layer before, so what takes proofs is remembered.
_broadcast = lru_cache(maxsize=CACHE)(broadcast)


def broadcast_shapes(left: Shape | None, right: Shape | None) -> Shape | None:
    """The shape two shapes broadcast to, numpy's way."""
    if left is None or right is None:
        return None
    if left is right or left == right:
        return left
    missing = len(left) - len(right)
    if missing < 0:
        left, right, missing = right, left, -missing
    if not missing:
        return tuple(map(broadcast_dim, left, right))
    return left[:missing] + tuple(map(broadcast_dim, left[missing:], right))


def same_dim(left: Dim, right: Dim) -> bool:
    """True if both are known and are one expression."""
    return left is not None and (left is right or (isinstance(left, int) and left == right))


def as_known(elements: Sequence[Dim]) -> Sequence[Integer] | None:
    """The elements, if each is a number or an expression."""
    found = [item for item in elements if item is not None]
    return found if len(found) == len(elements) else None


def is_expression(dim: Dim) -> bool:
    """True for a dim that is neither a number nor unknown."""
    return isinstance(dim, Expr)
