"""A persistent worker process in which models run: a crash, a hang and want of memory there are errors here.

The process is started on the first call, serves one call at a time, is started again after it died, and goes when this
process does. Everything it prints goes to a log that only a crash message quotes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from graphopt.errors import WorkerCrashedError, WorkerMemoryError, WorkerTimeoutError
from graphopt.runtime.channel import read_message, write_message

_POLL_SECONDS = 0.02
# Of the memory that is free when a call starts, what the worker may take before it is ended.
_MEMORY_SHARE = 0.9


class Worker:
    """One worker process, used by any thread; calls wait for each other."""

    def __init__(self, *, memory_limit: int | None = None, timeout: float | None = None) -> None:
        """Nothing is started yet.

        Args:
            memory_limit: Bytes the process may take, files it maps not counted; by default most of what is free.
            timeout: Seconds a call may take where the call does not say.
        """
        self._memory_limit = memory_limit
        self._timeout = timeout
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._owner = os.getpid()
        self.generation = 0  # goes up with every start: whoever holds session numbers sees that they are void

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process, where one runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float | None = None,
        memory_limit: int | None = None,
        **keywords: Any,
    ) -> Any:
        """Run an importable function in the worker.

        Raises:
            WorkerCrashedError: The process died.
            WorkerTimeoutError: It took longer than `timeout` seconds; it was ended.
            WorkerMemoryError: It took more memory than allowed and was ended, or an allocation failed.
            ExecutionError: Whatever the function raised, as one of graphopt's errors.
        """
        with self._lock:
            self._start()
            try:
                return self._exchange((function, arguments, keywords), timeout or self._timeout, memory_limit)
            except (KeyboardInterrupt, SystemExit):
                self._end()  # a message may be half written: nothing more can be said to this process
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        # After a fork the pipes are the parent's, and its messages must not be mixed with ours.
        if self._owner != os.getpid():
            self._process, self._log, self._owner = None, None, os.getpid()
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._log = tempfile.TemporaryFile(prefix="graphopt-worker-")  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "graphopt.runtime.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._replies = queue.SimpleQueue()
        self.generation += 1
        threading.Thread(target=_pump, args=(self._process.stdout, self._replies), daemon=True).start()

    def _exchange(self, message: Any, timeout: float | None, memory_limit: int | None) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        ceiling = memory_limit or self._memory_limit or _default_ceiling(process.pid)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            write_message(process.stdin, message)  # type: ignore[arg-type]
        except (BrokenPipeError, OSError):
            raise self._died() from None
        while True:
            try:
                left = _POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
                kind, value = self._replies.get(timeout=min(left, _POLL_SECONDS))
            except queue.Empty:
                pass
            else:
                if kind == "value":
                    return value
                if kind == "error":
                    raise value
                raise self._died()
            if deadline is not None and time.monotonic() > deadline:
                self._end()
                raise WorkerTimeoutError(f"no answer within {timeout:g} s; allow more time or use smaller inputs")
            used = own_bytes(process.pid)
            if ceiling is not None and used is not None and used > ceiling:
                self._end()
                sizes = f"the run took {used / 1e9:.1f} GB and {ceiling / 1e9:.1f} GB are allowed"
                raise WorkerMemoryError(f"out of memory: {sizes}; use smaller inputs")

    def _died(self) -> WorkerCrashedError:
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        code = process.poll()
        tail = self._log_tail()
        self._end()
        how = f"exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in signal.Signals._value2member_map_ else f"signal {-code}"
            how = f"killed by {name}"
            if -code == signal.SIGKILL:
                how += ", perhaps by the system for want of memory"
        return WorkerCrashedError(f"the runtime's process died ({how})" + (f"; it last said: {tail}" if tail else ""))

    def _log_tail(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 400))
        return " ".join(self._log.read().decode("utf-8", "replace").split())

    def _end(self) -> None:
        process, self._process = self._process, None
        log, self._log = self._log, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.close()
        if log is not None:
            log.close()


def _pump(stream: Any, replies: queue.SimpleQueue[Any]) -> None:
    """Move answers from the pipe to the queue, so that the caller can wait with a time-out on any platform."""
    while True:
        try:
            replies.put(read_message(stream))
        except (EOFError, OSError, ValueError):
            replies.put(("gone", None))
            return
        except Exception as error:
            replies.put(("error", WorkerCrashedError(f"the answer of the runtime's process cannot be read: {error}")))
            return


def own_bytes(pid: int) -> int | None:
    """Resident memory of a process but for the files it maps, None where the system does not tell.

    The runtime maps external data, and the system drops such pages when it needs the room.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
            return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _default_ceiling(pid: int) -> int | None:
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(int(line.split()[1]) * 1024 * _MEMORY_SHARE) + (own_bytes(pid) or 0)
    except (OSError, ValueError):
        pass
    return None


_shared: Worker | None = None
_shared_lock = threading.Lock()


def shared_worker() -> Worker:
    """The worker that every call of this process uses unless it brings one; ended at exit."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Worker()
            atexit.register(_shared.close)
        return _shared
