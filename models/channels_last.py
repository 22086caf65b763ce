"""A channels-last image classifier in the form TensorFlow converters write, built node by node with numpy weights.

The network works on `[batch, height, width, channels]`; ONNX convolutions and pools do not, so a converter puts a
Transpose before and one after each of them. Biases and normalizations stay Mul and Add on the last axis, "same" padding
of strided convolutions becomes a Pad, a depthwise kernel is reshaped on the fly, and Flatten turns into shape
arithmetic in int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

TO_FIRST, TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]
OPSET = 13


class Builder:
    """Collects nodes and initializers; every method returns the name of the value it made."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.count = 0

    def weight(self, name: str, *shape: int, scale: float | None = None, offset: float = 0.0) -> str:
        """Add a float initializer of normal numbers, scaled by the fan-in unless `scale` says otherwise."""
        if scale is None:
            scale = float(np.prod(shape[1:])) ** -0.5
        return self.constant(name, (offset + scale * self.random.standard_normal(shape)).astype(np.float32))

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Add an initializer."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def scalar(self, name: str, number: float) -> str:
        """Add a float initializer without dims."""
        return self.constant(name, np.array(number, np.float32))

    def node(self, op_type: str, name: str, *operands: str, **attributes: Any) -> str:
        """Add a node whose one result is called `NAME:0`, as in TensorFlow."""
        self.nodes.append(helper.make_node(op_type, list(operands), [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def transposed(self, op_type: str, name: str, x: str, *weights: str, **attributes: Any) -> str:
        """Add a channels-first operator between two Transposes."""
        self.count += 2
        first = self.node("Transpose", f"{name}__{self.count}", x, perm=TO_FIRST)
        y = self.node(op_type, name, first, *weights, **attributes)
        return self.node("Transpose", f"{name}__{self.count + 1}", y, perm=TO_LAST)

    def convolution(
        self, name: str, x: str, channels: tuple[int, int], size: int, stride: int = 1, group: int = 1
    ) -> str:
        """Add a convolution with "same" padding and no bias."""
        weight = self.weight(f"{name}/kernel", channels[1], channels[0] // group, size, size)
        around = (size - 1) // 2
        attributes: dict[str, Any] = {"kernel_shape": [size, size], "strides": [stride, stride], "group": group}
        if stride > 1:
            pads = self.constant(f"{name}/paddings", np.array([0, 0, 0, 0, 0, around, around, 0], np.int64))
            x = self.node("Pad", f"{name}/Pad", x, pads)
            return self.transposed("Conv", f"{name}/Conv2D", x, weight, pads=[0, 0, 0, 0], **attributes)
        return self.transposed("Conv", f"{name}/Conv2D", x, weight, pads=[around] * 4, **attributes)

    def scale_and_shift(self, name: str, x: str, channels: int) -> str:
        """Add a folded normalization: Mul and Add on the last axis."""
        x = self.node("Mul", f"{name}/mul_1", x, self.weight(f"{name}/mul", channels, scale=0.2, offset=1.0))
        return self.node("Add", f"{name}/add_1", x, self.weight(f"{name}/sub", channels, scale=0.2))

    def normalization(self, name: str, x: str, channels: int) -> str:
        """Add a BatchNormalization between Transposes (converters keep the fused operator)."""
        scale = self.weight(f"{name}/gamma", channels, scale=0.2, offset=1.0)
        bias = self.weight(f"{name}/beta", channels, scale=0.2)
        mean = self.weight(f"{name}/moving_mean", channels, scale=0.2)
        variance = (0.5 + self.random.random_sample(channels)).astype(np.float32)
        self.constant(f"{name}/moving_variance", variance)
        operands = (scale, bias, mean, f"{name}/moving_variance")
        return self.transposed("BatchNormalization", f"{name}/FusedBatchNormV3", x, *operands, epsilon=1e-3)

    def depthwise(self, name: str, x: str, channels: int) -> str:
        """Add a 3x3 depthwise convolution whose kernel is stored `[h, w, channels, 1]` and moved at run time."""
        kernel = self.weight(f"{name}/depthwise_weights", 3, 3, channels, 1, scale=0.3)
        kernel = self.node("Transpose", f"{name}/kernel__1", kernel, perm=[2, 3, 0, 1])
        shape = self.constant(f"{name}/kernel_shape", np.array([channels, 1, 3, 3], np.int64))
        kernel = self.node("Reshape", f"{name}/kernel__2", kernel, shape)
        attributes = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4, "group": channels}
        return self.transposed("Conv", f"{name}/depthwise", x, kernel, **attributes)

    def flatten(self, name: str, x: str, features: int) -> str:
        """Add what a Flatten layer becomes: the batch size read from the shape, in int32, and a Reshape."""
        for text, number in (("stack", 0), ("stack_1", 1)):
            self.constant(f"{name}/{text}", np.array([number], np.int64))
        shape = self.node("Shape", f"{name}/Shape__1", x)
        shape = self.node("Cast", f"{name}/Shape", shape, to=TensorProto.INT32)
        batch = self.node("Slice", f"{name}/strided_slice__1", shape, f"{name}/stack", f"{name}/stack_1")
        batch = self.node("Squeeze", f"{name}/strided_slice", batch, f"{name}/stack")
        batch = self.node("Unsqueeze", f"{name}/Reshape/shape__1", batch, f"{name}/stack")
        rest = self.constant(f"{name}/Reshape/shape/1", np.array([features], np.int32))
        shape = self.node("Concat", f"{name}/Reshape/shape", batch, rest, axis=0)
        shape = self.node("Cast", f"{name}/Reshape__1", shape, to=TensorProto.INT64)
        return self.node("Reshape", f"{name}/Reshape", x, shape)


def build(seed: int) -> ModelProto:
    """Build the classifier: `image [batch, 32, 32, 3]` to `probabilities [batch, 10]`."""
    b = Builder(seed)
    x = b.node("Cast", "model/Cast", "image", to=TensorProto.FLOAT)
    x = b.node("Mul", "model/rescaling/mul", x, b.scalar("model/rescaling/Cast/x", 1 / 127.5))
    x = b.node("Sub", "model/rescaling/sub", x, b.scalar("model/rescaling/Cast_1/x", 1.0))
    x = b.convolution("model/conv1", x, (3, 8), 3, stride=2)
    x = b.normalization("model/bn1", x, 8)
    x = b.node("Relu", "model/relu1/Relu", x)
    x = b.transposed("MaxPool", "model/pool1/MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])

    y = b.depthwise("model/block1/dw", x, 8)
    y = b.scale_and_shift("model/block1/bn", y, 8)
    limits = [b.scalar(f"model/const{number}", number) for number in (0, 6)]
    y = b.node("Clip", "model/block1/Relu6", y, *limits)
    y = b.convolution("model/block1/pw", y, (8, 12), 1)
    y = b.node("Add", "model/block1/BiasAdd", y, b.weight("model/block1/bias", 12, scale=0.2))

    z = b.convolution("model/block2/conv", y, (12, 12), 3)
    z = b.normalization("model/block2/bn", z, 12)
    z = b.node("Relu", "model/block2/Relu", z)
    x = b.node("Add", "model/block2/add", y, z)

    gate = b.node("ReduceMean", "model/gate/Mean", x, axes=[1, 2], keepdims=1)
    gate = b.convolution("model/gate/conv", gate, (12, 12), 1)
    gate = b.node("Sigmoid", "model/gate/Sigmoid", gate)
    x = b.node("Mul", "model/gate/mul", x, gate)

    left = b.convolution("model/mixed/left", x, (12, 8), 1)
    right = b.convolution("model/mixed/right", x, (12, 8), 3)
    x = b.node("Concat", "model/mixed/concat", left, right, axis=3)
    x = b.node("LeakyRelu", "model/mixed/LeakyRelu", x, alpha=0.1)
    x = b.transposed("MaxPool", "model/pool2/MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Identity", "model/dropout/Identity", x)

    pooled = b.node("ReduceMean", "model/average/Mean", x, axes=[1, 2], keepdims=0)
    pooled = b.node("MatMul", "model/average/MatMul", pooled, b.weight("model/average/kernel", 16, 10, scale=0.2))
    x = b.flatten("model/flatten", x, 16 * 4 * 4)
    x = b.node("MatMul", "model/dense/MatMul", x, b.weight("model/dense/kernel", 16 * 4 * 4, 10, scale=0.03))
    x = b.node("Add", "model/dense/BiasAdd", x, b.weight("model/dense/bias", 10, scale=0.2))
    x = b.node("Add", "model/add", x, pooled)
    b.nodes.append(helper.make_node("Softmax", [x], ["probabilities"], name="model/Softmax"))

    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 32, 32, 3])
    probabilities = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(b.nodes, "channels_last", [image], [probabilities], b.initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="graphopt models/make.py")
