"""The meta-optimizer: passes in order, each a transaction, swept until nothing changes."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphopt.errors import DidNotConvergeError, PassError, UsageError
from graphopt.ir import Edit, Graph, Journal, Model, Node, Retyped, RewriteLimitReached, check_graph
from graphopt.ir.collector import collector_paused
from graphopt.pipeline.context import Context, PassTakenBack
from graphopt.pipeline.passes import Pass, Settled
from graphopt.pipeline.recorder import Recorder, count_edges, count_nodes
from graphopt.pipeline.registry import Registry
from graphopt.records import OptimizeReport, PassReport, Rewrite

MAX_SWEEPS = 10
Progress = Callable[[str, int], None]
"""Told the name of each pass before it runs, and the sweep."""
AfterPass = Callable[[str, int, Graph], None]
"""Called with the main graph after each pass that changed something."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which passes run.

    Attributes:
        passes: The only passes to run, in this order; None for all.
        skip: Passes left out.
        disable: `pass/rule` left out.
        aggressive: Passes run in their aggressive form.
        stop_after: Number of rewrites after which to stop; None for no limit.
        deadline: Seconds after which the graph of the last finished pass is the result; None for no limit.
        max_sweeps: Sweeps after which to give up.
        strict: Raise where a pass fails, instead of rolling it back and going on.
    """

    passes: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    aggressive: tuple[str, ...] = ()
    stop_after: int | None = None
    deadline: float | None = None
    max_sweeps: int = MAX_SWEEPS
    strict: bool = False


class _DeadlinePassed(Exception):  # noqa: N818  # control flow, not an error
    """The time is up in the middle of a pass."""


class MetaOptimizer:
    """Runs passes over a model to a fixed point.

    Raises:
        UsageError: the selection names a pass or rule that does not exist.
    """

    def __init__(self, registry: Registry, selection: Selection | None = None) -> None:
        self.registry = registry
        self.selection = selection or Selection()
        self.progress: Progress | None = None
        self.after_pass: AfterPass | None = None
        self.passes = self._selected()
        self.disabled = frozenset(registry.check_item(name) for name in self.selection.disable)
        for name in self.selection.aggressive:
            registry.find(name)

    def _selected(self) -> tuple[Pass, ...]:
        chosen = self.selection
        names = list(self.registry.passes) if chosen.passes is None else list(chosen.passes)
        skipped = {self.registry.find(name).name for name in chosen.skip}
        if chosen.stop_after is not None and chosen.stop_after < 0:
            raise UsageError("--stop-after counts rewrites from 0; give a number that is not negative")
        return tuple(self.registry.find(name) for name in names if name not in skipped)

    def run(self, model: Model, context: Context) -> OptimizeReport:
        """Run the passes over a model, changing it.

        Returns:
            What happened: per pass, per rule, and why it stopped.

        Raises:
            PassError: a pass failed and `strict` is set.
        """
        started = time.monotonic()
        recorder = Recorder(model)
        before = count_nodes(model)
        model.rewrite_limit = self.selection.stop_after
        reports: list[PassReport] = []
        _pin(model, context.options.keep)
        context.inference.run()
        settled, sweeps, stopped_by = Settled(), 0, "fixed point"
        # Fusions know the normal form: they begin when the passes for every target have settled, and then take part.
        late = any(context.options.target in item.targets for item in self.passes)
        stages = [False, True] if late and any(not item.targets for item in self.passes) else [late]
        # What passes throw away is little beside what the collector would walk over to find it.
        with model.listening(recorder), collector_paused():
            while True:
                sweeps += 1
                edits_before = recorder.edits
                outcome = self._sweep(model, context, settled, recorder, sweeps, started, reports, stages[0])
                if outcome is not None:
                    stopped_by = outcome
                    break
                if recorder.edits == edits_before and not context.inference.learn_more():
                    if len(stages) == 1:
                        break
                    del stages[0]
                    continue
                if sweeps >= self.selection.max_sweeps:
                    stopped_by = "sweep limit"
                    break
                context.inference.run()
        return OptimizeReport(
            passes=tuple(reports),
            sweeps=sweeps,
            stopped_by=stopped_by,
            rewrites=tuple(recorder.rewrites),
            nodes_before=before,
            nodes_after=count_nodes(model),
            seconds=time.monotonic() - started,
            notes=tuple(context.notes),
        )

    def _sweep(
        self,
        model: Model,
        context: Context,
        settled: Settled,
        recorder: Recorder,
        sweep: int,
        started: float,
        reports: list[PassReport],
        fuses: bool,
    ) -> str | None:
        """One round over the passes; returns why to stop, or None."""
        for item in self.passes:
            if item.targets and not (fuses and context.options.target in item.targets):
                continue
            if item.once and sweep > 1:
                continue
            if item.is_asked is not None and not item.is_asked(model, context.options):
                continue
            deadline = self.selection.deadline
            if deadline is not None and time.monotonic() - started > deadline:
                return "deadline"
            if self.progress is not None:
                self.progress(item.name, sweep)
            report, outcome = self._transaction(item, model, context, settled, recorder, sweep, started)
            reports.append(report)
            if report.error and self.selection.strict:
                raise PassError(
                    f"pass '{item.name}' failed in sweep {sweep}: {report.error}; report it with the model; "
                    f"--skip {item.name} leaves it out"
                )
            if report.edits and self.after_pass is not None:
                self.after_pass(item.name, sweep, model.graph)
            if outcome is not None:
                return outcome
        return None

    def _transaction(
        self,
        item: Pass,
        model: Model,
        context: Context,
        settled: Settled,
        recorder: Recorder,
        sweep: int,
        started: float,
    ) -> tuple[PassReport, str | None]:
        """Run one pass; whatever goes wrong inside, the graph is that of before it."""
        begun = time.monotonic()
        nodes, edges = count_nodes(model), count_edges(model)
        mark = recorder.mark()
        journal, touched = Journal(), _Touched()
        context.is_aggressive = item.name in self.selection.aggressive
        error, status, outcome = "", "", None
        watch = _Clock(started, self.selection.deadline)
        with model.listening(journal), model.listening(touched), model.listening(watch):
            try:
                item.run(model, context, self.disabled, settled)
                touched.check(model)
            except RewriteLimitReached:
                outcome = "rewrite limit"
                touched.check(model)
            except _DeadlinePassed:
                outcome, status = "deadline", "out of time"
            except PassTakenBack as reason:
                status = f"taken back: {reason}"
            except Exception as failure:  # a pass may be anybody's: whatever it raises, the model survives
                error = f"{type(failure).__name__}: {failure}{_where(failure, item)}"
                status = "failed"
                if isinstance(failure, DidNotConvergeError):
                    outcome = "rules keep feeding each other"
        if status:
            journal.roll_back()
            recorder.reset(mark)
        made = recorder.since(mark)
        edits = recorder.edits - mark.edits
        return (
            PassReport(
                name=item.name,
                sweep=sweep,
                status=status or ("changed" if edits else "nothing to do"),
                edits=edits,
                rewrites=_by_rule(made),
                nodes_before=nodes,
                nodes_after=count_nodes(model),
                edges_before=edges,
                edges_after=count_edges(model),
                seconds=time.monotonic() - begun,
                error=error,
            ),
            outcome,
        )


def _where(failure: BaseException, item: Pass) -> str:
    """The line of the pass at which it failed, for whoever wrote it."""
    own = {member.function.__code__.co_filename for member in item.items}
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if frame.filename in own]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


class _Touched:
    """Remembers what a pass edited, so that the check afterwards looks there and not everywhere."""

    def __init__(self) -> None:
        self._nodes: dict[Node, None] = {}
        self._graphs: dict[Graph, None] = {}

    def on_edit(self, edit: Edit) -> None:
        if isinstance(edit, Retyped):
            return
        self._graphs[edit.graph] = None
        node = getattr(edit, "node", None)
        if isinstance(node, Node):
            self._nodes[node] = None
            self._nodes.update(dict.fromkeys(value.producer for value in node.operands if value is not None))

    def check(self, model: Model) -> None:
        nodes: dict[Graph, list[Node]] = {}
        for node in self._nodes:
            if node.graph is not None:
                nodes.setdefault(node.graph, []).append(node)
        checked: dict[Graph, None] = {}
        for graph in self._graphs:
            if graph.is_attached:
                check_graph(graph, nodes.get(graph, ()), checked)


class _Clock:
    """Stops a pass whose time is up at its next edit."""

    def __init__(self, started: float, deadline: float | None) -> None:
        self._end = None if deadline is None else started + deadline

    def on_edit(self, edit: Edit) -> None:
        if self._end is not None and time.monotonic() > self._end:
            raise _DeadlinePassed


def _by_rule(rewrites: Sequence[Rewrite]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for rewrite in rewrites:
        counts[rewrite.rule] = counts.get(rewrite.rule, 0) + 1
    return counts


def _pin(model: Model, keep: frozenset[str]) -> None:
    """Hold what the user named: a kept node or value is neither erased nor renamed.

    Raises:
        UsageError: the model has nothing of that name.
    """
    missing = set(keep)
    for graph in model.graphs():
        for node in graph.all_nodes():
            names = {node.name, *(value.name for value in node.results if value.name)}
            if names & keep:
                node.is_pinned = True
                missing -= names
    if missing:
        raise UsageError(
            f"the model has no node or value called '{min(missing)}' to keep; `graphopt show --format text` lists names"
        )
