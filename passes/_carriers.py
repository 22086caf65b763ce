"""How operators carry a permutation of axes from their operands to their results, or the other way.

An operator *carries* a permutation if it can compute the transposed results from transposed operands: a plan says which
operands it then reads in which order, how its parameters change, and in which order its results come out. Nothing here
assumes a rank: that of every operand is looked at, and an operand that is only broadcast is lined up first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphopt import Node, Value, is_elementwise, symbol
from passes._permutation import Perm, identity, permuted, with_axes, without_axes
from passes._proofs import axes_of, axis_of, contents, is_given
from passes._reshape_carrier import carried

RESULT = -1
"""Stands for the results where a number stands for an operand."""


@dataclass(frozen=True, slots=True)
class Read:
    """How an operand is read: transposed by `perm` (None: as it is), then with dims of 1 put in at `axes`."""

    perm: Perm | None = None
    axes: tuple[int, ...] = ()


AS_IS = Read()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a node computes in another order of axes.

    Attributes:
        reads: How each operand is read.
        results: The permutation by which each result comes out transposed.
        attributes: Attributes that change.
        numbers: Operands that become constants of these numbers (parameters given as operands).
        picks: Operands, vectors with one element for each axis, whose elements are read in another order.
    """

    reads: tuple[Read, ...]
    results: tuple[Perm, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[int, Any] = field(default_factory=dict)
    picks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from another plan for the same node."""
        return (self.reads, self.results)


Carrier: TypeAlias = Callable[[Node, int, Perm], Plan | None]
"""Given a node, one of its operands (or RESULT) and the permutation there, the plan of the whole node."""


def plan_of(node: Node, place: int, perm: Perm) -> Plan | None:
    """The plan of a node whose operand, or whose results at RESULT, are transposed by `perm`; None if it has none."""
    if node.domain or not node.is_operator or node.bodies or not node.has_latest_meaning or not node.operands:
        return None
    carrier = _broadcasting if _is_broadcasting(node.op_type) else CARRIERS.get(node.op_type)
    if carrier is None:
        return None
    value = node.results[0] if place == RESULT else node.operand(place)
    if value is None or value.rank not in (None, len(perm)):
        return None
    return carrier(node, place, perm)


def _data(node: Node, perm: Perm, results: Perm | None = None, **changes: Any) -> Plan:
    """The plan of an operator whose first operand alone carries axes."""
    reads = (Read(perm), *[AS_IS] * (len(node.operands) - 1))
    return Plan(reads, (perm if results is None else results,) * len(node.results), **changes)


def _parameter(node: Node, name: str, value: Any) -> dict[str, Any]:
    """A changed parameter, as an attribute or as an operand, whichever it is in this opset."""
    position = node.param_operand(name)
    return {"attributes": {name: value}} if position is None else {"numbers": {position: value}}


# --- elementwise

_IN_FIRST = frozenset(("BitCast", "Cast", "CastLike", "Clip"))
"""Elementwise in the first operand; the others are scalars, or give only a type."""


def _is_broadcasting(op_type: str) -> bool:
    return is_elementwise("", op_type) and op_type not in _IN_FIRST


def _broadcasting(node: Node, place: int, perm: Perm) -> Plan | None:
    rank = node.results[0].rank
    if rank != len(perm):
        return None  # an operand that is itself broadcast does not say where the other axes go
    reads = [_lined_up(value, perm) for value in node.operands]
    if any(read is None for read in reads):
        return None
    return Plan(tuple(read for read in reads if read is not None), (perm,) * len(node.results))


def _lined_up(value: Value | None, perm: Perm) -> Read | None:
    """How an operand of any rank is read so that its axes meet those of the permuted result."""
    if value is None:
        return AS_IS
    if value.shape is None:
        return None
    if all(dim == 1 for dim in value.shape):
        return AS_IS  # one element meets every axis
    missing = len(perm) - len(value.shape)
    if missing < 0:
        return None
    own = tuple(axis - missing for axis in perm if axis >= missing)
    ones = [index for index, axis in enumerate(perm) if axis < missing]
    leading = 0
    while leading in ones:
        leading += 1  # dims of 1 in front need not be written
    return Read(
        None if own == identity(len(own)) else own, tuple(index - leading for index in ones if index >= leading)
    )


def _first(node: Node, place: int, perm: Perm) -> Plan | None:
    return _data(node, perm) if place in (0, RESULT) else None


# --- one axis


def _along_axis(node: Node, place: int, perm: Perm) -> Plan | None:
    """Softmax, Split, TopK, CumSum: one axis is special, and stays."""
    axis = axis_of(node, len(perm))
    if place not in (0, RESULT) or axis is None:
        return None
    return _data(node, perm, **_parameter(node, "axis", perm.index(axis)))


def _concat(node: Node, place: int, perm: Perm) -> Plan | None:
    """Concat, GatherElements: every operand carries the axes."""
    axis = axis_of(node, len(perm))
    if axis is None:
        return None
    reads = (Read(perm),) * len(node.operands)
    return Plan(reads, (perm,) * len(node.results), {"axis": perm.index(axis)})


def _gather(node: Node, place: int, perm: Perm) -> Plan | None:
    indices, data = node.operand(1), node.operand(0)
    if place not in (0, RESULT) or indices is None or data is None or indices.rank not in (0, 1) or data.rank is None:
        return None
    axis = axis_of(node, data.rank)
    if axis is None:
        return None
    if indices.rank == 1:
        return _data(node, perm, attributes={"axis": perm.index(axis)})
    whole = perm if place == 0 else with_axes(perm, [axis])
    return _data(node, whole, without_axes(whole, [axis]), attributes={"axis": whole.index(axis)})


def _quantization(node: Node, place: int, perm: Perm) -> Plan | None:
    scale = node.operand(1)
    if place not in (0, RESULT) or scale is None or scale.rank is None or scale.rank > 1 or node.param("block_size"):
        return None
    if scale.rank == 0:
        return _data(node, perm)
    axis = axis_of(node, len(perm))
    return None if axis is None else _data(node, perm, attributes={"axis": perm.index(axis)})


# --- several axes


def _reduction(node: Node, place: int, perm: Perm) -> Plan | None:
    data = node.operand(0)
    if place not in (0, RESULT) or data is None or data.rank is None:
        return None
    if is_given(node, "axes"):
        axes = axes_of(node, data.rank)
    elif node.param("noop_with_empty_axes"):
        return None
    else:
        axes = identity(data.rank)
    return None if axes is None else _reduced(node, place, perm, axes, "axes" if is_given(node, "axes") else "")


def _arg_extreme(node: Node, place: int, perm: Perm) -> Plan | None:
    data = node.operand(0)
    axis = None if data is None else axis_of(node, data.rank)
    return None if axis is None or place not in (0, RESULT) else _reduced(node, place, perm, (axis,), "axis")


def _reduced(node: Node, place: int, perm: Perm, axes: tuple[int, ...], name: str) -> Plan | None:
    data = node.operands[0]
    given = contents(node, name) if name == "axes" else (node.param("axis"),) if name else ()
    if any(isinstance(axis, int) and axis < 0 for axis in given or ()) and (data is None or not _has_elements(data)):
        return None  # ONNX Runtime forgets to reduce a tensor without elements along an axis counted from the end
    keeps = node.param("keepdims") != 0
    whole = perm if keeps or place == 0 else with_axes(perm, axes)
    places = tuple(sorted(whole.index(axis) for axis in axes))
    value: Any = places[0] if name == "axis" else places
    changes = _parameter(node, name, value) if name else {}
    return _data(node, whole, whole if keeps else without_axes(whole, axes), **changes)


def _has_elements(value: Value) -> bool:
    return value.shape is not None and all(dim is not None and symbol.is_positive(dim) for dim in value.shape)


def _squeeze(node: Node, place: int, perm: Perm) -> Plan | None:
    data = node.operand(0)
    if place not in (0, RESULT) or data is None or data.rank is None or not is_given(node, "axes"):
        return None
    axes = axes_of(node, data.rank)
    if axes is None:
        return None
    whole = perm if place == 0 else with_axes(perm, axes)
    places = tuple(sorted(whole.index(axis) for axis in axes))
    return _data(node, whole, without_axes(whole, axes), **_parameter(node, "axes", places))


def _unsqueeze(node: Node, place: int, perm: Perm) -> Plan | None:
    data, given = node.operand(0), contents(node, "axes")
    if place not in (0, RESULT) or data is None or data.rank is None or given is None:
        return None
    axes = axes_of(node, data.rank + len(given))
    if axes is None or len(set(axes)) != len(axes):
        return None
    whole = perm if place == RESULT else with_axes(perm, axes)
    places = tuple(sorted(whole.index(axis) for axis in axes))
    return _data(node, without_axes(whole, axes), whole, **_parameter(node, "axes", places))


def _slice(node: Node, place: int, perm: Perm) -> Plan | None:
    starts = contents(node, "starts")
    if place not in (0, RESULT):
        return None
    if is_given(node, "axes"):
        axes = axes_of(node, len(perm))
    else:
        axes = None if starts is None else identity(len(starts))
    if axes is None or len(axes) > len(perm):
        return None
    return _data(node, perm, **_parameter(node, "axes", tuple(perm.index(axis) for axis in axes)))


def _pad(node: Node, place: int, perm: Perm) -> Plan | None:
    if place not in (0, RESULT):
        return None
    if is_given(node, "axes"):
        axes = axes_of(node, len(perm))
        return None if axes is None else _data(node, perm, **_parameter(node, "axes", [perm.index(a) for a in axes]))
    return _each_axis(node, perm, "pads", (*perm, *(axis + len(perm) for axis in perm)))


def _tile(node: Node, place: int, perm: Perm) -> Plan | None:
    return _each_axis(node, perm, "repeats", perm) if place in (0, RESULT) else None


def _expand(node: Node, place: int, perm: Perm) -> Plan | None:
    data, target = node.operand(0), node.operand(1)
    if place not in (0, RESULT) or data is None or target is None or data.rank != len(perm):
        return None
    if target.const is None:
        return _each_axis(node, perm, "shape", perm) if node.results[0].rank == len(perm) else None
    sizes = target.const.tolist()
    if len(sizes) > len(perm):
        return None
    whole = [1] * (len(perm) - len(sizes)) + sizes
    return _data(node, perm, numbers={1: permuted(whole, perm)})


def _reshape(node: Node, place: int, perm: Perm) -> Plan | None:
    found = carried(node, perm, to_result=place == 0) if place in (0, RESULT) else None
    if found is None or node.param_operand("shape") != 1:
        return None
    own, result, target = found
    return _data(node, own, result, attributes={"allowzero": 0} if node.param("allowzero") else {}, numbers={1: target})


def _each_axis(node: Node, perm: Perm, name: str, order: tuple[int, ...]) -> Plan | None:
    """A parameter with as many numbers for each axis; computed at run time, its elements are picked."""
    given, position = node.param(name), node.param_operand(name)
    if isinstance(given, tuple):
        return None if len(given) != len(order) else _data(node, perm, **_parameter(node, name, permuted(given, order)))
    vector = None if position is None else node.operand(position)
    if vector is None or vector.shape != (len(order),) or position is None:
        return None
    return _data(node, perm, picks={position: order})


_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"

CARRIERS: Mapping[str, Carrier] = {
    **dict.fromkeys(_IN_FIRST, _first),
    **dict.fromkeys(("CumSum", "Hardmax", "LogSoftmax", "Softmax", "Split", "TopK"), _along_axis),
    **dict.fromkeys(("Concat", "GatherElements"), _concat),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantization),
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS.split()), _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}
"""The operators that carry a permutation, but for the elementwise ones."""
