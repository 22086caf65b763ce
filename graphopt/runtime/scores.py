"""Where a decoder's next token is read off, and when another token is as good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.runtime.session import Port
from graphopt.runtime.values import Data

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """Where the next token is read off.

    Attributes:
        output: The output [batch, tokens, vocabulary] or [batch, vocabulary].
        vocabulary: How many of its last dim are tokens: rows of the embedding table, where those are known.
    """

    output: str
    vocabulary: int


def find_scores(outputs: Sequence[Port], caches: set[str], rows: int) -> Scores | None:
    """The output with a score for every token: by its rank and by the number of rows of the embedding table.

    Args:
        outputs: Outputs of the model.
        caches: Outputs that are caches.
        rows: Rows of the table that the ids index, 0 where that is not known.
    """
    floats = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")
    fit = [port for port in outputs if port.name not in caches and port.type in floats and len(port.shape) in (2, 3)]
    for port in fit:
        last = port.shape[-1]
        if isinstance(last, int) and last == rows > 1:
            return Scores(port.name, rows)
    for port in fit:  # a head may have more columns than the table has rows, so that kernels like its size
        last = port.shape[-1]
        if "logit" in port.name.lower() and isinstance(last, int) and last > 1:
            return Scores(port.name, min(last, rows) if rows else last)
    return None


def next_tokens(outputs: Mapping[str, Data], scores: Scores) -> Array | None:
    """The best token of each sequence after the last position; None where there are no scores."""
    last = last_scores(outputs, scores)
    return None if last is None or not last.size else np.argmax(last, axis=-1)


def last_scores(outputs: Mapping[str, Data], scores: Scores) -> Array | None:
    """Scores after the last position, [batch, vocabulary], float64."""
    value = outputs.get(scores.output)
    if not isinstance(value, np.ndarray) or value.ndim not in (2, 3) or not value.size:
        return None
    last = value if value.ndim == 2 else value[:, -1]
    return last[:, : scores.vocabulary].astype(np.float64)


def token_fault(reference: Array, got: Array, allowed: float) -> tuple[int, str]:
    """(sequences that would go on differently at a tie, what is wrong) of scores after one position.

    Args:
        reference: The original's scores, [batch, vocabulary].
        got: The rewritten model's.
        allowed: How close the original's two scores must be for either token to be right, absolute.
    """
    ties = 0
    for row, (one, other) in enumerate(zip(reference, got, strict=True)):
        chosen, instead = int(np.argmax(one)), int(np.argmax(other))
        if chosen == instead or (np.isnan(one[chosen]) and np.isnan(one[instead])):
            continue
        gap = float(one[chosen] - one[instead])
        if not gap <= allowed:
            where = f" of sequence {row}" if len(reference) > 1 else ""
            return ties, (
                f"token {instead} in place of {chosen}{where}, whose scores are {gap:.3g} apart; "
                f"up to {allowed:.2g} would be a tie"
            )
        ties += 1
    return ties, ""
