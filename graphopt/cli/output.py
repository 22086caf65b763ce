"""Where text goes: reports and JSON to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType

EXIT_OK, EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOT_CONVERGED, EXIT_NOT_VERIFIED, EXIT_SLOWER = range(6)
_PLAIN_WIDTH = 120


def console() -> Console:
    """The console reports are printed on; plain, and wide enough to keep lines whole, where stdout is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """Print a report."""
    console().print(renderable)


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document, alone on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def show_error(message: str) -> None:
    """Print an error, one line on stderr."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    errors.print(f"[bold red]error:[/] {_escaped(' '.join(message.split()))}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


class Ticker:
    """Says what is going on, where somebody is watching."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def say(self, text: str) -> None:
        """Replace the line."""
        if self._status is not None:
            self._status.update(f"[dim]{_escaped(text)}[/]")


@contextmanager
def progress(text: str, *, quiet: bool) -> Iterator[Ticker]:
    """A line on stderr while the block runs, if stderr is a terminal."""
    errors = Console(stderr=True)
    if quiet or not errors.is_terminal:
        yield Ticker(None)
        return
    with errors.status(f"[dim]{_escaped(text)}[/]") as status:
        yield Ticker(status)
