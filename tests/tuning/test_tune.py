from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning_models import CHECKOUT, convolution, noisy

from graphopt import runtime
from graphopt.errors import ExecutionError, FeedError, OutputError, UsageError
from graphopt.recipes import Recipe
from graphopt.runtime.recipe import read_recipe
from graphopt.tuning import preparation, tune
from graphopt.tuning.search import Outcome
from graphopt.tuning.trial import Job


class Fake:
    """Trials in which a session with one thread is twice as fast, and all others are as fast as the defaults."""

    slots = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job], timeout: float) -> Iterator[tuple[int, Outcome]]:
        for number, job in enumerate(jobs):
            self.jobs.append(job)
            mine, theirs = self.milliseconds(job.candidate), self.milliseconds(job.best)
            ratio = theirs / mine
            said = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "no faster"
            yield number, Outcome(said, "", 1e-7, "y", mine, theirs, ratio, ratio * 0.99, ratio * 1.01, seconds=0.1)

    def milliseconds(self, contender: Any) -> float:
        return 1.0 if ("intra_op_num_threads", 1) in contender.settings.attributes else 2.0

    def close(self) -> None:
        raise AssertionError("who brings an executor closes it")


ONE = [{"intra_op_num_threads": "1"}]


def test_a_recipe_holds_what_was_found(model: Path) -> None:
    found = tune(model, provider="cpu", executor=Fake(), wanted=ONE, only=True)
    assert found.path == str(model.with_suffix(".recipe.json"))
    recipe = read_recipe(found.path)
    assert found.recipe == recipe
    assert recipe.settings.session == {"intra_op_num_threads": 1}
    assert recipe.settings.provider == "CPUExecutionProvider"
    assert (recipe.baseline_ms, recipe.median_ms, recipe.ratio) == (2.0, 1.0, 2.0)
    assert recipe.stamp.runtime
    assert recipe.stamp.device
    assert recipe.model == recipe.original
    assert recipe.sizes == {"x": "float32[1,16]"}
    assert len(recipe.feeds) > 2
    assert len({feed.partition(": ")[2] for feed in recipe.feeds}) > 1, "other sizes of the free dim are compared, too"
    assert [item.kept for item in recipe.trials] == [True]
    document = json.loads(Path(found.path).read_text())
    assert (document["schema"], document["schema_version"]) == ("graphopt.recipe", 1)
    json.dumps(found.to_json(), allow_nan=False)


def test_every_trial_is_held_to_the_unoptimized_original(model: Path) -> None:
    fake = Fake()
    found = tune(model, provider="cpu", executor=fake, dims={"batch": 8}, wanted=ONE, only=True)
    standard = fake.jobs[0].standard
    assert standard.feeds[0]["x"].shape == (8, 16)
    assert set(standard.limits) == {"y"}
    assert standard.limits["y"] >= 3 * found.floor["y"]
    assert standard.limits["y"] >= 3 * 2.0**-23
    assert standard.limits["y"] < 1e-4
    second = standard.feeds[1]["x"]
    assert second.shape == (8, 16)
    assert not np.array_equal(second, standard.feeds[0]["x"]), "a recorded run must be seen to follow its inputs"


def test_an_allowed_error_replaces_the_measured_one(model: Path) -> None:
    fake = Fake()
    tune(model, provider="cpu", executor=fake, max_error=0.25, wanted=ONE, only=True)
    assert fake.jobs[0].standard.limits == {"y": 0.25}


def test_defaults_beyond_the_allowed_error_do_not_count(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    floor = preparation._Preparation._floor

    def far(self: Any, *arguments: Any) -> Any:
        return {"y": 0.5}, *floor(self, *arguments)[1:]

    monkeypatch.setattr(preparation._Preparation, "_floor", far)
    fake = Fake()
    found = tune(model, provider="cpu", executor=fake, max_error=1e-3, wanted=[{"enable_mem_pattern": "0"}], only=True)
    assert not found.baseline_ok
    assert found.recipe is not None
    assert found.recipe.settings.session == {"graph_optimization_level": "ORT_ENABLE_EXTENDED"}
    assert dict(fake.jobs[-1].best.settings.attributes) == {"graph_optimization_level": "ORT_ENABLE_EXTENDED"}


def test_nothing_is_overwritten_unasked(model: Path) -> None:
    path = model.with_suffix(".recipe.json")
    path.write_text("mine")
    fake = Fake()
    with pytest.raises(OutputError, match="--force"):
        tune(model, provider="cpu", executor=fake)
    assert path.read_text() == "mine"
    assert not fake.jobs
    tune(model, provider="cpu", executor=fake, wanted=ONE, only=True, force=True)
    assert read_recipe(path).ratio == 2.0


def test_nothing_is_written_where_that_is_asked_for(model: Path) -> None:
    found = tune(model, provider="cpu", executor=Fake(), wanted=ONE, only=True, write=False)
    assert found.path == ""
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def test_a_rewritten_model_that_wins_is_written_beside_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes((CHECKOUT / "models" / "decoder.onnx").read_bytes())

    class Prefers(Fake):
        def milliseconds(self, contender: Any) -> float:
            return 2.0 if contender.model == str(path) else 1.0

    found = tune(path, provider="cpu", executor=Prefers(), targets=["portable"], wanted=ONE, only=False)
    assert found.recipe is not None
    assert found.recipe.model.file == "decoder.portable.onnx"
    assert not found.recipe.model.is_same(found.recipe.original)
    assert (tmp_path / "decoder.portable.onnx").is_file()
    for given in ("decoder.onnx", "decoder.portable.onnx"):
        session = runtime.load(tmp_path / given, tmp_path / "decoder.recipe.json")
        assert session.recipe == found.recipe


def test_an_unknown_target_is_refused_before_anything_runs(model: Path) -> None:
    with pytest.raises(UsageError):
        tune(model, provider="cpu", executor=Fake(), targets=["toaster"])


def test_a_device_that_is_not_there_is_an_error(model: Path) -> None:
    with pytest.raises((ExecutionError, UsageError)):
        tune(model, provider="migraphx", executor=Fake())


def test_names_that_do_not_exist_are_errors(model: Path) -> None:
    with pytest.raises(FeedError, match="symbolic dims are batch"):
        tune(model, provider="cpu", executor=Fake(), dims={"bath": 3})


def test_random_outputs_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "noisy.onnx"
    path.write_bytes(noisy())
    fake = Fake()
    found = tune(path, provider="cpu", executor=fake, wanted=ONE, only=True)
    assert set(fake.jobs[0].standard.limits) == {"y"}
    assert any("random" in note and "z" in note for note in found.notes)


def test_own_data_is_what_is_timed(model: Path) -> None:
    data = model.parent / "data.npz"
    np.savez(data, x=np.full((5, 16), 0.5, np.float32))
    fake = Fake()
    tune(model, provider="cpu", executor=fake, data=str(data), wanted=ONE, only=True)
    assert fake.jobs[0].standard.feeds[0]["x"].shape == (5, 16)
    assert (fake.jobs[0].standard.feeds[0]["x"] == 0.5).all()


def test_the_cpu_is_tuned_where_cuda_does_not_start(model: Path) -> None:
    found = tune(model, executor=Fake(), wanted=ONE, only=True)
    if found.recipe is not None and found.recipe.settings.provider == "CPUExecutionProvider":
        assert any("CUDA does not start here" in note for note in found.notes)


def test_a_real_search_ends_in_time_with_a_recipe_that_loads(model: Path) -> None:
    wanted = [{"intra_op_num_threads": "1"}, {"graph_optimization_level": "ORT_NEVER"}]
    found = tune(model, provider="cpu", wanted=wanted, only=True, max_time=12.0)
    assert found.recipe is not None
    assert found.seconds < 60
    refused = [item for item in found.trials if item.verdict == "refused"]
    assert [item.settings["graph_optimization_level"] for item in refused] == ["ORT_NEVER"]
    assert all(math.isfinite(item.error) for item in found.trials if item.verdict != "refused")
    loaded = runtime.load(model)
    assert loaded.run({"x": np.zeros((1, 16), np.float32)})["y"].shape == (1, 4)


def test_a_recipe_survives_its_file(model: Path) -> None:
    found = tune(model, provider="cpu", executor=Fake(), wanted=ONE, only=True, write=False)
    assert found.recipe is not None
    odd = replace(found.recipe, low=math.inf, high=math.nan)
    again = Recipe.from_json(json.loads(json.dumps(odd.to_json(), allow_nan=False)))
    assert again.low == math.inf
    assert math.isnan(again.high)
    assert replace(again, high=1.0) == replace(odd, high=1.0)


@pytest.mark.gpu
def test_layout_and_bias_of_convolutions_on_a_gpu(tmp_path: Path, cuda: str) -> None:
    """Together they hold; the bias alone gives NaN or finds no engine on some versions, and is refused by that."""
    path = tmp_path / "convolution.onnx"
    path.write_bytes(convolution(batch=64))
    both = {"fuse_conv_bias": "1", "prefer_nhwc": "1"}
    found = tune(path, provider=cuda, wanted=[{"fuse_conv_bias": "1"}, both], only=True, max_time=120)
    assert found.recipe is not None
    trials = {tuple(item.settings): item for item in found.trials if not item.against}
    assert trials["fuse_conv_bias", "prefer_nhwc"].verdict != "refused", trials["fuse_conv_bias", "prefer_nhwc"].reason
    alone = trials["fuse_conv_bias",]
    limit = max(found.recipe.max_error.values())
    assert alone.verdict == "refused" or alone.error <= limit
    assert alone.verdict != "refused" or alone.reason


@pytest.mark.gpu
def test_a_cuda_graph_on_a_gpu(model: Path, cuda: str) -> None:
    found = tune(model, provider=cuda, wanted=[{"enable_cuda_graph": "1"}], only=True, max_time=60)
    [trial] = [item for item in found.trials if item.settings == {"enable_cuda_graph": "1"}][:1]
    assert trial.verdict != "refused", trial.reason
