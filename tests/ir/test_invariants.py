from __future__ import annotations

from collections.abc import Callable

import pytest
from ir_graphs import add, empty, find, floats, nested

from graphopt.errors import InvariantViolationError
from graphopt.ir import Graph, TensorType, check_graph, check_model
from graphopt.tensors import DType


def forget_a_use(graph: Graph) -> None:
    del find(graph, "a").uses[find(graph, "dead").producer, 0]


def invent_a_use(graph: Graph) -> None:
    find(graph, "a").uses[find(graph, "y").producer, 0] = None


def lose_an_edge(graph: Graph) -> None:
    a, owner, deep = find(graph, "a"), find(graph, "b").producer, find(graph, "deep_out").producer
    graph._edges.remove_edge(a.producer, owner, key=(deep, 1))


def add_an_edge(graph: Graph) -> None:
    graph._edges.add_edge(find(graph, "a").producer, graph.return_node, key="?")


def misplace_an_edge(graph: Graph) -> None:
    lose_an_edge(graph)
    add_an_edge(graph)


def read_what_is_invisible(graph: Graph) -> None:
    y, p = find(graph, "y").producer, find(graph, "p")
    del find(graph, "d").uses[y, 0]
    y._operands = (p, y._operands[1])
    p.uses[y, 0] = None


def close_a_circle(graph: Graph) -> None:
    graph.set_operand(find(graph, "a").producer, 0, find(graph, "b"))


def name_twice(graph: Graph) -> None:
    graph.rename(find(graph, "a"), "y")


def give_too_much(graph: Graph) -> None:
    x = find(graph, "x")
    add(graph, "Relu", x, x)


def give_too_little(graph: Graph) -> None:
    add(graph, "Add", find(graph, "x"))


def leave_out_what_is_required(graph: Graph) -> None:
    add(graph, "Add", None, find(graph, "x"))


def want_too_many_results(graph: Graph) -> None:
    add(graph, "Relu", find(graph, "x"), results=2)


def mistype_a_constant(graph: Graph) -> None:
    graph.retype(find(graph, "w"), TensorType(DType.FLOAT, (3,)))


@pytest.mark.parametrize(
    ("number", "breakage"),
    [
        (1, forget_a_use),
        (1, invent_a_use),
        (2, lose_an_edge),
        (2, add_an_edge),
        (2, misplace_an_edge),
        (3, read_what_is_invisible),
        (4, close_a_circle),
        (5, name_twice),
        (6, give_too_much),
        (6, give_too_little),
        (6, leave_out_what_is_required),
        (6, want_too_many_results),
        (7, mistype_a_constant),
    ],
)
def test_what_is_broken_is_found(number: int, breakage: Callable[[Graph], None]) -> None:
    graph = nested()
    check_model(graph.model)
    breakage(graph)
    with pytest.raises(InvariantViolationError, match=f"invariant {number} is broken") as caught:
        check_graph(graph)
    assert caught.value.number == number


def test_only_the_nodes_asked_for_are_looked_at() -> None:
    graph = empty()
    x = floats(graph)
    wrong = add(graph, "Relu", x, x).producer
    check_graph(graph, [x.producer])
    with pytest.raises(InvariantViolationError):
        check_graph(graph, [wrong])


def test_a_cycle_through_a_body_is_found_from_inside() -> None:
    graph = nested()
    p = find(graph, "p").producer
    y = find(graph, "y")
    body = p.graph
    assert body is not None
    body.set_operand(p, 0, y)
    with pytest.raises(InvariantViolationError, match="graph 'main' has a cycle"):
        check_graph(body, [p])


def test_what_the_file_brought_is_the_files_affair() -> None:
    from onnx import parser

    from graphopt.onnxio import load

    graph = load(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (y) { y = Relu(x, x) }')
    )
    check_model(graph.model)
