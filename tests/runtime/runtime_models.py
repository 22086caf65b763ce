"""Small models for the tests of the runtime, and where the big ones are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

CHECKOUT = Path(__file__).resolve().parents[2]


def text_model(text: str, opset: int = 21, extra: str = "") -> bytes:
    """A serialized model from ONNX's text form of a graph, without name and header."""
    header = f'<ir_version: 10, opset_import: ["": {opset}{extra}]> g '
    return parser.parse_model(header + text).SerializeToString()


def conv_bn(seed: int = 0, folded: bool = False, wrong: float = 1.0) -> bytes:
    """Conv and BatchNormalization, three times; `folded` multiplies the scales into the weights in float64."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], []
    name, channels = "x", 3
    for layer in range(3):
        out = 8
        weight = rng.standard_normal((out, channels, 3, 3)).astype(np.float32) * 0.3
        scale, bias, mean = (rng.standard_normal(out).astype(np.float32) for _ in range(3))
        variance = rng.uniform(0.5, 2.0, out).astype(np.float32)
        if folded:
            factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + 1e-5)
            kernel = (weight * factor[:, None, None, None] * (wrong if layer == 1 else 1.0)).astype(np.float32)
            shift = (bias - mean * factor).astype(np.float32)
            weights += [numpy_helper.from_array(kernel, f"w{layer}"), numpy_helper.from_array(shift, f"b{layer}")]
            nodes.append(helper.make_node("Conv", [name, f"w{layer}", f"b{layer}"], [f"n{layer}"], pads=[1, 1, 1, 1]))
        else:
            parts = {"w": weight, "s": scale, "b": bias, "m": mean, "v": variance}
            weights += [numpy_helper.from_array(array, f"{key}{layer}") for key, array in parts.items()]
            nodes.append(helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
            operands = [f"c{layer}", *(f"{key}{layer}" for key in "sbmv")]
            nodes.append(helper.make_node("BatchNormalization", operands, [f"n{layer}"]))
        nodes.append(helper.make_node("Relu", [f"n{layer}"], ["y" if layer == 2 else f"r{layer}"]))
        name, channels = f"r{layer}", out
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, "h", "w"])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def shared_folder() -> Path | None:
    """Where the big real models are, if they are here at all."""
    given = os.environ.get("GRAPHOPT_SHARED")
    folder = Path(given) if given else CHECKOUT.parent / "shared"
    return folder / "models" if (folder / "models").is_dir() else None


def linear(factor: float = 1.0, element: float = 1.0) -> bytes:
    """A two-layer network; `factor` is on the whole second weight, `element` on one number of the first."""
    rng = np.random.default_rng(0)
    model = onnx.ModelProto.FromString(
        text_model(
            "(float[N, 16] x, float[16, 32] a, float[32, 4] b) => (float[N, 4] y)"
            "{ h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
        )
    )
    del model.graph.input[1:]
    first = rng.standard_normal((16, 32)).astype(np.float32)
    second = (rng.standard_normal((32, 4)) * factor).astype(np.float32)
    first[3, 5] *= element
    model.graph.initializer.extend([numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")])
    return model.SerializeToString()
