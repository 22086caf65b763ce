"""What inference knows of values: which there are, how to forget it, how to put another dim in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from graphopt.ir import Dim, Graph, Kind, Symbol, TensorType, Type, Value

Known: TypeAlias = dict[Value, tuple[Type | None, tuple[Dim, ...] | None]]
"""Type and elements, by value."""


def values_inside(graph: Graph) -> Iterator[Value]:
    """Every value of a body and the bodies below it that is inferred."""
    for inner in (graph, *graph.bodies_inside()):
        for node in inner.all_nodes():
            if node.kind in (Kind.OPERATOR, Kind.INPUT):
                yield from node.results


def forget(values: Iterable[Value]) -> None:
    """Leave of types only what the file says."""
    for value in values:
        value.elements = None
        value.type = TensorType(value.type.dtype) if isinstance(value.type, TensorType) else value.type


def with_dim(type: Type | None, symbol: Symbol, dim: Dim) -> Type | None:
    """A type with another dim in the place of a symbol; the very same type if it is not in there."""
    if not isinstance(type, TensorType) or type.shape is None or symbol not in type.shape:
        return type
    return TensorType(type.dtype, tuple(dim if known is symbol else known for known in type.shape))
