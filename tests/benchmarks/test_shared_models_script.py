"""What the sweep over folders of models tries, and how it judges results that only a runtime understands."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """Import a script that lies beside its own modules and is not part of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module(name)


shared = load("shared_models")
GELU = "(float[3,8] x) => (float[3,8] y) { s = Sigmoid(x)  y = Mul(x, s) }"
HEAD = '<ir_version: 9, opset_import: ["" : {}, "com.microsoft" : 1]>\ng '


def saved(text: str, path: Path, opset: int = 16) -> Path:
    onnx.save(onnx.parser.parse_model(HEAD.format(opset) + text), path)
    return path


def test_fusions_round_so_that_exact_is_for_portable_only() -> None:
    assert shared.settings_of(["portable", "ort-cpu"], ["exact", "default"]) == [
        "portable/exact",
        "portable/default",
        "ort-cpu/default",
    ]
    assert shared.settings_of(["ort-cuda"], ["exact"]) == []


def test_every_target_has_an_entry(tmp_path: Path) -> None:
    settings = ["portable/default", "ort-cpu/default", "ort-cuda/default"]
    path = saved(GELU, tmp_path / "gelu.onnx")
    (tmp_path / "out").mkdir()
    messages = list(shared.work(shared.Job("gelu", str(path), None, settings), tmp_path / "out", ""))
    entries = [message["entry"] for message in messages if "entry" in message]
    assert [(entry["target"], entry["status"]) for entry in entries] == [
        ("portable", "ok"),
        ("ort-cpu", "ok"),
        ("ort-cuda", "ok"),
    ]
    assert entries[1]["after"] < entries[0]["after"]


@pytest.mark.parametrize(("target", "status"), [("ort-cuda", "not verified"), ("ort-cpu", "wrong")])
def test_an_operator_without_a_kernel_on_the_cpu(tmp_path: Path, target: str, status: str) -> None:
    image = "(float[1,2,2,8] x, float[8] w, float[8] c) => (float[1,2,2,8] y)"
    original = shared.Original(saved(f"{image} {{ a = Mul(x, w)  y = Add(a, c) }}", tmp_path / "before.onnx"))
    grouped = "com.microsoft.GroupNorm<groups = 2, activation = 0, channels_last = 1>(x, w, c)"
    result = saved(f"{image} {{ y = {grouped} }}", tmp_path / "after.onnx")
    entry = shared.Entry("made", "default", "ok", target=target)
    shared.examine(original, result, entry)
    assert entry.status == status
    assert ("lacks a kernel" in entry.reason) == (status == "not verified")


def test_wrong_numbers_for_cuda_are_wrong(tmp_path: Path) -> None:
    original = shared.Original(saved(GELU, tmp_path / "before.onnx"))
    wrong = "(float[3,8] x) => (float[3,8] y) { y = com.microsoft.QuickGelu<alpha = 1.01>(x) }"
    entry = shared.Entry("made", "default", "ok", target="ort-cuda")
    shared.examine(original, saved(wrong, tmp_path / "after.onnx"), entry)
    assert entry.status == "wrong"


NORMALIZED = "(float[3,8] x, float[8] w) => (float[3,8] y)"


def test_the_checker_reads_stand_ins_for_what_only_the_runtime_has(tmp_path: Path) -> None:
    for opset, text in (
        (16, f"{NORMALIZED} {{ y = LayerNormalization(x, w) }}"),
        (17, f"{NORMALIZED} {{ y = SimplifiedLayerNormalization(x, w) }}"),
    ):
        path = saved(text, tmp_path / "made.onnx", opset)
        assert shared.checker_problem(path)
        checked = shared.as_checked(onnx.load(path), path)
        assert checked != path
        assert shared.checker_problem(checked) is None


def test_the_checker_still_sees_everything_else(tmp_path: Path) -> None:
    for opset, text in (
        (17, f"{NORMALIZED} {{ y = LayerNormalization(x) }}"),
        (16, f"{NORMALIZED} {{ a = LayerNormalization(x, w)  y = NoSuchOperator(a) }}"),
        (16, f"{NORMALIZED} {{ y = LayerNormalization(missing, w) }}"),
    ):
        path = saved(text, tmp_path / "made.onnx", opset)
        assert shared.checker_problem(shared.as_checked(onnx.load(path), path))
