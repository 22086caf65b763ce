"""Sizes that several Reshapes leave for -1, which are as one ratio of dims tells: what each may be tells the ratio.

A layer gives four heads of queries and two of keys for each token of one input, and the Reshapes that split them count
the tokens of another one. If there are r times as many of the one as of the other, there are 4 r heads of queries and
2 r of keys. Where the keys are repeated two by two, there are one or two of them; where four heads of them meet the
queries, there are one or four of these. So r is 1: any other number of tokens is refused somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod
from typing import TypeAlias

from graphopt.analysis.bounds import BROADCASTING
from graphopt.analysis.shapes.common import contents
from graphopt.ir import Expr, Node, Shape
from graphopt.ir.symbol import Application, Atom, Integer

Factors: TypeAlias = tuple[Expr, ...]
"""Factors that are no numbers."""


def quotient_of(dim: Expr) -> tuple[Fraction, Factors, Factors] | None:
    """A number, and factors above and below the line whose quotient it multiplies, if a dim is what -1 stands for.

    No dim is 0 there: the standard refuses a 0 beside -1.
    """
    if not isinstance(dim, Application) or dim.name != "fitted_dim":
        return None
    count, *sizes = dim.args
    numbers = [size for size in sizes if not isinstance(size, str)]
    if not isinstance(count, int) or len(numbers) != len(sizes):
        return None
    above, below = numbers[:count], numbers[count:]
    for size in numbers[:count]:
        if size in below:
            above.remove(size)
            below.remove(size)
    over, under = (prod(size for size in side if isinstance(size, int)) for side in (above, below))
    if over <= 0 or under <= 0:
        return None
    first, second = (tuple(size for size in side if isinstance(size, Expr)) for side in (above, below))
    return Fraction(over, under), first, second


def known_sizes(nodes: Iterable[Node]) -> dict[Application, int]:
    """What -1 must stand for, by the dims that it meets.

    Args:
        nodes: Operators that every run computes.
    """
    found: dict[tuple[Factors, Factors], dict[Application, Fraction]] = {}
    ratios: dict[tuple[Factors, Factors], frozenset[Fraction]] = {}
    for node in nodes:
        for dim, size in _meetings(node):
            quotient = quotient_of(dim)
            if quotient is None:
                continue
            factor, *factors = quotient
            key = (factors[0], factors[1])
            found.setdefault(key, {})[dim] = factor
            allowed = frozenset({1 / factor, size / factor})
            ratios[key] = ratios.get(key, allowed) & allowed
    known: dict[Application, int] = {}
    for key, dims in found.items():
        least = 0 if stretched(*key) is None else 1
        possible = [
            ratio
            for ratio in ratios[key]
            if ratio >= least and all((ratio * factor).denominator == 1 for factor in dims.values())
        ]
        if len(possible) == 1:
            known.update((dim, int(possible[0] * factor)) for dim, factor in dims.items())
    return known


def not_copied(nodes: Iterable[Node]) -> dict[Application, Integer]:
    """Sizes that a Reshape would read as "copy this dim" if they were 0, where the dim copied would not fit then.

    Args:
        nodes: Operators that every run computes.
    """
    found: dict[Application, Integer] = {}
    for node in nodes:
        for dim, number in _meetings(node):
            if dim.name == "size_or" and isinstance(dim.args[1], int) and dim.args[1] not in (1, number):
                size = dim.args[0]
                assert not isinstance(size, str)
                found[dim] = size
    return found


def stretched(above: Factors, below: Factors) -> dict[Atom, Integer] | None:
    """Of sizes above the line those that came of broadcasting those below it, which are no greater; None if not all."""
    found: dict[Atom, Integer] = {}
    left = list(below)
    for size in above:
        if not isinstance(size, Application) or size.name != "broadcast":
            continue
        held = next((other for other in left if other in size.args), None)
        if held is not None and size not in found:
            found[size] = held
            left.remove(held)
    return None if left else found


def _meetings(node: Node) -> Iterator[tuple[Application, int]]:
    """Dims that are opaque, and numbers above 1 that they are broadcast against: such a dim is 1, or that number."""
    for dims in _aligned(node):
        number = max((dim for dim in dims if isinstance(dim, int)), default=0)
        if number > 1:
            for dim in dims:
                if isinstance(dim, Application):
                    yield dim, number


def _aligned(node: Node) -> Iterator[list[Integer]]:
    if node.domain != "" or not node.has_latest_meaning:
        return
    shapes: list[Shape | None] = [None if value is None else value.shape for value in node.operands]
    if node.op_type == "MatMul":
        shapes = [None if shape is None else shape[:-2] for shape in shapes]
    elif node.op_type == "Expand":
        shapes = [shapes[0], contents(node.operand(1))]
    elif node.op_type not in BROADCASTING:
        return
    known = [shape for shape in shapes if shape is not None]
    for place in range(1, max(map(len, known), default=0) + 1):
        yield [dim for shape in known if len(shape) >= place and (dim := shape[-place]) is not None]
