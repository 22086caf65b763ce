"""The graph: networkx stores who reads what, and a handful of edits are the only way to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, assert_never

from graphopt import schema
from graphopt.errors import EditError
from graphopt.ir import edits
from graphopt.ir.attributes import checked_attribute, is_same_attribute
from graphopt.ir.node import Kind, Node
from graphopt.ir.structure import Structure, reads_from_outside
from graphopt.ir.types import TensorType
from graphopt.ir.value import Value
from graphopt.tensors import Tensor

if TYPE_CHECKING:
    from graphopt.ir.types import Type

_STRUCTURAL = (edits.Inserted, edits.Erased, edits.Rewired)


class Graph(Structure):
    """An ONNX graph: the model's, a function's, or a body of If, Loop or Scan.

    Its nodes and uses are the nodes and edges of one `networkx.MultiDiGraph`: value `v` read as operand `i` by node
    `u` is the edge `(v.producer, n, key=(u, i))`, where `n` is `u` or, for a `u` inside a body, the node of this graph
    that owns the body.
    """

    __slots__ = ()

    # --- making nodes (detached: no edit yet)

    def make_node(
        self,
        op_type: str,
        operands: Sequence[Value | None] = (),
        *,
        results: int = 1,
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
        overload: str = "",
    ) -> Node:
        """An operator application that is not in the graph yet; trailing omitted operands are dropped if they may be.

        Raises:
            EditError: an attribute's value is none that ONNX has.
        """
        trimmed = list(operands)
        if trimmed and trimmed[-1] is None:
            # A Loop must list its trip count and condition even where it has neither.
            known = schema.operator(domain, op_type, self.opsets.get(domain, 0))
            least = 0 if known is None else known.min_inputs
            while len(trimmed) > least and trimmed[-1] is None:
                trimmed.pop()
        return Node(
            self.model.next_serial(),
            Kind.OPERATOR,
            op_type,
            domain,
            operands=tuple(trimmed),
            results=results,
            attributes={key: checked_attribute(key, value) for key, value in (attributes or {}).items()},
            name=name,
            overload=overload,
        )

    def make_body(self, owner: Node, attribute: str, name: str = "") -> Graph:
        """An empty body of a node that is in this graph or will be inserted into it.

        Args:
            owner: The node.
            attribute: The attribute that holds the body; of a list of graphs, `attribute[i]`.
            name: The body's own name.
        """
        body = Graph(self.model, name, self.opsets, owner)
        owner.add_body(attribute, body)
        return body

    def make_constant(self, tensor: Tensor, name: str | None = None) -> Node:
        """A constant that is not in the graph yet."""
        node = Node(self.model.next_serial(), Kind.CONSTANT, results=1, tensor=tensor)
        node.results[0].name = name
        node.results[0].type = TensorType(tensor.dtype, tensor.shape)
        return node

    def add_constant(self, tensor: Tensor, name: str | None = None) -> Value:
        """Insert a constant and return its value."""
        node = self.make_constant(tensor, name)
        self.insert(node)
        return node.result

    def add_input(self, name: str, type: Type | None, default: Tensor | None = None) -> Value:
        """Append a graph input and return its value."""
        node = Node(self.model.next_serial(), Kind.INPUT, results=1)
        node.results[0].name, node.results[0].type, node.default = name, type, default
        node.is_new = False  # the name is the caller's
        self.insert(node)
        return node.results[0]

    # --- the edits

    def insert(self, node: Node, *, rank: int | None = None) -> None:
        """Put a detached node, with its bodies, into the graph.

        Args:
            node: The node; its operands, and what its bodies read from outside, must be visible here.
            rank: Its place in the file's order; default: after everything there is.

        Raises:
            EditError: the node is in a graph already, or an operand is not visible here.
        """
        if node.graph is not None:
            raise EditError(f"{node!r} is in a graph already; make a new node")
        for value in node.operands:
            self._require_readable(value, node)
        for body in node.bodies.values():
            for _, _, value in reads_from_outside(body):
                self._require_readable(value, node)
        if rank is not None:
            node.rank = rank
        self._import(node.domain)
        self._attach(node)
        self.tell(edits.Inserted(self, node))

    def _import(self, domain: str) -> None:
        """Import a domain that is new here at its first version, as ONNX Runtime's own has only one."""
        if domain in self.opsets or domain == "ai.onnx":
            return
        around = self
        while around.owner is not None and around.parent is not None:
            around = around.parent
        around.set_opset(domain, 1)

    def erase(self, node: Node, *, signature: bool = False) -> None:
        """Take a node, with its bodies, out of the graph; with `signature` an input too, as only a user may ask.

        Raises:
            EditError: a result is still read (the message says by whom), something outside names the node, or it is an
                input that callers of the model or function give.
        """
        self._require_own(node)
        if node.is_pinned:
            raise EditError(f"{node!r} is kept by name; it cannot be erased, take it off the keep-list")
        if node.kind is Kind.RETURN or (node.kind is Kind.INPUT and self.owner is None and not signature):
            raise EditError(f"{node!r} belongs to the signature of '{self.name}'; it cannot be erased")
        for value in node.results:
            if value.uses:
                users = ", ".join(repr(user) for user in value.users[:3])
                raise EditError(f"{value!r} is still read by {users}; replace its uses first")
        self._detach(node)
        self.tell(edits.Erased(self, node))

    def set_operands(self, node: Node, operands: Sequence[Value | None]) -> None:
        """Let a node read other operands, as many as are given.

        Raises:
            EditError: an operand is not visible in the node's graph, or made by the node itself.
        """
        self._require_own(node)
        old, new = node.operands, tuple(operands)
        if old == new:
            return
        for value in new:
            self._require_readable(value, node)
        self._rewire(node, new)
        self.tell(edits.Rewired(self, node, old, new))

    def set_operand(self, node: Node, index: int, value: Value | None) -> None:
        """Let a node read another value at one position.

        Raises:
            EditError: the value is not visible in the node's graph, or made by the node itself; or there is no such
                position.
        """
        self._require_own(node)
        old = node.operands
        if not 0 <= index < len(old):
            raise EditError(f"{node!r} has no operand {index}; use set_operands to add one")
        if old[index] is value:
            return
        self._require_readable(value, node)
        new = (*old[:index], value, *old[index + 1 :])
        self._rewire(node, new, range(index, index + 1))
        self.tell(edits.Rewired(self, node, old, new))

    def set_outputs(self, values: Sequence[Value]) -> None:
        """Let the graph return other values."""
        self.set_operands(self.return_node, values)

    def set_attribute(self, node: Node, name: str, value: Any) -> None:
        """Set an attribute; None removes it.

        Raises:
            EditError: ONNX knows the operator and it has no such attribute in this opset; a body has that name; or the
                value is none that ONNX has.
        """
        self._require_own(node)
        operator = node.schema
        if operator is not None and value is not None and name not in operator.attributes:
            raise EditError(f"{node.op_type} has no attribute '{name}' in opset {node.opset}; see the operator's page")
        if name in node.bodies:
            raise EditError(f"'{name}' of {node!r} is a body; edit the nodes in it")
        value = None if value is None else checked_attribute(name, value)
        old = node.attributes.get(name)
        if is_same_attribute(old, value):
            return
        self._write_attribute(node, name, value)
        self.tell(edits.AttributeSet(self, node, name, old, value))

    def retype(self, value: Value, type: Type | None) -> None:
        """Record what became known of a value's type."""
        if value.type == type:
            return
        old, value.type = value.type, type
        self.tell(edits.Retyped(self, value, old, type))

    def rename(self, item: Value | Node, name: str | None, *, signature: bool = False) -> None:
        """Give a value or node another label; None leaves a value's name to export.

        With `signature` also one that is known outside, as only a user may ask, and whoever knows it must be told.

        Raises:
            EditError: the name belongs to the signature or is kept from outside.
        """
        node = item.producer if isinstance(item, Value) else item
        is_signature = isinstance(item, Value) and node.kind is Kind.INPUT and self.owner is None
        if (node.is_pinned or is_signature) and not signature:
            raise EditError(f"{item!r} is known outside by its name; it cannot be renamed")
        if isinstance(item, Node):
            name = name or ""
        if item.name == name:
            return
        old = item.name
        item.name = name
        self.tell(edits.Renamed(self, item, old, name))

    def store_as_node(self, constant: Node, as_node: bool) -> None:
        """Choose whether a constant is written as a `Constant` node or as an initializer."""
        if constant.stored_as_node != as_node:
            constant.stored_as_node = as_node
            self.tell(edits.StorageSet(self, constant, not as_node, as_node))

    def set_results(self, node: Node, results: Sequence[Value]) -> None:
        """Let a node give only some of its results, in their order.

        Raises:
            EditError: a result that goes is still read, one was not there, or the node is kept by name.
        """
        self._require_own(node)
        old, new = node.results, tuple(results)
        if old == new:
            return
        if node.is_pinned:
            raise EditError(f"{node!r} is kept by name; its results stay")
        for value in old:
            if value not in new and value.uses:
                raise EditError(f"{value!r} is still read by {value.users[0]!r}; replace its uses first")
        if [value for value in old if value in new] != list(new):
            raise EditError(f"{node!r} can only give results it has, in their order; make a new node for others")
        self._write_results(node, new)
        self.tell(edits.Narrowed(self, node, old, new))

    def set_detail(self, name: str, detail: Any) -> None:
        """Replace something the file says beside nodes and values (`outputs`, `infos` …); None removes it."""
        old = self.details.get(name)
        self._write_detail(name, detail)
        self.tell(edits.DetailSet(self, name, old, detail))

    def set_opset(self, domain: str, version: int | None) -> None:
        """Import an opset of a domain, in this graph and its bodies; None drops the import.

        Raises:
            EditError: this is a body, which shares the imports of the graph around it.
        """
        if self.owner is not None:
            raise EditError(f"'{self.name}' is a body; set the opset of the graph around it")
        old = dict(self._imports)
        new = {name: number for name, number in old.items() if name != domain or version is not None}
        if version is not None:
            new[domain] = version
        if old != new:
            self._write_opsets(new)
            self.tell(edits.OpsetSet(self, old, new))

    def replace_uses(self, old: Value, new: Value) -> None:
        """Let everything that reads `old` read `new`; an unnamed `new` takes the name of `old`.

        Raises:
            EditError: `new` is not visible to a user of `old`, or is computed by one; nothing was replaced.
        """
        if old is new:
            return
        for user, _ in old.uses:
            assert user.graph is not None
            user.graph._require_readable(new, user)
        for user, index in list(old.uses):
            assert user.graph is not None
            user.graph.set_operand(user, index, new)
        if new.name is None and old.name and old.producer.kind is not Kind.INPUT and not old.producer.is_pinned:
            before, after = old.producer.graph or self, new.producer.graph or self
            name, declared = old.name, old.declared
            before._redeclare(old, None)
            after._redeclare(new, declared)
            before.rename(old, None)
            after.rename(new, name)

    def undo(self, edit: edits.Edit) -> None:
        """Take back the latest edit, as a `Journal` does; listeners are told of the inverse, nothing is checked."""
        self.tell(replace(self._invert(edit), undoes=not edit.undoes))

    def _write_attribute(self, node: Node, name: str, value: Any) -> None:
        attributes = {**node.attributes, name: value}
        if value is None:
            del attributes[name]
        # Never changed in place: the node's `Origin` holds the mapping as it was read.
        node._attributes = MappingProxyType(attributes)

    def _write_opsets(self, imports: dict[str, int]) -> None:
        # Changed in place: bodies share the mapping.
        self._imports.clear()
        self._imports.update(imports)

    def _write_detail(self, name: str, detail: Any) -> None:
        if detail is None:
            self.details.pop(name, None)
        else:
            self.details[name] = detail

    def _write_results(self, node: Node, results: tuple[Value, ...]) -> None:
        node.results = results
        for index, value in enumerate(results):
            value.index = index

    def _redeclare(self, value: Value, declared: bytes | None) -> None:
        if value.declared is not declared:
            old, value.declared = value.declared, declared
            self.tell(edits.Redeclared(self, value, old, declared))

    def _invert(self, edit: edits.Edit) -> edits.Edit:
        match edit:
            case edits.Inserted(node=node):
                self._detach(node)
                return edits.Erased(self, node)
            case edits.Erased(node=node):
                self._attach(node)
                return edits.Inserted(self, node)
            case edits.Rewired(node=node, old=operands):
                self._rewire(node, operands)
                return edits.Rewired(self, node, edit.new, operands)
            case edits.AttributeSet(node=node, name=name, old=value):
                self._write_attribute(node, name, value)
                return edits.AttributeSet(self, node, name, edit.new, value)
            case edits.Retyped(value=value, old=type):
                value.type = type
                return edits.Retyped(self, value, edit.new, type)
            case edits.Renamed(item=item, old=old):
                item.name = old
                return edits.Renamed(self, item, edit.new, old)
            case edits.Redeclared(value=value, old=declared):
                value.declared = declared
                return edits.Redeclared(self, value, edit.new, declared)
            case edits.StorageSet(node=node, old=as_node):
                node.stored_as_node = as_node
                return edits.StorageSet(self, node, edit.new, as_node)
            case edits.OpsetSet(old=imports):
                self._write_opsets(imports)
                return edits.OpsetSet(self, edit.new, imports)
            case edits.Narrowed(node=node, old=results):
                self._write_results(node, results)
                return edits.Narrowed(self, node, edit.new, results)
            case edits.DetailSet(name=name, old=detail):
                self._write_detail(name, detail)
                return edits.DetailSet(self, name, edit.new, detail)
            case edits.IrVersionSet(old=ir_version):
                self.model.ir_version = ir_version
                return edits.IrVersionSet(self, edit.new, ir_version)
            case edits.FunctionsSet(old=functions):
                self.model.functions = functions
                return edits.FunctionsSet(self, edit.new, functions)
            case _:
                assert_never(edit)

    def _require_own(self, node: Node) -> None:
        if node.graph is not self:
            raise EditError(f"{node!r} is not in graph '{self.name}'; call the edit on its own graph")

    def _require_readable(self, value: Value | None, user: Node) -> None:
        """Refuse what `user`, in this graph, must not read: values of other graphs, and its own."""
        if value is None:
            return
        if not self.can_see(value):
            raise EditError(f"{value!r} is not visible in graph '{self.name}', where {user!r} is; insert it first")
        holder: Node | None = user
        graph: Graph | None = self
        while graph is not value.producer.graph and graph is not None:
            holder, graph = graph.owner, graph.parent
        if holder is value.producer:
            raise EditError(f"{user!r} would read {value!r}, which it computes; make it read something else")

    def tell(self, edit: edits.Edit) -> None:
        """Count an edit that was just made, here and in the graphs around, and pass it on to the listeners."""
        step = 0 if isinstance(edit, edits.Retyped) else -1 if edit.undoes else 1
        is_structural = isinstance(edit, _STRUCTURAL)
        graph: Graph | None = self
        while graph is not None:
            graph.version += 1
            graph.changes += step
            if is_structural:
                graph._order = None
            graph = graph.parent
        self.model.tell(edit)
