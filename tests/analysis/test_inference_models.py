"""Whole models: every value of the main graph, at several sizes, is what inference said it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from inference_checks import Case, Feeds, compare, exposed, feeds_for, inferred, session, shared_cases
from onnx import ModelProto

from graphopt.ir import Graph

OWN = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))
SHARED = shared_cases(archives=False)
ARCHIVED = shared_cases(archives=True)
HUGE = ("bias_softmax_fusion",)
"""Members whose feeds have millions of elements."""


def hold_against_runtime(model: ModelProto, feeds: list[Feeds], trust: bool = False) -> tuple[Graph, int]:
    """Compare every value of a model on each feed; returns the graph and on how many feeds it ran."""
    graph = inferred(model, trust=trust)
    try:
        runtime = session(exposed(model))
    except Exception:  # a value that cannot be an output
        runtime = session(model)
    ran = 0
    for feed in feeds:
        outcome = compare(graph, runtime, feed)
        assert not outcome.lies, outcome.lies[:3]
        ran += not outcome.failed
    return graph, ran


def share_known(graph: Graph) -> float:
    """The share of values whose dims are all numbers or expressions."""
    values = [value for node in graph.nodes() for value in node.results]
    known = [value for value in values if value.shape is not None and None not in value.shape]
    return len(known) / max(len(values), 1)


def simple_feeds(model: ModelProto, sizes: dict[str, int], seed: int) -> Feeds:
    """Small numbers in every input, with the sizes given to dims by name."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    names = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in names:
            continue
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [dim.dim_value or sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = np.asarray(rng.integers(0, 2, shape)).astype(kind)
    return feeds


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_the_models_of_this_repository(path: Path) -> None:
    model = onnx.load(path)
    names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    feeds = []
    for seed, size in enumerate((32, 1, 2, 48, 64, 96)):
        feeds.append(simple_feeds(model, dict.fromkeys(names, size), seed))
        feeds.append(simple_feeds(model, {name: size + place for place, name in enumerate(sorted(names))}, seed))
    graph, ran = hold_against_runtime(model, feeds)
    assert ran
    assert share_known(graph) == 1 or any(node.bodies for node in graph.nodes())


@pytest.mark.skipif(not SHARED, reason="no shared models here")
@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_shared_models(case: Case) -> None:
    model = case.model()
    changes: tuple[int | None, ...] = (0, 1, None)
    feeds = [feeds_for(model, case.inputs, change) for change in changes]
    _, ran = hold_against_runtime(model, feeds)
    assert ran
    alike = [feed for feed in feeds if sizes_agree(model, feed)]
    if alike:
        hold_against_runtime(model, alike, trust=True)


def sizes_agree(model: ModelProto, feed: Feeds) -> bool:
    """True if dims of one name have one size."""
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        array = feed.get(value.name)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim if array is not None else ()):
            if dim.dim_param and sizes.setdefault(dim.dim_param, array.shape[axis]) != array.shape[axis]:
                return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not ARCHIVED, reason="no shared models here")
@pytest.mark.parametrize("part", range(8))
def test_shared_archives(part: int) -> None:
    for case in ARCHIVED[part::8]:
        if any(name in case.name for name in HUGE):
            continue
        model = case.model()
        hold_against_runtime(model, [feeds_for(model, case.inputs, change) for change in (0, 1, None, 3)])
