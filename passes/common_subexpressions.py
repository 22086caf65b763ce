"""Computes and stores once what a model computes or stores several times.

What is equal is judged by the bits: constants of one element type, shape and bytes; applications of one operator to the
same values with the same attributes, defaults filled in. A body uses what the graphs around it have anyway; two bodies
side by side share nothing. Nothing random, stateful or unknown is ever merged, nor an input a caller may override.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt import Context, Graph, Kind, Model, Node, Value, graph_pass, is_elementwise, is_pure
from passes._equality import Constants, Key, computes_same, expression_key

_SHARED_WITH_BODIES = 1024
"""Bytes from which a body reads the constant of a graph around it. A runtime's kernels see a small parameter of a body
only if it is the body's own; taken from outside, it is an operand that might change with every iteration."""

_CHEAP = frozenset(
    (
        *("Cast", "Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Size"),
        *("Slice", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
"""Operators that cost about what the Identity costs that a second name for a graph output takes."""

_SAME_KERNEL = frozenset(("Dropout", "GRU", "LSTM", "LayerNormalization", "RNN", "SoftmaxCrossEntropyLoss", "Unique"))
"""Operators whose results have the same bits whether an optional one is left out or not."""


@graph_pass(
    before="""(float[2] x) => (float[2] y) <float[2] a = {1.0, 2.0}, float[2] b = {1.0, 2.0}> {
        s = Sub(x, a)
        y = Div(s, b)
    }""",
    after="(float[2] x) => (float[2] y) <float[2] a = {1.0, 2.0}> { s = Sub(x, a) y = Div(s, a) }",
    unless=[
        """(float[2] x) => (float[2] y) <float[1] a = {0.0}, float[1] b = {-0.0}> {
            s = Add(x, a)
            y = Add(s, b)
        }""",
        "(float[2] x, float[1] a = {1.0}) => (float[2] y) <float[1] b = {1.0}> { s = Sub(x, a) y = Div(s, b) }",
    ],
    whole_model=True,
)
def equal_constants(graph: Graph, context: Context) -> None:
    """Constants of one element type, shape and bytes are one; what is large a body reads from the graphs around."""
    for root in _roots(graph.model):
        _merge_constants(root, [], context)


def _merge_constants(graph: Graph, around: list[dict[Key, list[Node]]], context: Context) -> None:
    table: dict[Key, list[Node]] = {}
    listed = set(graph.details.get("listed_inputs", []))
    held = {node: _is_held(node, context) for node in graph.constants() if node.tensor is not None}
    for node in sorted(held, key=lambda node: (not held[node], node not in listed, node.rank, node.serial)):
        tensor = node.tensor
        assert tensor is not None
        key = tensor.fingerprint()
        equal = (
            other
            for candidates in ((*around, table) if tensor.nbytes >= _SHARED_WITH_BODIES else (table,))
            for other in candidates.get(key, ())
            if other.tensor is not None and other.tensor.equals(tensor)
        )
        other = None if held[node] else next(equal, None)
        if other is None:
            table.setdefault(key, []).append(node)
            continue
        with context.rewrite(graph):
            graph.replace_uses(node.results[0], other.results[0])
            graph.erase(node)
    for owner in graph.nodes():
        for body in owner.bodies.values():
            _merge_constants(body, [*around, table], context)


def _is_held(node: Node, context: Context) -> bool:
    """True if a constant must survive: something outside names it, or a graph returns it."""
    is_returned = any(user.kind is Kind.RETURN for user, _ in node.results[0].uses)
    return is_returned or node.is_pinned or context.keeps(node)


@graph_pass(
    before="""(float[2] x, float[2] w) => (float[2] y) {
        a = Add(x, w)
        b = Add(w, x)
        c = Exp(a)
        d = Exp(b)
        y = Sub(c, d)
    }""",
    after="(float[2] x, float[2] w) => (float[2] y) { a = Add(x, w) c = Exp(a) y = Sub(c, c) }",
    unless=[
        "(float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }",
        "(float[2] x) => (float[2] y) { a = test.Next(x) b = test.Next(x) y = Sub(a, b) }",
        "(float[2, 2] x) => (float[2, 2] y) { a = Softmax<axis = 0>(x) b = Softmax(x) y = Sub(a, b) }",
        """(float[2] x) => (float[2] y) <float zero = {0.0}> {
            a = Clip(x, zero)
            b = Clip(x, "", zero)
            y = Sub(a, b)
        }""",
        "(float[2] x) => (float[2] y, float[2] z) { y = Exp(x) z = Exp(x) }",
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { r = Exp(x) t = Neg(r) },
                else_branch = b () => (float[2] e) { s = Exp(x) e = Abs(s) }
            >
        }""",
    ],
    whole_model=True,
)
def equal_expressions(graph: Graph, context: Context) -> None:
    """Applications of one operator to the same values with the same attributes are one."""
    for root in _roots(graph.model):
        _Merger(context).visit(root)


class _Merger:
    """One walk over a graph and its bodies, in an order in which what was met depends on nothing that comes later."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.constants = Constants()
        self.tables: list[dict[Key, list[Node]]] = []
        """What was met, for each graph from the outermost to the one that is walked."""

    def visit(self, graph: Graph) -> None:
        self.tables.append({})
        for node in _owners_last(graph):
            for body in node.bodies.values():
                self.visit(body)
            if not is_pure(node):
                continue
            key = expression_key(node, self.constants)
            if not any(self.merged(node, candidates) for table in self.tables if (candidates := table.get(key))):
                self.tables[-1].setdefault(key, []).append(node)
        self.tables.pop()
        self.return_copies(graph)

    def return_copies(self, graph: Graph) -> None:
        """Return what is there anyway, or a small constant once more, where the file would need an Identity."""
        copies = {node.operands[0]: node.result for node in reversed(graph.of_kind("Identity")) if not node.is_pinned}
        returned = list(graph.return_node.operands)
        for index, value in enumerate(returned):
            if value is None or not _needs_copy(graph, value, index, returned):
                continue
            tensor, copy = value.const, copies.get(value)
            is_small = tensor is not None and tensor.nbytes < _SHARED_WITH_BODIES
            if tensor is not None and is_small and value.producer.graph is not graph:
                with self.context.rewrite(graph):
                    returned[index] = graph.add_constant(tensor)
                    graph.set_operand(graph.return_node, index, returned[index])
            elif copy is not None and copy not in returned:
                returned[index] = copy
                with self.context.rewrite(graph):
                    graph.set_operand(graph.return_node, index, copy)

    def merged(self, node: Node, candidates: list[Node]) -> bool:
        """True if a node is gone, or stays with no reader but the graph's outputs, because of one met before."""
        for index, other in enumerate(candidates):
            if not computes_same(other, node):
                continue
            if self.can_go(node, other):
                self.replace(node, other)
                return True
            if other.graph is node.graph and self.can_go(other, node):
                self.replace(other, node)
                candidates[index] = node
                return True
        return False

    def can_go(self, gone: Node, kept: Node) -> bool:
        if gone.is_pinned or self.context.keeps(gone):
            return False
        given = _given(kept)
        if given != _given(gone) and (kept.domain or kept.op_type not in _SAME_KERNEL):
            return False
        return all(value.index in given for value in gone.results if value.uses)

    def replace(self, gone: Node, kept: Node) -> None:
        """Let readers of one node read the other; where that would cost an Identity, only if it is worth one."""
        graph = gone.graph
        assert graph is not None
        pairs = [(old, kept.results[old.index]) for old in gone.results if old.uses]
        if any(_needs_relay(old, new) for old, new in pairs) and _is_cheap(gone):
            self.replace_inner_uses(graph, pairs)
            return
        with self.context.rewrite(graph):
            for old, new in pairs:
                graph.replace_uses(old, new)
            graph.erase(gone)

    def replace_inner_uses(self, graph: Graph, pairs: list[tuple[Value, Value]]) -> None:
        inner = [(user, index, new) for old, new in pairs for user, index in old.uses if user.kind is not Kind.RETURN]
        if not inner:
            return
        with self.context.rewrite(graph):
            for user, index, new in inner:
                assert user.graph is not None
                user.graph.set_operand(user, index, new)


def _owners_last(graph: Graph) -> list[Node]:
    """The operators in topological order, those with bodies and what depends on them at the end.

    So a body meets as much as possible of what the graph around it computes anyway.
    """
    early: list[Node] = []
    late: dict[Node, None] = {}
    for node in graph.order():
        if node.bodies or any(value is not None and value.producer in late for value in node.operands):
            late[node] = None
        else:
            early.append(node)
    return [*early, *late]


def _given(node: Node) -> list[int]:
    """The results a node gives: those that are not left out."""
    return [value.index for value in node.results if value.name != ""]


def _needs_relay(old: Value, new: Value) -> bool:
    """True if a graph that returns one value would return the other only through an Identity.

    A value has one external name, and a body cannot return what it did not compute.
    """
    home, new_home = old.producer.graph, new.producer.graph
    returned = {user for user, _ in new.uses if user.kind is Kind.RETURN}
    return any(
        user in returned or new.producer.is_pinned or (user.graph is home and home is not new_home)
        for user, _ in old.uses
        if user.kind is Kind.RETURN
    )


def _needs_copy(graph: Graph, value: Value, index: int, returned: Sequence[Value | None]) -> bool:
    """True if a graph can return a value only through an Identity, or does so already under another name."""
    if value in returned[:index] or not graph.can_return(value):
        return True
    names = [name for name, _ in graph.details.get("outputs", [])]
    return graph.owner is None and value.producer.kind is Kind.INPUT and names[index : index + 1] != [value.name]


def _is_cheap(node: Node) -> bool:
    return is_elementwise(node.domain, node.op_type) or (node.domain == "" and node.op_type in _CHEAP)


def _roots(model: Model) -> Iterator[Graph]:
    """The graphs that lie in no other."""
    for function in model.functions.values():
        yield function.graph
    yield model.graph
