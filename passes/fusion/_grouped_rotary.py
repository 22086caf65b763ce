"""Rotations of queries and keys that GroupQueryAttention can do itself, and the tables that it gets for them.

The operator turns the new position `i` by row `past + i` of its tables. So a table in which the rows of a run stand
behind as many unread ones as there are earlier positions turns by the angles of the model, whatever these are: nothing
must be known of the positions. Only batches whose positions differ need the operand that says which row each takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt import Builder, Context, DType, Node, Tensor, Value, symbol
from passes._proofs import WHOLE, Dim, axis_of, same_dim
from passes.fusion._attention_layout import is_same
from passes.fusion._attention_masks import length_of
from passes.fusion._grouped_causal import counted, only_number

MICROSOFT = "com.microsoft"

_QUERY, _KEY, _VALUE, _PAST_KEY, _SEQUENCES, _TOTAL = 0, 1, 2, 3, 5, 6
_HEAD_STEP, _TABLE_STEP = 16, 8
"""The operator wants sizes of rotated heads and of rows of the tables to be multiples of these."""

_LONGEST = 4
_POSITIONS_SINCE = (1, 31)
"""From here on both providers are known to take the row for each position from an operand, but in a first run."""

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a GroupQueryAttention says of itself: heads and the positions that it counts.

    Attributes:
        heads: Heads of queries.
        shared: Heads of keys and values.
        size: Elements of a head.
        batch: Batches.
        rows: New positions.
        past: Earlier positions, 0 without a cache.
        total: Both, as far as they are known.
    """

    heads: int
    shared: int
    size: int
    batch: Dim
    rows: Dim
    past: Dim
    total: Dim


@dataclass(frozen=True, slots=True)
class Chain:
    """What cuts an operand out of the last axis of a tensor.

    Attributes:
        source: The tensor.
        start: The first element taken.
        views: The nodes that cut, the last first, with the result of each that is taken.
    """

    source: Value
    start: int
    views: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Queries and keys turned by the same tables.

    Attributes:
        query: Which of a rotation's results the queries are.
        key: Likewise.
        positions: What the rotation takes its rows by.
        cosine: Its table.
        sine: Likewise.
        is_interleaved: True if the pairs are neighbours.
    """

    query: Chain
    key: Chain
    positions: Value
    cosine: Value
    sine: Value
    is_interleaved: bool

    @property
    def nodes(self) -> list[Node]:
        """The rotations and what cuts their results."""
        views = [view.producer for chain in (self.query, self.key) for view in chain.views]
        return list(dict.fromkeys([*views, self.query.source.producer, self.key.source.producer]))


def lengths_of(node: Node) -> Lengths | str:
    """Heads and positions of a GroupQueryAttention of three operands, or why they are not what is known here."""
    query, key, past = node.operand(_QUERY), node.operand(_KEY), node.operand(_PAST_KEY)
    heads, shared = node.attributes.get("num_heads"), node.attributes.get("kv_num_heads")
    if query is None or key is None or not query.shape or len(query.shape) != 3:
        return "queries or keys have unknown shapes"
    width = query.shape[2]
    if not isinstance(heads, int) or not isinstance(shared, int) or not isinstance(width, int) or width % heads:
        return "the number of heads or the width of the queries is unknown"
    before: Dim = 0
    if past is not None:
        before = past.shape[2] if past.shape is not None and len(past.shape) == 4 else None
    return Lengths(
        heads, shared, width // heads, query.shape[0], query.shape[1], before, only_number(node.operand(_TOTAL))
    )


def counts_from_past(node: Node, lengths: Lengths) -> bool:
    """True if the cache is as long as it is full, in all batches: the new positions are those behind its end."""
    rows, past, total = lengths.rows, lengths.past, lengths.total
    if rows is None or past is None or total is None or not is_same(past + rows, total):
        return False
    return is_same(_everywhere(node.operand(_SEQUENCES)), total - 1)


def _everywhere(value: Value | None) -> Dim:
    """The number that is all that a tensor of integers holds."""
    for _ in range(_LONGEST):
        if value is None:
            return None
        if value.const is not None:
            numbers = np.unique(value.const.numpy().reshape(-1)[:_LARGEST])
            return int(numbers[0]) if len(numbers) == 1 and value.const.size <= _LARGEST else None
        elements = list(value.elements or ())
        if elements and all(same_dim(item, elements[0]) for item in elements):
            return elements[0]
        node = value.producer
        source = node.operand(0) if node.operands else None
        is_one = node.is_op("Gather") and source is not None and source.shape == (1,)
        value = source if is_one or any(map(node.is_op, ("Expand", "Cast", "Identity"))) else None
    return None


def chain_of(value: Value | None) -> Chain | None:
    """Where on the last axis of what an operand is cut from, if anything but views of that kind is there."""
    views: list[Value] = []
    start = 0
    while value is not None and value.rank == 3 and len(views) < _LONGEST:
        first = _first_taken(value)
        if first is None:
            break
        views.append(value)
        start += first
        value = value.producer.operand(0)
    if value is None:
        return None
    merged = () if start else _before_merge(value)
    return Chain(merged[-1], 0, (*views, value, *merged[:-1])) if merged else Chain(value, start, tuple(views))


def _before_merge(value: Value) -> tuple[Value, ...]:
    """Where heads are moved beside the positions and merged: the tensor moved, and that from before; one is merged."""
    moved = value.producer.operand(0) if value.producer.is_op("Reshape") else None
    turn = None if moved is None else moved.producer
    if moved is None or turn is None or not moved.shape or len(moved.shape) != 4 or not value.shape:
        return ()
    if len(value.shape) != 3:
        return ()
    batch, first, second, size = moved.shape
    if first == 1 and all(map(is_same, value.shape, (batch, second, size))):
        return (moved,)
    source = turn.operand(0) if turn.is_op("Transpose") else None
    if source is None or turn.param("perm") != (0, 2, 1, 3) or not all(map(is_same, (batch, first), value.shape[:2])):
        return ()
    return moved, source


def _first_taken(value: Value) -> int | None:
    """The first place that a Split or Slice of the last axis takes."""
    node = value.producer
    source = node.operand(0) if node.is_op("Split") or node.is_op("Slice") else None
    if source is None or not source.shape or len(source.shape) != 3:
        return None
    if node.op_type == "Split":
        sizes = [result.shape[2] if result.shape else None for result in node.results[: value.index]]
        known = [size for size in sizes if isinstance(size, int)]
        return sum(known) if axis_of(node, 3) == 2 and len(known) == len(sizes) else None
    starts, axes, steps = node.param("starts"), node.param("axes"), node.param("steps")
    full = source.shape[2]
    if not isinstance(starts, tuple) or len(starts) != 1 or axes not in ((2,), (-1,)) or steps not in (None, (1,)):
        return None
    if not isinstance(full, int) or not isinstance(starts[0], int):
        return None
    return max(starts[0] + full, 0) if starts[0] < 0 else min(starts[0], full)


def turn_of(node: Node, lengths: Lengths, context: Context) -> Turn | str | None:
    """The rotation of the queries and keys of an attention, why the operator cannot do it, None if there is none."""
    query, key = chain_of(node.operand(_QUERY)), chain_of(node.operand(_KEY))
    if query is None or key is None:
        return None
    left, right = query.source.producer, key.source.producer
    if not _is_rotation(left) and not _is_rotation(right):
        return None
    if not _is_rotation(left) or not _is_rotation(right):
        return "queries or keys alone are rotated"
    doubt = _doubt_of_heads(left, query, lengths) or _doubt_of_heads(right, key, lengths)
    doubt = doubt or _doubt_of_pair(left, right)
    if doubt:
        return doubt
    positions, cosine, sine = (left.operand(place) for place in (1, 2, 3))
    if positions is None or cosine is None or sine is None:
        return "a rotation lacks an operand"
    turn = Turn(query, key, positions, cosine, sine, bool(left.attributes.get("interleaved", 0)))
    inside = dict.fromkeys([*turn.nodes, node])
    for item in turn.nodes:
        if item.is_pinned or context.keeps(item) or item.graph is not node.graph:
            return "a rotation is kept by name"
        if any(user not in inside for result in item.results for user in result.users):
            return "rotated queries or keys are read elsewhere"
    return turn


def _is_rotation(node: Node) -> bool:
    return node.is_operator and node.op_type == "RotaryEmbedding" and node.domain == MICROSOFT


def _doubt_of_heads(node: Node, chain: Chain, lengths: Lengths) -> str:
    x, cosine, sine = node.operand(0), node.operand(2), node.operand(3)
    shape = None if x is None else x.shape
    if not shape or len(shape) not in (3, 4) or not isinstance(shape[-1], int) or cosine is None or sine is None:
        return "what is rotated has other axes than batch, positions and heads"
    tables = [() if table.shape is None else table.shape for table in (cosine, sine)]
    if any(len(table) != 2 or not isinstance(table[1], int) for table in tables):
        return "the tables of a rotation have unknown shapes"
    half, turned, heads = tables[0][1], node.attributes.get("rotary_embedding_dim", 0), node.attributes.get("num_heads")
    assert isinstance(half, int)
    if half != tables[1][1] or (turned and turned != 2 * half):
        return "the tables of a rotation have other widths than it turns"
    size = shape[-1] if len(shape) == 4 else 2 * half
    if len(shape) == 3 and turned and isinstance(heads, int) and heads:
        size = shape[-1] // heads
    if size != lengths.size or chain.start % size:
        return "the heads that are rotated are not those of the attention"
    if size % _HEAD_STEP or half % _TABLE_STEP:
        return f"heads of {size} elements, of which {2 * half} are rotated, are none that the operator rotates"
    if node.attributes.get("scale", 1.0) != 1.0 or node.attributes.get("is_packed_batching", 0):
        return "a rotation also scales, or its batches are packed"
    return ""


def _doubt_of_pair(left: Node, right: Node) -> str:
    if left.attributes.get("interleaved", 0) != right.attributes.get("interleaved", 0):
        return "queries and keys are rotated in different layouts"
    for place in (1, 2, 3):
        one, other = left.operand(place), right.operand(place)
        if one is not other and not _are_alike(one, other):
            return "queries and keys are rotated by different tables or positions"
    return ""


def _are_alike(left: Value | None, right: Value | None) -> bool:
    if left is None or right is None or left.const is None or right.const is None:
        return False
    return left.const.equals(right.const)


@dataclass(frozen=True, slots=True)
class Tables:
    """What the operator gets.

    Attributes:
        cosine: A row for each position that it counts or is told.
        sine: Likewise.
        positions: The row for each position of each batch, None where it counts them.
    """

    cosine: Value
    sine: Value
    positions: Value | None


def tables_for(b: Builder, turn: Turn, node: Node, lengths: Lengths, context: Context) -> Tables | str:
    """The tables of a rotation as the operator takes them, or why it cannot."""
    first = _first_row(turn.positions, lengths)
    if first is not None:
        start, is_own = first
        if is_own:
            return Tables(turn.cosine, turn.sine, None)
        cosine, sine = (_from_row(b, table, start) for table in (turn.cosine, turn.sine))
    elif (turn.positions.shape or (None,))[0] == 1:
        # One batch: its rows, in order.
        each = b.Reshape(turn.positions, b.constant([-1], DType.INT64))
        cosine, sine = (b.Gather(table, each, axis=0) for table in (turn.cosine, turn.sine))
    else:
        return _told(b, turn, node, lengths, context)
    past = node.operand(_PAST_KEY)
    if past is not None and lengths.past != 0:
        cosine, sine = (_padded(b, table, length_of(b, past, 2), is_behind=False) for table in (cosine, sine))
    return Tables(cosine, sine, None)


def _first_row(positions: Value, lengths: Lengths) -> tuple[Value | int, bool] | None:
    """The row of the first position where the others follow it in all batches; whether the operator counts so too."""
    shape = positions.shape
    if shape is None:
        return None
    if shape in ((), (1,)):
        number = only_number(positions)
        is_own = number is not None and is_same(number, lengths.past)
        return (number if isinstance(number, int) else positions), is_own
    if len(shape) != 2:
        return None
    start = _counted_start(positions, lengths)
    if start is None:
        return None
    if is_same(start, lengths.past):
        return 0, True
    return (start, False) if isinstance(start, int) else None


def _counted_start(positions: Value, lengths: Lengths) -> Dim:
    """The first of positions that count in steps of one along the last axis, alike in all batches."""
    if positions.const is not None and positions.const.size <= _LARGEST and positions.const.size:
        numbers = positions.const.numpy()
        expected = numbers[0, 0] + np.arange(numbers.shape[1])
        return int(numbers[0, 0]) if np.array_equal(numbers, np.broadcast_to(expected, numbers.shape)) else None
    node = positions.producer
    if node.is_op("Expand"):
        source, shape = node.operand(0), positions.shape
        if source is None or not source.shape or shape is None or not is_same(source.shape[-1], shape[-1]):
            return None
        positions = source
    count = counted(positions)
    if count is None or (count.axis != -1 and lengths.rows != 1) or not is_same(count.length, lengths.rows):
        return None
    return count.start


def _from_row(b: Builder, table: Value, start: Value | int) -> Value:
    if start == 0:
        return table
    if isinstance(start, int):
        first = b.constant([start], DType.INT64)
    else:
        first = start if start.rank == 1 else b.Reshape(start, b.constant([1], DType.INT64))
    end, axis = b.constant([WHOLE], DType.INT64), b.constant([0], DType.INT64)
    made: Value = b.Slice(table, starts=first, ends=end, axes=axis)
    return made


def _padded(b: Builder, table: Value, count: Value, *, is_behind: bool) -> Value:
    """A table with so many rows before or behind its own that nobody reads."""
    assert table.shape is not None
    assert table.dtype is not None
    width = table.shape[-1]
    if count.const is not None and isinstance(width, int):
        rows = int(count.const.scalar())
        dtype = table.dtype
        spare = b.constant(Tensor.computed(dtype, (rows, width), lambda: np.zeros((rows, width), dtype.numpy)))
    else:
        shape = b.Concat(count, b.constant([width], DType.INT64), axis=0)
        spare = b.ConstantOfShape(shape, value=Tensor.of([0], table.dtype))
    made: Value = b.Concat(table, spare, axis=0) if is_behind else b.Concat(spare, table, axis=0)
    return made


def _told(b: Builder, turn: Turn, node: Node, lengths: Lengths, context: Context) -> Tables | str:
    """Rows that the operator is told: batches have positions of their own."""
    shape, past, total = turn.positions.shape, lengths.past, lengths.total
    if past is None or not symbol.is_positive(past):
        return "batches have positions of their own, all of which a run without earlier ones does not take"
    if context.target.release < _POSITIONS_SINCE:
        return "batches have positions of their own, which this version does not take"
    if shape is None or len(shape) != 2 or not is_same(shape[0], lengths.batch) or not is_same(shape[1], lengths.rows):
        return "batches have positions of their own in a shape that is not known to be theirs"
    rows = (turn.cosine.shape or (None,))[0]
    if isinstance(rows, int) and isinstance(total, int) and rows >= total:
        return Tables(turn.cosine, turn.sine, turn.positions)
    if turn.cosine.const is not None and not isinstance(total, int):
        return "batches have positions of their own, and the tables may be shorter than what is behind the cache"
    if isinstance(total, int):
        keys = b.constant([total], DType.INT64)
    else:
        keys = b.Cast(b.Reshape(node.operand(_TOTAL), b.constant([1], DType.INT64)), to=int(DType.INT64))
    cosine, sine = (_padded(b, table, keys, is_behind=True) for table in (turn.cosine, turn.sine))
    return Tables(cosine, sine, turn.positions)


def replayed(b: Builder, chain: Chain, source: Value, made: dict[Node, tuple[Value, ...]]) -> Value:
    """The same cut out of another tensor; each node is made once, kept in `made`."""
    value = source
    for view in reversed(chain.views):
        node = view.producer
        if node not in made:
            found = b.like(node, value, *node.operands[1:])
            made[node] = found if isinstance(found, tuple) else (found,)
        value = made[node][view.index]
    return value
