"""Models larger than memory should be: made of holes, so that they take no space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import GraphProto, TensorProto
from onnxio_models import info, model_of, node

from graphopt.onnxio.wire import encode_varint

GIB = 1 << 30
_CHILD = """
import json, os, sys, threading, time
import onnx, networkx, numpy
from graphopt.onnxio import load, save

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

peak, done = [anonymous()], threading.Event()

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())

imported = peak[0]
thread = threading.Thread(target=watch)
thread.start()
begin = time.perf_counter()
graph = load(sys.argv[1])
loaded = time.perf_counter()
is_external = save(graph, sys.argv[2])
saved = time.perf_counter()
done.set()
thread.join()
print(json.dumps({"anonymous": peak[0], "imported": imported, "load": loaded - begin, "save": saved - loaded,
                  "external": is_external}))
"""


def load_and_save(source: Path, target: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(source), str(target)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def used(path: Path) -> int:
    """Bytes a file takes on the disk."""
    return path.stat().st_blocks * 512


@pytest.fixture(autouse=True)
def holes(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.truncate(GIB)
    if used(probe) > 1 << 20:
        pytest.skip("this file system has no holes")
    probe.unlink()


def external_model(folder: Path, count: int) -> Path:
    """`count` weights of 1 GiB in one data file, each with some numbers at its beginning and end."""
    tensors, operands = [], "x"
    nodes = []
    with (folder / "weights").open("wb") as data:
        for index in range(count):
            tensor = TensorProto(
                name=f"w{index}", data_type=TensorProto.FLOAT, dims=[GIB // 4], data_location=TensorProto.EXTERNAL
            )
            for key, value in (("location", "weights"), ("offset", str(index * GIB)), ("length", str(GIB))):
                tensor.external_data.add(key=key, value=value)
            tensors.append(tensor)
            nodes.append(node("Add", [operands, f"w{index}"], [f"a{index}"]))
            operands = f"a{index}"
            data.seek(index * GIB)
            data.write(bytes([index + 1]) * 10_000)
            data.seek((index + 1) * GIB - 10_000)
            data.write(bytes([index + 101]) * 10_000)
    path = folder / "model.onnx"
    model = model_of(nodes, [info("x", None)], [info(operands, None)], tensors)
    path.write_bytes(model.SerializeToString())
    return path


def inline_model(folder: Path, size: int) -> Path:
    """One weight of `size` bytes inside the model file, past what protobuf itself reads."""
    model = model_of([node("Add", ["x", "w"], ["y"])], [info("x", None)], [info("y", None)])
    graph = model.graph
    model.ClearField("opset_import")
    before, after = GraphProto(node=graph.node, name=graph.name), GraphProto(input=graph.input, output=graph.output)
    head = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4]).SerializeToString()
    head += b"\x4a" + encode_varint(size)
    begin = before.SerializeToString() + b"\x2a" + encode_varint(len(head) + size) + head
    end = after.SerializeToString()
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x0a\x3a" + encode_varint(len(begin) + size + len(end)) + begin)
        file.write(b"begin")
        file.seek(size - 8, os.SEEK_CUR)
        file.write(b"end" + end + b"\x42\x04\x0a\x00\x10\x15")
    return path


def check_ends(read: Callable[[int, int], bytes], count: int) -> None:
    for index in range(count):
        assert read(index * GIB, 10_000) == bytes([index + 1]) * 10_000
        assert read((index + 1) * GIB - 10_000, 10_000) == bytes([index + 101]) * 10_000
        assert read(index * GIB + GIB // 2, 10) == bytes(10)


def test_fourteen_gigabytes_of_external_data(tmp_path: Path) -> None:
    out = tmp_path / "out" / "out.onnx"
    out.parent.mkdir()
    found = load_and_save(external_model(tmp_path, 14), out)
    assert found["external"] is True
    assert found["anonymous"] < 300
    assert found["anonymous"] - found["imported"] < 50
    assert found["load"] < 2
    assert found["save"] < 10
    (data,) = out.parent.glob("*.data")
    assert data.stat().st_size == 14 * GIB
    assert used(data) < 4 << 20
    with data.open("rb") as file:
        check_ends(lambda offset, length: os.pread(file.fileno(), length, offset), 14)


def test_more_than_two_gigabytes_in_one_file(tmp_path: Path) -> None:
    size = 5 * GIB // 2
    path, out = inline_model(tmp_path, size), tmp_path / "out.onnx"
    assert path.stat().st_size > size
    found = load_and_save(path, out)
    assert found["external"] is True  # by itself: no message holds it
    assert found["anonymous"] < 300
    assert found["load"] < 2
    assert found["save"] < 10
    (data,) = tmp_path.glob("*.data")
    assert data.stat().st_size == size
    assert used(data) < 1 << 20
    with data.open("rb") as file:
        assert os.pread(file.fileno(), 5, 0) == b"begin"
        assert os.pread(file.fileno(), 3, size - 3) == b"end"


def test_under_two_gigabytes_stays_in_one_file_with_its_holes(tmp_path: Path) -> None:
    size = 3 * GIB // 2
    path, out = inline_model(tmp_path, size), tmp_path / "out.onnx"
    found = load_and_save(path, out)
    assert found["external"] is False
    assert found["anonymous"] < 300
    assert out.stat().st_size == path.stat().st_size
    assert used(out) < 1 << 20
    with out.open("rb") as left, path.open("rb") as right:
        for offset in (0, GIB, out.stat().st_size - 5000):
            assert os.pread(left.fileno(), 5000, offset) == os.pread(right.fileno(), 5000, offset)
