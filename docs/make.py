#!/usr/bin/env python
"""Writes the pages that come from the code: docs/options.md and docs/passes/.

python docs/make.py            # write them
python docs/make.py --check    # exit with 1 if they are out of date
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

from graphopt import api, runtime
from graphopt.cli.main import app
from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.rewrite import LEVELS, Rule

DOCS = Path(__file__).parent
RENAMED = {"value_range": "ranges", "dim": "dims", "shape": "shapes", "load": "load_files", "no_verify": "verify"}
MADE = "<!-- made by docs/make.py; edit the code instead -->\n\n"


def options_page() -> str:
    """Every option of every command, with its name in the Python API."""
    lines = [MADE + "# Options", ""]
    lines.append(
        "Defaults may also stand in `pyproject.toml`, as `[tool.graphopt.COMMAND]` with an option's name as key."
    )
    group = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        lines += [
            "",
            f"## graphopt {name}",
            "",
            command.help or "",
            "",
            "| option | what it does | in the API |",
            "|---|---|---|",
        ]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            text = (getattr(parameter, "help", "") or "").replace("|", "\\|")
            lines.append(f"| {_spelling(parameter)} | {text} | {_api_name(name, parameter.name)} |")
    return "\n".join(lines) + "\n"


def _spelling(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    metavar = f" {parameter.metavar}" if parameter.metavar else ""
    return ", ".join(f"`{name}{metavar}`" for name in names)


def _api_name(command: str, name: str) -> str:
    functions = {
        "optimize": [("optimize", api.optimize), ("verify", runtime.verify), ("benchmark", runtime.benchmark)],
        "verify": [("verify", runtime.verify)],
        "bench": [("benchmark", runtime.benchmark)],
    }
    keyword = RENAMED.get(name, name)
    for label, function in functions.get(command, []):
        if keyword in inspect.signature(function).parameters:
            return f"`{label}({keyword}=…)`"
    return ""


def pass_page(owner: Pass) -> str:
    """One pass with its rules and their examples."""
    lines = [f"{MADE}# {owner.name}", "", inspect.getdoc(owner.module) or ""]
    for item in owner.items:
        lines += ["", f"## {item.name}", "", inspect.getdoc(item.function) or "", "", _facts(item), ""]
        lines += ["```", f"before  {_flat(item.examples.before)}", f"after   {_flat(item.examples.after)}"]
        lines += [f"not     {_flat(example)}" for example in item.examples.unless]
        lines += ["```"]
    return "\n".join(lines) + "\n"


def _facts(item: Item) -> str:
    levels = ", ".join(level for level, classes in LEVELS.items() if item.numeric in classes)
    facts = f"Class {item.numeric.value} ({item.numeric.name.lower()}); levels {levels}."
    if isinstance(item, Rule):
        first, last = item.opsets
        facts += f" Opsets {first} to {last or 'the newest'}."
    return facts


def _flat(text: str) -> str:
    return " ".join(text.split())


def index_page(passes: list[Pass]) -> str:
    """The passes in their order."""
    lines = [MADE + "# Passes", "", "In the order in which they run, swept until nothing changes.", ""]
    lines += ["| pass | rules | what it does |", "|---|---|---|"]
    lines += [f"| [{item.name}]({item.name}.md) | {len(item.items)} | {item.summary} |" for item in passes]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Every made page by its path."""
    passes = [item for name, item in load_registry().passes.items() if ":" not in name]
    made = {DOCS / "options.md": options_page(), DOCS / "passes" / "index.md": index_page(passes)}
    made.update({DOCS / "passes" / f"{item.name}.md": pass_page(item) for item in passes})
    return made


def main() -> int:
    """Write or check the pages."""
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"out of date: {path}; run python docs/make.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
