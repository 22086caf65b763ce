"""Where an operator's meaning changed under the same name, so that a rule must not read one as the other.

A parameter that only moved between attribute and operand is no change of meaning: the operator view hides that. What
is listed here is the first opset whose meaning still holds in the newest one; before it the operator is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_BROADCAST = 7  # before it Add, Mul … broadcast by `axis` and `broadcast` attributes, one way only
_FIRST_OPSET_OF_TODAYS_MEANING: dict[str, int] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "Gemm", "PRelu"), _BROADCAST
    ),
    "Sum": 8,  # before it all operands have one shape
    "Mean": 8,
    "Min": 8,
    "Max": 8,
    "Concat": 4,  # the axis had a default
    "Cast": 6,  # the target was a string
    "Pad": 2,  # `paddings`, and clipping of negative ones was undefined
    "BatchNormalization": 14,  # before it the number of outputs says whether it trains
    "Dropout": 7,  # before it `is_test` says whether it trains
    "InstanceNormalization": 6,
    "Softmax": 13,  # before it the operand is flattened to two dims
    "LogSoftmax": 13,
    "Hardmax": 13,
    "Resize": 11,  # opset 10 has no coordinate modes
    "Upsample": 9,
    "TopK": 10,
    "Reshape": 5,
    "Tile": 6,
    "Split": 2,  # before it the sizes may come as an operand
    "Expand": 8,
    "AveragePool": 7,  # before it padding was always counted
    "GroupNormalization": 21,  # before it scale and bias were per group
    "RoiAlign": 16,  # before it pixels had their corner, not their centre, at whole numbers
    "GridSample": 20,  # before it the modes had other names
    "RNN": 7,
    "GRU": 7,
    "LSTM": 7,
    "Scan": 9,  # opset 8 has a batch axis
}

_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


def _normalizes_by_given_statistics(outputs: int, attributes: Mapping[str, Any]) -> bool:
    """A BatchNormalization that names no statistics among its outputs does not train; `spatial` went with opset 9."""
    return outputs == 1 and attributes.get("spatial", 1) == 1


_FORMS_OF_TODAYS_MEANING: dict[str, tuple[int, Callable[[int, Mapping[str, Any]], bool]]] = {
    "BatchNormalization": (7, _normalizes_by_given_statistics),
}
"""Operators of which some applications mean what they do today in older opsets too: since when, and which."""


def epoch_start(op_type: str) -> int:
    """The first opset in which `op_type` of the standard domain may have the meaning it has today."""
    form = _FORMS_OF_TODAYS_MEANING.get(op_type)
    return _FIRST_OPSET_OF_TODAYS_MEANING.get(op_type, 1) if form is None else form[0]


def is_latest_meaning(
    domain: str, op_type: str, opset: int, outputs: int = 0, attributes: Mapping[str, Any] = _NO_ATTRIBUTES
) -> bool:
    """True if an application means in `opset` what it means today; always true outside the standard domain.

    Args:
        domain: The operator's domain.
        op_type: The operator.
        opset: The opset that holds there.
        outputs: How many outputs the application names; 0 for the operator as such, every form of it.
        attributes: The attributes it states.
    """
    if domain != "" or opset >= _FIRST_OPSET_OF_TODAYS_MEANING.get(op_type, 1):
        return True
    form = _FORMS_OF_TODAYS_MEANING.get(op_type)
    return form is not None and opset >= form[0] and form[1](outputs, attributes)
