"""The intermediate representation: graphs stored by networkx, and the edits that change them."""

from __future__ import annotations

from graphopt.ir.clone import clone_body, clone_node
from graphopt.ir.edits import (
    AttributeSet,
    DetailSet,
    Edit,
    Erased,
    FunctionsSet,
    Inserted,
    IrVersionSet,
    Listener,
    Narrowed,
    OpsetSet,
    Redeclared,
    Renamed,
    Retyped,
    Rewired,
    StorageSet,
)
from graphopt.ir.graph import Graph
from graphopt.ir.invariants import check_graph, check_model
from graphopt.ir.journal import Journal
from graphopt.ir.model import Function, Model, RewriteLimitReached
from graphopt.ir.node import NOT_CONSTANT, Form, Kind, Node, Origin
from graphopt.ir.symbol import Expr, Symbol
from graphopt.ir.types import (
    Dim,
    OpaqueType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    contradict,
    merge_types,
)
from graphopt.ir.value import Value

__all__ = [
    "NOT_CONSTANT",
    "AttributeSet",
    "DetailSet",
    "Dim",
    "Edit",
    "Erased",
    "Expr",
    "Form",
    "Function",
    "FunctionsSet",
    "Graph",
    "Inserted",
    "IrVersionSet",
    "Journal",
    "Kind",
    "Listener",
    "Model",
    "Narrowed",
    "Node",
    "OpaqueType",
    "OpsetSet",
    "OptionalType",
    "Origin",
    "Redeclared",
    "Renamed",
    "Retyped",
    "Rewired",
    "RewriteLimitReached",
    "SequenceType",
    "Shape",
    "StorageSet",
    "Symbol",
    "TensorType",
    "Type",
    "Value",
    "check_graph",
    "check_model",
    "clone_body",
    "clone_node",
    "contradict",
    "merge_types",
]
