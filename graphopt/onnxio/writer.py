"""IR to ModelProto at wire level: what no rewrite touched is copied as it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, OperatorSetIdProto, TensorAnnotation, ValueInfoProto

from graphopt.errors import ModelError
from graphopt.ir import Form, Function, Graph, Kind, Model, Node, Value, contradict
from graphopt.ir.collector import collector_paused
from graphopt.onnxio import protos
from graphopt.onnxio.external import ExternalFiles
from graphopt.onnxio.metadata import is_replaced, write_stamp
from graphopt.onnxio.names import Names, names_of
from graphopt.onnxio.tensor_writer import Place, as_read, name_in, write_sparse, write_tensor
from graphopt.onnxio.wire import BYTES, Message, fields
from graphopt.tensors import Tensor

MESSAGE_LIMIT = (1 << 31) - 1
"""Bytes a protobuf message may have; a larger model must keep its weights outside."""
_GRAPH_ORDER = (1, 2, 5, 10, 11, 12, 13, 14, 15, 16)


def to_proto(graph: Graph) -> ModelProto:
    """The whole model as a message in memory.

    Raises:
        ModelError: it is larger than a message may be; save it to a file instead.
    """
    message = write_model(graph.model)
    if message.length > MESSAGE_LIMIT:
        raise ModelError(f"the model has {message.length} bytes, more than a message holds; save it to a file instead")
    proto: ModelProto = ModelProto.FromString(message.to_bytes())
    return proto


def write_model(model: Model, place: Place | None = None, stamp: Mapping[str, str] | None = None) -> Message:
    """The model as a message whose weights are still where they were read.

    Args:
        model: The model.
        place: Where weights go; None keeps each inside the message, external ones included.
        stamp: Metadata entries to set.
    """
    details, stamp = model.details, stamp or {}
    kept = [(number, piece) for number, piece in details.get("fields", ()) if not is_replaced(number, piece, stamp)]
    out = Message()
    if model.ir_version or details.get("ir_version") is not None:
        out.varint(1, model.ir_version)
    for number, piece in kept:
        if number < 7:
            out.raw(piece)
    with collector_paused():
        out.message(7, _Writer(model, place).main())
    if dict(model.graph.opsets) == details.get("opsets"):
        for piece in details["import_fields"]:
            out.raw(piece)
    else:
        _write_opsets(out, 8, model.graph)
    for number, piece in kept:
        if 7 < number <= 14:
            out.raw(piece)
    write_stamp(out, stamp)
    for number, piece in kept:
        if 14 < number < 25:
            out.raw(piece)
    for function in model.functions.values():
        _write_function(out, function)
    for number, piece in kept:
        if number > 25:
            out.raw(piece)
    return out


def _write_opsets(out: Message, field: int, graph: Graph) -> None:
    for domain, version in graph.opsets.items():
        out.payload(field, OperatorSetIdProto(domain=domain, version=version).SerializeToString())


def _write_function(out: Message, function: Function) -> None:
    """A local function; its constants stay inside, runtimes look for external data elsewhere only."""
    graph, details = function.graph, function.details
    writer = _Writer(graph.model, None, is_function=True)
    if graph.changes == 0 and dict(graph.opsets) == details["opsets"] and not writer.is_moved_in(graph):
        out.raw(details["piece"])
        return
    inside, infos = writer.function(graph)
    head = FunctionProto()
    head.CopyFrom(details["head"])
    head.input[:] = [writer.names.of[value] for value in graph.inputs]
    head.output[:] = writer.names.outputs[graph]
    inner = Message()
    inner.raw(head.SerializeToString())
    # Fields 7 and 12 of a function are what 1 and 13 are in a graph.
    for source, number in ((inside, 7), (infos, 12)):
        raw = memoryview(source.to_bytes())
        for _, _, _, payload, end in fields(raw, 0, len(raw)):
            inner.payload(number, raw[payload:end])
    _write_opsets(inner, 9, graph)
    out.message(25, inner)


class _Writer:
    """Writes the main graph or one function.

    Args:
        model: The model.
        place: Where weights go, see `write_model`.
        is_function: True for a function, which has no initializers.
    """

    def __init__(self, model: Model, place: Place | None, *, is_function: bool = False) -> None:
        self.model = model
        self.place = place
        self.is_function = is_function
        self.names: Names
        self._as_read: dict[Graph, bool] = {}
        files: ExternalFiles | None = model.details.get("external_files")
        self._external = frozenset(() if files is None else map(id, files.mappings.values()))

    def main(self) -> Message:
        """The main graph."""
        self.names = names_of(self.model.graph)
        return self.graph(self.model.graph)

    def function(self, graph: Graph) -> tuple[Message, Message]:
        """The nodes and value infos of a function, as fields of a graph."""
        self.names = names_of(graph)
        nodes, infos = Message(), Message()
        self.nodes(graph, nodes)
        self.value_infos(graph, infos)
        return nodes, infos

    # --- graphs

    def graph(self, graph: Graph) -> Message:
        """A `GraphProto`."""
        parts: dict[int, Message] = {number: Message() for number in _GRAPH_ORDER}
        if graph.name or graph.details.get("is_named", True):
            parts[2].text(2, graph.name)
        self.nodes(graph, parts[1])
        self.initializers(graph, parts)
        self.signature(graph, parts)
        self.value_infos(graph, parts[13])
        self.annotations(graph, parts[14])
        other = Message()
        for number, piece in graph.details.get("fields", ()):
            parts.get(number, other).raw(piece)
        out = Message()
        for part in (*parts.values(), other):
            out.extend(part)
        return out

    def nodes(self, graph: Graph, out: Message) -> None:
        """Every node in order, then the `Identity` nodes the signature needs."""
        for node in graph.sorted_nodes():
            if node.kind is Kind.OPERATOR or (node.is_constant and self.is_node(node)):
                out.message(1, self.node(node))
        for value, name in self.names.relays[graph]:
            relay = Message()
            relay.text(1, self.names.of[value])
            relay.text(2, name)
            relay.text(3, self.names.relay_name(name))
            relay.text(4, "Identity")
            out.message(1, relay)

    def is_node(self, constant: Node) -> bool:
        """True if a constant must or should be a `Constant` node."""
        if constant.tensor is None:
            return False  # sparse
        if constant.stored_as_node:
            return True
        if self.is_function and constant.graph is not None and constant.graph.owner is None:
            return True
        # Before IR version 4 an initializer must be listed as an input.
        return self.model.ir_version < 4 and constant.results[0].declared is None and constant.origin is None

    def initializers(self, graph: Graph, parts: dict[int, Message]) -> None:
        """Initializers and the defaults of inputs, in the file's order."""
        stored = [node for node in graph.constants() if not self.is_node(node)]
        defaults = [value.producer for value in graph.inputs if _has_default(value.producer)]
        for node in sorted([*stored, *defaults], key=lambda node: (node.rank, node.serial)):
            name = self.names.of[node.results[0]]
            tensor = node.tensor if node.tensor is not None else node.default
            if tensor is not None:
                parts[5].message(5, self.tensor(tensor, name, node))
            elif node.origin is not None:
                parts[15].payload(15, write_sparse(node.origin.proto, name))

    def tensor(self, tensor: Tensor, name: str, node: Node) -> Message:
        """The `TensorProto` of an initializer or `Constant`."""
        entries = None if self.place is None else self.place(name, tensor)
        origin = node.origin if node.origin is not None and node.origin.form is Form.TENSOR else None
        is_inside = entries is None and not self.is_external(tensor)
        if is_inside and origin is not None and origin.names == (name,):
            out = Message()
            for piece in as_read(tensor, origin.proto):
                out.raw(piece)
            return out
        return write_tensor(tensor, name, entries, None if origin is None else origin.proto)

    def is_external(self, tensor: Tensor) -> bool:
        """True if the bytes lie in one of the data files the model was read with."""
        return bool(self._external) and tensor.region is not None and id(tensor.region.mapping) in self._external

    def is_moved(self, node: Node) -> bool:
        """True if a tensor of the node, or in its bodies, was or will be in another file."""
        if self.place is None and not self._external:
            return False
        tensors = [item for value in node.attributes.values() for item in _tensors_in(value)]
        if node.tensor is not None:
            tensors.append(node.tensor)
            # Asking for a place twice gives the same one.
            if self.place is not None and self.place(node.results[0].name or "", node.tensor) is not None:
                return True
        return any(map(self.is_external, tensors)) or any(map(self.is_moved_in, node.bodies.values()))

    def is_moved_in(self, graph: Graph) -> bool:
        """True if a tensor in the graph was or will be in another file."""
        if self.place is None and not self._external:
            return False
        return any(self.is_moved(node) for node in graph.all_nodes())

    def signature(self, graph: Graph, parts: dict[int, Message]) -> None:
        """Inputs and outputs."""
        listed = [node for node in graph.details.get("listed_inputs", ()) if node.graph is graph]
        known = dict.fromkeys(listed)
        for node in [*listed, *(value.producer for value in graph.inputs if value.producer not in known)]:
            value = node.results[0]
            parts[11].payload(11, self.value_info(value, value.declared, self.names.of[value]))
        declared: list[tuple[str, bytes]] = graph.details.get("outputs", [])
        for index, (value, name) in enumerate(zip(graph.outputs, self.names.outputs[graph], strict=True)):
            raw = declared[index][1] if index < len(declared) else value.declared
            parts[12].payload(12, self.value_info(value, raw, name))

    def value_info(self, value: Value, declared: bytes | None, name: str) -> bytes:
        """A `ValueInfoProto`: what the file declares, under that name, or what is known of the type."""
        if not declared:
            proto = ValueInfoProto(name=name)
            type = protos.type_proto(value.type)
            if type is not None:
                proto.type.CopyFrom(type)
            return bytes(proto.SerializeToString())
        proto = ValueInfoProto.FromString(declared)
        if proto.name == name:
            return declared
        proto.name = name
        return bytes(proto.SerializeToString())

    def value_infos(self, graph: Graph, out: Message) -> None:
        """What the file says of inner values, as long as it does not contradict what is known of them now."""
        read: list[tuple[Value | None, bytes]] = graph.details.get("infos", [])
        listed = {node.results[0]: None for node in graph.details.get("listed_inputs", ())}
        for value, raw in read:
            if value is None:
                out.payload(13, raw)
            elif value.producer.graph is graph and value.declared is raw:
                self.add_info(value, out)
                listed[value] = None
        for node in graph.all_nodes():
            for value in node.results:
                if value.declared is not None and node.kind is not Kind.INPUT and value not in listed:
                    self.add_info(value, out)

    def add_info(self, value: Value, out: Message) -> None:
        """The value info of one inner value, unless it is left out or contradicted."""
        name = self.names.of.get(value)  # None for a result that the node no longer gives
        if not name or value.declared is None:
            return
        stated = protos.type_of(ValueInfoProto.FromString(value.declared).type, name)
        if not contradict(stated, value.type):
            out.payload(13, self.value_info(value, value.declared, name))

    def annotations(self, graph: Graph, out: Message) -> None:
        """Quantization annotations follow the tensors they speak of, and go with them."""
        read: list[tuple[bytes, dict[str, Value]]] = graph.details.get("annotations", [])
        if not read:
            return
        now = {value.name: self.names.of[value] for node in graph.all_nodes() for value in node.results if value.name}
        for raw, values in read:
            # The heir of a name before the value that had it, which may be about to go.
            renamed = {name: self.names.of[value] for name, value in values.items() if value in self.names.of} | now
            proto = TensorAnnotation.FromString(raw)
            entries = list(proto.quant_parameter_tensor_names)
            if not all(name in renamed for name in (proto.tensor_name, *(entry.value for entry in entries))):
                continue
            proto.tensor_name = renamed[proto.tensor_name]
            for entry in entries:
                entry.value = renamed[entry.value]
            out.payload(14, proto.SerializeToString())

    # --- nodes

    def is_as_read(self, node: Node) -> bool:
        """True if the bytes the node was read from still say what it is."""
        origin = node.origin
        if node.is_new or origin is None or origin.form is not Form.NODE or not node.has_attributes_as_read:
            return False
        of = self.names.of
        operands = ("" if value is None else of[value] for value in node.operands)
        names = (node.name, *operands, "", *(of[value] for value in node.results))
        if names != origin.names and _without_trailing_gaps(names) != _without_trailing_gaps(origin.names):
            return False
        return all(self.is_body_as_read(body) for body in node.bodies.values())

    def is_body_as_read(self, body: Graph) -> bool:
        """True if a body, its names included, is what the file says."""
        known = self._as_read.get(body)
        if known is None:
            known = self._as_read[body] = (
                body.changes == 0
                and not self.names.relays[body]
                and [name for name, _ in body.details.get("outputs", ())] == self.names.outputs[body]
                and all(self.is_as_read(node) for node in body.nodes())
            )
        return known

    def node(self, node: Node) -> Message:
        """A `NodeProto`."""
        out = Message()
        is_moved = self.is_moved(node)
        if not is_moved and self.is_as_read(node):
            assert node.origin is not None
            out.raw(node.origin.proto)
            return out
        original = node.origin.proto if node.origin is not None and node.origin.form is Form.NODE else memoryview(b"")
        carried = [(number, begin, end) for number, _, begin, _, end in fields(original, 0, len(original))]
        for value in node.operands:
            out.text(1, "" if value is None else self.names.of[value])
        for name in self.result_names(node):
            out.text(2, name)
        name = self.names.node_name(node)
        if name:
            out.text(3, name)
        out.text(4, "Constant" if node.is_constant else node.op_type)
        self.attributes(node, original, out, is_moved=is_moved)
        for number, begin, end in carried:
            if number == 6:
                out.raw(original[begin:end])
        if node.domain:
            out.text(7, node.domain)
        if node.overload:
            out.text(8, node.overload)
        for number, begin, end in carried:
            if number > 8:
                out.raw(original[begin:end])
        return out

    def result_names(self, node: Node) -> list[str]:
        """The names of the results, omitted ones at the end dropped."""
        names = [self.names.of[value] for value in node.results]
        while len(names) > 1 and not names[-1]:
            names.pop()
        return names

    def attributes(self, node: Node, original: memoryview, out: Message, *, is_moved: bool) -> None:
        """The attributes of a node; those that are as read are copied."""
        read = {} if is_moved else _attribute_fields(original)
        if node.tensor is not None:
            if len(read) == 1:
                out.payload(5, next(iter(read.values())))
            else:
                self.constant_attribute(node, original, out)
        kinds = {} if node.schema is None else node.schema.attributes
        for name, value in node.attributes.items():
            if node.is_attribute_as_read(name) and name in read:
                out.payload(5, read[name])
            else:
                out.payload(5, protos.attribute_proto(name, value, kinds.get(name)).SerializeToString())
        lists: dict[str, list[Message]] = {}
        for name, body in node.bodies.items():
            lists.setdefault(name.partition("[")[0], []).append(self.graph(body))
        for name, written in lists.items():
            is_list = f"{name}[0]" in node.bodies
            attribute = Message()
            attribute.text(1, name)
            for message in written:
                attribute.message(11 if is_list else 6, message)
            attribute.varint(20, AttributeProto.GRAPHS if is_list else AttributeProto.GRAPH)
            out.message(5, attribute)

    def constant_attribute(self, node: Node, original: memoryview, out: Message) -> None:
        """The data of a `Constant`; the tensor message it was read from, if it was, keeps its name and words."""
        assert node.tensor is not None
        entries = None if self.place is None else self.place(self.names.of[node.results[0]], node.tensor)
        value = _attribute_fields(original).get("value", memoryview(b""))
        places = (place for place in fields(value, 0, len(value)) if place[0] == 5)
        message = next((value[begin:end] for _, _, _, begin, end in places), None)
        attribute = Message()
        attribute.text(1, "value")
        attribute.message(5, write_tensor(node.tensor, name_in(message), entries, message))
        attribute.varint(20, AttributeProto.TENSOR)
        out.message(5, attribute)


def _has_default(source: Node) -> bool:
    """True for an input with a default, which a sparse one has in its origin only."""
    return source.default is not None or source.origin is not None


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an attribute."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, Tensor):
            yield item


def _attribute_fields(proto: memoryview) -> dict[str, memoryview]:
    """The serialized attributes of a `NodeProto` by name."""
    found = {}
    for number, kind, _, payload, end in fields(proto, 0, len(proto)):
        if number == 5 and kind == BYTES:
            for inner, inner_kind, _, start, stop in fields(proto, payload, end):
                if inner == 1 and inner_kind == BYTES:
                    found[str(proto[start:stop], "utf-8")] = proto[payload:end]
    return found


def _without_trailing_gaps(names: tuple[str, ...]) -> tuple[str, ...]:
    """Omitted optional results at the end are the same as none."""
    trimmed = list(names)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return tuple(trimmed)
