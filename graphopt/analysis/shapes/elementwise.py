"""Operators that work element by element: shapes by broadcasting, contents by integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.analysis.shapes import contents as on
from graphopt.analysis.shapes.common import (
    CARRIERS,
    FLOAT_CARRIERS,
    INTEGER_CARRIERS,
    MAX_ELEMENTS,
    UNKNOWN,
    Array,
    Fact,
    Facts,
    broadcast_shapes,
    content_array,
    contents,
    dtype_of,
    one,
    shape_of,
    tensor,
    transfer,
    vector,
)
from graphopt.ir import Node, Shape, TensorType
from graphopt.ir.symbol import Integer, compare, is_nonnegative, is_nonzero
from graphopt.tensors import DType

# fmt: off
_SAME = [
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "LRN",
    "MeanVarianceNormalization", "Mish", "Reciprocal", "Selu", "Shrink", "Sigmoid", "Sin", "Sinh", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu", "ReverseSequence",
    "InstanceNormalization", "GroupNormalization",
]
# fmt: on
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": on.add,
    "Sub": on.subtract,
    "Mul": on.multiply,
    "Div": on.divide,
    "Mod": on.modulo,
    "Pow": on.power,
}
_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": on.equal,
    "Less": on.less,
    "LessOrEqual": on.at_most,
    "Greater": lambda left, right: on.less(right, left),
    "GreaterOrEqual": lambda left, right: on.at_most(right, left),
    "And": on.all_of,
    "Or": on.any_of,
    "Xor": on.one_of,
}


@transfer(*_SAME)
def same_as_first(node: Node) -> Facts:
    """The first result has the type of the first operand."""
    value = node.operands[0] if node.operands else None
    return (UNKNOWN if value is None else Fact(value.type),)


@transfer("Identity")
def identity(node: Node) -> Facts:
    """The operand itself, whatever its type."""
    value = node.operand(0)
    return (UNKNOWN if value is None else Fact(value.type, contents(value)),)


@transfer("PRelu")
def prelu(node: Node) -> Facts:
    """The operand and its slopes broadcast to each other: the runtime takes slopes of a larger shape."""
    value = node.operands[0]
    return (UNKNOWN,) if value is None else one(value.dtype, _pair_shape(node))


def _pair_shape(node: Node) -> Shape | None:
    left, right = shape_of(node.operand(0)), shape_of(node.operand(1))
    # Before opset 7 the second operand is stretched to the first, never the other way.
    return broadcast_shapes(left, right) if node.has_latest_meaning else left


@transfer("Add", "Sub", "Mul", "Div", "Mod", "Pow")
def arithmetic(node: Node) -> Facts:
    """Two operands broadcast to each other; the type is that of the first."""
    left, right = node.operands
    if left is None or right is None:
        return (UNKNOWN,)
    dtype = left.dtype if node.op_type == "Pow" or left.dtype is not None else right.dtype
    if left.elements is None and right.elements is None and dtype not in INTEGER_CARRIERS:
        if left.type is right.type and isinstance(left.type, TensorType):
            return (Fact(left.type),)
        return one(dtype, _pair_shape(node))
    if not node.has_latest_meaning or dtype not in CARRIERS:
        return one(dtype, _pair_shape(node))
    return vector(dtype, on.paired(node, _operation(node, dtype), dtype), _pair_shape(node))


def _operation(node: Node, dtype: DType | None) -> Callable[[Any, Any], Any]:
    op_type = node.op_type
    if dtype in FLOAT_CARRIERS:
        if op_type == "Div":
            return on.divide_floats
        if op_type == "Mul":
            return _multiply_floats
        if op_type in ("Mod", "Pow"):
            return _unknown
    elif op_type == "Mod" and node.param("fmod"):
        return on.modulo_towards_zero
    return _BINARY[op_type]


def _unknown(_left: Integer, _right: Integer) -> None:
    return None


def _multiply_floats(left: Integer, right: Integer) -> Integer | None:
    """The product; not where it might be the zero with a sign."""
    product = left * right
    return product if is_nonzero(product) or (is_nonnegative(left) and is_nonnegative(right)) else None


@transfer("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")
def comparison(node: Node) -> Facts:
    """Two operands broadcast to each other; the type is bool."""
    left, right = node.operands
    if left is None or right is None:
        return (UNKNOWN,)
    if left.dtype not in CARRIERS or not node.has_latest_meaning:
        return one(DType.BOOL, _pair_shape(node))
    return vector(DType.BOOL, on.paired(node, _TESTS[node.op_type], DType.BOOL), _pair_shape(node))


@transfer("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
def bitwise(node: Node) -> Facts:
    """Two operands broadcast to each other."""
    return one(dtype_of(node.operand(0)), _pair_shape(node))


@transfer("Sum", "Mean", "Min", "Max")
def variadic(node: Node) -> Facts:
    """All operands broadcast to each other."""
    operands = node.operands
    first = operands[0]
    if first is None:
        return (UNKNOWN,)
    shape = first.shape
    if node.has_latest_meaning:
        for value in operands[1:]:
            shape = broadcast_shapes(shape, shape_of(value))
    operation: on.Operation | None = {"Sum": on.add, "Min": on.least, "Max": on.greatest}.get(node.op_type)
    dtype = first.dtype
    if dtype is DType.INT64 and operation is not None and len(operands) > 1:
        operation = on.short(operation)
    if operation is None or dtype not in CARRIERS or not node.has_latest_meaning:
        return one(dtype, shape)
    if any(contents(value) is None for value in operands):
        return one(dtype, shape)
    result = content_array(first)
    for value in operands[1:]:
        result = on.zipped(result, content_array(value), operation, dtype)
    return vector(dtype, result, shape)


@transfer("Where")
def where(node: Node) -> Facts:
    """The condition and both choices broadcast to each other."""
    condition, left, right = node.operands
    if condition is None or left is None or right is None:
        return (UNKNOWN,)
    dtype = left.dtype if left.dtype is not None else right.dtype
    shape = broadcast_shapes(shape_of(condition), broadcast_shapes(left.shape, right.shape))
    return vector(dtype, _chosen(node, dtype), shape)


def _chosen(node: Node, dtype: DType | None) -> Array | None:
    import numpy as np

    if dtype not in CARRIERS or contents(node.operand(0)) is None:
        return None
    condition = content_array(node.operand(0))
    if condition is None:
        return None
    choices = [content_array(value) if contents(value) is not None else None for value in node.operands[1:]]
    needed = {
        choice for item in condition.reshape(-1) for choice in ((0, 1) if item is None else (0,) if item else (1,))
    }
    if any(choices[choice] is None for choice in needed):
        return None
    blank = np.empty((), dtype=object)
    arrays = [blank if choice is None else choice for choice in choices]
    shapes = [value.shape for value in node.operands[1:] if value is not None]
    if any(shape is None or not all(isinstance(dim, int) for dim in shape) for shape in shapes):
        return None
    try:
        form = np.broadcast_shapes(condition.shape, *shapes)  # type: ignore[arg-type]  # numbers, as checked above
    except ValueError:
        return None
    if int(np.prod(form)) > MAX_ELEMENTS:
        return None
    result = np.empty(form, dtype=object)
    flat = result.reshape(-1)
    spread = [np.broadcast_to(array, form).reshape(-1) for array in (condition, *arrays)]
    for index, (test, left, right) in enumerate(zip(*spread, strict=True)):
        flat[index] = (left if left is right or left == right else None) if test is None else left if test else right
    return result


# --- one operand whose contents matter

_UNARY: dict[str, Callable[[Any], Any]] = {
    "Neg": lambda item: -item,
    "Abs": on.absolute,
    "Sign": on.sign,
    "Ceil": lambda item: item,
    "Floor": lambda item: item,
    "Round": lambda item: item,
    "Relu": lambda item: on.greatest(item, 0),
    "Not": lambda item: 1 - item if isinstance(item, int) else None,
}


@transfer(*_UNARY)
def unary(node: Node) -> Facts:
    """Like the operand; contents are followed where they are whole numbers."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    if value.dtype not in CARRIERS or contents(value) is None:
        return (Fact(value.type),)
    operation = _UNARY[node.op_type]
    if value.dtype in FLOAT_CARRIERS and node.op_type == "Neg":
        operation = _negated_float
    if value.dtype in FLOAT_CARRIERS and node.op_type == "Sign":
        operation = _sign_of_float
    return vector(value.dtype, on.mapped(value, operation, value.dtype), value.shape)


def _negated_float(item: Integer) -> Integer | None:
    return -item if is_nonzero(item) else None


def _sign_of_float(item: Integer) -> Integer | None:
    return compare(item, 0)


@transfer("Clip")
def clip(node: Node) -> Facts:
    """Like the first operand; its contents lie between the limits."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    if value.dtype not in INTEGER_CARRIERS or contents(value) is None:
        return (Fact(value.type),)
    result = content_array(value)
    for index, operation in ((1, on.greatest), (2, on.least)):
        bound = node.operand(index)
        if bound is not None:
            result = on.zipped(result, content_array(bound), operation, value.dtype) if contents(bound) else None
    return vector(value.dtype, result, value.shape)


@transfer("Cast", "CastLike")
def cast(node: Node) -> Facts:
    """The same shape in another element type."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    target = _cast_target(node)
    if target not in CARRIERS or contents(value) is None:
        return one(target, value.shape)
    source = value.dtype
    return vector(target, on.mapped(value, lambda item: on.converted(item, source, target), target), value.shape)


def _cast_target(node: Node) -> DType | None:
    if node.op_type == "CastLike":
        return dtype_of(node.operand(1))
    to = node.param("to")
    if isinstance(to, str):  # before opset 6
        return DType.__members__.get(to.upper())
    return DType(to) if isinstance(to, int) and to in DType._value2member_map_ else None


@transfer("IsNaN", "IsInf")
def tests(node: Node) -> Facts:
    """A bool for each element."""
    return one(DType.BOOL, shape_of(node.operand(0)))


@transfer("BitCast")
def bit_cast(node: Node) -> Facts:
    """The element type asked for, in the operand's shape."""
    to = node.param("to")
    return one(DType(to) if isinstance(to, int) else None, shape_of(node.operand(0)))


@transfer("Dropout")
def dropout(node: Node) -> Facts:
    """Like the operand, and a mask of the same shape."""
    value = node.operands[0]
    if value is None:
        return (UNKNOWN,)
    mask = DType.BOOL if node.opset >= 10 else value.dtype
    return (Fact(value.type), tensor(mask, value.shape))


@transfer("BatchNormalization")
def batch_normalization(node: Node) -> Facts:
    """Like the first operand, and statistics like the third and fourth."""
    first = node.operands[0]
    mean, variance = node.operand(3), node.operand(4)
    return tuple(UNKNOWN if value is None else Fact(value.type) for value in (first, mean, variance))


@transfer("QuantizeLinear", "DequantizeLinear")
def quantization(node: Node) -> Facts:
    """The shape of the first operand; the element type of the zero point or the scale."""
    shape = shape_of(node.operand(0))
    zero_point = dtype_of(node.operand(2))
    output_dtype = node.param("output_dtype")
    if isinstance(output_dtype, int) and output_dtype:
        return one(DType(output_dtype), shape)
    if node.op_type == "DequantizeLinear":
        return one(dtype_of(node.operand(1)), shape)
    return one(DType.UINT8 if node.operand(2) is None else zero_point, shape)


@transfer("DynamicQuantizeLinear")
def dynamic_quantization(node: Node) -> Facts:
    """Unsigned bytes, with a scale and a zero point."""
    shape = shape_of(node.operand(0))
    return (tensor(DType.UINT8, shape), tensor(DType.FLOAT, ()), tensor(DType.UINT8, ()))


@transfer("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def random_like(node: Node) -> Facts:
    """The operand's shape, in the element type asked for."""
    value = node.operands[0]
    dtype = node.param("dtype")
    return one(DType(dtype) if isinstance(dtype, int) and dtype else dtype_of(value), shape_of(value))
