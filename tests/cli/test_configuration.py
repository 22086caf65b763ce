"""Defaults out of `[tool.graphopt]`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from graphopt.cli.configuration import configured
from graphopt.cli.main import app
from graphopt.errors import UsageError

Run = Callable[..., Any]


def read(tmp_path: Path, text: str) -> dict[str, dict[str, Any]]:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    group: Any = typer.main.get_command(app)
    return configured(path, group.commands)


def test_nothing_is_configured_where_there_is_no_project(tmp_path: Path) -> None:
    assert configured(tmp_path / "pyproject.toml", {}) == {}
    assert read(tmp_path, "[project]\nname = 'x'\n") == {}


@pytest.mark.parametrize(
    ("line", "parameter", "value"),
    [
        ("fix-dim = { batch = 1, seq = 128 }", "fix_dim", ["batch=1", "seq=128"]),
        ('fix-dim = "batch=1"', "fix_dim", ["batch=1"]),
        ("fix-shape = { x = [1, 3, 8, 8] }", "fix_shape", ["x=1,3,8,8"]),
        ("range = { x = [0, 255] }", "value_range", ["x=0:255"]),
        ('rename = { old = "new" }', "rename", ["old=new"]),
        ('io-dtype = { image = "uint8" }', "io_dtype", ["image=uint8"]),
        ('inputs = ["a", "b"]', "inputs", "a,b"),
        ('add-output = ["a", "b"]', "add_output", ["a", "b"]),
        ('skip = ["layout"]', "skip", "layout"),
        ("no-verify = true", "no_verify", True),
        ("inline = true", "external_data", False),
        ("external-data = true", "external_data", True),
        ("runs = 2", "runs", 2),
    ],
)
def test_values_as_toml_spells_them(tmp_path: Path, line: str, parameter: str, value: Any) -> None:
    assert read(tmp_path, f"[tool.graphopt.optimize]\n{line}\n") == {"optimize": {parameter: value}}


def test_options_of_every_command_that_has_them(tmp_path: Path) -> None:
    found = read(tmp_path, '[tool.graphopt]\nprovider = "cpu"\n[tool.graphopt.bench]\nprovider = "cuda"\n')
    assert found == {
        "optimize": {"provider": ["cpu"]},
        "verify": {"provider": ["cpu"]},
        "bench": {"provider": "cuda"},
        **{name: {"provider": "cpu"} for name in found if name not in ("optimize", "verify", "bench")},
    }
    assert read(tmp_path, '[tool.graphopt]\npasses = ["layout"]\n')["optimize"] == {"passes": "layout"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[tool.graphopt.optimize]\nfix-dims = 1\n", "no option of graphopt optimize"),
        ("[tool.graphopt]\nspeed = 1\n", "no command and no option"),
        ("[tool.graphopt.optimise]\nruns = 1\n", "no command"),
        ("[tool.graphopt.optimize]\nlevel = { a = 1 }\n", "one value, not a table"),
        ('[tool.graphopt.optimize]\ninline = "yes"\n', "true or false"),
        ("[tool]\ngraphopt = 3\n", "no table"),
        ("[tool.graphopt\n", "no valid TOML"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read(tmp_path, text)


def test_a_table_of_dims_works(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.graphopt.optimize]\nfix-dim = { N = 4 }\nrename = { x = "image" }\n'
    )
    assert run("optimize", model, "--no-verify", "-q").code == 0
    assert "image: float[4,3]" in run("show", tmp_path / "model.opt.onnx").out
    assert run("optimize", model, "--no-verify", "-q", "-f", "--fix-dim", "N=5").code == 0
    assert "float[5,3]" in run("show", tmp_path / "model.opt.onnx").out
