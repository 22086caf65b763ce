"""Keys and values kept in one tensor: what is new is put behind all of the old at once.

Older exporters take the old keys and values out of the tensor they are kept in, put the new ones behind each, and
stack both again for the next step, which copies all the old ones three times. Put behind the stack, and taken out of
the result, they are copied twice, by fewer operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt import Context, Graph, Node, Value, graph_pass
from passes._concats import axis_of_concat
from passes._proofs import axes_of, axis_of
from passes._storing import erase_dead, may_go

_LONGEST = 16
_MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the stack.

    Attributes:
        lift: The Unsqueeze that makes a layer of the stack of it.
        whole: The old one and the new one together.
        pick: The Gather that takes the old one out of the old stack.
        new: What is put behind.
    """

    lift: Node
    whole: Value
    pick: Node
    new: Value


@graph_pass(
    before="""(float[2,N,M,4] past, float[N,K,4] k, float[N,K,4] v)
              => (float[2,N,L,4] present, float[N,L,4] y, float[N,L,4] z)
              <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}>
              { p = Gather(past, zero)  q = Gather(past, one)  c = Concat<axis = 1>(p, k)  d = Concat<axis = -2>(q, v)
                e = Unsqueeze(c, a)  f = Unsqueeze(d, a)  present = Concat<axis = 0>(e, f)
                y = Relu(c)  z = Exp(d) }""",
    after="""(float[2,N,M,4] past, float[N,K,4] k, float[N,K,4] v)
             => (float[2,N,L,4] present, float[N,L,4] y, float[N,L,4] z)
             <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}>
             { e = Unsqueeze(k, a)  f = Unsqueeze(v, a)  g = Concat<axis = 0>(e, f)
               present = Concat<axis = 2>(past, g)  c = Gather(present, zero)  y = Relu(c)
               d = Gather(present, one)  z = Exp(d) }""",
    unless=[
        # The stack has another layer.
        """(float[3,N,M,4] past, float[N,K,4] k, float[N,K,4] v) => (float[2,N,L,4] present)
           <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}>
           { p = Gather(past, zero)  q = Gather(past, one)  c = Concat<axis = 1>(p, k)  d = Concat<axis = 1>(q, v)
             e = Unsqueeze(c, a)  f = Unsqueeze(d, a)  present = Concat<axis = 0>(e, f) }""",
        # They change places.
        """(float[2,N,M,4] past, float[N,K,4] k, float[N,K,4] v) => (float[2,N,L,4] present)
           <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}>
           { p = Gather(past, one)  q = Gather(past, zero)  c = Concat<axis = 1>(p, k)  d = Concat<axis = 1>(q, v)
             e = Unsqueeze(c, a)  f = Unsqueeze(d, a)  present = Concat<axis = 0>(e, f) }""",
        # The new values depend on all the keys.
        """(float[2,N,M,4] past, float[N,K,4] k) => (float[2,N,L,4] present)
           <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}, int64[1] o = {1}, int64[1] w = {-1}>
           { p = Gather(past, zero)  q = Gather(past, one)  c = Concat<axis = 1>(p, k)  v = Slice(c, w, o, o)
             d = Concat<axis = 1>(q, v)  e = Unsqueeze(c, a)  f = Unsqueeze(d, a)
             present = Concat<axis = 0>(e, f) }""",
        # As many operators as before.
        """(float[2,N,M,4] past, float[N,K,4] k, float[N,K,4] v) => (float[2,N,L,4] present, float[N,M,4] p)
           <int64 zero = {0}, int64 one = {1}, int64[1] a = {0}>
           { p = Gather(past, zero)  q = Gather(past, one)  c = Concat<axis = 1>(p, k)  d = Concat<axis = 1>(q, v)
             e = Unsqueeze(c, a)  f = Unsqueeze(d, a)  present = Concat<axis = 0>(e, f)  y = Relu(c)  z = Exp(d) }""",
    ],
)
def append_to_stack(graph: Graph, context: Context) -> None:
    """What is put behind each part of a stack is put behind the stack."""
    for node in sorted(graph.of_kind("Concat"), key=lambda item: (item.rank, item.serial)):
        if node.graph is graph and may_go(node, context):
            found = _stacked(node, context)
            if found is not None:
                _append(graph, context, node, *found)


def _stacked(node: Node, context: Context) -> tuple[int, int, list[_Part]] | None:
    """The axis of the stack, the one the new stands behind the old along, and the parts."""
    axis = axis_of_concat(node)
    parts = [] if axis is None else [_part(node, value, axis, context) for value in node.operands]
    if axis is None or len(parts) < 2 or None in parts:
        return None
    found = [part for part in parts if part is not None]
    past, along = found[0].pick.operands[0], {axis_of_concat(part.whole.producer) for part in found}
    if past is None or past.shape is None or past.shape[axis] != len(found) or len(along) != 1:
        return None
    behind = along.pop()
    if behind is None or any(part.pick.operands[0] is not past for part in found):
        return None
    if [_place(part) for part in found] != list(range(len(found))) or len({part.whole for part in found}) != len(found):
        return None
    fewer = sum(part.pick.result.users == [part.whole.producer] for part in found) + 2 * len(found) + 1
    needed = sum(part.whole.users != [part.lift] for part in found) + len(found) + 2
    if needed >= fewer or not _are_apart(found):
        return None
    return axis, behind, found


def _place(part: _Part) -> object:
    """Which layer of the old stack a part was."""
    index = part.pick.operands[1]
    return None if index is None or index.const is None else index.const.scalar()


def _part(node: Node, value: Value | None, axis: int, context: Context) -> _Part | None:
    lift = None if value is None else value.producer
    if value is None or lift is None or not lift.is_op("Unsqueeze") or value.users != [node] or value.rank is None:
        return None
    whole = lift.operands[0]
    if whole is None or axes_of(lift, value.rank) != (axis,) or not whole.producer.is_op("Concat"):
        return None
    maker = whole.producer
    old, new = (*maker.operands, None, None)[:2]
    if old is None or new is None or len(maker.operands) != 2 or not old.producer.is_op("Gather"):
        return None
    pick = old.producer
    index = pick.operands[1]
    if index is None or index.const is None or index.rank != 0 or axis_of(pick, value.rank) != axis:
        return None
    is_free = all(item.graph is node.graph and may_go(item, context) for item in (lift, maker, pick))
    return _Part(lift, whole, pick, new) if is_free else None


def _are_apart(parts: list[_Part]) -> bool:
    """True if nothing new depends on old and new together: looked for up to what all that is new comes from."""
    chains = [_chain(part.new) for part in parts]
    shared = [node for node in chains[0] if all(node in chain for chain in chains)]
    wholes = {part.whole.producer for part in parts}
    seen: dict[Node, None] = dict.fromkeys(shared)
    waiting = [part.new.producer for part in parts]
    while waiting:
        node = waiting.pop()
        if node in wholes or len(seen) > _MOST_NODES or node.bodies:
            return False
        if node not in seen:
            seen[node] = None
            waiting += [value.producer for value in node.operands if value is not None]
    return True


def _chain(value: Value) -> dict[Node, None]:
    """What a value comes from by way of first operands that are computed; where it begins is acyclic with the rest."""
    found: dict[Node, None] = {}
    for _ in range(_LONGEST):
        found[value.producer] = None
        before = next((item for item in value.producer.operands if item is not None and item.const is None), None)
        if before is None:
            break
        value = before
    return found


def _append(graph: Graph, context: Context, node: Node, axis: int, behind: int, parts: list[_Part]) -> None:
    b = context.builder(graph)
    past = parts[0].pick.operands[0]
    lifted = [b.like(part.lift, part.new, *part.lift.operands[1:]) for part in parts]
    stack = b.like(node, past, b.Concat(*lifted, axis=axis), axis=behind + (behind >= axis))
    wholes = [b.like(part.pick, stack, part.pick.operands[1]) for part in parts]
    with context.rewrite(graph):
        for made in b.nodes:
            graph.insert(made, rank=node.rank)
        graph.replace_uses(node.result, stack)
        dead = [node, *(part.lift for part in parts)]
        for item in dead:
            graph.erase(item)
        for part, whole in zip(parts, wholes, strict=True):
            graph.replace_uses(part.whole, whole)
        erase_dead([part.whole.producer for part in parts], context)
        erase_dead([whole.producer for whole in wholes], context)
