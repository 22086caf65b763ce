"""`graphopt extract`: a part of a model, with the weights it needs, that loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt

Run = Callable[..., Any]


def part(path: Path) -> tuple[list[str], list[str], list[str]]:
    proto = onnx.load(path)
    onnx.checker.check_model(str(path), full_check=True)
    graph = proto.graph
    return [i.name for i in graph.input], [o.name for o in graph.output], [node.op_type for node in graph.node]


def test_between_inputs_and_outputs(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.onnx"
    done = run("extract", model, target, "--inputs", "a", "--outputs", "b")
    assert done.code == 0, done.err
    assert part(target) == (["a"], ["b"], ["Mul"])
    assert "a: float[N,3]" in done.out
    assert "loads    yes" in done.out


def test_what_outputs_need(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("extract", model, "--outputs", "b", "-q").code == 0
    assert part(tmp_path / "model.part.onnx") == (["x"], ["b"], ["Identity", "Mul"])


def test_around_a_node(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.onnx"
    done = run("extract", model, target, "--around", "m", "--depth", "0", "--json")
    assert done.json["inputs"] == {"a": "float[N,3]"}
    assert done.json["outputs"] == {"b": "float[N,3]"}
    assert done.json["loads"] is True
    assert part(target) == (["a"], ["b"], ["Mul"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ((), "say what to cut out"),
        (("--around", "m", "--outputs", "b"), "not both"),
        (("--around", "mm"), "did you mean 'm'"),
        (("--outputs", "q"), "no value 'q'"),
        (("--inputs", "b", "--outputs", "a"), "no output needs 'b'"),
        (("--around", "d"), "nothing that 'd' gives is used"),
    ],
)
def test_what_cannot_be_cut(run: Run, model: Path, tmp_path: Path, options: tuple[str, ...], word: str) -> None:
    depth = ("--depth", "0") if "--around" in options else ()
    done = run("extract", model, *options, *depth)
    assert done.code == 2
    assert word in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_an_existing_file_needs_force(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.onnx"
    target.write_bytes(b"precious")
    assert run("extract", model, target, "--outputs", "b").code == 2
    assert target.read_bytes() == b"precious"
    assert run("extract", model, target, "--outputs", "b", "--force", "-q").code == 0
    assert run("extract", model, model, "--outputs", "b", "--force").code == 2


def test_only_the_weights_it_needs_from_external_data(run: Run, tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.full(4096, index, np.float32), f"w{index}") for index in (1, 2)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4096]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "w1"], ["h"]), helper.make_node("Add", ["h", "w2"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    proto = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])
    source, target = tmp_path / "big.onnx", tmp_path / "part.onnx"
    onnx.save(proto, source, save_as_external_data=True, location="big.data", size_threshold=1)
    assert run("extract", source, target, "--outputs", "h", "-q").code == 0
    (data,) = tmp_path.glob("part.onnx.*.data")
    assert data.stat().st_size == 4096 * 4
    (weight,) = onnx.load(target).graph.initializer
    assert (numpy_helper.to_array(weight) == 1).all()
    assert run("extract", source, target, "--outputs", "h", "-q", "--force", "--inline").code == 0
    assert not list(tmp_path.glob("part.onnx.*"))


def test_a_part_that_does_not_load(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "custom.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20, "mine": 1]> g (float[2] x) => (float[2] y)'
            "{ a = Neg(x) b = mine.Op(a) y = Abs(b) }"
        ),
        source,
    )
    done = run("extract", source, tmp_path / "part.onnx", "--outputs", "b")
    assert done.code == 4
    assert "does not load" in done.err
    assert (tmp_path / "part.unverified.onnx").exists()
    assert not (tmp_path / "part.onnx").exists()
    assert run("extract", source, tmp_path / "part.onnx", "--outputs", "b", "--allow-unverified").code == 4
    assert (tmp_path / "part.onnx").exists()


def test_the_same_in_python(model: Path) -> None:
    graph = graphopt.extract(model, inputs=["a"], outputs=["b"])
    assert [node.op_type for node in graph.nodes()] == ["Mul"]
    assert graphopt.optimize(graphopt.to_proto(graph), verify=True).verdict == "equal"
