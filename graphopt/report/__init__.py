"""Records as people and machines read them."""

from __future__ import annotations

from graphopt.report.acceptance import acceptance_text
from graphopt.report.search import bisection_text, guilty_text
from graphopt.report.speed import benchmark_text, profile_text, sweep_text
from graphopt.report.text import diff_text, doctor_text, failures_text, optimize_text, verification_text
from graphopt.report.tuning import tuning_text

__all__ = [
    "acceptance_text",
    "benchmark_text",
    "bisection_text",
    "diff_text",
    "doctor_text",
    "failures_text",
    "guilty_text",
    "optimize_text",
    "profile_text",
    "sweep_text",
    "tuning_text",
    "verification_text",
]
