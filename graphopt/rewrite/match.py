"""Matching: a pattern compiled once to a flat list of steps, each with the message of its own failure.

Two operands that commute match in either order. Each such pair is a choice; after a failed step the last choice made
before it is taken the other way, as an odometer turns, so that every combination is tried that can matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from graphopt.analysis.effects import is_commutative
from graphopt.ir import NOT_CONSTANT, Node, Value
from graphopt.rewrite.pattern import Application, Attribute, Constant, Operand, Variable
from graphopt.tensors import DType

_UNIFORM_LIMIT = 1 << 20


class Miss:
    """Why a pattern or rule did not apply; `step` counts how far it came."""

    __slots__ = ("reason", "step")

    def __init__(self, reason: str, step: int = 0) -> None:
        self.reason = reason
        self.step = step

    def __repr__(self) -> str:
        return f"Miss({self.reason!r})"


class Match:
    """What a pattern's variables stand for.

    `m[x]` is the value of a variable or constant, the value of a parameter, or the result of an inner application;
    `m.node(pattern)` is the node of an application and `m.root` that of the outermost.
    """

    __slots__ = ("_bound", "_nodes", "_swapped", "root")

    def __init__(self, root: Node, swapped: frozenset[int] = frozenset()) -> None:
        self.root = root
        self._bound: dict[int, Any] = {}
        self._nodes: dict[int, Node] = {}
        self._swapped = swapped
        """The applications whose two operands are read in the other order."""

    def __getitem__(self, term: Variable | Attribute | Constant | Application) -> Any:
        if isinstance(term, Application):
            return self._nodes[id(term)].results[term.result]
        return self._bound[id(term)]

    def node(self, term: Application) -> Node:
        """The node that an application of the pattern stands for."""
        return self._nodes[id(term)]

    @property
    def nodes(self) -> list[Node]:
        """Every node the pattern covers, the root first."""
        return list(dict.fromkeys(self._nodes.values()))

    def operand(self, key: int, index: int) -> Value | None:
        """Operand `index` of the application `key`, in the order of the pattern."""
        return self._nodes[key].operand(1 - index if key in self._swapped else index)


Step: TypeAlias = Callable[[Match], bool]


class Matcher:
    """A compiled pattern."""

    def __init__(self, pattern: Application, keep: tuple[Application, ...] = ()) -> None:
        self.pattern = pattern
        self.depth = pattern.depth
        self._keep = {id(item) for item in keep}
        self._steps: list[tuple[Step, Miss]] = []
        self._choices: list[tuple[int, int]] = []
        """The application of each choice, and how many steps come before it."""
        self._uses = Counter(id(term) for item in pattern.applications() for term in item.operands if term is not None)
        self._compile_application(pattern, "the root")
        self._inner = [item for item in pattern.applications()[1:] if id(item) not in self._keep]

    @property
    def step_count(self) -> int:
        """How many conditions a node must meet; `Miss.step` counts those that held."""
        return len(self._steps)

    def match(self, root: Node) -> Match | Miss:
        """Try the pattern at a node, commutative operands in either order; nothing is changed."""
        turned: list[bool] = [False] * len(self._choices)
        furthest: Miss | None = None
        while True:
            found = self._attempt(root, turned)
            if isinstance(found, Match):
                return found
            furthest = found if furthest is None or found.step > furthest.step else furthest
            last = sum(before <= found.step for _, before in self._choices) - 1
            while last >= 0 and turned[last]:
                last -= 1
            if last < 0:
                return furthest
            turned[last:] = [True] + [False] * (len(turned) - last - 1)

    def _attempt(self, root: Node, turned: list[bool]) -> Match | Miss:
        swapped = frozenset(key for (key, _), is_turned in zip(self._choices, turned, strict=True) if is_turned)
        match = Match(root, swapped)
        match._nodes[id(self.pattern)] = root
        for step, miss in self._steps:
            if not step(match):
                return miss
        return self._inner_is_private(match) or match

    def _inner_is_private(self, match: Match) -> Miss | None:
        """Nobody else may need what disappears: no second user, no graph output, no body."""
        covered = set(match._nodes.values())
        for item in self._inner:
            node = match._nodes[id(item)]
            for value in node.results:
                for user, _ in value.uses:
                    if user not in covered:
                        return Miss(f"{node.op_type} has another user: {user!r}", len(self._steps))
        return None

    # --- compiling

    def _add(self, step: Step, reason: str) -> None:
        self._steps.append((step, Miss(reason, len(self._steps))))

    def _compile_application(self, item: Application, place: str) -> None:
        key, op_types, domain = id(item), frozenset(item.op_types), item.domain
        label = "|".join(item.op_types)

        def is_operator(match: Match) -> bool:
            node = match._nodes[key]
            return node.op_type in op_types and node.domain == domain and node.is_operator

        self._add(is_operator, f"{place} is not {label}")
        self._add(lambda match: match._nodes[key].has_latest_meaning, f"{label} means something else in this opset")
        self._compile_count(item, label)
        if self._may_turn(item):
            self._choices.append((key, len(self._steps)))
            self._add(
                lambda match: key not in match._swapped or _commutes(match._nodes[key]), f"{label} does not commute"
            )
        for index, operand in enumerate(item.operands):
            self._compile_operand(key, index, operand, f"operand {index} of {label}")
        for name, wanted in item.parameters.items():
            self._compile_parameter(key, name, wanted, label)

    def _may_turn(self, item: Application) -> bool:
        """True if reading two operands in the other order can find something else."""
        if item.more or len(item.operands) != 2:
            return False
        if not any(is_commutative(item.domain, op_type, DType.INT64) for op_type in item.op_types):
            return False
        return not all(self._is_anything(operand) for operand in item.operands)

    def _is_anything(self, operand: Operand) -> bool:
        is_free = isinstance(operand, Variable) and not operand.dtypes and operand.rank is None and not operand.where
        return is_free and self._uses[id(operand)] == 1

    def _compile_count(self, item: Application, label: str) -> None:
        if item.more:
            return
        key, count, names = id(item), len(item.operands), tuple(item.parameters)

        def has_no_more(match: Match) -> bool:
            node = match._nodes[key]
            if len(node.operands) <= count:
                return True
            known = {node.param_operand(name) for name in names}
            return all(node.operands[i] is None or i in known for i in range(count, len(node.operands)))

        self._add(has_no_more, f"{label} has more operands than the pattern")

    def _compile_operand(self, key: int, index: int, operand: Operand, place: str) -> None:
        if operand is None:
            self._add(lambda match: match.operand(key, index) is None, f"{place} is given")
        elif isinstance(operand, Application):
            self._compile_inner(key, index, operand, place)
        elif isinstance(operand, Variable):
            self._compile_variable(key, index, operand, place)
        else:
            self._compile_constant(key, index, operand, place)

    def _compile_inner(self, key: int, index: int, item: Application, place: str) -> None:
        inner, result = id(item), item.result

        def enter(match: Match) -> bool:
            value = match.operand(key, index)
            if value is None or value.index != result or not value.producer.is_operator:
                return False
            seen = match._nodes.setdefault(inner, value.producer)
            return seen is value.producer and value.producer.graph is match.root.graph

        self._add(enter, f"{place} is not made by {'|'.join(item.op_types)} in the same graph")
        self._compile_application(item, place)

    def _compile_variable(self, key: int, index: int, variable: Variable, place: str) -> None:
        name = id(variable)

        def bind(match: Match) -> bool:
            value = match.operand(key, index)
            return value is not None and match._bound.setdefault(name, value) is value

        self._add(bind, f"{place} is missing or not the same value as {variable.name} elsewhere")
        if variable.dtypes:
            self._add(lambda match: match._bound[name].dtype in variable.dtypes, f"{place} has another element type")
        if variable.rank is not None:
            self._add(lambda match: match._bound[name].rank == variable.rank, f"{place} is not of rank {variable.rank}")
        if variable.where is not None:
            where = variable.where
            self._add(
                lambda match: where(match._bound[name]), f"{place} does not meet the condition on {variable.name}"
            )

    def _compile_constant(self, key: int, index: int, constant: Constant, place: str) -> None:
        name, wanted = id(constant), constant.value

        def bind(match: Match) -> bool:
            value = match.operand(key, index)
            return value is not None and value.const is not None and match._bound.setdefault(name, value) is value

        self._add(bind, f"{place} is not a constant")
        if wanted is not None:
            self._add(lambda match: is_uniform(match._bound[name], wanted), f"{place} is not {wanted} throughout")

    def _compile_parameter(self, key: int, name: str, wanted: Any, label: str) -> None:
        if isinstance(wanted, Attribute):
            slot = id(wanted)

            def bind(match: Match) -> bool:
                value = match._nodes[key].param(name)
                match._bound[slot] = value
                return value is not NOT_CONSTANT

            self._add(bind, f"'{name}' of {label} is computed at run time")
            return
        expected = tuple(wanted) if isinstance(wanted, list) else wanted
        self._add(
            lambda match: bool(match._nodes[key].param(name) == expected), f"'{name}' of {label} is not {expected}"
        )


def _commutes(node: Node) -> bool:
    first = node.operand(0)
    return is_commutative(node.domain, node.op_type, None if first is None else first.dtype, len(node.operands))


def is_uniform(value: Value, wanted: float | bool) -> bool:
    """True if the value is a constant with at least one element and every element equals `wanted`, sign of zero too."""
    tensor = value.const
    if tensor is None or not 0 < tensor.size <= _UNIFORM_LIMIT or not tensor.dtype.bits:
        return False
    array = tensor.numpy()
    first = array.reshape(-1)[0]
    if first != wanted or (tensor.dtype.is_float and bool(np.signbit(first)) != bool(np.signbit(wanted))):
        return False
    if tensor.size == 1:
        return True
    is_same = bool((array == first).all())
    # 0.0 equals -0.0 but is not the same number.
    return is_same and (
        not tensor.dtype.is_float or wanted != 0 or bool((np.signbit(array) == np.signbit(first)).all())
    )
