"""Matrix products."""

from __future__ import annotations

from functools import lru_cache

from graphopt.analysis.shapes.common import (
    CACHE,
    Facts,
    broadcast_dim,
    broadcast_shapes,
    dtype_of,
    merge_dims,
    one,
    shape_of,
    transfer,
)
from graphopt.ir import Dim, Node, Shape
from graphopt.ir.symbol import Integer, define, is_nonzero, opaque
from graphopt.tensors import DType


@lru_cache(maxsize=CACHE)
def product_shape(left: Shape | None, right: Shape | None) -> Shape | None:
    """The shape of a matrix product, numpy's way."""
    if not left or not right:
        return None
    if len(left) == 1 and len(right) == 1:
        return ()
    if len(left) == 1:
        return (*right[:-2], right[-1])
    if len(right) == 1:
        return left[:-1]
    if len(left) == len(right) == 2:
        return (left[0], right[1])
    batch = broadcast_shapes(left[:-2], right[:-2])
    if batch is None:
        return None
    if len(left) >= len(right) and batch != left[:-2]:
        inner = left[-1] if isinstance(left[-1], int) else right[-2]
        if inner is None or not is_nonzero(inner):
            batch = tuple(_batch_dim(known, dim, inner) for known, dim in zip(left[:-2], batch, strict=True))
    return (*batch, left[-2], right[-1])


def _batch_dim(left: Dim, found: Dim, inner: Dim) -> Dim:
    if left is None or found is None or inner is None:
        return None
    return batch_dim(left, found, inner)


def batch_dim(left: Integer, found: Integer, inner: Integer) -> Integer:
    """A batch dim of a matrix product: where nothing is summed, the runtime takes the left operand's.

    Args:
        left: The left operand's.
        found: What both broadcast to.
        inner: The size that is summed over.
    """
    if left == found or is_nonzero(inner):
        return found
    if isinstance(inner, int):
        return left
    return opaque("batch_dim", left, found, inner, nonnegative=True)


define("batch_dim", batch_dim)


@transfer("MatMul")
def matmul(node: Node) -> Facts:
    """A matrix product with batch dims broadcast."""
    left, right = node.operands
    return one(dtype_of(left) or dtype_of(right), product_shape(shape_of(left), shape_of(right)))


@transfer("MatMulInteger")
def matmul_integer(node: Node) -> Facts:
    """A matrix product of bytes."""
    return one(DType.INT32, product_shape(shape_of(node.operands[0]), shape_of(node.operands[1])))


@transfer("QLinearMatMul")
def quantized_matmul(node: Node) -> Facts:
    """A matrix product of quantized operands, quantized again."""
    shape = product_shape(shape_of(node.operand(0)), shape_of(node.operand(3)))
    return one(dtype_of(node.operand(7)), shape)


@transfer("Gemm")
def gemm(node: Node) -> Facts:
    """A product of two matrices, each perhaps transposed, plus a matrix."""
    left, right = shape_of(node.operands[0]), shape_of(node.operands[1])
    rows: Dim = None
    columns: Dim = None
    if left is not None and len(left) == 2:
        rows = left[1 if node.param("transA") else 0]
    if right is not None and len(right) == 2:
        columns = right[0 if node.param("transB") else 1]
    return one(dtype_of(node.operands[0]) or dtype_of(node.operands[1]), (rows, columns))


@transfer("Det")
def determinant(node: Node) -> Facts:
    """A number for each square matrix."""
    dims = shape_of(node.operands[0])
    return one(dtype_of(node.operands[0]), None if dims is None else dims[:-2])


@transfer("Einsum")
def einsum(node: Node) -> Facts:
    """Products summed over the letters that the equation leaves out."""
    dtype = next((value.dtype for value in node.operands if value is not None and value.dtype is not None), None)
    equation = node.param("equation")
    if not isinstance(equation, str):
        return one(dtype, None)
    return one(dtype, _einsum_shape(equation.replace(" ", ""), [shape_of(value) for value in node.operands]))


def _einsum_shape(equation: str, shapes: list[Shape | None]) -> Shape | None:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        return None
    sizes: dict[str, Dim] = {}
    ellipsis: Shape | None = ()
    for term, shape in zip(terms, shapes, strict=True):
        before, dots, after = term.partition("...")
        letters = before + after
        if not dots and shape is None:
            for letter in letters:
                sizes.setdefault(letter, None)
            continue
        if shape is None:
            ellipsis = None
            for letter in letters:
                sizes.setdefault(letter, None)
            continue
        extra = len(shape) - len(letters)
        if extra < 0 or (extra and not dots):
            return None
        ellipsis = broadcast_shapes(ellipsis, shape[len(before) : len(before) + extra])
        for letter, dim in zip(letters, shape[: len(before)] + shape[len(before) + extra :], strict=True):
            sizes[letter] = _letter(sizes[letter], dim) if letter in sizes else dim
    if not arrow:
        once = sorted(letter for letter in sizes if left.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    before, dots, after = right.partition("...")
    if dots and ellipsis is None:
        return None
    middle = ellipsis if dots and ellipsis is not None else ()
    return (*(sizes.get(letter) for letter in before), *middle, *(sizes.get(letter) for letter in after))


def _letter(left: Dim, right: Dim) -> Dim:
    """One letter's size; a size of 1 is stretched to another by the runtime."""
    return broadcast_dim(left, right)


__all__ = ["merge_dims", "product_shape"]
