"""Moving a view past the operators behind it, up to where it meets another one."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt import Builder, Context, Graph, Node, Value, symbol
from passes._proofs import same_dim, same_shape
from passes._view_carriers import carried, change, is_exact, may_carry
from passes._view_shapes import VIEWS, View, free_place, is_view, target_of

_MAX_LENGTH = 16
"""How many operators a view is moved past at most."""


@dataclass(slots=True)
class _Way:
    """From a view on: the operators moved past so far.

    Attributes:
        view: The view that moves.
        b: Holds the operators on the other shape.
        value: What the last operator gives.
        moved: The same in the other shape.
        nodes: The operators.
        gone: Views that nobody needs any more.
        is_exact: True if every kernel gives the same bits.
    """

    view: Node
    b: Builder
    value: Value
    moved: Value
    nodes: list[Node] = field(default_factory=list)
    gone: list[Node] = field(default_factory=list)
    is_exact: bool = True


def sink(graph: Graph, context: Context, *, exact: bool) -> None:
    """Move every view past what stands behind it where that makes operators needless.

    Args:
        graph: The graph.
        context: The surroundings.
        exact: Move past operators only that give the same bits; otherwise, past one at least that may not.
    """
    views = [node for op_type in VIEWS for node in graph.of_kind(op_type)]
    for view in sorted(views, key=lambda node: (node.rank, node.serial)):
        if view.graph is graph and is_view(view):
            for first in view.results[0].users:
                if view.graph is graph and first.graph is graph and _leads_to_view(view, first):
                    _sink(view, first, context, exact=exact)


def _sink(view: Node, first: Node, context: Context, *, exact: bool) -> None:
    """Move a view on one way, which begins with that reader of it."""
    source, graph = view.operands[0], view.graph
    assert source is not None
    assert graph is not None
    b = context.builder(graph)
    if first.op_type in ("Gemm", "MatMul"):
        source = _with_rows(b, view.results[0], source) or source
    way = _Way(view, b, view.results[0], source)
    node: Node | None = first
    while node is not None and len(way.nodes) < _MAX_LENGTH and _step(way, node, context):
        if (way.is_exact is exact and _finish(way, context, graph)) or (exact and not way.is_exact):
            return
        users = way.value.users
        node = users[0] if len(users) == 1 else None


def _with_rows(b: Builder, value: Value, source: Value) -> Value | None:
    """The source with its last axes merged into the rows a matrix is multiplied with, if they are not yet."""
    if not value.shape or not source.shape or value.shape[-1] is None or same_dim(value.shape[-1], source.shape[-1]):
        return None
    for axis in range(1, len(source.shape)):
        row = symbol.product_of(source.shape[axis:])
        if row is not None and same_dim(row, value.shape[-1]):
            shape = (*source.shape[:axis], value.shape[-1])
            target = target_of(source.shape, shape)
            return None if target is None else View("Reshape", target).build(b, source)
    return None


def _leads_to_view(view: Node, first: Node) -> bool:
    """True if a chain of operators leads from a view to another one, or one of them reads another one."""
    value, users = view.results[0], [first]
    for _ in range(_MAX_LENGTH):
        if len(users) != 1 or not may_carry(users[0]) or users[0].graph is not view.graph:
            return value is not view.results[0] and any(is_view(user) for user in users)
        node = users[0]
        if any(operand is not None and operand is not value and is_view(operand.producer) for operand in node.operands):
            return True
        value = node.results[0]
        users = value.users
    return False


def _step(way: _Way, node: Node, context: Context) -> bool:
    """Move past one more operator, if it can be had on the other shape."""
    if node.graph is not way.view.graph or not may_carry(node) or node.is_pinned or context.keeps(node):
        return False
    shapes = change(way.value, way.moved)
    moved = None if shapes is None else carried(way.b, node, shapes)
    if moved is None or moved.dtype is not node.results[0].dtype:
        return False
    beside = dict.fromkeys(value.producer for value in node.operands if value is not None and value is not way.value)
    used = {value for new in way.b.nodes for value in new.operands}
    for maker in beside:
        is_skipped = is_view(maker) and maker.results[0] not in used
        if is_skipped and maker.results[0].users == [node] and not maker.is_pinned and not context.keeps(maker):
            way.gone.append(maker)
    way.is_exact = way.is_exact and is_exact(node)
    way.nodes.append(node)
    way.value, way.moved = node.results[0], moved
    return True


def _finish(way: _Way, context: Context, graph: Graph) -> bool:
    """Let the way end here, if that leaves fewer operators."""
    views, others = _readers(way, context)
    behind = _behind(way) if others else View()
    if behind is None:
        return False
    made = [node for node in way.b.nodes if node.is_operator]
    fresh = sum(bool(view.op_type) for view in (*views.values(), behind))
    before = len(way.nodes) + len(way.gone) + len(views) + _goes(way, context)
    # As many operators are cheaper where one goes for which a shape is computed now.
    if len(made) + fresh >= before + any(not view.op_type and _computes_shape(node) for node, view in views.items()):
        return False
    replaced = [(node.results[0], view.build(way.b, way.moved)) for node, view in views.items()]
    if others:
        replaced.append((way.value, behind.build(way.b, way.moved)))
    with context.rewrite(graph):
        for node in way.b.nodes:
            graph.insert(node, rank=way.nodes[-1].rank)
        for old, new in replaced:
            graph.replace_uses(old, new)
        for node in (*views, *way.nodes[::-1], *way.gone, way.view):
            if node.graph is graph and not node.is_used and not node.is_pinned and not context.keeps(node):
                graph.erase(node)
    return True


def _computes_shape(node: Node) -> bool:
    """True if a Reshape reads a shape that is not known before the model runs."""
    target = node.operand(1)
    return node.op_type == "Reshape" and target is not None and target.const is None


def _readers(way: _Way, context: Context) -> tuple[dict[Node, View], bool]:
    """The views that read the end of the way and what they become, and whether anything else reads it."""
    found: dict[Node, View] = {}
    others = False
    for user in way.value.users:
        view = None
        reads = user.operand(0) is way.value and way.value not in user.operands[1:]
        if reads and user.graph is way.view.graph and is_view(user) and not user.is_pinned and not context.keeps(user):
            view = _between(way.moved, user)
        if view is None:
            others = True
        else:
            found[user] = view
    return found, others


def _between(source: Value, last: Node) -> View | None:
    """What gives a view's result from a value of another shape."""
    result = last.results[0]
    if same_shape(source, result):
        return View()
    if source.shape is None or result.shape is None:
        return None
    target = target_of(source.shape, result.shape, free_place(last))
    return None if target is None else View("Reshape", target)


def _behind(way: _Way) -> View | None:
    """The view that gives the end of the way its old shape."""
    if same_shape(way.moved, way.value):
        return View()
    if way.moved.shape is None or way.value.shape is None:
        return None
    target = target_of(way.moved.shape, way.value.shape, free_place(way.view))
    return None if target is None else View("Reshape", target)


def _goes(way: _Way, context: Context) -> bool:
    """True if nobody needs the view that was moved."""
    view = way.view
    return view.results[0].users == [way.nodes[0]] and not view.is_pinned and not context.keeps(view)
