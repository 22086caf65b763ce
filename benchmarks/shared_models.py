"""Optimize whole folders of models at every level and check each result: the table that says whether anything broke.

    python benchmarks/shared_models.py FOLDER [--levels exact,default] [--targets portable,ort-cpu] [-j 2] [--json FILE]

Models are the .onnx files of the folder and the members of its .zip files. Worker processes take many models each; one
that crashes or runs past its limit is replaced, and the stage it was in says what the entry is. Nothing of graphopt's
own verification is used (`checking.py` does that). A model that ONNX Runtime cannot run is *not verified*: its
structure is still checked. Results for `ort-cuda` are compared on the CPU provider; those with an operator that it has
no kernel for are *not verified*, too. The exit code is 1 on any crash, wrong output, changed signature or lost
validity.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
from checking import Original, Verdict, checker_problem, short, signature_differences
from common import (
    CHECKOUT,
    bodies,
    console,
    count_model_nodes,
    end_group,
    quiet_environment,
    table,
    versions,
    write_json,
)
from feeds import InputSpec, read_index

FAILURES = ("crash", "pass failed", "wrong", "signature", "invalid")
# What a runtime says, through the error's class or text, where it has no kernel for an operator.
NO_KERNEL = ("NotImplemented", "NOT_IMPLEMENTED", "Could not find an implementation")
# Operators that the runtime has in the standard domain where ONNX, whose checker knows nothing of them, has none:
# below the opset that brought them, or at all.
ONLY_THE_RUNTIME_HAS = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 1 << 30}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a model is optimized at and for; `target/level` as text."""

    target: str
    level: str

    def __str__(self) -> str:
        return f"{self.target}/{self.level}"

    @classmethod
    def of(cls, text: str) -> Setting:
        """Read `target/level`."""
        return cls(*text.split("/"))


@dataclass(slots=True)
class Job:
    """One model with the settings still to do; `careful` grows each time the original itself took the worker down."""

    name: str
    path: str
    specs: list[InputSpec] | None
    settings: list[str]
    careful: int = 0


@dataclass(slots=True)
class Entry:
    """What became of one model at one level, for one target.

    Attributes:
        status: `ok`, `crash`, `pass failed` (and was rolled back), `wrong`, `signature`, `invalid` (the checker no
            longer accepts it), `refused` (neither the checker nor the runtime accepts the original, and graphopt said
            so) or `not verified`.
        converged: The passes found nothing more to do.
    """

    name: str
    level: str
    status: str
    reason: str = ""
    before: int = 0
    after: int = 0
    seconds: float = 0.0
    feeds: list[str] = field(default_factory=list)
    raised: str = ""
    converged: bool = True
    target: str = "portable"

    @property
    def setting(self) -> str:
        """The level and target as one text."""
        return str(Setting(self.target, self.level))


# --- inside a worker


def worker(cli: str, memory_gb: float) -> None:
    """Take jobs from standard input, one JSON line each, and report stages and results on standard output."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the protocol
    limit = int(memory_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with tempfile.TemporaryDirectory(prefix="graphopt-shared-") as folder:
        for line in sys.stdin:
            fields = json.loads(line)
            if fields["specs"] is not None:
                fields["specs"] = [
                    InputSpec(name, dtype, tuple(shape), how) for name, dtype, shape, how in fields["specs"]
                ]
            job = Job(**fields)
            for message in work(job, Path(folder), cli):
                print(json.dumps(message), file=out, flush=True)
            print(json.dumps({"done": job.name}), file=out, flush=True)


def work(job: Job, folder: Path, cli: str) -> Iterator[dict[str, Any]]:
    """Do one job; yield the stages it enters and an entry per setting."""
    yield {"stage": "original"}
    path = Path(job.path)
    settings = [Setting.of(text) for text in job.settings]
    try:
        original = Original(path, job.specs if job.careful < 2 else [], variations=job.careful < 1)
    except Exception as error:
        for setting in settings:
            yield {"entry": asdict(Entry(job.name, setting.level, "not verified", short(error), target=setting.target))}
        return
    if job.careful >= 2:
        original.answers, original.unverifiable = [], "the original takes the process down"
    for setting in settings:
        result = folder / f"{path.stem}.{setting.target}.{setting.level}.onnx"
        entry = Entry(job.name, setting.level, "ok", before=count_model_nodes(original.model), target=setting.target)
        yield {"stage": f"optimize at {setting}", "setting": str(setting)}
        start = time.perf_counter()
        try:
            optimize(path, result, entry, cli)
        except Exception as error:
            broken = original.checker_problem and original.unverifiable.startswith("the original does not load")
            entry.status, entry.reason = ("refused" if broken and is_refusal(error) else "crash"), short(error)
            entry.seconds = time.perf_counter() - start
            yield {"entry": asdict(entry)}
            continue
        entry.seconds = time.perf_counter() - start
        yield {"stage": f"check the result at {setting}", "setting": str(setting)}
        examine(original, result, entry)
        yield {"entry": asdict(entry)}
        for left in folder.iterdir():
            left.unlink()


def optimize(source: Path, target: Path, entry: Entry, cli: str) -> None:
    """Optimize one file through the API, or through the command if one is given; note passes that failed."""
    if cli:
        command = [*cli.split("\t"), "optimize", str(source), "-o", str(target), "--level", entry.level]
        command += ["--target", entry.target, "--no-verify", "--strict", "--quiet", "--force"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode or not target.exists():
            raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
        return
    result = importlib.import_module("graphopt").optimize(
        str(source), level=entry.level, target=entry.target, verify=False
    )
    result.save(str(target))
    entry.converged = result.report.converged
    if result.report.failures:
        entry.status, entry.reason = (
            "pass failed",
            "; ".join(f"{f.name}: {f.error}" for f in result.report.failures)[:400],
        )


def is_refusal(error: Exception) -> bool:
    """Say whether an error is graphopt's own word that it cannot take the model, and no accident."""
    return isinstance(error, RuntimeError | importlib.import_module("graphopt").GraphoptError)


def examine(original: Original, target: Path, entry: Entry) -> None:
    """Fill in an entry from the result on disk."""
    try:
        rewritten = onnx.load(target, load_external_data=False)
    except Exception as error:
        entry.status, entry.reason = "invalid", short(error)
        return
    entry.after = count_model_nodes(rewritten)
    opset, before = ({o.domain: o.version for o in model.opset_import} for model in (rewritten, original.model))
    if raised := [f"{d or 'ai.onnx'} {v} to {opset[d]}" for d, v in before.items() if opset.get(d, v) != v]:
        entry.raised = ", ".join(raised)
    if changes := signature_differences(original.model, rewritten):
        entry.status, entry.reason = "signature", "; ".join(changes)[:300]
        return
    checked = target if entry.target == "portable" else as_checked(rewritten, target)
    if original.checker_problem is None and (problem := checker_problem(checked)):
        entry.status, entry.reason = "invalid", problem
        return
    verdict = original.compare(target, exact=entry.level == "exact")
    if entry.target == "ort-cuda" and lacks_a_kernel(verdict):
        verdict = Verdict("not verified", f"the CPU provider lacks a kernel: {verdict.reason}")
    entry.feeds = verdict.feeds
    if entry.status == "pass failed" and verdict.verdict != "different":
        return
    entry.status = {"equal": "ok", "different": "wrong", "not verified": "not verified"}[verdict.verdict]
    entry.reason = verdict.reason


def as_checked(model: onnx.ModelProto, path: Path) -> Path:
    """Return where the model lies as ONNX's checker can read it: stand-ins where only the runtime has the operator."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    todo, found = [model.graph], 0
    while todo:
        graph = todo.pop()
        for node in list(graph.node):
            todo += bodies(node)
            if not node.domain and opset < ONLY_THE_RUNTIME_HAS.get(node.op_type, 0):
                found += 1
                first, *others = stand_ins(node)
                node.CopyFrom(first)
                graph.node.extend(others)  # read by none, or the checker says so
    if not found:
        return path
    checked = path.with_suffix(".checked.onnx")
    onnx.save(model, checked)
    return checked


def stand_ins(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return an Identity for each result of a node: the same names and dtypes, which is what the checker asks of it."""
    return [onnx.helper.make_node("Identity", [node.input[0]], [name]) for name in node.output if name]


def lacks_a_kernel(verdict: Verdict) -> bool:
    """Say whether a result could not be run at all because the provider has no kernel for one of its operators."""
    fails = verdict.reason.startswith(("the result does not load", "the result fails"))
    return verdict.verdict == "different" and fails and any(text in verdict.reason for text in NO_KERNEL)


# --- the parent


class WorkerProcess:
    """A worker as the parent sees it: started on demand, replaced after a crash or a time limit."""

    def __init__(self, options: argparse.Namespace, log: Any) -> None:
        self.options, self.log = options, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process if it does not run."""
        if self.process is None or self.process.poll() is not None:
            cli = "\t".join(command_line()) if self.options.cli else ""
            command = [sys.executable, __file__, "--worker", cli, "--memory-gb", str(self.options.memory_gb)]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env={**os.environ, **quiet_environment()},
                start_new_session=True,
            )
        return self.process

    def stop(self) -> None:
        """End the process."""
        if self.process is not None and self.process.poll() is None:
            end_group(self.process)

    def do(self, job: Job) -> tuple[list[Entry], dict[str, Any], str]:
        """Do a job; return its entries, the last stage reached, and what ended the worker early, if anything did."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        specs = None if job.specs is None else [[s.name, s.dtype, s.shape, s.fill] for s in job.specs]
        text = {"name": job.name, "path": job.path, "specs": specs, "settings": job.settings, "careful": job.careful}
        process.stdin.write((json.dumps(text) + "\n").encode())
        process.stdin.flush()
        entries: list[Entry] = []
        stage: dict[str, Any] = {"stage": "start"}
        pending, limit = b"", time.monotonic() + self.options.timeout
        while True:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, limit - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self.stop()
                process.wait()
                ended = f"ended with code {process.returncode}" if ready else f"more than {self.options.timeout:g} s"
                return entries, stage, ended
            *lines, pending = (pending + chunk).split(b"\n")
            for message in map(json.loads, lines):
                if "stage" in message:
                    stage, limit = message, time.monotonic() + self.options.timeout
                elif "entry" in message:
                    entries.append(Entry(**message["entry"]))
                elif "done" in message:
                    return entries, stage, ""


def command_line() -> list[str]:
    """Return the command that runs graphopt's command line: the installed script, else the module."""
    script = Path(sys.executable).with_name("graphopt")
    return [str(script)] if script.exists() else [sys.executable, "-m", "graphopt"]


def after_a_crash(job: Job, entries: list[Entry], stage: dict[str, Any], ended: str) -> tuple[Entry | None, Job | None]:
    """Say what a worker's early end means: an entry for the setting it was at, and the job with what is left to do."""
    text = stage.get("setting")
    if text is None:  # the original took it down; try with less of it, at last with none
        careful = job.careful + 1
        if careful > 3:
            first = Setting.of(job.settings[0])
            return Entry(job.name, first.level, "crash", f"{ended} with the original", target=first.target), None
        return None, Job(job.name, job.path, job.specs, job.settings, careful)
    done = {text, *(entry.setting for entry in entries)}
    left = [other for other in job.settings if other not in done]
    setting = Setting.of(text)
    entry = Entry(job.name, setting.level, "crash", f"{stage['stage']}: {ended}", target=setting.target)
    return entry, Job(job.name, job.path, job.specs, left, job.careful) if left else None


def run_jobs(jobs: list[Job], options: argparse.Namespace) -> list[Entry]:
    """Run all jobs on a number of workers; return the entries in the order of the jobs."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    entries: list[Entry] = []
    lock = threading.Lock()
    screen = console()

    def serve(log: Any) -> None:
        process = WorkerProcess(options, log)
        while True:
            try:
                job: Job | None = waiting.get_nowait()
            except queue.Empty:
                break
            while job is not None:
                done, stage, ended = process.do(job)
                again = None
                if ended:
                    crashed, again = after_a_crash(job, done, stage, ended)
                    done += [crashed] if crashed else []
                with lock:
                    entries.extend(done)
                    for entry in done:
                        if entry.status in FAILURES:
                            text = f"{entry.status}: {entry.name} at {entry.setting}: {entry.reason}"
                            screen.print(text, soft_wrap=True, markup=False)
                job = again
        process.stop()

    with tempfile.TemporaryFile() as log:
        threads = [threading.Thread(target=serve, args=(log,)) for _ in range(options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    place = {job.name: index for index, job in enumerate(jobs)}
    return sorted(entries, key=lambda entry: (place[entry.name], entry.setting))


def gather(folder: Path, scratch: Path, settings: list[str], only: str) -> list[Job]:
    """List the models of a folder; members of zips are unpacked into `scratch`."""
    index = read_index(folder)
    jobs = []
    for path in sorted(folder.rglob("*.onnx")):
        name = str(path.relative_to(folder))
        jobs.append(Job(name, str(path), index.get(name), settings))
    for archive in sorted(folder.glob("*.zip")):
        with zipfile.ZipFile(archive) as content:
            for member in sorted(name for name in content.namelist() if name.endswith(".onnx")):
                target = scratch / archive.name / member
                target.parent.mkdir(parents=True, exist_ok=True)
                with content.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
                name = f"{archive.name}/{member}"
                jobs.append(Job(name, str(target), index.get(name), settings))
    return [job for job in jobs if only in job.name]


def report(entries: list[Entry], settings: list[str]) -> None:
    """Print the table, the failures' counts and the reasons for what was not verified."""
    screen = console()
    rows = []
    for setting in settings:
        mine = [entry for entry in entries if entry.setting == setting]
        count = Counter(entry.status for entry in mine)
        finished = [entry for entry in mine if entry.after or entry.status == "ok"]
        before, after = sum(entry.before for entry in finished), sum(entry.after for entry in finished)
        counts = [count[status] for status in ("ok", *FAILURES, "refused", "not verified")]
        raised = sum(bool(entry.raised) for entry in mine)
        wandering = sum(not entry.converged for entry in mine)
        rows.append(
            [
                setting,
                len(mine),
                *counts,
                wandering,
                raised,
                before,
                after,
                f"{sum(entry.seconds for entry in mine):.1f}",
            ]
        )
    columns = ["target/level", "models", "ok", "crashes", "pass failed", "wrong", "signature", "invalid", "refused"]
    columns += ["not verified", "not converged", "opset raised", "nodes before", "nodes after", "seconds"]
    screen.print(table("every model, for every target, at every level", columns, rows))
    reasons: dict[str, dict[str, None]] = {}
    for entry in entries:
        if entry.status in ("not verified", "refused"):
            reasons.setdefault(f"{entry.status}: {plain_reason(entry.reason)}", {})[entry.name] = None
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        screen.print(f"  {len(names)} models {reason}  ({next(iter(names))})", soft_wrap=True, markup=False)
    if grown := [entry for entry in entries if entry.after > entry.before]:
        screen.print(f"{len(grown)} results have more nodes than their originals:")
        for entry in grown[:20]:
            screen.print(f"  {entry.name} at {entry.setting}: {entry.before} to {entry.after}", markup=False)


def plain_reason(reason: str) -> str:
    """Cut a reason to what several models can share: the kind of failure, no paths and no numbers."""
    first, _, rest = reason.partition(": ")
    if first.startswith("the original"):
        return f"{first}: {rest.partition(':')[0]}" if rest else first
    return re.sub(r"\d[\d.e+-]*", "#", re.sub(r"/\S+", "", reason))[:110]


def settings_of(targets: list[str], levels: list[str]) -> list[str]:
    """List the settings to try: every level for every target, but exact only where nothing may be fused."""
    pairs = [(target, level) for target in targets for level in levels]
    return [str(Setting(target, level)) for target, level in pairs if target == "portable" or level != "exact"]


def default_folder() -> Path:
    """Return the folder of models named by GRAPHOPT_SHARED, or beside the checkout, or the committed ones."""
    shared = Path(os.environ.get("GRAPHOPT_SHARED") or CHECKOUT.parent / "shared")
    for folder in (shared / "models", shared):
        if folder.is_dir() and list(folder.glob("*.onnx")):
            return folder
    return CHECKOUT / "models"


def main() -> int:
    """Run the sweep; return 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="default: $GRAPHOPT_SHARED, ../shared/models, or models")
    parser.add_argument("--levels", default="exact,default", help="default: exact,default")
    parser.add_argument(
        "--targets",
        default="portable",
        help="of portable, ort-cpu and ort-cuda; what fuses rounds, so exact is for portable only; default portable",
    )
    parser.add_argument("-j", "--jobs", type=int, default=2, help="worker processes; default 2")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one stage of one model; default 120")
    parser.add_argument("--memory-gb", type=float, default=8.0, help="memory limit of a worker; default 8")
    parser.add_argument("--cli", action="store_true", help="go through the command instead of the API")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models with this text in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every entry")
    parser.add_argument("--worker", nargs="?", const="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.memory_gb)
        return 0
    settings = settings_of(options.targets.split(","), options.levels.split(","))
    if not settings:
        parser.error("at level exact there is nothing to do but for the target portable; name another level or target")
    folder = options.folder or default_folder()
    with tempfile.TemporaryDirectory(prefix="graphopt-members-") as scratch:
        jobs = gather(folder, Path(scratch), settings, options.only)
        if not jobs:
            parser.error(f"no models in {folder}: give a folder with .onnx or .zip files")
        start = time.perf_counter()
        entries = run_jobs(jobs, options)
    report(entries, settings)
    seconds = time.perf_counter() - start
    console().print(f"{len(jobs)} models from {folder} in {seconds:.0f} s with {options.jobs} workers")
    if options.json:
        document = {
            "schema": 1,
            "versions": versions("graphopt", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy"),
            "seconds": seconds,
            "entries": [asdict(entry) for entry in entries],
        }
        write_json(options.json, document)
    return 1 if any(entry.status in FAILURES for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
