"""Passes of a third party: what anybody can ship in a package of their own."""

from __future__ import annotations

ORDER = ("double_negation", "leaky")
