"""Random applications of operators, with operands whose dims and contents may be symbolic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = Any
Make = Callable[["Builder"], None]
CASES: dict[str, Make] = {}


class Builder:
    """Collects a model of a few nodes and the feeds it was made for."""

    def __init__(self, seed: int, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.initializers: list[TensorProto] = []
        self.feeds: dict[str, Array] = {}
        self.free: dict[str, list[int]] = {}
        self.count = 0
        self.smallest = 0
        """The least size of a resized dim; 1 where the runtime dies of an empty operand."""

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    # --- choices

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def size(self) -> int:
        return int(self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7], p=[0.08, 0.1, 0.1, 0.2, 0.2, 0.14, 0.1, 0.08]))

    def shape(self, least: int = 0, most: int = 4) -> list[int]:
        return [self.size() for _ in range(int(self.rng.integers(least, most + 1)))]

    def broadcastable(self, shape: list[int]) -> list[int]:
        """A shape that broadcasts to the given one and may be shorter."""
        cut = int(self.rng.integers(0, len(shape) + 1)) if self.chance(0.4) else 0
        return [1 if self.chance(0.3) else size for size in shape[cut:]]

    # --- operands

    def array(self, shape: list[int], dtype: Any = np.float32) -> Array:
        kind = np.dtype(dtype)
        if kind.kind == "f":
            return np.asarray(self.rng.standard_normal(shape)).astype(kind)
        return np.asarray(self.rng.integers(0, 2 if kind.kind == "b" else 9, shape)).astype(kind)

    def feed(self, array: Array, *, rate: float = 0.7) -> str:
        """An input; some of its dims are free."""
        name = self.name()
        free = [axis for axis in range(array.ndim) if self.chance(rate)]
        dims = [f"{name}_{axis}" if axis in free else size for axis, size in enumerate(array.shape)]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        self.feeds[name], self.free[name] = array, free
        return name

    def tensor(self, shape: list[int], dtype: Any = np.float32, *, rate: float = 0.7) -> str:
        """An input of random numbers."""
        return self.feed(self.array(shape, dtype), rate=rate)

    def weights(self, shape: list[int]) -> str:
        """An input of fixed shape."""
        return self.tensor(shape, rate=0)

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        name = self.name()
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def carried(self, vector: Any, *, rate: float = 0.5) -> str:
        """An int64 vector, of which some numbers are dims of an input."""
        numbers = [int(number) for number in np.asarray(vector).reshape(-1)]
        symbolic = [index for index, number in enumerate(numbers) if 0 <= number < 12 and self.chance(rate)][:5]
        if not symbolic:
            return self.constant(np.asarray(vector))
        source = self.feed(np.zeros([numbers[index] for index in symbolic], np.float32), rate=0.9)
        dims = self.op("Shape", [source])
        pieces, taken = [], 0
        for index, number in enumerate(numbers):
            if index in symbolic:
                pieces.append(self.op("Slice", [dims, *map(self.constant, ([taken], [taken + 1], [0]))]))
                taken += 1
            else:
                pieces.append(self.constant([number]))
        joined = self.op("Concat", pieces, axis=0)
        if np.ndim(vector) == 0:
            return self.op("Reshape", [joined, self.constant(np.zeros(0))])
        return joined

    def numbers(self, vector: Any) -> str:
        """An int64 operand: a constant, or one computed from dims."""
        return self.constant(vector) if self.chance(0.3) else self.carried(vector)

    def op(self, op_type: str, operands: list[str], results: int = 1, domain: str = "", **attributes: Any) -> str:
        """Append a node; returns its first result."""
        names = [self.name() for _ in range(results)]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, operands, names, domain=domain, **attributes))
        return names[0]

    def axis(self, rank: int) -> int:
        return int(self.rng.integers(-rank, rank))

    def model(self) -> ModelProto:
        outputs = [helper.make_empty_tensor_value_info(name) for node in self.nodes for name in node.output if name]
        graph = helper.make_graph(self.nodes, "case", self.inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def resized(self) -> dict[str, Array]:
        """Feeds in which some free dims have other sizes."""
        feeds = {}
        for name, array in self.feeds.items():
            shape = list(array.shape)
            for axis in self.free[name]:
                if self.chance(0.35):
                    shape[axis] = self.pick(self.smallest, 1, 2, 3, 6, shape[axis] + 1)
            feeds[name] = array if shape == list(array.shape) else self.array(shape, array.dtype)
        return feeds


def case(*names: str) -> Callable[[Make], Make]:
    def enter(make: Make) -> Make:
        for name in names:
            CASES[name] = make
        return make

    return enter


def each(*op_types: str) -> Callable[[Callable[[Builder, str], None]], Callable[[Builder, str], None]]:
    """Enter one case for each operator of a family."""

    def enter(make: Callable[[Builder, str], None]) -> Callable[[Builder, str], None]:
        for op_type in op_types:
            CASES[op_type] = lambda b, op_type=op_type: make(b, op_type)  # type: ignore[misc]
        return make

    return enter


def _axes_form(b: Builder, since: int, operands: list[str], axes: Any, attributes: dict[str, Any]) -> None:
    """Axes as an operand from an opset on, as an attribute before."""
    if axes is None:
        return
    if b.opset >= since:
        operands.append(b.numbers(axes))
    else:
        attributes["axes"] = list(axes)


# --- elementwise


@each("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mean", "Sum")
def _float_pair(b: Builder, op_type: str) -> None:
    shape = b.shape()
    shapes = [shape, b.broadcastable(shape)]
    operands = [b.tensor(one) for one in (shapes if b.chance() else shapes[::-1])]
    b.op(op_type, operands)


@each("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def _comparison(b: Builder, op_type: str) -> None:
    shape = b.shape()
    b.op(op_type, [b.tensor(shape, np.int64), b.tensor(b.broadcastable(shape), np.int64)])


@each("And", "Or", "Xor")
def _logic(b: Builder, op_type: str) -> None:
    shape = b.shape()
    b.op(op_type, [b.tensor(shape, bool), b.tensor(b.broadcastable(shape), bool)])


@each("Relu", "Sigmoid", "Abs", "Neg", "Ceil", "Floor", "Sqrt", "Erf", "Softmax", "LeakyRelu", "Trilu", "Clip", "IsNaN")
def _unary(b: Builder, op_type: str) -> None:
    b.op(op_type, [b.tensor(b.shape(2 if op_type == "Trilu" else 1))])


@case("Dropout")
def _dropout(b: Builder) -> None:
    b.op("Dropout", [b.tensor(b.shape(1))], 2)


@case("Where")
def _where(b: Builder) -> None:
    shape = b.shape()
    b.op("Where", [b.tensor(b.broadcastable(shape), bool), b.tensor(shape), b.tensor(b.broadcastable(shape))])


@case("Cast")
def _cast(b: Builder) -> None:
    target = b.pick(TensorProto.INT32, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.FLOAT16)
    b.op("Cast", [b.tensor(b.shape())], to=target)


@case("CastLike")
def _cast_like(b: Builder) -> None:
    b.op("CastLike", [b.tensor(b.shape()), b.tensor([1], np.int32)])


# --- contents


@each("Add:contents", "Sub:contents", "Mul:contents", "Div:contents", "Mod:contents", "Min:contents", "Max:contents")
def _content_pair(b: Builder, name: str) -> None:
    op_type = name.split(":")[0]
    length = int(b.rng.integers(1, 4))
    left = b.carried(b.rng.integers(0, 8, length), rate=0.8)
    right = b.numbers(b.rng.integers(1, 5, b.pick(length, 1)))
    if b.chance(0.3):
        left = b.op("Neg", [left])
    found = b.op(op_type, [left, right] if b.chance(0.7) else [right, left])
    follow(b, found)


@each("Equal:contents", "Less:contents", "Greater:contents", "LessOrEqual:contents", "GreaterOrEqual:contents")
def _content_test(b: Builder, name: str) -> None:
    length = int(b.rng.integers(1, 4))
    left = b.carried(b.rng.integers(0, 8, length), rate=0.8)
    right = b.pick(left, b.numbers(b.rng.integers(-1, 5, length)), b.constant(b.pick(-1, 0)))
    test = b.op(name.split(":")[0], [left, right])
    test = b.op("Not", [test]) if b.chance(0.3) else test
    b.op("Where", [test, left, b.numbers(b.rng.integers(0, 5, length))])
    b.op("Cast", [test], to=TensorProto.INT64)


def follow(b: Builder, value: str) -> str:
    """A few more operations on a vector."""
    for _ in range(int(b.rng.integers(0, 4))):
        op_type = b.pick("Add", "Mul", "Sub", "Max", "Min", "Abs", "Div", "Mod", "Relu")
        if op_type in ("Abs", "Relu"):
            if op_type == "Abs" or b.opset >= 14:
                value = b.op(op_type, [value])
        else:
            other = b.constant(int(b.rng.integers(1, 4)))
            value = b.op(op_type, [value, other] if b.chance(0.8) else [other, value])
    return value


@case("Reduce:contents")
def _content_reduce(b: Builder) -> None:
    vector = b.carried(b.rng.integers(0, 6, int(b.rng.integers(1, 5))), rate=0.8)
    keep = b.pick(0, 1)
    for op_type in ("ReduceProd", "ReduceMax", "ReduceMin"):
        b.op(op_type, [vector], keepdims=keep)
    b.op("ReduceSum", [vector, b.constant([0])], keepdims=keep)


@case("Vector:contents")
def _content_vector(b: Builder) -> None:
    """Operators that move the contents of vectors."""
    length = int(b.rng.integers(2, 6))
    vector = b.carried(b.rng.integers(0, 6, length), rate=0.8)
    order = [int(index) for index in b.rng.integers(-length, length, b.pick(1, 2, 3))]
    b.op("Gather", [vector, b.constant(order)], axis=0)
    b.op("Gather", [vector, b.constant(order[0])], axis=0)
    b.op("GatherElements", [vector, b.constant(order)], axis=0)
    b.op("Slice", [vector, *map(b.constant, ([b.pick(-2, 0, 1)], [b.pick(-1, 2, 99)], [0], [b.pick(1, 2, -1)]))])
    b.op("Concat", [vector, vector], axis=0)
    b.op("Reshape", [vector, b.constant(b.pick([-1], [1, -1], [-1, 1], [0]))])
    b.op("Tile", [vector, b.constant([b.pick(0, 1, 2)])])
    b.op("Expand", [b.op("Reshape", [vector, b.constant([1, -1])]), b.constant([2, 1])])
    if b.opset >= 13:
        b.op("Unsqueeze", [vector, b.constant([b.pick(0, 1, -1)])])
        b.op("Split", [vector, b.constant([1, length - 1])], 2, axis=0)
    b.op("CumSum", [vector, b.constant(0)], reverse=b.pick(0, 1), exclusive=b.pick(0, 1))
    b.op("Pad", [vector, b.constant([b.pick(0, 1), b.pick(0, 2)])])
    b.op("ScatterElements", [vector, b.constant([order[0]]), b.carried([3])], axis=0)
    b.op("ScatterND", [vector, b.constant([[order[0]]]), b.carried([3])])
    b.op("Transpose", [b.op("Reshape", [vector, b.constant([1, -1])])])
    b.op("Cast", [b.op("Cast", [vector], to=TensorProto.DOUBLE)], to=TensorProto.INT64)
    b.op("Cast", [b.op("Cast", [vector], to=TensorProto.FLOAT)], to=TensorProto.INT32)
    b.op("ReduceProd", [b.op("Reshape", [vector, b.constant([1, -1])])], keepdims=b.pick(0, 1))


@case("Float:contents")
def _content_floats(b: Builder) -> None:
    """Sizes that go through floating point, as exporters of Resize write it."""
    vector = b.carried(b.rng.integers(0, 9, 2), rate=0.5)
    wide = b.op("Cast", [vector], to=b.pick(TensorProto.DOUBLE, TensorProto.FLOAT))
    kind = np.float64 if b.nodes[-1].attribute[0].i == TensorProto.DOUBLE else np.float32
    found = b.op(b.pick("Mul", "Div", "Sub", "Add"), [wide, b.constant(b.pick(2.0, 1.0, 0.5, -2.0, 3.0), kind)])
    found = b.op("Neg", [found]) if b.chance(0.3) else found
    found = b.op(b.pick("Floor", "Ceil", "Round"), [found])
    b.op("Cast", [found], to=TensorProto.INT64)


@case("Shape")
def _shape(b: Builder) -> None:
    start, end = b.pick(None, -2, 0, 1, 5), b.pick(None, -1, 1, 2)
    b.op("Shape", [b.tensor(b.shape())], start=start, end=end) if b.opset >= 15 else b.op(
        "Shape", [b.tensor(b.shape())]
    )


@case("Size")
def _size(b: Builder) -> None:
    b.op("Size", [b.tensor(b.shape())])


@case("ConstantOfShape")
def _constant_of_shape(b: Builder) -> None:
    value = numpy_helper.from_array(np.array([b.pick(0, 1, -1)], b.pick(np.int64, np.float32)))
    b.op("ConstantOfShape", [b.numbers(b.shape(0, 3))], value=b.pick(value, None))


@case("Range")
def _range(b: Builder) -> None:
    start, limit, delta = (
        b.numbers(np.array(b.size())),
        b.numbers(np.array(b.size() + 2)),
        b.constant(b.pick(1, 2, 3, -1)),
    )
    b.op("Range", [start, limit, delta])


@case("NonZero")
def _non_zero(b: Builder) -> None:
    b.op("NonZero", [b.tensor(b.shape(1, 3), np.int64)])
    b.op("NonZero", [b.constant([0, 1, 2, 0])])
    b.op("NonZero", [b.carried([2, 3])])


@case("OneHot")
def _one_hot(b: Builder) -> None:
    indices = b.tensor(b.shape(1, 2), np.int64)
    axis = b.pick(-1, 0, 1)
    b.op("OneHot", [indices, b.numbers(np.array(b.size() + 1)), b.constant([0, 1], np.float32)], axis=axis)


@case("EyeLike")
def _eye_like(b: Builder) -> None:
    b.op("EyeLike", [b.tensor(b.shape(2, 2))], dtype=b.pick(None, TensorProto.INT64))


# --- views


@case("Reshape")
def _reshape(b: Builder) -> None:
    shape = b.shape(1, 4)
    rank = len(shape)
    choices: list[list[int]] = [
        [-1],
        [0] * rank,
        [*shape[:1], -1],
        [*([0] * (rank - 1)), -1],
        shape[::-1],
        [int(np.prod(shape[:2])), *shape[2:]],
        [int(np.prod(shape[:2])), -1],
        [-1, *shape[1:]],
        [1, *shape],
        [*shape, 1],
        [-1, 1, *shape[-1:]],
        [*shape[-1:], 0, -1] if rank > 1 else [-1, 1],
    ]
    allow = b.pick(None, None, 1) if b.opset >= 14 else None
    b.op("Reshape", [b.tensor(shape), b.numbers(b.pick(*choices))], allowzero=allow)


@case("Reshape:own")
def _reshape_own(b: Builder) -> None:
    """Targets made of the operand's own dims, as exporters write views."""
    shape = [b.size() for _ in range(3)]
    x = b.tensor(shape)
    dims = b.op("Shape", [x])
    first, second, third = (b.op("Gather", [dims, b.constant([index])], axis=0) for index in range(3))
    product = b.op("Mul", [first, second])
    minus, zero, one = (b.constant([number]) for number in (-1, 0, 1))
    parts = b.pick(
        [product, third],
        [product, minus],
        [first, minus],
        [minus, third],
        [first, b.op("Mul", [second, third])],
        [third, product],
        [first, one, second, third],
        [zero, minus, third],
        [second, first, third],
        [b.op("Div", [second, b.constant([2])]), b.constant([2]), first, third],
        [minus, b.op("Div", [second, b.constant([2])]), third],
        [b.op("Sub", [first, one]), minus],
        [b.op("Sub", [second, one]), first, third],
    )
    b.op("Reshape", [x, b.op("Concat", parts, axis=0)])


@case("Flatten")
def _flatten(b: Builder) -> None:
    shape = b.shape(1)
    b.op("Flatten", [b.tensor(shape)], axis=b.pick(0, 1, len(shape), -1))


@case("Squeeze")
def _squeeze(b: Builder) -> None:
    shape = b.shape(1)
    axis = b.axis(len(shape))
    shape[axis] = 1
    operands, attributes = [b.tensor(shape)], {}
    _axes_form(b, 13, operands, b.pick([axis], [axis], None), attributes)
    b.op("Squeeze", operands, **attributes)


@case("Unsqueeze")
def _unsqueeze(b: Builder) -> None:
    shape = b.shape()
    axes = sorted({b.axis(len(shape) + 1) for _ in range(1)})
    operands, attributes = [b.tensor(shape)], {}
    _axes_form(b, 13, operands, axes, attributes)
    b.op("Unsqueeze", operands, **attributes)


@case("Transpose")
def _transpose(b: Builder) -> None:
    shape = b.shape(1)
    b.op("Transpose", [b.tensor(shape)], perm=b.pick(None, [int(i) for i in b.rng.permutation(len(shape))]))


@case("Expand")
def _expand(b: Builder) -> None:
    shape = b.shape(1)
    small = b.broadcastable(shape)
    first, second = (small, shape) if b.chance() else (shape, small)
    b.op("Expand", [b.tensor(first), b.numbers(second)])


@case("Tile")
def _tile(b: Builder) -> None:
    shape = b.shape(1)
    b.op("Tile", [b.tensor(shape), b.numbers([b.pick(0, 1, 2, 3) for _ in shape])])


@each("DepthToSpace", "SpaceToDepth")
def _blocks(b: Builder, op_type: str) -> None:
    height, width = b.size(), b.size()
    shape = [b.size(), 8, height, width] if op_type == "DepthToSpace" else [b.size(), 3, 2 * height, 2 * width]
    b.op(op_type, [b.tensor(shape)], blocksize=2)


# --- selecting


@case("Gather")
def _gather(b: Builder) -> None:
    shape = [b.size() + 1 for _ in range(3)]
    b.op("Gather", [b.tensor(shape), b.feed(np.zeros(b.shape(0, 2), np.int64))], axis=b.axis(3))


@case("GatherElements")
def _gather_elements(b: Builder) -> None:
    b.op("GatherElements", [b.tensor([3, 4]), b.feed(np.zeros([b.size() % 4, b.size() % 5], np.int64))], axis=b.axis(2))


@case("GatherND")
def _gather_nd(b: Builder) -> None:
    indices = b.feed(np.zeros([2, b.size(), b.pick(1, 2)], np.int64), rate=0.5)
    b.op("GatherND", [b.tensor([2, 3, 4]), indices], batch_dims=b.pick(0, 1))


@each("ScatterElements", "ScatterND")
def _scatter(b: Builder, op_type: str) -> None:
    if op_type == "ScatterND":
        b.op(op_type, [b.tensor([3, 4]), b.feed(np.zeros([2, 1], np.int64)), b.tensor([2, 4])])
    else:
        b.op(op_type, [b.tensor([3, 4]), b.feed(np.zeros([2, 2], np.int64)), b.tensor([2, 2])], axis=b.axis(2))


@case("Concat")
def _concat(b: Builder) -> None:
    shape = b.shape(1, 3)
    axis = b.axis(len(shape))
    parts = []
    for _ in range(b.pick(1, 2, 3)):
        part = list(shape)
        part[axis] = b.size()
        parts.append(b.tensor(part))
    b.op("Concat", parts, axis=axis)


@case("Split")
def _split(b: Builder) -> None:
    parts = [b.size() for _ in range(b.pick(1, 2, 3))]
    if b.opset < 13:
        b.op("Split", [b.tensor([sum(parts), 3])], len(parts), axis=0, split=parts)
    elif b.chance():
        b.op("Split", [b.tensor([sum(parts), 3]), b.numbers(parts)], len(parts), axis=b.pick(0, -2))
    else:
        count = b.pick(1, 2, 3)
        size = count * b.size() if b.opset < 18 else b.size()
        b.op("Split", [b.tensor([2, size])], count, axis=1, num_outputs=count if b.opset >= 18 else None)


@case("Slice")
def _slice(b: Builder) -> None:
    shape = b.shape(1, 3)
    far = b.pick(2**31 - 1, 2**63 - 1)
    axes = list(dict.fromkeys(int(axis) for axis in b.rng.integers(0, len(shape), 2)))
    starts = [b.pick(0, 0, 1, 2, -1, -2, -3, 9, -9) for _ in axes]
    ends = [b.pick(far, far, 1, 2, 3, -1, -2, 9, -9, -far) for _ in axes]
    steps = [b.pick(1, 1, 1, 2, 3, -1, -2) for _ in axes]
    if b.opset < 10:
        b.op("Slice", [b.tensor(shape)], starts=starts, ends=ends, axes=axes)
        return
    extra = [b.constant(axes)] if b.chance(0.8) or axes != list(range(len(axes))) else []
    if extra and b.chance(0.6):
        extra.append(b.numbers(steps))
    b.op("Slice", [b.tensor(shape), b.numbers(starts), b.numbers(ends), *extra])


@case("Slice:own")
def _slice_own(b: Builder) -> None:
    """Bounds computed from the operand's own dims."""
    x = b.tensor([b.size(), 3])
    dim = b.op("Slice", [b.op("Shape", [x]), *map(b.constant, ([0], [1], [0]))])
    one, two, zero = (b.constant([number]) for number in (1, 2, 0))
    bounds = [
        zero,
        one,
        dim,
        b.op("Sub", [dim, one]),
        b.op("Div", [dim, two]),
        b.op("Neg", [dim]),
        b.op("Add", [dim, one]),
    ]
    b.op("Slice", [x, b.pick(*bounds), b.pick(*bounds), zero, b.constant([b.pick(1, 1, 2, -1)])])


@case("Pad")
def _pad(b: Builder) -> None:
    shape = b.shape(1, 3)
    pads = [b.pick(0, 1, 2, -1) for _ in range(2 * len(shape))]
    if b.opset < 11:
        b.op("Pad", [b.tensor(shape)], pads=pads)
    elif b.opset >= 18 and b.chance():
        b.op("Pad", [b.tensor(shape), b.numbers(pads[:2]), "", b.constant([b.axis(len(shape))])])
    else:
        b.op("Pad", [b.tensor(shape), b.numbers(pads)])


@case("Compress")
def _compress(b: Builder) -> None:
    condition = b.constant([1, 0, 1], bool) if b.chance() else b.tensor([3], bool)
    b.op("Compress", [b.tensor([3, 4]), condition], axis=b.pick(None, 0, 1, -1))


@case("Unique")
def _unique(b: Builder) -> None:
    b.smallest = 1
    b.op("Unique", [b.tensor([3, 2], np.int64)], 4, axis=b.pick(None, 0, 1))


@case("TopK")
def _top_k(b: Builder) -> None:
    b.op("TopK", [b.tensor([b.size(), 4]), b.numbers([b.pick(0, 1, 2)])], 2, axis=b.pick(0, 1, -1))


# --- reductions


@each("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
def _reduce(b: Builder, op_type: str) -> None:
    shape = b.shape(1, 3)
    # On an empty operand the runtime mistakes axes counted from the back; ONNX does not.
    axes = b.pick(None, sorted({b.axis(len(shape)) % len(shape) for _ in range(2)}))
    operands, attributes = [b.tensor(shape)], {"keepdims": b.pick(0, 1)}
    if 0 in shape and axes is not None:
        axes = None
    b.smallest = 1
    _axes_form(b, 13 if op_type == "ReduceSum" else 18, operands, axes, attributes)
    if axes is None and len(operands) == 1 and b.opset >= (13 if op_type == "ReduceSum" else 18) and b.chance():
        attributes["noop_with_empty_axes"] = 1
    b.op(op_type, operands, **attributes)


@each("ArgMax", "ArgMin")
def _arg(b: Builder, op_type: str) -> None:
    shape = [b.size() + 1 for _ in range(3)]
    # As for reductions, from the front.
    b.op(op_type, [b.tensor(shape)], axis=b.axis(3) % 3, keepdims=b.pick(0, 1))


# --- products


@case("MatMul")
def _matmul(b: Builder) -> None:
    inner = b.size()
    batch = b.shape(0, 2)
    left = [*batch, b.size(), inner] if b.chance(0.8) else [inner]
    right = [*b.broadcastable(batch), inner, b.size()] if b.chance(0.8) else [inner]
    b.op("MatMul", [b.tensor(left), b.tensor(right)])


@case("Gemm")
def _gemm(b: Builder) -> None:
    m, k, n = b.size(), b.size() + 1, b.size() + 1
    a, c = b.pick(0, 1), b.pick(0, 1)
    operands = [b.tensor([k, m] if a else [m, k]), b.tensor([n, k] if c else [k, n])]
    b.op("Gemm", [*operands, *([b.tensor(b.pick([n], [1], [m, n], [m, 1]))] if b.chance() else [])], transA=a, transB=c)


@case("Einsum")
def _einsum(b: Builder) -> None:
    b.smallest = 1
    i, j, k = b.size() + 1, b.size() + 1, b.size() + 1
    equation, shapes = b.pick(
        ("ij,jk->ik", ([i, j], [j, k])),
        ("bij,bjk->bik", ([2, i, j], [2, j, k])),
        ("ij->ji", ([i, j],)),
        ("i,j->ij", ([i], [j])),
        ("bhid,bhjd->bhij", ([2, 3, i, k], [2, 3, j, k])),
        ("...ij,...jk->...ik", ([2, i, j], [2, j, k])),
        ("ij,kj", ([i, j], [k, j])),
    )
    b.op("Einsum", [b.tensor(list(shape)) for shape in shapes], equation=equation)


# --- windows


def _window(b: Builder, count: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"strides": [b.pick(1, 2, 3) for _ in range(count)] if b.chance(0.7) else None}
    form = b.pick("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if form == "pads":
        attributes["pads"] = [b.pick(0, 1) for _ in range(2 * count)]
    elif form != "none":
        attributes["auto_pad"] = form
    return attributes


@each("Conv", "ConvTranspose")
def _conv(b: Builder, op_type: str) -> None:
    count = b.pick(1, 2)
    attributes = _window(b, count)
    if op_type == "ConvTranspose":
        attributes.pop("auto_pad", None)
        if attributes["strides"] and b.chance(0.3):
            attributes["output_padding"] = [0] * count
    elif "auto_pad" not in attributes:
        attributes["dilations"] = [b.pick(1, 2) for _ in range(count)]
    group = b.pick(1, 2)
    kernel = [b.pick(1, 2, 3) for _ in range(count)]
    spatial = [int(b.rng.integers(1, 9)) for _ in range(count)]
    weights = [4, 4 // group, *kernel]
    b.op(op_type, [b.tensor([b.size(), 4, *spatial]), b.weights(weights)], group=group, **attributes)


@each("MaxPool", "AveragePool", "LpPool")
def _pool(b: Builder, op_type: str) -> None:
    count = b.pick(1, 2)
    attributes = _window(b, count)
    attributes["kernel_shape"] = [b.pick(2, 3) for _ in range(count)]
    if op_type != "LpPool" and b.opset >= 10:
        attributes["ceil_mode"] = b.pick(0, 1)
    spatial = [int(b.rng.integers(1, 9)) for _ in range(count)]
    b.op(op_type, [b.tensor([b.size(), 2, *spatial])], 2 if op_type == "MaxPool" and b.chance() else 1, **attributes)


@each("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(b: Builder, op_type: str) -> None:
    b.op(op_type, [b.tensor([b.size(), 2, 3, 4])])


@case("Resize")
def _resize(b: Builder) -> None:
    x = b.tensor([b.size() or 1, 2, int(b.rng.integers(1, 9)), int(b.rng.integers(1, 9))])
    scales = [1, 1, b.pick(1, 2, 0.5, 1.5, 0.3333, 1.7), b.pick(1, 2, 0.25, 3, 0.6)]
    if b.opset < 11:
        b.op("Resize" if b.opset == 10 else "Upsample", [x, b.constant([1, 1, 2, 1.5], np.float32)])
    elif b.chance():
        b.op("Resize", [x, "", b.constant(scales, np.float32)], mode="nearest")
    elif b.opset >= 18 and b.chance():
        axes = b.pick([2, 3], [-1, -2])
        policy = b.pick(None, "stretch", "not_larger", "not_smaller")
        b.op("Resize", [x, "", "", b.numbers([5, 6])], axes=axes, keep_aspect_ratio_policy=policy)
    else:
        dims = b.op("Slice", [b.op("Shape", [x]), *map(b.constant, ([0], [2], [0]))])
        b.op("Resize", [x, "", "", b.op("Concat", [dims, b.numbers([b.pick(3, 4), 5])], axis=0)], mode="linear")


@case("GridSample")
def _grid_sample(b: Builder) -> None:
    batch = b.size() or 1
    b.op("GridSample", [b.tensor([batch, 2, 4, 4]), b.tensor([batch, b.size() or 1, b.size() or 1, 2])])


@case("RoiAlign")
def _roi_align(b: Builder) -> None:
    rois = b.size()
    batch = b.feed(np.zeros([rois], np.int64))
    b.op("RoiAlign", [b.tensor([1, 2, 8, 8]), b.tensor([rois, 4]), batch], output_height=3, output_width=2)


@case("NonMaxSuppression")
def _nms(b: Builder) -> None:
    b.op("NonMaxSuppression", [b.tensor([1, 4, 4]), b.tensor([1, 2, 4]), b.constant(3)])


# --- layers


@case("LayerNormalization")
def _layer_norm(b: Builder) -> None:
    shape = [b.size(), b.size(), 4]
    b.op("LayerNormalization", [b.tensor(shape), b.weights([4])], b.pick(1, 3))


@case("BatchNormalization")
def _batch_norm(b: Builder) -> None:
    b.op("BatchNormalization", [b.tensor([b.size(), 3, b.size()]), *(b.weights([3]) for _ in range(4))])


@case("InstanceNormalization")
def _instance_norm(b: Builder) -> None:
    b.op("InstanceNormalization", [b.tensor([b.size() or 1, 3, b.size() or 1]), b.weights([3]), b.weights([3])])


@each("LSTM", "GRU", "RNN")
def _recurrent(b: Builder, op_type: str) -> None:
    b.smallest = 1
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    direction = b.pick("forward", "bidirectional", "reverse")
    count = 2 if direction == "bidirectional" else 1
    shape = [int(b.rng.integers(1, 5)), int(b.rng.integers(1, 4)), 3]
    operands = [b.tensor(shape), b.weights([count, gates * 2, 3]), b.weights([count, gates * 2, 2])]
    b.op(op_type, operands, 3 if op_type == "LSTM" else 2, hidden_size=2, direction=direction)


@each("QuantizeLinear", "DequantizeLinear")
def _quantize(b: Builder, op_type: str) -> None:
    data = b.tensor(b.shape(1), np.float32 if op_type == "QuantizeLinear" else np.uint8)
    zero = [b.constant(3, np.uint8)] if b.chance() or op_type == "DequantizeLinear" else []
    b.op(op_type, [data, b.constant(0.5, np.float32), *zero])


@case("DynamicQuantizeLinear")
def _dynamic_quantize(b: Builder) -> None:
    b.op("DynamicQuantizeLinear", [b.tensor(b.shape(1))], 3)


@case("RMSNormalization")
def _rms_norm(b: Builder) -> None:
    b.opset = 23
    b.op("RMSNormalization", [b.tensor([b.size(), b.size(), 4]), b.weights([4])])


@case("RotaryEmbedding")
def _rotary(b: Builder) -> None:
    b.opset = 23
    b.smallest = 1
    batch, length = b.size() or 1, b.size() or 1
    b.op(
        "RotaryEmbedding", [b.tensor([batch, 2, length, 8]), b.tensor([batch, length, 4]), b.tensor([batch, length, 4])]
    )


@case("Attention")
def _attention(b: Builder) -> None:
    b.opset = b.pick(23, 24)
    b.smallest = 1
    batch, queries, keys = b.size() or 1, b.size() or 1, b.size() or 1
    heads, shared, size, width = 4, b.pick(2, 4), 8, b.pick(8, 6)
    if b.chance():
        shapes = [[batch, queries, heads * size], [batch, keys, shared * size], [batch, keys, shared * width]]
        attributes = {"q_num_heads": heads, "kv_num_heads": shared}
    else:
        shapes = [[batch, heads, queries, size], [batch, shared, keys, size], [batch, shared, keys, width]]
        attributes = {}
    operands = [b.tensor(shape) for shape in shapes]
    if b.chance():
        past = b.size() or 1
        operands += ["", b.tensor([batch, shared, past, size]), b.tensor([batch, shared, past, width])]
    b.op("Attention", operands, b.pick(1, 3, 4), **attributes)


@each("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _loss(b: Builder, op_type: str) -> None:
    batch, length = b.size() or 1, b.size() or 1
    operands = [b.tensor([batch, 3, length]), b.feed(np.zeros([batch, length], np.int64))]
    b.op(op_type, operands, reduction=b.pick("none", "mean", "sum"))


@case("Det")
def _det(b: Builder) -> None:
    b.op("Det", [b.tensor([b.size(), 3, 3], rate=0.5)])


@case("MatMulInteger")
def _matmul_integer(b: Builder) -> None:
    inner = b.size() or 1
    b.op("MatMulInteger", [b.tensor([b.size(), inner], np.uint8), b.tensor([inner, b.size() or 1], np.uint8)])


@case("QLinearMatMul")
def _qlinear_matmul(b: Builder) -> None:
    scale, zero = b.constant(0.5, np.float32), b.constant(0, np.uint8)
    inner = b.size() or 1
    left, right = b.tensor([b.size() or 1, inner], np.uint8), b.tensor([inner, b.size() or 1], np.uint8)
    b.op("QLinearMatMul", [left, scale, zero, right, scale, zero, scale, zero])


@case("ConvInteger")
def _conv_integer(b: Builder) -> None:
    weights = b.constant(np.ones([2, 3, 3, 3]), np.uint8)
    size = int(b.rng.integers(3, 8))
    b.op("ConvInteger", [b.tensor([b.size() or 1, 3, size, size], np.uint8), weights], strides=[b.pick(1, 2), 1])


@case("QLinearConv")
def _qlinear_conv(b: Builder) -> None:
    scale, zero = b.constant(0.5, np.float32), b.constant(0, np.uint8)
    weights = b.constant(np.ones([2, 3, 3, 3]), np.uint8)
    size = int(b.rng.integers(3, 8))
    x = b.tensor([b.size() or 1, 3, size, size], np.uint8)
    b.op("QLinearConv", [x, scale, zero, weights, scale, zero, scale, zero], pads=[b.pick(0, 1)] * 4)


@case("MaxUnpool")
def _max_unpool(b: Builder) -> None:
    size = 2 * int(b.rng.integers(1, 4))
    x = b.tensor([b.size() or 1, 2, size, size], rate=0.4)
    pooled = b.op("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    b.op("MaxUnpool", [pooled, b.nodes[-1].output[1]], kernel_shape=[2, 2], strides=[2, 2])


@case("CenterCropPad")
def _center_crop_pad(b: Builder) -> None:
    b.opset = 18
    axes = b.pick(None, [0, 1], [-1], [1])
    count = 2 if axes is None else len(axes)
    b.op("CenterCropPad", [b.tensor([b.size(), b.size()]), b.numbers([b.size() for _ in range(count)])], axes=axes)


@case("Col2Im")
def _col2im(b: Builder) -> None:
    b.opset = 18
    blocks = b.tensor([b.size() or 1, 4 * (b.size() or 1), 9])
    b.op("Col2Im", [blocks, b.numbers([4, 4]), b.constant([2, 2])])


@case("AffineGrid")
def _affine_grid(b: Builder) -> None:
    b.opset = 20
    batch = b.size() or 1
    b.op("AffineGrid", [b.tensor([batch, 2, 3]), b.numbers([batch, 3, b.size() or 1, b.size() or 1])])


@each("RandomUniformLike", "Bernoulli", "LpNormalization", "Hardmax", "MeanVarianceNormalization")
def _like(b: Builder, op_type: str) -> None:
    b.smallest = 1
    b.op(op_type, [b.tensor([size or 1 for size in b.shape(4, 4)])])


@case("Multinomial")
def _multinomial(b: Builder) -> None:
    b.smallest = 1
    b.op("Multinomial", [b.tensor([b.size() or 1, 3], rate=0.5)], sample_size=4, dtype=b.pick(None, TensorProto.INT64))


@each("ms:FusedMatMul", "ms:Gelu", "ms:FastGelu", "ms:BiasGelu", "ms:SkipLayerNormalization")
def _contrib(b: Builder, name: str) -> None:
    op_type = name.removeprefix("ms:")
    x = b.tensor([b.size() or 1, b.size() or 1, 4])
    if op_type == "FusedMatMul":
        turned = b.pick(0, 1)
        other = b.weights([3, 4] if turned else [4, 3])
        b.op(op_type, [x, other], domain="com.microsoft", transB=turned, alpha=b.pick(None, 2.0))
    elif op_type == "SkipLayerNormalization":
        b.op(op_type, [x, x, b.weights([4])], domain="com.microsoft")
    else:
        b.op(op_type, [x, b.weights([4])] if op_type == "BiasGelu" else [x], domain="com.microsoft")


@case("CumSum")
def _cum_sum(b: Builder) -> None:
    b.op("CumSum", [b.tensor([b.size(), 3]), b.constant(1)])


@case("Sequence")
def _sequence(b: Builder) -> None:
    shape = [b.size(), 3]
    made = b.op("SequenceConstruct", [b.tensor(shape), b.tensor(shape)])
    made = b.op("SequenceInsert", [made, b.tensor([b.size(), 3])])
    b.op("SequenceAt", [made, b.constant(b.pick(0, 1, 2))])
    b.op("SequenceLength", [made])
    b.op("ConcatFromSequence", [made], axis=b.pick(0, -2))
    parts = b.op("SplitToSequence", [b.tensor([4, b.size()]), b.constant([2, 2])], axis=0)
    b.op("SequenceAt", [parts, b.constant(0)])


# --- programs


@case("Program")
def _program(b: Builder) -> None:
    """Several operators in a row, on values whose rank is known and whose dims are not."""
    rank = b.pick(2, 3)
    x = b.tensor([b.size() for _ in range(rank)], rate=0.9)
    for _ in range(int(b.rng.integers(2, 7))):
        x, rank = _step(b, x, rank)


def _step(b: Builder, x: str, rank: int) -> tuple[str, int]:
    dims = b.op("Shape", [x])
    parts = [b.op("Slice", [dims, *map(b.constant, ([axis], [axis + 1], [0]))]) for axis in range(rank)]
    one, two, minus, zero = (b.constant([number]) for number in (1, 2, -1, 0))
    kind = int(b.rng.integers(0, 13))
    if kind == 0:
        return b.op("Add", [x, b.op("Transpose", [b.op("Transpose", [x])])]), rank
    if kind == 1:
        return b.op("Concat", [x, x], axis=b.axis(rank)), rank
    if kind == 2:
        return b.op("Transpose", [x], perm=[int(axis) for axis in b.rng.permutation(rank)]), rank
    if kind == 3:  # merge two axes
        if rank < 2:
            return b.op("Relu", [x]), rank
        merged = b.op("Mul", parts[:2])
        target = b.pick([merged, *parts[2:]], [minus, *parts[2:]], [merged, minus] if rank > 2 else [merged])
        return b.op("Reshape", [x, b.op("Concat", target, axis=0)]), len(target)
    if kind == 4:  # pad to even, then split an axis in two
        if rank > 3:
            return b.op("Relu", [x]), rank
        odd = b.op("Mod", [parts[0], two])
        pads = b.op("Concat", [zero] * rank + [odd] + [zero] * (rank - 1), axis=0)
        padded = b.op("Pad", [x, pads])
        half = b.op("Div", [b.op("Add", [parts[0], odd]), two])
        target = b.pick([half, two, *parts[1:]], [minus, two, *parts[1:]], [half, minus, *parts[1:]])
        return b.op("Reshape", [padded, b.op("Concat", target, axis=0)]), rank + 1
    if kind == 5:
        start, end = (
            b.pick(zero, one, b.op("Div", [parts[0], two])),
            b.pick(parts[0], b.op("Sub", [parts[0], one]), minus),
        )
        return b.op("Slice", [x, start, end, zero, b.pick(one, two)]), rank
    if kind == 6:
        grown = b.op("Unsqueeze", [x, b.constant([0])])
        count = b.pick(two, parts[0], one)
        expanded = b.op("Expand", [grown, b.op("Concat", [count, *parts], axis=0)])
        return (expanded, rank + 1) if rank < 4 else (b.op("Squeeze", [grown, b.constant([0])]), rank)
    if kind == 7:
        return b.op(
            "MatMul", [x, b.op("Transpose", [x], perm=[*range(rank - 2), rank - 1, rank - 2])]
        ) if rank > 1 else x, rank
    if kind == 8:
        fill = b.op("ConstantOfShape", [b.op("Concat", [*parts[:-1], one], axis=0)])
        return b.op("Concat", [x, fill], axis=-1), rank
    if kind == 9:
        limit = b.op("Squeeze", [parts[-1], b.constant([0])])
        order = b.op("Range", [b.constant(0), limit, b.constant(b.pick(1, 2))])
        return b.op("Gather", [x, order], axis=-1), rank
    if kind == 10:
        count = b.pick(one, two, parts[0])
        return b.op("Tile", [x, b.op("Concat", [count] + [one] * (rank - 1), axis=0)]), rank
    if kind == 11:
        rows = b.op("ReduceMax", [x], keepdims=1) if b.chance(0.3) else x
        return b.op("Where", [b.op("Greater", [x, rows]), x, rows]), rank
    window = b.op("Reshape", [x, b.op("Concat", [one, one, b.op("ReduceProd", [dims], keepdims=1)], axis=0)])
    return b.op("MaxPool", [window], kernel_shape=[2], strides=[b.pick(1, 2)], ceil_mode=b.pick(0, 1)), 3
