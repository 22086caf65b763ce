"""Groups of rewrites: which fired, how to leave one out, and which to try first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphopt.measurements import Profile
from graphopt.records import OptimizeReport


@dataclass(frozen=True, slots=True)
class Choice:
    """What is left out beside what the user leaves out.

    Attributes:
        skip: Passes.
        disable: Rules, as `pass/rule`.
    """

    skip: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()

    def without(self, group: str) -> Choice:
        """The same, and another group out."""
        if "/" in group:
            return replace(self, disable=(*self.disable, group))
        inside = f"{group}/"
        return Choice((*self.skip, group), tuple(rule for rule in self.disable if not rule.startswith(inside)))

    def has(self, group: str) -> bool:
        """True if the group is out already."""
        return group in self.skip or group in self.disable or group.partition("/")[0] in self.skip

    def apply(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of `optimize` with these groups out, too."""
        return {
            **options,
            "skip": (*options.get("skip", ()), *self.skip),
            "disable": (*options.get("disable", ()), *self.disable),
        }


def fired(report: OptimizeReport) -> dict[str, dict[str, int]]:
    """Pass -> its rules that fired, as `pass/rule`, with how often; most often first."""
    found: dict[str, dict[str, int]] = {}
    for run in report.passes:
        rules = found.setdefault(run.name, {})
        for rule, count in run.rewrites.items():
            rules[rule] = rules.get(rule, 0) + count
    return {name: dict(sorted(rules.items(), key=lambda item: -item[1])) for name, rules in found.items() if rules}


def owner_of(report: OptimizeReport, number: int) -> str:
    """The group that made the rewrite of that number: a rule, or the pass where it has no rule's name."""
    rule = next((item.rule for item in report.rewrites if item.number == number), "")
    if "/" in rule:
        return rule
    seen = 0
    for run in report.passes:
        seen += sum(run.rewrites.values())
        if seen >= number:
            return run.name
    return ""


def in_order(groups: Mapping[str, Mapping[str, int]], profile: Profile | None) -> list[str]:
    """Passes by how much may come of leaving them out.

    First those whose nodes take longer than what they replaced, then those that touched what takes time, then those
    that made many rewrites.
    """
    slower, touched = dict.fromkeys(groups, 0.0), dict.fromkeys(groups, 0.0)
    for row in () if profile is None else profile.rewrites:
        name = row.name.partition("/")[0]
        if name in groups:
            slower[name] += row.rewritten_ms - row.original_ms
            touched[name] += max(row.rewritten_ms, row.original_ms)
    return sorted(groups, key=lambda name: (-max(0.0, slower[name]), -touched[name], -sum(groups[name].values()), name))


def suspects(profile: Profile | None, least: float) -> list[str]:
    """Rules whose nodes take longer than what they replaced by more than a share of the whole, the worst first."""
    if profile is None or not profile.rewritten_ms:
        return []
    lost = {row.name: row.rewritten_ms - row.original_ms for row in profile.rewrites if "/" in row.name}
    return sorted((name for name in lost if lost[name] > least * profile.rewritten_ms), key=lambda name: -lost[name])
