"""One model from file to file: optimize, verify, time, write. Nothing is written that differs."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphopt import api, runtime
from graphopt.acceptance import Acceptance, accept
from graphopt.cli import plans
from graphopt.cli.aftermath import find_guilty
from graphopt.cli.output import (
    EXIT_DIFFERENT,
    EXIT_NOT_CONVERGED,
    EXIT_NOT_VERIFIED,
    EXIT_OK,
    EXIT_SLOWER,
    EXIT_USAGE,
    guests_on_stderr,
)
from graphopt.errors import GraphoptError, OutputError, UsageError
from graphopt.ir import Graph
from graphopt.measurements import AcceptanceReport, Benchmark
from graphopt.onnxio import load, write_model
from graphopt.onnxio.placing import exists_already, is_same, require_unread, write_document
from graphopt.onnxio.save import Staged, require_no_data_file, stage
from graphopt.onnxio.signature import Signature
from graphopt.pipeline import Registry, load_registry
from graphopt.records import Bisection, OptimizeReport, Verification

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with one model; every field is plain, so that a job can go to another process."""

    source: str
    target: str
    optimize: dict[str, Any] = field(default_factory=dict)
    verify: dict[str, Any] | None = field(default_factory=dict)
    """Options of the verification, None to leave it out."""
    bench: dict[str, Any] | None = None
    """Options of the comparison, None to leave it out."""
    measure: float | None = None
    """Seconds for deciding by measurement which rewrites stay; None keeps all of them."""
    bisect: bool = True
    """Whether to find the rewrite that makes a result different."""
    bisect_out: str | None = None
    """Where the small model that shows it goes; None for a free name beside the result."""
    command: tuple[str, ...] = ()
    """The words this one model was asked for with, so that they can be repeated with a change."""
    save: dict[str, Any] = field(default_factory=dict)
    signature: dict[str, Any] = field(default_factory=dict)
    """What the signature shall be, as fields of `Signature`."""
    in_place: bool = False
    """True if the user named the model itself as the file to write."""
    force: bool = False
    dry_run: bool = False
    allow_unverified: bool = False
    min_speedup: float | None = None
    name_map: str | None = None
    write_plan: str | None = None
    dump_dir: str | None = None
    print_after: tuple[str, ...] = ()
    plan_for: str = ""
    """The fingerprint of the model a plan was made for."""
    reads: tuple[str, ...] = ()
    """Files the run reads beside the model: they are never written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    job: Job
    code: int
    written: str | None = None
    error: str = ""
    report: OptimizeReport | None = None
    verification: Verification | None = None
    benchmark: Benchmark | None = None
    acceptance: AcceptanceReport | None = None
    bisection: Bisection | None = None
    plan: str | None = None
    """The plan that was written."""

    @property
    def own_failures(self) -> tuple[str, ...]:
        """Passes the user brought that failed."""
        own = {Path(file).stem for file in self.job.optimize.get("load_files", ())}
        failed = () if self.report is None else self.report.failures
        return tuple(dict.fromkeys(item.name for item in failed if item.name in own))

    def to_json(self) -> dict[str, Any]:
        """The outcome as a JSON document."""
        return {
            "schema": "graphopt.optimize",
            "schema_version": 1,
            "input": self.job.source,
            "output": self.written,
            "exit_code": self.code,
            "error": self.error,
            "report": None if self.report is None else self.report.to_json(),
            "verification": None if self.verification is None else self.verification.to_json(),
            "benchmark": None if self.benchmark is None else self.benchmark.to_json(),
            "acceptance": None if self.acceptance is None else self.acceptance.to_json(),
            "bisection": None if self.bisection is None else self.bisection.to_json(),
            "failed_passes": [] if self.report is None else sorted({item.name for item in self.report.failures}),
            "plan": self.plan,
        }


def run(job: Job, say: Say = lambda text: None) -> Outcome:
    """Do a job; whatever goes wrong is in the outcome."""
    try:
        with guests_on_stderr():
            return _run(job, say)
    except GraphoptError as error:
        return Outcome(job, EXIT_USAGE, error=str(error))


def _run(job: Job, say: Say) -> Outcome:
    check_paths(job)
    if not job.force:
        plans.require_same_model(job.source, job.plan_for)
    say(f"optimizing {job.source}")
    registry = load_registry(job.optimize.get("load_files", ()))
    for name in job.print_after:
        if name != "all":
            registry.find(name)
    made_for = "" if job.write_plan is None else plans.fingerprint(job.source)  # the result may take its place
    accepted = None if job.measure is None else _accepted(job, registry, say)
    result = accepted.result if accepted is not None else _optimized(job, registry, say)
    outcome = _finished(job, result, accepted, registry, say)
    # Of what was measured, a plan is for the file that was written; of a plain run, for what the passes did.
    if job.write_plan is not None and outcome.report is not None and (accepted is None or outcome.written is not None):
        settings = job.optimize if accepted is None else accepted.settings
        report = None if accepted is None else accepted.report
        plans.save_plan(
            Path(job.write_plan),
            settings,
            job.signature,
            outcome.report,
            made_for,
            report,
            loaded=job.optimize.get("load_files", ()),
            replace=job.force,
        )
        outcome = replace(outcome, plan=job.write_plan)
    return outcome


def _optimized(job: Job, registry: Registry, say: Say) -> api.Result:
    return api.optimize(
        job.source,
        progress=lambda name, sweep: say(f"sweep {sweep}: {name.replace('_', ' ')}"),
        after_pass=_Dumper(job).after_pass,
        registry=registry,
        measure=False,
        **job.signature,
        **job.optimize,
    )


def _accepted(job: Job, registry: Registry, say: Say) -> Acceptance:
    assert job.measure is not None
    return accept(
        job.source,
        max_time=job.measure,
        verify=job.verify,
        bench=job.bench,
        progress=say,
        registry=registry,
        **job.signature,
        **job.optimize,
    )


def _finished(job: Job, result: api.Result, accepted: Acceptance | None, registry: Registry, say: Say) -> Outcome:
    """Write a result where it may be written."""
    report = result.report
    measured = None if accepted is None else accepted.report
    converged = report.stopped_by not in ("sweep limit", "rules keep feeding each other")
    if job.dry_run or not converged:  # nothing will be written whose bytes could be counted
        report = replace(report, bytes_after=write_model(result.graph.model).length)
    if job.dry_run:
        return Outcome(job, EXIT_OK if converged else EXIT_NOT_CONVERGED, report=report)
    if not converged:
        error = f"the passes did not settle ({report.stopped_by})"
        return Outcome(job, EXIT_NOT_CONVERGED, report=report, error=error, acceptance=measured)
    stamp = {"graphopt.verdict": "not verified"} if job.verify is None else {}
    for path in (job.name_map, job.write_plan):  # staging looks at the target itself
        if path is not None:
            require_no_data_file(result.graph.model, path)
    with ExitStack() as stack:
        staged = stage(result.graph, job.target, stamp=stamp, **job.save)
        stack.callback(staged.discard)
        written = (staged.path, staged.data_path)
        report = replace(report, bytes_after=sum(os.path.getsize(path) for path in written if path is not None))
        reference, signature = job.source, Signature(**job.signature)
        if signature:  # the truth is the original with that signature, and nothing else done to it
            prepared = load(job.source)
            api.change_signature(prepared, signature)
            # Weights in files of their own stay there, as far as they are in the same folder.
            has_files = bool(prepared.model.details["external_files"].mappings)
            original = stage(prepared, f"{job.target}.original", external_data="reference" if has_files else None)
            stack.callback(original.discard)
            reference = original.path
        outcome = _judge_and_write(job, report, result, accepted, staged, reference, say)
    if outcome.code == EXIT_DIFFERENT:
        outcome = replace(outcome, bisection=find_guilty(_narrower(job, accepted), report, registry, say))
    return outcome


def _narrower(job: Job, accepted: Acceptance | None) -> Job:
    """The job whose result it was: what measuring left out is out."""
    return job if accepted is None else replace(job, optimize=accepted.settings)


def _verified(job: Job, accepted: Acceptance | None, staged: Staged, reference: str, say: Say) -> Verification:
    """The verdict on the file that is to be put in place; of the same bytes, the verdict there is already."""
    if accepted is not None and accepted.verification is not None and accepted.sha256 and not staged.is_external:
        with open(staged.path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == accepted.sha256:
                return accepted.verification
    say("comparing with the original on ONNX Runtime")
    assert job.verify is not None
    return runtime.verify(reference, staged.path, level=job.optimize.get("level", "default"), **job.verify)


def _judge_and_write(
    job: Job,
    report: OptimizeReport,
    result: api.Result,
    accepted: Acceptance | None,
    staged: Staged,
    reference: str,
    say: Say,
) -> Outcome:
    verification, benchmark, code = None, None, EXIT_OK
    measured = None if accepted is None else accepted.report
    target = job.target
    if job.verify is not None:
        verification = _verified(job, accepted, staged, reference, say)
        if verification.verdict == "different":
            return Outcome(job, EXIT_DIFFERENT, report=report, verification=verification, acceptance=measured)
        if verification.verdict != "equal":
            code = EXIT_NOT_VERIFIED
            if not job.allow_unverified:
                target = unverified_path(job.target)
    if measured is not None:
        benchmark = measured.benchmark
    elif job.bench is not None:
        say("timing against the original")
        touched = runtime.Touched(result.origins.erased, result.origins.inserted)
        benchmark = runtime.benchmark(reference, staged.path, touched=touched, **job.bench).without_samples()
    if job.min_speedup is not None and not _surely_times(measured, benchmark) >= job.min_speedup:
        return Outcome(
            job, EXIT_SLOWER, report=report, verification=verification, benchmark=benchmark, acceptance=measured
        )
    # What was not there when the run began may be by now: another run's result is not replaced unasked, either.
    staged.commit(target, replace=job.force or (job.in_place and is_same(target, job.source)))
    if job.name_map is not None:
        write_document(job.name_map, result.names.to_json(), replace=job.force)
    return Outcome(
        job, code, target, report=report, verification=verification, benchmark=benchmark, acceptance=measured
    )


def _surely_times(measured: AcceptanceReport | None, benchmark: Benchmark | None) -> float:
    """How many times as fast what is to be written surely is; the model as it was is as fast as it was."""
    if measured is not None and measured.outcome == "nothing to gain":
        return 1.0
    return math.nan if benchmark is None else benchmark.low


def unverified_path(target: str) -> str:
    """Where a result goes that could not be verified."""
    path = Path(target)
    return str(path.with_name(f"{path.stem}.unverified{path.suffix or '.onnx'}"))


def check_paths(job: Job) -> None:
    """Refuse before anything is done what could not be written, or would replace something unasked.

    Raises:
        OutputError: a folder is missing or not writable, a file exists already, or two results share a name.
        UsageError: the model is a folder.
    """
    if os.path.isdir(job.source):
        raise UsageError(f"'{job.source}' is a folder; name the .onnx file in it")
    if not os.path.basename(job.target) or os.path.isdir(job.target):
        raise OutputError(f"cannot write '{job.target}': it is a folder; name a file")
    results = [job.target, *(path for path in (job.name_map, job.write_plan) if path is not None)]
    if job.verify is not None and not job.allow_unverified:
        results.append(unverified_path(job.target))
    for index, path in enumerate(results):
        is_model = index == 0
        if is_model and job.dry_run:
            continue
        _check_folder(path)
        if any(is_same(path, other) for other in results[:index]):
            raise OutputError(f"'{path}' is named for two results; give each a file of its own")
        if is_same(path, job.source) and not (is_model and job.in_place):
            raise OutputError(f"'{path}' is the model itself; pass -o with its name to replace it, or choose another")
        if any(is_same(path, other) for other in job.reads):
            raise OutputError(f"'{path}' is read by this run, so it is not written; choose another name")
        if not is_model:
            require_unread(path, [job.source])
        if os.path.exists(path) and not job.force and not is_same(path, job.source):
            raise exists_already(path)
    if job.bisect_out is not None and os.path.lexists(job.bisect_out):
        raise OutputError(f"'{job.bisect_out}' exists already; remove it, or name another by --bisect-out")
    if job.dump_dir is not None:
        try:
            os.makedirs(job.dump_dir, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder '{job.dump_dir}': {error.strerror}; choose another") from error


def _check_folder(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise OutputError(f"cannot write '{path}': there is no folder '{folder}'; create it first")
    if os.path.isdir(path):
        raise OutputError(f"cannot write '{path}': it is a folder; name a file")
    if os.path.exists(path) and not os.path.isfile(path):  # a result would take the place of a device or a pipe
        raise OutputError(f"cannot write '{path}': it is no regular file; name a file")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write '{path}': no permission in '{folder}'; choose a place you may write to")


class _Dumper:
    """Writes or prints the graph after passes, as the user asks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._count = 0

    def after_pass(self, name: str, sweep: int, graph: Graph) -> None:
        from graphopt.onnxio import save
        from graphopt.report.listing import print_graph

        self._count += 1
        if self._job.dump_dir is not None:
            label = name.replace(":", ".").replace("/", ".")
            path = os.path.join(self._job.dump_dir, f"{self._count:03d}.sweep{sweep}.{label}.onnx")
            require_unread(path, [self._job.source], self._job.reads)
            save(graph, path)
        if name in self._job.print_after or "all" in self._job.print_after:
            print_graph(graph, f"after {name}, sweep {sweep}")
