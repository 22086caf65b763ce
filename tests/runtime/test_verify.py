from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from runtime_models import conv_bn, linear, shared_folder, text_model

from graphopt.errors import FeedError, RunFailedError, UsageError
from graphopt.runtime import verify
from graphopt.runtime.worker import Worker


def test_a_model_equals_itself(worker: Worker) -> None:
    for level in ("exact", "default"):
        result = verify(linear(), linear(), level=level, worker=worker)
        assert result.verdict == "equal"
        assert result.provider == "CPUExecutionProvider"
        assert all(output.identical for output in result.outputs)
        labels = [feed.label for feed in result.feeds]
        assert labels[:4] == ["base sizes", "other sizes", "sizes 1", "size 0"]
        json.dumps(result.to_json(), allow_nan=False)


def test_a_wrong_weight_is_different(worker: Worker) -> None:
    result = verify(linear(), linear(factor=1.001), worker=worker)
    assert result.verdict == "different"
    assert "'y'" in result.reason
    assert result.outputs[0].tolerance is not None
    assert result.outputs[0].error > result.outputs[0].tolerance


def test_one_wrong_element_is_different(worker: Worker) -> None:
    assert verify(linear(), linear(element=1.001), worker=worker).verdict == "different"


def test_folded_normalization_is_equal_but_not_exact(worker: Worker) -> None:
    result = verify(conv_bn(), conv_bn(folded=True), worker=worker)
    assert result.verdict == "equal", result.reason
    assert not result.outputs[0].identical
    assert result.outputs[0].floor_optimizer is not None
    assert result.outputs[0].floor_ulp is not None
    assert verify(conv_bn(), conv_bn(folded=True), level="exact", worker=worker).verdict == "different"
    wrong = verify(conv_bn(), conv_bn(folded=True, wrong=1.001), worker=worker)
    assert wrong.verdict == "different"


def test_tolerances_of_the_user_rule_and_are_named(worker: Worker) -> None:
    result = verify(linear(), linear(factor=1.001), rtol=0.01, worker=worker)
    assert result.verdict == "equal"
    assert "--rtol 0.01" in result.reason
    assert verify(linear(), linear(factor=1.001), rtol=1e-5, worker=worker).verdict == "different"


def test_nan_is_no_difference(worker: Worker) -> None:
    model = text_model("(float[N] x) => (float[N] y) { z = Sub(x, x) y = Div(z, z) }")
    assert verify(model, model, worker=worker).verdict == "equal"
    other = text_model("(float[N] x) => (float[N] y) { y = Sub(x, x) }")
    assert verify(model, other, worker=worker).verdict == "different"


def test_random_outputs_are_reported_not_compared(worker: Worker) -> None:
    model = text_model("(float[N] x) => (float[N] y, float[N] z) { r = RandomUniformLike(x) y = Add(x, r) z = Neg(x) }")
    other = text_model("(float[N] x) => (float[N] y, float[N] z) { r = RandomNormalLike(x) y = Add(r, x) z = Neg(x) }")
    result = verify(model, other, worker=worker)
    assert result.verdict == "equal", result.reason
    assert [output.verdict for output in result.outputs] == ["random", "equal"]
    assert any("random" in note for note in result.notes)
    broken = text_model(
        "(float[N] x) => (float[N] y, float[N] z) { r = RandomUniformLike(x) y = Add(x, r) z = Abs(x) }"
    )
    assert verify(model, broken, worker=worker).verdict == "different"


def test_only_random_outputs_are_not_verified(worker: Worker) -> None:
    one = text_model("(float[N] x) => (float[N] y) { r = RandomUniformLike(x) y = Add(x, r) }")
    two = text_model("(float[N] x) => (float[N] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    assert verify(one, two, worker=worker).verdict == "not verified"


def test_signatures_must_agree(worker: Worker) -> None:
    model = text_model("(float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }")
    for text in (
        "(float[N] z, float[N] x) => (float[N] y) { y = Add(x, z) }",
        "(float[N] x, float[N] z) => (float[N] w) { w = Add(x, z) }",
        "(double[N] x, double[N] z) => (double[N] y) { y = Add(x, z) }",
    ):
        assert verify(model, text_model(text), worker=worker).verdict == "different"


def test_shapes_and_dtypes_must_agree(worker: Worker) -> None:
    model = text_model("(float[N] x) => (float[M] y) { y = Identity(x) }")
    other = text_model("(float[N] x) => (float[1, N] y) { a = Constant<value_ints = [0]>() y = Unsqueeze(x, a) }")
    assert "shape" in verify(model, other, worker=worker).reason


def test_what_the_original_cannot_run_covers_nothing(worker: Worker) -> None:
    model = text_model(
        "(float[N, 4] x) => (float[N, M, 2] y) { s = Constant<value_ints = [0, -1, 2]>() y = Reshape(x, s) }"
    )
    result = verify(model, model, worker=worker)
    assert result.verdict == "equal"
    outcomes = {feed.label: feed.outcome for feed in result.feeds}
    assert outcomes["size 0"].startswith("covers nothing")


def test_a_stricter_result_is_different(worker: Worker) -> None:
    model = text_model("(float[N, 4] x) => (float[M, 4] y) { s = Constant<value_ints = [-1, 4]>() y = Reshape(x, s) }")
    strict = text_model("(float[N, 4] x) => (float[M, 4] y) { s = Constant<value_ints = [2, 4]>() y = Reshape(x, s) }")
    result = verify(model, strict, worker=worker)
    assert result.verdict == "different"
    assert "does not" in result.reason


def test_models_that_nothing_runs_are_not_verified(worker: Worker) -> None:
    broken = verify(b"no model", b"no model", worker=worker)
    assert broken.verdict == "not verified"
    assert "cannot be run" in broken.reason


def test_equal_around_opaque_nodes(worker: Worker) -> None:
    def model(before: str, inside: str = "k = 3", after: str = "Neg(b)") -> bytes:
        text = f"(float[N, 4] x) => (float[N, 4] y) {{ {before} b = nowhere.Op<{inside}>(a, x) y = {after} }}"
        return text_model(text, extra=', "nowhere": 1')

    original = model("i = Identity(x) a = Abs(i)")
    result = verify(original, model("a = Abs(x)"), worker=worker)
    assert result.verdict == "equal", result.reason
    assert result.opaque_nodes == 1
    assert "around 1 opaque node" in result.reason
    assert verify(original, model("a = Neg(x)"), worker=worker).verdict == "different"
    assert verify(original, model("a = Abs(x)", after="Abs(b)"), worker=worker).verdict == "different"
    assert verify(original, model("a = Abs(x)", inside="k = 4"), worker=worker).verdict == "not verified"
    gone = text_model("(float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }")
    assert verify(original, gone, worker=worker).verdict == "not verified"


def test_ties_of_scores_excuse_their_indices(worker: Worker) -> None:
    left = text_model(
        "(float[N, 8] x) => (int64[N] y) { o = Constant<value = float {0}>() e = Constant<value = float {1}>()"
        "m = Mul(x, o) z = Add(m, e) y = ArgMax<axis = 1, keepdims = 0>(z) }"
    )
    right = text_model(
        "(float[N, 8] x) => (int64[N] y) { o = Constant<value = float {0.00000001}>() e = Constant<value = float {1}>()"
        "m = Mul(x, o) z = Add(m, e) y = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(z) }"
    )
    result = verify(left, right, worker=worker)
    assert result.verdict == "equal", result.reason
    assert "tie" in result.outputs[0].reason
    wrong = text_model("(float[N, 8] x) => (int64[N] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }")
    other = text_model("(float[N, 8] x) => (int64[N] y) { y = ArgMin<axis = 1, keepdims = 0>(x) }")
    assert verify(wrong, other, worker=worker).verdict == "different"


def test_integers_have_no_tolerance(worker: Worker) -> None:
    one = text_model("(int64[N] x) => (int64[N] y) { y = Mul(x, x) }")
    two = text_model("(int64[N] x) => (int64[N] y) { a = Abs(x) y = Mul(a, x) }")
    assert verify(one, two, worker=worker).verdict == "different"


def test_a_crash_of_the_rewritten_model_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.runtime import remote

    calls = {"count": 0}
    honest = remote.RemoteSession.run

    def run(self, feeds, *, timeout=None):  # type: ignore[no-untyped-def]
        if self.source.label == "the rewritten model":
            calls["count"] += 1
            import os

            return self._call(os.abort)
        return honest(self, feeds, timeout=timeout)

    monkeypatch.setattr(remote.RemoteSession, "run", run)
    with Worker() as worker:
        result = verify(linear(), linear(), worker=worker)
    assert calls["count"] == 1
    assert result.verdict == "different"
    assert "crashed" in result.reason


@pytest.mark.parametrize("at", ["empty", "full"])
def test_what_the_runtimes_own_optimizations_break_at_empty_feeds_is_a_remark(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    from graphopt.runtime import remote

    honest = remote.RemoteSession.run

    def run(self, feeds, *, timeout=None):  # type: ignore[no-untyped-def]
        is_empty = any(value.size == 0 for value in feeds.values())
        if (
            self.source.label == "the rewritten model"
            and self.settings.optimize == "all"
            and is_empty is (at == "empty")
        ):
            raise RunFailedError("a fused kernel divides by 0")
        return honest(self, feeds, timeout=timeout)

    monkeypatch.setattr(remote.RemoteSession, "run", run)
    with Worker() as worker:
        result = verify(linear(), linear(), worker=worker)
    if at == "full":
        assert result.verdict == "different"
        return
    assert result.verdict == "equal"
    assert any("feed it nothing empty" in note for note in result.notes)
    assert any("optimizer off" in feed.outcome for feed in result.feeds)


def test_files_and_external_data(tmp_path: Path, worker: Worker) -> None:
    model = onnx.ModelProto.FromString(linear())
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    assert verify(path, linear(), worker=worker).verdict == "equal"


def test_options_that_fit_nothing_are_errors(worker: Worker) -> None:
    with pytest.raises(FeedError, match="--dim"):
        verify(linear(), linear(), dims={"Q": 3}, worker=worker)
    with pytest.raises(FeedError, match="--range"):
        verify(linear(), linear(), ranges={"Q": (0, 1)}, worker=worker)


@pytest.mark.gpu
def test_cuda(cuda: str, worker: Worker) -> None:
    result = verify(conv_bn(), conv_bn(folded=True), provider=cuda, worker=worker)
    assert result.verdict == "equal", result.reason
    assert result.provider == "CUDAExecutionProvider"
    assert verify(linear(), linear(factor=1.001), provider=cuda, worker=worker).verdict == "different"


def _shared_models() -> list[Path]:
    folder = shared_folder()
    return sorted(folder.glob("*.onnx")) if folder is not None else []


@pytest.mark.skipif(not _shared_models(), reason="the shared models are not here; set GRAPHOPT_SHARED")
@pytest.mark.parametrize("path", _shared_models(), ids=lambda path: path.stem)
def test_every_shared_model_equals_itself(path: Path, worker: Worker) -> None:
    folder = shared_folder()
    assert folder is not None
    runs = {entry["file"]: entry["runnable"] for entry in json.loads((folder / "models.json").read_text())}
    result = verify(path, path, worker=worker)
    assert result.verdict == ("equal" if runs.get(path.name, True) else "not verified"), result.reason


@pytest.mark.parametrize("options", [{"rtol": float("inf")}, {"atol": float("nan")}, {"runs": 10**20}, {"runs": 0}])
def test_tolerances_and_counts_have_bounds(options: dict[str, float], worker: Worker) -> None:
    with pytest.raises(UsageError):
        verify(linear(), linear(), provider="cpu", worker=worker, **options)


def test_generation_that_was_asked_for_of_no_decoder_is_told(worker: Worker) -> None:
    result = verify(linear(), linear(), provider="cpu", decode=4, worker=worker)
    assert any("not a decoder" in note for note in result.notes)
    assert not any("not a decoder" in note for note in verify(linear(), linear(), provider="cpu", worker=worker).notes)


def test_sizes_of_the_user_at_which_the_original_fails_are_named(worker: Worker) -> None:
    model = text_model(
        "(float[N, 4] x) => (float[A, B] y) { s = Constant<value = int64[2] {0, -1}>() y = Reshape(x, s) }"
    )
    result = verify(model, model, provider="cpu", dims={"N": 0}, worker=worker)
    assert result.verdict == "not verified"
    assert result.reason.startswith("the original does not run at N=0: ")
    assert "onnxruntime_src" not in result.reason
