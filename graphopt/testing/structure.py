"""Equality of graphs up to names and order: what an example's `after` is compared by."""

from __future__ import annotations

import hashlib
from typing import Any

from graphopt.ir import Graph, Kind, Node, Value
from graphopt.tensors import Tensor


def same_structure(left: Graph, right: Graph) -> bool:
    """True if two graphs compute the same outputs by the same operators from the same inputs."""
    return structure(left) == structure(right)


def structure(graph: Graph) -> str:
    """A digest that graphs share exactly if they are equal up to names, order and unused constants."""
    return _structure(graph, {}, 0)


def _structure(graph: Graph, outer: dict[Value, str], depth: int) -> str:
    """Every value is known by a digest of how it is computed, so neither names nor the order of nodes matter."""
    known = dict(outer)
    for position, value in enumerate(graph.inputs):
        known[value] = _digest("input", depth, position, _plain(value.producer.default))
    operators = []
    for node in graph.sorted_nodes():
        if node.kind is Kind.CONSTANT:
            known[node.result] = _digest("constant", _plain(node.tensor))
        elif node.kind is Kind.OPERATOR:
            operators.append(_node_digest(node, known, depth))
            for value in node.results:
                known[value] = _digest(operators[-1], value.index)
    return _digest(len(graph.inputs), [known[value] for value in graph.outputs], sorted(operators))


def _node_digest(node: Node, known: dict[Value, str], depth: int) -> str:
    schema = node.schema
    attributes = {**(schema.defaults if schema else {}), **node.attributes}
    return _digest(
        node.domain,
        node.op_type,
        node.overload,
        [None if value is None else known[value] for value in node.operands],
        sorted((name, _plain(value)) for name, value in attributes.items()),
        [bool(value.uses) for value in node.results] if len(node.results) > 1 else [],
        [(name, _structure(body, known, depth + 1)) for name, body in sorted(node.bodies.items())],
    )


def _plain(value: Any) -> str:
    if isinstance(value, Tensor):
        data = value.numpy().tobytes() if value.dtype.bits else repr(value.tolist()).encode()
        return f"{int(value.dtype)}{value.shape}{hashlib.sha256(data).hexdigest()}"
    return repr(value)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
