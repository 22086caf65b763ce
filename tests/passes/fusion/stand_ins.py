"""Operators that only CUDA has, written as the functions that ONNX Runtime documents, so that the CPU can run them.

A rewrite that names the wrong operand, half or layout shows on any machine; what the kernels themselves do shows where
CUDA starts.
"""

from __future__ import annotations

from onnx import ModelProto, parser

STAND_IN_OPSET = 18
"""The functions need the operators of this opset."""

_HEAD = '<ir_version: 10, opset_import: ["" : 18, "stand_in" : 1]>'
_MAIN = "main (float x) => (float y) { y = Identity(x) }"
_FUNCTIONS = """
<domain: "stand_in", opset_import: ["" : 18, "com.microsoft" : 1]>
BiasSplitGelu (x, bias) => (y) {
    s = Add(x, bias)
    left, right = Split <axis = -1, num_outputs = 2> (s)
    g = com.microsoft.Gelu(right)
    y = Mul(left, g)
}
<domain: "stand_in", opset_import: ["" : 18]>
BiasAdd (x, bias, skip) => (y) {
    s = Add(x, bias)
    y = Add(s, skip)
}
<domain: "stand_in", opset_import: ["" : 18]>
GroupNorm <groups: int, activation: int, epsilon: float = 0.00001, channels_last: int = 1> (x, gamma, beta) => (y) {
    first = Transpose <perm = [0, 3, 1, 2]> (x)
    counts = Constant <value_ints: ints = [1]> ()
    count = Constant <value_int: int = @groups> ()
    number = Reshape(count, counts)
    zero = Constant <value_ints: ints = [0]> ()
    rest = Constant <value_ints: ints = [-1]> ()
    target = Concat <axis = 0> (zero, number, rest)
    grouped = Reshape(first, target)
    wide = Cast <to = 1> (grouped)
    axes = Constant <value_ints: ints = [2]> ()
    mean = ReduceMean(wide, axes)
    centred = Sub(wide, mean)
    square = Mul(centred, centred)
    variance = ReduceMean(square, axes)
    epsilons = Constant <value_float: float = @epsilon> ()
    above = Add(variance, epsilons)
    root = Sqrt(above)
    unit = Div(centred, root)
    dims = Shape(first)
    whole = Reshape(unit, dims)
    last = Transpose <perm = [0, 2, 3, 1]> (whole)
    scaled = Mul(last, gamma)
    normal = Add(scaled, beta)
    sigmoid = Sigmoid(normal)
    swish = Mul(normal, sigmoid)
    asked = Constant <value_int: int = @activation> ()
    is_asked = Cast <to = 9> (asked)
    chosen = Where(is_asked, swish, normal)
    y = CastLike(chosen, x)
}
<domain: "stand_in", opset_import: ["" : 18, "stand_in" : 1]>
SkipGroupNorm <groups: int, activation: int, epsilon: float = 0.00001, channels_last: int = 1>
(x, gamma, beta, skip) => (y, s) {
    s = Add(x, skip)
    y = stand_in.GroupNorm <
        groups: int = @groups, activation: int = @activation, epsilon: float = @epsilon, channels_last = 1
    > (s, gamma, beta)
}
"""
NAMES = ("BiasSplitGelu", "BiasAdd", "GroupNorm", "SkipGroupNorm")


def with_stand_ins(model: ModelProto) -> ModelProto:
    """The model with functions in place of those operators; its own nodes only, not those in bodies."""
    functions = parser.parse_model(_HEAD + _MAIN + _FUNCTIONS).functions
    result = ModelProto()
    result.CopyFrom(model)
    used = {node.op_type for node in _nodes(result) if node.domain == "com.microsoft" and node.op_type in NAMES}
    for node in _nodes(result):
        if node.domain == "com.microsoft" and node.op_type in used:
            node.domain = "stand_in"
            if node.op_type == "SkipGroupNorm" and len(node.output) == 1:
                node.output.append(f"{node.output[0]}_sum")  # functions have no results to leave out
    needed = used | ({"GroupNorm"} if "SkipGroupNorm" in used else set())
    result.functions.extend(function for function in functions if function.name in needed)
    if used:
        result.opset_import.add(domain="stand_in", version=1)
        result.ir_version = max(result.ir_version, 8)
    return result


def _nodes(model: ModelProto):  # type: ignore[no-untyped-def]  # protobuf's own types
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from graph.node
        for node in graph.node:
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
