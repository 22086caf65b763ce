"""Evaluating constant nodes of a graph, in few runs: what `context.evaluate` is for passes.

Small integers are computed with numpy, everything else in batches on ONNX Runtime with the settings of the judge, so
that the bits are those of the unoptimized model. What may take long or much memory, or end the process, runs in the
worker under limits.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from graphopt.errors import (
    ExecutionError,
    KernelMissingError,
    ProviderMissingError,
    WorkerCrashedError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from graphopt.ir import Graph, Model, Node, OptionalType, SequenceType, TensorType, Value
from graphopt.onnxio.extract import extract
from graphopt.runtime.arithmetic import compute, divides_safely
from graphopt.runtime.evaluate import evaluate_model
from graphopt.tensors import DType, Tensor

BATCH_NODES: Final = 400
"""Nodes of one session: the runtime takes time quadratic in its inputs and outputs."""
BATCH_BYTES: Final = 256 << 20
"""Bytes that a batch of several nodes reads and makes."""
NODE_BYTES: Final = 2 << 30
"""Bytes that a single node may read and make."""
WORKER_BYTES: Final = 2 << 30
CALL_SECONDS: Final = 10.0
TOTAL_SECONDS: Final = 60.0
"""What all calls of the worker may take together: then nodes that need it stay."""
_LONG_WORK: Final = 20e9  # multiplications, about as many seconds as tens of them
_STRING_BYTES: Final = 64
_NAMED_NODE = re.compile(r"""['"(](n\d+)['")]""")

_Key = tuple[object, ...]


class NodeEvaluator:
    """Computes nodes of one model. It remembers what could not be computed, and why."""

    def __init__(
        self,
        model: Model,
        *,
        batch_nodes: int = BATCH_NODES,
        batch_bytes: int = BATCH_BYTES,
        node_bytes: int = NODE_BYTES,
        worker_bytes: int = WORKER_BYTES,
        call_seconds: float = CALL_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        """Nothing is run or imported yet.

        Args:
            model: The model the nodes are of.
            batch_nodes: Most nodes of one session.
            batch_bytes: Most bytes several nodes of one session may read and make.
            node_bytes: Most bytes one node may read and make.
            worker_bytes: Most memory of the worker.
            call_seconds: Time for one call of the worker.
            total_seconds: Time for all of them.
        """
        self.model = model
        self.reasons: dict[Node, str] = {}
        """Why a node could not be computed, in a few words."""
        self.sessions = 0
        """Sessions made so far."""
        self._batch_nodes = batch_nodes
        self._batch_bytes = batch_bytes
        self._node_bytes = node_bytes
        self._worker_bytes = worker_bytes
        self._call_seconds = call_seconds
        self._seconds_left = total_seconds
        self._refused: dict[Node, _Key] = {}
        self._without_kernel: dict[_Key, str] = {}
        self._is_unusable = ""

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

    # --- what stays ---------------------------------------------------------------------------------------------------

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

    # --- running ------------------------------------------------------------------------------------------------------

    def execute(
        self, nodes: Sequence[Node], outputs: Sequence[Value], data: Mapping[Value, Tensor], in_worker: bool
    ) -> dict[Value, Any]:
        """Run nodes in one session.

        Raises:
            ExecutionError: the runtime refused the model or failed; the message names a node as `extract` does.
        """
        if self._is_unusable:
            raise ProviderMissingError(self._is_unusable)
        if in_worker and self._seconds_left <= 0:
            raise WorkerTimeoutError("the time for nodes that may take long is used up; fold less or allow more")
        cut = extract(nodes, outputs, data)
        feeds = {name: _array(_known(value, data)) for name, value in cut.inputs.items()}
        self.sessions += 1
        started = time.monotonic()
        try:
            found = evaluate_model(
                cut.model.SerializeToString(),
                feeds,
                in_worker=in_worker,
                timeout=min(self._call_seconds, self._seconds_left) if in_worker else None,
                memory_limit=self._worker_bytes + 4 * sum(array.nbytes for array in feeds.values())
                if in_worker
                else None,
            )
        except ProviderMissingError as error:
            self._is_unusable = str(error)
            raise
        finally:
            if in_worker:
                self._seconds_left -= time.monotonic() - started
        return {value: found[name] for name, value in cut.outputs.items()}

    @property
    def limits(self) -> tuple[int, int, int]:
        """Nodes of a batch, bytes of a batch, bytes of a node."""
        return self._batch_nodes, self._batch_bytes, self._node_bytes


class _Evaluation:
    """One call: nodes of one graph (or function), some of which may fail."""

    def __init__(self, evaluator: NodeEvaluator, nodes: Sequence[Node]) -> None:
        self.evaluator = evaluator
        self.nodes = nodes
        self.data: dict[Value, Tensor] = {}
        self.done: dict[Node, None] = {}
        self._inner_reads: dict[Node, list[Value]] = {}

    def run(self) -> dict[Value, Tensor]:
        for in_worker, batch in self.batches(self.compute_small()):
            self.run_batch(batch, in_worker)
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
        found = self._inner_reads.get(node)
        if found is None:
            found = [value for value in node.operands if value is not None]
            found += [value for body in node.bodies.values() for value in body.captures()]
            self._inner_reads[node] = found
        return found

    # --- what needs no session ----------------------------------------------------------------------------------------

    def compute_small(self) -> list[Node]:
        """Compute what numpy can; the nodes left for the runtime, without those whose operands will never be known."""
        pending: dict[Node, None] = {}
        for node in self.nodes:
            if self.evaluator.is_refused(node) or not self.is_reachable(node, pending):
                continue
            tensor = compute(node, self.tensor_of)
            if tensor is None:
                pending[node] = None
            elif _fits(node.results[0], tensor):
                self.data[node.results[0]] = tensor
                self.done[node] = None
            else:
                self.evaluator.refuse(node, "its result is not what its type says")
        return list(pending)

    def is_reachable(self, node: Node, pending: Mapping[Node, None]) -> bool:
        return all(self.tensor_of(value) is not None or value.producer in pending for value in self.reads(node))

    # --- batches ------------------------------------------------------------------------------------------------------

    def batches(self, pending: list[Node]) -> list[tuple[bool, list[Node]]]:
        """Nodes in groups that one session each computes, and whether it lives in the worker."""
        stages: dict[Node, int] = {}
        lots: dict[int, list[Node]] = {}
        for node in pending:
            if not self.is_affordable(node, stages):
                continue
            parity = int(self.needs_worker(node))
            before = [stages[value.producer] for value in self.reads(node) if value.producer in stages]
            stage = max(before, default=parity)
            stage += (stage + parity) % 2
            stages[node] = stage
            lots.setdefault(stage, []).append(node)
        return [(bool(stage % 2), batch) for stage in sorted(lots) for batch in self.chunks(lots[stage])]

    def is_affordable(self, node: Node, stages: Mapping[Node, int]) -> bool:
        reads = self.reads(node)
        if not all(value.producer in stages or self.tensor_of(value) is not None for value in reads):
            return False  # what it reads was refused just now
        size = sum(self.size_of(value) or 0 for value in (*reads, *node.results))
        if size > self.evaluator.limits[2]:
            self.evaluator.refuse(node, "it is too large to evaluate")
            return False
        if self.division_fails(node):
            self.evaluator.refuse(node, "it divides by zero, or the least integer by -1")
            return False
        if not all(_is_text(tensor) for value in reads if (tensor := self.tensor_of(value)) is not None):
            self.evaluator.refuse(node, "it reads strings that are not UTF-8")
            return False
        return True

    def chunks(self, nodes: list[Node]) -> Iterable[list[Node]]:
        most_nodes, most_bytes, _ = self.evaluator.limits
        batch: list[Node] = []
        size = 0
        fed: dict[Value, None] = {}
        for node in nodes:
            new = [value for value in self.reads(node) if value not in fed]
            own = sum(self.size_of(value) or 0 for value in (*new, *node.results))
            if batch and (len(batch) >= most_nodes or size + own > most_bytes or node.bodies or batch[0].bodies):
                yield batch
                batch, size, fed = [], 0, {}
            batch.append(node)
            size += own
            fed.update(dict.fromkeys((*new, *node.results)))
        if batch:
            yield batch

    def size_of(self, value: Value) -> int | None:
        """Bytes of a value, None where its type does not tell."""
        tensor = self.tensor_of(value)
        if tensor is not None:
            return tensor.nbytes
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return None
        sizes = [dim for dim in value.type.shape if isinstance(dim, int)]
        if len(sizes) != len(value.type.shape):
            return None
        bits = value.type.dtype.bits or 8 * _STRING_BYTES
        return (math.prod(sizes) * bits + 7) // 8

    def needs_worker(self, node: Node) -> bool:
        """True where nobody knows how long a node takes, how much it makes, or whether it ends the process."""
        if node.bodies or any(self.is_unbounded(value) for value in node.results):
            return True
        return (_divides_integers(node) and not self.division_is_known(node)) or self.work_of(node) > _LONG_WORK

    def is_unbounded(self, value: Value) -> bool:
        if isinstance(value.type, (SequenceType, OptionalType)) or (value.name == "" and not value.uses):
            return False  # it holds what its node reads, or is left out
        return self.size_of(value) is None

    def division_is_known(self, node: Node) -> bool:
        """True if nothing an integer division meets can end the process."""
        dividend, divisor = (None if value is None else self.tensor_of(value) for value in node.operands[:2])
        return divisor is not None and divides_safely(None if dividend is None else dividend.numpy(), divisor.numpy())

    def division_fails(self, node: Node) -> bool:
        """True if an integer division by known numbers cannot be made."""
        if not _divides_integers(node) or not all(
            value is not None and self.tensor_of(value) for value in node.operands
        ):
            return False
        return not self.division_is_known(node)

    def work_of(self, node: Node) -> float:
        """A rough upper bound of the multiplications a node makes; 0 for operators that take linear time."""
        made = sum(_elements(value) for value in node.results)
        if node.op_type in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul") and node.operands[0] is not None:
            return float(made * max((dim for dim in node.operands[0].shape or () if isinstance(dim, int)), default=1))
        if node.op_type in _HEAVY:
            return float(made * max((_elements(value) for value in self.reads(node)), default=1))
        return 0.0

    # --- running ------------------------------------------------------------------------------------------------------

    def run_batch(self, batch: list[Node], in_worker: bool) -> None:
        """Run nodes together; where that fails, without the culprit and in halves."""
        stack = [batch]
        while stack:
            nodes = self.ready(stack.pop())
            if not nodes:
                continue
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
                found = self.evaluator.execute(nodes, outputs, self.data, in_worker)
            except ExecutionError as error:
                stack.extend(self.without_culprit(nodes, error))
                continue
            self.take(nodes, found)

    def ready(self, nodes: list[Node]) -> list[Node]:
        """The nodes whose operands are known or made by the others of them, and that were not refused meanwhile."""
        kept: dict[Node, None] = {}
        for node in nodes:
            if all(self.tensor_of(value) is not None or value.producer in kept for value in self.reads(node)):
                if self.evaluator.is_refused(node) or self.evaluator.is_kind_refused(node, self.data):
                    continue
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
                self.evaluator.refuse(value.producer, "its result is not what its type says")
                self.done.pop(value.producer, None)


def _divides_integers(node: Node) -> bool:
    """True if a node may divide integers, by its types as far as they are known."""
    if node.op_type not in ("Div", "Mod") or len(node.operands) != 2:
        return False
    divisor = node.operands[1]
    return divisor is None or divisor.dtype is None or not divisor.dtype.is_float


_HEAVY: Final = frozenset(
    [
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DFT",
        "DeformConv",
        "Det",
        "Einsum",
        "GRU",
        "GridSample",
        "LSTM",
        "MatMulNBits",
        "MaxRoiPool",
        "NonMaxSuppression",
        "QLinearConv",
        "RNN",
        "RoiAlign",
        "STFT",
        "TfIdfVectorizer",
    ]
)


def _root(graph: Graph) -> Graph:
    while graph.parent is not None:
        graph = graph.parent
    return graph


def _reader(user: Node, value: Value) -> Node:
    """The node of the value's own graph that is, or contains, a user."""
    home = value.producer.graph
    while user.graph is not home:
        assert user.graph is not None
        owner = user.graph.owner
        if owner is None:
            return user
        user = owner
    return user


def _identity(node: Node) -> _Key:
    return tuple(None if value is None else (value.producer.serial, value.index) for value in node.operands)


def _kind(node: Node, data: Mapping[Value, Tensor]) -> _Key:
    dtypes = []
    for value in node.operands:
        tensor = None if value is None else data.get(value)
        dtypes.append(tensor.dtype if tensor is not None else None if value is None else value.dtype)
    return (node.domain, node.op_type, node.opset, *dtypes, *(value.dtype for value in node.results), bool(node.bodies))


def _known(value: Value, data: Mapping[Value, Tensor]) -> Tensor:
    tensor = data.get(value) or value.const
    assert tensor is not None
    return tensor


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.numpy()


def _elements(value: Value) -> int:
    return math.prod(dim for dim in value.shape or () if isinstance(dim, int))


def _is_text(tensor: Tensor) -> bool:
    """False for strings that the runtime's Python interface would change."""
    if tensor.dtype is not DType.STRING:
        return True
    try:
        for item in tensor.numpy().reshape(-1):
            bytes(item).decode()
    except UnicodeDecodeError:
        return False
    return True


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
