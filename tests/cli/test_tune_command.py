from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphopt.cli.output import EXIT_OK, EXIT_USAGE
from graphopt.recipes import Recipe, RunSettings
from graphopt.runtime.recipe import fingerprint, read_recipe, stamp_here

QUICK = ("--provider", "cpu", "--max-time", "6", "--try", "intra_op_num_threads=1", "--only")


def test_a_recipe_is_written_and_told(run: Callable[..., Any], model: Path) -> None:
    done = run("tune", model, *QUICK, "--try", "graph_optimization_level=ORT_NEVER", "--max-time", "30", "--show-code")
    assert done.code == EXIT_OK
    recipe = read_recipe(model.with_suffix(".recipe.json"))
    assert recipe.settings.provider == "CPUExecutionProvider"
    assert f"written   {model.with_suffix('.recipe.json')}" in done.out
    assert "intra_op_num_threads=1" in done.out
    assert "refused" in done.out
    assert "has no value 'ORT_NEVER'" in done.out
    assert "ort.InferenceSession(" in done.out
    assert "\x1b" not in done.out
    assert done.err == ""


def test_the_document_stands_alone_on_stdout(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    done = run("tune", model, *QUICK, "-o", out, "--json")
    assert (done.code, done.json["schema"], done.json["path"]) == (EXIT_OK, "graphopt.tuning", str(out))
    assert done.json["recipe"]["stamp"] == json.loads(out.read_text())["stamp"]
    assert [trial["settings"] for trial in done.json["trials"]] == [{"intra_op_num_threads": "1"}]


def test_progress_goes_to_the_log_where_asked_for(run: Callable[..., Any], model: Path) -> None:
    done = run("tune", model, *QUICK, "-v")
    lines = done.err.splitlines()
    assert lines[0].split() == ["candidate", "verdict", "ms", "ratio", "best", "ms"]
    assert "intra_op_num_threads=1" in lines[1]


def test_an_existing_file_wants_force(run: Callable[..., Any], model: Path) -> None:
    path = model.with_suffix(".recipe.json")
    path.write_text("mine")
    done = run("tune", model, *QUICK)
    assert (done.code, path.read_text()) == (EXIT_USAGE, "mine")
    assert "--force" in done.err
    assert run("tune", model, *QUICK, "--force", "--quiet").code == EXIT_OK
    assert read_recipe(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--try", "nonsense"), "prefer_nhwc=1"),
        (("--target", "toaster"), "toaster"),
        (("--provider", "toaster"), "no provider"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], words: str, run: Callable[..., Any], model: Path) -> None:
    done = run("tune", model, *arguments)
    assert done.code == EXIT_USAGE
    assert words in " ".join(done.err.split())
    assert not model.with_suffix(".recipe.json").exists()


def test_a_recipe_is_timed_against_the_defaults(run: Callable[..., Any], model: Path) -> None:
    path = model.with_suffix(".recipe.json")
    document = json.loads(json.dumps(recipe_of(model).to_json()))
    path.write_text(json.dumps(document))
    quick = ("--provider", "cpu", "--max-time", "1")
    done = run("bench", model, model, "--recipe", path, "--json", *quick)
    assert done.code == EXIT_OK
    assert "the rewritten model runs with intra_op_num_threads=1" in done.json["notes"]
    other = model.with_name("other.onnx")
    other.write_bytes((Path(__file__).parents[2] / "models" / "resnet.onnx").read_bytes())
    done = run("bench", model, other, "--recipe", path, *quick)
    assert (done.code, "made for another" in done.err) == (EXIT_USAGE, True)


def recipe_of(model: Path) -> Recipe:
    stamp = fingerprint(model)
    return Recipe(
        stamp,
        stamp,
        RunSettings("CPUExecutionProvider", {"intra_op_num_threads": 1}),
        stamp_here("CPUExecutionProvider"),
    )


def test_a_recipe_takes_the_place_of_nothing_that_is_read(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    from graphopt.onnxio import load, save

    external = tmp_path / "external.onnx"
    save(load(model), external, external_data=True, external_threshold=1)
    (data,) = tmp_path.glob("*.data")
    inputs = tmp_path / "inputs.npz"
    inputs.write_bytes(b"mine")
    for path in (external, data, inputs):
        before = path.read_bytes()
        done = run("tune", external, "-o", path, "--force", "--data", inputs, *QUICK)
        assert done.code == EXIT_USAGE
        assert path.read_bytes() == before
    done = run("tune", model, "-o", tmp_path / "nowhere" / "recipe.json", *QUICK)
    assert (done.code, "create it first" in done.err) == (EXIT_USAGE, True)
    done = run("tune", model, "-o", tmp_path / "model.ort-cpu.onnx", "--target", "ort-cpu", *QUICK)
    assert (done.code, "two results" in done.err) == (EXIT_USAGE, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--try", "foo=1"), "no setting"),
        (("--try", "intra_op_num_thread=1"), "did you mean intra_op_num_threads"),
        (("--try", "session.intra_op.allow_spining=0"), "did you mean session.intra_op.allow_spinning"),
        (("--only",), "add --try"),
        (("--max-time", "inf"), "--max-time"),
    ],
)
def test_a_setting_has_to_exist(arguments: tuple[str, ...], words: str, run: Callable[..., Any], model: Path) -> None:
    done = run("tune", model, "--provider", "cpu", *arguments)
    assert done.code == EXIT_USAGE
    assert words in done.err
