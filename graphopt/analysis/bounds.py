"""Bounds of input dims: sizes with which a run is sure to fail are none that need to be thought of.

An exported transformer given sequences of length 0 does not return empty results: somewhere a Reshape reads the 0 as
"copy this dim", and a later addition does not fit. Given one longer than its table of positions, it fails where both
are added. What is shown here by contradiction - infer the model with such sizes, find an operator that must fail -
makes the shapes of all other runs plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from graphopt.analysis.shapes.common import contents, count_of, static
from graphopt.analysis.shapes.windows import room_of_conv
from graphopt.ir import Dim, Expr, Graph, Node, Shape, Symbol
from graphopt.ir.symbol import Application, Integer, is_nonnegative, is_positive, never_equal, substitute, symbols
from graphopt.ir.symbol_facts import parts_of

BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
)
"""Operators whose operands must broadcast to one another."""

_TRIED = 256
"""So many sizes it is tried whether a window fits, from the one on that the windows before it need."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A question about an input dim that decides what some shape is."""

    key: str | tuple[str | int, ...]
    """The key of the symbol."""
    most: int | None
    """Is it at most this? If None: is it at least 1?"""
    of_table: bool = False
    """Asked because something is looked up there, and not because a shape depends on it: the least urgent."""

    @property
    def kind(self) -> tuple[bool, bool]:
        """Questions of one kind, of which so many in a row are asked in vain."""
        return (self.most is not None, self.of_table)

    def denied(self, symbol: Symbol) -> Symbol | int:
        """The dim, if the answer were no."""
        return 0 if self.most is None else Symbol(symbol.key, symbol.label, self.most + 1, symbol.most)

    def affirmed(self, symbol: Symbol) -> Symbol:
        """The dim, if the answer is yes."""
        if self.most is None:
            return Symbol(symbol.key, symbol.label, 1, symbol.most)
        return Symbol(symbol.key, symbol.label, symbol.least, self.most)

    def is_open(self, symbol: Symbol) -> bool:
        """True if what is known of the symbol does not answer it."""
        if self.most is None:
            return symbol.least == 0
        return symbol.least <= self.most and (symbol.most is None or symbol.most > self.most)


def required(graph: Graph) -> dict[str | tuple[str | int, ...], int]:
    """The least size of input dims with which every window of a convolution fits its operand, by the symbols' keys."""
    found: dict[str | tuple[str | int, ...], int] = {}
    convolutions = graph.of_kind("Conv")
    live = live_nodes(graph) if convolutions else {}
    for node in convolutions:
        for room in room_of_conv(node) if node in live else ():
            if is_nonnegative(room) or len(symbols(room)) != 1:
                continue
            (symbol,) = symbols(room)
            known = found.get(symbol.key, symbol.least)
            sizes = range(known, known + _TRIED)
            found[symbol.key] = next((size for size in sizes if _may_fit(room, symbol, size)), known)
    return found


def _may_fit(room: Integer, symbol: Symbol, size: int) -> bool:
    value = substitute(room, {symbol: size})
    return not (isinstance(value, int) and value < 0)


def doubts(graph: Graph) -> list[Doubt]:
    """The questions that shapes in a graph raise, those about empty dims first."""
    seen: dict[Expr, None] = {}
    found: dict[Doubt, None] = {}
    tables: dict[Doubt, None] = {}
    for node in graph.order():
        for value in node.results:
            for dim in value.shape or ():
                if isinstance(dim, Expr) and dim not in seen:
                    _doubts(dim, seen, found)
        looked_at = _table_size(node)
        if isinstance(looked_at, Expr) and not is_positive(looked_at):
            tables.update((Doubt(symbol.key, None, of_table=True), None) for symbol in symbols(looked_at))
    asked = {doubt.key for doubt in found if doubt.most is None}
    return [
        *sorted(found, key=lambda doubt: doubt.most is not None),
        *(doubt for doubt in tables if doubt.key not in asked),
    ]


def _table_size(node: Node) -> Dim:
    """How much there is to look up in, for a Gather."""
    if (node.domain, node.op_type) != ("", "Gather"):
        return None
    data, axis = node.operand(0), node.param("axis")
    shape = None if data is None else data.shape
    is_axis = shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape)
    return shape[axis] if shape is not None and is_axis else None


def _doubts(dim: Expr, seen: dict[Expr, None], found: dict[Doubt, None]) -> None:
    for part in parts_of(dim):
        if part in seen:
            continue
        seen[part] = None
        if not isinstance(part, Application):
            continue
        # Of each function, the arguments that would have to be proved not to be 0.
        judged: Sequence[int | str | Expr] = ()
        if part.name == "size_or":
            judged = part.args[:1]
        elif part.name == "batch_dim":
            judged = part.args[2:]
        elif part.name == "reduced_dim":
            judged = part.args[1:]
        elif part.name == "filled_dim":
            judged = part.args[1::2]
        elif part.name == "min":
            found.update((doubt, None) for doubt in _thresholds(part))
        for piece in judged:
            if isinstance(piece, Expr):
                found.update((Doubt(symbol.key, None), None) for symbol in symbols(piece))


def _thresholds(minimum: Application) -> Iterator[Doubt]:
    """Up to which size of its only symbol an argument of a minimum is below the number beside it."""
    numbers = [arg for arg in minimum.args if isinstance(arg, int)]
    for arg in minimum.args:
        if not numbers or not isinstance(arg, Expr):
            continue
        rest = dict(arg.terms)
        constant = rest.pop((), 0)
        (monomial, factor), *others = rest.items()
        if not others and len(monomial) == 1 and isinstance(monomial[0], Symbol) and factor > 0:
            most = (numbers[0] - constant) // factor
            if most > 0:
                yield Doubt(monomial[0].key, most)


def certainly_fails(node: Node) -> bool:
    """True if the runtime must refuse operands of such shapes."""
    if node.domain != "" or not node.has_latest_meaning:
        return False
    shapes = [None if value is None else value.shape for value in node.operands]
    if node.op_type in BROADCASTING:
        return _cannot_broadcast(shapes)
    if node.op_type == "Expand" and len(shapes) == 2:
        return _cannot_broadcast([shapes[0], contents(node.operand(1))])
    if node.op_type == "MatMul" and len(shapes) == 2:
        left, right = shapes
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return False
        return isinstance(left[-1], int) and isinstance(right[-2], int) and left[-1] != right[-2]
    if node.op_type == "Gather" and len(shapes) == 2:
        return _finds_nothing(node, shapes[0], shapes[1])
    return node.op_type == "Reshape" and _cannot_reshape(node, shapes[0])


def _finds_nothing(node: Node, data: Shape | None, indices: Shape | None) -> bool:
    """True if something is looked up where there is nothing."""
    if data is None or indices is None or _table_size(node) != 0:
        return False
    return all(dim is not None and is_positive(dim) for dim in indices)


def _cannot_broadcast(shapes: Sequence[Shape | None]) -> bool:
    known = [shape for shape in shapes if shape is not None]
    for place in range(1, max(map(len, known), default=0) + 1):
        sizes = list(dict.fromkeys(shape[-place] for shape in known if len(shape) >= place))
        if any(_differ(left, right) for left, right in combinations(sizes, 2)):
            return True
    return False


def _differ(left: Dim, right: Dim) -> bool:
    """True if two dims are never equal, and neither is ever 1."""
    if left is None or right is None or left == 1 or right == 1:
        return False
    if isinstance(left, int) and isinstance(right, int):
        return left != right
    return never_equal(left, right) and never_equal(left, 1) and never_equal(right, 1)


def _cannot_reshape(node: Node, old: Shape | None) -> bool:
    target = contents(node.operand(1))
    if old is None or target is None or node.param("allowzero"):
        return False
    if -1 in target and 0 in (old[place] for place, size in enumerate(target) if size == 0 and place < len(old)):
        return True  # -1 beside a dim of 0 is refused, whatever the other dims are
    if 0 in target[len(old) :]:
        return True  # there is no dim to copy
    sizes = static(target)
    if sizes is None:
        return False
    new = [old[place] if size == 0 else size for place, size in enumerate(sizes)]
    before = count_of(old)
    after = count_of(size for size in new if size != -1)
    if -1 in new:
        return isinstance(after, int) and after == 0
    return isinstance(before, int) and isinstance(after, int) and before != after


def live_nodes(graph: Graph) -> dict[Node, None]:
    """The nodes that the graph's outputs need."""
    live: dict[Node, None] = {}
    waiting = [graph.return_node]
    while waiting:
        node = waiting.pop()
        for reader in (node, *node.nested()):
            for value in reader.operands:
                if value is not None and value.producer.graph is graph and value.producer not in live:
                    live[value.producer] = None
                    waiting.append(value.producer)
    return live
