from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_graphs import FLOATS, account, add, constant, find, nested

from graphopt.errors import EditError
from graphopt.ir import Graph, Journal, Kind, Node, TensorType, Value, check_model, clone_body, clone_node
from graphopt.onnxio import load, write_model
from graphopt.tensors import DType, Tensor


class Editor:
    """Makes edits at random, of every kind, in every graph of a model."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.main = graph
        self.random = random.Random(seed)
        self.count = 0
        self.erased: list[tuple[Graph, Node]] = []
        self.kept = dict(graph.model.functions)
        self.edits: list[Callable[[], None]] = [
            self.insert, self.insert, self.insert_if, self.insert_constant, self.erase, self.erase, self.rewire,
            self.rewire, self.resize, self.attribute, self.retype, self.rename, self.replace, self.store, self.narrow,
            self.opset, self.detail, self.clone, self.inline, self.functions, self.put_back, self.add_input,
        ]  # fmt: skip

    def run(self, count: int) -> None:
        model = self.main.model
        for _ in range(count):
            journal = Journal()
            with model.listening(journal), suppress(EditError, IndexError):  # or there is nothing to edit
                self.random.choice(self.edits)()
            if any(graph.find_cycle() for graph in model.graphs()):
                journal.roll_back()

    # What to edit.

    def graph(self) -> Graph:
        return self.random.choice(list(self.main.model.graphs()))

    def node(self, *kinds: Kind) -> Node:
        nodes = [node for node in self.graph().all_nodes() if not kinds or node.kind in kinds]
        return self.random.choice(nodes or self.main.nodes())

    def visible(self, graph: Graph) -> list[Value]:
        values = []
        around: Graph | None = graph
        while around is not None:
            values += [value for node in around.all_nodes() for value in node.results]
            around = around.parent
        return values

    def pick(self, graph: Graph) -> Value:
        return self.random.choice(self.visible(graph))

    def name(self) -> str:
        self.count += 1
        return f"made_{self.count}"

    # Edits.

    def insert(self) -> None:
        graph = self.graph()
        op_type = self.random.choice(["Relu", "Add", "Concat", "Identity", "Sum"])
        operands = [self.pick(graph) for _ in range(2 if op_type == "Add" else 1)]
        node = graph.make_node(
            op_type, operands, attributes={"axis": 0} if op_type == "Concat" else {}, name=self.name()
        )
        graph.insert(node, rank=self.random.choice([None, operands[0].producer.rank + 1]))

    def insert_if(self) -> None:
        graph = self.graph()
        owner = graph.make_node("If", [self.pick(graph)])
        for name in ("then_branch", "else_branch"):
            body = graph.make_body(owner, name)
            first = add(body, "Neg", self.pick(graph))
            body.set_outputs([add(body, "Add", first, self.pick(graph))])
        graph.insert(owner)

    def insert_constant(self) -> None:
        self.graph().add_constant(Tensor.of([1.0, self.count], DType.FLOAT), self.random.choice([None, self.name()]))

    def erase(self) -> None:
        node = self.node(Kind.OPERATOR, Kind.CONSTANT, Kind.INPUT)
        graph = node.graph
        assert graph is not None
        graph.erase(node)
        self.erased.append((graph, node))

    def put_back(self) -> None:
        if self.erased:
            graph, node = self.erased.pop()
            if self.main.model.graph.encloses(graph):
                graph.insert(node)

    def rewire(self) -> None:
        node = self.node(Kind.OPERATOR)
        if node.operands and node.graph is not None:
            operands = list(node.operands)
            operands[self.random.randrange(len(operands))] = self.pick(node.graph)
            node.graph.set_operands(node, operands)

    def resize(self) -> None:
        node = self.node(Kind.OPERATOR, Kind.RETURN)
        if node.graph is None or node.op_type not in ("Concat", "Sum", "") or node is self.main.return_node:
            return
        node.graph.set_operands(node, [self.pick(node.graph) for _ in range(self.random.randint(1, 3))])

    def attribute(self) -> None:
        node = self.node(Kind.OPERATOR)
        assert node.graph is not None
        node.graph.set_attribute(
            node, self.random.choice(["axis", "alpha", "mine"]), self.random.choice([None, 1, (2, 3)])
        )

    def retype(self) -> None:
        graph = self.graph()
        value = self.random.choice([value for node in graph.all_nodes() for value in node.results])
        if not value.producer.is_constant:
            graph.retype(value, self.random.choice([None, FLOATS, TensorType(DType.FLOAT)]))

    def rename(self) -> None:
        graph = self.graph()
        node = self.random.choice(graph.all_nodes())
        graph.rename(self.random.choice([node, *node.results]), self.random.choice([None, self.name()]))

    def replace(self) -> None:
        graph = self.graph()
        old, new = self.pick(graph), self.pick(graph)
        graph.replace_uses(old, new)

    def store(self) -> None:
        node = self.node(Kind.CONSTANT)
        if node.is_constant and node.graph is not None:
            node.graph.store_as_node(node, not node.stored_as_node)

    def narrow(self) -> None:
        node = self.node(Kind.OPERATOR)
        assert node.graph is not None
        node.graph.set_results(node, [value for value in node.results if value.uses] or node.results)

    def opset(self) -> None:
        self.graph().set_opset(self.random.choice(["", "mine"]), self.random.choice([17, 18]))

    def detail(self) -> None:
        self.graph().set_detail("note", self.count)

    def clone(self) -> None:
        node = self.node(Kind.OPERATOR)
        assert node.graph is not None
        mapped: dict[Value, Value] = {}
        copy = clone_node(node, node.graph, mapped)
        for value in copy.results:
            node.graph.rename(value, None)

    def inline(self) -> None:
        owner = self.node(Kind.OPERATOR)
        for body in owner.bodies.values():
            if not body.inputs and owner.graph is not None:
                clone_body(body, owner.graph, {}, rank=owner.rank)

    def functions(self) -> None:
        model = self.main.model
        model.set_functions({} if model.functions else dict(self.kept))

    def add_input(self) -> None:
        graph = self.graph()
        if graph.owner is not None:
            graph.add_input(self.name(), FLOATS)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_rolling_back_restores_everything(seed: int, count: int) -> None:
    graph = nested()
    model = graph.model
    before, data = account(model), write_model(model).to_bytes()
    editor = Editor(graph, seed)
    journal = Journal()
    with model.listening(journal):
        editor.run(count)
    check_model(model)
    journal.roll_back()
    check_model(model)
    assert account(model) == before
    assert write_model(model).to_bytes() == data


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_whatever_was_edited_can_be_written_and_read(seed: int, count: int) -> None:
    graph = nested()
    editor = Editor(graph, seed)
    editor.run(count)
    check_model(graph.model)
    data = write_model(graph.model).to_bytes()
    again = load(data)
    check_model(again.model)
    assert write_model(again.model).to_bytes() == data
    assert [value.name for value in again.inputs] == [value.name for value in graph.inputs]
    assert [name for name, _ in again.details["outputs"]] == ["y", "z"]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_a_second_pass_rolled_back_leaves_the_first(seed: int) -> None:
    graph = nested()
    editor = Editor(graph, seed)
    editor.run(20)
    between, data = account(graph.model), write_model(graph.model).to_bytes()
    journal = Journal()
    with graph.model.listening(journal):
        editor.run(20)
    journal.roll_back()
    assert account(graph.model) == between
    assert write_model(graph.model).to_bytes() == data


def test_the_inverse_is_told_too() -> None:
    graph = nested()
    journal, inverse = Journal(), Journal()
    with graph.model.listening(journal):
        new = add(graph, "Abs", find(graph, "x"))
        graph.replace_uses(find(graph, "a"), new)
        graph.erase(find(graph, "dead").producer)
    after = account(graph.model)
    with graph.model.listening(inverse):
        journal.roll_back()
    assert journal.edits == []
    inverse.roll_back()
    assert account(graph.model)["main"]["nodes"] == after["main"]["nodes"]
    check_model(graph.model)


def test_an_input_comes_back_to_its_place() -> None:
    graph = nested()
    body = find(graph, "i").producer.graph
    assert body is not None
    journal = Journal()
    with graph.model.listening(journal):
        body.erase(body.inputs[0].producer)
        body.add_input("late", FLOATS)
    journal.roll_back()
    assert [value.name for value in body.inputs] == ["i", "going", "state"]


def test_pins_do_not_stand_in_the_way_of_undoing() -> None:
    graph = nested()
    journal = Journal()
    with graph.model.listening(journal):
        value = constant(graph, 1, 2)
        value.producer.is_pinned = True
    journal.roll_back()
    assert value.producer.graph is None


def test_weights_are_never_copied() -> None:
    graph = nested()
    tensor = Tensor.from_numpy(np.zeros(1000, np.float32))
    journal = Journal()
    with graph.model.listening(journal):
        value = graph.add_constant(tensor)
        graph.erase(value.producer)
    journal.roll_back()
    assert value.const is tensor
