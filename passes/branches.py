"""Makes the branches of If smaller: what both compute moves in front, what the condition tells is a constant.

An If whose branches only choose between two values that are there anyway is a Where, or the condition itself. Only what
both branches compute is ever moved out of them, so nothing runs that the original would not have run.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._body_results import drop_unread
from passes._branch_conditions import Merger, known_inside, swap_branches
from passes._branch_pairs import move_out, shared_by_branches
from passes._branch_results import equal_results, read_condition
from passes._branch_values import EXACT, FLOATS, select
from passes._equality import Constants
from passes._inlining import TakenNames, outermost, stays

_TRIED = 4
"""How many Ifs on one condition, that did not merge with each other, another one is tried with."""


@graph_pass(
    before="""(float[2] x, bool c, bool d) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) {
                both = And(c, d)
                n = Cast<to = 1>(both)
                t = Mul(x, n)
            },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""",
    after="""(float[2] x, bool c, bool d) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) {
                c_1 = Constant<value = bool {1}>()
                both = And(c_1, d)
                n = Cast<to = 1>(both)
                t = Mul(x, n)
            },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""",
    unless=[
        """(float[2] x, bool c, bool d) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { n = Cast<to = 1>(d) t = Mul(x, n) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }""",
    ],
    whole_model=True,
)
def known_conditions(graph: Graph, context: Context) -> None:
    """What the condition of an If or Loop says inside its bodies is a constant there."""
    known_inside(graph.model, context)


@graph_pass(
    before="""(float[2] x, bool c) => (float[2] y) {
        n = Not(c)
        y = If (n) <
            then_branch = a () => (float[2] t) { t = Relu(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""",
    after="""(float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = b () => (float[2] e) { e = Neg(x) },
            else_branch = a () => (float[2] t) { t = Relu(x) }
        >
    }""",
    unless=[
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Relu(x) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }""",
    ],
)
def negated_conditions(graph: Graph, context: Context) -> None:
    """An If on a negation is an If with its branches swapped."""
    for node in graph.of_kind("If"):
        condition = node.operand(0)
        if condition is not None and condition.producer.is_op("Not") and not stays(node, context):
            swap_branches(node, context)


@graph_pass(
    before="""(float[2] x, float[2] z, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { p = Add(x, z) q = Exp(p) t = Relu(q) },
            else_branch = b () => (float[2] e) { r = Add(z, x) s = Exp(r) e = Neg(s) }
        >
    }""",
    after="""(float[2] x, float[2] z, bool c) => (float[2] y) {
        p = Add(x, z)
        q = Exp(p)
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Relu(q) },
            else_branch = b () => (float[2] e) { e = Neg(q) }
        >
    }""",
    unless=[
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { p = RandomNormalLike(x) t = Relu(p) },
                else_branch = b () => (float[2] e) { q = RandomNormalLike(x) e = Neg(q) }
            >
        }""",
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Exp(x) },
                else_branch = b () => (float[2] e) { q = Exp(x) e = Neg(q) }
            >
        }""",
    ],
)
def shared_work(graph: Graph, context: Context) -> None:
    """What both branches compute is computed once, before the If; where all results are equal, no If is left."""
    names: TakenNames | None = None
    for node in graph.of_kind("If"):
        if stays(node, context):
            continue
        shared = shared_by_branches(node, Constants())
        if shared is not None:
            names = names or TakenNames(outermost(graph))
            move_out(node, shared, context, names)


@graph_pass(
    before="""(float[2] x, bool c) => (float[2] y, float[2] z) {
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Relu(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
        z = If (c) <
            then_branch = a2 () => (float[2] u) { u = Exp(y) },
            else_branch = b2 () => (float[2] v) { v = Abs(x) }
        >
    }""",
    after="""(float[2] x, bool c) => (float[2] y, float[2] z) {
        y, z = If (c) <
            then_branch = a () => (float[2] t, float[2] u) { t = Relu(x) u = Exp(t) },
            else_branch = b () => (float[2] e, float[2] v) { e = Neg(x) v = Abs(x) }
        >
    }""",
    unless=[
        """(float[2] x, bool c) => (float[2] y, float[2] z) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Relu(x) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
            w = Sin(y)
            z = If (c) <
                then_branch = a2 () => (float[2] u) { u = Exp(w) },
                else_branch = b2 () => (float[2] v) { v = Abs(x) }
            >
        }""",
    ],
)
def equal_conditions(graph: Graph, context: Context) -> None:
    """Two Ifs on one condition are one, unless something between them needs the first."""
    merger: Merger | None = None
    groups: dict[Value, list[Node]] = {}
    if len(graph.of_kind("If")) < 2:
        return
    for node in [node for node in graph.order() if node.is_op("If") and not stays(node, context)]:
        condition = node.operand(0)
        fits = all(len(body.outputs) >= len(node.results) for body in node.bodies.values())
        if condition is None or condition.const is not None or not fits:
            continue
        group = groups.setdefault(condition, [])
        for index, other in list(enumerate(group))[-_TRIED:]:
            merger = merger or Merger(graph, context, TakenNames(outermost(graph)))
            merged = merger.merge(other, node)
            if merged is not None:
                group[index] = merged
                break
        else:
            group.append(node)


@graph_pass(
    before="""(float[2, 1] x, bool c) => (float[a, b] y) {
        s = If (c) <
            then_branch = a () => (float[2] t) { axes = Constant<value = int64[1] {1}>() t = Squeeze(x, axes) },
            else_branch = b () => (float[2, 1] e) { e = Neg(x) }
        >
        shape = Shape(s)
        rank = Size(shape)
        two = Constant<value = int64 {2}>()
        is_matrix = Equal(rank, two)
        y = If (is_matrix) <
            then_branch = a2 () => (float[a, b] u) { u = Exp(s) },
            else_branch = b2 () => (float[a, b] v) { axes2 = Constant<value = int64[1] {0}>() v = Unsqueeze(s, axes2) }
        >
    }""",
    after="""(float[2, 1] x, bool c) => (float[a, b] y) {
        s = If (c) <
            then_branch = a () => (float[2] t) { axes = Constant<value = int64[1] {1}>() t = Squeeze(x, axes) },
            else_branch = b () => (float[2, 1] e) { e = Neg(x) }
        >
        shape = Shape(s)
        rank = Size(shape)
        two = Constant<value = int64 {2}>()
        is_matrix = Equal(rank, two)
        n = Not(c)
        y = If (n) <
            then_branch = a2 () => (float[a, b] u) { u = Exp(s) },
            else_branch = b2 () => (float[a, b] v) { axes2 = Constant<value = int64[1] {0}>() v = Unsqueeze(s, axes2) }
        >
    }""",
    unless=[
        """(float[n, 1] x, bool c) => (float[a, b] y) {
            s = If (c) <
                then_branch = a () => (float[n, 1] t) { t = Exp(x) },
                else_branch = b () => (float[n, 1] e) { e = Neg(x) }
            >
            shape = Shape<end = 1>(s)
            two = Constant<value = int64[1] {2}>()
            is_two = Equal(shape, two)
            y = If (is_two) <
                then_branch = a2 () => (float[a, b] u) { u = Exp(s) },
                else_branch = b2 () => (float[a, b] v) { v = Neg(s) }
            >
        }""",
    ],
)
def settled_conditions(graph: Graph, context: Context) -> None:
    """A condition on the shape of an If's result, which each branch settles, is that If's own condition."""
    for node in graph.of_kind("If"):
        condition = node.operand(0)
        if condition is not None and condition.const is None and node.is_used and node.has_latest_meaning:
            read_condition(node, context)


@graph_pass(
    before="""(float[2] x, bool c) => (float[2] y) {
        p, q = If (c) <
            then_branch = a () => (float[2] t, float[2] t2) { t = Relu(x) t2 = Relu(x) },
            else_branch = b () => (float[2] e, float[2] e2) { e = Neg(x) e2 = Neg(x) }
        >
        y = Add(p, q)
    }""",
    after="""(float[2] x, bool c) => (float[2] y) {
        p = If (c) <
            then_branch = a () => (float[2] t) { t = Relu(x) t2 = Relu(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) e2 = Neg(x) }
        >
        y = Add(p, p)
    }""",
    unless=[
        """(float[2] x, bool c) => (float[2] y) {
            p, q = If (c) <
                then_branch = a () => (float[2] t, float[2] t2) { t = Relu(x) t2 = Relu(x) },
                else_branch = b () => (float[2] e, float[2] e2) { e = Neg(x) e2 = Exp(x) }
            >
            y = Add(p, q)
        }""",
    ],
)
def twin_results(graph: Graph, context: Context) -> None:
    """Results of an If that are equal whichever branch it takes are one."""
    for node in graph.of_kind("If"):
        pairs = [] if len(node.results) < 2 or stays(node, context) else equal_results(node)
        if pairs:
            with context.rewrite(graph):
                for old, new in pairs:
                    graph.replace_uses(old, new)
                drop_unread(node, context)


@graph_pass(
    before="""(int64[2] x, int64[2] z, bool c) => (int64[2] y) {
        y = If (c) <
            then_branch = a () => (int64[2] t) { t = Identity(x) },
            else_branch = b () => (int64[2] e) { e = Identity(z) }
        >
    }""",
    after="(int64[2] x, int64[2] z, bool c) => (int64[2] y) { y = Where(c, x, z) }",
    unless=[
        """(int64[2] x, int64[n] z, bool c) => (int64[m] y) {
            y = If (c) <
                then_branch = a () => (int64[m] t) { t = Identity(x) },
                else_branch = b () => (int64[m] e) { e = Identity(z) }
            >
        }""",
    ],
)
def chosen_values(graph: Graph, context: Context) -> None:
    """An If between two values that are there anyway is a Where; between true and false, it is the condition."""
    for node in graph.of_kind("If"):
        if not stays(node, context):
            select(node, EXACT, context)


@graph_pass(
    before="""(float[2] x, float[2] z, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Identity(x) },
            else_branch = b () => (float[2] e) { e = Identity(z) }
        >
    }""",
    after="(float[2] x, float[2] z, bool c) => (float[2] y) { y = Where(c, x, z) }",
    numeric="Z",
)
def chosen_floats(graph: Graph, context: Context) -> None:
    """An If between two floats that are there anyway is a Where; the runtime's may lose the sign of a zero."""
    for node in graph.of_kind("If"):
        if not stays(node, context):
            select(node, EXACT | FLOATS, context)
