"""Graphs for the tests of the IR, and a full account of what a model holds."""

from __future__ import annotations

from typing import Any

from onnx import parser

from graphopt.ir import Graph, Model, Node, TensorType, Value
from graphopt.onnxio import load
from graphopt.tensors import DType, Tensor

FLOATS = TensorType(DType.FLOAT, (2,))
NESTED = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
main (float[2] x, bool c, int64 n) => (float[2] y, float[2] z)
<float[2] w = {1.0, 2.0}, float[2] spare = {3.0, 4.0}>
{
    a = Relu(x)
    k = Constant<value = float[2] {5.0, 6.0}>()
    s, t = Split<axis = 0>(a)
    b = If (c) <
        then_branch = then_graph () => (float[2] then_out) <float[2] inner = {7.0, 8.0}> {
            p = Add(a, w)
            then_out = Mul(p, inner)
        },
        else_branch = else_graph () => (float[2] else_out) {
            q = Neg(a)
            else_out = Loop (n, c, q) <
                body = loop_body (int64 i, bool going, float[2] state) => (bool going_out, float[2] state_out) {
                going_out = Identity(going)
                r = Add(state, k)
                state_out = If (going) <
                    then_branch = deep_then () => (float[2] deep_out) { deep_out = Sub(r, a) },
                    else_branch = deep_else () => (float[2] deep_else_out) { deep_else_out = Identity(w) }
                >
            }
            >
        }
    >
    joined = Concat<axis = 0>(s, t)
    d = local.F(b, joined)
    y = Add(d, w)
    z = Sub(d, d)
    dead = Exp(a)
}
<domain: "local", opset_import: ["" : 17]>
F (u, v) => (o)
{
    m = Mul(u, v)
    o = Neg(m)
}
"""


def nested() -> Graph:
    """A graph with bodies three deep, captures, a local function and something unused."""
    return load(parser.parse_model(NESTED))


def empty(opset: int = 17) -> Graph:
    """An empty main graph."""
    return Model(8, {"": opset}).graph


def add(graph: Graph, op_type: str, *operands: Value | None, results: int = 1, **attributes: Any) -> Value:
    """Insert an operator and return its first result."""
    node = graph.make_node(op_type, operands, results=results, attributes=attributes)
    graph.insert(node)
    return node.results[0]


def floats(graph: Graph, name: str = "x") -> Value:
    """Add an input."""
    return graph.add_input(name, FLOATS)


def constant(graph: Graph, *numbers: float) -> Value:
    """Add a constant."""
    return graph.add_constant(Tensor.of(list(numbers), DType.FLOAT))


def find(graph: Graph, name: str) -> Value:
    """The value of that name, in the graph or a body of it."""
    for scope in (graph, *graph.bodies_inside()):
        for node in scope.all_nodes():
            for value in node.results:
                if value.name == name:
                    return value
    raise LookupError(name)


def account(model: Model) -> dict[str, Any]:
    """Everything a model holds, for comparison: nodes by serial number, uses as sets."""
    return {
        "opsets": dict(model.graph.opsets),
        "functions": {key: _of_graph(function.graph) for key, function in model.functions.items()},
        "main": _of_graph(model.graph),
    }


def _of_graph(graph: Graph) -> dict[str, Any]:
    return {
        "inputs": [value.name for value in graph.inputs],
        "opsets": dict(graph.opsets),
        "details": {key: repr(value) for key, value in graph.details.items()},
        "changes": graph.changes,
        "use_count": graph.use_count,
        "kinds": {kind: [node.serial for node in graph.of_kind(kind[1], kind[0])] for kind in sorted(graph.kinds)},
        "edges": sorted((a.serial, b.serial, u.serial, i) for a, b, (u, i) in graph.nx.edges(keys=True)),
        "order": [node.serial for node in graph.sorted_nodes()],
        "nodes": [_of_node(node) for node in graph.all_nodes()],
    }


def _of_node(node: Node) -> dict[str, Any]:
    return {
        "serial": node.serial,
        "what": (node.kind, node.domain, node.op_type, node.name, node.rank, node.stored_as_node, id(node.tensor)),
        "operands": [None if value is None else (value.producer.serial, value.index) for value in node.operands],
        "attributes": {name: (id(value), repr(value)) for name, value in node.attributes.items()},
        "results": [
            (value.index, value.name, value.type, value.declared, sorted((user.serial, i) for user, i in value.uses))
            for value in node.results
        ],
        "bodies": {name: _of_graph(body) for name, body in node.bodies.items()},
    }
