"""From the softmax of an attention down to its product with the values and up to the product of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphopt import Context, DType, Node, Value, symbol
from passes._cover import number
from passes._proofs import Dim
from passes.fusion._attention_layout import is_same

_LONGEST: Final = 24
_RANKS: Final = (3, 4, 5)
FLOATS: Final = frozenset((DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE))
_ON_THE_WAY: Final = frozenset(("Add", "Sub", "Mul", "Div", "Where", "Reshape", "Cast", "Tanh", "Unsqueeze", "Squeeze"))


@dataclass(frozen=True, slots=True)
class Mask:
    """Something that is added to the scores, or stands in their place.

    Attributes:
        node: The operator that does it.
        value: What is added; for a choice, the condition.
        shape: The shape of the scores before: `[batch, heads, queries, keys]`, batch and heads as one axis, or batch
            in parts.
        after: Their shape afterwards.
        factor: What the sum is multiplied by afterwards.
        fill: For a choice, what stands in place of the scores; None if something is added.
        keeps: For a choice, the truth value that leaves the scores alone.
    """

    node: Node
    value: Value
    shape: tuple[Dim, ...]
    after: tuple[Dim, ...]
    factor: float = 1.0
    fill: float | None = None
    keeps: bool = True


@dataclass(slots=True)
class Scores:
    """What was met on the way from the softmax to the product."""

    masks: list[Mask]
    factor: float = 1.0
    softcap: float = 0.0
    nodes: dict[Node, None] = field(default_factory=dict)
    head_scales: NDArray[np.float64] | None = None


def is_over_last(softmax: Node, rank: int) -> bool:
    """True for the last axis, which has one meaning in every opset if it is named."""
    axis = softmax.param("axis")
    return isinstance(axis, int) and rank > 1 and axis in (-1, rank - 1)


def down(softmax: Node) -> tuple[Node, bool, dict[Node, None], DType | None] | str:
    """The product with the values, whether NaN becomes 0 before it, and all nodes from the softmax to it."""
    nodes: dict[Node, None] = {softmax: None}
    value, is_guarded, precision = softmax.results[0], False, None
    for _ in range(4):
        users = value.users
        if len(users) == 2 and not is_guarded:
            guard = _guard(value, users)
            if guard is None:
                return "the probabilities are read elsewhere"
            nodes.update(dict.fromkeys(guard))
            value, is_guarded = guard[-1].results[0], True
            continue
        use = value.sole_use()
        if use is None:
            return "the probabilities are read elsewhere"
        node, place = use
        if node.graph is not softmax.graph or not node.is_operator:
            return "the probabilities are a result of the graph"
        nodes[node] = None
        if node.is_op("MatMul") and place == 0:
            other = node.operand(1)
            is_product = other is not None and other is not value and value.rank in _RANKS and other.rank == value.rank
            return (
                (node, is_guarded, nodes, precision) if is_product else "the values have another rank than the scores"
            )
        if node.is_op("Cast") and precision is None and value.dtype in FLOATS and node.results[0].dtype in FLOATS:
            precision = value.dtype
        elif node.is_op("Reshape") and place == 0 and not is_folding(value, node.results[0]):
            return "the probabilities are reshaped to something else than batches of heads"
        elif node.op_type not in ("Identity", "Reshape") or node.domain != "":
            return f"the probabilities go into {node.op_type}, not into a product with values"
        value = node.results[0]
    return "the probabilities do not go into a product with values"


def is_folding(left: Value, right: Value) -> bool:
    """True if two views of scores differ in how batches and heads are divided, and in nothing else.

    Where all but the last dims agree, the last one does, or there are no elements.
    """
    if left.shape is None or right.shape is None or len(left.shape) < 3 or len(right.shape) < 3:
        return False
    return is_same(left.shape[-2], right.shape[-2]) and is_same(
        symbol.product_of(left.shape[:-2]), symbol.product_of(right.shape[:-2])
    )


def _guard(value: Value, users: Sequence[Node]) -> tuple[Node, Node] | None:
    """`Where(IsNaN(p), 0, p)` as its two nodes."""
    for test, choice in (users, users[::-1]):
        if not test.is_op("IsNaN") or not choice.is_op("Where") or choice.operands[2] is not value:
            continue
        zero = number(choice.operands[1], value)
        if zero == 0 and choice.operands[0] is test.results[0] and test.results[0].sole_use() is not None:
            return test, choice
    return None


def up(scores: Value, met: Scores, precision: DType | None) -> Node | str:
    """The product of queries and keys above the scores, and what is met on the way."""
    value = scores
    is_cast = precision is None
    for _ in range(_LONGEST):
        node = value.producer
        if not node.is_operator or node.domain != "" or value.rank is None:
            return "the scores are no product"
        left, right = node.operand(0), node.operand(1)
        if node.op_type == "MatMul":
            if left is None or right is None or left.rank != right.rank or left.rank not in _RANKS:
                return "queries and keys have different ranks"
            return node
        if node.op_type not in _ON_THE_WAY:
            return f"the scores are made by {node.op_type}, not by a product"
        met.nodes[node] = None
        following = _step(node, met)
        if isinstance(following, str):
            return following
        if node.op_type == "Cast":
            if is_cast or value.dtype is not precision:
                return "the scores are cast and the probabilities are not cast back"
            is_cast = True
        value = following
    return "the product of queries and keys is too far from the softmax"


def _step(node: Node, met: Scores) -> Value | str:
    """The scores before an operator."""
    left, right = node.operands[0], node.operand(1)
    if node.op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze"):
        if left is None or (node.op_type != "Cast" and not is_folding(left, node.results[0])):
            return "the scores are reshaped to something else than batches of heads"
        return left
    if node.op_type == "Where":
        return _choice(node, met)
    if node.op_type == "Tanh":
        return "the scores are bounded in a way that is not known"
    if left is None or right is None:
        return "an operand is missing"
    if node.op_type in ("Mul", "Div"):
        factor, rest = number(right, left), left
        if factor is None and node.op_type == "Mul":
            factor, rest = number(left, right), right
        if factor is None and node.op_type == "Mul":
            return _scaled_by_head(left, right, met)
        if factor is None or not math.isfinite(factor) or factor == 0:
            return "the scores are multiplied by something that is not one number"
        bounded = _bounded(node, rest, factor, met)
        if bounded is not None:
            return bounded
        met.factor *= factor if node.op_type == "Mul" else 1 / factor
        return rest
    distances = [distance(item) for item in (left, right)]
    if min(distances) == math.inf:
        distances = [distance(item, takes_constants=True) for item in (left, right)]
    place = 0 if distances[0] <= distances[1] else 1
    if math.isinf(distances[place]) or (node.op_type == "Sub" and place == 1):
        return "the scores are no product"
    rest, other = (left, right) if place == 0 else (right, left)
    if met.softcap or met.head_scales is not None:
        return "something is added before the scores are bounded, or scaled head by head"
    factor = met.factor if node.op_type == "Add" else -met.factor
    met.masks.append(Mask(node, other, rest.shape or (), node.results[0].shape or (), factor))
    return rest


def _scaled_by_head(left: Value, right: Value, met: Scores) -> Value | str:
    """The scores before each head is scaled by a number of its own."""
    scales, rest = (right.const, left) if right.const is not None else (left.const, right)
    if scales is None or met.head_scales is not None or met.softcap or rest.rank != 4 or scales.rank not in (3, 4):
        return "the scores are multiplied by something that is not one number"
    numbers = np.asarray(scales.numpy(), dtype=np.float64)
    if numbers.size != numbers.shape[-3] or (rest.shape or ())[1] != numbers.size or not np.isfinite(numbers).all():
        return "the scores are multiplied by something that is not one number for each head"
    met.head_scales = numbers.reshape(-1)
    return rest


def _bounded(node: Node, rest: Value, factor: float, met: Scores) -> Value | None:
    """`c * Tanh(x / c)`: what x is."""
    inner = rest.producer
    if not inner.is_op("Tanh"):
        return None
    before = inner.operands[0]
    if before is None or met.softcap or met.factor != 1:
        return None
    bound = factor if node.op_type == "Mul" else 1 / factor
    ratio, divisor = before.producer, 1.0
    source = before
    if ratio.is_op("Div") or ratio.is_op("Mul"):
        found, divided = number(ratio.operand(1), ratio.operand(0)), ratio.operand(0)
        if found and math.isfinite(found) and divided is not None:
            divisor, source = (found if ratio.op_type == "Div" else 1 / found), divided
    if not bound > 0:
        return None
    # Where nothing is divided, a layer above does it.
    met.softcap = bound
    met.factor *= bound / divisor
    met.nodes.update(dict.fromkeys((inner, ratio) if source is not before else (inner,)))
    return source


def _choice(node: Node, met: Scores) -> Value | str:
    condition, first, second = (node.operand(place) for place in range(3))
    if met.softcap or met.head_scales is not None:
        return "scores are chosen before they are bounded, or scaled head by head"
    if condition is None:
        return "an operand is missing"
    for keeps, rest, other in ((True, first, second), (False, second, first)):
        fill = number(other, rest)
        if fill is not None and rest is not None:
            met.masks.append(
                Mask(node, condition, rest.shape or (), node.results[0].shape or (), met.factor, fill, keeps)
            )
            return rest
    return "the scores are chosen from something else than a number"


def distance(value: Value, *, takes_constants: bool = False) -> float:
    """How far above a value the nearest product of two computed matrices is; infinite where there is none.

    Args:
        value: Scores, perhaps.
        takes_constants: The first matrix may be constant: queries that were learned.
    """
    front, seen = [value], {value: None}
    for distance in range(8):
        following = []
        for item in front:
            node = item.producer
            if not node.is_operator or node.domain != "":
                continue
            if node.op_type == "MatMul":
                computed = node.operands[1:] if takes_constants and item.rank in _RANKS else node.operands
                if all(operand is not None and operand.const is None for operand in computed):
                    return distance
                continue
            if node.op_type in _ON_THE_WAY and (item.dtype in FLOATS):
                following += [operand for operand in node.operands if operand is not None and operand not in seen]
        seen.update(dict.fromkeys(following))
        front = following
    return math.inf


def shapes_of(product: Node, context: Context) -> tuple[Node, ...]:
    """What reads the product of queries and keys and asks for nothing but its shape."""
    readers = [user for user in product.results[0].users if user.is_op("Shape") and user.graph is product.graph]
    return tuple(user for user in dict.fromkeys(readers) if not user.is_pinned and not context.keeps(user))


def doubt_of_cover(nodes: dict[Node, None], root: Node, context: Context, shapes: Sequence[Node] = ()) -> str:
    """Why the nodes cannot be replaced.

    Args:
        nodes: What is private to the attention.
        root: Of them the one whose result is read outside.
        context: The run.
        shapes: Readers that get their numbers elsewhere.
    """
    for node in nodes:
        if node.is_pinned or context.keeps(node):
            return "a part of it is kept by name"
        if node.graph is not root.graph:
            return "a part of it is outside of the graph"
        if node is not root:
            for value in node.results:
                if any(user not in nodes and user not in shapes for user in value.users):
                    return f"what its {node.op_type} gives is read elsewhere"
    return ""
