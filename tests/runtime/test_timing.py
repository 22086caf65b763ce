"""How many sessions are made, when timing ends, and what is done where two sides do not fit."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from runtime_models import CHECKOUT, text_model

import graphopt
from graphopt.errors import WorkerMemoryError
from graphopt.runtime import device_memory, latency
from graphopt.runtime.session import AS_USERS, CUDA
from graphopt.runtime.timing import LATENCY, Plan, Timings, Track, Work, _pairs, time_here
from graphopt.runtime.worker import Worker, own_bytes

RELU = text_model("(float[8, 8] x) => (float[8, 8] y) { y = Relu(x) }")
WORK = Work({"x": np.ones((8, 8), np.float32)})


def timed(plan: Plan) -> Timings:
    return time_here((RELU, RELU), AS_USERS.but(threads=1), WORK, plan)


def test_there_are_more_pairs_where_loading_is_quick() -> None:
    plan = Plan(pairs=5, seconds=10.0)
    assert _pairs(plan, Timings()) == plan.most_pairs
    assert _pairs(plan, Timings(readying=[0.01, 0.02, 0.01])) == plan.most_pairs
    assert _pairs(plan, Timings(readying=[0.2])) == 15
    assert _pairs(plan, Timings(readying=[30.0])) == 5
    assert _pairs(Plan(pairs=40, seconds=10.0), Timings(readying=[0.01])) == 40


def test_timing_ends_when_nothing_would_change() -> None:
    settled = Timings(tracks={LATENCY: Track()})
    for _ in range(6):
        for side in (0, 1):
            settled.tracks[LATENCY].open_session(side)
            settled.tracks[LATENCY].add(side, [1.0, 1.0, 1.0])
    assert settled.settled(1)
    assert not settled.settled(2)  # another kind of work was not timed yet
    settled.tracks[LATENCY].open_session(0)
    settled.tracks[LATENCY].open_session(1)
    settled.tracks[LATENCY].add(0, [2.0])
    settled.tracks[LATENCY].add(1, [1.0])
    assert not settled.settled(1)


def test_sessions_stay_within_what_is_asked_for() -> None:
    found = timed(Plan(pairs=3, most_pairs=4, seconds=0.5))
    assert 3 <= len(found.loads[0]) == len(found.loads[1]) <= 4
    assert len(found.readying) == len(found.loads[0])
    track = found.tracks[LATENCY]
    assert [len(session) for session in track.rounds[0]] == [len(session) for session in track.lows[0]]
    low, middle = track.lows[0][0][0], track.rounds[0][0][0]
    assert 0 < low <= middle


def test_sides_can_be_timed_one_after_the_other() -> None:
    found = timed(Plan(pairs=3, most_pairs=3, seconds=0.4, together=False))
    assert len(found.loads[0]) == len(found.loads[1]) == 3
    assert found.tracks[LATENCY].estimate().ratio > 0


class OneAtATime(Worker):
    """A worker with room for one session only."""

    def call(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        if function is time_here and arguments[-1].together:
            raise WorkerMemoryError("out of memory: no room for two")
        return super().call(function, *arguments, **keywords)


def test_what_does_not_fit_together_is_timed_apart_and_says_so() -> None:
    with OneAtATime() as worker:
        found = graphopt.runtime.benchmark(
            RELU, RELU, threads=1, max_time=0.6, memory=False, placement=False, worker=worker
        )
    assert found.verdict != "not measured"
    assert any("one after the other" in note for note in found.notes)


def test_weights_beyond_the_free_memory_of_a_device_are_not_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tuple(latency.ModelSource(name, data=RELU) for name in "ab")
    job = latency._Benchmark(sources, Worker(), latency.FeedOptions(), None)  # type: ignore[arg-type]
    for free, fit in ((None, True), (100 * len(RELU), True), (int(1.5 * len(RELU)), False)):
        monkeypatch.setattr(device_memory, "free_device_bytes", lambda free=free: free)
        assert job._fit_together() is fit


def test_mapped_files_are_not_counted_as_memory(tmp_path: Path) -> None:
    import mmap

    path = tmp_path / "data"
    path.write_bytes(b"x" * (8 << 20))
    before = own_bytes(os.getpid())
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert mapping[::4096].count(b"x"[0]) == 2048
        after = own_bytes(os.getpid())
    if before is None or after is None:
        pytest.skip("this system does not tell")
    assert after - before < 4 << 20


def huge() -> ModuleType:
    folder = CHECKOUT / "benchmarks"
    spec = importlib.util.spec_from_file_location("huge", folder / "huge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def test_sparse_weights_are_verified_within_little_memory(tmp_path: Path) -> None:
    """A run as judged needs no weights for itself; as users run it, the runtime rearranges them all."""
    path, weights = huge().build(tmp_path, 1.2e8, np.float32, 2048)
    assert sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir()) < weights / 10
    result = graphopt.optimize(path, measure=False)
    graphopt.save(result.graph, tmp_path / "out.onnx", external_data="reference")
    options: dict[str, Any] = {"provider": "cpu", "runs": 1, "dims": {"rows": 1}}
    tight = graphopt.verify(path, tmp_path / "out.onnx", memory_limit=int(0.9 * weights), **options)
    assert tight.verdict == "equal", tight.reason
    assert any("neither model runs with the runtime's default options" in note for note in tight.notes)
    wide = graphopt.verify(path, tmp_path / "out.onnx", memory_limit=2 * weights, **options)
    assert wide.verdict == "equal", wide.reason
    assert not wide.notes
    none = graphopt.verify(path, tmp_path / "out.onnx", memory_limit=10**6, **options)
    assert none.verdict == "not verified"
    assert "memory" in none.reason


@pytest.mark.gpu
def test_one_after_the_other_on_cuda(cuda: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, weights = huge().build(tmp_path, 2e9, np.float16, 8192)
    monkeypatch.setattr(device_memory, "free_device_bytes", lambda: int(weights / 0.55))
    options: dict[str, Any] = {"provider": cuda, "dims": {"rows": 1}}
    assert graphopt.verify(path, path, runs=1, **options).verdict == "equal"
    found = graphopt.benchmark(path, path, sessions=3, max_time=20.0, memory=False, placement=False, **options)
    assert found.provider == CUDA
    assert any("one after the other" in note for note in found.notes)


def test_verifying_a_result_copies_no_weights(tmp_path: Path) -> None:
    """The file that is compared lies beside the weights for as long as that takes, and refers to them."""
    path, weights = huge().build(tmp_path, 5e7, np.float32, 2048)
    before = {file.name for file in tmp_path.iterdir()}
    seen: list[int] = []
    plain = graphopt.runtime.verify

    def watched(original: Any, rewritten: Any, **options: Any) -> Any:
        beside = [file for file in tmp_path.iterdir() if file.name not in before]
        seen.append(sum(file.stat().st_size for file in beside))
        return plain(original, rewritten, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphopt.runtime, "verify", watched)
        result = graphopt.optimize(path, verify=True, measure=False, runs=1, dims={"rows": 1}, provider="cpu")
    assert result.verdict == "equal", result.verification
    assert 0 < seen[0] < 100_000 < weights
    assert {file.name for file in tmp_path.iterdir()} == before
