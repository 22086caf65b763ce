"""Transfer functions: what operators make of the shapes and small contents of their operands."""

from __future__ import annotations

from graphopt.analysis.shapes import (
    bodies,
    elementwise,
    linear,
    reducing,
    selecting,
    slicing,
    sources,
    views,
)
from graphopt.analysis.shapes.common import TRANSFERS, Fact, Facts, Transfer, contents

__all__ = [
    "TRANSFERS",
    "Fact",
    "Facts",
    "Transfer",
    "contents",
    "elementwise",
    "selecting",
    "slicing",
    "sources",
    "views",
]
