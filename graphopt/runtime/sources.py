"""What can be run: a model as a file, as bytes, or as one of graphopt's graphs, brought to one form."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt.errors import ModelError, ModelRefusedError

# Above this, bytes go to the worker through a file: protobuf itself ends at 2 GB.
_BYTES_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that a session can be made of.

    Attributes:
        label: What messages call it.
        path: The file; external data is found beside it.
        data: The bytes, where there is no file.
    """

    label: str
    path: str | None = None
    data: bytes | None = None

    @property
    def handle(self) -> str | bytes:
        """What `InferenceSession` takes."""
        return self.path if self.path is not None else self.data or b""

    @property
    def nbytes(self) -> int:
        """Size of the model file, external data not counted."""
        return os.path.getsize(self.path) if self.path is not None else len(self.data or b"")


@contextmanager
def open_source(model: Any, label: str = "model") -> Iterator[ModelSource]:
    """Bring a path, bytes, ModelProto, Graph or ModelSource to a `ModelSource`; temporary files go at the end.

    Raises:
        ModelError: There is no such file.
        ModelRefusedError: The object is no model.
    """
    if isinstance(model, ModelSource):
        yield model
        return
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"there is no model file {path}; check the path")
        yield ModelSource(str(path), path=str(path.absolute()))
        return
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
    elif hasattr(model, "SerializeToString"):
        data = model.SerializeToString()
    elif hasattr(model, "nx") and hasattr(model, "opsets"):
        with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
            from graphopt.onnxio import save

            path = Path(folder, "model.onnx")
            save(model, path)
            yield ModelSource(label, path=str(path))
        return
    else:
        raise ModelRefusedError(f"cannot run a {type(model).__name__}; give a path, bytes, a ModelProto or a graph")
    if len(data) <= _BYTES_LIMIT:
        yield ModelSource(label, data=data)
        return
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(data)
        yield ModelSource(label, path=str(path))
