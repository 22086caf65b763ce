"""Finding the rewrite that breaks a model, and a small model that shows it."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphopt import api
from graphopt.bisection.reproducer import (
    Data,
    cut,
    name_values,
    quietly,
    regions,
    strip_weights,
    watch,
    write_inputs,
)
from graphopt.bisection.search import first_bad
from graphopt.bisection.touched import Touched
from graphopt.errors import GraphoptError, OutputError, UsageError
from graphopt.ir import Graph
from graphopt.onnxio import load, save
from graphopt.onnxio.cutting import Region
from graphopt.onnxio.signature import Signature
from graphopt.pipeline import Registry, load_registry
from graphopt.records import Bisection, Rewrite

Say = Callable[[str], None]
Check = Callable[[str, str, Mapping[str, Data] | None], str]
"""Told two files, the original and the other, and perhaps inputs; says what is wrong with the other."""


def bisect(
    model: str | os.PathLike[str],
    *,
    command: str | None = None,
    optimize: Mapping[str, Any] | None = None,
    verify: Mapping[str, Any] | None = None,
    signature: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    strip: bool = False,
    say: Say = lambda text: None,
    max_time: float | None = None,
    registry: Registry | None = None,
) -> Bisection:
    """Find the first rewrite after which a model is wrong, and write a small model that shows it.

    Args:
        model: The model file.
        command: A command that fails (exit code not 0) on a bad model; `{}` stands for the file, else it is put at the
            end. By default outputs are compared with the original's.
        optimize: Options of `graphopt.optimize`; with `stop_after`, the search is among the rewrites up to it.
        verify: Options of `graphopt.verify`.
        signature: What the signature shall be, as the fields of `Signature`; the original is changed likewise.
        folder: Where the reproducer goes; None writes none.
        strip: Replace the weights of the reproducer by random ones, if it still shows the difference.
        say: Told what goes on.
        max_time: Seconds after which no further model is looked at; None for no limit.
        registry: The passes there are; default: the installed ones, and those of `load_files`.

    Raises:
        UsageError: the command cannot be started.
        OutputError: the folder exists already.
        ModelError: the model cannot be read.
    """
    if folder is not None and os.path.exists(folder):
        raise OutputError(f"'{folder}' exists already; remove it, or choose another with --out")
    options = dict(optimize or {})
    with tempfile.TemporaryDirectory(prefix="graphopt-") as scratch:
        job = _Bisection(str(model), options, dict(verify or {}), dict(signature or {}), Path(scratch), command, say)
        job.registry = registry or load_registry(options.get("load_files", ()))
        job.end = None if max_time is None else time.monotonic() + max_time
        return job.run(None if folder is None else Path(folder), strip)


class _OutOfTimeError(Exception):
    """The time is up in the middle of the search."""


class _Bisection:
    """One search on its way."""

    def __init__(
        self,
        model: str,
        optimize: dict[str, Any],
        verify: dict[str, Any],
        signature: dict[str, Any],
        scratch: Path,
        command: str | None,
        say: Say,
    ) -> None:
        self.model = model
        self.options = optimize
        self.verify = verify
        self.signature = signature
        self.scratch = scratch
        self.command = command
        self.say = say
        self.registry: Registry | None = None
        self.end: float | None = None
        self.reference = model
        self.within = (0, 0)

    def run(self, folder: Path | None, strip: bool) -> Bisection:
        """Search, then cut."""
        if self.signature:
            graph = load(self.model)
            api.change_signature(graph, Signature(**self.signature))
            self.reference = str(self.scratch / "reference.onnx")
            save(graph, self.reference)
        everything = self._optimize(self.options.get("stop_after"))
        rewrites = everything.report.rewrites
        last = max((item.number for item in rewrites), default=0)
        self.within = (1, last)
        try:
            found = first_bad(last, self._is_bad, self.say)
        except _OutOfTimeError:
            low, high = self.within
            among = list(dict.fromkeys(item.rule for item in rewrites if low <= item.number <= high))
            named = ", ".join(among[:_RULES_NAMED]) + (", …" if len(among) > _RULES_NAMED else "")
            why = f"the time was up; the first bad rewrite is one of {low} to {high}, made by {named}"
            return Bisection(rewrites=last, reason=why, suspects=tuple(among))
        if found is None or found.number == 0:
            why = self._nothing() if found is None else self._bad_at_once(found.reason)
            return Bisection(rewrites=last, reason=why, trials=1 if found is None else found.trials)
        after = self._optimize(found.number).report.rewrites
        guilty = next((item for item in after if item.number == found.number), after[-1])
        path, nodes, stripped = None, 0, False
        if folder is not None and not self._is_late():
            self.say(f"cutting the model down to rewrite {found.number}")
            path, nodes, stripped = self._reproduce(guilty, folder, strip)
        return Bisection(
            rewrites=last,
            number=found.number,
            rule=guilty.rule,
            erased=guilty.erased,
            inserted=guilty.inserted,
            reason=found.reason,
            trials=found.trials,
            reproducer=path,
            reproducer_nodes=nodes,
            weights_stripped=stripped,
        )

    def _nothing(self) -> str:
        """Why there is nothing to find."""
        if self.command is None:
            return "no difference was found after all rewrites"
        at_end = "" if "{}" in self.command else "; it has no {} in it, so the file was put at its end"
        return f"'{self.command}' finds no difference after all rewrites{at_end}"

    def _bad_at_once(self, reason: str) -> str:
        """What to do where the model is bad before anything was rewritten."""
        if self.command is None:
            return f"bad as it is: {reason}; no rewrite is to blame"
        at_end = "" if "{}" in self.command else " (it has no {} in it, so the file was put at its end)"
        return (
            f"bad as it is, before any rewrite: {reason}{at_end}; so the check is what to mend: it has to succeed on "
            "the original and fail on what was rewritten"
        )

    # --- looking at one model

    def _optimize(self, stop_after: int | None, prepare: Callable[[Graph], None] | None = None) -> api.Result:
        options = {**self.options, **self.signature, "stop_after": stop_after, "measure": False}
        return api.optimize(self.model, prepare=prepare, registry=self.registry, **options)

    def _is_bad(self, number: int) -> str:
        if self._is_late():
            raise _OutOfTimeError
        path = self.scratch / "trial.onnx"
        self._optimize(number).save(path)
        reason = self._check(self.reference, str(path), None)
        low, high = self.within
        if low <= number <= high:
            self.within = (low, number) if reason else (number + 1, high)
        return reason

    def _is_late(self) -> bool:
        return self.end is not None and time.monotonic() > self.end

    def _check(self, original: str, other: str, inputs: Mapping[str, Data] | None) -> str:
        """What is wrong with a model, beside the original; empty if nothing is."""
        if self.command is not None:
            return _run(self.command, other)
        options = dict(self.verify)
        if inputs is not None:
            for name in ("dims", "shapes", "ranges", "data"):
                options.pop(name, None)
            options["feeds"] = [inputs]
        result = api.verify(original, other, level=self.options.get("level", "default"), **options)
        return result.reason if result.verdict == "different" else ""

    # --- cutting

    def _reproduce(self, guilty: Rewrite, folder: Path, strip: bool) -> tuple[str | None, int, bool]:
        """Write the smallest cut that shows the difference; None if no cut does."""
        touched = self._touched(guilty.number)
        graph = self._before(guilty)
        for size in range(len(regions(graph, touched.nodes(graph)))):
            if self._is_late():
                break
            if self._try(guilty, touched, size, strip=False):
                stripped = strip and bool(self._try(guilty, touched, size, strip=True))
                if strip and not stripped:
                    self._try(guilty, touched, size, strip=False)
                nodes = load(str(self.scratch / "before.onnx")).operator_count
                return self._keep(folder), nodes, stripped
        return None, 0, False

    def _before(self, guilty: Rewrite) -> Graph:
        return self._optimize(guilty.number - 1).graph

    def _touched(self, number: int) -> Touched:
        heard: list[Touched] = []

        def listen(graph: Graph) -> None:
            heard.append(Touched(graph.model, number))
            graph.model.listen(heard[0])

        self._optimize(number, listen)
        return heard[0]

    def _try(self, guilty: Rewrite, touched: Touched, size: int, *, strip: bool) -> str:
        """Cut out the region of that size, apply the guilty rule alone, and say what is wrong then."""
        for inputs in self._inputs_of(guilty, touched, size):
            said = self._on(inputs, guilty, touched, size, strip)
            if said:
                return said
        return ""

    def _on(self, inputs: dict[str, Data], guilty: Rewrite, touched: Touched, size: int, strip: bool) -> str:
        def attempt() -> str:
            graph = self._before(guilty)
            region = self._region(graph, touched, size)
            cut(graph, region, inputs)
            if strip:
                strip_weights(graph)
            before, after = self.scratch / "before.onnx", self.scratch / "after.onnx"
            save(graph, before)
            self._alone(guilty, before).save(after)
            given = {name: inputs[name] for name in (value.name or "" for value in graph.inputs) if name in inputs}
            (self.scratch / "inputs.npz").unlink(missing_ok=True)
            write_inputs(self.scratch / "inputs.npz", given)
            if self.command is not None and self._check(str(before), str(before), None):
                return ""  # the command fails on the cut itself: it shows something else
            return self._check(str(before), str(after), given)

        return quietly(attempt)

    def _region(self, graph: Graph, touched: Touched, size: int) -> Region:
        region = regions(graph, touched.nodes(graph))[size]
        name_values(graph, region)
        return region

    def _inputs_of(self, guilty: Rewrite, touched: Touched, size: int) -> list[dict[str, Data]]:
        """What the model itself feeds the region with, for each set of inputs it is compared on."""
        from graphopt import runtime

        graph = self._before(guilty)
        region = self._region(graph, touched, size)
        watch(graph, region)
        path = self.scratch / "watched.onnx"
        save(graph, path)
        names = [value.name or "" for value in region.inputs]
        try:
            sampled = runtime.sample(path, **_feed_options(self.verify))
        except GraphoptError:
            return []
        known = [{**feed, **outputs} for feed, outputs in sampled]
        return [{name: values[name] for name in names if name in values} for values in known]

    def _alone(self, guilty: Rewrite, path: Path) -> api.Result:
        """The guilty rule, and nothing else, on a model."""
        name, _, rule = guilty.rule.partition("/")
        assert self.registry is not None
        others = [f"{name}/{item.name}" for item in self.registry.find(name).items if item.name != rule]
        options = {key: value for key, value in self.options.items() if key not in _WHOLE_RUN}
        return api.optimize(str(path), registry=self.registry, passes=[name], disable=others, **options)

    def _keep(self, folder: Path) -> str:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder '{folder}': {error.strerror}; choose another") from error
        for name in ("before.onnx", "after.onnx"):
            save(load(str(self.scratch / name)), folder / name)
        inputs = self.scratch / "inputs.npz"
        if inputs.exists():
            (folder / "inputs.npz").write_bytes(inputs.read_bytes())
        return str(folder)


_RULES_NAMED = 6
_WHOLE_RUN = frozenset(("passes", "skip", "disable", "stop_after", "deadline", "keep", "load_files"))
"""Options that make no sense for one rule on a cut."""


def _feed_options(verify: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: verify[name]
        for name in ("provider", "dims", "shapes", "ranges", "seed", "data", "custom_ops")
        if name in verify
    }
    asked = found.get("provider", "auto")  # what flows through the model is asked of one
    names = asked.split(",") if isinstance(asked, str) else list(asked)
    return {**found, "provider": names[0].strip()}


def _run(command: str, path: str) -> str:
    """Run a command on a file; says how it ended if not well."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f'cannot read the command "{command}": {error}; check --check') from error
    if not words:
        raise UsageError("the command is empty; check --check")
    words = [word.replace("{}", path) for word in words] if "{}" in command else [*words, path]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"cannot run '{words[0]}': {error.strerror}; check --check") from error
    if ended.returncode == 0:
        return ""
    last = (ended.stderr or ended.stdout).strip().splitlines()
    return f"'{command}' ended with {ended.returncode}" + (f": {last[-1]}" if last else "")
