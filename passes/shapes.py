"""Integers known from shapes: targets become constants where they can, the rest is computed with few nodes.

Exporters spell every shape at every place anew: the sizes of a tensor are read, picked one by one, computed with and
put together. What such a vector holds is known as expressions over the dims of the inputs. So a target can often be
said without any dim, equal vectors are one, and what is left is read from where it takes fewest nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphopt import Context, DType, Graph, Kind, Node, Tensor, Value, graph_pass
from passes._shape_making import Maker
from passes._shape_plan import Piece, Plan
from passes._shape_reasons import explain
from passes._shape_region import Need, ShapeRegion, region_of
from passes._shape_sources import Sources, places_of
from passes._shape_targets import Target, is_constant, scales_of, spellings
from passes._storing import erase_dead

_TARGETS = ("Reshape", "Expand", "Tile", "Slice")


# --- constants


@graph_pass(
    before="""
        (float[B, S, 768] x) => (float[B, S, 12, 64] y) <int64[2] heads = {-1, 64}> {
            shape = Shape(x)
            i0 = Constant<value_int = 0>()
            i1 = Constant<value_int = 1>()
            zero = Constant<value_ints = [0]>()
            batch = Gather<axis = 0>(shape, i0)
            length = Gather<axis = 0>(shape, i1)
            b = Unsqueeze(batch, zero)
            s = Unsqueeze(length, zero)
            target = Concat<axis = 0>(b, s, heads)
            y = Reshape(x, target)
        }
    """,
    after="(float[B, S, 768] x) => (float[B, S, 12, 64] y) <int64[4] t = {0, 0, 12, 64}> { y = Reshape(x, t) }",
    unless=[
        # With no rows in x, -1 would not be accepted.
        """
        (float[B, 4, S] x) => (float[N, S] y) <int64[1] four = {4}, int64[1] first = {0}, int64[1] last = {2}> {
            shape = Shape(x)
            b = Gather<axis = 0>(shape, first)
            s = Gather<axis = 0>(shape, last)
            n = Mul(b, four)
            target = Concat<axis = 0>(n, s)
            y = Reshape(x, target)
        }
        """,
    ],
)
def constant_targets(graph: Graph, context: Context) -> None:
    """Shapes that Reshape, Expand, Tile and Slice are given become constants where the same can be said with numbers.

    A Reshape is told 0 for a dim that it keeps, and -1 for the only one that is not known before the run; the latter
    only where that is no stricter on empty tensors than what was there. Of an Expand's target only what it stretches
    counts.
    """
    made: dict[Target, Value] = {}
    for op_type in _TARGETS:
        for node in graph.of_kind(op_type):
            for index, value in enumerate(node.operands[1:], 1):
                if value is None or value.producer.is_constant or node.is_pinned:
                    continue
                target = next(filter(is_constant, spellings(node, index)), None)
                if target is not None:
                    with context.rewrite(graph):
                        graph.set_operand(node, index, _constant(graph, target, node, made))
                        if op_type == "Reshape" and node.param("allowzero"):
                            graph.set_attribute(node, "allowzero", None)
                        erase_dead([value.producer], context)


def _constant(graph: Graph, target: Target, user: Node, made: dict[Target, Value]) -> Value:
    found = made.get(target)
    if found is None or not found.producer.graph:
        constant = graph.make_constant(Tensor.of(list(target), DType.INT64))
        constant.stored_as_node = graph.model.ir_version < 4
        graph.insert(constant, rank=user.rank)
        found = made[target] = constant.result
    return found


@graph_pass(
    before="""
        (float[N, 3, 8, 8] x) => (float[N, 3, 16, 16] y) <int64[2] hw = {16, 16}, int64[2] nc = {0, 1}> {
            shape = Shape(x)
            kept = Gather<axis = 0>(shape, nc)
            sizes = Concat<axis = 0>(kept, hw)
            y = Resize<mode = "linear">(x, , , sizes)
        }
    """,
    after="""
        (float[N, 3, 8, 8] x) => (float[N, 3, 16, 16] y) <float[4] scales = {1, 1, 2, 2}> {
            y = Resize<mode = "linear">(x, , scales)
        }
    """,
    unless=[
        """
        (float[N, 3, H, 8] x, float[N, 3, A, 4] z) => (float[N, 3, A, 4] y) {
            sizes = Shape(z)
            y = Resize<mode = "linear">(x, , , sizes)
        }
        """,
    ],
)
def constant_scales(graph: Graph, context: Context) -> None:
    """A Resize whose scales are known numbers is given these instead of sizes that a run has to compute."""
    for node in graph.of_kind("Resize"):
        sizes = node.operand(3)
        if sizes is None or sizes.producer.is_constant or node.is_pinned or context.keeps(node):
            continue
        scales = scales_of(node)
        if scales is None:
            continue
        with context.rewrite(graph):
            constant = graph.make_constant(Tensor.from_numpy(np.array(scales, np.float32)))
            constant.stored_as_node = graph.model.ir_version < 4
            graph.insert(constant, rank=node.rank)
            graph.set_operands(node, (node.operand(0), node.operand(1), constant.result))
            erase_dead([sizes.producer], context)


# --- the rest


@graph_pass(
    before="""
        (int64[B, S] ids, float[B, S, 64] x, float[N, 64] w, float[N, 64] v) => (float[B, S, 64] y, float[B, S, 64] z)
        <int64[1] zero = {0}, int64[1] width = {64}, int64 i0 = {0}, int64 i1 = {1}> {
            shape = Shape(x)
            b = Gather<axis = 0>(shape, i0)
            s = Gather<axis = 0>(shape, i1)
            bs = Unsqueeze(b, zero)
            ss = Unsqueeze(s, zero)
            first = Concat<axis = 0>(bs, ss, width)
            y = Reshape(w, first)
            again = Shape(x)
            c = Gather<axis = 0>(again, i0)
            d = Gather<axis = 0>(again, i1)
            cs = Unsqueeze(c, zero)
            ds = Unsqueeze(d, zero)
            second = Concat<axis = 0>(cs, ds, width)
            z = Reshape(v, second)
        }
    """,
    after="""
        (int64[B, S] ids, float[B, S, 64] x, float[N, 64] w, float[N, 64] v) => (float[B, S, 64] y, float[B, S, 64] z) {
            shape = Shape(x)
            y = Reshape(w, shape)
            z = Reshape(v, shape)
        }
    """,
    unless=["(float[B, S] x, float[N] w) => (float[B, S] y) { shape = Shape(x)  y = Reshape(w, shape) }"],
)
def fewest_nodes(graph: Graph, context: Context) -> None:
    """Vectors and numbers that follow from dims are computed once each, in the fewest nodes.

    All that is needed is planned anew: dims are read where they stand together, from inputs if possible; what is equal
    is one. If the plan takes fewer nodes than there are, or as many with fewer reads of inner tensors, it replaces
    them.
    """
    if "Shape" not in {op_type for _, op_type in graph.kinds} and "Size" not in {op for _, op in graph.kinds}:
        return
    places = places_of(graph)
    region = region_of(graph, context, places)
    if not region.needs:
        return
    plan = Plan(Sources(graph, places, region.live), graph.opsets.get("", 0))
    kept = _keep(region, plan, places)
    chosen = _choose(region, plan, kept)
    before, after = _measure(region, region.nodes, [], graph), _measure(region, kept, plan.nodes, graph)
    if after < before:
        _carry_out(graph, context, region, kept, chosen)
    elif graph is graph.model.graph:
        explain(region, context)


def _measure(region: ShapeRegion, nodes: Iterable[Node], planned: list[Piece], graph: Graph) -> tuple[int, int]:
    """How many operators there are for nodes and pieces alone, and how many inner tensors are read for their shape."""
    cone = region.cone_of(nodes)
    sources = [node.operands[0] for node in cone if node.op_type == "Shape"]
    sources += [piece.operands[0].value for piece in planned if piece.op_type == "Shape"]
    return len(cone) + len(planned), sum(not _is_input(value, graph) for value in sources)


def _is_input(value: Value | None, graph: Graph) -> bool:
    return value is not None and (value.producer.kind is Kind.INPUT or value.producer.graph is not graph)


def _keep(region: ShapeRegion, plan: Plan, places: dict[Node, int]) -> dict[Node, None]:
    """The nodes that stay: what they compute is returned, or nobody knows how to compute it otherwise."""
    roots = dict.fromkeys(value.producer for value in region.kept)
    for need in region.needs:
        if need.value.producer not in roots and _planned(plan, need, need.value.elements or ()) is None:
            roots[need.value.producer] = None
    inside = dict.fromkeys(region.nodes)
    kept: dict[Node, None] = {}
    for node in reversed(region.nodes):
        if node in roots or node in kept:
            kept[node] = None
            kept.update((value.producer, None) for value in node.operands if value and value.producer in inside)
    for node in region.nodes:
        if node in kept:
            for value in node.results:
                if value.dtype is DType.INT64 and value.rank in (0, 1) and value.elements:
                    plan.offer(value, value.elements, places[node])
    return kept


def _planned(plan: Plan, need: Need, target: Target) -> int | None:
    value = need.value
    assert value.dtype is not None
    if any(item is None for item in target):
        return None
    return plan.cost_of(target, value.rank == 0, value.dtype, need.before)


def _choose(region: ShapeRegion, plan: Plan, kept: dict[Node, None]) -> list[tuple[Need, Piece]]:
    """A piece for each need: first for those that can be met in one way only, then what is cheapest for the others."""
    chosen: list[tuple[Need, Piece]] = []
    flexible: list[tuple[Need, list[Target]]] = []
    for need in region.needs:
        elements = need.value.elements or ()
        others = [] if need.user.attributes.get("allowzero") else spellings(need.user, need.index)
        if others:
            constant = [target for target in others if is_constant(target)]
            flexible.append((need, [*constant, elements, *(target for target in others if target not in constant)]))
        elif need.value.producer not in kept:
            _take(need, elements, plan, chosen)
    for need, targets in flexible:
        costs = {target: _planned(plan, need, target) for target in targets}
        if need.value.producer in kept:
            costs[need.value.elements or ()] = 0
        best = min(costs, key=lambda target: (costs[target] is None, costs[target] or 0))
        if best != need.value.elements or need.value.producer not in kept:
            _take(need, best, plan, chosen)
    return chosen


def _take(need: Need, target: Target, plan: Plan, chosen: list[tuple[Need, Piece]]) -> None:
    assert need.value.dtype is not None
    piece = plan.get(target, need.value.rank == 0, need.value.dtype, need.before)
    assert piece is not None
    chosen.append((need, piece))


# --- edits


def _carry_out(
    graph: Graph, context: Context, region: ShapeRegion, kept: dict[Node, None], chosen: list[tuple[Need, Piece]]
) -> None:
    builder = context.builder(graph)
    maker = Maker(builder, region)
    with context.rewrite(graph):
        for need, piece in chosen:
            dtype = need.value.dtype
            assert dtype is not None
            value = maker.make(piece, dtype)
            for node in builder.nodes:
                if node.graph is None:
                    if node.is_constant:
                        node.stored_as_node = graph.model.ir_version < 4
                    graph.insert(node, rank=need.value.producer.rank)
            builder.nodes.clear()
            assert need.user.graph is not None
            need.user.graph.set_operand(need.user, need.index, value)
        erase_dead([node for node in region.nodes if node not in kept], context)
