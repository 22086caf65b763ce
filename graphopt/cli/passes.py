"""`graphopt passes`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, show, show_error, show_json

NAME = "passes"


def command(
    name: Annotated[str | None, typer.Argument(help="A pass, or one rule as PASS/RULE.")] = None,
    load: options.Load = None,
    test: Annotated[bool, typer.Option("--test", help="Run the tests made from the examples.")] = False,
    json: options.Json = False,
) -> int:
    """List the passes in their order, or show one with its rules, examples and numeric classes."""
    from graphopt.pipeline import load_registry
    from graphopt.report.catalogue import catalogue_json, catalogue_text, pass_text

    registry = load_registry([str(file) for file in load or ()])
    chosen = list(registry.passes.values())
    item_name = ""
    if name is not None:
        registry.check_item(name)
        pass_name, _, item_name = name.partition("/")
        chosen = [registry.find(pass_name)]
    if test:
        return _test(chosen, item_name, json=json)
    if json:
        show_json(catalogue_json(chosen, item_name))
    elif name is None:
        show(catalogue_text(chosen))
    else:
        show(pass_text(chosen[0], item_name))
    return EXIT_OK


def _test(chosen: list[Any], item_name: str, *, json: bool) -> int:
    from graphopt.testing import check_item

    failures, count = [], 0
    for one in chosen:
        for item in one.items:
            if item_name and item.name != item_name:
                continue
            for report in check_item(one, item):
                count += 1
                if not report.ok:
                    failures.append(f"{one.name}/{item.name}: {report.name}: {report.reason}")
    if json:
        show_json({"schema": "graphopt.passes-test", "schema_version": 1, "checks": count, "failures": failures})
    else:
        for failure in failures:
            show_error(failure)
        show(f"{count - len(failures)} of {count} checks hold")
    return 1 if failures else EXIT_OK
