"""Pads of pads, of slices, and before slices become one operator; pads of pools and convolutions become their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import Builder, DType, Match, Miss, Node, Value, op, rule, symbol, var
from passes._proofs import contents, counted, is_given
from passes._selections import Cut, Cuts, cuts_of, sliced

x = var("x")

_AMOUNTS = tuple[tuple[int, int], ...]


def _pads_of(node: Node) -> _AMOUNTS | None:
    """How much a Pad adds before and behind each axis; None if that is not known."""
    value = node.operands[0]
    pads, rank = contents(node, "pads"), None if value is None else value.rank
    if pads is None or rank is None:
        return None
    axes = counted(contents(node, "axes"), rank) if is_given(node, "axes") else tuple(range(rank))
    numbers = [pad for pad in pads if isinstance(pad, int)]
    if axes is None or len(numbers) != len(pads) or len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        return None
    amounts = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        amounts[axis] = (numbers[index], numbers[index + len(axes)])
    return tuple(amounts)


def _fill_of(node: Node) -> float | None:
    """The number a Pad fills with; None if it fills with something else."""
    if node.param("mode") not in ("constant", None):
        return None
    value = node.operand(2) if node.opset >= 11 else None
    if value is None:
        number = node.param("value") if node.opset < 11 else 0
        return 0.0 if number is None else float(number)
    tensor = value.const
    if tensor is None or tensor.size != 1 or value.dtype is DType.STRING:
        return None
    item: float = tensor.numpy().reshape(-1)[0].item()  # as it is: not every integer is a float
    return item


def _like(b: Builder, node: Node, value: Value, amounts: Sequence[tuple[int, int]]) -> Value:
    """A Pad in the same mode and with the same filling."""
    parameters = {
        "pads": [before for before, _ in amounts] + [behind for _, behind in amounts],
        "mode": node.param("mode"),
        "constant_value" if node.opset >= 11 else "value": node.operand(2) if node.opset >= 11 else node.param("value"),
    }
    padded: Value = b.apply("Pad", (value,), parameters=parameters)
    return padded


_INNER = op.Pad(x, ...)


@rule(
    op.Pad(_INNER, ...),
    before="""(float[N,3] x) => (float[K,L] y) <int64[4] p = {0,1,0,2}, int64[4] q = {1,0,0,1}>
              { a = Pad(x, p)  b = Pad(a, q)  y = Relu(b) }""",
    after="""(float[N,3] x) => (float[K,L] y) <int64[4] p = {1,1,0,3}> { b = Pad(x, p)  y = Relu(b) }""",
    unless=[
        """(float[9] x) => (float[13] y) <int64[2] p = {1,1}> {
           a = Pad<mode = "reflect">(x, p)  b = Pad<mode = "reflect">(a, p)  y = Relu(b) }""",
        """(float[9] x) => (float[13] y) <int64[2] p = {1,1}, float v = {1}>
           { a = Pad(x, p, v)  b = Pad(a, p)  y = Relu(b) }""",
        # As floats the two would be one number.
        """(int64[9] x) => (int64[13] y)
           <int64[2] p = {1,1}, int64 v = {9007199254740993}, int64 w = {9007199254740992}>
           { a = Pad(x, p, v)  b = Pad(a, p, w)  y = Abs(b) }""",
        # What is cut off was not there before.
        """(float[9] x) => (float[9] y) <int64[2] p = {2,1}, int64[2] q = {-3,0}>
           { a = Pad(x, p)  b = Pad(a, q)  y = Relu(b) }""",
    ],
)
def merge_pads(m: Match, b: Builder) -> Value | Miss:
    """Pads in a row with one number are one; those that repeat the edge are too."""
    inner = m.node(_INNER)
    first, second = _pads_of(inner), _pads_of(m.root)
    if first is None or second is None or len(first) != len(second):
        return b.no("the pads are not known")
    modes = {inner.param("mode"), m.root.param("mode")}
    fills = (_fill_of(inner), _fill_of(m.root))
    same_fill = fills[0] is not None and fills[1] is not None and _same_number(fills[0], fills[1])
    if not same_fill and modes != {"edge"}:
        return b.no("they fill in different ways, or with what stands there")
    amounts = [(one[0] + two[0], one[1] + two[1]) for one, two in zip(first, second, strict=True)]
    if any(pad < 0 for pair in (*first, *second) for pad in pair):
        return b.no("something is cut off")
    return _like(b, m.root, m[x], amounts)


def _same_number(one: float, other: float) -> bool:
    return one == other and np.signbit(one) == np.signbit(other)


_CUT = op.Slice(x, ...)


@rule(
    op.Pad(_CUT, ...),
    before="""(float[N,8] x) => (float[N,8] y)
              <int64[1] s = {3}, int64[1] e = {9223372036854775807}, int64[1] a = {1}, int64[4] p = {0,0,0,3}>
              { u = Slice(x, s, e, a)  v = Pad(u, p)  y = Relu(v) }""",
    after="(float[N,8] x) => (float[N,8] y) <int64[4] p = {0,-3,0,3}> { v = Pad(x, p)  y = Relu(v) }",
    unless=[
        """(float[N,8] x) => (float[N,5] y)
           <int64[1] s = {3}, int64[1] e = {8}, int64[1] a = {1}, int64[1] t = {2}, int64[4] p = {0,0,0,2}>
           { u = Slice(x, s, e, a, t)  v = Pad(u, p)  y = Relu(v) }""",
        # There may be nothing left to cut off.
        """(float[N,8] x) => (float[K,8] y) <int64[1] s = {3}, int64[1] e = {9999999999}, int64[4] p = {0,0,3,0}>
           { u = Slice(x, s, e)  v = Pad(u, p)  y = Relu(v) }""",
        """(float[8] x) => (float[8] y) <int64[1] s = {3}, int64[1] e = {8}, int64[2] p = {0,3}>
           { u = Slice(x, s, e)  v = Pad<mode = "edge">(u, p)  y = Relu(v) }""",
    ],
)
def pad_of_slice(m: Match, b: Builder) -> Value | Miss:
    """A Slice before a Pad with a number is a negative pad."""
    cuts, amounts = cuts_of(m.node(_CUT)), _pads_of(m.root)
    if cuts is None or amounts is None or m.root.param("mode") not in ("constant", None):
        return b.no("the bounds or pads are not known, or it fills with what stands there")
    merged = list(amounts)
    for axis, cut in cuts.items():
        lost = _cut_off(m[x], axis, cut)
        if lost is None or any(pad < 0 for pad in merged[axis]):
            return b.no("how much is cut off is not known")
        if any(cut_off and pad for cut_off, pad in zip(lost, merged[axis], strict=True)):
            return b.no("what is cut off is filled again")
        merged[axis] = (merged[axis][0] - lost[0], merged[axis][1] - lost[1])
    return _like(b, m.root, m[x], merged)


def _cut_off(value: Value, axis: int, cut: Cut) -> tuple[int, int] | None:
    """How much a cut takes away before and behind what it keeps; None if that is not the same for every size."""
    size = None if value.shape is None else value.shape[axis]
    if cut.step != 1 or size is None:
        return None
    if isinstance(size, int):
        places = cut.places(size)
        return (places.start, size - places.stop) if places else None
    before = cut.start if cut.start >= 0 else None
    behind = 0 if cut.is_open else -cut.end if cut.end < 0 else None
    if before is None or behind is None or not symbol.is_nonnegative(size - before - behind - 1):
        return None
    return before, behind


@rule(
    op.Slice(_INNER, ...),
    before="""(float[N,8] x) => (float[N,8] y)
              <int64[4] p = {0,3,0,1}, int64[1] s = {3}, int64[1] e = {11}, int64[1] a = {1}>
              { u = Pad<mode = "edge">(x, p)  v = Slice(u, s, e, a)  y = Relu(v) }""",
    after="(float[N,8] x) => (float[N,8] y) { y = Relu(x) }",
    unless=[
        """(float[N,8] x) => (float[N,9] y)
           <int64[4] p = {0,3,0,1}, int64[1] s = {2}, int64[1] e = {11}, int64[1] a = {1}>
           { u = Pad(x, p)  v = Slice(u, s, e, a)  y = Relu(v) }""",
        """(float[N] x) => (float[K] y) <int64[2] p = {3,0}, int64[1] s = {3}, int64[1] e = {11}>
           { u = Pad(x, p)  v = Slice(u, s, e)  y = Relu(v) }""",
    ],
    keep=(_INNER,),
)
def slice_of_pad(m: Match, b: Builder) -> Value | Miss:
    """A Slice that leaves out everything a Pad adds reads what was padded."""
    cuts, amounts = cuts_of(m.root), _pads_of(m.node(_INNER))
    if cuts is None or amounts is None or m[_INNER].rank != len(amounts):
        return b.no("the bounds or pads are not known")
    inner: Cuts = {}
    for axis, (before, behind) in enumerate(amounts):
        if axis not in cuts and not before and not behind:
            continue
        cut = cuts.get(axis)
        found = None if cut is None or before < 0 or behind < 0 else _inside(m[x], axis, before, cut, m[_INNER])
        if found is None:
            return b.no("some of what is added may stay")
        if not found.is_whole:
            inner[axis] = found
    if inner and (m[_INNER].users != [m.root] or m.node(_INNER).is_pinned):
        return b.no("the Pad is needed anyway")
    return sliced(b, m[x], inner)


def _inside(value: Value, axis: int, before: int, cut: Cut, padded: Value) -> Cut | None:
    """The same cut of what was not padded yet; None if it takes something that was added."""
    if value.shape is None or padded.shape is None:
        return None
    size, whole = value.shape[axis], padded.shape[axis]
    if not isinstance(size, int) or not isinstance(whole, int) or cut.step != 1:
        return None
    places = cut.places(whole)
    if not places or places.start < before or places.stop > before + size:
        return None
    start, end = places.start - before, places.stop - before
    return Cut(0, 2**31 - 1) if (start, end) == (0, size) else Cut(start, end)


# --- pads of layers

_PADDED = op.Pad(x, ...)


_EXPLICIT = ("NOTSET", "VALID", None)


@rule(
    op.one_of("Conv", "ConvInteger", "MaxPool", "AveragePool")(_PADDED, ...),
    before="""(float[N,2,8,8] x, float[3,2,3,3] w) => (float[N,3,8,9] y) <int64[8] p = {0,0,1,0,0,0,1,2}>
              { u = Pad(x, p)  y = Conv<pads = [0,1,0,0]>(u, w) }""",
    after="(float[N,2,8,8] x, float[3,2,3,3] w) => (float[N,3,8,9] y) { y = Conv<pads = [1,1,1,2]>(x, w) }",
    unless=[
        """(float[N,2,8,8] x, float[3,2,3,3] w) => (float[N,3,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}, float v = {1}>
           { u = Pad(x, p, v)  y = Conv(u, w) }""",
        """(float[N,1,8,8] x, float[3,2,3,3] w) => (float[N,3,8,8] y) <int64[8] p = {0,1,1,1,0,0,1,1}>
           { u = Pad(x, p)  y = Conv(u, w) }""",
        """(float[N,2,8,8] x, float[3,2,3,3] w) => (float[N,3,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
           { u = Pad<mode = "reflect">(x, p)  y = Conv(u, w) }""",
        # A maximum of negative numbers and 0 is 0.
        """(float[N,2,8,8] x) => (float[N,2,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
           { u = Pad(x, p)  y = MaxPool<kernel_shape = [3,3]>(u) }""",
        """(float[N,2,8,8] x) => (float[N,2,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
           { u = Pad(x, p)  y = AveragePool<kernel_shape = [3,3], auto_pad = "SAME_UPPER">(u) }""",
        """(float[N,2,8,8] x) => (float[N,2,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}>
           { u = Pad(x, p)  y = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(u) }""",
    ],
    numeric="R",
)
def pad_into_layer(m: Match, b: Builder) -> Value | Miss:
    """A Conv or pool pads its operand by itself."""
    pad, layer, amounts = m.node(_PADDED), m.root, _pads_of(m.node(_PADDED))
    rank, fill = m[x].rank, _fill_of(pad)
    if amounts is None or rank is None or rank < 3 or fill is None or layer.param("auto_pad") not in _EXPLICIT:
        return b.no("the pads are not known, or it fills with something else")
    if any(pair != (0, 0) for pair in amounts[:2]) or any(amount < 0 for pair in amounts for amount in pair):
        return b.no("it pads batches or channels, or cuts off")
    is_valid = layer.param("auto_pad") == "VALID"  # another word for no pads
    own = (0,) * (2 * (rank - 2)) if is_valid else layer.param("pads") or (0,) * (2 * (rank - 2))
    if len(own) != 2 * (rank - 2) or (layer.op_type == "ConvInteger" and len(layer.operands) > 2):
        return b.no("the layer pads otherwise, or with its zero point")
    count = layer.param("count_include_pad")
    if not _fills_alike(layer, fill, m[x], any(own)):
        return b.no("the layer fills with another number")
    spatial = amounts[2:]
    pads = [own[axis] + spatial[axis][0] for axis in range(rank - 2)]
    pads += [own[axis + rank - 2] + spatial[axis][1] for axis in range(rank - 2)]
    if layer.op_type != "Conv" and not _is_inside(layer, pads, rank - 2):
        return b.no("a window may see nothing but what was added")
    extra: dict[str, int | str] = {"auto_pad": "NOTSET"} if is_valid else {}
    if layer.op_type == "AveragePool" and count is not None:
        extra["count_include_pad"] = 1
    results: Value | tuple[Value, ...] = b.like(layer, m[x], *layer.operands[1:], pads=pads, **extra)
    if isinstance(results, Value):
        return results
    return results[0] if not any(other.is_used for other in layer.results[1:]) else b.no("the indices are read")


def _fills_alike(layer: Node, fill: float, value: Value, pads_itself: bool) -> bool:
    """True if a layer fills what it adds with that number."""
    if layer.op_type == "MaxPool":
        return fill == -np.inf and value.dtype in (DType.FLOAT, DType.DOUBLE)
    if layer.op_type == "AveragePool":
        # What was added counts; what the layer adds counts only if it is asked to, or adds nothing.
        return (
            fill == 0 and (bool(layer.param("count_include_pad")) or not pads_itself) and not layer.param("ceil_mode")
        )
    return fill == 0


def _is_inside(layer: Node, pads: Sequence[int], axes: int) -> bool:
    """True if every pad is smaller than the window: pools refuse larger ones."""
    window, gaps = layer.param("kernel_shape"), layer.param("dilations")
    if any(gap != 1 for gap in gaps or ()) or layer.param("ceil_mode"):
        return False
    return all(pads[axis] < window[axis] and pads[axis + axes] < window[axis] for axis in range(axes))
