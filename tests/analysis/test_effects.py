"""Effects: every standard operator has one, and nothing that can fail is called total."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import defs

from graphopt.analysis import effect_table as table
from graphopt.analysis.effects import (
    Effect,
    effect_of,
    elementwise_operands,
    is_commutative,
    is_elementwise,
    is_pure,
    is_total,
    is_training,
)
from graphopt.analysis.totality import broadcast
from graphopt.ir import Function, Graph, Model, Node, Symbol, TensorType
from graphopt.schema import RefAttribute
from graphopt.tensors import DType, Tensor

N, M = Symbol("n"), Symbol("m")
FLOAT, INT64, BOOL = DType.FLOAT, DType.INT64, DType.BOOL


def model(opset: int = 18, **domains: int) -> Model:
    return Model(8, {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3, **domains})


def put(graph: Graph, op_type: str, *operands: Any, results: int = 1, **rest: Any) -> Node:
    """A node whose operands are given as types, tensors, values or None."""
    values = []
    for operand in operands:
        if isinstance(operand, Tensor | np.ndarray | list):
            array = np.array(operand, np.int64) if isinstance(operand, list) else operand
            values.append(graph.add_constant(array if isinstance(array, Tensor) else Tensor.from_numpy(array)))
        elif isinstance(operand, TensorType):
            values.append(graph.add_input(f"x{len(graph.inputs)}", operand))
        else:
            values.append(operand)
    made = graph.make_node(op_type, values, results=results, **rest)
    graph.insert(made)
    return made


def make(op_type: str, *operands: Any, opset: int = 18, **rest: Any) -> Node:
    return put(model(opset).graph, op_type, *operands, **rest)


def floats(*shape: Any) -> TensorType:
    return TensorType(FLOAT, shape)


def ints(*shape: Any) -> TensorType:
    return TensorType(INT64, shape)


def attach(node: Node, name: str, *inner: tuple[str, str]) -> Graph:
    """A body with one node per (domain, operator)."""
    assert node.graph is not None
    body = Graph(node.graph.model, name, node.graph.opsets, owner=node)
    node.add_body(name, body)
    for domain, op_type in inner:
        put(body, op_type, domain=domain)
    return body


# --- the table


def test_every_standard_operator_has_an_entry() -> None:
    names = {schema.name for schema in defs.get_all_schemas_with_history() if schema.domain == ""}
    assert names - table.STANDARD == set()


def test_no_operator_has_two_entries() -> None:
    parts = [
        table.UNARY,
        table.BROADCASTING,
        table.RANDOM,
        table.CHECKED,
        table.ALWAYS_TOTAL,
        table.MAY_FAIL,
        table.WITH_BODIES,
    ]
    assert sum(map(len, parts)) == len(table.STANDARD)
    assert not table.CONTRIB_MAY_FAIL & (table.CONTRIB_TOTAL | table.CONTRIB_RANDOM | set(table.CONTRIB_DROPOUT))


@pytest.mark.parametrize("op_type", sorted(table.UNARY))
def test_unary_operators_keep_their_shape(op_type: str) -> None:
    schema = defs.get_schema(op_type)
    assert (schema.min_input, schema.max_input, schema.max_output) == (1, 1, 1)
    assert is_total(make(op_type, floats(N, None)))


@pytest.mark.parametrize("op_type", sorted(table.STANDARD - table.RANDOM))
def test_effects_of_bare_nodes(op_type: str) -> None:
    node = make(op_type)
    assert effect_of(node) <= Effect.PURE_MAY_FAIL
    assert is_pure(node)


@pytest.mark.parametrize("op_type", sorted(table.MAY_FAIL))
def test_may_fail_means_may_fail(op_type: str) -> None:
    assert effect_of(make(op_type, floats(2, 3))) is Effect.PURE_MAY_FAIL


# --- effects


@pytest.mark.parametrize("op_type", sorted(table.RANDOM))
def test_random_operators(op_type: str) -> None:
    assert effect_of(make(op_type)) is Effect.RANDOM
    assert not is_pure(make(op_type))


@pytest.mark.parametrize(
    ("domain", "op_type", "effect"),
    [
        ("ai.onnx.ml", "TreeEnsembleClassifier", Effect.PURE_MAY_FAIL),
        ("com.microsoft", "FusedGemm", Effect.PURE_MAY_FAIL),
        ("com.microsoft", "MatMulNBits", Effect.PURE_MAY_FAIL),
        ("com.microsoft", "Gelu", Effect.PURE_TOTAL),
        ("com.microsoft", "FastGelu", Effect.PURE_MAY_FAIL),
        ("com.microsoft", "Sampling", Effect.RANDOM),
        ("com.microsoft", "PagedAttention", Effect.UNKNOWN),
        ("com.microsoft", "EPContext", Effect.UNKNOWN),
        ("com.microsoft", "NoSuchOperator", Effect.UNKNOWN),
        ("ai.onnx.preview.training", "Adam", Effect.PURE_MAY_FAIL),
        ("ai.onnx.preview.training", "Gradient", Effect.UNKNOWN),
        ("", "SimplifiedLayerNormalization", Effect.PURE_MAY_FAIL),
        ("", "NoSuchOperator", Effect.UNKNOWN),
        ("my.domain", "Relu", Effect.UNKNOWN),
    ],
)
def test_domains(domain: str, op_type: str, effect: Effect) -> None:
    assert effect_of(make(op_type, floats(2), domain=domain)) is effect


def test_sources_are_total_and_the_sink_stays() -> None:
    graph = model().graph
    node = put(graph, "Add", floats(1), [1])
    sources = [value.producer for value in node.operands if value is not None]
    assert [effect_of(source) for source in sources] == [Effect.PURE_TOTAL] * 2
    assert effect_of(graph.return_node) is Effect.STATEFUL


@pytest.mark.parametrize(
    ("opset", "operands", "attributes", "effect"),
    [
        (6, (), {}, Effect.RANDOM),
        (6, (), {"is_test": 0}, Effect.RANDOM),
        (6, (), {"is_test": 1}, Effect.PURE_TOTAL),
        (6, (), {"is_test": RefAttribute("is_test", 2)}, Effect.RANDOM),
        (7, (), {"ratio": 0.5}, Effect.PURE_TOTAL),
        (11, (), {}, Effect.PURE_TOTAL),
        (12, (), {}, Effect.PURE_TOTAL),
        (13, (np.float32(0.5),), {}, Effect.PURE_TOTAL),
        (13, (np.float32(1.5),), {}, Effect.PURE_MAY_FAIL),
        (13, (floats(),), {}, Effect.PURE_MAY_FAIL),
        (13, (None, np.array(False)), {}, Effect.PURE_TOTAL),
        (13, (None, np.array(True)), {}, Effect.RANDOM),
        (13, (None, TensorType(BOOL, ())), {}, Effect.RANDOM),
    ],
)
def test_dropout(opset: int, operands: tuple[Any, ...], attributes: dict[str, Any], effect: Effect) -> None:
    arrays = [np.asarray(operand) if isinstance(operand, np.float32) else operand for operand in operands]
    node = make("Dropout", floats(2), *arrays, opset=opset, attributes=attributes)
    assert effect_of(node) is effect
    assert is_training(node) == (effect is Effect.RANDOM)


@pytest.mark.parametrize(("op_type", "before"), [("BiasDropout", 3), ("BitmaskDropout", 1), ("BitmaskBiasDropout", 3)])
def test_dropout_of_onnx_runtime(op_type: str, before: int) -> None:
    front = [floats(2), *[None] * before]
    assert effect_of(make(op_type, *front, domain="com.microsoft")) is Effect.PURE_MAY_FAIL
    assert effect_of(make(op_type, *front, np.array(False), domain="com.microsoft")) is Effect.PURE_MAY_FAIL
    training = make(op_type, *front, TensorType(BOOL, ()), domain="com.microsoft")
    assert effect_of(training) is Effect.RANDOM
    assert is_training(training)


@pytest.mark.parametrize(
    ("opset", "results", "attributes", "training"),
    [
        (6, 1, {}, True),
        (6, 1, {"is_test": 1}, False),
        (6, 5, {"is_test": 1}, True),
        (7, 1, {}, False),
        (9, 5, {}, True),
        (13, 1, {}, False),
        (14, 1, {}, False),
        (15, 3, {"training_mode": 1}, True),
        (15, 1, {"training_mode": RefAttribute("mode", 2)}, True),
    ],
)
def test_batch_normalization(opset: int, results: int, attributes: dict[str, Any], training: bool) -> None:
    node = make("BatchNormalization", floats(2, 3), opset=opset, results=results, attributes=attributes)
    assert is_training(node) == training
    assert effect_of(node) is Effect.PURE_MAY_FAIL


def test_an_omitted_extra_output_is_no_training() -> None:
    graph = model(9).graph
    node = graph.make_node("BatchNormalization", [graph.add_input("x", floats(2, 3))], results=3)
    node.results[1].name = node.results[2].name = ""
    graph.insert(node)
    assert not is_training(node)
    assert not is_training(make("Relu", floats(2)))


def test_bodies_give_their_worst_effect() -> None:
    for op_type, condition in [("If", TensorType(BOOL, ())), ("Loop", ints()), ("Scan", floats(2))]:
        assert effect_of(_with_body(op_type, condition, ("", "Relu"))) is (
            Effect.PURE_TOTAL if op_type == "If" else Effect.PURE_MAY_FAIL
        )
        assert effect_of(_with_body(op_type, condition, ("", "Relu"), ("", "Conv"))) is Effect.PURE_MAY_FAIL
        assert effect_of(_with_body(op_type, condition, ("", "Relu"), ("", "Bernoulli"))) is Effect.RANDOM
        assert effect_of(_with_body(op_type, condition, ("odd", "Relu"))) is Effect.UNKNOWN
    assert effect_of(_with_body("If", TensorType(BOOL, (N,)), ("", "Relu"))) is Effect.PURE_MAY_FAIL


def _with_body(op_type: str, condition: TensorType, *inner: tuple[str, str]) -> Node:
    node = make(op_type, condition)
    attach(node, "then_branch", ("", "Identity"))
    body = attach(node, "else_branch", *inner)
    inside = put(body, "If", TensorType(BOOL, ()))
    attach(inside, "then_branch", *inner)
    return node


def test_functions_give_the_effect_of_their_bodies() -> None:
    def calling(*inner: tuple[str, str]) -> Node:
        whole = model(my=1)
        body = Graph(whole, "f", {"": 18, "my": 1})
        for domain, name in inner:
            put(body, name, domain=domain)
        whole.functions["my", "f", ""] = Function("my", "f", "", body)
        return put(whole.graph, "f", floats(2), domain="my")

    assert effect_of(calling(("", "Relu"))) is Effect.PURE_MAY_FAIL
    assert effect_of(calling(("", "RandomNormal"))) is Effect.RANDOM
    assert effect_of(calling(("my", "unknown"))) is Effect.UNKNOWN
    assert effect_of(calling(("my", "f"))) is Effect.UNKNOWN  # calls itself


# --- totality


TOTAL = [
    ("Add", (floats(2, 1), floats(3)), {}),
    ("Add", (floats(N, 4), floats(N, 1)), {}),
    ("Add", (floats(None, 4), floats(1)), {}),
    ("Where", (TensorType(BOOL, (N,)), floats(N), floats()), {}),
    ("Div", (floats(N), floats(N)), {}),
    ("Div", (ints(N), [2]), {}),
    ("Mod", (floats(N), floats(N)), {}),
    ("Cast", (floats(N),), {"to": 7}),
    ("CastLike", (floats(N), ints()), {}),
    ("Clip", (floats(N), floats(), None), {}),
    ("Concat", (floats(N, 2), floats(N, M)), {"axis": -1}),
    ("ConstantOfShape", ([2, 3],), {}),
    ("Expand", (floats(N, 1), [1, 5]), {}),
    ("Flatten", (floats(N, 2),), {"axis": -2}),
    ("Gather", (floats(3, N), [0, 2, -3]), {"axis": 0}),
    ("Gather", (floats(N + 2, 1), [1, -2]), {}),
    ("MatMul", (floats(N, 1, 2, M), floats(3, M, 5)), {}),
    ("MatMul", (floats(M), floats(M)), {}),
    ("Pad", (floats(N, 2), [0, 1, 0, 1]), {}),
    ("Reshape", (floats(N, 6), [0, 2, 3]), {}),
    ("Reshape", (floats(N, 6), [-1, 3]), {}),
    ("Reshape", (floats(N, 6), [2, -1]), {}),
    ("Slice", (floats(N, 6), ints(1), ints(1), [1], [-1]), {}),
    ("Slice", (floats(N, 6), [0, 0], [9, 9]), {}),
    ("Softmax", (floats(N, M),), {"axis": -2}),
    ("Split", (floats(N, 6), [2, 4]), {"axis": 1}),
    ("Squeeze", (floats(N, 1), [1]), {}),
    ("Squeeze", (floats(None, None),), {}),
    ("Tile", (floats(N, 2), [1, 4]), {}),
    ("Transpose", (floats(None, None),), {"perm": (1, 0)}),
    ("Transpose", (TensorType(FLOAT, None),), {}),
    ("Unsqueeze", (floats(N), [0, -1]), {}),
    ("Shape", (TensorType(FLOAT, None),), {}),
    ("SequenceConstruct", (floats(N),), {}),
]
PARTIAL = [
    ("Add", (floats(N), floats(M)), {}),
    ("Add", (floats(N), floats(2)), {}),
    ("Add", (floats(None), floats(None)), {}),
    ("Add", (TensorType(FLOAT, None), floats()), {}),
    ("Div", (ints(N), ints(N)), {}),
    ("Div", (ints(N), [0]), {}),
    ("Div", (ints(N), [-1]), {}),
    ("Mod", (ints(N), [3, 0]), {}),
    ("BitShift", (ints(N), ints(N)), {"direction": "LEFT"}),
    ("Cast", (TensorType(DType.STRING, (N,)),), {"to": 1}),
    ("Clip", (floats(N), TensorType(FLOAT, None)), {}),
    ("Clip", (floats(N), floats(1)), {}),
    ("Concat", (floats(N, 2), floats(M, 2)), {"axis": 1}),
    ("Concat", (floats(N, 2), floats(N)), {"axis": 0}),
    ("ConstantOfShape", (ints(2),), {}),
    ("ConstantOfShape", ([-1],), {}),
    ("Expand", (floats(N, 2), [1, 5]), {}),
    ("Flatten", (floats(N, 2),), {"axis": 3}),
    ("Gather", (floats(3, N), [0, 3]), {}),
    ("Gather", (floats(3, N), [0]), {"axis": 1}),
    ("Gather", (floats(3), ints(1)), {}),
    ("MatMul", (floats(2, N), floats(M, 2)), {}),
    ("MatMul", (floats(2, 3), floats()), {}),
    ("Pad", (floats(N, 2), [0, -1, 0, 1]), {}),
    ("Pad", (floats(N, 2), [0, 1, 0, 1]), {"mode": "reflect"}),
    ("Reshape", (floats(N, 6), [3, -1, 4]), {}),
    ("Reshape", (floats(N, 6), [0, 0, -1]), {}),
    ("Reshape", (floats(N, 6), [0, 5]), {}),
    ("Reshape", (floats(N, 6), [-1, 0]), {"allowzero": 1}),
    ("Reshape", (floats(N, 6), ints(2)), {}),
    ("Slice", (floats(N, 6), ints(1), ints(1), [2]), {}),
    ("Slice", (floats(N, 6), [0], [9], [0], [0]), {}),
    ("Slice", (floats(N, 6), ints(N), ints(N), [0]), {}),
    ("Softmax", (floats(N, M),), {"axis": 2}),
    ("Split", (floats(N, 5), [2, 4]), {"axis": 1}),
    ("Split", (floats(N, 4), [2, 2]), {"axis": 0}),
    ("Squeeze", (floats(N, M), [1]), {}),
    ("Tile", (floats(N, 2), [4]), {}),
    ("Transpose", (TensorType(FLOAT, None),), {"perm": (1, 0)}),
    ("Unsqueeze", (floats(N), [3]), {}),
]


@pytest.mark.parametrize(("op_type", "operands", "attributes"), TOTAL, ids=str)
def test_total(op_type: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    results = 2 if op_type == "Split" else 1
    assert effect_of(make(op_type, *operands, attributes=attributes, results=results)) is Effect.PURE_TOTAL


@pytest.mark.parametrize(("op_type", "operands", "attributes"), PARTIAL, ids=str)
def test_partial(op_type: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    results = 2 if op_type == "Split" else 1
    assert effect_of(make(op_type, *operands, attributes=attributes, results=results)) is Effect.PURE_MAY_FAIL


def test_old_opsets() -> None:
    assert not is_total(make("Add", floats(2, 3), floats(3), opset=6))
    assert not is_total(make("Add", floats(None), floats(None), opset=6))
    assert is_total(make("Add", floats(2, 3), floats(2, 3), opset=6))
    assert not is_total(make("Cast", floats(2), opset=5, attributes={"to": "INT64"}))
    old = {"starts": (0,), "ends": (1,)}
    assert is_total(make("Slice", floats(N, 2), opset=9, attributes=old))
    assert is_total(make("Slice", floats(N, 2), opset=9, attributes={**old, "axes": (1,)}))
    assert not is_total(make("Slice", floats(N, 2), opset=9, attributes={**old, "axes": (2,)}))
    assert is_total(make("Squeeze", floats(N, 1), opset=12, attributes={"axes": (1,)}))
    assert is_total(make("Pad", floats(N), opset=10, attributes={"pads": (1, 1)}))


def test_broadcasting_of_shapes() -> None:
    assert broadcast()
    assert broadcast((), (N, 2))
    assert broadcast((N, 1, 3), (2, 1), (3,))
    assert broadcast((N // 2 + 1,), (N // 2 + 1,))
    assert not broadcast((N,), (N + 1,))
    assert not broadcast((0,), (2,))
    assert broadcast((0,), (1,))
    assert not broadcast(None, (1,))


# --- kinds of operators


def test_commutative() -> None:
    for op_type in ("Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        assert is_commutative("", op_type)
    for op_type in ("Sub", "Div", "Pow", "MatMul", "Less", "Mod", "PRelu", "Where", "Concat"):
        assert not is_commutative("", op_type, FLOAT)
    for op_type in ("Min", "Max"):
        assert is_commutative("", op_type, INT64, 5)
        assert not is_commutative("", op_type, FLOAT)
        assert not is_commutative("", op_type)
    assert is_commutative("", "Sum", FLOAT)
    assert not is_commutative("", "Sum", FLOAT, 3)
    assert not is_commutative("com.microsoft", "Add")


def test_elementwise() -> None:
    assert is_elementwise("", "Relu")
    assert is_elementwise("com.microsoft", "QuickGelu")
    assert not is_elementwise("com.microsoft", "BiasGelu")
    assert not is_elementwise("odd", "Relu")
    for op_type in ("Softmax", "MatMul", "LayerNormalization", "QuantizeLinear", "Dropout", "CumSum", "Shape", "Not2"):
        assert not is_elementwise("", op_type)
    assert elementwise_operands("", "Where", 3) == (0, 1, 2)
    assert elementwise_operands("", "Clip", 3) == (0,)
    assert elementwise_operands("", "CastLike", 2) == (0,)
    assert elementwise_operands("", "Softmax", 1) == ()
