"""Comparisons of speed for the terminal: verdict, both sides, sweeps, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.measurements import Benchmark, LatencySide, Profile, ProfileRow, Sweep
from graphopt.report.units import bytes_text, seconds_text

STYLES = {"faster": "bold green", "slower": "bold red"}
_ROWS_SHOWN = 10
_NAME_WIDTH = 60
_WHOLE = ("original", "rewritten", "before", "after", "share", "calls", "ratio", "99% interval")
_LEFT = ("measured", "verdict")


def benchmark_text(benchmark: Benchmark, *, verbose: int = 0) -> RenderableType:
    """The comparison: the verdict, both sides, what else was measured, where the time goes."""
    head = _grid()
    head.add_row("verdict", Text(benchmark.verdict, style=STYLES.get(benchmark.verdict, "bold")))
    head.add_row("reason", benchmark.reason)
    if benchmark.provider:
        head.add_row("measured", _circumstances(benchmark))
    if benchmark.sizes:
        shown = list(benchmark.sizes.items())[: None if verbose else 6]
        rest = ", …" if len(shown) < len(benchmark.sizes) else ""
        head.add_row("inputs", ", ".join(f"{name} {size}" for name, size in shown) + rest)
    for note in dict.fromkeys([*benchmark.notes, *_unknown(benchmark)]):
        head.add_row("note", note)
    if benchmark.runtime_does:
        done = ", ".join(f"{name} {was} → {now}" for name, (was, now) in list(benchmark.runtime_does.items())[:8])
        head.add_row("at load", f"the runtime itself does: {done}")
    parts: list[RenderableType] = [head]
    if benchmark.original is not None and benchmark.rewritten is not None:
        parts += [Text(), _sides(benchmark.original, benchmark.rewritten)]
    if benchmark.comparisons:
        parts += [Text(), _comparisons([benchmark])]
    if benchmark.profile is not None:
        parts += [Text(), profile_text(benchmark.profile, verbose=verbose)]
    return Group(*parts)


def sweep_text(sweep: Sweep, *, verbose: int = 0) -> RenderableType:
    """One row for each point, then what else was measured."""
    points = sweep.points
    parts: list[RenderableType] = []
    measured = [point for point in points if point.provider]
    if measured:
        head = _grid()
        head.add_row("measured", _circumstances(measured[0]))
        for note in dict.fromkeys(note for point in points for note in (*point.notes, *_unknown(point))):
            head.add_row("note", note)
        parts += [head, Text()]
    names = list(dict.fromkeys(name for point in points for name in point.dims))
    table = _table(*names, "original", "rewritten", "ratio", "99% interval", "verdict", left=("verdict",))
    for point in points:
        table.add_row(
            *(str(point.dims.get(name, "")) for name in names),
            _milliseconds(point.original.median_ms if point.original else math.nan),
            _milliseconds(point.rewritten.median_ms if point.rewritten else math.nan),
            _ratio(point.ratio),
            _interval(point.low, point.high),
            _verdict(point.verdict) if point.provider else Text(f"{point.verdict}: {point.reason}"),
        )
    parts.append(table)
    if any(point.comparisons for point in points):
        parts += [Text(), _comparisons(points, names)]
    for point in points:
        if point.profile is not None:
            title = ", ".join(f"{name} {size}" for name, size in point.dims.items())
            parts += [Text(), Text(title, style="bold"), profile_text(point.profile, verbose=verbose)]
    return Group(*parts)


def profile_text(profile: Profile, *, verbose: int = 0) -> RenderableType:
    """The top rows of a profile: by operator, by kernel, by rewrite; the single nodes, too, if `verbose`."""
    where = "kernels on the device" if profile.clock == "device" else "nodes on the host"
    parts: list[RenderableType] = [
        Text(
            f"profile: time of {where} in a typical run of {profile.runs}, "
            f"{profile.original_ms:.3f} ms → {profile.rewritten_ms:.3f} ms; profiled runs are slower than plain ones"
        )
    ]
    for title, rows in (
        ("operator", profile.operators),
        ("kernel", profile.kernels),
        ("rewrite", profile.rewrites),
        ("node", profile.nodes if verbose else ()),
    ):
        if rows:
            parts += [Text(), _profile_rows(title, rows, None if verbose else _ROWS_SHOWN)]
    return Group(*parts)


def _profile_rows(title: str, rows: Sequence[ProfileRow], limit: int | None) -> Table:
    table = _table(title, "before", "share", "calls", "after", "share", "calls", left=(title,))
    for row in rows[:limit]:
        table.add_row(
            _shortened(row.name),
            *_figures(row.original_ms, row.original_share, row.original_count),
            *_figures(row.rewritten_ms, row.rewritten_share, row.rewritten_count),
        )
    rest = rows[limit:] if limit is not None else ()
    if rest:
        table.add_row(
            f"{len(rest)} more; -v shows all",
            *_figures(
                sum(row.original_ms for row in rest),
                sum(row.original_share for row in rest),
                sum(row.original_count for row in rest),
            ),
            *_figures(
                sum(row.rewritten_ms for row in rest),
                sum(row.rewritten_share for row in rest),
                sum(row.rewritten_count for row in rest),
            ),
        )
    return table


def _figures(milliseconds: float, share: float, count: int) -> tuple[str, str, str]:
    if not count and not milliseconds:
        return "-", "", ""
    return _milliseconds(milliseconds), f"{share:.1%}", str(count)


def _shortened(name: str) -> str:
    """A name that fits a column; of a kernel's, the end is arguments of templates."""
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _table(*columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in left else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in _WHOLE)
    return table


def _circumstances(benchmark: Benchmark) -> str:
    threads = f"{benchmark.threads} threads" if benchmark.threads > 1 else "1 thread" if benchmark.threads else ""
    return f"{benchmark.provider}, ONNX Runtime {benchmark.runtime}, {threads or 'default threads'}"


def _unknown(benchmark: Benchmark) -> list[str]:
    """Why figures are missing that a reader looks for; a model on the CPU has no device memory, which is no news."""
    words = {"peak_bytes": "peak memory", "device_bytes": "device memory", "placement": "placement"}
    return [
        f"{words.get(name, name)}: not known, {why}"
        for side in (benchmark.original, benchmark.rewritten)
        if side is not None
        for name, why in side.unknown.items()
        if not (name == "device_bytes" and benchmark.provider.startswith("CPU"))
    ]


def _sides(original: LatencySide, rewritten: LatencySide) -> Table:
    """Figures down, the two models across: it fits a narrow terminal, and a reader compares along a line."""
    sides = (original, rewritten)
    table = _table("", original.label, rewritten.label, left=("",))
    table.add_row("median", *(_milliseconds(side.median_ms) for side in sides))
    table.add_row("p90", *(_milliseconds(side.p90_ms) for side in sides))
    table.add_row("p99", *(_milliseconds(side.p99_ms) for side in sides))
    table.add_row("runs in sessions", *(f"{side.runs} in {side.sessions}" for side in sides))
    table.add_row("first run", *(_milliseconds(side.first_run_ms) for side in sides))
    table.add_row("load", *(seconds_text(side.load_seconds) for side in sides))
    table.add_row("file", *(bytes_text(side.file_bytes) for side in sides))
    table.add_row("peak memory", *(_bytes(side.peak_bytes) for side in sides))
    if any(side.device_bytes is not None for side in sides):
        table.add_row("device memory", *(_bytes(side.device_bytes) for side in sides))
    placed = [side.placement for side in sides if side.placement is not None]
    if len(placed) == len(sides):
        table.add_row("nodes that run", *(str(place.nodes) for place in placed))
        if any(place.copies for place in placed):
            table.add_row("copies to and from host", *(str(place.copies) for place in placed))
        for provider in dict.fromkeys(name for place in placed for name in place.providers):
            short = provider.removesuffix("ExecutionProvider")
            table.add_row(f"nodes on {short}", *(str(place.providers.get(provider, 0)) for place in placed))
        if any(place.on_host for place in placed):
            table.add_row("operators left to the CPU", *(_most(place.on_host) for place in placed))
    return table


def _most(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in list(counts.items())[:4]]
    return ", ".join(shown) + (", …" if len(counts) > len(shown) else "")


def _comparisons(points: Sequence[Benchmark], names: Sequence[str] = ()) -> RenderableType:
    table = _table(*names, "measured", "original", "rewritten", "ratio", "99% interval", "verdict", left=_LEFT)
    details: dict[str, dict[str, None]] = {}
    for point in points:
        for item in point.comparisons:
            details.setdefault(item.name, {})[item.detail] = None
            table.add_row(
                *(str(point.dims.get(name, "")) for name in names),
                f"{item.name}, {item.unit}",
                _number(item.original),
                _number(item.rewritten),
                _ratio(item.ratio),
                _interval(item.low, item.high),
                _verdict(item.verdict),
            )
    # Along a sweep the dims say it where the details differ.
    how = [f"{name}: {next(iter(told))}" for name, told in details.items() if len(told) == 1]
    return Group(table, Text(f"({'; '.join(how)})", style="dim")) if how else table


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=STYLES.get(verdict, ""))


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.1f}" if value < 10000 else f"{value:.0f}"


def _milliseconds(value: float) -> str:
    return "?" if math.isnan(value) else f"{value:.3f} ms"


def _ratio(value: float) -> str:
    return "?" if math.isnan(value) else f"{value:.3f}"


def _interval(low: float, high: float) -> str:
    return "?" if math.isnan(low) else f"{low:.3f} to {high:.3f}"


def _bytes(count: int | None) -> str:
    return "?" if count is None else bytes_text(count)
