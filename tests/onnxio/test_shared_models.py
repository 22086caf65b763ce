"""Every model of the shared collection goes through and comes back; skipped where the collection is not."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper

from graphopt.errors import ModelError
from graphopt.ir import check_model
from graphopt.onnxio import load, write_model

SHARED = Path(os.environ.get("GRAPHOPT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "models"
ARCHIVES = sorted(SHARED.glob("*.zip"))
MODELS = sorted(SHARED.glob("*.onnx"))
DAMAGED = ("icm-31000000518082.onnx",)
"""Made to be refused."""


def write(path: Path) -> tuple[bytes, bytes]:
    """The bytes of a model before and after."""
    graph = load(path)
    check_model(graph.model)
    return path.read_bytes(), write_model(graph.model).to_bytes()


def compare(path: Path) -> bool:
    """True if the bytes came back; otherwise the model only has its nodes in order now, and does the same."""
    before, after = write(path)
    if before == after:
        return True
    old, new = ModelProto.FromString(before), ModelProto.FromString(after)
    assert write_model(load(after).model).to_bytes() == after
    if accepted(old):
        onnx.checker.check_model(new)
    nodes = [sorted(item.SerializeToString() for item in model.graph.node) for model in (old, new)]
    if nodes[0] != nodes[1]:  # constants of one name: all but the last got a name of their own
        names = [[name for item in model.graph.node for name in item.output] for model in (old, new)]
        assert len(set(names[0])) < len(names[0])
        assert len(set(names[1])) == len(names[1]) == len(names[0])
    for model in (old, new):
        model.graph.ClearField("node")
    assert old == new
    same_outputs(before, after)
    return False


def accepted(model: ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError):
        return False
    return True


def session(data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def same_outputs(before: bytes, after: bytes) -> None:
    try:
        original = session(before)
        feeds = feed(ModelProto.FromString(before), {item.name for item in original.get_inputs()})
        expected = original.run(None, feeds)
    except Exception:  # nothing to compare with
        return
    for left, right in zip(expected, session(after).run(None, feeds), strict=True):
        np.testing.assert_array_equal(left, right)


def feed(model: ModelProto, names: set[str]) -> dict[str, Any]:
    chance, feeds = np.random.default_rng(0), {}
    for item in model.graph.input:
        if item.name in names:
            tensor = item.type.tensor_type
            shape = [dim.dim_value or 2 for dim in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feeds[item.name] = chance.integers(0, 2, shape).astype(dtype)
    return feeds


@pytest.mark.skipif(not MODELS, reason="the shared models are not here; set GRAPHOPT_SHARED")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_shared_model_comes_back(path: Path) -> None:
    compare(path)


@pytest.mark.skipif(not ARCHIVES, reason="the shared models are not here; set GRAPHOPT_SHARED")
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_a_shared_archive_comes_back(archive: Path, tmp_path: Path) -> None:
    same = total = 0
    with zipfile.ZipFile(archive) as members:
        members.extractall(tmp_path)
    for path in sorted(tmp_path.rglob("*.onnx")):
        total += 1
        if path.name in DAMAGED:
            with pytest.raises(ModelError):
                load(path)
            continue
        same += compare(path)
    assert total
    assert same >= 0.85 * total
