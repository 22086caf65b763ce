from __future__ import annotations

import numpy as np
from pass_runs import assert_equal, floats, model_of, nodes_of, run

import passes.naming as naming

X = {"x": floats(2)}


def test_every_node_gets_a_name_of_its_own() -> None:
    model = model_of("""g (float[2] x, bool c) => (float[2] y) {
        [Relu_0] a = Relu(x)
        b = Relu(a)
        [same] d = Neg(b)
        k = Constant<value = float[1] {1.0}>()
        f = Add(d, k)
        y = If (c) <
            then_branch = a_graph () => (float[2] t) { [same] t = Neg(f) },
            else_branch = b_graph () => (float[2] e) { e = Relu(f) }
        >
    }""")
    result = run(model, naming)
    names = [node.name for node in nodes_of(result.graph)]
    assert names == ["Relu_0", "Relu_1", "same", "Constant_0", "Add_0", "If_0", "same_1", "Relu_2"]
    assert_equal(model, result, [{**X, "c": np.array(True)}])
    assert run(model, naming) == result


def test_unique_names_are_left_alone_and_kept_ones_win() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { [n] a = Relu(x) [n] kept = Neg(a) [m] y = Exp(kept) }")
    assert [node.name for node in run(model, naming, keep=("kept",)).graph.node] == ["n_1", "n", "m"]


def test_functions_have_names_of_their_own() -> None:
    model = model_of(
        """g (float[2] x) => (float[2] y) { [Neg_0] a = Neg(x) y = local.F(a) }
        <domain: "local", opset_import: ["" : 18]> F (a) => (b) {
            k = Constant<value_float = 2.0>()
            n = Mul(a, k)
            b = Neg(n)
        }""",
        imports='"local" : 1',
    )
    result = run(model, naming)
    assert [node.name for node in result.functions[0].node] == ["Constant_0", "Mul_0", "Neg_0"]
    assert [node.name for node in result.graph.node] == ["Neg_0", "F_0"]
    assert_equal(model, result, [X])


def test_a_constant_that_only_gets_a_name_keeps_its_form() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { k = Constant<value_float = 2.0>() [m] y = Mul(x, k) }")
    model.graph.node[0].doc_string = "two"
    result = run(model, naming)
    model.graph.node[0].name = "Constant_0"
    model.graph.node[0].ClearField("domain")
    assert result == model
