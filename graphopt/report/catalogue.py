"""The passes there are, for the terminal and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.pipeline import Pass
from graphopt.pipeline.passes import Item
from graphopt.rewrite import LEVELS, Rule


def catalogue_text(passes: Sequence[Pass]) -> RenderableType:
    """One row for each pass, in the order in which they run."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("pass", "rules", "what it does"):
        table.add_column(column, overflow="fold")
    for item in passes:
        table.add_row(item.name, str(len(item.items)), item.summary)
    return table


def pass_text(item: Pass, only: str = "") -> RenderableType:
    """A pass with its rules: class, sentence, examples."""
    parts: list[RenderableType] = [Text(item.name, style="bold"), Text(item.summary), Text()]
    for rule in item.items:
        if only and rule.name != only:
            continue
        parts.append(Text.assemble((f"{item.name}/{rule.name}", "bold cyan"), f"   {_class_text(rule)}"))
        parts.append(Text(f"  {rule.summary}"))
        parts.append(Text(f"  before  {_flat(rule.examples.before)}", style="dim"))
        parts.append(Text(f"  after   {_flat(rule.examples.after)}", style="dim"))
        parts.extend(Text(f"  not     {_flat(example)}", style="dim") for example in rule.examples.unless)
        parts.append(Text())
    return Group(*parts)


def catalogue_json(passes: Sequence[Pass], only: str = "") -> dict[str, Any]:
    """The passes as a JSON document."""
    return {
        "schema": "graphopt.passes",
        "schema_version": 1,
        "passes": [
            {
                "name": item.name,
                "summary": item.summary,
                "once": item.once,
                "rules": [_rule_json(rule) for rule in item.items if not only or rule.name == only],
            }
            for item in passes
        ],
    }


def _rule_json(rule: Item) -> dict[str, Any]:
    return {
        "name": rule.name,
        "summary": rule.summary,
        "numeric": rule.numeric.value,
        "levels": [level for level, classes in LEVELS.items() if rule.numeric in classes],
        "opsets": list(rule.opsets) if isinstance(rule, Rule) else None,
        "before": rule.examples.before,
        "after": rule.examples.after,
        "unless": list(rule.examples.unless),
    }


def _class_text(rule: Item) -> str:
    name = rule.numeric.name.lower().replace("_", " ")
    return f"{rule.numeric.value}, {name}"


def _flat(example: str) -> str:
    return " ".join(example.split())
