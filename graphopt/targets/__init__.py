"""What a runtime can run: the targets a model is optimized for, and the kernels each of them has."""

from __future__ import annotations

from graphopt.targets.probes import MICROSOFT, PROBES
from graphopt.targets.target import PORTABLE, TARGETS, Target, newer_than_known, target_named

__all__ = ["MICROSOFT", "PORTABLE", "PROBES", "TARGETS", "Target", "newer_than_known", "target_named"]
