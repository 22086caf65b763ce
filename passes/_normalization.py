"""Normalization over the last axes, as exporters write it in parts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, DType, Node, Tensor, Value
from passes._cover import Cover, is_near, number, other, sole_user
from passes._normalization_reasons import base_of, unlike, unlike_behind
from passes._proofs import axes_of, type_name

_KERNELS = (DType.FLOAT, DType.FLOAT16, DType.DOUBLE)
"""Types the runtime computes in one piece."""
_SHORT = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write for a normalization.

    Attributes:
        op_type: The operator of the standard domain.
        is_centred: Whether it subtracts the mean.
        dtypes: The element types to write it for.
        asks_for_scale: Leave it if it is multiplied by something that the operator does not take as its scale.
    """

    op_type: str
    is_centred: bool
    dtypes: Collection[DType] = _KERNELS
    asks_for_scale: bool = True


LAYER_NORMALIZATION = Wanted("LayerNormalization", is_centred=True)
RMS_NORMALIZATION = Wanted("RMSNormalization", is_centred=False)


@dataclass(slots=True)
class _Found:
    """What the parts say.

    Attributes:
        x: What is normalized, in its own type.
        axis: The first axis of the mean, counted from the back.
        epsilon: What is added to the variance.
        root: The last part so far.
        path: The parts from the square root on.
        scale: What the result is multiplied by, where the parts have that inside.
        bias: What is added, likewise.
    """

    x: Value
    axis: int
    epsilon: float
    root: Node
    path: list[Node]
    scale: Value | None = None
    bias: Value | None = None


def normalized(square_root: Node, context: Context, wanted: Wanted) -> str:
    """Replace the normalization around a square root by its operator, if that is what it is part of.

    Args:
        square_root: The Sqrt in its middle, or the Pow that gives one over the square root.
        context: The pass's surroundings.
        wanted: The operator.

    Returns:
        Why what looks like a normalization stays in parts; empty if it was replaced, or looks like something else.
    """
    if square_root.op_type == "Pow" and not _is_inverse_root(square_root):
        return ""
    inner = Cover(square_root)
    total = inner.enter(square_root.operand(0), "Add")
    for mean, constant in () if total is None else (total.operands, total.operands[::-1]):
        epsilon = number(constant, mean)
        variance = inner.enter(mean, "ReduceMean") if epsilon is not None else None
        if epsilon is not None and variance is not None:
            break
    else:
        return unlike(square_root, is_centred=wanted.is_centred)
    square = inner.enter(variance.operand(0), "Pow", "Mul")
    base = None if square is None else base_of(square)
    if base is None or base.rank is None:
        return ""
    axis = _trailing(variance, base.rank)
    x, deviation, mean_of = base, base, None
    if wanted.is_centred:
        lifted = inner.enter(base, "Cast")
        difference = inner.enter(base if lifted is None else lifted.operand(0), "Sub")
        mean_of = None if difference is None else inner.enter(difference.operand(1), "ReduceMean")
        if difference is None or mean_of is None or mean_of.operand(0) is not difference.operand(0):
            return ""
        first = difference.operand(0)
        if first is None:
            return ""
        x, deviation = first, difference.results[0]
        if _trailing(mean_of, base.rank) != axis:
            return "the mean and the variance are taken over different axes"
        if lifted is not None and x.dtype not in _SHORT:
            return ""
    if axis is None:
        return "the mean is not known to go over the last axes and to keep them"
    found = _after(square_root, x, deviation, base, axis, epsilon)
    if found is None and mean_of is not None:
        found = _distributed(square_root, x, mean_of.results[0], axis, epsilon)
    if found is None:
        return unlike_behind(square_root)
    return _replace(found, inner, context, wanted)


def _is_inverse_root(power: Node) -> bool:
    return number(power.operand(1), power.operand(0)) == -0.5


def _trailing(mean: Node, rank: int) -> int | None:
    """The first axis of a mean over the last ones, from the back."""
    axes = axes_of(mean, rank)
    if not axes or not mean.param("keepdims") or sorted(axes) != list(range(rank - len(axes), rank)):
        return None
    return -len(axes)


def _after(root: Node, x: Value, deviation: Value, base: Value, axis: int, epsilon: float) -> _Found | None:
    """The division by the square root, which may be one over it and a product."""
    value, path = root.results[0], [root]
    inverse = root if root.op_type == "Pow" else sole_user(value, "Reciprocal", "Div")
    if inverse is None:
        return None
    if inverse.op_type != "Div" or is_near(number(inverse.operand(0), value), 1.0):
        path.append(inverse)
        value = inverse.results[0]
        product = sole_user(value, "Mul")
        numerator = None if product is None else other(product, value)
    else:
        product = inverse
        numerator = inverse.operand(0) if inverse.operand(1) is value else None
    if product is None or numerator is None:
        return None
    path.append(product)
    if numerator in (deviation, base):
        return _Found(x, axis, epsilon, product, path)
    # The scale may come first.
    scaled = numerator.producer
    for normal, scale in (scaled.operands, scaled.operands[::-1]) if scaled.is_op("Mul") else ():
        if normal in (deviation, base) and _vector(scale, x, axis) is not None:
            return _Found(x, axis, epsilon, product, [*path, scaled], scale)
    return None


def _distributed(root: Node, x: Value, mean: Value, axis: int, epsilon: float) -> _Found | None:
    """x·g + (bias - mean·g), where g is the scale over the square root, as TensorFlow's layers come."""
    inverse = sole_user(root.results[0], "Reciprocal", "Div")
    if inverse is None or not (inverse.op_type == "Reciprocal" or is_near(number(inverse.operand(0)), 1.0)):
        return None
    path, factor, scale = [root, inverse], inverse.results[0], None
    scaled = sole_user(factor, "Mul")
    if scaled is not None:
        path.append(scaled)
        factor, scale = scaled.results[0], other(scaled, factor)
    products = {other(user, factor): user for user in factor.users if user.is_op("Mul")}
    of_x, of_mean = products.get(x), products.get(mean)
    less = None if of_mean is None else sole_user(of_mean.results[0], "Sub")
    total = None if less is None else sole_user(less.results[0], "Add")
    if of_x is None or of_mean is None or less is None or total is None:
        return None
    bias = less.operand(0)
    if less.operand(1) is not of_mean.results[0] or other(total, less.results[0]) is not of_x.results[0]:
        return None
    if scaled is not None and (scale is None or _vector(scale, x, axis) is None):
        return None
    if bias is None or _vector(bias, x, axis) is None:
        return None
    return _Found(x, axis, epsilon, total, [*path, of_x, of_mean, less, total], scale, bias)


def _replace(found: _Found, inner: Cover, context: Context, wanted: Wanted) -> str:
    x, root, path = found.x, found.root, list(found.path)
    raised = x.producer if x.producer.op_type == "Cast" and x.producer.domain == "" else None
    lowered = sole_user(root.results[0], "Cast")
    source = raised.operand(0) if raised is not None and lowered is not None else None
    is_whole = found.bias is not None
    is_cast = (
        found.scale is None
        and not is_whole
        and lowered is not None
        and source is not None
        and x.dtype is DType.FLOAT
        and source.dtype in _SHORT
        and source.dtype in wanted.dtypes
        and lowered.results[0].dtype is source.dtype
    )
    if is_cast and lowered is not None and source is not None:
        x, root = source, lowered
        path.append(lowered)
    elif root.results[0].dtype is not x.dtype:
        # The deviation was raised to float.
        if lowered is None or lowered.results[0].dtype is not x.dtype:
            return f"it is computed in {type_name(root.results[0].dtype)} and not cast back to {type_name(x.dtype)}"
        root = lowered
        path.append(lowered)
    if x.dtype not in wanted.dtypes:
        return f"there is no kernel of {wanted.op_type} for {type_name(x.dtype)}"
    if x.shape is None:
        return "its rank is not known"
    if x.dtype is DType.DOUBLE and float(np.float32(found.epsilon)) != found.epsilon:
        return "what is added to the variance has more digits than an attribute holds"
    dims = x.shape[found.axis :]
    if not all(isinstance(dim, int) for dim in dims) or math.prod(int(dim or 0) for dim in dims) < 2:
        # The runtime's kernel refuses to normalize a single number.
        return "it may go over less than two numbers, or how many is not known"
    scale, bias = found.scale, found.bias
    product = None if is_whole or scale is not None else sole_user(root.results[0], "Mul")
    if product is not None and product.operand(0) is not product.operand(1):
        scale = _vector(other(product, root.results[0]), x, found.axis)
        if scale is not None:
            root = product
            path.append(product)
    total = sole_user(root.results[0], "Add") if wanted.is_centred and not is_whole else None
    if total is not None and total.operand(0) is not total.operand(1):
        bias = _vector(other(total, root.results[0]), x, found.axis)
        if bias is not None:
            root = total
            path.append(total)
    if scale is None and not wanted.is_centred and product is not None and wanted.asks_for_scale:
        return "it is scaled by something else than one number for each element that is normalized"
    cover = Cover(root)
    for node in (*inner.nodes, *path):
        cover.enter(node.results[0], node.op_type)
    if is_cast and raised is not None and all(user in cover.nodes for user in raised.results[0].users):
        cover.enter(raised.results[0], "Cast")
    shape = tuple(int(dim or 0) for dim in dims)
    dtype = x.dtype
    assert dtype is not None
    parameters = {"axis": found.axis, "epsilon": found.epsilon}

    def build(b: Builder) -> Value:
        weight = _made(b, scale, shape) if scale is not None else b.constant(np.ones(shape), dtype)
        operands = [x, weight] if bias is None else [x, weight, _made(b, bias, shape)]
        made: Value = b.apply(wanted.op_type, operands, parameters=parameters)
        return made

    return "" if cover.replace(context, build) else "a part of it is read elsewhere, or kept"


def _vector(value: Value | None, x: Value, axis: int) -> Value | None:
    """A scale or bias of exactly the normalized dims; dims of size 1 before them may go if it is constant."""
    if value is None or value.shape is None or x.shape is None or value.dtype is not x.dtype:
        return None
    dims = x.shape[axis:]
    if value.shape == dims:
        return value
    extra = len(value.shape) - len(dims)
    is_padded = extra > 0 and len(value.shape) <= len(x.shape) and all(dim == 1 for dim in value.shape[:extra])
    return value if value.const is not None and is_padded and value.shape[extra:] == dims else None


def _made(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    if value.const is None or value.const.shape == shape:
        return value
    return b.constant(Tensor.from_numpy(value.const.numpy().reshape(shape), value.const.dtype))
