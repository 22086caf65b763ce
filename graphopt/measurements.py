"""Records of what was measured: times with their intervals, memory, placement, profiles; each has a `to_json()`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt.records import runtime_document

# Seconds of every timed run, one tuple for each session.
Samples = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The graph that the runtime really runs, after its own optimization at load.

    Attributes:
        nodes: Its nodes, bodies included, constants not.
        copies: `MemcpyToHost` and `MemcpyFromHost` among them: what crosses between host and device.
        providers: Provider -> nodes that ran on it in one run. Nodes in branches not taken are in none.
        on_host: Operators that the CPU ran although another provider was asked for -> how many.
        operators: Operator -> nodes.
        assigned: (node, operator, provider) for every node that ran, in the order in which they did.
    """

    nodes: int
    copies: int
    providers: Mapping[str, int] = field(default_factory=dict)
    on_host: Mapping[str, int] = field(default_factory=dict)
    operators: Mapping[str, int] = field(default_factory=dict)
    assigned: tuple[tuple[str, str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "placement")


@dataclass(frozen=True, slots=True)
class LatencySide:
    """Timings of one model.

    Attributes:
        label: The file, or what the model was called.
        median_ms: Median of all timed runs, milliseconds.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        runs: Timed runs, all sessions together.
        sessions: Sessions they were made in.
        load_seconds: Median time to make a session.
        file_bytes: Size of the model, external data included.
        peak_bytes: Peak resident memory of a process that only loads and runs it; None where it is not known.
        first_run_ms: Median of the first run of a session, before any warm-up.
        device_bytes: Device memory that such a process holds after its runs (what the runtime takes it does not give
            back, so that is the peak); None where there is no device or it is not known.
        unknown: Figure that is missing -> why.
        placement: The graph that really runs; None where it is not known.
        samples: Seconds of every timed run, by session.
    """

    label: str
    median_ms: float
    p90_ms: float
    p99_ms: float
    runs: int
    sessions: int
    load_seconds: float
    file_bytes: int
    peak_bytes: int | None = None
    first_run_ms: float = math.nan
    device_bytes: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    samples: Samples = ()

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "latency-side")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One more figure of both models, measured in the same sessions.

    Attributes:
        name: "throughput", "prefill" or "decode".
        unit: What `original` and `rewritten` count: "requests/s", "ms" or "tokens/s".
        original: The original's median.
        rewritten: The rewritten model's median.
        verdict: "faster", "slower", "no difference seen" or "too noisy to say".
        ratio: How many times faster the rewritten model is.
        low: Lower end of the interval of `ratio`.
        high: Upper end of it.
        detail: What was run, one phrase.
        samples: Seconds (of a request, a prefill, a step) of the original and of the rewritten model, by session.
    """

    name: str
    unit: str
    original: float
    rewritten: float
    verdict: str
    ratio: float
    low: float
    high: float
    detail: str = ""
    samples: tuple[Samples, Samples] = ((), ())

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "comparison")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What one group of nodes took.

    Attributes:
        name: The operator, kernel, or rule.
        original_ms: Milliseconds of one run of the original.
        rewritten_ms: Milliseconds of one run of the rewritten model.
        original_share: Share of all node time of the original.
        rewritten_share: The same for the rewritten model.
        original_count: Nodes (or kernel launches) in one run of the original.
        rewritten_count: The same for the rewritten model.
    """

    name: str
    original_ms: float
    rewritten_ms: float
    original_share: float
    rewritten_share: float
    original_count: int
    rewritten_count: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time goes, by the runtime's own profiler, in a process of its own for each side.

    A profiled run is slower than a plain one; shares are what to read.

    Attributes:
        clock: What operators and rewrites are counted by: "host" (time of each node's call) or "device" (time of the
            kernels that a node launched). Single nodes are always counted by the host.
        runs: Profiled runs of each side.
        original_ms: All node time of one run of the original.
        rewritten_ms: The same for the rewritten model.
        operators: By operator type.
        kernels: By kernel on the device; empty on the CPU.
        nodes: The single nodes that take most.
        rewrites: By the rule that took nodes away (before) or put them there (after); empty where it is not known.
    """

    clock: str
    runs: int
    original_ms: float
    rewritten_ms: float
    operators: tuple[ProfileRow, ...] = ()
    kernels: tuple[ProfileRow, ...] = ()
    nodes: tuple[ProfileRow, ...] = ()
    rewrites: tuple[ProfileRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "profile")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A comparison of two models by time, made in one run.

    Attributes:
        verdict: "faster", "slower", "no difference seen", "too noisy to say" or "not measured".
        reason: One sentence that says what the verdict rests on.
        ratio: How many times faster the rewritten model is (original time over rewritten time).
        low: Lower end of the interval of `ratio`.
        high: Upper end of it.
        confidence: Share that the interval covers.
        original: Timings of the original.
        rewritten: Timings of the rewritten model.
        provider: The provider that really ran.
        runtime: Version of ONNX Runtime.
        threads: Threads within an operator; 0 is the runtime's default.
        sizes: Shape of every input, as text.
        dims: The sizes of free dims that this point of a sweep asked for.
        comparisons: Throughput, prefill, decode, where they were measured.
        profile: Where the time goes, if that was asked for.
        runtime_does: Operator types of the original that the runtime removes by itself at load, with counts
            (before, after); filled in when nothing moved.
        notes: Further sentences worth reading.
        seconds: How long it took.
    """

    verdict: str
    reason: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = 0.99
    original: LatencySide | None = None
    rewritten: LatencySide | None = None
    provider: str = ""
    runtime: str = ""
    threads: int = 0
    sizes: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    profile: Profile | None = None
    runtime_does: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def lowest_high(self) -> float:
        """The smallest upper end of all intervals: below 1, something is surely slower."""
        ends = [self.high, *(item.high for item in self.comparisons)]
        return min((end for end in ends if not math.isnan(end)), default=math.nan)

    def without_samples(self) -> Benchmark:
        """The same without the single runs, of which there are thousands."""
        return replace(
            self,
            original=None if self.original is None else replace(self.original, samples=()),
            rewritten=None if self.rewritten is None else replace(self.rewritten, samples=()),
            comparisons=tuple(replace(item, samples=((), ())) for item in self.comparisons),
        )

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "benchmark")


@dataclass(frozen=True, slots=True)
class Sweep:
    """The same comparison at several sizes.

    Attributes:
        points: One comparison for each combination of sizes, in the order asked for.
        seconds: How long it took.
    """

    points: tuple[Benchmark, ...]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "benchmark-sweep")


# --- rewrites kept or left out by measurement


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of leaving one group of rewrites out.

    Attributes:
        group: A pass, or one rule of it as `pass/rule`.
        rewrites: How many rewrites the group makes.
        outcome: "kept" (it does not pay to leave it out), "left out" (it made the model slower), "wrong" (it made the
            model different, and is left out), "narrowed" (slower; it was found out which of its rules), "same graph"
            (the runtime runs the same graph without it), "needed" (the model cannot be made without it), or "not
            tried".
        reason: One sentence.
        ratio: How many times as fast the model is without the group; NaN where nothing was timed.
        low: Lower end of the 99 % interval of `ratio`.
        high: Upper end of it.
        seconds: How long it took.
    """

    group: str
    rewrites: int
    outcome: str
    reason: str = ""
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "trial")


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """Which groups of rewrites stayed, which were left out, and what that rests on.

    Attributes:
        outcome: "accepted", "nothing to gain" (the model is kept as it was), "different" or "not verified" (nothing is
            accepted), "not measured", or "not settled".
        reason: One sentence.
        trials: What was tried, in that order.
        skip: Passes left out, beside those that were asked for.
        disable: Rules left out, as `pass/rule`, beside those that were asked for.
        benchmark: The accepted result against the original; where there is nothing to gain, the best that was found.
        first: All rewrites together against the original, before any was left out for its speed.
        provider: The provider that everything was timed on.
        device: What it runs on, as the system names it.
        runtime: Version of ONNX Runtime.
        max_time: The time allowed, in seconds.
        seconds: The time it took.
        timings: How many comparisons were timed.
        out_of_time: True if groups were left untried because the time was up.
    """

    outcome: str
    reason: str
    trials: tuple[Trial, ...] = ()
    skip: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    benchmark: Benchmark | None = None
    first: Benchmark | None = None
    provider: str = ""
    device: str = ""
    runtime: str = ""
    max_time: float = math.nan
    seconds: float = 0.0
    timings: int = 0
    out_of_time: bool = False

    @property
    def dropped(self) -> tuple[Trial, ...]:
        """The groups that were left out, for being wrong or slow."""
        return tuple(trial for trial in self.trials if trial.outcome in ("wrong", "left out"))

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "acceptance")
