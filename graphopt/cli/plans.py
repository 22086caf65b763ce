"""Plans: what a run decided by clock or measurement, so that it can be repeated without them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt.errors import OutputError, UsageError
from graphopt.onnxio import load
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
)


_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan prescribes.

    Attributes:
        settings: Options of `optimize`; nothing in them is timed.
        signature: The signature to give the model first, as fields of `Signature`.
        model: The fingerprint of the model it was made for, empty in old plans.
    """

    settings: dict[str, Any]
    signature: dict[str, Any]
    model: str


def save_plan(
    path: Path, settings: dict[str, Any], signature: dict[str, Any], report: OptimizeReport, model: str
) -> None:
    """Write the settings of a run and, where a clock or limit stopped it, the number of rewrites it kept.

    Args:
        path: The file.
        settings: The options of `optimize`.
        signature: The signature the model was given, as fields of `Signature`.
        report: What the run did.
        model: The fingerprint of the model as it was read.

    Raises:
        OutputError: the file cannot be written.
    """
    stopped = None if report.converged else len(report.rewrites)
    document = {
        "schema": _SCHEMA,
        "schema_version": 2,
        "model": model,
        "signature": {name: value for name, value in signature.items() if value},
        "settings": {name: settings[name] for name in _KEPT},
        "stop_after": stopped,
        "rewrites": len(report.rewrites),
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write the plan '{path}': {error.strerror}; choose another place") from error


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
    return Plan(settings, dict(document.get("signature", {})), str(document.get("model", "")))


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
