from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from runtime_models import linear

from graphopt import runtime
from graphopt.errors import ModelError, OutputError, RecipeError
from graphopt.recipes import Recipe, RecipeWarning, RunSettings
from graphopt.runtime import captured, loading
from graphopt.runtime.captured import Recordings
from graphopt.runtime.recipe import (
    code,
    fingerprint,
    read_recipe,
    recipe_path,
    require_model,
    stamp_differences,
    stamp_here,
    usable_cores,
    write_recipe,
)
from graphopt.runtime.session import AS_USERS, CPU, CUDA, Session

X = np.ones((3, 16), np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    path.write_bytes(linear())
    return path


def recipe_of(model: Path, provider: str = CPU, **flat: str) -> Recipe:
    stamp = fingerprint(model)
    settings = RunSettings.of(provider, {"intra_op_num_threads": "1", **flat})
    figures = {"baseline_ms": 2.0, "median_ms": 1.0, "ratio": 2.0, "low": 1.9, "high": 2.1, "error": 1e-7}
    return Recipe(stamp, stamp, settings, stamp_here(CPU), **figures)


def quietly(*arguments: Any) -> loading.LoadedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return runtime.load(*arguments)


# --- files


def test_a_recipe_lies_beside_its_model_and_is_found_there(model: Path) -> None:
    assert recipe_path(model).name == "linear.recipe.json"
    write_recipe(recipe_of(model), recipe_path(model))
    loaded = quietly(model)
    assert loaded.recipe == recipe_of(model)
    assert loaded.raw.get_session_options().intra_op_num_threads == 1
    assert loaded.providers == (CPU,)
    assert set(loaded.run({"x": X})) == {"y"}


def test_a_recipe_is_never_overwritten_unasked(model: Path) -> None:
    path = recipe_path(model)
    write_recipe(recipe_of(model), path)
    with pytest.raises(OutputError, match="--force"):
        write_recipe(recipe_of(model), path)
    write_recipe(recipe_of(model, enable_mem_pattern="0"), path, force=True)
    assert read_recipe(path).settings.session["enable_mem_pattern"] is False
    assert [item.name for item in model.parent.iterdir() if item.name.startswith(".")] == []


def test_a_folder_that_is_not_there_is_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="choose another place"):
        write_recipe(recipe_of(model), tmp_path / "no" / "r.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no recipe"),
        ("[]", "no recipe of graphopt"),
        ('{"schema": "other"}', "no recipe of graphopt"),
        ('{"schema": "graphopt.recipe", "schema_version": 99}', "version 99"),
        ('{"schema": "graphopt.recipe", "schema_version": 1}', "damaged"),
    ],
)
def test_what_is_no_recipe_is_told(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words):
        read_recipe(path)


@pytest.mark.parametrize(
    "session", [{"log_severity_level": 0}, {"intra_op_num_threads": "1"}, {"enable_mem_pattern": 1}], ids=str
)
def test_a_recipe_sets_only_what_a_recipe_may_set(session: dict[str, Any], model: Path, tmp_path: Path) -> None:
    document = recipe_of(model).to_json()
    document["settings"]["session"] = session
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RecipeError, match="damaged"):
        read_recipe(path)


def test_no_file_is_told(tmp_path: Path, model: Path) -> None:
    with pytest.raises(RecipeError, match="check the path"):
        read_recipe(tmp_path / "r.json")
    with pytest.raises(ModelError):
        runtime.load(tmp_path / "no.onnx")


# --- another model


def test_a_changed_model_is_an_error(model: Path) -> None:
    write_recipe(recipe_of(model), recipe_path(model))
    model.write_bytes(linear(factor=2.0))
    with pytest.raises(RecipeError, match="tune the model anew"):
        runtime.load(model)


def test_a_model_under_another_name_is_the_same(model: Path, tmp_path: Path) -> None:
    recipe = recipe_of(model)
    other = tmp_path / "renamed.onnx"
    model.rename(other)
    assert quietly(other, recipe).recipe == recipe


def test_changed_external_data_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    proto = onnx.ModelProto.FromString(linear())
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    recipe = recipe_of(path)
    assert list(recipe.model.external) == ["weights.bin"]
    assert require_model(path, (recipe.model,)) == recipe.model
    weights = tmp_path / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[0] ^= 1
    weights.write_bytes(data)
    with pytest.raises(RecipeError, match=r"weights\.bin"):
        require_model(path, (recipe.model,))
    weights.unlink()
    with pytest.raises(RecipeError, match=r"weights\.bin"):
        require_model(path, (recipe.model,))


def test_the_rewritten_model_of_a_recipe_is_run(model: Path, tmp_path: Path) -> None:
    original = fingerprint(model)
    rewritten = tmp_path / "linear.portable.onnx"
    rewritten.write_bytes(linear(factor=2.0))
    recipe = replace(recipe_of(model), model=fingerprint(rewritten))
    path = recipe_path(model)
    write_recipe(recipe, path)
    plain = quietly(rewritten, path).run({"x": X})["y"]
    np.testing.assert_array_equal(quietly(model).run({"x": X})["y"], plain)
    assert recipe.original == original
    rewritten.unlink()
    with pytest.raises(RecipeError, match="put it there"):
        runtime.load(model)


# --- another device


def test_another_device_is_a_warning_that_says_what_differs(model: Path) -> None:
    recipe = recipe_of(model)
    recipe = replace(recipe, stamp=replace(recipe.stamp, device="Abacus 9", runtime="1.2.3"))
    with pytest.warns(RecipeWarning, match=r"instead of Abacus 9.*instead of 1\.2\.3"):
        loaded = runtime.load(model, recipe)
    assert loaded.raw.get_session_options().intra_op_num_threads == 1


def test_another_graphopt_is_none() -> None:
    here = stamp_here(CPU)
    assert stamp_differences(replace(here, graphopt="0.0"), here) == []
    assert here.device
    assert usable_cores() >= 1


def test_the_warning_points_at_the_caller(model: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        runtime.load(model)
    [warning] = seen
    assert warning.filename == __file__
    assert "no recipe beside it" in str(warning.message)


def test_the_cpu_runs_where_cuda_does_not_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(model, provider=CUDA, prefer_nhwc="1")
    monkeypatch.setattr(loading, "starts", lambda provider: False)
    with pytest.warns(RecipeWarning, match="does not start on this machine"):
        loaded = runtime.load(model, recipe)
    assert loaded.providers == (CPU,)
    assert loaded.recipe is None
    assert loaded.run({"x": X})["y"].shape == (3, 4)


# --- plain code


def test_the_code_of_a_recipe_runs_without_graphopt(model: Path) -> None:
    recipe = recipe_of(
        model,
        graph_optimization_level="ORT_ENABLE_BASIC",
        execution_mode="ORT_PARALLEL",
        enable_cpu_mem_arena="0",
        **{"session.intra_op.allow_spinning": "0"},
    )
    text = code(recipe, str(model)) + "\nassert session.get_session_options().intra_op_num_threads == 1\n"
    text += "assert options.enable_cpu_mem_arena is False\nimport sys\nassert 'graphopt' not in sys.modules\n"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0


def test_the_code_for_a_gpu_brings_its_libraries_in(model: Path) -> None:
    text = code(recipe_of(model, provider=CUDA, prefer_nhwc="1", enable_cuda_graph="1"))
    compile(text, "recipe", "exec")
    assert text.index("preload_dlls") < text.index("InferenceSession")
    assert '("CUDAExecutionProvider", {"prefer_nhwc": "1", "enable_cuda_graph": "1"}), "CPUExecutionProvider"' in text
    assert "gpu_graph_id" in text


# --- CUDA graphs


class FakeRaw:
    """A session that counts its plain runs."""

    def __init__(self) -> None:
        self.plain = 0

    def get_outputs(self) -> list[Any]:
        return []

    def run(self, names: list[str], feeds: dict[str, Any], options: Any) -> list[Any]:
        self.plain += 1
        assert options.get_run_config_entry("gpu_graph_id") == "-1"
        return []


def test_each_shape_is_recorded_once_and_too_many_run_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    class FakeRecording:
        def __init__(self, raw: Any, feeds: dict[str, Any]) -> None:
            made.append(feeds["x"].shape)

        def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
            return {"y": feeds["x"].sum()}

    monkeypatch.setattr(captured, "Recording", FakeRecording)
    raw, heard = FakeRaw(), list[str]()
    recordings = Recordings(raw, most=2)
    for size in (1, 2, 1, 3, 0, 2, 3):
        recordings.run({"x": np.ones(size)}, heard.append)
    assert made == [(1,), (2,)]
    assert raw.plain == 3
    assert len(heard) == 2
    assert "Pad inputs" in heard[0]


def test_a_recording_follows_its_inputs_and_keeps_its_buffers(model: Path) -> None:
    """Buffers of the host stand for those of a device: the runtime runs plainly there, on the same bindings."""
    raw = Session(str(model), AS_USERS.but(threads=1)).raw
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((4, 16)).astype(np.float32)} for _ in range(3)]
    plain = [raw.run(None, feed)[0] for feed in feeds]
    own = {"x": feeds[0]["x"].copy()}  # on the host the first inputs are the buffers
    recording = captured.Recording(raw, own, place="cpu")
    for number in (0, 1, 2, 0):
        outputs = recording.run(feeds[number])
        assert list(outputs) == ["y"]
        np.testing.assert_array_equal(outputs["y"], plain[number])


def test_outputs_of_a_recording_are_the_callers_own(model: Path) -> None:
    raw = Session(str(model), AS_USERS.but(threads=1)).raw
    recording = captured.Recording(raw, {"x": X.copy()}, place="cpu")
    first = recording.run({"x": X})["y"]
    copy = first.copy()
    recording.run({"x": -X})
    np.testing.assert_array_equal(first, copy)


@pytest.mark.gpu
def test_a_recorded_session_follows_its_inputs_and_takes_any_shape(model: Path, cuda: str) -> None:
    plain = quietly(model, recipe_of(model, use_tf32="0"))
    recipe = replace(recipe_of(model, provider=CUDA, enable_cuda_graph="1", use_tf32="0"), stamp=stamp_here(CUDA))
    loaded = quietly(model, recipe)
    assert loaded.providers[0] == CUDA
    rng = np.random.default_rng(0)
    for rows in (1, 4, 1, 4, 2):
        x = rng.standard_normal((rows, 16)).astype(np.float32)
        np.testing.assert_allclose(loaded.run({"x": x})["y"], plain.run({"x": x})["y"], rtol=1e-4, atol=1e-4)
