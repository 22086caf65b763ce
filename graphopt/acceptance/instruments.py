"""What acceptance measures with: a comparison of answers, one of times, the graph the runtime runs, a clock."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphopt import runtime
from graphopt.measurements import Benchmark
from graphopt.records import Verification

Verify = Callable[[str, str], Verification]
"""Told the original and another file."""
Measure = Callable[[str, str, float, "runtime.Touched | None"], Benchmark]
"""Told two files and the seconds there are; and where time is to be told apart by rewrite, who touched which node."""
Digest = Callable[[str], str]
"""Told a file; equal texts for files that run as the same graph, empty where that cannot be said."""


_SHARED = ("provider", "provider_options", "dims", "shapes", "ranges", "seed", "data", "custom_ops")
"""Options that say where and on what models run, the same for comparing answers and times."""


@dataclass(frozen=True, slots=True)
class Instruments:
    """What acceptance measures with; tests put their own here.

    Attributes:
        verify: Compares answers.
        measure: Compares times.
        digest: Names the graph that the runtime runs.
        clock: Seconds that only go forward.
    """

    verify: Verify
    measure: Measure
    digest: Digest = lambda path: ""
    clock: Callable[[], float] = time.monotonic


def instruments(level: str, verify: Mapping[str, Any], bench: Mapping[str, Any]) -> Instruments:
    """The real ones.

    Args:
        level: The level to judge at.
        verify: Options of `graphopt.verify`.
        bench: Options of `graphopt.benchmark` beside those of `verify` that say where and on what models run; its time
            is divided up by whoever calls.
    """
    from graphopt.runtime.sameness import graph_digest

    feeds = {name: value for name, value in verify.items() if name in _SHARED}
    timed = on_first_provider({**feeds, **bench})
    timed = {name: value for name, value in timed.items() if name not in ("max_time", "touched", "profile")}

    def compare(original: str, rewritten: str) -> Verification:
        return runtime.verify(original, rewritten, level=level, **verify)

    def measure(one: str, other: str, seconds: float, touched: runtime.Touched | None) -> Benchmark:
        whole = touched is not None
        options: dict[str, Any] = {**timed, "max_time": seconds, "memory": whole, "placement": whole}
        if not whole:  # one figure decides; what stands beside it is for people
            options |= {"concurrency": 0, "decode": 0}
        return runtime.benchmark(one, other, touched=touched, profile=whole, **options).without_samples()

    def digest(path: str) -> str:
        return graph_digest(
            path,
            provider=timed.get("provider", "auto"),
            provider_options=timed.get("provider_options"),
            threads=timed.get("threads", 0),
            custom_ops=timed.get("custom_ops", ()),
        )

    return Instruments(compare, measure, digest)


def on_first_provider(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options for what runs on one provider: of several the first, and what options are for it."""
    from graphopt.runtime.providers import provider_names

    asked = options.get("provider", "auto")
    names = asked.split(",") if isinstance(asked, str) else list(asked)
    found = {**options, "provider": names[0].strip() if names else "auto"}
    if len(names) > 1 and options.get("provider_options"):
        own = provider_names(found["provider"])
        found["provider_options"] = {
            name: value
            for name, value in options["provider_options"].items()
            if ":" not in name or provider_names(name.partition(":")[0]) == own
        }
    return found


def device_name(provider: str) -> str:
    """What a provider runs on, as the system names it; empty where it does not."""
    if provider.startswith(("CUDA", "Tensorrt", "NvTensorRt")):
        from graphopt.runtime.diagnosis import nvidia_devices

        return next(iter(nvidia_devices()), "")
    if not provider:
        return ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        named = ""
    return named or platform.processor() or platform.machine()
