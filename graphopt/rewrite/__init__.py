"""The rewriting engine: patterns, rules, and the driver that runs them to a fixed point."""

from __future__ import annotations

from graphopt.rewrite.builder import Builder
from graphopt.rewrite.driver import Driver
from graphopt.rewrite.match import Match, Matcher, Miss, is_uniform
from graphopt.rewrite.numeric import LEVELS, NumericClass
from graphopt.rewrite.pattern import attr, const, op, var
from graphopt.rewrite.rule import Examples, Rule, rule

__all__ = [
    "LEVELS",
    "Builder",
    "Driver",
    "Examples",
    "Match",
    "Matcher",
    "Miss",
    "NumericClass",
    "Rule",
    "attr",
    "const",
    "is_uniform",
    "op",
    "rule",
    "var",
]
