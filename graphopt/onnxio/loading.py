"""Whatever a model comes as, to IR."""

from __future__ import annotations

import os
from typing import Any

from google.protobuf.message import EncodeError, Message

from graphopt.errors import ModelError
from graphopt.ir import Graph
from graphopt.ir.collector import collector_paused
from graphopt.onnxio.reader import ModelReader
from graphopt.tensors import map_file


def load(source: Any) -> Graph:
    """Load a model; nothing of a weight is read.

    Args:
        source: A path, a serialized model, a `ModelProto`, an `onnx_ir.Model`, or what `torch.onnx.export` returns. It
            is not changed; a file must not be written into while the graph is in use (replacing it is fine).

    Returns:
        The main graph; `graph.model` holds the rest.

    Raises:
        ModelError: the file is missing, is no model, is cut short, or names something that does not exist.
        ExternalDataError: external data is missing, too short, or outside the model's folder.
    """
    if isinstance(source, (str, os.PathLike)):
        return _load_file(os.fspath(source))
    data, folder = _serialized(source)
    with collector_paused():
        return ModelReader(memoryview(data), None, folder).read().graph


def _load_file(path: str | bytes) -> Graph:
    path = os.fsdecode(path)
    try:
        mapping = map_file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"cannot read '{path}': {reason}; name an .onnx file") from error
    if mapping.size == 0:
        raise ModelError(f"'{path}' is empty; export the model again")
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with collector_paused():
            graph = ModelReader(mapping.view, mapping, folder).read().graph
    except ModelError as error:
        error.args = (f"'{path}': {error.args[0]}", *error.args[1:])
        raise
    graph.model.path = path
    return graph


def _serialized(source: Any) -> tuple[bytes | memoryview, str | None]:
    """The bytes of a model that is no file, and the folder its external data is in, if it knows one."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), None
    folder = None
    if hasattr(source, "model_proto"):  # torch's ONNXProgram, which holds an onnx_ir.Model
        source = source.model if _is_onnx_ir(getattr(source, "model", None)) else source.model_proto
    if _is_onnx_ir(source):
        source, folder = _from_onnx_ir(source)
    if not isinstance(source, Message):
        raise ModelError(
            f"cannot load a {type(source).__name__}; "
            "give a path, bytes, a ModelProto, an onnx_ir.Model or an ONNXProgram"
        )
    try:
        return source.SerializeToString(), folder
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"the model does not fit one protobuf message ({error}); save it with external data and give its path"
        ) from error


def _is_onnx_ir(source: object) -> bool:
    return type(source).__module__.partition(".")[0] == "onnx_ir"


def _from_onnx_ir(model: Any) -> tuple[Message, str | None]:
    """An `onnx_ir.Model` as a message, and the folder of the external tensors in it."""
    import onnx_ir  # type: ignore[import-not-found, unused-ignore]  # only there if the caller has it

    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    folders = {os.path.abspath(tensor.base_dir) for tensor in tensors if isinstance(tensor, onnx_ir.ExternalTensor)}
    if len(folders) > 1:
        raise ModelError("the model has external data in several folders; save it and give the path")
    message: Message = onnx_ir.to_proto(model)
    return message, next(iter(folders), None)
