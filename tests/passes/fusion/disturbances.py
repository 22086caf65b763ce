"""Examples of fusions disturbed further: shapes that stretch, other numbers, operands, types, and random parts.

They are near misses, most of them: a rule must leave them alone, or write what gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

Disturbed = tuple[str, ModelProto]
DOUBLE, HALF, BRAIN = int(TensorProto.DOUBLE), int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)
_OTHERS = {
    "Add": ("Sub", "Mul", "Max"),
    "Mul": ("Div", "Add"),
    "Div": ("Mul", "Sub"),
    "Sub": ("Add",),
    "Sqrt": ("Exp",),
    "Sigmoid": ("Tanh", "Relu"),
    "Tanh": ("Sigmoid",),
    "Erf": ("Tanh",),
    "Softmax": ("LogSoftmax", "Hardmax"),
    "ReduceMean": ("ReduceSum", "ReduceMax"),
    "Sin": ("Cos",),
    "Cos": ("Sin",),
}
_MOST_NUMBERS = 8


def copy_of(model: ModelProto) -> ModelProto:
    """A model of its own."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def stretched(example: ModelProto) -> Iterator[Disturbed]:
    """An operand with an axis of 1, with another axis in front, or without its first one."""
    top = max((len(info.type.tensor_type.shape.dim) for info in example.graph.input), default=0)
    for index, info in enumerate(example.graph.input):
        dims = [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
        shapes = [[*dims[:axis], 3 if dim == 1 else 1, *dims[axis + 1 :]] for axis, dim in enumerate(dims)]
        shapes += [[3, *([1] * (rank - len(dims) - 1)), *dims] for rank in range(len(dims) + 1, top + 2)]
        for shape in [*shapes, *([dims[1:]] if dims else [])]:
            model = copy_of(example)
            changed = helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, shape)
            model.graph.input[index].CopyFrom(changed)
            yield from _inferred(f"input {info.name} is of {shape}", model)
    for index, tensor in enumerate(example.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            for array in _reshaped(numpy_helper.to_array(tensor), top):
                yield from _inferred(f"{tensor.name} is of {array.shape}", _with(example, index, array))


def _reshaped(array: NDArray[np.float32], top: int) -> Iterator[NDArray[np.float32]]:
    for axis, size in enumerate(array.shape):
        yield np.take(array, [0], axis=axis) if size > 1 else np.concatenate([array, -array, array], axis=axis)
    for rank in range(array.ndim, top + 1):
        one = array.reshape((1,) * (rank - array.ndim + 1) + array.shape)
        yield one
        yield np.concatenate([one, one + 1, -one])
    if array.ndim and array.shape[0]:
        yield array[0]


def renumbered(example: ModelProto) -> Iterator[Disturbed]:
    """A constant of other numbers."""
    for index, tensor in enumerate(example.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if tensor.data_type == TensorProto.FLOAT:
            for factor in (1.5, 1.01, -1, 0):
                with np.errstate(over="ignore", invalid="ignore"):
                    changed = array * np.float32(factor)
                yield f"{tensor.name} times {factor}", _with(example, index, changed)
            for number in (np.inf, -np.inf, np.nan, np.finfo(np.float32).min):
                yield f"{tensor.name} is {number}", _with(example, index, np.full_like(array, number))
        elif tensor.data_type == TensorProto.INT64:
            flat = array.reshape(-1)
            for place in range(min(flat.size, _MOST_NUMBERS)):
                for number in sorted({flat[place] + 1, flat[place] - 1, -1, 0, 1, 2} - {flat[place]}):
                    whole = flat.copy()
                    whole[place] = number
                    name = f"{tensor.name}[{place}] is {number}"
                    yield from _inferred(name, _with(example, index, whole.reshape(array.shape)))


def rewired(example: ModelProto) -> Iterator[Disturbed]:
    """Another operator, operands the other way round, or another value of the same type for an operand."""
    typed = shape_inference.infer_shapes(example, data_prop=True).graph
    types = {info.name: str(info.type) for info in (*typed.input, *typed.value_info, *typed.output)}
    types |= {
        tensor.name: str(helper.make_tensor_type_proto(tensor.data_type, tensor.dims)) for tensor in typed.initializer
    }
    made = [info.name for info in example.graph.input] + [tensor.name for tensor in example.graph.initializer]
    for index, node in enumerate(example.graph.node):
        for op_type in _OTHERS.get(node.op_type, ()) if node.domain == "" else ():
            model = copy_of(example)
            model.graph.node[index].op_type = op_type
            yield from _inferred(f"{node.op_type} {index} is {op_type}", model)
        if len(node.input) > 1:
            yield from _inferred(f"the last operands of {node.op_type} {index} change places", _turned(example, index))
        for place, name in enumerate(node.input):
            for other in made:
                if other != name and name in types and types.get(other) == types[name]:
                    model = copy_of(example)
                    model.graph.node[index].input[place] = other
                    yield f"operand {place} of {node.op_type} {index} is {other}", model
        made += node.output


def _turned(example: ModelProto, index: int) -> ModelProto:
    model = copy_of(example)
    operands = model.graph.node[index].input
    operands[-2], operands[-1] = operands[-1], operands[-2]
    return model


def inner_floats(example: ModelProto) -> list[str]:
    """Values between the operators that are of single precision."""
    typed = shape_inference.infer_shapes(example, data_prop=True)
    return [info.name for info in typed.graph.value_info if info.type.tensor_type.elem_type == TensorProto.FLOAT]


def dropped(example: ModelProto, name: str, share: float) -> ModelProto:
    """A Dropout in training behind an inner value; none is dropped where the share is 0."""
    model = copy_of(example)
    nodes = list(model.graph.node)
    place = next(index for index, node in enumerate(nodes) if name in node.output)
    for node in nodes:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = "dropped"
    nodes.insert(place + 1, helper.make_node("Dropout", [name, "share", "yes"], ["dropped"]))
    kept = GraphProto(node=nodes)
    del model.graph.node[:]
    model.graph.node.extend(kept.node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(share, np.float32), "share"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    return model


def ends_in(model: ModelProto, op_type: str) -> bool:
    """True if a result of the model is made by way of an operator."""
    makers = {name: node for node in model.graph.node for name in node.output if name}
    pending, seen = [info.name for info in model.graph.output], set[str]()
    while pending:
        name = pending.pop()
        node = makers.get(name)
        if node is None or name in seen:
            continue
        if node.op_type == op_type:
            return True
        seen.add(name)
        pending += node.input
    return False


def retyped(example: ModelProto, dtype: int) -> ModelProto:
    """The example in another type than single precision."""
    model = copy_of(example)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    ends: Sequence[ValueInfoProto] = [*model.graph.input, *model.graph.output]
    for info in ends:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = dtype
    tensors = [*model.graph.initializer]
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = dtype
            tensors += [attribute.t] if attribute.HasField("t") else []
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                array = numpy_helper.to_array(tensor).astype(numpy_type)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    del model.graph.value_info[:]
    return model


def _with(example: ModelProto, index: int, array: NDArray[np.generic]) -> ModelProto:
    model = copy_of(example)
    tensor = model.graph.initializer[index]
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))
    return model


def _inferred(name: str, model: ModelProto) -> Iterator[Disturbed]:
    """The model with the shapes that its results have now; nothing if it is no model any more."""
    del model.graph.value_info[:]
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        typed = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError:
        return
    if all(info.type.tensor_type.HasField("shape") for info in typed.graph.output):
        del typed.graph.value_info[:]
        yield name, typed
