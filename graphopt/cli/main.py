"""The `graphopt` command: builds the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from graphopt.cli import bench, bisect, diff, doctor, explain, extract, optimize, passes, show, tune, verify
from graphopt.cli.configuration import configured
from graphopt.cli.output import EXIT_USAGE, end_orderly, show_error, show_json_error
from graphopt.errors import GraphoptError

app = typer.Typer(
    name="graphopt",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (optimize, verify, bench, tune, extract, explain, bisect, passes, show, diff, doctor):
    app.command(_module.NAME)(_module.command)


_INTERRUPTED = 130
_PATH_LENGTH = 200
_INTERRUPTION = "interrupted; what was not finished is not written"


def _version(wanted: bool) -> None:
    if wanted:
        from graphopt import __version__

        sys.stdout.write(f"graphopt {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Grappler for ONNX: optimize a model, prove it equal, time it against the original."""
    context.default_map = configured(Path("pyproject.toml"), getattr(typer.main.get_command(app), "commands", {}))


def main() -> NoReturn:
    """Run the command line; never returns."""
    code = EXIT_USAGE
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end_orderly)
    try:
        result = app(standalone_mode=False)
        code = result if isinstance(result, int) else 0
        if code == _INTERRUPTED:  # typer has caught the interrupt
            _tell(_INTERRUPTION, code)
    except GraphoptError as error:
        _tell(str(error), code)
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
        _tell(_INTERRUPTION, code)
    except SystemExit as stop:
        # rich and typer leave with 1 where whoever reads our output has seen enough, as `graphopt --help | head` does.
        code = 0 if stop.code == 1 else _code_of(stop)
    except BrokenPipeError:
        # Whoever read our output has seen enough; do not complain while Python closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.filename is not None:  # a file that an option names
            _tell(f"cannot use {_shortened(str(error.filename))}: {error.strerror}; check the path", code)
        else:
            show_error(f"cannot write the report: {error.strerror or error}; check where the output goes")
        code = EXIT_USAGE
    except Exception as error:
        code = _usage_or_fault(error)
    sys.exit(code)


def _tell(message: str, code: int) -> None:
    """An error on stderr, and where a document was asked for, as one on stdout: whoever parses it finds one always."""
    show_error(message)
    if _wants_json():
        with suppress(OSError):  # nobody reads stdout any more
            show_json_error(message, code)


def _wants_json() -> bool:
    words = sys.argv[1:]
    words = words[: words.index("--")] if "--" in words else words
    if "--json" in words:
        return True
    commands = getattr(typer.main.get_command(app), "commands", {})
    named = next((word for word in words if word in commands), "")
    try:
        return bool(configured(Path("pyproject.toml"), commands).get(named, {}).get("json"))
    except GraphoptError:
        return False


def _shortened(path: str) -> str:
    return f"'{path}'" if len(path) <= _PATH_LENGTH else f"'{path[:_PATH_LENGTH]}…'"


def _code_of(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else EXIT_USAGE


def _usage_or_fault(error: Exception) -> int:
    """Wrong usage is told by the parser; anything else is a fault of ours, told with how to report it."""
    tell = getattr(error, "format_message", None)
    if callable(tell):
        if not tell().strip() or type(error).__name__ == "NoArgsIsHelpError":
            return EXIT_USAGE  # the help was shown
        context = getattr(error, "ctx", None)
        _tell(f"{tell().rstrip('.')}; see {context.command_path if context else 'graphopt'} --help", EXIT_USAGE)
        return EXIT_USAGE
    if os.environ.get("GRAPHOPT_TRACEBACK"):
        raise error
    _tell(
        f"graphopt itself failed: {type(error).__name__}: {error}; nothing was written. "
        "Run again with GRAPHOPT_TRACEBACK=1 and report what it prints",
        EXIT_USAGE,
    )
    return EXIT_USAGE
