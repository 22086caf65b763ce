"""Bytes that stay in their file until they are read."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from dataclasses import dataclass

_lock = threading.Lock()
_mappings: weakref.WeakValueDictionary[tuple[str, int, int], FileMapping] = weakref.WeakValueDictionary()


class FileMapping:
    """One file mapped read-only; shared by everything that points into it, unmapped when the last of them goes."""

    __slots__ = ("__weakref__", "path", "size", "view")

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            self.view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b"")
        self.path = path


def map_file(path: str) -> FileMapping:
    """Map a file read-only, or return the mapping that is already there for the same file on disk.

    Raises:
        OSError: the file cannot be opened.
    """
    status = os.stat(path)
    # The inode and the time of change are part of the key: a file replaced under the same name is another file.
    key = (os.path.realpath(path), status.st_ino, status.st_mtime_ns)
    with _lock:
        mapping = _mappings.get(key)
        if mapping is None:
            mapping = FileMapping(path)
            _mappings[key] = mapping
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
