"""Random models full of Transposes, for holding the layout pass against the runtime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Shape = tuple[int, ...]


class Maker:
    """Adds random nodes that fit what is there."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.choose.choice([11, 13, 17, 18, 21])
        self.nodes: list[NodeProto] = []
        self.weights: list[Any] = []
        self.values: list[tuple[str, Shape]] = []
        rank = self.choose.choice([2, 3, 4, 4, 4, 5])
        shape = tuple(self.choose.choice([1, 2, 3, 4]) for _ in range(rank))
        self.inputs = [(f"in{index}", shape) for index in range(self.choose.choice([1, 1, 2]))]
        self.values += self.inputs

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(array), name))
        return name

    def integers(self, items: Any) -> str:
        return self.weight(np.array(items, np.int64))

    def floats(self, shape: Shape) -> str:
        return self.weight(self.numbers.standard_normal(shape).astype(np.float32))

    def add(self, op_type: str, operands: list[str], *shapes: Shape, **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{index}" for index in range(len(shapes))]
        self.nodes.append(helper.make_node(op_type, operands, names, **attributes))
        self.values += zip(names, [tuple(int(size) for size in shape) for shape in shapes], strict=True)
        return names

    def with_axes(self, op_type: str, x: str, axes: list[int], shape: Shape, since: int, **attributes: Any) -> None:
        if self.opset >= since:
            self.add(op_type, [x, self.integers(axes)], shape, **attributes)
        else:
            self.add(op_type, [x], shape, axes=axes, **attributes)

    def broadcast(self, shape: Shape) -> str:
        """A weight of any rank that broadcasts to a shape."""
        rank = self.choose.randint(0, len(shape))
        return self.floats(tuple(self.choose.choice([1, size]) for size in shape[len(shape) - rank :]))

    def mixed(self, *names: str) -> list[str]:
        return self.choose.sample(names, len(names))

    # --- kinds of nodes

    def transpose(self, x: str, shape: Shape) -> None:
        layouts = [[0, 3, 1, 2], [0, 2, 3, 1]] if len(shape) == 4 else [list(range(len(shape)))[::-1]]
        perm = self.choose.choice([*layouts, self.choose.sample(range(len(shape)), len(shape))])
        self.add("Transpose", [x], tuple(shape[axis] for axis in perm), perm=perm)

    def unary(self, x: str, shape: Shape) -> None:
        names = ["Abs", "Erf", "Identity", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh"]
        self.add(self.choose.choice(names), [x], shape)

    def binary(self, x: str, shape: Shape) -> None:
        other, own = self.choose.choice(self.values)
        try:
            result = np.broadcast_shapes(shape, own)
        except ValueError:
            return
        self.add(self.choose.choice(["Add", "Mul", "Sub"]), self.mixed(x, other), result)

    def with_weight(self, x: str, shape: Shape) -> None:
        self.add(self.choose.choice(["Add", "Div", "Mul", "Sub"]), self.mixed(x, self.broadcast(shape)), shape)

    def variadic(self, x: str, shape: Shape) -> None:
        self.add("Sum", self.mixed(x, self.broadcast(shape), x), shape)

    def clip(self, x: str, shape: Shape) -> None:
        bounds = [self.weight(np.float32(bound)) for bound in (-1, 1)]
        self.add("Clip", [x, *bounds], shape)

    def where(self, x: str, shape: Shape) -> None:
        condition = self.weight(self.numbers.integers(0, 2, shape).astype(bool))
        self.add("Where", [condition, *self.mixed(x, self.broadcast(shape))], shape)

    def concat(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        part = (*shape[:axis], 2, *shape[axis + 1 :])
        operands = self.mixed(x, self.floats(part)) if self.choose.random() < 0.6 else [x, x]
        size = shape[axis] + (2 if len(set(operands)) > 1 else shape[axis])
        self.add("Concat", operands, (*shape[:axis], size, *shape[axis + 1 :]), axis=self.signed(axis, shape))

    def split(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        if shape[axis] < 2:
            return
        sizes = [1, shape[axis] - 1]
        shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        if self.opset >= 13:
            self.add("Split", [x, self.integers(sizes)], *shapes, axis=axis)
        else:
            self.add("Split", [x], *shapes, axis=axis, split=sizes)

    def slice(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        if shape[axis] < 2:
            return
        result = (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :])
        starts = [0] * axis + [1]
        if self.choose.random() < 0.5:
            self.add("Slice", [x, self.integers(starts), self.integers([99] * (axis + 1))], result)
        else:
            axes = self.integers([self.signed(axis, shape)])
            self.add("Slice", [x, self.integers([1]), self.integers([99]), axes], result)

    def pad(self, x: str, shape: Shape) -> None:
        pads = [self.choose.choice([0, 0, 1]) for _ in range(2 * len(shape))]
        sizes = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
        self.add("Pad", [x, self.integers(pads)], tuple(map(sum, sizes)))

    def reduce(self, x: str, shape: Shape) -> None:
        axes = self.choose.sample(range(len(shape)), self.choose.randint(1, len(shape)))
        keeps = self.choose.choice([0, 1])
        result = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes)
        name = self.choose.choice(["ReduceL2", "ReduceMean", "ReduceSum"])
        signed = [self.signed(axis, shape) for axis in axes]
        self.with_axes(name, x, signed, result, 13 if name == "ReduceSum" else 18, keepdims=keeps)

    def arg_max(self, x: str, shape: Shape) -> None:
        axis, keeps = self.choose.randrange(len(shape)), self.choose.choice([0, 1])
        result = tuple(1 if place == axis else size for place, size in enumerate(shape) if keeps or place != axis)
        (found,) = self.add("ArgMax", [x], result, axis=axis, keepdims=keeps)
        self.values.pop()
        self.add("Cast", [found], result, to=FLOAT)

    def squeeze(self, x: str, shape: Shape) -> None:
        ones = [axis for axis, size in enumerate(shape) if size == 1]
        if ones:
            axis = self.choose.choice(ones)
            self.with_axes("Squeeze", x, [axis], (*shape[:axis], *shape[axis + 1 :]), 13)

    def unsqueeze(self, x: str, shape: Shape) -> None:
        if len(shape) < 5:
            axis = self.choose.randint(0, len(shape))
            self.with_axes("Unsqueeze", x, [axis], (*shape[:axis], 1, *shape[axis:]), 13)

    def softmax(self, x: str, shape: Shape) -> None:
        if self.opset >= 13:
            axis = self.choose.randrange(len(shape))
            self.add(self.choose.choice(["LogSoftmax", "Softmax"]), [x], shape, axis=axis)

    def reshape(self, x: str, shape: Shape) -> None:
        if len(shape) < 2:
            return
        axis = self.choose.randrange(len(shape) - 1)
        if self.choose.random() < 0.6:
            result = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        elif shape[axis] == 4 and len(shape) < 5:
            result = (*shape[:axis], 2, 2, *shape[axis + 1 :])
        else:
            return
        target = list(result)
        if self.choose.random() < 0.4:
            target[self.choose.randrange(len(target))] = -1
        self.add("Reshape", [x, self.integers(target)], result)

    def tile(self, x: str, shape: Shape) -> None:
        repeats = [self.choose.choice([1, 1, 2]) for _ in shape]
        self.add("Tile", [x, self.integers(repeats)], tuple(a * b for a, b in zip(shape, repeats, strict=True)))

    def expand(self, x: str, shape: Shape) -> None:
        rank = self.choose.randint(0, len(shape))
        target = [self.choose.choice([1, 2 if size == 1 else size]) for size in shape[len(shape) - rank :]]
        self.add("Expand", [x, self.integers(target)], np.broadcast_shapes(shape, tuple(target)))

    def gather(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        if self.choose.random() < 0.5:
            self.add("Gather", [x, self.integers(0)], (*shape[:axis], *shape[axis + 1 :]), axis=axis)
        else:
            self.add("Gather", [x, self.integers([0, -1])], (*shape[:axis], 2, *shape[axis + 1 :]), axis=axis)

    def top_k(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        result = (*shape[:axis], 1, *shape[axis + 1 :])
        self.add("TopK", [x, self.integers([1])], result, result, axis=axis)
        self.values.pop()

    def cum_sum(self, x: str, shape: Shape) -> None:
        self.add("CumSum", [x, self.integers(self.choose.randrange(len(shape)))], shape)

    def signed(self, axis: int, shape: Shape) -> int:
        """The axis, counted from the front or from the end."""
        return axis - self.choose.choice([0, len(shape)])


_KINDS = (
    *[Maker.transpose] * 6,
    *[Maker.unary] * 3,
    *[Maker.with_weight] * 2,
    *[Maker.binary] * 2,
    *(Maker.variadic, Maker.clip, Maker.where, Maker.concat, Maker.split, Maker.slice, Maker.pad, Maker.reduce),
    *(Maker.arg_max, Maker.squeeze, Maker.unsqueeze, Maker.softmax, Maker.reshape, Maker.tile, Maker.expand),
    *(Maker.gather, Maker.top_k, Maker.cum_sum),
)


def random_model(seed: int) -> tuple[ModelProto, list[dict[str, Any]]]:
    """A model and feeds for it: ordinary numbers, special ones, and other sizes where dims are free."""
    maker = Maker(seed)
    for _ in range(maker.choose.randint(4, 22)):
        x, shape = maker.choose.choice(maker.values[-6:])
        kind = maker.choose.choice(_KINDS)
        if shape or kind in (Maker.unary, Maker.binary, Maker.with_weight, Maker.unsqueeze):
            kind(maker, x, shape)
        if int(np.prod(maker.values[-1][1])) > 3000:
            break
    read = {name for node in maker.nodes for name in node.input}
    made = maker.values[len(maker.inputs) :]
    outputs = [value for value in made if value[0] not in read]
    inner = [value for value in made if value[0] in read]
    outputs += maker.choose.sample(inner, min(len(inner), maker.choose.choice([0, 0, 1, 2])))
    is_free = maker.choose.random() < 0.5
    infos = []
    for name, shape in maker.inputs:
        free = [is_free and maker.choose.random() < 0.6 for _ in shape]
        dims = [f"{name}_{axis}" if free[axis] else size for axis, size in enumerate(shape)]
        infos.append(helper.make_tensor_value_info(name, FLOAT, dims))
    graph = helper.make_graph(
        maker.nodes,
        "random",
        infos,
        [helper.make_tensor_value_info(name, FLOAT, [None] * len(shape)) for name, shape in outputs],
        maker.weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", maker.opset)], ir_version=8 if maker.opset < 21 else 10
    )
    return model, [*_feeds(maker), *_resized(maker, infos)]


def _feeds(maker: Maker) -> list[dict[str, Any]]:
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, 0.5, -2.5], np.float32)
    return [
        {name: maker.numbers.standard_normal(shape).astype(np.float32) for name, shape in maker.inputs},
        {name: maker.numbers.choice(special, shape) for name, shape in maker.inputs},
    ]


def _resized(maker: Maker, infos: list[Any]) -> list[dict[str, Any]]:
    """Feeds of other sizes; the model refuses those that do not fit together.

    Not 1: a Slice may leave nothing of it, and ONNX Runtime joins what is empty to anything, with random contents.
    """
    feeds = []
    for _ in range(2):
        feed = {}
        for info in infos:
            dims = info.type.tensor_type.shape.dim
            shape = [dim.dim_value if dim.HasField("dim_value") else maker.choose.randint(2, 4) for dim in dims]
            feed[info.name] = maker.numbers.standard_normal(shape).astype(np.float32)
        feeds.append(feed)
    return feeds
