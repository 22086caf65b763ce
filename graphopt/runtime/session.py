"""ONNX Runtime sessions: settings, providers, and the errors of the runtime in graphopt's words.

`onnxruntime` is imported on first use. Nothing here starts a process; `remote` runs the same sessions in the worker.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt.errors import (
    ExecutionError,
    FeedRefusedError,
    KernelMissingError,
    ModelRefusedError,
    ProviderMissingError,
    RunFailedError,
    WorkerMemoryError,
)
from graphopt.runtime.values import Data, element_name, from_ort, from_ort_value, is_exotic, to_ort, to_ort_value

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
ALONE = "session.disable_cpu_ep_fallback"
"""The entry that makes a session fail where a node would go to the CPU instead of the provider."""
SHORT_NAMES = {
    "cpu": CPU,
    "cuda": CUDA,
    "gpu": CUDA,
    "tensorrt": "TensorrtExecutionProvider",
    "trt": "TensorrtExecutionProvider",
}
_QUIET = 4  # only fatal messages: failures come back as exceptions, the rest is noise on the screen
_ALIGNMENT = 64
"""Where the runtime's tensors begin in memory: at multiples of that many bytes."""
_MOST_ALIGNED = 1 << 24
"""Bytes of the largest tensor that is copied for that."""

# ModelProto{ir_version: 8, opset_import{version: 13}, graph{Identity: x -> y, float[1]}}, written out so that asking
# for a provider needs neither a file nor the onnx package.
PROBE = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a00100d"
)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session is made; equal settings make equal sessions.

    Attributes:
        provider: Full ONNX Runtime name.
        optimize: "off", "basic", "extended" or "all".
        prepack: Whether kernels may rearrange constant weights (changes bits).
        threads: Threads within an operator, 0 for the runtime's default.
        arena: Whether the CPU memory arena is used.
        tf32: Whether CUDA may round float32 to TF32 (the runtime's default, a thousand times coarser).
        deterministic: Whether the runtime is asked for kernels that repeat themselves.
        seed: Seed of random operators that have none; None leaves the runtime's own.
        custom_ops: Shared libraries of custom operators.
        entries: Session configuration entries.
        provider_options: Options of the provider.
        attributes: Attributes of `SessionOptions`, set after all the rest; enumerations by the name of the member.
        optimized_path: Where the runtime writes the graph that it made at load, if anywhere.
        profile_prefix: How the file begins into which the runtime's profiler writes; None leaves it off.
    """

    provider: str = CPU
    optimize: str = "off"
    prepack: bool = True
    threads: int = 1
    arena: bool = True
    tf32: bool = False
    deterministic: bool = False
    seed: int | None = None
    custom_ops: tuple[str, ...] = ()
    entries: tuple[tuple[str, str], ...] = ()
    provider_options: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    optimized_path: str | None = None
    profile_prefix: str | None = None

    def __post_init__(self) -> None:
        """Say where libraries are: another process opens them, and its loader looks elsewhere for a bare name."""
        found = tuple(os.path.abspath(file) if os.path.isfile(file) else str(file) for file in self.custom_ops)
        object.__setattr__(self, "custom_ops", found)

    def but(self, **changes: Any) -> SessionSettings:
        """The same settings with some changed."""
        return replace(self, **changes)


# The settings under which numeric classes are judged: bits are a property of graph and kernel path.
JUDGE = SessionSettings(optimize="off", prepack=False, threads=1, arena=False)
# What users run.
AS_USERS = SessionSettings(optimize="all", prepack=True, threads=0, arena=True, tf32=True)


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a model as the runtime tells it.

    Attributes:
        name: External name.
        type: The runtime's type text, such as `tensor(float)`.
        shape: Numbers, dim names, and None for unknown dims. The runtime says `()` for a scalar and for an unknown
            rank alike.
        overridable: An initializer that may be fed.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] = ()
    overridable: bool = False


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a session says about itself.

    Attributes:
        inputs: Required inputs in order, then overridable initializers.
        outputs: Outputs in order.
        providers: The providers that really run, most preferred first.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    providers: tuple[str, ...]

    @property
    def provider(self) -> str:
        """The provider that really runs."""
        return self.providers[0] if self.providers else CPU


@functools.cache
def runtime() -> Any:
    """The `onnxruntime` module, imported now if it was not, and made quiet.

    Raises:
        ProviderMissingError: It is not installed or cannot be imported.
    """
    try:
        module = importlib.import_module("onnxruntime")
        module.set_default_logger_severity(_QUIET)
    except (ImportError, AttributeError, OSError) as error:
        raise ProviderMissingError(
            f"onnxruntime cannot be used ({error}); install it with: pip install onnxruntime  (GPU: onnxruntime-gpu)"
        ) from error
    return module


@functools.cache
def preload() -> str | None:
    """Bring CUDA's libraries in from NVIDIA's or PyTorch's wheels; the message of a failure, else None."""
    load = getattr(runtime(), "preload_dlls", None)
    if load is None:
        return "this onnxruntime has no preload_dlls()"
    try:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            load()
    except Exception as error:
        return str(error)
    return None


def full_provider_name(name: str) -> str:
    """The runtime's name for `cpu`, `cuda`, `auto` or any name in any case.

    Raises:
        ProviderMissingError: The runtime knows no such provider.
    """
    low = name.lower()
    if low == "auto":
        return CUDA
    if low in SHORT_NAMES:
        return SHORT_NAMES[low]
    known = list(runtime().get_all_providers())
    for candidate in known:
        if low in (candidate.lower(), candidate.lower().removesuffix("executionprovider")):
            return str(candidate)
    raise ProviderMissingError(
        f"no provider is called {name!r}; use auto, cpu, cuda or one of {', '.join(sorted(known))}"
    )


@functools.cache
def starts(provider: str) -> bool:
    """True where a session asked for this provider really gets it. `get_available_providers()` is no evidence."""
    if provider == CPU:
        return True
    if provider not in runtime().get_available_providers():
        return False
    try:
        session = Session(PROBE, SessionSettings(provider=provider))
    except ExecutionError:
        return False
    return session.info.provider == provider


def resolve_provider(name: str) -> str:
    """The provider that will run: `auto` is CUDA where that really starts, else the CPU.

    Raises:
        ProviderMissingError: A provider asked for by name does not start here.
    """
    provider = full_provider_name(name)
    if starts(provider):
        return provider
    if name.lower() == "auto":
        return CPU
    raise ProviderMissingError(
        f"{provider} does not start on this machine; `graphopt doctor` says why, or use --provider cpu"
    )


class Session:
    """One `InferenceSession` in this process."""

    def __init__(self, model: str | bytes, settings: SessionSettings) -> None:
        """Load a model.

        Raises:
            KernelMissingError: The provider has no kernel for a node.
            ModelRefusedError: The runtime will not load the model.
            WorkerMemoryError: There is not enough memory.
        """
        ort = runtime()
        if settings.provider == CUDA:
            preload()
        if settings.seed is not None:
            ort.set_seed(settings.seed)
        providers, options = _providers(settings)
        session_options = _options(settings, ort)
        try:
            self.raw = ort.InferenceSession(
                model,
                sess_options=session_options,
                providers=providers,
                provider_options=options,
                enable_fallback=0,  # it would drop the options that a provider refuses, and say so on the screen only
            )
        except Exception as error:
            raise problem(error, loading=True) from error
        self.info = _info(self.raw)
        self.names = frozenset(port.name for port in self.info.inputs)
        self._types = {port.name: port.type for port in self.info.inputs}
        self.exotic = [port for port in self.info.outputs if is_exotic(port.type)]
        self._plain = [port.name for port in self.info.outputs if not is_exotic(port.type)]

    def run(self, feeds: Mapping[str, Data]) -> dict[str, Data]:
        """Run once; outputs by name.

        Raises:
            FeedRefusedError: An input does not fit its declaration.
            RunFailedError: The runtime raised.
            ValueNotSupportedError: A value cannot pass Python's interface of the runtime.
            WorkerMemoryError: There is not enough memory.
        """
        ort = runtime()
        ready = {name: _aligned(to_ort(value, self._types.get(name, ""), ort)) for name, value in feeds.items()}
        outputs: dict[str, Data] = {}
        try:
            if self._plain or not self.exotic:
                for name, value in zip(self._plain, self.raw.run(self._plain, ready), strict=True):
                    outputs[name] = from_ort(value)
            if self.exotic:
                values = {name: to_ort_value(value, ort) for name, value in ready.items()}
                results = self.raw.run_with_ort_values([port.name for port in self.exotic], values)
                for port, result in zip(self.exotic, results, strict=True):
                    outputs[port.name] = from_ort_value(result, element_name(port.type) or "")
        except ExecutionError:
            raise
        except Exception as error:
            raise problem(error, loading=False) from error
        return {port.name: outputs[port.name] for port in self.info.outputs}


def _aligned(value: Any) -> Any:
    """Numbers that begin where the runtime's own tensors begin: some kernels add in another order elsewhere.

    Constants that are folded are fed, and would give other bits than the initializers they are.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not 0 < value.nbytes <= _MOST_ALIGNED:
        return value
    if value.__array_interface__["data"][0] % _ALIGNMENT == 0:
        return value
    room = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    copy = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


def _providers(settings: SessionSettings) -> tuple[list[str], list[dict[str, str]]]:
    if settings.provider == CPU:
        return [CPU], [dict(settings.provider_options)]
    options = dict(settings.provider_options)
    if settings.provider == CUDA:
        options.setdefault("use_tf32", "1" if settings.tf32 else "0")
    if (ALONE, "1") in settings.entries:  # the runtime refuses the entry where the CPU is asked for by name
        return [settings.provider], [options]
    return [settings.provider, CPU], [options, {}]


def _options(settings: SessionSettings, ort: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        "off": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[settings.optimize]
    if settings.threads:
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = settings.arena
    options.use_deterministic_compute = settings.deterministic
    if not settings.prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    for key, value in settings.entries:
        options.add_session_config_entry(key, value)
    for name, value in settings.attributes:
        setattr(options, name, _member(ort, name, value))
    for library in settings.custom_ops:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:
            raise ModelRefusedError(
                f"custom operator library {library} cannot be loaded: {_plain_text(error)}"
            ) from error
    if settings.optimized_path is not None:
        options.optimized_model_filepath = settings.optimized_path
    if settings.profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = settings.profile_prefix
    return options


_ENUMERATIONS = {"execution_mode": "ExecutionMode", "graph_optimization_level": "GraphOptimizationLevel"}


def _member(ort: Any, name: str, value: Any) -> Any:
    """The value of an attribute of the session options, which may be a member of an enumeration.

    Raises:
        ModelRefusedError: The enumeration has no such member.
    """
    enumeration = _ENUMERATIONS.get(name)
    if enumeration is None:
        return value
    member = getattr(getattr(ort, enumeration), str(value), None)
    if member is None:
        raise ModelRefusedError(f"{name} has no value {value!r}; see onnxruntime.{enumeration}")
    return member


def _info(raw: Any) -> SessionInfo:
    inputs = [Port(arg.name, arg.type, tuple(arg.shape or ())) for arg in raw.get_inputs()]
    extra = [Port(arg.name, arg.type, tuple(arg.shape or ()), True) for arg in raw.get_overridable_initializers()]
    outputs = [Port(arg.name, arg.type, tuple(arg.shape or ())) for arg in raw.get_outputs()]
    return SessionInfo((*inputs, *extra), tuple(outputs), tuple(raw.get_providers()))


# A place in the runtime's own source, the signature of the function there, and the condition that did not hold.
_OWN_SOURCE = re.compile(
    r"\S*[/\\]onnxruntime[/\\]\S+\.(?:h|hpp|cc|cpp|cuh?):\d+ "
    r"(?:[\w:<>,&* ~]*?[\w>~]+(?:\(\))?\([^()]*\)(?: const)?(?: \[with [^\]]*\])? |[\w~]+(?:::[\w~<>]+)+ )?"
    r"(?:(?:[^.]|\.(?! )){1,300}? was false\. (?=\S))?"
    r"|(?: ;)? file=\S+ ; line=\d+(?= ;|$)"
)


def _plain_text(error: BaseException) -> str:
    text = _OWN_SOURCE.sub("", " ".join(str(error).split()))
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text[:1500]


_MEMORY_WORDS = ("bad_alloc", "out of memory", "failed to allocate memory", "bfcarena", "cudaerrormemoryallocation")


def problem(error: BaseException, *, loading: bool) -> ExecutionError:
    """The runtime's exception in graphopt's words; `loading` tells a refused model from a failed run."""
    kind = type(error).__name__
    text = _plain_text(error)
    low = text.lower()
    if isinstance(error, MemoryError) or any(word in low for word in _MEMORY_WORDS):
        return WorkerMemoryError(f"out of memory: {text}")
    if kind == "NotImplemented" and (loading or "implementation" in low):
        return KernelMissingError(text)
    if loading:
        return ModelRefusedError(text)
    if kind == "InvalidArgument" and (
        "for the following indices" in low or "invalid rank" in low or "unexpected input data" in low
    ):
        return FeedRefusedError(text)
    if kind in ("ValueError", "TypeError") or "invalid feed" in low or "required inputs" in low:
        return FeedRefusedError(text)
    return RunFailedError(text)
