"""Which nodes should compute in another order of axes: regions around Transposes, and their cheapest division.

From a Transpose a region is grown over the nodes that carry its permutation, in both directions. Each of them either
stays or turns; a division of the region into the two costs the Transposes at its border, and those it saves are the
Transposes that were there. The cheapest division is a minimum cut (Picard and Ratliff, 1975); what a cut cannot express
it overestimates, and the true price decides at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from graphopt import Node, Value
from passes._carriers import RESULT, Plan, plan_of
from passes._layout_cost import LAST_AXIS, NODE_COST, Transposes, absorbed_by, hidden_bytes, is_free
from passes._permutation import Perm, compose, identity, inverse, is_identity
from passes._proofs import HALVES

MAX_REGION = 600
"""Nodes of one region; a larger one is done piece by piece."""
SMALL_REGION = 60
"""Nodes of one region where so many overlap that looking at large ones would take too long."""
_STAYS, _TURNS = "stays", "turns"

Region = dict[Node, Plan]
MayTurn = Callable[[Node], bool]


def grow(transposes: Transposes, may_turn: MayTurn, node: Node, plan: Plan, limit: int = MAX_REGION) -> Region:
    """All nodes that carry a permutation together with one node, and how.

    Args:
        transposes: The Transposes of the graph; a region does not reach across one.
        may_turn: Whether a node may compute in another order at all.
        node: Where to begin.
        plan: How that node carries the permutation.
        limit: The most nodes.
    """
    region: Region = {node: plan}
    pending = deque([node])

    def add(other: Node, place: int, perm: Perm) -> None:
        if other not in region and len(region) < limit and may_turn(other):
            found = plan_of(other, place, perm)
            if found is not None:
                region[other] = found
                pending.append(other)

    while pending:
        current = pending.popleft()
        for value, read in zip(current.operands, region[current].reads, strict=True):
            if value is None or read.perm is None or value.producer.is_constant:
                continue
            add(value.producer, RESULT, read.perm)
            for user, index in value.uses:
                add(user, index, read.perm)
        for value, perm in zip(current.results, region[current].results, strict=True):
            for user, index in value.uses if not is_identity(perm) else ():
                add(user, index, perm)
    return region


@dataclass(frozen=True, slots=True)
class _Root:
    """A value that nodes of a region read or make.

    Attributes:
        value: The value.
        turned: The order in which it comes out if its producer turns; None if that is not of the region.
        readers: What reads it, with the order it reads in if it stays and if it turns.
        products: For each matrix product that reads it, the orders that are the same to it.
    """

    value: Value
    turned: Perm | None
    readers: tuple[tuple[Node, Perm, Perm], ...]
    products: tuple[tuple[Perm, ...], ...]


class Division:
    """A region and what each way to divide it costs."""

    def __init__(self, transposes: Transposes, region: Region) -> None:
        self._transposes = transposes
        self._region = region
        self._roots = [self._root(value, rank) for value, rank in self._values()]
        self._tied = list(self._ties())

    def _values(self) -> Iterable[tuple[Value, int]]:
        """The roots around the region with their ranks."""
        found: dict[Value, int] = {}
        for node, plan in self._region.items():
            for value, read in zip(node.operands, plan.reads, strict=True):
                if value is None:
                    continue
                root, perm = self._transposes.root_of(value)
                if is_free(root):
                    continue  # a small weight may have thousands of readers, and costs none of them anything
                rank = len(read.perm) if read.perm is not None else len(perm) if perm is not None else root.rank
                if rank is not None:
                    found[root] = rank
            for value, perm in zip(node.results, plan.results, strict=True):
                found[value] = len(perm)
        return found.items()

    def _root(self, value: Value, rank: int) -> _Root:
        plan = self._region.get(value.producer)
        readers, products = [], []
        for reader in self._transposes.readers(value, rank):
            absorbed = absorbed_by(reader.node, reader.index, rank)
            if absorbed:
                products.append((reader.perm, *(compose(reader.perm, inverse(perm)) for perm in absorbed)))
                continue
            own = self._region.get(reader.node)
            read = None if own is None else own.reads[reader.index].perm
            turned = reader.perm if read is None else compose(reader.perm, read)
            readers.append((reader.node, reader.perm, turned))
        return _Root(value, None if plan is None else plan.results[value.index], tuple(readers), tuple(products))

    def _ties(self) -> Iterator[tuple[Node, Node]]:
        """Pairs that only turn together: nothing comes between what is quantized and the nodes around it."""
        for node in self._region:
            for value in node.operands:
                if value is not None and self._is_bound(value.producer, node):
                    yield value.producer, node
            for value in node.results:
                for user in value.users:
                    if self._is_bound(node, user):
                        yield node, user

    def _is_bound(self, producer: Node, user: Node) -> bool:
        """True if a runtime looks for these two next to each other.

        Quantized values and what reads or makes them; a Cast to a half and what reads it, or from a half and what makes
        it: a runtime that computes halves in float32 leaves out the rounding there, and would no longer.
        """
        if not producer.is_operator or any(self._transposes.perm_of(node) is not None for node in (producer, user)):
            return False
        if _rounds(producer, producer.results[0]) or (user.is_operator and _rounds(user, user.operands[0])):
            return True
        if producer.op_type == "DequantizeLinear" and producer.operands[0] is not None:
            return producer.operands[0].const is None
        return user.op_type == "QuantizeLinear" or producer.op_type == "QuantizeLinear"

    # --- prices

    def price(self, turning: frozenset[Node]) -> tuple[int, int]:
        """The bytes moved and the price, if those nodes turn."""
        moved = total = 0
        for root in self._roots:
            given = root.turned if root.turned is not None and root.value.producer in turning else None
            wanted = {turned if node in turning else stays for node, stays, turned in root.readers}
            for orders in root.products:
                there = {identity(len(orders[0])) if given is None else given, *wanted}
                if there.isdisjoint(orders):
                    wanted.add(orders[0])
            if wanted:
                own = identity(len(min(wanted))) if given is None else given
                root_moved, root_price = self._transposes.of_orders(root.value, own, sorted(wanted))
                moved, total = moved + root_moved, total + root_price
        for node, plan in self._region.items():
            own_moved, own_price = _own_price(node, plan if node in turning else None)
            moved, total = moved + own_moved, total + own_price
        return moved, total

    def cheapest(self) -> frozenset[Node]:
        """The nodes that turn in the cheapest division, as few as possible; none if nothing is gained."""
        cut = _Cut()
        for root in self._roots:
            self._add_root(cut, root)
        for node, plan in self._region.items():
            more = _own_price(node, plan)[1] - _own_price(node, None)[1]
            cut.arc(_STAYS if more > 0 else node.serial, node.serial if more > 0 else _TURNS, abs(more))
        for one, other in self._tied:
            cut.tie(self._place(one), self._place(other))
        turns = cut.turning()
        chosen = frozenset(node for node in self._region if node.serial in turns)
        now, then = self.price(frozenset()), self.price(chosen)
        return chosen if then[0] <= now[0] and then[1] < now[1] else frozenset()

    def _place(self, node: Node) -> int | str:
        return node.serial if node in self._region else _STAYS

    def _add_root(self, cut: _Cut, root: _Root) -> None:
        """What reading a root costs, order by order, as arcs."""
        orders: dict[Perm, None] = {}
        for _, stays, turned in root.readers:
            orders[stays] = orders[turned] = None
        products = [_nearest(orders, root.turned) for orders in root.products]
        orders.update(dict.fromkeys(perm for perm in products if perm is not None))
        for perm in sorted(orders):
            own = identity(len(perm))
            other = root.turned if perm == own and root.turned is not None else perm
            price = self._transposes.price(root.value, own, other)
            if root.turned == own and perm == own:
                continue  # it is there either way
            always = perm in products or any(stays == turned == perm for _, stays, turned in root.readers)
            if_stays = [node.serial for node, stays, turned in root.readers if stays == perm != turned]
            if_turns = [node.serial for node, stays, turned in root.readers if turned == perm != stays]
            producer = root.value.producer.serial
            if perm == own:
                if root.turned is not None:  # it is there unless the producer turns
                    everything = always or if_turns
                    cut.arc(_STAYS, producer, price) if everything else cut.any_stays(if_stays, producer, price)
            elif perm == root.turned:  # it is there only if the producer turns
                everything = always or if_stays
                cut.arc(producer, _TURNS, price) if everything else cut.any_turns(if_turns, producer, price)
            elif not always:
                cut.any_turns(if_turns, _STAYS, price)
                cut.any_stays(if_stays, _TURNS, price)


class _Cut:
    """A network whose minimum cut divides nodes into those that stay and those that turn."""

    def __init__(self) -> None:
        self._arcs: dict[tuple[int | str, int | str], int] = {}
        self._helpers = 0
        self._total = 1

    def arc(self, one: int | str, other: int | str, price: int) -> None:
        """Pay if `one` stays and `other` turns."""
        if price > 0:
            self._arcs[one, other] = self._arcs.get((one, other), 0) + price
            self._total += price

    def tie(self, one: int | str, other: int | str) -> None:
        """Two nodes that do the same."""
        self._arcs[one, other] = self._arcs[other, one] = -1

    def any_turns(self, readers: Iterable[int], producer: int | str, price: int) -> None:
        """Pay once if the producer stays and any of the readers turns."""
        self._shared(list(readers), producer, price, turns=True)

    def any_stays(self, readers: Iterable[int], producer: int | str, price: int) -> None:
        """Pay once if the producer turns and any of the readers stays."""
        self._shared(list(readers), producer, price, turns=False)

    def _shared(self, readers: list[int], producer: int | str, price: int, *, turns: bool) -> None:
        if not readers:
            return
        self._helpers += 1
        helper = f"helper {self._helpers}"
        for reader in readers:
            self._arcs[(helper, reader) if turns else (reader, helper)] = -1
        one, other = (producer, helper) if turns else (helper, producer)
        self.arc(one, other, price)

    def turning(self) -> set[int | str]:
        """The nodes that turn; the fewest if several divisions are equally cheap."""
        network: nx.DiGraph[int | str] = nx.DiGraph()
        network.add_nodes_from((_STAYS, _TURNS))
        for (one, other), price in self._arcs.items():
            if one != other and one != _TURNS and other != _STAYS:
                network.add_edge(one, other, capacity=self._total if price < 0 else price)
        _, (_, turns) = nx.minimum_cut(network, _STAYS, _TURNS, flow_func=boykov_kolmogorov)
        return turns


def _own_price(node: Node, plan: Plan | None) -> tuple[int, int]:
    """The bytes that a node moves by itself and the price of that and of the nodes it needs besides.

    Args:
        node: The node.
        plan: How it computes if it turns; None if it stays.
    """
    if plan is None:
        return (hidden_bytes(node, node.param("axis")),) * 2 if node.op_type in LAST_AXIS else (0, 0)
    reads = zip(node.operands, plan.reads, strict=True)
    lined_up = sum(bool(read.axes) and value is not None and value.const is None for value, read in reads)
    moved = hidden_bytes(node, plan.attributes["axis"]) if node.op_type in LAST_AXIS else 0
    return moved, moved + NODE_COST // 4 * (lined_up + len(plan.picks))


def _nearest(orders: tuple[Perm, ...], turned: Perm | None) -> Perm | None:
    """The order that a root gives if it stays, else the one it gives if it turns; None if both will do, or neither."""
    found = [perm for perm in (identity(len(orders[0])), turned) if perm in orders]
    return found[0] if len(found) == 1 else None


def _rounds(cast: Node, half: Value | None) -> bool:
    """True for a Cast between a half, on this side of it, and a longer float."""
    if cast.op_type != "Cast" or cast.operands[0] is None or half is None or half.dtype not in HALVES:
        return False
    other = cast.operands[0] if half is cast.results[0] else cast.results[0]
    return other.dtype is not None and other.dtype.is_float and other.dtype not in HALVES
