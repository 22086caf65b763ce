"""Defaults of options out of `[tool.graphopt]` in `pyproject.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError


def configured(path: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Defaults by command and parameter.

    `[tool.graphopt.COMMAND]` holds options of one command, `[tool.graphopt]` itself those of every command that has
    them. A list stands for an option given several times or separated by commas, a table for `NAME=VALUE` pairs.

    Args:
        path: The project's file; nothing is configured where it is missing.
        commands: The commands of the command line by name.

    Raises:
        UsageError: a key is no option of its command, or a value does not fit it.
    """
    known = {name: _options(command) for name, command in commands.items()}
    defaults: dict[str, dict[str, Any]] = {}
    for key, value in _table(path).items():
        if key in known and isinstance(value, dict):
            for option, setting in value.items():
                if _plain(option) not in known[key]:
                    raise UsageError(
                        f"[tool.graphopt.{key}] has '{option}', which is no option of graphopt {key}; "
                        f"see graphopt {key} --help"
                    )
                _set(defaults, key, known[key], option, setting)
            continue
        having = [name for name, options in known.items() if _plain(key) in options]
        if not having:
            raise UsageError(
                f"[tool.graphopt] has '{key}', which is no command and no option; "
                "use [tool.graphopt.optimize] and the like"
            )
        for name in having:
            if _plain(key) not in {_plain(option) for option in _own(path, name)}:  # the command's own word goes first
                _set(defaults, name, known[name], key, value)
    return defaults


def _own(path: Path, command: str) -> dict[str, Any]:
    table = _table(path).get(command)
    return table if isinstance(table, dict) else {}


def _table(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    try:
        tools = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        if "tool.graphopt" not in text:
            return {}
        raise UsageError(f"pyproject.toml here has [tool.graphopt] but is no valid TOML: {error}; repair it") from error
    table = tools.get("graphopt", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UsageError("[tool.graphopt] in pyproject.toml is no table; use [tool.graphopt.optimize] and the like")
    return table


def _options(command: Any) -> dict[str, tuple[Any, bool]]:
    """Spellings of a command's options to the parameter, and whether the spelling is the one that switches it off."""
    found: dict[str, tuple[Any, bool]] = {}
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            found.update({_plain(name): (parameter, True) for name in parameter.secondary_opts})
            found.update({_plain(name): (parameter, False) for name in parameter.opts if name.startswith("--")})
            found.setdefault(parameter.name, (parameter, False))
    return found


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _set(
    defaults: dict[str, dict[str, Any]], command: str, options: Mapping[str, tuple[Any, bool]], key: str, value: Any
) -> None:
    parameter, is_off = options[_plain(key)]
    if is_off and not isinstance(value, bool):
        raise UsageError(f"'{key}' in [tool.graphopt] of pyproject.toml is true or false; mend it")
    if parameter.multiple:
        if isinstance(value, dict):
            value = [f"{name}={_text(item, _plain(key))}" for name, item in value.items()]
        value = [str(item) for item in (value if isinstance(value, list) else [value])]
    elif isinstance(value, dict):
        raise UsageError(f"'{key}' in [tool.graphopt] of pyproject.toml takes one value, not a table; mend it")
    elif isinstance(value, list):
        value = ",".join(map(str, value))
    defaults.setdefault(command, {})[parameter.name] = not value if is_off else value


def _text(item: Any, option: str) -> str:
    """The value of a pair as it is typed: `1,3,224,224`, or `0:255` for a range."""
    return (":" if option == "range" else ",").join(map(str, item)) if isinstance(item, list) else str(item)
