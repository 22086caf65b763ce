"""Twins of exact rules for float16 and bfloat16.

The CPU provider computes most operators of halves in float32 and rounds only where the neighbours make it. An operator
that changes nothing may be what made it round, so that without it bits can differ though the arithmetic is exact: what
is E for other types is R for halves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps

import numpy as np

from graphopt import Application, Builder, Match, Miss, Rule, Value, rule
from passes._proofs import HALVES

RuleFunction = Callable[[Match, Builder], Value | Miss]

_CONSTANT = re.compile(r"float(\[[^]]*\])? (\w+) = \{([^}]*)\}")
_FLOAT = re.compile(r"\bfloat\b")


def not_of_halves(function: RuleFunction) -> RuleFunction:
    """Let a rule refuse every match in which a half takes part."""

    @wraps(function)
    def refuse(m: Match, b: Builder) -> Value | Miss:
        return b.no("halves are computed in another type") if _has_halves(m) else function(m, b)

    return refuse


def for_halves(exact: Rule, *, keep: tuple[Application, ...] = ()) -> Rule:
    """The same rule for halves alone, with the same examples in float16.

    Args:
        exact: A rule whose function is wrapped in `not_of_halves`.
        keep: As for the rule.
    """
    function: RuleFunction = vars(exact.function)["__wrapped__"]

    def only(m: Match, b: Builder) -> Value | Miss:
        return function(m, b) if _has_halves(m) else b.no("there are no halves")

    only.__name__ = f"{exact.name}_of_halves"
    only.__module__ = function.__module__
    only.__doc__ = f"For halves: {exact.summary[0].lower()}{exact.summary[1:]}"
    examples = exact.examples
    return rule(
        exact.matcher.pattern,
        before=_in_halves(examples.before),
        after=_in_halves(examples.after),
        unless=[_in_halves(text) for text in examples.unless if "16" not in text],
        numeric="R",
        keep=keep,
        opsets=exact.opsets,
        opset=examples.opset,
    )(only)


def _has_halves(m: Match) -> bool:
    return any(_is_half(value) for node in m.nodes for value in (*node.operands, *node.results))


def _is_half(value: Value | None) -> bool:
    return value is not None and value.dtype in HALVES


def _in_halves(text: str) -> str:
    """An example in float16; ONNX's text wants constants of halves as bit patterns."""
    return _FLOAT.sub("float16", _CONSTANT.sub(_constant, text)).replace("to = 1>", "to = 10>")


def _constant(found: re.Match[str]) -> str:
    numbers = [float(item) for item in found[3].split(",") if item.strip()]
    bits = ",".join(str(int(np.float16(number).view(np.uint16))) for number in numbers)
    return f"float16{found[1] or ''} {found[2]} = {{{bits}}}"
