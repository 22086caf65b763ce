"""The settings of every run, and the two floors of CUDA on a device that is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runtime_models import linear

from graphopt.runtime import evidence as evidence_module
from graphopt.runtime import verify
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.feeds import FeedOptions
from graphopt.runtime.remote import RemoteSession
from graphopt.runtime.session import CPU, CUDA, JUDGE
from graphopt.runtime.set_ups import SetUp
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.tally import Yardstick
from graphopt.runtime.trial import Trial
from graphopt.runtime.worker import Worker


def test_the_class_check_on_the_cpu_is_the_judge() -> None:
    set_up = SetUp(CPU, seed=3)
    assert set_up.judged() == JUDGE.but(seed=3)
    assert not set_up.has_tf32
    assert "final run without TF32" not in set_up.runs()


def test_the_class_check_on_cuda_is_deterministic_and_the_final_run_is_the_users() -> None:
    runs = SetUp(CUDA).runs()
    for name in ("class check", "noise of the runtime's optimizer"):
        settings = runs[name]
        assert settings.deterministic
        assert dict(settings.provider_options) == {"use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT"}
    final = runs["final run"]
    assert final.tf32
    assert not final.deterministic
    assert final.provider_options == ()
    without = runs["final run without TF32"]
    assert (without.tf32, dict(without.provider_options)) == (False, {"use_tf32": "0"})
    assert without.but(tf32=True, provider_options=()) == final


def test_options_of_the_user_are_in_the_final_run_and_in_the_class_check_only_by_name() -> None:
    options = {"prefer_nhwc": "1", "cudnn_conv_algo_search": "HEURISTIC", "device_id": "1"}
    set_up = SetUp(CUDA, tuple(options.items()))
    assert dict(set_up.as_users().provider_options) == options
    assert dict(set_up.judged().provider_options) == {
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "device_id": "1",
    }
    assert not SetUp(CUDA, (("use_tf32", "0"),)).has_tf32
    other = SetUp("OpenVINOExecutionProvider", (("device_type", "CPU"),))
    assert other.judged().provider_options == other.as_users().provider_options == (("device_type", "CPU"),)


class MadeUpDevice(RemoteSession):
    """The CPU, said to be CUDA; with TF32 on, results keep ten bits."""

    spread = 0.0
    fault = 0.0
    made = 0

    def __init__(self, source: ModelSource, settings: Any, **keywords: Any) -> None:
        super().__init__(source, settings.but(provider=CPU, provider_options=()), **keywords)
        options = dict(settings.provider_options)
        self.is_coarse = options.get("use_tf32", "1" if settings.tf32 else "0") == "1"
        self.is_final = settings.optimize == "all" and settings.threads == 0
        MadeUpDevice.made += 1
        self.number = MadeUpDevice.made

    @property
    def info(self) -> Any:
        return replace(super().info, providers=(CUDA, CPU))

    def run(self, feeds: Any, *, timeout: float | None = None) -> Any:
        rng = np.random.default_rng(self.number)
        results = {}
        for name, value in super().run(feeds, timeout=timeout).items():
            moved = value * (1 + self.spread * rng.uniform(-1, 1, value.shape)).astype(value.dtype)
            if self.is_final and self.source.label == "the rewritten model":
                moved = moved * np.float32(1 + self.fault)
            bits = np.ascontiguousarray(moved).view(np.uint32)
            results[name] = (bits & np.uint32(0xFFFFE000)).view(np.float32) if self.is_coarse else moved
        return results


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> Any:
    monkeypatch.setattr(evidence_module, "RemoteSession", MadeUpDevice)

    def run(original: bytes, rewritten: bytes, spread: float = 0.0, fault: float = 0.0, **options: str) -> Any:
        monkeypatch.setattr(MadeUpDevice, "spread", spread)
        monkeypatch.setattr(MadeUpDevice, "fault", fault)
        sources = [
            ModelSource(label, data=data)
            for label, data in (("the original", original), ("the rewritten model", rewritten))
        ]
        found = Evidence(*sources, worker, FeedOptions(), (), 60.0)
        found.provider, found.provider_options = CUDA, options
        return Trial(found, "default", Yardstick()).run(None, None)

    return run


def test_tf32_has_a_floor_of_its_own_that_counts_in_the_final_run_only(made_up: Any) -> None:
    result = made_up(linear(), linear())
    assert result.verdict == "equal", result.reason
    floors = {floor.name: floor for floor in result.floors}
    assert floors["in another session"].value == 0
    assert 1e-4 < floors["by TF32"].value < 2e-3
    assert floors["by TF32"].unit == "share of the output's largest value"
    assert result.outputs[0].floor_sessions == 0
    assert result.outputs[0].floor_tf32 == floors["by TF32"].value
    assert result.outputs[0].error == 0
    assert any("TF32 alone" in note for note in result.notes)
    assert made_up(linear(), linear(factor=1.001)).verdict == "different"
    off = made_up(linear(), linear(), use_tf32="0")
    assert off.verdict == "equal"
    assert off.outputs[0].floor_tf32 is None
    assert off.outputs[0].error_as_users_run < 1e-6


def test_a_final_run_beyond_the_floor_of_tf32_is_different(made_up: Any) -> None:
    result = made_up(linear(), linear(), fault=0.02)
    assert result.verdict == "different"
    assert "as users run it" in result.reason
    assert made_up(linear(), linear(), fault=1e-4).verdict == "equal"


def test_what_does_not_repeat_itself_on_a_device_is_noise_and_not_random(made_up: Any) -> None:
    result = made_up(linear(), linear(), spread=2e-6)
    assert result.verdict == "equal", result.reason
    assert result.outputs[0].verdict == "equal"
    assert 5e-7 < result.outputs[0].floor_sessions < 1e-5
    assert made_up(linear(), linear(factor=1.001), spread=2e-6).verdict == "different"


@pytest.mark.gpu
def test_both_floors_of_cuda_are_measured(cuda: str, worker: Worker) -> None:
    result = verify(linear(), linear(), provider=cuda, worker=worker)
    assert result.verdict == "equal", result.reason
    names = [floor.name for floor in result.floors]
    assert {"in another session", "by TF32"} <= set(names)
    assert verify(linear(), linear(factor=1.001), provider=cuda, worker=worker).verdict == "different"
