"""The page on other optimizers' features names passes, rules, options and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from graphopt.cli.main import app
from graphopt.pipeline import load_registry

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
RULE = re.compile(r"[a-z_0-9]+/(?:[a-z_0-9]+|\*)")
COMMAND = re.compile(r"graphopt ([a-z]+)((?: --[a-z-]+)*)")


def rows() -> list[tuple[int, list[str]]]:
    """The rows of the page's tables with their line numbers, without headers and rules."""
    found = []
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        if not line.startswith("|") or line.startswith("|---") or following.startswith("|---"):
            continue
        found.append((number, [cell.strip() for cell in line.strip("|").split("|")]))
    return found


def names(text: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def options() -> dict[str, set[str]]:
    """The options of every command."""
    group = typer.main.get_command(app)
    return {
        name: {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


def items() -> set[str]:
    """Every `pass/rule`, and `pass/*` for every pass."""
    found = set()
    for owner in load_registry().passes.values():
        found.add(f"{owner.name}/*")
        found |= {f"{owner.name}/{item.name}" for item in owner.items}
    return found


def unknown(number: int, name: str, known_items: set[str], known_options: dict[str, set[str]]) -> str | None:
    """Say what is wrong with a name of ours, or None."""
    command = COMMAND.fullmatch(name)
    if command is not None:
        if command[1] not in known_options:
            return f"line {number}: there is no command {name}"
        wrong = set(command[2].split()) - known_options[command[1]]
        return f"line {number}: {command[1]} has no option {', '.join(sorted(wrong))}" if wrong else None
    if name.startswith("--"):
        return None if name in known_options["optimize"] else f"line {number}: there is no option {name}"
    if RULE.fullmatch(name):
        return None if name in known_items else f"line {number}: there is no {name}"
    return f"line {number}: {name} is no pass/rule, option or command"


def test_every_row_says_where_or_why_not() -> None:
    for number, cells in rows():
        assert len(cells) == 3, f"line {number} has {len(cells)} cells"
        place = cells[1]
        said = names(place) or place.startswith(("not here: ", "see ["))
        assert said, f"line {number} says neither where {cells[0]} is here nor why it is not"


def test_names_exist() -> None:
    known_items, known_options = items(), options()
    wrong = []
    for number, cells in rows():
        ours = names(cells[1]) if not cells[1].startswith("not here") else []
        ours += [name for name in names(cells[2]) if RULE.fullmatch(name)]
        wrong += [problem for name in ours if (problem := unknown(number, name, known_items, known_options))]
    if wrong:
        pytest.fail("docs/features.md names what does not exist:\n" + "\n".join(wrong))
