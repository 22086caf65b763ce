"""Writing a model file: streamed, atomic, safe over the file it came from."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

from graphopt.errors import ExternalDataError, ModelError, OutputError
from graphopt.ir import Graph, Model
from graphopt.onnxio.copying import Copier
from graphopt.onnxio.layout import Layout, References
from graphopt.onnxio.placing import move
from graphopt.onnxio.wire import BYTES, Message, fields, piece_bytes
from graphopt.onnxio.writer import MESSAGE_LIMIT, write_model
from graphopt.tensors import FileRegion, map_file

DEFAULT_THRESHOLD = 1024
"""Tensors below this many bytes stay in the model file."""
ExternalData: TypeAlias = bool | Literal["reference"] | None


def save(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    external_data: ExternalData = None,
    external_threshold: int = DEFAULT_THRESHOLD,
    stamp: Mapping[str, str] | None = None,
) -> bool:
    """Write a model.

    The data file, if there is one, is written under a fresh name and flushed first; the model file replaces the old
    one last, so whatever happens either the old or the new model is there, whole.

    Args:
        graph: The main graph.
        path: The model file; it may be the file the model was loaded from. Through a link the file it points to is
            written; a model with external data takes the place of the link, for its data has to lie beside it.
        external_data: Weights in a file beside the model; `"reference"` lets those that are in a file in the model's
            folder already stay there; None keeps the form the model was read in, and goes external by itself where the
            model would exceed what one message holds.
        external_threshold: Bytes from which a tensor goes external.
        stamp: Entries set in the file's metadata.

    Returns:
        True if weights are in another file.

    Raises:
        OutputError: the folder does not exist or is not writable, or the disk is full; nothing was changed.
        ExternalDataError: the model cannot be written inside one message and external data was switched off.
    """
    staged = stage(graph, path, external_data=external_data, external_threshold=external_threshold, stamp=stamp)
    try:
        staged.commit()
    finally:
        staged.discard()
    return staged.is_external


class Staged:
    """A model written in full beside its target under a passing name: it can be run, then committed or discarded.

    Attributes:
        path: The model file.
        target: Where it will go.
        data_path: Its new data file, if it has one.
        is_external: True if weights are in another file, new or not.
    """

    def __init__(self, path: str, target: str, data_path: str | None, references: Mapping[str, None]) -> None:
        self.path = path
        self.target = target
        self.data_path = data_path
        self.is_external = data_path is not None or bool(references)
        self._needed = {data_path, *references}
        self._is_done = False

    def commit(self, target: str | None = None, *, replace: bool = True) -> None:
        """Move the model into place; the data file an earlier save left for that one is removed.

        Args:
            target: Another name in the same folder.
            replace: Whether it may take the place of a file that is there, or that came into being meanwhile.

        Raises:
            OutputError: it cannot be moved there; nothing was changed.
        """
        target = self.target if target is None else _final(os.path.abspath(target), is_external=self.is_external)
        with _reported(target):
            old: list[str] = []
            if replace and os.path.exists(target):
                old = [path for path in _own_data_files(target) if path not in self._needed]
                _require_writable(target)
                shutil.copymode(target, self.path)
            move(self.path, target, replace=replace)
        self._is_done = True
        _flush_folder(os.path.dirname(target))
        for path in old:
            with suppress(OSError):
                os.unlink(path)

    def discard(self) -> None:
        """Remove what was written, unless it was committed."""
        if self._is_done:
            return
        self._is_done = True
        for path in (self.path, self.data_path):
            if path is not None:
                with suppress(OSError):
                    os.unlink(path)


def stage(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    external_data: ExternalData = None,
    external_threshold: int = DEFAULT_THRESHOLD,
    stamp: Mapping[str, str] | None = None,
) -> Staged:
    """Write a model in full under a passing name beside `path`; see `save` for arguments and errors."""
    named, model = os.path.abspath(os.fspath(path)), graph.model
    is_external = _was_external(model) if external_data is None else bool(external_data)
    message = write_model(model, stamp=stamp)
    if not is_external and message.length > MESSAGE_LIMIT:
        if external_data is False:
            raise ExternalDataError(
                f"the model has {message.length} bytes, more than one file may hold; write it with external data"
            )
        is_external = True
    target, token = _final(named, is_external=is_external), secrets.token_hex(4)
    folder, name = os.path.split(target)
    require_no_data_file(model, target)
    with _reported(target):
        _require_writable(target)
        passing = os.path.join(folder, f".{token}.onnx.tmp")
        while True:
            references = References(target) if external_data == "reference" else None
            layout = Layout(_data_name(folder, name, message), external_threshold, references)
            placed = write_model(model, layout.place, stamp) if is_external else message
            data_path = os.path.join(folder, layout.location) if layout.tensors else None
            _require_space(folder, placed, layout)
            if data_path is None or _claimed(data_path):
                break
        staged = Staged(passing, target, data_path, {} if references is None else references.paths)
        try:
            if data_path is not None:
                layout.write(data_path)
            _write_file(staged.path, placed)
        except BaseException:
            staged.discard()
            raise
    return staged


def _claimed(path: str) -> bool:
    """Make an empty file of that name; False where another run has just made one, which is not ours to touch."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True


def _data_name(folder: str, name: str, message: Message) -> str:
    """A name for the data file that nothing has yet, and that the same model gets again."""
    digest = hashlib.sha256()
    for piece in message.pieces:
        if isinstance(piece, FileRegion):
            digest.update(f"{piece.offset}+{piece.length}".encode())
        else:
            digest.update(piece_bytes(piece))
    for count in itertools.count():
        token = hashlib.sha256(digest.digest() + str(count).encode()).hexdigest()[:8]
        found = f"{name}.{token}.data"
        if not os.path.lexists(os.path.join(folder, found)):
            return found
    raise AssertionError


def require_no_data_file(model: Model, target: str) -> None:
    """Refuse to write anything over a file the model's own weights are read from.

    Raises:
        OutputError: `target` is such a file.
    """
    files = model.details.get("external_files")
    for mapping in files.mappings.values() if files is not None else ():
        if os.path.exists(mapping.path) and os.path.exists(target) and os.path.samefile(mapping.path, target):
            raise OutputError(f"cannot write '{target}': the model's weights are read from it; choose another name")


def _final(path: str, *, is_external: bool) -> str:
    """Where a file of that name is written: through links, unless data has to lie beside it."""
    return path if is_external else os.path.realpath(path)


def _was_external(model: Model) -> bool:
    files = model.details.get("external_files")
    return files is not None and bool(files.mappings)


def _require_writable(target: str) -> None:
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", target)
    # Replacing a file takes a writable folder only, but whoever protected the file did not want that.
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file there is write-protected", target)


def _require_space(folder: str, message: Message, layout: Layout) -> None:
    """Fail before writing rather than in the middle; holes need no space."""
    regions = [piece for piece in message.pieces if isinstance(piece, FileRegion)]
    regions += [tensor.region for _, tensor in layout.tensors if tensor.region is not None]
    held = message.length - sum(piece.length for piece in message.pieces if isinstance(piece, FileRegion))
    held += sum(tensor.nbytes for _, tensor in layout.tensors if tensor.region is None)
    with open(os.devnull, "wb") as nothing, Copier(nothing) as copier:
        needed = held + sum(map(copier.data_length, regions))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"it needs {needed} bytes but {free} are free", folder)


def _write_file(path: str, message: Message) -> None:
    with open(path, "xb", buffering=1 << 20) as file, Copier(file) as copier:
        for piece in message.pieces:
            if isinstance(piece, FileRegion):
                copier.append(piece)
            else:
                file.write(piece_bytes(piece))
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: str) -> None:
    with suppress(OSError):  # not every system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _reported(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            advice = "create the folder first"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space or write elsewhere; nothing was changed"
        else:
            advice = "choose a place you may write to; nothing was changed"
        raise OutputError(f"cannot write '{target}': {error.strerror}; {advice}") from error


# --- the data file of an earlier save


def _own_data_files(target: str) -> list[str]:
    """The data files that the model now at `target` refers to and that were named by an earlier save of it."""
    folder, base = os.path.split(target)
    ours = re.compile(re.escape(base) + r"\.[0-9a-f]{8}\.data")
    try:
        locations = _locations(target)
    except (OSError, ModelError):
        return []  # nothing there, or no model
    return [os.path.join(folder, location) for location in locations if ours.fullmatch(location)]


def _locations(path: str) -> list[str]:
    """Where a model file says its initializers are."""
    view = map_file(path).view
    found: dict[str, None] = {}

    def inside(field: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        for number, kind, _, payload, stop in fields(view, start, end):
            if number == field and kind == BYTES:
                yield payload, stop

    for graph in inside(7, 0, len(view)):
        for tensor in inside(5, *graph):
            for entry in inside(13, *tensor):
                key, value = (bytes(view[slice(*next(inside(number, *entry), (0, 0)))]) for number in (1, 2))
                if key == b"location":
                    found[value.decode(errors="replace")] = None
    return list(found)
