"""What an unknown name was likely meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 8
_SEARCHED = 20_000  # comparing with more names takes longer than anybody waits


def choices(what: str, name: str, names: Iterable[str | None]) -> str:
    """The end of a message about an unknown name: the nearest one there is, or the first few.

    Args:
        what: What the names are, in plural.
        name: The one that is unknown.
        names: Those there are.
    """
    known = sorted(item for item in names if item)
    close = difflib.get_close_matches(name, known[:_SEARCHED], n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
    return f"{what} are: {shown}" if known else f"the model has no {what}"
