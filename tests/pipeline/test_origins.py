from __future__ import annotations

import onnx

from graphopt.api import optimize
from graphopt.ir import Model, Node
from graphopt.onnxio import load
from graphopt.pipeline.origins import Origins

TEXT = """<ir_version: 9, opset_import: ["": 20]> small (float[N, 3] x) => (float[N, 3] y)
    { [one] a = Neg(x) [two] b = Abs(a) [three] y = Relu(b) }"""


def graph_of(text: str = TEXT) -> Model:
    return load(onnx.parser.parse_model(text).SerializeToString()).model


def node_of(model: Model, name: str) -> Node:
    return next(node for node in model.graph.nodes() if node.name == name)


def test_nodes_that_come_and_go_belong_to_a_rule() -> None:
    model = graph_of()
    origins = Origins(model)
    two = node_of(model, "two")
    with model.listening(origins), model.rewrite("passes/rule"):
        model.graph.replace_uses(two.results[0], two.operands[0])  # type: ignore[arg-type]
        model.graph.erase(two)
    assert origins.erased == {"two": "passes/rule"}
    assert origins.inserted == {}


def test_what_is_undone_is_forgotten() -> None:
    model = graph_of()
    origins = Origins(model)
    two = node_of(model, "two")
    with model.listening(origins), model.rewrite("passes/rule"):
        model.graph.replace_uses(two.results[0], two.operands[0])  # type: ignore[arg-type]
        model.graph.erase(two)
        model.graph.insert(two)
    assert origins.erased == {}
    assert origins.inserted == {}


def test_an_optimized_model_knows_them() -> None:
    text = TEXT.replace("[two] b = Abs(a)", "[two] b = Identity(a)")
    result = optimize(onnx.parser.parse_model(text), verify=False)
    assert result.origins.erased["two"].startswith("identities/")
    assert set(result.origins.inserted) <= {node.name for node in result.graph.nodes()}
