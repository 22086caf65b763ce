"""ModelProto to IR, at wire level: what is small is parsed, weights stay where they are."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any, TypeAlias

from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    StringStringEntryProto,
    TensorAnnotation,
    ValueInfoProto,
)

from graphopt.errors import ModelError
from graphopt.ir import Function, Graph, Kind, Model, Node, Origin, Value
from graphopt.ir.types import TensorType
from graphopt.onnxio import protos
from graphopt.onnxio.external import ExternalFiles
from graphopt.onnxio.tensors import TensorReader
from graphopt.onnxio.wire import BYTES, fields, read_varint
from graphopt.tensors import Tensor
from graphopt.tensors.region import FileMapping, FileRegion, map_file

Scope: TypeAlias = dict[str, Value]
_SMALL = 2048
_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_CONSTANT_ATTRIBUTES = ("value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings")


def load(source: str | os.PathLike[str] | bytes | ModelProto) -> Graph:
    """Load a model; nothing of a weight is read.

    Args:
        source: A path, a serialized model, or a `ModelProto` (which is not changed).

    Returns:
        The main graph; `graph.model` holds the rest.

    Raises:
        ModelError: the file is missing, is no model, is cut short, or names something that does not exist.
        ExternalDataError: external data is missing, too short, or outside the model's folder.
    """
    if isinstance(source, ModelProto):
        try:
            source = source.SerializeToString()
        except Exception as error:
            raise ModelError(f"the model does not fit one protobuf message ({error}); pass the path of its file") from error
    if isinstance(source, bytes):
        return _collector_paused(lambda: _Reader(memoryview(source), None, None).model().graph)
    path = os.fspath(source)
    try:
        if os.path.isdir(path):
            raise ModelError(f"'{path}' is a folder; name the .onnx file in it")
        mapping = map_file(path)
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror}; check the path") from error
    if mapping.size == 0:
        raise ModelError(f"'{path}' is empty; export the model again")
    folder = os.path.dirname(os.path.abspath(path))
    try:
        graph = _collector_paused(lambda: _Reader(mapping.view, mapping, folder).model().graph)
    except ModelError as error:
        error.args = (f"'{path}': {error.args[0]}", *error.args[1:])
        raise
    graph.model.path = path
    return graph


def _collector_paused(action: Callable[[], Graph]) -> Graph:
    """Building many long-lived objects with the cyclic collector on costs more than building them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return action()
    finally:
        if was_enabled:
            gc.enable()


class _Reader:
    """Reads one model."""

    def __init__(self, view: memoryview, mapping: FileMapping | None, folder: str | None) -> None:
        self.view = view
        self.mapping = mapping
        self.external = ExternalFiles(folder)
        self.tensors = TensorReader(view, mapping, self.external)

    def piece(self, start: int, end: int) -> FileRegion | memoryview:
        """Bytes to be written back later, without copying them now."""
        return self.view[start:end] if self.mapping is None else FileRegion(self.mapping, start, end - start)

    def text(self, start: int, end: int) -> str:
        return bytes(self.view[start:end]).decode("utf-8", "surrogateescape")

    def model(self) -> Model:
        ir_version, graph_at, imports, functions = 0, None, {}, []
        import_fields: list[Any] = []
        kept: list[tuple[int, Any]] = []
        for number, kind, begin, payload, end in fields(self.view, 0, len(self.view)):
            if number == 1 and kind == 0:
                ir_version, _ = read_varint(self.view, payload, end)
            elif number == 7 and kind == BYTES:
                graph_at = (payload, end)
            elif number == 8 and kind == BYTES:
                domain, version = self.opset(payload, end)
                imports[domain] = version
                import_fields.append(self.piece(begin, end))
            elif number == 25 and kind == BYTES:
                functions.append((begin, payload, end))
            else:
                kept.append((number, self.piece(begin, end)))
        if graph_at is None:
            raise ModelError("this is no ONNX model: it holds no graph; check that it is the .onnx file itself")
        model = Model(ir_version, imports)
        model.details["fields"] = kept
        model.details["external_files"] = self.external
        model.details["opsets"] = dict(imports)
        model.details["import_fields"] = import_fields
        for begin, payload, end in functions:
            function = self.function(model, begin, payload, end)
            model.functions[function.key] = function
        self.graph(model.graph, *graph_at, {})
        if any(number == 20 for number, _ in kept):
            # Training info refers to initializers by name from outside the graph.
            for node in model.graph.constants():
                node.is_pinned = True
        return model

    def opset(self, start: int, end: int) -> tuple[str, int]:
        domain, version = "", 0
        for number, _, _, payload, stop in fields(self.view, start, end):
            if number == 1:
                domain = self.text(payload, stop)
            elif number == 2:
                version, _ = read_varint(self.view, payload, stop)
        return ("" if domain == "ai.onnx" else domain), version

    # --- graphs -----------------------------------------------------------------------------------------------------------

    def graph(self, graph: Graph, start: int, end: int, outer: Scope) -> None:
        found: dict[int, list[tuple[int, int]]] = {number: [] for number in (1, 5, 11, 12, 13, 14, 15)}
        kept: list[tuple[int, Any]] = []
        for number, kind, begin, payload, stop in fields(self.view, start, end):
            if kind == BYTES and number in found:
                found[number].append((payload, stop))
            elif number == 2 and kind == BYTES:
                graph.name = self.text(payload, stop)
            else:
                kept.append((number, self.piece(begin, stop)))
        graph.details["fields"] = kept
        graph.details["outputs"] = [self.value_info(at) for at in found[12]]
        graph.details["annotations"] = [self.piece(*at) for at in found[14]]
        infos = dict(self.value_info(at) for at in found[13])
        scope: Scope = {}
        self.sources(graph, found, scope)
        nodes = self.nodes(graph, found[1], scope, infos)
        graph.details["infos"] = []
        for name, raw in infos.items():
            value = scope.get(name)
            if value is None or value.declared is not None:
                graph.details["infos"].append((None, raw))
                continue
            graph.details["infos"].append((value, raw))
            value.declared = raw
            if value.type is None:
                value.type = protos.type_of(ValueInfoProto.FromString(raw).type)
        self.pin_annotated(graph, scope)
        self.connect(graph, nodes, scope, outer)
        inside = {**outer, **scope} if outer else scope
        graph.set_outputs([self.lookup(name, inside, f"output of graph '{graph.name}'") for name, _ in graph.details["outputs"]])

    def pin_annotated(self, graph: Graph, scope: Scope) -> None:
        """Hold the constants that quantization annotations name: often nothing else refers to them."""
        for piece in graph.details["annotations"]:
            proto = TensorAnnotation.FromString(bytes(piece.view() if isinstance(piece, FileRegion) else piece))
            for entry in proto.quant_parameter_tensor_names:
                value = scope.get(entry.value)
                if value is not None and value.producer.is_constant:
                    value.producer.is_pinned = True

    def value_info(self, at: tuple[int, int]) -> tuple[str, bytes]:
        raw = bytes(self.view[at[0] : at[1]])
        for number, _, _, payload, stop in fields(self.view, *at):
            if number == 1:
                return self.text(payload, stop), raw
        return "", raw

    def sources(self, graph: Graph, found: dict[int, list[tuple[int, int]]], scope: Scope) -> None:
        inputs = dict(self.value_info(at) for at in found[11])
        is_main = graph.owner is None and graph is graph.model.graph
        initializers: dict[str, Node] = {}
        for payload, stop in found[5]:
            name, tensor, raw = self.tensors.read(payload, stop)
            initializers[name] = self.initializer(graph, name, tensor, raw)
        for payload, stop in found[15]:
            name, shape, dtype, raw = self.tensors.read_sparse(payload, stop)
            node = initializers[name] = self.initializer(graph, name, None, raw)
            node.results[0].type = TensorType(dtype, shape)
        listed: list[Node] = []
        for name, raw in inputs.items():
            node = self.graph_input(graph, name, raw, initializers, is_main)
            listed.append(node)
            self.define(scope, node.results[0], name)
        graph.details["listed_inputs"] = listed
        for rank, (name, node) in enumerate(initializers.items(), 1):
            if node.kind is Kind.CONSTANT:
                if name not in inputs:
                    self.define(scope, node.results[0], name)
                graph.insert(node, rank=rank)
            node.rank = rank

    def initializer(self, graph: Graph, name: str, tensor: Tensor | None, raw: memoryview) -> Node:
        node = Node(graph.model.next_serial(), Kind.CONSTANT, results=1, tensor=tensor)
        node.results[0].name = name
        if tensor is not None:
            node.results[0].type = TensorType(tensor.dtype, tensor.shape)
        node.origin = Origin(raw, (name,))
        return node

    def graph_input(self, graph: Graph, name: str, raw: bytes, initializers: dict[str, Node], is_main: bool) -> Node:
        default = initializers.get(name)
        if default is not None and (graph.model.ir_version < 4 or not is_main):
            default.results[0].declared = raw  # before IR version 4 this is a constant that is merely listed
            return default
        node = Node(graph.model.next_serial(), Kind.INPUT, results=1)
        value = node.results[0]
        value.name, value.declared = name, raw
        value.type = protos.type_of(ValueInfoProto.FromString(raw).type, name if is_main else None)
        if default is not None:
            node.default, node.origin = default.tensor, default.origin
            initializers[name] = node
        graph.insert(node)
        return node

    def define(self, scope: Scope, value: Value, name: str) -> None:
        if name in scope:
            if scope[name].const is None or value.const is None:
                raise ModelError(f"two values are called '{name}'; ONNX wants every name once, export the model again")
            scope[name].name = None  # of constants that share a name the runtime takes the last
        scope[name] = value

    # --- nodes ------------------------------------------------------------------------------------------------------------

    def nodes(
        self, graph: Graph, places: list[tuple[int, int]], scope: Scope, infos: dict[str, bytes]
    ) -> list[tuple[Node, list[str], list[tuple[str, tuple[int, int]]]]]:
        """Make every node and name every result first: files need not be in topological order."""
        made = []
        for start, end in places:
            head, attributes, bodies = self.node_parts(start, end)
            outputs = list(head.output)
            while outputs and not outputs[-1]:
                outputs.pop()
            node = self.make(graph, head, attributes, bodies, len(outputs))
            node.origin = Origin(self.view[start:end], (head.name, *head.input, "", *head.output))
            node.rank = graph._next_rank = graph._next_rank + 1
            for value, name in zip(node.results, outputs, strict=True):
                value.name = name
                if name:
                    self.define(scope, value, name)
            made.append((node, list(head.input), bodies))
        return made

    def make(
        self, graph: Graph, head: NodeProto, attributes: dict[str, Any], bodies: list[Any], results: int
    ) -> Node:
        domain = "" if head.domain == "ai.onnx" else head.domain
        serial = graph.model.next_serial()
        if head.op_type == "Constant" and domain == "" and results == 1 and len(attributes) == 1 and not bodies:
            tensor = constant_of(*next(iter(attributes.items())))
            if tensor is not None:
                node = Node(serial, Kind.CONSTANT, "", results=1, tensor=tensor, name=head.name)
                node.stored_as_node = True
                node.results[0].type = TensorType(tensor.dtype, tensor.shape)
                return node
        return Node(
            serial,
            Kind.OPERATOR,
            head.op_type,
            domain,
            results=results,
            attributes=attributes,
            name=head.name,
            overload=head.overload,
        )

    def node_parts(self, start: int, end: int) -> tuple[NodeProto, dict[str, Any], list[tuple[str, tuple[int, int]]]]:
        """The node's names, its attributes, and where its bodies lie."""
        if end - start <= _SMALL:
            proto = NodeProto.FromString(bytes(self.view[start:end]))
            if not any(attribute.type in _GRAPH_KINDS for attribute in proto.attribute):
                return proto, {item.name: protos.attribute_value(item) for item in proto.attribute}, []
        head = bytearray()
        attributes: dict[str, Any] = {}
        bodies: list[tuple[str, tuple[int, int]]] = []
        for number, _, begin, payload, stop in fields(self.view, start, end):
            if number == 5:
                self.attribute(payload, stop, attributes, bodies)
            else:
                head += self.view[begin:stop]
        return NodeProto.FromString(bytes(head)), attributes, bodies

    def attribute(
        self, start: int, end: int, attributes: dict[str, Any], bodies: list[tuple[str, tuple[int, int]]]
    ) -> None:
        """Read one attribute; graphs are noted, a tensor's bytes stay in the file."""
        name, graphs, tensor_at, is_list = "", [], None, False
        for number, _, _, payload, stop in fields(self.view, start, end):
            if number == 1:
                name = self.text(payload, stop)
            elif number in (6, 11):
                graphs.append((payload, stop))
                is_list = number == 11
            elif number == 5:
                tensor_at = (payload, stop)
        if graphs:
            bodies.extend((f"{name}[{i}]" if is_list else name, at) for i, at in enumerate(graphs))
        elif tensor_at is not None:
            attributes[name] = self.tensors.read(*tensor_at)[1]
        else:
            attributes[name] = protos.attribute_value(AttributeProto.FromString(bytes(self.view[start:end])))

    def connect(self, graph: Graph, nodes: list[Any], scope: Scope, outer: Scope) -> None:
        inside = {**outer, **scope} if outer else scope
        for node, names, _ in nodes:
            node._operands = tuple(
                None if not name else self.lookup(name, inside, f"node '{node.name or node.op_type}'") for name in names
            )
        # All nodes enter before any use is linked: a file may list a node before the one it reads.
        pending = []
        for node, _, bodies in nodes:
            operands, node._operands = node._operands, ()
            graph.insert(node, rank=node.rank)
            pending.append((node, operands, bodies))
        for node, operands, bodies in pending:
            graph.set_operands(node, operands)
            for name, (start, end) in bodies:
                body = Graph(graph.model, "", graph.opsets, node)
                node._bodies[name] = body
                self.graph(body, start, end, inside)
            if node.origin is not None:
                node.origin.is_intact = True

    def lookup(self, name: str, scope: Scope, who: str) -> Value:
        value = scope.get(name)
        if value is None:
            raise ModelError(f"{who} reads '{name}', which nothing defines; export the model again")
        return value

    # --- functions --------------------------------------------------------------------------------------------------------

    def function(self, model: Model, begin: int, start: int, end: int) -> Function:
        head = bytearray()
        nodes: list[tuple[int, int]] = []
        imports: dict[str, int] = {}
        infos: dict[str, bytes] = {}
        for number, kind, at, payload, stop in fields(self.view, start, end):
            if number == 7 and kind == BYTES:
                nodes.append((payload, stop))
            elif number == 9 and kind == BYTES:
                domain, version = self.opset(payload, stop)
                imports[domain] = version
            elif number == 12 and kind == BYTES:
                name, raw = self.value_info((payload, stop))
                infos[name] = raw
            else:
                head += self.view[at:stop]
        proto = FunctionProto.FromString(bytes(head))
        graph = Graph(model, proto.name, imports)
        function = Function(proto.domain, proto.name, proto.overload, graph)
        function.attributes = tuple(proto.attribute)
        function.attribute_defaults = {item.name: protos.attribute_value(item) for item in proto.attribute_proto}
        function.details = {"head": proto, "piece": self.piece(begin, end), "opsets": dict(imports)}
        scope: Scope = {}
        for name in proto.input:
            self.define(scope, graph.add_input(name, None), name)
        graph.details = {"fields": [], "annotations": [], "infos": [], "listed_inputs": list(graph._inputs)}
        graph.details["outputs"] = [(name, b"") for name in proto.output]
        made = self.nodes(graph, nodes, scope, infos)
        for name, raw in infos.items():
            if name in scope:
                scope[name].declared = raw
                graph.details["infos"].append((scope[name], raw))
        self.connect(graph, made, scope, {})
        graph.set_outputs([self.lookup(name, scope, f"function '{proto.name}'") for name in proto.output])
        function.details["version"] = graph.version
        return function


def constant_of(name: str, value: Any) -> Tensor | None:
    """The data of a `Constant` node by its attribute; None where it is sparse or the caller's."""
    from graphopt.tensors import DType

    if isinstance(value, Tensor):
        return value
    if name not in _CONSTANT_ATTRIBUTES or not isinstance(value, (int, float, str, bytes, tuple)):
        return None
    kind = name.removeprefix("value_").removesuffix("s")
    dtype = {"float": DType.FLOAT, "int": DType.INT64, "string": DType.STRING}.get(kind)
    if dtype is None:
        return None
    if dtype is DType.STRING:
        import numpy as np

        items = list(value) if isinstance(value, tuple) else value
        return Tensor.from_numpy(np.array(items, dtype=object), dtype)
    return Tensor.of(list(value) if isinstance(value, tuple) else value, dtype)


def metadata_of(model: Model) -> dict[str, str]:
    """The model's `metadata_props`."""
    entries = {}
    for number, piece in model.details.get("fields", []):
        if number == 14:
            raw = piece.view() if isinstance(piece, FileRegion) else piece
            # The piece is a whole field: skip its tag and length.
            _, _, _, payload, stop = next(fields(raw, 0, len(raw)))
            entry = StringStringEntryProto.FromString(bytes(raw[payload:stop]))
            entries[entry.key] = entry.value
    return entries
