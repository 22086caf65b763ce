"""What computing in another order of axes does to the numbers, operator by operator.

Measured on ONNX Runtime's CPU provider, optimizer and pre-packing off: most operators do not see where an element
stands. Those that do: some elementwise kernels (see `is_position_independent`); Min, Max and Where, which choose another
zero of the two when the operands broadcast differently; Pow, which squares and cubes differently for an exponent that is
a scalar for its inner loop; sums, which are added in another order; maxima and minima, which lose another NaN.
"""

from __future__ import annotations

from graphopt import DType, Node, Value, is_elementwise, is_position_independent
from passes._proofs import HALVES, same_shape

EXACT, SUMS, VALUES = "E", "R", "D"
"""Bit for bit; another rounding or another zero; other values where there are NaNs, infinities or overflows."""

_MOVES = frozenset(
    """ArgMax ArgMin Cast CastLike Concat CumSum DequantizeLinear Expand Gather GatherElements Identity Pad QuantizeLinear
    Reshape Slice Split Squeeze Tile TopK Unsqueeze""".split()
)
"""They move elements, look at one line of them in order, or convert each by itself."""
_ADDING = frozenset(
    ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare")
)
_EXACT_FOR_INT32 = frozenset(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"))


def class_of(node: Node) -> str:
    """The numeric class of letting a node compute in another order of axes."""
    if node.op_type in _MOVES:
        return EXACT
    dtype = _computes_in(node)
    if dtype is None:
        return VALUES
    if is_elementwise("", node.op_type):
        return _class_of_elementwise(node, dtype)
    if node.op_type in ("Softmax", "LogSoftmax"):
        return EXACT if dtype is DType.FLOAT or dtype in HALVES else VALUES
    if node.op_type in ("ReduceMax", "ReduceMin") and not dtype.is_float:
        return EXACT
    if dtype.is_float:
        return SUMS if node.op_type in _ADDING else VALUES
    # Sums of 64-bit integers go through float64.
    return EXACT if dtype is DType.INT32 and node.op_type in _EXACT_FOR_INT32 else VALUES


def _computes_in(node: Node) -> DType | None:
    value = node.operand(1 if node.op_type == "Where" else 0)
    return None if value is None else value.dtype


def _class_of_elementwise(node: Node, dtype: DType) -> str:
    same_form = all(_is_whole(value, node.results[0]) for value in node.operands)
    if not dtype.is_float:
        return EXACT if is_position_independent(node.op_type, dtype, same_form=same_form) else VALUES
    if node.op_type in ("Max", "Min"):
        return EXACT if same_form else SUMS
    if node.op_type == "Where":
        return EXACT if _is_whole(node.operands[0], node.results[0]) else SUMS
    if node.op_type == "Pow" and not same_form:
        exponent = node.operands[1]
        is_number = exponent is not None and exponent.shape is not None and all(dim == 1 for dim in exponent.shape)
        return EXACT if is_number and is_position_independent("Pow", dtype, same_form=True) else SUMS
    return EXACT if is_position_independent(node.op_type, dtype, same_form=same_form) else SUMS


def _is_whole(value: Value | None, result: Value) -> bool:
    """True if an operand has the shape of the result, so that nothing is broadcast."""
    return value is not None and same_shape(value, result)
