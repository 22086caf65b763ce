"""Putting finished files into place: never over what a run reads, nor over what came into being while it ran."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from graphopt.errors import GraphoptError, OutputError
from graphopt.onnxio.loading import load

_MODE = 0o666


def exists_already(path: str | os.PathLike[str]) -> OutputError:
    """The error of whoever finds a file where nothing was to be replaced."""
    return OutputError(f"'{os.fspath(path)}' exists already; pass --force to replace it, or choose another name")


def move(source: str, target: str, *, replace: bool) -> None:
    """Give a finished file its name.

    Args:
        source: The file, in the same folder as `target`.
        target: Its name.
        replace: Whether it may take the place of another file. If not, the test and the move are one step where the
            file system knows links; elsewhere one follows right after the other.

    Raises:
        OutputError: There is such a file and `replace` is not set.
        OSError: It cannot be moved there.
    """
    if not replace:
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            raise exists_already(target) from None
        except (OSError, NotImplementedError):  # not every file system has links
            if os.path.lexists(target):
                raise exists_already(target) from None
        else:
            os.unlink(source)
            return
    os.replace(source, target)


def write_document(path: str | os.PathLike[str], document: dict[str, Any], *, replace: bool) -> None:
    """Write a JSON document, whole or not at all; through a link the file it points to is written.

    Raises:
        OutputError: The file exists and `replace` is not set, or it cannot be written.
    """
    named = os.fspath(path)
    if not replace and os.path.lexists(named):
        raise exists_already(named)
    target = os.path.realpath(named)
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    try:
        if os.path.lexists(target) and not os.path.isfile(target):  # it would take the place of a device or a pipe
            raise OutputError(f"cannot write '{named}': it is no regular file; name a file")
        number, passing = tempfile.mkstemp(prefix=".graphopt-", dir=os.path.dirname(target))
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(passing, _MODE & ~_umask())
            move(passing, target, replace=replace)
        except BaseException:
            with suppress(OSError):
                os.unlink(passing)
            raise
    except OSError as error:
        raise OutputError(f"cannot write '{named}': {error.strerror}; choose another place") from error


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def require_unread(path: str | os.PathLike[str], models: Iterable[str], reads: Iterable[str] = ()) -> None:
    """Refuse to write over anything that a run reads.

    Args:
        path: What would be written.
        models: The models it reads; files of theirs with external data count.
        reads: Other files it reads.

    Raises:
        OutputError: `path` is one of them.
    """
    named = os.fspath(path)
    if not os.path.exists(named):
        return  # nothing to lose
    for model in models:
        if is_same(named, model):
            raise OutputError(f"'{named}' is the model itself, and what is written there is no model; name another")
    if any(is_same(named, other) for other in reads):
        raise OutputError(f"'{named}' is read by this run, so it is not written; choose another name")
    for model in models:
        if any(is_same(named, other) for other in _external_files(model)):
            raise OutputError(f"cannot write '{named}': the model's weights are read from it; choose another name")


def is_same(one: str, other: str) -> bool:
    """True if two paths lead to one file, or would."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.abspath(one) == os.path.abspath(other)


def _external_files(model: str) -> list[str]:
    if not os.path.isfile(model):
        return []
    try:
        files = load(model).model.details["external_files"]
    except GraphoptError:  # whoever runs it says what is wrong with it
        return []
    return [mapping.path for mapping in files.mappings.values()]
