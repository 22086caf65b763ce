from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators, run

import passes.pruning as pruning

X = {"x": floats(2)}
BOTH = [{**X, "c": np.array(flag)} for flag in (True, False)]


def _body(model: ModelProto, op_type: str) -> GraphProto:
    node = next(node for node in nodes_of(model.graph) if node.op_type == op_type)
    return node.attribute[0].g


def _names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


# --- If


def test_unread_results_of_an_if_go_from_both_branches() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y, int64[1] n) {
        u = Exp(x)
        p, y, q, n = If (c) <
            then_branch = a () => (int64[1] t1, float[2] t2, float t3, int64[1] t4) {
                t1 = Shape(x) t2 = Neg(u) t3 = ReduceSum<keepdims = 0>(u) t4 = Size(u)
            },
            else_branch = b () => (int64[1] e1, float[2] e2, float e3, int64[1] e4) {
                e1 = Shape(u) e2 = Abs(x) e3 = ReduceMax<keepdims = 0>(x) e4 = Shape(x)
            }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"Exp": 1, "If": 1, "Neg": 1, "Size": 1, "Abs": 1, "Shape": 1}
    node = next(node for node in result.graph.node if node.op_type == "If")
    assert list(node.output) == ["y", "n"]
    assert [_names(attribute.g.output) for attribute in node.attribute] == [["t2", "t4"], ["e2", "e4"]]
    # Each output keeps the type declared for it, not that of its new place.
    assert [value.type.tensor_type.elem_type for value in node.attribute[1].g.output] == [1, 7]
    assert_equal(model, result, BOTH)


def test_a_dropped_result_empties_the_nest_below() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        y, gone = If (c) <
            then_branch = a () => (float[2] t, float[2] t2) {
                t, t2 = If (c) <
                    then_branch = p () => (float[2] v, float[2] v2) { v = Exp(x) v2 = Log(x) },
                    else_branch = q () => (float[2] w, float[2] w2) { w = Sin(x) w2 = Cos(x) }
                >
            },
            else_branch = b () => (float[2] e, float[2] e2) { e = Abs(x) e2 = Sqrt(x) }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"If": 1, "Exp": 1, "Abs": 1}  # the inner condition is the outer one
    assert_equal(model, result, BOTH)


def test_a_kept_result_stays() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        y, kept = If (c) <
            then_branch = a () => (float[2] t, float[2] t2) { t = Exp(x) t2 = Log(x) },
            else_branch = b () => (float[2] e, float[2] e2) { e = Abs(x) e2 = Sqrt(x) }
        >
    }""")
    result = run(model, pruning, keep=("kept",))
    assert list(result.graph.node[0].output) == ["y", "kept"]


# --- Loop


def test_unread_stacks_and_idle_state_go() -> None:
    model = model_of("""g (float[2] x) => (float[2] y, float[n, 2] stack) <int64 m = {3}, float zero = {0.0}> {
        idle, y, also_idle, unread, stack = Loop (m, "", zero, x, x) <
            body = b (int64 i, bool go, float p, float[2] s, float[2] q)
                => (bool again, float p2, float[2] r, float[2] q2, float[2] e1, float[2] e2) {
                again = Identity(go)
                one = Constant<value = float {1.0}>()
                p2 = Add(p, one)
                r = Mul(s, x)
                q2 = Add(q, p)
                e1 = Exp(q2)
                e2 = Neg(s)
            }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"Loop": 1, "Identity": 1, "Mul": 1, "Neg": 1}
    node = result.graph.node[0]
    assert list(node.output) == ["y", "stack"]
    assert list(node.input) == ["m", "", "x"]
    body = _body(result, "Loop")
    assert _names(body.input) == ["i", "go", "s"]
    assert _names(body.output) == ["again", "r", "e2"]
    assert [len(value.type.tensor_type.shape.dim) for value in body.output] == [0, 1, 1]
    assert [tensor.name for tensor in result.graph.initializer] == ["m"]
    assert_equal(model, result, [X])


def test_state_that_matters_in_a_roundabout_way_stays() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) <int64 m = {4}, float zero = {0.0}, bool yes = {1}> {
        a1, b1, y = Loop (m, yes, zero, zero, x) <
            body = b (int64 i, bool go, float p, float q, float[2] s) => (bool again, float p2, float q2, float[2] r) {
                limit = Constant<value = float {2.5}>()
                p2 = Add(q, limit)
                q2 = Identity(p)
                again = Less(q, limit)
                r = If (c) <
                    then_branch = t () => (float[2] t1) { t1 = Add(s, x) },
                    else_branch = e () => (float[2] e1) { e1 = Mul(s, x) }
                >
            }
        >
    }""")
    result = run(model, pruning)
    assert list(result.graph.node[0].output) == ["a1", "b1", "y"]
    assert_equal(model, result, BOTH)


def test_state_read_only_by_a_nested_body_stays() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) <int64 m = {3}> {
        inner, y = Loop (m, "", x, x) <
            body = b (int64 i, bool go, float[2] p, float[2] s) => (bool again, float[2] p2, float[2] r) {
                again = Identity(go)
                p2 = Neg(p)
                r = If (c) <
                    then_branch = t () => (float[2] t1) { t1 = Add(s, p) },
                    else_branch = e () => (float[2] e1) { e1 = Mul(s, x) }
                >
            }
        >
    }""")
    result = run(model, pruning)
    assert list(result.graph.node[0].output) == ["inner", "y"]
    assert_equal(model, result, BOTH)


def test_state_that_is_read_but_never_looked_at_stays() -> None:
    model = model_of("""g (float[2] x) => (float[2] y) <int64 m = {3}> {
        y, gone = Loop (m, "", x, x) <
            body = b (int64 i, bool go, float[2] s, float[2] q) => (bool again, float[2] r, float[2] q2) {
                again = Identity(go)
                f = Cast<to = 1>(i)
                r = Add(x, f)
                q2 = Add(q, r)
            }
        >
    }""")
    result = run(model, pruning)
    assert operators(result) == {"Loop": 1, "Identity": 1, "Cast": 1, "Add": 1}
    assert list(result.graph.node[0].input) == ["m", "", "x"]
    assert_equal(model, result, [X])


def test_state_of_an_unknown_operator_stays() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) <int64 m = {3}> {
            y, count = Loop (m, "", x, x) <
                body = b (int64 i, bool go, float[2] s, float[2] q) => (bool again, float[2] r, float[2] q2) {
                    again = Identity(go)
                    r = Neg(s)
                    log = vendor.Print(q)
                    q2 = Exp(q)
                }
            >
        }""",
        imports='"vendor" : 1',
    )
    result = run(model, pruning)
    assert list(result.graph.node[0].output) == ["y", "count"]
    assert operators(result)["Print"] == 1


# --- Scan


def _scan() -> ModelProto:
    body = model_of("""b (float[2] p, float[2] s, float[2] v) =>
        (float[2] p2, float[2] r, float[2] o1, float[2] o2, float[2] o3) {
            p2 = Add(p, v)
            r = Mul(s, v)
            o1 = Exp(p2)
            o2 = Neg(s)
            o3 = Add(s, v)
        }""").graph
    model = model_of("""g (float[2] x, float[3, 2] xs) => (float[2] y, float[2, 3] stack, float[3, 2] other) {
        y = Identity(x)
        stack = Transpose(xs)
        other = Identity(xs)
    }""")
    scan = helper.make_node(
        "Scan",
        ["x", "x", "xs"],
        ["idle", "y", "unread", "stack", "other"],
        body=body,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_axes=[0, 1, 0],
        scan_output_directions=[0, 0, 1],
    )
    del model.graph.node[:]
    model.graph.node.append(scan)
    return model


def test_a_scan_loses_unread_outputs_with_their_axes() -> None:
    model = _scan()
    result = run(model, pruning)
    assert operators(result) == {"Scan": 1, "Mul": 1, "Neg": 1, "Add": 1}
    node = result.graph.node[0]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute if item.name != "body"}
    assert attributes == {
        "num_scan_inputs": 1,
        "scan_input_directions": [1],
        "scan_output_axes": [1, 0],
        "scan_output_directions": [0, 1],
    }
    assert list(node.input) == ["x", "xs"]
    assert_equal(model, result, [{**X, "xs": floats(3, 2, seed=1)}])
