"""How much memory of an NVIDIA device is in use, asked of the driver through ctypes: no package is needed.

The driver library names the device that CUDA counts as the first (`CUDA_VISIBLE_DEVICES` moves it), NVML tells what is
in use on it: by this process where the system lets processes be told apart, else by all together.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

_UUID_BYTES = 16
_NAME_BYTES = 96
_MOST_PROCESSES = 256
_NOT_AVAILABLE = (1 << 64) - 1


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_v2_t`, bytes."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def device_bytes() -> int | None:
    """Bytes in use on CUDA's first device, all processes together; None where nothing tells."""
    nvml, handle = _nvml()
    memory = _Memory()
    if nvml is None or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return int(memory.used)


def free_device_bytes() -> int | None:
    """Bytes free on CUDA's first device; None where nothing tells."""
    nvml, handle = _nvml()
    memory = _Memory()
    if nvml is None or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return int(memory.free)


def own_device_bytes() -> int | None:
    """Bytes that this process holds there; None where processes cannot be told apart, as in many containers."""
    nvml, handle = _nvml()
    if nvml is None:
        return None
    count = ctypes.c_uint(_MOST_PROCESSES)
    found = (_Process * _MOST_PROCESSES)()
    ask = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if ask is None or ask(handle, ctypes.byref(count), found):
        return None
    own = [entry.used for entry in found[: count.value] if entry.pid == os.getpid() and entry.used != _NOT_AVAILABLE]
    return int(sum(own)) or None


def device_name() -> str:
    """What the driver calls CUDA's first device; empty where nothing tells."""
    nvml, handle = _nvml()
    text = ctypes.create_string_buffer(_NAME_BYTES)
    if nvml is None or nvml.nvmlDeviceGetName(handle, text, _NAME_BYTES):
        return ""
    return text.value.decode("utf-8", "replace")


def driver_version() -> str:
    """Version of the NVIDIA driver; empty where nothing tells."""
    nvml, _ = _nvml()
    text = ctypes.create_string_buffer(_NAME_BYTES)
    if nvml is None or nvml.nvmlSystemGetDriverVersion(text, _NAME_BYTES):
        return ""
    return text.value.decode("utf-8", "replace")


def reason() -> str:
    """Why nothing is known, empty where something is."""
    return "" if device_bytes() is not None else "neither the driver library nor NVML tells of this device"


@functools.cache
def _nvml() -> tuple[Any, Any]:
    """The library and the handle of CUDA's first device; (None, None) where there is none."""
    library = _load("libnvidia-ml.so.1", "nvml.dll")
    if library is None or not hasattr(library, "nvmlInit_v2") or library.nvmlInit_v2():
        return None, None
    handle = ctypes.c_void_p()
    for name in _names():
        if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == 0:
            return library, handle
    if library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0:
        return library, handle
    return None, None


def _names() -> tuple[str, ...]:
    """What NVML may call CUDA's first device."""
    driver = _load("libcuda.so.1", "nvcuda.dll")
    if driver is None or driver.cuInit(0):
        return ()
    device = ctypes.c_int()
    raw = (ctypes.c_ubyte * _UUID_BYTES)()
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    if driver.cuDeviceGet(ctypes.byref(device), 0) or ask(ctypes.byref(raw), device):
        return ()
    text = bytes(raw).hex()
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return f"GPU-{uuid}", f"MIG-{uuid}"


def _load(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
