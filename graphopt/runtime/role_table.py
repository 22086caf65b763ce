"""What operators ask of their operands: for each (domain, operator, operand) the role of an input that feeds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.runtime.roles import Role, Shapes

if TYPE_CHECKING:
    from graphopt.ir import Node, Value

# From a node and the place of the operand to what the operand must be; None asks for nothing.
Ask = Callable[["Node", int], Role | None]

_MICROSOFT = "com.microsoft"


def origin(value: Value | None) -> Value | None:
    """The graph input whose elements and shape a value has, through Identity and Cast; None if it is computed."""
    steps = 0
    while value is not None and steps < 100:
        node = value.producer
        if not node.is_operator:
            return value if not node.is_constant else None
        if node.op_type not in ("Identity", "Cast", "Dropout") or not node.operands:
            return None
        value, steps = node.operand(0), steps + 1
    return None


def extent(value: Value | None, axis: int) -> Role | None:
    """A bound by the size of an axis: a number if it is one, otherwise that of the input it comes from."""
    if value is None:
        return None
    shape = value.shape
    if shape is not None and -len(shape) <= axis < len(shape):
        size = shape[axis]
        if isinstance(size, int) and size > 0:
            return Role(low=0, high=size - 1, note="an index")
    source = origin(value)
    if source is not None and source.name:
        return Role(low=0, extents=[(source.name, axis, -1)], note="an index")
    return Role(low=0, high=0 if shape is None else 1, note="an index into something computed")


def _between(low: float | None, high: float | None, note: str = "") -> Ask:
    return lambda node, index: Role(low=low, high=high, note=note)


def _one_of(*choices: Any, note: str = "") -> Ask:
    return lambda node, index: Role(choices=choices, note=note)


def _axis(node: Node, default: int = 0) -> int:
    axis = node.param("axis")
    return axis if isinstance(axis, int) else default


def _gather(node: Node, index: int) -> Role | None:
    return extent(node.operand(0), _axis(node))


def _gather_nd(node: Node, index: int) -> Role | None:
    shape = node.operand(0).shape if node.operand(0) is not None else None  # type: ignore[union-attr]
    sizes = [size for size in shape or () if isinstance(size, int) and size > 0]
    return Role(low=0, high=min(sizes) - 1 if sizes else 0, note="an index")


def _rows(operand: int) -> Ask:
    return lambda node, index: extent(node.operand(operand), 0)


def _one_hot(node: Node, index: int) -> Role | None:
    depth = node.param("depth")
    if isinstance(depth, tuple) and depth:
        depth = depth[0]
    return Role(low=0, high=int(depth) - 1 if isinstance(depth, int | float) else 3, note="a class")


def _sequence_lens(node: Node, index: int) -> Role | None:
    source = origin(node.operand(0))
    axis = 1 if node.param("layout") == 1 else 0
    if source is None or not source.name:
        return Role(choices=(1,), note="a length")
    return Role(low=1, extents=[(source.name, axis, 0)], note="a length")


def _reverse_lens(node: Node, index: int) -> Role | None:
    source = origin(node.operand(0))
    axis = node.param("time_axis")
    if source is None or not source.name:
        return Role(choices=(1,), note="a length")
    return Role(low=1, extents=[(source.name, axis if isinstance(axis, int) else 0, 0)], note="a length")


def _mask_or_lengths(node: Node, index: int) -> Role | None:
    """A 1-D mask of the attention operators holds lengths, one of higher rank zeros and ones."""
    operand = node.operand(index)
    source = origin(node.operand(0))
    if operand is not None and operand.rank == 1 and source is not None and source.name:
        return Role(low=1, extents=[(source.name, 1, 0)], note="a length")
    return Role(choices=(1, 0), note="a mask")


def _reshape(node: Node, index: int) -> Role | None:
    """A target with as many elements as the data: taken from the result's declared shape, else -1 and ones."""
    source, wanted = origin(node.operand(0)), node.results[0].shape

    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        if len(shape) != 1:
            return None
        target = np.ones(shape, np.int64)
        if wanted is not None and len(wanted) == shape[0]:
            target = np.array([size if isinstance(size, int) else -1 for size in wanted], np.int64)
            if (target == -1).sum() > 1:
                target[np.flatnonzero(target == -1)[1:]] = 1
            return target
        total = math.prod(shapes.get(source.name or "", ())) if source is not None else None
        if not shape[0]:
            return target
        if total:
            for place in range(shape[0] - 1):  # small factors first, so that the reshape does something
                factor = next((prime for prime in (2, 3, 5, 7) if total % prime == 0), 1)
                target[place], total = factor, total // factor
            target[-1] = total
        else:
            target[-1] = -1
        return target

    return Role(make=make, note="a target shape")


def _expand(node: Node, index: int) -> Role | None:
    source, wanted = node.operand(0), node.results[0].shape

    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        if len(shape) != 1:
            return None
        target = np.full(shape, 2, np.int64)
        known = source.shape if source is not None else None
        known = shapes.get(source.name or "", known) if source is not None else known
        for place, size in enumerate(reversed(known or ())):
            if place < shape[0]:
                target[-1 - place] = size if isinstance(size, int) and size > 1 else 2 if size == 1 else 1
        if wanted is not None and len(wanted) == shape[0]:
            target = np.array(
                [size if isinstance(size, int) else old for size, old in zip(wanted, target, strict=True)]
            )
        return target

    return Role(make=make, note="a target shape")


def _split_sizes(node: Node, index: int) -> Role | None:
    source = node.operand(0)
    axis = _axis(node)

    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        known = shapes.get(source.name or "", source.shape) if source is not None else None
        if known is None or not -len(known) <= axis < len(known) or len(shape) != 1 or not shape[0]:
            return None
        size = known[axis]
        if not isinstance(size, int):
            return None
        parts = np.full(shape, size // shape[0], np.int64)
        parts[0] += size - parts.sum()
        return parts

    return Role(make=make, note="sizes of parts")


def _axes(node: Node, index: int) -> Role | None:
    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        source = node.operand(0)
        known = shapes.get(source.name or "", source.shape) if source is not None else None
        count = math.prod(shape)
        places = list(range(len(known or ()) or count))
        if node.op_type == "Squeeze" and known is not None:
            places = [axis for axis, size in enumerate(known) if size == 1] or places
        if node.op_type == "Unsqueeze":
            places = list(range(count))
        if len(places) < count:
            return None
        return np.array(places[:count], np.int64).reshape(shape)

    return Role(make=make, note="axes")


def _ramp(first: int, step: int = 1) -> Ask:
    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        return (first + step * np.arange(math.prod(shape))).reshape(shape)

    return lambda node, index: Role(make=make, note="axes")


def _boxes(node: Node, index: int) -> Role | None:
    def make(shape: tuple[int, ...], shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any] | None:
        if not shape or shape[-1] != 4:
            return None
        corner = rng.uniform(0, 4, (*shape[:-1], 2))
        return np.concatenate([corner, corner + rng.uniform(1, 6, corner.shape)], axis=-1)

    return Role(make=make, note="boxes")


def _words(node: Node, index: int) -> Role | None:
    """Strings that the operator knows."""
    for name in ("keys_strings", "cats_strings", "classes_strings", "string_vocabulary"):
        words = node.attributes.get(name)
        if isinstance(words, tuple) and words:
            texts = [word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in words[:20]]
            return Role(choices=(*texts, "unknown"), note="words")
    for name in ("keys_int64s", "cats_int64s"):
        numbers = node.attributes.get(name)
        if isinstance(numbers, tuple) and numbers:
            return Role(choices=tuple(numbers[:20]), note="categories")
    return None


def _nonzero(node: Node, index: int) -> Role | None:
    operand = node.operand(index)
    dtype = operand.dtype if operand is not None else None
    return Role(low=1, high=5, note="a divisor") if dtype is not None and dtype.is_integer else None


def _numeric_strings(node: Node, index: int) -> Role | None:
    operand = node.operand(0)
    if operand is not None and operand.dtype is not None and operand.dtype.name == "STRING":
        return Role(choices=("1", "0", "2", "17"), note="numbers as text")
    return None


def _classes(node: Node, index: int) -> Role | None:
    return extent(node.operand(0), 1)


_LENGTH = _between(1, 3, "a count")
_SCALE = _between(0.01, 0.1, "a scale")
_POSITIVE = _between(0.05, 2.0, "positive")
_UNIT = _between(-0.95, 0.95, "from -1 to 1")
_MASK = _one_of(1, 0, note="a mask")

_STANDARD: dict[str, dict[int, Ask]] = {
    "Gather": {1: _gather},
    "GatherElements": {1: _gather},
    "ScatterElements": {1: _gather},
    "Scatter": {1: _gather},
    "GatherND": {1: _gather_nd},
    "ScatterND": {1: _gather_nd},
    "TensorScatter": {2: _one_of(0)},
    "OneHot": {0: _one_hot, 1: _between(4, 6, "a depth")},
    "Embedding": {1: _rows(0)},
    "NegativeLogLikelihoodLoss": {1: _classes},
    "SoftmaxCrossEntropyLoss": {1: _classes},
    "LSTM": {4: _sequence_lens},
    "GRU": {4: _sequence_lens},
    "RNN": {4: _sequence_lens},
    "ReverseSequence": {1: _reverse_lens},
    "Reshape": {1: _reshape},
    "Expand": {1: _expand},
    "ConstantOfShape": {0: _between(1, 4, "a shape")},
    "Tile": {1: _between(1, 3, "repeats")},
    "Resize": {2: _between(1, 2, "scales"), 3: _between(2, 8, "sizes")},
    "Upsample": {1: _between(1, 2, "scales")},
    "CenterCropPad": {1: _between(2, 8, "a shape")},
    "AffineGrid": {1: _between(2, 4, "a shape")},
    "Range": {0: _between(0, 1), 1: _between(4, 8), 2: _one_of(1)},
    "Slice": {1: _between(0, 1), 2: _between(2, 9), 3: _ramp(0), 4: _one_of(1, 2)},
    "Pad": {1: _between(0, 2), 3: _ramp(0)},
    "Split": {1: _split_sizes},
    "Squeeze": {1: _axes},
    "Unsqueeze": {1: _axes},
    "TopK": {1: _between(1, 2, "a count")},
    "CumSum": {1: _one_of(0)},
    "Trilu": {1: _between(-1, 1)},
    "Dropout": {1: _between(0.2, 0.5), 2: _one_of(0)},
    "Loop": {0: _LENGTH},
    "SequenceAt": {1: _one_of(0)},
    "SequenceErase": {1: _one_of(0)},
    "SequenceInsert": {2: _one_of(0)},
    "SplitToSequence": {1: _LENGTH},
    "NonMaxSuppression": {0: _boxes, 2: _between(3, 5), 3: _between(0.3, 0.7), 4: _between(0.0, 0.1)},
    "RoiAlign": {1: _boxes, 2: _rows(0)},
    "BatchNormalization": {4: _between(0.2, 2.0, "a variance")},
    "QuantizeLinear": {1: _SCALE},
    "DequantizeLinear": {1: _SCALE},
    "QLinearConv": {1: _SCALE, 4: _SCALE, 6: _SCALE},
    "QLinearMatMul": {1: _SCALE, 4: _SCALE, 6: _SCALE},
    "Log": {0: _POSITIVE},
    "Sqrt": {0: _POSITIVE},
    "Acos": {0: _UNIT},
    "Asin": {0: _UNIT},
    "Atanh": {0: _UNIT},
    "Acosh": {0: _between(1.0, 3.0)},
    "Div": {1: _nonzero},
    "Mod": {1: _nonzero},
    "BitShift": {1: _between(0, 3)},
    "Bernoulli": {0: _between(0.0, 1.0)},
    "GridSample": {1: _UNIT},
    "Clip": {1: _between(-1, 0), 2: _between(1, 2)},
    "Min": {},
    "HannWindow": {0: _between(4, 16)},
    "HammingWindow": {0: _between(4, 16)},
    "BlackmanWindow": {0: _between(4, 16)},
    "STFT": {1: _between(1, 4), 3: _between(4, 8)},
    "DFT": {1: _between(4, 8), 2: _one_of(1)},
    "RotaryEmbedding": {3: _rows(1)},
    "Attention": {3: lambda node, index: None, 6: lambda node, index: Role(choices=(1,), note="a length")},
    "Cast": {0: _numeric_strings},
}
for _name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare"):  # fmt: skip
    _STANDARD[_name] = {1: _axes}

_CONTRIB: dict[str, dict[int, Ask]] = {
    "EmbedLayerNormalization": {0: _rows(2), 1: _rows(4), 7: _MASK, 8: _rows(3)},
    "Attention": {3: _mask_or_lengths},
    "QAttention": {5: _mask_or_lengths},
    "MultiHeadAttention": {4: _mask_or_lengths},
    "PackedAttention": {},
    "RotaryEmbedding": {1: _rows(2)},
    "GatherBlockQuantized": {1: _gather},
    "QuantizeLinear": {1: _SCALE},
    "DequantizeLinear": {1: _SCALE},
    "QLinearAdd": {1: _SCALE, 4: _SCALE, 6: _SCALE},
    "QLinearMul": {1: _SCALE, 4: _SCALE, 6: _SCALE},
    "ExpandDims": {1: _one_of(0)},
    "BeamSearch": {1: _one_of(12), 2: _one_of(1), 3: _one_of(2), 4: _one_of(1), 5: _one_of(1), 6: _one_of(1),
                   7: _one_of(1), 8: _one_of(1), 9: _one_of(1)},
    "GreedySearch": {1: _one_of(12), 2: _one_of(1), 3: _one_of(1), 4: _one_of(1), 5: _one_of(1), 6: _one_of(1)},
    "Sampling": {1: _one_of(12), 2: _one_of(1), 3: _one_of(1), 4: _one_of(1), 5: _one_of(1), 6: _one_of(1)},
    "WhisperBeamSearch": {1: _one_of(12), 2: _one_of(1), 3: _one_of(2), 4: _one_of(1), 5: _one_of(1), 6: _one_of(1)},
}  # fmt: skip

_ML: dict[str, dict[int, Ask]] = {
    "ArrayFeatureExtractor": {1: lambda node, index: extent(node.operand(0), -1)},
    "LabelEncoder": {0: _words},
    "CategoryMapper": {0: _words},
    "OneHotEncoder": {0: _words},
    "DictVectorizer": {},
}

TABLE: dict[str, dict[str, dict[int, Ask]]] = {"": _STANDARD, _MICROSOFT: _CONTRIB, "ai.onnx.ml": _ML}


def ask(node: Node, index: int) -> Role | None:
    """What a node asks of one of its operands."""
    entry = TABLE.get(node.domain, {}).get(node.op_type, {}).get(index)
    return entry(node, index) if entry is not None else None
