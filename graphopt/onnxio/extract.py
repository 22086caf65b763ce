"""A model of a few nodes out of a graph whose constants are inputs: weights are fed, never serialized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.ir import Graph, Kind, Node, Value
from graphopt.onnxio import protos
from graphopt.tensors import Tensor

_OLDEST_IR = 7


@dataclass(frozen=True, slots=True)
class Extract:
    """A model cut out of a graph.

    Attributes:
        model: The model. Its nodes are called `n` and their serial number, values are numbered likewise.
        inputs: Name of an input to the value whose data it must be fed.
        outputs: Name of an output to the value it gives.
        nodes: Name of a node, as it appears in messages of a runtime, to the node.
    """

    model: ModelProto
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    nodes: Mapping[str, Node]


def extract(nodes: Sequence[Node], outputs: Sequence[Value], data: Mapping[Value, Tensor]) -> Extract:
    """Cut nodes out of their graph.

    Args:
        nodes: Nodes of one graph in topological order. Bodies go along; calls of local functions cannot.
        outputs: Results of these nodes that the model shall give.
        data: Tensors of values that are not constants of the graph but known.

    Returns:
        The model; element types and shapes of its inputs are those of the data.

    Raises:
        ValueError: a node reads a value that is neither made by the nodes before it nor known.
    """
    cutter = _Cutter(data)
    graph = GraphProto(name="extract")
    for node in nodes:
        graph.node.append(cutter.node(node))
    for value, tensor in cutter.inputs.items():
        graph.input.append(_input(_name(value), tensor))
    # No types: the runtime finds them, and one that the file states wrongly would make it refuse the model.
    graph.output.extend(ValueInfoProto(name=_name(value)) for value in outputs)
    home = nodes[0].graph
    assert home is not None
    model = ModelProto(ir_version=max(home.model.ir_version, _OLDEST_IR), graph=graph)
    # Only what is used: a runtime refuses a model for importing an opset that it does not know.
    used = {"", *(inner.domain for node in nodes for inner in (node, *node.nested()))}
    for domain, version in home.opsets.items():
        if domain in used:
            model.opset_import.add(domain=domain, version=version)
    return Extract(
        model,
        {_name(value): value for value in cutter.inputs},
        {_name(value): value for value in outputs},
        {_node_name(node): node for node in nodes},
    )


def _name(value: Value) -> str:
    return f"v{value.producer.serial}_{value.index}"


def _node_name(node: Node) -> str:
    return f"n{node.serial}"


def _input(name: str, tensor: Tensor) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = int(tensor.dtype)
    info.type.tensor_type.shape.SetInParent()
    for size in tensor.shape:
        info.type.tensor_type.shape.dim.add(dim_value=size)
    return info


class _Cutter:
    """Writes nodes and bodies, and notes what must be fed."""

    def __init__(self, data: Mapping[Value, Tensor]) -> None:
        self.inputs: dict[Value, Tensor] = {}
        self._data = data
        self._made: dict[Value, None] = {}

    def node(self, node: Node) -> NodeProto:
        proto = _own_attributes(node)
        proto.name = _node_name(node)
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        proto.input.extend("" if value is None else self.read(value) for value in node.operands)
        # An optional result that the model leaves out stays left out: some operators count their results.
        proto.output.extend("" if value.name == "" and not value.uses else _name(value) for value in node.results)
        lists: dict[str, list[GraphProto]] = {}
        for name, body in node.bodies.items():
            lists.setdefault(name.split("[")[0], []).append(self.body(body))
        for name, bodies in lists.items():
            attribute = proto.attribute.add(name=name)
            if f"{name}[0]" in node.bodies:
                attribute.type = AttributeProto.GRAPHS
                attribute.graphs.extend(bodies)
            else:
                attribute.type = AttributeProto.GRAPH
                attribute.g.CopyFrom(bodies[0])
        self._made.update(dict.fromkeys(node.results))
        return proto

    def read(self, value: Value) -> str:
        """The name of an operand; a known one becomes an input, wherever it is read."""
        if value not in self._made and value not in self.inputs:
            tensor = self._data.get(value) or value.const
            if tensor is None:
                raise ValueError(f"{value!r} is not known; extract the node that makes it too")
            self.inputs[value] = tensor
        return _name(value)

    def body(self, body: Graph) -> GraphProto:
        graph = GraphProto(name=body.name or "body")
        for value in body.inputs:
            graph.input.append(_declared(value))
            self._made[value] = None
        for node in body.order():
            graph.node.append(self.node(node))
        seen: dict[Value, None] = {}
        for index, value in enumerate(body.outputs):
            name = self.read(value)
            is_own = value.producer.graph is body and value.producer.kind is Kind.OPERATOR
            if not is_own or value in seen:
                # A body returns each of its own values at most once, and nothing else.
                relay = f"r{body.return_node.serial}_{index}"
                graph.node.add(op_type="Identity", input=[name], output=[relay])
                name = relay
            seen[value] = None
            graph.output.append(ValueInfoProto(name=name))
        return graph


def _declared(value: Value) -> ValueInfoProto:
    info = ValueInfoProto() if value.declared is None else ValueInfoProto.FromString(value.declared)
    info.name = _name(value)
    type = protos.type_proto(value.type)
    if value.declared is None and type is not None:
        info.type.CopyFrom(type)
    return info


def _own_attributes(node: Node) -> NodeProto:
    """A message that holds a node's attributes and nothing else: as the file spells them where they still hold."""
    origin = node.origin
    if origin is not None and node.has_attributes_as_read and not node.bodies:
        read = NodeProto.FromString(bytes(origin.proto))
        if not any(_is_external(attribute) for attribute in read.attribute):
            return NodeProto(attribute=read.attribute)
    return NodeProto(attribute=[protos.attribute_proto(name, value) for name, value in node.attributes.items()])


def _is_external(attribute: AttributeProto) -> bool:
    return attribute.HasField("t") and attribute.t.data_location == TensorProto.EXTERNAL
