"""TensorProto to Tensor without reading the data."""

from __future__ import annotations

import math
from collections.abc import Callable

from google.protobuf.message import DecodeError
from onnx import SparseTensorProto, TensorProto, numpy_helper

from graphopt.errors import ModelError
from graphopt.onnxio.external import ExternalFiles
from graphopt.onnxio.wire import BYTES, VARINT, fields, read_varint
from graphopt.tensors import Array, DType, FileMapping, FileRegion, Tensor, as_strings


class TensorReader:
    """Reads the tensors of one model.

    Args:
        view: The serialized model.
        mapping: The file it is in, None if it is in memory.
        external: Where its external data is.
    """

    def __init__(self, view: memoryview, mapping: FileMapping | None, external: ExternalFiles) -> None:
        self.view = view
        self.mapping = mapping
        self.external = external

    def piece(self, start: int, end: int) -> FileRegion | memoryview:
        """Bytes of the model to be read or written later, without copying them now."""
        return self.view[start:end] if self.mapping is None else FileRegion(self.mapping, start, end - start)

    def text(self, start: int, end: int) -> str:
        """A string field.

        Raises:
            ModelError: it is not UTF-8.
        """
        try:
            return str(self.view[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"the text at byte {start} is not UTF-8; fetch the file again") from error

    def read(self, start: int, end: int) -> tuple[str, Tensor]:
        """The name and the lazy tensor of a `TensorProto`.

        Raises:
            ModelError: the element type is unknown or the data does not fit type and shape.
            ExternalDataError: see `ExternalFiles.region`.
        """
        dims: list[int] = []
        dtype, name, data, is_external = 0, "", None, False
        entries: dict[str, str] = {}
        for number, kind, _, payload, stop in fields(self.view, start, end):
            if kind == VARINT:
                if number == 1:
                    dims.append(read_varint(self.view, payload, stop)[0])
                elif number == 2:
                    dtype = read_varint(self.view, payload, stop)[0]
                elif number == 14:
                    is_external = read_varint(self.view, payload, stop)[0] == TensorProto.EXTERNAL
            elif kind == BYTES:
                if number == 1:
                    while payload < stop:
                        size, payload = read_varint(self.view, payload, stop)
                        dims.append(size)
                elif number == 8:
                    name = self.text(payload, stop)
                elif number == 9:
                    data = self.piece(payload, stop)
                elif number == 13:
                    key, value = self.entry(payload, stop)
                    entries[key] = value
        signed = tuple(size - (1 << 64) if size >> 63 else size for size in dims)
        message = self.view[start:end]
        return name, self._tensor(
            dtype, signed, name, data, entries if is_external else None, lambda: TensorProto.FromString(bytes(message))
        )

    def entry(self, start: int, end: int) -> tuple[str, str]:
        """The key and value of a `StringStringEntryProto`."""
        found = {1: "", 2: ""}
        for number, kind, _, payload, stop in fields(self.view, start, end):
            if kind == BYTES and number in found:
                found[number] = self.text(payload, stop)
        return found[1], found[2]

    def from_proto(self, proto: TensorProto) -> Tensor:
        """The tensor of a message that is parsed already, as small ones in attributes are.

        Raises:
            ModelError: the element type is unknown or the data does not fit type and shape.
            ExternalDataError: see `ExternalFiles.region`.
        """
        data = memoryview(proto.raw_data) if proto.HasField("raw_data") else None
        entries = None
        if proto.data_location == TensorProto.EXTERNAL:
            entries = {str(entry.key): str(entry.value) for entry in proto.external_data}
        return self._tensor(proto.data_type, tuple(proto.dims), str(proto.name), data, entries, lambda: proto)

    def _tensor(
        self,
        code: int,
        shape: tuple[int, ...],
        name: str,
        data: bytes | memoryview | FileRegion | None,
        entries: dict[str, str] | None,
        message: Callable[[], TensorProto],
    ) -> Tensor:
        dtype = element_type(code, name)
        if any(size < 0 for size in shape):
            raise ModelError(f"tensor '{name}' has a negative dim {list(shape)}; export the model again")
        if dtype is DType.STRING:
            if entries is not None:
                raise ModelError(f"tensor '{name}' holds strings in external data, which ONNX forbids; export it again")
            return Tensor(dtype, shape, lambda: _decode(message, name))
        size = (math.prod(shape) * dtype.bits + 7) // 8
        if entries is not None:
            return Tensor(dtype, shape, self.external.region(name, entries, size))
        if data is None:
            return Tensor(dtype, shape, lambda: _decode(message, name))
        held = data.length if isinstance(data, FileRegion) else len(data)
        if held != size:
            where = f" at byte {data.offset}" if isinstance(data, FileRegion) else ""
            raise ModelError(
                f"tensor '{name}' needs {size} bytes by its type and shape but holds {held}{where}; "
                "export the model again"
            )
        return Tensor(dtype, shape, data if isinstance(data, FileRegion) else memoryview(data))

    def read_sparse(self, start: int, end: int) -> tuple[str, tuple[int, ...], DType]:
        """The name, dense shape and element type of a `SparseTensorProto`.

        Raises:
            ModelError: it is damaged, or its element type is unknown.
        """
        try:
            proto = SparseTensorProto.FromString(bytes(self.view[start:end]))
        except DecodeError as error:
            raise ModelError(f"the sparse tensor at byte {start} is damaged; fetch the file again") from error
        name = proto.values.name
        if not isinstance(name, str):
            raise ModelError(f"the name of the sparse tensor at byte {start} is not UTF-8; export the model again")
        return name, tuple(proto.dims), element_type(proto.values.data_type, name)


def element_type(code: int, name: str) -> DType:
    """The element type of a tensor.

    Raises:
        ModelError: the installed onnx does not know it.
    """
    dtype = DType.from_code(code)
    if dtype is DType.UNDEFINED:
        raise ModelError(f"tensor '{name}' has element type {code}, which is not known here; upgrade onnx")
    return dtype


def _decode(message: Callable[[], TensorProto], name: str) -> Array:
    """Elements kept in a typed field, read when they are asked for."""
    try:
        array: Array = numpy_helper.to_array(message())
    except (ValueError, TypeError, OverflowError, DecodeError) as error:
        raise ModelError(
            f"the data of tensor '{name}' does not fit its type and shape ({error}); export the model again"
        ) from error
    return as_strings(array) if array.dtype.kind in "OSU" else array
