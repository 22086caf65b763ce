"""Tensors of indices that are sums of counters: each element a constant plus a step for every axis.

Exporters look up a mask at `row * width + column` with ranges for both; what stands at each place of such a tensor
follows from where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphopt import Expr, Node, Value, symbol
from passes._proofs import Dim, same_dim

Size = int | Expr
_DEPTH = 24
_LARGEST = 1 << 12
_MOVES = (
    *("Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose"),
    "Unsqueeze",
)
"""What they give holds nothing that their first operand does not."""


@dataclass(frozen=True, slots=True)
class Grid:
    """`start + sum(steps[axis] * index[axis])`; the step of an axis of size 1 is 0."""

    start: Size
    steps: tuple[Size, ...]


def grid_of(value: Value | None, depth: int = _DEPTH) -> Grid | None:
    """The grid that an integer tensor is, None if it is not known to be one."""
    if value is None or value.shape is None or value.dtype is None or not value.dtype.is_integer or depth == 0:
        return None
    rank = len(value.shape)
    if value.elements is not None and len(value.elements) == 1:
        (item,) = value.elements
        return None if item is None else Grid(item, (0,) * rank)
    if value.const is not None:
        return _of_array(value)
    node = value.producer
    found = _of_node(node, depth - 1) if node.is_operator and node.domain == "" and node.has_latest_meaning else None
    if found is None or len(found.steps) != rank:
        return None
    return Grid(found.start, tuple(0 if dim == 1 else step for dim, step in zip(value.shape, found.steps, strict=True)))


def _of_array(value: Value) -> Grid | None:
    constant = value.const
    assert constant is not None
    if not 0 < constant.size <= _LARGEST:
        return None
    array = constant.numpy().astype(np.int64)
    start = int(array.reshape(-1)[0])
    steps = []
    for axis, size in enumerate(array.shape):
        place = tuple(1 if other == axis else 0 for other in range(array.ndim))
        steps.append(int(array[place]) - start if size > 1 else 0)
    sums = sum(
        (np.arange(size).reshape(-1, *(1,) * (array.ndim - axis - 1)) * step)
        for axis, (size, step) in enumerate(zip(array.shape, steps, strict=True))
    )
    return Grid(start, tuple(steps)) if np.array_equal(array, np.broadcast_to(start + sums, array.shape)) else None


def _of_node(node: Node, depth: int) -> Grid | None:
    match node.op_type:
        case "Range":
            return _of_range(node)
        case "Add" | "Sub" | "Mul":
            return _of_pair(node, depth)
        case "Identity" | "Cast":
            return grid_of(node.operand(0), depth)
        case "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten":
            return _of_view(node, depth)
        case "Expand":
            return _aligned(grid_of(node.operand(0), depth), node.results[0].rank)
        case _:
            return None


def _of_range(node: Node) -> Grid | None:
    start, _, delta = (_number(value) for value in node.operands)
    return None if start is None or delta is None else Grid(start, (delta,))


def _number(value: Value | None) -> Dim:
    return value.elements[0] if value is not None and value.elements and len(value.elements) == 1 else _constant(value)


def _constant(value: Value | None) -> int | None:
    if value is None or value.const is None or value.const.size != 1:
        return None
    item = value.const.numpy().reshape(-1)[0].item()
    return item if isinstance(item, int) else None


def _of_pair(node: Node, depth: int) -> Grid | None:
    rank = node.results[0].rank
    left, right = (_aligned(grid_of(value, depth), rank) for value in node.operands)
    if left is None or right is None:
        return None
    if node.op_type == "Mul":
        if any(step != 0 for step in right.steps):
            left, right = right, left
        if any(step != 0 for step in right.steps):
            return None
        return Grid(left.start * right.start, tuple(step * right.start for step in left.steps))
    sign = -1 if node.op_type == "Sub" else 1
    steps = tuple(one + sign * other for one, other in zip(left.steps, right.steps, strict=True))
    return Grid(left.start + sign * right.start, steps)


def _aligned(grid: Grid | None, rank: int | None) -> Grid | None:
    if grid is None or rank is None or rank < len(grid.steps):
        return None
    return Grid(grid.start, (0,) * (rank - len(grid.steps)) + grid.steps)


def _of_view(node: Node, depth: int) -> Grid | None:
    """A view that only puts in axes of size 1, or takes them out."""
    value, result = node.operand(0), node.results[0]
    grid = grid_of(value, depth)
    if grid is None or value is None or value.shape is None or result.shape is None:
        return None
    old = [(dim, step) for dim, step in zip(value.shape, grid.steps, strict=True) if dim != 1]
    new = [dim for dim in result.shape if dim != 1]
    if len(old) != len(new) or not all(same_dim(one, other) for (one, _), other in zip(old, new, strict=True)):
        return None
    steps = iter([step for _, step in old])
    return Grid(grid.start, tuple(0 if dim == 1 else next(steps) for dim in result.shape))


@dataclass(frozen=True, slots=True)
class Rows:
    """A lookup that gives the first rows of a matrix, or their beginnings, with axes of size 1 around them."""

    matrix: Value
    counts: tuple[Size, Size]
    """How many rows and columns."""
    axes: tuple[int, int]
    """Which axes of the result are rows and columns."""


def rows_of(node: Node) -> Rows | None:
    """What a Gather or GatherND looks up, if that is the first rows and columns of a matrix in order."""
    if node.domain != "" or not node.has_latest_meaning:
        return None
    shape = node.results[0].shape
    if shape is None:
        return None
    found = _flat_rows(node) if node.op_type == "Gather" else _paired_rows(node)
    if found is None:
        return None
    matrix, rows, columns = found
    height, width = shape[rows], shape[columns]
    if matrix.shape is None or not rows < columns or height is None or width is None:
        return None
    if node.op_type == "Gather" and not same_dim(width, matrix.shape[1]):
        return None  # the rows would be shifted
    if any(dim != 1 for axis, dim in enumerate(shape) if axis not in (rows, columns)):
        return None
    return Rows(matrix, (height, width), (rows, columns))


def _flat_rows(node: Node) -> tuple[Value, int, int] | None:
    """Of a flattened matrix at `row * width + column`."""
    data, indices = node.operand(0), node.operand(1)
    grid = grid_of(indices)
    if data is None or grid is None or grid.start != 0 or node.param("axis") not in (0,):
        return None
    if data.shape is None or len(data.shape) not in (1, 2) or data.shape[1:] not in ((), (1,)):
        return None
    view = data.producer
    if not view.is_operator or view.op_type not in ("Flatten", "Reshape"):
        return None
    matrix = view.operand(0)
    if matrix is None or matrix.shape is None or len(matrix.shape) != 2:
        return None
    counted = [axis for axis, step in enumerate(grid.steps) if step != 0]
    if len(counted) != 2:
        return None
    rows, columns = counted
    if not same_dim(grid.steps[rows], matrix.shape[1]) or grid.steps[columns] != 1:
        return None
    return matrix, rows, columns


def _paired_rows(node: Node) -> tuple[Value, int, int] | None:
    """Of a matrix at pairs of a row and a column."""
    matrix, pairs = node.operand(0), node.operand(1)
    if matrix is None or matrix.shape is None or len(matrix.shape) != 2 or pairs is None or node.param("batch_dims"):
        return None
    join = pairs.producer
    if not join.is_op("Concat") or len(join.operands) != 2 or pairs.rank is None:
        return None
    if join.param("axis") not in (-1, pairs.rank - 1):
        return None
    axes = []
    for part in join.operands:
        grid = grid_of(part)
        if grid is None or grid.start != 0 or part is None or part.shape is None or part.shape[-1] != 1:
            return None
        counted = [axis for axis, step in enumerate(grid.steps) if step != 0]
        if len(counted) != 1 or grid.steps[counted[0]] != 1:
            return None
        axes.append(counted[0])
    rows, columns = axes
    return matrix, rows, columns


# --- comparisons


def truth_of(node: Node) -> bool | None:
    """What a comparison of two grids gives everywhere, None if that is not known, or not the same everywhere."""
    test = _TESTS.get(node.op_type)
    rank = node.results[0].rank
    if test is None or not node.has_latest_meaning or rank is None or node.results[0].shape is None:
        return None
    left, right = (_aligned(grid_of(value), rank) for value in node.operands)
    if left is None or right is None:
        return None
    difference = Grid(
        left.start - right.start, tuple(one - other for one, other in zip(left.steps, right.steps, strict=True))
    )
    low, high = _bounds(difference, node.results[0].shape)
    return test(low, high)


def least_and_most(value: Value) -> tuple[int | None, int | None]:
    """Bounds of what an integer tensor holds on every run, as far as that is known."""
    source: Value | None = value
    for _ in range(_DEPTH):
        if source is None or source.producer.op_type not in _MOVES:
            break
        source = source.producer.operand(0)
    constant = None if source is None else source.const
    if constant is not None and 0 < constant.size <= _LARGEST and constant.dtype.is_integer:
        array = constant.numpy()
        return int(array.min()), int(array.max())
    grid = grid_of(value)
    return (None, None) if grid is None or value.shape is None else _bounds(grid, value.shape)


def _bounds(grid: Grid, shape: tuple[Dim, ...]) -> tuple[int | None, int | None]:
    low: Size = grid.start
    high: Size = low
    for step, dim in zip(grid.steps, shape, strict=True):
        if symbol.always_equal(step, 0):
            continue
        if dim is None:
            return None, None
        if symbol.is_nonnegative(step):
            high = high + step * (dim - 1)
        elif symbol.is_nonnegative(-step):
            low = low + step * (dim - 1)
        else:
            return None, None
    return symbol.bounds(low)[0], symbol.bounds(high)[1]


def _above(least: int) -> Callable[[int | None, int | None], bool | None]:
    """Whether a difference between two bounds is at least a number."""

    def test(low: int | None, high: int | None) -> bool | None:
        if low is not None and low >= least:
            return True
        return False if high is not None and high < least else None

    return test


def _below(most: int) -> Callable[[int | None, int | None], bool | None]:
    def test(low: int | None, high: int | None) -> bool | None:
        found = _above(most + 1)(low, high)
        return None if found is None else not found

    return test


_TESTS: dict[str, Callable[[int | None, int | None], bool | None]] = {
    "GreaterOrEqual": _above(0),
    "Greater": _above(1),
    "LessOrEqual": _below(0),
    "Less": _below(-1),
}
COMPARISONS = tuple(_TESTS)
"""Operators whose truth may be known."""
