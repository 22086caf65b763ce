"""Running the command in this process, as `graphopt` would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphopt.cli.main import main

MODEL = """<ir_version: 9, opset_import: ["": 20]> small (float[N,3] x) => (float[N,3] y)
    <float[3] w = {1.0, 2.0, 3.0}> { [i] a = Identity(x) [m] b = Mul(a, w) [r] y = Relu(b) [d] unread = Neg(b) }"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.delenv("COLUMNS", raising=False)  # who runs tests side by side sets it, and lines would wrap there

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["graphopt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Done(stop.value.code if isinstance(stop.value.code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path
