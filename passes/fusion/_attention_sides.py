"""Queries, keys and values of an attention, followed up to the layers, and what it gives, down to the next one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from graphopt import Node, Value, symbol
from passes._cover import number
from passes._proofs import Dim
from passes.fusion._attention_layout import (
    BATCH,
    COLUMNS,
    FOLDED,
    HEADS,
    ROWS,
    Axis,
    Extent,
    Layout,
    below,
    declared,
    everything,
    is_same,
    merged,
    walk_up,
)
from passes.fusion._attention_rows import Rows, rows_of

_LONGEST: Final = 24


@dataclass(slots=True)
class Side:
    """Queries, keys or values.

    Attributes:
        layouts: The tensor in the product, axes named, and every tensor it is a view of, up to the one computed.
        batch: How many batches there are; where they are one axis with the heads, as far as that divides.
        rows: How many positions there are.
        width: The elements of a head.
        scale: A number the tensor is multiplied by on the way; it belongs to the scale of the attention.
    """

    layouts: list[Layout]
    batch: Dim
    rows: Dim
    width: int
    scale: float = 1.0

    @property
    def source(self) -> Value:
        """The tensor that is computed."""
        return self.layouts[-1].value


@dataclass(slots=True)
class Heads:
    """How many heads there are, as the views tell."""

    count: int | None = None
    is_torn: bool = False

    def __call__(self, count: int) -> None:
        if self.count is not None and self.count != count:
            self.is_torn = True
        self.count = count


def side_of(value: Value, order: tuple[str, str], width: int, heads: Heads, *, is_scaled: bool) -> Side:
    """One operand of the products, followed upwards through views and, for queries and keys, through scales."""
    shape = value.shape or ()
    rows = shape[-2] if order[0] == ROWS else shape[-1]
    last = [
        (everything(COLUMNS, width),) if tag == COLUMNS else () if rows == 1 else (Extent(ROWS, rows),) for tag in order
    ]
    first: list[Axis]
    if len(shape) == 3:
        first = [(Extent(BATCH if heads.count == 1 else FOLDED, shape[0]),)]
    else:
        first = [*batches(shape[:-3]), (everything(HEADS, heads.count or 1),)]
    layouts = [Layout(value, (*first, *last))]
    scale = 1.0
    while len(layouts) < _LONGEST:
        layouts = [*layouts[:-1], *walk_up(layouts[-1], heads)]
        factor, source = _scaled(layouts[-1].value) if is_scaled else (1.0, None)
        if source is None or source.const is not None:
            break
        scale *= factor
        layouts.append(Layout(source, layouts[-1].axes))
    batch = symbol.product_of(shape[:-3])
    if len(shape) == 3:
        batch = None if shape[0] is None else _divided(shape[0], heads.count or 1)
    return Side(layouts, batch, rows, width, scale)


def _divided(dim: int | symbol.Expr, count: int) -> Dim:
    """What one of so many parts of a dim is, as far as need be by what its name says."""
    exact = symbol.divide_exactly(dim, count)
    return symbol.divide_exactly(declared(dim), count) if exact is None else exact


def batches(dims: Sequence[Dim]) -> list[Axis]:
    """The axes of a batch, which may be in parts."""
    return [(Extent(BATCH, dim, (place,) if len(dims) > 1 else ()),) for place, dim in enumerate(dims)]


def three(batch: Dim, rows: Dim, heads: int, width: int) -> tuple[Axis, ...]:
    """The axes batch, sequence, and heads one after another."""
    last = merged((everything(HEADS, heads), everything(COLUMNS, width)))
    return (Extent(BATCH, batch),), () if rows == 1 else (Extent(ROWS, rows),), last


def _scaled(value: Value) -> tuple[float, Value | None]:
    """The number that a value is multiplied by, and the value without it."""
    node = value.producer
    if not (node.is_op("Mul") or node.is_op("Div")):
        return 1.0, None
    left, right = node.operands
    factor, rest = number(right, left), left
    if factor is None and node.op_type == "Mul":
        factor, rest = number(left, right), right
    if not factor or not math.isfinite(factor) or rest is None or rest.shape is None:
        return 1.0, None
    if rest.rank != value.rank or not all(map(is_same, rest.shape, value.shape or ())):
        return 1.0, None
    return (factor if node.op_type == "Mul" else 1 / factor), rest


def _downwards(root: Node) -> Iterator[Node]:
    """The views that read what the attention gives, one after another."""
    value = root.results[0]
    for _ in range(6):
        use = value.sole_use()
        if use is None or use[1] != 0 or use[0].graph is not root.graph or not use[0].is_operator:
            return
        yield use[0]
        value = use[0].results[0]


def merged_width(root: Node) -> int | None:
    """The last dim after the views behind the product, if it is known."""
    for node in _downwards(root):
        if node.op_type == "Reshape":
            shape = node.results[0].shape
            return shape[-1] if shape and isinstance(shape[-1], int) else None
        if node.op_type != "Transpose":
            return None
    return None


def merged_behind(
    root: Node, count: int, width: int, sides: Sequence[Side]
) -> tuple[Value, Rows | None, tuple[Node, ...]]:
    """The value behind the root that holds rows of heads."""
    result = root.results[0]
    rows = sides[0].rows
    shape = result.shape or ()
    if not shape:
        return result, None, ()
    last: list[Axis] = [() if rows == 1 else (Extent(ROWS, rows),), (everything(COLUMNS, width),)]
    if len(shape) == 3:
        # Batch and heads come apart here, if at all.
        first: list[Axis] = (
            [(Extent(BATCH, shape[0]),)] if count == 1 else [(Extent(BATCH, sides[0].batch), everything(HEADS, count))]
        )
    else:
        first = [*batches(shape[:-3]), (everything(HEADS, count),)]
    layout: Layout | None = Layout(result, (*first, *last))
    views: list[Node] = []
    found: tuple[Value, Rows | None, tuple[Node, ...]] = (result, None, ())
    for node in (None, *_downwards(root)):
        if node is not None:
            layout = None if layout is None or node.is_pinned else below(layout, node)
            views.append(node)
        if layout is None:
            break
        ended = rows_of(layout, count, width)
        if ended is not None and ended.is_whole:
            found = (layout.value, ended, tuple(views))
            if ended.is_plain:
                break
    return found
