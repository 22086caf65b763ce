"""Values: what flows along the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphopt.ir.types import Dim, Shape, TensorType, Type
from graphopt.tensors import DType, Tensor

if TYPE_CHECKING:
    from graphopt.ir.node import Node

Use = tuple["Node", int]
"""A user and the position of the operand: the key of an edge."""


class Value:
    """One result of one node: an operator's output, a graph input or a constant.

    Values compare by identity. A name is a label: None until export gives one, "" for an optional output the model
    leaves out.
    """

    __slots__ = ("declared", "elements", "index", "name", "producer", "type", "uses")

    def __init__(self, producer: Node, index: int, name: str | None = None, type: Type | None = None) -> None:
        self.producer = producer
        self.index = index
        self.name = name
        self.type = type
        self.declared: bytes | None = None
        """The serialized `ValueInfoProto` the file has for this value; carried through, its dims are no evidence."""
        self.elements: tuple[Dim, ...] | None = None
        """What a small integer tensor (a shape, a size, an index) holds, flattened, as far as it follows from the
        shapes of the inputs; set by the inference, None if it carries no shape or nothing is known."""
        self.uses: dict[Use, None] = {}

    @property
    def const(self) -> Tensor | None:
        """The data, if this is a constant; None for an input whose default a caller may override."""
        return self.producer.tensor if self.producer.is_constant else None

    @property
    def is_used(self) -> bool:
        """True if any node, body or graph output reads it."""
        return bool(self.uses)

    def sole_use(self) -> Use | None:
        """The only use, None if there are none or several; a graph output is a use by the Return node."""
        return next(iter(self.uses)) if len(self.uses) == 1 else None

    @property
    def users(self) -> list[Node]:
        """The distinct nodes that read it, in the order in which they began to."""
        return list(dict.fromkeys(user for user, _ in self.uses))

    @property
    def dtype(self) -> DType | None:
        """The element type of a tensor, None if unknown or not a tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """The shape of a tensor, None if its rank is unknown or it is not a tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def rank(self) -> int | None:
        """The number of dims, None if unknown."""
        return None if self.shape is None else len(self.shape)

    def __repr__(self) -> str:
        """The name and type, for people."""
        label = self.name or f"%{self.producer.serial}.{self.index}"
        return label if self.type is None else f"{label}: {self.type}"
