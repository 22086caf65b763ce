from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators, run

import passes.common_subexpressions as common
import passes.pruning as pruning
from graphopt import load

X = {"x": floats(2)}
BOTH = [{**X, "c": np.array(flag)} for flag in (True, False)]


def _stored(model: ModelProto) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer]


# --- constants


def _two_constants(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> ModelProto:
    """A model whose outputs are two constants, each through an operator that takes anything."""
    tensors = [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")]
    infos = [helper.make_tensor_value_info(f"{t.name}_out", t.data_type, list(t.dims)) for t in tensors]
    nodes = [helper.make_node("Identity", [tensor.name], [f"{tensor.name}_out"]) for tensor in tensors]
    graph = helper.make_graph(nodes, "g", [], infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _floats_of(*bits: int) -> np.ndarray[Any, Any]:
    return np.array(bits, np.uint32).view(np.float32)


LARGE = np.arange(1 << 16, dtype=np.float32)
DIFFERENT_INSIDE = np.where(LARGE == 12345, np.float32(-1), LARGE)


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        (np.array([0.0], np.float32), np.array([-0.0], np.float32), False),
        (_floats_of(0x7FC00000), _floats_of(0x7FC00000), True),
        (_floats_of(0x7FC00000), _floats_of(0x7FC00001), False),
        (np.array([1, 2], np.int32), np.array([1, 2], np.int64), False),
        (np.array([0, 0], np.float32), np.array([0, 0], np.int32), False),
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), False),
        (np.ones((1,), np.float32), np.ones((), np.float32), False),
        (np.array(["a", "b"], dtype=object), np.array(["a", "b"], dtype=object), True),
        (np.array(["ab", ""], dtype=object), np.array(["a", "b"], dtype=object), False),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), True),
        (LARGE, LARGE.copy(), True),
        (LARGE, DIFFERENT_INSIDE, False),
    ],
)
def test_constants_are_equal_by_their_bytes(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], is_one: bool
) -> None:
    model = _two_constants(first, second)
    result = run(model, common)
    assert _stored(result) == (["a"] if is_one else ["a", "b"])
    assert_equal(model, result)


def test_nodes_and_initializers_are_alike_and_all_forms_count() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <float w = {2.0}> {
        a = Constant<value_float = 2.0>()
        b = Constant<value = float {2.0}>()
        d = Constant<value = double {2.0}>()
        p = Mul(x, a)
        q = Add(p, b)
        r = Div(q, w)
        e = Cast<to = 1>(d)
        y = Sub(r, e)
    }""")
    result = run(model, common)
    assert _stored(result) == ["w"]
    assert [node.output[0] for node in result.graph.node if node.op_type == "Constant"] == ["d"]
    assert_equal(model, result, [X])


def test_an_overridable_input_is_no_constant() -> None:
    model = model_of("""g (float[2] x, float k = {2.0}, float l = {2.0}) => (float[2] y) <float w = {2.0}> {
        p = Mul(x, k)
        q = Add(p, l)
        y = Div(q, w)
    }""")
    result = run(model, common)
    assert _stored(result) == ["k", "l", "w"]
    assert_equal(model, result, [X, {**X, "k": np.array(3, np.float32)}])


def test_returned_and_kept_constants_survive() -> None:
    model = model_of("""g (float[2] x) => (float[2] y, float out)
        <float a = {2.0}, float out = {2.0}, float kept = {2.0}, float other = {2.0}> {
        p = Mul(x, a)
        q = Add(p, kept)
        y = Div(q, other)
    }""")
    result = run(model, common, keep=("kept",))
    assert _stored(result) == ["out", "kept"]
    assert_equal(model, result, [X])


def test_before_ir_4_the_listed_one_survives() -> None:
    names = ("x", "w", "v")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    tensors = [numpy_helper.from_array(np.ones(2, np.float32), name) for name in names[1:]]
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(2, np.float32)))
    chain = (("x", "one", "p"), ("p", "w", "q"), ("q", "v", "y"))
    nodes = [one, *(helper.make_node("Add", [left, right], [total]) for left, right, total in chain)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", infos, [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    result = run(model, common)
    assert operators(result) == {"Add": 3}
    assert [value.name for value in result.graph.input] == ["x", "w"]
    assert_equal(model, result, [X])


def test_bodies_read_large_constants_from_outside_and_keep_small_parameters() -> None:
    numbers = ", ".join(f"{number}.0" for number in range(300))
    model = model_of(f"""g (float[300] x, bool c) => (float[300] y) <float[300] w = {{{numbers}}}, float k = {{2.0}}> {{
        p = Mul(x, w)
        q = Mul(p, k)
        y = If (c) <
            then_branch = a () => (float[300] t) <float[300] w2 = {{{numbers}}}, float k2 = {{2.0}}> {{
                u = Add(q, w2)
                t = Add(u, k2)
            }},
            else_branch = b () => (float[300] e) <float[300] e = {{{numbers}}}> {{ }}
        >
    }}""")
    result = run(model, common)
    branches = [attribute.g for node in result.graph.node for attribute in node.attribute if attribute.HasField("g")]
    assert _stored(result) == ["w", "k"]
    assert [tensor.name for branch in branches for tensor in branch.initializer] == ["k2", "e"]
    assert_equal(model, result, [{"x": floats(300), "c": np.array(flag)} for flag in (True, False)])


# --- expressions


def _result(body: str, text: str = "float[2, 3] x => float[2, 3] y", *, opset: int = 18) -> ModelProto:
    inputs, outputs = text.split(" => ")
    return model_of(f"g ({inputs}) => ({outputs}) {{ {body} }}", opset=opset)


@pytest.mark.parametrize(
    ("pair", "is_one"),
    [
        ("a = Softmax<axis = -1>(x) b = Softmax(x)", True),
        ("a = Softmax<axis = 0>(x) b = Softmax(x)", False),
        ("a = LeakyRelu<alpha = 0.01>(x) b = LeakyRelu(x)", True),
        ("a = LeakyRelu<alpha = 0.0>(x) b = LeakyRelu<alpha = -0.0>(x)", False),
        ("a = Clip(x, k) b = Clip(x, k)", True),
        ('a = Clip(x, k) b = Clip(x, "", k)', False),
        ('a = Clip(x, k, "") b = Clip(x, k)', True),
        ("a = Add(x, k) b = Add(k, x)", True),
        ("a = Mul(x, k) b = Mul(k, x)", True),
        ("a = Sub(x, k) b = Sub(k, x)", False),
        ("a = Max(x, k) b = Max(k, x)", False),
        ("a = Sum(x, k, x) b = Sum(x, x, k)", False),
        ("a = Sum(x, k) b = Sum(k, x)", True),
        ("a = Dropout(x) b, mask = Dropout(x)", True),
        ("a = Relu(x) b = Relu(k)", False),
        ("a = Cast<to = 1>(x) b = Cast<to = 1>(x)", True),
        ("a, a2 = Split<axis = 0, num_outputs = 2>(w) b2, b = Split<axis = 0, num_outputs = 2>(w)", True),
        ("a = RandomNormalLike(x) b = RandomNormalLike(x)", False),
        ("a = RandomNormalLike<seed = 1.0>(x) b = RandomNormalLike<seed = 1.0>(x)", False),
        ('a = Dropout(x, "", yes) b = Dropout(x, "", yes)', False),
        ("a = vendor.F(x) b = vendor.F(x)", False),
    ],
)
def test_what_is_one_expression(pair: str, is_one: bool) -> None:
    model = model_of(
        f"""g (float[2, 3] x, float k, float[4, 3] w) => (float[2, 3] y) <bool yes = {{1}}> {{
            {pair}
            y = Sub(a, b)
        }}""",
        imports='"vendor" : 1',
    )
    result = run(model, common)
    assert (len(result.graph.node) < len(model.graph.node)) == is_one
    if is_one:
        assert_equal(model, result, [{"x": floats(2, 3), "k": floats(), "w": floats(4, 3)}])


def test_integers_of_max_commute_and_old_broadcasts_do_not() -> None:
    newer = _result("a = Max(x, w) b = Max(w, x) y = Sub(a, b)", "int64[2] x, int64[2] w => int64[2] y")
    assert operators(run(newer, common)) == {"Max": 1, "Sub": 1}
    old = _result("a = Add(x, w) b = Add(w, x) y = Sub(a, b)", "float[2] x, float[2] w => float[2] y", opset=6)
    assert operators(run(old, common)) == {"Add": 2, "Sub": 1}


def test_tensors_among_attributes_count_by_content() -> None:
    def encoder(name: str, values: list[int]) -> Any:
        return helper.make_node(
            "LabelEncoder",
            ["t"],
            [name],
            domain="ai.onnx.ml",
            keys_tensor=numpy_helper.from_array(np.array(["a", "b"], dtype=object), "k"),
            values_tensor=helper.make_tensor("v", TensorProto.INT64, [2], values),
            default_tensor=helper.make_tensor("d", TensorProto.INT64, [1], [-1]),
        )

    nodes = [encoder("p", [1, 2]), encoder("q", [1, 3]), encoder("r", [1, 2])]
    nodes += [helper.make_node("Sub", ["p", "q"], ["s"]), helper.make_node("Mul", ["s", "r"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t", TensorProto.STRING, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [3])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    result = run(model, common)
    assert operators(result) == {"LabelEncoder": 2, "Sub": 1, "Mul": 1}
    assert_equal(model, result, [{"t": np.array(["b", "a", "z"], dtype=object)}])


def test_chains_merge_in_one_walk_and_equal_constants_count_as_one() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <float k = {2.0}, float l = {2.0}> {
        a = Mul(x, k) b = Exp(a) c = Neg(b)
        d = Mul(x, l) e = Exp(d) f = Neg(e)
        y = Add(c, f)
    }""")
    result = run(model, common)
    assert operators(result) == {"Mul": 1, "Exp": 1, "Neg": 1, "Add": 1}
    assert_equal(model, result, [X])


def test_more_results_may_be_read_than_the_first_gives() -> None:
    body = "a, i1 = TopK<axis = 1>(x, k) b, i2 = TopK<axis = 1>(x, k) d = Cast<to = 1>(i2) y = Add(a, d)"
    model = model_of(f"g (float[2, 3] x) => (float[2, 1] y) <int64[1] k = {{1}}> {{ {body} }}")
    result = run(model, common)
    assert operators(result) == {"TopK": 1, "Cast": 1, "Add": 1}
    assert_equal(model, result, [{"x": floats(2, 3)}])
    mask = _result("a = Dropout(x) b, m = Dropout(x) d = Cast<to = 1>(m) e = Add(a, b) y = Add(e, d)")
    result = run(mask, common)
    assert [list(node.output) for node in result.graph.node if node.op_type == "Dropout"] == [["b", "m"]]
    assert_equal(mask, result, [{"x": floats(2, 3)}])
    pool = _result(
        """a = MaxPool<kernel_shape = [2, 2]>(x) b, i = MaxPool<kernel_shape = [2, 2]>(x)
        d = Cast<to = 1>(i) e = Add(a, b) y = Add(e, d)""",
        "float[1, 1, 4, 4] x => float[1, 1, 3, 3] y",
    )
    assert operators(run(pool, common))["MaxPool"] == 2  # two kernels, which treat NaN differently


def test_a_kept_node_is_the_one_that_stays() -> None:
    model = _result("a = Exp(x) kept = Exp(x) also = Exp(x) b = Add(a, kept) y = Add(b, also)")
    result = run(model, common, keep=("kept",))
    assert [node.output[0] for node in result.graph.node if node.op_type == "Exp"] == ["kept"]
    result = run(model, common, keep=("kept", "a"))
    assert [node.output[0] for node in result.graph.node if node.op_type == "Exp"] == ["a", "kept"]


# --- graph outputs


def test_two_outputs_keep_their_names() -> None:
    model = _result(
        "y1 = Softmax(x) y2 = Softmax(x) a = Neg(y1) b = Neg(y2) y3 = Add(a, b)",
        "float[2, 3] x => float[2, 3] y1, float[2, 3] y2, float[2, 3] y3",
    )
    result = run(model, common)
    assert operators(result) == {"Softmax": 1, "Identity": 1, "Neg": 1, "Add": 1}
    assert_equal(model, result, [{"x": floats(2, 3)}])


def test_an_identity_is_not_worth_what_costs_no_more() -> None:
    model = _result(
        "y1 = Neg(x) y2 = Neg(x) a = Exp(y1) b = Exp(y2) y3 = Add(a, b)",
        "float[2, 3] x => float[2, 3] y1, float[2, 3] y2, float[2, 3] y3",
    )
    result = run(model, common)
    assert operators(result) == {"Neg": 2, "Exp": 1, "Add": 1}  # readers inside share, the outputs do not
    assert_equal(model, result, [{"x": floats(2, 3)}])


def test_one_output_and_one_inner_value_are_one() -> None:
    for order in ("a = Exp(x) y = Exp(x)", "y = Exp(x) a = Exp(x)"):
        model = _result(f"{order} z = Neg(a)", "float[2, 3] x => float[2, 3] y, float[2, 3] z")
        result = run(model, common)
        assert operators(result) == {"Exp": 1, "Neg": 1}
        assert_equal(model, result, [{"x": floats(2, 3)}])


# --- bodies


def test_a_body_uses_what_is_computed_around_it_even_later() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) <float k = {2.0}> {
        z = If (c) <
            then_branch = a () => (float[2] t) <float k = {2.0}> { p = Mul(x, k) q = Exp(p) t = Neg(q) },
            else_branch = b () => (float[2] e) { e = Abs(x) }
        >
        r = Mul(x, k)
        s = Exp(r)
        y = Add(z, s)
    }""")
    # ONNX forbids the inner k to hide the outer one: call it something else.
    for node in nodes_of(model.graph):
        for attribute in node.attribute:
            for tensor in attribute.g.initializer:
                tensor.name = "inner_k"
            if attribute.g.node and attribute.g.node[0].op_type == "Mul":
                attribute.g.node[0].input[1] = "inner_k"
    result = run(model, common, pruning)
    assert operators(result) == {"Mul": 1, "Exp": 1, "If": 1, "Neg": 1, "Abs": 1, "Add": 1}
    assert_equal(model, result, BOTH)


def test_a_body_cannot_use_what_depends_on_it() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        z = If (c) <
            then_branch = a () => (float[2] t) { p = Exp(x) t = Neg(p) },
            else_branch = b () => (float[2] e) { e = Exp(x) }
        >
        y = Exp(z)
    }""")
    result = run(model, common)
    assert operators(result) == {"If": 1, "Exp": 3, "Neg": 1}
    assert_equal(model, result, BOTH)


def test_what_a_body_returns_is_computed_there_unless_that_is_dear() -> None:
    model = model_of("""g (float[2, 3] x, bool c) => (float[2, 3] y) {
        u = Softmax(x)
        v = Neg(x)
        w = Add(u, v)
        z = If (c) <
            then_branch = a () => (float[2, 3] t) { t = Softmax(x) },
            else_branch = b () => (float[2, 3] e) { e = Neg(x) }
        >
        y = Add(w, z)
    }""")
    result = run(model, common)
    assert operators(result) == {"Softmax": 1, "Neg": 2, "Add": 2, "If": 1, "Identity": 1}
    assert_equal(model, result, [{"x": floats(2, 3), "c": np.array(flag)} for flag in (True, False)])


def _two_ifs(second: str) -> ModelProto:
    return model_of(f"""g (float[2] x, bool c) => (float[2] y) {{
        p = If (c) <
            then_branch = a () => (float[2] t) <float k = {{2.0}}> {{ u = Mul(x, k) t = Exp(u) }},
            else_branch = b () => (float[2] e) {{ e = Abs(x) }}
        >
        q = If (c) <{second}>
        y = Add(p, q)
    }}""")


@pytest.mark.parametrize(
    ("second", "is_one"),
    [
        (
            """then_branch = d () => (float[2] t2) <float l = {2.0}> { u2 = Mul(x, l) t2 = Exp(u2) },
            else_branch = f () => (float[2] e2) { e2 = Abs(x) }""",
            True,
        ),
        (
            """then_branch = d () => (float[2] t2) <float l = {3.0}> { u2 = Mul(x, l) t2 = Exp(u2) },
            else_branch = f () => (float[2] e2) { e2 = Abs(x) }""",
            False,
        ),
        (
            """then_branch = d () => (float[2] t2) { t2 = Abs(x) },
            else_branch = f () => (float[2] e2) <float l = {2.0}> { u2 = Mul(x, l) e2 = Exp(u2) }""",
            False,
        ),
    ],
)
def test_equal_bodies_are_one_node(second: str, is_one: bool) -> None:
    model = _two_ifs(second)
    result = run(model, common)
    assert operators(result)["If"] == (1 if is_one else 2)
    assert_equal(model, result, BOTH)


def test_equal_loops_are_one_and_loops_that_differ_inside_are_not() -> None:
    def loop(name: str, inner: str) -> str:
        return f"""{name} = Loop (m, "", x) <
            body = b_{name} (int64 i_{name}, bool go_{name}, float[2] s_{name}) => (bool a_{name}, float[2] r_{name}) {{
                a_{name} = Identity(go_{name})
                r_{name} = {inner.format(s=f"s_{name}")}
            }}
        >"""

    for second, count in (("Mul({s}, x)", 1), ("Mul({s}, {s})", 2), ("Mul(x, x)", 2)):
        model = model_of(f"""g (float[2] x) => (float[2] y) <int64 m = {{3}}> {{
            {loop("p", "Mul({s}, x)")}
            {loop("q", second)}
            y = Add(p, q)
        }}""")
        result = run(model, common)
        assert operators(result)["Loop"] == count
        assert_equal(model, result, [X])


def test_a_random_operator_inside_keeps_bodies_apart() -> None:
    branches = """then_branch = {0} () => (float[2] t{0}) {{ t{0} = RandomNormalLike(x) }},
        else_branch = {1} () => (float[2] e{1}) {{ e{1} = Abs(x) }}"""
    model = model_of(f"""g (float[2] x, bool c) => (float[2] y) {{
        p = If (c) <{branches.format("a", "b")}>
        q = If (c) <{branches.format("d", "f")}>
        y = Sub(p, q)
    }}""")
    assert operators(run(model, common))["If"] == 2


def test_inside_functions_and_between_their_calls() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) {
            a = local.F<k = 1.0>(x)
            b = local.F<k = 1.0>(x)
            d = local.F<k = 2.0>(x)
            e = Sub(a, b)
            y = Add(e, d)
        }
        <domain: "local", opset_import: ["" : 18]> F <k> (a) => (b) {
            p = Constant<value_float : float = @k>()
            q = Constant<value_float : float = @k>()
            r = Mul(a, p)
            s = Mul(a, q)
            b = Add(r, s)
        }""",
        imports='"local" : 1',
    )
    result = run(model, common)
    assert operators(result) == {"F": 2, "Sub": 1, "Add": 1}
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "Mul", "Add"]
    assert_equal(model, result, [X])


# --- what a body returns


def test_a_body_returns_a_small_constant_of_its_own() -> None:
    model = model_of(
        """g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] k = {1, 2}> {
            s = Add(x, k)
            y, z = If (c) <
                then_branch = t () => (float[2] r, float[2] w) { r = Identity(k) w = Abs(s) },
                else_branch = e () => (float[2] p, float[2] q) { p = Exp(s) q = Neg(s) }
            >
        }"""
    )
    graph = load(model)
    body = graph.of_kind("If")[0].bodies["then_branch"]
    copy, other = body.outputs
    body.set_outputs([copy.producer.operands[0], other])
    body.erase(copy.producer)
    result = run(graph, common)
    assert operators(result) == {"Add": 1, "If": 1, "Abs": 1, "Exp": 1, "Neg": 1}
    assert_equal(model, result, BOTH)


def test_an_identity_that_is_there_is_returned() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y, float[2] z) { i = Identity(x) n = Neg(i) y = Exp(n) z = Identity(x) }"
    )
    result = run(model, common)
    assert operators(result) == {"Identity": 1, "Neg": 1, "Exp": 1}
    assert_equal(model, result, [X])
