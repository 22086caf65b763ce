"""Plans: what a run decided by clock or measurement, so that it can be repeated without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphopt.errors import OutputError, UsageError
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
)


def save_plan(path: Path, settings: dict[str, Any], report: OptimizeReport) -> None:
    """Write the settings of a run and, where a clock or limit stopped it, the number of rewrites it kept.

    Raises:
        OutputError: the file cannot be written.
    """
    stopped = None if report.converged else len(report.rewrites)
    document = {
        "schema": _SCHEMA,
        "schema_version": 1,
        "settings": {name: settings[name] for name in _KEPT},
        "stop_after": stopped,
        "rewrites": len(report.rewrites),
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write the plan '{path}': {error.strerror}; choose another place") from error


def read_plan(path: Path) -> dict[str, Any]:
    """The settings a plan prescribes; nothing in it is timed.

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
    return {**settings, "stop_after": document.get("stop_after"), "deadline": None}
