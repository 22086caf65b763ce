"""Bytes that stay in their file until they are read."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import BinaryIO

_lock = threading.Lock()
_mappings: weakref.WeakValueDictionary[tuple[str, tuple[int, ...]], FileMapping] = weakref.WeakValueDictionary()


class FileMapping:
    """One file mapped read-only; shared by everything that points into it, unmapped when the last of them goes.

    The bytes stay readable even if the file is replaced or deleted meanwhile.

    Attributes:
        path: Where the file was when it was mapped.
        size: Its length in bytes.
        view: Its bytes.
    """

    __slots__ = ("__weakref__", "_identity", "path", "size", "view")

    def __init__(self, path: str, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        self._identity = _identity(status)
        self.path = path
        self.size = status.st_size
        self.view = _map(file, self.size)

    def reopen(self) -> BinaryIO | None:
        """The file itself, for copying inside the kernel; None if another file has taken its place, or none."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115  # the caller closes it
        except OSError:
            return None
        if _identity(os.fstat(file.fileno())) == self._identity:
            return file
        file.close()
        return None


def map_file(path: str) -> FileMapping:
    """Map a file read-only, or return the mapping that is already there for the same file on disk.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    try:
        return _shared_mapping(path)
    except OSError as error:
        # A model may have thousands of data files, and before Python 3.13 a mapping holds on to a descriptor.
        if error.errno != errno.EMFILE or not _allow_more_files():
            raise
    return _shared_mapping(path)


def _shared_mapping(path: str) -> FileMapping:
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for whoever writes to it
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    with open(path, "rb") as file:
        # What is on disk belongs to the key: a file replaced under its name is another file.
        key = (os.path.realpath(path), _identity(os.fstat(file.fileno())))
        with _lock:
            mapping = _mappings.get(key)
            if mapping is None:
                mapping = _mappings[key] = FileMapping(os.path.abspath(path), file)
            return mapping


@dataclass(frozen=True, slots=True)
class FileRegion:
    """A run of bytes of a mapped file."""

    mapping: FileMapping
    offset: int
    length: int

    def view(self) -> memoryview:
        """The bytes, without copying them."""
        return self.mapping.view[self.offset : self.offset + self.length]

    def part(self, start: int, end: int) -> FileRegion:
        """The bytes from `start` to `end`, counted from the beginning of this region."""
        return FileRegion(self.mapping, self.offset + start, end - start)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _map(file: BinaryIO, size: int) -> memoryview:
    if size == 0:
        return memoryview(b"")  # an empty file cannot be mapped
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False))
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _allow_more_files() -> bool:
    try:
        import resource
    except ImportError:  # not on Windows
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
