"""Other element types for inputs and outputs: a `Cast` goes between the signature and the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.errors import UsageError
from graphopt.ir import Graph, Kind, Node, TensorType, Value
from graphopt.onnxio.declared import with_dtype
from graphopt.onnxio.wording import choices
from graphopt.schema import operator
from graphopt.tensors import DType

_OTHER_WORDS = {"float32": DType.FLOAT, "float64": DType.DOUBLE, "half": DType.FLOAT16}


def dtype_of(word: str) -> DType:
    """The element type of a word: ONNX's or numpy's.

    Raises:
        UsageError: it is none that a `Cast` handles.
    """
    known = {dtype.text: dtype for dtype in DType if dtype not in (DType.UNDEFINED, DType.STRING)}
    found = known.get(word.lower()) or _OTHER_WORDS.get(word.lower())
    if found is None or found.name.startswith("COMPLEX"):
        raise UsageError(f"there is no element type '{word}' to cast to; {choices('types', word, known)}")
    return found


def cast_ends(graph: Graph, dtypes: Mapping[str, str], *, allow_lossy: bool = False) -> list[str]:
    """Give inputs and outputs other element types.

    Args:
        graph: The main graph.
        dtypes: Input or output to the word for its new element type.
        allow_lossy: Let outputs lose precision or range.

    Returns:
        A sentence on each `Cast` put in.

    Raises:
        UsageError: there is no such input or output, it is no tensor, the cast does not exist in the model's opset, or
            an output would lose something unasked.
    """
    inputs = {value.name: value for value in graph.inputs}
    outputs = [name for name, _ in graph.details["outputs"]]
    notes = []
    for name, word in dtypes.items():
        dtype = dtype_of(word)
        if name in inputs and name in outputs:
            raise UsageError(f"'{name}' is an input and an output; rename one, or leave its type")
        if name in inputs:
            notes += _cast_input(graph, inputs[name], dtype)
        elif name in outputs:
            notes += _cast_output(graph, outputs.index(name), dtype, allow_lossy)
        else:
            raise UsageError(
                f"there is no input or output '{name}'; {choices('inputs and outputs', name, [*inputs, *outputs])}"
            )
    return notes


def _cast_input(graph: Graph, value: Value, dtype: DType) -> list[str]:
    name = value.name or ""
    old = _tensor_type(value, "input", name)
    if old.dtype is dtype:
        return []
    if value.producer.default is not None or value.producer.origin is not None:
        raise UsageError(f"input '{name}' has a default of type {old.dtype.text}; leave its type")
    cast = _cast(graph, value, dtype, old.dtype, f"{name}_cast")
    graph.insert(cast, rank=value.producer.rank)
    for user, index in list(value.uses):
        if user is not cast:
            assert user.graph is not None
            user.graph.set_operand(user, index, cast.result)
    declared = with_dtype(value.declared, value, name, dtype)
    value.declared = declared
    graph.retype(value, TensorType(dtype, old.shape))
    cast.result.type = old
    rounds = "" if is_exact(dtype, old.dtype) else ", not every value survives that"
    return [f"input '{name}' is {dtype.text} now, and cast to {old.dtype.text} inside{rounds}"]


def _cast_output(graph: Graph, index: int, dtype: DType, allow_lossy: bool) -> list[str]:
    name, declared = graph.details["outputs"][index]
    value = graph.outputs[index]
    old = _tensor_type(value, "output", name)
    if old.dtype is dtype:
        return []
    is_lossy = not is_exact(old.dtype, dtype)
    if is_lossy and not allow_lossy:
        raise UsageError(
            f"output '{name}' would lose precision or range from {old.dtype.text} to {dtype.text}; "
            "say --allow-lossy (allow_lossy=True) if that is meant"
        )
    if value.producer.is_pinned or value.producer.kind is Kind.INPUT:
        raise UsageError(f"output '{name}' is known by its name inside the model too; leave its type")
    cast = _cast(graph, value, old.dtype, dtype, f"{name}_cast")
    graph.insert(cast)
    graph.set_operand(graph.return_node, index, cast.result)
    graph.rename(value, None)
    graph.rename(cast.result, name)
    cast.result.type = TensorType(dtype, old.shape)
    details = list(graph.details["outputs"])
    details[index] = (name, with_dtype(declared, value, name, dtype))
    graph.set_detail("outputs", details)
    loses = ", losing precision or range as allowed" if is_lossy else ""
    return [f"output '{name}' is {dtype.text} now, cast from {old.dtype.text} at the end{loses}"]


def _tensor_type(value: Value, what: str, name: str) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise UsageError(f"the {what} '{name}' is no tensor of a known type; leave its type")
    if value.type.dtype is DType.STRING or value.type.dtype.name.startswith("COMPLEX"):
        raise UsageError(f"the {what} '{name}' is {value.type.dtype.text}, which has no cast; leave its type")
    return value.type


def _cast(graph: Graph, value: Value, given: DType, wanted: DType, name: str) -> Node:
    opset = graph.opsets.get("", 0)
    schema = operator("", "Cast", opset)
    if schema is None or opset < 6:
        raise UsageError(
            f"the model imports opset {opset} of ai.onnx, whose Cast cannot be used here; raise the opset first"
        )
    for dtype in (given, wanted):
        if dtype not in schema.input_dtypes(0):
            raise UsageError(f"Cast of opset {opset} knows no {dtype.text}; choose another type or raise the opset")
    taken = {node.name for node in graph.nodes()}
    while name in taken:
        name += "_"
    return graph.make_node("Cast", [value], attributes={"to": int(wanted)}, name=name)


def is_exact(given: DType, wanted: DType) -> bool:
    """True if every value of one element type is a value of the other."""
    if given is wanted or given is DType.BOOL:
        return True
    if wanted is DType.BOOL:
        return False
    if given.is_float:
        return wanted.is_float and _holds_float(given, wanted)
    low, high = _ends(given)
    if wanted.is_float:
        return max(high, -low) <= 1 << _precision(wanted)
    least, most = _ends(wanted)
    return least <= low and high <= most


def _ends(dtype: DType) -> tuple[int, int]:
    bits = dtype.bits
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


def _precision(dtype: DType) -> int:
    """Bits of the significand, up to the power of two until which all integers are there and in range."""
    info = _float_info(dtype)
    return min(int(info.nmant) + 1, int(info.maxexp) - 1)


def _holds_float(given: DType, wanted: DType) -> bool:
    small, big = _float_info(given), _float_info(wanted)
    return bool(
        small.nmant <= big.nmant
        and small.maxexp <= big.maxexp
        and small.minexp - small.nmant >= big.minexp - big.nmant  # subnormals included
    )


def _float_info(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
