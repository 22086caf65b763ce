"""The passes there are, for the terminal and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.pipeline import Pass
from graphopt.pipeline.passes import Item
from graphopt.report.units import plural
from graphopt.rewrite import LEVELS, NumericClass, Rule


def catalogue_text(passes: Sequence[Pass], *, rules: bool = False) -> RenderableType:
    """One row for each pass, in the order in which they run.

    Args:
        passes: The passes.
        rules: Add a row for each rule and graph pass.
    """
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("pass", no_wrap=True)
    table.add_column("rules", justify="right")
    table.add_column("class", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for item in passes:
        style = "bold" if rules else ""
        table.add_row(Text(item.name, style=style), str(len(item.items)), classes_text(item), item.summary)
        for rule in item.items if rules else ():
            table.add_row(Text(f"  {rule.name}", style="cyan"), "", rule.numeric.value, rule.summary)
    count = sum(len(item.items) for item in passes)
    more = "PASS or RULE behind it shows examples" if rules else "-v lists every rule, a name behind it shows examples"
    foot = f"{plural(len(passes), 'pass', 'passes')}, {plural(count, 'rule')}; {more}"
    legend = ", ".join(f"{kind.value} {_class_name(kind)}" for kind in NumericClass)
    return Group(table, Text(), Text(foot), Text(f"classes: {legend}", style="dim"))


def classes_text(item: Pass) -> str:
    """The numeric classes of a pass's rules, the most exact first."""
    found = {rule.numeric for rule in item.items}
    return " ".join(kind.value for kind in NumericClass if kind in found)


def items_text(chosen: Sequence[tuple[Pass, Item]]) -> RenderableType:
    """Rules and graph passes with class, levels, sentence and examples; whole passes under their summary."""
    parts: list[RenderableType] = []
    owner: Pass | None = None
    for home, rule in chosen:
        if home is not owner:
            owner = home
            parts += [Text(home.name, style="bold"), Text(home.summary), Text()]
        levels = ", ".join(level for level, classes in LEVELS.items() if rule.numeric in classes)
        facts = f"   {rule.numeric.value}, {_class_name(rule.numeric)}; levels {levels}"
        parts.append(Text.assemble((f"{home.name}/{rule.name}", "bold cyan"), facts))
        parts.append(Text(f"  {rule.summary}"))
        parts.append(Text(f"  before  {_flat(rule.examples.before)}", style="dim"))
        parts.append(Text(f"  after   {_flat(rule.examples.after)}", style="dim"))
        parts.extend(Text(f"  not     {_flat(example)}", style="dim") for example in rule.examples.unless)
        parts.append(Text())
    return Group(*parts[:-1])


def catalogue_json(chosen: Sequence[tuple[Pass, Item]]) -> dict[str, Any]:
    """Rules and graph passes under the passes they are in, as a JSON document."""
    by_pass: dict[str, tuple[Pass, list[Item]]] = {}
    for owner, item in chosen:
        by_pass.setdefault(owner.name, (owner, []))[1].append(item)
    return {
        "schema": "graphopt.passes",
        "schema_version": 1,
        "passes": [
            {"name": name, "summary": owner.summary, "once": owner.once, "rules": [_rule_json(item) for item in items]}
            for name, (owner, items) in by_pass.items()
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


def _class_name(kind: NumericClass) -> str:
    return kind.name.lower().replace("_", " ")


def _flat(example: str) -> str:
    return " ".join(example.split())
