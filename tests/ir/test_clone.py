from __future__ import annotations

from ir_graphs import add, find, nested

from graphopt.ir import Form, Graph, Node, Value, check_model, clone_body, clone_node
from graphopt.onnxio import load, to_proto


def shape_of(graph: Graph) -> list[tuple[str, list[int]]]:
    """Operators and how many captures each body below them has."""
    return [(node.op_type, [len(body.captures()) for body in node.bodies.values()]) for node in graph.order()]


def test_a_node_with_bodies_is_copied_whole() -> None:
    graph = nested()
    owner = find(graph, "b").producer
    copy = clone_node(owner, graph, {}, rank=owner.rank)
    for value in copy.results:
        graph.rename(value, None)
    check_model(graph.model)
    for name, body in owner.bodies.items():
        other = copy.bodies[name]
        assert shape_of(other) == shape_of(body)
        assert other.owner is copy
        assert other.parent is graph
        assert [value.name for value in other.captures()] == [value.name for value in body.captures()]
        assert not {id(node) for node in other.all_nodes()} & {id(node) for node in body.all_nodes()}
    assert find(graph, "inner").const is not None
    inner = next(node for node in copy.bodies["then_branch"].constants())
    assert inner.tensor is find(graph, "inner").const
    graph.set_outputs([copy.result, graph.outputs[1]])
    load(to_proto(graph))
    graph.set_outputs([find(graph, "y"), graph.outputs[1]])
    graph.erase(copy)
    check_model(graph.model)


def test_a_copy_reads_what_it_is_told_to() -> None:
    graph = nested()
    owner, a, x = find(graph, "b").producer, find(graph, "a"), find(graph, "x")
    mapped: dict[Value, Value] = {a: x}
    copy = clone_node(owner, graph, mapped)
    assert mapped[owner.result] is copy.result
    deep = [node for node in copy.nested() if node.op_type in ("Add", "Neg", "Sub")]
    readers = [user for user, _ in x.uses if user in deep]
    assert [node.op_type for node in readers] == ["Add", "Neg", "Sub"]
    assert not any(user in deep for user, _ in a.uses)


def test_a_body_comes_into_the_graph_around() -> None:
    graph = nested()
    owner = find(graph, "b").producer
    values = clone_body(owner.bodies["then_branch"], graph, {}, rank=owner.rank)
    assert len(values) == 1
    assert values[0].producer.graph is graph
    assert values[0].name is None
    graph.replace_uses(owner.result, values[0])
    graph.erase(owner)
    check_model(graph.model)
    assert [node.op_type for node in graph.order()] == [
        "Relu",
        "Split",
        "Add",
        "Mul",
        "Concat",
        "F",
        "Add",
        "Sub",
        "Exp",
    ]
    proto = to_proto(graph)
    assert ["b"] in [node.output for node in proto.graph.node if node.op_type == "Mul"]


def test_names_that_are_free_stay() -> None:
    graph = nested()
    owner = find(graph, "b").producer
    taken = {"p"}
    (value,) = clone_body(owner.bodies["then_branch"], graph, {}, rank=owner.rank, taken=taken)
    assert value.name == "then_out"
    (first,) = (operand for operand in value.producer.operands if operand is not None and operand.name != "inner")
    assert first.name is None


def test_inputs_are_replaced() -> None:
    graph = nested()
    body = next(body for body in graph.bodies_inside() if body.name == "loop_body")
    around = body.parent
    assert around is not None
    numbers = [find(graph, "n"), find(graph, "c"), find(graph, "q")]
    values = clone_body(body, around, dict(zip(body.inputs, numbers, strict=True)), rank=1)
    assert len(values) == 2
    check_model(graph.model)
    assert values[0].producer.operands == (find(graph, "c"),)


def test_an_input_returned_directly_is_its_replacement() -> None:
    graph = nested()
    owner = graph.make_node("If", [find(graph, "c")])
    body = graph.make_body(owner, "then_branch")
    body.set_outputs([find(graph, "x"), find(graph, "x")])
    graph.insert(owner)
    assert clone_body(body, graph, {}, rank=1) == [find(graph, "x"), find(graph, "x")]


def test_doc_strings_and_metadata_come_along() -> None:
    graph = nested()
    proto = to_proto(graph)
    proto.graph.node[0].doc_string = "said of it"
    proto.graph.node[0].metadata_props.add(key="from", value="somewhere")
    graph = load(proto)
    node = graph.order()[0]
    copy = clone_node(node, graph, {})
    for value in copy.results:
        graph.rename(value, None)
    graph.set_operand(find(graph, "dead").producer, 0, copy.result)
    written = [node for node in to_proto(graph).graph.node if node.op_type == "Relu"]
    assert [node.doc_string for node in written] == ["said of it"] * 2
    assert [len(node.metadata_props) for node in written] == [1, 1]
    assert len({node.output[0] for node in written}) == 2


def test_an_initializer_copied_leaves_its_message_behind() -> None:
    graph = nested()
    w = find(graph, "w").producer
    assert w.origin is not None
    assert w.origin.form is Form.TENSOR
    copy: Node = clone_node(w, graph, {})
    assert copy.origin is None
    assert copy.tensor is w.tensor
    graph.rename(copy.result, None)
    add(graph, "Neg", copy.result)
    check_model(graph.model)
