"""The `graphopt` command: builds the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from graphopt.cli import bench, diff, doctor, optimize, passes, show, verify
from graphopt.cli.output import EXIT_USAGE, end_orderly, show_error
from graphopt.errors import GraphoptError, UsageError

app = typer.Typer(
    name="graphopt",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (optimize, verify, bench, passes, show, diff, doctor):
    app.command(_module.NAME)(_module.command)


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
    context.default_map = _configured(Path("pyproject.toml"))


def _configured(path: Path) -> dict[str, Any]:
    """Defaults from `[tool.graphopt.COMMAND]` of the project in the working directory.

    Raises:
        UsageError: a key is no option of its command.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        tools = tomllib.loads(text).get("tool", {})
        table = tools.get("graphopt", {}) if isinstance(tools, dict) else {}
        if not isinstance(table, dict):
            raise UsageError("[tool.graphopt] in pyproject.toml is no table; use [tool.graphopt.optimize] and the like")
    except tomllib.TOMLDecodeError as error:
        if "tool.graphopt" not in text:
            return {}
        raise UsageError(f"pyproject.toml here has [tool.graphopt] but is no valid TOML: {error}; repair it") from error
    group = typer.main.get_command(app)
    commands: dict[str, Any] = getattr(group, "commands", {})
    defaults: dict[str, Any] = {}
    for name, options in table.items():
        command = commands.get(name)
        if command is None or not isinstance(options, dict):
            raise UsageError(
                f"[tool.graphopt] has '{name}', which is no command; use [tool.graphopt.optimize] and the like"
            )
        known = {parameter.name: parameter for parameter in command.params}
        for key, value in options.items():
            parameter = known.get(key.replace("-", "_"))
            if parameter is None:
                raise UsageError(f"[tool.graphopt.{name}] has '{key}', which is no option of graphopt {name}")
            if isinstance(value, list) and not parameter.multiple:
                value = ",".join(map(str, value))
            defaults.setdefault(name, {})[parameter.name] = value
    return defaults


def main() -> NoReturn:
    """Run the command line; never returns."""
    code = EXIT_USAGE
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end_orderly)
    try:
        result = app(standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except GraphoptError as error:
        show_error(str(error))
    except (typer.Abort, KeyboardInterrupt):
        show_error("interrupted; what was not finished is not written")
        code = 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; do not complain while Python closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        show_error(f"cannot write the report: {error.strerror or error}; check where the output goes")
        code = EXIT_USAGE
    except Exception as error:
        code = _usage_or_fault(error)
    sys.exit(code)


def _usage_or_fault(error: Exception) -> int:
    """Wrong usage is told by the parser; anything else is a fault of ours, told with how to report it."""
    tell = getattr(error, "format_message", None)
    if callable(tell):
        if not tell().strip() or type(error).__name__ == "NoArgsIsHelpError":
            return EXIT_USAGE  # the help was shown
        context = getattr(error, "ctx", None)
        show_error(f"{tell()}; see {context.command_path if context else 'graphopt'} --help")
        return EXIT_USAGE
    if os.environ.get("GRAPHOPT_TRACEBACK"):
        raise error
    show_error(
        f"graphopt itself failed: {type(error).__name__}: {error}; nothing was written. "
        "Run again with GRAPHOPT_TRACEBACK=1 and report what it prints"
    )
    return EXIT_USAGE
