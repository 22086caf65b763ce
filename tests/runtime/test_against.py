from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from runtime_models import CHECKOUT, linear, text_model

from graphopt.errors import UsageError
from graphopt.runtime import verify
from graphopt.runtime.against import OtherRuntime, OtherRuntimeError
from graphopt.runtime.worker import Worker

REFERENCE = CHECKOUT / "examples" / "against_reference.py"
PLACES = "{model} {inputs} {outputs}"


def command(path: Path) -> str:
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(path))} {PLACES}"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "my runtime.py"


def runtime(script: Path, body: str) -> str:
    script.write_text(f"import sys\nimport numpy as np\nmodel, inputs, outputs = sys.argv[1:]\n{body}\n")
    return command(script)


def test_the_example_runs_a_model_on_the_reference_implementation(tmp_path: Path, worker: Worker) -> None:
    path = tmp_path / "a model.onnx"
    path.write_bytes(linear())
    result = verify(path, against=command(REFERENCE), provider="cpu", runs=2, worker=worker)
    assert result.verdict == "equal", result.reason
    assert result.against == command(REFERENCE)
    assert "the other runtime" in result.reason
    wrong = verify(path, linear(factor=1.001), against=command(REFERENCE), provider="cpu", runs=1, worker=worker)
    assert wrong.verdict == "different"
    assert "of the other runtime" in wrong.reason


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no device')", "exit code 1; it last said: no device"),
        ("pass", "wrote no file"),
        ("np.savez(outputs, z=np.zeros(3))", "lacks the output 'y'; it has 'z'"),
        ("open(outputs, 'w').write('hello')", "cannot be read"),
        ("import os; os.abort()", "SIGABRT"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_what_a_command_does_wrong_is_told(script: Path, body: str, said: str, worker: Worker) -> None:
    timeout = 2.0 if "sleep" in body else None
    against = runtime(script, body)
    result = verify(linear(), against=against, provider="cpu", runs=1, timeout=timeout, worker=worker)
    assert result.verdict == "not verified"
    assert said in result.reason


@pytest.mark.parametrize(
    ("value", "said"), [("np.zeros((8, 4))", "float64"), ("np.zeros((1, 1), np.float32)", "shape")]
)
def test_another_dtype_or_shape_is_different(script: Path, value: str, said: str, worker: Worker) -> None:
    result = verify(
        linear(), against=runtime(script, f"np.savez(outputs, y={value})"), provider="cpu", runs=1, worker=worker
    )
    assert result.verdict == "different"
    assert said in result.reason


def test_what_fails_at_empty_inputs_only_is_compared_on_the_others(script: Path, worker: Worker) -> None:
    line = "    runtime = ReferenceEvaluator(model)\n"
    text = REFERENCE.read_text()
    assert line in text
    script.write_text(text.replace(line, f"    assert all(value.size for value in feeds.values())\n{line}"))
    result = verify(linear(), against=command(script), provider="cpu", worker=worker)
    assert result.verdict == "equal", result.reason
    outcomes = {feed.label: feed.outcome for feed in result.feeds}
    assert "the other runtime fails" in outcomes["size 0"]


def test_a_command_must_name_its_places() -> None:
    for bad in ("run {model} {inputs}", "run {inputs} {outputs}", "run '{model} {inputs} {outputs}"):
        with pytest.raises(UsageError, match="--against"):
            OtherRuntime(bad, 1.0)
    with pytest.raises(UsageError, match="nothing to compare"):
        verify(linear())


def test_a_shell_only_where_it_is_needed() -> None:
    assert not OtherRuntime(f"python 'a;b.py' {PLACES}", 1.0).needs_shell
    for needing in (f"run {PLACES} | cat", f"A=1 && run {PLACES}", f"run {PLACES} 2>/dev/null", f"run $HOME {PLACES}"):
        assert OtherRuntime(needing, 1.0).needs_shell


def test_names_that_numpy_takes_for_its_own_and_strings_pass(tmp_path: Path, script: Path) -> None:
    against = runtime(script, "d = dict(np.load(inputs)); np.savez(outputs, y=d['file'], s=d['s'])")
    given = {"file": np.arange(3.0), "s": np.array([b"a", "é"], dtype=object)}
    found = OtherRuntime(against, 60.0).run("model", given, ["y", "s"])
    np.testing.assert_array_equal(found["y"], np.arange(3.0))
    assert found["s"].tolist() == ["a", "é"]
    with pytest.raises(OtherRuntimeError, match="no tensor"):
        OtherRuntime(against, 60.0).run("model", {"file": [np.zeros(1)]}, ["y"])


def test_integers_and_shapes_of_zero_dims_pass(script: Path, worker: Worker) -> None:
    model = text_model("(int64 x) => (int64 y) { y = Neg(x) }")
    against = runtime(script, "np.savez(outputs, y=-np.load(inputs)['x'])")
    assert verify(model, against=against, provider="cpu", runs=1, worker=worker).verdict == "equal"
