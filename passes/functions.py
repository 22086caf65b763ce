"""Puts the bodies of local functions in the place of their calls, so that every other pass sees through them.

A call is replaced where each operator of the function means the same under the opset imports around the call as under
the function's own. A function whose name is an operator's stays: the runtime may run its own kernel for it. What is
named in the keep-list, or holds something that is, stays as well. Functions that are still called survive, and are
optimized in place.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import Context, Function, Graph, Model, Node, graph_pass
from passes._calls import called_from, calls_in, function_of, recursive
from passes._function_inlining import inline_call, obstacle, size_of
from passes._inlining import TakenNames

_MOST_NODES = 100_000
"""Nodes a run may add: functions that call functions that call functions grow fast."""
_TRAINING_INFO = 20
"""The field of `ModelProto` that holds training information; it may refer to anything."""


@graph_pass(
    before="""(float[2] x) => (float[2] y) { y = local.Scaled<by = 2.0>(x) }
    <domain: "local", opset_import: ["" : 21]> Scaled <by> (a) => (b) {
        factor = Constant<value_float : float = @by>()
        b = Mul(a, factor)
    }""",
    after="""(float[2] x) => (float[2] y) {
        factor = Constant<value = float {2.0}>()
        y = Mul(x, factor)
    }""",
    unless=[
        # The operator means something else in the function.
        """(float[2, 2, 2] x) => (float[2, 2, 2] y) { y = local.Normal(x) }
        <domain: "local", opset_import: ["" : 11]> Normal (a) => (b) { b = Softmax<axis = 1>(a) }""",
        # The runtime has a kernel of this name.
        """(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }
        <domain: "com.microsoft", opset_import: ["" : 21]> Gelu (a) => (b) { b = Relu(a) }""",
    ],
    whole_model=True,
)
def inline_functions(graph: Graph, context: Context) -> None:
    """A call of a local function is the function's body."""
    model = graph.model
    if not model.functions:
        return
    was_called = called_from(graph)
    stay = recursive(model.functions.values())
    left = _MOST_NODES
    done: dict[Graph, None] = {}
    pending = [graph]
    while pending:
        root = pending.pop()
        done[root] = None
        left = _inline_all(root, stay, left, context)
        pending.extend(function.graph for function in called_from(root) if function.graph not in done)
    _drop_uncalled(model, was_called, context)


def _inline_all(root: Graph, stay: dict[Function, None], left: int, context: Context) -> int:
    """Inline what can be in one main graph or function; returns how many nodes more may be added."""
    names: TakenNames | None = None
    pending = [node for node, _ in calls_in(root)][::-1]
    while pending:
        call = pending.pop()
        function = function_of(call, root.model)
        if function is None or function in stay or call.graph is None:
            continue
        reason = obstacle(call, function, context)
        size = size_of(function)
        if not reason and size > left:
            reason = f"{_MOST_NODES} nodes were added already"
        if reason:
            context.note(f"function {function!r} is not inlined at '{call.name}': {reason}")
            continue
        left -= size
        names = names or TakenNames(root)
        copies = inline_call(call, function, context, names)
        pending.extend(reversed([node for copy in copies for node in _with_nested(copy)]))
    return left


def _with_nested(node: Node) -> Iterator[Node]:
    yield node
    yield from node.nested()


def _drop_uncalled(model: Model, was_called: dict[Function, None], context: Context) -> None:
    """A function whose last call was inlined goes."""
    if any(number == _TRAINING_INFO for number, _ in model.details.get("fields", [])):
        return
    called = called_from(model.graph)
    kept = {key: item for key, item in model.functions.items() if item in called or item not in was_called}
    if len(kept) < len(model.functions):
        with context.rewrite(model.graph):
            model.set_functions(kept)
