"""The smallest cut of a model around one rewrite that still shows the difference.

The cut begins as the nodes the rewrite touched, fed with what the model itself computes there, and grows along the
edges until the rewrite, alone, breaks it as it broke the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir import Graph, Node, TensorType, Value
from graphopt.ir.structure import reads_from_outside
from graphopt.onnxio.cutting import cut_inputs
from graphopt.onnxio.signature import select_outputs
from graphopt.tensors import DType, Tensor

Data = Any
_STEPS = (0, 1, 2, 4, 8, 16, 32)
_SMALL_WEIGHT = 64
"""Elements up to which a constant is a parameter rather than a weight, and is kept when weights are stripped."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a main graph.

    Attributes:
        nodes: Its operators, in topological order.
        inputs: What flows in, constants not counted.
        outputs: What flows out.
    """

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]


def regions(graph: Graph, touched: list[Node]) -> Iterator[Region]:
    """Growing parts of a graph around the touched nodes, smallest first; the last is all of it."""
    inside = dict.fromkeys(touched)
    rim, done, size = list(inside), 0, -1
    for steps in _STEPS:
        for _ in range(steps - done):
            near = (node for member in rim for node in (*graph.nx.predecessors(member), *graph.nx.successors(member)))
            rim = list(dict.fromkeys(node for node in near if node.is_operator and node not in inside))
            inside.update(dict.fromkeys(rim))
        done = steps
        if len(inside) != size:
            size = len(inside)
            yield _region(graph, inside)
    if size < graph.operator_count:
        yield _region(graph, dict.fromkeys(graph.nodes()))


def _region(graph: Graph, inside: Mapping[Node, None]) -> Region:
    order = [node for node in graph.order() if node in inside]
    read = dict.fromkeys(value for node in order for value in _read_by(node))
    given = [value for node in order for value in node.results if _is_read_outside(graph, value, inside)]
    return Region(
        order,
        [value for value in read if value.producer not in inside and not value.producer.is_constant],
        given,
    )


def _read_by(node: Node) -> Iterator[Value]:
    yield from (value for value in node.operands if value is not None)
    for body in node.bodies.values():
        yield from (value for _, _, value in reads_from_outside(body) if value.producer.graph is node.graph)


def _is_read_outside(graph: Graph, value: Value, inside: Mapping[Node, None]) -> bool:
    for user, _ in value.uses:
        holder = user
        while holder.graph is not graph:
            assert holder.graph is not None
            assert holder.graph.owner is not None
            holder = holder.graph.owner
        if holder not in inside:
            return True
    return False


def name_values(graph: Graph, region: Region) -> None:
    """Give every value at the border of a region a name, so that it can be an input or output."""
    external = dict(zip(graph.outputs, (name for name, _ in graph.details["outputs"]), strict=True))
    for value in (*region.inputs, *region.outputs):
        if not value.name:
            graph.rename(value, external.get(value) or f"value_{value.producer.serial}_{value.index}")


def watch(graph: Graph, region: Region) -> list[str]:
    """Let a graph return what flows into a region, beside its outputs; returns the names."""
    outputs = [name for name, _ in graph.details["outputs"]]
    own = [value for value in region.inputs if value.producer.is_operator]
    extra = [value.name or "" for value in own if value not in graph.outputs]
    if extra:
        select_outputs(graph, [*outputs, *extra])
    return extra


def cut(graph: Graph, region: Region, sample: Mapping[str, Data]) -> None:
    """Reduce a graph to a region; what flows in becomes an input of the type that a sample of it has."""
    inputs = [value.name or "" for value in region.inputs]
    for value in region.inputs:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            continue
        data = sample.get(value.name or "")
        if isinstance(data, np.ndarray):
            graph.retype(value, TensorType(DType.from_numpy(data.dtype), (None,) * data.ndim))
    select_outputs(graph, [value.name or "" for value in region.outputs])
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
