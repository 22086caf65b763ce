"""Where each weight goes when weights do not stay in the model file."""

from __future__ import annotations

import os

from graphopt.onnxio.copying import Copier
from graphopt.tensors import FileMapping, Tensor

_PARAMETER_BYTES = 4096
"""Integers below this many bytes stay in the model file whatever the threshold."""
_ALIGNMENT = 4096  # whole pages, so that a runtime can map each tensor


class Layout:
    """Assigns each large tensor its place in one data file; bytes that several tensors share are written once.

    Args:
        location: The data file's name.
        threshold: Tensors below this many bytes stay in the model file.
        references: Where a weight may stay where it is; None if all go into the data file.

    Attributes:
        tensors: What the data file holds, each at its offset.
        size: Bytes of the data file.
    """

    def __init__(self, location: str, threshold: int, references: References | None = None) -> None:
        self.location = location
        self.threshold = max(threshold, 1)
        self.references = references
        self.tensors: list[tuple[int, Tensor]] = []
        self.size = 0
        self._placed: dict[tuple[int, int, int], int] = {}

    def place(self, name: str, tensor: Tensor) -> dict[str, str] | None:
        """The `external_data` entries of a tensor, None if it stays in the model file; see `writer.Place`."""
        size = tensor.nbytes if tensor.dtype.bits else 0
        # Shapes, axes and sizes must be where shape inference sees them.
        is_parameter = not tensor.dtype.is_float and size < _PARAMETER_BYTES
        if size < max(self.threshold, 1) or is_parameter:
            return None
        region = tensor.region
        if region is not None and self.references is not None:
            location = self.references.location(region.mapping)
            if location is not None:
                return {"location": location, "offset": str(region.offset), "length": str(size)}
        key = (id(tensor), 0, size) if region is None else (id(region.mapping), region.offset, size)
        offset = self._placed.get(key)
        if offset is None:
            offset = self._placed[key] = -(-self.size // _ALIGNMENT) * _ALIGNMENT
            self.size = offset + size
            self.tensors.append((offset, tensor))
        return {"location": self.location, "offset": str(offset), "length": str(size)}

    def write(self, path: str) -> None:
        """Fill the data file, which is there and empty, and flush it to disk.

        Raises:
            OSError: it cannot be written.
        """
        with open(path, "r+b") as file, Copier(file) as copier:
            for offset, tensor in self.tensors:
                file.seek(offset)
                if tensor.region is not None:
                    copier.append(tensor.region)
                else:
                    file.write(tensor.raw())
            file.flush()
            os.ftruncate(file.fileno(), self.size)
            os.fsync(file.fileno())


class References:
    """The files beside a model, or below, that it may refer to.

    Args:
        target: The model file about to be written, which itself cannot be referred to.
    """

    def __init__(self, target: str) -> None:
        self.paths: dict[str, None] = {}
        self._target = os.path.realpath(target)
        self._known: dict[int, str | None] = {}

    def location(self, mapping: FileMapping) -> str | None:
        """The location of a mapped file as seen from the model, None if it cannot be referred to."""
        key = id(mapping)
        if key not in self._known:
            self._known[key] = self._find(mapping)
        return self._known[key]

    def _find(self, mapping: FileMapping) -> str | None:
        path, folder = os.path.realpath(mapping.path), os.path.dirname(self._target)
        if path == self._target or os.path.commonpath([path, folder]) != folder:
            return None
        file = mapping.reopen()
        if file is None:
            return None
        file.close()
        self.paths[path] = None
        return os.path.relpath(path, folder).replace(os.sep, "/")
