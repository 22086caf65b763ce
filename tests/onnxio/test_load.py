from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError, Message
from onnx import ModelProto, TensorProto
from onnxio_models import MODELS, model_of, node, numbers

from graphopt.errors import ModelError
from graphopt.ir import Model
from graphopt.onnxio import load, to_proto, write_model
from graphopt.tensors import Tensor


def model() -> ModelProto:
    return MODELS["words"]()


def test_every_form_of_a_model(tmp_path: Path) -> None:
    data = model().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    forms = [path, str(path), data, bytearray(data), memoryview(data), model()]
    for form in forms:
        assert write_model(load(form).model).to_bytes() == data
    assert load(path).model.path == str(path)
    assert load(data).model.path is None


@pytest.mark.parametrize("source", [None, 7, object(), TensorProto, [b""]])
def test_what_is_no_model(source: object) -> None:
    with pytest.raises(ModelError, match=r"give a path, bytes, a ModelProto, an onnx_ir.Model or an ONNXProgram"):
        load(source)


def test_a_program_hands_over_its_message() -> None:
    program = types.SimpleNamespace(model_proto=model(), model=object())
    assert write_model(load(program).model).to_bytes() == model().SerializeToString()


def test_a_message_too_large_to_serialize() -> None:
    class Huge(Message):
        def SerializeToString(self, **_: object) -> bytes:  # noqa: N802
            raise EncodeError("Failed to serialize proto")

    with pytest.raises(ModelError, match="save it with external data and give its path"):
        load(Huge())


def test_an_onnx_ir_model() -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    graph = load(onnx_ir.from_proto(MODELS["nested"]()))
    assert [value.name for value in graph.inputs] == ["x", "c", "n"]


def test_an_onnx_ir_model_with_external_data(tmp_path: Path) -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    proto = model_of([node("Add", ["x", "w"], ["y"])], initializers=[numbers("w", *range(2000))])
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    graph = load(onnx_ir.load(tmp_path / "model.onnx"))
    (constant,) = graph.constants()
    assert constant.tensor is not None
    assert constant.tensor.tolist() == list(range(2000))


def test_weights_are_left_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = model_of([node("Add", ["x", "w"], ["y"])], initializers=[numbers("w", *range(2000)), numbers("v", 1)])
    path.write_bytes(proto.SerializeToString())
    w, v = load(path).constants()
    assert w.tensor is not None
    assert w.tensor.region is not None
    assert v.tensor is not None
    assert w.tensor.region.mapping is v.tensor.region.mapping  # type: ignore[union-attr]
    assert w.tensor.region.mapping.path == str(path)
    array = w.tensor.numpy()
    assert not array.flags.writeable
    assert not array.flags.owndata
    np.testing.assert_array_equal(array, np.arange(2000, dtype=np.float32))


def test_a_model_lives_as_long_as_something_points_into_it(tmp_path: Path) -> None:
    import gc
    import weakref

    path = tmp_path / "model.onnx"
    proto = model_of([node("Add", ["x", "w"], ["y"])], initializers=[numbers("w", *range(2000))])
    path.write_bytes(proto.SerializeToString())
    graph = load(path)
    tensor = graph.constants()[0].tensor
    assert tensor is not None
    assert tensor.region is not None
    mapping, model_alive = weakref.ref(tensor.region.mapping), weakref.ref(graph)
    array = tensor.numpy()
    del graph
    gc.collect()
    assert model_alive() is None
    assert mapping() is not None
    del tensor
    gc.collect()
    assert mapping() is None
    assert array[1999] == 1999


def test_the_collector_is_left_as_it_was() -> None:
    import gc

    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            load(model())
            with pytest.raises(ModelError):
                load(b"\x00")
            assert gc.isenabled() is on
        finally:
            gc.enable()


def test_loading_one_model_twice_gives_two(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    first, second = load(path), load(path)
    first.add_constant(Tensor.from_numpy(np.zeros(3, np.float32)), "more")
    assert isinstance(second.model, Model)
    assert to_proto(second) == model()
