"""Products of views of tensors are views of the tensors' products, where no matrix of them changes."""

from __future__ import annotations

from graphopt import Builder, Match, Miss, Value, op, rule, var
from passes._proofs import Dim, same_dim, same_shape
from passes._view_shapes import VIEWS, View, is_view, target_of

x, y = var("x"), var("y")

_LEFT, _RIGHT = op.one_of(*VIEWS)(x, ...), op.one_of(*VIEWS)(y, ...)


@rule(
    op.MatMul(_LEFT, _RIGHT),
    before="""(float[2,3,4] x, float[2,4,5] z) => (float[1,2,3,5] y) <int64[1] a = {0}>
              { s = Unsqueeze(x, a)  t = Unsqueeze(z, a)  p = MatMul(s, t)  y = Relu(p) }""",
    after="""(float[2,3,4] x, float[2,4,5] z) => (float[1,2,3,5] y) <int64[4] s = {1,2,3,5}>
             { p = MatMul(x, z)  t = Reshape(p, s)  y = Relu(t) }""",
    unless=[
        # One of the views is needed anyway.
        """(float[2,3,4] x, float[2,4,5] z) => (float[1,2,3,5] y, float[1,2,3,4] s) <int64[1] a = {0}>
           { s = Unsqueeze(x, a)  t = Unsqueeze(z, a)  y = MatMul(s, t) }""",
        # Other matrices.
        """(float[2,3,4] x, float[2,4,5] z) => (float[6,10] y) <int64[2] a = {6,4}, int64[2] c = {4,10}>
           { s = Reshape(x, a)  t = Reshape(z, c)  y = MatMul(s, t) }""",
        # Each matrix meets every other one, or its own.
        """(float[2,3,4] x, float[2,4,5] z) => (float[2,2,3,5] y) <int64[1] a = {0}, int64[1] c = {1}>
           { s = Unsqueeze(x, a)  t = Unsqueeze(z, c)  y = MatMul(s, t) }""",
        """(float[2,2,3,4] x, float[2,1,4,5] z) => (float[4,3,5] y) <int64[3] a = {4,3,4}, int64[3] c = {2,4,5}>
           { s = Reshape(x, a)  t = Reshape(z, c)  p = MatMul(s, t) y = Relu(p) }""",
    ],
)
def product_of_views(m: Match, b: Builder) -> Value | Miss:
    """Two tensors whose leading axes are merged, split or added alike are multiplied as they are."""
    if not is_view(m.node(_LEFT)) or not is_view(m.node(_RIGHT)):
        return b.no("an operator is no view")
    left, right, result = m[x].shape, m[y].shape, m.root.result.shape
    if left is None or right is None or result is None:
        return b.no("a shape is unknown")
    if not (_keeps_matrices(m[x], m[_LEFT]) and _keeps_matrices(m[y], m[_RIGHT])):
        return b.no("other matrices are multiplied")
    if not (_same(left[:-2], right[:-2]) and _same(m[_LEFT].shape[:-2], m[_RIGHT].shape[:-2])):
        return b.no("a matrix may meet several others")
    product: Value = b.MatMul(m[x], m[y])
    if same_shape(product, m.root.result):
        return product
    target = None if product.shape is None else target_of(product.shape, result)
    return b.no("no single view gives that shape") if target is None else View("Reshape", target).build(b, product)


def _keeps_matrices(source: Value, view: Value) -> bool:
    before, after = source.shape, view.shape
    return (
        before is not None and after is not None and min(len(before), len(after)) > 2 and _same(before[-2:], after[-2:])
    )


def _same(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    return len(left) == len(right) and all(map(same_dim, left, right))
