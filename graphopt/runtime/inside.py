"""Values inside both models, compared where the outputs alone cannot show a fault.

A weight that is off by a thousandth can stay below the noise of a deep model's outputs; right behind the operator that
reads it, it stands out. So where a name lives on in both models, the value is made an output of both and judged as the
outputs are, by its own measured noise.

`suspicion` says what a difference there is worth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.errors import ExecutionError
from graphopt.ir import Graph, Node, Value
from graphopt.runtime.compare import compare
from graphopt.runtime.evidence import Evidence
from graphopt.runtime.feeds import Feed, FeedSet, tells
from graphopt.runtime.session import JUDGE
from graphopt.runtime.structure import try_load
from graphopt.runtime.suspicion import (
    MARGIN,
    MEASURED,
    Inner,
    Reader,
    is_telling,
    readers_of,
    settle,
    suspicious,
    weight_fault,
)
from graphopt.runtime.tally import OutputTally
from graphopt.runtime.tolerance import FACTOR, noise
from graphopt.runtime.values import nbytes

_MOST_BYTES = 1 << 30  # of a model file, external data not counted: it goes to the runtime as bytes
_SPREAD, _SUSPECTS, _NAMES_EACH = 12, 64, 3
_STEPS = 8  # operators walked from a changed weight until a value has a name that both models know
_SLOW_SECONDS = 0.05
_NAMES_TOLD = 4
# Not all that has no declared type is a float.
_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)")
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")


@dataclass(slots=True)
class Inside:
    """What was found inside.

    Attributes:
        tallies: What was seen of every value compared.
        fault: The sentence on the first value that is off; empty where none is.
        note: Why nothing could be compared, where something should have been.
        telling: Values that are not the same number all over, and agree.
        unclear: Values that differ for a reason that was not found.
    """

    tallies: dict[str, OutputTally] = field(default_factory=dict)
    fault: str = ""
    note: str = ""
    telling: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


def look_inside(evidence: Evidence, identical: bool, needed: bool = False) -> Inside:
    """Compare values inside both models.

    Args:
        evidence: The runs made so far, all outputs within the noise.
        identical: All outputs have the same bits; then only changed weights are a reason to look.
        needed: The outputs show no change, so look all the same.
    """
    left = evidence.graph
    if left is None or evidence.structure.quantized or _has_random(left):
        return Inside()
    right = try_load(evidence.rewritten)
    if right is None:
        return Inside()
    suspects = changed_constants(left, right)
    if identical and not suspects and not needed:
        return Inside()
    readers = readers_of(left, [value for value, same in suspects.items() if same])
    names = choose(left, right, suspects)
    known = [*names, *evidence.tallies, *(port.name for port in evidence.info.inputs)]
    names += dict.fromkeys(name for reader in readers for name in reader.operands if name not in known)
    feeds = _feeds(evidence)
    if not (names or readers) or not feeds:
        return Inside(note=_unread(suspects, right, {}) if identical else "")
    if max(evidence.original.nbytes, evidence.rewritten.nbytes) > _MOST_BYTES:
        return Inside(note="values inside were not compared: the model file is too large; store weights beside it")
    try:
        found = _compare(Inner(evidence, names, feeds), names, readers)
        if not found.fault:
            found.note = _unread(suspects, right, found.tallies)
        return found
    except ExecutionError as error:
        return Inside(note=f"values inside were not compared: the runtime does not give them ({error.reason})")


# --- where to look


def _has_random(graph: Graph) -> bool:
    return any(op_type in _RANDOM for inner in graph.model.graphs() for _, op_type in inner.kinds)


def changed_constants(left: Graph, right: Graph) -> dict[Value, bool]:
    """Float constants of the rewritten main graph that the original does not have under that name.

    Returns:
        The constants; true for one that the original has, of the same dtype and shape and other bytes.
    """
    known = {value.name: value for node in left.constants() for value in node.results}
    found = {}
    for node in right.constants():
        for value in node.results:
            tensor = value.const
            if tensor is None or not tensor.dtype.is_float or not tensor.size or not value.uses:
                continue
            old = known.get(value.name)
            if old is None or old.const is None:
                found[value] = False
            elif not tensor.equals(old.const):
                found[value] = (old.const.dtype, old.const.shape) == (tensor.dtype, tensor.shape)
    return found


def choose(left: Graph, right: Graph, suspects: Mapping[Value, bool]) -> list[str]:
    """Names of values to compare: those right behind changed constants, then some evenly along the depth."""
    shared = _shared(left, right)
    places = {name: place for place, name in enumerate(shared)}
    first: dict[str, None] = {}
    further: dict[str, None] = {}
    for value in sorted(suspects, key=lambda value: not suspects[value]):  # those that kept their name go first
        names = _names_behind(value, right, places)
        first.update(dict.fromkeys(names[:1]))
        further.update(dict.fromkeys(names[1:]))
    chosen = _evenly(list(first), _SUSPECTS)
    chosen += _evenly([name for name in further if name not in first], _SUSPECTS - len(chosen))
    rest = [name for name in shared if name not in first and name not in further]
    return sorted([*chosen, *_evenly(rest, _SPREAD)], key=places.__getitem__)


def _shared(left: Graph, right: Graph) -> list[str]:
    """Names of float values that both main graphs compute and use in the same way, in the order of the original."""
    outputs = {name for graph in (left, right) for name, _ in graph.details["outputs"]}
    theirs = {value.name: value for node in right.nodes() for value in node.results if value.name}
    found = []
    for node in left.order():
        for value in node.results:
            other = theirs.get(value.name or "")
            if value.name and value.name not in outputs and other is not None and _alike(value, other):
                found.append(value.name)
    return found


def _alike(one: Value, other: Value) -> bool:
    """Neither is known to be no float, and the same operators read both: else the name means another thing now."""
    if any(value.dtype is not None and not value.dtype.is_float for value in (one, other)):
        return False
    readers = [sorted((user.domain, user.op_type) for user, _ in value.uses) for value in (one, other)]
    return bool(readers[0]) and readers[0] == readers[1]


def _names_behind(constant: Value, graph: Graph, names: Mapping[str, int]) -> list[str]:
    """The first values computed from a constant that have one of the names, nearest first: one may be of no use."""
    todo = deque((user, 0) for user, _ in constant.uses)
    seen: set[Node] = set()
    found: dict[str, None] = {}
    while todo and len(found) < _NAMES_EACH:
        node, steps = todo.popleft()
        if node in seen or steps > _STEPS or node.graph is not graph or not node.is_operator:
            continue
        seen.add(node)
        for value in node.results:
            if value.name and value.name in names:
                found[value.name] = None
            todo.extend((user, steps + 1) for user, _ in value.uses)
    return list(found)


def _evenly(names: Sequence[str], most: int) -> list[str]:
    if most <= 0:
        return []
    if len(names) <= most:
        return list(names)
    return [names[(2 * place + 1) * len(names) // (2 * most)] for place in range(most)]


def _feeds(evidence: Evidence) -> list[Feed]:
    """The largest feed, for what is not read there is not seen; where a run is quick the first one, too."""
    full = [feed for feed, outputs in evidence.found.working if not feed.is_empty and outputs]
    largest = max(full, key=lambda feed: sum(map(nbytes, feed.values.values())), default=None)
    if largest is None or largest is full[0] or evidence.found.seconds >= _SLOW_SECONDS:
        return [] if largest is None else [largest]
    return [full[0], largest]


def _unread(suspects: Mapping[Value, bool], right: Graph, tallies: Mapping[str, OutputTally]) -> str:
    """A remark on weights with other bytes that make no difference right behind them; empty where there are none."""
    places = {name: place for place, name in enumerate(tallies)}
    names = []
    for value, same in suspects.items():
        behind = _names_behind(value, right, places)[:1] if same else ()
        if same and all(item.identical for name in behind for item in tallies[name].differences.values()):
            names.append(repr(value.name))
    if not names:
        return ""
    shown = ", ".join(names[:_NAMES_TOLD]) + (", …" if len(names) > _NAMES_TOLD else "")
    many = len(names) > 1
    return (
        f"{shown} {'have' if many else 'has'} other bytes than in the original, and nothing that was compared shows "
        "it: what differs there is not read at these feeds, or is lost in rounding"
    )


# --- comparing


def _compare(inner: Inner, names: Sequence[str], readers: Sequence[Reader]) -> Inside:
    with inner.session(inner.original, JUDGE) as session:
        given = {port.name: port.type for port in session.info.outputs}
        inner.info = session.info
        inner.tallies = {name: OutputTally(name) for name in names if given.get(name) in _FLOATS}
        if not inner.tallies and not readers:
            return Inside()
        inner.found = FeedSet(working=[(feed, session.run(feed.values)) for feed in inner.feeds])
        moved = inner.moved(session, inner.feeds[0], 0)
    with inner.session(inner.rewritten, JUDGE) as session:
        results = [session.run(feed.values) for feed in inner.feeds]
    compared = list(inner.tallies)
    for name, tally in list(inner.tallies.items()):
        for (feed, reference), result in zip(inner.found.working, results, strict=True):
            tally.differences[feed.label] = compare(reference[name], result[name])
        if not all(is_telling(item) for item in tally.differences.values()):
            del inner.tallies[name]
    inner.know_model()
    for tally in suspicious(inner):  # most are closer than any noise that could be measured
        feed, reference = inner.found.working[0]
        if (value := noise(reference, moved, tally.name)) is not None:
            tally.floor.ulp[feed.label] = value
    if suspicious(inner):
        inner.measure_optimizer()
    fault = settle(inner, results) if suspicious(inner) else ""
    fault = fault or next(filter(None, (weight_fault(inner, reader, results) for reader in readers)), "")
    unclear = tuple(name for name in compared if name not in inner.tallies)
    telling = tuple(
        name for name in inner.tallies if any(tells({name: outputs[name]}) for _, outputs in inner.found.working)
    )
    for tally in inner.tallies.values():
        if not fault.startswith(repr(tally.name)):
            for label in tally.faults(MEASURED, False):
                tally.excuses.setdefault((label, False), f"within {MARGIN * FACTOR:g} times the measured noise")
    return Inside(inner.tallies, fault, telling=telling, unclear=unclear)
