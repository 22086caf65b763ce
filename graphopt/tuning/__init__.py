"""Tuning: the settings of the runtime, and the form of the model, that run fastest on the device at hand."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from graphopt import api
from graphopt.errors import GraphoptError, OutputError, UsageError
from graphopt.onnxio import load
from graphopt.onnxio.placing import exists_already, is_same, require_unread
from graphopt.onnxio.save import stage
from graphopt.recipes import MODEL, Recipe, RunSettings, TrialRecord, Tuning
from graphopt.runtime.bounds import require_bounded
from graphopt.runtime.feeds import FeedOptions
from graphopt.runtime.recipe import (
    apply_settings,
    fingerprint,
    recipe_path,
    usable_cores,
    write_recipe,
)
from graphopt.runtime.session import CPU, CUDA, full_provider_name
from graphopt.runtime.sources import ModelSource, open_source
from graphopt.runtime.timing import Plan, default_settings
from graphopt.tuning.candidates import Block, Change, Machine, blocks, closer
from graphopt.tuning.executors import Executor, LocalExecutor, RayExecutor
from graphopt.tuning.known import require_known
from graphopt.tuning.preparation import Prepared, prepare
from graphopt.tuning.search import NOT_TRIED, Found, Outcome, Request, Settings, Told, search
from graphopt.tuning.trial import Contender, Job, Standard, labels, quick_look

MAX_TIME = 180.0
"""Seconds that a search takes where nothing else is said."""
_TRIAL_SECONDS = 120.0
# A trial makes nine sessions or more; it is given twice their time.
_SESSIONS_TO_WAIT_FOR = 20
_SESSIONS = 3  # of each side at least; more where they load quickly
# Of all the time, what the timing of one trial may take; between a moment and long enough.
_SHARE, _LEAST, _MOST = 1 / 24, 0.5, 8.0


def tune(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    provider: str = "auto",
    max_error: float | None = None,
    max_time: float = MAX_TIME,
    trial_time: float | None = None,
    targets: Sequence[str] = (),
    wanted: Sequence[Change] = (),
    only: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    data: str | Path | None = None,
    seed: int = 0,
    custom_ops: Sequence[str] = (),
    executor: Executor | None = None,
    ray: str | None = None,
    force: bool = False,
    write: bool = True,
    tell: Callable[[Told], None] = lambda told: None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Find the settings under which a model runs fastest, each compared with the original first, and write a recipe.

    Args:
        model: The model file.
        out: Where the recipe goes; by default `model.recipe.json` beside `model.onnx`.
        provider: "auto", "cpu", "cuda" or a name of the runtime's.
        max_error: Largest |difference| over largest |value| that an output may have against the original, not
            optimized; by default three times what the runtime's defaults do to it themselves, TF32 included.
        max_time: Seconds for all of it; a trial that runs is not broken off for it.
        trial_time: Seconds after which a trial is refused; by default 120, and more for models that load slowly.
        targets: Optimize the model for these, and let the results compete; the winner is written beside the recipe.
        wanted: Settings to try first.
        only: Try only those.
        dims: Name of a symbolic dim -> size that is timed.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value.
        data: A file or folder of the user's inputs; the first is timed, all are compared.
        seed: Seed of the made inputs.
        custom_ops: Libraries of custom operators.
        executor: Runs the trials; by default this machine does.
        ray: Address of a Ray cluster to spread trials over, "local" to start one here.
        force: Overwrite files.
        write: Whether to write anything.
        tell: Told how far the search is.
        say: Told what goes on besides.

    Raises:
        ModelError: The model cannot be read.
        OutputError: A file exists already, or cannot be written.
        ExecutionError: The original does not run, or the provider does not start.
        FeedError: No inputs were found, or those given do not fit.
        UsageError: A target or a setting does not exist, nothing is left to try, or Ray is not there.
    """
    job = _Tuning(Path(model), Path(out) if out is not None else recipe_path(model), force, say)
    if only and not wanted:
        raise UsageError("--only tries only what --try names, and nothing is named; add --try, or leave --only out")
    require_bounded(max_time=max_time)
    load(model)  # a file that is no model is refused before anything else
    if write:
        script = [] if data is None else [str(data), str(data).rpartition(":")[0]]
        job.require_free(targets, [*custom_ops, *filter(None, script)])
    require_known(wanted, provider)
    options = FeedOptions(
        dict(dims or {}), {name: tuple(shape) for name, shape in (shapes or {}).items()}, dict(ranges or {}), seed
    )
    own = executor is None
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder, open_source(model) as source:
        models = job.models(source, targets, Path(folder))
        say("running the original")
        prepared = prepare(
            source,
            provider=provider,
            options=options,
            data=data,
            max_error=max_error,
            custom_ops=tuple(custom_ops),
        )
        job.remark(prepared, provider)
        runner = executor or _executor(ray, prepared.provider)
        try:
            patience = trial_time or max(_TRIAL_SECONDS, _SESSIONS_TO_WAIT_FOR * prepared.ready_seconds)
            trials = JobTrials(prepared, models, runner, tuple(custom_ops), max_time, patience)
            space = [] if only else _space(prepared, list(models)[1:])
            wishes = [Block("asked for", (change,)) for change in wanted]
            found = search(
                [*wishes, *space],
                trials,
                max_time=max_time - (time.monotonic() - job.started),
                closer=closer(prepared.provider),
                baseline_ok=prepared.baseline_ok,
                tell=tell,
            )
        finally:
            if own:
                runner.close()
        return job.finish(prepared, found, models, provider, max_time, write)


def _space(prepared: Prepared, models: Sequence[str]) -> list[Block]:
    machine = Machine.here(usable_cores())
    return blocks(prepared.provider, prepared.operators, machine, models=models, has_conv1d=prepared.has_conv1d)


def _executor(ray: str | None, provider: str) -> Executor:
    if ray is None:
        return LocalExecutor()
    return RayExecutor(None if ray == "local" else ray, gpus=provider == CUDA)


class JobTrials:
    """Turns requests of the search into jobs, and has them run."""

    def __init__(
        self,
        prepared: Prepared,
        models: Mapping[str, ModelSource],
        executor: Executor,
        custom_ops: tuple[str, ...],
        max_time: float,
        trial_time: float,
    ) -> None:
        self.prepared = prepared
        self.models = models
        self.executor = executor
        self.custom_ops = custom_ops
        self.trial_time = trial_time
        self.seconds = min(_MOST, max(_LEAST, max_time * _SHARE))
        self.slots = executor.slots

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Outcome]]:
        """Run all, and give each outcome as it comes."""
        jobs = [self.job(request) for request in requests]
        for number, outcome in self.executor.run(jobs, self.trial_time):
            yield requests[number], outcome

    def job(self, request: Request) -> Job:
        """The trial behind a request."""
        return Job(
            self.contender(request.settings),
            self.contender(request.against),
            self.prepared.standard,
            Plan(pairs=_SESSIONS, seconds=self.seconds),
            None if request.thorough else quick_look(self.seconds / 3),
            request.bar,
            # All trials must have run on one kind of device; on the CPU a name tells too little to refuse.
            self.prepared.stamp.device,
        )

    def contender(self, settings: Settings) -> Contender:
        """A model under settings."""
        flat = dict(settings)
        source = self.models[flat.get(MODEL, "")]
        base = default_settings(self.prepared.provider, 0, self.custom_ops)
        return Contender(source.handle, apply_settings(base, RunSettings.of(self.prepared.provider, flat)))


class _Tuning:
    """One tuning on its way: files, notes, the recipe."""

    def __init__(self, model: Path, out: Path, force: bool, say: Callable[[str], None]) -> None:
        self.model = model
        self.out = out
        self.force = force
        self.say = say
        self.started = time.monotonic()
        self.notes: list[str] = []

    def written(self, target: str) -> Path:
        """Where a rewritten model goes: beside the recipe, named after its target."""
        return self.out.parent / f"{self.model.stem}.{target}.onnx"

    def require_free(self, targets: Sequence[str], reads: Sequence[str]) -> None:
        """Refuse to overwrite what was not made by a tuning before, or what this one reads.

        Raises:
            OutputError: A file exists already, or is read.
        """
        results = [self.out, *map(self.written, targets)]
        for number, path in enumerate(results):
            if not path.absolute().parent.is_dir():
                raise OutputError(f"cannot write '{path}': there is no folder '{path.parent}'; create it first")
            require_unread(path, [str(self.model)], reads)
            if any(is_same(str(path), str(other)) for other in results[:number]):
                raise OutputError(f"'{path}' is named for two results; name the recipe otherwise with -o")
            if not self.force and os.path.lexists(path):
                raise exists_already(path)

    def remark(self, prepared: Prepared, asked: str) -> None:
        """What is to be known of the device before anything is timed."""
        if asked.lower() == "auto" and prepared.provider == CPU:
            self.notes.append("CUDA does not start here (graphopt doctor says why): tuned for the CPU")
        if full_provider_name(asked) not in (prepared.provider, CUDA):
            self.notes.append(f"{asked} was asked for and {prepared.provider} runs")
        self.notes += prepared.notes

    def models(self, source: ModelSource, targets: Sequence[str], folder: Path) -> dict[str, ModelSource]:
        """The model as it was given, and optimized for each target."""
        found = {"": source}
        for target in targets:
            self.say(f"optimizing for {target}")
            path = folder / f"{target}.onnx"
            try:
                api.optimize(str(self.model), target=target).save(path)
            except UsageError:  # there is no such target
                raise
            except GraphoptError as error:
                self.notes.append(f"the model could not be optimized for {target} and competes as it is: {error}")
                continue
            found[target] = ModelSource(target, path=str(path))
        return found

    def finish(
        self,
        prepared: Prepared,
        found: Found,
        models: Mapping[str, ModelSource],
        asked: str,
        max_time: float,
        write: bool,
    ) -> Tuning:
        """Put the recipe together and write it."""
        if found.ran_out:
            left = sum(item.verdict == NOT_TRIED for item in found.records)
            self.notes.append(f"{max_time:g} s were over before all was tried (at least {left} candidates are left)")
        recipe = None
        if found.settings is not None:
            recipe = self._recipe(prepared, found, models, write)
            if write:
                write_recipe(recipe, self.out, force=self.force)
        return Tuning(
            recipe=recipe,
            path=str(self.out) if write and recipe is not None else "",
            provider_asked=asked,
            floor=prepared.floor,
            tf32_floor=prepared.tf32_floor,
            baseline_ok=prepared.baseline_ok,
            trials=tuple(found.records),
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.started,
        )

    def _recipe(self, prepared: Prepared, found: Found, models: Mapping[str, ModelSource], write: bool) -> Recipe:
        flat = dict(found.settings or ())
        original = fingerprint(self.model)
        run = original
        target = flat.get(MODEL, "")
        if target:
            path = Path(str(models[target].path))
            if write:
                staged = stage(load(str(path)), self.written(target))
                try:
                    staged.commit(replace=self.force)
                finally:
                    staged.discard()
                path = self.written(target)
            run = fingerprint(path)
        final = found.final
        errors = [final.error] if final is not None else list(prepared.floor.values())
        return Recipe(
            original=original,
            model=run,
            settings=RunSettings.of(prepared.provider, flat),
            stamp=prepared.stamp,
            sizes=prepared.feeds[0].sizes,
            feeds=labels([(feed.label, feed.sizes) for feed in prepared.feeds]),
            baseline_ms=final.against_ms if final is not None else found.baseline_ms,
            median_ms=final.median_ms if final is not None else found.baseline_ms,
            ratio=final.ratio if final is not None else 1.0,
            low=final.low if final is not None else math.nan,
            high=final.high if final is not None else math.nan,
            error=max(errors, default=0.0),
            max_error=dict(prepared.standard.limits),
            trials=tuple(found.records),
        )


__all__ = ["MAX_TIME", "Executor", "LocalExecutor", "RayExecutor", "Standard", "TrialRecord", "tune"]
