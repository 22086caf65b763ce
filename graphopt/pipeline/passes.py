"""Passes: a module of rules and graph passes, run in the order in which they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from graphopt.errors import RuleError
from graphopt.ir import Graph, Model
from graphopt.pipeline.context import Context, Options
from graphopt.rewrite import Driver, Examples, NumericClass, Rule

GraphFunction = Callable[[Graph, Context], None]
Asked = Callable[[Model, Options], bool]


class GraphPass:
    """A rewrite that needs more than one root; made by `@graph_pass`."""

    def __init__(
        self, function: GraphFunction, examples: Examples, numeric: NumericClass, bodies: bool, whole_model: bool
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.summary = (inspect.getdoc(function) or "").split("\n", 1)[0]
        self.examples = examples
        self.numeric = numeric
        self.bodies = bodies
        self.whole_model = whole_model
        self.ulp = 4

    def __repr__(self) -> str:
        return f"<GraphPass {self.name}>"


def graph_pass(
    *,
    before: str,
    after: str,
    unless: Sequence[str] = (),
    numeric: str = "E",
    bodies: bool = True,
    whole_model: bool = False,
    opset: int | None = None,
    options: Mapping[str, Any] | None = None,
    largest: float | None = None,
) -> Callable[[GraphFunction], GraphPass]:
    """Declare a pass over one graph.

    Args:
        before: An example it changes, in ONNX's text syntax.
        after: What it becomes.
        unless: Examples it leaves alone.
        numeric: S, E, Z, U, R or D: what it may do to the numbers.
        bodies: Whether it also visits bodies and functions, innermost first.
        whole_model: Whether it is called once, with the main graph, and looks at `graph.model` itself.
        opset: The opset of the examples; default: the newest supported.
        options: What the user must have asked for in the examples, as fields of `Options`; `aggressive` for that mode.
        largest: The largest finite input the numeric class is promised for; beyond it something overflows on its way.

    Raises:
        RuleError: the function has no docstring, or the class does not exist.
    """

    def declare(function: GraphFunction) -> GraphPass:
        if not function.__doc__:
            raise RuleError(f"graph pass {function.__name__} needs a docstring: its first line is its documentation")
        try:
            numeric_class = NumericClass(numeric)
        except ValueError:
            raise RuleError(
                f"graph pass {function.__name__}: '{numeric}' is no numeric class; use S, E, Z, U, R or D"
            ) from None
        examples = Examples(before, after, unless, opset, options, largest)
        return GraphPass(function, examples, numeric_class, bodies, whole_model)

    return declare


Item = Rule | GraphPass


@dataclass(frozen=True, slots=True)
class Pass:
    """A module of rules and graph passes under one name.

    Attributes:
        name: What it is switched and reported by: the module's name, after `package:` if it is not built in.
        summary: The first line of the module's docstring.
        items: Its rules and graph passes as they are written.
        once: True if it runs in the first sweep only.
        targets: The targets it runs for; empty for all. A pass of some targets runs once the others have settled.
        after: The pass it wants to follow, "" for the end.
        is_asked: Says whether the options call for it now; None where it always runs.
    """

    name: str
    summary: str
    items: tuple[Item, ...]
    module: ModuleType
    once: bool = False
    targets: tuple[str, ...] = ()
    after: str = ""
    is_asked: Asked | None = None

    def item(self, name: str) -> Item | None:
        """The rule or graph pass of that name."""
        return next((item for item in self.items if item.name == name), None)

    def run(self, model: Model, context: Context, disabled: frozenset[str], settled: Settled) -> None:
        """Run every item that is not disabled and whose class the level allows, over every graph of the model.

        Args:
            model: The model.
            context: The surroundings.
            disabled: Names of items to leave out, `pass/item`.
            settled: Where the pass found nothing to do last time; graphs unchanged since are skipped.
        """
        allowed = context.options.classes
        active = [item for item in self.items if f"{self.name}/{item.name}" not in disabled and item.numeric in allowed]
        for batch in _batches(active):
            if isinstance(batch, GraphPass):
                self._run_graph_pass(batch, model, context, settled)
            else:
                self._run_rules(batch, model, context, settled)

    def _run_rules(self, rules: tuple[Rule, ...], model: Model, context: Context, settled: Settled) -> None:
        context.current = self.name
        driver = Driver(self.name, rules, context.inference, context.observer, context.target)
        key = f"{self.name}/{rules[0].name}"
        for graph in list(model.graphs()):
            if settled.is_settled(key, graph):
                continue
            driver.run(graph)
            settled.note(key, graph)

    def _run_graph_pass(self, item: GraphPass, model: Model, context: Context, settled: Settled) -> None:
        key = context.current = f"{self.name}/{item.name}"
        graphs = [model.graph] if item.whole_model or not item.bodies else list(model.graphs())
        for graph in graphs:
            if not graph.is_attached:
                continue  # its node was erased meanwhile
            if not item.whole_model and settled.is_settled(key, graph):
                continue
            before = graph.version
            item.function(graph, context)
            if graph.version == before:
                settled.note(key, graph)


class Settled:
    """Which graph a pass has nothing more to do in, as long as nothing changes there."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, Graph], int] = {}

    def is_settled(self, key: str, graph: Graph) -> bool:
        """True if the graph has not changed since the pass found nothing to do in it."""
        return self._versions.get((key, graph)) == _stamp(graph)

    def note(self, key: str, graph: Graph) -> None:
        """Remember that the pass found nothing to do in the graph as it is."""
        self._versions[key, graph] = _stamp(graph)


def _stamp(graph: Graph) -> int:
    """Changes with any edit a pass over this graph could see: its own, and those around it for a body."""
    total: int = graph.version
    around = graph.parent
    while around is not None:
        total += around.version
        around = around.parent
    return total


def _batches(items: Sequence[Item]) -> list[GraphPass | tuple[Rule, ...]]:
    """Neighbouring rules share one driver; a graph pass stands alone."""
    batches: list[GraphPass | tuple[Rule, ...]] = []
    for item in items:
        if isinstance(item, Rule) and batches and isinstance(batches[-1], tuple):
            batches[-1] = (*batches[-1], item)
        else:
            batches.append((item,) if isinstance(item, Rule) else item)
    return batches


def pass_of_module(module: ModuleType, name: str) -> Pass:
    """The pass a module holds.

    Raises:
        RuleError: it holds neither a rule nor a graph pass.
    """
    members: Mapping[str, object] = vars(module)
    items = tuple(item for item in members.values() if isinstance(item, (Rule, GraphPass)))
    own = tuple(item for item in items if item.function.__module__ == module.__name__)
    if not own:
        raise RuleError(
            f"'{module.__file__ or module.__name__}' holds no rule and no graph pass; "
            "decorate a function with @rule or @graph_pass"
        )
    return Pass(
        name=name,
        summary=(inspect.getdoc(module) or "").split("\n", 1)[0],
        items=own,
        module=module,
        once=bool(getattr(module, "ONCE", False)),
        targets=tuple(getattr(module, "TARGETS", ())),
        after=str(getattr(module, "AFTER", "")),
        is_asked=getattr(module, "is_asked", None),
    )
