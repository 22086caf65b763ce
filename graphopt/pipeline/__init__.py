"""The meta-optimizer and everything that tells it what to run."""

from __future__ import annotations

from graphopt.pipeline.context import Context, Options
from graphopt.pipeline.meta import MetaOptimizer, Selection
from graphopt.pipeline.passes import GraphPass, Pass, graph_pass
from graphopt.pipeline.registry import Registry, load_registry

__all__ = [
    "Context",
    "GraphPass",
    "MetaOptimizer",
    "Options",
    "Pass",
    "Registry",
    "Selection",
    "graph_pass",
    "load_registry",
]
