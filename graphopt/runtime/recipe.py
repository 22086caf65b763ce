"""Recipes as files: finding, reading, writing, telling whether one fits a model and a device, and as plain code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import RecipeError
from graphopt.onnxio.placing import write_document
from graphopt.recipes import DeviceStamp, ModelStamp, Recipe, RunSettings
from graphopt.runtime.contents import external_files
from graphopt.runtime.device_memory import device_name, driver_version
from graphopt.runtime.session import CUDA, SessionSettings, runtime

SUFFIX = ".recipe.json"
_CHUNK = 1 << 20
# External data may be tens of gigabytes: its size and what lies at its beginning, middle and end stand for it.
_SAMPLE = 1 << 16


def recipe_path(model: str | os.PathLike[str]) -> Path:
    """Where the recipe of a model lies: `model.recipe.json` beside `model.onnx`."""
    return Path(model).with_suffix(SUFFIX)


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: There is no such file, or it is no recipe.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise RecipeError(f"cannot read the recipe '{path}': {why}; check the path") from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise RecipeError(f"'{path}' is no recipe: {error}; make one with graphopt tune") from error
    return Recipe.from_json(document)


def write_recipe(recipe: Recipe, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a recipe, whole or not at all.

    Raises:
        OutputError: The file exists and `force` is not set, or it cannot be written.
    """
    write_document(path, recipe.to_json(), replace=force)


# --- which model


def fingerprint(path: str | os.PathLike[str]) -> ModelStamp:
    """What tells a model from every other: its file in full, its external data by size and samples.

    Raises:
        RecipeError: It cannot be read.
    """
    path = Path(path)
    external = {name: _sampled(path.parent / name) for name in external_files(str(path))}
    return ModelStamp(path.name, _hashed(path), external)


def require_model(path: str | os.PathLike[str], stamps: tuple[ModelStamp, ...]) -> ModelStamp:
    """The one of some stamps that a model has.

    Raises:
        RecipeError: It has none of them.
    """
    path = Path(path)
    digest = _hashed(path)
    for stamp in stamps:
        if stamp.sha256 != digest:
            continue
        changed = [name for name, sample in stamp.external.items() if _sampled(path.parent / name) != sample]
        if not changed:
            return stamp
        raise RecipeError(
            f"the external data {', '.join(changed)} of '{path}' is not what it was when the recipe was made; "
            "tune the model anew"
        )
    raise RecipeError(f"the recipe was made for another '{stamps[0].file}' than '{path}'; tune the model anew")


def _hashed(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise RecipeError(f"cannot read '{path}': {error.strerror}; check the path") from error
    return digest.hexdigest()


def _sampled(path: Path) -> str:
    try:
        size = path.stat().st_size
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for start in sorted({0, max(0, size // 2 - _SAMPLE // 2), max(0, size - _SAMPLE)}):
                file.seek(start)
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return f"{size} bytes, samples {digest.hexdigest()}"


# --- which device


def stamp_here(provider: str) -> DeviceStamp:
    """The device that a provider runs on in this process, and the versions of what runs there."""
    gpu = provider == CUDA
    return DeviceStamp(
        device=(device_name() or "an NVIDIA GPU") if gpu else _processor(),
        driver=driver_version() if gpu else "",
        cuda=_cuda_version() if gpu else "",
        runtime=str(runtime().__version__),
        graphopt=_graphopt_version(),
        system=f"{platform.system()} {platform.machine()}",
    )


def stamp_differences(tuned: DeviceStamp, here: DeviceStamp) -> list[str]:
    """What sets two devices apart, a phrase each; graphopt's own version does not matter to a session."""
    names = {"device": "device", "driver": "driver", "cuda": "CUDA", "runtime": "ONNX Runtime", "system": "system"}
    return [
        f"{text} {getattr(here, name) or 'unknown'} instead of {getattr(tuned, name) or 'unknown'}"
        for name, text in names.items()
        if getattr(tuned, name) != getattr(here, name)
    ]


def _processor() -> str:
    name = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    cores = usable_cores()
    return f"{name or platform.processor() or platform.machine()}, {cores} {'core' if cores == 1 else 'cores'}"


def usable_cores() -> int:
    """Logical cores that this process may run on, a quota of the container's counted."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def _cuda_version() -> str:
    try:
        from onnxruntime.capi import build_and_package_info

        return str(getattr(build_and_package_info, "cuda_version", ""))
    except ImportError:
        return ""


def _graphopt_version() -> str:
    try:
        return importlib.metadata.version("graphopt")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is merely on the path
        return ""


# --- applied


def apply_settings(base: SessionSettings, settings: RunSettings) -> SessionSettings:
    """Session settings with those of a recipe in them."""
    entries = {**dict(base.entries), **settings.entries}
    options = {**dict(base.provider_options), **settings.provider_options}
    return base.but(
        provider=settings.provider,
        entries=tuple(entries.items()),
        provider_options=tuple(options.items()),
        attributes=(*base.attributes, *settings.session.items()),
    )


def code(recipe: Recipe, model: str = "") -> str:
    """Plain code for ONNX Runtime that makes the session of a recipe, for programs without graphopt."""
    settings = recipe.settings
    gpu = settings.provider == CUDA
    lines = ["import onnxruntime as ort", ""]
    if gpu:
        lines += ["ort.preload_dlls()  # CUDA and cuDNN from the wheels of NVIDIA or PyTorch, if they are there"]
    lines += ["options = ort.SessionOptions()"]
    lines += [f"options.{name} = {_literal(name, value)}" for name, value in settings.session.items()]
    lines += [f'options.add_session_config_entry("{name}", "{value}")' for name, value in settings.entries.items()]
    provider = f'"{settings.provider}"'
    if settings.provider_options:
        provider = f"({provider}, {_dictionary(settings.provider_options)})"
    providers = [provider, '"CPUExecutionProvider"'] if gpu else [provider]
    lines += [
        f'session = ort.InferenceSession("{model or recipe.model.file}", options, providers=[{", ".join(providers)}])'
    ]
    if settings.provider_options.get("enable_cuda_graph") == "1":
        lines += [
            "# A CUDA graph wants fixed buffers: bind inputs and outputs as OrtValues on the device with",
            "# session.io_binding(), write new inputs with OrtValue.update_inplace(), and call",
            "# session.run_with_iobinding(); for another shape bind anew under another run option gpu_graph_id.",
        ]
    return "\n".join(lines)


_ENUMERATIONS = {"execution_mode": "ort.ExecutionMode", "graph_optimization_level": "ort.GraphOptimizationLevel"}


def _literal(name: str, value: Any) -> str:
    return f"{_ENUMERATIONS[name]}.{value}" if name in _ENUMERATIONS else repr(value)


def _dictionary(options: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "{value}"' for name, value in options.items()) + "}"
