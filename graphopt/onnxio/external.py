"""Where external data lies, and where it must not lie."""

from __future__ import annotations

import os

from graphopt.errors import ExternalDataError
from graphopt.tensors import FileMapping, FileRegion, map_file


class ExternalFiles:
    """The external data of one model: resolves locations inside the model's folder and maps each file once.

    Attributes:
        folder: The model's folder; None for a model that is no file.
        mappings: What was opened so far, by location.
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.mappings: dict[str, FileMapping] = {}

    def region(self, tensor_name: str, entries: dict[str, str], size: int) -> FileRegion:
        """The bytes of one tensor.

        Args:
            tensor_name: For messages.
            entries: The tensor's `external_data`: `location`, `offset`, `length` as text.
            size: How many bytes the tensor's type and shape call for.

        Raises:
            ExternalDataError: the location is missing, absolute, leaves the model's folder or is a link out of it; the
                file is not there; it is shorter than the tensor says; or the length does not fit type and shape.
        """
        location = entries.get("location", "")
        mapping = self.mappings.get(location)
        if mapping is None:
            mapping = self.mappings[location] = self._open(tensor_name, location)
        try:
            offset = int(entries.get("offset", "0") or 0)
            length = int(entries.get("length", "0") or 0) or size
        except ValueError:
            raise ExternalDataError(
                f"tensor '{tensor_name}' gives an offset or length that is no number; export the model again"
            ) from None
        if length != size:
            raise ExternalDataError(
                f"tensor '{tensor_name}' needs {size} bytes by its type and shape but names {length} bytes of "
                f"'{location}'; export the model again"
            )
        if offset < 0 or offset + length > mapping.size:
            raise ExternalDataError(
                f"tensor '{tensor_name}' reaches to byte {offset + length} of '{location}', which has {mapping.size}; "
                "the data file is incomplete or belongs to another model"
            )
        return FileRegion(mapping, offset, length)

    def _open(self, tensor_name: str, location: str) -> FileMapping:
        if self.folder is None:
            raise ExternalDataError(
                f"tensor '{tensor_name}' lies in the file '{location}', but the model was not loaded from a file; "
                "pass the path of the model instead"
            )
        path = resolve(self.folder, location, f"tensor '{tensor_name}'")
        try:
            return map_file(path)
        except OSError as error:
            raise ExternalDataError(
                f"tensor '{tensor_name}' lies in '{location}', which cannot be opened: {error.strerror}; "
                "put the data file beside the model"
            ) from error


def resolve(folder: str, location: str, who: str) -> str:
    """The path of an external location.

    Raises:
        ExternalDataError: the location is empty, absolute, leaves the folder or is a link out of it.
    """
    remedy = "graphopt reads only data beside the model; move the file there and correct the location"
    if not location:
        raise ExternalDataError(f"{who} is external but names no location; export the model again")
    if os.path.isabs(location) or "\\" in location or "\0" in location or ".." in location.split("/"):
        raise ExternalDataError(f"{who} lies at {location!r}, outside the model's folder; {remedy}")
    root = os.path.realpath(folder)
    path = os.path.join(root, location)
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ExternalDataError(f"{who} lies at {location!r}, a link out of the model's folder; {remedy}")
    return path
