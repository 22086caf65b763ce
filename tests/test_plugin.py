"""The outside view: a package that nobody told graphopt about, found, run and tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip leaves it: the package and its metadata."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PLUGIN / "graphopt_demo", folder / "graphopt_demo")
    info = folder / "graphopt_demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: graphopt-demo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[graphopt.passes]\ndemo = graphopt_demo\n")
    return folder


def graphopt(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parents[1])])}
    command = [sys.executable, "-m", "graphopt", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_its_passes_are_listed_where_they_want_to_be(site: Path) -> None:
    listed = json.loads(graphopt(site, "passes", "--json").stdout)
    names = [item["name"] for item in listed["passes"]]
    assert names.index("demo:double_negation") == names.index("identities") + 1
    assert names[-1] == "demo:leaky"


def test_its_rules_rewrite_a_model(site: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (float[N] y) { a = Neg(x) b = Neg(a) y = Exp(b) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    done = graphopt(site, "optimize", str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx"), "--no-verify", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"]["rewrites"][0]["rule"] == "demo:double_negation/cancel"
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Exp"]


def test_a_class_the_level_forbids_does_not_run(site: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = LeakyRelu<alpha=0.0>(x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    for level, expected in (("default", "LeakyRelu"), ("fast-math", "Relu")):
        target = tmp_path / f"{level}.onnx"
        graphopt(site, "optimize", str(tmp_path / "m.onnx"), str(target), "--no-verify", "--level", level)
        assert onnx.load(target).graph.node[0].op_type == expected


def test_its_examples_are_tests(site: Path) -> None:
    done = graphopt(site, "passes", "demo:double_negation", "--test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks hold" in done.stdout


def test_pytest_runs_the_rules_of_a_file(tmp_path: Path) -> None:
    wrong = (PLUGIN / "graphopt_demo" / "double_negation.py").read_text().replace("return m[x]", "return b.Abs(m[x])")
    (tmp_path / "wrong.py").write_text(wrong)
    shutil.copy(PLUGIN / "graphopt_demo" / "double_negation.py", tmp_path / "right.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "graphopt.testing.plugin", "--graphopt-rules"]
    for name, code in (("right.py", 0), ("wrong.py", 1)):
        done = subprocess.run([*command, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert "the result is not `after`" in done.stdout
