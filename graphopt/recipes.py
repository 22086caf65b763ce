"""Records of tuning: settings of the runtime, the recipe that keeps them, and what was tried to find them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphopt.errors import RecipeError
from graphopt.records import runtime_document

RECIPE_SCHEMA = "graphopt.recipe"
RECIPE_VERSION = 1
SESSION_ATTRIBUTES: Mapping[str, type] = {
    "enable_cpu_mem_arena": bool,
    "enable_mem_pattern": bool,
    "enable_mem_reuse": bool,
    "execution_mode": str,
    "graph_optimization_level": str,
    "inter_op_num_threads": int,
    "intra_op_num_threads": int,
    "use_deterministic_compute": bool,
}
"""Attributes of `onnxruntime.SessionOptions` that a recipe may set, with the type of their values."""
MODEL = "model"
"""The setting that stands for the model itself: as it was given, or optimized for a target."""

# Settings by name, as text: attributes of the session options, session configuration entries (their names have dots),
# options of the provider, and `MODEL`.
Flat = Mapping[str, str]


class RecipeWarning(UserWarning):
    """A recipe is applied where it was not tuned, or cannot be applied in full; the message says what differs."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is set otherwise than the runtime's defaults, in the three places where the runtime takes it.

    Attributes:
        provider: The runtime's name of the provider.
        session: Attributes of `SessionOptions`.
        entries: Session configuration entries.
        provider_options: Options of the provider.
    """

    provider: str
    session: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(provider: str, flat: Flat) -> RunSettings:
        """Put settings where they belong; the model is none of the runtime's.

        Raises:
            RecipeError: An attribute of the session has a value of another type.
        """
        session: dict[str, Any] = {}
        entries: dict[str, str] = {}
        options: dict[str, str] = {}
        for name, text in flat.items():
            if name in SESSION_ATTRIBUTES:
                session[name] = _typed(name, text)
            elif name != MODEL:
                (entries if "." in name else options)[name] = text
        return RunSettings(provider, session, entries, options)

    def flat(self) -> dict[str, str]:
        """The same as text by name."""
        session = {
            name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in self.session.items()
        }
        return {**session, **self.entries, **self.provider_options}


def _typed(name: str, text: str) -> Any:
    kind = SESSION_ATTRIBUTES[name]
    if kind is str:
        return text
    try:
        return kind(int(text))
    except ValueError as error:
        raise RecipeError(f"{name} takes a number, not '{text}'; correct it") from error


def settings_text(flat: Flat) -> str:
    """Settings in one line, as they are typed."""
    return ", ".join(f"{name}={value}" for name, value in flat.items()) or "the runtime's defaults"


@dataclass(frozen=True, slots=True)
class ModelStamp:
    """What a model file was when it was looked at.

    Attributes:
        file: Its name, without the folder.
        sha256: Of the file.
        external: Files of external data -> size and hash of samples of their bytes.
    """

    file: str
    sha256: str
    external: Mapping[str, str] = field(default_factory=dict)

    def is_same(self, other: ModelStamp) -> bool:
        """The same contents, whatever the file is called."""
        return self.sha256 == other.sha256 and dict(self.external) == dict(other.external)


@dataclass(frozen=True, slots=True)
class DeviceStamp:
    """Where something was measured.

    Attributes:
        device: Name of the GPU, or of the processor with its cores.
        driver: Version of the GPU's driver; empty on a CPU.
        cuda: Version of CUDA that the runtime is made for; empty on a CPU.
        runtime: Version of ONNX Runtime.
        graphopt: Version of graphopt.
        system: Operating system and machine.
    """

    device: str
    driver: str = ""
    cuda: str = ""
    runtime: str = ""
    graphopt: str = ""
    system: str = ""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One candidate and what became of it.

    Attributes:
        settings: All that was set.
        against: What it was timed against.
        verdict: "faster", "no faster", "slower", "outdone" (by another candidate of its kind, at a first look),
            "refused" or "not tried".
        reason: Why, one sentence.
        error: Largest |difference| / largest |value| of the original, not optimized, over all outputs and feeds.
        output: The output in which it is largest.
        median_ms: Median time of a run.
        ratio: How many times faster than `against`.
        low: Lower end of the interval of `ratio`.
        high: Upper end of it.
        kept: Part of the recipe.
        device: What it ran on.
        seconds: How long the trial took.
    """

    settings: Flat
    against: Flat = field(default_factory=dict)
    verdict: str = "not tried"
    reason: str = ""
    error: float = math.nan
    output: str = ""
    median_ms: float = math.nan
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    kept: bool = False
    device: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to run one model on one device: what was set, where it was measured, and what it brought.

    Attributes:
        original: The model that was tuned.
        model: The model to run: the same, or a rewritten one in the same folder.
        settings: What is set otherwise than the runtime's defaults.
        stamp: Where it was measured.
        sizes: Shape of every input it was timed at.
        feeds: What else outputs were compared at: label and shapes, one line each.
        baseline_ms: Median time of the original with the runtime's defaults, timed in alternation with the recipe.
        median_ms: Median time with the recipe.
        ratio: How many times faster.
        low: Lower end of the interval of `ratio`.
        high: Upper end of it.
        confidence: Share that the interval covers.
        error: Largest error of an output, as a share of its largest value, against the original unoptimized.
        max_error: Output -> what its error was allowed to be.
        trials: All that was tried, those that were refused with their reasons.
    """

    original: ModelStamp
    model: ModelStamp
    settings: RunSettings
    stamp: DeviceStamp
    sizes: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[str, ...] = ()
    baseline_ms: float = math.nan
    median_ms: float = math.nan
    ratio: float = 1.0
    low: float = math.nan
    high: float = math.nan
    confidence: float = 0.99
    error: float = math.nan
    max_error: Mapping[str, float] = field(default_factory=dict)
    trials: tuple[TrialRecord, ...] = ()

    @property
    def is_default(self) -> bool:
        """Nothing is set and the model is as it was given."""
        return not self.settings.flat() and self.model.is_same(self.original)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document, which is what a recipe file holds."""
        document = runtime_document(self, "recipe")
        return {**document, "schema": RECIPE_SCHEMA, "schema_version": RECIPE_VERSION}

    @staticmethod
    def from_json(document: Any) -> Recipe:
        """The record behind a document.

        Raises:
            RecipeError: It is no recipe, or one of another version.
        """
        if not isinstance(document, dict) or document.get("schema") != RECIPE_SCHEMA:
            raise RecipeError("this is no recipe of graphopt; make one with graphopt tune")
        if document.get("schema_version") != RECIPE_VERSION:
            raise RecipeError(
                f"the recipe has version {document.get('schema_version')} of the form and this graphopt reads "
                f"{RECIPE_VERSION}; tune the model anew"
            )
        known = {name: document[name] for name in Recipe.__dataclass_fields__ if name in document}
        try:
            return Recipe(
                **{
                    **known,
                    "original": ModelStamp(**document["original"]),
                    "model": ModelStamp(**document["model"]),
                    "settings": _run_settings(document["settings"]),
                    "stamp": DeviceStamp(**document["stamp"]),
                    "feeds": tuple(document.get("feeds", ())),
                    "trials": tuple(TrialRecord(**_numbers(trial)) for trial in document.get("trials", ())),
                    **{name: float(document[name]) for name in _FIGURES if name in document},
                    "max_error": {name: float(value) for name, value in document.get("max_error", {}).items()},
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecipeError(f"the recipe is damaged ({error}); tune the model anew") from error


_FIGURES = ("baseline_ms", "median_ms", "ratio", "low", "high", "confidence", "error")


def _numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    """A trial as it was: figures that are not finite are text in JSON."""
    figures = ("error", "median_ms", "ratio", "low", "high", "seconds")
    return {name: float(value) if name in figures else value for name, value in document.items()}


def _run_settings(document: Mapping[str, Any]) -> RunSettings:
    """Settings from a file, which anybody may have edited: only what the runtime takes, of the right type."""
    settings = RunSettings(
        str(document["provider"]),
        dict(document.get("session", {})),
        {str(name): str(value) for name, value in document.get("entries", {}).items()},
        {str(name): str(value) for name, value in document.get("provider_options", {}).items()},
    )
    for name, value in settings.session.items():
        kind = SESSION_ATTRIBUTES.get(name)
        if kind is None:
            raise ValueError(f"session options have no '{name}' that a recipe may set")
        if type(value) is not kind:
            raise ValueError(f"'{name}' is a {kind.__name__}")
    return settings


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search for the fastest settings of a model.

    Attributes:
        recipe: What was found; None where nothing stays within the allowed error.
        path: Where the recipe was written; empty where it was not.
        provider_asked: What was asked for.
        floor: Output -> error of the runtime's defaults, which is what they differ from the unoptimized original by.
        tf32_floor: Output -> what TF32 alone does to it, where that was measured.
        baseline_ok: Whether the runtime's defaults are within the allowed error.
        trials: All candidates in the order they were tried; what the time did not allow stands last.
        notes: Further sentences worth reading.
        seconds: How long it took.
    """

    recipe: Recipe | None
    path: str = ""
    provider_asked: str = "auto"
    floor: Mapping[str, float] = field(default_factory=dict)
    tf32_floor: Mapping[str, float] = field(default_factory=dict)
    baseline_ok: bool = True
    trials: tuple[TrialRecord, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return runtime_document(self, "tuning")
