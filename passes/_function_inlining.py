"""Putting the body of a local function in the place of one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from graphopt import Context, DType, Function, Graph, Kind, Node, Tensor, Value, clone_node, schema
from passes._calls import function_of
from passes._inlining import TakenNames

_RUNTIME_DOMAINS = ("", "ai.onnx.", "com.microsoft", "com.ms.")
"""Domains in which a runtime has kernels, which it prefers to a function of the same name."""
_MAX_NESTING = 31
"""Bodies inside one another; protobuf and the runtime refuse more."""
_CONSTANTS = {
    "value_float": DType.FLOAT,
    "value_floats": DType.FLOAT,
    "value_int": DType.INT64,
    "value_ints": DType.INT64,
    "value_string": DType.STRING,
    "value_strings": DType.STRING,
}
_GRAPH_KINDS = (5, 10)
"""`AttributeProto.GRAPH` and `GRAPHS`."""


def obstacle(call: Node, function: Function, context: Context) -> str:
    """Why a call is not replaced by the function's body, "" if it is."""
    if call.is_pinned or context.keeps(call):
        return "the call is on the keep-list"
    if _has_kernel(function.domain):
        return "the runtime may have a kernel of this name"
    if call.bodies:
        return "it is given a graph"
    body = function.graph
    if len(call.operands) > len(body.inputs) or len(call.results) > len(body.outputs):
        return "it does not fit the call"
    for node in _nodes(body):
        if node.is_pinned or context.keeps(node):
            return f"'{node.name or node.op_type}' in it is on the keep-list"
        reason = _difference(node, call) or _unresolved(node, call, function)
        if reason:
            return reason
    if _depth(call.graph) + _height(body) > _MAX_NESTING:
        return f"bodies would nest deeper than {_MAX_NESTING}"
    if _returns_omitted(call, function):
        return "it returns an operand that the call leaves out"
    return ""


def size_of(function: Function) -> int:
    """The number of operators in a function, bodies included."""
    return sum(scope.operator_count for scope in (function.graph, *function.graph.bodies_inside()))


def _has_kernel(domain: str) -> bool:
    return domain in ("", "ai.onnx") or domain.startswith(_RUNTIME_DOMAINS[1:])


def _nodes(graph: Graph) -> Iterator[Node]:
    for scope in (graph, *graph.bodies_inside()):
        yield from (node for node in scope.all_nodes() if node.kind is not Kind.RETURN)


def _difference(node: Node, call: Node) -> str:
    """Where an operator of the function means, or may mean, something else at the call."""
    graph = call.graph
    assert graph is not None
    if not node.is_operator or function_of(node, graph.model) is not None or node.domain not in graph.opsets:
        return ""
    here, there = graph.opsets[node.domain], node.opset
    if here == there:
        return ""
    ours, theirs = (schema.operator(node.domain, node.op_type, opset) for opset in (here, there))
    if ours is not None and theirs is not None and ours.since == theirs.since:
        return ""
    return f"{node.op_type} of opset {there} may differ from that of opset {here}; convert the model to one opset"


def _unresolved(node: Node, call: Node, function: Function) -> str:
    """What of a node's attributes cannot be taken from the call."""
    for name, value in node.attributes.items():
        if not isinstance(value, schema.RefAttribute):
            continue
        if value.kind in _GRAPH_KINDS:
            return f"'{name}' of {node.op_type} in it is a graph the caller gives"
        given = _given(value.name, call, function)
        if isinstance(given, schema.UnreadAttribute) and name != value.name:
            return f"'{name}' of {node.op_type} in it is given by an attribute of another name"
        if isinstance(given, schema.RefAttribute) and value.name in function.attribute_defaults:
            return f"whether '{value.name}' is given depends on the caller of the function around it"
        if given is None and node.is_op("Constant"):
            return f"the call does not give '{value.name}', which a constant in it holds"
    return ""


def _given(name: str, call: Node, function: Function) -> Any:
    """What a call says an attribute of the function is, its default, or None."""
    return call.attributes.get(name, function.attribute_defaults.get(name))


def _depth(graph: Graph | None) -> int:
    depth = 0
    while graph is not None and graph.owner is not None:
        depth, graph = depth + 1, graph.parent
    return depth


def _height(graph: Graph) -> int:
    """How deep bodies nest in a graph."""
    bodies = [body for node in graph.nodes() for body in node.bodies.values()]
    return 1 + max(map(_height, bodies)) if bodies else 0


def _returns_omitted(call: Node, function: Function) -> bool:
    """True if a graph would have to return nothing: an operand is left out, and handed on as a result."""
    body = function.graph
    omitted = [value for index, value in enumerate(body.inputs) if call.operand(index) is None]
    for value in omitted:
        for user, index in value.uses:
            if user.kind is Kind.RETURN and (
                user is not body.return_node or (index < len(call.results) and call.results[index].uses)
            ):
                return True
    return False


# --- inlining


def inline_call(call: Node, function: Function, context: Context, names: TakenNames) -> list[Node]:
    """Replace a call that has no obstacle by copies of the function's nodes.

    Values and nodes are called like the call and what they are in the function, `call/inner`.

    Returns:
        The copies, those in bodies not listed.
    """
    graph, body = call.graph, function.graph
    assert graph is not None
    prefix = call.name or function.name
    operands = [call.operand(index) for index in range(len(body.inputs))]
    # A value that stands for nothing leaves the operand out.
    mapped = cast("dict[Value, Value]", dict(zip(body.inputs, operands, strict=True)))
    copies: list[Node] = []
    with context.rewrite(graph):
        _import_opsets(graph, body)
        for node in (*body.constants(), *body.order()):
            copy = clone_node(node, graph, mapped, rank=call.rank)
            _resolve(copy, call, function)
            for inner in copy.nested():
                _resolve(inner, call, function)
            made = _as_constant(copy, node, mapped)
            if made is copy:
                copies.append(copy)
            for value in made.results:
                value.name = names.fresh(f"{prefix}/{value.name}") if value.name else value.name
            made.name = f"{prefix}/{node.name}" if node.name else ""
            for inner in [inner for inner in copy.nested() if inner.is_op("Constant")]:
                _as_constant(inner, inner, {})
            context.inference.visit(made)
        _hand_over(call, [mapped.get(value, value) for value in body.outputs])
        graph.erase(call)
    return copies


def _import_opsets(graph: Graph, body: Graph) -> None:
    outermost = graph
    while outermost.parent is not None:
        outermost = outermost.parent
    for domain in dict.fromkeys(node.domain for node in _nodes(body) if node.is_operator):
        if domain not in outermost.opsets and domain in body.opsets:
            outermost.set_opset(domain, body.opsets[domain])


def _resolve(node: Node, call: Node, function: Function) -> None:
    """Fill in the attributes that the caller gives, and forget operands left out at the end."""
    graph = node.graph
    assert graph is not None
    for name, value in list(node.attributes.items()):
        if isinstance(value, schema.RefAttribute):
            graph.set_attribute(node, name, _given(value.name, call, function))
    operands = list(node.operands)
    least = len(operands) if node.schema is None else node.schema.min_inputs
    while len(operands) > least and operands[-1] is None:
        operands.pop()
    graph.set_operands(node, operands)


def _as_constant(copy: Node, node: Node, mapped: dict[Value, Value]) -> Node:
    """The constant that a `Constant` operator is once its attribute is known; any other node itself."""
    graph = copy.graph
    if graph is None or not copy.is_op("Constant") or len(copy.attributes) != 1:
        return copy
    ((name, value),) = copy.attributes.items()
    if isinstance(value, Tensor) and name == "value":
        tensor = value
    elif name in _CONSTANTS and isinstance(value, (int, float, str, bytes, tuple)):
        dtype = _CONSTANTS[name]
        tensor = Tensor.of(np.array(value, dtype=dtype.numpy), dtype)
    else:
        return copy
    constant = graph.make_constant(tensor, copy.result.name)
    constant.stored_as_node, constant.name = True, copy.name
    graph.insert(constant, rank=copy.rank)
    graph.replace_uses(copy.result, constant.result)
    graph.erase(copy)
    mapped[node.result] = constant.result
    return constant


def _hand_over(call: Node, values: list[Value]) -> None:
    """Let readers of the call read what the function returns, which takes the names that readers know."""
    graph = call.graph
    assert graph is not None
    operands = dict.fromkeys(value for value in call.operands if value is not None)
    named: dict[Value, None] = {}
    for old, new in zip(call.results, values, strict=False):
        if not old.uses:
            continue
        if new.type is None:
            graph.retype(new, old.type)
        if old.name and new not in operands and new not in named and new.producer.graph is graph:
            named[new] = None
            graph.rename(new, None)
        graph.replace_uses(old, new)
