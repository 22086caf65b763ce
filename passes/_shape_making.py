"""Nodes made of the pieces of a plan."""

from __future__ import annotations

from graphopt import Builder, DType, Value
from passes._shape_plan import Piece
from passes._shape_region import ShapeRegion


class Maker:
    """Makes nodes of pieces, or takes those that are there."""

    def __init__(self, builder: Builder, region: ShapeRegion) -> None:
        self._builder = builder
        self._made: dict[tuple[Piece, DType], Value] = {}
        self._constants: dict[tuple[object, ...], Value] = {}
        self._inside = dict.fromkeys(region.nodes)

    def make(self, piece: Piece, dtype: DType = DType.INT64) -> Value:
        if piece.value is not None:
            return piece.value
        if piece.op_type == "Constant":
            return self._constant(piece, dtype)
        key = (piece, DType.INT64)
        if key not in self._made:
            operands = [self.make(operand) for operand in piece.operands]
            self._made[key] = self._existing(piece, operands) or self._new(piece, operands)
        return self._made[key]

    def _constant(self, piece: Piece, dtype: DType) -> Value:
        key = (dtype, piece.is_scalar, piece.elements)
        if key not in self._constants:
            numbers = [item for item in piece.elements if isinstance(item, int)]
            self._constants[key] = self._builder.constant(numbers[0] if piece.is_scalar else numbers, dtype)
        return self._constants[key]

    def _new(self, piece: Piece, operands: list[Value]) -> Value:
        attributes = dict(piece.attributes)
        if piece.op_type == "Shape":
            rank = operands[0].rank
            start, end = attributes["start"], attributes["end"]
            attributes = {"start": start} if start else {}
            if end != rank:
                attributes["end"] = end
        if piece.op_type == "Concat":
            attributes = {"axis": 0}
        value: Value = self._builder.apply(piece.op_type, operands, parameters=attributes)
        assert value.elements == piece.elements, (piece.op_type, piece.elements, value.elements)
        return value

    def _existing(self, piece: Piece, operands: list[Value]) -> Value | None:
        """A node that does just that."""
        readable = next((value for value in operands if value.const is None), None)
        for user, _ in () if readable is None else readable.uses:
            if user in self._inside and user.op_type == piece.op_type and len(user.operands) == len(operands):
                value = user.results[0]
                if value.elements == piece.elements and (value.rank == 0) is piece.is_scalar:
                    pairs = zip(user.operands, operands, strict=True)
                    if all(
                        old is new or (old is not None and old.const is not None and new.const is not None)
                        for old, new in pairs
                    ):
                        return value
        return None


def _is_alike(old: Value | None, new: Value) -> bool:
    """True for one value and for two constants, which a comparison of the results has found to do the same."""
    return old is new or (old is not None and old.const is not None and new.const is not None)
