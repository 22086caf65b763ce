"""Equations between dims that hold on every run that succeeds, because an operator refuses anything else.

A product of matrices refuses inner dims that differ. So the size that a Reshape leaves for -1 before a layer with 128
inputs is 128, whatever the dims of the inputs; the expression that inference has found for it may stand for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.analysis.bounds import live_nodes
from graphopt.analysis.ratios import Factors, known_sizes, not_copied, quotient_of, stretched
from graphopt.ir import Dim, Expr, Graph, Node, Shape, Symbol
from graphopt.ir.symbol import Application, Atom, Integer
from graphopt.ir.symbol_expr import order_key
from graphopt.ir.symbol_facts import parts_of

_MOST_TEXT = 4096
"""Expressions with longer texts are left alone."""


def equations(graph: Graph) -> dict[Atom, Integer]:
    """Dims and what they equal on every run that succeeds.

    Only operators that the outputs of this graph need count, those in bodies do not.
    """
    live = live_nodes(graph)
    found: dict[Atom, Integer] = {}
    needed = [node for node in graph.nodes() if node in live]
    for node in needed:
        for left, right in _inner_dims(node):
            solved = None if left is None or right is None else _solved(left, right)
            if solved is not None and solved[0] not in found:
                found[solved[0]] = solved[1]
                found.update(_consequences(*solved))
    for known in (known_sizes(needed), not_copied(needed)):
        for dim, size in known.items():
            if dim not in found:
                found[dim] = size
                found.update(_consequences(dim, size))
    return found


def _inner_dims(node: Node) -> Iterator[tuple[Dim, Dim]]:
    if node.op_type not in ("Gemm", "MatMul") or not node.is_op(node.op_type):
        return
    left, right = (None if value is None else value.shape for value in node.operands[:2])
    if not left or not right:
        return
    if node.op_type == "Gemm":
        yield from _of_gemm(node, left, right)
    else:
        yield left[-1], right[-2] if len(right) > 1 else right[0]


def _of_gemm(node: Node, left: Shape, right: Shape) -> Iterator[tuple[Dim, Dim]]:
    if len(left) == 2 and len(right) == 2:
        yield left[0 if node.param("transA") else 1], right[1 if node.param("transB") else 0]


def _solved(left: Integer, right: Integer) -> tuple[Atom, Integer] | None:
    """An atom and what it is, from two expressions that are equal."""
    if left == right:
        return None
    if isinstance(left, Expr) and isinstance(right, Expr):
        # Of two names for one number the simpler stays.
        simple, complex_ = sorted((left, right), key=lambda expr: len(str(expr)))
        return _alone(complex_, simple)
    if isinstance(left, int):
        left, right = right, left
    return _alone(left, right) if isinstance(left, Expr) else None


def _alone(expr: Expr, value: Integer) -> tuple[Atom, Integer] | None:
    terms = dict(expr.terms)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    atom = monomial[0]
    if len(monomial) != 1 or not isinstance(atom, Application) or atom in parts_of(value):
        return None
    if isinstance(value, Expr):
        return (atom, value) if factor == 1 and not constant and len(str(atom)) <= _MOST_TEXT else None
    return (atom, (value - constant) // factor) if (value - constant) % factor == 0 else None


# --- what a Reshape was given


def _consequences(atom: Atom, value: Integer) -> dict[Atom, Integer]:
    """What else must be, where the size that -1 stands for is known: as many elements come out as go in."""
    found: dict[Atom, Integer] = {}
    while isinstance(value, int) and value > 0:
        quotient = quotient_of(atom)
        if quotient is None:
            break
        factor, above, below = quotient
        rest = value / factor
        if rest == 1:
            found.update(_alike(above, below))
        if rest.denominator != 1 or len(above) != 1 or below or not isinstance(above[0], Application):
            break
        atom, value = above[0], int(rest)
        found[atom] = value
    return found


def _alike(above: Factors, below: Factors) -> dict[Atom, Integer]:
    """What follows from products of sizes above 0 being equal."""
    if len(above) == len(below) == 1 and all(isinstance(size, Symbol) for size in (*above, *below)):
        first, second = sorted((*above, *below), key=order_key)
        return {second: first} if isinstance(second, Atom) else {}
    found = stretched(above, below) if len(above) == len(below) else None
    return found or {}
