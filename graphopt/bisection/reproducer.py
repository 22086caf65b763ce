"""The smallest cut of a model around one rewrite that still shows the difference.

The cut begins as the nodes the rewrite touched, fed with what the model itself computes there, and grows along the
edges until the rewrite, alone, breaks it as it broke the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir import Graph, Node, TensorType
from graphopt.onnxio.cutting import Region, cut_inputs, grown, region
from graphopt.onnxio.signature import select_outputs
from graphopt.tensors import DType, Tensor

Data = Any
_STEPS = (0, 1, 2, 4, 8, 16, 32)
_SMALL_WEIGHT = 64
"""Elements up to which a constant is a parameter rather than a weight, and is kept when weights are stripped."""


def regions(graph: Graph, touched: list[Node]) -> list[Region]:
    """Growing parts of a graph around the touched nodes, smallest first; the last is all of it."""
    parts = [grown(graph, touched, steps) for steps in _STEPS]
    parts.append(dict.fromkeys(graph.nodes()))
    by_size = {len(inside): inside for inside in parts}
    return [region(graph, inside) for inside in by_size.values()]


def name_values(graph: Graph, part: Region) -> None:
    """Give every value at the border of a region a name, so that it can be an input or output."""
    external = dict(zip(graph.outputs, (name for name, _ in graph.details["outputs"]), strict=True))
    for value in (*part.inputs, *part.outputs):
        if not value.name:
            graph.rename(value, external.get(value) or f"value_{value.producer.serial}_{value.index}")


def watch(graph: Graph, part: Region) -> list[str]:
    """Let a graph return what flows into a region, beside its outputs; returns the names."""
    outputs = [name for name, _ in graph.details["outputs"]]
    own = [value for value in part.inputs if value.producer.is_operator]
    extra = [value.name or "" for value in own if value not in graph.outputs]
    if extra:
        select_outputs(graph, [*outputs, *extra])
    return extra


def cut(graph: Graph, part: Region, sample: Mapping[str, Data]) -> None:
    """Reduce a graph to a region; what flows in becomes an input of the type that a sample of it has."""
    inputs = [value.name or "" for value in part.inputs]
    for value in part.inputs:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            continue
        data = sample.get(value.name or "")
        if isinstance(data, np.ndarray):
            graph.retype(value, TensorType(DType.from_numpy(data.dtype), (None,) * data.ndim))
    select_outputs(graph, [value.name or "" for value in part.outputs])
    cut_inputs(graph, inputs)


def strip_weights(graph: Graph, seed: int = 0) -> int:
    """Replace float weights by random numbers of the same spread; returns how many were replaced.

    Nothing of a trained model is left but its structure; parameters of a few elements stay, since rules look at them.
    """
    random, count = np.random.default_rng(seed), 0
    for scope in (graph, *graph.bodies_inside()):
        for node in list(scope.constants()):
            tensor = node.tensor
            if tensor is None or tensor.size <= _SMALL_WEIGHT or not tensor.dtype.is_float or node.is_pinned:
                continue
            old = tensor.numpy().astype(np.float64)
            finite = old[np.isfinite(old)]
            spread, middle = (float(finite.std()), float(finite.mean())) if finite.size else (1.0, 0.0)
            new = random.normal(middle, spread or 1.0, tensor.shape).astype(tensor.dtype.numpy)
            fresh = scope.make_constant(Tensor.from_numpy(new, tensor.dtype))
            scope.insert(fresh, rank=node.rank)
            name = node.results[0].name
            scope.replace_uses(node.results[0], fresh.result)
            if fresh.result.name is None:
                scope.rename(fresh.result, name)
            if not node.is_used:
                scope.erase(node)
            count += 1
    return count


def write_inputs(path: Path, values: Mapping[str, Data]) -> bool:
    """Write inputs as `.npz`; False if one of them is no array."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    if len(arrays) < len(values):
        return False
    np.savez(path, **arrays)  # type: ignore[arg-type]  # the stubs take the keywords for its options
    return True


def quietly(step: Callable[[], str]) -> str:
    """What a step says, or nothing if it fails: a cut that cannot be made is not the one looked for."""
    try:
        return step()
    except GraphoptError:
        return ""
