from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import networkx as nx
import pytest
from ir_graphs import add, constant, empty, find, floats, nested

from graphopt.errors import EditError
from graphopt.ir import Graph

_CHILD = """
import hashlib, sys
sys.path[:0] = sys.argv[1:3]
import networkx as nx
from ir_graphs import add, find, nested
from graphopt.ir import clone_body
from graphopt.onnxio import write_model
graph = nested()
owner = find(graph, "b").producer
clone_body(owner.bodies["then_branch"], graph, {}, rank=owner.rank)
for node in graph.nodes():
    graph.replace_uses(node.results[0], add(graph, "Identity", find(graph, "x")))
reached = [node.serial for node in nx.descendants(graph.nx, find(graph, "x").producer)]
order = [node.serial for scope in graph.model.graphs() for node in scope.sorted_nodes()]
print(hashlib.sha256(write_model(graph.model).to_bytes()).hexdigest(), reached, order)
"""


def test_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1", "77"):
        path = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, *path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_file_in_order_stays_in_order() -> None:
    graph = nested()
    assert [node.op_type for node in graph.order()] == ["Relu", "Split", "If", "Concat", "F", "Add", "Sub", "Exp"]
    assert graph.sorted_nodes()[-1] is graph.return_node


def test_new_nodes_stand_where_they_were_put() -> None:
    graph = nested()
    a = find(graph, "a").producer
    node = graph.make_node("Abs", [find(graph, "x")])
    graph.insert(node, rank=a.rank)
    last = add(graph, "Neg", find(graph, "x"))
    assert [node.op_type for node in graph.order()[:2]] == ["Relu", "Abs"]
    assert graph.order()[-1] is last.producer


def test_the_short_way_gives_the_order_of_the_long_one() -> None:
    """Where sorting by rank is a topological order, networkx finds the same one."""
    graph = nested()
    for scope in graph.model.graphs():
        ordered = nx.lexicographical_topological_sort(scope.nx, key=lambda node: (node.rank, node.serial))
        assert scope.sorted_nodes() == list(ordered)


def test_nodes_move_behind_what_they_read() -> None:
    graph = empty()
    x = floats(graph)
    first, second = add(graph, "Relu", x), add(graph, "Neg", x)
    third = add(graph, "Abs", x)
    graph.set_operand(first.producer, 0, third)
    assert [node.op_type for node in graph.order()] == ["Neg", "Abs", "Relu"]
    assert graph.order()[0] is second.producer


def test_a_node_comes_after_what_its_bodies_read() -> None:
    graph = nested()
    late = add(graph, "Abs", find(graph, "x"))
    p = find(graph, "p").producer
    assert p.graph is not None
    p.graph.set_operand(p, 1, late)
    order = graph.order()
    assert order.index(late.producer) < order.index(find(graph, "b").producer)


def test_the_order_is_remembered_until_something_moves() -> None:
    graph = nested()
    first = graph.sorted_nodes()
    assert graph.sorted_nodes() is not first  # the caller's to change
    first.clear()
    assert graph.sorted_nodes()
    q = find(graph, "q").producer
    assert q.graph is not None
    q.graph.set_operand(q, 0, constant(graph, 1, 2))
    assert len(graph.sorted_nodes()) == len(graph.all_nodes())


def test_cycles_are_named() -> None:
    graph = nested()
    a, b = find(graph, "a"), find(graph, "b")
    a.producer.name = "the_relu"
    graph.set_operand(a.producer, 0, b)
    with pytest.raises(EditError, match=r"(the_relu -> If|If -> the_relu); make one"):
        graph.sorted_nodes()
    assert {node.op_type for node in graph.find_cycle()} == {"Relu", "If"}
    graph.set_operand(a.producer, 0, find(graph, "x"))
    assert graph.find_cycle() == []


def chain(length: int) -> Graph:
    graph = empty()
    value = floats(graph)
    for _ in range(length):
        value = add(graph, "Relu", value)
    graph.set_outputs([value])
    return graph


def test_depth_is_no_recursion() -> None:
    graph = chain(5000)
    assert len(graph.order()) == 5000
    assert hashlib.sha256(repr(graph.order()).encode()).hexdigest()
