"""Writing a model file: streamed, atomic, safe over the file it came from."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from graphopt.errors import ExternalDataError, OutputError
from graphopt.ir import Graph, Model
from graphopt.onnxio.wire import Message
from graphopt.onnxio.writer import write_model
from graphopt.tensors import FileRegion, Tensor

MESSAGE_LIMIT = (1 << 31) - 1
"""Bytes a protobuf message may have; a larger model must keep its weights outside."""
DEFAULT_THRESHOLD = 1024
"""Tensors below this many bytes stay in the model file."""
_ALIGNMENT = 4096  # whole pages, so that a runtime can map each tensor


def save(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    external_threshold: int = DEFAULT_THRESHOLD,
    stamp: dict[str, str] | None = None,
) -> bool:
    """Write a model.

    The data file, if there is one, is written under a fresh name and flushed first; the model file replaces the old
    one last, so whatever happens either the old or the new model is there, whole.

    Args:
        graph: The main graph.
        path: The model file; it may be the file the model was loaded from.
        external_data: Weights in a file beside the model; None keeps the form the model was read in, and goes external
            by itself where the model would exceed what one message holds.
        external_threshold: Bytes from which a tensor goes external.
        stamp: Entries added to the file's metadata.

    Returns:
        True if the weights went to an external file.

    Raises:
        OutputError: the folder does not exist or is not writable, or the disk is full; nothing was changed.
        ExternalDataError: the model cannot be written inside one message and external data was switched off.
    """
    staged = stage(graph, path, external_data=external_data, external_threshold=external_threshold, stamp=stamp)
    try:
        staged.commit()
    finally:
        staged.discard()
    return staged.data_path is not None


class Staged:
    """A model written in full beside its target under a passing name: it can be run, then committed or discarded."""

    def __init__(self, path: str, target: str, data_path: str | None) -> None:
        self.path = path
        self.target = target
        self.data_path = data_path
        self._is_done = False

    def commit(self, target: str | None = None) -> None:
        """Move the model into place, over what is there; data files an earlier save left for that name are removed.

        Args:
            target: Another name in the same folder.

        Raises:
            OutputError: it cannot be moved there; nothing was changed.
        """
        target = self.target if target is None else os.path.abspath(target)
        old = [name for name in _own_data_files(target) if name != self.data_path]
        with _reported(target):
            if os.path.exists(target):
                shutil.copymode(target, self.path)
            os.replace(self.path, target)
        self._is_done = True
        for name in old:
            with suppress(OSError):
                os.unlink(name)

    def discard(self) -> None:
        """Remove what was written, unless it was committed."""
        if self._is_done:
            return
        self._is_done = True
        for name in (self.path, self.data_path):
            if name is not None:
                with suppress(OSError):
                    os.unlink(name)


def stage(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    external_threshold: int = DEFAULT_THRESHOLD,
    stamp: dict[str, str] | None = None,
) -> Staged:
    """Write a model in full under a passing name beside `path`; see `save` for arguments and errors."""
    target = os.path.abspath(os.fspath(path))
    model = graph.model
    message = write_model(model)
    is_external = _was_external(model) if external_data is None else external_data
    if not is_external and message.length > MESSAGE_LIMIT:
        if external_data is False:
            raise ExternalDataError(
                f"the model has {message.length} bytes, more than one file may hold; write it with external data"
            )
        is_external = True
    token = secrets.token_hex(4)
    temporary, data_path = f"{target}.{token}.tmp", None
    with _reported(target):
        if is_external:
            layout = _Layout(f"{os.path.basename(target)}.{token}.data", external_threshold)
            message = write_model(model, layout.place)
            if layout.regions:
                data_path = os.path.join(os.path.dirname(target), layout.location)
        staged = Staged(temporary, target, data_path)
        try:
            if data_path is not None:
                _write_data(data_path, layout)
            _write_file(temporary, message, stamp)
        except BaseException:
            staged.discard()
            raise
    return staged


class _Layout:
    """Assigns each large tensor its place in one data file; equal bytes of one region are written once."""

    def __init__(self, location: str, threshold: int) -> None:
        self.location = location
        self.threshold = threshold
        self.regions: list[tuple[int, Tensor]] = []
        self.size = 0
        self._placed: dict[tuple[int, int, int], int] = {}

    def place(self, name: str, tensor: Tensor) -> dict[str, str] | None:
        size = tensor.nbytes if tensor.dtype.bits else 0
        if size < max(self.threshold, 1):
            return None
        region = tensor.region
        key = (id(tensor) if region is None else id(region.mapping), -1 if region is None else region.offset, size)
        offset = self._placed.get(key)
        if offset is None:
            offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
            self.size = offset + size
            self.regions.append((offset, tensor))
            self._placed[key] = offset
        return {"location": self.location, "offset": str(offset), "length": str(size)}


def _was_external(model: Model) -> bool:
    files = model.details.get("external_files")
    return files is not None and bool(files.mappings)


def _own_data_files(target: str) -> list[str]:
    """Data files an earlier save of this very path made: their names begin with the model's and end as ours do."""
    folder, base = os.path.split(target)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    prefix, suffix = base + ".", ".data"
    return [
        os.path.join(folder, name)
        for name in names
        if name.startswith(prefix) and name.endswith(suffix) and _is_token(name[len(prefix) : -len(suffix)])
    ]


def _is_token(text: str) -> bool:
    return len(text) == 8 and all(char in "0123456789abcdef" for char in text)


@contextmanager
def _reported(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            advice = "create the folder first"
        elif error.errno == 28:
            advice = "free some space or write elsewhere; nothing was changed"
        else:
            advice = "choose a place you may write to; nothing was changed"
        raise OutputError(f"cannot write '{target}': {error.strerror}; {advice}") from error


def _write_file(path: str, message: Message, stamp: dict[str, str] | None) -> None:
    extra = Message()
    for key, value in (stamp or {}).items():
        entry = Message()
        entry.text(1, key)
        entry.text(2, value)
        extra.message(14, entry)
    _require_space(os.path.dirname(path), message.length + extra.length, path)
    with open(path, "xb") as file:
        for piece in [*message.pieces, *extra.pieces]:
            if isinstance(piece, FileRegion):
                _copy_region(file, piece)
            else:
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _write_data(path: str, layout: _Layout) -> None:
    _require_space(os.path.dirname(path), layout.size, path, sparse=True)
    with open(path, "xb") as file:
        for offset, tensor in layout.regions:
            file.flush()
            file.seek(offset)
            if tensor.region is not None:
                _copy_region(file, tensor.region)
            else:
                file.write(tensor.raw())
        file.flush()
        os.ftruncate(file.fileno(), layout.size)
        os.fsync(file.fileno())


def _require_space(folder: str, size: int, target: str, *, sparse: bool = False) -> None:
    """Fail before writing rather than in the middle; holes need no space, so sparse data is judged by what it copies."""
    if sparse:
        return
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(28, f"needs {size} bytes but {free} are free", target)


def _copy_region(file: BinaryIO, region: FileRegion) -> None:
    """Copy bytes from file to file inside the kernel, keeping holes as holes."""
    file.flush()
    position = file.tell()
    end = region.offset + region.length
    with open(region.mapping.path, "rb") as source:
        if os.fstat(source.fileno()).st_size != region.mapping.size:
            _copy_mapped(file, region)
            return
        at = region.offset
        while at < end:
            data = _next_data(source.fileno(), at, end)
            stop = _next_hole(source.fileno(), data, end)
            at = data
            while at < stop:
                copied = _copy_range(source.fileno(), file.fileno(), min(stop - at, 1 << 30), at, position + at - region.offset)
                if copied == 0:
                    break
                at += copied
            else:
                at = stop
                continue
            break
    if at < end:
        file.seek(position)
        _copy_mapped(file, region)
        return
    if os.fstat(file.fileno()).st_size < position + region.length:
        os.ftruncate(file.fileno(), position + region.length)
    file.seek(position + region.length)


def _copy_mapped(file: BinaryIO, region: FileRegion) -> None:
    view, block = region.view(), 1 << 24
    for start in range(0, region.length, block):
        file.write(view[start : start + block])


def _copy_range(source: int, target: int, count: int, at: int, to: int) -> int:
    try:
        return os.copy_file_range(source, target, count, at, to)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno == 28:
            raise
        return os.pwrite(target, os.pread(source, min(count, 1 << 24), at), to)


def _next_data(descriptor: int, at: int, end: int) -> int:
    try:
        return min(os.lseek(descriptor, at, os.SEEK_DATA), end)
    except OSError as error:
        return end if error.errno == 6 else at  # ENXIO: nothing but a hole follows


def _next_hole(descriptor: int, at: int, end: int) -> int:
    try:
        return min(os.lseek(descriptor, at, os.SEEK_HOLE), end) if at < end else end
    except OSError:
        return end


