"""Feeds of values that nobody means to feed: NaN, infinities, the ends of the range, ties, the last id of a table.

Special floats stand among the ordinary ones of a feed that works, so that most of an output still has to be right.
Integers and masks keep to their role: past it a model fails, and that proves nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphopt.runtime.compare import is_float
from graphopt.runtime.feeds import Feed, FeedMaker
from graphopt.runtime.roles import Role
from graphopt.runtime.values import Data

Array = np.ndarray[Any, Any]

PREFIX = "adversarial: "
# Feeds at which a sum or product may leave the range of its dtype, at one place in one order and at another in another.
OVERFLOWING = (PREFIX + "largest numbers",)
_SHARE = 0.2


def adversarial_feeds(maker: FeedMaker, base: Feed) -> Iterator[Feed]:
    """Adversarial variants of a feed that works.

    Args:
        maker: Knows the model's inputs and their roles.
        base: The feed.
    """
    makes: dict[str, Callable[[Array, np.random.Generator], Array]] = {
        "NaN": _mixed(lambda info: [np.nan]),
        "infinities": _mixed(lambda info: [np.inf, -np.inf]),
        "zeros and subnormals": _mixed(_tiny),
        "largest numbers": _mixed(lambda info: [float(info.max), -float(info.max)]),
        "all equal": lambda values, rng: np.full_like(values, values.reshape(-1)[0]),
        "all zero": lambda values, rng: np.zeros_like(values),
        "ascending": lambda values, rng: np.sort(values.reshape(-1)).reshape(values.shape),
        "descending": lambda values, rng: np.sort(values.reshape(-1))[::-1].reshape(values.shape).copy(),
    }
    for label, make in makes.items():
        values = {name: _float(maker, name, value, make, label) for name, value in base.values.items()}
        if any(value is not base.values[name] for name, value in values.items()):
            yield Feed(PREFIX + label, values)
    shapes = {name: value.shape for name, value in base.values.items() if isinstance(value, np.ndarray)}
    for label, end in (("smallest integers", 0), ("largest integers", 1)):
        values = dict(base.values)
        for name, value in base.values.items():
            limits = _integer_limits(maker, name, value, shapes)
            if limits is not None:
                values[name] = np.full_like(value, limits[end])
        if any(value is not base.values[name] for name, value in values.items()):
            yield Feed(PREFIX + label, values)
    for choice in (0, 1):
        values = dict(base.values)
        for name, value in base.values.items():
            if _is_mask(maker, name, value) and isinstance(value, np.ndarray):
                values[name] = np.full_like(value, choice)
        if any(value is not base.values[name] for name, value in values.items()):
            yield Feed(f"{PREFIX}masks all {choice}", values)


def _mixed(specials: Callable[[Any], list[float]]) -> Callable[[Array, np.random.Generator], Array]:
    def make(values: Array, rng: np.random.Generator) -> Array:
        numbers = np.array(specials(np.finfo(values.dtype)))
        count = min(values.size, max(len(numbers), int(_SHARE * values.size)))
        result = values.copy().reshape(-1)
        with np.errstate(all="ignore"):
            result[rng.permutation(values.size)[:count]] = np.resize(numbers, count).astype(values.dtype)
        return result.reshape(values.shape)

    return make


def _tiny(info: Any) -> list[float]:
    return [0.0, -0.0, float(info.smallest_subnormal), -float(info.smallest_subnormal), float(info.tiny) / 3]


def _role(maker: FeedMaker, name: str) -> Role | None:
    return maker.roles.get(name)


def _float(
    maker: FeedMaker, name: str, value: Data, make: Callable[[Array, np.random.Generator], Array], label: str
) -> Data:
    """The value, or an adversarial one where the input is a float that may be anything."""
    role = _role(maker, name)
    plain = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype.itemsize > 1 and value.size
    if not plain or name in maker.options.ranges:
        return value
    if role is not None and (role.make is not None or role.choices is not None or _is_bounded(role)):
        return value
    rng = np.random.default_rng([maker.options.seed & 0xFFFFFFFF, zlib.crc32(f"{label} {name}".encode())])
    return make(value, rng)


def _is_bounded(role: Role) -> bool:
    return role.note != "positive" and (role.low is not None or role.high is not None or bool(role.extents))


def _integer_limits(
    maker: FeedMaker, name: str, value: Data, shapes: dict[str, tuple[int, ...]]
) -> tuple[int, int] | None:
    """The ends of the range of an integer input, where its role, the user or a byte sets them."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or not value.size:
        return None
    if name in maker.options.ranges:
        low, high = maker.options.ranges[name]
        return int(low), int(high)
    role = _role(maker, name)
    if role is None and value.dtype.itemsize == 1 and not _is_mask(maker, name, value):  # pixels and the like
        return int(np.iinfo(value.dtype).min), int(np.iinfo(value.dtype).max)
    if role is None or role.make is not None or role.choices is not None:
        return None
    bounds = role.limits(shapes)
    if bounds[0] is None or bounds[1] is None or bounds[1] < bounds[0]:
        return None
    return int(bounds[0]), int(bounds[1])


def _is_mask(maker: FeedMaker, name: str, value: Data) -> bool:
    if not isinstance(value, np.ndarray) or not value.size or name in maker.options.ranges:
        return False
    role = _role(maker, name)
    if role is not None and role.choices is not None:
        return set(role.choices) == {0, 1}
    return value.dtype == np.bool_ or (value.dtype.kind in "iu" and "mask" in name.lower())


def where_defined(original: Data, other: Data) -> Data:
    """What is compared of a result at a feed at which sums and products overflow.

    A class of rewrites that reorders sums may overflow where the original does not by way of it, or the other way
    round; that is declared, and the same as a fault only where the original has a number. So where the original is not
    finite, its value stands for the result's.
    """
    if not (isinstance(original, np.ndarray) and isinstance(other, np.ndarray)):
        return other
    if original.shape != other.shape or original.dtype != other.dtype or not is_float(original.dtype):
        return other
    wide = original.astype(np.complex128 if original.dtype.kind == "c" else np.float64)
    return np.where(np.isfinite(wide), other, original).astype(original.dtype)
