"""Numeric classes: what a rewrite may do to the numbers, and which classes a level allows."""

from __future__ import annotations

from enum import Enum
from typing import Final


class NumericClass(Enum):
    """What a rewrite may change; the judge holds it to that."""

    STRUCTURE = "S"
    """Nothing is computed differently: names, order, storage."""
    EXACT = "E"
    """Data is moved, selected or recomputed exactly; every surviving operator sees the same operands and shapes."""
    ZERO = "Z"
    """Exact but for the sign of zero, denormals and the payload of NaN."""
    ULP = "U"
    """Elementwise, at most k units in the last place."""
    REASSOCIATED = "R"
    """Sums in another order: the error against float64 is at most twice that of the original."""
    DOMAIN = "D"
    """Values change on part of the domain."""


LEVELS: Final[dict[str, frozenset[NumericClass]]] = {
    "exact": frozenset({NumericClass.STRUCTURE, NumericClass.EXACT}),
    "default": frozenset(NumericClass) - {NumericClass.DOMAIN},
    "fast-math": frozenset(NumericClass),
}
"""The classes each level runs."""
