"""What generated tests feed where a kernel that only CUDA has would take the process down on an empty tensor."""

from __future__ import annotations

from typing import Any

import pytest

import graphopt.runtime
from graphopt.pipeline import load_registry
from graphopt.records import JudgeResult
from graphopt.rewrite.rule import Examples
from graphopt.testing.checks import check_item


def judged(
    monkeypatch: pytest.MonkeyPatch, owner: str, item: str, options: dict[str, Any] | None = None
) -> tuple[bool, set[str]]:
    """Whether anything empty was fed to one item, and what the reports say on that."""
    empty = []

    def judge(before: Any, after: Any, numeric: str, feeds: Any, **_: Any) -> JudgeResult:
        empty.append(any(value.size == 0 for feed in feeds for value in feed.values()))
        return JudgeResult(True, "", numeric)

    monkeypatch.setattr(graphopt.runtime, "judge", judge)
    found = load_registry().passes[owner]
    (chosen,) = [other for other in found.items if other.name == item]
    if options is not None:
        old = chosen.examples
        changed = Examples(old.before, old.after, old.unless, old.opset, options, old.largest)
        monkeypatch.setattr(chosen, "examples", changed)
    reports = list(check_item(found, chosen))
    assert len(empty) > 4
    return any(empty), {report.left_out for report in reports if report.left_out}


def test_operators_of_cuda_alone_in_the_example_are_fed_nothing_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    is_empty, said = judged(monkeypatch, "fusion.group_normalization", "skip_group_norm")
    assert not is_empty
    assert said == {"fed nothing empty: GroupNorm of the example fails there on cuda"}


def test_the_aggressive_form_for_cuda_is_fed_nothing_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    is_empty, said = judged(monkeypatch, "fusion.group_normalization", "group_norm", {"aggressive": True})
    assert not is_empty
    assert said == {"fed nothing empty: the aggressive form is for models that get none"}


def test_others_for_cuda_must_hold_for_empty_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    is_empty, said = judged(monkeypatch, "fusion.group_normalization", "group_norm")
    assert is_empty
    assert not said


def test_what_the_cpu_runs_is_fed_empty_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_registry().passes["fusion.activations"].items[0].name
    is_empty, said = judged(monkeypatch, "fusion.activations", first)
    assert is_empty
    assert not said
