"""Which constant nodes of a graph to evaluate, and which of their results to store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphopt import (
    Context,
    DType,
    Effect,
    Graph,
    Node,
    OptionalType,
    SequenceType,
    Tensor,
    TensorType,
    Value,
    effect_of,
)

_STEPS_PER_NODE = 50
_GENERATORS = ("ConstantOfShape", "Expand", "EyeLike", "Range", "Tile")
"""Operators that write numbers they hardly read: running them costs no more than reading what they would store."""
_GENERATOR_SHARE = 64
_PLAIN = (int, float, str, bytes, Tensor)


_EXACT_IN_FLOAT16 = frozenset({
    "Abs", "ArrayFeatureExtractor", "Ceil", "Clip", "Compress", "Concat", "ConcatFromSequence", "ConstantOfShape",
    "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "GlobalMaxPool", "Identity", "If", "Loop", "Max", "MaxPool", "Min", "Neg", "OneHot", "Optional",
    "OptionalGetElement", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "Scan",
    "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceMap", "Shape", "Sign", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence",
    "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that move, choose or round to whole numbers: float16 operands give results that float16 holds exactly."""
_CHECKED_ELEMENTS = 1 << 22


class Region:
    """The nodes of one graph that depend on constants alone, in topological order."""

    def __init__(self, graph: Graph, context: Context, *, with_rounding: bool) -> None:
        """Find them.

        Args:
            graph: The graph.
            context: The surroundings.
            with_rounding: Whether nodes that `rounds` speaks of, and what depends on them, belong to it.
        """
        self.graph = graph
        self.reads: dict[Node, list[Value]] = {}
        """What each node reads, as often as it does: operands, and values captured by its bodies."""
        for node in graph.order():
            if not all(value is None or self.is_known(value) for value in node.operands):
                continue
            if not is_foldable(node, context) or (rounds(node) and not with_rounding):
                continue
            reads = [value for value in node.operands if value is not None]
            reads += _captured(node)
            if all(self.is_known(value) for value in reads):
                self.reads[node] = reads

    def is_known(self, value: Value) -> bool:
        """True if a value is a constant or made by a node of the region."""
        return value.const is not None or value.producer in self.reads

    def cone(self, values: Iterable[Value]) -> list[Node]:
        """The nodes that are needed to compute values, in topological order."""
        needed: dict[Node, None] = {}
        stack = [value.producer for value in values]
        while stack:
            node = stack.pop()
            if node in self.reads and node not in needed:
                needed[node] = None
                stack.extend(value.producer for value in self.reads[node])
        return [node for node in self.reads if node in needed]

    def home_of(self, user: Node) -> Node:
        """The node of this graph that is, or contains, a user."""
        while user.graph is not self.graph:
            owner = None if user.graph is None else user.graph.owner
            assert owner is not None
            user = owner
        return user


def is_foldable(node: Node, context: Context) -> bool:
    """True if a node may be replaced by its results, where all that it reads is constant."""
    if node.is_pinned or context.keeps(node) or _is_part_of_quantization(node, context):
        return False
    if effect_of(node) > Effect.PURE_MAY_FAIL:
        return False
    return all(_is_plain(inner) and not _may_stack_nothing(inner) for inner in (node, *node.nested()))


def _may_stack_nothing(node: Node) -> bool:
    """True for a Loop that may run zero times and whose stacked results are read.

    The runtime takes the dims of an empty stack from its own inference over the whole model and writes 0 where that
    knows none, so a part of the model may give another shape.
    """
    body = node.bodies.get("body") if node.op_type == "Loop" else None
    if body is None or not any(value.uses for value in node.results[len(body.inputs) - 2 :]):
        return False
    trips, goes = node.operand(0), node.operand(1)
    runs = trips is None or (trips.const is not None and trips.const.scalar() > 0)
    return not (runs and (goes is None or (goes.const is not None and bool(goes.const.scalar()))))


def rounds(node: Node) -> bool:
    """True if a node gives float16 numbers that it, or a node in its bodies, has to round.

    Where the runtime has no float16 kernel, it computes neighbouring nodes in float32 and rounds only at the end of
    such a chain. A result stored in between is rounded there, too, so what reads it sees other bits.
    """
    return any(_rounds_itself(inner) for inner in (node, *node.nested()) if inner.is_operator)


def _rounds_itself(node: Node) -> bool:
    if not any(_may_be_float16(node, value) for value in node.results):
        return False
    if node.op_type in ("Cast", "CastLike"):
        return not _is_exact_cast(node)
    if node.op_type in ("ScatterElements", "ScatterND"):
        return node.param("reduction") not in (None, "none")
    return node.domain != "" or node.op_type not in _EXACT_IN_FLOAT16


def _may_be_float16(node: Node, value: Value) -> bool:
    if value.type is not None and value.dtype is not None:
        return value.dtype is DType.FLOAT16
    return any(item is not None and item.dtype in (None, DType.FLOAT16) for item in node.operands)


def _is_exact_cast(node: Node) -> bool:
    """True if every number that is cast to float16 is one already."""
    source = node.operands[0]
    if source is None or source.dtype in (DType.FLOAT16, DType.BOOL):
        return source is not None
    tensor = source.const
    if tensor is None or tensor.size > _CHECKED_ELEMENTS or tensor.dtype is DType.STRING:
        return False
    array = tensor.numpy()
    with np.errstate(all="ignore"):
        return bool(np.array_equal(array.astype(np.float16).astype(array.dtype), array))


def _is_plain(node: Node) -> bool:
    """False for what a model of its own cannot hold: attributes of a caller, calls of functions, sparse data."""
    assert node.graph is not None
    if not node.is_operator:
        return not (node.is_constant and node.tensor is None)
    if (node.domain, node.op_type, node.overload) in node.graph.model.functions:
        return False
    for value in node.attributes.values():
        if not isinstance(value, _PLAIN) and not (
            isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value)
        ):
            return False
    return True


def _is_part_of_quantization(node: Node, context: Context) -> bool:
    """True for what turns stored integers into floats, and for a quantizer whose partner that is."""
    if context.options.fold_dequantize:
        return False
    if node.op_type.startswith("Dequantize") or node.op_type == "GatherBlockQuantized":
        return True
    if node.op_type != "QuantizeLinear":
        return False
    return any(user.op_type.startswith("Dequantize") for value in node.results for user in value.users)


def _captured(node: Node) -> list[Value]:
    """Every read of an outer value inside the node's bodies."""
    found = []
    for body in node.bodies.values():
        for graph in (body, *body.bodies_inside()):
            operands = [value for inner in graph.all_nodes() for value in inner.operands if value is not None]
            found += [value for value in operands if not body.encloses(value.producer.graph)]
    return found


# --- the plan


@dataclass(slots=True)
class Plan:
    """What becomes of the nodes of a region.

    Attributes:
        stored: Nodes whose results are stored, each with those of its results that something still reads. Readers come
            before what they read.
        gone: Nodes nothing needs any more.
        too_large: Nodes that stay computed because of their size, with the bytes their results would add.
    """

    stored: dict[Node, list[Value]] = field(default_factory=dict)
    gone: dict[Node, None] = field(default_factory=dict)
    too_large: dict[Node, int] = field(default_factory=dict)


def plan(region: Region, blocked: Mapping[Node, None], limit: int, size_of: Callable[[Value], float | None]) -> Plan:
    """Decide from the frontier inward: the last constant results are stored unless they are too large.

    A result may have `limit` bytes more than the constants that nothing reads once it is stored. Where it has more, its
    node stays and what it reads becomes the frontier. For operators that merely repeat or count (`ConstantOfShape`,
    `Tile`, ...) the limit is a 64th: storing their results saves next to nothing.

    Args:
        region: The nodes.
        blocked: Nodes that could not be computed.
        limit: Bytes.
        size_of: Bytes of a value, None where nobody knows (it is stored for now), infinity for what is no tensor.
    """
    return _Planner(region, blocked, limit, size_of).run()


class _Planner:
    def __init__(
        self, region: Region, blocked: Mapping[Node, None], limit: int, size_of: Callable[[Value], float | None]
    ) -> None:
        self.region = region
        self.blocked = blocked
        self.limit = limit
        self.size_of = size_of
        self.result = Plan()
        self.live: dict[Value, int] = {}
        """Reads of a value by nodes that stay or are not decided yet; where it is missing, all of them."""
        self.bounds: dict[Node, float] = {}
        """At most what dies with a node, known from a larger walk that contained it."""
        self.steps = _STEPS_PER_NODE * len(region.reads) + 1000

    def run(self) -> Plan:
        for node in reversed(self.region.reads):
            wanted = [value for value in node.results if self.live_reads(value) > 0]
            if not wanted:
                if any(value.uses for value in node.results):
                    self.result.gone[node] = None
                    self.release(node)
                continue
            if node not in self.blocked and self.is_worth(node, wanted):
                self.result.stored[node] = wanted
                self.release(node)
        return self.result

    def live_reads(self, value: Value) -> int:
        return self.live.get(value, len(value.uses))

    def release(self, node: Node) -> None:
        for value in self.region.reads[node]:
            self.live[value] = self.live_reads(value) - 1

    def is_worth(self, node: Node, wanted: list[Value]) -> bool:
        sizes = [self.size_of(value) for value in wanted]
        known = sum(size for size in sizes if size is not None)
        limit = self.limit // _GENERATOR_SHARE if node.op_type in _GENERATORS else self.limit
        if known <= limit or (None in sizes and known < math.inf):
            return True
        if known == math.inf:
            return False  # a sequence: not a matter of size
        bound = self.bounds.get(node, math.inf)
        if known <= limit + bound:
            bound = self.dying_with(node)
        else:
            self.pass_on(node, bound)
        if known <= limit + bound:
            return True
        self.result.too_large[node] = int(known - bound)
        return False

    def pass_on(self, node: Node, bound: float) -> None:
        """What dies with an operand that only this node reads, dies with this node, too."""
        for value in self.region.reads[node]:
            producer = value.producer
            if producer in self.region.reads and sum(map(self.live_reads, producer.results)) == 1:
                self.bounds[producer] = min(bound, self.bounds.get(producer, math.inf))

    def dying_with(self, node: Node) -> float:
        """Bytes of the constants that nothing reads once a node is gone, and with it what only it needs."""
        left: dict[Node, int] = {}
        removed = [node]
        total = 0
        for dead in removed:
            total += sum(map(_stored_bytes, dead.nested()))
            for value in self.region.reads[dead]:
                producer = value.producer
                self.steps -= 1
                if producer not in left:
                    left[producer] = sum(map(self.live_reads, producer.results))
                left[producer] -= 1
                if left[producer] or producer.is_pinned:
                    continue
                if producer in self.region.reads:
                    removed.append(producer)
                else:
                    total += _stored_bytes(producer)
            if self.steps < 0:
                return 0  # graphs that are walked through again and again: then nothing large is stored
        for dead in removed:
            self.bounds[dead] = min(total, self.bounds.get(dead, math.inf))
        return total


def _stored_bytes(node: Node) -> int:
    """Bytes of a constant; strings, whose size only reading them tells, count as nothing."""
    return 0 if node.tensor is None or not node.tensor.dtype.bits else node.tensor.nbytes


def type_size(value: Value) -> float | None:
    """Bytes of a value by its type: None where it does not tell, infinity for what is no tensor."""
    if isinstance(value.type, (SequenceType, OptionalType)):
        return math.inf
    if not isinstance(value.type, TensorType) or value.type.shape is None or not value.type.dtype.bits:
        return None
    sizes = [dim for dim in value.type.shape if isinstance(dim, int)]
    if len(sizes) != len(value.type.shape):
        return None
    return (math.prod(sizes) * value.type.dtype.bits + 7) // 8
