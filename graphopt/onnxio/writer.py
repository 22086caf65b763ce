"""IR to ModelProto at wire level: what no rewrite touched is copied as it was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, TensorAnnotation, ValueInfoProto

from graphopt.errors import ModelError
from graphopt.ir import Function, Graph, Kind, Model, Node, Value, contradict
from graphopt.onnxio import protos
from graphopt.onnxio.names import Names
from graphopt.onnxio.wire import BYTES, Message, fields
from graphopt.tensors import DType, FileRegion, Tensor

Place = Callable[[str, Tensor], dict[str, str] | None]
"""Decides for a tensor by name whether its bytes go to an external file; returns its `external_data` entries if so."""
_LIMIT = (1 << 31) - 1
_GRAPH_ORDER = (1, 2, 5, 10, 11, 12, 13, 14, 15, 16)


def to_proto(graph: Graph) -> ModelProto:
    """The whole model as a message in memory.

    Raises:
        ModelError: it is larger than a message may be; save it to a file instead.
    """
    message = write_model(graph.model)
    if message.length > _LIMIT:
        raise ModelError(f"the model has {message.length} bytes, more than a message holds; save it to a file instead")
    return ModelProto.FromString(message.to_bytes())


def write_model(model: Model, place: Place | None = None) -> Message:
    """The model as a message whose weights are still where they were read.

    Args:
        model: The model.
        place: Where weights go; None keeps each inside the message, external ones included.
    """
    out = Message()
    out.varint(1, model.ir_version)
    kept = model.details.get("fields", [])
    for number, piece in kept:
        if number < 7:
            out.raw(piece)
    writer = _Writer(model, place)
    out.message(7, writer.graph(model.graph, [name for name, _ in model.graph.details["outputs"]]))
    if dict(model.graph.opsets) == model.details.get("opsets"):
        for piece in model.details["import_fields"]:
            out.raw(piece)
    else:
        for domain, version in model.graph.opsets.items():
            out.payload(8, OperatorSetIdProto(domain=domain, version=version).SerializeToString())
    for number, piece in kept:
        if 8 < number < 25:
            out.raw(piece)
    for function in model.functions.values():
        writer.function(out, function)
    for number, piece in kept:
        if number > 25:
            out.raw(piece)
    return out


class _Writer:
    def __init__(self, model: Model, place: Place | None) -> None:
        self.model = model
        self.place = place
        self.names: Names
        self.in_function = False

    # --- graphs -----------------------------------------------------------------------------------------------------------

    def graph(self, graph: Graph, signature: list[str]) -> Message:
        self.names = Names(graph, signature)
        return self.write_graph(graph)

    def write_graph(self, graph: Graph) -> Message:
        parts: dict[int, Message] = {number: Message() for number in _GRAPH_ORDER}
        parts[2].text(2, graph.name)
        initializers = [*self.write_nodes(graph, parts[1]), *(n for n in graph.constants() if not self.as_node(n))]
        for node in sorted(set(initializers), key=lambda node: (node.rank, node.serial)):
            self.initializer(node, parts)
        self.signature(graph, parts)
        self.value_infos(graph, parts[13])
        self.annotations(graph, parts[14])
        other = Message()
        for number, piece in graph.details.get("fields", []):
            parts.get(number, other).raw(piece)
        out = Message()
        for number in _GRAPH_ORDER:
            out.pieces.extend(parts[number].pieces)
            out.length += parts[number].length
        out.pieces.extend(other.pieces)
        out.length += other.length
        return out

    def write_nodes(self, graph: Graph, out: Message) -> list[Node]:
        overridable = []
        for node in graph.sorted_nodes():
            if node.kind is Kind.OPERATOR or (node.is_constant and self.as_node(node)):
                out.message(1, self.node(node))
            elif node.kind is Kind.INPUT and node.origin is not None:
                overridable.append(node)
        for value, name in self.names.relays[graph]:
            relay = NodeProto(op_type="Identity", input=[self.names.of[value]], output=[name], name=f"{name}_relay")
            out.payload(1, relay.SerializeToString())
        return overridable

    def as_node(self, node: Node) -> bool:
        """True if a constant must or should be a `Constant` node."""
        if node.tensor is None:
            return False  # sparse
        if node.stored_as_node or self.in_function:
            return True
        return self.model.ir_version < 4 and node.results[0].declared is None and node.origin is None

    def initializer(self, node: Node, parts: dict[int, Message]) -> None:
        name = self.names.of[node.results[0]]
        if node.tensor is None and node.default is None:
            assert node.origin is not None
            parts[15].payload(15, _renamed_sparse(node.origin.proto, name))
            return
        tensor = node.tensor if node.tensor is not None else node.default
        assert tensor is not None
        parts[5].message(5, self.tensor(tensor, name, node))

    def tensor(self, tensor: Tensor, name: str, node: Node | None = None) -> Message:
        entries = None if self.place is None else self.place(name, tensor)
        origin = None if node is None or node.stored_as_node else node.origin
        if entries is None and origin is not None and origin.names == (name,) and not _is_external(tensor, origin.proto):
            out = Message()
            for piece in _with_region(tensor, origin.proto):
                out.raw(piece)
            return out
        return write_tensor(tensor, name, entries, None if origin is None else origin.proto)

    def signature(self, graph: Graph, parts: dict[int, Message]) -> None:
        listed = [node for node in graph.details.get("listed_inputs", []) if node.graph is graph]
        seen = set(listed)
        for node in [*listed, *(value.producer for value in graph.inputs if value.producer not in seen)]:
            parts[11].payload(11, self.value_info(node.results[0], self.names.of[node.results[0]]))
        declared: list[tuple[str, bytes]] = graph.details.get("outputs", [])
        for index, name in enumerate(self.names.outputs[graph]):
            raw = declared[index][1] if index < len(declared) else b""
            if raw and declared[index][0] == name:
                parts[12].payload(12, raw)
            elif raw:
                proto = ValueInfoProto.FromString(raw)
                proto.name = name
                parts[12].payload(12, proto.SerializeToString())
            else:
                parts[12].payload(12, self.value_info(graph.outputs[index], name))

    def value_info(self, value: Value, name: str) -> bytes:
        if value.declared is not None and value.name == name:
            return value.declared
        proto = ValueInfoProto() if value.declared is None else ValueInfoProto.FromString(value.declared)
        proto.name = name
        if value.declared is None:
            type = protos.type_proto(value.type)
            if type is not None:
                proto.type.CopyFrom(type)
        return proto.SerializeToString()

    def value_infos(self, graph: Graph, out: Message) -> None:
        """What the file says of inner values, as long as it does not contradict what is known of them now."""
        read: list[tuple[Value | None, bytes]] = graph.details.get("infos", [])
        for value, raw in read:
            if value is None:
                out.payload(13, raw)
            elif value.producer.graph is graph and value.declared is raw:
                self.add_info(value, out)
        listed = {value for value, _ in read if value is not None}
        listed.update(node.results[0] for node in graph.details.get("listed_inputs", []))
        for node in graph.all_nodes():
            for value in node.results:
                if value.declared is not None and node.kind is not Kind.INPUT and value not in listed:
                    self.add_info(value, out)

    def add_info(self, value: Value, out: Message) -> None:
        assert value.declared is not None
        name = self.names.of.get(value, "")
        if not name:
            return  # a result its node gives no more
        stated = protos.type_of(ValueInfoProto.FromString(value.declared).type, name)
        if not contradict(stated, value.type):
            out.payload(13, self.value_info(value, name))

    def annotations(self, graph: Graph, out: Message) -> None:
        """Quantization annotations follow the tensors they speak of, and go with them."""
        pieces = graph.details.get("annotations", [])
        if not pieces:
            return
        present = {
            value.name: self.names.of[value] for node in graph.all_nodes() for value in node.results if value.name
        }
        for piece in pieces:
            raw = bytes(piece.view() if isinstance(piece, FileRegion) else piece)
            proto = TensorAnnotation.FromString(raw)
            mentioned = [proto.tensor_name, *(entry.value for entry in proto.quant_parameter_tensor_names)]
            if not all(name in present for name in mentioned):
                continue
            if any(present[name] != name for name in mentioned):
                proto.tensor_name = present[proto.tensor_name]
                for entry in proto.quant_parameter_tensor_names:
                    entry.value = present[entry.value]
                raw = proto.SerializeToString()
            out.payload(14, raw)

    # --- nodes ------------------------------------------------------------------------------------------------------------

    def is_as_read(self, node: Node) -> bool:
        """True if the bytes the node was read from still say what it is."""
        origin = node.origin
        if origin is None or not origin.is_intact:
            return False
        operands = ("" if value is None else self.names.of[value] for value in node.operands)
        names = (node.name, *operands, "", *(self.names.of[value] for value in node.results))
        if names != origin.names and _without_trailing_gaps(names) != _without_trailing_gaps(origin.names):
            return False
        return all(self.is_body_as_read(body) for body in node.bodies.values())

    def is_body_as_read(self, body: Graph) -> bool:
        if self.names.relays[body] or [name for name, _ in body.details["outputs"]] != self.names.outputs[body]:
            return False
        return all(self.is_as_read(node) for node in body.all_nodes() if node.kind is Kind.OPERATOR)

    def node(self, node: Node) -> Message:
        if self.is_as_read(node) and not (self.place is not None and _has_large_tensor(node)):
            assert node.origin is not None
            out = Message()
            out.raw(self.origin_piece(node))
            return out
        if node.is_constant:
            return self.constant_node(node)
        return self.rewritten_node(node)

    def origin_piece(self, node: Node) -> memoryview:
        assert node.origin is not None
        return node.origin.proto

    def rewritten_node(self, node: Node) -> Message:
        """The parts of the original that still hold (doc string, metadata, unknown fields), the rest from the IR."""
        out = Message()
        for value in node.operands:
            out.text(1, "" if value is None else self.names.of[value])
        for name in self.result_names(node):
            out.text(2, name)
        if node.name:
            out.text(3, node.name)
        out.text(4, node.op_type)
        originals = {} if node.origin is None else _attribute_fields(node.origin.proto)
        for name, value in node.attributes.items():
            raw = originals.get(name) if node.origin is not None and node.origin.is_intact else None
            out.payload(5, raw if raw is not None else protos.attribute_proto(name, value).SerializeToString())
        self.body_attributes(node, out)
        if node.origin is not None:
            for number, begin, end in _other_fields(node.origin.proto):
                if number == 6:
                    out.raw(node.origin.proto[begin:end])
        if node.domain:
            out.text(7, node.domain)
        if node.overload:
            out.text(8, node.overload)
        if node.origin is not None:
            for number, begin, end in _other_fields(node.origin.proto):
                if number > 8:
                    out.raw(node.origin.proto[begin:end])
        return out

    def result_names(self, node: Node) -> list[str]:
        names = [self.names.of[value] for value in node.results]
        while len(names) > 1 and not names[-1]:
            names.pop()
        return names

    def body_attributes(self, node: Node, out: Message) -> None:
        lists: dict[str, list[Message]] = {}
        for name, body in node.bodies.items():
            lists.setdefault(name.split("[")[0], []).append(self.write_graph(body))
        for name, bodies in lists.items():
            is_list = f"{name}[0]" in node.bodies
            attribute = Message()
            attribute.text(1, name)
            for body in bodies:
                attribute.message(11 if is_list else 6, body)
            attribute.varint(20, AttributeProto.GRAPHS if is_list else AttributeProto.GRAPH)
            out.message(5, attribute)

    def constant_node(self, node: Node) -> Message:
        assert node.tensor is not None
        out = Message()
        name = self.names.of[node.results[0]]
        out.text(2, name)
        if node.name:
            out.text(3, node.name)
        out.text(4, "Constant")
        attribute = Message()
        attribute.text(1, "value")
        attribute.message(5, self.tensor(node.tensor, name))
        attribute.varint(20, AttributeProto.TENSOR)
        out.message(5, attribute)
        return out

    # --- functions --------------------------------------------------------------------------------------------------------

    def function(self, out: Message, function: Function) -> None:
        if function.graph.version == function.details["version"] and dict(function.graph.opsets) == function.details["opsets"]:
            out.raw(function.details["piece"])
            return
        head = function.details["head"]
        graph = function.graph
        self.names = Names(graph, list(head.output))
        self.in_function = True
        try:
            inner, nodes, infos = Message(), Message(), Message()
            self.write_nodes(graph, nodes)
            self.value_infos(graph, infos)
        finally:
            self.in_function = False
        inner.raw(head.SerializeToString())
        # Field 7 and 12 of a function are what 1 and 13 are in a graph.
        for source, number in ((nodes, 7), (infos, 12)):
            raw = source.to_bytes()
            for _, _, _, payload, end in fields(memoryview(raw), 0, len(raw)):
                inner.payload(number, raw[payload:end])
        for domain, version in graph.opsets.items():
            inner.payload(9, OperatorSetIdProto(domain=domain, version=version).SerializeToString())
        out.message(25, inner)


def write_tensor(
    tensor: Tensor, name: str, entries: dict[str, str] | None = None, original: memoryview | None = None
) -> Message:
    """A `TensorProto`, with its bytes inside or external.

    Args:
        tensor: The data.
        name: Its name, "" for none.
        entries: `external_data` entries if the bytes are elsewhere.
        original: The message it was read from; doc string and metadata are taken over.
    """
    out = Message()
    for size in tensor.shape:
        out.varint(1, size)
    out.varint(2, int(tensor.dtype))
    if name:
        out.text(8, name)
    if entries is not None:
        for key, value in entries.items():
            entry = Message()
            entry.text(1, key)
            entry.text(2, value)
            out.message(13, entry)
        out.varint(14, 1)
    elif tensor.dtype is DType.STRING:
        for item in tensor.numpy().reshape(-1):
            out.payload(6, bytes(item))
    else:
        out.payload(9, tensor.region or tensor.raw())
    if original is not None:
        for number, begin, end in _other_fields(original, (12, 16)):
            if number in (12, 16) or number > 16:
                out.raw(original[begin:end])
    return out


def _is_external(tensor: Tensor, proto: memoryview) -> bool:
    return any(number == 14 and proto[payload] == 1 for number, _, _, payload, _ in fields(proto, 0, len(proto)))


def _with_region(tensor: Tensor, proto: memoryview) -> list[Any]:
    """A tensor's message as read, its data as a region of the file so that the kernel copies it."""
    region = tensor.region
    if region is None or region.length < 4096:
        return [proto]
    for number, _, _, payload, end in fields(proto, 0, len(proto)):
        if number == 9 and end - payload == region.length:
            return [proto[:payload], region, proto[end:]]
    return [proto]


def _has_large_tensor(node: Node) -> bool:
    return node.tensor is not None and node.tensor.region is not None


def _attribute_fields(proto: memoryview) -> dict[str, memoryview]:
    found = {}
    for number, kind, _, payload, end in fields(proto, 0, len(proto)):
        if number == 5 and kind == BYTES:
            for inner, _, _, start, stop in fields(proto, payload, end):
                if inner == 1:
                    found[bytes(proto[start:stop]).decode()] = proto[payload:end]
    return found


def _other_fields(proto: memoryview, wanted: tuple[int, ...] = ()) -> list[tuple[int, int, int]]:
    return [
        (number, begin, end)
        for number, _, begin, _, end in fields(proto, 0, len(proto))
        if number in wanted or number == 6 or number > 8
    ]


def _without_trailing_gaps(names: tuple[str, ...]) -> tuple[str, ...]:
    """Omitted optional results at the end are the same as none."""
    trimmed = list(names)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return tuple(trimmed)


def _renamed_sparse(proto: memoryview, name: str) -> bytes:
    from onnx import SparseTensorProto

    message = SparseTensorProto.FromString(bytes(proto))
    if message.values.name != name:
        message.values.name = name
        return message.SerializeToString()
    return bytes(proto)
