from __future__ import annotations

import json

import pytest

from graphopt.runtime import diagnosis, doctor


def test_the_report_names_what_runs() -> None:
    report = doctor()
    assert "CPUExecutionProvider" in report.providers_running
    assert set(report.providers_running) <= set(report.providers_listed)
    assert report.versions["onnx"]
    assert report.healthy == all(finding.ok for finding in report.findings)
    for finding in report.findings:
        assert "\n" not in finding.text
    json.dumps(report.to_json(), allow_nan=False)


def test_two_wheels_over_each_other_are_found() -> None:
    finding = diagnosis._wheels(["onnxruntime", "onnxruntime-gpu"], lambda wheel: "site-packages")
    assert not finding.ok
    assert "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu" in finding.remedy
    assert diagnosis._wheels(["onnxruntime", "onnxruntime-gpu"], lambda wheel: f"other/{wheel}").ok
    assert not diagnosis._wheels([]).ok


def test_a_gpu_wheel_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def call(self, function: object, *_: object, **__: object) -> object:
            return False if function is diagnosis.starts_here else "libcudnn.so.9: cannot open shared object file"

    finding = diagnosis._provider(Broken(), "CUDAExecutionProvider", ("NVIDIA H200",), ["onnxruntime-gpu"])  # type: ignore[arg-type]
    assert not finding.ok
    assert "libcudnn.so.9" in finding.text
    assert "onnxruntime-gpu[cuda,cudnn]" in finding.remedy
    assert diagnosis._provider(Broken(), "CUDAExecutionProvider", (), []).ok  # type: ignore[arg-type]
