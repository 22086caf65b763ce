"""Why a rule does not fire on a model: its nearest misses, and where it did fire."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphopt.errors import UsageError
from graphopt.ir import Graph, Model, Node
from graphopt.pipeline import Context, Pass, Registry
from graphopt.pipeline.passes import Item
from graphopt.report.units import plural
from graphopt.rewrite import Match, Miss, Rule
from graphopt.rewrite.driver import check_replacement

Chosen = tuple[Pass, Item]
_LAST = 1 << 16
"""The step of a refusal by the rule's own function, which comes after those of the pattern."""
_WOULD = "it matches, and would have fired had the passes not been stopped"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rule did not fire on some nodes.

    Attributes:
        step: How many conditions of the pattern held there; as many as there are where the rule itself refused.
        text: The condition that did not hold.
        count: On how many nodes.
        nodes: Their names, with what the reason says of each where that differs.
    """

    step: int
    text: str
    count: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of one rule or graph pass on a model.

    Attributes:
        rule: `pass/rule`.
        summary: What it does.
        fired: How often it fired.
        steps: Conditions of its pattern, that nobody else reads what would go being the last; 0 for a graph pass.
        roots: Operators its pattern may begin at.
        candidates: Such nodes in the optimized model.
        reasons: Why it left them alone, nearest misses first.
        earlier: The same of nodes that were tried while the passes ran, and that other rules took since.
        notes: What a graph pass remarked.
        obstacle: Why it did not even look, empty if it did.
    """

    rule: str
    summary: str
    fired: int
    steps: int = 0
    roots: tuple[str, ...] = ()
    candidates: int = 0
    reasons: tuple[Reason, ...] = ()
    earlier: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    obstacle: str = ""


class Observations:
    """Collects, while the passes run, how far each chosen rule came at each node, and what graph passes remark."""

    def __init__(self, chosen: Sequence[Chosen]) -> None:
        self._names = {item: f"{owner.name}/{item.name}" for owner, item in chosen if isinstance(item, Rule)}
        self._best: dict[tuple[Rule, Node], Miss] = {}
        self._notes: dict[str, dict[str, None]] = {}

    def on_miss(self, rule: Rule, node: Node, miss: Miss) -> None:
        """Keep the miss that came furthest; see `graphopt.rewrite.driver.Observer`."""
        if rule not in self._names:
            return
        if miss.step == 0:  # the pattern's first condition is why the rule was tried: this is a check of the result
            miss = Miss(miss.reason, _LAST)
        best = self._best.get((rule, node))
        if best is None or miss.step >= best.step:
            self._best[rule, node] = miss

    def on_note(self, source: str, text: str) -> None:
        """Keep a remark; see `Context.on_note`."""
        self._notes.setdefault(source, {})[text] = None

    def gone(self, rule: Rule) -> list[tuple[Node, Miss]]:
        """The misses on nodes that are no longer in the model."""
        return [
            (node, miss)
            for (item, node), miss in self._best.items()
            if item is rule and (node.graph is None or not node.graph.is_attached)
        ]

    def notes(self, name: str) -> tuple[str, ...]:
        """What the graph pass of that name remarked, or the pass it is in."""
        return tuple(dict.fromkeys([*self._notes.get(name, ()), *self._notes.get(name.partition("/")[0], ())]))


def choose(registry: Registry, names: Iterable[str]) -> list[Chosen]:
    """The rules and graph passes that names stand for: `pass`, `pass/rule` or the rule's name alone.

    Raises:
        UsageError: a name is none of these; the message suggests the nearest.
    """
    chosen: dict[tuple[str, str], Chosen] = {}
    everything = [(owner, item) for owner in registry.passes.values() for item in owner.items]
    for name in names:
        found = [pair for pair in everything if name in (pair[0].name, f"{pair[0].name}/{pair[1].name}", pair[1].name)]
        if not found:
            raise UsageError(
                f"there is no pass or rule '{name}'{_nearest(name, registry)}; `graphopt passes -v` lists all"
            )
        chosen.update({(owner.name, item.name): (owner, item) for owner, item in found})
    return list(chosen.values())


def _nearest(name: str, registry: Registry) -> str:
    """The names most like an unknown one, those of one pass where it names that."""
    home, _, word = name.rpartition("/")
    owner = registry.passes.get(home)
    passes = [owner] if owner is not None else list(registry.passes.values())
    known = dict.fromkeys([*(item.name for one in passes for item in one.items), *(one.name for one in passes)])
    close = difflib.get_close_matches(word, known, n=3) or [item for item in known if word and word in item][:3]
    return f" (did you mean {' or '.join(repr(item) for item in close)}?)" if close else ""


def explain_item(
    owner: Pass, item: Item, graph: Graph, context: Context, fired: int, seen: Observations, obstacle: str = ""
) -> Explanation:
    """What became of one rule or graph pass.

    Args:
        owner: The pass it is in.
        item: The rule or graph pass.
        graph: The main graph after the passes.
        context: What the passes ran in.
        fired: How often it fired.
        seen: What was observed while the passes ran.
        obstacle: Why it was not run at all, if so.
    """
    name = f"{owner.name}/{item.name}"
    if not isinstance(item, Rule):
        return Explanation(name, item.summary, fired, notes=seen.notes(name), obstacle=obstacle)
    opset = graph.opsets.get("", 0)
    if not obstacle and not item.applies_in(opset or _LAST):
        first, last = item.opsets
        obstacle = f"it knows opsets {first} to {last or 'the newest'}, and the model has {opset}"
    misses = [] if obstacle else _misses(item, graph.model, context)
    steps = item.matcher.step_count + 1  # the last: nobody else reads what would go
    return Explanation(
        rule=name,
        summary=item.summary,
        fired=fired,
        steps=steps,
        roots=tuple(op_type for _, op_type in item.kinds),
        candidates=len(misses),
        reasons=_grouped(misses, steps),
        earlier=_grouped(seen.gone(item), steps),
        obstacle=obstacle,
    )


def _misses(item: Rule, model: Model, context: Context) -> list[tuple[Node, Miss]]:
    """Try the rule at every node its pattern may begin at; nothing is changed."""
    found = []
    for graph in model.graphs():
        if item.applies_in(graph.opsets.get("", 0) or _LAST):
            nodes = [node for domain, op_type in item.kinds for node in graph.of_kind(op_type, domain)]
            found += [(node, _attempt(item, node, graph, context)) for node in nodes]
    return found


def _attempt(item: Rule, node: Node, graph: Graph, context: Context) -> Miss:
    match = item.matcher.match(node)
    if not isinstance(match, Match):
        return match
    try:
        outcome = check_replacement(item, match, item.function(match, context.builder(graph)))
    except Exception as error:  # a rule may be anybody's
        return Miss(f"the rule failed: {type(error).__name__}: {error}", _LAST)
    return Miss(outcome.reason if isinstance(outcome, Miss) else _WOULD, _LAST)


def _grouped(misses: Sequence[tuple[Node, Miss]], steps: int) -> tuple[Reason, ...]:
    """Misses by reason, those that came furthest first, then the most frequent."""
    groups: dict[tuple[int, str], list[str]] = {}
    for node, miss in misses:
        text, _, detail = miss.reason.partition(": ")
        label = node.name or repr(node)
        groups.setdefault((min(miss.step, steps), text), []).append(f"{label} ({detail})" if detail else label)
    order = sorted(groups.items(), key=lambda entry: (-entry[0][0], -len(entry[1]), entry[0][1]))
    return tuple(Reason(step, text, len(nodes), tuple(nodes)) for (step, text), nodes in order)


# --- for people and machines


def explanations_json(source: str, explanations: Sequence[Explanation]) -> dict[str, Any]:
    """The explanations as a JSON document, every node named."""
    rules = [dataclasses.asdict(item) for item in explanations]
    return {"schema": "graphopt.explain", "schema_version": 1, "model": source, "rules": rules}


def explanations_text(explanations: Sequence[Explanation], limit: int = 5) -> RenderableType:
    """The explanations for the terminal.

    Args:
        explanations: What became of each rule.
        limit: Reasons shown of each rule, and nodes named of each reason.
    """
    parts: list[RenderableType] = []
    for item in explanations:
        parts += [*_parts(item, limit), Text()]
    return Group(*parts[:-1])


def _parts(item: Explanation, limit: int) -> list[RenderableType]:
    parts: list[RenderableType] = [Text.assemble((item.rule, "bold cyan"), f"   {item.summary}")]
    fired = f"fired {plural(item.fired, 'time')}" if item.fired else "did not fire"
    parts.append(Text(f"  {fired}", style="green" if item.fired else ""))
    if item.obstacle:
        parts.append(Text(f"  it was not tried: {item.obstacle}", style="yellow"))
        return parts
    parts += [Text(f"  note: {note}") for note in item.notes]
    if not item.steps:
        if not item.notes:
            parts.append(Text("  a graph pass, which has no pattern to miss; it remarked nothing"))
        return parts
    roots = " or ".join(item.roots)
    if not item.candidates:
        parts.append(Text(f"  the optimized model has no {roots}, where its pattern begins"))
    else:
        parts.append(Text(f"  left alone, of {plural(item.candidates, 'node')} that are {roots}:"))
        parts.append(_table(item.reasons, item.steps, limit))
    if item.earlier:
        parts.append(Text("  and on the way, of nodes that other rules took since:"))
        parts.append(_table(item.earlier, item.steps, limit))
    return parts


def _table(reasons: Sequence[Reason], steps: int, limit: int) -> RenderableType:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", width=2)
    table.add_column("nodes", justify="right")
    table.add_column("reached", no_wrap=True)
    table.add_column("why no further", overflow="fold")
    for reason in reasons[:limit]:
        reached = "all, the rule refused" if reason.step >= steps else f"{reason.step} of {steps}"
        table.add_row("", str(reason.count), reached, reason.text)
        more = f", … {reason.count - limit} more" if reason.count > limit else ""
        table.add_row("", "", "", Text(", ".join(reason.nodes[:limit]) + more, style="dim"))
    if len(reasons) > limit:
        rest = sum(reason.count for reason in reasons[limit:])
        table.add_row("", str(rest), "less", f"{plural(len(reasons) - limit, 'more reason')}; --limit shows more")
    return table
