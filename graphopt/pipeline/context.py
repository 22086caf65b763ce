"""What a pass is handed beside the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphopt.analysis.inference import Inference
from graphopt.ir import Graph, Node, Value
from graphopt.rewrite import LEVELS, Builder, NumericClass
from graphopt.rewrite.driver import Observer
from graphopt.targets import Target, target_named
from graphopt.tensors import Tensor

Evaluator = Callable[[Sequence[Node]], dict[Value, Tensor]]
"""Computes nodes whose operands are constants or come from one another. Results it could not compute are left out."""


class PassTakenBack(Exception):  # noqa: N818  # control flow, not an error
    """A pass found that its work does not pay; everything it did is undone."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; every pass sees the same.

    Attributes:
        level: `exact`, `default` or `fast-math`.
        target: What the result must run on.
        ort_version: For the targets of ONNX Runtime: emit nothing that an older version has no kernel for.
        freeze_initializers: Treat initializers a caller may override (IR version 4 and newer) as constants.
        fold_dequantize: Let `DequantizeLinear` of constant weights be folded, which stores them unquantized.
        growth_limit: Bytes a folded result may exceed what dies with it.
        trust_dim_names: Take dims of equal names to be equal, which the runtime does not check.
        keep: Names of values and nodes that must survive as they are.
        opset: The opset of the standard domain the result must have; None leaves it alone.
    """

    level: str = "default"
    target: str = "portable"
    freeze_initializers: bool = False
    fold_dequantize: bool = False
    growth_limit: int = 1 << 20
    trust_dim_names: bool = False
    keep: frozenset[str] = frozenset()
    opset: int | None = None
    ort_version: str | None = None

    @property
    def classes(self) -> frozenset[NumericClass]:
        """The numeric classes the level allows."""
        return LEVELS[self.level]


def _no_evaluator(nodes: Sequence[Node]) -> dict[Value, Tensor]:
    return {}


@dataclass(slots=True)
class Context:
    """The surroundings of one run over one model."""

    inference: Inference
    options: Options = field(default_factory=Options)
    evaluate: Evaluator = _no_evaluator
    is_aggressive: bool = False
    """True while a pass runs that was switched to `aggressive`."""
    current: str = ""
    """The pass and item running now, `pass/rule`."""
    observer: Observer | None = None
    on_note: Callable[[str, str], None] | None = None
    """Told of every remark, with who makes it: `pass` or `pass/item`."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the report: what was left alone, and why."""

    @property
    def target(self) -> Target:
        """What the result must run on, with the kernels it has."""
        return target_named(self.options.target, self.options.ort_version)

    def builder(self, graph: Graph) -> Builder:
        """A builder for `graph`; `insert` what it made inside a `rewrite`."""
        return Builder(graph, self.inference, self.target)

    @contextmanager
    def rewrite(self, graph: Graph) -> Iterator[int]:
        """Group the edits of the block as one numbered rewrite of the pass that runs now."""
        with graph.model.rewrite(self.current or "edit") as number:
            yield number

    def replace(self, old: Value, new: Value, builder: Builder | None = None) -> None:
        """As one rewrite: insert what was built, redirect the readers of `old` to `new`, erase the old node if unread.

        A node that is kept by name stays as it is, and so do its readers.

        Args:
            old: A result of an operator.
            new: A value of the same type.
            builder: What made `new`, if it is not in the graph yet.
        """
        graph = old.producer.graph
        assert graph is not None
        if old.producer.is_pinned:
            return
        with self.rewrite(graph):
            for node in () if builder is None else builder.nodes:
                if node.graph is None:
                    graph.insert(node, rank=old.producer.rank)
                    if node.is_operator and not node.name and new.producer is node:
                        node.name = old.producer.name
            graph.replace_uses(old, new)
            if not old.producer.is_used:
                graph.erase(old.producer)

    def keeps(self, node: Node) -> bool:
        """True if the user named the node or one of its results in the keep-list."""
        keep = self.options.keep
        return bool(keep) and (node.name in keep or any(value.name in keep for value in node.results))

    def note(self, text: str) -> None:
        """Add a remark to the report, once."""
        if self.on_note is not None:
            self.on_note(self.current, text)
        if text not in self.notes:
            self.notes.append(text)

    def aside(self, text: str) -> None:
        """Add a remark for those who ask about the pass, with `explain`, that would be no news in every report."""
        if self.on_note is not None:
            self.on_note(self.current, text)

    def take_back(self, reason: str) -> None:
        """Undo everything the running pass did.

        Raises:
            PassTakenBack: always.
        """
        raise PassTakenBack(reason)
