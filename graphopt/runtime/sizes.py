"""Which numbers the symbolic dims of a model's inputs may take: relations between names, and tries in a good order."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# A dim of an input: a number, the key of a free size, or an expression over keys.
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod)
_POOL = (1, 2, 3, 4, 8, 16, 32, 64, 128, 224, 256, 512)
_SPATIAL = (32, 64, 224, 128, 96, 256, 16, 8, 512)
# Elements of all inputs that are worth the time of a run; sizes are chosen below that where they can be.
_PLENTY = 1 << 22
_RANKS = (2, 1, 3, 4, 0, 5)


@dataclass(slots=True)
class InputShape:
    """The declared shape of one input.

    Attributes:
        name: The input.
        dims: Numbers, names and None; None in place of the tuple where not even the rank is known.
        floating: Its elements are floats, so trailing dims may be spatial.
    """

    name: str
    dims: tuple[int | str | None, ...] | None
    floating: bool = True


@dataclass(slots=True)
class SizeSpace:
    """All assignments of numbers to the free sizes of a model.

    Attributes:
        inputs: Declared shapes.
        given: Numbers the user chose for names of dims.
        shapes: Whole shapes the user chose for inputs.
        hints: A first number for some keys, from the model's structure.
        typical: Try sizes first that models are used at (batch 1, 128 tokens, 224 pixels) instead of quick ones.
    """

    inputs: Sequence[InputShape]
    given: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    typical: bool = False
    keys: list[str] = field(default_factory=list)
    _derived: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[str, None] = {}
        for item in self.inputs:
            if item.name in self.shapes:
                continue
            if item.dims is None:
                found[f"{item.name}#rank"] = None
                continue
            for axis, dim in enumerate(item.dims):
                if isinstance(dim, int) and dim > 0:  # old exporters write 0 for a dim that they do not know
                    continue
                key = dim if isinstance(dim, str) and dim else f"{item.name}#{axis}"
                tree = _expression(key)
                if tree is None or key in self.given:
                    found[key] = None
                    continue
                self._derived[key] = tree
                for part in _names_of(tree):
                    found[part] = None
        self.keys = [key for key in found if key not in self.given]

    def shape(self, item: InputShape, assignment: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an input under an assignment."""
        if item.name in self.shapes:
            return self.shapes[item.name]
        if item.dims is None:
            return (assignment.get(f"{item.name}#any", 3),) * assignment.get(f"{item.name}#rank", 2)
        return tuple(self._size(item, axis, dim, assignment) for axis, dim in enumerate(item.dims))

    def _size(self, item: InputShape, axis: int, dim: int | str | None, assignment: Mapping[str, int]) -> int:
        if isinstance(dim, int) and dim > 0:
            return dim
        key = dim if isinstance(dim, str) and dim else f"{item.name}#{axis}"
        if key in self.given:
            return self.given[key]
        if key in self._derived:
            return max(0, _evaluate(self._derived[key], {**assignment, **self.given}))
        return assignment[key]

    def elements(self, assignment: Mapping[str, int]) -> int:
        """Elements of all inputs together."""
        return sum(math.prod(self.shape(item, assignment)) for item in self.inputs)

    def default(self) -> dict[str, int]:
        """The first assignment: small numbers, different for different names, so that a mix-up shows."""
        chosen: dict[str, int] = {}
        spare = itertools.cycle((5, 7, 6))
        for key in self.keys:
            role = self._role(key)
            if key in self.hints:
                chosen[key] = self.hints[key]
            elif role == "rank" or role == "batch":
                chosen[key] = 2
            elif role == "spatial":
                chosen[key] = 32
            elif role == "length":
                chosen[key] = 8
            elif role == "past":
                chosen[key] = 4
            else:
                chosen[key] = next(spare)
        chosen.update(self._sums_by_name(chosen))
        for size in (2, 1):
            if self.elements(chosen) <= _PLENTY:
                break
            chosen = {key: value if key.endswith("#rank") else min(value, size) for key, value in chosen.items()}
        return chosen

    def _usual(self) -> dict[str, int]:
        usual = {"batch": 1, "spatial": 224, "length": 128, "past": 128}
        chosen = {key: usual.get(self._role(key), value) for key, value in self.default().items()}
        chosen.update(self._sums_by_name(chosen))
        return chosen

    def assignments(self) -> Iterator[dict[str, int]]:
        """Assignments to try, best first, none twice."""
        seen: set[tuple[tuple[str, int], ...]] = set()
        for candidate in self._candidates():
            mark = tuple(sorted(candidate.items()))
            if mark not in seen:
                seen.add(mark)
                yield candidate

    def _candidates(self) -> Iterator[dict[str, int]]:
        if self.typical:
            yield self._usual()
        base = self.default()
        yield base
        if not self.keys:
            return
        ranks = [key for key in self.keys if key.endswith("#rank")]
        free = [key for key in self.keys if not key.endswith("#rank")]
        spatial = [key for key in free if self._role(key) == "spatial"]
        batch = [key for key in free if self._role(key) == "batch"]
        others = [key for key in free if key not in batch]
        ones = {**base, **dict.fromkeys(free, 1)}
        yield {**base, **dict.fromkeys(others, 8)}
        yield ones
        yield {**base, **dict.fromkeys(free, 2)}
        for size in _SPATIAL if spatial else ():
            yield {**base, **dict.fromkeys(spatial, size)}
            yield {**ones, **dict.fromkeys(spatial, size)}
        yield from self._sums(base)
        for size in (4, 3, 8, 16, 32, 64, 128, 224, 256, 512):
            yield {**base, **dict.fromkeys(free, size)}
            yield {**base, **dict.fromkeys(batch, 1), **dict.fromkeys(others, size)}
        for rank in ranks:
            for number in _RANKS:
                yield {**base, rank: number}
        if len(ranks) > 1:
            for number in _RANKS:
                yield {**base, **dict.fromkeys(ranks, number)}
        for start in (base, ones):
            for key in free:
                for size in _POOL:
                    yield {**start, key: size}
        for left, right in itertools.combinations(free[:6], 2):
            for first, second in itertools.product((1, 2, 4, 16, 64), repeat=2):
                yield {**base, left: first, right: second}

    def larger(self, base: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Larger sizes than those of a base that runs, but tells nothing."""
        free = [key for key in self.keys if not key.endswith("#rank") and self._role(key) != "batch"]
        if not free:
            return
        for size in (16, 64, 256, 1024, 4096, 16384):
            for chosen in (free, *([key] for key in free[:3] if len(free) > 1)):
                candidate = {**base, **dict.fromkeys(chosen, size)}
                candidate.update(self._sums_by_name(candidate))
                if self.elements(candidate) <= _PLENTY:
                    yield candidate

    def others(self, base: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
        """Other sizes than those of a base that works: (what it is, assignment)."""
        limit = max(_PLENTY, self.elements(base))
        for label, assignment in self._others(base):
            if self.elements(assignment) <= limit or label == "other sizes last":
                yield label.removesuffix(" last"), assignment

    def _others(self, base: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
        free = [key for key in self.keys if not key.endswith("#rank")]
        if not free:
            return
        batch = [key for key in free if self._role(key) == "batch"] or free[:1]
        rest = [key for key in free if key not in batch]
        spread = {key: base[key] * 2 if self._role(key) == "spatial" else base[key] + 3 for key in rest}
        bigger = {**base, **{key: base[key] + 1 for key in batch}, **spread}
        bigger.update(self._sums_by_name(bigger))
        yield "other sizes", bigger
        yield "other sizes", {**base, **{key: base[key] + 1 for key in batch}}
        yield "other sizes", {**base, **{key: base[key] * 2 for key in free}}
        yield "other sizes", {**base, **spread}
        yield "other sizes last", {**base, batch[0]: base[batch[0]] + 1}
        ones = {**base, **dict.fromkeys(free, 1)}
        yield "sizes 1", ones
        yield "sizes 1", {**ones, **self._sums_by_name(ones)}
        yield "sizes 1", {**base, **dict.fromkeys(batch, 1)}
        for chosen in (batch, *([key] for key in [*batch, *rest][:3])):
            empty = {**base, **dict.fromkeys(chosen, 0)}
            yield "size 0", {**empty, **self._sums_by_name(empty)}

    def growing(self) -> list[str]:
        """Free sizes that count steps, tokens, samples and the like."""
        return [key for key in self.keys if self._role(key) in ("length", "other") and not _is_total(key)]

    def batches(self) -> list[str]:
        """Free sizes that count examples."""
        return [key for key in self.keys if self._role(key) == "batch"]

    def related(self, assignment: Mapping[str, int]) -> dict[str, int]:
        """An assignment with the sizes set that by their names follow from others."""
        return {**assignment, **self._sums_by_name(assignment)}

    def _role(self, key: str) -> str:
        low = key.lower()
        if key.endswith("#rank"):
            return "rank"
        if "past" in low or "cache" in low:
            return "past"
        if "batch" in low or low in ("n", "b", "bs"):
            return "batch"
        if any(word in low for word in ("height", "width")) or low in ("h", "w"):
            return "spatial"
        for item in self.inputs:
            for axis, dim in enumerate(item.dims or ()):
                own = dim if isinstance(dim, str) and dim else f"{item.name}#{axis}"
                if own != key:
                    continue
                if axis == 0 and len(item.dims or ()) >= 2:
                    return "batch"
                if (
                    len(item.dims or ()) in (4, 5)
                    and axis >= 2
                    and item.floating
                    and not any(w in low for w in ("seq", "len"))
                ):
                    return "spatial"
        return "length" if any(word in low for word in ("seq", "len", "time", "token", "frame")) else "other"

    def _sums_by_name(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Sizes that by their names hold past and current together (`total_sequence_length`)."""
        past = [key for key in self.keys if self._role(key) == "past" and not _is_total(key)]
        totals = [key for key in self.keys if _is_total(key)]
        current = [key for key in self.keys if self._role(key) == "length" and key not in totals]
        if not totals or not past:
            return {}
        now = chosen[current[0]] if current else 1
        return dict.fromkeys(totals, chosen[past[0]] + now)

    def _sums(self, base: Mapping[str, int]) -> Iterator[dict[str, int]]:
        free = [key for key in self.keys if not key.endswith("#rank") and self._role(key) != "batch"]
        for total in free:
            rest = [key for key in free if key != total]
            for left, right in itertools.combinations(rest[:5], 2):
                yield {**base, total: base[left] + base[right]}
            for left in rest[:5]:
                yield {**base, total: base[left] + 1}
                yield {**base, **dict.fromkeys(rest, 1), left: base[left], total: base[left] + 1}  # one token more


def _is_total(key: str) -> bool:
    low = key.lower()
    return any(word in low for word in ("total", "full", "all_seq", "mask", "kv_len")) or ("past" in low and "+" in low)


def _expression(text: str) -> ast.expr | None:
    """The tree of a dim name that is arithmetic over other names, such as `past + sequence`; else None."""
    if not any(sign in text for sign in "+-*/("):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id.lower() in ("max", "min")):
                return None
        elif isinstance(node, ast.BinOp):
            if not isinstance(node.op, _OPERATORS):
                return None
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, int):
                return None
        elif not isinstance(node, ast.Name | ast.UnaryOp | ast.USub | ast.Load | ast.operator):
            return None
    return tree if _names_of(tree) else None


def _names_of(tree: ast.expr) -> list[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]


def _evaluate(tree: ast.expr, known: Mapping[str, int]) -> int:
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return known[tree.id]
    if isinstance(tree, ast.UnaryOp):
        return -_evaluate(tree.operand, known)
    if isinstance(tree, ast.Call):
        values = [_evaluate(argument, known) for argument in tree.args]
        assert isinstance(tree.func, ast.Name)
        return max(values) if tree.func.id.lower() == "max" else min(values)
    assert isinstance(tree, ast.BinOp)
    left, right = _evaluate(tree.left, known), _evaluate(tree.right, known)
    if isinstance(tree.op, ast.Add):
        return left + right
    if isinstance(tree.op, ast.Sub):
        return left - right
    if isinstance(tree.op, ast.Mult):
        return left * right
    if right == 0:
        return 0
    return left % right if isinstance(tree.op, ast.Mod) else left // right
