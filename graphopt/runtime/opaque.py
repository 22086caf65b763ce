"""Operators that nothing here can run: they are cut out on both sides, and the rest is compared around them.

A cut node's results become inputs of the model, its operands become outputs. If all of those agree on both sides, and
the node itself is the same on both, then the models agree whatever the node does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from graphopt.errors import ExecutionError, KernelMissingError, ModelRefusedError
from graphopt.runtime.sources import ModelSource

# How the runtime names an operator that it does not know or has no kernel for.
_NAMED = (
    re.compile(r"Fatal error: (?P<domain>[\w.]*):(?P<op>[^(]+)\(-?\d+\) is not a registered function"),
    re.compile(r'In Node, \("[^"]*", (?P<op>[^,]+), "(?P<domain>[^"]*)", -?\d+\)'),
    re.compile(r"Could not find an implementation for (?P<op>[^(]+)\(\d+\) node"),
    re.compile(r"Failed to find kernel for (?:(?P<domain>[\w.]+)\.)?(?P<op>\w+)\(\d+\)"),
)
_MOST_KINDS = 12
_MOST_BYTES = 1 << 29
_PREFIX = "graphopt_operand_"

Kind = tuple[str | None, str]


class OpaqueChangedError(ExecutionError):
    """A node that nothing can run is not the same on both sides."""

    reason = "opaque node changed"


def named_kind(error: ExecutionError) -> Kind | None:
    """The (domain, operator) that an error of loading names; the domain is None where the runtime leaves it out."""
    for pattern in _NAMED:
        match = pattern.search(str(error))
        if match:
            return match.groupdict().get("domain"), match["op"].strip()
    return None


def cut_out(
    original: ModelSource, rewritten: ModelSource, error: ExecutionError, loads: Callable[[ModelSource], None]
) -> tuple[ModelSource, ModelSource, list[str]] | None:
    """Cut operators out of both models until the original loads.

    Args:
        original: The original.
        rewritten: The rewritten model.
        error: Why the original does not load.
        loads: Loads a model and raises what the runtime says.

    Returns:
        (original, rewritten, names of the cut nodes); None where cutting does not help.

    Raises:
        OpaqueChangedError: A cut node is missing or altered in the rewritten model.
    """
    if original.nbytes > _MOST_BYTES or not isinstance(error, ModelRefusedError | KernelMissingError):
        return None
    kinds: list[Kind] = []
    current: ExecutionError = error
    for _ in range(_MOST_KINDS):
        kind = named_kind(current)
        if kind is None or kind in kinds:
            return None
        kinds.append(kind)
        try:
            left = _Cut(original, kinds)
        except (ValueError, OSError):
            return None
        if not left.nodes:
            return None
        source = left.source(original.label)
        try:
            loads(source)
        except (ModelRefusedError, KernelMissingError) as next_error:
            current = next_error
            continue
        right = _Cut(rewritten, kinds)
        _same_nodes(left, right)
        return source, right.source(rewritten.label), list(left.nodes)
    return None


class _Cut:
    """One model with the nodes of some kinds cut out of its main graph."""

    def __init__(self, source: ModelSource, kinds: list[Kind]) -> None:
        import onnx

        if source.path is not None:
            self.proto = onnx.load(source.path)
        else:
            self.proto = onnx.ModelProto.FromString(source.data or b"")
        functions = {(function.domain, function.name): function for function in self.proto.functions}
        graph = self.proto.graph
        cut = [node for node in graph.node if _holds(node, kinds, functions, 0)]
        self.nodes = {next((name for name in node.output if name), node.name): node for node in cut}
        gone = {id(node) for node in cut}
        kept = [node for node in graph.node if id(node) not in gone]
        types = {value.name: value for value in (*graph.value_info, *graph.output)}
        self._cut(graph, cut, kept, types)

    def _cut(self, graph: Any, cut: list[Any], kept: list[Any], types: dict[str, Any]) -> None:
        from onnx import TensorProto, helper

        made = [name for node in cut for name in node.output if name]
        outputs = [value for value in graph.output if value.name not in made]
        probes = []
        for key, node in self.nodes.items():
            for place, name in enumerate(node.input):
                if name and name not in made:
                    probes.append(helper.make_node("Identity", [name], [f"{_PREFIX}{key}_{place}"]))
        copies = [type(node).FromString(node.SerializeToString()) for node in (*kept, *probes)]
        self.nodes = {key: type(node).FromString(node.SerializeToString()) for key, node in self.nodes.items()}
        inputs = []
        for name in made:
            known = types.get(name)
            if known is not None and known.type.WhichOneof("value"):
                inputs.append(type(known).FromString(known.SerializeToString()))
            else:
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        outputs = [type(value).FromString(value.SerializeToString()) for value in outputs]
        outputs += [helper.make_empty_tensor_value_info(probe.output[0]) for probe in probes]
        info = [
            type(value).FromString(value.SerializeToString()) for value in graph.value_info if value.name not in made
        ]
        del graph.node[:], graph.output[:], graph.value_info[:]
        graph.node.extend(copies)
        graph.output.extend(outputs)
        graph.value_info.extend(info)
        graph.input.extend(inputs)

    def source(self, label: str) -> ModelSource:
        """The cut model."""
        return ModelSource(label, data=self.proto.SerializeToString())


def _holds(node: Any, kinds: list[Kind], functions: dict[tuple[str, str], Any], depth: int) -> bool:
    """True for a node of one of the kinds, and for one whose bodies or function hold such a node."""
    if any(node.op_type == op and domain in (None, node.domain) for domain, op in kinds):
        return True
    inner = [item for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) for item in graph.node]
    function = functions.get((node.domain, node.op_type))
    if function is not None and depth < 50:
        inner += list(function.node)
    return any(_holds(item, kinds, functions, depth + 1) for item in inner)


def _same_nodes(left: _Cut, right: _Cut) -> None:
    for key, node in left.nodes.items():
        other = right.nodes.get(key)
        if other is None:
            raise OpaqueChangedError(
                f"{node.op_type} that makes {key!r} cannot be run, and nothing in the rewritten model makes that value"
            )
        if _mark(node) != _mark(other):
            raise OpaqueChangedError(
                f"{node.op_type} that makes {key!r} cannot be run and was altered in the rewritten model"
            )


def _mark(node: Any) -> tuple[Any, ...]:
    """What must be the same of a node: all but its name and the names of its operands, which are compared by value."""
    attributes = sorted((attribute.name, attribute.SerializeToString()) for attribute in node.attribute)
    return node.op_type, node.domain, tuple(map(bool, node.input)), tuple(node.output), tuple(attributes)
