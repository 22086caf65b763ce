"""Times of kernels on an NVIDIA device, from CUPTI through ctypes: no package beside CUDA's own is needed.

The runtime's profiler tells when the host called which node, CUPTI when a kernel was launched and how long it ran on
the device; a kernel belongs to the node during whose call it was launched. Collecting slows this process for good, so
it is done in one that ends afterwards. The layouts below are those of CUDA 12 and 13 (`cupti_activity.h`); only fields
that kept their place since CUDA 11 are read.
"""

from __future__ import annotations

import bisect
import ctypes
import glob
import os
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_KERNEL, _DRIVER, _RUNTIME, _CONCURRENT_KERNEL = 3, 4, 5, 10
_BUFFER_BYTES = 8 << 20
_ALIGNMENT = 8
# CUpti_ActivityKernel: kind at 0, start and end at 16 and 24, correlation at 92, name at 104.
_KERNEL_TIMES, _KERNEL_CORRELATION, _KERNEL_NAME = 16, 92, 104
# CUpti_ActivityAPI: kind at 0, start and end at 8 and 16, correlation at 32.
_CALL_TIMES, _CALL_CORRELATION = 8, 32


@dataclass(slots=True)
class Kernel:
    """One kernel that ran: its name, when the host launched it (ns since the epoch), and how long it ran (ns)."""

    name: str
    launched: int
    nanoseconds: int


class Collector:
    """Collects kernels from `start` to `stop`."""

    def __init__(self) -> None:
        self._library = _library()
        self._buffers: list[Any] = []
        self._kernels: list[tuple[int, int, bytes]] = []
        self._calls: dict[int, int] = {}
        self._shift = 0

    def start(self) -> bool:
        """Begin; False where CUPTI is missing or does not allow it, and then nothing is collected."""
        library = self._library
        if library is None:
            return False
        stamp = ctypes.c_uint64()
        if library.cuptiGetTimestamp(ctypes.byref(stamp)):
            return False
        self._shift = time.time_ns() - stamp.value
        # The callbacks must live as long as the library may call them: until the process ends.
        self._requested, self._completed = _REQUESTED(self._request), _COMPLETED(self._complete)
        if library.cuptiActivityRegisterCallbacks(self._requested, self._completed):
            return False
        kinds = (_CONCURRENT_KERNEL, _RUNTIME, _DRIVER)
        return not any(library.cuptiActivityEnable(kind) for kind in kinds)

    def stop(self) -> list[Kernel]:
        """End; every kernel since, as launched."""
        if self._library is None:
            return []
        self._library.cuptiActivityFlushAll(1)
        for kind in (_CONCURRENT_KERNEL, _RUNTIME, _DRIVER):
            self._library.cuptiActivityDisable(kind)
        return [
            Kernel(_plain(name), self._calls[correlation] + self._shift, nanoseconds)
            for correlation, nanoseconds, name in self._kernels
            if correlation in self._calls
        ]

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGNMENT)
        self._buffers.append(memory)
        address = ctypes.addressof(memory)
        buffer[0] = address + -address % _ALIGNMENT
        size[0] = _BUFFER_BYTES
        most[0] = 0

    def _complete(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p()
        next_record = self._library.cuptiActivityGetNextRecord
        while next_record(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
            at = record.value or 0
            kind = _word(at)
            if kind in (_KERNEL, _CONCURRENT_KERNEL):
                begin, end = struct.unpack("<QQ", ctypes.string_at(at + _KERNEL_TIMES, 16))
                name = struct.unpack("<Q", ctypes.string_at(at + _KERNEL_NAME, 8))[0]
                text = ctypes.string_at(name) if name else b"?"
                self._kernels.append((_word(at + _KERNEL_CORRELATION), end - begin, text))
            elif kind in (_DRIVER, _RUNTIME):
                # A launch through the runtime shows as a call of both interfaces; either lies within the node's call.
                begin = struct.unpack("<Q", ctypes.string_at(at + _CALL_TIMES, 8))[0]
                self._calls[_word(at + _CALL_CORRELATION)] = begin


_REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


def owners(kernels: Sequence[Kernel], calls: Iterable[tuple[float, float, str]], begin: int) -> list[str]:
    """The node that launched each kernel, empty where none was being called.

    Args:
        kernels: What was collected.
        calls: (start, end, node) of every call of a node, microseconds since `begin`.
        begin: When the runtime's profiler began, ns since the epoch.
    """
    ordered = sorted(calls)
    starts = [start for start, _, _ in ordered]
    found = []
    for kernel in kernels:
        at = (kernel.launched - begin) / 1e3
        place = bisect.bisect_right(starts, at) - 1
        # Calls of nodes with bodies enclose others: the innermost is the last that has begun and not ended.
        while place >= 0 and ordered[place][1] + 1 < at and at - starts[place] < 1e6:
            place -= 1
        inside = place >= 0 and at <= ordered[place][1] + 1
        found.append(ordered[place][2] if inside else "")
    return found


def _plain(name: bytes) -> str:
    """A kernel's name without the arguments of templates, demangled as far as a reader needs."""
    text = name.decode("utf-8", "replace")
    parts = []
    if text.startswith("_Z"):
        rest = text[2:].lstrip("N")
        while rest[:1].isdigit():
            digits = len(rest) - len(rest.lstrip("0123456789"))
            length = int(rest[:digits])
            parts.append(rest[digits : digits + length])
            rest = rest[digits + length :]
    return parts[-1] if parts else text


def _word(address: int) -> int:
    return int(struct.unpack("<I", ctypes.string_at(address, 4))[0])


def _library() -> Any:
    for path in _places():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _places() -> list[str]:
    """Where CUPTI may lie: in NVIDIA's wheels, where the system finds it, in CUDA's folder."""
    found = []
    for entry in sys.path:
        if entry and os.path.isdir(os.path.join(entry, "nvidia")):
            found += sorted(glob.glob(os.path.join(entry, "nvidia", "*", "lib", "libcupti.so.*")), reverse=True)
    found += ["libcupti.so.13", "libcupti.so.12"]
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return found + sorted(glob.glob(os.path.join(home, "extras", "CUPTI", "lib64", "libcupti.so.*")), reverse=True)
