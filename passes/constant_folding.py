"""Constant folding: what depends on constants and fixed shapes alone is computed once and stored.

Three steps. Values known from shapes become constants; constant subgraphs are evaluated, as few runs as possible, and
only what something still reads is stored; `Constant` nodes become initializers.
"""

from __future__ import annotations

import math

from graphopt import Context, DType, Graph, Node, Tensor, TensorType, Value, graph_pass
from passes._constant_region import Plan, Region, plan, rounds, type_size
from passes._inlining import outermost
from passes._storing import erase_dead, may_go, store

_SHAPE_DTYPES = (DType.INT64, DType.INT32, DType.BOOL)
_DIVISORS = 1 << 16
"""Elements of a divisor that is looked through for a 0."""
_ROUNDS = 8


# --- shapes


@graph_pass(
    before="""
        (float[N, 768] x, float[M, 12, 64] y) => (float[N, 12, 64] z)
        <int64[1] batch = {-1}, int64[1] heads = {12}, int64 one = {1}> {
            shape = Shape(x)
            width = Gather<axis=0>(shape, one)
            depth = Div(width, heads)
            target = Concat<axis=0>(batch, heads, depth)
            t = Reshape(x, target)
            z = Add(t, y)
        }
    """,
    after="""
        (float[N, 768] x, float[M, 12, 64] y) => (float[N, 12, 64] z) <int64[3] target = {-1, 12, 64}> {
            t = Reshape(x, target)
            z = Add(t, y)
        }
    """,
    unless=[
        # The first dim is not known.
        "(float[N, 768] x) => (int64[2] y) { y = Shape(x) }",
        # The size of an input whose rank is not known.
        "(float[] x) => (int64 y) { y = Size(x) }",
    ],
)
def materialize_shapes(graph: Graph, context: Context) -> None:
    """Integers that follow from fixed dims become constants.

    Where a dim is a name, what depends on it stays; where all of a value follows from dims that are numbers, nothing
    has to be computed at run time.
    """
    known: dict[Node, dict[Value, Tensor]] = {}
    for node in graph.order():
        tensors = {value: tensor for value in node.results if (tensor := _content(value)) is not None}
        if any(_divides_by_zero(value, tensor) for value, tensor in tensors.items()):
            continue
        if tensors and may_go(node, context):
            known[node] = tensors
    for node in reversed(known):
        # What only goes into others that are known is not stored: its readers are gone by now.
        used = {value: tensor for value, tensor in known[node].items() if value.uses}
        if used:
            with context.rewrite(graph):
                for value, tensor in used.items():
                    store(value, tensor)
                erase_dead([node], context)


def _content(value: Value) -> Tensor | None:
    elements = value.elements
    if not value.uses or elements is None or not all(isinstance(item, int) for item in elements):
        return None
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in _SHAPE_DTYPES or kind.shape is None:
        return None
    sizes = [dim for dim in kind.shape if isinstance(dim, int)]
    if len(sizes) != len(kind.shape) or math.prod(sizes) != len(elements):
        return None
    flat = Tensor.of([int(item) for item in elements if isinstance(item, int)], kind.dtype)
    return Tensor.from_numpy(flat.numpy().reshape(sizes))


# --- subgraphs


@graph_pass(
    before="""
        (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 5}, float[2] c = {0.5, 0.25}> {
            p = Mul(a, b)
            q = Neg(p)
            r = Sub(q, c)
            y = Add(x, r)
        }
    """,
    after="""
        (float[2] x) => (float[2] y) <float[2] r = {-3.5, -10.25}> {
            y = Add(x, r)
        }
    """,
    unless=[
        # A caller may feed k.
        "(float[2] x, float[2] k = {1, 2}) => (float[2] y) { d = Add(k, k)  y = Mul(x, d) }",
        # Every run draws anew.
        """
        (float[4] x) => (float[4] y) <float[4] p = {0.5, 0.5, 0.5, 0.5}> {
            b = Bernoulli(p)
            y = Add(x, b)
        }
        """,
        # Weights stay quantized.
        """
        (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}, int8 z = {0}> {
            d = DequantizeLinear(w, s, z)
            y = Add(x, d)
        }
        """,
        # Sixteen bytes of model would become four megabytes.
        """
        (float[1, 1024] x) => (float[1, 1024] y) <int64[2] s = {1024, 1024}> {
            w = ConstantOfShape(s)
            y = MatMul(x, w)
        }
        """,
        # Fails whenever it runs; that is the model's affair.
        "(int64[1] x) => (int64[1] y) <int64[1] a = {1}, int64[1] n = {0}> { d = Div(a, n)  y = Add(x, d) }",
        # No constant holds a sequence.
        """
        (float[1] x, int64 i) => (float[1] y) <float[1] a = {1}, float[1] b = {2}> {
            s = SequenceConstruct(a, b)
            y = SequenceAt(s, i)
        }
        """,
    ],
)
def fold_constants(graph: Graph, context: Context) -> None:
    """Subgraphs of constants are evaluated, and only the results that something else reads are stored.

    A stored result may have a megabyte (`growth_limit`) more than the constants it makes needless; a larger one stays
    computed, and the search goes on with what it reads. So a small sum of a long range is folded, a long range is not.
    The numbers are those of the unoptimized model, bit for bit.

    `DequantizeLinear` is left alone, and `QuantizeLinear` before it: the pair says how to run in integers.
    """
    if context.options.freeze_initializers:
        _freeze(graph, context)
    _fold(Region(graph, context, with_rounding=False), context)


@graph_pass(
    before="""
        (float16[2] x) => (float16[2] y) <float16[2] a = {15360, 16384}, float16[2] b = {15872, 16896}> {
            c = Mul(a, b)
            y = Add(x, c)
        }
    """,
    after="(float16[2] x) => (float16[2] y) <float16[2] c = {15872, 17920}> { y = Add(x, c) }",
    unless=["(float16[2] x) => (float16[2] y) <float16[2] a = {15360, 16384}> { c = Mul(a, x)  y = Add(x, c) }"],
    numeric="R",
)
def fold_float16_arithmetic(graph: Graph, context: Context) -> None:
    """Arithmetic on float16 constants is evaluated, though a stored result is rounded where the runtime may not do so.

    Without float16 kernels a runtime keeps float32 between neighbouring nodes, so what reads a stored result may differ
    by a rounding. What only moves float16 numbers is folded at every level.
    """
    region = Region(graph, context, with_rounding=True)
    if any(map(rounds, region.reads)):
        _fold(region, context)


def _fold(region: Region, context: Context) -> None:
    if not region.reads:
        return
    graph = region.graph
    decided, data, blocked = _decide(region, context)
    for node, values in decided.stored.items():
        if any(_divides_by_zero(value, data[value]) for value in values):
            continue
        with context.rewrite(graph):
            for value in values:
                store(value, data[value])
            erase_dead([node], context)
    _explain(decided, blocked, context)


def _divides_by_zero(value: Value, tensor: Tensor) -> bool:
    """True if integers are divided by a stored 0: the runtime refuses to load that, even where it never runs."""
    if not tensor.dtype.is_integer or not any(
        place == 1 and user.op_type in ("Div", "Mod") and user.domain == "" for user, place in value.uses
    ):
        return False
    return 0 < tensor.size <= _DIVISORS and not bool(tensor.numpy().all())


def _freeze(graph: Graph, context: Context) -> None:
    """Let what reads an input that has a default read the default; the input itself stays in the signature."""
    for value in graph.inputs:
        default = value.producer.default
        readers = [(user, index) for user, index in value.uses if user is not graph.return_node]
        if default is None or not readers or value.producer.is_pinned or context.keeps(value.producer):
            continue
        with context.rewrite(graph):
            constant = graph.make_constant(default)
            graph.insert(constant, rank=value.producer.rank)
            for user, index in readers:
                assert user.graph is not None
                user.graph.set_operand(user, index, constant.result)


def _decide(region: Region, context: Context) -> tuple[Plan, dict[Value, Tensor], dict[Node, None]]:
    """Plan, evaluate what the plan stores, and plan again as long as that taught something: a size, a failure."""
    data: dict[Value, Tensor] = {}
    blocked: dict[Node, None] = {}

    def size_of(value: Value) -> float | None:
        return data[value].nbytes if value in data else type_size(value)

    for _ in range(_ROUNDS):
        decided = plan(region, blocked, context.options.growth_limit, size_of)
        missing = [value for values in decided.stored.values() for value in values if value not in data]
        if not missing:
            return decided, data, blocked
        nodes = region.cone(missing)
        found = context.evaluate(nodes)
        blocked.update(_not_computed(region, nodes, found))
        for value, tensor in found.items():
            data[value] = tensor
            if type_size(value) is None:
                # Remembered in the type, so that the next sweep knows it without computing.
                region.graph.retype(value, TensorType(tensor.dtype, tensor.shape))
        blocked.update((value.producer, None) for value in missing if value not in data)
    for node, values in decided.stored.items():
        if any(value not in data for value in values):
            blocked[node] = None
    decided = plan(region, blocked, context.options.growth_limit, size_of)
    for node, values in list(decided.stored.items()):
        if any(value not in data for value in values):
            del decided.stored[node]
    return decided, data, blocked


def _not_computed(region: Region, nodes: list[Node], found: dict[Value, Tensor]) -> dict[Node, None]:
    """The nodes the evaluator gave up: it returns each tensor that something other than a computed node reads."""
    computed = dict.fromkeys(nodes)
    for node in reversed(nodes):
        for value in node.results:
            is_tensor = isinstance(value.type, TensorType)
            if is_tensor and value not in found and any(region.home_of(user) not in computed for user, _ in value.uses):
                computed.pop(node, None)
    return {node: None for node in nodes if node not in computed}


def _explain(decided: Plan, blocked: dict[Node, None], context: Context) -> None:
    """Note what was left alone, one sentence for each operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    limit = context.options.growth_limit
    for node, size in decided.too_large.items():
        reason = f"storing a result would add {size} bytes, more than the {limit} of growth_limit"
        groups.setdefault((node.op_type, reason), []).append(_label(node))
    reasons: dict[Node, str] = getattr(context.evaluate, "reasons", {})
    for node in blocked:
        if node in reasons:
            groups.setdefault((node.op_type, reasons[node]), []).append(_label(node))
    for (op_type, reason), labels in groups.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        context.note(f"{op_type} '{labels[0]}'{more} of constants stays computed: {reason}")


def _label(node: Node) -> str:
    return node.name or next((value.name for value in node.results if value.name), f"#{node.serial}")


# --- storage


@graph_pass(
    before="(float[2] x) => (float[2] y) { c = Constant<value = float[2] {1, 2}>()  y = Add(x, c) }",
    after="(float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }",
    numeric="S",
)
def lift_constants(graph: Graph, context: Context) -> None:
    """`Constant` nodes become initializers, which tools and runtimes find without looking for nodes.

    Not in functions, which have no initializers, nor before IR version 4, where each would have to be an input.
    """
    if graph.model.ir_version < 4 or _is_in_function(graph):
        return
    lifted = [node for node in graph.constants() if node.stored_as_node and not node.is_pinned]
    if lifted:
        with context.rewrite(graph):
            for node in lifted:
                graph.store_as_node(node, False)


def _is_in_function(graph: Graph) -> bool:
    return outermost(graph) is not graph.model.graph
