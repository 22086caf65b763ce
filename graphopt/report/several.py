"""The table at the end of a run over several models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from graphopt.report.units import bytes_text, percent_text


def several_text(outcomes: Sequence[Any]) -> RenderableType:
    """A row for each model: nodes, bytes, verdict, exit code."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("model", "nodes", "", "bytes", "verdict", "exit"):
        table.add_column(column, overflow="fold")
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            table.add_row(outcome.job.source, "", "", "", outcome.error, str(outcome.code))
            continue
        verdict = "not verified" if outcome.verification is None else outcome.verification.verdict
        table.add_row(
            outcome.job.source,
            f"{report.nodes_before} → {report.nodes_after}",
            percent_text(report.nodes_before, report.nodes_after),
            f"{bytes_text(report.bytes_before)} → {bytes_text(report.bytes_after)}",
            verdict,
            str(outcome.code),
        )
    return table
