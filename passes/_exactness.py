"""What computing in another order of axes does to the numbers, operator by operator.

Measured on ONNX Runtime's CPU provider, optimizer and pre-packing off: most operators do not see where an element
stands. Those that do: some elementwise kernels (see `is_position_independent`); sums, which are added in another order;
maxima and minima, which lose another NaN. Halves are computed in float32 there and rounded only where the neighbours
make it, so that nothing about them is exact.
"""

from __future__ import annotations

from graphopt import DType, Node, Value, is_elementwise, is_position_independent
from passes._proofs import HALVES, same_shape

EXACT, SUMS, VALUES = "E", "R", "D"
"""Bit for bit; another rounding or another zero; other values where there are NaNs, infinities or overflows."""

_MOVES = frozenset(
    (
        *("ArgMax", "ArgMin", "Cast", "CastLike", "Concat", "CumSum", "DequantizeLinear", "Expand", "Gather"),
        *("GatherElements", "Identity", "Pad", "QuantizeLinear", "Reshape", "Slice", "Split", "Squeeze", "Tile"),
        *("TopK", "Unsqueeze"),
    )
)
"""They move elements, look at one line of them in order, or convert each by itself."""
_ADDING = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare")
_EXACT_FOR_INT32 = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def class_of(node: Node) -> str:
    """The numeric class of letting a node compute in another order of axes."""
    dtype = _computes_in(node)
    if dtype is None:
        return VALUES
    found = _class_of(node, dtype)
    return SUMS if found == EXACT and (dtype in HALVES or node.results[0].dtype in HALVES) else found


def _class_of(node: Node, dtype: DType) -> str:
    if node.op_type in ("Cast", "CastLike") and dtype.is_float and node.results[0].dtype is DType.UINT32:
        return VALUES  # what is no uint32 becomes something else at another place of the array
    if node.op_type in _MOVES:
        return EXACT
    if is_elementwise("", node.op_type):
        keeps_form = all(_keeps_form(value, node.results[0]) for value in node.operands)
        if is_position_independent(node.op_type, dtype, same_form=keeps_form):
            return EXACT
        return SUMS if dtype.is_float else VALUES
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


def _keeps_form(value: Value | None, result: Value) -> bool:
    """True if an operand is a whole tensor or one number, whatever the order of axes."""
    if value is None or value.shape is None:
        return value is None
    return all(dim == 1 for dim in value.shape) or same_shape(value, result)
