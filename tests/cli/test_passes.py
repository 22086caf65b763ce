"""`graphopt passes`: what there is, in short and in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphopt.pipeline import load_registry

Run = Callable[..., Any]


def test_the_list_is_short_and_says_where_there_is_more(run: Run) -> None:
    done = run("passes")
    passes = load_registry().passes
    assert all(f"\n{name} " in f"\n{done.out}" for name in passes)
    count = sum(len(item.items) for item in passes.values())
    assert f"{len(passes)} passes, {count} rules" in done.out
    assert "before  (" not in done.out
    assert len(done.out.splitlines()) <= 4 * len(passes) + 5


def test_every_rule_on_a_line(run: Run) -> None:
    out = run("passes", "-v").out
    assert all(f"  {rule.name} " in out for item in load_registry().passes.values() for rule in item.items)


@pytest.mark.parametrize("name", ["pruning/dead_code", "dead_code"])
def test_one_rule_with_its_examples(run: Run, name: str) -> None:
    out = run("passes", name).out
    assert "pruning/dead_code   S" in out or "pruning/dead_code   E" in out
    assert "levels exact, default, fast-math" in out
    assert "before" in out
    assert "after" in out
    assert "unread_results" not in out


def test_as_json(run: Run) -> None:
    document = run("passes", "--json").json
    registry = load_registry().passes
    assert [item["name"] for item in document["passes"]] == list(registry)
    for item in document["passes"]:
        assert [rule["name"] for rule in item["rules"]] == [rule.name for rule in registry[item["name"]].items]
        assert all(rule["before"] and rule["numeric"] and rule["levels"] for rule in item["rules"])
    one = run("passes", "dead_code", "--json").json
    assert [rule["name"] for rule in one["passes"][0]["rules"]] == ["dead_code"]


def test_an_unknown_name(run: Run) -> None:
    done = run("passes", "dead_cod")
    assert done.code == 2
    assert "did you mean 'dead_code'" in done.err
