"""Where the time goes before and after, put together from what the profiler saw of each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.measurements import Profile, ProfileRow
from graphopt.runtime.contents import node_names
from graphopt.runtime.profiling import Look, NodeTime
from graphopt.runtime.sources import ModelSource

UNTOUCHED = "left as they were"
NO_NODE = "between nodes"
BY_RUNTIME = "made by the runtime at load"
_NODES_SHOWN = 20
_SHORTEST_NAME = 4


@dataclass(frozen=True, slots=True)
class Touched:
    """Which rule had which node in its hands.

    Attributes:
        erased: Node of the original -> the rule that took it away.
        inserted: Node of the rewritten model -> the rule that put it there.
    """

    erased: Mapping[str, str] = field(default_factory=dict)
    inserted: Mapping[str, str] = field(default_factory=dict)


def profile_of(
    looks: tuple[Look, Look], sources: tuple[ModelSource, ModelSource], touched: Touched | None
) -> Profile | None:
    """The profile of both sides; None where one of them has not been seen."""
    if not all(look.nodes for look in looks):
        return None
    on_device = all(look.kernels for look in looks)
    timed = tuple(look.kernels if on_device else look.nodes for look in looks)
    runs = tuple(look.kernel_runs if on_device else look.runs for look in looks)
    totals = tuple(sum(item.microseconds for item in side) for side in timed)

    def rows(sides: Sequence[Sequence[NodeTime]], name: Callable[[int, NodeTime], str]) -> tuple[ProfileRow, ...]:
        return _rows(sides, name, (runs[0], runs[1]))

    rewrites: tuple[ProfileRow, ...] = ()
    if touched is not None:
        owners = (_Owners(touched.erased, sources[0]), _Owners(touched.inserted, sources[1]))
        with_nodes = tuple(
            [NodeTime(item.node or item.name, item.operator, durations=item.durations) for item in side]
            for side in timed
        )
        rewrites = rows(with_nodes, lambda side, item: owners[side].of(item.name))
    return Profile(
        clock="device" if on_device else "host",
        runs=min(runs),
        original_ms=totals[0] / runs[0] / 1e3,
        rewritten_ms=totals[1] / runs[1] / 1e3,
        operators=rows(timed, lambda _, item: item.operator or NO_NODE),
        kernels=rows(timed, lambda _, item: item.name) if on_device else (),
        nodes=_rows(
            [look.nodes for look in looks],
            lambda _, item: f"{item.name} ({item.operator})",
            (looks[0].runs, looks[1].runs),
        )[:_NODES_SHOWN],
        rewrites=rewrites,
    )


def _rows(
    sides: Sequence[Sequence[NodeTime]], name: Callable[[int, NodeTime], str], runs: tuple[int, int]
) -> tuple[ProfileRow, ...]:
    """Add up by name, the most time first."""
    totals = [sum(item.microseconds for item in side) for side in sides]
    spent: dict[str, list[float]] = {}
    for number, side in enumerate(sides):
        for item in side:
            entry = spent.setdefault(name(number, item), [0.0, 0.0, 0.0, 0.0])
            entry[number] += item.microseconds
            entry[2 + number] += item.calls
    rows = [
        ProfileRow(
            label,
            before / runs[0] / 1e3,
            after / runs[1] / 1e3,
            before / totals[0] if totals[0] else 0.0,
            after / totals[1] if totals[1] else 0.0,
            round(calls_before / runs[0]),
            round(calls_after / runs[1]),
        )
        for label, (before, after, calls_before, calls_after) in spent.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-max(row.original_ms, row.rewritten_ms), row.name)))


class _Owners:
    """Whose a node is that the runtime ran; its own fusions give names made of those of the nodes they fuse."""

    def __init__(self, rules: Mapping[str, str], source: ModelSource) -> None:
        self._rules = rules
        try:
            self._names = node_names(source)
        except (OSError, ValueError):
            self._names = frozenset()

    def of(self, name: str) -> str:
        """A rule, or what else can be said."""
        if name in self._rules:
            return self._rules[name]
        if name in self._names:
            return UNTOUCHED
        inside = [known for known in self._rules if len(known) >= _SHORTEST_NAME and known in name]
        if inside:
            return self._rules[max(inside, key=len)]
        return BY_RUNTIME
