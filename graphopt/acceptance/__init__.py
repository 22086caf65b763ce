"""Measured acceptance: rewrites stay only if the result is equal and no group of them makes it slower."""

from __future__ import annotations

from graphopt.acceptance.acceptance import Acceptance, accept
from graphopt.acceptance.instruments import Instruments

__all__ = ["Acceptance", "Instruments", "accept"]
