"""Tries sizes of input dims with which no run can succeed, and infers again with what that proves.

Each question that the shapes raise is answered by contradiction: suppose the size, infer what depends on it, and look
for an operator that must fail. What one layer proves makes the shapes of the next plain, so there are several rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from graphopt.analysis.bounds import Doubt, certainly_fails, doubts, live_nodes, required
from graphopt.analysis.known import Known, forget, values_inside, with_dim
from graphopt.ir import Dim, Graph, Node, Symbol, Value
from graphopt.ir.structure import holder_of

if TYPE_CHECKING:
    from graphopt.analysis.inference import Inference

_ROUNDS = 12
"""How often: what one layer shows makes the shapes of the next plain."""
_FRUITLESS_TRIALS = 4
"""After so many dims in a row of which nothing could be proved no more are tried."""


def find_bounds(inference: Inference, *, tables: bool = False) -> None:
    """Find sizes of input dims with which no run succeeds, and infer again with that knowledge.

    Args:
        inference: What is known so far.
        tables: Ask also whether what is looked up in may be empty. Nothing else depends on it, and an expression in
            which a dim may be 0 tells more of what it must be otherwise, so this comes last.
    """
    _Search(inference, tables).run()


class _Search:
    """The questions about one main graph."""

    def __init__(self, inference: Inference, tables: bool) -> None:
        self.inference = inference
        self.tables = tables
        self.graph: Graph = inference.model.graph
        self.tried_in_vain: dict[Doubt, None] = {}
        self.changed: dict[Value, None] = {}
        """Inputs of whose dims more is known than what was inferred from them took into account."""

    def run(self) -> None:
        """Ask until a round proves nothing."""
        self._require_windows()
        for _ in range(_ROUNDS):
            self._settle_doubts()
            if not self.changed:
                return
            for _ in self._spread(self.changed):
                pass
            self.changed.clear()

    def _require_windows(self) -> None:
        """Convolutions tell how small input dims cannot be; the inputs say so from now on."""
        least = required(self.graph)
        for value in self.graph.inputs:
            for dim in value.shape or ():
                if isinstance(dim, Symbol) and least.get(dim.key, 0) > dim.least:
                    self._learn(dim, Symbol(dim.key, dim.label, least[dim.key], dim.most))

    def _settle_doubts(self) -> None:
        """Answer what questions can be answered."""
        tries: Counter[tuple[bool, bool]] = Counter()
        live = live_nodes(self.graph)
        # What was tried in vain comes last, and only once nothing else helps.
        for doubt in sorted(doubts(self.graph), key=lambda doubt: doubt in self.tried_in_vain):
            if self.changed and doubt in self.tried_in_vain:
                return
            dims = [dim for value in self.graph.inputs for dim in value.shape or ()]
            symbol = next((dim for dim in dims if isinstance(dim, Symbol) and dim.key == doubt.key), None)
            if symbol is None or not doubt.is_open(symbol) or tries[doubt.kind] == _FRUITLESS_TRIALS:
                continue
            if doubt.of_table and not self.tables:
                continue
            if self._fails_if(symbol, doubt.denied(symbol), live):
                self._learn(symbol, doubt.affirmed(symbol))
                tries[doubt.kind] = 0
            else:
                self.tried_in_vain[doubt] = None
                tries[doubt.kind] += 1

    def _learn(self, symbol: Symbol, known: Symbol) -> None:
        for value in self.graph.inputs:
            type = with_dim(value.type, symbol, known)
            if type is not value.type:
                self.graph.retype(value, type)
                self.changed[value] = None

    def _fails_if(self, symbol: Symbol, dim: Dim, live: Mapping[Node, None]) -> bool:
        """Whether an operator is sure to fail with that dim."""
        with self.inference.supposing() as saved:
            supposed = []
            for value in self.graph.inputs:
                type = with_dim(value.type, symbol, dim)
                if type is not value.type:
                    saved[value] = (value.type, value.elements)
                    value.type = type
                    supposed.append(value)
            return any(node in live and certainly_fails(node) for node in self._spread(supposed, saved))

    def _spread(self, inputs: Iterable[Value], saved: Known | None = None) -> Iterator[Node]:
        """Infer again what depends on inputs, operator by operator; each is given before it is inferred."""
        affected = {holder_of(self.graph, user): None for value in inputs for user, _ in value.uses}
        for node in self.graph.order():
            if node not in affected:
                continue
            yield node
            inner = [value for body in node.bodies.values() for value in values_inside(body)]
            before = {value: (value.type, value.elements) for value in (*node.results, *inner)}
            if saved is not None:
                saved.update(before)
            forget(before)
            self.inference.infer(node)
            for value in node.results:
                if before[value] != (value.type, value.elements):
                    affected.update((holder_of(self.graph, user), None) for user, _ in value.uses)
