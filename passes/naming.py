"""Gives every operator a name of its own, so that profiles, keep-lists and messages can tell it.

Nodes whose name is unique already are not touched.
"""

from __future__ import annotations

from collections import Counter

from graphopt import Context, Graph, Node, graph_pass

_INITIALIZERS_ALONE = 4
"""From this IR version on, an initializer need not be listed as an input; before, a new constant is a node."""


@graph_pass(
    before="(float[2] x) => (float[2] y) { z = Relu(x) [twice] u = Neg(z) [twice] y = Neg(u) }",
    after="(float[2] x) => (float[2] y) { [Relu_0] z = Relu(x) [twice] u = Neg(z) [twice_1] y = Neg(u) }",
    unless=["(float[2] x) => (float[2] y) { [first] z = Relu(x) [second] y = Neg(z) }"],
    numeric="S",
    whole_model=True,
)
def name_nodes(graph: Graph, context: Context) -> None:
    """Every operator has a name that no other in its model or function has."""
    model = graph.model
    for root in (*(function.graph for function in model.functions.values()), graph):
        nodes: list[Node] = []
        for scope in (root, *root.bodies_inside()):
            written = [node for node in scope.all_nodes() if _is_written_as_node(node, root)]
            nodes.extend(sorted(written, key=lambda node: (node.rank, node.serial)))
        fresh = _fresh_names(nodes)
        if fresh:
            with context.rewrite(root):
                for node, name in fresh.items():
                    assert node.graph is not None
                    node.graph.rename(node, name)


def _is_written_as_node(node: Node, root: Graph) -> bool:
    if not node.is_constant or node.stored_as_node:
        return node.is_operator or node.is_constant
    if root is not root.model.graph:
        return node.graph is root  # functions have no initializers, bodies in them do
    is_new = node.origin is None and node.results[0].declared is None
    return is_new and root.model.ir_version < _INITIALIZERS_ALONE


def _fresh_names(nodes: list[Node]) -> dict[Node, str]:
    """New names for nodes without one, and for all but the first of those that share one."""
    fresh: dict[Node, str] = {}
    keeper: dict[str, Node] = {}
    for node in sorted(nodes, key=lambda node: not node.is_pinned):
        keeper.setdefault(node.name, node)
    taken = set(keeper)
    counters: Counter[str] = Counter()
    for node in nodes:
        if node.is_pinned or (node.name and keeper[node.name] is node):
            continue
        base = node.name or node.op_type or "Constant"
        counters[base] += bool(node.name)  # `Relu_0` is the first Relu, `twice_1` the second of that name
        while (name := f"{base}_{counters[base]}") in taken:
            counters[base] += 1
        taken.add(name)
        counters[base] += not node.name
        fresh[node] = name
    return fresh
