"""What the questions of `forms.py` are written with: graphs under construction, forms, and parts that many share."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

NUMPY = {"f32": np.float32, "f16": np.float16}
ONNX = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}
MICROSOFT = "com.microsoft"
NHWC = (("prefer_nhwc", "1"),)
NHWC_BIAS = (*NHWC, ("fuse_conv_bias", "1"))
BIAS = (("fuse_conv_bias", "1"),)
GROUPS = 32
Array = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=64)
def drawn(name: str, shape: tuple[int, ...]) -> Array:
    """Normal numbers that depend on the name only: every form has the same weights and inputs."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)


class Graph:
    """A graph under construction; values are names."""

    def __init__(self, dtype: str, inputs: Mapping[str, Sequence[int]]) -> None:
        """Begin a graph with those inputs."""
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}
        self.inputs = inputs

    def op(self, kind: str, *operands: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; its result, or its results where it has several."""
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        domain = attributes.pop("domain", "")
        self.nodes.append(helper.make_node(kind, list(operands), names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def ms(self, kind: str, *operands: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node of the runtime's own domain."""
        return self.op(kind, *operands, outputs=outputs, domain=MICROSOFT, **attributes)

    def constant(self, array: Array, *, keep: bool = False) -> str:
        """A weight of the graph's dtype, or of its own where `keep` says so."""
        ready = np.ascontiguousarray(array if keep else array.astype(NUMPY[self.dtype]))
        dims = "x".join(map(str, ready.shape))
        name = f"w{zlib.crc32(ready.tobytes()):x}_{ready.dtype}_{dims}"
        self.weights.setdefault(name, ready)
        return name

    def number(self, value: float) -> str:
        """One number."""
        return self.constant(np.asarray(value, np.float32))

    def shape(self, *dims: int) -> str:
        """An int64 list."""
        return self.constant(np.asarray(dims, np.int64), keep=True)

    def model(self, results: Sequence[str]) -> bytes:
        """The finished model, serialized."""
        element = ONNX[self.dtype]
        infos = [helper.make_tensor_value_info(name, element, list(shape)) for name, shape in self.inputs.items()]
        ends = [helper.make_tensor_value_info(name, element, None) for name in results]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "form", infos, ends, weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


Build = Callable[[Graph], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write it.

    Attributes:
        build: Writes it into a graph; the names of the results.
        cuda: Only CUDA has the operators or the options.
        dtypes: Where it exists.
        options: Options of the provider.
        falls_back: Some small nodes may run on the CPU.
    """

    name: str
    build: Build
    inputs: Mapping[str, Sequence[int]]
    cuda: bool = False
    dtypes: tuple[str, ...] = ("f32", "f16")
    options: tuple[tuple[str, str], ...] = ()
    falls_back: bool = False

    def model(self, dtype: str) -> bytes:
        """The serialized model."""
        graph = Graph(dtype, self.inputs)
        return graph.model(self.build(graph))

    def suits(self, dtype: str, is_cuda: bool) -> bool:
        """True if there is something to time."""
        return dtype in self.dtypes and (is_cuda or not self.cuda)


@dataclass(slots=True)
class Question:
    """What is asked."""

    about: str
    inputs: dict[str, tuple[int, ...]]
    forms: list[Form] = field(default_factory=list)

    def add(self, name: str, build: Build, **more: Any) -> None:
        """Another form; the first one is what the others are set against."""
        self.forms.append(Form(name, build, self.inputs, **more))

    def feeds(self, dtype: str) -> dict[str, Array]:
        """Inputs of a run."""
        return {name: drawn(name, shape).astype(NUMPY[dtype]) for name, shape in self.inputs.items()}


def weight(name: str, *shape: int) -> Array:
    """A weight that keeps the size of what it multiplies; the last dim but one is summed over."""
    return drawn(name, shape) / np.float32(math.sqrt(shape[-2] if len(shape) > 1 else 10.0))


def kernel(name: str, out: int, into: int, size: int) -> Array:
    """A convolution's weight."""
    return drawn(name, (out, into, size, size)) / np.float32(math.sqrt(into * size * size))


# --- parts


def silu(g: Graph, x: str) -> str:
    """X * sigmoid(x)."""
    return str(g.op("Mul", x, g.op("Sigmoid", x)))


def gelu_parts(g: Graph, x: str) -> str:
    """Gelu as exporters write it."""
    erf = g.op("Erf", g.op("Div", x, g.number(math.sqrt(2))))
    return str(g.op("Mul", g.op("Mul", x, g.op("Add", erf, g.number(1.0))), g.number(0.5)))


def layer_norm(g: Graph, x: str, width: int, number: int) -> str:
    """LayerNormalization of the last axis."""
    scale, shift = weight(f"scale{number}", width) + 1, weight(f"shift{number}", width)
    return str(g.op("LayerNormalization", x, g.constant(scale), g.constant(shift), axis=-1))


def conv(g: Graph, x: str, number: int | str, out: int, into: int, size: int = 3) -> str:
    """A Conv with bias that keeps the size."""
    w, b = kernel(f"k{number}", out, into, size), weight(f"kb{number}", out)
    pad = size // 2
    return str(g.op("Conv", x, g.constant(w), g.constant(b), pads=[pad] * 4, kernel_shape=[size, size]))


def nhwc_conv(g: Graph, x: str, number: int | str, out: int, into: int, size: int = 3) -> str:
    """The same in the runtime's channels-last operator."""
    w, b = kernel(f"k{number}", out, into, size).transpose(0, 2, 3, 1), weight(f"kb{number}", out)
    pad = size // 2
    return str(g.ms("NhwcConv", x, g.constant(w), g.constant(b), pads=[pad] * 4, kernel_shape=[size, size]))


def fused_conv(g: Graph, x: str, number: int | str, out: int, into: int, size: int = 3, skip: str = "") -> str:
    """The same with Relu, and a sum before it, inside."""
    w, b = kernel(f"k{number}", out, into, size), weight(f"kb{number}", out)
    operands = [x, g.constant(w), g.constant(b)] + ([skip] if skip else [])
    pad = size // 2
    return str(g.ms("FusedConv", *operands, activation="Relu", pads=[pad] * 4, kernel_shape=[size, size]))


def to_last(g: Graph, x: str) -> str:
    """To channels last."""
    return str(g.op("Transpose", x, perm=[0, 2, 3, 1]))


def to_first(g: Graph, x: str) -> str:
    """To channels first."""
    return str(g.op("Transpose", x, perm=[0, 3, 1, 2]))


def projected(g: Graph, x: str, name: str, into: int, out: int, bias: bool = True) -> str:
    """A layer of MatMul and Add."""
    product = g.op("MatMul", x, g.constant(weight(name, into, out)))
    return str(g.op("Add", product, g.constant(weight(f"{name}b", out)))) if bias else str(product)
