"""Comparisons as a picture, with matplotlib, which is an extra."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from graphopt.errors import OutputError, UsageError
from graphopt.measurements import Benchmark, Sweep

FORMATS = (".svg", ".png", ".pdf")
_MARGIN = 0.02
_COLOURS = ("#4c72b0", "#dd8452")


def require_plotting(path: Path) -> None:
    """Refuse before anything is measured what could not be drawn.

    Raises:
        UsageError: matplotlib is missing, or the file's ending names no format.
        OutputError: The folder does not exist.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot writes {', '.join(FORMATS)}, not '{path.name}'; choose one of these endings")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"cannot write '{path}': there is no folder '{path.parent}'; create it first")
    _matplotlib("matplotlib.figure")


def plot(result: Benchmark | Sweep, path: Path) -> None:
    """Draw a comparison: the runs of both sides as distributions, or the ratio along a sweep with its intervals.

    Raises:
        UsageError: matplotlib is missing.
        OutputError: The file cannot be written.
    """
    figure = _matplotlib("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    if isinstance(result, Sweep):
        _sweep(figure.add_subplot(), result)
    else:
        _distributions(figure.add_subplot(), result)
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error.strerror}; choose another place") from error


def _matplotlib(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"--plot needs matplotlib ({error}); install it with: pip install 'graphopt[plot]'  "
            "(in a clone: pip install -e '.[plot]')"
        ) from error


def _distributions(axes: Any, result: Benchmark) -> None:
    """Share of runs that took no longer, one thin line for each session: sessions differ, and that is to be seen."""
    for side, colour in zip((result.original, result.rewritten), _COLOURS, strict=True):
        if side is None:
            continue
        label = Path(side.label).name
        for number, session in enumerate(side.samples):
            ordered = sorted(1e3 * seconds for seconds in session)
            shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
            axes.plot(ordered, shares, color=colour, alpha=0.6, lw=1, label="" if number else label)
        axes.axvline(side.median_ms, color=colour, ls="--", lw=1)
    if result.original is not None and result.rewritten is not None:
        axes.set_xlim(0, 1.3 * max(result.original.p90_ms, result.rewritten.p90_ms))
        axes.legend(loc="lower right")
    axes.set_xlabel("milliseconds of a run")
    axes.set_ylabel("share of runs that took no longer")
    axes.set_title(f"{result.verdict}: {result.ratio:.3f} times as fast ({result.low:.3f} to {result.high:.3f})")


def _sweep(axes: Any, result: Sweep) -> None:
    points = [point for point in result.points if point.provider]
    places = list(range(len(points)))
    labels = ["\n".join(f"{name} {size}" for name, size in point.dims.items()) for point in points]
    axes.axhspan(1 - _MARGIN, 1 + _MARGIN, color="0.9")
    axes.axhline(1, color="0.5", lw=1)
    ratios = [point.ratio for point in points]
    below = [point.ratio - point.low for point in points]
    above = [point.high - point.ratio for point in points]
    axes.errorbar(places, ratios, yerr=[below, above], fmt="o", capsize=4, color=_COLOURS[0])
    axes.set_xticks(places, labels)
    axes.set_ylabel("times as fast, 99% interval")
    axes.set_title("original over rewritten time")
