"""If, Loop and Scan: what their results are, from what is known of their bodies."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.analysis.shapes.common import UNKNOWN, Fact, Facts
from graphopt.ir import Graph, Node, Value


def infer(node: Node, run: Callable[[Graph], None], set_input: Callable[[Value, Fact], None]) -> Facts:
    """x"""
    for body in node.bodies.values():
        run(body)
    return (UNKNOWN,)
