"""What the benchmark scripts share: models to run on, measured child processes, node counts, tables, JSON.

Nothing here imports graphopt: its cost must not hide in the measuring process, and a broken checkout must still be
measurable against its rivals.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

CHECKOUT = Path(__file__).resolve().parents[1]
MEGABYTE = 2**20


# --- processes


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished child process.

    Attributes:
        code: Exit code; negative is the signal that ended it.
        seconds: Wall time from start to end.
        peak_rss_mb: Highest resident memory of the process, mapped files included.
        peak_anonymous_mb: Highest anonymous memory of the process and its children: what it really allocated.
        timed_out: It was ended because it ran past its limit.
    """

    code: int
    seconds: float
    peak_rss_mb: float
    peak_anonymous_mb: float
    timed_out: bool
    stdout: str
    stderr: str

    def last_json(self) -> dict[str, Any] | None:
        """Return the last line of output that is a JSON object, or None."""
        for line in reversed(self.stdout.splitlines()):
            if line.startswith("{"):
                try:
                    found: dict[str, Any] = json.loads(line)
                except json.JSONDecodeError:
                    continue
                return found
        return None

    def problem(self) -> str | None:
        """Say in a few words what went wrong, or None."""
        if self.timed_out:
            return "time limit"
        if self.code == 0:
            return None
        if self.code < 0:
            return signal.Signals(-self.code).name
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return f"exit {self.code}: {lines[-1][:160]}" if lines else f"exit {self.code}"


def process_tree(pid: int) -> list[int]:
    """Return a process and everything it started, as far as /proc tells."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text(encoding="ascii")
                found += [int(child) for child in children.split()]
        except OSError:
            continue
    return found


def memory_status(pid: int) -> dict[str, int]:
    """Return the fields of /proc/PID/status that are sizes, in bytes; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes


class MemorySampler(threading.Thread):
    """Watches the memory of a process and its children until told to stop.

    The kernel keeps a high-water mark for resident memory but none for anonymous memory, so that one is sampled; a peak
    shorter than the interval can be missed.
    """

    def __init__(self, pid: int, interval: float = 0.01) -> None:
        super().__init__(daemon=True)
        self.pid, self.interval = pid, interval
        self.peak_rss = self.peak_anonymous = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Sample until the process is gone or `finish` is called."""
        while not self.ended.is_set():
            statuses = [memory_status(pid) for pid in process_tree(self.pid)]
            self.peak_anonymous = max(self.peak_anonymous, sum(status.get("RssAnon", 0) for status in statuses))
            self.peak_rss = max(self.peak_rss, statuses[0].get("VmHWM", 0))
            self.ended.wait(self.interval)

    def finish(self) -> None:
        """Stop sampling."""
        self.ended.set()
        self.join()


def measure(command: Sequence[str], timeout: float, environment: dict[str, str] | None = None) -> Measured:
    """Run a command in a process group of its own, with a time limit, and measure it.

    Args:
        command: Program and arguments.
        timeout: Seconds of wall time after which the whole group is ended.
        environment: Variables added to this process's own.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        sampler = MemorySampler(process.pid)
        sampler.start()
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            end_group(process)
        finally:
            seconds = time.perf_counter() - start
            sampler.finish()
            if process.poll() is None:
                end_group(process)
        out.seek(0)
        err.seek(0)
        return Measured(
            code=process.returncode,
            seconds=seconds,
            peak_rss_mb=sampler.peak_rss / MEGABYTE,
            peak_anonymous_mb=sampler.peak_anonymous / MEGABYTE,
            timed_out=timed_out,
            stdout=out.read(),
            stderr=err.read(),
        )


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads its own group, and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def quiet_environment(threads: int = 1) -> dict[str, str]:
    """Return variables for a child: the checkout importable, few threads, no progress bars, no warnings."""
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}


# --- models


def find_models(places: Iterable[str | Path]) -> list[Path]:
    """Return the .onnx files among the given files and folders (searched through), sorted within a folder.

    Raises:
        SystemExit: If a place does not exist, or is no model.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += sorted(place.rglob("*.onnx"))
        elif place.is_file():
            found.append(place)
        else:
            raise SystemExit(f"{place} does not exist: give .onnx files or folders of them")
    return list(dict.fromkeys(found))


def generated_models(sizes: str, folder: Path, seed: int = 0) -> list[Path]:
    """Write a generated model for each size of a comma-separated list, such as `1000,10000`; return the files."""
    from generate import generate

    paths = []
    for size in filter(None, sizes.split(",")):
        paths.append(folder / f"generated_{int(size)}.onnx")
        onnx.save(generate(int(size), seed), paths[-1])
    return paths


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def count_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Count nodes and those of bodies inside them, Constant nodes left out."""
    return sum((node.op_type != "Constant") + sum(count_nodes(body.node) for body in bodies(node)) for node in nodes)


def count_model_nodes(model: onnx.ModelProto) -> int:
    """Count the nodes of a model: main graph, bodies, and each local function once; Constant nodes left out."""
    return count_nodes(model.graph.node) + sum(count_nodes(function.node) for function in model.functions)


def count_file_nodes(path: Path) -> int:
    """Count the nodes of a model file without reading external data."""
    return count_model_nodes(onnx.load(path, load_external_data=False))


# --- reporting


def geometric_mean(numbers: Sequence[float]) -> float:
    """Return the geometric mean, or NaN of nothing."""
    return math.exp(sum(math.log(number) for number in numbers) / len(numbers)) if numbers else math.nan


def median(numbers: Sequence[float]) -> float:
    """Return the middle number, the lower one of two."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, the platform and those packages that are installed here."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpus": str(os.cpu_count())}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a result document, one row on one line; NaN becomes null, fractions keep four digits."""

    def clean(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}") if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]
        return value

    fields = [f"{json.dumps(key)}:{field_text(value)}" for key, value in clean(document).items()]
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def field_text(value: Any) -> str:
    """Return one field of a document as JSON; items that hold something themselves get a line each."""

    def compact(item: Any) -> str:
        return json.dumps(item, separators=(",", ":"), ensure_ascii=False)

    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(map(compact, value)) + "\n]"
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        return "{\n" + ",\n".join(f"{compact(key)}:{compact(item)}" for key, item in value.items()) + "\n}"
    return compact(value)


def console() -> Console:
    """Return the console that tables go to: as wide as the terminal, at least 160 columns when it is a file."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Build a table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*[str(cell) for cell in row])
    return made
