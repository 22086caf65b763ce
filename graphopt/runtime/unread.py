"""Weights with other bytes than in the original, of which no feed reads what differs: such a comparison proves nothing.

A weight in a branch that never ran, or a row of a table that no id names, may hold anything, and all outputs agree. So
a weight that both models read alike and that has other bytes is put to a test: the original is run with numbers in the
differing places that are far off. If no output of any feed moves by a bit, nothing reads them.

What a rewrite changes on purpose passes: either the weight has a new name or other readers, or its feeds read it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, GraphoptError
from graphopt.ir import Graph, Value
from graphopt.onnxio import load
from graphopt.runtime.compare import compare
from graphopt.runtime.contents import file_bytes
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.parts import saved
from graphopt.runtime.session import JUDGE
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.structure import try_load
from graphopt.runtime.values import nbytes
from graphopt.tensors import DType, Tensor

_MOST_BYTES = 1 << 29  # of a model that is written once more for each weight
_MOST_WEIGHTS = 16
_SECONDS = 10.0
_NAMES_TOLD = 4
_MOVED = (DType.FLOAT, DType.FLOAT16, DType.DOUBLE, DType.BFLOAT16)


def unread_weights(evidence: Evidence) -> str:
    """The sentence on weights that differ where no output at any feed depends on them; empty where there are none.

    What could not be tried for want of time or room is a remark in the notes.
    """
    left = evidence.graph
    right = None if left is None else try_load(evidence.rewritten)
    if left is None or right is None:
        return ""
    suspects = changed_alike(left, right)
    if not suspects:
        return ""
    if max(file_bytes(evidence.original), file_bytes(evidence.rewritten)) > _MOST_BYTES:
        evidence.notes.append(
            f"whether any feed reads what differs was not tried, the model is too large: {_told(list(suspects))}"
        )
        return ""
    until = time.monotonic() + _SECONDS
    unread, untried = [], []
    for number, (name, tensor) in enumerate(suspects.items()):
        if number >= _MOST_WEIGHTS or time.monotonic() > until:
            untried.append(name)
        elif not _is_read(evidence, evidence.original, name, tensor):
            unread.append(name)
    if unread:
        many = len(unread) > 1
        return (
            f"{_told(unread)} {'have' if many else 'has'} other bytes than in the original, and no output at any "
            f"feed depends on what differs: {'they' if many else 'it'} may hold anything; give inputs that read "
            "it, with --data, --dim or --range"
        )
    if untried:
        evidence.notes.append(f"whether any feed reads what differs was not tried for {_told(untried)}")
    return ""


def depends_on_all(evidence: Evidence) -> bool:
    """Whether the outputs of the rewritten model, which are one number all over, move with each of its weights."""
    right = try_load(evidence.rewritten)
    if right is None or file_bytes(evidence.rewritten) > _MOST_BYTES:
        return False
    weights = [name for name, value in _constants(right).items() if value.uses and value.dtype in _MOVED]
    return 0 < len(weights) <= _MOST_WEIGHTS and all(_is_read(evidence, evidence.rewritten, name) for name in weights)


def changed_alike(left: Graph, right: Graph) -> dict[str, Tensor]:
    """Constants of one name, dtype and shape that both models read with the same operators, and that differ.

    Returns:
        Name -> what the rewritten model holds.
    """
    ours = _constants(left)
    found = {}
    for name, value in _constants(right).items():
        twin = ours.get(name)
        if twin is None or twin.const is None or value.const is None or value.const.dtype is DType.STRING:
            continue
        old, new = twin.const, value.const
        if (old.dtype, old.shape) != (new.dtype, new.shape) or not new.size or old.equals(new):
            continue
        if value.uses and _readers(value) == _readers(twin):
            found[name] = new
    return found


def _constants(graph: Graph) -> dict[str, Value]:
    """Constants at any depth by name; names that two graphs use are left out."""
    found: dict[str, Value] = {}
    twice: dict[str, None] = {}
    for inner in graph.model.graphs():
        for node in inner.constants():
            name = node.result.name
            if name:
                if name in found:
                    twice[name] = None
                found[name] = node.result
    return {name: value for name, value in found.items() if name not in twice}


def _readers(value: Value) -> list[tuple[str, ...]]:
    """What reads a value, as text: operator, place, attributes."""
    return sorted(
        (user.domain, user.op_type, str(index), str(sorted((key, str(item)) for key, item in user.attributes.items())))
        for user, index in value.uses
    )


def _is_read(evidence: Evidence, source: ModelSource, name: str, new: Tensor | None = None) -> bool:
    """Whether an output of a model moves once the differing elements of a constant are far off; all without `new`."""
    try:
        graph = load(source.handle)
        value = _constants(graph)[name]
        assert value.const is not None
        home = value.producer.graph
        assert home is not None
        other = home.add_constant(_far_off(value.const, new))
        home.replace_uses(value, other)
        feeds = sorted(evidence.found.working, key=lambda item: -sum(map(nbytes, item[0].values.values())))
        with (
            saved(graph) as path,
            evidence.session(ModelSource("a model with another weight", path=path), JUDGE) as session,
        ):
            return any(_moves(session.run(feed.values), outputs) for feed, outputs in feeds if not feed.is_empty)
    except ExecutionError:  # it fails with other numbers there, so it reads them
        return True
    except (GraphoptError, ValueError, TypeError, OSError, KeyError):
        return True  # it cannot be tried, and nothing speaks against the weight


def _moves(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(not compare(other[name], one[name]).identical for name in other)


def _far_off(old: Tensor, new: Tensor | None) -> Tensor:
    """A constant with other numbers where two differ: far off for floats, the new ones for all else."""
    if new is not None and old.dtype not in _MOVED:
        return new
    before = old.numpy()
    same = np.zeros(before.shape, bool)
    if new is not None:
        after = new.numpy()
        same = (before == after) & (np.signbit(before) == np.signbit(after))
    wide = before.astype(np.float64)
    largest = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0)) or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.where(np.isfinite(wide), -2.0 * wide + largest, largest)
        far = np.where(far == wide, wide + 1.0 + largest, far)
        return Tensor.from_numpy(np.where(same, before, far.astype(before.dtype)), old.dtype)


def _told(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_NAMES_TOLD])) + (", …" if len(names) > _NAMES_TOLD else "")
