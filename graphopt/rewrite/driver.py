"""The driver: a worklist woken by edits, run to a proven fixed point."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from graphopt.analysis.inference import Inference
from graphopt.errors import DidNotConvergeError, RuleError
from graphopt.ir import AttributeSet, Edit, Erased, Graph, Inserted, Kind, Node, Retyped, Rewired, Value, contradict
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.match import Match, Miss
from graphopt.rewrite.rule import Replacement, Rule
from graphopt.targets import PORTABLE, Target

Observer = Callable[[Rule, Node, Miss], None]
"""Told of every rule that was tried and did not fire."""


class Worklist:
    """Nodes to look at, first in first out, each at most once; edits put back whatever they may have changed."""

    def __init__(self, graph: Graph, depth: int) -> None:
        self._graph = graph
        self._depth = depth
        self._queue: deque[Node] = deque()
        self._waiting: dict[Node, None] = {}

    def push(self, node: Node) -> None:
        """Look at a node again."""
        if node.kind is Kind.OPERATOR and node.graph is self._graph and node not in self._waiting:
            self._waiting[node] = None
            self._queue.append(node)

    def pop(self) -> Node | None:
        """The next node still in the graph."""
        while self._queue:
            node = self._queue.popleft()
            if self._waiting.pop(node, self) is None and node.graph is self._graph:
                return node
        return None

    def on_edit(self, edit: Edit) -> None:
        """Wake what an edit may have made a match: a pattern of depth d sees d - 1 levels above its root."""
        match edit:
            case Inserted(node=node) | AttributeSet(node=node):
                self._wake(node)
            case Rewired(node=node, old=old):
                self._wake(node)
                self._wake_losers(old)
            case Retyped(value=value):
                self._wake(value.producer)
            case Erased(node=node):
                self._wake_losers(node.operands)
            case _:
                pass

    def _wake(self, node: Node) -> None:
        level = [node]
        for _ in range(self._depth):
            for member in level:
                self.push(member)
            level = [user for member in level for value in member.results for user, _ in value.uses]
            if not level:
                break

    def _wake_losers(self, values: Sequence[Value | None]) -> None:
        """A value that lost a user may now be private to the one that is left."""
        for value in values:
            if value is None:
                continue
            self.push(value.producer)
            sole = value.sole_use()
            if sole is not None:
                self._wake(sole[0])


class Driver:
    """Runs rules over one graph."""

    def __init__(
        self,
        prefix: str,
        rules: Sequence[Rule],
        inference: Inference,
        observer: Observer | None = None,
        target: Target = PORTABLE,
    ) -> None:
        self.prefix = prefix
        self.target = target
        self.inference = inference
        self.observer = observer
        self._by_kind: dict[tuple[str, str], list[Rule]] = {}
        for item in rules:
            for kind in item.kinds:
                self._by_kind.setdefault(kind, []).append(item)
        self._depth = max((item.matcher.depth for item in rules), default=1)

    def run(self, graph: Graph) -> int:
        """Apply the rules until none fires anywhere.

        Returns:
            How many times a rule fired.

        Raises:
            DidNotConvergeError: the rules keep feeding each other.
            RuleError: a rule returned something that does not fit.
        """
        fired = 0
        limit = 10 * len(graph.all_nodes()) + 1000
        tail: deque[str] = deque(maxlen=20)
        worklist = Worklist(graph, self._depth)
        self._seed(worklist, graph)
        with graph.model.listening(worklist):
            while True:
                fired_before = fired
                while (node := worklist.pop()) is not None:
                    name = self._try(graph, node)
                    if name is None:
                        continue
                    fired += 1
                    tail.append(name)
                    if fired > limit:
                        names = ", ".join(dict.fromkeys(tail))
                        raise DidNotConvergeError(f"these rules keep feeding each other: {names}; disable one of them")
                if fired == fired_before:
                    return fired
                self._seed(worklist, graph)  # the confirming sweep: finding nothing proves the fixed point

    def _seed(self, worklist: Worklist, graph: Graph) -> None:
        roots = [node for kind in self._by_kind for node in graph.of_kind(kind[1], kind[0])]
        for node in sorted(roots, key=lambda node: (node.rank, node.serial)):
            worklist.push(node)

    def _try(self, graph: Graph, node: Node) -> str | None:
        for item in self._by_kind.get((node.domain, node.op_type), ()):
            if not item.applies_in(graph.opsets.get("", 0) or 1 << 16):
                continue
            match = item.matcher.match(node)
            if isinstance(match, Match):
                builder = Builder(graph, self.inference, self.target)
                replacement = item.function(match, builder)
                outcome = check_replacement(item, match, replacement)
                if not isinstance(outcome, Miss):
                    name = f"{self.prefix}/{item.name}"
                    with graph.model.rewrite(name):
                        commit(graph, match, outcome, builder)
                    return name
                match = outcome
            if self.observer is not None:
                self.observer(item, node, match)
        return None


def check_replacement(item: Rule, match: Match, replacement: Replacement) -> tuple[Value | None, ...] | Miss:
    """What replaces each result of the root, or why it cannot.

    Raises:
        RuleError: the rule returned too few values or nothing at all.
    """
    if isinstance(replacement, Miss):
        return replacement
    root = match.root
    if any(node.is_pinned for node in match.nodes):
        return Miss("a node of the match is kept by name")
    values = replacement if isinstance(replacement, tuple) else (replacement,)
    if len(values) < len(root.results):
        values = (*values, *[None] * (len(root.results) - len(values)))
    for old, new in zip(root.results, values, strict=True):
        if new is None:
            if old.uses:
                raise RuleError(
                    f"rule {item.name} gives nothing for {old!r}, which is used; return a value or b.no(why)"
                )
        elif new is old:
            return Miss("the replacement is what is there")
        elif contradict(old.type, new.type):
            return Miss(f"the replacement is {new.type}, not {old.type}")
    return values


def commit(graph: Graph, match: Match, values: tuple[Value | None, ...], builder: Builder) -> None:
    """Put a replacement into the graph and take out what it replaces."""
    root = match.root
    for node in _needed(builder.nodes, values):
        graph.insert(node, rank=root.rank)
    for old, new in zip(root.results, values, strict=True):
        if new is None:
            continue
        graph.replace_uses(old, new)
        producer = new.producer
        if producer.origin is None and not producer.name and producer.is_operator:
            producer.name = root.name  # fresh, so no edit: a fused node is called after the one that gave its result
        if old.type is not None and producer.graph is graph and new.type is None:
            graph.retype(new, old.type)
    _erase_dead(match.nodes)


def _needed(nodes: Sequence[Node], values: Sequence[Value | None]) -> list[Node]:
    """The built nodes that the replacement really uses, in the order in which they were built."""
    built = dict.fromkeys(nodes)
    wanted: dict[Node, None] = {}
    stack = [value.producer for value in values if value is not None]
    while stack:
        node = stack.pop()
        if node in built and node not in wanted:
            wanted[node] = None
            stack.extend(value.producer for value in node.operands if value is not None)
    return [node for node in nodes if node in wanted]


def _erase_dead(nodes: Sequence[Node]) -> None:
    """Erase the matched nodes nobody reads any more, users before producers."""
    pending = list(nodes)
    progress = True
    while progress:
        progress = False
        for node in list(pending):
            if node.graph is not None and not node.is_used and not node.is_pinned:
                node.graph.erase(node)
                pending.remove(node)
                progress = True
