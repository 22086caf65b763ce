from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from pass_runs import assert_equal, floats, model_of, operators, run

import passes.pruning as pruning
from graphopt import load

X = {"x": floats(2)}


# --- dead code


def test_dead_chains_go_and_what_they_captured() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        y = Relu(x)
        only_for_the_branch = Exp(x)
        z = If (c) <
            then_branch = a () => (float[2] t) { t = Neg(only_for_the_branch) },
            else_branch = b () => (float[2] e) { e = Abs(x) }
        >
        u = Neg(z)
    }""")
    result = run(model, pruning)
    assert operators(result) == {"Relu": 1}
    assert [value.name for value in result.graph.input] == ["x", "c"]
    assert_equal(model, result, [{**X, "c": np.array(True)}])


def test_dead_nodes_in_a_body_go() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { dead = Exp(x) t = Neg(x) },
            else_branch = b () => (float[2] e) { e = Abs(x) }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"If": 1, "Neg": 1, "Abs": 1}
    assert_equal(model, result, [{**X, "c": np.array(flag)} for flag in (True, False)])


def test_what_an_unknown_operator_reads_stays() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) {
            y = Relu(x)
            read = Neg(x)
            unread, alike = vendor.Log<level = 3>(read)
        }""",
        imports='"vendor" : 1',
    )
    result = run(model, pruning)
    assert operators(result) == {"Relu": 1, "Neg": 1, "Log": 1}
    assert list(result.graph.node[2].output) == ["unread", "alike"]


def test_a_loop_around_an_unknown_operator_stays() -> None:
    model = model_of(
        """g (float[2] x, int64 m) => (float[2] y) {
            y = Relu(x)
            z = Loop (m, "", x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {
                    again = Identity(c)
                    r = vendor.Step(s)
                }
            >
        }""",
        imports='"vendor" : 1',
    )
    assert operators(run(model, pruning))["Loop"] == 1


def test_a_dead_random_operator_goes_and_a_live_one_stays() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) {
        dead = RandomNormalLike(x)
        live = RandomNormalLike(x)
        y = Add(x, live)
    }""")
    assert operators(run(model, pruning)) == {"RandomNormalLike": 1, "Add": 1}


def test_kept_names_stay() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) inner = Neg(x) [by_node] other = Exp(x) gone = Abs(x) }"
    result = run(model_of(text), pruning, keep=("inner", "by_node"))
    assert operators(result) == {"Relu": 1, "Neg": 1, "Exp": 1}
    assert {name for node in result.graph.node for name in node.output} == {"y", "inner", "other"}


def test_dead_initializers_go_and_overridable_ones_stay() -> None:
    model = model_of("""g (float[2] x, float[2] may_be_fed = {1.0, 2.0}) => (float[2] y) <float[2] dead = {3.0, 4.0}> {
        y = Relu(x)
    }""")
    result = run(model, pruning)
    assert [tensor.name for tensor in result.graph.initializer] == ["may_be_fed"]
    assert [value.name for value in result.graph.input] == ["x", "may_be_fed"]
    assert_equal(model, result, [X])


def test_before_ir_4_a_listing_goes_with_its_initializer() -> None:
    w, dead = (numpy_helper.from_array(np.ones(2, np.float32), name) for name in ("w", "dead"))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "w", "dead")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        infos,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [w, dead],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    result = run(model, pruning)
    assert [value.name for value in result.graph.input] == ["x", "w"]
    assert_equal(model, result, [X])


def test_training_information_holds_what_it_names() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) <float[2] counter = {1.0, 2.0}> { y = Relu(x) }",
        imports='"ai.onnx.preview.training" : 1',
    )
    info = model.training_info.add()
    info.update_binding.add(key="counter", value="next")
    result = run(model, pruning)
    assert [tensor.name for tensor in result.graph.initializer] == ["counter"]
    assert len(result.opset_import) == 2
    assert result.training_info == model.training_info


def test_quantization_annotations_hold_what_they_name() -> None:
    model = model_of("g (float[2] x) => (float[2] y) <float scale = {0.5}, float dead = {0.5}> { y = Relu(x) }")
    annotation = model.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    result = run(model, pruning)
    assert [tensor.name for tensor in result.graph.initializer] == ["scale"]
    assert result.graph.quantization_annotation == model.graph.quantization_annotation


# --- optional results


def _lstm(results: str) -> ModelProto:
    return model_of(f"""g (float[3, 1, 4] x, float[1, 8, 4] w, float[1, 8, 2] r) => (float[1, 1, 2] h)
        <float[3, 1, 1, 2] a> {{ {results} = LSTM<hidden_size = 2>(x, w, r) }}""")


def test_unread_results_of_recurrent_operators_are_left_out() -> None:
    model = _lstm("a, h, c")
    result = run(model, pruning)
    assert list(result.graph.node[0].output) == ["", "h"]
    assert not result.graph.value_info
    assert_equal(model, result, [{"x": floats(3, 1, 4), "w": floats(1, 8, 4, seed=1), "r": floats(1, 8, 2, seed=2)}])


def test_the_results_of_batch_normalization_go_together() -> None:
    text = """g (float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2, 3] y{outputs}) {{
        y, mean, var = BatchNormalization(x, s, b, m, v)
    }}"""
    result = run(model_of(text.format(outputs="")), pruning)
    assert list(result.graph.node[0].output) == ["y"]
    one_is_read = run(model_of(text.format(outputs=", float[3] var")), pruning)
    assert list(one_is_read.graph.node[0].output) == ["y", "mean", "var"]


def test_training_dropout_and_old_batch_normalization_keep_their_meaning() -> None:
    old = model_of(
        """g (float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2, 3] y) {
            y, mean, var, saved_mean, saved_var = BatchNormalization(x, s, b, m, v)
        }""",
        opset=9,
    )
    assert len(run(old, pruning).graph.node[0].output) == 5


@pytest.mark.parametrize(
    ("past", "read", "left"),
    [
        ("", "", ["y"]),
        ("", ", float[1, 2, 5, 4] k2", ["y", "k2", "v2"]),
        (', "", pk, pv', "", ["y", "k2", "v2"]),
    ],
)
def test_present_key_and_value_come_together(past: str, read: str, left: list[str]) -> None:
    model = model_of(
        f"""g (
            float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v, float[1, 2, 6, 4] pk, float[1, 2, 6, 4] pv
        ) => (float[1, 2, 3, 4] y{read}) {{
            y, k2, v2, scores = Attention(q, k, v{past})
        }}""",
        opset=23,
        ir_version=11,
    )
    result = run(model, pruning)
    assert list(result.graph.node[0].output) == left
    sizes = {"q": 3, "k": 5, "v": 5, "pk": 6, "pv": 6}
    feed = {name: floats(1, 2, size, 4, seed=size) for name, size in sizes.items()}
    assert_equal(model, result, [feed])


def test_pool_indices_go_only_where_nan_may_change() -> None:
    model = model_of("""g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) {
        y, places = MaxPool<kernel_shape = [2, 2]>(x)
    }""")
    assert len(run(model, pruning, level="default").graph.node[0].output) == 2
    result = run(model, pruning, level="fast-math")
    assert list(result.graph.node[0].output) == ["y"]
    assert_equal(model, result, [{"x": floats(1, 1, 4, 4)}])


def test_a_kept_result_is_not_left_out() -> None:
    assert list(run(_lstm("a, h, c"), pruning, keep=("c",)).graph.node[0].output) == ["a", "h", "c"]


# --- declarations

FUNCTIONS = """
<domain: "local", opset_import: ["" : 18, "local" : 1]> Outer (a) => (b) { b = local.Inner(a) }
<domain: "local", opset_import: ["" : 18, "local" : 1]> Inner (a) => (b) { b = Neg(a) }
<domain: "local", opset_import: ["" : 18, "local" : 1]> Dead (a) => (b) { b = local.OnlyForTheDead(a) }
<domain: "local", opset_import: ["" : 18]> OnlyForTheDead (a) => (b) { b = Abs(a) }
"""


def test_functions_nobody_reaches_go() -> None:
    model = model_of(
        """g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = local.Outer(x) },
                else_branch = b () => (float[2] e) { e = Abs(x) }
            >
        }"""
        + FUNCTIONS,
        imports='"local" : 1',
    )
    result = run(model, pruning)
    assert [function.name for function in result.functions] == ["Outer", "Inner"]
    assert_equal(model, result, [{**X, "c": np.array(flag)} for flag in (True, False)])


def test_a_domain_goes_with_its_last_node() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) { y = Relu(x) z = local.Dead(x) }" + FUNCTIONS,
        imports='"local" : 1, "vendor" : 7',
    )
    result = run(model, pruning)
    assert not result.functions
    assert [entry.domain for entry in result.opset_import] == [""]
    assert_equal(model, result, [X])


def test_a_domain_only_a_function_uses_stays_imported() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) { y = local.F(x) }
        <domain: "local", opset_import: ["" : 18, "com.microsoft" : 1]> F (a) => (b) { b = com.microsoft.Gelu(a) }""",
        imports='"local" : 1, "com.microsoft" : 1',
    )
    assert {entry.domain for entry in run(model, pruning).opset_import} == {"", "local", "com.microsoft"}


def test_types_of_values_that_do_not_exist_go() -> None:
    model = model_of("g (float[2] x) => (float[2] y) <float[2] t, float[2] gone> { t = Relu(x) y = Neg(t) }")
    assert [info.name for info in run(model, pruning).graph.value_info] == ["t"]


# --- around it


def test_metadata_and_doc_strings_stay() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { dead = Neg(x) [keep_me] y = Relu(x) }")
    model.doc_string, model.producer_name, model.model_version = "all about it", "unit", 42
    helper.set_model_props(model, {"labels": "cat,dog"})
    model.graph.doc_string = "a graph"
    model.graph.input[0].doc_string, model.graph.output[0].doc_string = "in", "out"
    model.graph.node[1].doc_string = "the only one"
    result = run(model, pruning)
    del model.graph.node[0]
    assert result == model


def test_an_output_listed_twice_stays_twice() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { dead = Neg(x) y = Relu(x) }")
    model.graph.output.append(model.graph.output[0])
    result = run(model, pruning)
    assert [value.name for value in result.graph.output] == ["y", "y"]
    assert operators(result) == {"Relu": 1}


def test_nodes_out_of_order_are_put_in_order() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) {
        r = Relu(x)
        c = Constant<value = float[1] {5.0}>()
        y = Add(r, c)
    }""")
    nodes = [model.graph.node[index] for index in (0, 2, 1)]
    unordered = ModelProto.FromString(model.SerializeToString())
    del unordered.graph.node[:]
    unordered.graph.node.extend(nodes)
    assert_equal(model, run(load(unordered), pruning), [X])
