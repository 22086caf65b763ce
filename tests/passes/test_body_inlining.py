from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators, run

import passes.pruning as pruning

X = {"x": floats(2)}
BOTH = [{**X, "c": np.array(flag)} for flag in (True, False)]


# --- If


@pytest.mark.parametrize("condition", [0, 1])
def test_only_the_taken_branch_is_left(condition: int) -> None:
    model = model_of(f"""g (float[2] x) => (float[2] y) <bool[1] c = {{{condition}}}> {{
        r = Exp(x)
        s = If (c) <
            then_branch = a () => (float[2] t) <float[2] w = {{1.0, 2.0}}> {{ u = Mul(r, w) t = Relu(u) }},
            else_branch = b () => (float[2] t) <float[2] w = {{3.0, 4.0}}> {{ u = Add(r, w) t = Neg(u) }}
        >
        y = Abs(s)
    }}""")
    result = run(model, pruning)
    expected = {"Mul": 1, "Relu": 1} if condition else {"Add": 1, "Neg": 1}
    assert operators(result) == {"Exp": 1, "Abs": 1, **expected}
    assert "s" in {name for node in result.graph.node for name in node.output}  # what readers knew it by
    assert [tensor.name for tensor in result.graph.initializer] == ["w"]
    assert_equal(model, result, [X])


def test_names_never_clash_with_another_body() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y, float[2] z) <bool yes = {1}> {
        u = Exp(x)
        y = If (yes) <
            then_branch = a () => (float[2] t) { v = Mul(u, x) t = Neg(v) },
            else_branch = b () => (float[2] t) { t = Identity(x) }
        >
        z = If (c) <
            then_branch = d () => (float[2] t) { v = Abs(u) t = Neg(v) },
            else_branch = e () => (float[2] v) { v = Relu(u) }
        >
    }""")
    result = run(model, pruning)
    names = [name for node in nodes_of(result.graph) for name in node.output]
    outer = {name for node in result.graph.node for name in node.output}
    inner = [name for node in nodes_of(result.graph) if node not in list(result.graph.node) for name in node.output]
    assert not outer & set(inner), names
    assert_equal(model, result, BOTH)


def test_a_branch_may_return_an_outer_value_twice() -> None:
    model = model_of("""g (float[2] x) => (float[2] y, float[2] z, float[2] v) <bool yes = {1}> {
        u = Exp(x)
        y, z, v = If (yes) <
            then_branch = a () => (float[2] s, float[2] t, float[2] r) { s = Identity(u) t = Neg(u) r = Identity(t) },
            else_branch = b () => (float[2] s, float[2] t, float[2] r) { s = Identity(x) t = Neg(x) r = Abs(x) }
        >
    }""")
    result = run(model, pruning)
    assert "If" not in operators(result)
    assert_equal(model, result, [X])
    branch = model.graph.node[1].attribute[0].g
    branch.output[2].CopyFrom(branch.output[1])  # the runtime gives zeros for the first of the two: only look
    result = run(model, pruning)
    assert operators(result) == {"Exp": 1, "Neg": 1, "Identity": 2}


def test_the_same_condition_decides_inside_its_own_branch() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) {
                t = If (c) <
                    then_branch = a2 () => (float[2] t2) { t2 = Exp(x) },
                    else_branch = b2 () => (float[2] e2) { e2 = Log(x) }
                >
            },
            else_branch = b () => (float[2] e) {
                e = If (c) <
                    then_branch = a3 () => (float[2] t3) { t3 = Sin(x) },
                    else_branch = b3 () => (float[2] e3) { e3 = Cos(x) }
                >
            }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"If": 1, "Exp": 1, "Cos": 1}
    assert_equal(model, result, BOTH)


def test_a_whole_nest_unfolds() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) <bool yes = {1}> {
        y = If (c) <
            then_branch = a () => (float[2] t) <bool no = {0}> {
                u = Exp(x)
                t = If (no) <
                    then_branch = a2 () => (float[2] t2) { t2 = Log(u) },
                    else_branch = b2 () => (float[2] e2) {
                        v = Neg(u)
                        e2 = If (yes) <
                            then_branch = a3 () => (float[2] t3) { t3 = Mul(u, v) },
                            else_branch = b3 () => (float[2] e3) { e3 = Cos(u) }
                        >
                    }
                >
            },
            else_branch = b () => (float[2] e) { e = Abs(x) }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"If": 1, "Exp": 1, "Neg": 1, "Mul": 1, "Abs": 1}
    assert_equal(model, result, BOTH)


def test_a_condition_that_follows_from_shapes_is_known() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <int64 two = {2}, int64 zero = {0}> {
        shape = Shape(x)
        size = Gather(shape, zero)
        c = Equal(size, two)
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Exp(x) },
            else_branch = b () => (float[2] e) { e = Log(x) }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) in ({"Exp": 1}, {**operators(model)})  # as far as inference follows booleans
    assert_equal(model, result, [X])


def test_conditions_a_caller_decides_stay() -> None:
    overridable = model_of("""g (float[2] x, bool c = {1}) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Exp(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""")
    result = run(overridable, pruning)
    assert operators(result)["If"] == 1
    assert_equal(overridable, result, [X, *BOTH])
    by_attribute = model_of(
        """g (float[2] x) => (float[2] y, float[2] z) { y = local.F<flag = 1>(x) z = local.F<flag = 0>(x) }
        <domain: "local", opset_import: ["" : 18]> F <flag> (a) => (b) {
            n = Constant<value_int : int = @flag>()
            c = Cast<to = 9>(n)
            b = If (c) <
                then_branch = p () => (float[2] t) { t = Exp(a) },
                else_branch = q () => (float[2] e) { e = Neg(a) }
            >
        }""",
        imports='"local" : 1',
    )
    result = run(by_attribute, pruning)
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "Cast", "If"]
    assert_equal(by_attribute, result, [X])


def test_in_functions_and_loops_too() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) <int64 m = {3}> {
            z = Loop (m, "", x) <
                body = b (int64 i, bool go, float[2] s) => (bool again, float[2] r) <bool no = {0}> {
                    again = Identity(go)
                    r = If (no) <
                        then_branch = p () => (float[2] t) { t = Exp(s) },
                        else_branch = q () => (float[2] e) { e = Sub(s, x) }
                    >
                }
            >
            y = local.F(z)
        }
        <domain: "local", opset_import: ["" : 18]> F (a) => (b) {
            c = Constant<value = bool {1}>()
            b = If (c) <
                then_branch = p () => (float[2] t) <float[2] w = {1.0, 2.0}> { t = Mul(a, w) },
                else_branch = q () => (float[2] e) { e = Neg(a) }
            >
        }""",
        imports='"local" : 1',
    )
    result = run(model, pruning)
    assert operators(result) == {"Loop": 1, "Identity": 1, "Sub": 1, "F": 1}
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "Mul"]
    assert_equal(model, result, [X])


def test_what_the_file_says_of_inlined_nodes_comes_along() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <bool yes = {1}> {
        y = If (yes) <
            then_branch = a () => (float[2] t) { [first] r = Relu(x) [second] t = Neg(r) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""")
    branch = model.graph.node[0].attribute[0].g
    branch.node[0].doc_string = "from layer 3"
    branch.node[0].metadata_props.add(key="scope", value="encoder")
    result = run(model, pruning)
    assert [node.name for node in result.graph.node] == ["first", "second"]
    assert result.graph.node[0].doc_string == "from layer 3"
    assert result.graph.node[0].metadata_props[0].value == "encoder"


def test_sparse_data_comes_along() -> None:
    model = model_of("""g (float[2, 2] x) => (float[2, 2] y) <bool yes = {1}> {
        y = If (yes) <
            then_branch = a () => (float[2, 2] t) { t = Add(x, x) },
            else_branch = b () => (float[2, 2] e) { e = Neg(x) }
        >
    }""")
    branch = model.graph.node[0].attribute[0].g
    values = numpy_helper.from_array(np.array([5.0], np.float32), "w")
    branch.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3], np.int64), "w_at"), [2, 2])
    )
    branch.node[0].input[1] = "w"
    result = run(model, pruning)
    assert operators(result) == {"Add": 1}
    assert result.graph.sparse_initializer[0] == branch.sparse_initializer[0]
    assert_equal(model, result, [{"x": floats(2, 2)}])


def test_a_branch_with_a_kept_name_stays_where_it_is() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <bool yes = {1}> {
        y = If (yes) <
            then_branch = a () => (float[2] t) { inner = Relu(x) t = Neg(inner) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }""")
    assert operators(run(model, pruning, keep=("inner",)))["If"] == 1


def test_before_ir_4_what_was_inside_needs_no_listing() -> None:
    bool_info = helper.make_tensor_value_info("yes", TensorProto.BOOL, [])
    x, y, t, e = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyte")
    w = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.array([1, 2], np.float32)))
    then = helper.make_graph([w, helper.make_node("Mul", ["x", "w"], ["t"])], "a", [], [t])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "b", [], [e])
    node = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other)
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = helper.make_graph([node], "g", [x, bool_info], [y], [yes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    result = run(model, pruning)
    assert operators(result) == {"Mul": 1}
    assert [value.name for value in result.graph.input] == ["x"]
    assert_equal(model, result, [X])


# --- Loop


PLAIN = "again = Identity(go) r = Mul(s, x) e = Neg(s)"


def _loop(operands: str, body: str = PLAIN, declared: str = "<int64 m = {1}>", **rest: Any) -> ModelProto:
    return model_of(
        f"""g (float[2] x, bool c) => (float[2] y, float[n, 2] stack) {declared} {{
            y, stack = Loop ({operands}) <
                body = b (int64 i, bool go, float[2] s) => (bool again, float[2] r, float[2] e) {{ {body} }}
            >
        }}""",
        **rest,
    )


def test_one_trip_is_the_body() -> None:
    model = _loop('m, "", x')
    result = run(model, pruning)
    assert operators(result) == {"Mul": 1, "Neg": 1, "Unsqueeze": 1}
    assert_equal(model, result, BOTH)


def test_one_trip_before_axes_were_an_operand() -> None:
    model = _loop('m, "", x', opset=11)
    result = run(model, pruning)
    assert operators(result) == {"Mul": 1, "Neg": 1, "Unsqueeze": 1}
    assert_equal(model, result, BOTH)


def test_a_body_that_never_goes_on_runs_once() -> None:
    body = "again = Constant<value = bool {0}>() r = Mul(s, x) e = Neg(s)"
    for operands, declared in (('"", yes, x', "<bool yes = {1}>"), ('m, "", x', "<int64 m = {7}>"), ('"", "", x', "")):
        model = _loop(operands, body, declared)
        result = run(model, pruning)
        assert "Loop" not in operators(result)
        assert_equal(model, result, BOTH)


def test_the_iteration_and_the_condition_become_constants() -> None:
    body = "f = Cast<to = 1>(i) g = Cast<to = 1>(go) h = Add(s, f) r = Add(h, g) e = Add(r, f) again = Not(go)"
    model = _loop('m, "", x', body)
    result = run(model, pruning)
    assert "Loop" not in operators(result)
    assert_equal(model, result, BOTH)


def test_state_that_is_handed_through_is_the_operand() -> None:
    model = _loop('m, "", x', "again = Identity(go) r = Identity(s) e = Exp(x)")
    handed = ModelProto.FromString(model.SerializeToString())
    body = handed.graph.node[0].attribute[0].g
    body.output[1].name = "s"
    for version in (model, handed):
        result = run(version, pruning)
        assert "Loop" not in operators(result)
        assert_equal(version, result, BOTH)


def test_a_nested_body_that_reads_the_iteration_is_inlined_with_it() -> None:
    body = """
        again = Identity(go)
        e = Neg(s)
        r = If (c) <
            then_branch = p () => (float[2] t) { f = Cast<to = 1>(i) t = Add(s, f) },
            else_branch = q () => (float[2] u) { u = Mul(s, x) }
        >"""
    model = _loop('m, "", x', body)
    result = run(model, pruning)
    assert operators(result) == {"Neg": 1, "If": 1, "Cast": 1, "Add": 1, "Mul": 1, "Unsqueeze": 1}
    assert_equal(model, result, BOTH)


@pytest.mark.parametrize(
    ("operands", "declared"),
    [('m, "", x', "<int64 m = {0}>"), ('m, "", x', "<int64[1] m = {-3}>"), ('"", no, x', "<bool no = {0}>")],
)
def test_no_trip_is_the_initial_state(operands: str, declared: str) -> None:
    model = _loop(operands, declared=declared)
    assert operators(run(model, pruning))["Loop"] == 1  # the shape of an empty stack is the runtime's affair
    del model.graph.output[1]
    result = run(model, pruning)
    assert operators(result) == {"Identity": 1}
    assert_equal(model, result, BOTH)


@pytest.mark.parametrize(
    ("operands", "declared"),
    [("m, c, x", "<int64 m = {1}>"), ('m, "", x', "<int64 m = {2}>"), ('"", c, x', "")],
)
def test_loops_that_may_run_otherwise_stay(operands: str, declared: str) -> None:
    body = "again = Constant<value = bool {0}>() r = Mul(s, x) e = Neg(s)"
    model = _loop(operands, PLAIN if "m" in operands else body, declared)
    result = run(model, pruning)
    assert operators(result)["Loop"] == 1
    assert_equal(model, result, BOTH)


def test_a_loop_in_a_branch_is_inlined_there() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) <int64 m = {1}> {
        u = Exp(x)
        y = If (c) <
            then_branch = a () => (float[2] t) {
                t = Loop (m, "", u) <
                    body = b (int64 i, bool go, float[2] s) => (bool again, float[2] r) {
                        again = Identity(go)
                        r = Mul(s, x)
                    }
                >
            },
            else_branch = d () => (float[2] r) { r = Neg(u) }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"Exp": 1, "If": 1, "Mul": 1, "Neg": 1}
    assert_equal(model, result, BOTH)
