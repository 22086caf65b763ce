"""Whether an elementwise operator gives a number the same bits wherever the number stands.

A rule that changes the length of the array a float kernel sees, or a number's place in it (Slice, Transpose, Concat,
Gather moved past the operator), is exact only where this says so. The facts are measured, see `position_table`; what
was not measured counts as dependent. So does float16, which the CPU provider computes in float32 and rounds only where
the neighbours make it: even a view between two operators can change bits.
"""

from __future__ import annotations

from graphopt.analysis.effects import is_elementwise
from graphopt.analysis.position_table import FORM_DEPENDENT, INDEPENDENT, SIGN_OF_ZERO_ONLY
from graphopt.tensors import DType

_INEXACT_FOR_INTEGERS = ("Pow",)  # through floating point, and by another path for an exponent that is a scalar


def is_position_independent(
    op_type: str, dtype: DType | None, domain: str = "", *, same_form: bool = False, signed_zeros: bool = True
) -> bool:
    """True if moving, slicing or transposing around the operator gives the same bits.

    Args:
        op_type: The operator.
        dtype: The element type that it computes with: of operand 0, for Where of operand 1.
        domain: The operator's domain.
        same_form: The caller's word that scalars stay scalars and whole tensors stay whole. `Pow` squares and cubes by
            multiplication where the exponent is a scalar, so it is exact only then.
        signed_zeros: False to accept another sign of a zero (numeric class Z): which of -0.0 and 0.0 is the least
            depends on the place, in `Min` and `Max`.
    """
    if dtype is None or not is_elementwise(domain, op_type):
        return False
    if dtype.is_integer or dtype is DType.BOOL:
        return domain in ("", "ai.onnx") and op_type not in _INEXACT_FOR_INTEGERS
    key = ("" if domain == "ai.onnx" else domain, op_type, dtype.name)
    if key in INDEPENDENT or (same_form and key in FORM_DEPENDENT):
        return True
    return not signed_zeros and key in SIGN_OF_ZERO_ONLY
