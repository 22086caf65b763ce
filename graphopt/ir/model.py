"""A model: the main graph, the local functions, and what the file says around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphopt.ir.edits import Edit, FunctionsSet, IrVersionSet, Listener
from graphopt.ir.graph import Graph

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a local function."""


class RewriteLimitReached(Exception):  # noqa: N818  # control flow, not an error
    """The allowed number of rewrites is used up; the pipeline stops here with a valid graph."""


class Function:
    """A model-local function; `graph` is its body, with untyped inputs and an opset map of its own."""

    __slots__ = ("attribute_defaults", "attributes", "details", "domain", "graph", "name", "overload")

    def __init__(self, domain: str, name: str, overload: str, graph: Graph) -> None:
        self.domain = domain
        self.name = name
        self.overload = overload
        self.graph = graph
        self.attributes: tuple[str, ...] = ()
        self.attribute_defaults: dict[str, Any] = {}
        self.details: dict[str, Any] = {}

    @property
    def key(self) -> FunctionKey:
        """What a node's domain, operator and overload must equal to call it."""
        return (self.domain, self.name, self.overload)

    def __repr__(self) -> str:
        """Domain, name and overload."""
        return ":".join(part for part in self.key if part)


class Model:
    """Everything a model file holds."""

    def __init__(self, ir_version: int, opsets: dict[str, int]) -> None:
        self.ir_version = ir_version
        self._serials = itertools.count()
        self._listeners: list[Listener] = []
        self.functions: dict[FunctionKey, Function] = {}
        self.details: dict[str, Any] = {}
        """Producer, metadata, training info … as read; written back by onnxio."""
        self.path: str | None = None
        """The file it was loaded from, if any."""
        self.rewrites = 0
        """How many rewrites were made; each has its number."""
        self.rewrite_limit: int | None = None
        self._depth = 0
        self.current_rewrite: str | None = None
        self.graph = Graph(self, "", opsets)

    def next_serial(self) -> int:
        """A number no other node of this model has."""
        return next(self._serials)

    def graphs(self) -> Iterator[Graph]:
        """Every graph of the model, bodies before the graph around them, functions first."""
        for graph in [*(function.graph for function in self.functions.values()), self.graph]:
            yield from graph.bodies_inside()
            yield graph

    def set_functions(self, functions: Mapping[FunctionKey, Function]) -> None:
        """Let the model have other local functions; those it had are untouched, so that this can be undone."""
        old, self.functions = self.functions, dict(functions)
        self.graph.tell(FunctionsSet(self.graph, old, self.functions))

    def set_ir_version(self, version: int) -> None:
        """Declare another IR version."""
        if version != self.ir_version:
            old, self.ir_version = self.ir_version, version
            self.graph.tell(IrVersionSet(self.graph, old, version))

    # --- listeners and rewrites

    def listen(self, listener: Listener) -> None:
        """Tell a listener of every edit from now on."""
        self._listeners.append(listener)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Tell a listener of every edit while the block runs."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def tell(self, edit: Edit) -> None:
        """Pass an edit on to the listeners."""
        for listener in self._listeners:
            listener.on_edit(edit)

    @contextmanager
    def rewrite(self, name: str) -> Iterator[int]:
        """Group the edits of the block as one numbered rewrite; inside another one it is part of that.

        Args:
            name: Who rewrites, `pass/rule`.

        Yields:
            The rewrite's number, counted from 1.

        Raises:
            RewriteLimitReached: the limit is used up; nothing was edited.
        """
        if self._depth == 0:
            if self.rewrite_limit is not None and self.rewrites >= self.rewrite_limit:
                raise RewriteLimitReached
            self.rewrites += 1
            self.current_rewrite = name
        self._depth += 1
        try:
            yield self.rewrites
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.current_rewrite = None
