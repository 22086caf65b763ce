"""graphopt: Grappler for ONNX. Optimize a model, prove it equal, time it against the original."""

from __future__ import annotations

from graphopt import _interrupt as _interrupt  # before all others: see there
from graphopt import schema
from graphopt.acceptance import Acceptance, accept
from graphopt.analysis.effects import Effect, effect_of, is_commutative, is_elementwise, is_pure, is_total
from graphopt.analysis.position import is_position_independent
from graphopt.api import Result, benchmark, explain, extract, optimize, sweep, verify
from graphopt.errors import GraphoptError
from graphopt.ir import (
    NOT_CONSTANT,
    Expr,
    Function,
    Graph,
    Kind,
    Model,
    Node,
    OptionalType,
    SequenceType,
    Symbol,
    TensorType,
    Value,
    clone_body,
    clone_node,
    symbol,
)
from graphopt.onnxio import load, save, to_proto
from graphopt.pipeline import Context, Options, graph_pass
from graphopt.rewrite import Builder, Match, Miss, Rule, attr, const, is_uniform, op, rule, var
from graphopt.rewrite.pattern import Application
from graphopt.tensors import DType, Tensor

__version__ = "0.1.0"

__all__ = [
    "NOT_CONSTANT",
    "Acceptance",
    "Application",
    "Builder",
    "Context",
    "DType",
    "Effect",
    "Expr",
    "Function",
    "Graph",
    "GraphoptError",
    "Kind",
    "Match",
    "Miss",
    "Model",
    "Node",
    "OptionalType",
    "Options",
    "Result",
    "Rule",
    "SequenceType",
    "Symbol",
    "Tensor",
    "TensorType",
    "Value",
    "accept",
    "attr",
    "benchmark",
    "clone_body",
    "clone_node",
    "const",
    "effect_of",
    "explain",
    "extract",
    "graph_pass",
    "is_commutative",
    "is_elementwise",
    "is_position_independent",
    "is_pure",
    "is_total",
    "is_uniform",
    "load",
    "op",
    "optimize",
    "rule",
    "save",
    "schema",
    "sweep",
    "symbol",
    "to_proto",
    "var",
    "verify",
]
