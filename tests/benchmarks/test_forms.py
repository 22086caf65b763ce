"""The forms of one question compute the same: a benchmark of two different functions says nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import onnx
import pytest

import graphopt
from graphopt.runtime.session import CPU, JUDGE, Session

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """Import a script that lies beside its own modules and is not part of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module(name)


forms = load("forms")


@pytest.mark.parametrize("name", forms.QUESTIONS)
def test_forms_of_a_question_compute_the_same(name: str) -> None:
    question = forms.QUESTIONS[name](True)
    here = [form for form in question.forms if form.suits("f32", False)]
    assert here[0] is question.forms[0]
    sessions = {form.name: Session(form.model("f32"), JUDGE.but(provider=CPU)) for form in here}
    for form, error in forms.differences(question, sessions, "f32").items():
        assert error < (1e-3 if "another function" in form else 1e-5), form


@pytest.mark.parametrize("name", forms.QUESTIONS)
def test_forms_for_cuda_have_the_same_ends(name: str) -> None:
    for dtype in ("f32", "f16"):
        models = [graphopt.load(onnx.load_from_string(form.model(dtype))) for form in forms.QUESTIONS[name](True).forms]
        ends = [([value.type for value in graph.inputs], len(graph.outputs)) for graph in models]
        assert all(end == ends[0] for end in ends)


def test_ratios_are_taken_round_by_round_and_a_form_that_fails_leaves_the_others() -> None:
    rounds = [[2.0, 4.0, 8.0]] * 3
    fine = forms.concluded(forms.Timed("b", runs=[[1.0, 2.0, 4.0]] * 3), [[1.0, 2.0, 4.0]] * 3, rounds)
    assert fine.ratio == pytest.approx(2.0)
    assert fine.verdict == "faster"
    failed = forms.concluded(forms.Timed("c", problem="no kernel"), [], rounds)
    assert (failed.verdict, failed.runs) == ("not measured", [])
    alone = forms.concluded(forms.Timed("d", runs=[[1.0]]), [[1.0]], [])
    assert (alone.ms, alone.verdict) == (1000.0, "not measured")


def test_a_question_that_takes_its_process_down_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys\n"
        "for key in sys.argv[-1].split(','):\n"
        "    print(json.dumps({'begin': key}), flush=True)\n"
        "    if key == 'b':\n"
        "        os.abort()\n"
        "    print(json.dumps({'key': key, 'about': '', 'forms': [], 'problem': ''}), flush=True)\n"
    )
    monkeypatch.setattr(forms, "__file__", str(script))
    options = forms.argparse.Namespace(provider="cpu", seconds=1.0, threads=1)
    found = list(forms.answers(["a", "b", "c"], options, forms.time.monotonic() + 60))
    assert [answer["key"] for answer in found] == ["a", "b", "c"]
    assert [bool(answer["problem"]) for answer in found] == [False, True, False]
