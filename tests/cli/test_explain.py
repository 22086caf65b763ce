"""`graphopt explain`: where a rule fired, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt

Run = Callable[..., Any]

RULES = '''"""Rules to explain."""
from graphopt import attr, graph_pass, op, rule, var
x, p, q = var("x"), attr("perm"), attr("perm")
@rule(op.Transpose(op.Transpose(x, perm=p), perm=q),
      before="(float[2,3] x) => (float[2,3] y) { t = Transpose<perm=[1,0]>(x) y = Transpose<perm=[1,0]>(t) }",
      after="(float[2,3] x) => (float[2,3] y) { y = Transpose<perm=[0,1]>(x) }")
def merge(m, b):
    """Two are one."""
    if m[q][0] == 0:
        return b.no("the second moves nothing")
    return b.Transpose(m[x], perm=[m[p][i] for i in m[q]])
@rule(op.Relu(x), numeric="D", before="(float[2] x) => (float[2] y) { y = Relu(x) }",
      after="(float[2] x) => (float[2] y) { y = Abs(x) }")
def bold(m, b):
    """Relu is not Abs."""
    return b.Abs(m[x])
@graph_pass(before="(float[2] x) => (float[2] y) { y = Neg(x) }", after="(float[2] x) => (float[2] y) { y = Neg(x) }")
def remark(graph, context):
    """Remarks."""
    context.note("Neg is fine")
'''
MODEL = """<ir_version: 9, opset_import: ["": 20]> g (float[2,3] x) => (float[2,3] y, float[3,2] r, float[2,3] s) {
    [one] t = Transpose<perm=[1,0]>(x) [two] u = Transpose<perm=[1,0]>(t) [relu] v = Relu(u)
    [three] w = Transpose<perm=[0,1]>(v) [four] y = Transpose<perm=[0,1]>(w)
    [five] r = Transpose<perm=[1,0]>(v) [six] s = Transpose<perm=[1,0]>(r) }"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    rules, model = tmp_path / "mine.py", tmp_path / "model.onnx"
    rules.write_text(RULES)
    onnx.save(onnx.parser.parse_model(MODEL), model)
    return model, rules


def test_nearest_misses_come_first(run: Run, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, rules = files
    done = run("explain", model, "--rule", "mine/merge", "--load", rules, "--json")
    assert done.code == 0, done.err
    (rule,) = done.json["rules"]
    assert rule["rule"] == "mine/merge"
    assert rule["candidates"] == sum(reason["count"] for reason in rule["reasons"])
    steps = [reason["step"] for reason in rule["reasons"]]
    assert steps == sorted(steps, reverse=True)


def test_reasons_of_a_rule_alone(files: tuple[Path, Path]) -> None:
    model, rules = files
    registry = graphopt.pipeline.registry.Registry([graphopt.pipeline.registry.pass_of_file(rules)])
    (rule,) = graphopt.explain(model, ["merge"], registry=registry)
    assert rule.fired == 1
    first, second, third, *_ = rule.reasons
    assert (first.text, first.step, first.nodes) == ("the second moves nothing", rule.steps, ("four",))
    assert second.text == "Transpose has another user"
    assert second.nodes[0].startswith("six (return")
    assert third.step < second.step
    assert "not" in third.text
    bold, remark = graphopt.explain(model, ["bold", "mine/remark"], registry=registry)
    assert "--level fast-math" in bold.obstacle
    assert remark.notes == ("Neg is fine",)
    (bold,) = graphopt.explain(model, ["bold"], registry=registry, level="fast-math")
    assert (bold.fired, bold.candidates) == (1, 0)


def test_for_people(run: Run, files: tuple[Path, Path]) -> None:
    model, rules = files
    done = run("explain", model, "--rule", "mine", "--load", rules, "--limit", 1)
    assert done.code == 0, done.err
    assert "it was not tried: its class D" in done.out
    assert "note: Neg is fine" in done.out
    assert "Two are one." in done.out
    assert "Traceback" not in done.err
    plain = run("explain", model, "--rule", "dead_code", "--rule", "layout/merge_transposes")
    assert "layout/merge_transposes" in plain.out
    assert "pruning/dead_code" in plain.out


@pytest.mark.parametrize(
    ("name", "word"),
    [("layuot", "'layout'"), ("layout/merge", "merge_transposes"), ("merge_transpose", "'merge_transposes'")],
)
def test_unknown_rules(run: Run, files: tuple[Path, Path], name: str, word: str) -> None:
    done = run("explain", files[0], "--rule", name)
    assert done.code == 2
    assert word in done.err
    assert done.err.count("\n") == 1


def test_a_rule_must_be_named(run: Run, files: tuple[Path, Path]) -> None:
    done = run("explain", files[0])
    assert done.code == 2
    assert "--rule" in done.err


def test_the_version_of_the_runtime(run: Run, files: tuple[Path, Path]) -> None:
    options = ("explain", files[0], "--rule", "fusion.normalizations", "--target")
    old = run(*options, "ort-cpu", "--ort-version", "1.26")
    assert old.code == 0, old.err
    assert "is newer than" not in old.out
    new = run(*options, "ort-cpu", "--ort-version", "1.99", "--json")
    assert new.code == 0, new.err
    assert all("1.99 is newer than the newest known" in rule["notes"][0] for rule in new.json["rules"])
    unknown = run(*options, "ort-cuda", "--ort-version", "1.26")
    assert unknown.code == 2
    assert "known: 1.31" in unknown.err
    aimless = run("explain", files[0], "--rule", "fusion.normalizations", "--ort-version", "1.26")
    assert aimless.code == 2
    assert "--target" in aimless.err


def test_what_is_told_aside_is_in_no_report(files: tuple[Path, Path], tmp_path: Path) -> None:
    mine = tmp_path / "aside.py"
    mine.write_text(files[1].read_text().replace("context.note(", "context.aside("))
    registry = graphopt.pipeline.registry.Registry([graphopt.pipeline.registry.pass_of_file(mine)])
    (remark,) = graphopt.explain(files[0], ["aside/remark"], registry=registry)
    assert remark.notes == ("Neg is fine",)
    assert "Neg is fine" not in graphopt.optimize(files[0], registry=registry).report.notes
