"""A value inside that is further off than noise: rounding, a name that means another thing, or a fault.

A name proves little: another tool, or a rule that moves a scale, may let a value keep its name and mean something else
by it. So a difference is only a fault if the rewritten model, begun again at that value with what the original has
there, still gives the original's outputs: then both mean the same by it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphopt.analysis.inference import Inference
from graphopt.errors import GraphoptError
from graphopt.ir import Graph, Node, Value
from graphopt.onnxio import load
from graphopt.onnxio.cutting import cut_inputs
from graphopt.onnxio.signature import select_outputs
from graphopt.runtime.compare import Difference, compare
from graphopt.runtime.evidence import Evidence, Outputs
from graphopt.runtime.feeds import Feed
from graphopt.runtime.parts import Parts, saved
from graphopt.runtime.remote import RemoteSession, open_here
from graphopt.runtime.session import JUDGE, SessionInfo, SessionSettings
from graphopt.runtime.sources import ModelSource
from graphopt.runtime.tally import OutputTally, Yardstick
from graphopt.runtime.tolerance import FACTOR
from graphopt.runtime.values import Data

MEASURED = Yardstick()
# A value inside is measured on fewer feeds than an output, and nobody reads it: it may be twice as far off. Rewrites
# of graphopt's are at 1.7 times an output's tolerance at most, in some 250 models.
MARGIN = 2.0
# Where no float64 run can tell rounding from a fault, or both models give the same in float64. Kernels that do much at
# once round more than those they stand for: ONNX Runtime's attention in float32 on CUDA is at 2.1 times the tolerance.
_WITHOUT_TRUTH = 4.0
_MOST_TRIES = 6
_ROUNDING = "as close to a float64 run as the original itself"
_AGREED = "both models give the same in float64, the kernels round differently"
_FAR = 0.02  # what is further apart inside and means the same shows in the outputs, too
_FOLDER = "session.model_external_initializers_file_folder_path"


def open_probed_here(model: str | bytes, suffix: bytes, settings: SessionSettings) -> tuple[int, SessionInfo]:
    """Make a session in this process of a model with more outputs.

    Two messages of protobuf one after the other are one message with the fields of both: the model itself is neither
    read nor written again. Its external data is looked for beside its file.
    """
    if isinstance(model, str):
        settings = settings.but(entries=(*settings.entries, (_FOLDER, os.path.dirname(model))))
        model = Path(model).read_bytes()
    return open_here(model + suffix, settings)


class _ProbedSession(RemoteSession):
    """A session of a model with more outputs."""

    suffix = b""

    def _make(self) -> tuple[int, SessionInfo]:
        made: tuple[int, SessionInfo] = self._call(open_probed_here, self.source.handle, self.suffix, self.settings)
        return made


class Inner(Evidence):
    """The evidence on two models with inner values for outputs."""

    def __init__(self, outer: Evidence, names: Sequence[str], feeds: Sequence[Feed]) -> None:
        from onnx import ModelProto

        super().__init__(outer.original, outer.rewritten, outer.worker, outer.options, outer.custom_ops, outer.timeout)
        self.outer = outer
        self.provider, self.provider_options, self.structure = outer.provider, outer.provider_options, outer.structure
        self.feeds = list(feeds)
        addition = ModelProto()
        for name in names:
            addition.graph.output.add().name = name
        self.suffix = addition.SerializeToString()

    def session(self, source: ModelSource, base: SessionSettings) -> RemoteSession:
        """A session that gives the inner values, too."""
        session = _ProbedSession(source, self.set_up.judged(base), worker=self.worker, timeout=self.timeout)
        session.suffix = self.suffix
        return session


@dataclass(frozen=True, slots=True)
class Reader:
    """An operator that both models have alike, but for the bytes of a weight.

    Attributes:
        weight: Name of the weight.
        output: What it gives.
        operands: What it reads that is no constant.
    """

    weight: str
    output: str
    operands: tuple[str, ...]


def readers_of(left: Graph, weights: Iterable[Value]) -> list[Reader]:
    """Operators of the rewritten model that read some weights, and are in the original with the same names."""
    ours = {value.name: value for node in left.nodes() for value in node.results if value.name}
    found = []
    for weight in weights:
        for node, _ in weight.uses:
            value = node.results[0] if node.is_operator and node.results else None
            twin = ours[value.name].producer if value is not None and value.name in ours else None
            if value is None or twin is None or node.bodies or node.graph is not weight.producer.graph:
                continue
            operands = _variables(node)
            same = (twin.domain, twin.op_type, dict(twin.attributes)) == (
                node.domain,
                node.op_type,
                dict(node.attributes),
            )
            if same and operands and operands == _variables(twin):
                found.append(Reader(weight.name or "", value.name or "", operands))
    return found[:_MOST_TRIES]


def _variables(node: Node) -> tuple[str, ...]:
    values = [value for value in node.operands if value is not None and not value.producer.is_constant]
    return tuple(dict.fromkeys(value.name or "" for value in values))


def weight_fault(inner: Inner, reader: Reader, results: Sequence[Outputs]) -> str:
    """A wrong weight by its operator alone, fed what the original has there: nothing before it makes noise.

    Its operands must mean the same in both models, so they must agree; and so must what it gives, see
    `_means_the_same`, unless it is an output of the model.

    Returns:
        The sentence on it; empty where nothing shows.
    """
    for (feed, reference), result in zip(inner.found.working, results, strict=True):
        fed = {name: feed.values.get(name, reference.get(name)) for name in reader.operands}
        inside = [name for name in reader.operands if name not in feed.values]
        if any(name not in inner.tallies or _faults(inner.tallies[name]) for name in inside):
            return ""
        try:
            left, right = (_alone(inner, source, reader, fed) for source in (inner.original, inner.rewritten))
        except (GraphoptError, OSError):
            return ""
        difference = compare(left, right)
        if not is_telling(difference) or difference.error <= FACTOR * difference.epsilon:
            continue
        is_output = reader.output in inner.outer.tallies
        known = reader.output in inner.tallies
        if is_output or (known and _means_the_same(inner, reader.output, feed.label, result)):
            return (
                f"the weight {reader.weight!r} is wrong: from the same operands {reader.output!r} is off by up to "
                f"{difference.error:.2g} of its scale at {feed.label}; the outputs hide it in noise"
            )
    return ""


def _alone(inner: Inner, source: ModelSource, reader: Reader, fed: Outputs) -> Data:
    """What one operator of a model gives."""
    graph = load(source.handle)
    Inference(graph.model).run()
    select_outputs(graph, [reader.output])
    cut_inputs(graph, reader.operands)
    with saved(graph) as path, inner.outer.session(ModelSource("one operator", path=path), JUDGE) as session:
        return session.run(fed)[reader.output]


def is_telling(difference: Difference) -> bool:
    """Numbers against numbers of one shape, and not far apart; with anything else the name means another thing now.

    What is far apart inside and means the same shows in the outputs.
    """
    return not difference.mismatch and difference.floating and difference.error < _FAR


def suspicious(inner: Inner) -> list[OutputTally]:
    """Values that are further off than noise."""
    return [tally for tally in inner.tallies.values() if _faults(tally)]


def _faults(tally: OutputTally, margin: float = MARGIN) -> list[str]:
    """Labels of the feeds at which a value is that many times as far off as an output may be."""
    found = []
    for label in tally.faults(MEASURED, False):
        difference, floor = tally.differences[label], tally.floor
        is_far = difference.error > margin * floor.tolerance(difference, label)
        if is_far or difference.rms > margin * floor.rms_tolerance(difference, label):
            found.append(label)
    return found


def settle(inner: Inner, results: Sequence[Outputs]) -> str:
    """Values beyond the noise: rounding, a name that means another thing, or a fault.

    Returns:
        The sentence on the first fault; empty where there is none.
    """
    places = {feed.label: place for place, feed in enumerate(inner.feeds)}
    parts = Parts(inner)
    rounded: dict[str, None] = {}
    agreed: dict[str, None] = {}
    tries = {True: 0, False: 0}  # those a little beyond the noise must not use up the tries of those far beyond it
    for tally in suspicious(inner):
        labels = _faults(tally)
        if _leads_to(inner, rounded, tally.name):
            tally.excuses.update(
                {(label, False): "computed from a value that rounding moves further" for label in labels}
            )
            continue
        is_near = not _faults(tally, _WITHOUT_TRUTH)
        tries[is_near] += 1
        is_tried = tries[is_near] <= _MOST_TRIES
        may_round = is_near or _leads_to(inner, agreed, tally.name)
        for label in labels:
            result = results[places[label]]
            rounding = parts.is_rounding(tally.name, label, result[tally.name]) if is_tried else None
            if rounding:
                tally.excuses[label, False] = _ROUNDING
            elif rounding is None and is_near:
                tally.excuses[label, False] = "no float64 run can tell it from rounding"
            elif rounding is False and may_round and parts.agree(tally, label, agreed):
                tally.excuses[label, False] = _AGREED
            elif is_tried and _means_the_same(inner, tally.name, label, result):
                far = tally.how_far(tally.differences[label], label, MEASURED)
                return f"{tally.name!r} inside the model differs at {label}: {far}; the outputs hide it in noise"
            else:
                del inner.tallies[tally.name]
                break
        found = {tally.excuses.get((label, False)) for label in labels}
        if found == {_ROUNDING}:
            rounded[tally.name] = None
        elif found <= {_ROUNDING, _AGREED}:
            agreed[tally.name] = None
    return ""


def _leads_to(inner: Inner, names: Collection[str | None], name: str) -> bool:
    """Whether a value is computed from one of some others."""
    graph = inner.outer.graph if names else None
    todo = [] if graph is None else [value for node in graph.nodes() for value in node.results if value.name == name]
    seen: set[Node] = set()
    while todo:
        value = todo.pop()
        if value.name in names:
            return True
        if value.producer not in seen:
            seen.add(value.producer)
            todo += [operand for operand in value.producer.operands if operand is not None]
    return False


def _means_the_same(inner: Inner, name: str, label: str, result: Outputs) -> bool:
    """Whether the rewritten model, begun at a value as the original has it, gives the original's outputs.

    And the value must matter to some output at that feed, or nothing can be told.
    """
    outer = inner.outer
    original = next(outputs for feed, outputs in outer.found.working if feed.label == label)
    feed, reference = next(item for item in inner.found.working if item[0].label == label)
    try:
        graph = load(outer.rewritten.handle)
        Inference(graph.model).run()
        cut_inputs(graph, [*(value.name or "" for value in graph.inputs), name])
        with saved(graph) as path, outer.session(ModelSource("the rest", path=path), JUDGE) as session:
            ports = [port.name for port in session.info.inputs]
            fed = {port: value for port, value in feed.values.items() if port in ports}
            ours, theirs = (session.run({**fed, name: values[name]}) for values in (reference, result))
    except (GraphoptError, OSError):
        return False
    matters = False
    for tally in outer.tallies.values():
        trial = copy.copy(tally)
        trial.differences, trial.excuses = {label: compare(original[tally.name], ours[tally.name])}, {}
        if trial.faults(MEASURED, False):
            return False
        matters |= not compare(ours[tally.name], theirs[tally.name]).identical
    return matters
