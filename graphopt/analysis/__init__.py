"""Analyses: types and shapes, effects, positions."""

from __future__ import annotations

from graphopt.analysis.inference import Conflict, Inference

__all__ = ["Conflict", "Inference"]
