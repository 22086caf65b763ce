"""Where text goes: reports and JSON to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NoReturn, TextIO

from rich.console import Console, RenderableType

EXIT_OK, EXIT_DIFFERENT, EXIT_USAGE, EXIT_NOT_CONVERGED, EXIT_NOT_VERIFIED, EXIT_SLOWER = range(6)
_PLAIN_WIDTH = 120
_LEAST_WIDTH = 20
_ORDERLY_SECONDS = 3.0


def console() -> Console:
    """The console reports are printed on; plain, and wide enough to keep lines whole, where stdout is no terminal."""
    return Console(width=width_of(sys.stdout), highlight=False, markup=False, soft_wrap=False)


def width_of(stream: TextIO) -> int | None:
    """Columns to print to a stream in: None leaves it to the terminal, and elsewhere COLUMNS has the word."""
    if stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) >= _LEAST_WIDTH else _PLAIN_WIDTH


def show(renderable: RenderableType) -> None:
    """Print a report; piped, without the blanks that fill a line."""
    screen = console()
    if screen.is_terminal:
        screen.print(renderable)
        return
    with screen.capture() as captured:
        screen.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    sys.stdout.flush()


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document, alone on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def show_json_error(message: str, code: int) -> None:
    """Print the document that stands in place of a result where a command could not do what it was asked for."""
    show_json({"schema": "graphopt.error", "schema_version": 1, "error": " ".join(message.split()), "exit_code": code})


def show_error(message: str) -> None:
    """Print an error, one line on stderr."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    errors.print(f"[bold red]error:[/] {_escaped(' '.join(message.split()))}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def guests_on_stderr() -> Iterator[None]:
    """Send to stderr what the user's own rules and data scripts print, so that stdout holds the report alone."""
    with redirect_stdout(sys.stderr):
        yield


def leave_quietly() -> None:
    """In a process of a pool: leave interrupts to the parent, and turn its word to end into an orderly exit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_orderly)


def end_orderly(number: int, frame: object) -> NoReturn:
    """A signal handler: leave by an exception, so that passing files go and the runtime's process ends.

    Python drops an exception that reaches it in a callback, and a pipe nobody reads any more blocks: if the exit takes
    longer than it should, the process ends all the same.
    """
    last_resort = threading.Timer(_ORDERLY_SECONDS, os._exit, [128 + number])
    last_resort.daemon = True
    last_resort.start()
    raise SystemExit(128 + number)


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
