"""Scatters that write every element: what is written is all that is left."""

from __future__ import annotations

import numpy as np

from graphopt import Builder, Match, Miss, Value, op, rule, var
from passes._index_grids import grid_of
from passes._proofs import same_dim, same_type

x, y, z = var("x"), var("y"), var("z")


@rule(
    op.ScatterND(x, y, z),
    before="""(float[2,3] x, float[2,3] u) => (float[2,3] y) <int64[2,1] i = {0,1}>
              { t = ScatterND(x, i, u)  y = Relu(t) }""",
    after="(float[2,3] x, float[2,3] u) => (float[2,3] y) { y = Relu(u) }",
    unless=[
        """(float[2,3] x, float[2,3] u) => (float[2,3] y) <int64[2,1] i = {1,0}>
           { t = ScatterND(x, i, u)  y = Relu(t) }""",
        """(float[3,3] x, float[2,3] u) => (float[3,3] y) <int64[2,1] i = {0,1}>
           { t = ScatterND(x, i, u)  y = Relu(t) }""",
        """(float[2,3] x, float[2,3] u) => (float[2,3] y) <int64[2,1] i = {0,1}>
           { t = ScatterND<reduction = "add">(x, i, u)  y = Relu(t) }""",
        """(float[2,3] x, float[2,3] u, int64[2,1] i) => (float[2,3] y)
           { t = ScatterND(x, i, u)  y = Relu(t) }""",
        """(float[N] x, float[N] u) => (float[N] y) <int64[2,1] i = {0,1}>
           { t = ScatterND(x, i, u)  y = Relu(t) }""",
    ],
)
def scatter_everything(m: Match, b: Builder) -> Value | Miss:
    """A ScatterND of rows in order, from the first to the last, gives these rows."""
    updates: Value = m[z]
    if m.root.param("reduction") not in (None, "none") or not same_type(updates, m[x]):
        return b.no("something of what was there is left")
    return updates if _counts(m[y], m[x]) else b.no("the rows may be others, or in another order")


def _counts(indices: Value, data: Value) -> bool:
    """True if the index at each place is that place."""
    if data.shape is None or indices.shape is None or not isinstance(indices.shape[-1], int):
        return False
    depth = indices.shape[-1]
    if depth != len(indices.shape) - 1 or depth > len(data.shape):
        return False
    if not all(map(same_dim, indices.shape[:-1], data.shape)):
        return False
    if indices.const is not None and depth > 1:
        places = np.moveaxis(np.indices(indices.const.shape[:-1]), 0, -1)
        return bool(np.array_equal(indices.const.numpy(), places))
    grid = grid_of(indices) if depth == 1 else None
    return grid is not None and grid.start == 0 and (grid.steps[0] == 1 or indices.shape[0] == 1)
