#!/usr/bin/env python
"""Writes the pages that come from the code: docs/options.md and docs/passes/.

python docs/make.py            # write them
python docs/make.py --check    # exit with 1 if they are out of date
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer

from graphopt import api, runtime, tuning
from graphopt.cli.main import app
from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.report.catalogue import classes_text
from graphopt.rewrite import Rule

DOCS = Path(__file__).parent
RENAMED = {
    "value_range": "ranges",
    "provider_option": "provider_options",
    "dim": "dims",
    "shape": "shapes",
    "load": "load_files",
    "no_verify": "verify",
    "fix_dim": "fix_dims",
    "fix_shape": "fix_shapes",
    "add_output": "add_outputs",
    "io_dtype": "io_dtypes",
    "sources": "model",
    "source": "model",
}
_MANY = 25
"""Options from which on they stand under headings."""
_NEAR_MISSES = 1
"""Examples of a rule that its page shows of what stays as it is; `graphopt passes` shows all of them."""
FAMILIES = {
    "What nobody needs": ("pruning", "common_subexpressions", "branches", "loops"),
    "Constants and shapes": ("constant_folding", "shapes", "shape_readers", "single_numbers", "fills", "lookups"),
    "Operators that do nothing": (
        "identities",
        "trivial_arithmetic",
        "neutral_elements",
        "absorbing_elements",
        "casts",
        "broadcasting",
        "expansions",
        "idle_masks",
    ),
    "Algebra": (
        "involutions",
        "comparisons",
        "clipping",
        "variadic",
        "reductions",
        "constant_chains",
        "meeting_scales",
        "rotation_signs",
    ),
    "Moving data": (
        "slicing",
        "concatenation",
        "splitting",
        "overwriting",
        "caches",
        "stacking",
        "sequences",
        "hoisting",
        "movements",
        "padding",
        "casts",
        "views",
        "viewed_products",
        "twin_views",
        "layout",
    ),
    "Layers and their weights": (
        "batch_normalization",
        "layer_scales",
        "layer_biases",
        "viewed_layers",
        "projections",
    ),
    "The form of the model": ("functions", "lowering", "opset", "modern_operators", "naming"),
}
"""Passes by what they are about; a new one stands at the end until it is put here."""
MADE = "<!-- made by docs/make.py; edit the code instead -->\n\n"


def options_page() -> str:
    """Every option of every command, with its name in the Python API."""
    lines = [MADE + "# Options", ""]
    lines += [
        "Defaults may also stand in `pyproject.toml` in the folder graphopt is called from:",
        "`[tool.graphopt.COMMAND]` holds options of a command by name, `[tool.graphopt]` those of every command that",
        "has them. A list stands for an option given several times or separated by commas, a table for `NAME=VALUE`",
        "pairs; what is typed goes before all of it.",
        "",
        "```toml",
        "[tool.graphopt]",
        'provider = "cpu"',
        "",
        "[tool.graphopt.optimize]",
        'skip = ["naming"]',
        "fix-dim = { batch = 1 }",
        'io-dtype = { image = "uint8" }',
        "```",
    ]
    group = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        lines += ["", f"## graphopt {name}", "", command.help or ""]
        parts: dict[str, list[Any]] = {}
        for parameter in command.params:
            if parameter.name != "help":
                parts.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
        if len(command.params) < _MANY:
            parts = {"": [parameter for members in parts.values() for parameter in members]}
        for part, members in parts.items():
            lines += ["", f"### {part}"] if part else []
            lines += ["", "| option | what it does | in the API |", "|---|---|---|"]
            lines += [_row(name, parameter) for parameter in members]
    return "\n".join(lines) + "\n"


def _row(command: str, parameter: Any) -> str:
    text = (getattr(parameter, "help", "") or "").replace("|", "\\|")
    return f"| {_spelling(parameter)} | {text} | {_api_name(command, parameter.name)} |"


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
        "bench": [("benchmark", runtime.benchmark), ("sweep", runtime.sweep)],
        "extract": [("extract", api.extract)],
        "explain": [("explain", api.explain)],
        "tune": [("tune", tuning.tune)],
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
        before, *others = map(_flat, (item.examples.before, item.examples.after, *item.examples.unless))
        after, *unless = (_body(example, before) for example in others)
        lines += ["```", f"before  {before}", f"after   {after}"]
        lines += [f"not     {example}" for example in unless[:_NEAR_MISSES]]
        more = len(unless) - _NEAR_MISSES
        lines += [f"not     … {more} more"] * (more > 0) + ["```"]
    return "\n".join(lines) + "\n"


def _facts(item: Item) -> str:
    facts = f"Class {item.numeric.value} ({item.numeric.name.lower()})"
    if isinstance(item, Rule):
        first, last = item.opsets
        facts += f", opsets {first} to {last}" if last else f", from opset {first}"
    return facts + "."


def _flat(text: str) -> str:
    return " ".join(text.split())


def _body(example: str, first: str) -> str:
    """An example without its inputs and outputs, where they are those of the first one."""
    start = re.match(r".*?=>[^<{]*", first)
    assert start is not None
    return example.removeprefix(start[0])


def index_page(passes: list[Pass]) -> str:
    """The passes by family with the names of their rules, and their order."""
    count = sum(len(item.items) for item in passes)
    lines = [
        MADE + "# Passes",
        "",
        f"{len(passes)} passes of {count} rules. They run in this order, swept until nothing",
    ]
    lines += ["changes: " + ", ".join(item.name for item in passes) + ".", ""]
    lines += ["A class says what a rule may do to the numbers, and at which levels it runs: see"]
    lines += ["[numeric classes](../numeric-classes.md). On the pages, an example without inputs and outputs has"]
    lines += ["those of the one marked *before*; what is marked *not* stays as it is, and where there is more of that,"]
    lines += ["`graphopt passes NAME` shows all of it."]
    named = {name for names in FAMILIES.values() for name in names}
    families = {**FAMILIES, "Others": tuple(item.name for item in passes if item.name not in named)}
    for family, names in families.items():
        members = [item for item in passes if item.name in names]
        if members:
            lines += ["", f"## {family}", "", "| pass | classes | what it does | rules |", "|---|---|---|---|"]
            for item in members:
                rules = ", ".join(rule.name for rule in item.items)
                page = f"[{item.name}]({item.name}.md)"
                lines.append(f"| {page} | {classes_text(item)} | {_cell(item.summary)} | {rules} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """Every made page by its path."""
    passes = [item for name, item in load_registry().passes.items() if ":" not in name]
    made = {DOCS / "options.md": options_page(), DOCS / "passes" / "index.md": index_page(passes)}
    made.update({DOCS / "passes" / f"{item.name}.md": pass_page(item) for item in passes})
    return made


def left_over(made: dict[Path, str]) -> list[Path]:
    """Pages of passes that are no more."""
    return sorted(path for path in (DOCS / "passes").glob("*.md") if path not in made)


def main() -> int:
    """Write or check the pages."""
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in [*stale, *left_over(made)]:
            print(f"out of date: {path}; run python docs/make.py")
        return 1 if stale or left_over(made) else 0
    for path in left_over(made):
        path.unlink()
        print(f"removed {path}")
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
