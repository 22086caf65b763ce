"""How one node is written, on its way from one opset to the next: parameters that move, types that must be allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from graphopt import Builder, DType, Node, SequenceType, Tensor, TensorType, Value, schema

Item: TypeAlias = Value | Tensor | schema.RefAttribute | None
"""An operand: a value, a constant still to be made, one of a function's attributes as an operand, or omitted."""
Expansion: TypeAlias = Callable[[Builder, Sequence[Any]], Any]
"""Builds what stands for a node in the target opset from its operands; gives a value or a tuple of them."""

_FORMER_NAMES = {("TopK", "K"): "k", ("Pad", "constant_value"): "value"}
"""What an operand was called when it was an attribute, where not the same."""


class Refusal(Exception):  # noqa: N818  # control flow, not an error
    """A node cannot be written in the opset asked for; the text says why."""


class Spelling:
    """How a node is written in some opset; the node itself is not touched.

    Attributes:
        node: The node.
        op_type: Its operator.
        attributes: Its attributes.
        operands: Its operands.
        expansion: What builds several nodes in its place, None if it stays one.
        target: The opset it is to be written in.
        remark: What the user should know of it.
    """

    __slots__ = ("attributes", "expansion", "node", "op_type", "operands", "remark", "target")

    def __init__(self, node: Node, target: int) -> None:
        self.node = node
        self.target = target
        self.op_type = node.op_type
        self.attributes: dict[str, Any] = dict(node.attributes)
        self.operands: list[Item] = list(node.operands)
        self.expansion: Expansion | None = None
        self.remark = ""

    def refuse(self, why: str) -> NoReturn:
        """Give up.

        Raises:
            Refusal: always.
        """
        raise Refusal(why)

    # --- operands

    def operand(self, index: int) -> Item:
        """The operand at a position, None where it is omitted or past the end."""
        return self.operands[index] if index < len(self.operands) else None

    def set_operand(self, index: int, item: Item) -> None:
        """Give an operand, leaving out those before it that are not there."""
        self.operands.extend([None] * (index + 1 - len(self.operands)))
        self.operands[index] = item

    def constant(self, index: int) -> Tensor | None:
        """The data of a constant operand; None if it is omitted or computed."""
        item = self.operand(index)
        return item.const if isinstance(item, Value) else item if isinstance(item, Tensor) else None

    def integers(self, index: int) -> tuple[int, ...] | None:
        """The elements of a constant operand of integers, None if it is omitted or computed."""
        tensor = self.constant(index)
        return None if tensor is None else tuple(int(item) for item in tensor.numpy().reshape(-1))

    def dtype(self, index: int = 0) -> DType | None:
        """The element type of an operand, None if unknown."""
        item = self.operand(index)
        return item.dtype if isinstance(item, (Value, Tensor)) else None

    def rank(self, index: int = 0) -> int | None:
        """The rank of an operand, None if unknown."""
        item = self.operand(index)
        return item.rank if isinstance(item, (Value, Tensor)) else None

    def size(self, axis: int, index: int = 0) -> int | None:
        """A dim of an operand, None unless it is a known number."""
        item = self.operand(index)
        shape = item.shape if isinstance(item, (Value, Tensor)) else None
        dim = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        return dim if isinstance(dim, int) else None

    # --- attributes

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and give its value; of one that is the caller's of a function, refuse."""
        value = self.attributes.pop(name, default)
        if isinstance(value, schema.RefAttribute):
            self.refuse(f"its attribute '{name}' is given by the caller of the function around it")
        return value

    def known(self, name: str, default: Any = None) -> Any:
        """An attribute's value; of one that is the caller's of a function, refuse."""
        value = self.attributes.get(name, default)
        if isinstance(value, schema.RefAttribute):
            self.refuse(f"its attribute '{name}' is given by the caller of the function around it")
        return value

    def count_from_front(self, name: str, rank: int | None) -> None:
        """Write an axis, or a list of axes, without negative numbers."""
        value = self.known(name)
        if value is None:
            return
        axes = value if isinstance(value, tuple) else (value,)
        if all(axis >= 0 for axis in axes):
            return
        if rank is None:
            self.refuse(f"its '{name}' counts from the back and the rank is unknown")
        counted = tuple(axis + rank if axis < 0 else axis for axis in axes)
        self.attributes[name] = counted if isinstance(value, tuple) else counted[0]

    # --- from one version to the next

    def respell(self, old: schema.Operator, new: schema.Operator) -> None:
        """Move every parameter to where another version of the operator has it, with its value unchanged.

        Raises:
            Refusal: something the node says has no place there.
        """
        given, operands = self.attributes, self.operands
        self.attributes, self.operands = {}, []
        for index, item in enumerate(operands):
            if item is not None:
                self._place_operand(index, item, old, new)
        for name, value in given.items():
            if name in new.attributes or name not in old.attributes:
                self.attributes[name] = value
            elif new.input_index(name) is not None:
                self._place_attribute(name, value, new)
            elif value != old.defaults.get(name):
                self.refuse(f"its {name}={_short(value)} cannot be said in opset {_said(new)}")
        for name, value in old.defaults.items():
            if name not in given and new.defaults.get(name, value) != value:
                self.attributes[name] = value

    def _place_operand(self, index: int, item: Item, old: schema.Operator, new: schema.Operator) -> None:
        formal = old.inputs[min(index, len(old.inputs) - 1)]
        if formal.variadic:
            self.set_operand(index, item)
            return
        position = new.input_index(formal.name)
        if position is None and index < len(new.inputs) and old.input_index(new.inputs[index].name) is None:
            position = index  # the same operand under another name
        name = _FORMER_NAMES.get((old.op_type, formal.name), formal.name)
        if name in new.attributes:
            position = None
        if position is not None:
            self.set_operand(position, item)
        elif name in new.attributes:
            self.attributes[name] = self._as_attribute(item, name, new)
        else:
            self.refuse(f"its operand '{formal.name}' does not exist in opset {_said(new)}")

    def _as_attribute(self, item: Item, name: str, new: schema.Operator) -> Any:
        if isinstance(item, schema.RefAttribute):
            return item
        tensor = item.const if isinstance(item, Value) else item
        if tensor is None:
            self.refuse(f"its '{name}' is computed when the model runs, and an attribute in opset {_said(new)}")
        if new.attributes[name] in (_INTS, _FLOATS):
            return tuple(tensor.numpy().reshape(-1).tolist())
        value = tensor.scalar()
        if value is None:
            self.refuse(f"its '{name}' is not one number")
        if new.attributes[name] == _FLOAT and float(np.float32(value)) != float(value) and value == value:
            self.refuse(f"its {name}={value} does not fit into a float attribute")
        return int(value) if new.attributes[name] == _INT else float(value)

    def _place_attribute(self, name: str, value: Any, new: schema.Operator) -> None:
        position = new.input_index(name)
        assert position is not None
        if isinstance(value, schema.RefAttribute):
            self.set_operand(position, value)
            return
        formal = new.inputs[position]
        items = value if isinstance(value, tuple) else (value,)
        dtype: DType | None = DType.FLOAT
        if "tensor(int64)" in formal.dtypes and all(isinstance(item, int) for item in items):
            dtype = DType.INT64
        elif formal.type_variable == new.inputs[0].type_variable:
            dtype = self.dtype()
        if dtype is None:
            self.refuse(f"its '{name}' becomes an operand of the type of the first, which is unknown")
        self.set_operand(position, Tensor.of(list(value) if isinstance(value, tuple) else value, dtype))

    def require_allowed(self, new: schema.Operator) -> None:
        """Refuse types and counts that a version of the operator does not take.

        Raises:
            Refusal: it does not take them.
        """
        while self.operands and self.operands[-1] is None:
            self.operands.pop()
        # A Loop lists its trip count and condition even where it has neither.
        while len(self.operands) < new.min_inputs and new.inputs[len(self.operands)].optional:
            self.operands.append(None)
        count, results = len(self.operands), self.node.results
        if not new.min_inputs <= count <= new.max_inputs:
            self.refuse(f"it has {count} operands, and {new.op_type} of opset {_said(new)} takes others")
        if len(results) > new.max_outputs:
            self.refuse(f"it has {len(results)} results, and {new.op_type} of opset {_said(new)} gives fewer")
        seen: dict[str, DType] = {}
        for items, formals in ((self.operands, new.inputs), (results, new.outputs)):
            for index, item in enumerate(items):
                formal = formals[min(index, len(formals) - 1)]
                text = _type_text(item)
                if text is None:
                    continue
                if text not in formal.dtypes:
                    self.refuse(f"{new.op_type} of opset {_said(new)} takes no {text} for '{formal.name}'")
                dtype = item.dtype if isinstance(item, (Value, Tensor)) else None
                if dtype is None or formal.variadic or formal.type_variable.endswith(")"):
                    continue
                if seen.setdefault(formal.type_variable, dtype) is not dtype:
                    self.refuse(f"{new.op_type} of opset {_said(new)} wants one type for several operands")


_FLOAT, _INT, _FLOATS, _INTS = 1, 2, 6, 7  # as in `AttributeProto.type`


def _type_text(item: Item) -> str | None:
    type = (
        TensorType(item.dtype, item.shape)
        if isinstance(item, Tensor)
        else item.type
        if isinstance(item, Value)
        else None
    )
    if isinstance(type, SequenceType) and isinstance(type.element, TensorType):
        return None if type.element.dtype is DType.UNDEFINED else f"seq(tensor({type.element.dtype.text}))"
    if not isinstance(type, TensorType) or type.dtype is DType.UNDEFINED:
        return None
    return f"tensor({type.dtype.text})"


def _said(new: schema.Operator) -> str:
    later = [version for version in schema.versions(new.op_type) if version > new.since]
    return f"{new.since} to {later[0] - 1}" if later and later[0] - 1 > new.since else str(new.since)


def _short(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) < 40 else f"{text[:36]} …"
