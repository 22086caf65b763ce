"""Runs passes over small models in ONNX's text syntax and holds the results against the originals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, checker, parser

from graphopt import Context, Graph, load, to_proto
from graphopt.analysis.inference import Inference
from graphopt.ir import Journal, check_model
from graphopt.pipeline import MetaOptimizer, Options, Registry, Selection
from graphopt.pipeline.passes import Settled, pass_of_module
from graphopt.runtime import judge

Feeds = Sequence[Mapping[str, Any]]


def model_of(text: str, *, opset: int = 18, ir_version: int = 9, imports: str = "") -> ModelProto:
    """A valid model; `imports` adds opset imports, spelt as in ONNX's text syntax."""
    extra = f", {imports}" if imports else ""
    model = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{extra}]>\n{text}')
    checker.check_model(model)
    return model


def run(model: ModelProto | Graph, *modules: ModuleType, keep: Sequence[str] = (), level: str = "exact") -> ModelProto:
    """The model after the passes in the given modules, which must reach a fixed point, valid and able to be undone."""
    graph = load(model) if isinstance(model, ModelProto) else model
    passes = [pass_of_module(module, module.__name__.rsplit(".", 1)[-1]) for module in modules]
    options = Options(level=level, keep=frozenset(keep))
    report = MetaOptimizer(Registry(passes), Selection(strict=True)).run(
        graph.model, Context(Inference(graph.model), options)
    )
    assert report.stopped_by == "fixed point"
    check_model(graph.model)
    result = to_proto(graph)
    if isinstance(model, ModelProto):
        _check_undo(model, passes, options)
        again = load(result)
        further = MetaOptimizer(Registry(passes)).run(again.model, Context(Inference(again.model), options))
        assert not further.rewrites, f"a second run still finds something: {further.rewrites}"
    return result


def _check_undo(model: ModelProto, passes: Sequence[Any], options: Options) -> None:
    graph = load(model)
    before = to_proto(graph)
    inputs = [[value.name for value in scope.inputs] for scope in graph.model.graphs()]
    context, journal = Context(Inference(graph.model), options), Journal()
    context.inference.run()
    with graph.model.listening(journal):
        for item in passes:
            item.run(graph.model, context, frozenset(), Settled())
    journal.roll_back()
    check_model(graph.model)
    assert to_proto(graph) == before
    assert [[value.name for value in scope.inputs] for scope in graph.model.graphs()] == inputs


def assert_equal(before: ModelProto, after: ModelProto, feeds: Feeds = ({},), numeric: str = "E") -> None:
    """The result is valid, has the original's signature and gives its bits on at least one of the feeds."""
    checker.check_model(after)
    assert [value.name for value in after.graph.output] == [value.name for value in before.graph.output]
    verdict = judge(before, after, numeric, feeds)
    assert verdict.ok, verdict.reason
    assert verdict.feeds > 0, "the original ran on none of the feeds"


def nodes_of(graph: GraphProto) -> list[NodeProto]:
    """All nodes, those in bodies after the one that owns them."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                found.extend(nodes_of(body))
    return found


def operators(model: ModelProto) -> dict[str, int]:
    """How often each operator occurs, bodies included, constants aside."""
    return dict(Counter(node.op_type for node in nodes_of(model.graph) if node.op_type != "Constant"))


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Seeded numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
