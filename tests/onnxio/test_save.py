from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxio_models import info, model_of, node

import graphopt.onnxio.copying
import graphopt.tensors
from graphopt.errors import ExternalDataError, OutputError
from graphopt.ir import Graph
from graphopt.onnxio import load, metadata_of, save, to_proto
from graphopt.onnxio.save import stage

SIZE = 3000


def weight(name: str, seed: int, size: int = SIZE) -> TensorProto:
    return numpy_helper.from_array(np.random.default_rng(seed).random(size, np.float32), name)


def weighted() -> ModelProto:
    """Weights in initializers, constants and bodies, large and small."""
    then = helper.make_graph(
        [node("Add", ["h", "inner"], ["t"])], "then", [], [info("t", [SIZE])], [weight("inner", 3)]
    )
    other = helper.make_graph([node("Neg", ["h"], ["e"])], "else", [], [info("e", [SIZE])])
    nodes = [
        node("Constant", [], ["k"], name="the constant", value=weight("", 2)),
        node("Constant", [], ["small"], value_float=2.0),
        node("Add", ["x", "w"], ["a"]),
        node("Mul", ["a", "k"], ["b"]),
        node("Mul", ["b", "small"], ["h"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    nodes[0].doc_string = "kept"
    return model_of(nodes, [info("x", [SIZE]), info("c", [], TensorProto.BOOL)], [info("y", [SIZE])], [weight("w", 1)])


def run(path: Path) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": np.ones(SIZE, np.float32), "c": np.array(True)})
    return result  # type: ignore[no-any-return]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.data"))


def entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


@pytest.fixture
def inline(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(weighted(), path)
    return path


@pytest.fixture
def external(inline: Path) -> Path:
    assert save(load(inline), inline, external_data=True)
    return inline


# --- forms


def test_external_data_lies_beside_the_model(inline: Path, tmp_path: Path) -> None:
    expected, original = run(inline), inline.read_bytes()
    out = tmp_path / "out.onnx"
    assert save(load(inline), out, external_data=True) is True
    (data,) = data_files(tmp_path)
    assert data.name.startswith("out.onnx.")
    model = onnx.load(out, load_external_data=False)
    constant = model.graph.node[0].attribute[0].t
    inner = model.graph.node[5].attribute[1].g.initializer[0]
    tensors = [model.graph.initializer[0], constant, inner]
    assert {entries(tensor)["location"] for tensor in tensors} == {data.name}
    assert sorted(int(entries(tensor)["offset"]) for tensor in tensors) == [0, 12288, 24576]
    assert all(entries(tensor)["length"] == str(4 * SIZE) for tensor in tensors)
    assert data.stat().st_size == 24576 + 4 * SIZE
    assert out.stat().st_size < 3000
    np.testing.assert_array_equal(run(out), expected)
    onnx.checker.check_model(str(out))
    onnx.load(out)  # finds its data
    assert save(load(out), tmp_path / "back.onnx", external_data=False) is False
    assert (tmp_path / "back.onnx").read_bytes() == original


def test_what_stays_inside_is_left_as_it_was(external: Path) -> None:
    before, after = weighted(), onnx.load(external, load_external_data=False)
    for index in (1, 2, 3, 4):
        assert after.graph.node[index] == before.graph.node[index]
    assert after.graph.node[0].doc_string == "kept"
    assert after.graph.node[0].name == "the constant"
    assert after.graph.node[5].attribute[0] == before.graph.node[5].attribute[0]


def test_the_form_is_kept(external: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "out.onnx"
    out.parent.mkdir()
    assert save(load(external), out) is True
    assert len(data_files(out.parent)) == 1
    np.testing.assert_array_equal(run(out), run(external))
    assert len(to_proto(load(external)).graph.initializer[0].raw_data) == 4 * SIZE


def test_small_tensors_stay_inside(inline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert save(load(inline), out, external_data=True, external_threshold=4 * SIZE + 1) is False
    assert out.read_bytes() == inline.read_bytes()
    assert not data_files(tmp_path)
    assert save(load(inline), out, external_data=True, external_threshold=0) is True
    assert run(out).shape == (SIZE,)


def test_one_region_is_written_once(inline: Path, tmp_path: Path) -> None:
    graph = load(inline)
    w = graph.constants()[0]
    again = graph.add_constant(w.tensor)  # type: ignore[arg-type]
    graph.set_operand(graph.nodes()[1], 1, again)
    save(graph, tmp_path / "out.onnx", external_data=True)
    (data,) = data_files(tmp_path)
    assert data.stat().st_size == 24576 + 4 * SIZE  # as without the copy


def test_new_weights_and_strings(tmp_path: Path) -> None:
    graph = load(model_of([node("Relu", ["x"], ["y"])]))
    numbers = np.arange(5000, dtype=np.int64)
    graph.add_constant(graphopt.tensors.Tensor.from_numpy(numbers), "numbers")
    graph.add_constant(graphopt.tensors.Tensor.from_numpy(np.array(["word"] * 5000)), "words")
    out = tmp_path / "out.onnx"
    assert save(graph, out, external_data=True) is True
    back = {item.result.name: item.tensor for item in load(out).constants()}
    assert back["numbers"].tolist() == list(range(5000))  # type: ignore[union-attr]
    assert back["words"].region is None  # type: ignore[union-attr]
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(out).graph.initializer[0]), numbers)


def test_functions_keep_their_constants_inside(tmp_path: Path) -> None:
    function = helper.make_function(
        "mine", "F", ["a"], ["o"], [node("Constant", [], ["k"], value=weight("", 2)), node("Add", ["a", "k"], ["o"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [node("F", ["x"], ["h"], domain="mine"), node("Add", ["h", "w"], ["y"])]
    model = model_of(nodes, [info("x", [SIZE])], [info("y", [SIZE])], [weight("w", 1)], functions=[function])
    out = tmp_path / "out.onnx"
    save(load(model), out, external_data=True)
    assert onnx.load(out, load_external_data=False).functions[0] == function
    assert len(data_files(tmp_path)) == 1


def test_external_constants_of_a_function_come_inside(tmp_path: Path) -> None:
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[SIZE], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    (tmp_path / "weights").write_bytes(weight("", 2).raw_data)
    function = helper.make_function(
        "mine", "F", ["a"], ["o"], [node("Constant", [], ["k"], value=tensor), node("Add", ["a", "k"], ["o"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    model = model_of([node("F", ["x"], ["y"], domain="mine")], [info("x", [SIZE])], functions=[function])
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "elsewhere").mkdir()
    save(load(tmp_path / "model.onnx"), tmp_path / "elsewhere" / "out.onnx")
    written = onnx.load(tmp_path / "elsewhere" / "out.onnx").functions[0].node[0].attribute[0].t
    assert written.raw_data == weight("", 2).raw_data


def test_a_model_too_large_for_one_file_goes_external(
    inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("save", "writer"):
        monkeypatch.setattr(sys.modules[f"graphopt.onnxio.{module}"], "MESSAGE_LIMIT", 10_000)
    out = tmp_path / "out.onnx"
    assert save(load(inline), out) is True
    np.testing.assert_array_equal(run(out), run(inline))
    with pytest.raises(ExternalDataError, match="more than one file may hold; write it with external data"):
        save(load(inline), out, external_data=False)
    with pytest.raises(Exception, match="save it to a file instead"):
        to_proto(load(inline))


def test_a_stamp_is_set_and_set_again(inline: Path) -> None:
    save(load(inline), inline, stamp={"verified": "no", "tool": "graphopt"})
    save(load(inline), inline, stamp={"verified": "yes"})
    assert metadata_of(load(inline).model) == {"tool": "graphopt", "verified": "yes"}
    onnx.checker.check_model(onnx.load(inline))


# --- references


def test_weights_may_stay_in_the_original(inline: Path, tmp_path: Path) -> None:
    expected, before = run(inline), contents(tmp_path)
    out = tmp_path / "out.onnx"
    assert save(load(inline), out, external_data="reference") is True
    assert not data_files(tmp_path)
    assert out.stat().st_size < 3000
    np.testing.assert_array_equal(run(out), expected)
    assert entries(onnx.load(out, load_external_data=False).graph.initializer[0])["location"] == "model.onnx"
    assert {**contents(tmp_path), "out.onnx": b""} == {**before, "out.onnx": b""}


def test_references_lead_down_but_not_out(external: Path, tmp_path: Path) -> None:
    above, aside = tmp_path.parent / f"{tmp_path.name}.onnx", tmp_path / "aside" / "out.onnx"
    aside.parent.mkdir()
    try:
        save(load(external), above, external_data="reference")
        location = entries(onnx.load(above, load_external_data=False).graph.initializer[0])["location"]
        assert location == f"{tmp_path.name}/{data_files(tmp_path)[0].name}"
        np.testing.assert_array_equal(run(above), run(external))
    finally:
        above.unlink()
    save(load(external), aside, external_data="reference")
    assert len(data_files(aside.parent)) == 1
    np.testing.assert_array_equal(run(aside), run(external))


def test_what_is_overwritten_is_not_referred_to(inline: Path, tmp_path: Path) -> None:
    expected = run(inline)
    save(load(inline), inline, external_data="reference")
    assert len(data_files(tmp_path)) == 1
    np.testing.assert_array_equal(run(inline), expected)
    save(load(inline), inline, external_data="reference")  # now in its own data file, which has to stay
    assert len(data_files(tmp_path)) == 1
    np.testing.assert_array_equal(run(inline), expected)


# --- over what is there


def test_over_its_own_input(inline: Path) -> None:
    expected, graph = run(inline), load(inline)
    for _ in range(2):
        save(graph, inline)
        np.testing.assert_array_equal(run(inline), expected)
    assert graph.constants()[0].tensor.numpy().tobytes() == weight("w", 1).raw_data  # type: ignore[union-attr]


def test_over_its_own_input_with_external_data(external: Path, tmp_path: Path) -> None:
    expected, graph = run(external), load(external)
    before = data_files(tmp_path)
    for _ in range(2):
        save(graph, external)
        after = data_files(tmp_path)
        assert len(after) == 1
        assert after != before
        before = after
        np.testing.assert_array_equal(run(external), expected)


def test_data_files_of_others_stay(external: Path, tmp_path: Path) -> None:
    bystander = tmp_path / "model.onnx.0123abcd.data"  # called like ours, but the model does not use it
    bystander.write_bytes(b"not ours to remove")
    graph = load(external)
    save(graph, external, external_data=False)
    assert [path.name for path in data_files(tmp_path)] == [bystander.name]
    assert save(load(external), external) is False


def test_a_data_file_somebody_else_named_stays(inline: Path, tmp_path: Path) -> None:
    model = onnx.load(inline)
    onnx.save(model, inline, save_as_external_data=True, location="weights.bin", size_threshold=0)
    expected = run(inline)
    save(load(inline), inline)
    assert (tmp_path / "weights.bin").exists()
    np.testing.assert_array_equal(run(inline), expected)


def test_what_is_overwritten_need_not_be_a_model(inline: Path, tmp_path: Path) -> None:
    for junk in (b"", b"junk", b"\x0a\xff"):
        out = tmp_path / "out.onnx"
        out.write_bytes(junk)
        save(load(inline), out)
        assert out.read_bytes() == inline.read_bytes()


def test_a_file_replaced_meanwhile_does_not_matter(inline: Path, tmp_path: Path) -> None:
    """The graph holds on to the bytes it was read from, whatever now has their name."""
    original, graph = inline.read_bytes(), load(inline)
    other = tmp_path / "other"
    other.write_bytes(bytes(len(original)))
    os.replace(other, inline)
    save(graph, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == original
    inline.unlink()
    save(graph, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == original


def test_permissions_of_the_old_file_stay(inline: Path, tmp_path: Path) -> None:
    inline.chmod(0o640)
    save(load(inline), inline)
    assert inline.stat().st_mode & 0o777 == 0o640
    mask = os.umask(0o027)
    try:
        save(load(inline), tmp_path / "new.onnx")
    finally:
        os.umask(mask)
    assert (tmp_path / "new.onnx").stat().st_mode & 0o777 == 0o640


def test_through_a_link(inline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    link, stored = tmp_path / "link.onnx", folder / "stored.onnx"
    shutil.copy(inline, stored)
    link.symlink_to(stored)
    save(load(link), link, stamp={"a": "b"})
    assert link.is_symlink()
    assert metadata_of(load(stored).model) == {"a": "b"}
    save(load(link), link, external_data=True)
    assert not link.is_symlink()
    assert metadata_of(load(stored).model) == {"a": "b"}
    np.testing.assert_array_equal(run(link), run(stored))
    dangling = tmp_path / "dangling.onnx"
    dangling.symlink_to(folder / "new.onnx")
    save(load(stored), dangling)
    assert (folder / "new.onnx").read_bytes() == stored.read_bytes()


# --- what goes wrong


def fail(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "os.ftruncate", "os.copy_file_range"])
@pytest.mark.parametrize("form", [True, False])
def test_a_failure_leaves_everything_as_it_was(
    where: str, form: bool, external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "os.ftruncate" and not form:
        pytest.skip("nothing is truncated")
    big = model_of([node("Add", ["x", "w"], ["y"])], initializers=[weight("w", 1, 100_000)])
    (tmp_path / "big.onnx").write_bytes(big.SerializeToString())
    graph, before = load(tmp_path / "big.onnx"), contents(tmp_path)
    monkeypatch.setattr(where, fail)
    with pytest.raises(OutputError, match=r"cannot write .*model.onnx': Input/output error; .*nothing was changed"):
        save(graph, external, external_data=form)
    assert contents(tmp_path) == before


def test_interrupting_leaves_everything_as_it_was(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, before = load(external), contents(tmp_path)

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(graph, external)
    assert contents(tmp_path) == before


def test_killing_the_process_leaves_the_old_model_whole(external: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    child = """
import os, signal, sys
from graphopt.onnxio import load, save
graph = load(sys.argv[1])
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
save(graph, sys.argv[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", child, str(external)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -9
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert run(external).shape == (SIZE,)


def test_a_file_size_limit_hits_in_the_middle(inline: Path, tmp_path: Path) -> None:
    before, graph = contents(tmp_path), load(inline)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        for form in (True, False):
            with pytest.raises(OutputError, match="File too large"):
                save(graph, inline, external_data=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        not shutil.which("mount")
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("form", [True, False])
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_full_disk(form: bool, is_asked: bool, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_asked:  # somebody else takes the space meanwhile
        monkeypatch.setattr(sys.modules["graphopt.onnxio.save"], "_require_space", lambda *_: None)
    model = model_of([node("Add", ["x", "w"], ["y"])], initializers=[weight("w", 1, 100_000)])
    with pytest.raises(OutputError, match="free some space or write elsewhere; nothing was changed"):
        save(load(model), small_disk / "out.onnx", external_data=form)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("form", [True, False])
def test_space_is_looked_for_first(inline: Path, form: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=30_000))
    with pytest.raises(OutputError, match=r"it needs \d+ bytes but 30000 are free"):
        save(load(inline), tmp_path / "out.onnx", external_data=form)
    assert list(contents(tmp_path)) == ["model.onnx"]


def test_places_where_nothing_can_be_written(inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(inline)
    with pytest.raises(OutputError, match="create the folder first"):
        save(graph, tmp_path / "gone" / "out.onnx")
    with pytest.raises(OutputError, match="it is a folder"):
        save(graph, tmp_path)
    with pytest.raises(OutputError, match=r"Not a directory|No such file"):
        save(graph, inline / "out.onnx")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OutputError, match="write-protected; choose a place you may write to"):
        save(graph, inline)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_one_may_not_write_to(inline: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        save(load(inline), folder / "out.onnx")


def test_a_name_too_long_is_said(inline: Path, tmp_path: Path) -> None:
    save(load(inline), tmp_path / ("n" * 250 + ".onnx"))
    with pytest.raises(OutputError, match="File name too long"):
        save(load(inline), tmp_path / ("n" * 250 + ".onnx"), external_data=True)


# --- staging


def test_a_staged_model_runs_before_it_is_there(inline: Path, tmp_path: Path) -> None:
    expected, before = run(inline), contents(tmp_path)
    for form in (True, False):
        staged = stage(load(inline), inline, external_data=form)
        assert inline.read_bytes() == before["model.onnx"]
        np.testing.assert_array_equal(run(Path(staged.path)), expected)
        staged.discard()
        staged.discard()
        assert contents(tmp_path) == before


def test_a_staged_model_may_go_to_another_name(inline: Path, tmp_path: Path) -> None:
    staged = stage(load(inline), inline, external_data=True)
    staged.commit(str(tmp_path / "out.unverified.onnx"))
    staged.discard()
    np.testing.assert_array_equal(run(tmp_path / "out.unverified.onnx"), run(inline))
    assert len(data_files(tmp_path)) == 1


# --- copying


def large() -> Graph:
    return load(model_of([node("Add", ["x", "w"], ["y"])], initializers=[weight("w", 1, 1_000_000)]))


@pytest.mark.parametrize("trouble", ["no call", "another file system", "nothing copied"])
def test_where_the_kernel_cannot_copy(trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    save(large(), path)

    def refuse(*_: Any) -> int:
        if trouble == "nothing copied":
            return 0
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if trouble == "no call":
        monkeypatch.delattr("os.copy_file_range")
        monkeypatch.delattr("os.SEEK_DATA")
        monkeypatch.delattr("os.pwrite")
    else:
        monkeypatch.setattr("os.copy_file_range", refuse)
    for form in (False, True):
        save(load(path), tmp_path / "out.onnx", external_data=form)
        assert to_proto(load(tmp_path / "out.onnx")) == to_proto(large())


def test_a_small_model_costs_no_kernel_copy(inline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphopt.onnxio.copying, "_copy", fail)
    save(load(inline), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == inline.read_bytes()
