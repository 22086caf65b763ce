"""Transfer functions: what operators make of the shapes and small contents of their operands."""

from __future__ import annotations

from graphopt.analysis.shapes import (
    bodies,
    classical,
    containers,
    contrib,
    elementwise,
    images,
    layers,
    linear,
    reducing,
    selecting,
    slicing,
    sources,
    views,
    windows,
)
from graphopt.analysis.shapes.common import TRANSFERS, UNKNOWN, Fact, Facts, Transfer, contents

__all__ = [
    "TRANSFERS",
    "UNKNOWN",
    "Fact",
    "Facts",
    "Transfer",
    "bodies",
    "classical",
    "containers",
    "contents",
    "contrib",
    "elementwise",
    "images",
    "layers",
    "linear",
    "reducing",
    "selecting",
    "slicing",
    "sources",
    "views",
    "windows",
]
