"""Why a difference above the measured noise can still be none: the float64 truth, and ties of scores.

Both ask the original more than its outputs, so they are asked only after a difference was found.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from graphopt.analysis.inference import Inference
from graphopt.errors import ExecutionError
from graphopt.runtime.compare import compare, is_float
from graphopt.runtime.contents import file_bytes
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.judging import judge_r
from graphopt.runtime.structure import try_load
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.ties import explain_ties
from graphopt.runtime.truth import Truth
from graphopt.tensors import DType

# Larger models are not turned into double: that takes twice their size, twice.
_MOST_BYTES = 1 << 29


def find_excuses(evidence: Evidence, yardstick: Yardstick, results: Sequence[Outputs], users: bool) -> None:
    """Note in the tallies which differences are none after all.

    Args:
        evidence: The runs made so far.
        yardstick: What equality means here.
        results: What the rewritten model gave, feed by feed.
        users: The runs with default options are meant.
    """
    _ask_truth(evidence, yardstick, results, users)
    for tally in evidence.tallies.values():
        labels = tally.faults(yardstick, users)
        seen = tally.users if users else tally.differences
        whole = [label for label in labels if not seen[label].floating and not seen[label].mismatch]
        if whole:
            for label in explain_ties(evidence, tally.name, whole, results, users):
                tally.excuses[label, users] = "differs only where the scores behind it tie within the measured noise"


def _ask_truth(evidence: Evidence, yardstick: Yardstick, results: Sequence[Outputs], users: bool) -> None:
    """Class R for whole models: an error against a float64 run at most twice the original's own is rounding."""
    wanted: list[tuple[OutputTally, str]] = []
    for tally in evidence.tallies.values():
        seen = tally.users if users else tally.differences
        for label in tally.faults(yardstick, users):
            difference = seen[label]
            if difference.floating and not difference.mismatch and difference.error <= tally.floor.ceiling(difference):
                wanted.append((tally, label))
    if not wanted or file_bytes(evidence.original) > _MOST_BYTES:
        return
    labels = list(dict.fromkeys(label for _, label in wanted))
    truths: dict[str, Outputs] = {}
    try:
        with Truth(evidence) as truth_of:
            for feed, _ in evidence.found.working:
                if feed.label in labels:
                    truths[feed.label] = truth_of.run(feed.values)
    except (ExecutionError, ValueError, TypeError, OSError):
        return
    places = {feed.label: place for place, (feed, _) in enumerate(evidence.found.working)}
    made_in = dtypes_made_in(evidence, {tally.name for tally, _ in wanted})
    for tally, label in wanted:
        place = places[label]
        reference, got = evidence.references()[place][tally.name], results[place][tally.name]
        truth = truths[label].get(tally.name)
        if not (isinstance(reference, np.ndarray) and isinstance(got, np.ndarray) and isinstance(truth, np.ndarray)):
            continue
        if reference.shape == got.shape == truth.shape and is_float(reference.dtype) and reference.dtype.kind != "c":
            # A truth that the original itself is far from excuses nothing.
            difference = compare(truth.astype(reference.dtype), reference)
            deviation, why = judge_r(reference, got, truth, made_in.get(tally.name))
            if not why and difference.error <= tally.floor.ceiling(difference):
                tally.excuses[label, users] = (
                    f"as close to a float64 run as the original itself ({deviation:.2g} of what rounding is allowed)"
                )


def dtypes_made_in(evidence: Evidence, outputs: Container[str]) -> dict[str, np.dtype[Any]]:
    """The 16-bit dtypes of outputs that are computed in one and only cast to another at the end.

    That is what converters to half precision make that leave the model's signature as it was: such an output has the
    roundings of half precision, whatever its own dtype says.
    """
    graph = try_load(evidence.original)
    if graph is None:
        return {}
    Inference(graph.model).run()
    found: dict[str, np.dtype[Any]] = {}
    for (name, _), value in zip(graph.details["outputs"], graph.outputs, strict=True):
        before = value if name in outputs else None
        while before is not None and before.producer.is_op("Cast"):
            before = before.producer.operand(0)
            if before is not None and before.dtype in (DType.FLOAT16, DType.BFLOAT16):
                found[name] = before.dtype.numpy
    return found
