"""Takes out what nobody needs: dead code, branches never taken, unread results, functions nobody calls.

What the model promises to the outside stays: graph inputs (overridable initializers among them), graph outputs, what
training information and quantization annotations refer to, and whatever the keep-list names.

A dead random operator goes. The others still draw numbers of the same distribution, but with a session-wide seed they
draw other ones, since the runtime hands out one stream to all operators without a seed of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import Context, Effect, Graph, Model, Node, Value, effect_of, graph_pass
from passes._body_results import drop_unread, reads
from passes._calls import called_from
from passes._inlining import (
    TakenNames,
    drop_zero_trip,
    inline_branch,
    inline_single_trip,
    known_condition,
    known_trips,
    outermost,
    stays,
)

_TRAINING_INFO = 20
"""The field of `ModelProto` that holds training information; it may refer to anything."""


_INDEPENDENT_RESULTS = ("Dropout", "GRU", "LSTM", "LayerNormalization", "RNN", "SoftmaxCrossEntropyLoss", "Unique")
"""Operators whose optional results may be left out one by one without changing a bit of the others."""


@graph_pass(
    before="""(float[2] x) => (float[2] y) {
        c = Constant<value = bool {1}>()
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Relu(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=[
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Relu(x) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }""",
    ],
    whole_model=True,
)
def constant_conditions(graph: Graph, context: Context) -> None:
    """An If whose condition is known is the branch it takes."""
    for scope in _scopes(graph.model, "If"):
        names: TakenNames | None = None
        for node in scope.of_kind("If"):
            taken = known_condition(node)
            if taken is None or stays(node, context):
                continue
            names = names or TakenNames(outermost(scope))
            inline_branch(node, taken, context, names)


@graph_pass(
    before="""(float[2] x) => (float[2] y, float[n, 2] stack) {
        m = Constant<value = int64 {1}>()
        y, stack = Loop (m, "", x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r, float[2] e) {
                again = Identity(c)
                r = Relu(s)
                e = Neg(s)
            }
        >
    }""",
    after="""(float[2] x) => (float[2] y, float[n, 2] stack) {
        y = Relu(x)
        e = Neg(x)
        axes = Constant<value = int64[1] {0}>()
        stack = Unsqueeze(e, axes)
    }""",
    unless=[
        """(float[2] x) => (float[2] y) {
            m = Constant<value = int64 {2}>()
            y = Loop (m, "", x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    r = Relu(s)
                }
            >
        }""",
        """(float[2] x, bool start) => (float[2] y) {
            m = Constant<value = int64 {1}>()
            y = Loop (m, start, x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    r = Relu(s)
                }
            >
        }""",
    ],
    whole_model=True,
)
def constant_trip_counts(graph: Graph, context: Context) -> None:
    """A Loop that is known to run never or once is its initial state, or its body."""
    for scope in _scopes(graph.model, "Loop"):
        names: TakenNames | None = None
        for node in scope.of_kind("Loop"):
            trips = known_trips(node)
            if trips is None or stays(node, context):
                continue
            if trips == 0:
                drop_zero_trip(node, context)
                continue
            names = names or TakenNames(outermost(scope))
            inline_single_trip(node, context, names)


@graph_pass(
    before="""(float[2] x) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y, count = Loop (m, "", x, m) <
            body = b (int64 i, bool c, float[2] s, int64 n) => (bool again, float[2] r, int64 k) {
                again = Identity(c)
                r = Relu(s)
                k = Add(n, i)
            }
        >
    }""",
    after="""(float[2] x) => (float[2] y) {
        m = Constant<value = int64 {3}>()
        y = Loop (m, "", x) <
            body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                again = Identity(c)
                r = Relu(s)
            }
        >
    }""",
    unless=[
        """(float[2] x) => (float[2] y) {
            m = Constant<value = int64 {3}>()
            y, count = Loop (m, "", x, x) <
                body = b (int64 i, bool c, float[2] s, float[2] n) => (bool again, float[2] r, float[2] k) {
                    again = Identity(c)
                    r = Add(s, n)
                    k = Relu(n)
                }
            >
        }""",
    ],
)
def unread_body_results(graph: Graph, context: Context) -> None:
    """A result of If, Loop or Scan that nobody reads goes, and with it the state that only feeds itself."""
    for op_type in ("If", "Loop", "Scan"):
        for node in graph.of_kind(op_type):
            if node.has_latest_meaning and not (node.is_pinned or context.keeps(node)):
                drop_unread(node, context)


@graph_pass(
    before="(float[2] x) => (float[2] y) <float[1] w = {1.0}> { y = Relu(x) z = Neg(y) v = Add(z, w) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(float[2] x) => (float[2] y) { y = Relu(x) z = test.Print(x) }"],
    numeric="S",
)
def dead_code(graph: Graph, context: Context) -> None:
    """A node whose results nobody reads goes, unless it may do something besides computing them."""
    pending = [node for node in graph.all_nodes() if not node.is_used]
    while pending:
        node = pending.pop()
        if node.graph is not graph or node.is_used or not _may_go(node, context):
            continue
        read = [value.producer for value in reads(node)]
        with context.rewrite(graph):
            graph.erase(node)
        pending.extend(producer for producer in read if producer.graph is graph)


def _may_go(node: Node, context: Context) -> bool:
    if node.is_pinned or context.keeps(node):
        return False
    return node.is_constant or (node.is_operator and effect_of(node) <= Effect.RANDOM)


@graph_pass(
    before="(float[2, 3] x) => (float[2, 3] y) { y, mask = Dropout(x) }",
    after="(float[2, 3] x) => (float[2, 3] y) { y = Dropout(x) }",
    unless=[
        "(float[4, 2] x) => (float[2, 2] y) { y, z = Split<axis = 0, num_outputs = 2>(x) }",
        "(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { y, z = MaxPool<kernel_shape = [2, 2]>(x) }",
        """(float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2, 3] y) {
            y, mean, var = BatchNormalization<training_mode = 1>(x, s, b, m, v)
        }""",
    ],
)
def unread_optional_results(graph: Graph, context: Context) -> None:
    """An optional result that nobody reads is left out."""
    for op_type in (*_INDEPENDENT_RESULTS, "BatchNormalization", "Attention"):
        for node in graph.of_kind(op_type):
            if node.has_latest_meaning and not (node.is_pinned or context.keeps(node)):
                _leave_out(node, _omissible(node), context)


@graph_pass(
    before="(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { y, z = MaxPool<kernel_shape = [2, 2]>(x) }",
    after="(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }",
    unless=["(float[4, 4, 4] x) => (float[4, 3] y, int64[4, 3] z) { y, z = MaxPool<kernel_shape = [2]>(x) }"],
    numeric="D",
)
def unread_pool_indices(graph: Graph, context: Context) -> None:
    """The indices of MaxPool that nobody reads are left out; the other kernel treats NaN differently."""
    for node in graph.of_kind("MaxPool"):
        if not (node.is_pinned or context.keeps(node)):
            _leave_out(node, [value for value in node.results[1:] if not value.uses], context)


def _omissible(node: Node) -> list[Value]:
    """The results that nobody reads and that the node need not give."""
    schema = node.schema
    if schema is None:
        return []
    unread = [
        value for value, formal in zip(node.results, schema.outputs, strict=False) if formal.optional and not value.uses
    ]
    if node.op_type == "BatchNormalization":
        is_inference = node.attributes.get("training_mode", 0) == 0
        return unread if is_inference and len(unread) == len(node.results) - 1 else []
    if node.op_type == "Attention":
        # The present key and value come together, and must come where there is a past.
        present = [value for value in unread if value.index in (1, 2)]
        if node.operand(4) is not None or len(present) < len(node.results[1:3]):
            unread = [value for value in unread if value not in present]
    return unread


def _leave_out(node: Node, unread: list[Value], context: Context) -> None:
    graph = node.graph
    count = len(node.results)
    while count > 1 and node.results[count - 1] in unread:
        count -= 1
    inner = [value for value in node.results[:count] if value in unread and value.name != ""]
    if graph is None or (count == len(node.results) and not inner):
        return
    with context.rewrite(graph):
        for value in inner:
            graph.rename(value, "")
        graph.set_results(node, node.results[:count])


# --- what the file declares


@graph_pass(
    before="""(float[2] x) => (float[2] y) { y = local.Used(x) }
    <domain: "local", opset_import: ["" : 21]> Used (a) => (b) { b = Relu(a) }
    <domain: "local", opset_import: ["" : 21]> Unused (a) => (b) { b = Neg(a) }""",
    after="""(float[2] x) => (float[2] y) { y = local.Used(x) }
    <domain: "local", opset_import: ["" : 21]> Used (a) => (b) { b = Relu(a) }""",
    unless=[
        """(float[2] x) => (float[2] y) { y = local.Outer(x) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]> Outer (a) => (b) { b = local.Inner(a) }
        <domain: "local", opset_import: ["" : 21]> Inner (a) => (b) { b = Neg(a) }""",
    ],
    numeric="S",
    whole_model=True,
)
def unused_functions(graph: Graph, context: Context) -> None:
    """A local function that nobody calls goes."""
    model = graph.model
    if not model.functions or _is_trainable(model):
        return
    called = called_from(graph)
    if len(called) < len(model.functions):
        with context.rewrite(graph):
            model.set_functions({key: function for key, function in model.functions.items() if function in called})


@graph_pass(
    before="(float[2] x) => (float[2] y) { y = Relu(x) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    numeric="S",
    whole_model=True,
)
def unused_imports(graph: Graph, context: Context) -> None:
    """An opset import of a domain that no node uses goes: a runtime need not know that domain."""
    model = graph.model
    if _is_trainable(model):
        return
    used = {domain for scope in model.graphs() for domain, _ in scope.kinds}
    unused = [domain for domain in graph.opsets if domain and domain not in used]
    if unused:
        with context.rewrite(graph):
            for domain in unused:
                graph.set_opset(domain, None)


@graph_pass(
    before="(float[2] x) => (float[2] y) <float[2] gone> { y = Relu(x) }",
    after="(float[2] x) => (float[2] y) { y = Relu(x) }",
    unless=["(float[2] x) => (float[2] y) <float[2] z> { z = Relu(x) y = Neg(z) }"],
    numeric="S",
)
def stale_value_infos(graph: Graph, context: Context) -> None:
    """A type recorded for a value that does not exist goes."""
    infos = graph.details.get("infos", [])
    kept = [entry for entry in infos if entry[0] is not None]
    if len(kept) < len(infos):
        with context.rewrite(graph):
            graph.set_detail("infos", kept)


# --- helpers


def _scopes(model: Model, op_type: str) -> Iterator[Graph]:
    """The graphs that hold an operator, innermost first, as long as they are part of the model."""
    for scope in list(model.graphs()):
        if scope.of_kind(op_type) and scope.is_attached:
            yield scope


def _is_trainable(model: Model) -> bool:
    return any(number == _TRAINING_INFO for number, _ in model.details.get("fields", []))
