"""ONNX Runtime's own optimizer finds in a result what it finds in the original: none is taken from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import optimize
from graphopt.runtime.session import AS_USERS, Session

FUSED = ("Attention", "Gelu", "Normalization")
HIDDEN, HEADS, LENGTH, WORDS = 16, 2, 6, 11


class Network:
    """Writes a transformer as exporters before opset 13 do, all in parts."""

    def __init__(self, *, trained: bool = True, opset: int = 12) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(0)
        self.is_trained, self.opset = trained, opset

    def op(self, op_type: str, *operands: str, outputs: int = 1, **attributes: Any) -> str:
        """Add an operator; return the name of its first result."""
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, operands, names, **attributes))
        return names[0]

    def const(self, numbers: Any, dtype: Any = np.float32) -> str:
        """Add an initializer."""
        name = f"c{len(self.tensors)}"
        self.tensors[name] = numpy_helper.from_array(np.asarray(numbers, dtype), name)
        return name

    def weight(self, *shape: int) -> str:
        """Add random numbers."""
        return self.const(self.random.standard_normal(shape) * 0.3)

    def input(self, name: str, dtype: int, shape: list[int | str]) -> str:
        """Add an input."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def linear(self, x: str, size: int, out: int) -> str:
        """Add a layer with a bias."""
        return self.op("Add", self.op("MatMul", x, self.weight(size, out)), self.weight(out))

    def normalized(self, x: str) -> str:
        """Add a LayerNormalization in parts; that of a network nobody trained has neutral numbers."""
        difference = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", difference, self.const(2.0)), axes=[-1])
        root = self.op("Sqrt", self.op("Add", variance, self.const(1e-5)))
        scale = np.ones(HIDDEN) + self.is_trained * self.random.standard_normal(HIDDEN) * 0.1
        shift = self.is_trained * self.random.standard_normal(HIDDEN)
        product = self.op("Mul", self.op("Div", difference, root), self.const(scale))
        return self.op("Add", product, self.const(shift))

    def embedded(self, ids: str, segments: str | None = None) -> str:
        """Add words, positions counted out for each batch, and segments."""
        words = self.op("Gather", self.weight(WORDS, HIDDEN), ids)
        shape, zero, one = self.op("Shape", ids), self.const(0, np.int64), self.const(1, np.int64)
        length = self.op("Gather", self.op("Shape", ids), one)
        counted = self.op("Unsqueeze", self.op("Range", zero, length, one), axes=[0])
        places = self.op("Gather", self.weight(WORDS, HIDDEN), self.op("Expand", counted, shape))
        total = self.op("Add", words, places)
        if segments is not None:
            total = self.op("Add", total, self.op("Gather", self.weight(2, HIDDEN), segments))
        return self.normalized(total)

    def attended(self, x: str, mask: str) -> str:
        """Add masked attention, its output layer and the sum with what it attends to."""
        size = HIDDEN // HEADS
        shape = self.const([0, 0, HEADS, size], np.int64)
        heads = [self.op("Reshape", self.linear(x, HIDDEN, HIDDEN), shape) for _ in range(3)]
        turns = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (self.op("Transpose", head, perm=perm) for head, perm in zip(heads, turns, strict=True))
        scores = self.op("Div", self.op("MatMul", q, k), self.const(np.sqrt(size)))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=3)
        found = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        joined = self.op("Reshape", found, self.const([0, 0, HIDDEN], np.int64))
        return self.op("Add", self.linear(joined, HIDDEN, HIDDEN), x)

    def masked(self, mask: str) -> str:
        """Add what is added to scores for a mask of ones and zeros."""
        wide = self.op("Unsqueeze", self.op("Unsqueeze", mask, axes=[1]), axes=[2])
        hidden = self.op("Sub", self.const(1.0), self.op("Cast", wide, to=TensorProto.FLOAT))
        return self.op("Mul", hidden, self.const(-10000.0))

    def gelu(self, x: str) -> str:
        """Add a Gelu in parts."""
        curve = self.op("Erf", self.op("Div", x, self.const(np.sqrt(2))))
        product = self.op("Mul", x, self.op("Add", curve, self.const(1.0)))
        return self.op("Mul", product, self.const(0.5))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The whole model."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", self.inputs, values, [*self.tensors.values()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def fusions(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators that the runtime runs after its own optimization, as far as it made them of several."""
    path = folder / "runs.onnx"
    Session(model.SerializeToString(), AS_USERS.but(threads=1, optimized_path=str(path)))
    kinds = Counter(node.op_type for node in onnx.load(path).graph.node)
    return Counter({kind: count for kind, count in kinds.items() if kind.endswith(FUSED)})


def check(model: onnx.ModelProto, folder: Path, expected: dict[str, int], **options: Any) -> None:
    """The runtime finds these fusions in the original, and the same in the result."""
    assert fusions(model, folder) == expected, "the model of this test is not what the runtime looks for"
    assert fusions(optimize(model, strict=True, **options).model, folder) == expected


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("with_segments", [True, False])
def test_embedding_before_attention(trained: bool, with_segments: bool, tmp_path: Path) -> None:
    net = Network(trained=trained)
    names = ["ids", "mask", *(["segments"] if with_segments else [])]
    ids, mask, *rest = (net.input(name, TensorProto.INT64, ["N", "L"]) for name in names)
    x = net.embedded(ids, *rest)
    x = net.normalized(net.attended(x, net.masked(mask)))
    check(net.model(x), tmp_path, {"EmbedLayerNormalization": 1, "Attention": 1, "LayerNormalization": 1})


@pytest.mark.parametrize("trained", [True, False])
def test_encoder_layers(trained: bool, tmp_path: Path) -> None:
    net = Network(trained=trained)
    x = net.input("x", TensorProto.FLOAT, ["N", LENGTH, HIDDEN])
    bias = net.masked(net.input("mask", TensorProto.INT64, ["N", LENGTH]))
    x = net.normalized(x)
    for _ in range(2):
        x = net.normalized(net.attended(x, bias))
        inner = net.gelu(net.linear(x, HIDDEN, 4 * HIDDEN))
        x = net.normalized(net.op("Add", net.linear(inner, 4 * HIDDEN, HIDDEN), x))
    expected = {"LayerNormalization": 1, "Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2}
    check(net.model(x), tmp_path, expected)


@pytest.mark.parametrize("trained", [True, False])
def test_mean_square_normalization(trained: bool, tmp_path: Path) -> None:
    net = Network(trained=trained)
    x = net.input("x", TensorProto.FLOAT, ["N", "L", HIDDEN])
    mean = net.op("ReduceMean", net.op("Pow", x, net.const(2.0)), axes=[-1])
    root = net.op("Sqrt", net.op("Add", mean, net.const(1e-5)))
    scale = net.weight(HIDDEN) if trained else net.const(np.ones(HIDDEN))
    y = net.linear(net.op("Mul", net.op("Div", x, root), scale), HIDDEN, HIDDEN)
    check(net.model(y), tmp_path, {"SimplifiedLayerNormalization": 1})


def test_other_gelus(tmp_path: Path) -> None:
    net = Network()
    x = net.input("x", TensorProto.FLOAT, ["N", "L", HIDDEN])
    cube = net.op("Mul", net.op("Pow", x, net.const(3.0)), net.const(0.044715))
    curve = net.op("Tanh", net.op("Mul", net.op("Add", x, cube), net.const(np.sqrt(2 / np.pi))))
    fast = net.op("Mul", net.op("Mul", x, net.const(0.5)), net.op("Add", curve, net.const(1.0)))
    z = net.linear(fast, HIDDEN, HIDDEN)
    quick = net.op("Mul", z, net.op("Sigmoid", net.op("Mul", z, net.const(1.702))))
    check(net.model(net.linear(quick, HIDDEN, HIDDEN)), tmp_path, {"FastGelu": 1, "QuickGelu": 1})
