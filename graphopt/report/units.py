"""Numbers for people."""

from __future__ import annotations

import math


def bytes_text(count: int) -> str:
    """A size, `1.5 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def percent_text(before: int, after: int) -> str:
    """How much less or more, `-42 %`; empty where there was nothing."""
    return "" if before == 0 else f"{100 * (after - before) / before:+.0f} %"


def seconds_text(seconds: float) -> str:
    """A duration, `0.31 s` or `12 ms`."""
    if math.isnan(seconds):
        return "?"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def small_text(value: float | None) -> str:
    """A relative error, `4.1e-07`, or `0`."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.1e}"


def plural(count: int, word: str, words: str | None = None) -> str:
    """A count with its word, `1 graph` or `2 graphs`."""
    return f"{count} {word if count == 1 else words or word + 's'}"
