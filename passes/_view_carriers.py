"""How an operator behind a view computes before it, on the shape the tensor had there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Node, Tensor, Value, is_elementwise, is_position_independent
from passes._concats import axis_of_concat
from passes._permutation import perm_of, with_axes
from passes._proofs import HALVES, Dim, contents, counted, is_given, same_dim, same_shape
from passes._reshape_carrier import Blocks, blocks_of, by_blocks
from passes._view_shapes import is_view

_SMALL = 1 << 16
"""Bytes of a constant that may be stored in another shape beside its own."""
_FIRST_ONLY = ("BitCast", "Cast", "CastLike", "Clip")
"""Elementwise in operand 0; the others are scalars or only types."""


@dataclass(frozen=True, slots=True)
class Change:
    """The same elements in two shapes.

    Attributes:
        value: In the shape an operator sees.
        source: In the shape it shall see.
        blocks: Which axes of the one are which of the other.
    """

    value: Value
    source: Value
    blocks: Blocks

    def axis(self, axis: int) -> int | None:
        """Where an axis is in the other shape; None if it is none, merged, split, or of size 1."""
        seen, inner = _filled(self.value), _filled(self.source)
        if axis not in seen:
            return None
        for own, other in self.blocks.pairs:
            if seen.index(axis) in own:
                return inner[other[0]] if len(own) == len(other) == 1 else None
        return None


def change(value: Value, source: Value) -> Change | None:
    """The change from one shape to the other; None if it is not known how their axes belong together."""
    if value.shape is None or source.shape is None:
        return None
    blocks = blocks_of(value.shape, source.shape)
    return None if blocks is None else Change(value, source, blocks)


def _filled(value: Value) -> list[int]:
    """The axes that are not of size 1."""
    return [axis for axis, dim in enumerate(value.shape or ()) if dim != 1]


def carried(b: Builder, node: Node, change: Change) -> Value | None:
    """The node's result in the other shape, with its operand as it is there; None if it cannot be had."""
    if not node.is_op(node.op_type) or len([result for result in node.results if result.is_used]) != 1:
        return None
    if is_elementwise(node.domain, node.op_type):
        return _elementwise(b, node, change)
    carrier = _CARRIERS.get(node.op_type)
    if carrier is None or node.operand(0) is None or not node.results[0].is_used:
        return None
    return carrier(b, node, change)


def may_carry(node: Node) -> bool:
    """True if it is worth asking `carried`."""
    return node.is_operator and (is_elementwise(node.domain, node.op_type) or node.op_type in _CARRIERS)


def is_exact(node: Node) -> bool:
    """True if the kernel gives the same bits under another shape of the same elements in the same order."""
    if any(value is not None and value.dtype in HALVES for value in (*node.operands, *node.results)):
        return node.op_type in ("Concat", "Pad", "Transpose")
    if node.op_type == "Gemm":
        return False
    if not is_elementwise(node.domain, node.op_type) or node.op_type in _FIRST_ONLY:
        return True
    shapes = [value for value in node.operands if value is not None]
    if all(same_shape(value, node.results[0]) for value in shapes):
        return True  # one array in, one array out, both of the same length as before
    keeps_form = all(same_shape(value, node.results[0]) or _is_one(value) for value in shapes)
    return is_position_independent(node.op_type, shapes[-1].dtype, node.domain, same_form=keeps_form)


def _is_one(value: Value) -> bool:
    return value.shape is not None and all(dim == 1 for dim in value.shape)


# --- elementwise


def _elementwise(b: Builder, node: Node, change: Change) -> Value | None:
    result = node.results[0]
    if not same_shape(result, change.value):
        return None  # broadcast to more
    if node.op_type in _FIRST_ONLY:
        if node.operands[0] is not change.value or change.value in node.operands[1:]:
            return None
        first: Value = b.like(node, change.source, *node.operands[1:])
        return first
    operands: list[Value | None] = []
    for operand in node.operands:
        beside = None if operand is None else _beside(b, operand, change)
        if operand is not None and beside is None:
            return None
        operands.append(beside)
    carried: Value = b.like(node, *operands)
    return carried


def _beside(b: Builder, value: Value, change: Change) -> Value | None:
    """Another operand, as it must be to broadcast in the same way against the other shape."""
    source = change.source
    if value is change.value:
        return source
    before = value.producer.operand(0) if is_view(value.producer) else None
    if before is not None and same_shape(before, source) and same_shape(value, change.value):
        return before
    shape = _broadcast_shape(value, change)
    if shape is None or value.shape is None:
        return None
    if len(value.shape) <= len(source.shape or ()) and _without_ones(value.shape) == _without_ones(shape):
        return value
    tensor = value.const
    if tensor is None or (tensor.nbytes > _SMALL and len(value.uses) > 1):
        return None
    sizes = tuple(dim for dim in _without_ones(shape) if isinstance(dim, int))
    return b.constant(reshaped(tensor, sizes)) if len(sizes) == len(_without_ones(shape)) else None


def reshaped(tensor: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A constant in another shape."""
    return Tensor(tensor.dtype, sizes, lambda: tensor.numpy().reshape(sizes))


def _broadcast_shape(value: Value, change: Change) -> list[Dim] | None:
    """The shape that broadcasts against the other one as this value's does against the one it is in."""
    seen, inner = change.value.shape or (), change.source.shape or ()
    if value.shape is None or len(value.shape) > len(seen):
        return None
    ones: list[Dim] = [1] * (len(seen) - len(value.shape))
    own = [*ones, *value.shape]
    if any(own[axis] != 1 for axis, dim in enumerate(seen) if dim == 1):
        return None
    places, others = _filled(change.value), _filled(change.source)
    shape: list[Dim] = [1] * len(inner)
    for block, other in change.blocks.pairs:
        dims = [(own[places[axis]], seen[places[axis]]) for axis in block]
        if all(same_dim(dim, size) for dim, size in dims):
            for axis in other:
                shape[others[axis]] = inner[others[axis]]
        elif any(dim != 1 for dim, _ in dims):
            return None
    return shape


def _without_ones(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """A shape from its first dim that is not 1 on."""
    first = next((axis for axis, dim in enumerate(shape) if dim != 1), len(shape))
    return tuple(shape[first:])


# --- along the last axes


def _softmax(b: Builder, node: Node, change: Change) -> Value | None:
    rank, inner = change.value.rank or 0, change.source.rank or 0
    axis = node.param("axis")
    if axis not in (-1, rank - 1) or change.axis(rank - 1) != inner - 1:
        return None
    result: Value = b.like(node, change.source, axis=-1)
    return result


def _normalization(b: Builder, node: Node, change: Change) -> Value | None:
    seen, inner, axis = change.value.shape or (), change.source.shape or (), node.param("axis")
    if node.operands[0] is not change.value or change.value in node.operands[1:] or not isinstance(axis, int):
        return None
    count = -axis if axis < 0 else len(seen) - axis
    if not 0 < count <= min(len(seen), len(inner)) or not all(map(same_dim, seen[-count:], inner[-count:])):
        return None
    results = b.like(node, change.source, *node.operands[1:], axis=-count)
    first: Value = results if isinstance(results, Value) else results[0]
    return first


def _matrix_product(b: Builder, node: Node, change: Change) -> Value | None:
    if not _keeps_rows(node, change):
        return None
    result: Value = b.MatMul(change.source, node.operands[1])
    return result


def _keeps_rows(node: Node, change: Change) -> bool:
    """True if a matrix that every row is multiplied by stands on the right, and rows stay rows."""
    seen, inner, right = change.value.shape or (), change.source.shape or (), node.operand(1)
    if node.operands[0] is not change.value or right is None or right is change.value or right.rank != 2:
        return False
    return len(seen) > 1 and len(inner) > 1 and same_dim(seen[-1], inner[-1])


def _gemm(b: Builder, node: Node, change: Change) -> Value | None:
    """A matrix product and a sum, which unlike Gemm take more than two axes."""
    weight, bias, dtype = node.operand(1), node.operand(2), change.value.dtype
    if not _keeps_rows(node, change) or weight is None or dtype is None or not dtype.is_float:
        return None
    if node.param("transA") or node.param("alpha") != 1 or (bias is not None and node.param("beta") != 1):
        return None
    if bias is not None and not _is_row(bias):
        return None
    if node.param("transB"):
        tensor = weight.const
        if tensor is None or len(weight.uses) > 1 or weight.producer.is_pinned:
            return None
        weight = b.constant(Tensor(tensor.dtype, tensor.shape[::-1], lambda: np.ascontiguousarray(tensor.numpy().T)))
    product: Value = b.MatMul(change.source, weight)
    result: Value = product if bias is None else b.Add(product, bias)
    return result


def _is_row(value: Value) -> bool:
    shape = value.shape
    return shape is not None and (len(shape) < 2 or shape[0] == 1)


# --- moving


def _pad(b: Builder, node: Node, change: Change) -> Value | None:
    rank, pads = change.value.rank or 0, contents(node, "pads")
    axes = counted(contents(node, "axes"), rank) if is_given(node, "axes") else tuple(range(rank))
    if pads is None or axes is None or len(pads) != 2 * len(axes) or change.value in node.operands[1:]:
        return None
    found: dict[int, tuple[int, int]] = {}
    for index, axis in enumerate(axes):
        before, after = pads[index], pads[index + len(axes)]
        if not isinstance(before, int) or not isinstance(after, int):
            return None
        place = change.axis(axis)
        if (before or after) and place is None:
            return None
        if place is not None:
            found[place] = (before, after)
    inner = change.source.rank or 0
    whole = [found.get(axis, (0, 0)) for axis in range(inner)]
    parameters = {
        "pads": [before for before, _ in whole] + [after for _, after in whole],
        "mode": node.param("mode"),
        "constant_value" if node.opset >= 11 else "value": _fill(node),
    }
    result: Value = b.apply("Pad", (change.source,), parameters=parameters)
    return result


def _fill(node: Node) -> object:
    return node.operand(2) if node.opset >= 11 else node.param("value")


def _transpose(b: Builder, node: Node, change: Change) -> Value | None:
    perm = perm_of(node)
    if perm is None:
        return None
    places = _filled(change.value)
    moved = by_blocks(tuple(places.index(axis) for axis in perm if axis in places), change.blocks.pairs)
    if moved is None:
        return None
    result: Value = b.Transpose(change.source, perm=list(with_axes(moved, change.blocks.added)))
    return result


def _concat(b: Builder, node: Node, change: Change) -> Value | None:
    axis = axis_of_concat(node)
    place = None if axis is None else change.axis(axis)
    if axis is None or place is None:
        return None
    operands = [_part(value, axis, place, change) for value in node.operands]
    if any(value is None for value in operands):
        return None
    result: Value = b.Concat(*operands, axis=place)
    return result


def _part(value: Value | None, axis: int, place: int, change: Change) -> Value | None:
    """Another operand of a Concat before the view it is made by."""
    if value is change.value:
        return change.source
    before = value.producer.operand(0) if value is not None and is_view(value.producer) else None
    inner = change.source.shape or ()
    if value is None or before is None or before.shape is None or value.shape is None:
        return None
    wanted = [value.shape[axis] if index == place else dim for index, dim in enumerate(inner)]
    is_alike = len(before.shape) == len(wanted) and all(map(same_dim, before.shape, wanted))
    return before if is_alike and len(value.shape) == change.value.rank else None


_CARRIERS: dict[str, Callable[[Builder, Node, Change], Value | None]] = {
    "Concat": _concat,
    "Gemm": _gemm,
    "LayerNormalization": _normalization,
    "LogSoftmax": _softmax,
    "MatMul": _matrix_product,
    "Pad": _pad,
    "RMSNormalization": _normalization,
    "Softmax": _softmax,
    "Transpose": _transpose,
}
