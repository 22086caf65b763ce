"""A pytest plugin: makes a test of every rule in the files it collects.

    pytest -p graphopt.testing.plugin --graphopt-rules my_passes/

It is asked for by name, since loading it by itself would slow every test run of everybody who installed graphopt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; without it the plugin does nothing."""
    parser.getgroup("graphopt").addoption(
        "--graphopt-rules",
        action="store_true",
        help="Run the tests made from the examples of the rules in the collected Python files.",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect Python files that declare rules or graph passes."""
    if not parent.config.getoption("--graphopt-rules") or file_path.suffix != ".py":
        return None
    text = file_path.read_text(encoding="utf-8")
    return RuleFile.from_parent(parent, path=file_path) if "@rule" in text or "@graph_pass" in text else None


class RuleFile(pytest.File):
    """A file of rules."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each rule and graph pass the file declares."""
        from graphopt.pipeline.registry import pass_of_file

        found = pass_of_file(self.path)
        for item in found.items:
            yield RuleTest.from_parent(self, name=item.name, owner=found, item=item)


class RuleTest(pytest.Item):
    """The generated tests of one rule."""

    def __init__(self, *, owner: object, item: object, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]  # pytest's own
        self._owner = owner
        self._item = item

    def runtest(self) -> None:
        """Run every generated test; the first line of each failure is its name."""
        from graphopt.testing.checks import check_item
        from graphopt.testing.pytest_support import failures_of, not_judged

        reports = list(check_item(self._owner, self._item))  # type: ignore[arg-type]  # made in RuleFile
        if failures := failures_of(reports):
            pytest.fail("\n\n".join(failures), pytrace=False)
        if left := not_judged(reports):
            pytest.skip(left)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the rule is."""
        return self.path, None, f"rule {self.name}"
