from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from graphopt.errors import RunFailedError, WorkerCrashedError, WorkerMemoryError, WorkerTimeoutError
from graphopt.runtime.worker import Worker, shared_worker


def test_crash_hang_and_memory_are_three_reasons() -> None:
    with Worker() as worker:
        with pytest.raises(WorkerCrashedError, match="SIGSEGV") as crashed:
            worker.call(signal.raise_signal, signal.SIGSEGV)
        with pytest.raises(WorkerTimeoutError, match=r"0\.3 s") as hung:
            worker.call(time.sleep, 60, timeout=0.3)
        with pytest.raises(WorkerMemoryError, match="allowed") as starved:
            worker.call(np.ones, 1 << 28, memory_limit=1 << 29)
        assert {crashed.value.reason, hung.value.reason, starved.value.reason} == {
            "crashed",
            "timed out",
            "out of memory",
        }
        assert worker.call(abs, -3) == 3, "it starts again after each of them"


def test_an_allocation_that_fails_is_want_of_memory() -> None:
    with Worker() as worker:
        pid = worker.call(os.getpid)
        with pytest.raises(WorkerMemoryError):
            worker.call(bytearray, 1 << 50)
        assert worker.call(os.getpid) == pid, "the process survives it"


def test_errors_and_arrays_come_back() -> None:
    with Worker() as worker:
        with pytest.raises(RunFailedError, match="invalid literal"):
            worker.call(int, "x")
        array = np.arange(3_000_000, dtype=np.float32)
        assert np.array_equal(worker.call(np.negative, array), -array)


def test_a_print_does_not_end_up_among_the_messages() -> None:
    with Worker() as worker:
        worker.call(os.system, "echo noise")
        assert worker.call(print, "noise") is None
        assert worker.call(abs, -1) == 1


def test_one_process_serves_many_threads() -> None:
    with Worker() as worker:
        answers: dict[int, int] = {}
        threads = [
            threading.Thread(target=lambda n=n: answers.update({n: worker.call(abs, -n)}))  # type: ignore[misc]
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == {n: n for n in range(8)}
        assert worker.generation == 1


def test_no_process_is_left_behind() -> None:
    code = (
        "from graphopt.runtime import shared_worker; import os, signal;"
        "print(shared_worker().call(os.getpid), flush=True); {end}"
    )
    for end in ("pass", "os.kill(os.getpid(), signal.SIGKILL)"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(end=end)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        pid = int(done.stdout)
        deadline = time.monotonic() + 10
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_shared_worker_is_one() -> None:
    assert shared_worker() is shared_worker()


def test_importing_graphopt_imports_no_runtime() -> None:
    code = "import graphopt, graphopt.runtime, sys; sys.exit('onnxruntime' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )


def test_a_limit_below_the_poll_holds() -> None:
    with Worker() as worker:
        worker.call(time.sleep, 0)
        with pytest.raises(WorkerTimeoutError):
            worker.call(time.sleep, 0.015, timeout=0.002)
