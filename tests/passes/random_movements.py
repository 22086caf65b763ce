"""Random models full of views, slices, concatenations, pads and casts, to hold the passes on them to the runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.passes.random_layouts import FLOAT, Maker, Shape, _feeds


class Mover(Maker):
    """Adds more kinds of movement; the first axis of the inputs may be free, so that nothing here names its size."""

    def reshape_freely(self, x: str, shape: Shape) -> None:
        """Other axes behind the first, or the first merged with the next."""
        if len(shape) < 2:
            return
        rest = int(np.prod(shape[1:]))
        if rest and self.choose.random() < 0.6:
            first = self.choose.choice([size for size in (1, 2, 3, 4, 6) if rest % size == 0])
            result = (shape[0], first, rest // first)
            target = self.choose.choice([[0, first, rest // first], [-1, first, rest // first]])
        else:
            result = (shape[0] * shape[1], *shape[2:])
            target = [-1, *shape[2:]]
        self.add("Reshape", [x, self.integers(target)], result)

    def flatten(self, x: str, shape: Shape) -> None:
        axis = self.choose.randint(0, len(shape))
        self.add("Flatten", [x], (int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))), axis=axis)

    def roll(self, x: str, shape: Shape) -> None:
        """Two parts of one tensor the other way round, or as they were."""
        axis = self.choose.randrange(len(shape))
        if shape[axis] < 2 or self.opset < 10:
            return
        cut = self.choose.randint(1, shape[axis] - 1)
        names = []
        for start, end in ((0, cut), (cut, 2**31 - 1)):
            part = (*shape[:axis], len(range(shape[axis])[start:end]), *shape[axis + 1 :])
            operands = [x, self.integers([start]), self.integers([end]), self.integers([self.signed(axis, shape)])]
            names += self.add("Slice", operands, part)
        if self.choose.random() < 0.8:
            self.add("Concat", self.mixed(*names), shape, axis=self.signed(axis, shape))

    def concat_alike(self, x: str, shape: Shape) -> None:
        """Nothing of a size of its own: the runtime joins that to what is empty, with random contents."""
        axis, times = self.choose.randrange(len(shape)), self.choose.choice([2, 2, 3])
        result = (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])
        self.add("Concat", [x] * times, result, axis=self.signed(axis, shape))

    def stride(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        step = self.choose.choice([2, -1, 1, -2])
        start, end = (0, 2**31 - 1) if step > 0 else (-1, -(2**31) + 1)
        result = (*shape[:axis], len(range(shape[axis])[::step]), *shape[axis + 1 :])
        items = [self.integers([item]) for item in (start, end, axis, step)]
        self.add("Slice", [x, *items], result)

    def pick(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        if axis == 0:
            return
        places = [self.choose.randrange(-shape[axis], shape[axis]) for _ in range(self.choose.randint(1, 4))]
        self.add("Gather", [x, self.integers(places)], (*shape[:axis], len(places), *shape[axis + 1 :]), axis=axis)

    def crop_and_pad(self, x: str, shape: Shape) -> None:
        axis = self.choose.randrange(len(shape))
        if shape[axis] < 2:
            return
        part = (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :])
        (cut,) = self.add("Slice", [x, *(self.integers([item]) for item in (1, 2**31 - 1, axis))], part)
        pads = [0] * (2 * len(shape))
        pads[axis + self.choose.choice([0, len(shape)])] = 1
        self.add("Pad", [cut, self.integers(pads)], shape)

    def cast(self, x: str, shape: Shape) -> None:
        types = [TensorProto.DOUBLE, TensorProto.INT32, TensorProto.BOOL]
        (middle,) = self.add("Cast", [x], shape, to=self.choose.choice(types))
        self.values.pop()
        self.add("Cast", [middle], shape, to=FLOAT)

    def rows(self, x: str, shape: Shape) -> None:
        if len(shape) > 1:
            size = self.choose.choice([2, 3])
            self.add("MatMul", [x, self.floats((shape[-1], size))], (*shape[:-1], size))

    def grow(self, x: str, shape: Shape) -> None:
        """An Expand to another tensor's shape, which the other one is then added to."""
        (like,) = self.add("Shape", [x], (len(shape),))
        self.values.pop()
        small = self.floats(tuple(self.choose.choice([1, size]) if axis else 1 for axis, size in enumerate(shape)))
        (large,) = self.add("Expand", [small, like], shape)
        self.add(self.choose.choice(["Add", "Div", "Mul"]), self.mixed(x, large), shape)


_KINDS = (
    *[Mover.reshape_freely] * 6,
    *[Mover.unsqueeze] * 3,
    *[Mover.squeeze] * 3,
    *[Mover.flatten] * 2,
    *[Mover.transpose] * 3,
    *[Mover.roll] * 3,
    *(Mover.stride, Mover.stride, Mover.pick, Mover.pick, Mover.crop_and_pad, Mover.cast, Mover.rows, Mover.grow),
    *(
        Mover.unary,
        Mover.unary,
        Mover.with_weight,
        Mover.binary,
        Mover.concat_alike,
        Mover.split,
        Mover.slice,
        Mover.pad,
    ),
    *(Mover.softmax, Mover.gather, Mover.expand, Mover.tile, Mover.reshape),
)


def random_model(seed: int) -> tuple[ModelProto, list[dict[str, Any]]]:
    """A model and feeds for it; every second one has a free first dim, which is 0 in one of the feeds."""
    maker = Mover(seed)
    for _ in range(maker.choose.randint(4, 20)):
        x, shape = maker.choose.choice(maker.values[-4:])
        kind = maker.choose.choice(_KINDS)
        if shape:
            kind(maker, x, shape)
        if int(np.prod(maker.values[-1][1])) > 3000:
            break
    read = {name for node in maker.nodes for name in node.input}
    made = maker.values[len(maker.inputs) :]
    outputs = [value for value in made if value[0] not in read]
    inner = [value for value in made if value[0] in read]
    outputs += maker.choose.sample(inner, min(len(inner), maker.choose.choice([0, 0, 0, 1])))
    is_free = maker.choose.random() < 0.6
    infos = []
    for name, shape in maker.inputs:
        dims = [f"{name}_{axis}" if is_free and not axis else size for axis, size in enumerate(shape)]
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
    feeds = _feeds(maker)
    if is_free:
        sizes = (0, 1, 3)
        feeds += [
            {name: maker.numbers.standard_normal((size, *shape[1:])).astype(np.float32) for name, shape in maker.inputs}
            for size in sizes
        ]
    return model, feeds
