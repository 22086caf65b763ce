"""Sessions that live in the worker: the functions that run there, and the handle that is held here."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, Protocol

from graphopt.errors import ExecutionError
from graphopt.runtime.session import (
    Session,
    SessionInfo,
    SessionSettings,
    full_provider_name,
    resolve_provider,
    runtime,
    starts,
)
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.values import Data
from graphopt.runtime.worker import Worker, shared_worker

# --- in the worker


class Runner(Protocol):
    """What is kept here: a session, or what runs like one."""

    info: SessionInfo

    def run(self, feeds: Mapping[str, Data]) -> dict[str, Data]:
        """Run once."""


_sessions: dict[int, Runner] = {}
_numbers = itertools.count(1)


def open_here(model: str | bytes, settings: SessionSettings) -> tuple[int, SessionInfo]:
    """Make a session in this process and keep it under a number."""
    return keep_here(Session(model, settings))


def keep_here(session: Runner) -> tuple[int, SessionInfo]:
    """Keep a session under a number."""
    number = next(_numbers)
    _sessions[number] = session
    return number, session.info


def run_here(number: int, feeds: Mapping[str, Data]) -> dict[str, Data]:
    """Run a kept session."""
    return _sessions[number].run(feeds)


def close_here(number: int) -> None:
    """Let a kept session go."""
    _sessions.pop(number, None)


def provider_here(name: str) -> str:
    """The provider that will run in this process."""
    return resolve_provider(name)


def starts_here(name: str) -> bool:
    """Whether a provider really starts in this process."""
    return starts(full_provider_name(name))


def version_here() -> str:
    """The version of the runtime in this process."""
    return str(runtime().__version__)


def evaluate_here(model: str | bytes, feeds: Mapping[str, Data], settings: SessionSettings) -> dict[str, Data]:
    """Load, run once, forget."""
    return Session(model, settings).run(feeds)


# --- outside


class RemoteSession:
    """A session in the worker; opened on first use, and opened again after the worker died."""

    def __init__(
        self,
        source: ModelSource,
        settings: SessionSettings,
        *,
        worker: Worker | None = None,
        timeout: float | None = None,
    ) -> None:
        self.source = source
        self.settings = settings
        self._worker = worker or shared_worker()
        self._timeout = timeout
        self._number = 0
        self._generation = -1
        self._info: SessionInfo | None = None

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def info(self) -> SessionInfo:
        """What the session says about itself; opens it."""
        self._open()
        assert self._info is not None
        return self._info

    def run(self, feeds: Mapping[str, Data], *, timeout: float | None = None) -> dict[str, Data]:
        """Run once; see `Session.run` and `Worker.call` for what is raised."""
        self._open()
        result: dict[str, Data] = self._call(run_here, self._number, dict(feeds), timeout=timeout)
        return result

    def close(self) -> None:
        """Free the session, if the worker still holds it."""
        if self._number and self._generation == self._worker.generation and self._worker.pid is not None:
            with contextlib.suppress(ExecutionError):  # a worker that dies now has freed the session all the same
                self._call(close_here, self._number)
        self._number = 0

    def _open(self) -> None:
        if self._number and self._generation == self._worker.generation and self._worker.pid is not None:
            return
        if self._worker.pid is None:
            self._worker.call(version_here)  # a start of the process is no part of the time that a load may take
        self._number, self._info = self._make()
        self._generation = self._worker.generation

    def _make(self) -> tuple[int, SessionInfo]:
        made: tuple[int, SessionInfo] = self._call(open_here, self.source.handle, self.settings)
        return made

    def _call(self, function: Any, *arguments: Any, timeout: float | None = None) -> Any:
        return self._worker.call(function, *arguments, timeout=timeout or self._timeout)
