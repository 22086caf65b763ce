"""What happened to a graph, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node
    from graphopt.ir.types import Type
    from graphopt.ir.value import Value


@dataclass(frozen=True, slots=True)
class Inserted:
    """A node, with all its bodies, joined the graph."""

    graph: Graph
    node: Node


@dataclass(frozen=True, slots=True)
class Erased:
    """A node, with all its bodies, left the graph."""

    graph: Graph
    node: Node


@dataclass(frozen=True, slots=True)
class Rewired:
    """A node reads other operands."""

    graph: Graph
    node: Node
    old: tuple[Value | None, ...]
    new: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class AttributeSet:
    """An attribute changed; None stands for absent."""

    graph: Graph
    node: Node
    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Retyped:
    """More became known of a value's type."""

    graph: Graph
    value: Value
    old: Type | None
    new: Type | None


@dataclass(frozen=True, slots=True)
class Renamed:
    """A value or node carries another label."""

    graph: Graph
    item: Value | Node
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Restored:
    """A constant changed the form it is stored in."""

    graph: Graph
    node: Node
    old: bool
    new: bool


Edit: TypeAlias = Inserted | Erased | Rewired | AttributeSet | Retyped | Renamed | Restored


class Listener(Protocol):
    """Something that wants to know of every edit, after it happened."""

    def on_edit(self, edit: Edit) -> None:
        """Take note of an edit; listeners do not edit."""
