"""What is installed, what really starts, and the command that mends what does not."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from graphopt.errors import ExecutionError
from graphopt.records import DoctorReport, Finding
from graphopt.runtime.remote import starts_here
from graphopt.runtime.session import CPU, CUDA, preload, runtime
from graphopt.runtime.worker import Worker

_RUNTIME_WHEELS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-silicon",
    "onnxruntime-training",
    "ort-nightly",
    "ort-nightly-gpu",
)
_PACKAGES = ("graphopt", "onnx", "networkx", "numpy", "ml_dtypes", "protobuf", "typer", "rich")
_CUDA_WHEEL = 'pip install --upgrade "onnxruntime-gpu[cuda,cudnn]"'
_START_SECONDS = 120.0
_LEAST_FREE_BYTES = 1 << 30


def doctor() -> DoctorReport:
    """Look at the machine; nothing is changed and nothing raises."""
    findings: list[Finding] = []
    versions = {"python": platform.python_version()}
    versions |= {name: version for name in _PACKAGES if (version := _version(name))}
    wheels = [name for name in _RUNTIME_WHEELS if _version(name)]
    versions |= {name: _version(name) for name in wheels}
    findings.append(_wheels(wheels))
    devices = nvidia_devices()
    listed: tuple[str, ...] = ()
    running: list[str] = []
    with Worker() as worker:
        try:
            listed = tuple(worker.call(_listed_here, timeout=_START_SECONDS))
            findings.append(Finding("runtime", True, f"onnxruntime {worker.call(_runtime_version_here)} starts"))
        except ExecutionError as error:
            findings.append(
                Finding(
                    "runtime",
                    False,
                    f"onnxruntime does not start: {error}",
                    "pip install --force-reinstall onnxruntime",
                )
            )
        for provider in listed:
            finding = _provider(worker, provider, devices, wheels)
            if finding.name.endswith(" runs"):
                running.append(provider)
            findings.append(finding)
    if devices and CUDA not in listed and listed:
        findings.append(_no_gpu_wheel(devices, wheels))
    findings.append(_folder("temporary folder", Path(tempfile.gettempdir()), "set TMPDIR to a folder with room"))
    findings.append(_folder("working folder", Path.cwd(), "cd to a folder that you may write"))
    return DoctorReport(versions, listed, tuple(running), devices, tuple(findings))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _folder_of(wheel: str) -> str:
    """Where a wheel put its files; wheels in one folder overwrite each other."""
    return str(importlib.metadata.distribution(wheel).locate_file("onnxruntime"))


def _wheels(wheels: list[str], folder_of: Callable[[str], str] = _folder_of) -> Finding:
    if len(wheels) > 1 and len({folder_of(wheel) for wheel in wheels}) == len(wheels):
        first = ", ".join(f"{wheel} {_version(wheel)} in {folder_of(wheel)}" for wheel in wheels)
        return Finding("wheels", True, f"{first}; the one first on Python's path is used")
    if len(wheels) > 1:
        keep = next((name for name in wheels if name != "onnxruntime"), wheels[0])
        return Finding(
            "wheels",
            False,
            f"{' and '.join(wheels)} are installed over each other in one folder; which one is used is chance",
            f"pip uninstall -y {' '.join(wheels)} && pip install {keep}",
        )
    if not wheels:
        return Finding("wheels", False, "no onnxruntime wheel is installed", "pip install onnxruntime")
    return Finding("wheels", True, f"one runtime wheel, {wheels[0]} {_version(wheels[0])}")


def _listed_here() -> list[str]:
    return list(runtime().get_available_providers())


def _runtime_version_here() -> str:
    return str(runtime().__version__)


def _library_error_here(provider: str) -> str:
    """Why a provider's library does not load, in the loader's words; they name the missing library."""
    short = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}.get(provider)
    if short is None:
        return ""
    if provider == CUDA:
        preload()
    folder = Path(str(runtime().__file__)).parent / "capi"
    for path in sorted(folder.glob(f"*onnxruntime_providers_{short}*")):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            return str(error)
    return ""


def _provider(worker: Worker, provider: str, devices: tuple[str, ...], wheels: list[str]) -> Finding:
    why = ""
    try:
        if worker.call(starts_here, provider, timeout=_START_SECONDS):
            return Finding(f"{provider} runs", True, "a session asked for it gets it")
        why = worker.call(_library_error_here, provider, timeout=_START_SECONDS)
    except ExecutionError as error:
        why = str(error)
    missing = f": {why}" if why and "undefined symbol" not in why else ""
    if provider == CUDA and devices:
        return Finding(
            provider, False, f"the GPU wheel is installed, its CUDA libraries are not found{missing}", _CUDA_WHEEL
        )
    if provider == CUDA:
        return Finding(
            provider, True, f"listed, but does not start and there is no NVIDIA GPU here{missing}; the CPU is used"
        )
    return Finding(provider, True, f"listed, but does not start{missing}; not needed")


def _no_gpu_wheel(devices: tuple[str, ...], wheels: list[str]) -> Finding:
    drop = f"pip uninstall -y {' '.join(wheels)} && " if wheels else ""
    return Finding(CUDA, False, f"{devices[0]} is here and the CPU wheel is installed", drop + _CUDA_WHEEL)


def nvidia_devices() -> tuple[str, ...]:
    """Names of NVIDIA GPUs, from the driver's own program; empty without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode:
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def _folder(name: str, path: Path, remedy: str) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"graphopt")
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(name, False, f"{path} cannot be written: {error.strerror or error}", remedy)
    if free < _LEAST_FREE_BYTES:
        return Finding(name, False, f"{path} has {free / 1e9:.1f} GB free", remedy)
    writable = "can be written" if os.access(path, os.W_OK) else "is reported read-only"
    return Finding(name, True, f"{path} {writable}, {free / 1e9:.0f} GB free")


__all__ = ["CPU", "doctor", "nvidia_devices"]
