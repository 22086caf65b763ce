"""ModelProto to IR, at wire level: what is small is parsed, weights stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from onnx import FunctionProto, TensorAnnotation, TypeProto, ValueInfoProto

from graphopt.errors import EditError, ModelError
from graphopt.ir import Form, Function, Graph, Kind, Model, Node, Origin, TensorType, Value
from graphopt.onnxio import protos
from graphopt.onnxio.external import ExternalFiles
from graphopt.onnxio.metadata import METADATA
from graphopt.onnxio.nodes import NodeParts, constant_tensor, read_node
from graphopt.onnxio.tensors import TensorReader
from graphopt.onnxio.wire import BYTES, VARINT, fields, read_varint
from graphopt.tensors import FileMapping, Tensor

MAX_NESTING = 31
"""Bodies inside one another; protobuf, the checker and the runtime refuse more."""
_Proto = TypeVar("_Proto", bound=Message)
_NO_ATTRIBUTES: Mapping[str, Any] = {}
Place: TypeAlias = tuple[int, int]
"""Where a message begins and ends."""
Declaration: TypeAlias = tuple[str, bytes, TypeProto]
"""A `ValueInfoProto`: its name, the serialized message, and the type it declares."""


class Scope:
    """The values a graph can name: its own, and those of the graphs around it."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.values: dict[str, Value] = {}
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.hidden: set[str] = set() if outer is None else outer.hidden
        """Names the file gives both to a value and to another one in a body that could see it."""

    def get(self, name: str) -> Value | None:
        """The value of that name, the innermost if there are several."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def lookup(self, name: str, reader: Node) -> Value:
        """The value of that name, which a node reads.

        Raises:
            ModelError: there is none.
        """
        value = self.get(name)
        if value is None:
            who = f"node '{reader.name or reader.op_type}'" if reader.is_operator else "an output of the graph"
            raise ModelError(f"{who} reads '{name}', which nothing defines; export the model again")
        return value

    def define(self, value: Value, name: str) -> None:
        """Give a value its name.

        Raises:
            ModelError: another value has it.
        """
        other = self.values.get(name)
        if other is not None:
            if other.const is None or value.const is None:
                raise ModelError(f"two values are called '{name}'; ONNX wants every name once, export the model again")
            other.name = None  # of constants that share a name the runtime takes the last
        elif self.outer is not None and self.outer.get(name) is not None:
            self.hidden.add(name)
        self.values[name] = value


class ModelReader:
    """Reads one model.

    Args:
        view: The serialized model.
        mapping: The file it is in, None if it is in memory.
        folder: Where its external data is; None if it was not loaded from a file.
    """

    def __init__(self, view: memoryview, mapping: FileMapping | None, folder: str | None) -> None:
        self.view = view
        self.external = ExternalFiles(folder)
        self.tensors = TensorReader(view, mapping, self.external)

    def read(self) -> Model:
        """The model.

        Raises:
            ModelError: it is no model, is cut short, has a cycle, or names something that does not exist.
            ExternalDataError: external data is missing, too short, or outside the model's folder.
        """
        ir_version: int | None = None
        graphs: list[Place] = []
        functions: list[tuple[int, int, int]] = []
        imports: dict[str, int] = {}
        import_fields: list[Any] = []
        kept: list[tuple[int, Any]] = []
        for number, kind, begin, payload, end in fields(self.view, 0, len(self.view)):
            if number == 1 and kind == VARINT:
                ir_version, _ = read_varint(self.view, payload, end)
            elif number == 7 and kind == BYTES:
                graphs.append((payload, end))
            elif number == 8 and kind == BYTES:
                domain, version = self.opset(payload, end)
                imports[domain] = version
                import_fields.append(self.tensors.piece(begin, end))
            elif number == 25 and kind == BYTES:
                functions.append((begin, payload, end))
            else:
                if number == METADATA and kind == BYTES:
                    self.tensors.entry(payload, end)  # must be readable: a stamp may replace it
                kept.append((number, self.tensors.piece(begin, end)))
        if len(graphs) != 1:
            what = "no graph" if not graphs else "several graphs"
            raise ModelError(f"this is no ONNX model: it holds {what}; check that it is the .onnx file itself")
        if not imports and (ir_version or 0) >= 3:
            raise ModelError("the model imports no operator set, so it is cut short or unfinished; export it again")
        model = Model(ir_version or 0, imports)
        model.details = {
            "fields": kept,
            "external_files": self.external,
            "ir_version": ir_version,
            "opsets": dict(imports),
            "import_fields": import_fields,
            "hidden_names": set(),
            "bytes": len(self.view),
        }
        for place in functions:
            function = self.function(model, *place)
            if function.key in model.functions:
                raise ModelError(f"the model has two functions {function!r}; export it again")
            model.functions[function.key] = function
        scope = Scope()
        self.graph(model.graph, *graphs[0], scope)
        model.details["hidden_names"] |= scope.hidden
        if any(number == 20 for number, _ in kept):
            # Training info refers to initializers by name from outside the graph.
            for node in model.graph.constants():
                node.is_pinned = True
        return model

    def opset(self, start: int, end: int) -> tuple[str, int]:
        """An `OperatorSetIdProto`: domain, "" for the standard one, and version."""
        domain, version = "", 0
        for number, kind, _, payload, stop in fields(self.view, start, end):
            if number == 1 and kind == BYTES:
                domain = self.tensors.text(payload, stop)
            elif number == 2 and kind == VARINT:
                version, _ = read_varint(self.view, payload, stop)
        return _plain_domain(domain), version

    def parse(self, kind: type[_Proto], raw: bytes, start: int) -> _Proto:
        """A message parsed by protobuf.

        Raises:
            ModelError: it is damaged.
        """
        message = kind()
        try:
            message.ParseFromString(raw)
        except DecodeError as error:
            raise ModelError(
                f"the {kind.__name__} at byte {start} is damaged ({error}); fetch the file again"
            ) from error
        return message

    # --- graphs

    def graph(self, graph: Graph, start: int, end: int, scope: Scope) -> None:
        """Fill a graph from the `GraphProto` between two offsets."""
        if scope.depth > MAX_NESTING:
            raise ModelError(f"bodies nest deeper than {MAX_NESTING}, which no runtime takes; flatten the model")
        found: dict[int, list[Place]] = {number: [] for number in (1, 5, 11, 12, 13, 14, 15)}
        kept: list[tuple[int, Any]] = []
        is_named = False
        for number, kind, begin, payload, stop in fields(self.view, start, end):
            if kind == BYTES and number in found:
                found[number].append((payload, stop))
            elif kind == BYTES and number == 2:
                graph.name, is_named = self.tensors.text(payload, stop), True
            else:
                kept.append((number, self.tensors.piece(begin, stop)))
        outputs = [self.value_info(place) for place in found[12]]
        graph.details = {
            "is_named": is_named,
            "fields": kept,
            "outputs": [(name, raw) for name, raw, _ in outputs],
            "annotations": [],
        }
        self.sources(graph, found, scope)
        nodes = self.nodes(graph, found[1], scope)
        self.declarations(graph, [self.value_info(place) for place in found[13]], scope)
        graph.details["annotations"] = [self.annotation(place, scope) for place in found[14]]
        self.connect(graph, nodes, scope)
        self.finish(graph, [name for name, _, _ in outputs], scope)
        for value, (_, _, declared) in zip(graph.outputs, outputs, strict=True):
            if value.type is None:
                value.type = protos.type_of(declared)

    def value_info(self, place: Place) -> Declaration:
        """A `ValueInfoProto`."""
        raw = bytes(self.view[place[0] : place[1]])
        proto = self.parse(ValueInfoProto, raw, place[0])
        if not isinstance(proto.name, str):
            raise ModelError(f"the name of the value at byte {place[0]} is not UTF-8; export the model again")
        return proto.name, raw, proto.type

    def sources(self, graph: Graph, found: dict[int, list[Place]], scope: Scope) -> None:
        """Inputs and initializers, sparse ones included."""
        is_main = graph is graph.model.graph
        initializers: dict[str, Node] = {}
        for place in found[5]:
            name, tensor = self.tensors.read(*place)
            initializers[name] = self.initializer(graph, name, tensor, Form.TENSOR, place)
        for place in found[15]:
            name, shape, dtype = self.tensors.read_sparse(*place)
            node = initializers[name] = self.initializer(graph, name, None, Form.SPARSE, place)
            node.results[0].type = TensorType(dtype, shape)
        listed: list[Node] = []
        names: set[str] = set()
        for place in found[11]:
            name, raw, declared = self.value_info(place)
            if name in names:
                raise ModelError(f"two inputs are called '{name}'; ONNX wants every name once, export the model again")
            names.add(name)
            node = self.graph_input(graph, (name, raw, declared), initializers, is_main)
            listed.append(node)
            scope.define(node.results[0], name)
        graph.details["listed_inputs"] = listed
        for rank, (name, node) in enumerate(initializers.items(), 1):
            node.rank = rank
            if node.kind is Kind.CONSTANT and name not in names:
                scope.define(node.results[0], name)
        constants = [node for node in initializers.values() if node.kind is Kind.CONSTANT]
        graph.populate((node, ()) for node in [*(node for node in listed if node.kind is Kind.INPUT), *constants])

    def initializer(self, graph: Graph, name: str, tensor: Tensor | None, form: Form, place: Place) -> Node:
        """The constant of an initializer."""
        node = Node(graph.model.next_serial(), Kind.CONSTANT, results=1, tensor=tensor)
        node.results[0].name = name
        if tensor is not None:
            node.results[0].type = TensorType(tensor.dtype, tensor.shape)
        node.origin = Origin(form, self.view[place[0] : place[1]], (name,), _NO_ATTRIBUTES)
        node.is_new = False
        return node

    def graph_input(self, graph: Graph, declaration: Declaration, initializers: dict[str, Node], is_main: bool) -> Node:
        """The source of one listed input: an input, or an initializer that is merely listed."""
        name, raw, declared = declaration
        default = initializers.get(name)
        if default is not None and (graph.model.ir_version < 4 or not is_main):
            default.results[0].declared = raw  # before IR version 4, and in bodies, nobody can override it
            return default
        node = Node(graph.model.next_serial(), Kind.INPUT, results=1)
        node.is_new = False
        value = node.results[0]
        value.name, value.declared = name, raw
        value.type = protos.type_of(declared, name if is_main else None)
        if default is not None:
            node.default, node.origin = default.tensor, default.origin
            initializers[name] = node
        return node

    def declarations(self, graph: Graph, infos: list[Declaration], scope: Scope, *, is_typed: bool = True) -> None:
        """What the file says of the types of inner values; of a value said twice, the last."""
        kept: list[tuple[Value | None, bytes]] = []
        graph.details["infos"] = kept
        for name, raw, declared in {declaration[0]: declaration for declaration in infos}.values():
            value = scope.values.get(name)
            if value is None or value.declared is not None:
                kept.append((None, raw))
                continue
            kept.append((value, raw))
            value.declared = raw
            if is_typed and value.type is None:
                value.type = protos.type_of(declared)

    def annotation(self, place: Place, scope: Scope) -> tuple[bytes, dict[str, Value]]:
        """A `TensorAnnotation`, and the values it names.

        The constants it names are held: often nothing else refers to them.
        """
        raw = bytes(self.view[place[0] : place[1]])
        proto = self.parse(TensorAnnotation, raw, place[0])
        parameters = [entry.value for entry in proto.quant_parameter_tensor_names]
        values = {name: scope.values[name] for name in (proto.tensor_name, *parameters) if name in scope.values}
        for name in parameters:
            if name in values and values[name].producer.is_constant:
                values[name].producer.is_pinned = True
        return raw, values

    # --- nodes

    def nodes(self, graph: Graph, places: list[Place], scope: Scope) -> list[tuple[Node, NodeParts]]:
        """Make every node and name every result first: files need not be in topological order."""
        made = []
        for start, end in places:
            parts = read_node(self.tensors, start, end)
            node = self.node(graph, parts)
            names = (parts.name, *parts.inputs, "", *parts.outputs)
            node.is_new = False
            node.origin = Origin(Form.NODE, self.view[start:end], names, node.attributes)
            for value, name in zip(node.results, parts.outputs, strict=True):
                value.name = name
                if name:
                    scope.define(value, name)
            made.append((node, parts))
        return made

    def node(self, graph: Graph, parts: NodeParts) -> Node:
        """The detached node, without operands; a `Constant` becomes a constant."""
        tensor, serial = constant_tensor(parts), graph.model.next_serial()
        if tensor is not None:
            node = Node(serial, Kind.CONSTANT, results=1, tensor=tensor, name=parts.name)
            node.stored_as_node = True
            node.results[0].type = TensorType(tensor.dtype, tensor.shape)
            return node
        return Node(
            serial,
            Kind.OPERATOR,
            parts.op_type,
            parts.domain,
            results=len(parts.outputs),
            attributes=parts.attributes,
            name=parts.name,
            overload=parts.overload,
        )

    def connect(self, graph: Graph, nodes: list[tuple[Node, NodeParts]], scope: Scope) -> None:
        """Put the nodes into the graph, then read their bodies, which may capture any of them."""
        here = scope.values
        graph.populate(
            (node, [here.get(name) or scope.lookup(name, node) if name else None for name in parts.inputs])
            for node, parts in nodes
        )
        for node, parts in nodes:
            for name, place in parts.bodies.items():
                self.graph(graph.make_body(node, name), *place, Scope(scope))

    def finish(self, graph: Graph, outputs: list[str], scope: Scope) -> None:
        """Set the outputs of a graph whose nodes are all there.

        Raises:
            ModelError: an output is not defined, or nodes feed each other.
        """
        graph.set_outputs([scope.lookup(name, graph.return_node) for name in outputs])
        try:
            graph.sorted_nodes()
        except EditError as error:
            raise ModelError(str(error)) from error
        graph.changes = 0

    # --- functions

    def function(self, model: Model, begin: int, start: int, end: int) -> Function:
        """A local function; `begin` is where its field begins."""
        head = bytearray()
        nodes: list[Place] = []
        imports: dict[str, int] = {}
        infos: list[Declaration] = []
        for number, kind, at, payload, stop in fields(self.view, start, end):
            if number == 7 and kind == BYTES:
                nodes.append((payload, stop))
            elif number == 9 and kind == BYTES:
                domain, version = self.opset(payload, stop)
                imports[domain] = version
            elif number == 12 and kind == BYTES:
                infos.append(self.value_info((payload, stop)))
            else:
                head += self.view[at:stop]
        proto = self.parse(FunctionProto, bytes(head), start)
        names = (proto.domain, proto.name, proto.overload, *proto.input, *proto.output, *proto.attribute)
        if bytes in map(type, names):
            raise ModelError(f"the function at byte {start} has a name that is not UTF-8; export the model again")
        graph = Graph(model, proto.name, imports)
        function = Function(_plain_domain(proto.domain), proto.name, proto.overload, graph)
        function.attributes = tuple(proto.attribute)
        function.attribute_defaults = {
            item.name: protos.attribute_value(item, self.tensors.from_proto) for item in proto.attribute_proto
        }
        function.details = {"head": proto, "piece": self.tensors.piece(begin, end), "opsets": dict(imports)}
        scope = Scope()
        for name in proto.input:
            scope.define(graph.add_input(name, None), name)
        graph.details = {"fields": [], "annotations": [], "outputs": [(name, b"") for name in proto.output]}
        graph.details["listed_inputs"] = [value.producer for value in graph.inputs]
        made = self.nodes(graph, nodes, scope)
        self.declarations(graph, infos, scope, is_typed=False)  # each call may have types of its own
        self.connect(graph, made, scope)
        self.finish(graph, list(proto.output), scope)
        model.details["hidden_names"] |= scope.hidden
        return function


def _plain_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
