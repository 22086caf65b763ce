"""Changes to a model's signature that a user asks for, made before any pass runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ValueInfoProto

from graphopt.errors import UsageError
from graphopt.ir import Graph, Kind, Symbol, TensorType, Value
from graphopt.onnxio import protos
from graphopt.onnxio.casting import cast_ends
from graphopt.onnxio.cutting import cut_inputs
from graphopt.onnxio.declared import declaration_of, fix_declared_dims
from graphopt.onnxio.renaming import rename_all
from graphopt.onnxio.wording import choices


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model's signature shall be; every name is one the model has when it is loaded.

    Attributes:
        fix_dims: Sizes of free dims of inputs, by dim name.
        fix_shapes: Static shapes of inputs.
        inputs: The values that shall be the inputs, in that order: the graph is cut there. None keeps the inputs.
        outputs: The values that shall be returned, in that order; None keeps the outputs.
        add_outputs: Values to return besides.
        io_dtypes: Element types of inputs and outputs, as words; a `Cast` goes between.
        allow_lossy: Let `io_dtypes` lose precision or range in outputs.
        rename: New names of inputs, outputs, inner values and nodes.
    """

    fix_dims: Mapping[str, int] = field(default_factory=dict)
    fix_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    add_outputs: Sequence[str] = ()
    io_dtypes: Mapping[str, str] = field(default_factory=dict)
    allow_lossy: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if anything changes."""
        is_cut = self.inputs is not None or self.outputs is not None
        return is_cut or bool(self.fix_dims or self.fix_shapes or self.add_outputs or self.io_dtypes or self.rename)

    def apply(self, graph: Graph, infer: Callable[[], None]) -> tuple[str, ...]:
        """Give a model that was just loaded this signature.

        Args:
            graph: The main graph.
            infer: Finds the types of the model's values; called if inner values come into the signature.

        Returns:
            Sentences on what was done beyond what was asked for word by word.

        Raises:
            UsageError: a name is unknown or taken, or what is asked for cannot be had.
        """
        notes: list[str] = []
        fix_shapes(graph, self.fix_shapes)
        if self.fix_dims:
            fix_dims(graph, self.fix_dims)
        if self.inputs is not None or self.outputs is not None or self.add_outputs:
            infer()
        if self.outputs is not None:
            select_outputs(graph, self.outputs)
        if self.add_outputs:
            add_outputs(graph, self.add_outputs)
        if self.inputs is not None:
            notes += cut_inputs(graph, self.inputs)
        if self.io_dtypes:
            notes += cast_ends(graph, self.io_dtypes, allow_lossy=self.allow_lossy)
        if self.rename:
            notes += rename_all(graph, self.rename)
        _forget(graph)
        return tuple(notes)


def fix_dims(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Give every input dim of a name a size.

    Raises:
        UsageError: no input has a dim of that name, or a size is negative.
    """
    found: set[str] = set()
    names = {dim.label for value in graph.inputs for dim in (value.shape or ()) if isinstance(dim, Symbol)}
    for value in graph.inputs:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            continue
        axes: dict[int, int] = {}
        for axis, dim in enumerate(value.type.shape):
            if isinstance(dim, Symbol) and dim.label in sizes:
                axes[axis] = sizes[dim.label]
                found.add(dim.label)
        _fix(graph, value, axes)
    for name in sizes:
        if name not in found:
            raise UsageError(f"no input has a free dim called '{name}'; {choices('free dims', name, names)}")
    graph.set_detail("outputs", [(name, fix_declared_dims(raw, sizes)) for name, raw in graph.details["outputs"]])


def fix_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs a static shape.

    Raises:
        UsageError: there is no such input, or the shape contradicts what the model declares.
    """
    inputs = {value.name or "": value for value in graph.inputs}
    for name, shape in shapes.items():
        value = inputs.get(name)
        if value is None:
            raise UsageError(f"there is no input '{name}'; {choices('inputs', name, inputs)}")
        if not isinstance(value.type, TensorType):
            raise UsageError(f"input '{name}' is no tensor, so it has no shape to fix; leave it out")
        declared = value.type.shape
        fits = declared is None or (
            len(declared) == len(shape)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True))
        )
        if not fits:
            raise UsageError(
                f"the shape {list(shape)} does not fit input '{name}', declared {value.type}; give one that does"
            )
        _fix(graph, value, dict(enumerate(shape)))


def select_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Let the model return only the named values, in that order; inner values may be named.

    Raises:
        UsageError: the main graph has no value of that name, or a name is given twice.
    """
    declared = dict(graph.details["outputs"])
    if len(set(names)) != len(names) or not names:
        raise UsageError("name every output once, and at least one")
    chosen = [_returnable(graph, name) for name in names]
    graph.set_outputs(chosen)
    details = [
        (name, declared[name] if name in declared else declaration_of(value, name))
        for name, value in zip(names, chosen, strict=True)
    ]
    graph.set_detail("outputs", details)


def add_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Let the model return more values, after those it returns.

    Raises:
        UsageError: the main graph has no value of that name, or it is returned already.
    """
    details: list[tuple[str, bytes]] = list(graph.details["outputs"])
    values = list(graph.outputs)
    for name in names:
        if any(name == known for known, _ in details):
            raise UsageError(f"'{name}' is an output already; leave it out")
        value = _returnable(graph, name)
        values.append(value)
        details.append((name, declaration_of(value, name)))
    graph.set_outputs(values)
    graph.set_detail("outputs", details)


def _returnable(graph: Graph, name: str) -> Value:
    values = {value.name: value for node in graph.all_nodes() for value in node.results if value.name}
    values.update(dict(zip((known for known, _ in graph.details["outputs"]), graph.outputs, strict=True)))
    value = values.get(name)
    if value is None:
        inside = "" if name not in _names_in_bodies(graph) else ": it lies in a body of If, Loop or Scan"
        raise UsageError(f"the model has no value '{name}' it could return{inside}; {choices('outputs', name, values)}")
    return value


def _names_in_bodies(graph: Graph) -> set[str | None]:
    return {value.name for body in graph.bodies_inside() for node in body.all_nodes() for value in node.results}


def _fix(graph: Graph, value: Value, axes: Mapping[int, int]) -> None:
    if not axes:
        return
    if any(size < 0 for size in axes.values()):
        raise UsageError(f"a dim of input '{value.name}' cannot be negative; give its size")
    assert isinstance(value.type, TensorType)
    old = value.type.shape if value.type.shape is not None else tuple(None for _ in axes)
    graph.retype(value, TensorType(value.type.dtype, tuple(axes.get(axis, dim) for axis, dim in enumerate(old))))
    if value.declared is not None:
        value.declared = fix_declared_dims(value.declared, {}, axes, len(old))


def _forget(graph: Graph) -> None:
    """Leave of types what a file with this signature says: what was inferred spoke of inputs that may be gone."""
    for value in graph.inputs:
        if value.declared is not None:
            declared = ValueInfoProto.FromString(value.declared).type
            graph.retype(value, protos.type_of(declared, value.name))
    for value in _inferred_values(graph):
        value.elements = None
        if isinstance(value.type, TensorType):
            value.producer.graph.retype(value, TensorType(value.type.dtype))  # type: ignore[union-attr]


def _inferred_values(graph: Graph) -> Iterator[Value]:
    for inner in graph.model.graphs():
        for node in inner.all_nodes():
            if node.kind is Kind.OPERATOR or (node.kind is Kind.INPUT and inner is not graph):
                yield from node.results
