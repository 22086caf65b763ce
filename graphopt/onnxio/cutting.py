"""Cutting a model: let it begin at other values, and leave out what no output needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ValueInfoProto

from graphopt.errors import UsageError
from graphopt.ir import Graph, Kind, Node, Value
from graphopt.ir.structure import holder_of, reads_from_outside
from graphopt.onnxio import protos
from graphopt.onnxio.declared import declaration_of
from graphopt.onnxio.wording import choices


def cut_inputs(graph: Graph, names: Sequence[str]) -> list[str]:
    """Make the named values the inputs of the model, in that order, and take out what no output needs.

    An input that is not named goes, or, where it has a default, becomes a constant.

    Args:
        graph: The main graph, types inferred.
        names: Inputs, inner values or constants of the main graph.

    Returns:
        Sentences on what was done besides.

    Raises:
        UsageError: a name is unknown or given twice, no output needs it, an output still needs an input that is not
            named, or the type of a value is not known.
    """
    values = {value.name: value for node in graph.all_nodes() for value in node.results if value.name}
    if len(set(names)) != len(names):
        raise UsageError("name every input once")
    for name in names:
        if name not in values:
            inside = any(value.name == name for value in _values_in_bodies(graph))
            where = ": it lies in a body of If, Loop or Scan" if inside else ""
            raise UsageError(f"the model has no value '{name}' to begin at{where}; {choices('values', name, values)}")
    chosen = {values[name]: name for name in names}
    _require_enough(graph, chosen)
    defaults = [
        value.name
        for value in graph.inputs
        if value not in chosen and value.uses and (value.producer.default is not None or value.producer.origin)
    ]
    inputs = [_begin_at(graph, value, name) for value, name in chosen.items()]
    listed = [node for node in graph.details.get("listed_inputs", ()) if node.graph is graph and node.is_constant]
    before = graph.operator_count
    drop_unneeded(graph, inputs)
    graph.set_detail("listed_inputs", [*inputs, *(node for node in listed if node.graph is graph)])
    notes = []
    if before > graph.operator_count:
        notes.append(f"{before - graph.operator_count} of {before} nodes lie before the inputs or behind no output")
    if defaults:
        notes.append(f"now constants: {', '.join(map(str, defaults[:8]))}{', …' if len(defaults) > 8 else ''}")
    return notes


def drop_unneeded(graph: Graph, inputs: Iterable[Node]) -> None:
    """Take out every node no output needs, inputs other than those given, and functions nobody calls."""
    kept = dict.fromkeys(inputs)
    for node in reversed(graph.sorted_nodes()):
        if node.kind is Kind.RETURN or node in kept or node.is_pinned:
            continue
        if not node.is_used:
            graph.erase(node, signature=True)
        elif node.kind is Kind.INPUT:
            _fix_default(graph, node)
    model = graph.model
    called = set(_called(graph))
    if set(model.functions) - called:
        model.set_functions({key: function for key, function in model.functions.items() if key in called})


def around(graph: Graph, name: str, depth: int) -> tuple[list[str], list[str]]:
    """The values that go into, and come out of, a node and what is within some steps of it.

    Args:
        graph: The main graph.
        name: A node, or a value it gives.
        depth: How many steps against or along the edges to go; 0 is the node alone.

    Raises:
        UsageError: the main graph has no such node, or nothing comes out of that part.
    """
    part = region(graph, grown(graph, [_node_called(graph, name)], depth))
    if not part.outputs:
        raise UsageError(f"nothing that '{name}' gives is used; choose another node")
    names = dict(zip(graph.outputs, (name for name, _ in graph.details["outputs"]), strict=True))
    return [value.name or "" for value in part.inputs], [names.get(value) or value.name or "" for value in part.outputs]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a main graph.

    Attributes:
        inputs: What flows in, constants not counted.
        outputs: What flows out.
    """

    inputs: list[Value]
    outputs: list[Value]


def grown(graph: Graph, nodes: Iterable[Node], steps: int) -> dict[Node, None]:
    """Some operators, and those within so many steps of them, against and along the edges."""
    inside = dict.fromkeys(nodes)
    rim = list(inside)
    for _ in range(steps):
        near = (node for member in rim for node in (*graph.nx.predecessors(member), *graph.nx.successors(member)))
        rim = list(dict.fromkeys(node for node in near if node.is_operator and node not in inside))
        inside.update(dict.fromkeys(rim))
    return inside


def region(graph: Graph, inside: Mapping[Node, None]) -> Region:
    """What flows into some operators of a graph and out of them."""
    order = [node for node in graph.order() if node in inside]
    read = dict.fromkeys(value for node in order for value in _read_by(node))
    return Region(
        [value for value in read if value.producer not in inside and not value.producer.is_constant],
        [
            value
            for node in order
            for value in node.results
            if any(holder_of(graph, user) not in inside for user, _ in value.uses)
        ],
    )


def needed_inputs(graph: Graph, outputs: Sequence[str]) -> list[str]:
    """The inputs that some outputs, or values that shall be such, need, in their order.

    Names that do not exist are left for whoever selects the outputs to refuse.
    """
    values = {value.name: value for node in graph.all_nodes() for value in node.results if value.name}
    values.update(dict(zip((name for name, _ in graph.details["outputs"]), graph.outputs, strict=True)))
    chosen = [values[name] for name in outputs if name in values]
    _, inputs = _needed(chosen, {})
    return [value.name or "" for value in graph.inputs if value in inputs]


def _node_called(graph: Graph, name: str) -> Node:
    by_name: dict[str, Node] = {}
    for node in graph.nodes():
        by_name.update({value.name: node for value in node.results if value.name})
    by_name.update({node.name: node for node in graph.nodes() if node.name})
    if name not in by_name:
        for owner in (node for node in graph.nodes() if node.bodies):
            inner = (part for node in owner.nested() for part in (node.name, *(value.name for value in node.results)))
            if name in inner:
                place = owner.name or owner.results[0].name
                raise UsageError(f"'{name}' lies in a body of {owner.op_type} '{place}'; cut around that one")
        raise UsageError(f"the main graph has no node '{name}'; {choices('nodes', name, by_name)}")
    return by_name[name]


def _require_enough(graph: Graph, chosen: Mapping[Value, str]) -> None:
    """Refuse a cut that leaves an output without something it needs, or that cuts where nothing flows."""
    met, readers = _needed(graph.outputs, chosen)
    for value, name in chosen.items():
        if value not in met and value.producer.kind is not Kind.INPUT:
            raise UsageError(
                f"no output needs '{name}' once the model begins at the other inputs; leave it out, or name an output "
                "that does"
            )
    for value, reader in readers.items():
        if value.producer.default is not None or value.producer.origin is not None:
            continue  # an input that may be left out
        names = zip(graph.outputs, (name for name, _ in graph.details["outputs"]), strict=True)
        waiting = [name for output, name in names if value in _needed([output], chosen)[1]]
        by = "" if reader is None else f" (read by {reader.name or reader.op_type})"
        raise UsageError(
            f"output '{waiting[0]}' still needs input '{value.name}'{by}; name it among the inputs too, or leave out "
            f"{', '.join(waiting)} by naming the outputs wanted"
        )


def _needed(
    outputs: Iterable[Value], chosen: Mapping[Value, str]
) -> tuple[dict[Value, None], dict[Value, Node | None]]:
    """Which of the chosen values the outputs need, and which inputs besides, each with a node that reads it."""
    met: dict[Value, None] = {}
    inputs: dict[Value, Node | None] = {}
    seen: set[Node] = set()
    stack: list[tuple[Value, Node | None]] = [(value, None) for value in outputs]
    while stack:
        value, reader = stack.pop()
        node = value.producer
        if value in chosen:
            met[value] = None
        elif node.kind is Kind.INPUT:
            inputs.setdefault(value, reader)
        elif node not in seen:
            seen.add(node)
            stack.extend((operand, node) for operand in _read_by(node))
    return met, inputs


def _read_by(node: Node) -> Iterator[Value]:
    """What a node reads, its bodies included."""
    for value in node.operands:
        if value is not None:
            yield value
    for body in node.bodies.values():
        for _, _, value in reads_from_outside(body):
            if value.producer.graph is node.graph:
                yield value


def _begin_at(graph: Graph, value: Value, name: str) -> Node:
    """An input in place of a value; an input gets a new place at the end."""
    old = value.producer
    declared = value.declared if old.kind is Kind.INPUT and value.declared else declaration_of(value, name)
    type = protos.type_of(ValueInfoProto.FromString(declared).type, name)
    if type is None:
        raise UsageError(f"the type of '{name}' is not known, so it cannot be an input; choose a value behind it")
    if old.is_constant and old.is_pinned:
        raise UsageError(f"'{name}' is a constant that training or quantization refers to; it cannot be an input")
    new = graph.add_input(name, type)
    new.declared = declared
    if old.kind is Kind.INPUT:
        new.producer.default, new.producer.origin = old.default, old.origin
    graph.replace_uses(value, new)
    if old.kind is Kind.INPUT:
        graph.erase(old, signature=True)
    else:
        graph.rename(value, None)
        value.declared = None
    return new.producer


def _fix_default(graph: Graph, node: Node) -> None:
    """Make an input with a default a constant."""
    constant = Node(graph.model.next_serial(), Kind.CONSTANT, results=1, tensor=node.default)
    old, new = node.results[0], constant.results[0]
    new.name, new.type = old.name, old.type
    constant.origin, constant.is_new = node.origin, False
    graph.insert(constant, rank=node.rank)
    graph.replace_uses(old, new)
    graph.erase(node, signature=True)


def _values_in_bodies(graph: Graph) -> Iterator[Value]:
    for body in graph.bodies_inside():
        for node in body.all_nodes():
            yield from node.results


def _called(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The local functions that a graph calls, and those these call."""
    functions = graph.model.functions
    stack, seen = [graph], {graph}
    while stack:
        home = stack.pop()
        for inner in (home, *home.bodies_inside()):
            for node in inner.nodes():
                function = functions.get((node.domain, node.op_type, node.overload))
                if function is not None:
                    yield function.key
                    if function.graph not in seen:
                        seen.add(function.graph)
                        stack.append(function.graph)
