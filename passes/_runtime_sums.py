"""The sums that ONNX Runtime itself joins with the normalization behind them, to its cost on the CPU.

Where it can tell the shapes of both addends it makes SkipLayerNormalization of an Add that only a LayerNormalization
reads. The CPU provider's kernel of that takes five to ten times as long as the two by themselves, and rounds worse.
"""

from __future__ import annotations

from graphopt import DType, Value
from passes._runtime_embedding import counts_positions


def is_better_hidden(total: Value, target: str) -> bool:
    """True if a sum of two is better a Sum, which the runtime does not look for, where `target` names the target."""
    use = total.sole_use()
    if target != "ort-cpu" or use is None or total.dtype is not DType.FLOAT or total.rank not in (2, 3):
        return False
    user, place = use
    return place == 0 and user.is_op("LayerNormalization") and not any(map(_is_place, total.producer.operands))


def _is_place(value: Value | None) -> bool:
    """True for rows that the runtime takes for those of places, whose sum with words it has a fast kernel for."""
    if value is None or not value.producer.is_op("Gather"):
        return False
    ids = value.producer.operand(1)
    return ids is not None and counts_positions(ids.producer)
