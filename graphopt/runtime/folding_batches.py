"""How constant nodes are grouped for evaluation: how much one session takes, and what belongs in the worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from graphopt.errors import ModelError
from graphopt.ir import Node, OptionalType, SequenceType, TensorType, Value
from graphopt.runtime.arithmetic import divides_safely
from graphopt.tensors import DType, Tensor

_LONG_WORK: Final = 20e9  # multiplications: some seconds on one thread
_STRING_BYTES: Final = 64
_PRODUCTS: Final = frozenset({"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})
_HEAVY: Final = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DFT", "DeformConv", "Det", "Einsum", "GRU", "GridSample",
    "LSTM", "MatMulNBits", "MaxRoiPool", "NonMaxSuppression", "QLinearConv", "RNN", "RoiAlign", "STFT",
    "TfIdfVectorizer",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What evaluation may take.

    Attributes:
        batch_nodes: Nodes of one session. The runtime takes time quadratic in the inputs and outputs of a model.
        batch_bytes: Bytes that the nodes of one session read and make, if they are several.
        node_bytes: Bytes that a single node may read and make.
        worker_bytes: Memory of the worker, beside what it is fed.
        call_seconds: Time for one call of the worker.
        total_seconds: Time for all of them together; then nodes that need the worker stay.
    """

    batch_nodes: int = 400
    batch_bytes: int = 256 << 20
    node_bytes: int = 2 << 30
    worker_bytes: int = 2 << 30
    call_seconds: float = 10.0
    total_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Nodes that one session computes.

    Attributes:
        nodes: The nodes in topological order.
        in_worker: Whether the session belongs in the worker.
    """

    nodes: list[Node]
    in_worker: bool


class Batcher:
    """Groups nodes.

    Args:
        limits: What a session may take.
        tensor_of: The data of a value, None where it is not known yet.
        reads: What a node reads: operands and captured values.
        refuse: Told of each node that cannot be computed, and why.
    """

    def __init__(
        self,
        limits: Limits,
        tensor_of: Callable[[Value], Tensor | None],
        reads: Callable[[Node], list[Value]],
        refuse: Callable[[Node, str], None],
    ) -> None:
        self._limits = limits
        self._tensor_of = tensor_of
        self._reads = reads
        self._refuse = refuse

    def batches(self, nodes: Sequence[Node]) -> list[Batch]:
        """Nodes in topological order as batches in the order in which they can run."""
        stages: dict[Node, int] = {}
        lots: dict[int, list[Node]] = {}
        for node in nodes:
            reads = self._reads(node)
            if not all(value.producer in stages or self._tensor_of(value) is not None for value in reads):
                continue  # what it reads was refused just now
            reason = self._obstacle(node, reads)
            if reason:
                self._refuse(node, reason)
                continue
            # Even stages run here, odd ones in the worker: as few changes as the dependencies allow.
            parity = int(self._needs_worker(node))
            stage = max((stages[value.producer] for value in reads if value.producer in stages), default=parity)
            stage += (stage + parity) % 2
            stages[node] = stage
            lots.setdefault(stage, []).append(node)
        return [Batch(chunk, bool(stage % 2)) for stage in sorted(lots) for chunk in self._chunks(lots[stage])]

    def _obstacle(self, node: Node, reads: list[Value]) -> str:
        """Why a node cannot be computed at all, empty if nothing is known against it."""
        known = [tensor for value in reads if (tensor := self._tensor_of(value)) is not None]
        if not all(map(_is_text, known)):
            return "it reads strings that are not UTF-8"
        if sum(self._bytes_of(value) or 0 for value in (*reads, *node.results)) > self._limits.node_bytes:
            return "it is too large to evaluate"
        if _divides_integers(node) and len(known) == 2 and not self._division_is_safe(node):
            return "it divides by zero, or the least integer by -1"
        return ""

    def _chunks(self, nodes: list[Node]) -> Iterator[list[Node]]:
        batch: list[Node] = []
        size = 0
        seen: dict[Value, None] = {}
        for node in nodes:
            new = [value for value in (*self._reads(node), *node.results) if value not in seen]
            own = sum(self._bytes_of(value) or 0 for value in new)
            is_full = len(batch) >= self._limits.batch_nodes or size + own > self._limits.batch_bytes
            # A node with bodies stands alone: whatever it takes, the others are not lost with it.
            if batch and (is_full or node.bodies or batch[0].bodies):
                yield batch
                batch, size, seen = [], 0, {}
            batch.append(node)
            size += own
            seen.update(dict.fromkeys(new))
        if batch:
            yield batch

    # --- what needs the worker

    def _needs_worker(self, node: Node) -> bool:
        """True where nobody knows how long a node takes, how much it makes, or whether it ends the process."""
        if node.bodies or any(self._is_unbounded(value) for value in node.results):
            return True
        return (_divides_integers(node) and not self._division_is_safe(node)) or self._work_of(node) > _LONG_WORK

    def _is_unbounded(self, value: Value) -> bool:
        if isinstance(value.type, (SequenceType, OptionalType)) or (value.name == "" and not value.uses):
            return False  # it holds what its node reads, or is left out
        return self._bytes_of(value) is None

    def _division_is_safe(self, node: Node) -> bool:
        """True if nothing an integer division meets can end the process."""
        dividend, divisor = (None if value is None else self._tensor_of(value) for value in node.operands)
        return divisor is not None and divides_safely(None if dividend is None else dividend.numpy(), divisor.numpy())

    def _work_of(self, node: Node) -> float:
        """A rough upper bound of the multiplications a node makes; 0 for operators that take linear time."""
        made = sum(map(_elements, node.results))
        first = node.operand(0)
        if node.op_type in _PRODUCTS and first is not None:
            return float(made * max((dim for dim in first.shape or () if isinstance(dim, int)), default=1))
        if node.op_type in _HEAVY:
            return float(made * max(map(_elements, self._reads(node)), default=1))
        return 0.0

    def _bytes_of(self, value: Value) -> int | None:
        """Bytes of a value, None where its type does not tell."""
        tensor = self._tensor_of(value)
        if tensor is not None:
            return tensor.nbytes
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            return None
        return (_elements(value) * (value.type.dtype.bits or 8 * _STRING_BYTES) + 7) // 8


def _divides_integers(node: Node) -> bool:
    """True if a node may divide integers, by its types as far as they are known."""
    if node.op_type not in ("Div", "Mod") or len(node.operands) != 2:
        return False
    divisor = node.operands[1]
    return divisor is None or divisor.dtype is None or not divisor.dtype.is_float


def _elements(value: Value) -> int:
    return math.prod(dim for dim in value.shape or () if isinstance(dim, int))


def _is_text(tensor: Tensor) -> bool:
    """False for strings that the runtime's Python interface would change."""
    if tensor.dtype is not DType.STRING:
        return True
    try:
        for item in tensor.numpy().reshape(-1):
            bytes(item).decode()
    except (UnicodeDecodeError, ModelError):
        return False
    return True
