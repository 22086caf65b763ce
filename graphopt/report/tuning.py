"""A tuning for the terminal: what was found, and every candidate with what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.recipes import Recipe, TrialRecord, Tuning
from graphopt.report.units import plural, seconds_text, small_text

_STYLES = {
    "faster": "bold green",
    "slower": "dim",
    "outdone": "dim",
    "refused": "red",
    "not tried": "dim",
    "no faster": "",
}
_REASON_WIDTH = 200
_NAME_WIDTH = 46
_LEADS = ("session.", "optimization.", "mlas.")


def tuning_text(tuning: Tuning, *, verbose: int = 0) -> RenderableType:
    """The recipe, what it rests on, and all candidates."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold", no_wrap=True)
    head.add_column(overflow="fold")
    recipe = tuning.recipe
    if recipe is None:
        head.add_row("verdict", Text("nothing stays within the allowed error; no recipe is written", style="bold red"))
    else:
        _found(head, recipe)
    _allowed(head, tuning)
    for note in tuning.notes:
        head.add_row("note", note)
    count = sum(item.verdict != "not tried" for item in tuning.trials)
    refused = sum(item.verdict == "refused" for item in tuning.trials)
    head.add_row("tried", f"{plural(count, 'candidate')}, {refused} refused, in {seconds_text(tuning.seconds)}")
    if tuning.path:
        head.add_row("written", tuning.path)
        if recipe is not None and not recipe.model.is_same(recipe.original):
            head.add_row("", f"{recipe.model.file} beside it, which the recipe runs")
    parts: list[RenderableType] = [head]
    if tuning.trials:
        parts += [Text(), trials_table(tuning.trials, verbose=verbose)]
    return Group(*parts)


def _found(head: Table, recipe: Recipe) -> None:
    flat = recipe.settings.flat()
    rewritten = not recipe.model.is_same(recipe.original)
    if not flat and not rewritten:
        head.add_row("verdict", Text("nothing is faster than the runtime's defaults", style="bold"))
    else:
        head.add_row("verdict", Text(_speed(recipe), style="bold green" if recipe.low > 1 else "bold"))
        head.add_row("settings", "\n".join(f"{name} = {value}" for name, value in flat.items()) or "the defaults")
        if rewritten:
            head.add_row("model", f"{recipe.model.file}, made of {recipe.original.file}")
    head.add_row("measured", f"on {recipe.settings.provider}, ONNX Runtime {recipe.stamp.runtime}: {_device(recipe)}")
    shown = list(recipe.sizes.items())
    more = ", …" if len(shown) > 6 else ""
    head.add_row("inputs", ", ".join(f"{name} {size}" for name, size in shown[:6]) + more)


def _speed(recipe: Recipe) -> str:
    times = f"{_milliseconds(recipe.baseline_ms)} → {_milliseconds(recipe.median_ms)} ms"
    if math.isnan(recipe.low):
        return times
    word = "faster" if recipe.low > 1 else "as close to the original as asked for"
    return (
        f"{word}: {times}, {recipe.ratio:.3f} times as fast, {recipe.confidence:.0%} interval "
        f"{recipe.low:.3f} to {recipe.high:.3f}"
    )


def _device(recipe: Recipe) -> str:
    stamp = recipe.stamp
    parts = [stamp.device, stamp.driver and f"driver {stamp.driver}", stamp.cuda and f"CUDA {stamp.cuda}"]
    return ", ".join(part for part in parts if part)


def _allowed(head: Table, tuning: Tuning) -> None:
    """Errors: what the defaults do, what was allowed, what the recipe does."""
    recipe = tuning.recipe
    floor = max(tuning.floor.values(), default=0.0)
    text = f"the runtime's defaults {small_text(floor)}"
    tf32 = max(tuning.tf32_floor.values(), default=0.0)
    if tf32:
        text += f" (TF32 alone {small_text(tf32)})"
    if recipe is not None:
        allowed = max(recipe.max_error.values(), default=0.0)
        text = f"{small_text(recipe.error)} of the largest value; {text}, allowed {small_text(allowed)}"
        compared = f"compared with the original, not optimized, at {plural(len(recipe.feeds), 'set')} of inputs"
        text = f"{text}; {compared}"
    head.add_row("error", text)
    if not tuning.baseline_ok:
        head.add_row("", "the runtime's defaults are beyond what is allowed and do not count")


def trials_table(trials: Sequence[TrialRecord], *, verbose: int = 0) -> RenderableType:
    """One row a candidate, and below it why those that were refused were."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("candidate", overflow="fold")
    for name in ("error", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ratio (99%)", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for item in trials:
        table.add_row(
            change_text(item.settings, item.against, separator="\n  "),
            "-" if math.isnan(item.error) else "NaN" if math.isinf(item.error) else small_text(item.error),
            _milliseconds(item.median_ms),
            _ratio(item),
            Text(_verdict(item), style=_STYLES.get(item.verdict, "")),
        )
    parts: list[RenderableType] = [table]
    explained = [item for item in trials if item.verdict == "refused" or (verbose and item.reason)]
    if explained:
        reasons = Table.grid(padding=(0, 2))
        reasons.add_column(overflow="fold", max_width=_NAME_WIDTH)
        reasons.add_column(overflow="fold")
        for item in explained:
            text = item.reason if verbose or len(item.reason) <= _REASON_WIDTH else f"{item.reason[:_REASON_WIDTH]}…"
            reasons.add_row(change_text(item.settings, item.against, separator="\n  "), text)
        parts += [Text(), Text("why" if verbose else "refused", style="bold"), reasons]
    if any(math.isfinite(item.ratio) and not _is_full(item) for item in trials):
        parts += [Text(), Text("without ±: dismissed at a first look; + on top of the best until then", style="dim")]
    return Group(*parts)


def _verdict(item: TrialRecord) -> str:
    if item.kept:
        return "kept"
    return "too noisy" if item.reason.endswith("too noisy to say") else item.verdict


def change_text(settings: Mapping[str, str], against: Mapping[str, str], separator: str = ", ") -> str:
    """What a candidate sets: `+` on top of what is the best until then, `-` what it leaves out of that."""
    added = [_short(name, value) for name, value in settings.items() if against.get(name) != value]
    gone = [_short(name, value) for name, value in against.items() if name not in settings]
    if gone:
        return f"- {separator.join(gone)}"
    return f"{'+' if against else ' '} {separator.join(added)}" if added else "the runtime's defaults"


def _short(name: str, value: str) -> str:
    """A setting in little room; the recipe has it in full."""
    for lead in _LEADS:
        name = name.removeprefix(lead)
    return f"{name}={value.removeprefix('ORT_ENABLE_')}"


def _is_full(item: TrialRecord) -> bool:
    """Timed in full, and not dismissed at a first look."""
    return math.isfinite(item.low) and "first look" not in item.reason


def _milliseconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}" if value < 100 else f"{value:.1f}"


def _ratio(item: TrialRecord) -> str:
    """How many times faster, with the longer half of its interval."""
    if math.isnan(item.ratio):
        return "-"
    if not _is_full(item):
        return f"{item.ratio:.3f}"
    return f"{item.ratio:.3f} ± {max(item.high - item.ratio, item.ratio - item.low):.3f}"
