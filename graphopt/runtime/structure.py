"""What the graph itself says about its inputs: each input is followed to the operators that ask something of it.

All of it is optional. Feeds can be made without it, only worse.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.ir import Graph, Kind, Node, TensorType, Value
from graphopt.onnxio import load
from graphopt.runtime.role_table import ask
from graphopt.runtime.roles import Role
from graphopt.runtime.session import SessionInfo
from graphopt.runtime.sources import ModelSource
from graphopt.tensors import DType, Tensor

_log = logging.getLogger(__name__)
# Uses followed for one input; beyond that nothing new is learnt.
_MOST_STEPS = 3000
_MOST_COMPARED = 4096  # constants that one input is compared with at once
# Operand -> results that hold its elements, moved about or repeated at most.
_MOVES = {
    "Identity": 0, "Cast": 0, "Reshape": 0, "Squeeze": 0, "Unsqueeze": 0, "Flatten": 0, "Transpose": 0, "Expand": 0,
    "Tile": 0, "Slice": 0, "Split": 0, "Gather": 0, "GatherElements": 0, "GatherND": 0, "Dropout": 0, "Concat": -1,
    "Pad": 0,     "Compress": 0, "Trilu": 0, "SequenceConstruct": -1, "SequenceAt": 0, "ConcatFromSequence": 0,
    "OptionalGetElement": 0, "Optional": 0, "CastLike": 0, "DequantizeLinear": -2,
}  # fmt: skip
_ROUNDING = ("Quant", "QLinear", "Integer", "QAttention", "QGemm", "NBits")
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@dataclass(slots=True)
class Structure:
    """Facts for the making of feeds.

    Attributes:
        roles: Input -> role.
        unranked: Inputs whose rank is not declared.
        defaults: Initializer that may be fed -> its value.
        hints: Name of a dim -> a good first size.
        quantized: The model rounds values to few steps somewhere.
        coarsest: The coarsest of the 16-bit float dtypes that it computes with; empty where there is none.
    """

    roles: dict[str, Role] = field(default_factory=dict)
    unranked: frozenset[str] = frozenset()
    defaults: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    quantized: bool = False
    coarsest: str = ""


def read_structure(source: ModelSource, info: SessionInfo) -> Structure:
    """Read what can be read; a model that graphopt cannot load gives an empty answer."""
    return structure_of(try_load(source), info)


def try_load(source: ModelSource) -> Graph | None:
    """The graph of a model, None where graphopt cannot load it."""
    try:
        return load(source.handle)
    except Exception as error:  # a help, not a need: the runtime has the last word
        _log.debug("no graph of %s: %s", source.label, error)
        return None


def structure_of(graph: Graph | None, info: SessionInfo) -> Structure:
    """What a graph says about its inputs."""
    try:
        return _read(graph, info) if graph is not None else Structure()
    except Exception as error:
        _log.debug("no roles: %s", error)
        return Structure()


def _read(graph: Graph, info: SessionInfo) -> Structure:
    structure = Structure()
    fed = {port.name: port for port in info.inputs}
    unranked = []
    for value in graph.inputs:
        if value.name not in fed:
            continue
        if isinstance(value.type, TensorType) and value.type.shape is None:
            unranked.append(value.name)
        role = find_role(value)
        if role is not None:
            structure.roles[value.name] = role
        if fed[value.name].overridable and value.producer.default is not None:
            structure.defaults[value.name] = np.array(value.producer.default.numpy())
    structure.unranked = frozenset(unranked)
    structure.quantized = any(
        any(word in op_type for word in _ROUNDING) for inner in graph.model.graphs() for _, op_type in inner.kinds
    )
    structure.coarsest = _coarsest(graph)
    return structure


def is_constant(graph: Graph | None) -> bool:
    """True where no output depends on more of the inputs than their shapes: such outputs cannot show a change."""
    if graph is None:
        return False
    todo = [value.producer for value in graph.outputs]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen or node.is_op("Shape") or node.is_op("Size"):
            continue
        if node.kind is Kind.INPUT or node.bodies:
            return False
        seen.add(node)
        todo += [value.producer for value in node.operands if value is not None]
    return True


def _coarsest(graph: Graph) -> str:
    found = {value.dtype for value in graph.inputs}
    for inner in graph.model.graphs():
        found |= {value.dtype for node in inner.constants() for value in node.results}
        found |= {to for node in inner.of_kind("Cast") if (to := node.param("to")) is not None}
    names = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16"}
    return next((names[dtype] for dtype in (DType.BFLOAT16, DType.FLOAT16) if dtype in found), "")


@dataclass(slots=True)
class _Seen:
    """A value made of an input's elements: each is `scale * element + offset`, unless `loose`."""

    value: Value
    scale: float = 1.0
    offset: float = 0.0
    direct: bool = True


def find_role(start: Value) -> Role | None:
    """What the users of an input ask of it, all together; None where they ask nothing."""
    role = Role()
    compared: list[Any] = []
    asked = False
    todo = deque([_Seen(start)])
    visited: dict[int, None] = {}
    steps = 0
    while todo and steps < _MOST_STEPS:
        seen = todo.popleft()
        if id(seen.value) in visited:
            continue
        visited[id(seen.value)] = None
        for user, index in list(seen.value.uses):
            steps += 1
            wanted = _wanted(user, index, seen, compared)
            if wanted is not None:
                asked = True
                role.narrow(wanted)
            todo.extend(_onward(user, index, seen))
    if compared and role.choices is None and role.make is None:
        asked |= _compared(role, compared, start)
    return role if asked else None


def _wanted(user: Node, index: int, seen: _Seen, compared: list[Any]) -> Role | None:
    if not user.is_operator:
        return None
    found = ask(user, index)
    if found is not None:
        floats_only = user.op_type in ("Log", "Sqrt", "Acos", "Asin", "Atanh", "Acosh")
        if floats_only and not seen.direct:
            return None
        return _backwards(found, seen)
    if user.domain != "" or seen.scale != 1.0 or seen.offset != 0.0:
        return None
    if user.op_type == "Cast" and _is_mask_cast(user, seen):
        return Role(choices=(1, 0), note="cast to bool")
    if user.op_type == "Sub" and index == 1 and _is_number(user.operand(0), 1.0):
        return Role(choices=(1, 0), note="used as 1 - mask")
    if user.op_type in _COMPARISONS:
        other = user.operand(1 - index)
        number = _number(other)
        if number is not None:
            compared.append(number)
        elif other is not None and other.const is not None and other.const.dtype.is_float and seen.direct:
            compared.append(_sides(user.op_type, index, other.const))
    return None


def _sides(op_type: str, index: int, constant: Tensor) -> tuple[float, ...]:
    """Numbers on both sides of those that one number is compared with; first one at which all comparisons hold."""
    numbers = constant.numpy().astype(np.float64).reshape(-1) if constant.size <= _MOST_COMPARED else np.zeros(0)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return ()
    low, middle, high = float(numbers.min()), float(np.median(numbers)), float(numbers.max())
    if op_type == "Equal":
        return tuple(dict.fromkeys((float(numbers[0]), high, high + 1.0)))
    step = 0.0 if op_type.endswith("OrEqual") else max(1.0, 0.1 * max(abs(low), abs(high)))
    below = op_type.startswith("Less") == (index == 0)
    return tuple(dict.fromkeys((low - step, middle, high + 1.0) if below else (high + step, middle, low - 1.0)))


def _is_mask_cast(user: Node, seen: _Seen) -> bool:
    to = user.param("to")
    return to == 9 and seen.value.dtype is not None and seen.value.dtype.name not in ("BOOL", "STRING")


def _number(value: Value | None) -> Any:
    if value is None or value.const is None or value.const.size != 1:
        return None
    number = value.const.scalar()
    return number.decode("utf-8", "replace") if isinstance(number, bytes) else number


def _is_number(value: Value | None, number: float) -> bool:
    """Whether a value is that constant, through a Cast or Identity at most."""
    for _ in range(3):
        if value is None:
            return False
        if value.const is not None:
            found = _number(value)
            return isinstance(found, int | float) and float(found) == number
        node = value.producer
        if not (node.is_operator and node.op_type in ("Cast", "Identity")):
            return False
        value = node.operand(0)
    return False


def _backwards(role: Role, seen: _Seen) -> Role | None:
    """A role of `scale * x + offset` as a role of x."""
    if seen.scale == 1.0 and seen.offset == 0.0:
        if role.make is not None and not seen.direct:
            return Role(low=1, high=3, note=role.note)
        return role
    if role.make is not None or role.choices is not None or seen.scale <= 0:
        return None
    low = None if role.low is None else (role.low - seen.offset) / seen.scale
    high = None if role.high is None else (role.high - seen.offset) / seen.scale
    extents = (
        [(name, axis, int(extra - seen.offset)) for name, axis, extra in role.extents] if seen.scale == 1.0 else []
    )
    return Role(low, high, extents, note=role.note)


def _compared(role: Role, numbers: list[Any], start: Value) -> bool:
    """Choose values on both sides of the constants that an input is compared with."""
    dtype = start.dtype
    if dtype is None or dtype.name == "BOOL":
        return False
    if dtype.is_float:
        return _compared_floats(role, numbers, start)
    numbers = [number for number in numbers if not isinstance(number, tuple)]
    if not numbers:
        return False
    distinct = list(dict.fromkeys(numbers))[:8]
    if dtype.name == "STRING":
        role.choices = (*[text for text in distinct if isinstance(text, str)], "other")
        return True
    if not dtype.is_integer:
        return False
    whole = sorted({int(number) for number in distinct if isinstance(number, int | float) and abs(number) < 2**31})
    if not whole:
        return False
    if set(whole) <= {0, 1} and start.rank != 0:
        role.choices = (1, 0)
        return True
    around = [*whole, *(number + 1 for number in whole), *(number - 1 for number in whole if number > 0)]
    low, high = role.low, role.high
    kept = [n for n in dict.fromkeys(around) if (low is None or n >= low) and (high is None or n <= high)]
    if start.rank == 0 or (start.shape is not None and all(isinstance(dim, int) and dim == 1 for dim in start.shape)):
        role.choices = tuple(kept) or None
        return bool(kept)
    if role.low is None and role.high is None and not role.extents:
        role.low, role.high = min(0, whole[0] - 2), max(whole[-1] + 2, 9)
        return True
    return False


def _compared_floats(role: Role, numbers: list[Any], start: Value) -> bool:
    """Values of a float of one element on both sides of what it is compared with."""
    if start.shape is None or any(dim != 1 for dim in start.shape) or role.low is not None or role.high is not None:
        return False
    sides: list[float] = []
    for number in numbers:
        sides += number if isinstance(number, tuple) else (float(number) + 1.0, float(number) - 1.0, float(number))
    role.choices = tuple(dict.fromkeys(sides)) or None
    return bool(sides)


def _onward(user: Node, index: int, seen: _Seen) -> Iterator[_Seen]:
    """Values that still hold the input's elements."""
    if user.kind is Kind.RETURN:
        yield from _out_of_body(user, index, seen)
        return
    if user.bodies:
        yield from _into_bodies(user, index, seen)
        return
    function = _function(user)
    if function is not None:
        if index < len(function.inputs):
            yield _Seen(function.inputs[index], seen.scale, seen.offset, seen.direct)
        return
    if user.domain != "":
        return
    place = _MOVES.get(user.op_type)
    if place is not None and place in (-1, index):
        direct = seen.direct and user.op_type in ("Identity", "Cast", "Dropout", "Optional", "OptionalGetElement")
        for result in user.results:
            yield _Seen(result, seen.scale, seen.offset, direct)
    elif user.op_type == "Where" and index in (1, 2):
        yield _Seen(user.results[0], seen.scale, seen.offset, False)
    elif user.op_type in ("Add", "Sub", "Mul") and len(user.operands) == 2:
        yield from _affine(user, index, seen)


def _affine(user: Node, index: int, seen: _Seen) -> Iterator[_Seen]:
    dtype = seen.value.dtype
    if dtype is not None and not dtype.is_integer:
        return
    other = user.operand(1 - index)
    number = _number(other)
    result = user.results[0]
    if not isinstance(number, int | float):
        if user.op_type == "Add":
            yield _Seen(result, seen.scale, seen.offset, False)
        return
    if user.op_type == "Add":
        yield _Seen(result, seen.scale, seen.offset + number, seen.direct)
    elif user.op_type == "Mul" and number > 0:
        yield _Seen(result, seen.scale * number, seen.offset * number, seen.direct)
    elif user.op_type == "Sub" and index == 0:
        yield _Seen(result, seen.scale, seen.offset - number, seen.direct)


def _function(user: Node) -> Graph | None:
    if user.graph is None:
        return None
    function = user.graph.model.functions.get((user.domain, user.op_type, user.overload))
    return function.graph if function is not None else None


def _into_bodies(user: Node, index: int, seen: _Seen) -> Iterator[_Seen]:
    """Explicit inputs of Loop and Scan bodies; captures are uses of their own."""
    place = index
    if user.op_type == "Scan" and user.opset < 9:
        place = index - 1
    for body in user.bodies.values():
        if (
            user.op_type in ("Loop", "Scan")
            and index >= (2 if user.op_type == "Loop" else 0)
            and 0 <= place < len(body.inputs)
        ):
            yield _Seen(body.inputs[place], seen.scale, seen.offset, False)


def _out_of_body(user: Node, index: int, seen: _Seen) -> Iterator[_Seen]:
    body = user.graph
    owner = body.owner if body is not None else None
    if owner is None:
        return
    place = index - 1 if owner.op_type == "Loop" else index
    if owner.op_type in ("If", "Loop", "Scan") and 0 <= place < len(owner.results):
        yield _Seen(owner.results[place], seen.scale, seen.offset, False)
