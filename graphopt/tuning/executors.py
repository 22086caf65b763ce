"""Where trials run: here, each in a process of its own, or spread over devices and machines by Ray.

The trial is the same either way. A process that dies, hangs or takes too much memory is a trial that is refused.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from graphopt.errors import ExecutionError, UsageError
from graphopt.runtime.contents import external_files
from graphopt.runtime.worker import Worker
from graphopt.tuning.search import REFUSED, Outcome
from graphopt.tuning.trial import Contender, Job, Standard, try_here

_MOST_SHIPPED = 1 << 30
"""Bytes of the largest model that is sent to other machines; larger ones must lie at the same path everywhere."""


class Executor(Protocol):
    """Runs jobs, one at a time on each device."""

    slots: int

    def run(self, jobs: Sequence[Job], timeout: float) -> Iterator[tuple[int, Outcome]]:
        """Run all; (number, outcome) as each ends."""

    def close(self) -> None:
        """Let everything go."""


def run_one(job: Job, timeout: float) -> Outcome:
    """Run a job in a process made for it."""
    started = time.monotonic()
    try:
        with Worker() as worker:
            outcome: Outcome = worker.call(try_here, job, timeout=timeout)
    except ExecutionError as error:
        outcome = Outcome(REFUSED, f"{error.reason}: {_first_sentence(str(error))}")
    return replace(outcome, seconds=time.monotonic() - started)


def _first_sentence(text: str, most: int = 300) -> str:
    """What the runtime says, without the stack that it may put behind."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= most else f"{text[: most - 1]}…"


class LocalExecutor:
    """One trial after the other on this machine."""

    slots = 1

    def run(self, jobs: Sequence[Job], timeout: float) -> Iterator[tuple[int, Outcome]]:
        """Run all in order."""
        for number, job in enumerate(jobs):
            yield number, run_one(job, timeout)

    def close(self) -> None:
        """There is nothing to let go."""


class RayExecutor:
    """One trial at a time on each GPU of a Ray cluster, or on each of its machines where no GPU is wanted."""

    def __init__(self, address: str | None = None, *, gpus: bool = False) -> None:
        """Join a cluster, or start one of this machine's devices.

        Args:
            address: Of the cluster, as `ray.init` takes it; None starts one here.
            gpus: Each trial takes a GPU; otherwise each takes a whole machine.

        Raises:
            UsageError: Ray is not installed, the cluster does not answer, or it has no device to run on.
        """
        ray = _ray()
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
            except Exception as error:  # whatever Ray raises where nothing answers
                raise UsageError(f"Ray does not start at {address or 'this machine'}: {error}; check --ray") from error
        self._slots = _slots(ray.nodes(), gpus)
        self.slots = len(self._slots)
        self._gpus = gpus
        self._kept: dict[Any, tuple[Any, Any]] = {}
        if not self.slots:
            self.close()
            raise UsageError("the Ray cluster has no device for a trial; start Ray with GPUs, or use --provider cpu")
        # A process serves one trial only: what the runtime leaves behind must not meet the next.
        self._remote = ray.remote(max_calls=1)(_run_remotely)

    def run(self, jobs: Sequence[Job], timeout: float) -> Iterator[tuple[int, Outcome]]:
        """Run all, as many at a time as there are devices."""
        waiting = list(enumerate(jobs))
        free = list(range(self.slots))
        running: dict[Any, tuple[int, int]] = {}
        while waiting or running:
            while waiting and free:
                number, job = waiting.pop(0)
                slot = free.pop(0)
                running[self._submit(job, timeout, slot)] = (number, slot)
            done, _ = self._ray.wait(list(running), num_returns=1)
            number, slot = running.pop(done[0])
            free.append(slot)
            try:
                yield number, self._ray.get(done[0])
            except Exception as error:  # a machine that went away, a task that was killed
                yield number, Outcome(REFUSED, f"the machine it ran on failed: {_first_sentence(str(error))}")

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._kept.clear()
        if self._started:
            self._ray.shutdown()

    def _submit(self, job: Job, timeout: float, slot: int) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        node, cores = self._slots[slot]
        wants = {"num_gpus": 1, "num_cpus": 0} if self._gpus else {"num_cpus": cores}
        remote = self._remote.options(
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node, soft=False), max_retries=0, **wants
        )
        bare = replace(
            job,
            standard=Standard((), (), {}),
            candidate=replace(job.candidate, model=""),
            best=replace(job.best, model=""),
        )
        large = [self._keep(job.standard), self._keep(job.candidate.model), self._keep(job.best.model)]
        return remote.remote(bare, *large, timeout)

    def _keep(self, thing: Any) -> Any:
        """A reference to something large, sent to the cluster once."""
        key = thing if isinstance(thing, str) else id(thing)
        known = self._kept.get(key)
        if known is None:
            value = shipped(thing) if isinstance(thing, str) else thing
            known = self._kept[key] = (thing, self._ray.put(value))
        return known[1]


def _run_remotely(job: Job, standard: Standard, candidate: str | bytes, best: str | bytes, timeout: float) -> Outcome:
    """A trial on another machine: put together what came apart, and run it as it would run here."""
    whole = replace(
        job,
        standard=standard,
        candidate=Contender(candidate, job.candidate.settings),
        best=Contender(best, job.best.settings),
    )
    return run_one(whole, timeout)


def shipped(path: str) -> str | bytes:
    """A model as other machines get it: its bytes where that is all of it, else the path, which they must share."""
    file = Path(path)
    if external_files(path) or file.stat().st_size > _MOST_SHIPPED:
        return path
    return file.read_bytes()


def _slots(nodes: Sequence[dict[str, Any]], gpus: bool) -> list[tuple[str, float]]:
    """(node, cores) for each trial that can run at a time."""
    found = []
    for node in sorted(nodes, key=lambda item: str(item["NodeID"])):
        if not node.get("Alive"):
            continue
        resources = node.get("Resources", {})
        cores = float(resources.get("CPU", 0))
        count = int(resources.get("GPU", 0)) if gpus else int(cores >= 1)
        found += [(str(node["NodeID"]), cores)] * count
    return found


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"Ray is not installed ({error}); install it with: pip install 'graphopt[ray]'  or leave --ray out"
        ) from error
