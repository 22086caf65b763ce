"""Whether two models take the same inputs, so that there is something to compare; told from the files alone."""

from __future__ import annotations

from graphopt.ir import TensorType, Value
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import try_load


def input_difference(original: ModelSource, rewritten: ModelSource) -> str:
    """What keeps the inputs of one model from being those of the other; empty where nothing does, or nothing tells.

    Inputs with a default, those that the rewritten model needs no more, and their order do not matter.
    """
    first, second = try_load(original), try_load(rewritten)
    if first is None or second is None:
        return ""
    given = {value.name: value for value in first.inputs}
    needed = [value for value in second.inputs if value.producer.default is None]
    if any(value.name not in given for value in needed):
        names, others = ([value.name or "" for value in graph.inputs] for graph in (first, second))
        return f"the inputs are {', '.join(others) or 'none'}; the original has {', '.join(names) or 'none'}"
    return next(filter(None, (_between(given[value.name], value) for value in needed)), "")


def _between(original: Value, rewritten: Value) -> str:
    """What sets two inputs of one name apart."""
    one, other = original.type, rewritten.type
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return ""
    if one.dtype != other.dtype:
        return f"input '{original.name}' is {other.dtype.name.lower()}; the original has {one.dtype.name.lower()}"
    if one.shape is None or other.shape is None:
        return ""
    if len(one.shape) != len(other.shape):
        return f"input '{original.name}' has rank {len(other.shape)}; the original has {len(one.shape)}"
    for axis, (left, right) in enumerate(zip(one.shape, other.shape, strict=True)):
        if isinstance(left, int) and isinstance(right, int) and left != right:
            return f"axis {axis} of input '{original.name}' has size {right}; the original has {left}"
    return ""
