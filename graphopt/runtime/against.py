"""Another runtime through files: a command that reads `inputs.npz`, runs a model and writes `outputs.npz`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.errors import UsageError
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.values import Data

PLACEHOLDERS = ("{model}", "{inputs}", "{outputs}")
_SHELL = set("|&;<>()$`")
_TAIL = 600


class OtherRuntimeError(Exception):
    """The command did not give outputs; the sentence says what it did instead."""


@dataclass(frozen=True, slots=True)
class OtherRuntime:
    """A command with places for the model, the inputs and the outputs.

    Attributes:
        command: As the user typed it.
        timeout: Seconds that one run may take.
    """

    command: str
    timeout: float

    def __post_init__(self) -> None:
        """Refuse a command that cannot work.

        Raises:
            UsageError: A place is missing, or quotes do not pair up.
        """
        for place in PLACEHOLDERS:
            if place not in self.command:
                raise UsageError(
                    f"--against wants a command with {', '.join(PLACEHOLDERS)} in it, and '{self.command}' has no "
                    f"{place}; as in --against 'python my_runtime.py {' '.join(PLACEHOLDERS)}'"
                )
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise UsageError(f"--against cannot be read: {error}; check its quotes") from None

    @property
    def needs_shell(self) -> bool:
        """True for a command with pipes, redirections, variables or several parts."""
        words = shlex.shlex(self.command, posix=False, punctuation_chars="|&;<>()")
        words.whitespace_split = True
        return any(set(word) & _SHELL for word in words if word[:1] not in "'\"")

    def run(self, model: str, inputs: Mapping[str, Data], names: Sequence[str]) -> dict[str, Data]:
        """Run the command once.

        Args:
            model: The model file.
            inputs: Input -> value.
            names: The outputs wanted.

        Raises:
            OtherRuntimeError: The command fails, takes too long, or its file lacks something.
        """
        with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
            given, wanted = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
            _write(given, {name: _plain(name, value) for name, value in inputs.items()})
            self._call(model, str(given), str(wanted))
            return _read(wanted, names)

    def _call(self, model: str, given: str, wanted: str) -> None:
        fill = dict(zip(PLACEHOLDERS, (model, given, wanted), strict=True))
        command: str | list[str]
        if self.needs_shell:
            command = _filled(self.command, {place: shlex.quote(value) for place, value in fill.items()})
        else:
            command = [_filled(word, fill) for word in shlex.split(self.command)]
        try:
            process = subprocess.Popen(
                command,
                shell=self.needs_shell,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts goes with it
            )
        except OSError as error:
            raise OtherRuntimeError(f"the command cannot be started: {error}; check --against") from error
        try:
            said, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            raise OtherRuntimeError(
                f"the command gave no answer within {self.timeout:g} s; allow more with --timeout"
            ) from None
        except BaseException:
            _end(process)
            raise
        if process.returncode:
            raise OtherRuntimeError(f"the command failed with {_exit(process.returncode)}{_tail(said)}")
        if not Path(wanted).is_file():
            raise OtherRuntimeError(f"the command ended well and wrote no file at {{outputs}}{_tail(said)}")


@contextmanager
def model_file(source: ModelSource) -> Iterator[str]:
    """The path of a model; bytes are written to a temporary file."""
    if source.path is not None:
        yield source.path
        return
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(source.data or b"")
        yield str(path)


def _filled(text: str, fill: Mapping[str, str]) -> str:
    for place, value in fill.items():
        text = text.replace(place, value)
    return text


def _plain(name: str, value: Data) -> np.ndarray[Any, Any]:
    """An array as a `.npz` can hold it without pickles.

    Raises:
        OtherRuntimeError: There is no such form.
    """
    if not isinstance(value, np.ndarray):
        raise OtherRuntimeError(f"input {name!r} is no tensor, and a .npz holds tensors only")
    if value.dtype.kind in "OSU":
        texts = [
            item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item) for item in value.reshape(-1)
        ]
        return np.array(texts, dtype=np.str_).reshape(value.shape)
    if value.dtype.kind not in "biufc" or value.dtype.isbuiltin != 1:
        raise OtherRuntimeError(f"input {name!r} is {value.dtype.name}, which a .npz cannot hold")
    return value


def _write(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a `.npz`; `numpy.savez` takes names as keywords, and an input may be called `file`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def _read(path: Path, names: Sequence[str]) -> dict[str, Data]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:
        raise OtherRuntimeError(
            f"what the command wrote at {{outputs}} cannot be read: {error}; write it with numpy.savez"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise OtherRuntimeError(
            f"the command's file lacks the output{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}; it "
            f"has {', '.join(map(repr, found)) or 'nothing'}"
        )
    return {name: _as_object(found[name]) for name in names}


def _as_object(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(object) if array.dtype.kind in "SU" else array


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def _exit(code: int) -> str:
    if code < 0:
        known = signal.Signals._value2member_map_
        return signal.Signals(-code).name if -code in known else f"signal {-code}"
    return f"exit code {code}"


def _tail(said: bytes) -> str:
    text = " ".join(said.decode("utf-8", "replace").split())
    return f"; it last said: {text[-_TAIL:]}" if text else ""
