"""What ONNX says about operators: arity, defaults, how a parameter was spelt in which opset, where meanings changed."""

from __future__ import annotations

from graphopt.schema.epochs import epoch_start, is_latest_meaning
from graphopt.schema.operators import (
    Formal,
    Operator,
    latest_opset,
    min_ir_version,
    operator,
    operator_names,
    versions,
)
from graphopt.schema.values import RefAttribute, UnreadAttribute

__all__ = [
    "Formal",
    "Operator",
    "RefAttribute",
    "UnreadAttribute",
    "epoch_start",
    "is_latest_meaning",
    "latest_opset",
    "min_ir_version",
    "operator",
    "operator_names",
    "versions",
]
