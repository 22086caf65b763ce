"""Evaluating constant nodes of a graph, in few runs: what `context.evaluate` is for passes.

Small integers are computed with numpy, everything else in batches on ONNX Runtime with the settings of the judge, so
that the bits are those of the unoptimized model. What may take long or much memory, or end the process, runs in the
worker under limits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.errors import (
    ExecutionError,
    KernelMissingError,
    ModelError,
    ModelRefusedError,
    ProviderMissingError,
    WorkerCrashedError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from graphopt.ir import Graph, Model, Node, TensorType, Value
from graphopt.onnxio.extract import extract
from graphopt.runtime.arithmetic import compute
from graphopt.runtime.evaluate import evaluate_model
from graphopt.runtime.folding_batches import Batch, Batcher, Limits
from graphopt.tensors import DType, Tensor

_NAMED_NODE = re.compile(r"""['"(](n\d+)['")]""")
_MISFIT = "its result is not what its type says"
_Key = tuple[object, ...]


class NodeEvaluator:
    """Computes nodes of one model. It remembers what could not be computed, and why."""

    def __init__(self, model: Model, limits: Limits | None = None) -> None:
        """Nothing is run or imported yet.

        Args:
            model: The model the nodes are of.
            limits: What evaluation may take.
        """
        self.model = model
        self.limits = limits or Limits()
        self.reasons: dict[Node, str] = {}
        """Why a node could not be computed, in a few words."""
        self.sessions = 0
        """Sessions made so far."""
        self._seconds_left = self.limits.total_seconds
        self._refused: dict[Node, _Key] = {}
        self._without_kernel: dict[_Key, str] = {}
        self._unusable = ""

    def __call__(self, nodes: Sequence[Node]) -> dict[Value, Tensor]:
        """Compute nodes.

        Args:
            nodes: Nodes in topological order whose operands are constants or results of nodes before them.

        Returns:
            The data of every tensor that something other than a computed node reads. A node that has no kernel, raises,
            takes too long or too much memory is not computed, nor is what depends on it.
        """
        results: dict[Value, Tensor] = {}
        by_root: dict[Graph, list[Node]] = {}
        for node in nodes:
            if node.graph is not None and node.is_operator:
                by_root.setdefault(_root(node.graph), []).append(node)
        for group in by_root.values():
            results.update(_Evaluation(self, group).run())
        return results

    # --- what stays

    def refuse(self, node: Node, reason: str) -> None:
        """Remember that a node as it is now cannot be computed."""
        self._refused[node] = _identity(node)
        self.reasons[node] = reason

    def is_refused(self, node: Node) -> bool:
        """True if a node was refused and still reads the same values."""
        return self._refused.get(node) == _identity(node)

    def refuse_kind(self, node: Node, data: Mapping[Value, Tensor], reason: str) -> None:
        """Remember that there is no kernel for a node's operator at its element types."""
        self._without_kernel[_kind(node, data)] = reason

    def is_kind_refused(self, node: Node, data: Mapping[Value, Tensor]) -> bool:
        """True if the node is one of those that have no kernel; then it is refused, too."""
        reason = self._without_kernel.get(_kind(node, data)) if self._without_kernel else None
        if reason is not None:
            self.refuse(node, reason)
        return reason is not None

    # --- running

    def execute(
        self, nodes: Sequence[Node], outputs: Sequence[Value], data: Mapping[Value, Tensor], in_worker: bool
    ) -> dict[Value, Any]:
        """Run nodes in one session.

        Raises:
            ExecutionError: the runtime refused the model or failed; the message names a node as `extract` does.
        """
        if self._unusable:
            raise ProviderMissingError(self._unusable)
        if in_worker and self._seconds_left <= 0:
            raise WorkerTimeoutError("the time for nodes that may take long is used up; allow more of it")
        cut = extract(nodes, outputs, data)
        try:
            feeds = {name: _known(value, data).numpy() for name, value in cut.inputs.items()}
        except ModelError as error:  # data that is only read now, and is broken
            raise ModelRefusedError(str(error)) from error
        fed = sum(array.nbytes for array in feeds.values())
        self.sessions += 1
        started = time.monotonic()
        try:
            found = evaluate_model(
                cut.model.SerializeToString(),
                feeds,
                in_worker=in_worker,
                timeout=min(self.limits.call_seconds, self._seconds_left) if in_worker else None,
                memory_limit=self.limits.worker_bytes + 4 * fed if in_worker else None,
            )
        except ProviderMissingError as error:
            self._unusable = str(error)
            raise
        finally:
            if in_worker:
                self._seconds_left -= time.monotonic() - started
        return {value: found[name] for name, value in cut.outputs.items()}


class _Evaluation:
    """One call: nodes of one main graph or function, some of which may fail."""

    def __init__(self, evaluator: NodeEvaluator, nodes: Sequence[Node]) -> None:
        self.evaluator = evaluator
        self.nodes = nodes
        self.data: dict[Value, Tensor] = {}
        self.done: dict[Node, None] = {}
        self._reads: dict[Node, list[Value]] = {}

    def run(self) -> dict[Value, Tensor]:
        pending = self.compute_small()
        batcher = Batcher(self.evaluator.limits, self.tensor_of, self.reads, self.evaluator.refuse)
        for batch in batcher.batches(pending):
            self.run_batch(batch)
        return {
            value: tensor
            for value, tensor in self.data.items()
            if any(_reader(user, value) not in self.done for user, _ in value.uses)
        }

    def tensor_of(self, value: Value) -> Tensor | None:
        found = self.data.get(value)
        return value.const if found is None else found

    def reads(self, node: Node) -> list[Value]:
        """Operands, and what the node's bodies capture."""
        found = self._reads.get(node)
        if found is None:
            found = [value for value in node.operands if value is not None]
            found += [value for body in node.bodies.values() for value in body.captures()]
            self._reads[node] = found
        return found

    def compute_small(self) -> list[Node]:
        """Compute what numpy can; gives the nodes left for the runtime, without those whose operands stay unknown."""
        pending: dict[Node, None] = {}
        for node in self.nodes:
            if self.evaluator.is_refused(node) or not self.is_within_reach(node, pending):
                continue
            tensor = compute(node, self.tensor_of)
            if tensor is None:
                pending[node] = None
            elif _fits(node.results[0], tensor):
                self.data[node.results[0]] = tensor
                self.done[node] = None
            else:
                self.evaluator.refuse(node, _MISFIT)
        return list(pending)

    def is_within_reach(self, node: Node, made: Mapping[Node, None]) -> bool:
        return all(self.tensor_of(value) is not None or value.producer in made for value in self.reads(node))

    def run_batch(self, batch: Batch) -> None:
        """Run nodes together; where that fails, without the culprit and in halves."""
        stack = [batch.nodes]
        while stack:
            nodes = self.ready(stack.pop())
            members = dict.fromkeys(nodes)
            outputs = [
                value
                for node in nodes
                for value in node.results
                if any(_reader(user, value) not in members for user, _ in value.uses)
            ]
            if not outputs:
                continue  # nobody reads any of it
            try:
                found = self.evaluator.execute(nodes, outputs, self.data, batch.in_worker)
            except ExecutionError as error:
                stack.extend(self.without_culprit(nodes, error))
                continue
            self.take(nodes, found)

    def ready(self, nodes: list[Node]) -> list[Node]:
        """The nodes whose operands are known or made by the others of them, and that were not refused meanwhile."""
        kept: dict[Node, None] = {}
        for node in nodes:
            if not self.is_within_reach(node, kept) or self.evaluator.is_refused(node):
                continue
            if not self.evaluator.is_kind_refused(node, self.data):
                kept[node] = None
        return list(kept)

    def without_culprit(self, nodes: list[Node], error: ExecutionError) -> list[list[Node]]:
        """What to run next after a failure, the last first."""
        reason = _reason(error)
        if isinstance(error, ProviderMissingError):
            for node in nodes:
                self.evaluator.refuse(node, reason)
            return []
        culprit = nodes[0] if len(nodes) == 1 else _named(nodes, error)
        if culprit is not None:
            if isinstance(error, KernelMissingError):
                self.evaluator.refuse_kind(culprit, self.data, reason)
            self.evaluator.refuse(culprit, reason)
            nodes = [node for node in nodes if node is not culprit]
        # Halves, also where the culprit is known: with many of them each costs a part of the batch and not all of it.
        middle = (len(nodes) + 1) // 2
        return [part for part in (nodes[middle:], nodes[:middle]) if part]

    def take(self, nodes: list[Node], found: Mapping[Value, Any]) -> None:
        """Keep results; a node whose result is not what its type says is refused."""
        self.done.update(dict.fromkeys(nodes))
        for value, result in found.items():
            if not isinstance(result, (np.ndarray, np.generic)):
                continue  # a sequence, a map, nothing: no constant can hold it
            tensor = Tensor.from_numpy(np.asarray(result))
            if _fits(value, tensor):
                self.data[value] = tensor
            else:
                self.evaluator.refuse(value.producer, _MISFIT)
                self.done.pop(value.producer, None)


def _root(graph: Graph) -> Graph:
    while graph.parent is not None:
        graph = graph.parent
    return graph


def _reader(user: Node, value: Value) -> Node:
    """The node of the value's own graph that is, or contains, a user."""
    home = value.producer.graph
    while user.graph is not home:
        owner = None if user.graph is None else user.graph.owner
        if owner is None:
            return user
        user = owner
    return user


def _identity(node: Node) -> _Key:
    return tuple(None if value is None else (value.producer.serial, value.index) for value in node.operands)


def _kind(node: Node, data: Mapping[Value, Tensor]) -> _Key:
    """What decides whether there is a kernel: operator, opset and element types."""
    dtypes = []
    for value in node.operands:
        tensor = None if value is None else data.get(value)
        dtypes.append(tensor.dtype if tensor is not None else None if value is None else value.dtype)
    return (node.domain, node.op_type, node.opset, *dtypes, *(value.dtype for value in node.results), bool(node.bodies))


def _known(value: Value, data: Mapping[Value, Tensor]) -> Tensor:
    tensor = data.get(value) or value.const
    assert tensor is not None
    return tensor


def _fits(value: Value, tensor: Tensor) -> bool:
    known = value.type
    if known is None:
        return True
    if not isinstance(known, TensorType) or known.dtype not in (DType.UNDEFINED, tensor.dtype):
        return False
    if known.shape is None:
        return True
    pairs = zip(known.shape, tensor.shape, strict=False)
    return len(known.shape) == tensor.rank and all(not isinstance(dim, int) or dim == size for dim, size in pairs)


def _named(nodes: Sequence[Node], error: ExecutionError) -> Node | None:
    """The node that an error message names, if it names one."""
    names = {f"n{node.serial}": node for node in nodes}
    return next((names[name] for name in _NAMED_NODE.findall(str(error)) if name in names), None)


def _reason(error: ExecutionError) -> str:
    if isinstance(error, KernelMissingError):
        return "the runtime has no kernel for it"
    if isinstance(error, WorkerTimeoutError):
        return "it takes too long"
    if isinstance(error, WorkerMemoryError):
        return "it takes too much memory"
    if isinstance(error, WorkerCrashedError):
        return "it ends the process of the runtime"
    if isinstance(error, ProviderMissingError):
        return "onnxruntime cannot be used"
    return "the runtime refuses it or fails on it"
