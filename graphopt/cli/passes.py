"""`graphopt passes`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graphopt.cli import options
from graphopt.cli.output import EXIT_OK, guests_on_stderr, show, show_error, show_json

NAME = "passes"


def command(
    name: Annotated[str | None, typer.Argument(help="A pass, a rule, or PASS/RULE.")] = None,
    load: options.Load = None,
    test: Annotated[bool, typer.Option("--test", help="Run the tests made from the examples.")] = False,
    json: options.Json = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="List every rule too.")] = 0,
) -> int:
    """List the passes in their order, or show some rules with examples and numeric classes."""
    from graphopt.pipeline import load_registry
    from graphopt.report.catalogue import catalogue_json, catalogue_text, items_text
    from graphopt.report.explanation import choose

    with guests_on_stderr():
        registry = load_registry([str(file) for file in load or ()])
    passes = list(registry.passes.values())
    chosen = choose(registry, [item.name for item in passes] if name is None else [name])
    if test:
        return _test(chosen, json=json)
    if json:
        show_json(catalogue_json(chosen))
    elif name is None:
        show(catalogue_text(passes, rules=bool(verbose)))
    else:
        show(items_text(chosen))
    return EXIT_OK


def _test(chosen: list[Any], *, json: bool) -> int:
    from graphopt.testing import check_item

    with guests_on_stderr():
        reports = [(owner, item, report) for owner, item in chosen for report in check_item(owner, item)]
    failures = [
        f"{owner.name}/{item.name}: {report.name}: {report.reason}" for owner, item, report in reports if not report.ok
    ]
    count = len(reports)
    not_judged = [
        f"{owner.name}/{item.name}: {report.name}: not judged: {report.not_judged}"
        for owner, item, report in reports
        if report.ok and report.not_judged
    ]
    if json:
        show_json(
            {
                "schema": "graphopt.passes-test",
                "schema_version": 1,
                "checks": count,
                "failures": failures,
                "not_judged": not_judged,
            }
        )
    else:
        for failure in failures:
            show_error(failure)
        held = count - len(failures) - len(not_judged)
        left = f", {len(not_judged)} could not be judged: {not_judged[0]}" if not_judged else ""
        show(f"{held} of {count} checks hold{left}")
    return 1 if failures else EXIT_OK
