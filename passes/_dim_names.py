"""Where taking dims of one declared name to be equal, as `--trust-dim-names` does, would prove what is missing."""

from __future__ import annotations

from typing import Final

from graphopt import symbol
from passes._proofs import Dim

_HINT: Final = "; --trust-dim-names, which takes dims that inputs declare with one name to be equal, would tell"


def as_named(dim: Dim) -> Dim:
    """A dim as it is where all dims of one name are equal."""
    if dim is None or isinstance(dim, int):
        return dim
    return symbol.substitute(dim, {item: symbol.Symbol(item.label, item.label) for item in symbol.symbols(dim)})


def hint_for_sizes(*dims: Dim) -> str:
    """What to add to a remark that dims are unknown: the option, where it would make numbers of all of them."""
    is_open = any(not isinstance(dim, int) for dim in dims)
    return _HINT if is_open and all(isinstance(as_named(dim), int) for dim in dims) else ""


def hint_for_pairs(*pairs: tuple[Dim, Dim]) -> str:
    """What to add to a remark that dims may differ: the option, where it would make each pair equal.

    Dims of the pairs that are 1, and so may be stretched, count as equal to any.
    """
    named = [(as_named(left), as_named(right)) for left, right in pairs]
    if any(left is None or right is None for left, right in named):
        return ""
    is_told = all(1 in (left, right) or _are_equal(left, right) for left, right in named)
    is_open = any(1 not in pair and not _are_equal(*pair) for pair in pairs)
    return _HINT if is_told and is_open else ""


def _are_equal(left: Dim, right: Dim) -> bool:
    return left is not None and right is not None and symbol.always_equal(left, right)
