"""Reports for the terminal, made of rich's tables and text; plain where the output is piped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.measurements import Benchmark
from graphopt.records import DoctorReport, GenerationRecord, OptimizeReport, OutputDiff, Verification
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
_OUTPUTS_SHOWN = 20
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


def failures_text(report: OptimizeReport, own: Sequence[str] = (), *, verbose: int = 0) -> RenderableType:
    """Which passes failed, where, and how to go on without them; the last thing a reader sees.

    Args:
        report: What the passes did.
        own: The passes among them that the user brought.
        verbose: 1 shows all of them.
    """
    table = _grid()
    failures = {failure.name: shortened(failure.error) for failure in report.failures}
    for name, error in list(failures.items())[: None if verbose else 3]:
        whose = "your pass" if name in own else "pass"
        table.add_row("warning", _line((f"{whose} {name} failed and was rolled back: {error}", "yellow")))
    rest = len(failures) - (len(failures) if verbose else 3)
    if rest > 0:
        table.add_row("", f"and {plural(rest, 'more pass', 'more passes')}; -v shows all")
    names = ",".join(failures)
    table.add_row(
        "",
        f"the result is that of the other passes; --skip {names} leaves {'it' if len(failures) == 1 else 'them'} out, "
        "--strict stops there",
    )
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
    """The verdict, what it covered, and a row for each output; of several providers, one after the other."""
    if not verification.parts:
        return _part_text(verification, verbose)
    head = _grid()
    head.add_row("verdict", _line((verification.verdict, _VERDICT_STYLE[verification.verdict])))
    head.add_row("reason", verification.reason)
    parts: list[RenderableType] = [head]
    for part in verification.parts:
        parts += [Text(), Text(part.provider_asked, style="bold cyan"), _part_text(part, verbose)]
    return Group(*parts)


def _part_text(verification: Verification, verbose: int) -> RenderableType:
    head = _grid()
    where = f" on {verification.provider}, ONNX Runtime {verification.runtime}" if verification.provider else ""
    if verification.against and where:
        where += ", against another runtime"
    head.add_row("verdict", _line((verification.verdict, _VERDICT_STYLE[verification.verdict]), where))
    head.add_row("reason", verification.reason)
    if verification.against:
        head.add_row("command", verification.against)
    if verification.provider_options:
        head.add_row("options", ", ".join(f"{name}={value}" for name, value in verification.provider_options.items()))
    if verification.generation is not None:
        head.add_row("generation", _generation_line(verification.generation))
    if verification.inner:
        off = sum(item.verdict == "different" for item in verification.inner)
        found = f"{off} of them off" if off else "all of them agree"
        head.add_row("inside", f"{plural(len(verification.inner), 'inner value')} compared, {found}")
    extra = verification.adversarial
    if extra is not None:
        style = _VERDICT_STYLE[extra.verdict]
        head.add_row("adversarial", _line((extra.verdict, style), f": {extra.reason}"))
    for row in _floor_rows(verification):
        head.add_row(*row)
    for note in verification.notes:
        head.add_row("note", note)
    parts: list[RenderableType] = [head]
    outputs = verification.outputs if verbose else verification.outputs[:_OUTPUTS_SHOWN]
    if outputs:
        parts += [Text(), _outputs_table("output", outputs, verbose)]
        if len(outputs) < len(verification.outputs):
            parts.append(Text(f"and {len(verification.outputs) - len(outputs)} more outputs; -v shows all"))
    inner = [item for item in verification.inner if verbose or item.verdict == "different"]
    if inner:
        parts += [Text(), _outputs_table("inner value", inner, verbose)]
    return Group(*parts)


def _floor_rows(verification: Verification) -> list[tuple[str, str]]:
    """How far the original is from itself; what was not measured does not show."""
    floors = [f"{small_text(floor.value)} {floor.name}" for floor in verification.floors]
    return [("noise", f"{', '.join(floors)}; as shares of an output's largest value")] if floors else []


def _outputs_table(title: str, outputs: Sequence[OutputDiff], verbose: int) -> Table:
    """A row for each output; columns in which nothing stands are left out."""
    columns: dict[str, list[float | None]] = {
        "error": [output.error for output in outputs],
        "allowed": [output.tolerance for output in outputs],
        "final run": [output.error_as_users_run for output in outputs],
        "allowed then": [output.tolerance_as_users_run for output in outputs],
    }
    if verbose:
        columns |= {
            "sessions": [output.floor_sessions for output in outputs],
            "off/on": [output.floor_optimizer for output in outputs],
            "+1 ulp": [output.floor_ulp for output in outputs],
            "TF32": [output.floor_tf32 for output in outputs],
        }
    columns = {name: found for name, found in columns.items() if any(item is not None for item in found)}
    # In detail the numbers say it.
    told = not verbose or any(output.verdict != "equal" for output in outputs)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in (title, "verdict"):
        table.add_column(name, overflow="fold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    if told:
        table.add_column("reason", overflow="fold")
    for place, output in enumerate(outputs):
        verdict = Text(output.verdict, style=_VERDICT_STYLE.get(output.verdict, ""))
        numbers = [small_text(found[place]) for found in columns.values()]
        table.add_row(output.name, verdict, *numbers, *([output.reason] if told else []))
    return table


def _generation_line(generation: GenerationRecord) -> str:
    """What was generated, and whether the tokens are the same."""
    prompt = "a prefill" if generation.prefill else "a past"
    chunk = f", {generation.chunk} more at once" if generation.chunk else ""
    tokens = "tokens drawn at random, for no output has a score for each"
    if generation.tokens_equal is not None:
        tied = f"same tokens but for {generation.ties} at a tie" if generation.ties else "other tokens"
        tokens = "same tokens" if generation.tokens_equal else tied
    return (
        f"{prompt} of {generation.prompt} tokens{chunk}, {generation.steps} steps, {generation.caches} caches; {tokens}"
    )


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
