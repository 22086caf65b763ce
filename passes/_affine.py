"""Arithmetic by constants as a scale and a shift: what Mul, Div, Add, Sub and BatchNormalization do to each channel."""

from __future__ import annotations

import numpy as np

from graphopt import Node, Value
from passes._weights import Array, in_double

_MOST_DEVIATIONS = 16.0


def normalization_of(node: Node) -> tuple[Array, Array] | str:
    """Scale and shift, one number for each channel, of a BatchNormalization in use; or why there is none."""
    if node.param("training_mode") or any(value.is_used for value in node.results[1:]):
        return "it trains, or may"
    tensors = [None if value is None else value.const for value in node.operands[1:5]]
    found = [tensor for tensor in tensors if tensor is not None and tensor.rank == 1 and tensor.dtype.is_float]
    if len(found) != 4 or len({tensor.shape for tensor in found}) != 1:
        return "a statistic is computed at run time"
    gamma, beta, mean, variance = map(in_double, found)
    epsilon = node.param("epsilon")
    if not isinstance(epsilon, float):
        return "epsilon is the caller's"
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        shift = beta - mean * scale
    if not np.isfinite(scale).all() or not np.isfinite(shift).all():
        return "a scale or shift is not finite"
    return scale, shift


def is_centred(node: Node) -> bool:
    """True if no mean of a BatchNormalization lies many deviations from zero.

    Normalized first, such a channel would cancel before the layer adds it up; folded, it cancels afterwards, and what
    the larger numbers were rounded by is left.
    """
    scale, beta, mean, variance = (in_double(value.const) for value in node.operands[1:5] if value and value.const)
    deviation = np.sqrt(variance + node.param("epsilon"))
    return bool((np.abs(mean * scale) <= _MOST_DEVIATIONS * np.abs(scale) * deviation + np.abs(beta)).all())


def multiplier(node: Node, numbers: Array) -> Array | None:
    """What a Mul or Div by these numbers multiplies with; None if that is not finite."""
    with np.errstate(all="ignore"):
        found = 1.0 / numbers if node.op_type == "Div" else numbers
    return found if bool(np.isfinite(found).all()) else None


def addend(node: Node, numbers: Array) -> Array | None:
    """What an Add or Sub of these numbers adds; None if that is not finite."""
    return (-numbers if node.op_type == "Sub" else numbers) if bool(np.isfinite(numbers).all()) else None


# --- patterns that belong to somebody else

_CURVES = ("Erf", "Tanh")
_HARD_SWISH, _GROUPS = 14, 21  # the first opsets that have HardSwish, and GroupNormalization for each channel
_ROOTS = ("Sqrt", "Reciprocal", "Pow")


def ends_activation(value: Value) -> bool:
    """True if a value is `x` times a curve of `x`: the factor behind it completes a Gelu or HardSwish."""
    node = value.producer
    if node.op_type != "Mul" or not node.is_operator:
        return False
    curves = _CURVES if node.opset < _HARD_SWISH else (*_CURVES, "Clip", "HardSigmoid")
    return any(_is_curve(item, curves) for item in node.operands)


def _is_curve(value: Value | None, curves: tuple[str, ...]) -> bool:
    for _ in range(3):
        if value is None or not value.producer.is_operator:
            return False
        if value.producer.op_type in curves:
            return True
        if value.producer.op_type not in ("Add", "Mul", "Div"):
            return False
        value = next((item for item in value.producer.operands if item is not None and item.const is None), None)
    return False


def is_normalized(value: Value) -> bool:
    """True if a value was divided by a root: its scale and bias complete a LayerNormalization or RMSNormalization."""
    node = value.producer
    if node.is_op("Cast") and node.operands[0] is not None:
        node = node.operands[0].producer
    if not node.is_operator or node.op_type not in ("Div", "Mul"):
        return False
    return any(_is_root(item) for item in node.operands)


def _is_root(value: Value | None) -> bool:
    """True for a root, and for its reciprocal in whatever spelling."""
    for _ in range(3):
        if value is None or not value.producer.is_operator:
            return False
        if value.producer.op_type in _ROOTS:
            return True
        if value.producer.op_type not in ("Cast", "Div"):
            return False
        value = next((item for item in value.producer.operands if item is not None and item.const is None), None)
    return False


def completes_normalization(node: Node, value: Value, constant: Value) -> bool:
    """True if a Mul or Add is the scale or shift, one number for each channel, of a normalization in parts.

    ONNX Runtime makes one operator of all parts, these among them, and of nothing less: even where they change no
    number, as in a network that was not trained yet, the normalization is slower without them.

    Args:
        node: The Mul or Add.
        value: What it scales or shifts.
        constant: The numbers.
    """
    if constant.shape is None or value.shape is None or not 0 < len(constant.shape) < len(value.shape):
        return False
    if constant.shape != value.shape[-len(constant.shape) :]:
        return False
    if node.op_type == "Add" and value.producer.is_op("Mul"):
        return any(item is not None and _is_by_variance(item) for item in value.producer.operands)
    return node.op_type == "Mul" and _is_by_variance(value)


def _is_by_variance(value: Value) -> bool:
    """True if a value was divided by the root of a mean, to which epsilon was added."""
    node = value.producer
    if node.is_op("Cast") and node.operands[0] is not None:
        node = node.operands[0].producer
    if not node.is_operator or node.op_type not in ("Div", "Mul"):
        return False
    for item in node.operands:
        if item is not None and _is_root(item) and (mean := _under(item, "Sqrt", "Add")) is not None:
            return any(part is not None and part.producer.is_op("ReduceMean") for part in mean.operands)
    return False


def _under(value: Value, *op_types: str) -> Node | None:
    """The last of these operators, one under the other, with reciprocals and casts between them passed over."""
    node, wanted = value.producer, list(op_types)
    for _ in range(len(op_types) + 2):
        if not node.is_operator:
            return None
        if node.op_type == wanted[0]:
            del wanted[0]
            if not wanted:
                return node
        elif node.op_type not in ("Reciprocal", "Cast", "Div"):
            return None
        below = next((item for item in node.operands if item is not None and item.const is None), None)
        if below is None:
            return None
        node = below.producer
    return None


def is_grouped(value: Value) -> bool:
    """True if a value was normalized in groups where one operator does that: its scale and bias complete it."""
    node = value.producer
    if node.opset < _GROUPS or not node.is_op("Reshape") or node.operands[0] is None:
        return False
    return node.operands[0].producer.is_op("InstanceNormalization")
