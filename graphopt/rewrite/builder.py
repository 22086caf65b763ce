"""The builder a rule receives: it makes nodes that are not in the graph yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphopt.analysis.inference import Inference
from graphopt.errors import RuleError
from graphopt.ir import Graph, Node, Value
from graphopt.rewrite.match import Miss
from graphopt.schema import Operator, operator
from graphopt.targets import MICROSOFT, PORTABLE, Target
from graphopt.tensors import DType, Tensor


class Builder:
    """Makes detached nodes in the spelling of the graph's opset.

    `b.Transpose(x, perm=[1, 0])` returns the new node's value. Operands are values, None for an omitted one, numbers
    or arrays for constants (a bare number takes the element type of the first operand). A keyword is a parameter by
    ONNX's name for it: it becomes an attribute or a constant operand, as the opset wants. `outputs=n` asks for
    several results and returns a tuple. `b.target` is what the result must run on; `b.microsoft` makes ONNX Runtime's
    own operators, as in `b.microsoft.BiasGelu(x, bias)`.
    """

    def __init__(self, graph: Graph, inference: Inference, target: Target = PORTABLE) -> None:
        self.graph = graph
        self.target = target
        self.nodes: list[Node] = []
        self._inference = inference

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def make(*operands: Any, outputs: int = 1, **parameters: Any) -> Any:
            return self.apply(op_type, operands, outputs=outputs, parameters=parameters)

        return make

    @property
    def microsoft(self) -> _OfDomain:
        """The operators of ONNX Runtime's own domain; ask `target.runs` first."""
        return _OfDomain(self, MICROSOFT)

    def apply(
        self,
        op_type: str,
        operands: Sequence[Any],
        *,
        domain: str = "",
        outputs: int = 1,
        parameters: dict[str, Any] | None = None,
    ) -> Any:
        """Make an operator application.

        Raises:
            RuleError: the operator or a parameter does not exist in the graph's opset.
        """
        opset = self.graph.opsets.get(domain, 0)
        schema = operator(domain, op_type, opset)
        dtype = next((item.dtype for item in operands if isinstance(item, Value)), None)
        # ONNX Runtime has operators in the standard domain that ONNX does not have there, or not yet in that opset.
        if schema is None and domain == "" and not self.target.runs(op_type, dtype, ""):
            raise RuleError(f"{op_type} does not exist in opset {opset}; give the rule a range of opsets")
        values: list[Value | None] = [self._value(item, dtype) for item in operands]
        attributes: dict[str, Any] = {}
        for name, item in (parameters or {}).items():
            if item is None:
                continue
            if schema is None or name in schema.attributes:
                attributes[name] = _plain(item)
            else:
                self._place(schema, name, item, values, dtype)
        node = self.graph.make_node(op_type, values, results=outputs, domain=domain, attributes=attributes)
        self.nodes.append(node)
        self._inference.visit(node)
        return node.results if outputs != 1 else node.results[0]

    def constant(self, value: Any, dtype: DType | None = None) -> Value:
        """Make a constant of a number, nested list, array or `Tensor`."""
        if isinstance(value, Tensor):
            tensor = value
        elif isinstance(value, np.ndarray):
            tensor = Tensor.from_numpy(value if dtype is None else value.astype(dtype.numpy), dtype)
        elif dtype is None:
            raise RuleError("a constant of a number needs an element type; pass dtype")
        else:
            tensor = Tensor.of(value, dtype)
        node = self.graph.make_constant(tensor)
        self.nodes.append(node)
        return node.result

    def like(self, node: Node, *operands: Any, **parameters: Any) -> Any:
        """Make a node like another, attributes included, with other operands; keywords override attributes."""
        schema = node.schema
        attributes = {**node.attributes, **{name: _plain(item) for name, item in parameters.items()}}
        if schema is not None:
            attributes = {name: item for name, item in attributes.items() if name in schema.attributes}
        if node.bodies:
            raise RuleError(f"{node.op_type} has bodies; clone it instead")
        dtype = next((item.dtype for item in operands if isinstance(item, Value)), None)
        values = [self._value(item, dtype) for item in operands]
        copy = self.graph.make_node(
            node.op_type,
            values,
            results=len(node.results),
            domain=node.domain,
            attributes=attributes,
            overload=node.overload,
        )
        self.nodes.append(copy)
        self._inference.visit(copy)
        return copy.results if len(copy.results) != 1 else copy.results[0]

    def no(self, reason: str) -> Miss:
        """Refuse the match; the reason shows in `graphopt explain`."""
        return Miss(reason, 1 << 16)

    def _value(self, item: Any, dtype: DType | None) -> Value | None:
        if item is None or isinstance(item, Value):
            return item
        return self.constant(item, None if isinstance(item, (Tensor, np.ndarray)) else dtype)

    def _place(self, schema: Operator, name: str, item: Any, values: list[Value | None], dtype: DType | None) -> None:
        position = schema.input_index(name)
        if position is None:
            raise RuleError(f"{schema.op_type} of opset {schema.since} has no parameter '{name}'; see its page")
        if not isinstance(item, Value):
            allowed = schema.input_dtypes(position)
            first = values[0].dtype if values and values[0] is not None else None
            if first is not None and schema.inputs[position].type_variable == schema.inputs[0].type_variable:
                element: DType | None = first  # the bounds of a Clip are numbers of the type that is clipped
            else:
                element = DType.INT64 if DType.INT64 in allowed and _is_integral(item) else dtype
            if allowed and element not in allowed:
                element = min(allowed)
            item = self.constant(_listed(item), element)
        values.extend([None] * (position + 1 - len(values)))
        values[position] = item


class _OfDomain:
    """Makes operators of another domain than the standard one."""

    __slots__ = ("_builder", "_domain")

    def __init__(self, builder: Builder, domain: str) -> None:
        self._builder = builder
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def make(*operands: Any, outputs: int = 1, **parameters: Any) -> Any:
            return self._builder.apply(op_type, operands, domain=self._domain, outputs=outputs, parameters=parameters)

        return make


def _plain(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return tuple(_plain(part) for part in item)
    return item.item() if isinstance(item, np.generic) else item


def _listed(item: Any) -> Any:
    return list(item) if isinstance(item, tuple) else item


def _is_integral(item: Any) -> bool:
    parts = item if isinstance(item, (list, tuple)) else [item]
    return all(isinstance(part, (int, np.integer)) for part in parts)
