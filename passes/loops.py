"""Makes loops smaller: what is the same in every iteration moves in front, state that never changes is no state.

Nothing runs that the original would not have run: only what cannot fail leaves a loop that may not run at all. A loop
of few iterations goes where these one by one are no more nodes; run aggressively, also where they are a few more.
"""

from __future__ import annotations

from graphopt import Context, Graph, Node, graph_pass
from passes._inlining import TakenNames, stays
from passes._loop_invariants import drop_scanned, invariants, move_before, read_from_outside
from passes._unrolling import has_one_step, inline_step, pays, step_pays, trips_of, unroll


@graph_pass(
    before="""(float[2] x, float[2] z, bool go) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y, last = Loop (m, go, x, z) <
            body = b (int64 i, bool c, float[2] s, float[2] n) => (bool again, float[2] r, float[2] same) {
                again = Identity(c)
                r = Add(s, n)
                same = Identity(n)
            }
        >
    }""",
    after="""(float[2] x, float[2] z, bool go) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y = Loop (m, go, x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                again = Identity(c)
                r = Add(s, z)
            }
        >
    }""",
    unless=[
        """(float[2] x, float[2] z, bool go) => (float[2] y) {
            m = Constant<value = int64 {3}>()
            y, last = Loop (m, go, x, z) <
                body = b (int64 i, bool c, float[2] s, float[2] n) => (bool again, float[2] r, float[2] other) {
                    again = Identity(c)
                    r = Add(s, n)
                    other = Neg(n)
                }
            >
        }""",
    ],
)
def unchanged_state(graph: Graph, context: Context) -> None:
    """State that a loop hands on as it is, is what it was before the loop."""
    for node in _loops(graph, context):
        read_from_outside(node, context)


@graph_pass(
    before="""(float[2] x, float[2] z, bool go) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y = Loop (m, go, x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                again = Identity(c)
                p = Neg(z)
                q = Exp(p)
                r = Add(s, q)
            }
        >
    }""",
    after="""(float[2] x, float[2] z, bool go) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        p = Neg(z)
        q = Exp(p)
        y = Loop (m, go, x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                again = Identity(c)
                r = Add(s, q)
            }
        >
    }""",
    unless=[
        # It may not run at all, and then nothing fails.
        """(float[2] x, float[n] z, float[k] w, bool go) => (float[2] y) {
            m = Constant<value = int64 {3}>()
            y = Loop (m, go, x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    p = Mul(z, w)
                    q = ReduceMax<keepdims = 0>(p)
                    r = Add(s, q)
                }
            >
        }""",
        # Drawn anew in every iteration.
        """(float[2] x, float[2] z, bool go) => (float[2] y) {
            m = Constant<value = int64 {3}>()
            y = Loop (m, go, x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    p = RandomNormalLike(z)
                    r = Add(s, p)
                }
            >
        }""",
    ],
)
def invariant_work(graph: Graph, context: Context) -> None:
    """What a loop computes from values that do not change in it is computed once, before it."""
    names: TakenNames | None = None
    for node in _loops(graph, context):
        moved = invariants(node, context)
        if moved:
            names = names or _names(graph)
            move_before(node, moved, context, names)


@graph_pass(
    before="""(float[2] x, float[3, 2] p, float[3, 2] q) => (float[2] y) {
        y = Scan <
            num_scan_inputs = 3,
            body = b (float[2] s, float[2] u, float[2] v, float[2] w) => (float[2] r) {
                d = Mul(u, w)
                r = Add(s, d)
            }
        > (x, p, q, p)
    }""",
    after="""(float[2] x, float[3, 2] p, float[3, 2] q) => (float[2] y) {
        y = Scan <
            num_scan_inputs = 1,
            body = b (float[2] s, float[2] u) => (float[2] r) {
                d = Mul(u, u)
                r = Add(s, d)
            }
        > (x, p)
    }""",
    unless=[
        """(float[2] x, float[3, 2] p) => (float[2] y) {
            y = Scan <
                num_scan_inputs = 2,
                scan_input_directions = [0, 1],
                body = b (float[2] s, float[2] u, float[2] w) => (float[2] r) {
                    d = Mul(u, w)
                    r = Add(s, d)
                }
            > (x, p, p)
        }""",
        """(float[2] x, float[3, 2] p) => (float[2] y) {
            y = Scan <
                num_scan_inputs = 1,
                body = b (float[2] s, float[2] u) => (float[2] r) { r = Exp(s) }
            > (x, p)
        }""",
    ],
)
def unread_sequences(graph: Graph, context: Context) -> None:
    """What a Scan goes through and its body does not read goes, and what it goes through twice it reads once."""
    for node in _loops(graph, context):
        if node.op_type == "Scan":
            drop_scanned(node, context)


@graph_pass(
    before="""(float[2] x) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y = Loop (m, "", x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                again = Identity(c)
                one = Constant<value = int64 {1}>()
                n = Add(i, one)
                h = Mul(n, n)
                f = Cast<to = 1>(h)
                r = Mul(s, f)
            }
        >
    }""",
    after="""(float[2] x) => (float[2] y) {
        i0 = Constant<value = int64 {0}>()
        one0 = Constant<value = int64 {1}>()
        n0 = Add(i0, one0)
        h0 = Mul(n0, n0)
        f0 = Cast<to = 1>(h0)
        r0 = Mul(x, f0)
        i1 = Constant<value = int64 {1}>()
        one1 = Constant<value = int64 {1}>()
        n1 = Add(i1, one1)
        h1 = Mul(n1, n1)
        f1 = Cast<to = 1>(h1)
        r1 = Mul(r0, f1)
        i2 = Constant<value = int64 {2}>()
        one2 = Constant<value = int64 {1}>()
        n2 = Add(i2, one2)
        h2 = Mul(n2, n2)
        f2 = Cast<to = 1>(h2)
        y = Mul(r1, f2)
    }""",
    unless=[
        """(float[2] x) => (float[2] y) {
            m = Constant<value = int64 {3}>()
            y = Loop (m, "", x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    p = Exp(s)
                    q = Neg(p)
                    r = Relu(q)
                }
            >
        }""",
        """(float[2] x) => (float[2] y) {
            m = Constant<value = int64 {2}>()
            y = Loop (m, "", x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    total = ReduceSum<keepdims = 0>(s)
                    zero = Constant<value = float {0.0}>()
                    again = Greater(total, zero)
                    r = Exp(s)
                }
            >
        }""",
    ],
    whole_model=True,
)
def few_trips(graph: Graph, context: Context) -> None:
    """A Loop of few iterations is these one by one, where they are no more nodes once their numbers are constants.

    Run aggressively, also where they are up to 64 nodes.
    """
    for scope in list(graph.model.graphs()):
        names: TakenNames | None = None
        for node in _loops(scope, context) if scope.is_attached else []:
            trips = trips_of(node) if node.op_type == "Loop" else None
            if trips is not None and pays(node, trips, context):
                names = names or _names(scope)
                unroll(node, trips, context, names)


@graph_pass(
    before="""(float[2] x, float[1, 2] p) => (float[2] y) {
        y = Scan <
            num_scan_inputs = 1,
            body = b (float[2] s, float[2] u) => (float[2] r) { d = Exp(u) r = Add(s, d) }
        > (x, p)
    }""",
    after="""(float[2] x, float[1, 2] p) => (float[2] y) {
        axes = Constant<value = int64[1] {0}>()
        u = Squeeze(p, axes)
        d = Exp(u)
        y = Add(x, d)
    }""",
    unless=[
        """(float[2] x, float[n, 2] p) => (float[2] y) {
            y = Scan <
                num_scan_inputs = 1,
                body = b (float[2] s, float[2] u) => (float[2] r) { d = Exp(u) r = Add(s, d) }
            > (x, p)
        }""",
    ],
    whole_model=True,
)
def single_steps(graph: Graph, context: Context) -> None:
    """A Scan over sequences of length one is its body."""
    for scope in list(graph.model.graphs()):
        names: TakenNames | None = None
        for node in _loops(scope, context) if scope.is_attached else []:
            if node.op_type == "Scan" and has_one_step(node) and step_pays(node, context):
                names = names or _names(scope)
                inline_step(node, context, names)


def _loops(graph: Graph, context: Context) -> list[Node]:
    found = [*graph.of_kind("Loop"), *graph.of_kind("Scan")]
    return [node for node in found if node.has_latest_meaning and not stays(node, context)]


def _names(graph: Graph) -> TakenNames:
    while graph.parent is not None:
        graph = graph.parent
    return TakenNames(graph)
