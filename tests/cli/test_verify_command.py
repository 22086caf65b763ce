"""`graphopt verify`: providers, their options, adversarial values, other runtimes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphopt.cli import options
from graphopt.errors import UsageError

Run = Callable[..., Any]


def test_several_providers(run: Run, model: Path) -> None:
    for spelling in (("--provider", "cpu,QNNExecutionProvider"), ("--provider", "cpu", "--provider", "qnn")):
        done = run("verify", model, model, *spelling, "--json")
        assert done.code == 4
        assert [part["verdict"] for part in done.json["parts"]] == ["equal", "not verified"]
    assert "QNNExecutionProvider" in run("verify", model, model, "--provider", "cpu,qnn").out


@pytest.mark.parametrize("command", ["verify", "bench", "optimize"])
def test_unknown_providers_and_options_are_one_line(run: Run, model: Path, command: str, tmp_path: Path) -> None:
    second = tmp_path / "out.onnx" if command == "optimize" else model
    done = run(command, model, second, "--provider", "cpuu")
    assert done.code == 2
    assert "did you mean cpu?" in done.err
    done = run(command, model, second, "--provider", "cpu", "--provider-option", "nonsense=1", *_timed(command))
    assert done.code == 2
    assert "'nonsense=1'" in done.err
    assert done.err.count("\n") == 1


def _timed(command: str) -> list[str]:
    return ["--max-time", "1"] if command == "bench" else []


def test_bench_runs_on_one_provider(run: Run, model: Path) -> None:
    done = run("bench", model, model, "--provider", "cuda,cpu")
    assert done.code == 2
    assert "one provider at a time" in done.err


def test_optimize_verifies_on_several(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, tmp_path / "out.onnx", "--provider", "cpu,qnn", "--json")
    assert done.code == 4
    assert [part["verdict"] for part in done.json["verification"]["parts"]] == ["equal", "not verified"]
    assert done.json["output"].endswith("out.unverified.onnx")


def test_adversarial(run: Run, model: Path) -> None:
    done = run("verify", model, model, "--adversarial", "--json", "--provider", "cpu")
    assert done.code == 0
    assert done.json["adversarial"]["verdict"] == "equal"


def test_against(run: Run, model: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "against_reference.py"
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(example))} {{model}} {{inputs}} {{outputs}}"
    done = run("verify", model, "--against", command, "--runs", 1, "--provider", "cpu")
    assert done.code == 0
    assert "against another runtime" in done.out
    assert run("verify", model).code == 2
    assert run("verify", model, "--against", "python {model}").code == 2


def test_feeds_is_the_single_place() -> None:
    found = options.feeds(["cuda,cpu"], None, None, None, None, 0, None, ["cuda:use_tf32=0"])
    assert found["provider"] == ("cuda", "cpu")
    assert found["provider_options"] == {"cuda:use_tf32": "0"}
    assert options.feeds(None, None, None, None, None, 0, None)["provider"] == "auto"
    with pytest.raises(UsageError, match="one provider"):
        options.one_provider(found, "bench")


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
def test_infinite_tolerances_are_refused(run: Run, model: Path, option: str) -> None:
    for number in ("inf", "1e999", "nan"):
        done = run("verify", model, model, option, number)
        assert done.code == 2
        assert option in done.err
    assert run("verify", model, model, "--runs", 10**20).code == 2
