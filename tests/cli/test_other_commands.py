"""The commands beside `optimize`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

Run = Callable[..., Any]


def changed(model: Path, factor: float) -> Path:
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * type(factor)(factor), weight.name))
    path = model.with_name("changed.onnx")
    onnx.save(proto, path)
    return path


def test_verify(run: Run, model: Path) -> None:
    assert run("verify", model, model).code == 0
    done = run("verify", model, changed(model, 1.001), "--json")
    assert done.code == 1
    assert done.json["verdict"] == "different"


def test_bench(run: Run, model: Path) -> None:
    done = run("bench", model, model, "--max-time", 1, "--sessions", 3)
    assert done.code == 0
    assert "median" in done.out


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_missing_files_are_one_line(run: Run, model: Path, command: str) -> None:
    done = run(command, model, model.with_name("nowhere.onnx"))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "nowhere.onnx" in done.err


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_what_is_no_model_is_one_line(run: Run, model: Path, command: str) -> None:
    broken = model.with_name("broken.onnx")
    broken.write_bytes(model.read_bytes()[:40])
    assert run(command, broken, model).code == 2
    assert run(command, model, broken).code == 2


def test_lists_in_the_project_are_read(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.graphopt.optimize]\nskip = ["identities", "layout"]\n')
    done = run("optimize", model, "--no-verify", "--json")
    assert done.code == 0
    assert {item["name"] for item in done.json["report"]["passes"]}.isdisjoint({"identities", "layout"})
    (tmp_path / "pyproject.toml").write_text("[tool.graphopt.optimize\n")
    assert run("optimize", model, "--force").code == 2


def test_passes(run: Run) -> None:
    listed = run("passes")
    assert listed.code == 0
    assert "constant_folding" in listed.out
    one = run("passes", "pruning/dead_code")
    assert "before" in one.out
    wrong = run("passes", "prune")
    assert wrong.code == 2
    assert "pruning" in wrong.err


def test_show(run: Run, model: Path) -> None:
    summary = run("show", model)
    assert "Identity" in summary.out
    assert "float[N,3]" in summary.out
    assert "Mul(a, w)" in run("show", model, "--format", "text").out
    assert run("show", model, "--format", "dot").out.startswith("digraph")
    assert run("show", model, "--json").json["operators"]["Relu"] == 1
    assert run("show", model, "--format", "pdf").code == 2


def test_counts_are_said_in_good_english(run: Run, model: Path) -> None:
    assert "4 operators in 1 graph\n" in run("show", model).out


@pytest.mark.parametrize("arguments", [["--help"], ["passes"]])
def test_a_reader_may_stop_reading(arguments: list[str]) -> None:
    command = [sys.executable, "-c", "from graphopt.cli.main import main; main()", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals as POSIX has them")
def test_an_interrupt_while_importing_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "graphopt"  # so named, it is the command
    script.write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'graphopt.analysis':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from graphopt.cli.main import main\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted; nothing was begun\n"


def test_diff(run: Run, model: Path, tmp_path: Path) -> None:
    assert "same" in run("diff", model, model).out
    target = tmp_path / "out.onnx"
    assert run("optimize", model, target, "--no-verify").code == 0
    done = run("diff", model, target, "--json")
    rows = {row["what"]: (row["before"], row["after"]) for row in done.json["rows"]}
    assert rows["operator Identity"] == ("1", "0")


def test_doctor(run: Run) -> None:
    done = run("doctor", "--json")
    assert "onnxruntime" in " ".join(done.json["versions"])
    assert "CPUExecutionProvider" in done.json["providers_running"]


def test_version_and_help(run: Run) -> None:
    assert run("--version").out.startswith("graphopt ")
    helped = run("--help")
    commands = "optimize verify bench tune extract explain bisect passes show diff doctor"
    assert all(name in helped.out for name in commands.split())
    assert "report" not in helped.out
    assert run("optmize").code == 2


def test_show_names_dims_as_the_file_does(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "declared.onnx"
    text = (
        '<ir_version: 9, opset_import: ["": 20]> '
        "g (float[N] x, float[M] z) => (float[K] y) { y = Concat<axis=0>(x, z) }"
    )
    onnx.save(onnx.parser.parse_model(text), path)
    assert "y: float[K]" in run("show", path).out
    assert run("show", path, "--json").json["outputs"] == {"y": "float[K]"}


def test_an_error_is_a_document_too(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    for arguments in (("verify", bad, bad), ("show", bad), ("bench", model), ("explain", model, "--rule", "nothing")):
        done = run(*arguments, "--json")
        assert done.code == 2
        assert done.json["schema"] == "graphopt.error"
        assert (done.json["schema_version"], done.json["exit_code"]) == (1, 2)
        assert done.json["error"] in " ".join(done.err.split())
        assert run(*arguments).out == ""


def test_a_project_that_prefers_documents_gets_errors_as_such(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.graphopt.show]\njson = true\n")
    monkeypatch.chdir(tmp_path)
    assert run("show", "nowhere.onnx").json["schema"] == "graphopt.error"


def test_columns_hold_where_output_is_piped(
    run: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, run("show", model).out.splitlines())) <= 50
    monkeypatch.setenv("COLUMNS", "wide")
    assert run("show", model).code == 0


def test_libraries_are_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.cli import options
    from graphopt.runtime.session import SessionSettings

    monkeypatch.chdir(tmp_path)
    Path("mylib.so").write_bytes(b"")
    assert options.libraries([Path("mylib.so")]) == (str(tmp_path / "mylib.so"),)
    assert SessionSettings(custom_ops=("mylib.so", "elsewhere.so")).custom_ops == (
        str(tmp_path / "mylib.so"),
        "elsewhere.so",
    )


def test_a_check_that_fails_on_the_original_is_what_to_mend(run: Callable[..., Any], model: Path) -> None:
    done = run("bisect", model, "--check", "false {}")
    assert (done.code, "the check is what to mend" in " ".join(done.out.split())) == (2, True)
    done = run("bisect", model, "--check", "true")
    assert (done.code, "put at its end" in " ".join(done.out.split())) == (0, True)
    assert run("bisect", model, "--check", "un'closed").code == 2
