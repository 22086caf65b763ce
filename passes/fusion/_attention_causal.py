"""Masks that let each query see the keys up to its own position, and nothing but that."""

from __future__ import annotations

from graphopt import Value
from passes.fusion._attention_core import AttentionCore
from passes.fusion._attention_layout import is_same
from passes.fusion._grouped_causal import hidden_by


def is_unidirectional(core: AttentionCore, past: Value | None) -> bool:
    """True if the masks hide later positions, and all of them, and nothing else.

    Args:
        core: The attention.
        past: The cache that the operator puts before the keys, None for none; keys put together otherwise are none.
    """
    rows, before = core.query.rows, 0 if past is None else (past.shape or (None,) * 3)[2]
    # The operator counts queries from the end of the cache: there must be as many as there are new keys.
    if not core.masks or rows is None or before is None or not is_same(rows + before, core.key.rows):
        return False
    found = hidden_by(core)
    return found.future and not found.more
