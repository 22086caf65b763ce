"""When a pure operator cannot fail, as far as shapes and constants show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from graphopt.analysis import effect_table as table
from graphopt.ir import symbol
from graphopt.ir.node import Node
from graphopt.ir.symbol import Integer
from graphopt.ir.types import Shape
from graphopt.ir.value import Value
from graphopt.tensors import DType

_READ_LIMIT = 1 << 16  # elements of a constant looked at


def cannot_fail(node: Node, is_total: Callable[[Node], bool]) -> bool:
    """True if a pure node gives a result whatever its operands hold; `is_total` is asked about the nodes of bodies."""
    if not node.is_operator:
        return True
    op_type = node.op_type
    if node.graph is not None and (node.domain, op_type, node.overload) in node.graph.model.functions:
        return False  # bodies of functions have no types
    if node.domain not in ("", "ai.onnx"):
        return node.domain == "com.microsoft" and op_type in table.CONTRIB_TOTAL
    if op_type in table.UNARY or op_type in table.ALWAYS_TOTAL:
        return True
    if op_type in table.BROADCASTING:
        return _broadcast_is_total(node)
    if op_type == "If":
        return _has_one_element(node.operand(0)) and all(map(is_total, _inner_nodes(node)))
    check = _CHECKS.get(op_type)
    return check is not None and check(node)


def _inner_nodes(node: Node) -> list[Node]:
    return [inner for body in node.bodies.values() for inner in body.nodes()]


def _broadcast_is_total(node: Node) -> bool:
    shapes = [_shape(node, index) for index in range(len(node.operands))]
    if not node.has_latest_meaning:
        if any(shape != shapes[0] or shape is None or None in shape for shape in shapes):
            return False
    elif not broadcast(*shapes):
        return False
    if node.op_type == "BitShift":
        return False  # a shift by more than the width is undefined
    if node.op_type in ("Div", "Mod"):
        return _is_float(node.operand(1)) or _divides_safely(node.operand(1))
    return True


def _divides_safely(divisor: Value | None) -> bool:
    """True if a constant divisor has no 0, and no -1, by which the least integer cannot be divided."""
    values = _numbers(divisor)
    return values is not None and not np.isin(values, (0, -1)).any()


def broadcast(*shapes: Shape | None) -> bool:
    """True if shapes are known to broadcast against each other, as ONNX defines it since opset 7."""
    if any(shape is None for shape in shapes):
        return False
    rows = [shape for shape in shapes if shape is not None]
    for place in range(1, max(map(len, rows), default=0) + 1):
        dims = [row[-place] for row in rows if place <= len(row) and row[-place] != 1]
        first = dims[0] if dims else 1
        for dim in dims[1:]:
            if dim is None or first is None or not symbol.always_equal(dim, first):
                return False
    return True


def _cast(node: Node) -> bool:
    return node.opset >= 6 and _is_number(node.operand(0))


def _cast_like(node: Node) -> bool:
    return _is_number(node.operand(0)) and _dtype(node.operand(1)) is not None


def _clip(node: Node) -> bool:
    limits = [value for value in node.operands[1:] if value is not None]
    return all(value.shape == () for value in limits)


def _concat(node: Node) -> bool:
    shapes = [_shape(node, index) for index in range(len(node.operands))]
    first = shapes[0] if shapes else None
    axis = None if first is None else _axis(node.param("axis"), len(first))
    if first is None or axis is None:
        return False
    for shape in shapes[1:]:
        if shape is None or len(shape) != len(first):
            return False
        pairs = [(a, b) for index, (a, b) in enumerate(zip(shape, first, strict=True)) if index != axis]
        if not all(_same_dims(a, b) for a, b in pairs):
            return False
    return True


def _constant_of_shape(node: Node) -> bool:
    sizes = _numbers(node.operand(0))
    return sizes is not None and bool((sizes >= 0).all())


def _dropout(node: Node) -> bool:
    ratio = node.operand(1) if node.opset >= 12 else None
    values = _numbers(ratio)
    return ratio is None or (
        values is not None and values.size == 1 and bool((values >= 0).all() and (values < 1).all())
    )


def _expand(node: Node) -> bool:
    target = _numbers(node.operand(1))
    return target is not None and bool((target >= 0).all()) and broadcast(_shape(node, 0), tuple(map(int, target)))


def _flatten(node: Node) -> bool:
    shape, axis = _shape(node, 0), node.param("axis")
    return shape is not None and isinstance(axis, int) and -len(shape) <= axis <= len(shape)


def _gather(node: Node) -> bool:
    shape, indices = _shape(node, 0), _numbers(node.operand(1))
    axis = None if shape is None else _axis(node.param("axis"), len(shape))
    if shape is None or indices is None or axis is None:
        return False
    dim = shape[axis]
    if dim is None:
        return indices.size == 0
    least, greatest = int(indices.min(initial=0)), int(indices.max(initial=-1))
    return symbol.is_nonnegative(dim + least) and symbol.is_positive(dim - greatest)


def _matmul(node: Node) -> bool:
    left, right = _shape(node, 0), _shape(node, 1)
    if not left or not right:
        return False
    inner = right[-2] if len(right) > 1 else right[-1]
    return _same_dims(left[-1], inner) and broadcast(left[:-2], right[:-2])


def _pad(node: Node) -> bool:
    shape, pads = _shape(node, 0), _integers(node.param("pads"))
    constant = node.param("mode") == "constant" and node.opset >= 2 and node.operand(3) is None
    return (
        constant
        and shape is not None
        and pads is not None
        and len(pads) == 2 * len(shape)
        and min(pads, default=0) >= 0
    )


def _reshape(node: Node) -> bool:
    shape, target = _shape(node, 0), _integers(node.param("shape"))
    if shape is None or target is None or min(target, default=0) < -1 or target.count(-1) > 1:
        return False
    keeps_zero = node.param("allowzero") not in (None, 0)
    known: list[Integer] = []
    for index, size in enumerate(target):
        if size == 0 and not keeps_zero:
            dim = shape[index] if index < len(shape) else None
            if dim is None:
                return False
            known.append(dim)
        elif size != -1:
            known.append(size)
    elements, fixed = symbol.product_of(shape), symbol.product_of(known)
    if elements is None or fixed is None:
        return False
    if -1 in target:
        return symbol.is_positive(fixed) and symbol.divide_exactly(elements, fixed) is not None
    return symbol.always_equal(elements, fixed)


def _slice(node: Node) -> bool:
    shape = _shape(node, 0)
    if shape is None:
        return False
    if node.opset < 10:
        starts, ends = _integers(node.param("starts")), _integers(node.param("ends"))
        if starts is None or ends is None or len(starts) != len(ends):
            return False
        count: Integer | None = len(starts)
        axes = _integers(node.param("axes")) if "axes" in node.attributes else tuple(range(len(starts)))
        return axes is not None and len(axes) == count and _axes_fit(axes, len(shape))
    lengths = {_shape(node, index) for index in (1, 2)}
    if len(lengths) != 1 or None in lengths:
        return False
    (length,) = lengths
    count = length[0] if length is not None and len(length) == 1 else None
    if not isinstance(count, int) or count > len(shape):
        return False
    axes = tuple(range(count)) if node.operand(3) is None else _integers(node.param("axes"))
    steps = (1,) * count if node.operand(4) is None else _integers(node.param("steps"))
    fits = axes is not None and len(axes) == count and _axes_fit(axes, len(shape))
    return fits and steps is not None and len(steps) == count and 0 not in steps


def _softmax(node: Node) -> bool:
    shape = _shape(node, 0)
    return shape is not None and len(shape) > 0 and _axis(node.param("axis"), len(shape)) is not None


def _split(node: Node) -> bool:
    shape, sizes = _shape(node, 0), node.param("split")
    axis = None if shape is None else _axis(node.param("axis"), len(shape))
    dim = None if shape is None or axis is None else shape[axis]
    if not isinstance(dim, int):
        return False
    if sizes is None:
        return dim % len(node.results) == 0
    parts = _integers(sizes)
    return parts is not None and len(parts) == len(node.results) and min(parts, default=0) >= 0 and sum(parts) == dim


def _squeeze(node: Node) -> bool:
    shape, axes = _shape(node, 0), node.param("axes")
    if axes is None:
        return True
    places = _integers(axes)
    if shape is None or places is None or not _axes_fit(places, len(shape)):
        return False
    return all(shape[place] == 1 for place in places)


def _tile(node: Node) -> bool:
    shape, repeats = _shape(node, 0), _numbers(node.operand(1))
    if node.opset < 6 or shape is None or repeats is None:
        return False
    return repeats.size == len(shape) and bool((repeats >= 0).all())


def _transpose(node: Node) -> bool:
    permutation = node.attributes.get("perm")
    if permutation is None:
        return True
    shape, places = _shape(node, 0), _integers(permutation)
    return shape is not None and places is not None and sorted(places) == list(range(len(shape)))


def _unsqueeze(node: Node) -> bool:
    shape, axes = _shape(node, 0), _integers(node.param("axes"))
    return shape is not None and axes is not None and _axes_fit(axes, len(shape) + len(axes))


_CHECKS: Final[dict[str, Callable[[Node], bool]]] = {
    "BitCast": lambda node: _is_number(node.operand(0)),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


# --- reading operands


def _shape(node: Node, index: int) -> Shape | None:
    value = node.operand(index)
    return None if value is None else value.shape


def _dtype(value: Value | None) -> DType | None:
    dtype = None if value is None else value.dtype
    return None if dtype is DType.UNDEFINED else dtype


def _is_number(value: Value | None) -> bool:
    return _dtype(value) not in (None, DType.STRING)


def _is_float(value: Value | None) -> bool:
    dtype = _dtype(value)
    return dtype is not None and dtype.is_float


def _has_one_element(value: Value | None) -> bool:
    shape = None if value is None else value.shape
    return shape is not None and all(dim == 1 for dim in shape)


def _numbers(value: Value | None) -> np.ndarray[tuple[int, ...], np.dtype[Any]] | None:
    """The elements of a small constant, flat."""
    tensor = None if value is None else value.const
    if tensor is None or tensor.size > _READ_LIMIT or tensor.dtype is DType.STRING:
        return None
    return tensor.numpy().reshape(-1)


def _integers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, int):
        return (value,)
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return value
    return None


def _axis(axis: object, rank: int) -> int | None:
    return axis % rank if isinstance(axis, int) and -rank <= axis < rank else None


def _axes_fit(axes: tuple[int, ...], rank: int) -> bool:
    places = [_axis(axis, rank) for axis in axes]
    return None not in places and len(set(places)) == len(places)


def _same_dims(left: Integer | None, right: Integer | None) -> bool:
    return left is not None and right is not None and symbol.always_equal(left, right)
