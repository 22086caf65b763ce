from __future__ import annotations

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.tensors import DType, FileRegion, Tensor, map_file
from graphopt.tensors import region as region_module

KNOWN = [DType[name] for name in TensorProto.DataType.keys()]  # noqa: SIM118  # no dict
NUMBERS = [dtype for dtype in KNOWN if dtype not in (DType.UNDEFINED, DType.STRING)]


def sample(dtype: DType) -> np.ndarray:
    """Six numbers that every type can hold, odd ones out at the end."""
    values = [0, 1, 0, 1, 1, 0] if dtype is DType.BOOL else [0, 1, 1, 0, 1, 1]
    return np.array(values).astype(dtype.numpy).reshape(2, 3)


# --- element types


def test_types_are_those_of_onnx() -> None:
    ours = {dtype.name: int(dtype) for dtype in DType}
    assert set(TensorProto.DataType.items()) <= set(ours.items())


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_numpy_types_go_both_ways(dtype: DType) -> None:
    assert DType.from_numpy(dtype.numpy) is dtype
    assert dtype.numpy == helper.tensor_dtype_to_np_dtype(int(dtype))
    assert DType.from_code(int(dtype)) is dtype


def test_kinds_of_types() -> None:
    assert [dtype.name for dtype in DType if dtype.is_float] == [
        "FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ",
        "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT6E2M3", "FLOAT6E3M2",
    ]  # fmt: skip
    assert DType.INT4.is_signed
    assert DType.UINT4.is_integer
    assert not DType.UINT4.is_signed
    assert not DType.BOOL.is_integer
    assert (DType.INT4.bits, DType.UINT2.bits, DType.BOOL.bits, DType.COMPLEX128.bits) == (4, 2, 8, 128)
    assert DType.STRING.bits == DType.UNDEFINED.bits == 0
    assert DType.FLOAT8E4M3FN.text == "float8e4m3fn"
    assert DType.from_code(999) is DType.UNDEFINED


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype("U3"), np.dtype("S3")])
def test_text_is_string(dtype: np.dtype) -> None:
    assert DType.from_numpy(dtype) is DType.STRING


def test_a_type_onnx_lacks() -> None:
    with pytest.raises(TypeError, match="convert the array first"):
        DType.from_numpy(np.dtype("datetime64[s]"))


# --- tensors


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
def test_raw_is_what_onnx_writes(dtype: DType, tmp_path: Path) -> None:
    array = sample(dtype)
    tensor = Tensor.from_numpy(array)
    expected = numpy_helper.from_array(array).raw_data
    assert bytes(tensor.raw()) == expected
    assert tensor.nbytes == len(expected)
    assert (tensor.dtype, tensor.shape, tensor.size, tensor.rank) == (dtype, (2, 3), 6, 2)
    path = tmp_path / "data"
    path.write_bytes(b"??" + expected)  # where no element is aligned
    for source in (memoryview(expected), FileRegion(map_file(str(path)), 2, len(expected)), lambda: array):
        again = Tensor(dtype, (2, 3), source)
        assert bytes(again.raw()) == expected
        assert again.numpy().tobytes() == array.tobytes()
        assert not again.numpy().flags.writeable
        assert again.equals(tensor)
        assert again.fingerprint() == tensor.fingerprint()


def test_strings() -> None:
    tensor = Tensor.from_numpy(np.array([["a", "é"], ["", "d"]]))
    assert tensor.dtype is DType.STRING
    assert tensor.tolist() == [[b"a", "é".encode()], [b"", b"d"]]
    assert tensor.nbytes == 4
    assert tensor.equals(Tensor.from_numpy(np.array([[b"a", "é".encode()], [b"", b"d"]], dtype=object)))
    assert not tensor.equals(Tensor.from_numpy(np.array([["a", "é"], ["", "e"]])))
    with pytest.raises(TypeError, match="use numpy"):
        tensor.raw()
    assert Tensor.of("word", DType.STRING).scalar() == b"word"
    assert Tensor.of(["word"], DType.STRING).scalar() == b"word"
    assert tensor.fingerprint() == tensor.fingerprint()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_scalar(shape: tuple[int, ...]) -> None:
    assert Tensor.from_numpy(np.full(shape, 3, np.int64)).scalar() == 3
    assert Tensor.from_numpy(np.full(shape, 1.5, ml_dtypes.bfloat16)).scalar() == 1.5
    assert Tensor.from_numpy(np.full(shape, True)).scalar() is True


def test_several_elements_are_none() -> None:
    assert Tensor.of([1, 2], DType.INT64).scalar() is None
    assert Tensor.of(["a", "b"], DType.STRING).scalar() is None


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.INT4, DType.STRING], ids=lambda dtype: dtype.name)
def test_nothing_is_a_tensor_too(dtype: DType) -> None:
    tensor = Tensor.from_numpy(np.zeros((0, 3), dtype.numpy), dtype)
    assert tensor.size == tensor.nbytes == 0
    assert tensor.tolist() == []
    assert tensor.scalar() is None
    assert tensor.equals(Tensor.from_numpy(np.zeros((0, 3), dtype.numpy), dtype))
    assert repr(tensor).endswith("[0, 3] []")
    if dtype is not DType.STRING:
        assert bytes(tensor.raw()) == b""
        assert Tensor(dtype, (0, 3), memoryview(b"")).numpy().shape == (0, 3)


def test_equality_is_of_bits() -> None:
    def of(bits: int) -> Tensor:
        return Tensor(DType.FLOAT, (1,), memoryview(bits.to_bytes(4, "little")))

    assert not Tensor.of([0.0], DType.FLOAT).equals(Tensor.of([-0.0], DType.FLOAT))
    assert of(0x7FC00000).equals(of(0x7FC00000))
    assert not of(0x7FC00000).equals(of(0x7FC00001))
    assert not Tensor.of([1], DType.INT32).equals(Tensor.of([1], DType.UINT32))
    assert not Tensor.of([1], DType.INT32).equals(Tensor.of(1, DType.INT32))


def test_equality_looks_at_every_block() -> None:
    left = np.zeros((1 << 20) + 5, np.float32)
    right = left.copy()
    assert Tensor.from_numpy(left).equals(Tensor.from_numpy(right))
    right[-1] = 1
    assert not Tensor.from_numpy(left).equals(Tensor.from_numpy(right))
    assert Tensor.from_numpy(left).fingerprint() != Tensor.from_numpy(right).fingerprint()


def test_an_array_is_not_copied_and_not_changed() -> None:
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    tensor = Tensor.from_numpy(array)
    assert np.shares_memory(tensor.numpy(), array)
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0, 0] = 1
    assert array.flags.writeable
    assert bytes(Tensor.from_numpy(array.T).raw()) == np.ascontiguousarray(array.T).tobytes()
    assert bytes(Tensor.from_numpy(array.astype(">f4")).raw()) == array.tobytes()


def test_a_tensor_of_numbers_takes_the_type_given() -> None:
    tensor = Tensor.of([[1, 2]], DType.BFLOAT16)
    assert tensor.numpy().dtype == ml_dtypes.bfloat16
    assert repr(tensor) == "bfloat16[1, 2] [[1.0, 2.0]]"
    assert repr(Tensor.from_numpy(np.zeros(9, np.int8))) == "int8[9]"


def test_data_is_decoded_once_and_only_when_asked_for() -> None:
    calls = []

    def decode() -> np.ndarray:
        calls.append(1)
        return np.ones(2, np.float32)

    tensor = Tensor(DType.FLOAT, (2,), decode)
    assert tensor.nbytes == 8
    assert not calls
    assert tensor.tolist() == tensor.tolist() == [1.0, 1.0]
    assert len(calls) == 1


# --- mapped files


def test_a_file_is_mapped_once(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"abcdef")
    mapping = map_file(str(path))
    assert map_file(str(path)) is mapping
    region = FileRegion(mapping, 1, 4)
    assert bytes(region.view()) == b"bcde"
    assert bytes(region.part(1, 3).view()) == b"cd"


def test_a_file_replaced_under_its_name_is_another(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    mapping = map_file(str(path))
    opened = mapping.reopen()
    assert opened is not None
    opened.close()
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    assert bytes(map_file(str(path)).view) == b"new"
    assert bytes(mapping.view) == b"old"
    assert mapping.reopen() is None
    path.unlink()
    assert mapping.reopen() is None


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"")
    assert bytes(map_file(str(path)).view) == b""


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        map_file(str(path))
    with pytest.raises(IsADirectoryError):
        map_file(str(tmp_path))


def test_more_files_than_allowed_at_first(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    if hard < in_use + 120:
        pytest.skip("the hard limit of open files is too low")
    paths = []
    for index in range(60):
        paths.append(tmp_path / str(index))
        paths[-1].write_bytes(b"x" * (index + 1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 30, hard))
    try:
        mappings = [map_file(str(path)) for path in paths]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [mapping.size for mapping in mappings] == list(range(1, 61))


def test_a_limit_that_cannot_be_raised_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x")

    def refuse(path: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(region_module, "_shared_mapping", refuse)
    monkeypatch.setattr(region_module, "_allow_more_files", lambda: False)
    with pytest.raises(OSError, match="Too many open files"):
        map_file(str(path))
