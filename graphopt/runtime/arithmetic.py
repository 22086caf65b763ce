"""Shape arithmetic without a session: small tensors of integers and bools computed exactly as ONNX defines it.

Also what only relabels data: `Identity`, `Reshape` and their like give a tensor over the same bytes, however large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from graphopt.errors import ModelError
from graphopt.ir import NOT_CONSTANT, Node, Value
from graphopt.tensors import DType, Tensor

MAX_ELEMENTS: Final = 64
"""Larger tensors are left to the runtime."""
_DTYPES: Final = frozenset({DType.INT64, DType.INT32, DType.BOOL})
_TO_THE_END: Final = (2**31 - 1, 2**63 - 1)

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
TensorOf: TypeAlias = Callable[[Value], Tensor | None]


class _UnableError(Exception):
    """Not computed here: unknown parameters, or the runtime would refuse the operands."""


class _Operands:
    """What a node reads, as far as it is known."""

    def __init__(self, node: Node, tensor_of: TensorOf) -> None:
        self.node = node
        self._tensor_of = tensor_of

    def tensor(self, index: int) -> Tensor:
        """The operand at a position, of any type and size."""
        value = self.node.operand(index)
        tensor = None if value is None else self._tensor_of(value)
        if tensor is None:
            raise _UnableError
        return tensor

    def small(self, index: int) -> Array:
        """The operand at a position as an array, if it is one of those computed here."""
        tensor = self.tensor(index)
        if tensor.dtype not in _DTYPES or tensor.size > MAX_ELEMENTS:
            raise _UnableError
        return tensor.numpy()

    def integers(self, index: int) -> Array:
        """The operand at a position, which must not be bool."""
        array = self.small(index)
        if array.dtype.kind != "i":
            raise _UnableError
        return array

    def short_integers(self, index: int) -> Array:
        """The operand at a position, if it fits 32 bits: beyond, some operators of the runtime are not exact."""
        array = self.integers(index)
        if array.size and not -(1 << 31) < int(array.min()) <= int(array.max()) < 1 << 31:
            raise _UnableError
        return array

    def bools(self, index: int) -> Array:
        """The operand at a position, which must be bool."""
        array = self.small(index)
        if array.dtype.kind != "b":
            raise _UnableError
        return array

    def all_small(self) -> list[Array]:
        """Every operand; none may be left out."""
        return [self.small(index) for index in range(len(self.node.operands))]

    def number(self, name: str) -> int:
        """An attribute that is one integer, its default filled in."""
        value = self.node.param(name)
        if not isinstance(value, int):
            raise _UnableError
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A parameter that is a list of integers, spelt as an attribute or as an operand; None where it is left out."""
        index = self.node.param_operand(name)
        if index is None:
            value = self.node.param(name)
            if value is None:
                return None
            if (
                value is NOT_CONSTANT
                or not isinstance(value, tuple)
                or not all(isinstance(item, int) for item in value)
            ):
                raise _UnableError
            return list(value)
        if self.node.operand(index) is None:
            return None
        return [int(item) for item in self.integers(index).reshape(-1)]


Rule: TypeAlias = Callable[[_Operands], "Array | Tensor"]
_RULES: dict[str, Rule] = {}


def compute(node: Node, tensor_of: TensorOf) -> Tensor | None:
    """The result of an operator of the standard domain that has one, computed with numpy.

    Args:
        node: The node.
        tensor_of: The data of an operand, None where it is not known.

    Returns:
        The result; None where it is not computed here, or where the operator refuses its operands.
    """
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain != "" or len(node.results) != 1 or not node.has_latest_meaning:
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(_Operands(node, tensor_of))
    except (_UnableError, ModelError, ValueError, IndexError, OverflowError, MemoryError):
        return None
    if isinstance(result, Tensor):
        return result
    array = np.ascontiguousarray(result).reshape(np.shape(result))
    if array.size > MAX_ELEMENTS:
        return None
    return Tensor.from_numpy(array)


def _rule(*op_types: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(op_types, function))
        return function

    return enter


# --- element by element


def _alike(*arrays: Array) -> tuple[Array, ...]:
    if len({array.dtype for array in arrays}) != 1:
        raise _UnableError
    return arrays


def _paired(operation: Callable[[Array, Array], Array]) -> Rule:
    def apply(operands: _Operands) -> Array:
        return operation(*_alike(operands.integers(0), operands.integers(1)))

    return apply


def _logical(operation: Callable[[Array, Array], Array]) -> Rule:
    def apply(operands: _Operands) -> Array:
        return operation(operands.bools(0), operands.bools(1))

    return apply


_RULES.update(
    {
        "Add": _paired(np.add),
        "Sub": _paired(np.subtract),
        "Mul": _paired(np.multiply),
        "Less": _paired(np.less),
        "LessOrEqual": _paired(np.less_equal),
        "Greater": _paired(np.greater),
        "GreaterOrEqual": _paired(np.greater_equal),
        "And": _logical(np.logical_and),
        "Or": _logical(np.logical_or),
        "Xor": _logical(np.logical_xor),
        "Equal": lambda operands: np.equal(*_alike(operands.small(0), operands.small(1))),
        "Not": lambda operands: np.logical_not(operands.bools(0)),
        "Neg": lambda operands: np.negative(operands.integers(0)),
        "Abs": lambda operands: np.abs(operands.integers(0)),
        "Sign": lambda operands: np.sign(operands.short_integers(0)),
    }
)


def divides_safely(dividend: Array | None, divisor: Array) -> bool:
    """False if an integer division may fail: by 0, or, which ends the process, of the least integer by -1."""
    if (divisor == 0).any():
        return False
    if divisor.dtype.kind == "u" or not (divisor == -1).any():
        return True
    return dividend is not None and not (dividend == np.iinfo(dividend.dtype).min).any()


@_rule("Div", "Mod")
def _divide(operands: _Operands) -> Array:
    left, right = _alike(operands.integers(0), operands.integers(1))
    if not divides_safely(left, right):
        raise _UnableError
    if operands.node.op_type == "Mod" and not operands.number("fmod"):
        return np.mod(left, right)
    if operands.node.op_type == "Mod":
        return np.fmod(operands.short_integers(0), operands.short_integers(1))
    return (left - np.fmod(left, right)) // right  # truncating: the rest has the sign of the dividend


@_rule("Min", "Max")
def _extreme(operands: _Operands) -> Array:
    operation = np.minimum if operands.node.op_type == "Min" else np.maximum
    first, *others = _alike(*(operands.short_integers(index) for index in range(len(operands.node.operands))))
    for array in others:
        first = operation(first, array)
    return first


@_rule("Where")
def _where(operands: _Operands) -> Array:
    return np.where(operands.bools(0), *_alike(operands.small(1), operands.small(2)))


@_rule("Cast")
def _cast(operands: _Operands) -> Array | Tensor:
    target = DType(operands.number("to"))
    source = operands.tensor(0)
    if source.dtype is target:
        return source
    if target not in _DTYPES:
        raise _UnableError
    return operands.small(0).astype(target.numpy)


# --- contents of shapes


@_rule("Shape")
def _shape(operands: _Operands) -> Array:
    shape = operands.tensor(0).shape
    start, end = operands.node.param("start"), operands.node.param("end")
    return np.array(shape[slice(start, end)], np.int64)  # Python's slices clamp and count from the end as ONNX's


@_rule("Size")
def _size(operands: _Operands) -> Array:
    return np.array(operands.tensor(0).size, np.int64)


@_rule("Range")
def _range(operands: _Operands) -> Array:
    start, limit, step = (operands.integers(index) for index in range(3))
    if not start.size == limit.size == step.size == 1:
        raise _UnableError
    numbers = range(int(start.item()), int(limit.item()), int(step.item()))
    if len(numbers) > MAX_ELEMENTS:
        raise _UnableError
    return np.array(numbers, start.dtype)


@_rule("ConstantOfShape")
def _constant_of_shape(operands: _Operands) -> Array:
    shape = operands.integers(0)
    value = operands.node.param("value")
    if not isinstance(value, Tensor) or value.dtype not in _DTYPES or value.size != 1 or shape.ndim != 1:
        raise _UnableError
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes) or math.prod(sizes) > MAX_ELEMENTS:
        raise _UnableError
    return np.full(sizes, value.numpy().reshape(-1)[0])


# --- selecting and moving


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise _UnableError
    return axis % rank if rank else 0


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    found = [_axis(axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise _UnableError
    return found


@_rule("Gather")
def _gather(operands: _Operands) -> Array:
    data, indices = operands.small(0), operands.integers(1)
    axis = _axis(operands.number("axis"), data.ndim)
    size = data.shape[axis]
    if ((indices < -size) | (indices >= size)).any():
        raise _UnableError
    return np.take(data, indices, axis=axis)


@_rule("Slice")
def _slice(operands: _Operands) -> Array:
    data = operands.small(0)
    starts, ends = operands.numbers("starts"), operands.numbers("ends")
    if starts is None or ends is None:
        raise _UnableError
    axes = _axes(operands.numbers("axes") or range(len(starts)), data.ndim)
    steps = operands.numbers("steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise _UnableError
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        data = np.take(data, _sliced(start, end, step, data.shape[axis]), axis=axis)
    return data


def _sliced(start: int, end: int, step: int, size: int) -> list[int]:
    """The indices a slice takes. Python's differ where a slice begins before the first element and runs backwards."""
    if size == 0:
        return []
    if step < 0 and end in _TO_THE_END:
        raise _UnableError  # "to the end" by ONNX's words, "to the beginning" to the runtime
    start, end = start + size if start < 0 else start, end + size if end < 0 else end
    if step > 0:
        return list(range(min(max(start, 0), size), min(max(end, 0), size), step))
    return list(range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step))


@_rule("Concat")
def _concat(operands: _Operands) -> Array:
    arrays = _alike(*operands.all_small())
    return np.concatenate(arrays, axis=_axis(operands.number("axis"), arrays[0].ndim))


@_rule("Transpose")
def _transpose(operands: _Operands) -> Array:
    return np.transpose(operands.small(0), operands.numbers("perm"))


@_rule("Expand")
def _expand(operands: _Operands) -> Array:
    data, shape = operands.small(0), tuple(int(size) for size in operands.integers(1).reshape(-1))
    target = np.broadcast_shapes(data.shape, shape)
    if math.prod(target) > MAX_ELEMENTS:
        raise _UnableError
    return np.broadcast_to(data, target)


@_rule("Tile")
def _tile(operands: _Operands) -> Array:
    data, repeats = operands.small(0), [int(count) for count in operands.integers(1).reshape(-1)]
    if (
        len(repeats) != data.ndim
        or any(count < 0 for count in repeats)
        or data.size * math.prod(repeats) > MAX_ELEMENTS
    ):
        raise _UnableError
    return np.tile(data, repeats)


@_rule("ReduceSum", "ReduceProd", "ReduceMin", "ReduceMax")
def _reduce(operands: _Operands) -> Array:
    data = operands.integers(0)
    axes = operands.numbers("axes")
    if not axes and operands.node.param("noop_with_empty_axes"):
        return data
    chosen = tuple(_axes(axes, data.ndim)) if axes else tuple(range(data.ndim))
    sizes = [abs(int(item)) for item in data.reshape(-1)]
    largest = math.prod(max(size, 1) for size in sizes) if operands.node.op_type == "ReduceProd" else sum(sizes)
    if not sizes or largest >= (1 << 31 if data.dtype.itemsize == 4 else 1 << 53):
        raise _UnableError  # the runtime adds and multiplies in double
    keep = bool(operands.number("keepdims"))
    return np.asarray(_REDUCTIONS[operands.node.op_type](data, chosen, keep))


# Named, since numpy would add up 32-bit integers in 64 bits.
_REDUCTIONS: Final[dict[str, Callable[[Array, tuple[int, ...], bool], Array]]] = {
    "ReduceSum": lambda data, axes, keep: np.sum(data, axis=axes, keepdims=keep, dtype=data.dtype),
    "ReduceProd": lambda data, axes, keep: np.prod(data, axis=axes, keepdims=keep, dtype=data.dtype),
    "ReduceMin": lambda data, axes, keep: np.min(data, axis=axes, keepdims=keep),
    "ReduceMax": lambda data, axes, keep: np.max(data, axis=axes, keepdims=keep),
}


# --- the same bytes under another shape


def relabelled(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with another shape of the same size, over the same bytes."""
    if tensor.dtype is DType.STRING:
        return Tensor.from_numpy(tensor.numpy().reshape(shape), tensor.dtype)
    return Tensor(tensor.dtype, shape, tensor.region or tensor.raw())


@_rule("Identity")
def _identity(operands: _Operands) -> Tensor:
    return operands.tensor(0)


@_rule("Reshape")
def _reshape(operands: _Operands) -> Tensor:
    data, wanted = operands.tensor(0), [int(size) for size in operands.integers(1).reshape(-1)]
    copies_zero = not operands.node.param("allowzero")
    if any(size < -1 for size in wanted) or wanted.count(-1) > 1 or (-1 in wanted and 0 in wanted and not copies_zero):
        raise _UnableError
    shape = [data.shape[axis] if size == 0 and copies_zero else size for axis, size in enumerate(wanted)]
    if -1 in shape:
        rest = math.prod(size for size in shape if size != -1)
        if rest == 0 or data.size % rest:
            raise _UnableError
        shape[shape.index(-1)] = data.size // rest
    if math.prod(shape) != data.size:
        raise _UnableError
    return relabelled(data, tuple(shape))


@_rule("Squeeze")
def _squeeze(operands: _Operands) -> Tensor:
    data, axes = operands.tensor(0), operands.numbers("axes")
    if axes is not None and not axes:
        raise _UnableError  # runtimes do not agree on what an empty list says
    gone = [axis for axis, size in enumerate(data.shape) if size == 1] if axes is None else _axes(axes, data.rank)
    if any(data.shape[axis] != 1 for axis in gone):
        raise _UnableError
    return relabelled(data, tuple(size for axis, size in enumerate(data.shape) if axis not in gone))


@_rule("Unsqueeze")
def _unsqueeze(operands: _Operands) -> Tensor:
    data, axes = operands.tensor(0), operands.numbers("axes")
    if axes is None:
        raise _UnableError
    rank = data.rank + len(axes)
    new = _axes(axes, rank)
    sizes = iter(data.shape)
    return relabelled(data, tuple(1 if axis in new else next(sizes) for axis in range(rank)))


@_rule("Flatten")
def _flatten(operands: _Operands) -> Tensor:
    data, axis = operands.tensor(0), operands.number("axis")
    if not -data.rank <= axis <= data.rank:
        raise _UnableError
    split = axis + data.rank if axis < 0 else axis
    return relabelled(data, (math.prod(data.shape[:split]), math.prod(data.shape[split:])))
