"""What measuring decided, as text: each group that was tried, with its figures, and what came of it."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.measurements import AcceptanceReport, Trial
from graphopt.report.units import plural, seconds_text

_STYLES = {"left out": "bold yellow", "wrong": "bold red", "not tried": "yellow", "narrowed": "yellow"}
_ALWAYS_SHOWN = ("left out", "wrong", "narrowed", "not tried")
_SHOWN = 12
_WORDS = {
    "wrong": "left out: different with it",
    "left out": "left out: slower with it",
    "narrowed": "slower with it: see its rules",
    "same graph": "kept: the runtime runs the same graph",
    "not tried": "kept: the time was up",
}


def acceptance_text(report: AcceptanceReport, plan: str | None, *, verbose: int = 0) -> RenderableType:
    """A row for each trial, then what it comes to.

    Args:
        report: What was measured.
        plan: The file the decisions were written to, if any.
        verbose: 1 shows every trial, with its reason and time.
    """
    parts: list[RenderableType] = []
    shown = list(report.trials) if verbose else _most_telling(report.trials)
    if shown:
        parts += [_trials(shown, verbose), Text()]
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", no_wrap=True)
    head.add_column(overflow="fold")
    if len(shown) < len(report.trials):
        head.add_row("", f"{plural(len(report.trials) - len(shown), 'more group')} kept; -v shows all")
    where = ", ".join(
        filter(None, (report.provider, report.device, report.runtime and f"ONNX Runtime {report.runtime}"))
    )
    if where:
        head.add_row("measured", where)
    late = "; the time was up before all was tried, --max-time allows more" if report.out_of_time else ""
    head.add_row(
        "time",
        f"{plural(report.timings, 'timing')} in {seconds_text(report.seconds)} of {report.max_time:g} s{late}",
    )
    style = {"accepted": "bold green", "nothing to gain": "bold yellow"}.get(report.outcome, "bold red")
    head.add_row("accepted" if report.outcome == "accepted" else "outcome", _outcome(report, style))
    if plan is not None:
        head.add_row("plan", f"{plan}; --plan replays it, nothing timed")
    return Group(*parts, head)


def _outcome(report: AcceptanceReport, style: str) -> Text:
    if report.outcome != "accepted":
        return Text.assemble((report.outcome, style), f": {report.reason}")
    dropped = [trial.group for trial in report.dropped]
    if not dropped and not report.trials:
        return Text.assemble(("everything", style), f": {report.reason.partition(';')[0]}")
    return Text(f"all but {', '.join(dropped)}" if dropped else "everything", style=style)


def _most_telling(trials: tuple[Trial, ...]) -> list[Trial]:
    """What was left out or not tried, and of the rest those with figures, in the order in which they were tried."""
    spare = _SHOWN - sum(trial.outcome in _ALWAYS_SHOWN for trial in trials)
    timed = [index for index, trial in enumerate(trials) if trial.outcome not in _ALWAYS_SHOWN]
    timed.sort(key=lambda index: (math.isnan(trials[index].ratio), index))
    chosen = set(timed[: max(0, spare)])
    return [trial for index, trial in enumerate(trials) if trial.outcome in _ALWAYS_SHOWN or index in chosen]


def _trials(trials: list[Trial], verbose: int) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("without", overflow="fold")
    table.add_column("rewrites", justify="right", no_wrap=True)
    table.add_column("times as fast", justify="right", no_wrap=True)
    table.add_column("99% interval", justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold")
    if verbose:
        table.add_column("took", justify="right", no_wrap=True)
    for trial in trials:
        is_timed = not math.isnan(trial.ratio)
        plain = f"{trial.outcome}: {trial.reason}" if trial.reason and trial.outcome != "kept" else trial.outcome
        if trial.outcome == "kept":
            plain = f"kept: {trial.reason}"
        row: list[RenderableType] = [
            trial.group,
            str(trial.rewrites),
            f"{trial.ratio:.3f}" if is_timed else "-",
            f"{trial.low:.3f} to {trial.high:.3f}" if is_timed else "",
            Text(_WORDS.get(trial.outcome, plain), style=_STYLES.get(trial.outcome, "")),
        ]
        table.add_row(*row, *([seconds_text(trial.seconds)] if verbose else []))
        if verbose and trial.outcome in ("wrong", "left out", "needed"):
            table.add_row("", "", "", "", Text(trial.reason, style="dim"), "")
    return table
