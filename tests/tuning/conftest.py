from __future__ import annotations

from pathlib import Path

import pytest
from tuning_models import linear

from graphopt.runtime.remote import starts_here
from graphopt.runtime.worker import Worker


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "linear.onnx"
    path.write_bytes(linear())
    return path


@pytest.fixture(scope="session")
def cuda() -> str:
    with Worker(timeout=120) as worker:
        if not worker.call(starts_here, "cuda"):
            pytest.skip("the CUDA provider does not really run here")
    return "cuda"
