"""Feeds for examples: ordinary numbers, and the ones that break rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

Feed = dict[str, Any]
_SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 0.5, -2.5, 3e38, -3e38, 1e-7, 65504.0, 1e9)


def feeds_of(model: ModelProto, sizes: Mapping[str, int] | None = None, largest: float | None = None) -> list[Feed]:
    """Seeded feeds for the inputs of a model.

    Args:
        model: The model; only tensor inputs are fed.
        sizes: Sizes of free dims by name; 2 where none is given.
        largest: Finite numbers are cut to this; None leaves them.
    """
    feeds = [
        _feed(model, sizes or {}, kind, seed)
        for seed, kind in enumerate(("normal", "small", "special", "extreme", "zero"))
    ]
    if largest is not None:
        feeds = [{name: _cut(value, largest) for name, value in feed.items()} for feed in feeds]
    return feeds if any(feeds) else [{}]


def _cut(value: Any, largest: float) -> Any:
    if value.dtype.kind != "f":
        return value
    limit = min(largest, float(np.finfo(value.dtype).max))
    cut: Any = np.where(np.isfinite(value), np.clip(value, -limit, limit), value).astype(value.dtype)
    return cut


def _feed(model: ModelProto, sizes: Mapping[str, int], kind: str, seed: int) -> Feed:
    random = np.random.default_rng(seed)
    defaults = {tensor.name for tensor in model.graph.initializer}
    feed: Feed = {}
    for info in model.graph.input:
        if not info.type.HasField("tensor_type"):
            continue
        if info.name in defaults and kind == "small":
            continue  # once with the default, otherwise with something else
        tensor = info.type.tensor_type
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") else sizes.get(dim.dim_param, 2) for dim in tensor.shape.dim
        )
        feed[info.name] = _values(tensor.elem_type, shape, kind, random)
    return feed


def _values(dtype: int, shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Any:
    count = int(np.prod(shape))
    if dtype == TensorProto.STRING:
        return np.array([f"text {value}" for value in random.integers(0, 3, count)], dtype=object).reshape(shape)
    target = np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
    if dtype == TensorProto.BOOL:
        return random.integers(0, 2, shape).astype(bool) if kind != "zero" else np.zeros(shape, bool)
    if target.kind in "iu":
        return _integers(target, shape, kind, random)
    if kind == "zero":
        return np.zeros(shape, target)
    if kind == "special":
        start = int(random.integers(len(_SPECIAL)))
        special = np.resize(np.roll(np.array(_SPECIAL), start), count)
        with np.errstate(over="ignore"):
            return special.reshape(shape).astype(target)
    scale = {"normal": 1.0, "small": 1e-3, "extreme": 1e4}[kind]
    return (random.standard_normal(shape) * scale).astype(target)


def _integers(target: Any, shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Any:
    signed = target.kind == "i"
    if kind == "zero":
        return np.zeros(shape, target)
    if kind == "extreme":
        limits = np.iinfo(target)
        return random.choice(np.array([limits.min, limits.max, 0, 1, limits.max - 1], dtype=target), shape)
    low = -2 if signed and kind == "special" else 0
    return random.integers(low, 4, shape).astype(target)
