"""`graphopt optimize --measure`, and what is said after a result that differs or a pass that fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphopt.acceptance import acceptance
from tests.acceptance.benches import Bench
from tests.acceptance.plugins import CRASH, GOOD, SLOW, WRONG, model, operators, plugin

Run = Callable[..., Any]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Times are told by counting; answers are those of the runtime."""
    stand_in = Bench()
    real = acceptance.instruments

    def tools(*arguments: Any) -> Any:
        found = real(*arguments)
        return acceptance.Instruments(found.verify, stand_in.measure, lambda path: "", lambda: stand_in.now)

    monkeypatch.setattr(acceptance, "instruments", tools)
    return stand_in


@pytest.fixture
def row(tmp_path: Path) -> Path:
    return model(tmp_path / "row.onnx")


def test_slow_and_wrong_rules_are_left_out_and_the_plan_replays(
    run: Run, row: Path, tmp_path: Path, bench: Bench
) -> None:
    both = plugin(tmp_path / "both.py", SLOW + GOOD)
    lie = plugin(tmp_path / "wrong.py", WRONG)
    path = model(tmp_path / "row.onnx", ("Softsign", "Softplus", "Softplus", "Elu"))
    loads = ("--load", both, "--load", lie)
    done = run("optimize", path, *loads, "--measure")
    assert done.code == 0, done.err
    assert "left out: different with it" in done.out
    assert "left out: slower with it" in done.out
    assert "all but wrong/lie, both/drag" in done.out
    target, plan = tmp_path / "row.opt.onnx", tmp_path / "row.opt.plan.json"
    assert "Softsign" in operators(target)
    assert "Log" in operators(target)
    document = json.loads(plan.read_text())
    assert document["settings"]["disable"] == ["wrong/lie", "both/drag"]
    assert document["measured"]["outcome"] == "accepted"
    timings = len(bench.asked)
    again = run("optimize", path, tmp_path / "again.onnx", *loads, "--plan", plan)
    assert again.code == 0, again.err
    assert (tmp_path / "again.onnx").read_bytes() == target.read_bytes()
    assert len(bench.asked) == timings


def test_a_plan_wants_the_passes_it_was_made_with(run: Run, row: Path, tmp_path: Path, bench: Bench) -> None:
    drag = plugin(tmp_path / "slow.py", SLOW)
    assert run("optimize", row, "--load", drag, "--measure").code == 0
    replay = ("optimize", row, tmp_path / "again.onnx", "--plan", tmp_path / "row.opt.plan.json")
    done = run(*replay)
    assert (done.code, "--load slow.py" in done.err) == (2, True)
    plugin(drag, SLOW, rounds=2)
    done = run(*replay, "--load", drag)
    assert (done.code, "another slow.py" in done.err) == (2, True)
    assert run(*replay, "--load", drag, "--force").code == 0


def test_what_was_measured_is_in_the_document(run: Run, row: Path, tmp_path: Path, bench: Bench) -> None:
    drag = plugin(tmp_path / "slow.py", SLOW)
    document = run("optimize", row, "--load", drag, "--measure", "--json").json
    assert document["acceptance"]["outcome"] == "accepted"
    assert [trial["group"] for trial in document["acceptance"]["trials"] if trial["outcome"] == "left out"] == [
        "slow/drag"
    ]
    assert document["plan"].endswith("row.opt.plan.json")
    assert document["verification"]["verdict"] == "equal"


def test_a_speed_up_that_is_not_reached_writes_nothing(run: Run, row: Path, tmp_path: Path, bench: Bench) -> None:
    done = run("optimize", row, "--measure", "--min-speedup", 3)
    assert done.code == 5
    assert "not surely 3" in done.err
    assert not list(tmp_path.glob("*.opt.*"))
    assert run("optimize", row, "--measure", "--min-speedup", 1.05).code == 0


def test_nothing_to_gain_keeps_the_model(run: Run, tmp_path: Path, bench: Bench) -> None:
    bench.costs = {"Identity": -5.0}  # whatever takes one away is slower
    path = model(tmp_path / "row.onnx")
    done = run("optimize", path, "--measure")
    assert done.code == 0, done.err
    assert "nothing to gain" in done.out
    assert operators(tmp_path / "row.opt.onnx") == operators(path)


def test_models_are_timed_one_by_one(run: Run, row: Path, tmp_path: Path, bench: Bench) -> None:
    other = model(tmp_path / "other.onnx")
    done = run("optimize", row, other, "--out-dir", tmp_path / "out", "-j", 2, "--measure")
    assert done.code == 0, done.err
    assert "one by one" in done.out
    assert sorted(os.listdir(tmp_path / "out")) == ["other.onnx", "other.plan.json", "row.onnx", "row.plan.json"]


@pytest.mark.parametrize("option", ["--dry-run", "--no-verify", "--print-after=all", "--dump-dir=d", "--plan=p.json"])
def test_options_that_contradict_measuring(run: Run, row: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "p.json").write_text('{"schema": "graphopt.plan", "settings": {}}')
    option = option.replace("p.json", str(tmp_path / "p.json"))
    done = run("optimize", row, "--measure", option)
    assert done.code == 2
    assert "do not go together" in done.err


@pytest.mark.slow
def test_a_rule_ten_times_slower_is_left_out_by_the_clock(run: Run, tmp_path: Path) -> None:
    both = plugin(tmp_path / "both.py", SLOW + GOOD, rounds=6)
    path = model(tmp_path / "row.onnx", ("Softsign", "Softplus", "Softplus", "Identity"), size=200_000)
    done = run("optimize", path, "--load", both, "--measure", "--max-time", 40, "--json", "--provider", "cpu")
    assert done.code == 0, done.err
    found = {trial["group"]: trial for trial in done.json["acceptance"]["trials"]}
    assert found["both/drag"]["outcome"] == "left out"
    assert found["both/drag"]["low"] > 2
    assert "Softsign" in operators(tmp_path / "row.opt.onnx")
    assert done.json["acceptance"]["device"]


# --- a result that differs


def test_the_rewrite_that_differs_is_named(run: Run, row: Path, tmp_path: Path) -> None:
    lie = plugin(tmp_path / "wrong.py", WRONG)
    done = run("optimize", row, "--load", lie, "--level", "fast-math", "--provider", "cpu", "--seed", 3)
    assert done.code == 1
    assert "rewrite 2 of 2, by wrong/lie" in done.out
    assert "elu2 → Selu" in done.out
    closer = f"graphopt bisect {row} --load {lie} --level fast-math --provider cpu --seed 3"
    assert f"  {closer}" in done.out.splitlines()
    assert done.out.splitlines()[-1].endswith("--seed 3 --disable wrong/lie")
    assert sorted(os.listdir(tmp_path / "row.opt.bisect")) == ["after.onnx", "before.onnx", "inputs.npz"]
    assert "wrong/lie makes the difference" in done.err
    assert run("optimize", row, "--load", lie, "--disable", "wrong/lie").code == 0


def test_the_small_model_never_replaces_anything(run: Run, row: Path, tmp_path: Path) -> None:
    lie = plugin(tmp_path / "wrong.py", WRONG)
    (tmp_path / "row.opt.bisect").mkdir()
    document = run("optimize", row, "--load", lie, "--json").json
    assert document["bisection"]["rule"] == "wrong/lie"
    assert document["bisection"]["reproducer"] == str(tmp_path / "row.opt.bisect-2")
    done = run("optimize", row, "--load", lie, "--bisect-out", tmp_path / "row.opt.bisect")
    assert (done.code, "--bisect-out" in done.err) == (2, True)
    assert run("optimize", row, "--load", lie, "--bisect-out", tmp_path / "mine").code == 1
    assert (tmp_path / "mine" / "before.onnx").exists()


def test_the_search_can_be_left_out(run: Run, row: Path, tmp_path: Path) -> None:
    lie = plugin(tmp_path / "wrong.py", WRONG)
    done = run("optimize", row, "--load", lie, "--no-bisect", "--json")
    assert (done.code, done.json["bisection"]) == (1, None)
    assert "graphopt bisect" in done.err
    assert not list(tmp_path.glob("*bisect*"))


def test_a_result_that_does_not_load_is_bisected(run: Run, row: Path, tmp_path: Path) -> None:
    bad = plugin(tmp_path / "wrong.py", WRONG.replace("b.Selu(m[x])", "b.Softmax(m[x], axis=7)"))
    done = run("optimize", row, "--load", bad, "--json")
    assert done.code == 1, done.out
    assert "does not" in done.json["bisection"]["reason"]
    assert done.json["bisection"]["rule"] == "wrong/lie"


# --- a pass that fails


def test_a_pass_of_the_user_that_fails_is_the_last_word(run: Run, row: Path, tmp_path: Path) -> None:
    crash = plugin(tmp_path / "crash.py", CRASH)
    done = run("optimize", row, "--load", crash)
    assert done.code == 0, done.err
    *_, last_but_one, last = done.out.strip().splitlines()
    assert "your pass crash failed" in last_but_one
    assert "ZeroDivisionError: of my own making (crash.py, line" in last_but_one
    assert "--skip crash leaves it out, --strict stops there" in last
    assert "Identity" not in operators(tmp_path / "row.opt.onnx")
    assert run("optimize", row, "-f", "--load", crash, "--json").json["failed_passes"] == ["crash"]
    assert run("optimize", row, "-f", "--load", crash, "--strict").code == 2
