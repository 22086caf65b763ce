"""Casts and signs of tensors that hold one number throughout: the number is changed instead."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, DType, Match, Miss, Tensor, Value, op, rule, var

x = var("x")

_FILLS = (
    DType.FLOAT16,
    DType.FLOAT,
    DType.DOUBLE,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.UINT8,
    DType.UINT16,
    DType.UINT32,
    DType.UINT64,
    DType.BOOL,
)
"""Types that a ConstantOfShape of every opset fills with, and the runtime casts between."""

_FILL = op.ConstantOfShape(x)


@rule(
    op.Cast(_FILL),
    before="(int64[2] s) => (int64[N,M] y) { t = ConstantOfShape(s)  y = Cast<to = 7>(t) }",
    after="(int64[2] s) => (int64[N,M] y) { y = ConstantOfShape<value = int64[1] {0}>(s) }",
    unless=[
        # The first fill is needed anyway.
        """(int64[2] s) => (int64[N,M] y, float[N,M] z)
           { t = ConstantOfShape(s)  y = Cast<to = 7>(t)  z = Relu(t) }""",
        # What comes out is not the same everywhere.
        """(int64[1] s) => (int32[N] y) { t = ConstantOfShape<value = float[1] {1e20}>(s)  y = Cast<to = 6>(t) }""",
        """(int64[1] s) => (uint8[N] y) { t = ConstantOfShape<value = float[1] {-1.0}>(s)  y = Cast<to = 2>(t) }""",
        "(int64[1] s) => (string[N] y) { t = ConstantOfShape(s)  y = Cast<to = 8>(t) }",
    ],
)
def cast_of_fill(m: Match, b: Builder) -> Value | Miss:
    """A Cast of a tensor filled with one number is a tensor filled with the number cast."""
    fill, to = m.node(_FILL).param("value"), m.root.param("to")
    number = _cast(fill if isinstance(fill, Tensor) else Tensor.of([0.0], DType.FLOAT), to)
    if number is None:
        return b.no("the runtime may cast the number otherwise")
    made: Value = b.ConstantOfShape(m[x], value=number)
    return made


def _cast(fill: Tensor, to: object) -> Tensor | None:
    """The number in another type; None where it does not fit, or is rounded twice on the way."""
    if fill.size != 1 or fill.dtype not in _FILLS or not isinstance(to, int) or to not in _FILLS:
        return None
    target = DType(to)
    array = fill.numpy().reshape(1)
    if target.is_float:
        with np.errstate(all="ignore"):
            found = array.astype(target.numpy)
        is_same = bool((found.astype(np.float64) == array.astype(np.float64)).all())
        if not is_same and fill.dtype is not DType.FLOAT:
            return None
        return None if np.isnan(found).any() else Tensor.from_numpy(found, target)
    if target is DType.BOOL:
        return None if fill.dtype.is_float and np.isnan(array).any() else Tensor.from_numpy(array != 0, target)
    number = array.item()
    if fill.dtype.is_float and not np.isfinite(number):
        return None
    limits = np.iinfo(target.numpy)
    whole = int(number)
    return Tensor.of([whole], target) if limits.min <= whole <= limits.max else None
