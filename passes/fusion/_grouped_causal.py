"""Which keys a mask hides: proof that it hides all behind a query's own place, and whether it hides any other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt import DType, Node, Value
from passes._cover import number
from passes._proofs import Dim, axes_of
from passes.fusion._attention_core import AttentionCore, Mask
from passes.fusion._attention_layout import declared, is_same

_LIMIT = 48
_LARGEST = 1 << 22
"""Elements of a stored mask that is looked through."""

_HIDDEN = {DType.FLOAT: -1e30, DType.FLOAT16: -6e4, DType.BFLOAT16: -1e30, DType.DOUBLE: -1e30}
"""From here on a number added to a score leaves nothing of it after the softmax, whatever a model computes."""


@dataclass(frozen=True, slots=True)
class Hiding:
    """What masks hide.

    Attributes:
        future: True if no query sees a key behind its own place.
        more: True if keys up to that place may be hidden too.
        window: How many keys up to its own place each query sees, where those before them are all that is hidden more.
    """

    future: bool
    more: bool
    window: int | None = None


_MORE = Hiding(False, True)
_FUTURE = Hiding(True, False)


def _together(found: list[Hiding]) -> Hiding:
    """What is hidden where each of several hides something."""
    more = [item for item in found if item.more]
    windows = [item.window for item in more if item.window is not None]
    is_window = bool(more) and len(windows) == len(more)
    return Hiding(any(item.future for item in found), bool(more), min(windows) if is_window else None)


def hidden_by(core: AttentionCore) -> Hiding:
    """What the masks of an attention hide, queries counted as the last of the keys."""
    rows, columns = core.query.rows, core.key.rows
    if rows == 1 and not core.masks:
        return _FUTURE
    found = [_hidden_by_one(mask, core.dtype, rows, columns) for mask in core.masks]
    return _together([*found, Hiding(rows == 1, False)])


def _hidden_by_one(mask: Mask, dtype: DType, rows: Dim, columns: Dim) -> Hiding:
    lowest = _HIDDEN.get(dtype, -math.inf)
    if mask.fill is not None:
        if mask.fill * mask.factor > lowest or math.isnan(mask.fill):
            return _MORE
        return _hidden_where(mask.value, not mask.keeps, rows, columns)
    if mask.value.const is not None:
        return _hidden_by_numbers(mask.value, mask.factor, lowest, rows, columns)
    return _hidden_by_sum(mask.value, mask.factor, lowest, rows, columns)


def _hidden_by_numbers(value: Value, factor: float, lowest: float, rows: Dim, columns: Dim) -> Hiding:
    tensor = value.const
    if tensor is None or tensor.size > _LARGEST or tensor.rank < 2 or tensor.shape[-2:] != (rows, columns):
        return _MORE
    numbers = tensor.numpy().astype(np.float64) * factor
    return _hidden_at(numbers <= lowest, numbers == 0)


def _hidden_at(hidden: NDArray[np.bool_], shown: NDArray[np.bool_]) -> Hiding:
    """What a matrix of queries and keys hides, given the places that it hides and those that it leaves alone."""
    rows, columns = hidden.shape[-2:]
    age = np.arange(columns - rows, columns)[:, None] - np.arange(columns)
    is_future = bool(hidden[..., age < 0].all())
    past = age >= 0
    if bool(shown[..., past].all()):
        return Hiding(is_future, False)
    gone = np.broadcast_to(age, hidden.shape)[hidden & past]
    window = int(gone.min()) if gone.size else 0
    seen, unseen = past & (age < window), age >= window
    is_window = window > 0 and bool(shown[..., seen].all()) and bool(hidden[..., unseen].all())
    return Hiding(is_future, True, window if is_window else None)


def _hidden_by_sum(value: Value, factor: float, lowest: float, rows: Dim, columns: Dim) -> Hiding:
    """A mask that is added: a choice between nothing and a number that hides, or such numbers above a diagonal."""
    for _ in range(_LIMIT):
        node = value.producer
        if not node.is_operator or node.domain != "" or not node.operands:
            return _MORE
        if _keeps_numbers(node, value):
            following = node.operand(0)
        elif node.op_type == "Where":
            yes, no = (number(item) for item in node.operands[1:])
            condition = node.operand(0)
            if condition is None or yes is None or no is None:
                return _MORE
            if yes == 0 and no * factor <= lowest:
                return _hidden_where(condition, False, rows, columns)
            if no == 0 and yes * factor <= lowest:
                return _hidden_where(condition, True, rows, columns)
            return _MORE
        elif node.op_type == "Trilu":
            return _hidden_above_diagonal(node, factor, lowest, rows, columns)
        else:
            return _MORE
        if following is None:
            return _MORE
        value = following
    return _MORE


def _keeps_numbers(node: Node, value: Value) -> bool:
    if node.op_type == "Cast":
        source = node.operand(0)
        return source is not None and source.dtype is not None and source.dtype.is_float
    return node.op_type in ("Unsqueeze", "Identity") and _keeps_last_axes(node, value)


def _hidden_above_diagonal(node: Node, factor: float, lowest: float, rows: Dim, columns: Dim) -> Hiding:
    filled, first = node.operand(0), _offset(node)
    if filled is None or not node.param("upper") or first is None or not _is_after(first, 1, rows, columns):
        return _MORE
    fill = _filled_with(filled)
    if fill is None:
        return _MORE
    return Hiding(fill * factor <= lowest and _covers(filled, rows, columns), not fill * factor <= lowest)


def _hidden_where(condition: Value, hides: bool, rows: Dim, columns: Dim) -> Hiding:
    """What is hidden where a condition has one truth value.

    Args:
        condition: The condition.
        hides: The truth value that hides.
        rows: How many queries.
        columns: How many keys.
    """
    pending: list[tuple[Value, bool]] = [(condition, hides)]
    found: list[Hiding] = []
    for _ in range(_LIMIT):
        if not pending:
            return _together(found)
        value, is_hiding = pending.pop()
        node = value.producer
        if value.const is not None:
            found.append(_hidden_by_truth(value, is_hiding, rows, columns))
        elif not node.is_operator or node.domain != "":
            found.append(_MORE)
        elif node.op_type == "Not" and node.operands[0] is not None:
            pending.append((node.operands[0], not is_hiding))
        elif node.op_type == ("Or" if is_hiding else "And"):
            # Hidden where one of several says so.
            pending.extend((operand, is_hiding) for operand in node.operands if operand is not None)
        elif _passes_on(node, value) and node.operands[0] is not None:
            pending.append((node.operands[0], is_hiding))
        else:
            found.append(
                _by_order(node, is_hiding, rows, columns) or _by_triangle(node, is_hiding, rows, columns) or _MORE
            )
    return _MORE


def _hidden_by_truth(value: Value, hides: bool, rows: Dim, columns: Dim) -> Hiding:
    """What stored truth values hide."""
    tensor = value.const
    if tensor is None or tensor.size > _LARGEST or tensor.rank < 2 or tensor.shape[-2:] != (rows, columns):
        return _MORE
    hidden = tensor.numpy() == hides
    return _hidden_at(hidden, ~hidden)


def _passes_on(node: Node, value: Value) -> bool:
    if node.op_type == "Cast":
        source = node.operand(0)
        return source is not None and source.dtype is DType.BOOL
    return node.op_type in ("Unsqueeze", "Identity") and _keeps_last_axes(node, value)


def _keeps_last_axes(node: Node, value: Value) -> bool:
    """True if new axes come before the last two alone."""
    if node.op_type == "Identity":
        return True
    axes, source = axes_of(node, value.rank), node.operand(0)
    if axes is None or value.rank is None or source is None or (source.rank or 0) < 2:
        return False
    return all(axis < value.rank - 2 for axis in axes)


def _by_order(node: Node, hides: bool, rows: Dim, columns: Dim) -> Hiding | None:
    """What a comparison of the places of queries and keys hides: just the keys behind, or those before a window."""
    if node.op_type not in _MIRRORED:
        return None
    key, query, kind = counted(node.operand(0)), counted(node.operand(1)), node.op_type
    if key is None or query is None:
        return None
    if key.axis == -2:
        key, query, kind = query, key, _MIRRORED[kind]
    if (key.axis, query.axis) != (-1, -2) or not is_same(key.length, columns) or not is_same(query.length, rows):
        return None
    first = None if query.start is None or key.start is None else query.start - key.start
    # Hidden are keys behind: the place of the key is greater than that of the query, or not at most that.
    if kind in (("Greater", "GreaterOrEqual") if hides else ("LessOrEqual", "Less")):
        return _FUTURE if _is_after(first, int(kind in ("Less", "GreaterOrEqual")), rows, columns) else None
    return _before(first, int(kind in ("Less", "GreaterOrEqual")), rows, columns)


def _before(first: Dim, shift: int, rows: Dim, columns: Dim) -> Hiding | None:
    """Hidden are keys at most at a place that goes up with the query's, from `first - shift` on."""
    if first is None or rows is None or columns is None:
        return None
    window = declared(columns) - declared(rows) - declared(first) + shift
    return Hiding(False, True, window) if isinstance(window, int) and window > 0 else None


_MIRRORED = {"Less": "Greater", "Greater": "Less", "LessOrEqual": "GreaterOrEqual", "GreaterOrEqual": "LessOrEqual"}


def _by_triangle(node: Node, hides: bool, rows: Dim, columns: Dim) -> Hiding | None:
    """What a matrix of truth on one side of a diagonal hides: the keys behind, or those before a window."""
    if node.op_type != "Trilu":
        return None
    filled, last, is_upper = node.operand(0), _offset(node), bool(node.param("upper"))
    if filled is None or last is None or not _covers(filled, rows, columns) or _filled_with(filled) in (None, 0):
        return None
    if hides is is_upper:
        return _FUTURE if _is_after(last, int(is_upper), rows, columns) else None
    # The lower side is hidden, or all but the upper one is.
    return _before(last, int(is_upper), rows, columns)


def _filled_with(value: Value) -> float | None:
    """The number that a tensor holds everywhere; truth is 1."""
    for _ in range(_LIMIT):
        if value.const is not None:
            return float(value.const.scalar()) if value.const.size == 1 else None
        node = value.producer
        if node.is_op("ConstantOfShape"):
            given = node.param("value")
            return 0.0 if given is None else float(given.scalar())
        source = node.operand(0) if node.is_op("Expand") or node.is_op("Cast") or node.is_op("Identity") else None
        if source is None:
            return None
        value = source
    return None


def _covers(value: Value, rows: Dim, columns: Dim) -> bool:
    shape = value.shape
    return shape is not None and len(shape) > 1 and is_same(shape[-2], rows) and is_same(shape[-1], columns)


def _offset(node: Node) -> Dim:
    """The diagonal of a Trilu."""
    return 0 if node.operand(1) is None else only_number(node.operand(1))


def _is_after(found: Dim, shift: int, rows: Dim, columns: Dim) -> bool:
    """True for the place of the first query among the keys, and so many more."""
    if found is None or rows is None or columns is None:
        return False
    return is_same(found + rows, columns + shift)


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers that go up by one along an axis.

    Attributes:
        axis: The axis, counted from the end.
        start: The first number.
        length: How many there are.
    """

    axis: int
    start: Dim
    length: Dim


def counted(value: Value | None) -> Count | None:
    """What a value of integers counts, None if it does anything else."""
    chain: list[tuple[Node, Value]] = []
    found = None
    while found is None and len(chain) < _LIMIT:
        if value is None or value.rank is None or value.dtype is None or not value.dtype.is_integer:
            return None
        found = _first_count(value)
        if found is None:
            node = value.producer
            if not node.is_operator or node.domain != "" or node.op_type not in ("Unsqueeze", "Cast", "Add", "Sub"):
                return None
            chain.append((node, value))
            value = node.operand(1 if node.op_type == "Add" and only_number(node.operand(0)) is not None else 0)
    for node, result in reversed(chain):
        if found is not None:
            found = _following(found, node, result.rank or 0)
    return found


def _first_count(value: Value) -> Count | None:
    """What a range, a single number or a constant counts."""
    elements, shape = value.elements, value.shape
    if value.rank == 1 and elements is not None and len(elements) == 1:
        return Count(-1, elements[0], 1)
    if value.const is not None and shape is not None:
        axes = [axis for axis, size in enumerate(shape) if size != 1]
        numbers = value.const.numpy().reshape(-1).astype(np.int64) if value.const.size <= _LARGEST else None
        if len(axes) != 1 or numbers is None or not len(numbers) or not bool((np.diff(numbers) == 1).all()):
            return None
        return Count(axes[0] - len(shape), int(numbers[0]), len(numbers))
    node = value.producer
    if not node.is_op("Range") or only_number(node.operand(2)) != 1 or shape is None:
        return None
    return Count(-1, only_number(node.operand(0)), shape[0])


def _following(count: Count, node: Node, rank: int) -> Count | None:
    if node.op_type == "Unsqueeze":
        axes = axes_of(node, rank)
        if axes is None:
            return None
        places = [place for place in range(rank) if place not in axes]
        return Count(places[count.axis] - rank, count.start, count.length)
    if node.op_type == "Cast":
        return count
    left, right = only_number(node.operand(0)), only_number(node.operand(1))
    change = left if node.op_type == "Add" and left is not None else right
    if change is None or count.start is None:
        return None
    return Count(count.axis, count.start + change if node.op_type == "Add" else count.start - change, count.length)


def only_number(value: Value | None) -> Dim:
    """The one number that a value holds, as far as it follows from shapes."""
    if value is None:
        return None
    if value.const is not None:
        return int(value.const.scalar()) if value.const.size == 1 and value.const.dtype.is_integer else None
    return value.elements[0] if value.elements is not None and len(value.elements) == 1 else None
