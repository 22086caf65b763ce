"""`graphopt optimize`: what is written, what is not, and what it says."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

Run = Callable[..., Any]


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_main_job(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model)
    assert done.code == 0, done.err
    assert operators(tmp_path / "model.opt.onnx") == ["Mul", "Relu"]
    assert "equal" in done.out
    assert "4 → 2" in done.out
    assert len(done.out.strip().splitlines()) <= 25


def test_the_result_may_replace_the_model(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("optimize", model, "-o", model).code == 0
    assert operators(model) == ["Mul", "Relu"]
    assert names_in(tmp_path) == ["model.onnx"]


def test_an_existing_file_needs_force(run: Run, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    done = run("optimize", model, target)
    assert done.code == 2
    assert "--force" in done.err
    assert target.read_bytes() == b"precious"
    assert run("optimize", model, target, "--force").code == 0
    assert operators(target) == ["Mul", "Relu"]


def test_a_dry_run_writes_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "--dry-run")
    assert done.code == 0
    assert "4 → 2" in done.out
    assert names_in(tmp_path) == ["model.onnx"]


def test_json_stands_alone_on_stdout(run: Run, model: Path) -> None:
    done = run("optimize", model, "--json")
    assert done.json["exit_code"] == 0
    assert done.json["verification"]["verdict"] == "equal"
    assert done.json["report"]["nodes_after"] == 2


def test_quiet_says_nothing(run: Run, model: Path) -> None:
    done = run("optimize", model, "-q")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_waiving_the_verification_is_stamped(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "--no-verify")
    assert done.code == 0
    assert "not verified" in done.out
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.opt.onnx").metadata_props}
    assert metadata == {"graphopt.verdict": "not verified"}


def test_a_wrong_rule_writes_nothing_and_exits_1(run: Run, model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        '"""A wrong pass."""\nfrom graphopt import op, rule, var\nx = var("x")\n'
        '@rule(op.Relu(x), before="(float[2] x) => (float[2] y) { y = Relu(x) }",'
        ' after="(float[2] x) => (float[2] y) { y = Abs(x) }")\n'
        'def wrong(m, b):\n    """Relu is not Abs."""\n    return b.Abs(m[x])\n'
    )
    done = run("optimize", model, "--load", plugin)
    assert done.code == 1
    assert "different" in done.out
    assert "nothing was written" in done.err
    assert [name for name in names_in(tmp_path) if name != "__pycache__"] == [
        "model.onnx",
        "model.opt.bisect",  # the small model that shows it
        "wrong.py",
    ]


def test_what_does_not_run_is_not_verified(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "never.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[3] y)'
            "<int64[1] s = {3}> { a = Identity(x) y = Reshape(a, s) }"
        ),
        path,
    )
    done = run("optimize", path)
    assert done.code == 4
    assert "not verified" in done.out
    assert (tmp_path / "never.opt.unverified.onnx").exists()
    assert not (tmp_path / "never.opt.onnx").exists()
    done = run("optimize", path, "--allow-unverified")
    assert done.code == 4
    assert operators(tmp_path / "never.opt.onnx") == ["Reshape"]


def test_unknown_operators_are_cut_out_on_both_sides(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "custom.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20, "mine": 1]> g (float[2] x) => (float[2] y)'
            "{ a = Identity(x) b = mine.Op(a) y = Abs(b) }"
        ),
        path,
    )
    done = run("optimize", path)
    assert done.code == 0
    assert "around 1 opaque node" in done.out


def test_several_models(run: Run, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing like a model")
    done = run("optimize", model, broken, "--out-dir", tmp_path / "out", "--no-verify")
    assert done.code == 2
    assert names_in(tmp_path / "out") == ["model.onnx"]
    assert "4 → 2" in done.out
    assert "broken.onnx" in done.err


def test_several_models_do_not_replace_themselves(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes())
    done = run("optimize", model, other, "--out-dir", ".", "--no-verify")
    assert done.code == 2
    assert other.read_bytes() == model.read_bytes()
    assert operators(model) == ["Identity", "Mul", "Relu", "Neg"]


def test_small_integers_stay_inside_whatever_the_threshold(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "axes.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[1,N,3] y)'
            "<int64[1] a = {0}, float[3] w = {1.0, 2.0, 3.0}> { b = Mul(x, w) y = Unsqueeze(b, a) }"
        ),
        path,
    )
    done = run("optimize", path, "--external-data", "--external-threshold", 0)
    assert done.code == 0, done.err


def test_several_models_at_a_time(run: Run, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes())
    done = run("optimize", model, other, "--out-dir", tmp_path / "out", "-j", 2, "--no-verify", "--json")
    assert done.code == 0
    assert [outcome["exit_code"] for outcome in done.json["outcomes"]] == [0, 0]
    assert names_in(tmp_path / "out") == ["model.onnx", "other.onnx"]


def test_fixed_shapes_and_chosen_outputs(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "--fix-dim", "N=4", "--outputs", "b")
    assert done.code == 0, done.err
    graph = onnx.load(tmp_path / "model.opt.onnx").graph
    assert [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim] == [4, 3]
    assert [(info.name, info.type.tensor_type.elem_type) for info in graph.output] == [("b", TensorProto.FLOAT)]
    assert [node.op_type for node in graph.node] == ["Mul"]
    done = run("optimize", model, tmp_path / "two.onnx", "--fix-shape", "x=5,3")
    assert done.code == 0, done.err
    shape = onnx.load(tmp_path / "two.onnx").graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [5, 3]


def test_stop_after_skip_and_disable(run: Run, model: Path, tmp_path: Path) -> None:
    for number, options in enumerate((("--stop-after", 0), ("--skip", "identities"), ("--passes", "pruning"))):
        target = tmp_path / f"{number}.onnx"
        assert run("optimize", model, target, *options).code == 0
        assert "Identity" in operators(target)


def test_a_plan_gives_the_same_bytes(run: Run, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("optimize", model, tmp_path / "a.onnx", "--stop-after", 1, "--write-plan", plan).code == 0
    assert run("optimize", model, tmp_path / "b.onnx", "--plan", plan).code == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_names_are_mapped(run: Run, model: Path, tmp_path: Path) -> None:
    import json

    where = tmp_path / "names.json"
    assert run("optimize", model, "--name-map", where).code == 0
    document = json.loads(where.read_text())
    assert document["values"]["a"] == {"how": "merged", "now": "x"}
    assert document["values"]["unread"] == {"how": "gone", "now": None}
    assert document["nodes"]["i"] == {"how": "gone"}


def test_dumps_and_prints(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "--dump-dir", tmp_path / "dump", "--print-after", "pruning")
    assert done.code == 0
    assert "# after pruning, sweep 1" in done.err
    assert names_in(tmp_path / "dump")[0].startswith("001.sweep1.")


def test_the_result_is_timed(run: Run, model: Path) -> None:
    done = run("optimize", model, "--bench", "--max-time", 1, "--json")
    assert done.code == 0, done.err
    assert done.json["benchmark"]["ratio"] > 0


def test_defaults_come_from_the_project(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.graphopt.optimize]\nno-verify = true\nskip = 'identities'\n")
    assert run("optimize", model).code == 0
    assert "Identity" in operators(tmp_path / "model.opt.onnx")
    (tmp_path / "pyproject.toml").write_text("[tool.graphopt.optimize]\nno-verfy = true\n")
    done = run("optimize", model, "--force")
    assert done.code == 2
    assert "no-verfy" in done.err


def test_frozen_initializers_are_verified_as_frozen(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "overridable.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[2] x, float[2] w = {1.0, 2.0}) => (float[2] y)'
            "{ a = Neg(w) y = Mul(x, a) }"
        ),
        path,
    )
    assert run("optimize", path, tmp_path / "kept.onnx").code == 0
    assert operators(tmp_path / "kept.onnx") == ["Neg", "Mul"]
    done = run("optimize", path, tmp_path / "frozen.onnx", "--freeze-initializers")
    assert done.code == 0, done.out
    assert operators(tmp_path / "frozen.onnx") == ["Mul"]


# --- bad input: one line, exit 2, nothing written, nothing lost


def bad(run: Run, folder: Path, *arguments: object) -> str:
    before = names_in(folder)
    done = run("optimize", *arguments)
    assert done.code == 2, done.out
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    assert names_in(folder) == before
    return str(done.err)


def test_a_missing_file(run: Run, tmp_path: Path) -> None:
    assert "no-such.onnx" in bad(run, tmp_path, tmp_path / "no-such.onnx")


@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"\x00" * 50, bytes(range(256))])
def test_no_protobuf(run: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.onnx"
    path.write_bytes(content)
    assert "text.onnx" in bad(run, tmp_path, path)


def test_a_truncated_model(run: Run, model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    assert "byte" in bad(run, tmp_path, model)


def test_a_folder(run: Run, tmp_path: Path) -> None:
    assert "folder" in bad(run, tmp_path, tmp_path)


def external(path: Path, location: str, length: int = 4096) -> None:
    weight = numpy_helper.from_array(np.zeros((32, 32), np.float32), "w")
    external_data_helper.set_external_data(weight, location, offset=0, length=length)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 32]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    path.write_bytes(helper.make_model(graph, ir_version=9).SerializeToString())


@pytest.mark.parametrize(
    ("location", "size", "length", "word"),
    [
        ("missing.bin", None, 4096, "missing.bin"),
        ("short.bin", 100, 4096, "incomplete"),
        ("wrong.bin", 8192, 4000, "4000"),
        ("../escape.bin", 4096, 4096, "outside"),
        ("/etc/passwd", None, 4096, "outside"),
    ],
)
def test_wrong_external_data(run: Run, tmp_path: Path, location: str, size: int | None, length: int, word: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if size is not None:
        (folder / location).write_bytes(bytes(size))
    external(folder / "m.onnx", location, length)
    assert word in bad(run, folder, folder / "m.onnx")


def test_a_link_out_of_the_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    external(folder / "m.onnx", "link.bin")
    assert "link" in bad(run, folder, folder / "m.onnx")


def test_a_cyclic_graph(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Neg(b) }'
    )
    (tmp_path / "cycle.onnx").write_bytes(model.SerializeToString())
    assert "cycle" in bad(run, tmp_path, tmp_path / "cycle.onnx")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--passes", "prunning"), "pruning"),
        (("--skip", "nothing"), "nothing"),
        (("--disable", "pruning/ded_code"), "dead_code"),
        (("--level", "exakt"), "exact"),
        (("--target", "tpu"), "portable"),
        (("--keep", "nobody"), "nobody"),
        (("--fix-dim", "M=3"), "N"),
        (("--fix-dim", "N=minus"), "minus"),
        (("--fix-shape", "x=1,4"), "x"),
        (("--outputs", "z"), "z"),
        (("--load", "nowhere.py"), "nowhere.py"),
        (("--plan", "nowhere.json"), "nowhere.json"),
        (("--no-such-option",), "no-such-option"),
        (("--range", "x=9:1"), "low end first"),
        (("--fix-dim", "N=99999999999999999999"), "too large"),
        (("--data", "d" * 5000), "too long; check the path"),
        (("--load", "d" * 5000), "too long; check the path"),
        (("--keep", "nope"), "show --format text"),
        (("--provider", "foo"), "cuda"),
        (("--custom-ops", "nolib.so"), "nolib.so"),
        (("--timeout", "-1"), "timeout"),
        (("--seed", "-1"), "seed"),
        (("--growth-limit", "-5"), "growth"),
        (("--runs", "0"), "runs"),
        (("--disable", "identities"), "--skip"),
        (("--passes", ""), "empty"),
        (("--print-after", "nope"), "nope"),
    ],
)
def test_wrong_options(run: Run, model: Path, tmp_path: Path, options: tuple[str, ...], word: str) -> None:
    assert word in bad(run, tmp_path, model, *options)


def test_a_folder_that_is_not_there(run: Run, model: Path, tmp_path: Path) -> None:
    assert "folder" in bad(run, tmp_path, model, "-o", tmp_path / "no" / "out.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_one_may_not_write_to(run: Run, model: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "permission" in bad(run, tmp_path, model, "-o", locked / "out.onnx")


def test_a_full_disk(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    before = model.read_bytes()
    assert "space" in bad(run, tmp_path, model, "-o", model)
    assert model.read_bytes() == before


def test_nothing_is_replaced_unasked(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    taken = tmp_path / "taken.json"
    taken.write_text("precious")
    for options in (
        ("--out-dir", "."),
        (".",),
        ("-o", "."),
        ("--name-map", model),
        ("--name-map", taken),
        ("--write-plan", taken),
        ("-o", "p.onnx", "--write-plan", "p.onnx"),
        ("--name-map", "no/such/folder.json"),
        ("--dump-dir", taken),
    ):
        assert bad(run, tmp_path, model, *options)
    assert taken.read_text() == "precious"
    (tmp_path / "model.opt.unverified.onnx").write_text("precious")
    assert "exists" in bad(run, tmp_path, model)


def test_files_the_run_reads_are_never_replaced(run: Run, model: Path, tmp_path: Path) -> None:
    rules, plan, data = tmp_path / "my_rules.py", tmp_path / "plan.json", tmp_path / "data.npz"
    rules.write_text("raise SystemExit\n")
    plan.write_text('{"schema": "graphopt.plan", "settings": {}}')
    np.savez(data, x=np.zeros((1, 3), np.float32))
    for path, option in ((rules, "--load"), (plan, "--plan"), (data, "--data")):
        before = path.read_bytes()
        done = run("optimize", model, "-o", path, "-f", option, path)
        assert done.code == 2
        assert "is read by this run" in done.err
        assert path.read_bytes() == before
    assert "is read by this run" in run("optimize", model, "--load", rules, "-f", "--name-map", rules).err


def test_a_folder_made_in_vain_goes_again(run: Run, model: Path, tmp_path: Path) -> None:
    folder, missing = tmp_path / "new" / "out", tmp_path / "nowhere.onnx"
    assert run("optimize", model, model, "--out-dir", folder).code == 2
    assert run("optimize", missing, tmp_path / "neither.onnx", "--out-dir", folder).code == 2
    assert run("optimize", model, missing, "--out-dir", folder, "--write-plan", tmp_path / "plan").code == 2
    assert names_in(tmp_path) == ["model.onnx"]
    folder.mkdir(parents=True)
    assert run("optimize", missing, "--out-dir", folder).code == 2
    assert folder.exists()


def test_a_dry_run_says_so(run: Run, model: Path) -> None:
    assert "not verified (dry run)" in run("optimize", model, "--dry-run").out


def test_the_weights_of_the_model_are_never_replaced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(4096))
    external(tmp_path / "m.onnx", "w.bin")
    assert "weights" in bad(run, tmp_path, tmp_path / "m.onnx", "-o", tmp_path / "w.bin", "--force")
    for option in ("--name-map", "--write-plan"):
        assert "weights" in bad(run, tmp_path, tmp_path / "m.onnx", option, tmp_path / "w.bin", "--force")
    assert (tmp_path / "w.bin").read_bytes() == bytes(4096)


def test_external_results_have_the_same_bytes_each_time(run: Run, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(4096))
    external(tmp_path / "m.onnx", "w.bin")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert run("optimize", tmp_path / "m.onnx", "-o", tmp_path / name / "out.onnx", "--no-verify").code == 0
    assert names_in(tmp_path / "one") == names_in(tmp_path / "two")
    for name in names_in(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_kept_operator_that_does_nothing_survives(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("optimize", model, "--keep", "i").code == 0
    assert operators(tmp_path / "model.opt.onnx") == ["Identity", "Mul", "Relu"]


def test_a_growing_file_is_remarked_on(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grows.onnx"
    column, row = ", ".join(["0.5"] * 64), ", ".join(["0.25"] * 64)
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[64,64] x) => (float[64,64] y)'
            f"<float[64,1] a = {{{column}}}, float[1,64] c = {{{row}}}> {{ b = Mul(a, c) y = Add(x, b) }}"
        ),
        path,
    )
    assert "--growth-limit" in run("optimize", path).out


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_ended_from_outside_nothing_is_left(model: Path, tmp_path: Path, number: str) -> None:
    import signal
    import subprocess
    import sys
    import time

    slow = tmp_path / "slow.py"
    slow.write_text(
        '"""Takes its time."""\nimport time\nfrom graphopt import graph_pass\n'
        '@graph_pass(before="(float[2] x) => (float[2] y) { y = Relu(x) }",'
        ' after="(float[2] x) => (float[2] y) { y = Relu(x) }")\n'
        'def wait(graph, context):\n    """Wait."""\n    print("waiting", flush=True)\n    time.sleep(30)\n'
    )
    before = model.read_bytes()
    command = [sys.executable, "-m", "graphopt", "optimize", str(model), "-o", str(model), "--load", str(slow)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        assert process.stderr is not None  # where goes what passes print
        while b"waiting" not in process.stderr.readline():
            assert process.poll() is None
        started = time.monotonic()
        process.send_signal(getattr(signal, number))
        assert process.wait(20) == 128 + getattr(signal, number)
        assert time.monotonic() - started < 10
    assert model.read_bytes() == before
    assert [name for name in names_in(tmp_path) if "tmp" in name or "data" in name] == []


def test_what_is_no_regular_file_is_never_replaced(run: Run, model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments in (("optimize", model, "-o", pipe), ("extract", model, pipe, "--outputs", "y")):
        done = run(*arguments, "--force")
        assert (done.code, "no regular file" in done.err) == (2, True)
        assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_rules_print_does_not_mix_with_the_document(run: Run, model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "chatty.py"
    plugin.write_text(
        '"""Talks."""\nprint("loading")\nfrom graphopt import op, rule, var\nx = var("x")\n'
        '@rule(op.Relu(x), before="(float[2] x) => (float[2] y) { y = Relu(x) }",'
        ' after="(float[2] x) => (float[2] y) { y = Relu(x) }")\n'
        'def talk(m, b):\n    """Says that it ran."""\n    print("matched")\n    return b.no("only talks")\n'
    )
    commands = ("optimize", model), ("explain", model, "--rule", "talk"), ("passes", "chatty", "--test")
    for arguments in commands:
        done = run(*arguments, "--load", plugin, "--json")
        assert done.json["schema"].startswith("graphopt."), done.out
        assert "loading" in done.err


def test_with_several_models_the_error_says_why(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "never.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[3] y)'
            "<int64[1] s = {3}> { a = Identity(x) y = Reshape(a, s) }"
        ),
        path,
    )
    done = run("optimize", model, path, "--out-dir", tmp_path / "out")
    assert done.code == 4
    assert "no values were found" in done.err
    assert "above" not in done.err


def test_growth_is_not_blamed_on_folding_that_did_not_happen(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(
        onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (float[N] y) {y = Relu(x)}'),
        path,
    )
    done = run("optimize", path, "--dry-run")
    assert "name nodes" in done.out
    assert "growth-limit" not in done.out


OWN = """from graphopt import op, rule, var

x = var("x")


@rule(
    op.Relu(op.Relu(x)),
    before="(float[2] x) => (float[2] y) { t = Relu(x)  y = Relu(t) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
)
def once(m, b):
    \"\"\"Twice is once.\"\"\"
    return b.Relu(m[x])
"""


def test_a_plan_asks_for_the_passes_it_was_made_with(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    own, plan = tmp_path / "own.py", tmp_path / "plan.json"
    own.write_text(OWN)
    made = ("--no-verify", "--force", "-o", tmp_path / "out.onnx")
    assert run("optimize", model, *made, "--load", own, "--disable", "own/once", "--write-plan", plan).code == 0
    done = run("optimize", model, *made, "--plan", plan)
    assert (done.code, "the plan was made with --load own.py; load it, too" in done.err) == (2, True)
    plan.write_text(plan.read_text().replace('"own"', '"another"'))
    done = run("optimize", model, *made, "--plan", plan)
    assert (done.code, "if it was made with --load own.py, load it, too" in done.err) == (2, True)


def test_a_result_that_came_meanwhile_stays(
    run: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt.cli import job

    target, plan = tmp_path / "out.onnx", tmp_path / "plan.json"
    real = job.check_paths

    def late(todo: job.Job) -> None:
        real(todo)
        for path in (target, plan):
            path.write_text("mine")

    monkeypatch.setattr(job, "check_paths", late)
    done = run("optimize", model, "-o", target, "--no-verify")
    assert (done.code, target.read_text(), "exists already" in done.err) == (2, "mine", True)
    target.unlink()
    done = run("optimize", model, "-o", target, "--dry-run", "--write-plan", tmp_path / "plan.json")
    assert (done.code, plan.read_text(), "exists already" in done.err) == (2, "mine", True)
    target.unlink(missing_ok=True)
    plan.unlink(missing_ok=True)
    assert run("optimize", model, "-o", target, "--no-verify", "--force").code == 0


def test_documents_take_the_place_of_no_weights(run: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    external = tmp_path / "external.onnx"
    made = ("--no-verify", "--external-data", "--external-threshold", 1)
    assert run("optimize", model, "-o", external, *made).code == 0
    (data,) = tmp_path.glob("*.data")
    before = data.read_bytes()
    for option in ("--write-plan", "--name-map"):
        done = run("optimize", external, "--dry-run", option, data, "--force")
        assert (done.code, data.read_bytes() == before) == (2, True)
