"""Drawing values: random numbers of a dtype and shape that respect a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.runtime.roles import Role


def draw(
    rng: np.random.Generator,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    role: Role | None,
    style: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> np.ndarray[Any, Any]:
    """Random values of a dtype and shape that respect a role."""
    if dtype.kind == "O":
        if role is not None and role.choices is not None:
            texts = np.array(role.choices, dtype=object)
            return np.asarray(texts[rng.integers(0, len(texts), shape)], dtype=object)
        words = np.array(["a", "b", "hello", "World", "", "0", "1", "2.5", "graph opt", "é"], dtype=object)
        return words[rng.integers(0, len(words), shape)].reshape(shape) if shape else np.array(words[2], dtype=object)
    if role is not None and role.make is not None and style in ("normal", "edge"):
        made = role.make(shape, shapes, rng)
        if made is not None:
            return np.asarray(made).astype(dtype)
    if dtype == np.bool_:
        return {"ones": np.ones, "zeros": np.zeros}.get(style, lambda s, d: rng.integers(0, 2, s).astype(d))(
            shape, np.bool_
        )
    if style == "ones":
        return _clip(np.ones(shape), role, shapes).astype(dtype)
    if style == "zeros":
        return np.zeros(shape).astype(dtype)
    if role is not None and role.choices is not None and not isinstance(role.choices[0], str):
        return _choices(rng, shape, role.choices).astype(dtype)
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return _integers(rng, dtype, shape, role, style, shapes)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return _floats(rng, dtype, shape, role, style)


def _choices(rng: np.random.Generator, shape: tuple[int, ...], choices: tuple[float, ...]) -> np.ndarray[Any, Any]:
    """Random picks; a mask keeps its first place at the first choice, so that nothing is masked out whole."""
    other = rng.random(shape) < (0.5 if not shape else 0.25)
    picked = np.array(np.asarray(choices)[other.astype(int) * rng.integers(0, len(choices), shape)])
    if picked.ndim and picked.shape[-1]:
        picked[..., 0] = choices[0]
    return np.asarray(picked)


def _limits(role: Role | None, shapes: Mapping[str, tuple[int, ...]]) -> tuple[float | None, float | None]:
    return role.limits(shapes) if role is not None else (None, None)


def _clip(
    values: np.ndarray[Any, Any], role: Role | None, shapes: Mapping[str, tuple[int, ...]]
) -> np.ndarray[Any, Any]:
    low, high = _limits(role, shapes)
    return np.clip(values, low, high) if low is not None or high is not None else values


def _integers(
    rng: np.random.Generator,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    role: Role | None,
    style: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> np.ndarray[Any, Any]:
    low, high = _limits(role, shapes)
    if style == "small":
        low, high = max(0, low or 0), min(1, 1 if high is None else high)
    if low is None:
        low = 0
        if high is None and style in ("normal", "edge") and dtype.kind == "i":
            low = -128 if dtype.itemsize == 1 else -6
    if high is None:
        high = (low if low == -128 else 0) + {
            "int8": 255,
            "uint8": 255,
            "int4": 7,
            "uint4": 15,
            "int2": 1,
            "uint2": 3,
        }.get(dtype.name, 9)
    if high < low:
        high = low
    values = rng.integers(int(low), int(high) + 1, shape)
    if style == "edge" and values.size > 1:
        flat = values.reshape(-1)
        flat[0], flat[-1] = int(low), int(high)
    return np.asarray(values).astype(dtype)


def _floats(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], role: Role | None, style: str
) -> np.ndarray[Any, Any]:
    low, high = (role.low, role.high) if role is not None else (None, None)
    if style == "edge" and role is not None and role.note == "positive":
        low = high = None
    if low is not None or high is not None:
        low = float(high or 0.0) - 1.0 if low is None else low
        high = float(low) + 1.0 if high is None else high
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype)
    if style == "small":
        return np.asarray(rng.uniform(0.0, 1.0, shape)).astype(dtype)
    values = np.asarray((40.0 if style == "large" else 0.5) * rng.standard_normal(shape))
    if style == "edge" and values.size:
        special = np.array([0.0, -0.0, 1.0, -1.0, 8.0, -8.0, 1e-3, -1e-3, 0.5, 100.0])
        where = rng.random(values.shape) < 0.4
        values = np.where(where, special[rng.integers(0, len(special), values.shape)], values)
    return np.asarray(values).astype(dtype)
