"""Rotary embeddings as exporters write them: pairs of elements turned by angles, found from one node in the middle."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Node, Value
from passes._cover import Cover, other, sole_user
from passes._proofs import WHOLE, axes_of, axis_of, contents, same_shape
from passes.fusion._rotary_angles import HALVES, PAIRS, Half, Known, half_as_it_is, half_of


@dataclass(slots=True)
class Rotation:
    """Elements of the last axis that are turned in pairs.

    Attributes:
        cover: The nodes of it.
        x: What is turned, with those elements of the last axis that are not.
        turned: How many elements of the last axis are turned, from the first one on.
        cosine: The cosines, one for each pair.
        sine: The sines.
        angles: A value with the dims of the cosines that says along which axes of `x` they differ.
        kind: Which elements are pairs.
    """

    cover: Cover
    x: Value
    turned: int
    cosine: Half
    sine: Half
    angles: Value
    kind: str


def rotation_around(node: Node, known: Known) -> Rotation | str | None:
    """The rotation that a `Neg` or `Sub` is in the middle of.

    Args:
        node: The `Neg` or `Sub`.
        known: What is known of tables, added to.

    Returns:
        What was found, why it is none though it looks like one, or None for anything else.
    """
    found = _by_turning(node, known) if node.is_op("Neg") else _by_parts(node)
    if isinstance(found, Rotation):
        _with_rest(found)
    return found


def _by_turning(negation: Node, known: Known) -> Rotation | str | None:
    """x·cos + turned(x)·sin, where the turned x has the second element of each pair negated before the first."""
    turned = _turned(negation)
    if turned is None:
        return None
    with_sine = sole_user(turned.result, "Mul")
    root = None if with_sine is None else sole_user(with_sine.result, "Add")
    if with_sine is None or root is None:
        return None
    cover = Cover(root)
    cover.enter(with_sine.result, "Mul")
    with_cosine = cover.enter(other(root, with_sine.result), "Mul")
    found = _source(cover, turned, negation)
    if with_cosine is None or found is None:
        return None
    x, kind = found
    cosines, sines = other(with_cosine, x), other(with_sine, turned.result)
    size = None if x.shape is None else x.shape[-1]
    if cosines is None or sines is None or not isinstance(size, int) or cosines.shape is None or sines.shape is None:
        return None
    if len(cosines.shape) > len(x.shape or ()):
        return "a rotation's angles have more axes than what is turned"
    cosine, sine = half_of(cosines, size, kind, known), half_of(sines, size, kind, known)
    if cosine is None or sine is None:
        return f"a rotation's cosines or sines are not known to be the same for both elements of a pair ({kind})"
    if not same_shape(cosines, sines):
        return "a rotation has other shapes of cosines and sines"
    return Rotation(cover, x, size, cosine, sine, cosines, kind)


def _turned(negation: Node) -> Node | None:
    """The last node of the turned x."""
    negative = negation.results[0]
    joined = sole_user(negative, "Concat")
    if joined is None:
        lifted = sole_user(negative, "Unsqueeze")
        joined = None if lifted is None else sole_user(lifted.result, "Concat")
        return None if joined is None else sole_user(joined.result, "Reshape")
    return joined


def _source(cover: Cover, turned: Node, negation: Node) -> tuple[Value, str] | None:
    """What is turned and which elements are pairs."""
    if turned.op_type == "Concat":
        cover.enter(turned.result, "Concat")
        first, second = turned.operand(0), turned.operand(1)
        rank = turned.result.rank
        if len(turned.operands) != 2 or first is not negation.result or axis_of(turned, rank) != (rank or 0) - 1:
            return None
        kind = HALVES
    else:
        joined = cover.enter(turned.result, "Reshape") and cover.enter(turned.operand(0), "Concat")
        if joined is None or len(joined.operands) != 2 or axis_of(joined, joined.result.rank) is None:
            return None
        parts = [cover.enter(operand, "Unsqueeze") for operand in joined.operands]
        last = (joined.result.rank or 0) - 1
        if axis_of(joined, last + 1) != last:
            return None
        for part in parts:
            if part is None or axes_of(part, last + 1) != (last,):
                return None
        first, second = (None if part is None else part.operand(0) for part in parts)
        if first is not negation.result:
            return None
        kind = PAIRS
    cover.enter(first, "Neg")
    upper, lower = _part(cover, negation.operand(0)), _part(cover, second)
    if upper is None or lower is None or upper[0] is not lower[0]:
        return None
    x = upper[0]
    if (lower[1:], upper[1:]) != _pairs_of(x, kind):
        return None
    return (x, kind) if same_shape(turned.result, x) else None


def _by_parts(difference: Node) -> Rotation | str | None:
    """The two elements of each pair computed apart: a·cos - b·sin beside b·cos + a·sin."""
    left, right = difference.operand(0), difference.operand(1)
    lifted = sole_user(difference.results[0], "Unsqueeze")
    joined = sole_user(difference.results[0] if lifted is None else lifted.result, "Concat")
    if joined is None or len(joined.operands) != 2 or left is None or right is None:
        return None
    rank = joined.result.rank
    root = joined if lifted is None else sole_user(joined.result, "Reshape")
    if root is None or axis_of(joined, rank) != (rank or 0) - 1:
        return None
    cover = Cover(root)
    cover.enter(joined.result, "Concat")
    halves: list[Value | None] = list(joined.operands)
    if lifted is not None:
        parts = [cover.enter(operand, "Unsqueeze") for operand in joined.operands]
        if any(part is None or axes_of(part, rank) != ((rank or 0) - 1,) for part in parts):
            return None
        halves = [None if part is None else part.operand(0) for part in parts]
    if halves[0] is not difference.result:
        return None
    cover.enter(halves[0], "Sub")
    total = cover.enter(halves[1], "Add")
    products = [cover.enter(value, "Mul") for value in (left, right)]
    sums = [] if total is None else [cover.enter(value, "Mul") for value in total.operands]
    if len(sums) != 2 or any(node is None for node in (*products, *sums)):
        return None
    return _of_products(cover, [node for node in products if node], [node for node in sums if node], lifted is not None)


def _of_products(cover: Cover, minus: list[Node], plus: list[Node], is_lifted: bool) -> Rotation | str | None:
    """Which operand is which, in two products that are subtracted and two that are added."""
    for a in minus[0].operands:
        cosines = other(minus[0], a)
        for b in minus[1].operands:
            sines = other(minus[1], b)
            for first, second in (plus, plus[::-1]):
                if a is None or b is None or other(first, b) is not cosines or other(second, a) is not sines:
                    continue
                branch = cover.copy()
                lower, upper = _part(branch, a), _part(branch, b)
                if lower is None or upper is None or lower[0] is not upper[0]:
                    continue
                x, kind = lower[0], PAIRS if is_lifted else HALVES
                size = None if x.shape is None else x.shape[-1]
                if not isinstance(size, int) or (lower[1:], upper[1:]) != _pairs_of(x, kind):
                    continue
                if is_lifted and not same_shape(cover.root.result, x):
                    return "the parts of a rotation are put together in another shape than what is rotated"
                if cosines is None or sines is None or not cosines.shape or cosines.shape[-1] != size // 2:
                    return "a rotation has other than one angle for each pair"
                if not same_shape(cosines, sines):
                    return "a rotation has other shapes of cosines and sines"
                half = size // 2
                tables = half_as_it_is(cosines, half), half_as_it_is(sines, half)
                return Rotation(branch, x, size, *tables, cosines, kind)
    return None


def _pairs_of(x: Value, kind: str) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
    """Where the first and the second elements of pairs stand: begin, end and step."""
    size = x.shape[-1] if x.shape else None
    if not isinstance(size, int) or size % 2 or not size:
        return None
    if kind == PAIRS:
        return (0, size, 2), (1, size, 2)
    return (0, size // 2, 1), (size // 2, size, 1)


def _part(cover: Cover, value: Value | None) -> tuple[Value, int, int, int] | None:
    """What a part of the last axis is taken from, where it begins and ends, and in which steps."""
    if value is None:
        return None
    node = value.producer
    x = node.operand(0) if node.operands else None
    size = None if x is None or not x.shape else x.shape[-1]
    if x is None or x.shape is None or not isinstance(size, int) or node.graph is not cover.root.graph:
        return None
    last = len(x.shape) - 1
    if node.is_op("Split") and axis_of(node, len(x.shape)) == last and node.has_latest_meaning:
        sizes = [result.shape[-1] if result.shape else None for result in node.results]
        if not all(isinstance(part, int) for part in sizes):
            return None
        cover.nodes[node] = None
        begin = sum(part for part in sizes[: value.index] if isinstance(part, int))
        length = sizes[value.index]
        return (x, begin, begin + length, 1) if isinstance(length, int) else None
    if cover.enter(value, "Slice") is None or axes_of(node, len(x.shape)) != (last,):
        return None
    starts, ends, steps = contents(node, "starts"), contents(node, "ends"), contents(node, "steps")
    if starts is None or ends is None or steps not in (None, (1,), (2,)):
        return None
    start, end, step = starts[0], ends[0], 1 if steps is None else steps[0]
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(step, int):
        return None
    first, stop = (min(max(place + size if place < 0 else place, 0), size) for place in (start, min(end, WHOLE)))
    return x, first, stop, step


def _with_rest(rotation: Rotation) -> None:
    """Take in the elements behind the turned ones, where they are put back after them."""
    cover = rotation.cover
    joined = sole_user(cover.root.result, "Concat")
    if joined is None or len(joined.operands) != 2 or joined.operand(0) is not cover.root.result:
        return
    rank = joined.result.rank
    wider = Cover(joined)
    wider.nodes.update(cover.nodes)
    first, rest = _part(wider, rotation.x), _part(wider, joined.operand(1))
    if first is None or rest is None or first[0] is not rest[0] or axis_of(joined, rank) != (rank or 0) - 1:
        return
    whole = first[0]
    size = whole.shape[-1] if whole.shape else None
    if first[1:] != (0, rotation.turned, 1) or rest[1:] != (rotation.turned, size, 1) or not wider.is_private:
        return
    rotation.cover, rotation.x = wider, whole
