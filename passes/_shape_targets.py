"""What a shape operand must say: spellings that give the same result, from the most constant to the one that is there.

A target is a tuple of numbers, expressions over input dims, and None for what is unknown. Of several spellings of one
result those with fewer expressions need less to be computed at run time. None is stricter than the original: a size
that may be 0 is no neighbour of a -1 unless the original had one, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphopt import Expr, Node, Value, symbol
from passes._proofs import Dim, is_given, same_dim

Target = tuple[Dim, ...]
LAST = 2**63 - 1
"""The end of a slice that reaches to the end of its axis."""


def spellings(node: Node, position: int) -> list[Target]:
    """Targets an operand may hold instead of what it holds, best first; the original is not among them."""
    function = _FAMILIES.get((node.op_type, position))
    if function is None or node.domain != "" or not node.has_latest_meaning:
        return []
    return function(node)


def target_of(value: Value | None) -> Target | None:
    """What a vector holds, None in it for what is unknown; None if not even its length is known."""
    if value is None or value.shape is None or len(value.shape) != 1:
        return None
    (size,) = value.shape
    if value.const is not None:
        return tuple(int(item) for item in value.const.numpy().tolist()) if value.const.size <= 64 else None
    if value.elements is not None:
        return value.elements
    return (None,) * size if isinstance(size, int) and size <= 64 else None


def is_number(dim: Dim) -> bool:
    """True for a dim that is a number."""
    return isinstance(dim, int)


def is_constant(target: Target) -> bool:
    """True if nothing of a target has to be computed."""
    return all(map(is_number, target))


# --- Reshape


def _reshape(node: Node) -> list[Target]:
    """Numbers before 0, 0 before -1. Where the original takes 0 literally, only constants, which do not."""
    value, result = node.operand(0), node.results[0].shape
    old = None if value is None else value.shape
    asked = target_of(node.operand(1))
    if result is None or asked is None or len(asked) != len(result):
        return []
    is_literal = bool(node.param("allowzero"))
    base: list[Dim] = []
    for place, dim in enumerate(result):
        if isinstance(dim, int) and dim > 0:
            base.append(dim)
        elif _copies(old, result, place):
            base.append(0)
        else:
            base.append(None if is_literal else asked[place])
    if any(is_number(size) and size == 0 and not _copies(old, result, place) for place, size in enumerate(base)):
        return []
    found = [tuple(base)]
    left = [place for place, size in enumerate(base) if not is_number(size)]
    if -1 not in base:
        free = None if is_literal else _free(asked)
        inferred = [
            tuple(-1 if other == place else size for other, size in enumerate(base))
            for place in left
            if all(_is_nonzero(result, other, free) for other in range(len(result)) if other != place)
        ]
        # The last is most often what remains; where one is enough, it is put first.
        found = inferred[::-1] + found if len(left) == 1 else found + inferred[::-1]
    return [target for target in found if target != asked and (not is_literal or is_constant(target))]


def _copies(old: tuple[Dim, ...] | None, result: tuple[Dim, ...], place: int) -> bool:
    return old is not None and place < len(old) and same_dim(old[place], result[place])


def _free(asked: Target) -> int | None:
    return next((place for place, size in enumerate(asked) if isinstance(size, int) and size == -1), None)


def _is_nonzero(result: tuple[Dim, ...], place: int, free: int | None) -> bool:
    """True if a dim is not 0 on any run that succeeds: beside a -1 of the original none can be."""
    if free is not None and place != free:
        return True
    dim = result[place]
    return dim is not None and symbol.is_nonzero(dim)


# --- Expand, Tile


def _expand(node: Node) -> list[Target]:
    """1 for what is there already."""
    value, result = node.operand(0), node.results[0].shape
    asked = target_of(node.operand(1))
    if value is None or value.shape is None or result is None or asked is None or len(asked) > len(result):
        return []
    old = (1,) * (len(result) - len(value.shape)) + value.shape
    skipped = len(result) - len(asked)
    found: list[Dim] = []
    for size, dim, before in zip(asked, result[skipped:], old[skipped:], strict=True):
        found.append(1 if same_dim(dim, before) else dim if is_number(dim) else size)
    return [tuple(found)] if tuple(found) != asked else []


def _tile(node: Node) -> list[Target]:
    """1 for an axis that stays as it is."""
    value, result = node.operand(0), node.results[0].shape
    asked = target_of(node.operand(1))
    if value is None or value.shape is None or result is None or asked is None or len(asked) != len(result):
        return []
    found: list[Dim] = []
    for size, dim, before in zip(asked, result, value.shape, strict=True):
        if same_dim(dim, before):
            found.append(1)
        elif isinstance(dim, int) and isinstance(before, int) and before > 0 and dim % before == 0:
            found.append(dim // before)
        else:
            found.append(size)
    return [tuple(found)] if tuple(found) != asked else []


# --- Slice


def _starts(node: Node) -> list[Target]:
    return _bounds(node, 1)


def _ends(node: Node) -> list[Target]:
    return _bounds(node, 2)


def _bounds(node: Node, position: int) -> list[Target]:
    """Bounds counted from the end, or left out."""
    value, asked = node.operand(0), target_of(node.operand(position))
    if value is None or value.shape is None or asked is None:
        return []
    axes = target_of(node.operand(3)) if is_given(node, "axes") else tuple(range(len(asked)))
    steps = target_of(node.operand(4)) if is_given(node, "steps") else (1,) * len(asked)
    if axes is None or steps is None or not len(axes) == len(steps) == len(asked):
        return []
    found: list[Dim] = []
    for bound, axis, step in zip(asked, axes, steps, strict=True):
        is_known = isinstance(axis, int) and -len(value.shape) <= axis < len(value.shape) and is_number(step)
        if not is_known or not isinstance(bound, Expr) or not isinstance(step, int) or step <= 0:
            found.append(bound)
            continue
        assert isinstance(axis, int)
        found.append(_bound(bound, value.shape[axis]))
    return [tuple(found)] if tuple(found) != asked else []


def _bound(bound: Expr, size: Dim) -> Dim:
    """A bound of a slice that runs forwards."""
    if size is None:
        return bound
    if symbol.always_at_most(size, bound):
        return LAST
    low, high = symbol.bounds(bound - size)
    if low is None or low != high:
        return bound
    # Counted from the end, unless that could be mistaken where the axis is short.
    return low if low == -1 or symbol.is_nonnegative(bound) else bound


# --- Resize


def scales_of(node: Node) -> list[float] | None:
    """Scales that give a Resize the sizes it asks for, computed and rounded as the runtime does; None if none do."""
    value, result = node.operand(0), node.results[0].shape
    if node.op_type != "Resize" or not node.has_latest_meaning or node.operand(3) is None:
        return None
    if value is None or value.shape is None or result is None or len(value.shape) != len(result):
        return None
    if node.param("axes") is not None or node.param("keep_aspect_ratio_policy") not in (None, "stretch"):
        return None
    if node.param("coordinate_transformation_mode") == "tf_crop_and_resize" or node.param("antialias"):
        return None
    asked = node.operand(3)
    if asked is None or asked.shape != (len(result),):
        return None
    found = []
    for before, after in zip(value.shape, result, strict=True):
        if same_dim(before, after):
            found.append(1.0)
            continue
        if not isinstance(before, int) or not isinstance(after, int) or before <= 0 or after <= 0:
            return None
        scale = np.float32(after) / np.float32(before)
        if int(scale * np.float32(before)) != after:
            return None
        found.append(float(scale))
    return found


_FAMILIES: dict[tuple[str, int], Callable[[Node], list[Target]]] = {
    ("Reshape", 1): _reshape,
    ("Expand", 1): _expand,
    ("Tile", 1): _tile,
    ("Slice", 1): _starts,
    ("Slice", 2): _ends,
}
