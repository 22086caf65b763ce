"""Bytes from file to file inside the kernel, keeping holes as holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import BinaryIO

from graphopt.tensors import FileMapping, FileRegion

_BLOCK = 1 << 24
_BY_THE_KERNEL = 1 << 16
"""Bytes from which a copy inside the kernel pays."""


class Copier:
    """Appends regions of mapped files to a file; each source is opened once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sources: dict[int, int | None] = {}
        self._open_files = ExitStack()

    def __enter__(self) -> Copier:
        """Nothing is opened before it is needed."""
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close the sources."""
        self._open_files.close()

    def append(self, region: FileRegion) -> None:
        """Copy a region to the file's position, and move on behind it."""
        if region.length < _BY_THE_KERNEL:
            self._file.write(region.view())
            return
        self._file.flush()
        begin, source = self._file.tell(), self._source(region.mapping)
        target = self._file.fileno()
        for at, end in data_runs(source, region):
            while at < end:
                at += _copy(region, source, target, at, end, begin + at - region.offset)
        # What follows the last run is a hole.
        if os.fstat(target).st_size < begin + region.length:
            os.ftruncate(target, begin + region.length)
        self._file.seek(begin + region.length)

    def data_length(self, region: FileRegion) -> int:
        """How many bytes of a region are not in holes."""
        if region.length < _BY_THE_KERNEL:
            return region.length
        return sum(end - at for at, end in data_runs(self._source(region.mapping), region))

    def _source(self, mapping: FileMapping) -> int | None:
        """The descriptor of a mapped file; None if the file is no longer what was mapped."""
        key = id(mapping)
        if key not in self._sources:
            file = mapping.reopen()
            self._sources[key] = None if file is None else self._open_files.enter_context(file).fileno()
        return self._sources[key]


def data_runs(source: int | None, region: FileRegion) -> Iterator[tuple[int, int]]:
    """The parts of a region that are no holes, as offsets in its file; all of it where nobody can tell."""
    at, end = region.offset, region.offset + region.length
    while at < end:
        begin, stop = at, end
        if source is not None and hasattr(os, "SEEK_DATA"):
            try:
                begin = min(os.lseek(source, at, os.SEEK_DATA), end)
                stop = min(os.lseek(source, begin, os.SEEK_HOLE), end)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole follows
                    return
        if begin < stop:
            yield begin, stop
        at = stop


def _copy(region: FileRegion, source: int | None, target: int, at: int, end: int, to: int) -> int:
    """Copy some bytes at offset `at` of the region's file; returns how many."""
    if source is not None and hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(source, target, min(end - at, 1 << 30), at, to)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
                raise
            copied = 0  # the file systems do not get on, or know no such call
        if copied:
            return copied
    block = region.mapping.view[at : min(end, at + _BLOCK)]
    if hasattr(os, "pwrite"):
        return os.pwrite(target, block, to)
    os.lseek(target, to, os.SEEK_SET)
    return os.write(target, block)
