"""Small models for the tests of tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

CHECKOUT = Path(__file__).resolve().parents[2]


def linear(seed: int = 0) -> bytes:
    """Two layers; the batch is free."""
    rng = np.random.default_rng(seed)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[batch, 16] x, float[16, 32] a, float[32, 4] b)'
        " => (float[batch, 4] y) { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
    )
    del model.graph.input[1:]
    for name, shape in (("a", (16, 32)), ("b", (32, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model.SerializeToString()


def noisy() -> bytes:
    """One output is random, the other is not."""
    return parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y, float[4] z)'
        " { y = Relu(x) r = RandomNormal<shape = [4]>() z = Add(x, r) }"
    ).SerializeToString()


def convolution(batch: int = 2) -> bytes:
    """Two convolutions with biases; shapes are static."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g'
        f" (float[{batch}, 8, 16, 16] x, float[16, 8, 3, 3] v, float[16] a, float[16, 16, 3, 3] w, float[16] b)"
        f" => (float[{batch}, 16, 16, 16] y)"
        " { c = Conv<pads = [1, 1, 1, 1]>(x, v, a) r = Relu(c) y = Conv<pads = [1, 1, 1, 1]>(r, w, b) }"
    )
    for value in list(model.graph.input)[1:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.input[1:]
    onnx.checker.check_model(model)
    return model.SerializeToString()
