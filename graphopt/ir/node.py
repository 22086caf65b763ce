"""Nodes: one operator application each, and the sources and the sink of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graphopt import schema
from graphopt.ir.value import Value
from graphopt.tensors import Tensor

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.types import Type


class Kind(Enum):
    """What a node of the graph stands for."""

    OPERATOR = "operator"
    INPUT = "input"
    CONSTANT = "constant"
    RETURN = "return"


class _NotConstant:
    """The parameter is an operand computed at run time."""

    def __repr__(self) -> str:
        return "NOT_CONSTANT"


NOT_CONSTANT = _NotConstant()
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_READ_LIMIT = 1 << 16  # parameters are short; a longer operand is data


class Form(Enum):
    """The message a node was read from."""

    NODE = "NodeProto"
    TENSOR = "TensorProto"
    SPARSE = "SparseTensorProto"


@dataclass(frozen=True, slots=True)
class Origin:
    """What the file says of a node, so that it can be written back as it was read.

    Attributes:
        form: Which message it was.
        proto: The serialized message.
        names: The node's name, its operand names, "", and its result names, or an initializer's only name: while all
            of them hold, so does `proto`.
        attributes: The attributes as read.
    """

    form: Form
    proto: memoryview
    names: tuple[str, ...]
    attributes: Mapping[str, Any]


class Node:
    """One operator application, graph input, constant, or the `Return` that reads the graph's outputs.

    Operands and results are tuples: only the edits of `Graph` replace them. An ONNX `Constant` node and an initializer
    are both constants here; `stored_as_node` remembers the file's form. Nodes hash by their serial number within the
    model, which is the same in every process, and compare by identity.
    """

    __slots__ = (
        "_attributes",
        "_bodies",
        "_operands",
        "default",
        "domain",
        "graph",
        "is_new",
        "is_pinned",
        "kind",
        "name",
        "op_type",
        "origin",
        "overload",
        "rank",
        "results",
        "serial",
        "stored_as_node",
        "tensor",
    )

    def __init__(
        self,
        serial: int,
        kind: Kind,
        op_type: str = "",
        domain: str = "",
        *,
        operands: tuple[Value | None, ...] = (),
        results: int = 0,
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
        overload: str = "",
        tensor: Tensor | None = None,
    ) -> None:
        self.serial = serial
        self.kind = kind
        self.op_type = op_type
        self.domain = domain
        self.overload = overload
        self.name = name
        self.tensor = tensor
        self.default: Tensor | None = None
        """The default of an input that a caller may leave out (IR version 4 and newer)."""
        self.stored_as_node = False
        self.is_pinned = False
        """True if something outside names it (training info, a keep-list): it is neither erased nor renamed."""
        self.is_new = True
        """False for what the file brought: it keeps its name before anything a rewrite made."""
        self.results = tuple(Value(self, index) for index in range(results))
        self.graph: Graph | None = None
        self.rank = 0
        self.origin: Origin | None = None
        self._operands = operands
        self._attributes: Mapping[str, Any] = MappingProxyType(dict(attributes)) if attributes else _NOTHING
        self._bodies: Mapping[str, Graph] = _NOTHING

    def __hash__(self) -> int:
        """The serial number: networkx's sets of nodes iterate alike in every process."""
        return self.serial

    @property
    def operands(self) -> tuple[Value | None, ...]:
        """The values read, by position; None is an omitted optional operand."""
        return self._operands

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes the file states, bodies aside; defaults are added by `param`."""
        return self._attributes

    @property
    def bodies(self) -> Mapping[str, Graph]:
        """The graphs this node owns, by attribute; one of a list is `name[i]`."""
        return self._bodies

    @property
    def has_attributes_as_read(self) -> bool:
        """True if every attribute is the one the file gave."""
        if self.origin is None:
            return False
        read = self.origin.attributes
        return self._attributes is read or (
            len(self._attributes) == len(read) and all(self.is_attribute_as_read(name) for name in read)
        )

    @property
    def is_intact(self) -> bool:
        """True if attributes and bodies are what the file says; operands and names may have changed."""
        return self.has_attributes_as_read and all(body.changes == 0 for body in self._bodies.values())

    def is_attribute_as_read(self, name: str) -> bool:
        """True if the attribute is the one the file gave."""
        if self.origin is None or name not in self.origin.attributes:
            return False
        return self._attributes.get(name) is self.origin.attributes[name]

    @property
    def is_operator(self) -> bool:
        """True for an operator application."""
        return self.kind is Kind.OPERATOR

    @property
    def is_constant(self) -> bool:
        """True for an initializer or `Constant`."""
        return self.kind is Kind.CONSTANT

    @property
    def result(self) -> Value:
        """The only result of a node that has exactly one."""
        (value,) = self.results
        return value

    @property
    def is_used(self) -> bool:
        """True if any result is read."""
        return any(value.uses for value in self.results)

    def is_op(self, op_type: str, domain: str = "") -> bool:
        """True if this is an application of that operator, with the meaning the operator has today."""
        return self.op_type == op_type and self.domain == domain and self.is_operator and self.has_latest_meaning

    @property
    def opset(self) -> int:
        """The opset of this node's domain that holds here; 0 if the model imports none."""
        return self.graph.opsets.get(self.domain, 0) if self.graph is not None else 0

    @property
    def schema(self) -> schema.Operator | None:
        """What ONNX says of this operator in this graph's opset, None for an operator it does not know."""
        return schema.operator(self.domain, self.op_type, self.opset) if self.is_operator else None

    @property
    def has_latest_meaning(self) -> bool:
        """False if the operator meant something else in this graph's opset (Softmax before 13, …)."""
        opset = self.opset
        if schema.is_latest_meaning(self.domain, self.op_type, opset):
            return True
        outputs = sum(value.name != "" for value in self.results)
        return schema.is_latest_meaning(self.domain, self.op_type, opset, outputs, self._attributes)

    def add_body(self, name: str, body: Graph) -> None:
        """Give a new node a body, which must have been made with this node as its owner.

        Args:
            name: The attribute's name; of a list of graphs, `name[i]`.
            body: The body.
        """
        self._bodies = MappingProxyType({**self._bodies, name: body})
        if self.graph is not None:
            self.graph.note_owner(self)

    def operand(self, index: int) -> Value | None:
        """The operand at a position, None where it is omitted or past the end."""
        return self._operands[index] if index < len(self._operands) else None

    def param(self, name: str) -> Any:
        """A parameter, whether this opset spells it as an attribute or as an operand.

        Returns:
            The attribute with its default filled in; of an operand, a number for a scalar and a tuple for a vector;
            None where the operator or the model says nothing; `NOT_CONSTANT` for an operand computed at run time and,
            inside a function, for an attribute the caller gives.
        """
        if name in self._attributes:
            value = self._attributes[name]
            return NOT_CONSTANT if isinstance(value, schema.RefAttribute) else value
        operator = self.schema
        if operator is None:
            return None
        if name in operator.attributes:
            return operator.defaults.get(name)
        position = operator.input_index(name)
        value = None if position is None else self.operand(position)
        if value is None:
            return None
        tensor = value.const
        if tensor is None or tensor.size > _READ_LIMIT:
            return NOT_CONSTANT
        return tensor.scalar() if tensor.rank == 0 else _nested_tuple(tensor.tolist())

    def param_operand(self, name: str) -> int | None:
        """The position of the operand that carries a parameter in this opset, None if an attribute does."""
        operator = self.schema
        return None if operator is None else operator.input_index(name)

    def nested(self) -> Iterator[Node]:
        """Every node inside the bodies, at any depth."""
        for body in self._bodies.values():
            for node in body.all_nodes():
                yield node
                yield from node.nested()

    def types(self) -> tuple[Type | None, ...]:
        """The types of the results."""
        return tuple(value.type for value in self.results)

    def __repr__(self) -> str:
        """One line close to ONNX's text syntax."""
        if self.kind is Kind.RETURN:
            return f"return {', '.join(_label(value) for value in self._operands)}"
        results = ", ".join(_label(value) for value in self.results)
        if not self.is_operator:
            return f"{self.kind.value} {results}"
        operands = ", ".join(_label(value) for value in self._operands)
        attributes = ", ".join(f"{key}={value}" for key, value in self._attributes.items())
        bodies = ", ".join(f"{key}={{…}}" for key in self._bodies)
        inside = ", ".join(part for part in (attributes, bodies) if part)
        prefix = f"{self.domain}." if self.domain else ""
        return f"{results} = {prefix}{self.op_type}{f'<{inside}>' if inside else ''}({operands})"


def _label(value: Value | None) -> str:
    if value is None:
        return ""
    return value.name or f"%{value.producer.serial}" + (f".{value.index}" if value.index else "")


def _nested_tuple(value: Any) -> Any:
    return tuple(_nested_tuple(item) for item in value) if isinstance(value, list) else value
