"""A look at one model in a process of its own: its memory, then where its nodes run and how long they take.

The runtime's profiler slows every later run of a process on some devices, so no timed run shares a process with it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphopt.errors import ExecutionError
from graphopt.measurements import Placement
from graphopt.runtime import device_memory
from graphopt.runtime.cupti import Collector, Kernel, owners
from graphopt.runtime.placement import LARGEST_BYTES, operators_of, placement_of
from graphopt.runtime.session import CPU, CUDA, Session, SessionSettings, problem
from graphopt.runtime.timing import runner
from graphopt.runtime.values import Data

_KERNEL_TIME = "_kernel_time"
_WARM_RUNS = 50
_WARM_SECONDS = 1.0
_WITH_BODIES = ("If", "Loop", "Scan")


@dataclass(slots=True)
class NodeTime:
    """What one node (or kernel on the device, launched by `node`) took, all profiled runs together."""

    name: str
    operator: str
    provider: str = ""
    node: str = ""
    durations: list[float] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """How often it was called, all profiled runs together."""
        return len(self.durations)

    @property
    def microseconds(self) -> float:
        """What all calls took, had each been a typical one: a call that was interrupted says nothing."""
        return statistics.median(self.durations) * len(self.durations) if self.durations else 0.0


@dataclass(slots=True)
class Look:
    """What was seen of one model.

    Attributes:
        peak_bytes: Peak resident memory; None where the system does not tell.
        device_bytes: Device memory held after the runs; None where it is not known.
        unknown: Figure that is missing -> why.
        placement: The graph that really runs.
        runs: Runs that were profiled, warm-up not counted.
        kernel_runs: Runs after them in which kernels on the device were timed.
        nodes: Time of every node that ran, in the order in which they first did.
        kernels: Time of every kernel on the device, with the operator of the node that launched it.
    """

    peak_bytes: int | None = None
    device_bytes: int | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    runs: int = 0
    kernel_runs: int = 0
    nodes: list[NodeTime] = field(default_factory=list)
    kernels: list[NodeTime] = field(default_factory=list)


def look_here(
    model: str | bytes,
    settings: SessionSettings,
    feeds: Mapping[str, Data],
    runs: int,
    seconds: float,
    memory: bool,
    size: int,
) -> Look:
    """Look at a model in this (fresh) process.

    Args:
        model: The model.
        settings: How its session is made.
        feeds: Inputs of a run.
        runs: Profiled runs after a warm-up, at most; 0 for one run that only tells where the nodes run.
        seconds: Time for the profiled runs; one is always made.
        memory: Whether to measure memory first.
        size: Bytes of the model, so that a large one is not written out again.

    Raises:
        ExecutionError: The model does not run.
    """
    look = Look()
    kernels: list[Kernel] = []
    if memory:
        _measure_memory(look, model, settings, feeds)
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = os.path.join(folder, "runs.onnx") if size <= LARGEST_BYTES else None
        prefix = os.path.join(folder, "profile")
        try:
            session = Session(model, settings.but(optimized_path=path, profile_prefix=prefix))
            run = runner(session, feeds)
            _repeat(run, _WARM_RUNS if runs else 0, _WARM_SECONDS)
            look.runs = _repeat(run, max(1, runs), seconds)
            collector = Collector()
            if runs and session.info.provider == CUDA and collector.start():
                look.kernel_runs = _repeat(run, runs, seconds)
                kernels = collector.stop()
            begin = session.raw.get_profiling_start_time_ns()
            session.raw.end_profiling()
        except ExecutionError:
            raise
        except Exception as error:
            raise problem(error, loading=False) from error
        operators = None
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                operators = operators_of(path)
        events = _events(prefix)
    read_events(look, events, kernels, begin)
    assigned = [(node.name, node.operator, node.provider) for node in look.nodes]
    look.placement = placement_of(assigned, operators, session.info.provider)
    return look


def _repeat(run: Callable[[], Any], times: int, seconds: float) -> int:
    """Run so many times, fewer if that takes too long, at least once unless `times` is 0; how often it was."""
    started = time.perf_counter()
    for number in range(times):
        if number and time.perf_counter() - started > seconds:
            return number
        run()
    return times


def _measure_memory(look: Look, model: str | bytes, settings: SessionSettings, feeds: Mapping[str, Data]) -> None:
    before = device_memory.device_bytes() if settings.provider == CUDA else None
    session = Session(model, settings)
    try:
        run = runner(session, feeds)
        run()
        run()
    except Exception as error:
        raise problem(error, loading=False) from error
    look.peak_bytes = _peak_resident()
    if look.peak_bytes is None:
        look.unknown["peak_bytes"] = "the system does not tell the peak resident memory of a process"
    if session.info.provider == CPU:
        look.unknown["device_bytes"] = "the model runs on the CPU"
        return
    if session.info.provider != CUDA:
        look.unknown["device_bytes"] = f"only NVIDIA's devices are asked, not those of {session.info.provider}"
        return
    own, after = device_memory.own_device_bytes(), device_memory.device_bytes()
    if own is not None:
        look.device_bytes = own
    elif before is not None and after is not None and after > before:
        look.device_bytes = after - before
    else:
        look.unknown["device_bytes"] = device_memory.reason() or "other processes free memory of the device meanwhile"


def _peak_resident() -> int | None:
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _events(prefix: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(glob.glob(f"{glob.escape(prefix)}*.json")):
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                found += [event for event in json.load(file) if isinstance(event, dict)]
            except ValueError:
                continue
    return found


def read_events(look: Look, events: list[dict[str, Any]], kernels: Sequence[Kernel] = (), begin: int = 0) -> None:
    """Add up the events of the runs that `look` says were profiled, and the kernels of those after them.

    The time of a node with bodies is what the nodes inside do not account for.

    Args:
        look: Filled in here.
        events: What the runtime's profiler wrote.
        kernels: What ran on the device in the last `look.kernel_runs` runs, in which the host was slower.
        begin: When the runtime's profiler began, ns since the epoch.
    """
    begins = [*sorted(event["ts"] for event in events if event.get("name") == "model_run"), math.inf]
    counted = look.runs + look.kernel_runs
    start = begins[-1 - counted] if len(begins) > counted else 0
    end = begins[-1 - look.kernel_runs] if len(begins) > look.kernel_runs else math.inf
    nodes: dict[str, NodeTime] = {}
    calls: list[tuple[float, NodeTime, int]] = []
    later: list[tuple[float, float, str]] = []
    for event in events:
        name, at = str(event.get("name", "")), float(event.get("ts", 0))
        if event.get("cat") != "Node" or not name.endswith(_KERNEL_TIME) or at < start:
            continue
        label, arguments = name.removesuffix(_KERNEL_TIME), event.get("args") or {}
        if at >= end:
            later.append((at, at + float(event["dur"]), label))
            continue
        operator, provider = str(arguments.get("op_name", "")), str(arguments.get("provider", ""))
        node = nodes.setdefault(label, NodeTime(label, operator, provider))
        node.durations.append(float(event["dur"]))
        calls.append((at, node, node.calls - 1))
    _take_out_bodies(calls)
    look.nodes = list(nodes.values())
    found: dict[tuple[str, str], NodeTime] = {}
    for kernel, owner in zip(kernels, owners(kernels, later, begin), strict=True):
        operator = nodes[owner].operator if owner in nodes else ""
        entry = found.setdefault((kernel.name, owner), NodeTime(kernel.name, operator, CUDA, owner))
        entry.durations.append(kernel.nanoseconds / 1e3)
    look.kernels = list(found.values())


def _take_out_bodies(calls: list[tuple[float, NodeTime, int]]) -> None:
    """Take from each call of a node with bodies the time of the calls inside it; a call is (start, node, number)."""
    around: list[tuple[float, NodeTime, int]] = []
    ends = [(start, start + node.durations[number], node, number) for start, node, number in calls]
    for start, end, node, number in sorted(ends, key=lambda call: (call[0], -call[1])):
        while around and around[-1][0] <= start:
            around.pop()
        if around and end <= around[-1][0] and around[-1][1].operator in _WITH_BODIES:
            _, owner, place = around[-1]
            owner.durations[place] = max(0.0, owner.durations[place] - (end - start))
        around.append((end, node, number))
