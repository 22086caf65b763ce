"""`graphopt bench`: sweeps, throughput, profiles, pictures, exit codes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
QUICK = ("--max-time", 1, "--sessions", 3, "--threads", 1)
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def test_a_sweep_is_one_row_for_each_point(run: Run, model: Path) -> None:
    done = run("bench", model, model, "--sweep", "N=1,4", *QUICK)
    assert done.code == 0, done.err
    rows = [line.split() for line in done.out.splitlines()]
    at = next(number for number, row in enumerate(rows) if row[:1] == ["N"])
    assert [row[0] for row in rows[at + 1 : at + 3]] == ["1", "4"]
    assert all("to" in row for row in rows[at + 1 : at + 3])
    assert "\x1b" not in done.out
    assert all(line == line.rstrip() for line in done.out.splitlines())


def test_the_document_of_a_sweep_holds_every_run(run: Run, model: Path) -> None:
    done = run("bench", model, model, "--sweep", "N=1,4", "--concurrency", 2, "--json", *QUICK)
    assert done.code == 0, done.err
    document = done.json
    assert (document["schema"], document["schema_version"]) == ("graphopt.benchmark-sweep", 1)
    assert [point["dims"] for point in document["points"]] == [{"N": 1}, {"N": 4}]
    for point in document["points"]:
        assert sum(map(len, point["original"]["samples"])) == point["original"]["runs"]
        assert [item["name"] for item in point["comparisons"]] == ["throughput"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sweep", "N=1,x"), "no size"),
        (("--sweep", "N="), "no size"),
        (("--sweep", "M=1"), "--sweep names 'M'"),
        (("--sweep", "N=1", "--dim", "N=2"), "leave one out"),
        (("--sweep", "N=1", "--data", "x.npz"), "leave it or --sweep out"),
        (("--plot", "picture.txt"), ".svg"),
        (("--plot", "nowhere/picture.svg"), "create it first"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, model: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("bench", model, model, *arguments, *QUICK)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_profile_names_operators(run: Run, model: Path) -> None:
    done = run("bench", model, model, "--profile", *QUICK)
    assert done.code == 0, done.err
    assert "operator" in done.out
    assert "Mul" in done.out


def test_a_profile_of_a_rewriting_names_rules(run: Run, model: Path) -> None:
    done = run("optimize", model, "--bench", "--profile", "--max-time", 1, "--json")
    assert done.code == 0, done.err
    profile = done.json["benchmark"]["profile"]
    assert "Mul" in [row["name"] for row in profile["operators"]]
    assert profile["rewrites"]
    assert done.json["benchmark"]["original"]["samples"] == []
    assert run("optimize", model, "--profile", "--force").code == 2


def test_a_sure_slowdown_fails_where_that_is_asked(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt import api
    from graphopt.measurements import Benchmark, Comparison

    decode = Comparison("decode", "tokens/s", 10.0, 8.0, "slower", 0.8, 0.7, 0.9)
    found = Benchmark("no difference seen", "", 1.0, 0.99, 1.01, comparisons=(decode,))
    monkeypatch.setattr(api, "benchmark", lambda *_, **__: found)
    assert run("bench", model, model).code == 0
    assert run("bench", model, model, "--fail-if-slower", 5).code == 5
    assert run("bench", model, model, "--fail-if-slower", 15).code == 0


def test_a_picture_needs_the_extra(run: Run, model: Path, tmp_path: Path) -> None:
    for name, options in (("runs.svg", ()), ("sweep.svg", ("--sweep", "N=1,2"))):
        path = tmp_path / name
        done = run("bench", model, model, "--plot", path, *options, *QUICK)
        if HAS_MATPLOTLIB:
            assert done.code == 0, done.err
            assert "<svg" in path.read_text()
        else:
            assert done.code == 2
            assert "pip install 'graphopt[plot]'" in done.err
            assert not path.exists()


def test_models_with_other_inputs_are_told(run: Run, model: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.onnx"
    assert run("optimize", model, "-o", renamed, "--rename", "x=z", "--no-verify").code == 0
    done = run("bench", model, renamed, *QUICK)
    assert done.code == 4
    assert "graphopt diff" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--decode", 99999999), "up to 4096"),
        (("--threads", 100000), "up to 1024"),
        (("--concurrency", 99999), "up to 256"),
        (("--sessions", 100000), "up to 200"),
        (("--max-time", "inf"), "a week"),
        (("--max-time", "nan"), "--max-time"),
    ],
)
def test_what_is_asked_for_has_an_end(run: Run, model: Path, arguments: tuple[Any, ...], said: str) -> None:
    done = run("bench", model, model, *arguments, "--json")
    assert done.code == 2
    assert said in done.err
    assert (done.json["schema"], done.json["exit_code"]) == ("graphopt.error", 2)
    assert said in done.json["error"]


def test_a_picture_takes_the_place_of_nothing_that_is_read(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt.report import plot

    monkeypatch.setattr(plot, "require_plotting", lambda path: None)
    picture = tmp_path / "model.svg"
    model.rename(picture)
    before = picture.read_bytes()
    done = run("bench", picture, picture, "--plot", picture, *QUICK)
    assert (done.code, "the model itself" in done.err) == (2, True)
    assert picture.read_bytes() == before


def test_decoding_asked_of_another_model_is_remarked_on(run: Run, model: Path) -> None:
    assert "not a decoder" in run("bench", model, model, "--decode", 4, *QUICK).out
    assert "not a decoder" not in run("bench", model, model, *QUICK).out
