"""Reports for the terminal, made of rich's tables and text; plain where the output is piped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.measurements import Benchmark
from graphopt.records import DoctorReport, OptimizeReport, Verification
from graphopt.report.units import bytes_text, percent_text, plural, seconds_text, small_text

_VERDICT_STYLE = {
    "equal": "bold green",
    "different": "bold red",
    "not verified": "bold yellow",
    "faster": "bold green",
    "slower": "bold red",
}
_SUMMARY_PASSES = 8
_RULES_SHOWN = 4
_NOTES_SHOWN = 4
_MESSAGE_LENGTH = 300
_GROWTH_WORTH_A_WORD = 1.1


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _line(*parts: tuple[str, str] | str) -> Text:
    return Text.assemble(*parts)


def optimize_text(
    source: str,
    target: str | None,
    report: OptimizeReport,
    verification: Verification | None,
    benchmark: Benchmark | None,
    *,
    waived: str = "",
    verbose: int = 0,
) -> RenderableType:
    """What a run did, at most 25 lines unless `verbose`.

    Args:
        source: The model read.
        target: The file written; None for a dry run or where nothing was written.
        report: What the passes did.
        verification: The verdict, if there is one.
        benchmark: The comparison, if there is one.
        waived: Why nothing was compared, empty if it should have been.
        verbose: 1 adds every rule and every pass of every sweep, 2 every rewrite.
    """
    table = _grid()
    table.add_row("model", source)
    change = percent_text(report.nodes_before, report.nodes_after)
    table.add_row("nodes", _line(f"{report.nodes_before} → {report.nodes_after}  ", (change, "cyan")))
    table.add_row(
        "bytes",
        _line(
            f"{bytes_text(report.bytes_before)} → {bytes_text(report.bytes_after)}  ",
            (percent_text(report.bytes_before, report.bytes_after), "cyan"),
        ),
    )
    gone = _operators_gone(report.operators_before, report.operators_after)
    if gone:
        table.add_row("operators", gone)
    for name, text in _pass_rows(report, verbose):
        table.add_row(name, text)
    stopped = "" if report.converged else f", stopped by: {report.stopped_by}"
    table.add_row("passes", f"{plural(report.sweeps, 'sweep')} in {seconds_text(report.seconds)}{stopped}")
    failures = dict.fromkeys((failure.name, shortened(failure.error)) for failure in report.failures)
    for name, error in list(failures)[: None if verbose else 3]:
        table.add_row("warning", _line((f"pass {name} failed and was rolled back: {error}", "yellow")))
    folded = any(rule.startswith("constant_folding/") for rule in report.rewrites_by_rule)
    if folded and report.bytes_after > _GROWTH_WORTH_A_WORD * report.bytes_before:
        table.add_row("note", "constants computed ahead are larger than what computed them; --growth-limit 0 avoids it")
    for note in report.notes if verbose else report.notes[:_NOTES_SHOWN]:
        table.add_row("note", note)
    if not verbose and len(report.notes) > _NOTES_SHOWN:
        rest = len(report.notes) - _NOTES_SHOWN
        table.add_row("", f"and {plural(rest, 'more note')}; -v shows all")
    _verdict_rows(table, verification, waived)
    if benchmark is not None:
        _benchmark_rows(table, benchmark)
    table.add_row("written", target if target else _line(("nothing", "yellow")))
    return table


def _pass_rows(report: OptimizeReport, verbose: int) -> list[tuple[str, str]]:
    by_pass: dict[str, dict[str, int]] = {}
    for rule, count in report.rewrites_by_rule.items():
        name, _, item = rule.partition("/")
        by_pass.setdefault(name, {})[item or name] = count
    rows = []
    for name, rules in by_pass.items():
        shown = sorted(rules.items(), key=lambda entry: (-entry[1], entry[0]))
        cut = shown if verbose else shown[:_RULES_SHOWN]
        text = ", ".join(f"{item.replace('_', ' ')} {count}" for item, count in cut)
        rows.append((f"  {name.replace('_', ' ')}", text + (", …" if len(cut) < len(shown) else "")))
    if not verbose and len(rows) > _SUMMARY_PASSES:
        rest = len(rows) - _SUMMARY_PASSES
        rows = [*rows[:_SUMMARY_PASSES], ("", f"and {plural(rest, 'more pass', 'more passes')}; -v shows all")]
    if verbose:
        rows.extend(
            (
                f"  sweep {item.sweep}",
                f"{item.name}: {item.nodes_before} → {item.nodes_after}, {item.status}, {seconds_text(item.seconds)}",
            )
            for item in report.passes
        )
    if verbose >= 2:
        rows.extend(
            (f"  {item.number}", f"{item.rule}: {', '.join(item.erased) or '-'} → {', '.join(item.inserted) or '-'}")
            for item in report.rewrites
        )
    return rows


def shortened(text: str) -> str:
    """The first line of a message, and not all of a long one; runtimes write whole source lines into theirs."""
    line = text.split("\n", 1)[0]
    return line if len(line) <= _MESSAGE_LENGTH else f"{line[:_MESSAGE_LENGTH]} …"


def _operators_gone(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    changes = [(name, count, after.get(name, 0)) for name, count in before.items() if after.get(name, 0) != count]
    changes.sort(key=lambda item: (item[2] - item[1], item[0]))
    return ", ".join(f"{name} {count} → {left}" for name, count, left in changes[:5])


def _verdict_rows(table: Table, verification: Verification | None, waived: str) -> None:
    if verification is None:
        text = f"not verified ({waived})" if waived else "not verified"
        table.add_row("verdict", _line((text, _VERDICT_STYLE["not verified"])))
        return
    style = _VERDICT_STYLE[verification.verdict]
    where = f" on {verification.provider}" if verification.provider else ""
    table.add_row("verdict", _line((verification.verdict, style), f"{where}: {shortened(verification.reason)}"))
    for output in verification.outputs:
        if output.verdict == "different":
            table.add_row("", f"{output.name}: {output.reason}")
            break
    for note in verification.notes[:2]:
        table.add_row("", note)


def _benchmark_rows(table: Table, benchmark: Benchmark) -> None:
    style = _VERDICT_STYLE.get(benchmark.verdict, "bold")
    table.add_row("latency", _line((benchmark.verdict, style), f": {benchmark.reason}"))
    if benchmark.original is not None and benchmark.rewritten is not None:
        table.add_row(
            "",
            f"median {benchmark.original.median_ms:.3f} ms → {benchmark.rewritten.median_ms:.3f} ms, load "
            f"{seconds_text(benchmark.original.load_seconds)} → {seconds_text(benchmark.rewritten.load_seconds)}",
        )
    for item in benchmark.comparisons:
        found = f"{item.original:.4g} → {item.rewritten:.4g} {item.unit}, {item.ratio:.3f} times as fast"
        table.add_row(f"  {item.name}", _line((item.verdict, _VERDICT_STYLE.get(item.verdict, "bold")), f": {found}"))


def verification_text(verification: Verification, *, verbose: int = 0) -> RenderableType:
    """The verdict, what it covered, and a row for each output."""
    head = _grid()
    where = f" on {verification.provider}, ONNX Runtime {verification.runtime}" if verification.provider else ""
    head.add_row("verdict", _line((verification.verdict, _VERDICT_STYLE[verification.verdict]), where))
    head.add_row("reason", verification.reason)
    for note in verification.notes:
        head.add_row("note", note)
    parts: list[RenderableType] = [head]
    outputs = verification.outputs if verbose else verification.outputs[:20]
    if outputs:
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for column in ("output", "verdict", "error", "allowed", "optimizer off/on", "inputs + 1 ulp", "reason"):
            table.add_column(column, overflow="fold")
        for output in outputs:
            table.add_row(
                output.name,
                Text(output.verdict, style=_VERDICT_STYLE.get(output.verdict, "")),
                small_text(output.error),
                small_text(output.tolerance),
                small_text(output.floor_optimizer),
                small_text(output.floor_ulp),
                output.reason,
            )
        parts.append(table)
        if len(outputs) < len(verification.outputs):
            parts.append(Text(f"and {len(verification.outputs) - len(outputs)} more outputs; -v shows all"))
    return Group(*parts)


def doctor_text(report: DoctorReport) -> RenderableType:
    """What is installed, what really runs, and what mends what does not."""
    table = _grid()
    for finding in report.findings:
        mark = ("ok", "green") if finding.ok else ("mend", "bold yellow")
        table.add_row(finding.name, _line(mark, f"  {finding.text}"))
        if finding.remedy:
            table.add_row("", _line(("run: ", "yellow"), finding.remedy))
    return table


def diff_text(rows: Sequence[tuple[str, str, str]]) -> RenderableType:
    """Rows of what, before, after."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", "before", "after"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
