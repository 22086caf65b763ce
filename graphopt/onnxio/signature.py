"""Changes to a model's signature that a user asks for, made before any pass runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from graphopt.errors import UsageError
from graphopt.ir import Graph, Symbol, TensorType, Value
from graphopt.onnxio.declared import fix_declared_dims


def fix_dims(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Give every input dim of a name a size.

    Raises:
        UsageError: no input has a dim of that name, or a size is negative.
    """
    found: set[str] = set()
    for value in graph.inputs:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            continue
        axes: dict[int, int] = {}
        for axis, dim in enumerate(value.type.shape):
            if isinstance(dim, Symbol) and dim.label in sizes:
                axes[axis] = sizes[dim.label]
                found.add(dim.label)
        _fix(graph, value, axes)
    names = {dim.label for value in graph.inputs for dim in (value.shape or ()) if isinstance(dim, Symbol)}
    for name in sizes:
        if name not in found:
            raise UsageError(f"no input has a free dim called '{name}'; {_choices('free dims', name, names)}")
    graph.details["outputs"] = [(name, fix_declared_dims(raw, sizes)) for name, raw in graph.details["outputs"]]


def fix_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs a static shape.

    Raises:
        UsageError: there is no such input, or the shape contradicts what the model declares.
    """
    inputs = {value.name or "": value for value in graph.inputs}
    for name, shape in shapes.items():
        value = inputs.get(name)
        if value is None:
            raise UsageError(f"there is no input '{name}'; {_choices('inputs', name, inputs)}")
        if not isinstance(value.type, TensorType):
            raise UsageError(f"input '{name}' is no tensor; it has no shape to fix")
        declared = value.type.shape
        fits = declared is None or (
            len(declared) == len(shape)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True))
        )
        if not fits:
            raise UsageError(f"input '{name}' is declared {value.type}; the shape {list(shape)} does not fit it")
        _fix(graph, value, dict(enumerate(shape)))


def select_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Let the model return only the named values, in that order; inner values may be named.

    Raises:
        UsageError: the main graph has no value of that name, or a name is given twice.
    """
    declared = dict(graph.details["outputs"])
    values = {value.name: value for node in graph.all_nodes() for value in node.results if value.name}
    values.update(dict(zip((name for name, _ in graph.details["outputs"]), graph.outputs, strict=True)))
    if len(set(names)) != len(names) or not names:
        raise UsageError("name every output once, and at least one")
    for name in names:
        if name not in values:
            raise UsageError(f"the model has no value '{name}'; {_choices('outputs', name, values)}")
    chosen = [values[name] for name in names]
    graph.set_outputs(chosen)
    graph.details["outputs"] = [
        (name, declared.get(name) or value.declared or b"") for name, value in zip(names, chosen, strict=True)
    ]


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


def _choices(what: str, name: str, names: Iterable[str]) -> str:
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return f"{what} are: {shown}" if known else f"the model has no {what}"
