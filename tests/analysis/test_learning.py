"""What a model that has become simpler shows about its sizes."""

from __future__ import annotations

from onnx import parser

from graphopt import load
from graphopt.analysis.inference import Inference
from graphopt.ir import Symbol


def test_what_stood_between_an_input_and_a_window_is_gone() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,1,H,W] x, int64[4] s, float[1,1,3,3] w) => (float[A,B,C,D] y) {
            r = Reshape(x, s)
            y = Conv(r, w)
        }"""
    graph = load(parser.parse_model(text))
    inference = Inference(graph.model)
    inference.run()
    assert not inference.learn_more()
    (view,), (layer,) = graph.of_kind("Reshape"), graph.of_kind("Conv")
    graph.set_operand(layer, 0, graph.inputs[0])
    graph.erase(view)
    assert inference.learn_more()
    assert not inference.learn_more()
    height = (graph.inputs[0].shape or ())[2]
    assert isinstance(height, Symbol)
    assert height.least == 3
