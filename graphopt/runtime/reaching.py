"""Feeds for what the usual ones do not reach: long sequences, all rows of a small table, both sides of a switch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.errors import ExecutionError, FeedError
from graphopt.runtime.values import Data, numpy_dtype

if TYPE_CHECKING:
    from graphopt.runtime.feeds import Feed, FeedMaker, FeedSet, Runner

_MOST_ROWS = 4096
_LONG, _LONGER = (128, 64), (256, 128, 64)
_MOST_EXAMPLES = 16
# Seconds that one run of a feed may be expected to take, and may take: each is repeated in some six sessions.
_EXPECTED_SECONDS = 0.05
_MOST_SECONDS = 0.04
_FEW = 32  # elements of all inputs, up to which a run takes about the same time
_MOST_SWITCHES = 6
_VALUES_EACH = 5
_ROW_FEEDS = 2
_SALT = 5

Assignment = dict[str, int]


def reach_further(maker: FeedMaker, run: Runner, found: FeedSet, base: Assignment, style: str, most: int) -> None:
    """Add feeds that reach more of the model than those that were found.

    Args:
        maker: Makes the inputs.
        run: Runs the original.
        found: The feeds that work; more are added to it. What does not work is not kept.
        base: Sizes that work.
        style: A way of drawing values that works.
        most: How many feeds there may be in the end.
    """
    reach = _Reach(maker, run, found, base, style, most)
    reach.rows_and_lengths()
    reach.switches()


def switch_values(maker: FeedMaker) -> dict[str, tuple[Any, ...]]:
    """Inputs of one element that the model compares with constants or branches on -> values on all sides of those."""
    found: dict[str, tuple[Any, ...]] = {}
    for port in maker.required:
        if any(dim != 1 for dim in port.shape):
            continue
        dtype, role = numpy_dtype(port.type), maker.role_of(port)
        if dtype == np.bool_:
            found[port.name] = (True, False)
        elif dtype is not None and dtype.kind in "iuf" and role is not None and role.choices:
            own = (len(role.choices) + 2) // 3 if dtype.kind in "iu" else len(role.choices)  # then those one off
            found[port.name] = role.choices[: min(own, _VALUES_EACH)] + role.choices[own : own + 1]
    return found


def first_of(maker: FeedMaker) -> dict[str, Any]:
    """All switches where the model wants them most."""
    return {name: values[0] for name, values in switch_values(maker).items()}


class _Reach:
    """One search."""

    def __init__(self, maker: FeedMaker, run: Runner, found: FeedSet, base: Assignment, style: str, most: int) -> None:
        self.maker, self.run, self.found = maker, run, found
        self.base, self.style, self.most = base, style, most
        self.long: Assignment | None = None
        self.named = 0  # rows that the last feed could name

    # --- lengths and rows

    def rows_and_lengths(self) -> None:
        """One longer feed; there and in some more, ids that name the rows which no feed has named yet."""
        tables = self._tables()
        for number in range(_ROW_FEEDS):
            missing = {name: self._missing(name, low, high) for name, (low, high) in tables.items()}
            wanted = max((len(rows) for rows in missing.values()), default=0)
            if number and not 0 < wanted <= self.named:
                return
            label = f"other rows {number}" if number else "longer"
            if not self._grow(label, tables, missing, wanted) and number:
                return

    def _tables(self) -> dict[str, tuple[int, int]]:
        """Inputs that hold rows of a small table -> the first row and the last."""
        tables = {}
        for port in self.maker.required:
            dtype, role = numpy_dtype(port.type), self.maker.role_of(port)
            if port.name in self.maker.options.ranges or dtype is None or dtype.kind not in "iu" or role is None:
                continue
            if role.note != "an index" or role.choices or role.make or role.extents or role.high is None:
                continue
            low, high = int(role.low or 0), int(role.high)
            if 0 < high - low < _MOST_ROWS:
                tables[port.name] = (low, high)
        return tables

    def _missing(self, name: str, low: int, high: int) -> list[int]:
        named = [np.asarray(feed.values[name]).reshape(-1) for feed, _ in self.found.working if name in feed.values]
        known = set(np.concatenate(named).tolist()) if named else set()
        return [row for row in range(low, high + 1) if row not in known and row - high - 1 not in known]

    def _grow(
        self, label: str, tables: Mapping[str, tuple[int, int]], missing: Mapping[str, list[int]], wanted: int
    ) -> bool:
        for assignment in self._larger(wanted):
            began = time.monotonic()
            try:
                shapes = self.maker.feed("", assignment, self.style, _SALT).values
                fixed = {name: self._filled(missing[name], *tables[name], np.asarray(shapes[name])) for name in tables}
                feed = self.maker.feed(label, assignment, self.style, _SALT, fixed=fixed)
                outputs = self.run(feed.values)
            except (ExecutionError, FeedError):
                continue
            taken = time.monotonic() - began
            if taken > max(_MOST_SECONDS, 1.5 * self.found.seconds):
                continue
            self.named = min((np.size(value) for value in fixed.values()), default=0)
            if assignment == self.base:
                feed = replace(feed, label="other rows") if label == "longer" else feed
            else:
                self.long = assignment
            return self._keep(feed, outputs)
        return False

    def _filled(self, missing: list[int], low: int, high: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Missing rows first, then all the others, in no order that a model could expect."""
        rng = np.random.default_rng(self.maker.options.seed & 0xFFFFFFFF)
        known = set(missing)
        others = [row for row in range(low, high + 1) if row not in known]
        rows = [*rng.permutation(np.array(missing, np.int64)), *rng.permutation(np.array(others, np.int64))]
        picked = list(itertools.islice(itertools.cycle(rows), like.size))
        return rng.permutation(np.array(picked, np.int64)).reshape(like.shape).astype(like.dtype)

    def _larger(self, wanted: int) -> Iterator[Assignment]:
        """Sizes for a longer feed, largest first, as far as they are cheap; at last the base, if rows are wanted."""
        space = self.maker.space
        growing, batch = space.growing(), space.batches()
        before = max(_FEW, space.elements(self.base))
        seen: list[Assignment] = [self.base]
        sizes = _LONG if wanted <= _MOST_EXAMPLES * min(_LONG) else _LONGER
        for keys, size in [*((keys, size) for size in sizes for keys in _groups(growing)), ((), 1)]:
            several = min(math.ceil(wanted / size), _MOST_EXAMPLES if keys else _MOST_ROWS)
            for count in (several, 0) if several > 1 else (0,):
                candidate = {**self.base, **dict.fromkeys(keys, size)}
                if count:
                    candidate |= {key: max(count, self.base[key]) for key in batch}
                candidate = space.related(candidate)
                expected = self.found.seconds * space.elements(candidate) / before
                if candidate not in seen and expected <= _EXPECTED_SECONDS:
                    seen.append(candidate)
                    yield candidate
        if wanted:
            yield self.base

    # --- switches

    def switches(self) -> None:
        """A feed for each value of a switch that no feed has yet."""
        values = switch_values(self.maker)
        first = {name: choices[0] for name, choices in values.items()}
        wanted = [("first choices", first)] if len(values) > 1 else []
        wanted += [(f"{name} {value}", {**first, name: value}) for name, choices in values.items() for value in choices]
        made = 0
        for label, fixed in wanted:
            own = (
                fixed
                if label == "first choices"
                else {name: fixed[name] for name in fixed if label == f"{name} {fixed[name]}"}
            )
            if made < _MOST_SWITCHES and not self._is_covered(own):
                made += self._switch(label, fixed)

    def _is_covered(self, fixed: Mapping[str, Any]) -> bool:
        return any(
            not feed.is_empty
            and all(np.asarray(feed.values[name]).size and _is(feed.values[name], want) for name, want in fixed.items())
            for feed, _ in self.found.working
        )

    def _switch(self, label: str, fixed: Mapping[str, Any]) -> bool:
        for assignment in filter(None, (self.base, self.long, *self._larger(0))):
            try:
                plain = self.maker.feed("", assignment, self.style, _SALT).values
                values = {name: np.full_like(np.asarray(plain[name]), value) for name, value in fixed.items()}
                feed = self.maker.feed(label, assignment, self.style, _SALT, fixed=values)
                outputs = self.run(feed.values)
            except (ExecutionError, FeedError):
                continue
            return self._keep(feed, outputs)
        return False

    def _keep(self, feed: Feed, outputs: dict[str, Data]) -> bool:
        if len(self.found.working) >= self.most:
            return False
        self.found.working.append((feed, outputs))
        return True


def _is(value: Data, want: Any) -> bool:
    array = np.asarray(value)
    return bool((array == np.asarray(want).astype(array.dtype)).all())


def _groups(keys: list[str]) -> list[tuple[str, ...]]:
    """All keys together, and each of the first alone."""
    return [tuple(keys), *((key,) for key in keys[:3] if len(keys) > 1)] if keys else []
