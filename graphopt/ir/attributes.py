"""Attribute values: plain Python, checked where they enter."""

from __future__ import annotations

from typing import Any

from graphopt.errors import EditError
from graphopt.schema import RefAttribute, UnreadAttribute
from graphopt.tensors import Tensor

_SCALARS = (int, float, str, bytes, Tensor)


def checked_attribute(name: str, value: Any) -> Any:
    """An attribute's value in IR form: numpy numbers and bools as Python numbers, lists as tuples.

    Raises:
        EditError: ONNX has no such attribute value.
    """
    if isinstance(value, (RefAttribute, UnreadAttribute)):
        return value
    if not isinstance(value, _SCALARS) and hasattr(value, "tolist"):
        value = value.tolist()  # numpy's
    if isinstance(value, (list, tuple)):
        return tuple(_checked_item(name, item) for item in value)
    return _checked_item(name, value)


def _checked_item(name: str, value: Any) -> Any:
    if not isinstance(value, _SCALARS) and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, int):
        return int(value)  # a bool is no attribute value of its own, nor is a member of an enumeration
    if isinstance(value, float):
        return float(value)
    if isinstance(value, _SCALARS):
        return value
    raise EditError(f"attribute '{name}' cannot hold a {type(value).__name__}; use numbers, strings or a Tensor")


def is_same_attribute(old: Any, new: Any) -> bool:
    """True if setting `new` over `old` changes nothing; 1 and 1.0 are different values, tensors compare by identity."""
    if old is new:
        return True
    if type(old) is not type(new) or old is None:
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(is_same_attribute(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, float):
        return repr(old) == repr(new)  # tells 0.0 from -0.0, and a NaN is itself
    return bool(old == new)
