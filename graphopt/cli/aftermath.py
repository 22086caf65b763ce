"""After a result that differs: which rewrite it was, a small model that shows it, and what to type next."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.errors import GraphoptError
from graphopt.pipeline import Registry
from graphopt.records import Bisection, OptimizeReport

if TYPE_CHECKING:
    from graphopt.cli.job import Job

BISECT_SECONDS = 120.0
"""What the search at the end of a failed run may take; `graphopt bisect` takes what it needs."""
_FLAGS = ("freeze_initializers", "trust_dim_names")
_LISTS = ("passes", "skip", "aggressive")
_NOT_IN_BISECT = ("keep", "fold_dequantize", "stop_after", "deadline", "ort_version")
_GROWTH_LIMIT = 1 << 20
_DECODE = 8


def find_guilty(job: Job, report: OptimizeReport, registry: Registry, say: Callable[[str], None]) -> Bisection | None:
    """Find the rewrite after which the result differs, in the time there is for it.

    Returns:
        What was found, or why nothing was; None if nobody wants to know.
    """
    if not job.bisect or not report.rewrites:
        return None
    from graphopt.bisection import bisect

    options = {**job.optimize, "deadline": None, "strict": False, "stop_after": len(report.rewrites)}
    try:
        return bisect(
            job.source,
            optimize=options,
            verify=dict(job.verify or {}),
            signature={name: value for name, value in job.signature.items() if value},
            folder=job.bisect_out or free_folder(job.target),
            say=lambda text: say(f"outputs differ; looking for the rewrite: {text}"),
            max_time=BISECT_SECONDS,
            registry=registry,
        )
    except GraphoptError as error:  # the verdict stands whatever becomes of the search
        return Bisection(len(report.rewrites), reason=f"the search for the rewrite failed: {error}")


def free_folder(target: str) -> str:
    """Where the small model goes: `NAME.bisect` beside the result, or the first free `NAME.bisect-2` and so on."""
    stem = Path(target).with_suffix("")
    names = (f"{stem}.bisect" if number == 1 else f"{stem}.bisect-{number}" for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def without_it(job: Job, rule: str) -> str:
    """The command line that goes on without a rule."""
    if "/" not in rule:
        return ""
    return shlex.join(["graphopt", *job.command, "--disable", rule]) if job.command else f"--disable {rule}"


def look_closer(job: Job) -> str:
    """The command line that searches once more, with as much time as it takes; empty where no such line says it all."""
    settings, verify = job.optimize, dict(job.verify or {})
    signature = {name: value for name, value in job.signature.items() if value}
    if any(settings.get(name) for name in _NOT_IN_BISECT) or set(signature) - {"fix_dims"}:
        return ""
    if settings.get("target", "portable") != "portable" or settings.get("growth_limit", _GROWTH_LIMIT) != _GROWTH_LIMIT:
        return ""
    if any(verify.get(name) is not None for name in ("runs", "rtol", "atol")) or verify.get("provider_options"):
        return ""
    if not isinstance(verify.get("provider", "auto"), str) or verify.get("decode") not in (None, _DECODE):
        return ""
    words = ["graphopt", "bisect", job.source]
    words += [word for name in settings.get("load_files", ()) for word in ("--load", name)]
    if settings.get("level", "default") != "default":
        words += ["--level", settings["level"]]
    for name in _LISTS:
        if settings.get(name):
            words += [f"--{name}", ",".join(settings[name])]
    words += [word for name in settings.get("disable", ()) for word in ("--disable", name)]
    words += [f"--{name.replace('_', '-')}" for name in _FLAGS if settings.get(name)]
    if settings.get("opset") is not None:
        words += ["--opset", str(settings["opset"])]
    words += _pairs("--fix-dim", signature.get("fix_dims", {}), str)
    return shlex.join([*words, *_feed_words(verify)])


def _feed_words(verify: dict[str, Any]) -> list[str]:
    provider = verify.get("provider", "auto")
    words = [] if provider == "auto" else ["--provider", provider]
    words += _pairs("--dim", verify.get("dims", {}), str)
    words += _pairs("--shape", verify.get("shapes", {}), lambda shape: ",".join(map(str, shape)))
    words += _pairs("--range", verify.get("ranges", {}), lambda ends: f"{ends[0]:g}:{ends[1]:g}")
    if verify.get("data"):
        words += ["--data", str(verify["data"])]
    if verify.get("seed"):
        words += ["--seed", str(verify["seed"])]
    return words + [word for name in verify.get("custom_ops", ()) for word in ("--custom-ops", str(name))]


def _pairs(option: str, values: dict[str, Any], text: Callable[[Any], str]) -> list[str]:
    return [word for name, value in values.items() for word in (option, f"{name}={text(value)}")]
