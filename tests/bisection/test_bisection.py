"""A rule planted wrong is found by its number, with a small model that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.bisection import bisect
from graphopt.bisection.search import first_bad
from graphopt.errors import OutputError, UsageError

PLANTED = '''
from graphopt import op, rule, var

x = var("x")


@rule(
    op.Softplus(op.Tanh(x)),
    before="(float[2] x) => (float[2] y) { t = Tanh(x)  y = Softplus(t) }",
    after="(float[2] x) => (float[2] y) { t = Sigmoid(x)  y = Softplus(t) }",
)
def wrong(m, b):
    """Not so."""
    return b.Softplus(b.Sigmoid(m[x]))
'''


def chain(path: Path, length: int, wrong_at: int | None) -> Path:
    """A row of layers, one of which the planted rule takes for its own."""
    random = np.random.default_rng(3)
    nodes, weights, last = [], [], "x"
    for layer in range(length):
        weight = (random.standard_normal((16, 16)) / 4).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        first, second = ("Tanh", "Softplus") if layer == wrong_at else ("Identity", "Tanh")
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], name=f"matmul{layer}"),
            helper.make_node(first, [f"m{layer}"], [f"f{layer}"], name=f"first{layer}"),
            helper.make_node(second, [f"f{layer}"], [f"s{layer}"], name=f"second{layer}"),
            helper.make_node("Add", [f"s{layer}", last], [f"a{layer}"], name=f"add{layer}"),
        ]
        last = f"a{layer}"
    nodes.append(helper.make_node("Identity", [last], ["y"], name="end"))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    path = tmp_path / "planted.py"
    path.write_text(PLANTED)
    return path


def test_a_planted_rule_is_found_in_a_thousand_nodes(tmp_path: Path, planted: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 250, 120)
    found = bisect(model, optimize={"load_files": [planted]}, folder=tmp_path / "cut")
    assert (found.rule, found.erased) == ("planted/wrong", ("second120", "first120"))
    assert found.number > 1
    assert 0 < found.reproducer_nodes < 20
    before = onnx.load(tmp_path / "cut" / "before.onnx")
    onnx.checker.check_model(before)
    assert {"Tanh", "Softplus"} <= {node.op_type for node in before.graph.node}
    after = onnx.load(tmp_path / "cut" / "after.onnx")
    assert "Sigmoid" in {node.op_type for node in after.graph.node}
    assert set(np.load(tmp_path / "cut" / "inputs.npz")) == {item.name for item in before.graph.input}


def test_a_sound_model_has_no_bad_rewrite(tmp_path: Path) -> None:
    found = bisect(chain(tmp_path / "chain.onnx", 3, None), folder=tmp_path / "cut")
    assert not found.found
    assert "no difference" in found.reason
    assert not (tmp_path / "cut").exists()


def test_a_command_says_what_is_bad(tmp_path: Path, planted: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 6, 4)
    check = tmp_path / "check.py"
    check.write_text(
        "import onnx, sys\nsys.exit(any(node.op_type == 'Sigmoid' for node in onnx.load(sys.argv[1]).graph.node))\n"
    )
    found = bisect(
        model,
        command=f"{sys.executable} {check} {{}}",
        optimize={"load_files": [planted]},
        folder=tmp_path / "cut",
        strip=True,
    )
    assert found.rule == "planted/wrong"
    assert found.weights_stripped
    assert found.reproducer_nodes < 20


def test_a_command_that_always_fails_blames_the_model(tmp_path: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 2, None)
    found = bisect(model, command=f'{sys.executable} -c "raise SystemExit(3)"')
    assert not found.found
    assert "bad as it is" in found.reason
    assert "ended with 3" in found.reason


def test_what_cannot_be_run_or_written_is_refused(tmp_path: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 2, None)
    with pytest.raises(UsageError, match="cannot run 'no-such-command'"):
        bisect(model, command="no-such-command")
    with pytest.raises(OutputError, match="exists already"):
        bisect(model, folder=tmp_path)


@pytest.mark.parametrize("bad_from", [1, 2, 37, 99, 100])
def test_the_search_ends_at_the_first_bad_one(bad_from: int) -> None:
    looked: list[int] = []

    def is_bad(number: int) -> str:
        looked.append(number)
        return "bad" if number >= bad_from else ""

    found = first_bad(100, is_bad)
    assert found is not None
    assert found.number == bad_from
    assert found.trials == len(looked) <= 10


def test_the_command_names_the_rewrite_and_ends_with_1(tmp_path: Path, planted: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 4, 2)
    ended = subprocess.run(
        [sys.executable, "-m", "graphopt", "bisect", str(model), "--load", str(planted), "--strip-weights"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "by planted/wrong" in ended.stdout
    assert "--disable planted/wrong" in ended.stdout
    assert (tmp_path / "chain.bisect" / "before.onnx").exists()


def test_the_cut_grows_until_the_rule_fires_in_it(tmp_path: Path) -> None:
    rules = tmp_path / "shy.py"
    # It takes away the Softplus alone, but only behind a Tanh, which the smallest cut does not hold.
    rules.write_text(
        PLANTED.replace("op.Softplus(op.Tanh(x))", "op.Softplus(x)").replace(
            "return b.Softplus(b.Sigmoid(m[x]))",
            'return b.Relu(m[x]) if m[x].producer.op_type == "Tanh" else b.no("nothing to see")',
        )
    )
    found = bisect(chain(tmp_path / "chain.onnx", 6, 3), optimize={"load_files": [rules]}, folder=tmp_path / "cut")
    assert (found.rule, found.erased) == ("shy/wrong", ("second3",))
    assert 1 < found.reproducer_nodes < 20
    assert {"Tanh", "Softplus"} <= {node.op_type for node in onnx.load(tmp_path / "cut" / "before.onnx").graph.node}


def test_a_search_that_runs_out_of_time_names_the_suspects(tmp_path: Path, planted: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 6, 4)
    found = bisect(model, optimize={"load_files": [planted]}, folder=tmp_path / "cut", max_time=0.0)
    assert not found.found
    assert "the time was up" in found.reason
    assert "planted/wrong" in found.suspects
    assert not (tmp_path / "cut").exists()


def test_the_search_keeps_to_the_rewrites_that_were_made(tmp_path: Path, planted: Path) -> None:
    model = chain(tmp_path / "chain.onnx", 6, 4)
    found = bisect(model, optimize={"load_files": [planted], "stop_after": 1})
    assert found.rewrites == 1
