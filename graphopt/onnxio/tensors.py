"""TensorProto to Tensor without reading the data."""

from __future__ import annotations

import math

from onnx import SparseTensorProto, StringStringEntryProto, TensorProto, numpy_helper

from graphopt.errors import ModelError
from graphopt.onnxio.external import ExternalFiles
from graphopt.onnxio.wire import BYTES, fields, read_varint
from graphopt.tensors import DType, Tensor
from graphopt.tensors.region import FileMapping, FileRegion


class TensorReader:
    """Reads the tensors of one model."""

    def __init__(self, view: memoryview, mapping: FileMapping | None, external: ExternalFiles) -> None:
        self.view = view
        self.mapping = mapping
        self.external = external

    def read(self, start: int, end: int) -> tuple[str, Tensor, memoryview]:
        """The name, the lazy tensor and the whole message of a `TensorProto`.

        Raises:
            ModelError: the element type is unknown or the data does not fit type and shape.
            ExternalDataError: see `ExternalFiles.region`.
        """
        dims: list[int] = []
        dtype, name, raw_at, is_external = 0, "", None, False
        entries: dict[str, str] = {}
        for number, kind, _, payload, stop in fields(self.view, start, end):
            if number == 1:
                while payload < stop:
                    size, payload = read_varint(self.view, payload, stop)
                    dims.append(size - (1 << 64) if size >> 63 else size)
            elif number == 2:
                dtype, _ = read_varint(self.view, payload, stop)
            elif number == 8 and kind == BYTES:
                name = bytes(self.view[payload:stop]).decode("utf-8", "surrogateescape")
            elif number == 9 and kind == BYTES:
                raw_at = (payload, stop)
            elif number == 13:
                entry = StringStringEntryProto.FromString(bytes(self.view[payload:stop]))
                entries[entry.key] = entry.value
            elif number == 14:
                is_external = read_varint(self.view, payload, stop)[0] == 1
        try:
            element = DType(dtype)
        except ValueError:
            element = DType.UNDEFINED
        if element is DType.UNDEFINED:
            raise ModelError(f"tensor '{name}' has element type {dtype}, which the installed onnx does not know; upgrade onnx")
        if any(size < 0 for size in dims):
            raise ModelError(f"tensor '{name}' has a negative dim {dims}; export the model again")
        message = self.view[start:end]
        tensor = self._tensor(element, tuple(dims), name, raw_at, entries if is_external else None, message)
        return name, tensor, message

    def _tensor(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        name: str,
        raw_at: tuple[int, int] | None,
        entries: dict[str, str] | None,
        message: memoryview,
    ) -> Tensor:
        size = (math.prod(shape) * dtype.bits + 7) // 8
        if entries is not None:
            return Tensor(dtype, shape, self.external.region(name, entries, size))
        if raw_at is None or (dtype is DType.STRING):
            return Tensor(dtype, shape, lambda: _decode(message, name))
        if raw_at[1] - raw_at[0] != size:
            raise ModelError(
                f"tensor '{name}' needs {size} bytes by its type and shape but holds {raw_at[1] - raw_at[0]} "
                f"at byte {raw_at[0]}; export the model again"
            )
        if self.mapping is None:
            return Tensor(dtype, shape, self.view[raw_at[0] : raw_at[1]])
        return Tensor(dtype, shape, FileRegion(self.mapping, raw_at[0], size))

    def read_sparse(self, start: int, end: int) -> tuple[str, tuple[int, ...], DType, memoryview]:
        """The name, dense shape, element type and whole message of a `SparseTensorProto`."""
        proto = SparseTensorProto.FromString(bytes(self.view[start:end]))
        return proto.values.name, tuple(proto.dims), DType(proto.values.data_type), self.view[start:end]


def _decode(message: memoryview, name: str):  # type: ignore[no-untyped-def]  # numpy_helper is untyped
    try:
        array = numpy_helper.to_array(TensorProto.FromString(bytes(message)))
    except (ValueError, TypeError) as error:
        raise ModelError(f"the data of tensor '{name}' does not fit its type and shape ({error}); export the model again") from error
    if array.dtype.kind in "OSU":
        import numpy as np

        strings = [item.encode() if isinstance(item, str) else bytes(item) for item in array.reshape(-1).tolist()]
        return np.array(strings, dtype=object).reshape(array.shape)
    return array
