"""The generated tests as pytest sees them: one test for each rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.pipeline import Pass, load_registry
from graphopt.pipeline.passes import Item
from graphopt.testing.checks import check_item


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
        failures = [f"{report.name}: {report.reason}" for report in check_item(owner, item) if not report.ok]
        assert not failures, "\n\n".join(failures)

    return test_rule


def _passes(source: str) -> list[Pass]:
    if source.endswith(".py"):
        registry = load_registry([source])
        builtin = set(load_registry().passes)
        return [item for name, item in registry.passes.items() if name not in builtin]
    found: dict[str, Any] = load_registry().passes
    prefix = f"{source}:" if source else ""
    return [item for name, item in found.items() if (name.startswith(prefix) if prefix else ":" not in name)]
