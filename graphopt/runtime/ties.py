"""Integers and booleans that differ because the scores behind them tie: ArgMax, TopK, comparisons, rounding.

The original is run again with the scores as further outputs. Where each differing element stands at a near-tie, within
the noise of those scores, either answer is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, ModelError
from graphopt.ir import Graph, Node, Value
from graphopt.onnxio import load, to_proto
from graphopt.runtime.compare import compare, eps, is_float
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.session import JUDGE
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.tolerance import CEILINGS, FACTOR

Array = np.ndarray[Any, Any]
# Operators that keep elements and their order.
_KEEPERS = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
_ROUNDERS = ("Round", "Floor", "Ceil", "Cast", "QuantizeLinear")
_PREFIX = "graphopt_score_"


def explain_ties(
    evidence: Evidence, name: str, labels: Sequence[str], results: Sequence[Outputs], users: bool
) -> list[str]:
    """The labels among `labels` at which output `name` differs only at near-ties.

    Args:
        evidence: The runs made so far.
        name: An output of integers or booleans.
        labels: Feeds at which it differs.
        results: What the rewritten model gave, feed by feed.
        users: The runs with default options are meant.
    """
    try:
        graph = load(evidence.original.handle)
        decider, index = _decider(graph, name)
        if decider is None:
            return []
        scores = _with_scores(graph, decider)
        runs = [_run(evidence, scores, labels, optimize) for optimize in ("off", "all")]
    except (ExecutionError, ModelError, ValueError, TypeError, KeyError):
        return []
    explained = []
    for place, (feed, reference) in enumerate(evidence.found.working):
        if feed.label not in labels or feed.label not in runs[0]:
            continue
        exact, rough = runs[0][feed.label], runs[1].get(feed.label)
        operands = [np.asarray(exact[f"{_PREFIX}{number}"]) for number in range(_count(decider))]
        noise = [
            _noise(one, None if rough is None else rough[f"{_PREFIX}{number}"]) for number, one in enumerate(operands)
        ]
        left, right = np.asarray(reference[name]), np.asarray(results[place][name])
        if left.shape == right.shape and _tied(decider, index, operands, noise, left, right):
            explained.append(feed.label)
    return explained


def _decider(graph: Graph, name: str) -> tuple[Node | None, int]:
    """The node that turned scores into the output, through nodes that keep elements and order."""
    value: Value | None = next((output for output in graph.outputs if output.name == name), None)
    for _ in range(50):
        if value is None or not value.producer.is_operator:
            return None, 0
        node = value.producer
        source = node.operand(0)
        floats = source is not None and (source.dtype is None or source.dtype.is_float)
        if node.domain == "" and node.op_type in ("ArgMax", "ArgMin", "TopK", *_COMPARISONS) and not node.bodies:
            return node, value.index
        if (
            node.domain == ""
            and node.op_type in _ROUNDERS
            and (node.op_type != "Cast" or _is_float_cast(node))
            and floats
        ):
            return node, value.index
        if node.domain != "" or node.op_type not in _KEEPERS:
            return None, 0
        value = source
    return None, 0


def _is_float_cast(node: Node) -> bool:
    """A Cast that rounds: from what is no integer, as far as is known, to an integer."""
    source, to = node.operand(0), node.param("to")
    if source is None or to not in (2, 3, 4, 5, 6, 7, 12, 13):
        return False
    maker = source.producer
    whole = maker.is_operator and maker.op_type in (
        "ArgMax",
        "ArgMin",
        "TopK",
        *_COMPARISONS,
        "Round",
        "Floor",
        "Ceil",
        "Not",
    )
    return not whole and (source.dtype is None or source.dtype.is_float)


def _count(decider: Node) -> int:
    return 2 if decider.op_type in (*_COMPARISONS, "QuantizeLinear") else 1


def _with_scores(graph: Graph, decider: Node) -> ModelSource:
    """The original with the operands of the deciding node as outputs."""
    from onnx import helper

    proto = to_proto(graph)
    names = [value.name for value in decider.operands[: _count(decider)] if value is not None]
    for number, name in enumerate(names):
        if not name:
            raise ValueError("a score has no name")
        output = f"{_PREFIX}{number}"
        proto.graph.node.append(helper.make_node("Identity", [name], [output]))
        proto.graph.output.append(helper.make_empty_tensor_value_info(output))
    return ModelSource("the original with its scores", data=proto.SerializeToString())


def _run(evidence: Evidence, source: ModelSource, labels: Sequence[str], optimize: str) -> dict[str, Outputs]:
    found: dict[str, Outputs] = {}
    with evidence.session(source, JUDGE.but(optimize=optimize)) as session:
        for feed, _ in evidence.found.working:
            if feed.label in labels:
                found[feed.label] = session.run(feed.values)
    return found


def _noise(scores: Array, rough: Any) -> float:
    """How close two scores must be to tie, absolute."""
    if not is_float(scores.dtype) or scores.size == 0:
        return 0.0
    finite = np.abs(scores.astype(np.float64))
    scale = float(np.max(finite, initial=0.0, where=np.isfinite(finite)))
    share = eps(scores.dtype)
    if isinstance(rough, np.ndarray):
        difference = compare(scores, rough)
        if not difference.mismatch and np.isfinite(difference.error):
            share = max(share, difference.error)
    return scale * min(2 * FACTOR * share, CEILINGS.get(scores.dtype.name, 0.5))


def _tied(decider: Node, index: int, operands: list[Array], noise: list[float], left: Array, right: Array) -> bool:
    if decider.op_type in ("ArgMax", "ArgMin", "TopK"):
        return index == (1 if decider.op_type == "TopK" else 0) and _tied_indices(
            decider, operands[0], noise[0], left, right
        )
    wrong = (left != right).reshape(-1)
    if decider.op_type in _COMPARISONS:
        gap = np.abs(np.subtract(*[one.astype(np.float64) for one in operands])).reshape(-1)
        return gap.size == wrong.size and bool((gap[wrong] <= noise[0] + noise[1]).all())
    step = np.abs(left.astype(np.float64) - right.astype(np.float64)).reshape(-1)
    score = operands[0].astype(np.float64).reshape(-1)
    room = noise[0]
    if decider.op_type == "QuantizeLinear":
        if operands[1].size != 1:
            return False
        score, room = score / float(operands[1].reshape(-1)[0]), room / float(operands[1].reshape(-1)[0])
    if score.size != wrong.size or bool((step > 1).any()):
        return False
    shift = 0.5 if decider.op_type in ("Round", "QuantizeLinear") else 0.0
    from_edge = np.abs(score - shift - np.round(score - shift))
    return bool((from_edge[wrong] <= room).all())


def _tied_indices(decider: Node, scores: Array, noise: float, left: Array, right: Array) -> bool:
    axis = decider.param("axis")
    axis = axis if isinstance(axis, int) else -1 if decider.op_type == "TopK" else 0
    axis %= max(scores.ndim, 1)
    moved = np.moveaxis(scores.astype(np.float64), axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    if left.size % max(len(rows), 1) or not len(rows):
        return False
    picked = left.size // len(rows)
    if decider.op_type == "TopK" and left.ndim == scores.ndim:
        one, other = (np.moveaxis(indices, axis, -1).reshape(len(rows), -1) for indices in (left, right))
    elif picked == 1:
        one, other = left.reshape(len(rows), 1), right.reshape(len(rows), 1)
    else:
        return False
    size = rows.shape[1]
    if bool(((one < 0) | (one >= size) | (other < 0) | (other >= size)).any()):
        return False
    first = np.take_along_axis(rows, one.astype(np.int64), 1)
    second = np.take_along_axis(rows, other.astype(np.int64), 1)
    return bool((np.abs(first - second) <= noise).all())
