"""Rules: one decorated function whose declaration is its documentation and its test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from graphopt.errors import RuleError
from graphopt.ir import Value
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.match import Match, Matcher, Miss
from graphopt.rewrite.numeric import NumericClass
from graphopt.rewrite.pattern import Application
from graphopt.schema import epoch_start

Replacement: TypeAlias = Value | tuple[Value | None, ...] | Miss | None
RuleFunction: TypeAlias = Callable[[Match, Builder], Replacement]


class Examples:
    """What a rule or graph pass shows of itself, in ONNX's text syntax."""

    __slots__ = ("after", "before", "largest", "opset", "options", "unless")

    def __init__(
        self,
        before: str,
        after: str,
        unless: Sequence[str] = (),
        opset: int | None = None,
        options: Mapping[str, Any] | None = None,
        largest: float | None = None,
    ) -> None:
        self.before = before
        self.after = after
        self.unless = tuple(unless)
        self.opset = opset
        self.options = dict(options or {})
        self.largest = largest


class Rule:
    """A rewrite with one root; made by `@rule`."""

    def __init__(
        self,
        function: RuleFunction,
        matcher: Matcher,
        examples: Examples,
        numeric: NumericClass,
        opsets: tuple[int, int | None],
        ulp: int,
        grows: str | None,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.summary = _summary(function)
        self.matcher = matcher
        self.examples = examples
        self.numeric = numeric
        self.opsets = opsets
        self.ulp = ulp
        self.grows = grows
        """Why the result may have more nodes, None if it never does."""

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The (domain, operator) pairs the root may be."""
        return [(self.matcher.pattern.domain, op_type) for op_type in self.matcher.pattern.op_types]

    def applies_in(self, opset: int) -> bool:
        """True if the rule knows the operators of that opset."""
        first, last = self.opsets
        return first <= opset and (last is None or opset <= last)

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"


def rule(
    pattern: Application,
    *,
    before: str,
    after: str,
    unless: Sequence[str] = (),
    numeric: str = "E",
    keep: tuple[Application, ...] = (),
    opsets: tuple[int, int | None] | None = None,
    opset: int | None = None,
    ulp: int = 4,
    grows: str | None = None,
) -> Callable[[RuleFunction], Rule]:
    """Declare a rule.

    Args:
        pattern: What to look for.
        before: An example the rule fires on, in ONNX's text syntax.
        after: What it becomes.
        unless: Examples the rule leaves alone.
        numeric: S, E, Z, U, R or D: what it may do to the numbers.
        keep: Inner applications that may have other users; they stay.
        opsets: First and last opset (None: no end) the rule knows; default: wherever its operators mean what they mean
            today.
        opset: The opset of the examples; default: the newest supported of the range.
        ulp: For class U: how many units in the last place.
        grows: Why the result may have more nodes than the match.

    Raises:
        RuleError: the declaration does not hold together.
    """

    def declare(function: RuleFunction) -> Rule:
        if not function.__doc__:
            raise RuleError(f"rule {function.__name__} needs a docstring: its first line is its documentation")
        try:
            numeric_class = NumericClass(numeric)
        except ValueError:
            raise RuleError(
                f"rule {function.__name__}: '{numeric}' is no numeric class; use S, E, Z, U, R or D"
            ) from None
        first = max(
            (epoch_start(name) for item in pattern.applications() if item.domain == "" for name in item.op_types),
            default=1,
        )
        return Rule(
            function,
            Matcher(pattern, keep),
            Examples(before, after, unless, opset),
            numeric_class,
            opsets or (first, None),
            ulp,
            grows,
        )

    return declare


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n", 1)[0]
