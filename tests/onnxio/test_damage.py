"""Files that are cut short or changed: an error that says where, never a crash, never something else instead."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from onnxio_models import MODELS, info, model_of, node, numbers

from graphopt.errors import GraphoptError, ModelError, TruncatedModelError
from graphopt.onnxio import load, to_proto, write_model
from graphopt.onnxio.wire import encode_varint, fields, read_varint

ALL = sorted(MODELS)


@pytest.mark.parametrize("name", ALL)
def test_no_prefix_of_a_model_is_taken_for_it(name: str) -> None:
    data = MODELS[name]().SerializeToString()
    offsets: list[bool] = []
    whole = {end for _, _, _, _, end in fields(memoryview(data), 0, len(data))}
    for length in range(1, len(data)):
        prefix = data[:length]
        try:
            graph = load(prefix)
        except TruncatedModelError as error:
            offsets.append(error.offset <= length and f"byte {error.offset}" in str(error))
            continue
        except ModelError:
            # Cut between two fields of the outermost message, or before the graph: what is left says too little.
            assert length in whole or b"\x3a" not in prefix
            continue
        assert length in whole, length
        assert to_proto(graph).SerializeToString() == prefix
    assert offsets
    assert all(offsets)


@pytest.mark.parametrize("name", ALL)
def test_random_changes_are_errors_or_other_models(name: str) -> None:
    data = MODELS[name]().SerializeToString()
    chance = random.Random(name)
    for _ in range(2000 // len(ALL) + 1):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            place = chance.randrange(len(changed))
            change = chance.randrange(4)
            if change == 0:
                changed[place] ^= 1 << chance.randrange(8)
            elif change == 1:
                changed[place] = chance.randrange(256)
            elif change == 2:
                del changed[place : place + chance.randrange(1, 9)]
            else:
                changed[place:place] = chance.randbytes(chance.randrange(1, 9))
            changed = changed or bytearray(b"\x00")
        read_and_write(bytes(changed))


def read_and_write(data: bytes) -> None:
    """What a program does with a model; only the errors we promise may come out."""
    try:
        graph = load(data)
        for scope in graph.model.graphs():
            for item in scope.nodes():
                item.param("axis")
                repr(item)
            for item in scope.constants():
                if item.tensor is not None and item.tensor.size < 10_000:
                    item.tensor.numpy()
        write_model(graph.model).to_bytes()
    except GraphoptError:
        pass


def test_the_offset_of_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = model_of([node("Relu", ["x"], ["y"])], initializers=[numbers("w", *range(1000))]).SerializeToString()
    path.write_bytes(data[:2000])
    with pytest.raises(
        TruncatedModelError, match=r"model.onnx.*the field at byte \d+ needs \d+ bytes .*fetch the file again"
    ):
        load(path)


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04" * 30, b"<html></html>", b"version https://git-lfs", b"\x00" * 50, b"\x0f"]
)
def test_what_is_no_protobuf(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"no ONNX model|not an ONNX model|not a complete ONNX model"):
        load(path)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        load(tmp_path / "gone.onnx")
    with pytest.raises(ModelError, match=r"it is a folder; name an .onnx file"):
        load(tmp_path)
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="is empty"):
        load(tmp_path / "empty.onnx")
    with pytest.raises(ModelError, match="cannot read"):
        load("null\0byte")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="no regular file"):
        load(tmp_path / "pipe.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_one_may_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(ModelError, match="Permission denied"):
        load(path)


def test_two_graphs_are_no_model() -> None:
    data = MODELS["words"]().SerializeToString()
    with pytest.raises(ModelError, match="several graphs"):
        load(data + data)


def test_a_graph_alone_is_no_model() -> None:
    with pytest.raises(ModelError):
        load(MODELS["words"]().graph.SerializeToString())


def test_numbers_on_the_wire() -> None:
    for number in (0, 1, 127, 128, 300, (1 << 31) - 1, 1 << 40, (1 << 64) - 1):
        data = encode_varint(number)
        assert read_varint(memoryview(data), 0, len(data)) == (number, len(data))
    assert encode_varint(-1) == b"\xff" * 9 + b"\x01"
    with pytest.raises(TruncatedModelError, match="byte 0 does not end"):
        read_varint(memoryview(b"\x80" * 11), 0, 11)


def test_lengths_past_the_end_are_never_a_short_slice() -> None:
    for data in (b"\x0a\x05abc", b"\x0a", b"\x0d\x00\x00", b"\x09\x00", b"\x80", b"\x0a\xff\xff\xff\xff\x0f"):
        with pytest.raises(TruncatedModelError):
            list(fields(memoryview(data), 0, len(data)))


# --- external data


def external(**entries: str) -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model_of([node("Add", ["x", "w"], ["y"])], initializers=[tensor]).SerializeToString()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "names no location"),
        ({"location": "gone.data"}, "cannot be opened: No such file.*put the data file beside the model"),
        ({"location": "."}, "cannot be opened: it is a folder"),
        ({"location": "/etc/hostname"}, "outside the model's folder"),
        ({"location": "../outside.data"}, "outside the model's folder"),
        ({"location": "inner/../../outside.data"}, "outside the model's folder"),
        ({"location": "..\\outside.data"}, "outside the model's folder"),
        ({"location": "a\0b"}, "outside the model's folder"),
        ({"location": "link.data"}, "a link out of the model's folder"),
        ({"location": "linked/outside.data"}, "a link out of the model's folder"),
        ({"location": "short.data"}, r"reaches to byte 8 of 'short.data', which has 7; the data file is incomplete"),
        ({"location": "good.data", "offset": "9"}, "reaches to byte 17"),
        ({"location": "good.data", "offset": "-1"}, "reaches to byte 7"),
        ({"location": "good.data", "offset": "x"}, "no number"),
        ({"location": "good.data", "length": "4"}, "needs 8 bytes by its type and shape but names 4"),
        ({"location": "good.data", "length": "-8"}, "names -8"),
    ],
)
def test_external_data_that_cannot_be_used(entries: dict[str, str], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "outside.data").write_bytes(bytes(8))
    (folder / "short.data").write_bytes(bytes(7))
    (folder / "good.data").write_bytes(bytes(16))
    (folder / "link.data").symlink_to(tmp_path / "outside.data")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "model.onnx").write_bytes(external(**entries))
    with pytest.raises(GraphoptError, match=message):
        load(folder / "model.onnx")


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "good.data"},
        {"location": "good.data", "offset": "", "length": "0"},
        {"location": "good.data", "offset": "8", "length": "8", "checksum": "unused"},
        {"location": "below/good.data"},
        {"location": "./good.data"},
        {"location": "inside.data"},
    ],
)
def test_external_data_that_can_be_used(entries: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("good.data", "below/good.data"):
        (tmp_path / name).write_bytes(bytes(16))
    (tmp_path / "inside.data").symlink_to("below/good.data")
    (tmp_path / "model.onnx").write_bytes(external(**entries))
    (constant,) = load(tmp_path / "model.onnx").constants()
    assert constant.tensor is not None
    assert constant.tensor.tolist() == [0.0, 0.0]


def test_a_model_that_is_no_file_has_no_external_data() -> None:
    with pytest.raises(ModelError, match="pass the path of the model instead"):
        load(external(location="good.data"))


def test_strings_are_never_external() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[0], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="x")
    with pytest.raises(ModelError, match="holds strings in external data"):
        load(model_of([node("Relu", ["x"], ["y"])], initializers=[tensor]))


def test_a_negative_dim() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-2], float_data=[1.0])
    with pytest.raises(ModelError, match=r"negative dim \[-2\]"):
        load(
            model_of(
                [node("Relu", ["x"], ["y"])], [info("x")], initializers=[tensor, helper.make_tensor("v", 1, [1], [1.0])]
            )
        )
