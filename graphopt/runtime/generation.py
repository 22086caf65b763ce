"""A decoder at work: one prefill, then steps that are fed what the step before gave. It runs in the worker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.runtime.session import CUDA, Session, runtime
from graphopt.runtime.values import Data, to_ort, to_ort_value

PREFILL, DECODE = "prefill", "decode"
_PREFILLS = 3
_QUICK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Generation:
    """The inputs of one generation.

    Attributes:
        pairs: (input that holds the past, output that becomes it) for every cache that grows.
        prefill: All inputs of the first run; None for a model that only steps, then `start` holds the first past.
        steps: Inputs of each step, without the pasts.
        start: The past of the first step where there is no prefill.
        batch: Sequences generated at a time.
        prompt: Tokens that the prefill takes in, or that the first past holds.
        once: (input, output of the prefill) for caches that do not grow, such as those of cross attention.
        ids: The input that takes the ids of tokens in; empty where it takes none.
        chunk: Tokens that the first of the steps takes in at once; 0 where it takes one as the others do.
    """

    pairs: tuple[tuple[str, str], ...]
    prefill: Mapping[str, Data] | None
    steps: tuple[Mapping[str, Data], ...]
    start: Mapping[str, Data]
    batch: int = 1
    prompt: int = 0
    once: tuple[tuple[str, str], ...] = ()
    ids: str = ""
    chunk: int = 0


def steps_within(session: Session, generation: Generation, seconds: float, least: int) -> int:
    """How many steps one generation makes in a time, `least` in any case: generates once."""
    started = time.perf_counter()
    made = itertools.count(1)
    counted = generator(session, generation, lambda: next(made) > least and time.perf_counter() - started > seconds)
    return len(counted().get(DECODE, ()))


def generator(
    session: Session, generation: Generation, ends: Callable[[], bool] = lambda: False
) -> Callable[[], dict[str, list[float]]]:
    """A meter: each call generates once and gives seconds of the prefill and of every step.

    Only the runs are timed, not the making and binding of inputs; pasts stay where the run left them.

    Args:
        session: What runs.
        generation: Its inputs.
        ends: Asked before each step whether to leave it and all further ones out.
    """
    make = _hold(session)
    prefill = None if generation.prefill is None else make(generation.prefill)
    steps: list[dict[str, Any]] = []  # made when they are first needed: there may be thousands
    start = make(generation.start)
    run = _bound(session) if session.info.provider == CUDA else _plain(session)

    def generate() -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        past, kept = dict(start), dict(start)
        if prefill is not None:
            seconds, outputs = run(prefill)
            # The first is not counted where the other side has just had the caches.
            repeats = _PREFILLS if seconds < _QUICK_SECONDS else 0
            times[PREFILL] = [run(prefill)[0] for _ in range(repeats)] or [seconds]
            kept |= {name: outputs[source] for name, source in generation.once}
            past = {**kept, **{name: outputs[source] for name, source in generation.pairs}}
        taken = []
        for number, step in enumerate(generation.steps):
            if ends():
                break
            if number == len(steps):
                steps.append(make(step))
            seconds, outputs = run({**steps[number], **past})
            taken.append(seconds)
            past = {**kept, **{name: outputs[source] for name, source in generation.pairs}}
        if taken:
            times[DECODE] = taken
        return times

    return generate


def _hold(session: Session) -> Callable[[Mapping[str, Data]], dict[str, Any]]:
    """Makes the runtime's values of arrays, on the device where there is one."""
    ort = runtime()
    types = {port.name: port.type for port in session.info.inputs}
    on_device = session.info.provider == CUDA

    def make(values: Mapping[str, Data]) -> dict[str, Any]:
        made = {}
        for name, value in values.items():
            ready = to_ort(value, types.get(name, ""), ort)
            if on_device and not isinstance(ready, ort.OrtValue):
                made[name] = ort.OrtValue.ortvalue_from_numpy(ready, "cuda", 0)
            else:
                made[name] = to_ort_value(ready, ort)
        return made

    return make


def _plain(session: Session) -> Callable[[Mapping[str, Any]], tuple[float, dict[str, Any]]]:
    names = [port.name for port in session.info.outputs]
    raw = session.raw

    def run(values: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        started = time.perf_counter()
        results = raw.run_with_ort_values(names, values)
        return time.perf_counter() - started, dict(zip(names, results, strict=True))

    return run


def _bound(session: Session) -> Callable[[Mapping[str, Any]], tuple[float, dict[str, Any]]]:
    names = [port.name for port in session.info.outputs]
    raw = session.raw

    def run(values: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        binding = raw.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, "cuda")
        started = time.perf_counter()
        raw.run_with_iobinding(binding)
        binding.synchronize_outputs()
        seconds = time.perf_counter() - started
        return seconds, dict(zip(names, binding.get_outputs(), strict=True))

    return run
