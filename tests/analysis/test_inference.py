"""The inference as a whole: symbols, refining, detached nodes, bodies, functions, bounds, unknown operators."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from inference_checks import compare, exposed, session, values_by_name
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from graphopt.analysis import Inference
from graphopt.ir import Graph, SequenceType, Symbol, TensorType
from graphopt.ir.symbol import evaluate
from graphopt.onnxio import load
from graphopt.tensors import DType

HEADER = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "local": 1]>\n'


def parsed(text: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(HEADER.replace('"": 17', f'"": {opset}') + text)


def graph_of(text: str, opset: int = 17, *, trust: bool = False) -> Graph:
    graph = load(parsed(text, opset))
    Inference(graph.model, trust_dim_names=trust).run()
    return graph


def shown(graph: Graph, name: str) -> str:
    return str(values_by_name(graph)[name].type)


def held(text: str, *feeds: dict[str, Any], opset: int = 17) -> Graph:
    """Infer a model and hold it against the runtime."""
    model = parsed(text, opset)
    graph = graph_of(text, opset)
    runtime = session(exposed(model))
    ran = 0
    for feed in feeds:
        outcome = compare(graph, runtime, feed)
        assert not outcome.lies, outcome.lies
        ran += not outcome.failed
    assert ran
    return graph


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


# --- symbols


def test_dims_of_equal_names_are_equal_only_if_trusted() -> None:
    text = "g (float[N,4] a, float[N,4] b) => (y) { y = Add(a, b) }"
    assert shown(graph_of(text), "y") == "float[broadcast(N, N),4]"
    assert shown(graph_of(text, trust=True), "y") == "float[N,4]"


def test_trusting_twice_changes_nothing() -> None:
    graph = load(parsed("g (float[N,4] a, float[N,4] b) => (y) { y = Add(a, b) }"))
    inference = Inference(graph.model, trust_dim_names=True)
    inference.run()
    types = [value.type for value in graph.inputs]
    inference.run()
    assert [value.type for value in graph.inputs] == types


def test_declared_dims_of_outputs_and_inner_values_are_no_evidence() -> None:
    model = parsed("g (float[N,4] x) => (float[7,9] y) <float[1,1] a> { a = Relu(x)  y = Relu(a) }")
    graph = load(model)
    Inference(graph.model).run()
    assert shown(graph, "a") == shown(graph, "y") == "float[N,4]"


def test_contents_follow_shape_arithmetic() -> None:
    graph = graph_of(
        """g (float[N,S,64] x) => (y) {
            s = Shape(x)
            zero = Constant<value = int64[1] {0}>()
            one = Constant<value = int64[1] {1}>()
            tail = Constant<value = int64[2] {4, 16}>()
            n = Gather<axis = 0>(s, zero)
            t = Gather<axis = 0>(s, one)
            target = Concat<axis = 0>(n, t, tail)
            y = Reshape(x, target)
        }"""
    )
    values = values_by_name(graph)
    assert str(values["y"].type) == "float[N,S,4,16]"
    assert [str(item) for item in values["target"].elements or ()] == ["N", "S", "4", "16"]


def test_dims_beyond_single_precision_are_rounded_as_floats_are() -> None:
    text = """g (float[N,0] x) => (y) {
        s = Shape<start = 0, end = 1>(x)
        f = Cast<to = 1>(s)
        two = Constant<value = float {2}>()
        d = Mul(f, two)
        y = Cast<to = 7>(d)
    }"""
    graph = held(text, {"x": zeros(5, 0)}, {"x": zeros(2**24 + 1, 0)}, {"x": zeros(33554435, 0)})
    (element,) = values_by_name(graph)["y"].elements or ()
    assert element is not None


# --- visiting and refining


def test_a_detached_node_is_inferred_in_the_opset_of_its_graph() -> None:
    graph = graph_of("g (float[N,4] x) => (y) { y = Relu(x) }")
    inference = Inference(graph.model)
    axes = graph.add_constant(numpy_tensor([0]))
    node = graph.make_node("Unsqueeze", [graph.inputs[0], axes])
    inference.visit(node)
    assert str(node.result.type) == "float[1,N,4]"
    assert node.graph is None


def numpy_tensor(items: list[int]) -> Any:
    from graphopt.tensors import Tensor

    return Tensor.from_numpy(np.array(items, np.int64))


def test_known_types_are_refined_and_never_replaced() -> None:
    graph = load(parsed("g (float[N,4] x) => (y) { y = Relu(x) }"))
    (node,) = graph.nodes()
    node.result.type = TensorType(DType.FLOAT, (None, 5))
    inference = Inference(graph.model)
    inference.run()
    assert str(node.result.type) == "float[N,5]"
    assert [(conflict.known, conflict.found) for conflict in inference.conflicts] == [(5, 4)]


def test_a_malformed_node_is_passed_over() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 5])
    other = helper.make_node("Gather", ["y", "i"], ["z"], axis=9)
    inputs = [helper.make_tensor_value_info("x", 1, [2, 3]), helper.make_tensor_value_info("i", 7, [1])]
    outputs = [helper.make_empty_tensor_value_info("z")]
    proto = helper.make_graph([node, other], "g", inputs, outputs)
    graph = load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)]))
    Inference(graph.model).run()
    assert shown(graph, "z") == "float[]"


# --- bodies


def test_the_result_of_if_is_what_both_branches_say() -> None:
    text = """g (bool c, float[N,4] x) => (y) {
        y = If (c) <
            then_branch = t () => (a) { a = Relu(x) },
            else_branch = e () => (b) { b = Concat<axis = 0>(x, x) }
        >
    }"""
    graph = held(text, {"c": np.array(True), "x": zeros(3, 4)}, {"c": np.array(False), "x": zeros(3, 4)})
    assert shown(graph, "y") == "float[?,4]"


def test_if_on_a_known_condition_takes_one_branch() -> None:
    graph = graph_of(
        """g (float[N,4] x) => (y) {
            r = Shape<start = 1, end = 2>(x)
            four = Constant<value = int64[1] {4}>()
            c = Equal(r, four)
            y = If (c) <
                then_branch = t () => (a) { a = Relu(x) },
                else_branch = e () => (b) { b = Concat<axis = 0>(x, x) }
            >
        }"""
    )
    assert shown(graph, "y") == "float[N,4]"


LOOP = """g (int64 n, bool c, float[N,4] x) => (y, s) {{
    y, s = Loop (n, c, x) <body = b (int64 i, bool go, float[] v) => (bool on, float[] w, float[] o) {{
        on = Identity(go)
        w = {step}
        o = Relu(v)
    }}>
}}"""


@pytest.mark.parametrize(
    ("step", "carried"),
    [("Relu(v)", "float[N,4]"), ("Concat<axis = 0>(v, v)", "float[?,4]"), ("Unsqueeze(v, i)", "float[]")],
)
def test_a_loop_keeps_what_holds_at_every_turn(step: str, carried: str) -> None:
    graph = graph_of(LOOP.format(step=step))
    assert shown(graph, "y") == carried
    assert shown(graph, "s") == "float[]"  # it may not run at all
    if "Unsqueeze" not in step:
        feeds = [{"n": np.array(turns), "c": np.array(True), "x": zeros(3, 4)} for turns in (0, 1, 2)]
        model = parsed(LOOP.format(step=step).replace("float[] o)", "float[] o)"))
        runtime = session(exposed(model))
        for feed in feeds:
            assert not compare(graph, runtime, feed).lies


def test_scan_stacks_along_the_scanned_axis() -> None:
    text = """g (float[B,4] h, float[T,B2,4] xs) => (y, ys) {
        y, ys = Scan<num_scan_inputs = 1, body = b (float[] s, float[] e) => (float[] t, float[] o) {
            t = Add(s, e)
            o = Relu(e)
        }>(h, xs)
    }"""
    graph = held(text, {"h": zeros(3, 4), "xs": zeros(5, 3, 4)}, {"h": zeros(1, 4), "xs": zeros(2, 1, 4)})
    assert shown(graph, "ys") == "float[T,B2,4]"
    assert shown(graph, "y") == "float[?,4]"


def test_loops_in_loops_are_no_explosion() -> None:
    body = "w = Relu(v)"
    for depth in range(24):
        head = f"b{depth} (int64 i{depth}, bool go{depth}, float[] v) => (bool on{depth}, float[] w)"
        body = f"w = Loop (m, , v) <body = {head} {{ on{depth} = Identity(go{depth}) {body} }}>"
    model = parsed("g (int64 m, float[N,4] v) => (w) { " + body + " }")
    graph = load(model)
    started = time.process_time()
    Inference(graph.model).run()
    assert time.process_time() - started < 5
    assert values_by_name(graph)["w"].dtype is DType.FLOAT


# --- functions


def test_a_call_of_a_local_function_is_inferred_with_its_operands() -> None:
    graph = graph_of(
        """g (float[N,4] x, float[2,M] y) => (a, b) { a = local.twice(x)  b = local.twice(y) }
        <domain: "local", opset_import: ["": 17]> twice (v) => (w) { w = Concat<axis = 0>(v, v) }"""
    )
    assert shown(graph, "a") == "float[2*N,4]"
    assert shown(graph, "b") == "float[4,M]"
    (function,) = graph.model.functions.values()
    assert function.graph.inputs[0].type is None


def test_what_hangs_on_a_callers_attribute_is_unknown() -> None:
    graph = graph_of(
        """g (float[N,4] x) => (a) { a = local.join<axis = 1>(x) }
        <domain: "local", opset_import: ["": 17]> join <axis> (v) => (w) { w = Concat<axis: int = @axis>(v, v) }"""
    )
    assert values_by_name(graph)["a"].shape is None


# --- bounds


def input_dims(graph: Graph) -> list[Symbol]:
    return [dim for value in graph.inputs for dim in value.shape or () if isinstance(dim, Symbol)]


def test_a_dim_that_cannot_be_empty_makes_a_reshape_plain() -> None:
    text = """g (float[B,S,64] x) => (y) {
        s = Shape(x)
        rows = Constant<value = int64[2] {-1, 64}>()
        flat = Reshape(x, rows)
        back = Reshape(flat, s)
        y = Add(x, back)
    }"""
    graph = held(text, *({"x": zeros(b, s, 64)} for b in (0, 1, 2) for s in (0, 1, 3)))
    assert shown(graph, "y") == "float[B,S,64]"
    assert [symbol.least for symbol in input_dims(graph)] == [0, 1]


def test_without_that_addition_an_empty_dim_is_kept_in_mind() -> None:
    text = """g (float[B,S,64] x) => (back) {
        s = Shape(x)
        rows = Constant<value = int64[2] {-1, 64}>()
        flat = Reshape(x, rows)
        back = Reshape(flat, s)
    }"""
    graph = held(text, *({"x": zeros(b, s, 64)} for b in (0, 1, 2) for s in (0, 1, 3)))
    assert shown(graph, "back") == "float[B,size_or(S, 64),64]"


def test_a_table_bounds_the_length() -> None:
    text = """g (float[1,S,8] x, float[1,512,8] table) => (y, part) {
        zero = Constant<value = int64[1] {0}>()
        one = Constant<value = int64[1] {1}>()
        s = Shape(x)
        two = Constant<value = int64[1] {2}>()
        length = Slice(s, one, two, zero)
        part = Slice(table, zero, length, one)
        y = Add(x, part)
    }"""
    table = zeros(1, 512, 8)
    graph = held(text, *({"x": zeros(1, s, 8), "table": table} for s in (0, 1, 5, 512, 513, 1000)))
    assert shown(graph, "y") == shown(graph, "part") == "float[1,S,8]"
    assert [symbol.most for symbol in input_dims(graph)] == [512]


def test_a_convolution_tells_how_small_its_operand_cannot_be() -> None:
    text = """g (float[N,3,H,W] x, float[4,3,3,5] w) => (y) { y = Conv<strides = [1, 2]>(x, w) }"""
    weights = zeros(4, 3, 3, 5)
    sizes = [(h, w) for h in (0, 2, 3, 7) for w in (0, 4, 5, 8)]
    graph = held(text, *({"x": zeros(1, 3, h, w), "w": weights} for h, w in sizes))
    assert shown(graph, "y") == "float[N,4,H - 2,(W + 1)//2 - 2]"
    assert [symbol.least for symbol in input_dims(graph)] == [0, 3, 5]


# --- operators without a transfer function


def test_an_unknown_operator_keeps_the_declared_element_type() -> None:
    graph = graph_of("g (float[N] x) => (y) <float16[3] a> { a = local.mystery(x)  y = Relu(a) }")
    assert shown(graph, "y") == "float16[]"


def test_onnx_is_asked_where_nothing_is_known_here() -> None:
    graph = graph_of("g (float[N,8,1] x) => (y) { n = Constant<value = int64 {8}>()  y = DFT<axis = 1>(x, n) }")
    assert shown(graph, "y") == "float[N,8,2]"


def test_the_element_type_of_an_old_cast_is_a_word() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to="INT32")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    proto = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    graph = load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 5)]))
    Inference(graph.model).run()
    assert shown(graph, "y") == "int32[n]"


def test_sequences_say_what_holds_of_every_element() -> None:
    graph = graph_of("g (float[N,4] x, float[M,4] y) => (s) { s = SequenceConstruct(x, y) }")
    assert values_by_name(graph)["s"].type == SequenceType(TensorType(DType.FLOAT, (None, 4)))


# --- size


def test_a_long_model_is_inferred_without_recursion_and_soon() -> None:
    count = 20_000
    nodes = []
    for index in range(count):
        op_type = ("Relu", "Add", "Transpose")[index % 3]
        operands = [f"v{index}"] * (2 if op_type == "Add" else 1)
        nodes.append(helper.make_node(op_type, operands, [f"v{index + 1}"]))
    inputs = [helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["n", "m"])]
    proto = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(f"v{count}")])
    graph = load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)]))
    started = time.process_time()
    Inference(graph.model).run()
    assert time.process_time() - started < 3
    assert shown(graph, f"v{count}") in ("float[n,m]", "float[m,n]")


def test_the_same_model_gives_the_same_expressions() -> None:
    text = """g (float[N,4,M] a, float[K,4,M2] b) => (y) {
        c = Transpose<perm = [0, 2, 1]>(b)
        p = MatMul(a, c)
        y = Add(p, p)
    }"""
    first, second = graph_of(text), graph_of(text)
    assert values_by_name(first)["y"].type == values_by_name(second)["y"].type
    dim = (values_by_name(first)["y"].shape or ())[0]
    assert dim is not None
    assert evaluate(dim, dict.fromkeys(input_dims(first), 1)) == 1


def test_weights_are_not_read() -> None:
    big = numpy_helper.from_array(np.zeros((512, 512), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])]
    proto = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], [big])
    graph = load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)]))
    Inference(graph.model).run()
    (weight,) = graph.constants()
    assert weight.result.elements is None
    assert shown(graph, "y") == "float[n,512]"
