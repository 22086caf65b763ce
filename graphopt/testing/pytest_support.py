"""The generated tests as pytest sees them: one test for each rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.testing.checks import EXAMPLE, CheckReport, check_item


def rule_tests(source: str = "", *, only: str = "") -> Callable[..., None]:
    """A test function over every rule of the passes of one package or file.

    Args:
        source: The entry point's name of an installed package, or the path of a `.py` file; "" for the built-in passes.
        only: A pass to restrict the tests to.

    Returns:
        A parametrized test: assign it to a name that begins with `test`.
    """
    import pytest

    passes = _passes(source)
    cases = [
        pytest.param(owner, item, id=f"{owner.name}/{item.name}")
        for owner in passes
        if not only or owner.name == only
        for item in owner.items
    ]

    @pytest.mark.parametrize(("owner", "item"), cases)
    def test_rule(owner: Pass, item: Item) -> None:
        reports = list(check_item(owner, item))
        failures = failures_of(reports)
        assert not failures, "\n\n".join(failures)
        if left := not_judged(reports):
            pytest.skip(left)

    return test_rule


def failures_of(reports: Sequence[CheckReport]) -> list[str]:
    """What was found wrong, a text for each test."""
    return [f"{report.name}: {report.reason}" for report in reports if not report.ok]


def not_judged(reports: Sequence[CheckReport]) -> str:
    """One sentence if not even the example could be judged: whatever else holds, its numbers are not known."""
    if not any(report.not_judged and report.name == EXAMPLE for report in reports):
        return ""
    left = [report for report in reports if report.not_judged]
    return f"{len(left)} of {len(reports)} results were not judged, the rest holds: {left[0].not_judged}"


def _passes(source: str) -> list[Pass]:
    if source.endswith(".py"):
        registry = load_registry([source])
        builtin = set(load_registry().passes)
        return [item for name, item in registry.passes.items() if name not in builtin]
    found: dict[str, Any] = load_registry().passes
    prefix = f"{source}:" if source else ""
    return [item for name, item in found.items() if (name.startswith(prefix) if prefix else ":" not in name)]
