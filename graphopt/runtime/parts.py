"""Parts of both models in float64: is a difference inside rounding, or do the models compute different things?

Two questions, from values that both models have alike up to the value that differs. Is the rewritten model's value
about as close to the original's in float64 as the original's own is? Else one kernel may still round more than those
that it stands for: do both models give the same in float64?
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.analysis.inference import Inference
from graphopt.errors import GraphoptError
from graphopt.ir import Graph, Node
from graphopt.onnxio import load, save
from graphopt.onnxio.cutting import cut_inputs
from graphopt.onnxio.signature import select_outputs
from graphopt.runtime.compare import compare
from graphopt.runtime.judging import judge_r
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.tally import OutputTally
from graphopt.runtime.truth import Truth
from graphopt.runtime.values import Data

if TYPE_CHECKING:
    from graphopt.runtime.suspicion import Inner

# All runs by the reference evaluator in one verification. One layer of a large model takes it a second.
_SECONDS = 20.0
_NO_RUN = (GraphoptError, ValueError, TypeError, KeyError, OSError)
_ORIGINAL, _REWRITTEN = "original", "rewritten"
_Array = np.ndarray[Any, Any]


class Parts:
    """Float64 runs of what leads to some values."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner
        self._left = _SECONDS
        self._graphs: dict[str, Graph] = {}
        self._known: dict[tuple[str, ...], _Array] = {}
        self._same = {
            name for name, tally in inner.tallies.items() if all(item.identical for item in tally.differences.values())
        }

    def is_rounding(self, name: str, label: str, result: Data) -> bool | None:
        """Whether a float64 run of the original tells a difference from it to be rounding.

        It begins at values that have the same bits in both models, and at the model's inputs.

        Args:
            name: The value.
            label: The feed.
            result: What the rewritten model has there.

        Returns:
            None where there is no such run.
        """
        reference = self._fed(label)[name]
        try:
            truth = self._run(_ORIGINAL, name, _begin(self._graph(_ORIGINAL), name, self._same), label)
        except _NO_RUN:
            return None
        assert isinstance(reference, np.ndarray)
        assert isinstance(result, np.ndarray)
        return not judge_r(reference, result, truth)[1]

    def agree(self, tally: OutputTally, label: str, also: Container[str]) -> bool | None:
        """Whether both models give the same in float64, begun at the same values of the original's.

        Args:
            tally: The value.
            label: The feed.
            also: Values of which this is known already. They differ between the models, and may still be begun at: as
                both are fed what the original has there, what leads to them plays no part.

        Returns:
            None where there are no such runs.
        """
        begin = {name for name in self._inner.tallies if name in self._same or name in also} - {tally.name}
        try:
            while True:
                left, right = (_begin(self._graph(side), tally.name, begin) for side in (_ORIGINAL, _REWRITTEN))
                if begin.intersection(left) == begin.intersection(right):
                    break
                # Begun at different values, the models would differ by the rounding of those that only one begins at.
                begin = begin.intersection(left, right)
            ours, theirs = (
                self._run(side, tally.name, names, label) for side, names in ((_ORIGINAL, left), (_REWRITTEN, right))
            )
        except _NO_RUN:
            return None
        # What is called suspicious is at least 6 times (on average 4 times) as far off as the bound that holds here.
        return tally.floor.covers(compare(ours, theirs), tally.differences[label], label)

    def _graph(self, side: str) -> Graph:
        """A model, only to be looked at."""
        if side not in self._graphs:
            self._graphs[side] = load(self._source(side).handle)
        return self._graphs[side]

    def _source(self, side: str) -> ModelSource:
        outer = self._inner.outer
        return outer.original if side == _ORIGINAL else outer.rewritten

    def _fed(self, label: str) -> dict[str, Data]:
        feed, reference = next(item for item in self._inner.found.working if item[0].label == label)
        return {**reference, **feed.values}

    def _run(self, side: str, name: str, begin: Sequence[str], label: str) -> _Array:
        """A value in float64.

        Raises:
            GraphoptError: There is no such run.
            ValueError: Likewise.
            TypeError: Likewise.
            KeyError: Likewise.
            OSError: Likewise.
        """
        key = (side, name, label, *begin)
        if key not in self._known:
            graph = load(self._source(side).handle)
            Inference(graph.model).run()
            select_outputs(graph, [name])
            cut_inputs(graph, begin)
            known = self._fed(label)
            with saved(graph) as path, Truth(self._inner.outer, path, self._left) as truth:
                value = truth.run({port: known[port] for port in begin})[name]
                self._left = truth.left
            if not isinstance(value, np.ndarray) or value.dtype != np.float64:
                raise TypeError("a run that is not in float64 throughout")
            self._known[key] = value
        return self._known[key]


def _begin(graph: Graph, name: str, known: Container[str]) -> list[str]:
    """The inputs, and the nearest of some values, that a value is computed from."""
    values = {value.name: value for node in graph.nodes() for value in node.results if value.name}
    todo = [values[name].producer]
    seen: set[Node] = set()
    found: dict[str, None] = {}
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.bodies:
            raise ValueError("a body reads values that stand nowhere else")
        for value in node.operands:
            if value is None or value.producer.is_constant:
                continue
            if value.name in known or not value.producer.is_operator:
                found[value.name or ""] = None
            else:
                todo.append(value.producer)
    return list(found)


@contextmanager
def saved(graph: Graph) -> Iterator[str]:
    """The path of a file with the model, which goes at the end."""
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = os.path.join(folder, "part.onnx")
        save(graph, path)
        yield path
