"""`graphopt optimize` with another signature: the truth is the original with the same signature."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt

Run = Callable[..., Any]


def ports(path: Path) -> tuple[list[str], list[str]]:
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    return [item.name for item in proto.graph.input], [item.name for item in proto.graph.output]


def test_all_together_verified(run: Run, model: Path, tmp_path: Path) -> None:
    done = run(
        *("optimize", model, "--inputs", "a", "--outputs", "y", "--add-output", "b", "--fix-dim", "N=4"),
        *("--io-dtype", "a=uint8", "--rename", "a=image", "--rename", "y=scores"),
    )
    assert done.code == 0, done.err
    assert "equal" in done.out
    assert "input 'a' is uint8 now" in done.out
    assert ports(tmp_path / "model.opt.onnx") == (["image"], ["scores", "b"])


def test_each_is_verified_against_the_changed_original(run: Run, model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        '"""A wrong pass."""\nfrom graphopt import op, rule, var\nx = var("x")\n'
        '@rule(op.Relu(x), before="(float[2] x) => (float[2] y) { y = Relu(x) }",'
        ' after="(float[2] x) => (float[2] y) { y = Abs(x) }")\n'
        'def wrong(m, b):\n    """Relu is not Abs."""\n    return b.Abs(m[x])\n'
    )
    done = run("optimize", model, "--load", plugin, "--inputs", "b", "--rename", "b=image")
    assert done.code == 1
    assert not (tmp_path / "model.opt.onnx").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--inputs", "data.npz"), "--data data.npz"),
        (("--inputs", "feeds.py:make"), "--data"),
        (("--inputs", "bb"), "did you mean 'b'"),
        (("--rename", "x"), "--rename wants old=new"),
        (("--rename", "x=a"), "already"),
        (("--rename", "x=p", "--rename", "x=q"), "given twice"),
        (("--io-dtype", "y=float16"), "--allow-lossy"),
        (("--io-dtype", "y=flaot16"), "no element type"),
        (("--add-output", "q"), "no value 'q'"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    run: Run, model: Path, tmp_path: Path, options: tuple[str, ...], word: str
) -> None:
    done = run("optimize", model, *options)
    assert done.code == 2
    assert word in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_same_in_python(model: Path) -> None:
    result = graphopt.optimize(
        model, verify=True, inputs=["b"], outputs=["y"], rename={"b": "start"}, io_dtypes={"y": "double"}
    )
    assert result.verdict == "equal"
    (given,) = result.model.graph.input
    assert given.name == "start"
    assert any("double now" in note for note in result.report.notes)


def test_a_model_in_memory_is_compared_as_changed_and_prepared(model: Path) -> None:
    def rename_graph(graph: graphopt.Graph) -> None:
        graph.set_outputs([graph.outputs[0]])

    proto = onnx.load(model)
    result = graphopt.optimize(proto, verify=True, rename={"x": "image"}, prepare=rename_graph)
    assert result.verdict == "equal"
    assert proto == onnx.load(model)


def test_a_plan_brings_its_signature(run: Run, model: Path, tmp_path: Path) -> None:
    plan, first, second = tmp_path / "plan.json", tmp_path / "first.onnx", tmp_path / "second.onnx"
    options = ("--no-verify", "--rename", "x=image", "--fix-dim", "N=2")
    assert run("optimize", model, first, *options, "--write-plan", plan).code == 0
    assert json.loads(plan.read_text())["signature"] == {"fix_dims": {"N": 2}, "rename": {"x": "image"}}
    assert run("optimize", model, second, "--no-verify", "--plan", plan).code == 0
    assert first.read_bytes() == second.read_bytes()
    done = run("optimize", model, second, "-f", "--plan", plan, "--rename", "x=picture")
    assert done.code == 2
    assert "own signature" in done.err


def test_a_plan_is_for_one_model(run: Run, model: Path, tmp_path: Path) -> None:
    plan, other = tmp_path / "plan.json", tmp_path / "other.onnx"
    assert run("optimize", model, "-o", model, "--no-verify", "--write-plan", plan).code == 0  # of the one it was
    proto = onnx.load(model)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    onnx.save(proto, other)
    done = run("optimize", other, "--no-verify", "--plan", plan)
    assert done.code == 2
    assert "another model" in done.err
    assert "--force" in done.err
    assert run("optimize", other, "--no-verify", "--plan", plan, "--force").code == 0


def test_the_name_map_begins_with_the_names_of_the_file(run: Run, model: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    options = ("--rename", "x=image", "--rename", "r=relu", "--name-map", names)
    assert run("optimize", model, "--no-verify", *options).code == 0
    document = json.loads(names.read_text())
    assert document["values"]["x"] == {"how": "renamed", "now": "image"}
    assert document["nodes"]["r"] == {"how": "renamed", "now": "relu"}
    assert document["nodes"]["i"]["how"] == "gone"


def test_bytes_are_those_of_the_files(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "--no-verify", "--json")
    assert done.json["report"]["bytes_before"] == model.stat().st_size
    assert done.json["report"]["bytes_after"] == (tmp_path / "model.opt.onnx").stat().st_size
    dry = run("optimize", model, "--dry-run", "--json")
    assert dry.json["report"]["bytes_after"] > 0
