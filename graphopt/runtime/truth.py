"""Float64 runs of a whole original: the truth that errors of both models are measured against.

The runtime makes them where it has kernels for double. It has none for Erf and Conv among others, nor for its own
operators: there ONNX's reference evaluator is asked, which is slow and knows every standard operator, with the
runtime's own ones by what they are documented to compute (`contrib_reference.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any, Self

import numpy as np

from graphopt.errors import ExecutionError, KernelMissingError, ModelRefusedError
from graphopt.runtime.double import bodies, graphs, in_double
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.judging import widen
from graphopt.runtime.remote import RemoteSession, keep_here
from graphopt.runtime.session import JUDGE, SessionInfo
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.values import Data

# All runs by the reference evaluator together take no longer: Python loops over the elements of a Conv.
_SECONDS = 60.0


class Truth:
    """A model in float64, run at any number of feeds: the original, unless another is given.

    Raises:
        ValueError: The model cannot be turned into double.
        TypeError: Likewise.
        OSError: It cannot be read.
    """

    def __init__(self, evidence: Evidence, handle: bytes | str | None = None, seconds: float = _SECONDS) -> None:
        """Nothing is run yet.

        Args:
            evidence: Where it runs.
            handle: The model, where that is not the original.
            seconds: What all runs by the reference evaluator together may take.
        """
        data = in_double(evidence.original.handle if handle is None else handle)
        source = ModelSource("a model in float64", data=data)
        self._session = evidence.session(source, JUDGE)
        self._reference = _ReferenceSession(source, JUDGE, worker=evidence.worker)
        self._by_reference = False
        self.left = seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._reference.close()

    def run(self, feeds: Mapping[str, Data]) -> Outputs:
        """What the model gives in float64; floats of the feeds are widened.

        Raises:
            ExecutionError: There is no such run.
        """
        wide = {name: widen(value) for name, value in feeds.items()}
        if not self._by_reference:
            try:
                return self._session.run(wide)
            except (KernelMissingError, ModelRefusedError):
                self._by_reference = True
        if self.left <= 0:
            raise ExecutionError("float64 runs by the reference take too long")
        start = time.monotonic()
        try:
            return self._reference.run(wide, timeout=self.left)
        finally:
            self.left -= time.monotonic() - start


class _ReferenceSession(RemoteSession):
    """A model in the worker that ONNX's reference evaluator runs; it is read and prepared once."""

    def run(self, feeds: Mapping[str, Data], *, timeout: float | None = None) -> Outputs:
        self._timeout = timeout  # holds for the preparation as well
        return super().run(feeds, timeout=timeout)

    def _make(self) -> tuple[int, SessionInfo]:
        made: tuple[int, SessionInfo] = self._call(open_reference_here, self.source.handle)
        return made


class Reference:
    """A model for ONNX's reference evaluator; see `Session`, whose place it takes in the worker.

    Raises:
        ExecutionError: The evaluator does not know an operator.
    """

    info = SessionInfo((), (), ())

    def __init__(self, model: bytes) -> None:
        from onnx import ModelProto
        from onnx.reference import ReferenceEvaluator

        from graphopt.runtime.contrib_reference import contrib_operators, name_unread

        proto = ModelProto.FromString(model)
        for entry in proto.opset_import:
            entry.domain = "" if entry.domain == "ai.onnx" else entry.domain  # the evaluator knows one name of the two
        for nodes in (*(item.node for item in graphs(proto)), *(item.node for item in proto.functions)):
            name_unread(nodes)
            put_in_order(nodes)
        try:
            self._evaluator: Any = ReferenceEvaluator(proto, new_ops=contrib_operators())
        except Exception as error:  # whatever numpy raises at a constant
            raise _failed(error) from error

    def run(self, feeds: Mapping[str, Data]) -> dict[str, Data]:
        """Run once.

        Raises:
            ExecutionError: It fails, at a form of an operator that is not written among others.
        """
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, dict(feeds))
        except Exception as error:  # the evaluator raises whatever numpy does
            raise _failed(error) from error
        return dict(zip(self._evaluator.output_names, results, strict=True))


def put_in_order(nodes: Any) -> None:
    """Put the nodes of a graph behind what they read, else as they stand: the runtime sorts, the evaluator does not."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    reads = [
        {makers[name] for inner in (node, *_inside(node)) for name in inner.input if name in makers} for node in nodes
    ]
    if all(place > other for place, others in enumerate(reads) for other in others):
        return
    order = TopologicalSorter(dict(enumerate(reads))).static_order()
    placed = [type(nodes[place]).FromString(nodes[place].SerializeToString()) for place in order]
    del nodes[:]
    nodes.extend(placed)


def _inside(node: Any) -> Iterator[Any]:
    """The nodes of a node's bodies, however deep."""
    for body in bodies(node):
        for inner in body.node:
            yield inner
            yield from _inside(inner)


def open_reference_here(model: bytes) -> tuple[int, SessionInfo]:
    """Prepare a model for the reference evaluator in this process and keep it under a number."""
    return keep_here(Reference(model))


def _failed(error: Exception) -> ExecutionError:
    return ExecutionError(f"no float64 run by the reference: {' '.join(str(error).split())[:200]}")
