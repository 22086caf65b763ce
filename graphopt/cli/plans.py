"""Plans: what a run decided by clock or measurement, so that it can be repeated without them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError
from graphopt.measurements import AcceptanceReport
from graphopt.onnxio import load
from graphopt.onnxio.placing import write_document
from graphopt.pipeline import Registry
from graphopt.records import OptimizeReport

_SCHEMA = "graphopt.plan"
_KEPT = (
    "level",
    "target",
    "passes",
    "skip",
    "disable",
    "aggressive",
    "keep",
    "freeze_initializers",
    "fold_dequantize",
    "trust_dim_names",
    "growth_limit",
    "opset",
    "ort_version",
)


_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan prescribes.

    Attributes:
        settings: Options of `optimize`; nothing in them is timed.
        signature: The signature to give the model first, as fields of `Signature`.
        model: The fingerprint of the model it was made for, empty in old plans.
        loaded: The user's own passes it was made with -> a digest of their file.
    """

    settings: dict[str, Any]
    signature: dict[str, Any]
    model: str
    loaded: Mapping[str, str] = field(default_factory=dict)


def save_plan(
    path: Path,
    settings: Mapping[str, Any],
    signature: Mapping[str, Any],
    report: OptimizeReport,
    model: str,
    measured: AcceptanceReport | None = None,
    *,
    loaded: Iterable[str | os.PathLike[str]] = (),
    replace: bool = True,
) -> None:
    """Write the settings of a run and, where a clock or limit stopped it, the number of rewrites it kept.

    Args:
        path: The file.
        settings: The options of `optimize`.
        signature: The signature the model was given, as fields of `Signature`.
        report: What the run did.
        model: The fingerprint of the model as it was read.
        measured: What decided on the settings, where it was a measurement.
        loaded: The files of the user's own passes.
        replace: Whether it may take the place of another file.

    Raises:
        OutputError: the file exists and `replace` is not set, or it cannot be written.
    """
    stopped = None if report.converged else len(report.rewrites)
    document = {
        "schema": _SCHEMA,
        "schema_version": 3,
        "model": model,
        "signature": {name: value for name, value in signature.items() if value},
        "settings": {name: settings[name] for name in _KEPT if name in settings},
        "loaded": _digests(loaded),
        "stop_after": stopped,
        "rewrites": len(report.rewrites),
        "measured": None if measured is None else _measured(measured),
    }
    write_document(path, document, replace=replace)


def _measured(found: AcceptanceReport) -> dict[str, Any]:
    """What a reader of the plan wants to know of its making; nothing of it is needed to replay it."""
    document = found.to_json()
    figures = found.benchmark
    return {
        "outcome": found.outcome,
        "reason": found.reason,
        "provider": found.provider,
        "device": found.device,
        "runtime": found.runtime,
        "ratio": None if figures is None or math.isnan(figures.ratio) else figures.ratio,
        "interval": None if figures is None or math.isnan(figures.low) else [figures.low, figures.high],
        "sizes": {} if figures is None else dict(figures.sizes),
        "trials": document["trials"],
        "max_time": found.max_time,
        "seconds": found.seconds,
        "out_of_time": found.out_of_time,
    }


def _digests(files: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    return {Path(file).stem: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}


def require_same_passes(plan: Plan, files: Iterable[str]) -> None:
    """Refuse to replay a plan without the user's own passes it was made with, or with others.

    Raises:
        UsageError: a file is missing, or is not the one it was.
    """
    given = _digests([file for file in files if os.path.isfile(file)])
    for name, digest in plan.loaded.items():
        if name not in given:
            raise UsageError(f"the plan was made with --load {name}.py; load it, too")
        if given[name] != digest:
            raise UsageError(
                f"the plan was made with another {name}.py; load that one, write a new plan with --write-plan, or "
                "replay it all the same with --force"
            )


def require_known_passes(plan: Plan, registry: Registry) -> None:
    """Refuse to replay a plan that names passes which are not here.

    Raises:
        UsageError: a pass or rule is not known.
    """
    for option in ("passes", "skip", "disable", "aggressive"):
        for named in plan.settings.get(option) or ():
            name = str(named).partition("/")[0]
            if name in registry.passes:
                continue
            if name in plan.loaded:
                raise UsageError(f"the plan was made with --load {name}.py; load it, too")
            if ":" in name:
                advice = f"install the plugin '{name.partition(':')[0]}' that brings it"
            else:
                advice = f"if it was made with --load {name}.py, load it, too"
            raise UsageError(f"the plan names the pass '{name}', which is not here; {advice}, or write a new plan")


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        UsageError: the file is missing or is no plan.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the plan '{path}': {error.strerror}; check the path") from error
    except ValueError as error:
        raise UsageError(f"'{path}' is no plan: {error}; write one with --write-plan") from error
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA or "settings" not in document:
        raise UsageError(f"'{path}' is no plan of graphopt; write one with --write-plan")
    settings = {name: document["settings"][name] for name in _KEPT if name in document["settings"]}
    settings |= {"stop_after": document.get("stop_after"), "deadline": None}
    loaded = {str(name): str(digest) for name, digest in dict(document.get("loaded") or {}).items()}
    return Plan(settings, dict(document.get("signature", {})), str(document.get("model", "")), loaded)


def require_same_model(source: str, wanted: str) -> None:
    """Refuse to replay a plan on another model than it was made for: its count of rewrites would mean nothing.

    Raises:
        UsageError: the model is another one.
    """
    if wanted and fingerprint(source) != wanted:
        raise UsageError(
            f"the plan was made for another model than '{source}'; write one for this model with --write-plan, or "
            "replay it all the same with --force"
        )


def fingerprint(source: str) -> str:
    """A digest of a model file and of the data files it names: of these their sizes and samples of their bytes.

    Raises:
        ModelError: the model cannot be read.
    """
    graph = load(source)
    digest = hashlib.sha256()
    with open(source, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    files = graph.model.details["external_files"].mappings
    for location, mapping in sorted(files.items()):
        digest.update(f"{location} {mapping.size}".encode())
        step = max(mapping.size // _SAMPLES, _SAMPLE_BYTES)
        for start in range(0, mapping.size, step):
            digest.update(mapping.view[start : start + _SAMPLE_BYTES])
    return digest.hexdigest()
