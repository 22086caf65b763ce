"""What happened to a graph, and who is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.model import Function, FunctionKey
    from graphopt.ir.node import Node
    from graphopt.ir.types import Type
    from graphopt.ir.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """What every edit says.

    Attributes:
        undoes: True if this takes back another edit.
    """

    undoes: bool = False


@dataclass(frozen=True, slots=True)
class Inserted(_Edit):
    """A node, with all its bodies, joined the graph."""

    graph: Graph
    node: Node


@dataclass(frozen=True, slots=True)
class Erased(_Edit):
    """A node, with all its bodies, left the graph."""

    graph: Graph
    node: Node


@dataclass(frozen=True, slots=True)
class Rewired(_Edit):
    """A node reads other operands."""

    graph: Graph
    node: Node
    old: tuple[Value | None, ...]
    new: tuple[Value | None, ...]


@dataclass(frozen=True, slots=True)
class AttributeSet(_Edit):
    """An attribute changed; None stands for absent."""

    graph: Graph
    node: Node
    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Retyped(_Edit):
    """More became known of a value's type."""

    graph: Graph
    value: Value
    old: Type | None
    new: Type | None


@dataclass(frozen=True, slots=True)
class Renamed(_Edit):
    """A value or node carries another label."""

    graph: Graph
    item: Value | Node
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Redeclared(_Edit):
    """What the file says of a value's type (`Value.declared`) was handed to or taken from it, along with its name."""

    graph: Graph
    value: Value
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class StorageSet(_Edit):
    """A constant will be written in another form: True is a `Constant` node, False an initializer."""

    graph: Graph
    node: Node
    old: bool
    new: bool


@dataclass(frozen=True, slots=True)
class Narrowed(_Edit):
    """A node gives fewer results, or has them back."""

    graph: Graph
    node: Node
    old: tuple[Value, ...]
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class DetailSet(_Edit):
    """Something the file says beside nodes and values changed."""

    graph: Graph
    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class OpsetSet(_Edit):
    """The graph imports other opsets; both mappings whole, since the file lists them in an order."""

    graph: Graph
    old: dict[str, int]
    new: dict[str, int]


@dataclass(frozen=True, slots=True)
class IrVersionSet(_Edit):
    """The model declares another IR version; `graph` is the main graph."""

    graph: Graph
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class FunctionsSet(_Edit):
    """The model has other local functions; `graph` is the main graph."""

    graph: Graph
    old: dict[FunctionKey, Function]
    new: dict[FunctionKey, Function]


Edit: TypeAlias = (
    Inserted
    | Erased
    | Rewired
    | AttributeSet
    | Retyped
    | Renamed
    | Redeclared
    | StorageSet
    | Narrowed
    | DetailSet
    | OpsetSet
    | IrVersionSet
    | FunctionsSet
)


class Listener(Protocol):
    """Something that wants to know of every edit, after it happened."""

    def on_edit(self, edit: Edit) -> None:
        """Take note of an edit; listeners do not edit."""
