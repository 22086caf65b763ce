"""graphopt's built-in passes: its first plugin, found through the entry point any other package uses.

A module here is a pass; every rule and graph pass in it carries an example that is its documentation and its test.
"""

from __future__ import annotations

GRAPHOPT_PASSES = True
"""Tells graphopt that this folder, found beside it, holds its own passes."""

ORDER: tuple[str, ...] = (
    "pruning",  # first: nothing later should look at what nobody reads
    "constant_folding",  # constants and shapes known early let every later pattern match
    "identities",  # what does nothing goes before expressions are compared
    "trivial_arithmetic",  # the same for arithmetic that changes nothing
    "common_subexpressions",  # equal values become one, so that patterns see one user where there were two
    "layout",  # transposes move once everything else stands still
    "naming",  # last: only what is left needs a name
)
"""The order in which the passes run, each with its reason."""
