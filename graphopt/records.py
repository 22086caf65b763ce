"""Every result record: frozen, slotted, with a `to_json()` that carries a schema version."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RUNTIME_SCHEMA_VERSION = 1


# --- what the runtime said


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: records and tuples unfolded, infinities and NaN as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def runtime_document(record: Any, name: str) -> dict[str, Any]:
    """A record as a document that says what it is and which version of the form it has."""
    return {"schema": f"graphopt.{name}", "schema_version": RUNTIME_SCHEMA_VERSION, **_plain(record)}


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """How far one output of the rewritten model is from the original's, over all feeds.

    Attributes:
        name: The output.
        verdict: "equal", "different", "random" (the original differs from itself) or "not compared".
        reason: Why, in a few words.
        identical: Same bits in every feed with the runtime's optimizer off.
        error: Largest |difference| over largest |original value|, the runtime's optimizer off.
        error_as_users_run: The same for the run with default options; None where there was none.
        tolerance: What `error` was allowed to be; None where only the same bits would do or nothing had to be measured.
        floor_optimizer: The original with the runtime's optimizer on against off, same measure; None: not measured.
        floor_ulp: The original under a one-ulp change of its float inputs, same measure; None: not measured.
        tolerance_as_users_run: What `error_as_users_run` was allowed to be; None where nothing had to be measured.
        floor_sessions: The original against itself in another session of the same set-up, same measure; None: not
            measured.
        floor_tf32: The original with default options, TF32 on against off, same measure; None: not measured, or the
            provider has no TF32.
        mismatched: Elements that are not bit-equal, over all feeds.
        elements: Elements compared, over all feeds.
        worst_feed: The feed with the largest error.
    """

    name: str
    verdict: str
    reason: str = ""
    identical: bool = False
    error: float = 0.0
    error_as_users_run: float | None = None
    tolerance: float | None = None
    floor_optimizer: float | None = None
    floor_ulp: float | None = None
    tolerance_as_users_run: float | None = None
    floor_sessions: float | None = None
    floor_tf32: float | None = None
    mismatched: int = 0
    elements: int = 0
    worst_feed: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "output-diff")


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """How far the original is from itself, in the output that moves most.

    Attributes:
        name: What was changed between its two runs.
        value: Largest difference, in `unit`.
        output: The output that moves most.
        unit: Always "share of the output's largest value".
    """

    name: str
    value: float
    output: str = ""
    unit: str = "share of the output's largest value"

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "noise-floor")


@dataclass(frozen=True, slots=True)
class FeedRecord:
    """One set of inputs that was tried.

    Attributes:
        label: What it is, such as "sizes 1" or "data.npz".
        sizes: Shape of every input, as text.
        outcome: "compared", or why the feed covers nothing.
    """

    label: str
    sizes: Mapping[str, str]
    outcome: str = "compared"

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "feed")


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """Both models as decoders: a prefill, then steps, each side fed with the caches that it gave itself.

    Attributes:
        steps: Tokens generated.
        prompt: Tokens of the prefill, or of the past that a model without one began with.
        prefill: There was a prefill.
        chunk: Tokens of a second piece of prompt, taken in at once after the prefill; 0 where there was none.
        batch: Sequences generated at a time.
        caches: Pairs of past and present that were fed back.
        greedy: The tokens are the original's best, and were fed to both sides; otherwise they were drawn.
        tokens: The ids fed to each step, where they were chosen.
        tokens_equal: The rewritten model would have chosen the same everywhere; None where tokens were drawn.
        ties: How often it would have chosen another one, of scores that tie within the measured noise.
        identical: The same bits in every output of every step with the runtime's optimizer off.
        fault: What differs; empty where nothing does.
        outputs: One record for each output, over all steps.
    """

    steps: int
    prompt: int = 0
    prefill: bool = True
    chunk: int = 0
    batch: int = 1
    caches: int = 0
    greedy: bool = False
    tokens: tuple[tuple[int, ...], ...] = ()
    tokens_equal: bool | None = None
    ties: int = 0
    identical: bool = False
    fault: str = ""
    outputs: tuple[OutputDiff, ...] = ()

    def __str__(self) -> str:
        one = self.steps == 1
        if self.greedy:
            tied = f" ({self.ties} at a tie)" if self.ties else ""
            return f"over {self.steps} generated {'token' if one else 'tokens'}{tied}"
        return f"over {self.steps} {'step' if one else 'steps'} fed with what the step before gave"

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "generation")


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a rewritten model, and what it rests on.

    Attributes:
        verdict: "equal", "different" or "not verified".
        reason: One sentence; for "not verified" it ends with what to do.
        level: The level it was judged at.
        provider: The provider that really ran; empty where none did, several with commas between.
        provider_asked: What was asked for.
        provider_options: The user's options of the provider.
        against: The command of another runtime that ran the rewritten model; empty for ONNX Runtime.
        runtime: Version of ONNX Runtime.
        feeds: The inputs tried.
        outputs: One record for each output.
        inner: One record for each value inside both models that was compared, too.
        floors: How far the original is from itself, as far as it had to be measured.
        adversarial: The verdict on adversarial feeds alone; None where they were not asked for.
        rtol: Relative tolerance, where the user set one.
        atol: Absolute tolerance, where the user set one.
        opaque_nodes: Nodes that nothing can run and that were cut out on both sides.
        notes: Further sentences worth reading.
        seconds: How long it took.
        parts: One verdict for each provider where several were asked for; this record then has the worst of them.
        generation: Both as decoders; None for other models, and where a note says why not.
    """

    verdict: str
    reason: str
    level: str = "default"
    provider: str = ""
    provider_asked: str = "auto"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    against: str = ""
    runtime: str = ""
    feeds: tuple[FeedRecord, ...] = ()
    outputs: tuple[OutputDiff, ...] = ()
    inner: tuple[OutputDiff, ...] = ()
    floors: tuple[NoiseFloor, ...] = ()
    adversarial: Verification | None = None
    rtol: float | None = None
    atol: float | None = None
    opaque_nodes: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    parts: tuple[Verification, ...] = ()
    generation: GenerationRecord | None = None

    @property
    def equal(self) -> bool:
        """True for the verdict "equal" only."""
        return self.verdict == "equal"

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "verification")


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """What the judge of numeric classes says about one rewriting.

    Attributes:
        ok: The class holds on every feed that the original runs on.
        reason: What broke it, or what was covered.
        numeric: The class judged.
        feeds: Feeds compared.
        skipped: Feeds at which the original itself fails: they cover nothing.
        worst: The largest deviation met, in the unit of the class (ulp for U, error over allowance for R).
    """

    ok: bool
    reason: str
    numeric: str
    feeds: int = 0
    skipped: int = 0
    worst: float = 0.0

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "judgement")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `doctor` looked at.

    Attributes:
        name: What was looked at.
        ok: Nothing to mend.
        text: What was found, one line.
        remedy: The command that mends it, empty where nothing is to be mended.
    """

    name: str
    ok: bool
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "finding")


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The state of the machine as graphopt sees it.

    Attributes:
        versions: Package or program -> version.
        providers_listed: What the runtime says is available.
        providers_running: What really starts.
        devices: Names of accelerators.
        findings: What was checked.
    """

    versions: Mapping[str, str]
    providers_listed: tuple[str, ...]
    providers_running: tuple[str, ...]
    devices: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """True where nothing is to be mended."""
        return all(finding.ok for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "doctor")


# --- what the optimizer did


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One numbered rewrite.

    Attributes:
        number: Counted from 1 over the whole run; `--stop-after` takes it.
        rule: Who rewrote, `pass/rule`.
        erased: Names of the nodes that went.
        inserted: Operators of the nodes that came.
    """

    number: int
    rule: str
    erased: tuple[str, ...]
    inserted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bisection:
    """The search for the rewrite that makes a model wrong.

    Attributes:
        rewrites: How many there are in all.
        number: The first after which the model is wrong; 0 if none was found, `reason` says why.
        rule: Who rewrote, `pass/rule`.
        erased: Names of the nodes that went.
        inserted: Operators of the nodes that came.
        reason: What is wrong after it.
        trials: How many models were looked at.
        reproducer: The folder with the model cut down to the rewrite, before and after; None if none was written.
        reproducer_nodes: Operators in the cut.
        weights_stripped: True if its weights are random numbers.
        suspects: Where the time was up before one was found: the rules it is among.
    """

    rewrites: int
    number: int = 0
    rule: str = ""
    erased: tuple[str, ...] = ()
    inserted: tuple[str, ...] = ()
    reason: str = ""
    trials: int = 0
    reproducer: str | None = None
    reproducer_nodes: int = 0
    weights_stripped: bool = False
    suspects: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """True if a rewrite was found."""
        return self.number > 0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return {**runtime_document(self, "bisection"), "found": self.found}


@dataclass(frozen=True, slots=True)
class PassReport:
    """One pass in one sweep.

    Attributes:
        name: The pass.
        sweep: The sweep, counted from 1.
        status: `changed`, `nothing to do`, `failed`, `out of time`, or `taken back` with the reason.
        edits: Edits made.
        rewrites: Rewrites by rule.
        nodes_before: Operators before, bodies and functions included, constants not.
        nodes_after: Operators after.
        edges_before: Uses of values before.
        edges_after: Uses of values after.
        seconds: Time it took.
        error: What went wrong, empty if nothing did.
    """

    name: str
    sweep: int
    status: str
    edits: int
    rewrites: Mapping[str, int]
    nodes_before: int
    nodes_after: int
    edges_before: int
    edges_after: int
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class OptimizeReport:
    """What a run did.

    Attributes:
        passes: Every pass of every sweep, in the order in which they ran.
        sweeps: Sweeps over the passes.
        stopped_by: `fixed point`, `sweep limit`, `rewrite limit`, `deadline` or `rules keep feeding each other`.
        rewrites: Every rewrite, numbered.
        nodes_before: Operators before, bodies and functions included, constants not.
        nodes_after: Operators after.
        seconds: Time the passes took.
        notes: Remarks: what was left alone, and why.
        bytes_before: Size of the model read, external data included.
        bytes_after: Size of the model written, external data included; 0 until it is.
        operators_before: Operators by name before.
        operators_after: Operators by name after.
    """

    passes: tuple[PassReport, ...]
    sweeps: int
    stopped_by: str
    rewrites: tuple[Rewrite, ...]
    nodes_before: int
    nodes_after: int
    seconds: float
    notes: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    operators_before: Mapping[str, int] = field(default_factory=dict)
    operators_after: Mapping[str, int] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        """True if the passes found nothing more to do."""
        return self.stopped_by == "fixed point"

    @property
    def failures(self) -> tuple[PassReport, ...]:
        """The passes that failed and were rolled back."""
        return tuple(report for report in self.passes if report.error)

    @property
    def rewrites_by_rule(self) -> dict[str, int]:
        """How often each rule fired, in the order in which they first did."""
        counts: dict[str, int] = {}
        for report in self.passes:
            for rule, count in report.rewrites.items():
                counts[rule] = counts.get(rule, 0) + count
        return counts

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return {**runtime_document(self, "optimization"), "converged": self.converged}
