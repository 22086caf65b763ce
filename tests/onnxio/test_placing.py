"""Files are put into place without replacing what nobody offered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt.errors import OutputError
from graphopt.onnxio import load
from graphopt.onnxio import save as save_model
from graphopt.onnxio.placing import move, require_unread, write_document
from graphopt.onnxio.save import stage


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weight = numpy_helper.from_array(np.arange(1024, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1024])],
        [helper.make_tensor_value_info("y", 1, [1024])],
        [weight],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_came_meanwhile_stays(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    source, target = tmp_path / "new", tmp_path / "file"
    source.write_text("new")
    target.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        move(str(source), str(target), replace=False)
    assert target.read_text() == "mine"
    target.unlink()
    move(str(source), str(target), replace=False)
    assert target.read_text() == "new"
    assert not source.exists()
    source.write_text("newer")
    move(str(source), str(target), replace=True)
    assert target.read_text() == "newer"


@pytest.mark.parametrize("external", [True, False])
def test_of_two_savings_at_once_the_second_gives_way(external: bool, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    first, second = (stage(load(model), target, external_data=external) for _ in range(2))
    first.commit(replace=False)
    with pytest.raises(OutputError, match="exists already"):
        second.commit(replace=False)
    second.discard()
    assert load(target).operator_count == 1
    assert not list(tmp_path.glob(".*"))
    assert len(list(tmp_path.glob("*.data"))) == external


def test_the_data_file_of_another_run_stays(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["graphopt.onnxio.save"]
    real, taken = module._data_name, []

    def late(folder: str, name: str, message: object) -> str:
        found = real(folder, name, message)  # type: ignore[arg-type]
        if not taken:  # another run takes the name between the look and the writing
            taken.append(Path(folder, found))
            taken[0].write_text("mine")
        return found

    monkeypatch.setattr(module, "_data_name", late)
    save_model(load(model), tmp_path / "out.onnx", external_data=True)
    assert taken[0].read_text() == "mine"
    assert load(tmp_path / "out.onnx").operator_count == 1


def test_nothing_that_is_read_is_written(model: Path, tmp_path: Path) -> None:
    external = tmp_path / "external.onnx"
    save_model(load(model), external, external_data=True)
    (data,) = tmp_path.glob("*.data")
    link = tmp_path / "link"
    link.symlink_to(model)
    for path, words in ((external, "the model itself"), (data, "weights"), (link, "is read by this run")):
        with pytest.raises(OutputError, match=words):
            require_unread(path, [str(external)], [str(model)])
    require_unread(tmp_path / "other", [str(external)], [str(model)])


def test_a_document_is_whole_and_asks(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_document(path, {"a": 1}, replace=False)
    with pytest.raises(OutputError, match="exists already"):
        write_document(path, {"a": 2}, replace=False)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_document(link, {"a": 3}, replace=True)
    assert link.is_symlink()
    assert '"a": 3' in path.read_text()
    with pytest.raises(OutputError, match="No such file"):
        write_document(tmp_path / "nowhere" / "plan.json", {}, replace=False)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link.json", "plan.json"]
