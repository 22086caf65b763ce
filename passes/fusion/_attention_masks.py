"""What is added to the scores of an attention, as the one operand of four axes that the fused operators take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphopt import Builder, DType, Expr, Tensor, Value, symbol
from passes._cover import number
from passes._masks import is_finite_mask
from passes._proofs import Dim
from passes.fusion._attention_core import AttentionCore, Mask
from passes.fusion._attention_layout import declared, is_same

_LOWEST: Final = -1e9
"""From here on a number in place of a score hides it: whatever else a query sees outweighs it."""
_ABSORBING: Final = -1e30
"""From here on no sum with a score of float32 is told apart from the number, so that adding it is putting it in place
of scores, in rows of nothing else, too: numbers near -1e9 are 64 apart, and a score of 40 would show. It leaves room to
the end of the range, for kernels that scale what they exponentiate."""
_LOW: Final = -1e4
"""A number that hides the scores of any model at work, though not every number."""
_LARGEST_HALF: Final = 65504.0
_MOST_VALUES: Final = 64
_LARGEST_CONSTANT: Final = 1 << 20
"""Elements of the largest mask that is stretched where it is stored."""

_SHAPE_OF_A_PART: Final = 15
"""The opset from which on Shape gives the lengths of some axes."""

BiasKey = tuple[object, ...]


def doubt_of(core: AttentionCore, *, is_loose: bool = False) -> str:
    """Why the masks cannot be written as a sum of the scores with one operand.

    Args:
        core: The attention.
        is_loose: True if numbers may change for scores that nearly reach the number that hides, as in the thousands.
    """
    for mask in core.masks:
        doubt = _doubt_of_shape(core, mask) or _doubt_of_fill(core, mask, is_loose) or _doubt_of_company(core, mask)
        doubt = doubt or _doubt_of_range(core, mask)
        if doubt:
            return doubt
    return ""


def _doubt_of_shape(core: AttentionCore, mask: Mask) -> str:
    before, after, own = mask.shape, mask.after, mask.value.shape
    if own is None or not after or not before or len(after) != len(before) or len(own) > len(before):
        return "the mask has more axes than the scores, or its shape is unknown"
    for place in range(-len(before), 0):
        dim = own[place] if -place <= len(own) else 1
        if dim == 1 or is_same(after[place], before[place]) or is_same(dim, before[place]):
            continue
        if place == -3 and dim == core.heads and len(before) > 3:
            continue
        if place == -len(before) and len(before) > 3 and _is_forced(dim, core.query.batch, own, before):
            continue
        if place == -1 and is_same(core.key.rows, core.value.rows):
            continue  # the product with the values would fail
        if place == -2 and _is_as_much_longer(own, before):
            continue
        return f"the mask may have more places than the scores on axis {place}"
    return ""


def _is_as_much_longer(own: Sequence[Dim], scores: Sequence[Dim]) -> bool:
    """True if a mask of more rows than the scores has too many columns as well, which fails."""
    rows, columns, wanted_rows, wanted_columns = own[-2], own[-1], scores[-2], scores[-1]
    if rows is None or columns is None or wanted_rows is None or wanted_columns is None:
        return False
    return is_same(rows + wanted_columns, wanted_rows + columns)


def _is_forced(dim: Dim, batch: Dim, own: Sequence[Dim], scores: Sequence[Dim]) -> bool:
    """True if the batches agree where the mask has as many rows as the scores, which it must have."""
    rows = None if own[-2] is None else declared(own[-2])
    if not isinstance(rows, symbol.Symbol) or not isinstance(scores[-2], int) or dim is None or batch is None:
        return False
    if not _is_as_much_longer(own, scores):
        return False
    left, right = (symbol.substitute(declared(item), {rows: scores[-2]}) for item in (dim, batch))
    return symbol.always_equal(left, right)


def _doubt_of_fill(core: AttentionCore, mask: Mask, is_loose: bool) -> str:
    """What is put in place of scores must hide them when it is added, in rows that see nothing, too."""
    if mask.fill is None:
        return ""
    fill = mask.fill * mask.factor
    if fill == -math.inf or (fill <= _LOWEST and core.dtype is DType.FLOAT) or (is_loose and fill <= _LOW):
        return ""
    return f"scores are replaced by {mask.fill:g}, which is not the same as adding it for every number"


def _doubt_of_company(core: AttentionCore, mask: Mask) -> str:
    """A lower number does for one that hides, but not beside others, which may be meant to be as low or lower."""
    fill = _fill_of(mask)
    if fill is None or fill <= _ABSORBING or fill > _LOWEST:
        return ""
    if all(_fill_of(other) in (fill, -math.inf) for other in core.masks):
        return ""
    return f"scores are replaced by {mask.fill:g} where something else is added to them, which may hide them as well"


def _doubt_of_range(core: AttentionCore, mask: Mask) -> str:
    """A mask of single precision may hold numbers that half precision has only as minus infinity: no row may be of it.

    What is made of truth values and integers holds what the constants on the way to it do.
    """
    if mask.fill is not None or core.dtype is not DType.FLOAT16 or mask.value.dtype is DType.FLOAT16:
        return ""
    reason = "a mask of single precision may hold finite numbers that half precision does not have"
    pending, seen = [mask.value], {mask.value: None}
    while pending:
        value = pending.pop()
        if value.dtype in (None, DType.FLOAT, DType.DOUBLE):
            node = value.producer
            made = node.param("value") if node.is_op("ConstantOfShape") else None
            constant = made if isinstance(made, Tensor) else value.const
            if constant is not None:
                numbers = np.abs(constant.numpy())
                if bool((np.isfinite(numbers) & (numbers > _LARGEST_HALF)).any()):
                    return reason
                continue
            if not node.is_operator or len(seen) > _MOST_VALUES:
                return reason
            for operand in node.operands:
                if operand is not None and operand not in seen:
                    seen[operand] = None
                    pending.append(operand)
    return ""


def _fill_of(mask: Mask) -> float | None:
    return None if mask.fill is None else mask.fill * mask.factor


def is_finite(core: AttentionCore) -> bool:
    """True if no row of scores can be minus infinity throughout; two of the lowest numbers add up to it."""
    if len(core.masks) > 1:
        return False
    for mask in core.masks:
        if mask.fill is not None and not math.isfinite(mask.fill):
            return False
        if mask.fill is None and not is_finite_mask(mask.value):
            return False
    return True


def has_infinity(core: AttentionCore) -> bool:
    """True if a mask hides keys by minus infinity, so that a row of nothing else gives NaN."""
    return any(as_choice(mask)[2] == -math.inf for mask in core.masks)


def bias_key(core: AttentionCore) -> BiasKey:
    """What two attentions must have in common to share the operand."""
    terms = tuple((mask.value, mask.factor, mask.fill, mask.keeps, len(mask.shape)) for mask in core.masks)
    dims = [None if dim is None else declared(dim) for dim in (core.query.rows, core.key.rows, core.query.batch)]
    return (terms, *dims, core.heads, core.dtype, core.is_guarded)


def bias_of(
    core: AttentionCore, b: Builder, query: Value, key: tuple[Value, int], past: Value | None = None
) -> Value | str | None:
    """What is added to the scores, `[batch or 1, heads or 1, queries, keys]`; None for nothing, or why there is none.

    Args:
        core: The attention.
        b: The builder.
        query: A tensor whose axes 0 and 1 are batch and queries.
        key: A tensor that has the keys on an axis, and the axis; with a cache, those of this run.
        past: The keys of a cache, on axis 2.
    """
    total: Value | None = None
    for mask in core.masks:
        # What comes first is shared by layers as it is; what follows has to fit to what there is.
        value = with_mask(core, mask, b, None) if total is None or mask.fill is None else mask.value
        term = _with_four_axes(core, mask, value, b, query)
        if isinstance(term, str):
            return term
        if total is None:
            total = term
        elif mask.fill is None:
            total = b.Add(total, term)
        else:
            total = _chosen(core, mask, b, term, total)
    if total is None:
        return None
    return _stretched(core, total, b, query, key, past)


def with_mask(core: AttentionCore, mask: Mask, b: Builder, total: Value | None) -> Value:
    """What is added to the scores by a mask and those before it, whose sum is `total`, None if there are none.

    A choice comes in place of what was added before: the sum of two numbers that hide may be minus infinity.
    """
    if mask.fill is not None:
        return _chosen(core, mask, b, mask.value, b.constant(0.0, core.dtype) if total is None else total)
    value = mask.value if mask.factor == 1 else b.Mul(mask.value, mask.factor)
    if value.dtype is not core.dtype:
        value = b.Cast(value, to=int(core.dtype))
    result: Value = value if total is None else b.Add(total, value)
    return result


def _chosen(core: AttentionCore, mask: Mask, b: Builder, condition: Value, total: Value) -> Value:
    fill = _fill_of(mask)
    assert fill is not None
    if math.isfinite(fill) and fill <= _LOWEST:
        fill = min(fill, _ABSORBING)
    hidden = b.constant(fill, core.dtype)
    result: Value = b.Where(condition, total, hidden) if mask.keeps else b.Where(condition, hidden, total)
    return result


def _with_four_axes(core: AttentionCore, mask: Mask, value: Value, b: Builder, query: Value) -> Value | str:
    rank, own = len(mask.shape), value.shape or ()
    if rank == 4 or (rank == 3 and len(own) < 3) or (rank == 5 and len(own) < 5):
        return value if len(own) == 4 else _unsqueezed(b, value, 4 - len(own))
    if rank == 3:
        if own[0] == 1:
            return _unsqueezed(b, value, 1)
        if core.heads == 1:
            result: Value = b.Unsqueeze(value, axes=[1])
            return result
        heads = b.constant([core.heads], DType.INT64)
        batch, places = length_of(b, query, 0), [length_of(b, value, axis) for axis in (1, 2)]
        folded: Value = b.Reshape(value, b.Concat(batch, heads, *places, axis=0))
        return folded
    if rank == 5:
        if own[0] == 1 and own[1] == 1:
            squeezed: Value = b.Squeeze(value, axes=[0])
            return squeezed
        return _in_batches(mask, value, b, query)
    return f"the scores have {rank} axes"


def _unsqueezed(b: Builder, value: Value, count: int) -> Value:
    if value.const is not None:
        return b.constant(value.const.numpy().reshape((1,) * count + value.const.shape))
    result: Value = b.Unsqueeze(value, axes=list(range(count)))
    return result


def _in_batches(mask: Mask, value: Value, b: Builder, query: Value) -> Value | str:
    """A mask whose batch has two axes, with one."""
    own = value.shape or ()
    first, second = mask.shape[:2]
    tail = own[2:]
    if not isinstance(second, int) or not all(isinstance(dim, int) for dim in tail):
        return "the mask's windows are not known"
    sizes = [int(dim) for dim in tail if isinstance(dim, int)]
    if own[0] != 1 and own[1] != 1:
        whole = value
    elif isinstance(first, int):
        whole = b.Expand(value, b.constant([first, second, *sizes], DType.INT64))
    else:
        counts = b.Div(length_of(b, query, 0), b.constant([second], DType.INT64))
        whole = b.Expand(value, b.Concat(counts, b.constant([second, *sizes], DType.INT64), axis=0))
    result: Value = b.Reshape(whole, b.constant([-1, *sizes], DType.INT64))
    return result


def _stretched(
    core: AttentionCore, bias: Value, b: Builder, query: Value, key: tuple[Value, int], past: Value | None
) -> Value:
    """The bias with all queries and keys: the operators stretch batch and heads only."""
    own = bias.shape or ()
    rows, columns = core.query.rows, core.key.rows
    if is_same(own[-2], rows) and is_same(own[-1], columns):
        return bias
    if isinstance(rows, int) and isinstance(columns, int):
        if bias.const is not None and bias.const.size // max(_count(own), 1) * rows * columns <= _LARGEST_CONSTANT:
            wide = np.broadcast_to(bias.const.numpy(), (*bias.const.shape[:2], rows, columns))
            return b.constant(np.ascontiguousarray(wide))
        expanded: Value = b.Expand(bias, b.constant([1, 1, rows, columns], DType.INT64))
        return expanded
    source, axis = key
    if past is None or isinstance(columns, int) or any(_is_always(dim, columns) for dim in own):
        keys = _length(b, bias, source, columns, axis)
    else:
        # No tensor has the keys of the cache and those of this run on one axis; the mask may be one for all of them.
        keys = b.Add(length_of(b, past, 2), length_of(b, source, axis))
    ends = [_length(b, bias, query, rows, 1), keys]
    shape = b.Concat(b.constant([1, 1], DType.INT64), *ends, axis=0)
    result: Value = b.Expand(bias, shape)
    return result


def _count(own: Sequence[Dim]) -> int:
    return math.prod(dim if isinstance(dim, int) else 1 for dim in own[-2:])


def _length(b: Builder, bias: Value, source: Value, dim: Dim, axis: int) -> Value:
    """The length of an axis as a vector, read from the bias where that has it: several layers share it."""
    if isinstance(dim, int):
        return b.constant([dim], DType.INT64)
    for place, own in enumerate(bias.shape or ()):
        if _is_always(own, dim):
            return length_of(b, bias, place)
    return length_of(b, source, axis)


def _is_always(own: Dim, dim: Dim) -> bool:
    """True if the length of an axis of the bias can be read in place of another."""
    return isinstance(own, Expr) and dim is not None and symbol.always_equal(own, dim)


def length_of(b: Builder, value: Value, axis: int) -> Value:
    """The length of an axis as a vector of one number."""
    dim = (value.shape or ())[axis]
    if isinstance(dim, int):
        return b.constant([dim], DType.INT64)
    if b.graph.opsets.get("", 0) >= _SHAPE_OF_A_PART:
        found: Value = b.Shape(value, start=axis, end=axis + 1)
    else:
        found = b.Slice(b.Shape(value), starts=[axis], ends=[axis + 1], axes=[0])
    return found


def is_cleared(core: AttentionCore) -> bool:
    """True if the model gives zeros to queries that see no key, and there may be such."""
    return core.is_guarded and bool(core.masks) and not is_finite(core)


def cleared(core: AttentionCore, b: Builder, bias: Value) -> tuple[Value, Value]:
    """A bias that hides nothing from queries that see no key, and the factor of the result that makes zeros of theirs.

    So zeros come out as in the model: a value that is NaN, which no guard of probabilities hides, stays NaN.

    Args:
        core: The attention.
        b: The builder.
        bias: What is added to the scores, of four axes.

    Returns:
        The bias, and 1 or 0, `[batch or 1, queries or 1, 1]`, with heads on axis 1 where they differ.
    """
    seen = _seen(core, b, bias)
    factor = b.Cast(seen, to=int(core.dtype))
    if seen.rank == 4 and (seen.shape or ())[1] == 1:
        factor = b.Squeeze(factor, axes=[1])
    elif seen.rank == 4:
        factor = b.Transpose(factor, perm=[0, 2, 1, 3])
    places = b.Unsqueeze(seen, axes=[1]) if seen.rank == 3 else seen
    return b.Where(places, bias, b.constant(0.0, core.dtype)), factor


def _seen(core: AttentionCore, b: Builder, bias: Value) -> Value:
    """Which queries see a key at all, with the keys as an axis of 1."""
    condition, keeps, fill = as_choice(core.masks[0]) if len(core.masks) == 1 else (None, True, None)
    rank = 0 if condition is None or condition.rank is None else condition.rank
    is_placed = rank == 2 or (rank == 4 and len(core.masks[0].shape) == 4)
    if condition is not None and fill == -math.inf and is_placed:
        truth = b.Cast(condition if keeps else b.Not(condition), to=int(DType.INT32))
        chosen: Value = b.Cast(b.ReduceMax(truth, axes=[-1], keepdims=1), to=int(DType.BOOL))
        return chosen
    numbers = bias if core.dtype is DType.FLOAT else b.Cast(bias, to=int(DType.FLOAT))
    most = b.ReduceMax(numbers, axes=[-1], keepdims=1)
    result: Value = b.Greater(most, b.constant(-math.inf, DType.FLOAT))
    return result


def times(core: AttentionCore, result: Value, factor: Value, b: Builder) -> Value:
    """What an operator gives, `[batch, queries, heads * width]`, times the factor of its queries, or of each head."""
    if (factor.rank or 0) < 4:
        scaled: Value = b.Mul(result, factor)
        return scaled
    apart = b.Reshape(result, b.constant([0, 0, core.heads, core.value.width], DType.INT64))
    joined: Value = b.Reshape(b.Mul(apart, factor), b.constant([0, 0, core.heads * core.value.width], DType.INT64))
    return joined


def as_choice(mask: Mask) -> tuple[Value | None, bool, float | None]:
    """The condition under which a score stays, as `(condition, what it must be, what hides)`."""
    if mask.fill is not None:
        return mask.value, mask.keeps, mask.fill
    node = mask.value.producer
    if not node.is_op("Where"):
        return None, True, None
    condition, first, second = node.operands
    for keeps, nothing, hidden in ((True, first, second), (False, second, first)):
        fill = number(hidden)
        if number(nothing) == 0 and fill is not None and fill < 0:
            return condition, keeps, fill
    return None, True, None
