"""ONNX's own inference of one node, for operators that have no transfer function here."""

from __future__ import annotations

from graphopt.analysis.shapes import Facts
from graphopt.ir import Node


def infer(node: Node) -> Facts:
    """x"""
    return ()
