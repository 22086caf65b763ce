"""Few nodes that compute given integers: a plan is made of pieces first, so that its cost is known before any edit."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import DType, Expr, Value, symbol
from passes._shape_sources import FIRST, Sources

Elements = tuple["int | Expr | None", ...]
_TRIED = 32
"""How many vectors that hold an expression are looked through."""


class Piece:
    """One node to be, or a value that is there, or a constant."""

    __slots__ = ("attributes", "elements", "is_scalar", "op_type", "operands", "place", "value")

    def __init__(
        self,
        op_type: str,
        operands: tuple[Piece, ...],
        elements: Elements,
        is_scalar: bool,
        attributes: tuple[tuple[str, int], ...] = (),
        place: int | None = None,
        value: Value | None = None,
    ) -> None:
        self.op_type, self.operands, self.attributes = op_type, operands, attributes
        self.elements, self.is_scalar = elements, is_scalar
        self.place: int = max((piece.place for piece in operands), default=FIRST) if place is None else place
        self.value = value


class Plan:
    """Pieces by what they hold. What is asked for is found among them, or pieces are added for it.

    Attributes:
        nodes: The pieces that would be new nodes, in the order in which they were thought of.
    """

    def __init__(self, sources: Sources, opset: int) -> None:
        """Start with nothing.

        Args:
            sources: Where dims can be read.
            opset: The opset, from 15 on of which `Shape` has bounds.
        """
        self.nodes: list[Piece] = []
        self._sources = sources
        self._opset = opset
        self._known: dict[tuple[bool, Elements], list[Piece]] = {}
        self._holding: dict[Expr, list[Piece]] = {}
        self._shapes: dict[tuple[Value, int, int], Piece] = {}
        self._casts: dict[tuple[Piece, DType], Piece] = {}

    # --- pieces

    def offer(self, value: Value, elements: Elements, place: int) -> None:
        """Make use of an int64 value that stays in any case."""
        self._enter(Piece("", (), elements, value.shape == (), place=place, value=value))

    def cost_of(self, elements: Elements, is_scalar: bool, dtype: DType, before: int) -> int | None:
        """How many nodes it takes; None if it cannot be done. The plan stays as it is."""
        mark = len(self.nodes)
        found = self.get(elements, is_scalar, dtype, before)
        cost = len(self.nodes) - mark
        self._forget(mark)
        return None if found is None else cost

    def get(self, elements: Elements, is_scalar: bool, dtype: DType, before: int) -> Piece | None:
        """A piece that holds these integers and is there before a place, None if there is no way to compute it."""
        mark = len(self.nodes)
        found = self._scalar(elements[0], before) if is_scalar else self._vector(elements, before)
        if found is not None and dtype is not DType.INT64 and found.op_type != "Constant":
            key = (found, dtype)
            if key not in self._casts:
                cast = Piece("Cast", (found,), elements, is_scalar, (("to", int(dtype)),))
                self._casts[key] = cast
                self.nodes.append(cast)
            found = self._casts[key]
        if found is None:
            self._forget(mark)
        return found

    def _enter(self, piece: Piece) -> None:
        self._known.setdefault((piece.is_scalar, piece.elements), []).append(piece)
        if not piece.is_scalar:
            for item in dict.fromkeys(piece.elements):
                if isinstance(item, Expr):
                    self._holding.setdefault(item, []).append(piece)

    def _add(
        self,
        op_type: str,
        operands: tuple[Piece, ...],
        elements: Elements,
        is_scalar: bool,
        attributes: tuple[tuple[str, int], ...] = (),
    ) -> Piece:
        piece = Piece(op_type, operands, elements, is_scalar, attributes)
        self.nodes.append(piece)
        self._enter(piece)
        return piece

    def _forget(self, mark: int) -> None:
        while len(self.nodes) > mark:
            piece = self.nodes.pop()
            if piece.op_type == "Cast":
                del self._casts[piece.operands[0], DType(piece.attributes[0][1])]
                continue
            self._known[piece.is_scalar, piece.elements].remove(piece)
            if not piece.is_scalar:
                for item in dict.fromkeys(piece.elements):
                    if isinstance(item, Expr):
                        self._holding[item].remove(piece)
            if piece.op_type == "Shape":
                bounds = dict(piece.attributes)
                source = piece.operands[0].value
                assert source is not None
                del self._shapes[source, bounds["start"], bounds["end"]]

    def _ready(self, elements: Elements, is_scalar: bool, before: int) -> Piece | None:
        return next((piece for piece in self._known.get((is_scalar, elements), ()) if piece.place < before), None)

    def _holders(self, item: int | Expr | None, before: int) -> Iterator[Piece]:
        if isinstance(item, Expr):
            yield from (piece for piece in self._holding.get(item, ())[:_TRIED] if piece.place < before)

    # --- vectors

    def _vector(self, elements: Elements, before: int) -> Piece | None:
        if all(isinstance(item, int) for item in elements):
            return Piece("Constant", (), elements, False)
        return (
            self._ready(elements, False, before)
            or self._shape(elements, before)
            or self._picked(elements, before)
            or (self._computed(elements[0], False, before) if len(elements) == 1 else self._joined(elements, before))
        )

    def _shape(self, elements: Elements, before: int) -> Piece | None:
        """Neighbouring dims of one tensor."""
        whole = self._sources.whole(elements, before)
        if whole is not None:
            return self._shape_of(*whole, 0, len(elements))
        run = self._run(elements, before)
        if run is None:
            return None
        value, place, start = run
        shape = value.shape
        assert shape is not None
        if self._opset >= 15:
            return self._shape_of(value, place, start, start + len(elements))
        found = self._picked(elements, before)
        if found is None:
            self._shape_of(value, place, 0, len(shape))
            found = self._picked(elements, before)
        return found

    def _run(self, elements: Elements, before: int) -> tuple[Value, int, int] | None:
        first = next(index for index, item in enumerate(elements) if isinstance(item, Expr))
        lead = elements[first]
        assert isinstance(lead, Expr)
        best: tuple[Value, int, int] | None = None
        for value, place in self._sources.holders(lead, before):
            shape = value.shape
            assert shape is not None
            if best is not None and place >= best[1]:
                continue
            for axis, dim in enumerate(shape):
                start = axis - first
                if dim is lead and start >= 0 and shape[start : start + len(elements)] == elements:
                    best = value, place, start
                    break
        return best

    def _shape_of(self, value: Value, place: int, start: int, end: int) -> Piece:
        key = (value, start, end)
        found = self._shapes.get(key)
        if found is None:
            shape = value.shape
            assert shape is not None
            source = Piece("", (), (), False, place=place, value=value)
            found = self._add("Shape", (source,), shape[start:end], False, (("start", start), ("end", end)))
            self._shapes[key] = found
        return found

    def _picked(self, elements: Elements, before: int) -> Piece | None:
        """Elements of a vector that is there."""
        lead = next(item for item in elements if isinstance(item, Expr))
        for piece in self._holders(lead, before):
            places = _places(piece.elements, elements)
            if places is not None:
                index = Piece("Constant", (), places, False)
                return self._add("Gather", (piece, index), elements, False)
        return None

    def _joined(self, elements: Elements, before: int) -> Piece | None:
        """Segments one after another."""
        parts: list[Piece] = []
        index = 0
        while index < len(elements):
            end = index + 1
            if isinstance(elements[index], int):
                while end < len(elements) and isinstance(elements[end], int):
                    end += 1
                parts.append(Piece("Constant", (), elements[index:end], False))
                index = end
                continue
            part, end = self._longest(elements, index, before)
            if part is None:
                return None
            parts.append(part)
            index = end
        return self._add("Concat", tuple(parts), elements, False)

    def _longest(self, elements: Elements, start: int, before: int) -> tuple[Piece | None, int]:
        """The longest segment from a place on that is there or takes one node."""
        ends = range(len(elements) if start else len(elements) - 1, start, -1)
        for end in ends:
            found = self._ready(elements[start:end], False, before)
            if found is not None:
                return found, end
        for end in ends:
            found = self._shape(elements[start:end], before) or self._picked(elements[start:end], before)
            if found is not None:
                return found, end
        return self._vector(elements[start : start + 1], before), start + 1

    # --- scalars

    def _scalar(self, item: int | Expr | None, before: int) -> Piece | None:
        if isinstance(item, int):
            return Piece("Constant", (), (item,), True)
        found = self._ready((item,), True, before)
        if found is not None:
            return found
        if item is None:
            return None
        for piece in self._holders(item, before):
            return self._taken(piece, item)
        run = self._run((item,), before)
        if run is not None:
            value, place, _ = run
            assert value.shape is not None
            return self._taken(self._shape_of(value, place, 0, len(value.shape)), item)
        return self._computed(item, True, before)

    def _taken(self, piece: Piece, item: Expr) -> Piece:
        index = Piece("Constant", (), (piece.elements.index(item),), True)
        return self._add("Gather", (piece, index), (item,), True)

    # --- arithmetic

    def _single(self, item: int | Expr | None, is_scalar: bool, before: int) -> Piece | None:
        return self._scalar(item, before) if is_scalar else self._vector((item,), before)

    def _computed(self, item: int | Expr | None, is_scalar: bool, before: int) -> Piece | None:
        if isinstance(item, symbol.Application):
            return self._applied(item, is_scalar, before)
        if not isinstance(item, Expr) or isinstance(item, symbol.Atom):
            return None
        terms = sorted(item.terms.items(), key=lambda term: (not term[0], term[1] < 0, str(term[0])))
        if len(terms) == 1:
            return self._product(item, is_scalar, before)
        monomial, factor = terms[0]
        if factor < 0 or not monomial:
            return None
        whole: int | Expr = _term(monomial, factor)
        total = self._single(whole, is_scalar, before)
        for monomial, factor in terms[1:]:
            is_less = factor < 0 and bool(monomial)
            term = _term(monomial, -factor if is_less else factor)
            part = self._single(term, is_scalar, before)
            if total is None or part is None:
                return None
            whole = whole - term if is_less else whole + term
            total = self._add("Sub" if is_less else "Add", (total, part), (whole,), is_scalar)
        return total

    def _product(self, item: Expr, is_scalar: bool, before: int) -> Piece | None:
        ((monomial, factor),) = item.terms.items()
        rest: int | Expr = _term(monomial, 1)
        right: int | Expr = factor
        if factor == 1:
            rest, right = _term(monomial[:-1], 1), monomial[-1]
        first = self._single(rest, is_scalar, before)
        second = self._single(right, is_scalar, before)
        if first is None or second is None:
            return None
        return self._add("Mul", (first, second), (item,), is_scalar)

    def _applied(self, item: symbol.Application, is_scalar: bool, before: int) -> Piece | None:
        if item.name != "floordiv":
            return None
        dividend, divisor = item.args
        if not isinstance(divisor, int) or divisor <= 0 or not isinstance(dividend, Expr):
            return None
        if not symbol.is_nonnegative(dividend):
            return None  # Div rounds towards 0
        first, second = self._single(dividend, is_scalar, before), self._single(divisor, is_scalar, before)
        if first is None or second is None:
            return None
        return self._add("Div", (first, second), (item,), is_scalar)


def _term(monomial: tuple[symbol.Atom, ...], factor: int) -> int | Expr:
    result: int | Expr = factor
    for atom in monomial:
        result = result * atom
    return result


def _places(held: Elements, wanted: Elements) -> tuple[int, ...] | None:
    """Where each wanted element stands, None if one is not there."""
    first: dict[int | Expr | None, int] = {}
    for place, item in enumerate(held):
        first.setdefault(item, place)
    try:
        return tuple(first[item] for item in wanted)
    except KeyError:
        return None
