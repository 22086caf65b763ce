"""Targets: `portable`, `ort-cpu` and `ort-cuda`, with what each may emit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError
from graphopt.targets.probes import MICROSOFT
from graphopt.tensors import DType

_TABLES = Path(__file__).parent / "kernels"
_PROVIDERS = {"ort-cpu": "cpu", "ort-cuda": "cuda"}

Kernels = Mapping[str, frozenset[DType]]
"""`domain::operator` -> element types the provider has a kernel for."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a result is made for.

    Attributes:
        name: `portable`, `ort-cpu` or `ort-cuda`.
        version: ONNX Runtime's version the kernels are those of, such as `1.31`; empty for `portable`.
        kernels: What the provider has kernels for, of the operators a rewrite may emit.
    """

    name: str
    version: str = ""
    kernels: Kernels = field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """True if only operators of the standard domains may be emitted."""
        return not self.version

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers, such as (1, 31); empty for `portable`."""
        return _parts(self.version)[:2] if self.version else ()

    @property
    def is_cuda(self) -> bool:
        """True if the result is made for NVIDIA GPUs."""
        return self.name == "ort-cuda"

    def runs(self, op_type: str, dtype: DType | None, domain: str = MICROSOFT) -> bool:
        """True if the target has a kernel of its own for the operator on tensors of that element type."""
        return dtype is not None and dtype in self.kernels.get(f"{domain}::{op_type}", ())


PORTABLE = Target("portable")
"""The target of models that shall run anywhere."""

TARGETS = (PORTABLE.name, *_PROVIDERS)
"""The names of all targets."""


@cache
def target_named(name: str, version: str | None = None) -> Target:
    """The target of that name.

    Args:
        name: One of `TARGETS`.
        version: Emit nothing that this version of ONNX Runtime has no kernel for, such as `1.22`; None for the newest
            known.

    Raises:
        UsageError: there is no such target, or nothing is known of that version.
    """
    if name == PORTABLE.name:
        if version is not None:
            raise UsageError("--ort-version limits the targets ort-cpu and ort-cuda; name one with --target")
        return PORTABLE
    if name not in _PROVIDERS:
        raise UsageError(f"there is no target '{name}'; choose one of {', '.join(TARGETS)}")
    versions = _versions(name)
    chosen = max(versions, key=_parts) if version is None else _nearest(version, versions, name)
    names = {dtype.text: dtype for dtype in DType}
    kernels = {key: frozenset(names[text] for text in texts) for key, texts in versions[chosen].items()}
    return Target(name, chosen, kernels)


def _versions(name: str) -> dict[str, dict[str, list[str]]]:
    """What is known of each version of ONNX Runtime: the operators it has kernels for, and their types."""
    document = json.loads((_TABLES / f"{_PROVIDERS[name]}.json").read_text())
    versions: dict[str, dict[str, list[str]]] = document["versions"]
    return versions


def _nearest(version: str, versions: Mapping[str, Any], name: str) -> str:
    """The newest version known that is not newer than the one asked for.

    Raises:
        UsageError: there is none.
    """
    try:
        wanted = _parts(version)[:2]
    except ValueError:
        raise UsageError(f"--ort-version wants a version like 1.22, not '{version}'") from None
    older = [known for known in versions if _parts(known) <= wanted]
    if not older:
        known = sorted(versions, key=_parts)
        elsewhere = [other for other in _PROVIDERS if any(_parts(item) <= wanted for item in _versions(other))]
        hint = f", or name --target {elsewhere[0]}, for which more is known" if elsewhere else ""
        raise UsageError(
            f"nothing is known of ONNX Runtime {version} for {name}; the oldest known is {known[0]} (known: "
            f"{', '.join(known)}). Leave --ort-version away where the result may need that one{hint}"
        )
    return max(older, key=_parts)


def newer_than_known(name: str, version: str | None) -> str:
    """That a version is newer than all that is known, so that the newest known stands for it; empty if it is not.

    Raises:
        UsageError: as `target_named`.
    """
    target = target_named(name, version)
    if version is None or _parts(version)[:2] <= _parts(target.version) or target.version != target_named(name).version:
        return ""
    return (
        f"ONNX Runtime {version} is newer than the newest known for {name}, {target.version}, which stands for it: "
        "what only a newer one has is not used"
    )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
