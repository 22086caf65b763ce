"""What a bisection found, as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.records import Bisection


def bisection_text(found: Bisection) -> RenderableType:
    """The rewrite, what is wrong after it, and where the small model lies."""
    grid = _grid()
    if not found.found:
        style = "green" if found.trials == 1 else "red"
        grid.add_row("verdict", Text(found.reason, style=style))
        grid.add_row("rewrites", str(found.rewrites))
        return grid
    _add_rewrite(grid, found)
    grid.add_row("without it", f"graphopt optimize … --disable {found.rule}")
    grid.add_row("looked at", f"{found.trials} models")
    return grid


def guilty_text(found: Bisection) -> RenderableType:
    """What was found at the end of a run whose result differs."""
    grid = _grid()
    if found.found:
        _add_rewrite(grid, found)
    else:
        grid.add_row("first bad", Text(f"not found: {found.reason}", style="yellow"))
    return grid


def _add_rewrite(grid: Table, found: Bisection) -> None:
    grid.add_row("first bad", Text(f"rewrite {found.number} of {found.rewrites}, by {found.rule}", style="red"))
    grid.add_row("nodes", _change(found))
    grid.add_row("reason", found.reason)
    if found.reproducer is None:
        grid.add_row("reproducer", "none: the rule, alone on a part of the model, breaks nothing")
        return
    weights = ", weights replaced by random ones" if found.weights_stripped else ""
    count = f"{found.reproducer_nodes} {'node' if found.reproducer_nodes == 1 else 'nodes'}"
    grid.add_row("reproducer", f"{found.reproducer} ({count}{weights})")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _change(found: Bisection) -> str:
    gone = ", ".join(found.erased[:8]) + (", …" if len(found.erased) > 8 else "")
    made = ", ".join(found.inserted[:8]) + (", …" if len(found.inserted) > 8 else "")
    return f"{gone or 'none'} → {made or 'nothing new'}"
