"""Holds what was inferred of a model against what ONNX Runtime computes."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from graphopt.analysis import Inference
from graphopt.ir import Dim, Expr, Graph, SequenceType, Symbol, TensorType, Type, Value
from graphopt.ir.symbol import evaluate
from graphopt.onnxio import load
from graphopt.tensors import DType

Feeds = dict[str, Any]
SHARED = Path(os.environ.get("GRAPHOPT_SHARED", Path(__file__).parents[3] / "shared"))


@dataclass
class Outcome:
    """What a comparison found."""

    lies: list[str] = field(default_factory=list)
    compared: int = 0
    dims: int = 0
    failed: str = ""
    """Why the runtime did not run the model, if so."""


def session(model: ModelProto) -> Any:
    """A session that changes nothing of the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def exposed(model: ModelProto) -> ModelProto:
    """The model with every value of the main graph as an output."""
    copy = ModelProto()
    copy.CopyFrom(model)
    have = {output.name for output in copy.graph.output}
    for node in copy.graph.node:
        for name in node.output:
            if name and name not in have:
                have.add(name)
                copy.graph.output.append(ValueInfoProto(name=name))
    return copy


def inferred(model: ModelProto, *, trust: bool = False) -> Graph:
    """The model's graph after inference."""
    graph = load(model)
    inference = Inference(graph.model, trust_dim_names=trust)
    inference.run()
    assert not inference.conflicts, inference.conflicts
    return graph


def values_by_name(graph: Graph) -> dict[str, Value]:
    """The results of the operators of a graph."""
    return {value.name: value for node in graph.nodes() for value in node.results if value.name}


def compare(graph: Graph, runtime: Any, feeds: Feeds) -> Outcome:
    """Run a model whose values are all exposed, and compare every one with what is claimed of it."""
    outcome = Outcome()
    names = [output.name for output in runtime.get_outputs()]
    taken = {entry.name for entry in runtime.get_inputs()}
    try:
        results = runtime.run(names, {name: feed for name, feed in feeds.items() if name in taken})
    except Exception as error:
        outcome.failed = str(error)
        return outcome
    numbers = dict(_input_dims(graph, feeds))
    values = values_by_name(graph)
    for name, result in zip(names, results, strict=True):
        if name in values:
            outcome.compared += 1
            outcome.dims += check(values[name], result, numbers, outcome.lies)
    return outcome


def _input_dims(graph: Graph, feeds: Feeds) -> Iterator[tuple[Symbol, int]]:
    for value in graph.inputs:
        if value.name is None or value.shape is None:
            continue
        given = feeds.get(value.name)
        if given is None and value.producer.default is not None:
            given = value.producer.default.numpy()
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, Symbol) and given is not None:
                yield dim, given.shape[axis]


def check(value: Value, result: Any, numbers: Mapping[Symbol, int], lies: list[str]) -> int:
    """Compare one value; returns how many dims and elements were told rightly."""
    told = _check_type(value.type, result, numbers, lies, str(value))
    if value.elements is not None and isinstance(result, np.ndarray):
        actual = result.reshape(-1)
        if len(value.elements) != len(actual):
            lies.append(f"{value}: {len(value.elements)} elements claimed, {len(actual)} found")
            return told
        for claim, found in zip(value.elements, actual.tolist(), strict=True):
            number = number_of(claim, numbers)
            if number is None:
                continue
            told += 1
            if number != found or (found == 0 and np.signbit(found)):
                lies.append(f"{value}: element {claim} = {number} claimed, {found} found")
    return told


def _check_type(type: Type | None, result: Any, numbers: Mapping[Symbol, int], lies: list[str], who: str) -> int:
    if isinstance(type, SequenceType) and isinstance(result, list):
        return sum(_check_type(type.element, item, numbers, lies, who) for item in result)
    if not isinstance(type, TensorType) or not isinstance(result, np.ndarray | np.generic):
        return 0
    actual = DType.from_numpy(result.dtype)
    # The Python interface gives bfloat16 and float8 in other types.
    if actual is not type.dtype and type.dtype.value <= DType.COMPLEX128 and type.dtype is not DType.BFLOAT16:
        lies.append(f"{who}: {type.dtype.name} claimed, {actual.name} found")
    if type.shape is None:
        return 0
    if len(type.shape) != result.ndim:
        lies.append(f"{who}: rank {len(type.shape)} claimed, {result.ndim} found")
        return 0
    told = 0
    for axis, (claim, found) in enumerate(zip(type.shape, result.shape, strict=True)):
        number = number_of(claim, numbers)
        told += number is not None
        if number is not None and number != found:
            lies.append(f"{who}: dim {axis} {claim} = {number} claimed, {found} found ({dict(numbers)})")
    return told


def number_of(claim: Dim, numbers: Mapping[Symbol, int]) -> int | None:
    """What a claim says of this run; None where it says nothing."""
    if not isinstance(claim, Expr):
        return claim
    try:
        return evaluate(claim, numbers)
    except ValueError:
        return None


# --- shared models


@dataclass(frozen=True)
class Case:
    """A model and what to feed it."""

    name: str
    inputs: tuple[dict[str, Any], ...]
    path: Path
    member: str | None = None

    def model(self) -> ModelProto:
        """The model, in memory."""
        if self.member is None:
            return onnx.load(self.path)
        with zipfile.ZipFile(self.path) as archive:
            return onnx.load(io.BytesIO(archive.read(self.member)))


def shared_cases(archives: bool) -> list[Case]:
    """The shared models, or the members of the shared archives, that the runtime runs."""
    folder = SHARED / "models"
    if not (folder / "models.json").exists():
        return []
    if not archives:
        entries = json.loads((folder / "models.json").read_text())
        return [Case(e["file"], tuple(e["inputs"]), folder / e["file"]) for e in entries if e["runnable"]]
    index = json.loads((folder / "zip_index.json").read_text())
    return [
        Case(f"{archive}:{e['member']}", tuple(e["inputs"]), folder / archive, e["member"])
        for archive, content in index.items()
        for e in content["members"]
        if e["runnable"] and e["inputs"] is not None
    ]


def feeds_for(model: ModelProto, inputs: tuple[dict[str, Any], ...], change: int | None, seed: int = 0) -> Feeds:
    """Feeds as the manifest says, with free dims resized.

    Args:
        model: The model, for the names of dims.
        inputs: The manifest's entries.
        change: What to add to every free dim (not below 0); None sets each of them to 1.
        seed: For the random numbers.
    """
    rng = np.random.RandomState(seed)
    declared = {value.name: value.type.tensor_type for value in model.graph.input}
    feeds: Feeds = {}
    for entry in inputs:
        shape = list(entry["shape"])
        dims = declared[entry["name"]].shape.dim if entry["name"] in declared else []
        for axis, dim in enumerate(dims[: len(shape)]):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                shape[axis] = 1 if change is None else max(shape[axis] + change, 0)
        feeds[entry["name"]] = _filled(entry, shape, rng)
    return feeds


def _filled(entry: dict[str, Any], shape: list[int], rng: np.random.RandomState) -> Any:
    generator, dtype = entry["gen"], entry["dtype"]
    if generator == "str" or dtype in ("str", "string", "object"):
        return np.full(shape, "a", dtype=object)
    kind = np.dtype(dtype)
    if generator == "randn":
        return np.asarray(0.5 * rng.standard_normal(shape)).astype(kind)
    if generator.startswith("randint"):
        low, high = generator[8:-1].split(",")
        return rng.randint(int(low), int(high), shape).astype(kind)
    if generator.startswith("const:"):
        return np.full(shape, float(generator[6:])).astype(kind)
    if generator == "arange":
        return np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    return (rng.randint(0, 2, shape) > 0).astype(kind)
