"""Decoders: which outputs are fed back as which inputs, and the inputs of a whole generation.

A decoder is known by inputs that hold the past and outputs that hold past and present. Names pair them; which axis
grows, and which of the other free sizes are past plus current, is found by running the model at small sizes.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.errors import ExecutionError, RunFailedError
from graphopt.runtime.feeds import Feed, FeedMaker, Runner
from graphopt.runtime.generation import Generation
from graphopt.runtime.session import Port, SessionInfo
from graphopt.runtime.values import Data, numpy_dtype

_PAST = re.compile(r"past_key_values?|past|cache", re.IGNORECASE)
_PRESENT = re.compile(
    r"present_key_values?|present|(?:new|updated|next|out)_?(?:past_key_values?|past|cache)", re.IGNORECASE
)
# What is read once and attended to by every step; its length does not grow.
_CROSS = re.compile("encode|cross", re.IGNORECASE)
_PROMPTS = (128, 32, 8, 3)
_CROSS_LENGTH = 4
# Inputs that say how far a cache of fixed length is filled.
_FILLED = re.compile("mask|position|past_seq|seqlens|total_seq|cache_len|cur_len|start_pos", re.IGNORECASE)
_BUFFER_LENGTH = 32
# Inputs that go with the tokens.
_EXTRA = re.compile(
    "mask|position|token_type|segment|cache|seqlens|(total|past)_seq|cur_len|start_pos|beam_width", re.IGNORECASE
)
_PAST_AT_FIRST, _TOKENS_AT_FIRST = 3, 2

_IDS = (np.dtype(np.int64), np.dtype(np.int32))

MakeMaker = Callable[[Mapping[str, int]], FeedMaker]


def cache_pairs(info: SessionInfo) -> tuple[tuple[Port, Port], ...]:
    """(past, present) of a decoder, by names; empty for other models."""
    inputs = {_PAST.sub("", port.name): port for port in info.inputs if _PAST.search(port.name) and _is_cache(port)}
    outputs = {_PRESENT.sub("", port.name): port for port in info.outputs if _PRESENT.search(port.name)}
    found = [(inputs[key], outputs[key]) for key in inputs if key in outputs]
    if len(found) != len(inputs) and len(inputs) == len(outputs):
        found = list(zip(inputs.values(), outputs.values(), strict=True))
    return tuple(pair for pair in found if pair[0].type == pair[1].type)


def _is_cache(port: Port) -> bool:
    return port.type.startswith("tensor(") and len(port.shape) >= 3 and not port.overridable


@dataclass(slots=True)
class _Sizes:
    """The free sizes of a decoder, by what they count."""

    past: list[str]
    current: list[str]
    batch: list[str]
    cross: list[str]
    others: list[str]


class _NotSolvedError(Exception):
    """No sizes were found at which the model grows its caches."""


def plan_generation(
    info: SessionInfo,
    make_maker: MakeMaker,
    dims: Mapping[str, int],
    run: Runner,
    steps: int,
    *,
    prompts: tuple[int, ...] = _PROMPTS,
    chunk: int = 0,
) -> Generation | str:
    """The inputs of a prefill and of `steps` steps, or why there are none.

    Args:
        info: Inputs and outputs of the model.
        make_maker: Makes the maker of inputs for given sizes of dims.
        dims: Sizes the user chose. That of the current length is taken for the prompt, that of the past for the first
            past of a model that only steps.
        run: Runs the model.
        steps: Steps after the prefill.
        prompts: Lengths of the prompt to try, best first.
        chunk: Tokens of a step that comes first and takes in several, as a second turn of a conversation does; left out
            where it is 0 or the model does not run it.
    """
    pairs = cache_pairs(info)
    if not pairs:
        return "no input is named like the past of a decoder with an output that continues it"
    try:
        return _Planner(info, pairs, make_maker, dims, run, prompts).plan(steps, chunk)
    except _NotSolvedError as error:
        return str(error)


def decoder_feeds(
    info: SessionInfo, make_maker: MakeMaker, dims: Mapping[str, int], run: Runner
) -> list[tuple[Feed, dict[str, Data]]]:
    """Inputs of a decoder at work with what it gives, where inputs made one by one do not go together."""
    plan = plan_generation(info, make_maker, dims, run, 1, prompts=(8, 3))
    if isinstance(plan, str):
        return []
    tried = [] if plan.prefill is None else [Feed("prefill", dict(plan.prefill))]
    found = [(feed, run(feed.values)) for feed in tried]
    past = {**plan.start, **{name: found[0][1][source] for name, source in (*plan.once, *plan.pairs) if found}}
    step = Feed("decode", {**plan.steps[0], **past})
    return [*found, (step, run(step.values))]


class _Planner:
    """One search."""

    def __init__(
        self,
        info: SessionInfo,
        pairs: tuple[tuple[Port, Port], ...],
        make_maker: MakeMaker,
        dims: Mapping[str, int],
        run: Runner,
        prompts: tuple[int, ...],
    ) -> None:
        self._pairs = pairs
        self._prompts = prompts
        self._run = run
        self._pasts = {past.name for past, _ in pairs}
        self._rest = [port for port in info.inputs if not port.overridable and port.name not in self._pasts]
        self._tokens = _token_input(self._rest)
        self._buffer = 0  # the length of caches that are filled in place; 0 for those that grow
        self._sizes = self._sort(pairs)
        lengths = {*self._sizes.past, *self._sizes.current, *self._sizes.others}
        self._given = {name: size for name, size in dims.items() if name not in lengths}
        self._prompt = next((dims[key] for key in self._sizes.current if key in dims), None)
        self._first_past = next((dims[key] for key in self._sizes.past if key in dims), None)
        self._maker = make_maker(self._given)

    def plan(self, steps: int, chunk: int) -> Generation:
        """Find the sizes and make the inputs: the longest prompt that runs, then as many steps as the model allows.

        Raises:
            _NotSolvedError: The model does not run on any.
        """
        relation, grown = self._solve_any()
        failure = ""
        counts = dict.fromkeys((steps, min(steps, 4), 1))
        chunks = () if self._one_token() or not chunk else (chunk,)
        for (held, prompt), count, several in itertools.product(self._starts(), counts, (*chunks, 0)):
            try:
                return self._generation(relation, grown, held, prompt, count, several)
            except ExecutionError as error:
                failure = str(error)
        raise _NotSolvedError(failure)

    def _starts(self) -> list[tuple[int, int]]:
        """(past, prompt) to begin with, prompt 0 for no prefill: some models take one token at a time only."""
        lengths = (self._first_past,) if self._first_past else self._prompts
        only_steps = [(past, 0) for past in lengths]
        if self._one_token():
            return only_steps
        prompts = (self._prompt,) if self._prompt else self._prompts
        return [(past, prompt) for prompt in prompts for past in (0, 1)] + only_steps

    def _sort(self, pairs: tuple[tuple[Port, Port], ...]) -> _Sizes:
        ids = self._keys(self._tokens) if self._tokens is not None else {}
        batch = [key for axis, key in ids.items() if axis == 0]
        current = [key for axis, key in ids.items() if axis == 1]
        every = [*self._rest, *(port for port, _ in pairs)]
        keys = dict.fromkeys(key for port in every for axis, key in self._keys(port).items() if axis or len(ids) < 2)
        cross = [key for key in keys if _CROSS.search(key) and key not in (*batch, *current)]
        past: dict[str, None] = {}
        for port, _ in pairs:
            if any(key in cross for key in self._keys(port).values()):
                continue
            free = {axis: key for axis, key in self._keys(port).items() if key not in (*batch, *current)}
            if len(free) > 1:
                told = {axis: key for axis, key in free.items() if re.search("past|seq|len|cache", key.split("#")[-1])}
                free = told or {max(free): free[max(free)]}
                batch += [key for key in self._keys(port).values() if key not in (*free.values(), *batch, *current)]
            past |= dict.fromkeys(free.values())
        everything = dict.fromkeys(key for port in self._rest for key in self._keys(port).values())
        others = [key for key in everything if key not in (*batch, *current, *cross, *past)]
        return _Sizes(list(past), current, list(dict.fromkeys(batch)), cross, others)

    def _keys(self, port: Port) -> dict[int, str]:
        """Axis -> key of every free size of an input, as `SizeSpace` names them."""
        return {
            axis: dim if isinstance(dim, str) and dim else f"{port.name}#{axis}"
            for axis, dim in enumerate(port.shape)
            if not (isinstance(dim, int) and dim > 0)
        }

    def _one_token(self) -> bool:
        """True for a model that takes a fixed number of tokens, so only steps."""
        return not self._sizes.current

    def _solve_any(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Caches that grow; failing that, caches of fixed length that are filled from the front."""
        failure = _NotSolvedError("the length of the past is fixed, so nothing can be fed back")
        if self._sizes.past:
            try:
                return self._solve()
            except _NotSolvedError as error:
                failure = error
        lengths = [dim for past, _ in self._pairs for dim in past.shape[-3:-1] if isinstance(dim, int)]
        if not any(_FILLED.search(port.name) and numpy_dtype(port.type) in _IDS for port in self._rest):
            raise failure
        for length in [_BUFFER_LENGTH] if self._sizes.past else sorted(set(lengths), reverse=True):
            self._buffer = length
            with contextlib.suppress(_NotSolvedError):
                return self._solve()
        self._buffer = 0
        raise failure

    def _assignment(self, relation: tuple[str, ...], past: int, current: int) -> dict[str, int]:
        sizes = self._sizes
        other = {"total": past + current, "current": current, "past": past, "one": 1}
        keys = dict.fromkeys(self._maker.space.keys, 1)
        chosen = {
            **keys,
            **dict.fromkeys(sizes.batch, 1),
            **dict.fromkeys(sizes.past, self._buffer or past),
            **dict.fromkeys(sizes.current, current),
            **dict.fromkeys(sizes.cross, _CROSS_LENGTH),
            **{key: other[what] for key, what in zip(sizes.others, relation, strict=True)},
        }
        return {key: size for key, size in chosen.items() if key not in self._given}

    def _relations(self) -> Iterator[tuple[str, ...]]:
        count = len(self._sizes.others)
        choices = ("total", "current", "past", "one")
        if count <= 2:
            yield from itertools.product(choices, repeat=count)
        else:
            yield from (((what,) * count) for what in choices)

    def _solve(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """What the other sizes count, and the pairs that grow by the tokens taken in."""
        failure = ""
        tokens = (1,) if self._one_token() else (_TOKENS_AT_FIRST, 1)
        for current, relation in itertools.product(tokens, list(self._relations())):
            try:
                feed = self._inputs(relation, _PAST_AT_FIRST, current, with_past=True)
                outputs = self._run(feed)
            except ExecutionError as error:
                failure = failure or str(error)
                continue
            grown = tuple(
                (past.name, present.name)
                for past, present in self._pairs
                if _continues(feed[past.name], outputs[present.name], 0 if self._buffer else current)
            )
            if grown:
                return relation, grown
            failure = "no cache grows by the tokens that are taken in"
        raise _NotSolvedError(failure or "no sizes were found on which the decoder runs")

    def _generation(
        self,
        relation: tuple[str, ...],
        grown: tuple[tuple[str, str], ...],
        past: int,
        prompt: int,
        steps: int,
        chunk: int,
    ) -> Generation:
        """All inputs, tried once; `prompt` 0 is a model that only steps.

        Raises:
            ExecutionError: The model does not run on them.
        """
        first = self._inputs(relation, past, prompt, with_past=True) if prompt else None
        held = past + prompt
        made = [self._inputs(relation, held, chunk, with_past=False)] if chunk else []
        made += [self._inputs(relation, held + chunk + step, 1, with_past=False) for step in range(steps)]
        start_at = self._inputs(relation, held, chunk or 1, with_past=True)
        fixed = {name for name in self._pasts if name not in dict(grown)}
        if self._buffer and held + chunk + steps > self._buffer:
            raise RunFailedError(f"{held + chunk + steps} tokens do not fit into a cache of {self._buffer}")
        start = {name: value for name, value in start_at.items() if name in (self._pasts if first is None else fixed)}
        last = self._inputs(relation, held + chunk + max(0, steps - 1), 1, with_past=True)
        once: tuple[tuple[str, str], ...] = ()
        if first is not None:
            outputs = self._run(first)
            once = tuple(
                (name, source.name)
                for name, source in ((past.name, present) for past, present in self._pairs if past.name in fixed)
                if np.shape(outputs[source.name]) == np.shape(start[name])
            )
        if chunk:
            self._run(start_at)
        self._run(last)
        batch = next((self._maker.space.given.get(key, 1) for key in self._sizes.batch), 1)
        ids = self._tokens.name if self._tokens is not None and numpy_dtype(self._tokens.type) in _IDS else ""
        return Generation(grown, first, tuple(made), start, batch, prompt or past, once, ids, chunk)

    def _inputs(self, relation: tuple[str, ...], past: int, current: int, *, with_past: bool) -> dict[str, Data]:
        only = None if with_past else frozenset(port.name for port in self._rest)
        values = self._maker.feed("decode", self._assignment(relation, past, current), only=only).values
        for port in self._rest:
            values[port.name] = _extra(port, values[port.name], past, current, self._buffer)
        if self._buffer and not past:
            values |= {name: np.zeros_like(values[name]) for name in self._pasts if name in values}
        return values


def _token_input(ports: list[Port]) -> Port | None:
    """The input that takes the tokens in: ids, or vectors that were looked up before."""
    fit = [port for port in ports if len(port.shape) >= 2 and not _is_extra(port)]
    ids = [port for port in fit if len(port.shape) == 2 and numpy_dtype(port.type) in _IDS]
    return next((port for port in (*ids, *fit) if not _CROSS.search(port.name)), None)


def _continues(past: Data, present: Data, by: int) -> bool:
    """True where a cache grew by so many tokens; for 0, where it kept its length and took something in."""
    before, after = np.shape(past), np.shape(present)
    changes = [now - was for was, now in zip(before, after, strict=False) if now != was]
    if by:
        return len(before) == len(after) and changes == [by]
    return before == after and not np.array_equal(np.asarray(past), np.asarray(present))


def _is_extra(port: Port) -> bool:
    return _EXTRA.search(port.name) is not None


def _extra(port: Port, value: Any, past: int, current: int, buffer: int) -> Any:
    """What a generation gives for masks, positions and the like; other inputs stay as they were made."""
    low, dtype = port.name.lower(), numpy_dtype(port.type)
    if not _is_extra(port) or dtype is None or not isinstance(value, np.ndarray):
        return value
    if "use_cache" in low:
        return np.full(value.shape, past > 0, dtype)
    if dtype.kind in "iu" and re.search("past_seq|cache_len|cur_len|start_pos", low):
        return np.full(value.shape, past, dtype)
    if "beam_width" in low or "cache_indir" in low:  # one beam, which is its own parent
        return np.full(value.shape, "beam_width" in low, dtype)
    if "position" in low and dtype.kind in "iu" and value.ndim:
        return np.broadcast_to(np.arange(past, past + value.shape[-1], dtype=dtype), value.shape).copy()
    if "mask" in low:
        filled = np.zeros_like(value) if dtype.kind == "f" and value.ndim > 2 else np.ones_like(value)
        if buffer and value.ndim == 2 and value.shape[-1] == buffer:
            filled[:, past + current :] = 0
        return filled
    if "seqlens" in low:
        return np.full(value.shape, past + current - 1, dtype)
    if "total_seq" in low:
        return np.full(value.shape, past + current, dtype)
    return np.zeros_like(value) if "token_type" in low or "segment" in low else value
