"""Turning nodes: they are built anew for another order of axes, and what read them reads that, or a Transpose of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt import Builder, Context, DType, Graph, Node, Tensor, TensorType, Value
from passes._carriers import Plan, Read
from passes._layout_cost import Transposes, is_free, is_same_sequence
from passes._permutation import Perm, compose, identity, inverse, is_identity, permuted
from passes._reshape_carrier import splits_heads, written

_RESHAPE_BY_OPERAND = 5
"""Since this opset a Reshape takes its shape as an operand."""


class Turning:
    """One region's nodes, turned as one rewrite."""

    def __init__(self, transposes: Transposes, context: Context) -> None:
        self._transposes = transposes
        self._context = context
        self._graph: Graph = transposes.graph
        self._builder: Builder = context.builder(self._graph)
        self._turned: dict[Value, tuple[Value, Perm]] = {}
        """For each result of a turned node, what it becomes, and in which order that comes out."""
        self._made: dict[tuple[Value, Perm], Value] = {}
        self._spread: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self._ranks: dict[Node, int] = {}

    def run(self, plans: dict[Node, Plan], chosen: frozenset[Node]) -> None:
        """Build the chosen nodes anew and take out the old ones."""
        order = _in_order(plans, chosen, self._transposes)
        for node in order:
            self._build(node, plans[node])
        with self._context.rewrite(self._graph):
            self._insert()
            before = [value for node in order for value in node.operands if value is not None]
            for node in reversed(order):
                for value in node.results:
                    self._redirect(value)
                self._graph.erase(node)
            self._clean(before)

    # --- building

    def _build(self, node: Node, plan: Plan) -> None:
        first = len(self._builder.nodes)
        shortcut = self._shortcut(node, plan) if node.op_type == "Reshape" else None
        operands = self._operands(node, plan) if shortcut is None else shortcut
        made = self._builder.like(node, *operands, **plan.attributes)
        results: tuple[Value, ...] = made if isinstance(made, tuple) else (made,)
        results[0].producer.name = node.name
        for old, new, perm in zip(node.results, results, plan.results, strict=True):
            if old.name == "":
                new.name = ""  # an optional result the model leaves out
            _retype(new, old, perm)
            self._turned[old] = (new, perm)
        for made_node in self._builder.nodes[first:]:
            self._ranks[made_node] = node.rank

    def _operands(self, node: Node, plan: Plan) -> list[Value | None]:
        operands: list[Value | None] = []
        for index, value in enumerate(node.operands):
            if value is None:
                operands.append(None)
            elif index in plan.picks:
                picks = np.array(plan.picks[index], dtype=np.int64)
                operands.append(self._builder.Gather(value, picks, axis=0))
            elif index in plan.numbers:
                operands.append(self._number(plan.numbers[index], value.dtype))
            else:
                operands.append(self._read(value, plan.reads[index]))
        for index in sorted(index for index in plan.numbers if index >= len(operands)):
            operands += [None] * (index - len(operands))
            operands.append(self._number(plan.numbers[index], DType.INT64))
        return operands

    def _shortcut(self, node: Node, plan: Plan) -> list[Value | None] | None:
        """The operands of a Reshape of what is there already, if only axes of size 1 stand elsewhere in it."""
        value, wanted, shape = node.operands[0], plan.reads[0].perm, node.results[0].shape
        if value is None or wanted is None or shape is None:
            return None
        root, by = self._transposes.root_of(value)
        there, given = self._turned.get(root, (root, identity(len(wanted))))
        wanted = wanted if by is None else compose(by, wanted)
        if given == wanted or there.shape is None or not is_same_sequence(root, given, wanted):
            return None
        target = written(permuted(shape, plan.results[0]), there.shape)
        return None if target is None else [there, self._number(target, DType.INT64)]

    def _number(self, value: Any, dtype: DType | None) -> Value:
        array = np.array(value, dtype=np.int64 if dtype is None else dtype.numpy)
        return self._builder.constant(array)

    def _read(self, value: Value, read: Read) -> Value:
        """The operand as a turned node reads it."""
        own = self._ordered(value, read.perm)
        return self._lined_up(own, read.axes) if read.axes else own

    def _lined_up(self, value: Value, axes: tuple[int, ...]) -> Value:
        """A value with dims of 1 put in, as near to the weights as possible."""
        found = self._spread.get((value, axes))
        if found is None:
            found = self._spread[value, axes] = self._make_lined_up(value, axes)
        return found

    def _make_lined_up(self, value: Value, axes: tuple[int, ...]) -> Value:
        node = value.producer
        if value.const is not None and is_free(value):
            spread = np.expand_dims(value.const.numpy(), axes)
            return self._builder.constant(Tensor.from_numpy(spread, value.const.dtype))
        if node.is_op("DequantizeLinear") and all(part is None or part.rank == 0 for part in node.operands[1:]):
            quantized = node.operands[0]
            if quantized is not None and quantized.const is not None and is_free(quantized):
                dequantized: Value = self._builder.like(node, self._lined_up(quantized, axes), *node.operands[1:])
                return dequantized
        lined_up: Value = self._builder.Unsqueeze(value, axes=list(axes))
        return lined_up

    def _ordered(self, value: Value, perm: Perm | None) -> Value:
        """A value, transposed by `perm`: what there is already, else a Transpose of what is nearest."""
        root, by = self._transposes.root_of(value)
        if perm is None and by is None:
            rank = root.rank
            if rank is None or root not in self._turned:
                return value
            perm = identity(rank)
        if by is not None:
            perm = by if perm is None else compose(by, perm)
        assert perm is not None
        if root in self._turned:
            turned, given = self._turned[root]
            return self._transposed(turned, compose(inverse(given), perm))
        return self._transposed(root, perm)

    def _transposed(self, value: Value, perm: Perm) -> Value:
        if is_identity(perm):
            return value
        found = self._made.get((value, perm))
        if found is None:
            found = self._made[value, perm] = self._existing(value, perm) or self._transpose(value, perm)
        return found

    def _existing(self, value: Value, perm: Perm) -> Value | None:
        """A Transpose there is, or a view of one that differs only by axes of size 1."""
        orders = {own: made for (source, own), made in self._made.items() if source is value}
        for user, index in value.uses:
            own = self._transposes.perm_of(user)
            if own is not None and index == 0:
                orders.setdefault(own, user.results[0])
        if perm in orders or is_same_sequence(value, identity(len(perm)), perm):
            return orders.get(perm)
        near = next((own for own in sorted(orders) if is_same_sequence(value, own, perm)), None)
        return None if near is None else self._transpose(orders[near], compose(inverse(near), perm))

    def _transpose(self, value: Value, perm: Perm) -> Value:
        if value.const is not None and is_free(value):
            tensor = value.const
            shape = tuple(tensor.shape[axis] for axis in perm)
            # Not computed before somebody reads it: a large weight is turned around only on its way into the file.
            return self._builder.constant(Tensor(tensor.dtype, shape, lambda: _transposed_array(tensor, perm)))
        target = self._target_of_reshape(value, perm)
        result: Value
        if target is not None:
            result = self._builder.Reshape(value, np.array(target, dtype=np.int64))
        else:
            result = self._builder.Transpose(value, perm=list(perm))
        _retype(result, value, perm)
        return result

    def _target_of_reshape(self, value: Value, perm: Perm) -> tuple[int, ...] | None:
        """The shape to ask a Reshape for, where only axes of size 1 change places and no element moves."""
        moves_nothing = is_same_sequence(value, identity(len(perm)), perm)
        if value.shape is None or not moves_nothing or splits_heads(value.producer):
            return None
        is_new = self._graph.opsets.get("", 0) >= _RESHAPE_BY_OPERAND
        return written(permuted(value.shape, perm), value.shape) if is_new else None

    # --- editing

    def _insert(self) -> None:
        for node in self._builder.nodes:
            if node.graph is None:
                self._graph.insert(node, rank=self._ranks.get(node))

    def _redirect(self, value: Value) -> None:
        """Let everything that still reads a turned node's old result read what stands for it."""
        new, perm = self._turned[value]
        for user in value.users:
            step = self._transposes.perm_of(user)
            if step is not None and user.graph is self._graph:
                self._redirect_transpose(user, new, compose(inverse(perm), step))
        if value.is_used:
            self._replace(value, self._late(new, inverse(perm), value.producer.rank))

    def _redirect_transpose(self, node: Node, new: Value, perm: Perm) -> None:
        """A Transpose of an old result becomes one of the new result, or nothing."""
        (result,) = node.results
        if result.is_used:
            self._replace(result, self._late(new, perm, node.rank))
        self._graph.erase(node)

    def _late(self, value: Value, perm: Perm, rank: int) -> Value:
        """A Transpose made while the graph is edited."""
        found = self._transposed(value, perm)
        for node in self._builder.nodes:
            if node.graph is None:
                self._graph.insert(node, rank=rank)
        return found

    def _replace(self, old: Value, new: Value) -> None:
        self._graph.replace_uses(old, new)

    def _clean(self, values: Sequence[Value]) -> None:
        """Erase Transposes and weights that only turned nodes read."""
        pending = list(values)
        while pending:
            value = pending.pop()
            node = value.producer
            if node.graph is not self._graph or node.is_used or node.is_pinned:
                continue
            if node.is_constant or node.is_op("DequantizeLinear") or self._transposes.perm_of(node) is not None:
                pending += [operand for operand in node.operands if operand is not None]
                self._graph.erase(node)


def _transposed_array(tensor: Tensor, perm: Perm) -> Any:
    return np.ascontiguousarray(np.transpose(tensor.numpy(), perm))


def _retype(new: Value, old: Value, perm: Perm) -> None:
    """What inference does not know of a new value follows from the old one."""
    known = old.type
    if not isinstance(known, TensorType):
        return
    found = new.type
    if isinstance(found, TensorType) and found.shape is not None and None not in found.shape:
        return
    shape = None if known.shape is None or len(known.shape) != len(perm) else permuted(known.shape, perm)
    new.type = TensorType(known.dtype, shape)


def _in_order(plans: dict[Node, Plan], chosen: frozenset[Node], transposes: Transposes) -> list[Node]:
    """The chosen nodes, producers before users."""
    done: dict[Node, None] = {}
    for start in plans:
        if start not in chosen:
            continue
        stack = [(start, False)]
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                done[node] = None
            elif node not in done:
                stack.append((node, True))
                roots = [transposes.root_of(value)[0] for value in node.operands if value is not None]
                stack += [
                    (root.producer, False) for root in roots if root.producer in chosen and root.producer not in done
                ]
    return list(done)
