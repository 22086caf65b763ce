"""Rotary embeddings, as exporters write them in parts."""

from __future__ import annotations

from graphopt import Builder, Context, DType, Node, Value
from passes._cover import Cover, number, other, sole_user
from passes._proofs import axes_of, axis_of, contents, same_dim

_KERNELS = (DType.FLOAT, DType.FLOAT16)


def rotary_around(negation: Node, context: Context) -> None:
    """Replace x·cos + turned(x)·sin by RotaryEmbedding, where `negation` is in the middle of turning x."""
    joined = sole_user(negation.results[0], "Concat")
    if joined is None or len(joined.operands) != 2 or joined.operand(0) is not negation.results[0]:
        return
    turned = joined.results[0]
    with_sine = sole_user(turned, "Mul")
    root = None if with_sine is None else sole_user(with_sine.results[0], "Add")
    if with_sine is None or root is None:
        return
    cover = Cover(root)
    for value in (with_sine.results[0], turned, negation.results[0]):
        cover.enter(value, "Mul", "Concat", "Neg")
    with_cosine = cover.enter(other(root, with_sine.results[0]), "Mul")
    upper, lower = _part(cover, negation.operand(0)), _part(cover, joined.operand(1))
    if with_cosine is None or upper is None or lower is None:
        return
    x = upper[0]
    size = x.shape[-1] if x.shape is not None and x.rank == 4 else None
    if lower[0] is not x or not isinstance(size, int) or size % 2 or axis_of(joined, 4) != 3 or x.dtype not in _KERNELS:
        return
    if upper[1:] != (size // 2, size) or lower[1:] != (0, size // 2):
        return
    cosine, sine = _angles(other(with_cosine, x), "Cos"), _angles(other(with_sine, turned), "Sin")
    if cosine is None or sine is None:
        return
    if not (_is_cache(cosine.half, x, size) and _is_cache(sine.half, x, size)):
        return

    def build(b: Builder) -> Value:
        made: Value = b.RotaryEmbedding(x, _spread(b, cosine.make(b), x), _spread(b, sine.make(b), x))
        return made

    cover.replace(context, build)


def _part(cover: Cover, value: Value | None) -> tuple[Value, int, int] | None:
    """What a part of the last axis is taken from, where it begins and ends."""
    if value is None:
        return None
    node = value.producer
    x = node.operand(0)
    if x is None or x.rank is None or node.graph is not cover.root.graph:
        return None
    size = x.shape[-1] if x.shape is not None else None
    if node.is_op("Split") and len(node.results) == 2 and axis_of(node, x.rank) == x.rank - 1 and isinstance(size, int):
        sizes = [result.shape[-1] if result.shape else None for result in node.results]
        cover.nodes[node] = None
        return (x, 0, size // 2) if value.index == 0 and sizes == [size // 2] * 2 else (x, size // 2, size)
    if cover.enter(value, "Slice") is None or axes_of(node, x.rank) != (x.rank - 1,) or not isinstance(size, int):
        return None
    starts, ends, steps = contents(node, "starts"), contents(node, "ends"), contents(node, "steps")
    if starts is None or ends is None or steps not in (None, (1,)):
        return None
    start, end = starts[0], ends[0]
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    first, last = (min(max(place + size if place < 0 else place, 0), size) for place in (start, end))
    return x, first, last


class _Angles:
    """The cosine or sine of angles that are the same in both halves.

    Attributes:
        half: The angles of one half, of shape (batch, length, half).
        function: `Cos` or `Sin`.
        steps: What is done to it afterwards, element by element, innermost first.
    """

    __slots__ = ("function", "half", "steps")

    def __init__(self, half: Value, function: str, steps: list[Node]) -> None:
        self.half = half
        self.function = function
        self.steps = steps

    def make(self, b: Builder) -> Value:
        """The same for one half."""
        value: Value = b.apply(self.function, [self.half])
        for step in self.steps:
            left, right = step.operand(0), step.operand(1)
            if step.op_type == "Cast":
                value = b.like(step, value)
            else:
                value = b.Mul(value, right if number(right) is not None else left)
        return value


def _angles(value: Value | None, function: str) -> _Angles | None:
    steps: list[Node] = []
    is_lifted = False
    for _ in range(6):
        if value is None:
            return None
        node = value.producer
        if node.is_op("Unsqueeze") and not is_lifted and axes_of(node, value.rank) == (1,):
            is_lifted, value = True, node.operand(0)
        elif node.is_op("Cast"):
            steps.append(node)
            value = node.operand(0)
        elif node.is_op("Mul") and (number(node.operand(0)) is not None or number(node.operand(1)) is not None):
            steps.append(node)
            value = node.operand(0) if number(node.operand(1)) is not None else node.operand(1)
        elif node.is_op(function):
            break
        else:
            return None
    else:
        return None
    angles = node.operand(0)
    doubled = None if angles is None else angles.producer
    if not is_lifted or doubled is None or not doubled.is_op("Concat") or len(doubled.operands) != 2:
        return None
    half = doubled.operand(0)
    if half is None or doubled.operand(1) is not half or half.rank != 3 or axis_of(doubled, 3) != 2:
        return None
    return _Angles(half, function, steps[::-1])


def _is_cache(half: Value, x: Value, size: int) -> bool:
    """True if there is an angle for each position and pair, for one batch or each."""
    if half.shape is None or x.shape is None:
        return False
    batch, length, pairs = half.shape
    return pairs == size // 2 and same_dim(length, x.shape[2]) and (batch == 1 or same_dim(batch, x.shape[0]))


def _spread(b: Builder, cache: Value, x: Value) -> Value:
    """The cache for every batch, which the operator wants."""
    shape, dims = cache.shape, x.shape
    if shape is None or dims is None or same_dim(shape[0], dims[0]):
        return cache
    batch = b.Slice(b.Shape(x), starts=[0], ends=[1], axes=[0])
    wide: Value = b.Expand(cache, b.Concat(batch, b.constant([1, 1], DType.INT64), axis=0))
    return wide
