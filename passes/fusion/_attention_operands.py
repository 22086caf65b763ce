"""Queries, keys and values as the fused operators take them, and what they give as the model goes on with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt import Builder, DType, Tensor, Value
from passes._proofs import Dim
from passes.fusion._attention_core import AttentionCore, Side
from passes.fusion._attention_layout import (
    BATCH,
    COLUMNS,
    FOLDED,
    HEADS,
    ROWS,
    Axis,
    Extent,
    Layout,
    Places,
    is_same,
    walk_up,
)
from passes.fusion._attention_masks import length_of
from passes.fusion._attention_projections import Projection, projection_of
from passes.fusion._attention_rows import Rows, has_same_axes, rows_of


@dataclass(frozen=True, slots=True)
class Apart:
    """Operands of MultiHeadAttention.

    Attributes:
        query: `[batch, queries, heads * size]`.
        key: `[batch, keys, heads * size]`, or `[batch, heads, keys, size]`.
        value: Likewise.
        bias: What is added to all three, side by side.
        keys_axis: The axis of `key` that the keys are on.
    """

    query: Value
    key: Value
    value: Value
    bias: Value | None
    keys_axis: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys or values of earlier positions, put before those of this run.

    Attributes:
        past: The earlier ones, `[batch, heads, earlier, size]`.
        present: All of them.
        new: Those of this run.
    """

    past: Value
    present: Value
    new: Side


def rowed(b: Builder, value: Value, rows: Rows, side: Side) -> Value | None:
    """A tensor laid out as `rows` says as `[batch, sequence, columns]`, None where no Reshape says so."""
    if rows.is_swapped:
        turned: Value = b.Transpose(value, perm=[1, 0, 2])
        return turned
    return in_rows(b, value, side.rows, rows.full, rows.is_plain, side.batch)


def operand_in_rows(b: Builder, x: Value, width: int, rows: Rows, side: Side) -> Value | None:
    """The operand of a layer whose result is laid out as `rows` says, as `[batch, sequence, columns]`."""
    if not rows.is_swapped:
        return in_rows(b, x, side.rows, width, x.rank == 3 and rows.is_plain, side.batch)
    if x.rank != 3 or not rows.is_turned:
        return None
    before = x.producer
    if before.is_op("Transpose") and before.param("perm") == (1, 0, 2):
        return before.operands[0]
    turned: Value = b.Transpose(x, perm=[1, 0, 2])
    return turned


def in_rows(b: Builder, value: Value, rows: Dim, width: int, is_plain: bool, batch: Dim) -> Value | None:
    """A tensor whose rows are batch and sequence as `[batch, rows, width]`, None where no Reshape says so."""
    if is_plain:
        return value
    shape = value.shape or ()
    leads = bool(shape) and len(shape) > 2 and is_same(shape[0], batch)
    if isinstance(rows, int):
        first = batch if isinstance(batch, int) else 0 if leads else -1
        target = [first, rows, width]
    elif leads:
        target = [0, -1, width]
    elif isinstance(batch, int):
        target = [batch, -1, width]
    else:
        return None
    result: Value = b.Reshape(value, b.constant(target, DType.INT64))
    return result


def cache_of(side: Side, heads: int) -> Cache | None:
    """The cache that a side's tensor is put together from, if it is one."""
    top = side.layouts[-1]
    node = top.value.producer
    if not node.is_op("Concat") or len(node.operands) != 2 or top.value.rank != 4 or node.param("axis") not in (2, -2):
        return None
    past, new = node.operands
    axes = top.axes
    if past is None or new is None or past.rank != 4 or new.rank != 4 or new.shape is None or past.shape is None:
        return None
    if len(axes) != 4 or not _is_whole(axes[1], HEADS, heads) or not _is_whole(axes[3], COLUMNS, side.width):
        return None
    if not _is_extent(axes[0], BATCH) or not _is_extent(axes[2], ROWS):
        return None
    if past.shape[1] != heads or past.shape[3] != side.width:
        return None
    rows = new.shape[2]
    first: Axis = (Extent(BATCH, new.shape[0]),)
    second: Axis = () if rows == 1 else (Extent(ROWS, rows),)
    layouts = walk_up(Layout(new, (first, axes[1], second, axes[3])), lambda count: None)
    return Cache(past, top.value, Side(layouts, new.shape[0], rows, side.width))


def _is_whole(axis: Axis, label: str, size: int) -> bool:
    part = axis[0] if len(axis) == 1 else None
    if size == 1 and (not axis or (isinstance(part, Places) and part.full == 1)):
        return True
    if not isinstance(part, Places) or part.labels != (label,) or not part.full == size == part.at.size:
        return False
    return np.array_equal(part.at, np.arange(size))


def _is_extent(axis: Axis, tag: str) -> bool:
    places = [part.place for part in axis if isinstance(part, Extent)]
    of_tag = all(isinstance(part, Extent) and part.tag in ((tag, FOLDED) if tag == BATCH else (tag,)) for part in axis)
    return of_tag and places == sorted(places)


def highest(side: Side, heads: int, *, whole: bool = False) -> Rows | None:
    """The highest tensor of a side that holds rows of heads."""
    found = None
    for layout in side.layouts:
        rows = rows_of(layout, heads, side.width)
        if rows is None or (rows.is_swapped and not rows.is_turned):
            continue
        if rows.is_whole or not whole:
            found = rows
    return found


def projected(side: Side, heads: int) -> tuple[Projection, Rows] | None:
    """The layer that makes a side, and where the heads lie in its result."""
    rows = rows_of(side.layouts[-1], heads, side.width)
    if rows is None:
        return None
    projection = projection_of(rows.value)
    return None if projection is None else (projection, rows)


def operands_apart(core: AttentionCore, sides: tuple[Side, Side, Side], b: Builder, *, takes_four: bool) -> Apart | str:
    """Queries, keys and values, packed ones taken apart, biases of their layers left to the operator."""
    if core.head_scales is not None:
        return _scaled_by_head(core, core.head_scales, sides, b)
    found = [highest(side, core.heads) for side in sides]
    packed = _packed(core, sides, found, b)
    if packed is not None:
        return packed
    values: list[Value] = []
    biases: list[np.ndarray | None] = []
    four = _of_four_axes(core, sides, b) if takes_four else None
    if four is not None:
        return four
    takes_bias = all(_has_bias_apart(side, rows) for side, rows in zip(sides, found, strict=True))
    for side in sides:
        value, bias = _rows_alone(core, side, b, takes_bias)
        if isinstance(value, str):
            return value
        values.append(value)
        biases.append(bias)
    bias_value = None
    if takes_bias and any(bias is not None for bias in biases):
        pieces = [
            np.zeros(core.heads * side.width) if bias is None else bias
            for side, bias in zip(sides, biases, strict=True)
        ]
        bias_value = b.constant(Tensor.from_numpy(np.concatenate(pieces).astype(core.dtype.numpy), core.dtype))
    return Apart(values[0], values[1], values[2], bias_value, 1)


def is_stretched(core: AttentionCore) -> bool:
    """True if the products stretch queries of one batch, `[1, heads, queries, size]`, to those of keys and values."""
    if core.query.batch != 1 or core.product.results[0].rank != 4:
        return False
    return not is_same(1, core.key.batch) and is_same(core.key.batch, core.value.batch)


def stretched(query: Value, key: Value, b: Builder) -> Value:
    """Queries of one batch, `[1, queries, columns]`, once for each batch of the keys: the operators ask for as many."""
    one = b.constant([1], DType.INT64)
    result: Value = b.Expand(query, b.Concat(length_of(b, key, 0), one, one, axis=0))
    return result


def _scaled_by_head(
    core: AttentionCore, scales: NDArray[np.float64], sides: tuple[Side, Side, Side], b: Builder
) -> Apart | str:
    """The queries multiplied by the number of their head."""
    values: list[Value] = []
    for side in sides:
        value, _ = _rows_alone(core, side, b, False)
        if isinstance(value, str):
            return value
        values.append(value)
    each = np.repeat(scales, core.query.width).astype(core.dtype.numpy)
    query: Value = b.Mul(values[0], b.constant(Tensor.from_numpy(each, core.dtype)))
    return Apart(query, values[1], values[2], None, 1)


def _of_four_axes(core: AttentionCore, sides: tuple[Side, Side, Side], b: Builder) -> Apart | None:
    """Keys and values as `[batch, heads, keys, size]`, where they come like that: from a cache, or repeated."""
    query, key, value = sides
    if query.width != value.width or any(highest(side, core.heads) is not None for side in (key, value)):
        return None
    tops = []
    for side in (key, value):
        found = [item for item in side.layouts if _order(item.axes, core.heads, side.width) == [0, 2, 1, 3]]
        if not found or side.scale != 1.0:
            return None
        tops.append(found[-1].value)
    first, _ = _rows_alone(core, query, b, False)
    return None if isinstance(first, str) else Apart(first, tops[0], tops[1], None, 2)


def _has_bias_apart(side: Side, rows: Rows | None) -> bool:
    """True if a layer's bias can be left to the operator: it is added by a node of its own, or there is none."""
    if rows is None or not rows.is_whole:
        return False
    projection = projection_of(rows.value)
    if projection is None or projection.product.op_type == "Gemm":
        return False
    return projection.add is None or len(rows.value.uses) == 1


def _rows_alone(core: AttentionCore, side: Side, b: Builder, takes_bias: bool) -> tuple[Value | str, np.ndarray | None]:
    """One side as rows of heads, and the bias that is left to the operator."""
    rows = highest(side, core.heads, whole=True)
    width = core.heads * side.width
    if rows is None:
        part = highest(side, core.heads)
        if part is not None and part.is_run:
            value = rowed(b, part.value, part, side)
            if value is not None:
                cut = b.Slice(value, starts=[part.start], ends=[part.start + width], axes=[2], steps=[1])
                return cut, None
        return _turned(core, side, b), None
    bias = None
    value = rows.value
    if takes_bias:
        projection = projection_of(value)
        if projection is not None and projection.add is not None:
            value, bias = projection.unbiased, projection.bias
    made = rowed(b, value, rows, side)
    return (
        made if made is not None else "the rows of queries, keys or values have no shape that a Reshape can ask for"
    ), bias


def _turned(core: AttentionCore, side: Side, b: Builder) -> Value | str:
    found = turned_rows(b, side, core.heads)
    if found is None:
        found = _unfolded(core, side, b)
    return "queries, keys or values have no axes of batch, heads, sequence and head" if found is None else found


def _unfolded(core: AttentionCore, side: Side, b: Builder) -> Value | None:
    """Heads beside the sequence, of a tensor whose batch and heads are one axis: `[batch * heads, sequence, head]`."""
    if isinstance(side.rows, int):
        target = [-1, core.heads, side.rows, side.width]
    elif isinstance(side.batch, int):
        target = [side.batch, core.heads, -1, side.width]
    else:
        return None
    for layout in reversed(side.layouts):
        axes = layout.axes
        if len(axes) == 3 and _is_extent(axes[1], ROWS) and _is_whole(axes[2], COLUMNS, side.width):
            folded = axes[0][0] if len(axes[0]) == 1 else None
            if isinstance(folded, Extent) and folded.tag == FOLDED:
                apart = b.Reshape(layout.value, b.constant(target, DType.INT64))
                rows = b.constant([0, 0, core.heads * side.width], DType.INT64)
                result: Value = b.Reshape(b.Transpose(apart, perm=[0, 2, 1, 3]), rows)
                return result
    return None


def is_of_four_axes(layout: Layout, heads: int, width: int) -> bool:
    """True for a tensor whose axes are batch, heads, sequence and head, as a cache has them."""
    return _order(layout.axes, heads, width) == [0, 2, 1, 3]


def turned_rows(b: Builder, side: Side, heads: int) -> Value | None:
    """Heads beside the sequence, by a Transpose of the tensor nearest to the layer that has the four axes."""
    for layout in reversed(side.layouts):
        order = _order(layout.axes, heads, side.width)
        if order is not None:
            turned = layout.value if order == [0, 1, 2, 3] else b.Transpose(layout.value, perm=order)
            result: Value = b.Reshape(turned, b.constant([0, 0, heads * side.width], DType.INT64))
            return result
    return None


def _order(axes: tuple[Axis, ...], heads: int, width: int) -> list[int] | None:
    """Where batch, sequence, heads and head are among four axes."""
    if len(axes) != 4:
        return None
    found: dict[str, int] = {}
    left: list[int] = []
    for place, axis in enumerate(axes):
        if _is_whole(axis, HEADS, heads) and HEADS not in found and axis:
            found[HEADS] = place
        elif _is_whole(axis, COLUMNS, width) and COLUMNS not in found and axis:
            found[COLUMNS] = place
        elif len(axis) == 1 and isinstance(axis[0], Extent) and axis[0].tag in (BATCH, FOLDED, ROWS):
            tag = BATCH if axis[0].tag == FOLDED else axis[0].tag
            if tag in found or (axis[0].tag == FOLDED and heads > 1):
                return None
            found[tag] = place
        elif not axis:
            left.append(place)
        else:
            return None
    for tag in (BATCH, ROWS, HEADS, COLUMNS):
        if tag not in found:
            if not left or {HEADS: heads, COLUMNS: width}.get(tag, 1) > 1:
                return None
            found[tag] = left.pop(0)
    return [found[BATCH], found[ROWS], found[HEADS], found[COLUMNS]]


def _packed(core: AttentionCore, sides: tuple[Side, Side, Side], found: list[Rows | None], b: Builder) -> Apart | None:
    """Queries, keys and values that one layer gives side by side, split behind it."""
    first = found[0]
    known = [rows for rows in found if rows is not None]
    if first is None or len(known) < 3 or any(rows.value is not first.value or not rows.is_run for rows in known):
        return None
    if not all(has_same_axes(rows.axes, first.axes) for rows in known):
        return None
    widths = [core.heads * side.width for side in sides]
    starts = [rows.start for rows in known]
    if starts != [0, widths[0], widths[0] + widths[1]] or first.full != sum(widths):
        return None
    value, bias = first.value, None
    projection = projection_of(value)
    if projection is not None and projection.add is not None:
        value = projection.unbiased
        bias = projection.bias_value
        if bias is None and projection.bias is not None:
            bias = b.constant(Tensor.from_numpy(projection.bias.astype(core.dtype.numpy), core.dtype))
    whole = rowed(b, value, first, sides[0])
    if whole is None:
        return None
    query, key, values = b.Split(whole, axis=2, split=widths, outputs=3)
    return Apart(query, key, values, bias, 1)


def given_back(core: AttentionCore, made: Value, b: Builder) -> Value | str:
    """What the operator gives, `[batch, queries, heads * width]`, in the shape that the model goes on with."""
    output, rows = core.output, core.merged
    shape = output.shape or ()
    if rows is not None and rows.is_plain:
        return made
    if rows is not None:
        whole: Value = b.Transpose(made, perm=[1, 0, 2]) if rows.is_swapped else made
        if rows.is_turned:
            return whole
        if len(shape) == 2:
            flat: Value = b.Reshape(whole, b.constant([-1, rows.full], DType.INT64))
            return flat
        copied = core.query.rows if rows.is_swapped else core.query.batch
        first = 0 if shape and is_same(shape[0], copied) else None if 0 in shape else -1
        leads = [dim if isinstance(dim, int) else first if place == 0 else None for place, dim in enumerate(shape)]
        if None not in leads:
            target = b.constant([dim for dim in leads if dim is not None], DType.INT64)
            asked: Value = b.Reshape(whole, target)
            return asked
        return "the result is reshaped to sizes that are not known"
    if len(shape) != 4:
        return "the result is neither merged nor of four axes"
    apart = b.Reshape(made, b.constant([0, 0, core.heads, core.value.width], DType.INT64))
    result: Value = b.Transpose(apart, perm=[0, 2, 1, 3])
    return result
