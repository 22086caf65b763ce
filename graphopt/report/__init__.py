"""Records as people and machines read them."""

from __future__ import annotations

from graphopt.report.search import bisection_text
from graphopt.report.speed import benchmark_text, profile_text, sweep_text
from graphopt.report.text import diff_text, doctor_text, optimize_text, verification_text

__all__ = [
    "benchmark_text",
    "bisection_text",
    "diff_text",
    "doctor_text",
    "optimize_text",
    "profile_text",
    "sweep_text",
    "verification_text",
]
