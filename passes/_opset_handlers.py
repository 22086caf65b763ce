"""What changed under an operator's name beyond the place of a parameter, version by version, up and down.

Each handler has a node in the spelling of one version, calls `respell()` for what merely moves, and leaves it in that
of the next, meaning the same; or refuses. Pictures and quantization are in `_opset_pictures`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphopt import DType, Expr, Tensor, Value, symbol
from passes._opset_spelling import Spelling

Respell: TypeAlias = Callable[[], None]
Handler: TypeAlias = Callable[[Spelling, Respell], None]


def refuses(why: str) -> Handler:
    """A handler for what has no counterpart."""

    def handler(s: Spelling, respell: Respell) -> None:
        s.refuse(why)

    return handler


# --- axes, which count from the front before opset 11


def axis_from_front(name: str, *, of_result: bool = False) -> Handler:
    """Opset 11 allows negative axes; before it they count from the front."""

    def down(s: Spelling, respell: Respell) -> None:
        rank = s.node.results[0].rank if of_result else s.rank()
        s.count_from_front(name, rank)
        respell()

    return down


def slice_11_down(s: Spelling, respell: Respell) -> None:
    """Opset 10 slices along axes counted from the front."""
    axes, rank = s.integers(3), s.rank()
    if axes is not None and min(axes, default=0) < 0:
        if rank is None:
            s.refuse("its axes count from the back and the rank is unknown")
        s.set_operand(3, Tensor.of([axis % rank for axis in axes], s.dtype(3) or DType.INT64))
    respell()


def slice_10_down(s: Spelling, respell: Respell) -> None:
    """Before opset 10 there are no steps."""
    steps = s.integers(4)
    if s.operand(4) is not None:
        if steps is None or set(steps) - {1}:
            s.refuse("it has steps, which Slice before opset 10 does not know")
        s.operands[4] = None
    respell()


def gather_11_down(s: Spelling, respell: Respell) -> None:
    """Before opset 11 indices are not negative; computed ones are taken at their word."""
    indices = s.constant(1)
    if indices is not None and indices.size and int(indices.numpy().min()) < 0:
        size = s.size(int(s.known("axis", 0)))
        if size is None:
            s.refuse("it has negative indices and the size of the axis is unknown")
        array = indices.numpy()
        s.set_operand(1, Tensor.from_numpy(np.where(array < 0, array + size, array).astype(array.dtype)))
    respell()


# --- softmax, which flattens before opset 13


def softmax_13_up(s: Spelling, respell: Respell) -> None:
    """Before opset 13 the operand is flattened to two dims at the axis."""
    op_type, rank = s.op_type, s.rank()
    axis = int(s.known("axis", 1))
    if rank is not None:
        axis %= max(rank, 1)
    is_alone = rank is not None and all(s.size(place) == 1 for place in range(axis + 1, rank))
    if axis == -1 or is_alone:
        respell()
        s.attributes["axis"] = axis
        return

    operand = s.operand(0)
    dims = operand.shape if isinstance(operand, (Value, Tensor)) else None
    # Where Reshape takes a 0 for the dim there was, that must be the right one: the first two are those of the matrix.
    safe = {0: (), 1: (0, 1)}.get(axis, (0,))
    takes_zeros = s.target >= 14
    survives = dims is not None and all(
        place in safe or (dim is not None and symbol.is_positive(dim)) for place, dim in enumerate(dims)
    )

    if not (takes_zeros or survives):
        s.refuse("it flattens dims that may be 0, which takes opset 14 to undo; ask for that or a newer one")

    def flattened(b, operands):  # type: ignore[no-untyped-def]
        x = operands[0]
        flat = b.apply(op_type, [b.Flatten(x, axis=axis)], parameters={"axis": -1})
        return b.Reshape(flat, b.Shape(x), **({"allowzero": 1} if takes_zeros else {}))

    s.expansion = flattened


def softmax_13_down(s: Spelling, respell: Respell) -> None:
    """Before opset 13 only the last axis means the same."""
    op_type, rank = s.op_type, s.rank()
    axis = int(s.known("axis", -1))
    if rank is None:
        if axis != -1:
            s.refuse("its axis may not be the last, and the rank is unknown")
        respell()
        s.attributes["axis"] = -1
        return
    axis %= max(rank, 1)
    if all(s.size(place) == 1 for place in range(axis + 1, rank)):
        respell()
        s.attributes["axis"] = axis
        return
    perm = [place for place in range(rank) if place != axis] + [axis]
    back = [perm.index(place) for place in range(rank)]

    def turned(b, operands):  # type: ignore[no-untyped-def]
        last = b.apply(op_type, [b.Transpose(operands[0], perm=perm)], parameters={"axis": rank - 1})
        return b.Transpose(last, perm=back)

    s.expansion = turned


# --- training and inference


def batch_normalization_14_up(s: Spelling, respell: Respell) -> None:
    """Before opset 14 the number of results says whether it trains."""
    if len(s.node.results) > 1:
        s.refuse("it has several results, by which BatchNormalization before opset 14 trains")
    respell()


def dropout_mask(s: Spelling, respell: Respell) -> None:
    """The mask changed its type and, in inference, its meaning."""
    if any(value.is_used for value in s.node.results[1:]):
        s.refuse("its mask is read, which is another in those opsets")
    respell()


def dropout_12_down(s: Spelling, respell: Respell) -> None:
    """Before opset 12 it never trains."""
    training = s.constant(2)
    if s.operand(2) is not None and (training is None or training.scalar()):
        s.refuse("it trains, or may, and Dropout before opset 12 does not")
    del s.operands[2:]
    s.attributes.pop("seed", None)
    dropout_mask(s, respell)


# --- Clip, Pad, TopK, Gemm, Pow, Max …


def clip_11(s: Spelling, respell: Respell) -> None:
    """The default bounds were those of float32."""
    dtype = s.dtype()
    is_bounded = (
        len([item for item in s.operands[1:] if item is not None]) == 2 or {"min", "max"} <= s.attributes.keys()
    )
    if dtype is not DType.FLOAT and not is_bounded:
        s.refuse("a bound is left to the default, which before opset 11 is that of float")
    respell()


def topk_10_up(s: Spelling, respell: Respell) -> None:
    """The number becomes a vector of one number."""
    count = s.take("k")
    respell()
    s.set_operand(1, Tensor.of([count], DType.INT64))


def gemm_11_down(s: Spelling, respell: Respell) -> None:
    """Before opset 11 there must be a third operand."""
    respell()
    if s.operand(2) is None:
        dtype = s.dtype()
        if dtype is None:
            s.refuse("its type is unknown, and Gemm before opset 11 takes a third operand")
        s.set_operand(2, Tensor.of([0], dtype))


def pow_12_down(s: Spelling, respell: Respell) -> None:
    """Before opset 12 the exponent has the type of the base."""
    dtype, exponent = s.dtype(), s.constant(1)
    if dtype is not None and exponent is not None and exponent.dtype is not dtype:
        array = exponent.numpy().astype(dtype.numpy)
        if (array.astype(np.float64) != exponent.numpy().astype(np.float64)).any():
            s.refuse("its exponent cannot be said in the type of the base, as Pow before opset 12 wants it")
        s.set_operand(1, Tensor.from_numpy(array, dtype))
    respell()


def broadcast_8_down(s: Spelling, respell: Respell) -> None:
    """Before opset 8 all operands have one shape."""
    shapes = [item.shape if isinstance(item, (Value, Tensor)) else None for item in s.operands]
    for shape in shapes[1:]:
        first = shapes[0]
        if first is None or shape is None or len(first) != len(shape):
            s.refuse(f"its operands may differ in shape, which {s.op_type} before opset 8 does not take")
        for left, right in zip(first, shape, strict=True):
            if left is None or right is None or not symbol.always_equal(left, right):
                s.refuse(f"its operands may differ in shape, which {s.op_type} before opset 8 does not take")
    respell()


def pad_18_down(s: Spelling, respell: Respell) -> None:
    """Before opset 18 there is a pad for every axis."""
    if s.operand(3) is not None:
        axes, pads, rank = s.integers(3), s.integers(1), s.rank()
        if axes is None or pads is None or rank is None:
            s.refuse("it pads some axes only, and those, the pads or the rank are not known before it runs")
        full = [0] * (2 * rank)
        for place, axis in enumerate(axes):
            full[axis % rank], full[axis % rank + rank] = pads[place], pads[place + len(axes)]
        s.operands[3] = None
        s.set_operand(1, Tensor.of(full, DType.INT64))
    respell()


def pad_19_down(s: Spelling, respell: Respell) -> None:
    """Before opset 19 there is no wrapping."""
    if s.known("mode", "constant") == "wrap":
        s.refuse("it pads by wrapping around, which Pad before opset 19 does not know")
    respell()


def reshape_14_down(s: Spelling, respell: Respell) -> None:
    """Before opset 14 a 0 always stands for the dim there was."""
    if s.take("allowzero", 0) and not _copies_zeros(s):
        if 0 in (s.integers(1) or ()):
            s.refuse("it makes a dim of size 0 (allowzero), which Reshape before opset 14 cannot")
        s.remark = (
            "before opset 14, a Reshape to a computed shape takes a 0 for the dim there was: empty inputs may fail"
        )
    respell()


def _copies_zeros(s: Spelling) -> bool:
    """True if no new dim is 0 but where the old one in its place is the same."""
    wanted, operand = s.operand(1), s.operand(0)
    dims: tuple[object, ...] | None = s.integers(1)
    if dims is None and isinstance(wanted, Value):
        dims = wanted.elements
    old = operand.shape if isinstance(operand, (Value, Tensor)) else None
    infers = -1 in (dims or ())  # what a 0 copies leaves nothing to infer by
    for place, dim in enumerate(dims or (None,)):
        if isinstance(dim, int) and dim != 0:
            continue
        if not isinstance(dim, (int, Expr)):
            return False
        before = old[place] if old is not None and place < len(old) else None
        is_same = before is not None and symbol.always_equal(before, dim)
        if not symbol.is_positive(dim) and (infers or not is_same):
            return False
    return True


def one_mode_less(allowed: tuple[str, ...]) -> Handler:
    """A reduction that a scatter does not know yet."""

    def down(s: Spelling, respell: Respell) -> None:
        if s.known("reduction", "none") not in allowed:
            s.refuse(f"its reduction '{s.known('reduction')}' is not known there")
        respell()

    return down


def one_hot_11(s: Spelling, respell: Respell) -> None:
    """From opset 11 negative indices count from the back; computed ones are taken not to be negative."""
    indices = s.constant(0)
    if indices is not None and indices.size and indices.numpy().min() < 0:
        s.refuse("it has negative indices, which opset 11 gave a meaning")
    axis = s.known("axis", -1)
    if axis < -1:
        s.refuse("its axis counts from the back, which OneHot before opset 11 does not")
    respell()


def scan_11_down(s: Spelling, respell: Respell) -> None:
    """Before opset 11 axes count from the front."""
    for name in ("scan_input_axes", "scan_output_axes"):
        if min(s.known(name) or (0,)) < 0:
            s.refuse(f"its {name} count from the back, which Scan before opset 11 does not")
    respell()


def renamed(op_type: str) -> Handler:
    """The operator goes on under another name."""

    def handler(s: Spelling, respell: Respell) -> None:
        s.op_type = op_type

    return handler


def neutral(**values: object) -> Handler:
    """Attributes that are not there yet may go where they say what is true anyway."""

    def down(s: Spelling, respell: Respell) -> None:
        for name, value in values.items():
            given = s.known(name)
            if given is not None and set(given if isinstance(given, tuple) else (given,)) <= {value}:
                del s.attributes[name]
        respell()

    return down


# --- reductions, whose axes became an operand

_OF_NOTHING = {
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceLogSumExp"), "Identity"),
    **dict.fromkeys(("ReduceL1", "ReduceL2"), "Abs"),
    "ReduceLogSum": "Log",
}
"""What a reduction over no axis does to an element."""


def reduce_down(s: Spelling, respell: Respell) -> None:
    """Before, no axes always means all of them."""
    op_type, does_nothing = s.op_type, s.take("noop_with_empty_axes", 0)
    if s.operand(1) is None or s.integers(1) == ():
        del s.operands[1:]
        if does_nothing and op_type == "ReduceSumSquare":
            s.expansion = lambda b, operands: b.Mul(operands[0], operands[0])
            return
        if does_nothing:
            s.expansion = lambda b, operands: b.apply(_OF_NOTHING[op_type], operands[:1])
            return
    elif s.integers(1) is None and does_nothing:
        s.refuse("its axes are computed, and it may be asked to do nothing")
    respell()


# --- Split, Shape, normalization


def split_18_up(s: Spelling, respell: Respell) -> None:
    """From opset 18 equal parts are asked for by their number."""
    respell()
    if s.operand(1) is None:
        s.attributes["num_outputs"] = len(s.node.results)


def split_18_down(s: Spelling, respell: Respell) -> None:
    """Before opset 18 parts without sizes are equal."""
    count = int(s.take("num_outputs", 0) or len(s.node.results))
    axis, rank = int(s.known("axis", 0)), s.rank()
    sizes: list[int] = []
    if s.operand(1) is None:
        operand = s.operand(0)
        shape = operand.shape if isinstance(operand, (Value, Tensor)) else None
        dim = shape[axis] if shape is not None and rank is not None and -rank <= axis < rank else None
        if isinstance(dim, int) and dim % count:
            part = -(-dim // count)
            sizes = [part] * (count - 1) + [dim - part * (count - 1)]
            if sizes[-1] < 0:
                s.refuse("it has more parts than there are elements to share")
        elif dim is None or (not isinstance(dim, int) and symbol.divide_exactly(dim, count) is None):
            s.refuse("its parts may not be equal, and Split before opset 18 takes no other without their sizes")
    respell()
    if sizes:
        s.set_operand(1, Tensor.of(sizes, DType.INT64))


def shape_15_down(s: Spelling, respell: Respell) -> None:
    """Before opset 15 it gives all dims: the part asked for is a slice of them."""
    start, end = int(s.take("start", 0)), s.take("end")
    if start == 0 and end is None:
        respell()
        return
    last = 2**31 - 1 if end is None else int(end)
    s.expansion = lambda b, operands: b.Slice(b.Shape(operands[0]), starts=[start], ends=[last], axes=[0])


def group_normalization_21_up(s: Spelling, respell: Respell) -> None:
    """Before opset 21 scale and bias are per group, from then on per channel."""
    groups, channels = s.known("num_groups"), s.size(1)
    if channels is None or channels % groups:
        s.refuse("its scale and bias are per group, and the number of channels, which it takes, is unknown")
    share = channels // groups
    attributes = dict(s.attributes)
    if all(s.constant(index) is not None for index in (1, 2)):
        for index in (1, 2):
            tensor = s.constant(index)
            assert tensor is not None
            s.set_operand(index, Tensor.from_numpy(np.repeat(tensor.numpy(), share), tensor.dtype))
        respell()
        return

    def spread(b, operands):  # type: ignore[no-untyped-def]
        x, *parts = operands
        rows = [
            b.Expand(b.Reshape(part, b.constant([groups, 1], DType.INT64)), b.constant([groups, share], DType.INT64))
            for part in parts
        ]
        flat = [b.Reshape(row, b.constant([channels], DType.INT64)) for row in rows]
        return b.apply("GroupNormalization", [x, *flat], parameters=attributes)

    s.expansion = spread
