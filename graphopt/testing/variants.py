"""An example, disturbed in every way that has broken an optimizer before.

Each variant is a valid model; a rule must fire on it and be right, or leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
    version_converter,
)

from graphopt import schema
from graphopt.analysis.effects import is_commutative

Variant = tuple[str, ModelProto]
_QUANTIZED_RANGE = 0.05


def variants(example: ModelProto) -> Iterator[Variant]:
    """Every variant of an example, with a name that says what was done."""
    typed = shape_inference.infer_shapes(example, data_prop=True)
    infos = {info.name: info for info in typed.graph.value_info}
    inner = [name for node in example.graph.node for name in node.output if name in infos]
    for name in inner:
        yield f"inner value {name} is a graph output", exposed(example, infos[name])
        yield f"inner value {name} has a second user", second_user(example, infos[name])
        yield f"inner value {name} is read by a branch", captured(example, infos[name])
    if all(info.type.HasField("tensor_type") for info in example.graph.output):
        yield "moved into a branch", moved_into_branch(example)
    yield "symbolic dims", symbolic(example)
    for index, info in enumerate(example.graph.input):
        if _rank(info) and not _is_default(example, info.name):
            yield f"input {info.name} is a second result", second_result(example, index)
    for tensor in example.graph.initializer:
        if tensor.name not in {info.name for info in example.graph.input}:
            yield f"initializer {tensor.name} may be overridden", overridable(example, tensor)
    for name in inner:
        if infos[name].type.tensor_type.elem_type == TensorProto.FLOAT:
            yield f"inner value {name} is quantized and back", quantized(example, name)
    for index, node in enumerate(example.graph.node):
        if len(node.input) == 2 and is_commutative(node.domain, node.op_type):
            yield f"operands of {node.op_type} {index} change places", swapped(example, index)
    yield from other_attributes(example)
    yield from other_opsets(example)


def _copy(example: ModelProto) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(example)
    return model


def _rank(info: ValueInfoProto) -> int:
    return len(info.type.tensor_type.shape.dim) if info.type.HasField("tensor_type") else 0


def _is_default(example: ModelProto, name: str) -> bool:
    return any(tensor.name == name for tensor in example.graph.initializer)


def exposed(example: ModelProto, info: ValueInfoProto) -> ModelProto:
    """An inner value is also returned."""
    model = _copy(example)
    model.graph.output.append(info)
    return model


def second_user(example: ModelProto, info: ValueInfoProto) -> ModelProto:
    """An inner value is also read by an operator whose result is returned."""
    model = _copy(example)
    model.graph.node.append(helper.make_node("Shape", [info.name], ["second_use"]))
    model.graph.output.append(helper.make_tensor_value_info("second_use", TensorProto.INT64, [None]))
    return model


def captured(example: ModelProto, info: ValueInfoProto) -> ModelProto:
    """An inner value is also read inside the branches of an If."""
    model = _copy(example)
    branches = []
    for label in ("then", "else"):
        output = ValueInfoProto()
        output.CopyFrom(info)
        output.name = f"{label}_value"
        node = helper.make_node("Identity", [info.name], [output.name])
        branches.append(helper.make_graph([node], label, [], [output]))
    result = ValueInfoProto()
    result.CopyFrom(info)
    result.name = "branch_value"
    model.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    model.graph.node.append(
        helper.make_node("If", ["which"], [result.name], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(result)
    return model


def moved_into_branch(example: ModelProto) -> ModelProto:
    """The whole example stands in a branch and reads its inputs from outside."""
    graph = example.graph
    branches = []
    for label in ("then", "else"):
        branch = GraphProto(name=label)
        if label == "then":
            branch.node.extend(graph.node)
            branch.output.extend(graph.output)
            branch.initializer.extend(t for t in graph.initializer if t.name not in {i.name for i in graph.input})
        else:
            for info in graph.output:
                # A branch may not return an outer value, and its result needs the same type: an empty sequence of
                # zeros of the right rank will do, since shapes of branches may differ.
                name = f"else_{info.name}"
                dtype = info.type.tensor_type.elem_type
                shape = [1] * len(info.type.tensor_type.shape.dim)
                zeros = np.zeros(shape, helper.tensor_dtype_to_np_dtype(dtype))
                if dtype == TensorProto.STRING:
                    zeros = np.full(shape, "", dtype=object)
                branch.node.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(zeros, name)))
                output = ValueInfoProto()
                output.CopyFrom(info)
                output.name = name
                for dim in output.type.tensor_type.shape.dim:
                    dim.Clear()
                branch.output.append(output)
        branches.append(branch)
    model = _copy(example)
    outer = model.graph
    del outer.node[:], outer.output[:]
    kept = [tensor for tensor in graph.initializer if tensor.name in {info.name for info in graph.input}]
    del outer.initializer[:]
    outer.initializer.extend(kept)
    outer.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    names = [f"outer_{info.name}" for info in graph.output]
    outer.node.append(helper.make_node("If", ["which"], names, then_branch=branches[0], else_branch=branches[1]))
    for name, info in zip(names, graph.output, strict=True):
        output = ValueInfoProto()
        output.CopyFrom(info)
        output.name = name
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()
        outer.output.append(output)
    return model


def symbolic(example: ModelProto) -> ModelProto:
    """Every dim of every input and output is free."""
    model = _copy(example)
    for info in [*model.graph.input, *model.graph.output]:
        if not info.type.HasField("tensor_type") or _is_default(example, info.name):
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    del model.graph.value_info[:]
    return model


def second_result(example: ModelProto, index: int) -> ModelProto:
    """An input comes from the second result of a Split: whoever drops result numbers reads the first."""
    model = _copy(example)
    info = model.graph.input[index]
    name = info.name
    info.name = f"{name}_doubled"
    first = info.type.tensor_type.shape.dim[0]
    if first.HasField("dim_value"):
        first.dim_value *= 2
    attributes: dict[str, Any] = {"axis": 0, "num_outputs": 2} if _opset(example) >= 18 else {"axis": 0}
    split = helper.make_node("Split", [info.name], [f"{name}_first", name], **attributes)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([split, *nodes])
    return model


def overridable(example: ModelProto, tensor: TensorProto) -> ModelProto:
    """An initializer is a default a caller may override."""
    model = _copy(example)
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return model


def quantized(example: ModelProto, name: str) -> ModelProto:
    """Between an inner value and its readers stands a QuantizeLinear and a DequantizeLinear."""
    model = _copy(example)
    scale = numpy_helper.from_array(np.array(_QUANTIZED_RANGE, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(0, np.int8), "zero")
    nodes = []
    for node in model.graph.node:
        for index, read in enumerate(node.input):
            if read == name:
                node.input[index] = f"{name}_dequantized"
        nodes.append(node)
        if name in node.output:
            nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_quantized"]))
            nodes.append(
                helper.make_node("DequantizeLinear", [f"{name}_quantized", "scale", "zero"], [f"{name}_dequantized"])
            )
    kept = [_node_copy(node) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend([scale, zero])
    return model


def swapped(example: ModelProto, index: int) -> ModelProto:
    """The two operands of a commutative node change places."""
    model = _copy(example)
    node = model.graph.node[index]
    first, second = node.input
    node.input[:] = [second, first]
    return model


def _node_copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _opset(example: ModelProto) -> int:
    return next((entry.version for entry in example.opset_import if entry.domain in ("", "ai.onnx")), 1)


def other_attributes(example: ModelProto) -> Iterator[Variant]:
    """Another permutation or axis in one node, where the example stays valid: its own may be too symmetric to tell."""
    for index, node in enumerate(example.graph.node):
        for attribute in node.attribute:
            for value in _other_values(attribute):
                model = _copy(example)
                changed = next(item for item in model.graph.node[index].attribute if item.name == attribute.name)
                changed.CopyFrom(helper.make_attribute(attribute.name, value))
                for info in model.graph.output:
                    info.type.tensor_type.ClearField("shape")
                try:
                    typed = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
                except shape_inference.InferenceError:
                    continue  # no valid model
                if all(info.type.tensor_type.HasField("shape") for info in typed.graph.output):
                    del typed.graph.value_info[:]
                    name = f"{attribute.name} of {node.op_type} is {value}"
                    yield name, typed
                    yield f"symbolic dims, {name}", symbolic(typed)


def _other_values(attribute: AttributeProto) -> list[list[int] | int]:
    if attribute.name == "perm" and attribute.type == AttributeProto.INTS:
        own, rank = list(attribute.ints), len(attribute.ints)
        turned = [*range(1, rank), 0]
        swapped = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else []
        return [perm for perm in (turned, swapped, list(range(rank))) if perm and perm != own]
    if attribute.name == "axis" and attribute.type == AttributeProto.INT:
        return [axis for axis in (0, 1, -1) if axis != attribute.i]
    return []


def other_opsets(example: ModelProto) -> Iterator[Variant]:
    """The example at every opset where one of its operators changed, as far as ONNX can convert it."""
    own = _opset(example)
    names = {node.op_type for node in example.graph.node if node.domain == ""}
    boundaries = set()
    for name in names:
        for opset in range(7, schema.latest_opset() + 1):
            operator = schema.operator("", name, opset)
            if operator is not None and operator.since == opset:
                boundaries.update({opset, opset - 1})
    for opset in sorted(boundary for boundary in boundaries if boundary >= 7 and boundary != own):
        try:
            converted = version_converter.convert_version(example, opset)
        except Exception:
            continue  # ONNX has no way down or up for one of the operators: there is no such example
        # The converter turns the opset but not always the IR version.
        converted.ir_version = max(example.ir_version, schema.min_ir_version(opset))
        yield f"opset {opset}", converted
