"""Weights rewritten by the passes: random layers with random arithmetic, and what must be left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.runtime import judge

_NAMES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}


class _Maker:
    """Builds a random model of one layer and arithmetic by constants."""

    def __init__(self, seed: int, dtype: Any = np.float32) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.count = 0
        self.oldest = 9

    def constant(self, array: Any) -> str:
        self.count += 1
        name = f"c{self.count}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, self.dtype), name))
        return name

    def normal(self, *shape: int) -> Any:
        return self.random.standard_normal(shape)

    def add(self, op_type: str, *operands: str, **attributes: Any) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.nodes.append(helper.make_node(op_type, list(operands), [name], **attributes))
        return name

    def pick(self, *items: Any) -> Any:
        return items[int(self.random.integers(len(items)))]

    def model(self, result: str, shape: list[int | str | None], opset: int) -> onnx.ModelProto:
        code = _NAMES[self.dtype]
        graph = helper.make_graph(
            [*self.nodes, helper.make_node("Identity", [result], ["y"])],
            "random",
            [helper.make_tensor_value_info("x", code, shape)],
            [helper.make_tensor_value_info("y", code, None)],
            self.tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model)

    def vector(self, channels: int, after: int) -> Any:
        """A number for each channel, some zero or negative, in a shape that broadcasts; `after` dims stand behind."""
        values = self.pick(self.normal(channels), self.normal(1), np.where(self.normal(channels) > 0, -2.0, 0.25))
        rank = self.pick(after + 1, after + 2) if values.size > 1 else self.pick(0, 1, after + 1)
        if rank == 0:
            return values.reshape(())
        return values.reshape([1] * (rank - after - 1) + [-1] + [1] * after) if rank > after else values

    def arithmetic(self, value: str, channels: int, after: int, *, normalizes: bool) -> str:
        kinds = ["Mul", "Div", "Add", "Sub", "Neg", "from", *(["BatchNormalization"] if normalizes else [])]
        kind = self.pick(*kinds)
        if kind == "Neg":
            return self.add("Neg", value)
        if kind == "BatchNormalization":
            variance = np.abs(self.normal(channels)) * self.pick(1.0, 1e-6, 30.0)
            parts = [self.normal(channels), self.normal(channels), self.normal(channels), variance]
            return self.add("BatchNormalization", value, *map(self.constant, parts), epsilon=1e-3)
        vector = self.vector(channels, after)
        if kind == "Div":
            vector = np.where(np.abs(vector) < 0.1, 0.5, vector)
        operands = [value, self.constant(vector)]
        if kind == "from" or (kind in ("Add", "Mul") and self.pick(True, False)):
            operands.reverse()
        return self.add("Sub" if kind == "from" else kind, *operands)


def _convolution(make: _Maker) -> tuple[str, list[int], int, int]:
    dims, groups = make.pick(1, 2, 3), make.pick(1, 1, 2)
    inputs, outputs = groups * make.pick(1, 2), groups * make.pick(1, 3)
    kernel = [make.pick(1, 2, 3) for _ in range(dims)]
    attributes: dict[str, Any] = {"group": groups}
    if make.pick(True, False):
        attributes["strides"] = [make.pick(1, 2) for _ in range(dims)]
    padding = make.pick("none", "pads", "auto", "valid")
    if padding == "pads":
        attributes["pads"] = [make.pick(0, 1) for _ in range(2 * dims)]
    elif padding != "none":
        attributes["auto_pad"] = {"auto": "SAME_UPPER", "valid": "VALID"}[padding]
    is_transposed = make.pick(False, False, True)
    if not is_transposed and padding in ("none", "pads") and make.pick(True, False):
        attributes["dilations"] = [make.pick(1, 2) for _ in range(dims)]
    if is_transposed and "strides" in attributes and padding == "none":
        attributes["output_padding"] = [step - 1 for step in attributes["strides"]]
    shape = [inputs, outputs // groups, *kernel] if is_transposed else [outputs, inputs // groups, *kernel]
    x = "x"
    for _ in range(make.pick(0, 0, 1, 2)):
        x = make.arithmetic(x, inputs, dims, normalizes=True)
    operands = [x, make.constant(make.normal(*shape))]
    if make.pick(True, False):
        operands.append(make.constant(make.normal(outputs)))
    value = make.add("ConvTranspose" if is_transposed else "Conv", *operands, **attributes)
    return value, [2, inputs, *[6] * dims], outputs, dims


def _product(make: _Maker) -> tuple[str, list[int], int, int]:
    inputs, outputs = make.pick(1, 3), make.pick(1, 4)
    shape = make.pick([5, inputs], [2, 3, inputs])
    x = "x"
    for _ in range(make.pick(0, 0, 1, 2)):
        x = make.arithmetic(x, inputs, 0, normalizes=len(shape) == 2)
    value = make.add("MatMul", x, make.constant(make.normal(inputs, outputs)))
    if make.pick(True, False):
        value = make.add("Add", value, make.constant(make.vector(outputs, 0)))
    return value, shape, outputs, 0


def _gemm(make: _Maker) -> tuple[str, list[int], int, int]:
    inputs, outputs, rows = make.pick(1, 3), make.pick(1, 4), 5
    turned, other = make.pick(0, 1), make.pick(0, 1)
    x = make.arithmetic("x", inputs, 0, normalizes=True) if not other and make.pick(True, False) else "x"
    weight = make.normal(outputs, inputs) if turned else make.normal(inputs, outputs)
    operands = [x, make.constant(weight)]
    bias = make.pick(None, (outputs,), (1, outputs), (rows, outputs), (rows, 1), (1,), ())
    make.oldest = 7 if bias is not None else 11
    if bias is not None:
        operands.append(make.constant(make.normal(*bias)))
    value = make.add(
        "Gemm", *operands, transB=turned, transA=other, alpha=make.pick(1.0, 0.5), beta=make.pick(1.0, 2.0)
    )
    return value, [inputs, rows] if other else [rows, inputs], outputs, 0


def _random_model(seed: int, dtype: Any = np.float32) -> tuple[onnx.ModelProto, list[int]]:
    make = _Maker(seed, dtype)
    value, shape, channels, after = make.pick(_convolution, _product, _gemm)(make)
    may_normalize = after > 0 or len(shape) == 2
    for _ in range(int(make.random.integers(0, 4))):
        value = make.arithmetic(value, channels, after, normalizes=may_normalize)
    return make.model(value, list(shape), max(make.oldest, make.pick(9, 13, 15, 17))), shape


def _count(model: onnx.ModelProto) -> int:
    return sum(node.op_type not in ("Identity", "Constant") for node in model.graph.node)


def _ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type not in ("Identity", "Constant")]


def _optimized(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    result: onnx.ModelProto = graphopt.optimize(model, verify=False, **options).model
    return result


@pytest.mark.parametrize("seed", range(40))
def test_random_layers(seed: int) -> None:
    model, shape = _random_model(seed)
    result = graphopt.optimize(model, verify=False).model
    random = np.random.default_rng(seed)
    feeds = [{"x": (random.standard_normal(shape) * scale).astype(np.float32)} for scale in (1.0, 1e3, 1e-3, 0.0)]
    verdict = judge(model.SerializeToString(), result.SerializeToString(), "R", feeds)
    assert verdict.ok, verdict.reason
    assert _count(result) <= _count(model)


@pytest.mark.parametrize("seed", range(6))
def test_level_exact_leaves_weights_alone(seed: int) -> None:
    make = _Maker(seed)
    value, shape, channels, after = _convolution(make)
    model = make.model(make.add("Mul", value, make.constant(make.vector(channels, after))), list(shape), 17)
    before = {tensor.raw_data for tensor in model.graph.initializer if len(tensor.dims) > 2}
    result = _optimized(model, level="exact")
    assert before <= {tensor.raw_data for tensor in result.graph.initializer}


def _normalized(opset: int, outputs: int, **attributes: Any) -> onnx.ModelProto:
    make = _Maker(0)
    value = make.add("Conv", "x", make.constant(make.normal(2, 2, 1, 1)))
    parts = [make.constant(np.abs(make.normal(2)) + 0.5) for _ in range(4)]
    names = ["n", *[f"statistic_{index}" for index in range(outputs - 1)]]
    make.nodes.append(helper.make_node("BatchNormalization", [value, *parts], names, **attributes))
    return make.model("n", [1, 2, 3, 3], opset)


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15, 17])
def test_normalization_of_every_opset_folds(opset: int) -> None:
    assert _ops(_optimized(_normalized(opset, 1))) == ["Conv"]


@pytest.mark.parametrize(("opset", "outputs", "attributes"), [(9, 5, {}), (7, 1, {"spatial": 0}), (8, 5, {})])
def test_normalization_that_trains_stays(opset: int, outputs: int, attributes: dict[str, int]) -> None:
    assert "BatchNormalization" in _ops(_optimized(_normalized(opset, outputs, **attributes)))


@pytest.mark.parametrize(("size", "folds"), [(8, True), (200, False)])
def test_shared_weight_is_copied_only_if_small(size: int, folds: bool) -> None:
    make = _Maker(0)
    weight = make.constant(make.normal(size, size))
    scaled = make.add("Mul", make.add("MatMul", "x", weight), make.constant([3.0]))
    plain = make.add("MatMul", make.add("Relu", "x"), weight)
    result = _optimized(make.model(make.add("Sub", scaled, plain), [2, size], 17))
    assert ("Mul" not in _ops(result)) is folds


@pytest.mark.parametrize(("weight", "factor"), [(6e4, 100.0), (1e-3, 1e-4)])
def test_weight_that_would_leave_the_range_of_its_type_stays(weight: float, factor: float) -> None:
    make = _Maker(0, np.float16)  # past the largest half, and among the subnormal ones
    value = make.add("MatMul", "x", make.constant(np.full((2, 3), weight)))
    model = make.model(make.add("Mul", value, make.constant(np.full(3, factor))), [2, 2], 17)
    assert _ops(_optimized(model)) == ["MatMul", "Mul"]


def test_channel_nobody_hears_does_not_stop_the_others() -> None:
    make = _Maker(0)
    value = make.add("Conv", "x", make.constant(make.normal(2, 2, 1, 1) * np.array([1.0, 1e-20]).reshape(2, 1, 1, 1)))
    value = make.add("Mul", value, make.constant(np.array([2.0, 1e-20]).reshape(2, 1, 1)))
    assert _ops(_optimized(make.model(value, [1, 2, 3, 3], 17))) == ["Conv"]


def test_infinite_weight_stays() -> None:
    make = _Maker(0)
    value = make.add("MatMul", "x", make.constant([[1.0, np.inf], [2.0, np.nan]]))
    assert "Mul" in _ops(_optimized(make.model(make.add("Mul", value, make.constant([2.0])), [2, 2], 17)))


def test_bias_of_an_old_gemm_stays() -> None:
    make = _Maker(0)
    first = make.add("Gemm", "x", make.constant(make.normal(3, 3)), make.constant(np.zeros(3)))
    second = make.add("Gemm", first, make.constant(make.normal(3, 2)), make.constant(np.zeros(2)))
    result = _optimized(make.model(second, [2, 3], 9), level="fast-math")
    assert [len(node.input) for node in result.graph.node if node.op_type == "Gemm"] == [3]


@pytest.mark.parametrize("seed", range(6))
def test_merged_convolutions(seed: int) -> None:
    make = _Maker(seed)
    padding = [seed % 2] * 4
    kernels, pads = ([1, 3], [[0] * 4, padding]) if seed < 3 else ([3, 1], [padding, [0] * 4])
    value, inputs = "x", 4
    for kernel, pad, outputs in zip(kernels, pads, (4, 2), strict=True):
        operands = [value, make.constant(make.normal(outputs, inputs, kernel, kernel))]
        if seed % 3:
            operands.append(make.constant(make.normal(outputs)))
        value, inputs = make.add("Conv", *operands, pads=pad), outputs
    model = make.model(value, [1, 4, 6, 6], 17)
    result = _optimized(model, level="fast-math")
    feeds = [{"x": make.normal(1, 4, 6, 6).astype(np.float32)}]
    assert judge(model.SerializeToString(), result.SerializeToString(), "R", feeds).ok
    may_not = kernels == [1, 3] and bool(seed % 3) and any(padding)
    assert len(_ops(result)) == (2 if may_not else 1)
