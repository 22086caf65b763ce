from __future__ import annotations

import pytest
from ir_graphs import add, constant, empty, find, floats, nested

from graphopt.ir import NOT_CONSTANT
from graphopt.schema import RefAttribute
from graphopt.tensors import DType, Tensor


@pytest.mark.parametrize(
    ("opset", "attributes", "operands", "expected"),
    [
        (12, {"axes": [1, 2]}, [], (1, 2)),
        (13, {}, [[1, 2]], (1, 2)),
        (12, {}, [], None),
        (13, {}, [], None),
    ],
)
def test_a_parameter_reads_alike_as_attribute_and_as_operand(
    opset: int, attributes: dict[str, object], operands: list[list[int]], expected: object
) -> None:
    graph = empty(opset)
    extra = [graph.add_constant(Tensor.of(numbers, DType.INT64)) for numbers in operands]
    node = add(graph, "ReduceSum", floats(graph), *extra, **attributes).producer
    assert node.param("axes") == expected
    assert node.param("keepdims") == 1
    assert node.param("nothing") is None


def test_parameters_that_are_operands() -> None:
    graph = empty()
    x = floats(graph)
    low = graph.add_constant(Tensor.of(0.5, DType.FLOAT))
    clip = add(graph, "Clip", x, low, x).producer
    assert clip.param("min") == 0.5
    assert clip.param("max") is NOT_CONSTANT
    assert repr(NOT_CONSTANT) == "NOT_CONSTANT"
    assert clip.param_operand("max") == 2
    assert clip.param_operand("nothing") is None
    top = add(graph, "TopK", x, graph.add_constant(Tensor.of([3], DType.INT64))).producer
    assert top.param("k") == top.param("K") == (3,)
    long = graph.add_constant(Tensor.of([0] * 70_000, DType.INT64))
    assert add(graph, "Reshape", x, long).producer.param("shape") is NOT_CONSTANT


def test_an_attribute_the_caller_gives_is_not_constant() -> None:
    graph = empty()
    node = graph.make_node("LeakyRelu", [floats(graph)], attributes={"alpha": RefAttribute("slope", 1)})
    graph.insert(node)
    assert node.param("alpha") is NOT_CONSTANT


def test_operators_nobody_knows_have_only_their_attributes() -> None:
    graph = empty()
    node = graph.make_node("Odd", [floats(graph)], domain="mine", attributes={"a": 1})
    assert node.opset == 0
    graph.insert(node)
    assert node.param("a") == 1
    assert node.param("b") is None
    assert node.param_operand("a") is None
    assert node.schema is None
    assert node.opset == 1  # a domain that is new to a model is imported with its first node


def test_an_operator_that_meant_something_else_is_another() -> None:
    for opset, expected in ((12, False), (13, True)):
        graph = empty(opset)
        node = add(graph, "Softmax", floats(graph)).producer
        assert node.is_op("Softmax") is expected
        assert not node.is_op("Relu")
        assert not node.is_op("Softmax", "mine")


def test_one_line_of_text() -> None:
    graph = empty()
    x, c = floats(graph), constant(graph, 1, 2)
    y = add(graph, "Clip", x, None, c)
    graph.rename(y, "y")
    assert repr(y.producer) == f"y = Clip(x, , %{c.producer.serial})"
    split = graph.make_node("Split", [x], results=2, attributes={"axis": 0}, domain="mine")
    assert repr(split) == f"%{split.serial}, %{split.serial}.1 = mine.Split<axis=0>(x)"
    assert repr(x.producer) == "input x"
    assert repr(c.producer).startswith("constant %")
    graph.set_outputs([y])
    assert repr(graph.return_node) == "return y"
    assert repr(x) == "x: float[2]"
    owner = find(nested(), "b").producer
    assert repr(owner) == "b = If<then_branch={…}, else_branch={…}>(c)"


def test_nodes_hash_by_their_number_and_are_equal_to_themselves_only() -> None:
    first, second = nested(), nested()
    a, b = first.nodes()[0], second.nodes()[0]
    assert hash(a) == hash(b) == a.serial
    assert a != b


def test_the_only_result() -> None:
    graph = empty()
    split = graph.make_node("Split", [floats(graph)], results=2)
    with pytest.raises(ValueError, match="too many values"):
        _ = split.result
    assert split.types() == (None, None)


def test_what_is_as_read() -> None:
    graph = nested()
    split, owner, p = (find(graph, name).producer for name in ("s", "b", "p"))
    assert split.is_intact
    assert owner.is_intact
    assert p.graph is not None
    graph.set_attribute(split, "axis", 1)
    assert not split.is_intact
    assert not split.is_attribute_as_read("axis")
    graph.set_attribute(split, "axis", 0)
    assert split.is_intact
    p.graph.set_operands(p, [p.operands[1], p.operands[0]])
    assert p.is_intact
    assert not owner.is_intact
    assert not add(graph, "Relu", find(graph, "x")).producer.is_intact
