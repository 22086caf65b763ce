"""Same input, same options: same bytes, in any process and under any hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODELS = sorted((ROOT / "models").glob("*.onnx"))
_CODE = """
import hashlib, sys, graphopt
from graphopt.onnxio import write_model
for path in sys.argv[1:]:
    print(hashlib.sha256(write_model(graphopt.optimize(path).graph.model).to_bytes()).hexdigest())
"""


def digests(seed: str) -> list[str]:
    command = [sys.executable, "-c", _CODE, *map(str, MODELS)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_bytes_do_not_depend_on_the_process() -> None:
    first = digests("0")
    assert len(set(first)) == len(MODELS)
    assert digests("1") == first
    assert digests("31337") == first


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_optimizing_again_changes_nothing(path: Path) -> None:
    import graphopt
    from graphopt.onnxio import write_model

    once = graphopt.optimize(path)
    again = graphopt.optimize(once.model)
    assert again.report.rewrites == ()
    assert _digest(write_model(again.graph.model).to_bytes()) == _digest(write_model(once.graph.model).to_bytes())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
