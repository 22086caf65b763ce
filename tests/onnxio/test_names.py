from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnxio_models import MODELS, info, model_of, node, numbers, text

from graphopt.ir import Graph, Value, check_model, clone_body, clone_node
from graphopt.onnxio import load, to_proto, write_model

X = np.array([1.0, -2.0], np.float32)
BRANCHES = """
main (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}>
{
    a = Relu(x)
    b = If (c) <
        then_branch = t () => (float[2] r) { p = Add(a, w)  r = Neg(p) },
        else_branch = e () => (float[2] r) { p = Sub(a, w)  r = Abs(p) }
    >
    y = Add(b, a)
}
"""


def run(model: ModelProto, **feeds: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {item.name for item in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in names})  # type: ignore[no-any-return]


def value(graph: Graph, name: str) -> Value:
    for scope in (graph, *graph.bodies_inside()):
        for item in scope.all_nodes():
            for result in item.results:
                if result.name == name:
                    return result
    raise LookupError(name)


def bypass(graph: Graph, name: str) -> None:
    """Take an Identity out."""
    old = value(graph, name)
    operand = old.producer.operands[0]
    assert operand is not None
    graph.replace_uses(old, operand)
    assert old.producer.graph is not None
    old.producer.graph.erase(old.producer)


def exported(graph: Graph, **feeds: Any) -> ModelProto:
    """The model written, found valid, and the same when written again."""
    check_model(graph.model)
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert write_model(load(proto).model).to_bytes() == proto.SerializeToString()
    return proto


# --- outputs


def test_what_takes_an_outputs_place_takes_its_name() -> None:
    model = model_of(
        [node("Relu", ["x"], ["h"]), node("Identity", ["h"], ["y"]), node("Neg", ["h"], ["z"])],
        outputs=[info("y"), info("z")],
    )
    graph = load(model)
    bypass(graph, "y")
    proto = exported(graph)
    assert [(item.op_type, list(item.input), list(item.output)) for item in proto.graph.node] == [
        ("Relu", ["x"], ["y"]), ("Neg", ["y"], ["z"]),
    ]  # fmt: skip
    np.testing.assert_equal(run(proto, x=X), run(model, x=X))


def test_an_input_under_an_outputs_name_needs_an_identity() -> None:
    graph = load(model_of([node("Identity", ["x"], ["y"], name="only")]))
    bypass(graph, "y")
    proto = exported(graph)
    assert [(item.op_type, list(item.input), list(item.output)) for item in proto.graph.node] == [
        ("Identity", ["x"], ["y"])
    ]
    np.testing.assert_equal(run(proto, x=X), [X])


@pytest.mark.parametrize("kind", ["initializer", "constant", "listed initializer", "pinned"])
def test_a_constant_under_an_outputs_name(kind: str) -> None:
    nodes = [node("Identity", ["w"], ["y"])]
    weights = [numbers("w", 1, 2)]
    options: dict[str, Any] = {"initializers": weights}
    if kind == "constant":
        nodes.insert(0, node("Constant", [], ["w"], value=weights[0]))
        options = {}
    if kind == "listed initializer":
        options.update(inputs=[info("x"), info("w")], ir_version=3, opset_imports=[helper.make_opsetid("", 8)])
    graph = load(model_of(nodes, **options))
    value(graph, "w").producer.is_pinned = kind == "pinned"
    bypass(graph, "y")
    proto = exported(graph)
    assert [entry.name for entry in proto.graph.output] == ["y"]
    assert any(item.op_type == "Identity" for item in proto.graph.node) is (kind in ("listed initializer", "pinned"))
    np.testing.assert_equal(run(proto, x=X), [np.array([1, 2], np.float32)])


def test_one_value_under_two_names() -> None:
    model = model_of(
        [node("Relu", ["x"], ["h"]), node("Identity", ["h"], ["y"]), node("Identity", ["h"], ["z"])],
        outputs=[info("y"), info("z")],
    )
    graph = load(model)
    bypass(graph, "y")
    bypass(graph, "z")
    proto = exported(graph)
    assert [(item.op_type, list(item.input), list(item.output)) for item in proto.graph.node] == [
        ("Relu", ["x"], ["y"]), ("Identity", ["y"], ["z"]),
    ]  # fmt: skip
    np.testing.assert_equal(run(proto, x=X), run(model, x=X))


def test_an_output_that_keeps_its_own_name_comes_before_one_that_wants_another() -> None:
    model = model_of(
        [node("Relu", ["x"], ["z"]), node("Identity", ["z"], ["y"])], outputs=[info("y"), info("z")]
    )  # fmt: skip
    graph = load(model)
    bypass(graph, "y")
    proto = exported(graph)
    assert [(item.op_type, list(item.output)) for item in proto.graph.node] == [("Relu", ["z"]), ("Identity", ["y"])]
    np.testing.assert_equal(run(proto, x=X), run(model, x=X))


def test_outputs_that_change_places() -> None:
    graph = load(model_of([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])], outputs=[info("y"), info("z")]))
    graph.set_outputs(graph.outputs[::-1])
    proto = exported(graph)
    np.testing.assert_equal(run(proto, x=X), [-X, np.maximum(X, 0)])


def test_an_outputs_name_on_another_value_gives_way() -> None:
    graph = load(model_of([node("Relu", ["x"], ["y"]), node("Neg", ["y"], ["z"])], outputs=[info("y"), info("z")]))
    new = graph.make_node("Abs", [graph.inputs[0]])
    graph.insert(new)
    graph.set_outputs([new.result, graph.outputs[1]])
    proto = exported(graph)
    assert [(item.op_type, list(item.input), list(item.output)) for item in proto.graph.node] == [
        ("Relu", ["x"], ["relu_output"]), ("Neg", ["relu_output"], ["z"]), ("Abs", ["x"], ["y"]),
    ]  # fmt: skip


def test_more_outputs_than_the_file_had() -> None:
    graph = load(model_of([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])]))
    h = value(graph, "h")
    graph.set_outputs([*graph.outputs, h, h])
    proto = to_proto(graph)
    assert [entry.name for entry in proto.graph.output] == ["y", "h", "output_2"]
    assert len(run(proto, x=X)) == 3


# --- bodies


@pytest.mark.parametrize("branch", [True, False])
def test_a_body_that_returns_an_outer_value_needs_an_identity(branch: bool) -> None:
    graph = load(text(BRANCHES))
    owner = value(graph, "b").producer
    for body in owner.bodies.values():
        body.set_outputs([value(graph, "a")])
    proto = exported(graph)
    bodies = [attribute.g for attribute in proto.graph.node[1].attribute]
    assert [[item.op_type for item in body.node] for body in bodies] == [
        ["Add", "Neg", "Identity"],
        ["Sub", "Abs", "Identity"],
    ]
    assert [body.output[0].name for body in bodies] == [body.node[-1].output[0] for body in bodies]
    np.testing.assert_equal(run(proto, x=X, c=np.array(branch)), [2 * np.maximum(X, 0)])


def test_a_body_that_returns_a_value_twice_needs_an_identity() -> None:
    two = text(
        BRANCHES.replace("    b = If", "    b, extra = If").replace("(float[2] r) {", "(float[2] r, float[2] p) {")
    )
    graph = load(two)
    owner = value(graph, "b").producer
    body = owner.bodies["then_branch"]
    body.set_outputs([body.outputs[1]] * 2)
    graph.set_operand(value(graph, "y").producer, 1, owner.results[1])
    proto = exported(graph)
    np.testing.assert_equal(run(proto, x=X, c=np.array(True)), [2 * (np.maximum(X, 0) + [1, 2])])


def test_a_body_as_the_file_has_it_is_left_alone() -> None:
    """Whatever it returns: here one value twice, which ONNX allows."""
    body = helper.make_graph([node("Abs", ["x"], ["p"])], "b", [], [info("p"), info("p")])
    nodes = [node("If", ["c"], ["y", "z"], then_branch=body, else_branch=body)]
    model = model_of(nodes, outputs=[info("y"), info("z")], initializers=[numpy_helper.from_array(np.array(True), "c")])
    assert write_model(load(model).model).to_bytes() == model.SerializeToString()


def test_an_outer_value_is_not_hidden_by_an_inner_one_of_its_name() -> None:
    graph = load(text(BRANCHES))
    owner, a = value(graph, "b").producer, value(graph, "a")
    graph.rename(a, "p")  # both branches have a `p` of their own, made of this one
    proto = exported(graph)
    np.testing.assert_equal(run(proto, x=X, c=np.array(True)), run(text(BRANCHES), x=X, c=np.array(True)))
    assert all(item.output[0] != "p" for attribute in proto.graph.node[1].attribute for item in attribute.g.node)
    assert owner.graph is graph


def test_bodies_moved_out_do_not_meet() -> None:
    """Both branches call their values alike; computed outside, each needs a name of its own."""
    graph = load(text(BRANCHES))
    owner = value(graph, "b").producer
    condition = owner.operands[0]
    results = [clone_body(body, graph, {}, rank=owner.rank, taken=())[0] for body in owner.bodies.values()]
    choice = graph.make_node("Where", [condition, *results])
    graph.insert(choice, rank=owner.rank)
    with pytest.raises(Exception, match="two values are called 'p'"):
        check_model(graph.model)  # which export makes good
    graph.replace_uses(owner.result, choice.result)
    graph.erase(owner)
    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    for flag in (True, False):
        np.testing.assert_equal(run(proto, x=X, c=np.array(flag)), run(text(BRANCHES), x=X, c=np.array(flag)))


def test_a_node_moved_out_of_one_branch_does_not_hide_from_the_other() -> None:
    graph = load(text(BRANCHES))
    owner = value(graph, "b").producer
    body = owner.bodies["then_branch"]
    add = body.of_kind("Add")[0]
    p = add.result
    reader = p.users[0]
    placeholder = value(graph, "a")
    body.set_operand(reader, 0, placeholder)
    body.erase(add)
    graph.insert(add, rank=owner.rank)
    body.set_operand(reader, 0, p)
    proto = exported(graph)
    assert proto.graph.node[1].output[0] == "p"
    for flag in (True, False):
        np.testing.assert_equal(run(proto, x=X, c=np.array(flag)), run(text(BRANCHES), x=X, c=np.array(flag)))


def test_a_copied_node_with_bodies_gets_names_of_its_own() -> None:
    graph = load(text(BRANCHES))
    owner = value(graph, "b").producer
    copy = clone_node(owner, graph, {}, rank=owner.rank)
    graph.rename(copy.result, None)
    graph.set_operand(value(graph, "y").producer, 1, copy.result)
    proto = exported(graph)
    expected = [2 * (-np.maximum(X, 0) - [1, 2])]
    np.testing.assert_equal(run(proto, x=X, c=np.array(True)), np.array(expected, np.float32))


# --- functions


def test_a_function_that_returns_its_operand_needs_an_identity() -> None:
    model = MODELS["functions"]()
    graph = load(model)
    function = graph.model.functions["mine", "F", "one"]
    function.graph.set_outputs([function.graph.inputs[0]])
    function.graph.erase(function.graph.nodes()[0])
    function.graph.erase(function.graph.constants()[0])
    back = to_proto(graph)
    written = back.functions[1]
    assert [(item.op_type, list(item.input), list(item.output)) for item in written.node] == [
        ("Identity", ["a"], ["o"])
    ]
    assert list(written.output) == ["o"]


def test_a_function_with_other_outputs() -> None:
    graph = load(MODELS["functions"]())
    function = graph.model.functions["mine", "F", "one"]
    inner = function.graph.constants()[0].result
    function.graph.set_outputs([*function.graph.outputs, inner])
    assert list(to_proto(graph).functions[1].output) == ["o", "c"]


# --- new values and nodes


def test_what_is_new_is_named_uniquely() -> None:
    names = ["relu_output", "Relu", "relu_output_1"]
    graph = load(
        model_of(
            [
                node("Relu", ["x"], [names[0]], name=names[1]),
                node("Relu", [names[0]], [names[2]]),
                node("Relu", [names[2]], ["y"]),
            ]
        )
    )
    last = graph.outputs[0]
    for _ in range(3):
        new = graph.make_node("Relu", [last])
        graph.insert(new)
        last = new.result
    named = graph.make_node("Relu", [last], name="Relu")
    graph.insert(named)
    graph.set_outputs([named.result])
    proto = exported(graph)
    assert [item.name for item in proto.graph.node] == ["Relu", "", "", "Relu_1", "Relu_2", "Relu_3", "Relu_4"]
    made = [item.output[0] for item in proto.graph.node]
    assert made == [names[0], names[2], "relu_output_2", "relu_output_3", "relu_output_4", "relu_output_5", "y"]


def test_a_name_taken_twice_stays_with_what_the_file_brought() -> None:
    graph = load(model_of([node("Relu", ["x"], ["h"]), node("Neg", ["h"], ["y"])]))
    new = graph.make_node("Abs", [graph.inputs[0]])
    graph.insert(new, rank=1)
    graph.rename(new.result, "h")
    graph.set_operands(graph.of_kind("Neg")[0], [new.result])
    proto = to_proto(graph)
    onnx.checker.check_model(proto)
    assert {item.op_type: item.output[0] for item in proto.graph.node} == {"Relu": "h", "Abs": "abs_output", "Neg": "y"}


def test_values_are_called_after_their_node() -> None:
    graph = load(model_of([node("Relu", ["x"], ["y"])]))
    split = graph.make_node("Split", [graph.inputs[0]], results=2, name="cut", attributes={"num_outputs": 2})
    graph.insert(split)
    both = graph.make_node("Concat", split.results, attributes={"axis": 0})
    graph.insert(both)
    graph.set_outputs([both.result])
    graph.add_constant(load(MODELS["words"]()).constants()[0].tensor)  # type: ignore[arg-type]
    proto = to_proto(graph)
    assert list(proto.graph.node[1].output) == ["cut_output", "cut_output_1"]
    assert proto.graph.initializer[0].name == "constant_output"


def test_results_that_are_left_out_stay_out() -> None:
    graph = load(MODELS["omitted"]())
    lstm = graph.of_kind("LSTM")[0]
    graph.rename(lstm, "renamed")
    written = next(item for item in to_proto(graph).graph.node if item.op_type == "LSTM")
    assert list(written.output) == ["", "hidden"]
    graph.set_outputs([lstm.results[0], graph.outputs[1]])
    written = next(item for item in to_proto(graph).graph.node if item.op_type == "LSTM")
    assert list(written.output) == ["y", "hidden"]


@pytest.mark.parametrize("make", [MODELS["nested"], MODELS["shadowed"]])
def test_renaming_everything_changes_nothing(make: Callable[[], ModelProto]) -> None:
    model = make()
    graph = load(model)
    for scope in graph.model.graphs():
        for item in scope.all_nodes():
            for result in item.results:
                if result.name and (scope.owner is not None or item.is_operator):
                    scope.rename(result, None)
    proto = exported(graph)
    feeds = {"x": X, "c": np.array(False), "n": np.array(3)}
    np.testing.assert_equal(run(proto, **feeds), run(model, **feeds))
