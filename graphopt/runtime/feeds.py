"""Inputs for a model: seeded, aware of roles, tried on the original until some work."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graphopt.errors import (
    ExecutionError,
    FeedError,
    FeedRefusedError,
    KernelMissingError,
    ModelRefusedError,
    ProviderMissingError,
    ValueNotSupportedError,
    WorkerTimeoutError,
)
from graphopt.runtime.compare import is_float
from graphopt.runtime.draw import draw
from graphopt.runtime.reaching import first_of, reach_further, switch_values
from graphopt.runtime.roles import Role, by_name
from graphopt.runtime.session import Port
from graphopt.runtime.sizes import InputShape, SizeSpace
from graphopt.runtime.values import Data, numpy_dtype

Runner = Callable[[dict[str, Data]], dict[str, Data]]

_TRIES = 160
_SECONDS = 25.0
_BETTER_SECONDS = 8.0
_FURTHER_SECONDS = 6.0
_MOST_ELEMENTS = 1 << 28
# How values are drawn, most telling first; the later ones are for models that refuse the first.
_STYLES = ("normal", "natural", "small", "ones", "zeros")
# Others to try where outputs tell nothing.
_TELLING_STYLES = ("small", "large", "edge")
_MOST_FEEDS = 20
VACUOUS = "no output shows a change: they are all NaN or one number; give --data or --range for a test"


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What the user says about inputs.

    Attributes:
        dims: Name of a dim -> size.
        shapes: Input -> shape.
        ranges: Input -> (smallest, largest) value, both inclusive.
        seed: Seed of all random numbers.
        runs: How many feeds to make; None for one of each kind.
        override_defaults: Whether one feed gives inputs with a default another value.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0
    runs: int | None = None
    override_defaults: bool = True


@dataclass(frozen=True, slots=True)
class Feed:
    """One set of inputs.

    Attributes:
        label: What it is.
        values: Input -> value.
    """

    label: str
    values: dict[str, Data]

    @property
    def sizes(self) -> dict[str, str]:
        """Shapes as text, for records."""
        return {name: describe(value) for name, value in self.values.items()}

    @property
    def is_empty(self) -> bool:
        """True if some input has no elements."""
        return any(isinstance(value, np.ndarray) and value.size == 0 for value in self.values.values())


@dataclass(slots=True)
class FeedSet:
    """The feeds that the original runs on, with what it gave, and those it does not run on.

    Attributes:
        working: (feed, outputs of the original).
        failing: (feed, the original's error).
        refused: (feed, the error): empty ones at which operators of the runtime's own fail that only the rewritten
            model has.
        unoptimized: (feed, the runtime's error): empty ones at which the runtime's own optimizations of the rewritten
            model fail, though without them it gives what the original gives.
        advice: Why no feed works and what to type; empty where one does.
        error: The last error, where none works.
        note: What the feeds that work leave to be wished for.
        seconds: How long a run takes.
    """

    working: list[tuple[Feed, dict[str, Data]]] = field(default_factory=list)
    failing: list[tuple[Feed, str]] = field(default_factory=list)
    refused: list[tuple[Feed, str]] = field(default_factory=list)
    unoptimized: list[tuple[Feed, str]] = field(default_factory=list)
    advice: str = ""
    error: ExecutionError | None = None
    note: str = ""
    seconds: float = 0.0


def describe(value: Data) -> str:
    """Shape and dtype of a value in a few characters."""
    if value is None:
        return "empty optional"
    if isinstance(value, list | tuple):
        return f"sequence of {len(value)}"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"


def tells(outputs: Mapping[str, Data]) -> bool:
    """True where some output would show a change: it has different finite numbers, or is no float at all."""
    seen = False
    for value in outputs.values():
        if not isinstance(value, np.ndarray) or not is_float(value.dtype):
            return True
        seen = True
        numbers = value.astype(np.float64 if value.dtype.kind != "c" else np.complex128).reshape(-1)
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size and (numbers != numbers[0]).any():
            return True
        if numbers.size == value.size == 1 and numbers[0] != 0:
            return True
    return not seen


class FeedMaker:
    """Makes inputs for one model."""

    def __init__(
        self,
        ports: tuple[Port, ...],
        options: FeedOptions | None = None,
        *,
        roles: Mapping[str, Role] | None = None,
        unranked: frozenset[str] = frozenset(),
        defaults: Mapping[str, np.ndarray[Any, Any]] | None = None,
        hints: Mapping[str, int] | None = None,
        typical: bool = False,
    ) -> None:
        """Set up for a model.

        Args:
            ports: Its inputs as the runtime tells them.
            options: What the user says.
            roles: Input -> role, from the model's structure.
            unranked: Inputs of unknown rank.
            defaults: Overridable initializer -> its value.
            hints: Name of a dim -> a good first size.
            typical: Prefer the sizes that models are used at to those that are quick.

        Raises:
            FeedError: An option names an input or a dim that the model does not have.
        """
        self.options = options or FeedOptions()
        self.required = tuple(port for port in ports if not port.overridable)
        self.overridable = tuple(port for port in ports if port.overridable)
        self.roles = dict(roles or {})
        self.defaults = dict(defaults or {})
        shapes = [
            InputShape(
                port.name,
                None if port.name in unranked else port.shape,
                floating=port.type
                in ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)", "tensor(uint8)"),
            )
            for port in self.required
        ]
        self._inputs = {item.name: item for item in shapes}
        self.space = SizeSpace(shapes, dict(self.options.dims), dict(self.options.shapes), dict(hints or {}), typical)
        self._check_options()

    def _check_options(self) -> None:
        names = {port.name for port in (*self.required, *self.overridable)}
        for flag, given in (("--shape", self.options.shapes), ("--range", self.options.ranges)):
            for name in given:
                if name not in names:
                    raise FeedError(
                        f"{flag} names {name!r}, which is no input; inputs are {', '.join(sorted(names)) or 'none'}"
                    )
        dims = {dim for port in self.required for dim in port.shape if isinstance(dim, str)}
        dims |= {f"{port.name}#{axis}" for port in self.required for axis, dim in enumerate(port.shape) if dim is None}
        dims |= set(self.space.keys)
        for name in self.options.dims:
            if name not in dims:
                raise FeedError(
                    f"--dim names {name!r}, which no input has; symbolic dims are {', '.join(sorted(dims)) or 'none'}"
                )

    def feed(
        self,
        label: str,
        assignment: Mapping[str, int],
        style: str = "normal",
        salt: int = 0,
        only: frozenset[str] | None = None,
        fixed: Mapping[str, Data] | None = None,
    ) -> Feed:
        """Inputs of given sizes; `only` these where it is given, and `fixed` values in place of drawn ones."""
        shapes = {port.name: self.space.shape(self._inputs[port.name], assignment) for port in self.required}
        if sum(math.prod(shape) for shape in shapes.values()) > _MOST_ELEMENTS:
            raise FeedRefusedError(
                f"inputs of {max(shapes.values(), key=math.prod)} are too large to try; give smaller sizes"
            )
        chosen = [port for port in self.required if only is None or port.name in only]
        known = fixed or {}
        return Feed(
            label,
            {
                port.name: known[port.name] if port.name in known else self._value(port, shapes, style, salt)
                for port in chosen
            },
        )

    def overriding(self, feed: Feed, salt: int = 0) -> Feed:
        """The same inputs, and other values for the initializers that may be fed."""
        values = dict(feed.values)
        for port in self.overridable:
            default = self.defaults.get(port.name)
            if default is None:
                continue
            rng = self._rng(port.name, salt)
            if default.dtype.kind == "f":
                values[port.name] = (default * (1 + 0.25 * rng.standard_normal(default.shape))).astype(default.dtype)
            elif default.dtype.kind in "iu" and default.size and self.roles.get(port.name) is None:
                values[port.name] = np.flip(default).copy()
            else:
                values[port.name] = default
        return Feed("initializers overridden", values)

    def role_of(self, port: Port) -> Role | None:
        """What values an input may take, as far as the user, the structure or its name tell."""
        if port.name in self.options.ranges:
            return Role(*self.options.ranges[port.name])
        dtype = numpy_dtype(_unwrap(port.type)[1])
        named = by_name(port.name) if dtype is not None and dtype.kind in "iu" else None
        return self.roles.get(port.name) or named

    def _rng(self, name: str, salt: int) -> np.random.Generator:
        return np.random.default_rng([self.options.seed & 0xFFFFFFFF, salt, zlib.crc32(name.encode())])

    def _value(self, port: Port, shapes: Mapping[str, tuple[int, ...]], style: str, salt: int) -> Data:
        rng = self._rng(port.name, salt)
        kind, inner = _unwrap(port.type)
        if kind == "optional" and inner.startswith("seq"):
            kind, inner = _unwrap(inner)
        dtype = numpy_dtype(inner)
        if dtype is None:
            raise FeedError(
                f"input {port.name!r} is {port.type}, for which no values can be made; "
                "give your own with --data script.py:function"
            )
        role = self.role_of(port)
        if kind == "seq":
            return [draw(rng, dtype, (2, 3), role, style, shapes) for _ in range(3)]
        return draw(rng, dtype, shapes[port.name], role, style, shapes)

    # --- trying

    def collect(self, run: Runner, *, tries: int = _TRIES, seconds: float = _SECONDS) -> FeedSet:
        """Try inputs on the original until one works, then others that differ from it in a telling way."""
        found = FeedSet()
        started = time.monotonic()
        try:
            base = self._base(run, found, tries, started + seconds)
        except FeedError as error:  # an input of a type that cannot be made
            found.advice = str(error)
            return found
        if base is not None:
            self._more(run, found, *base)
            if not any(tells(outputs) for _, outputs in found.working):
                found.note = VACUOUS
        return found

    def _more(self, run: Runner, found: FeedSet, assignment: dict[str, int], style: str) -> None:
        """Feeds beside the one that works, of other sizes and other values."""
        wanted = self.options.runs
        started = time.monotonic()
        if wanted == 1:
            return
        done: set[str] = set()
        for label, make in self._further(assignment, style):
            if wanted is not None and len(found.working) >= wanted:
                break
            if label in done:
                continue
            if time.monotonic() - started + found.seconds > _FURTHER_SECONDS:
                break
            if self._try(run, label, make, found):
                done.add(label)
                found.failing = [item for item in found.failing if item[0].label != label]
        if time.monotonic() - started < _FURTHER_SECONDS:
            reach_further(self, run, found, assignment, style, wanted or _MOST_FEEDS)
        extra = 0
        while wanted is not None and len(found.working) < wanted and extra < wanted:
            extra += 1
            label = f"random {extra}"
            self._try(run, label, partial(self.feed, label, assignment, style, 10 + extra), found)

    def _base(self, run: Runner, found: FeedSet, tries: int, deadline: float) -> tuple[dict[str, int], str] | None:
        count = 0
        first_error: ExecutionError | None = None
        later: list[dict[str, int]] = []
        for assignment in self.space.assignments():
            for style in _STYLES:
                count += 1
                try:
                    feed = self.feed("base sizes", assignment, style)
                    before = time.monotonic()
                    outputs = run(feed.values)
                except (
                    ModelRefusedError,
                    KernelMissingError,
                    ProviderMissingError,
                    WorkerTimeoutError,
                    ValueNotSupportedError,
                ) as error:
                    found.error, found.advice = error, str(error)
                    return None
                except ExecutionError as error:
                    first_error = first_error or error
                    if not _blames_values(str(error)) and count > 3:
                        break
                    continue
                found.seconds = time.monotonic() - before
                return self._better(run, found, assignment, style, feed, outputs)
            later.append(assignment)
            if count > tries or time.monotonic() > deadline:
                break
        for assignment in later[:20]:
            if time.monotonic() > deadline:
                break
            for style in _STYLES[1:]:
                try:
                    feed = self.feed("base sizes", assignment, style)
                    outputs = run(feed.values)
                except ExecutionError:
                    continue
                found.working.append((feed, outputs))
                return assignment, style
        found.error = first_error
        found.advice = self.advice(first_error)
        return None

    def _better(
        self, run: Runner, found: FeedSet, assignment: dict[str, int], style: str, feed: Feed, outputs: dict[str, Data]
    ) -> tuple[dict[str, int], str]:
        """Keep a feed that works, or one like it whose outputs tell more: NaN or one number all over is no test."""
        started = time.monotonic()
        if not tells(outputs):
            for candidate, other_style, first in self._more_telling(assignment, style):
                if time.monotonic() - started > _BETTER_SECONDS:
                    break
                try:
                    other = self.feed("base sizes", candidate, other_style)
                    for name, value in (first_of(self) if first else {}).items():
                        other.values[name] = np.full_like(np.asarray(other.values[name]), value)
                    result = run(other.values)
                except ExecutionError:
                    continue
                if tells(result):
                    assignment, style, feed, outputs = candidate, other_style, other, result
                    break
        found.working.append((feed, outputs))
        return assignment, style

    def _more_telling(self, base: dict[str, int], style: str) -> Iterator[tuple[dict[str, int], str, bool]]:
        """(sizes, style, whether switches are set to what the model wants most) that may tell more than a base."""
        larger = list(self.space.larger(base))
        if switch_values(self):
            yield from ((candidate, style, True) for candidate in (base, *larger))
        yield from ((candidate, style, False) for candidate in larger)
        for other in _TELLING_STYLES:
            yield from ((candidate, other, True) for candidate in (base, *larger[::2]))

    def _further(self, base: dict[str, int], style: str) -> Iterator[tuple[str, Callable[[], Feed]]]:
        for label, assignment in self.space.others(base):
            yield label, partial(self.feed, label, assignment, style, 1)
        if style == "normal" and self.required:
            yield "edge values", partial(self.feed, "edge values", base, "edge", 2)
        if self.required and not self.space.keys:
            yield "other values", partial(self.feed, "other values", base, style, 3)
        if self.overridable and self.defaults and self.options.override_defaults:
            yield "initializers overridden", lambda: self.overriding(self.feed("", base, style, 4), 4)

    def _try(self, run: Runner, label: str, make: Callable[[], Feed], found: FeedSet) -> bool:
        feed = Feed(label, {})
        try:
            feed = make()
            found.working.append((feed, run(feed.values)))
        except ExecutionError as error:
            found.failing.append((feed, str(error)))
            return False
        return True

    def advice(self, error: ExecutionError | None) -> str:
        """One sentence: what could not be made, and the flags that help."""
        flags = []
        for port in self.required:
            free = [dim for dim in port.shape if not isinstance(dim, int)]
            if port.name in self.options.shapes:
                continue
            if free:
                example = ",".join(str(dim) if isinstance(dim, int) else "8" for dim in port.shape)
                flags.append(f"--shape {port.name}={example}")
        flags += [f"--dim {key}=8" for key in self.space.keys if "#" not in key][:2]
        flags += [
            f"--range {port.name}=0:1" for port in self.required if port.type in ("tensor(int64)", "tensor(int32)")
        ][:2]
        names = ", ".join(repr(port.name) for port in self.required[:6])
        said = f"; the runtime said: {error}" if error is not None else ""
        flags = [*flags[:4], "--data data.npz"]
        if self.options.dims or self.options.shapes:
            sizes = [f"{name}={size}" for name, size in self.options.dims.items()]
            sizes += [f"{name}={','.join(map(str, shape))}" for name, shape in self.options.shapes.items()]
            return f"the original does not run at {' '.join(sizes)}: {error}; try other sizes, or --data data.npz"
        return f"no values were found for the inputs {names} on which the original runs{said}; try {'  '.join(flags)}"


def _unwrap(type_text: str) -> tuple[str, str]:
    for kind in ("seq", "optional"):
        if type_text.startswith(kind + "("):
            return kind, type_text[len(kind) + 1 : -1]
    return "tensor", type_text


_VALUE_WORDS = (
    "out of bounds", "out of data bounds", "indices", "index", "out of range", "within", "division by zero", "negative",
    "must be", "should be", "invalid", "axis", "perm", "expand", "reshape",
)  # fmt: skip


def _blames_values(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _VALUE_WORDS)
