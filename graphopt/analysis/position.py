"""Whether an elementwise operator gives a number the same bits wherever the number stands.

A rule that changes the length of the array a float kernel sees, or a number's place in it (Slice, Transpose, Concat,
Gather moved past the operator), is exact only where this says so. The facts are measured, see `position_table`; what
was not measured counts as dependent.
"""

from __future__ import annotations

from graphopt.analysis.effects import is_elementwise
from graphopt.analysis.position_table import FORM_DEPENDENT, INDEPENDENT
from graphopt.tensors import DType

_INEXACT_FOR_INTEGERS = ("Pow",)  # through floating point, and by another path for an exponent that is a scalar


def is_position_independent(op_type: str, dtype: DType | None, domain: str = "", *, same_form: bool = False) -> bool:
    """True if moving, slicing or transposing around the operator gives the same bits.

    Args:
        op_type: The operator.
        dtype: The element type that it computes with: of operand 0, for Where of operand 1.
        domain: The operator's domain.
        same_form: The caller's word that scalars stay scalars and whole tensors stay whole. `Pow` squares and cubes by
            multiplication where the exponent is a scalar, so it is exact only then.
    """
    if dtype is None or not is_elementwise(domain, op_type):
        return False
    if dtype.is_integer or dtype is DType.BOOL:
        return domain in ("", "ai.onnx") and op_type not in _INEXACT_FOR_INTEGERS
    key = ("" if domain == "ai.onnx" else domain, op_type, dtype.name)
    return key in INDEPENDENT or (same_form and key in FORM_DEPENDENT)
