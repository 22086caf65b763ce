from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from pass_runs import assert_equal, floats, model_of, nodes_of, operators, run

import passes.constant_folding as folding
import passes.identities as identities
import passes.loops as loops
import passes.pruning as pruning
from graphopt import load, to_proto
from graphopt.analysis.inference import Inference
from graphopt.pipeline import Context, MetaOptimizer, Registry, Selection
from graphopt.pipeline.passes import pass_of_module

ALL = (pruning, identities, loops)
X = {"x": floats(2), "z": floats(2, seed=1)}
STARTS = [{**X, "go": np.array(flag)} for flag in (True, False)]


def _loop(
    lines: str,
    *,
    states: str = "",
    results: str = "",
    trips: str = "three",
    start: str = "go",
    returned: str = "",
    inputs: str = "float[2] x, float[2] z, bool go",
    outputs: str = "float[2] y",
    initial: str = "",
    after: str = "",
) -> ModelProto:
    """A Loop whose body has the state `s` and returns `r`; `states`, `results` and `returned` add more."""
    return model_of(
        f"""g ({inputs}) => ({outputs}) <int64 three = {{3}}, int64 two = {{2}}, int64 none = {{0}}> {{
            y{results} = Loop ({trips}, {start}, x{initial}) <
                body = b (int64 i, bool c, float[2] s{states}) => (bool again, float[2] r{returned}) {{
                    again = Identity(c)
                    {lines}
                }}
            >
            {after}
        }}"""
    )


def _inside(model: ModelProto) -> list[str]:
    """The operators of the only loop's body."""
    (node,) = [node for node in model.graph.node if node.op_type in ("Loop", "Scan")]
    body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    return sorted(inner.op_type for inner in nodes_of(body) if inner.op_type != "Constant")


def _aggressive(model: ModelProto) -> ModelProto:
    graph = load(model)
    passes = [pass_of_module(module, module.__name__.rsplit(".", 1)[-1]) for module in ALL]
    MetaOptimizer(Registry(passes), Selection(strict=True, aggressive=("loops",))).run(
        graph.model, Context(Inference(graph.model))
    )
    return to_proto(graph)


# --- work that does not change


def test_work_moves_out_of_nested_loops_in_one_go() -> None:
    model = _loop(
        """r = Loop (two, go, s) <
            body = b2 (int64 j, bool c2, float[2] s2) => (bool again2, float[2] r2) {
                again2 = Identity(c2)
                n = Neg(z)
                m = Add(n, s)
                e = Exp(m)
                r2 = Mul(s2, e)
            }
        >"""
    )
    result = run(model, *ALL)
    outer = [node.op_type for node in result.graph.node]
    assert outer == ["Neg", "Loop"]
    assert _inside(result) == ["Add", "Exp", "Loop", "Mul"]
    assert_equal(model, result, STARTS)


def test_what_may_fail_leaves_only_a_loop_that_surely_runs() -> None:
    lines = "p = Mul(u, w) q = ReduceMax<keepdims = 0>(p) r = Add(s, q)"
    inputs = "float[2] x, float[n] u, float[k] w, bool go"
    feeds = {"x": X["x"], "go": np.array(False), "u": floats(2), "w": floats(3)}
    doubtful = _loop(lines, inputs=inputs)
    assert _inside(run(doubtful, *ALL)) == ["Add", "Mul", "ReduceMax"]
    assert_equal(doubtful, run(doubtful, *ALL), [feeds])
    certain = _loop(lines, inputs=inputs, start='""')
    assert _inside(run(certain, *ALL)) == ["Add"]
    assert_equal(certain, run(certain, *ALL), [{**feeds, "w": floats(2)}])


def test_the_trip_count_may_be_a_size() -> None:
    lines = "p = Mul(u, u) q = ReduceMax<keepdims = 0>(p) r = Add(s, q)"
    for size, inside in (("9", ["Add"]), ("n", ["Add", "ReduceMax"])):
        model = model_of(
            f"""g (float[2] x, float[{size}, 2] u) => (float[2] y) <int64 zero = {{0}}> {{
                shape = Shape(u) trips = Gather(shape, zero)
                y = Loop (trips, "", x) <
                    body = b (int64 i, bool c, float[2] s) => (bool again, float[2] r) {{ again = Identity(c) {lines} }}
                >
            }}"""
        )
        result = run(model, *ALL)
        assert _inside(result) == inside
        assert_equal(model, result, [{"x": X["x"], "u": floats(9, 2)}])


def test_what_the_body_returns_and_what_is_random_stays_inside() -> None:
    lines = "n = Neg(z) q = RandomNormalLike(z) t = Add(s, q) r = Add(t, n)"
    model = _loop(lines, returned=", float[2] n", results=", stack", outputs="float[2] y, float[k, 2] stack")
    assert _inside(run(model, *ALL)) == ["Add", "Add", "Neg", "RandomNormalLike"]


def test_constants_come_along() -> None:
    model = _loop("k = Constant<value = float[2] {1, 2}>() n = Mul(z, k) r = Add(s, n)")
    result = run(model, *ALL, folding)
    assert _inside(result) == ["Add"]
    assert_equal(model, result, STARTS)


def test_what_is_kept_by_name_stays() -> None:
    assert _inside(run(_loop("n = Neg(z) r = Add(s, n)"), *ALL, keep=["n"])) == ["Add", "Neg"]


# --- state


def test_state_that_is_handed_on_is_read_from_outside() -> None:
    model = _loop(
        "m = Add(n, s) r = Exp(m) same = Identity(n)",
        states=", float[2] n",
        initial=", z",
        results=", last",
        returned=", float[2] same",
        after="w = Neg(last)",
        outputs="float[2] y, float[2] w",
    )
    result = run(model, *ALL)
    (node,) = [node for node in result.graph.node if node.op_type == "Loop"]
    assert list(node.input) == ["three", "go", "x"]
    assert next(node for node in result.graph.node if node.op_type == "Neg").input[0] == "z"
    assert_equal(model, result, STARTS)


def test_sequences_are_state_too() -> None:
    model = model_of(
        """g (float[2] x, float[2] z) => (float[2] y) <int64 three = {3}, int64 zero = {0}> {
            items = SequenceConstruct(x, z)
            y, last = Loop (three, "", x, items) <
                body = b (int64 i, bool c, float[2] s, seq(float[2]) q)
                    => (bool again, float[2] r, seq(float[2]) same) {
                    again = Identity(c)
                    item = SequenceAt(q, zero)
                    r = Add(s, item)
                    same = Identity(q)
                }
            >
        }"""
    )
    result = run(model, *ALL)
    assert _inside(result) == ["Add"]
    assert_equal(model, result, [X])


def test_swapped_states_stay() -> None:
    model = _loop(
        "r = Identity(n) t = Identity(s)",
        states=", float[2] n",
        initial=", z",
        results=", w",
        returned=", float[2] t",
        outputs="float[2] y, float[2] w",
    )
    result = run(model, *ALL)
    assert "Loop" in operators(result)
    assert_equal(model, result, STARTS)


# --- unrolling


COUNTED = "f = Cast<to = 1>(i) g = Exp(f) h = Mul(g, f) k = Add(h, g) r = Mul(s, k)"


@pytest.mark.parametrize("trips", ["two", "three"])
def test_few_trips_whose_work_is_constant_are_unrolled(trips: str) -> None:
    model = _loop(COUNTED, trips=trips, start='""')
    result = run(model, *ALL, folding)
    assert "Loop" not in operators(result)
    assert_equal(model, result, STARTS)


def test_more_work_is_unrolled_if_asked_for() -> None:
    lines = "p = Exp(s) q = Neg(p) r = Relu(q)"
    model = _loop(
        lines, start='""', returned=", float[2] p", results=", stack", outputs="float[2] y, float[k, 2] stack"
    )
    assert "Loop" in operators(run(model, *ALL))
    result = _aggressive(model)
    assert operators(result) == {"Exp": 3, "Neg": 3, "Relu": 3, "Unsqueeze": 3, "Concat": 1}
    assert [value.name for value in result.graph.output] == ["y", "stack"]
    assert_equal(model, result, STARTS)


def test_a_loop_that_may_end_early_stays() -> None:
    model = _loop(COUNTED)
    assert "Loop" in operators(_aggressive(model))


# --- Scan


def _scan(attributes: str, body: str, operands: str, inputs: str, outputs: str = "float[2] y") -> ModelProto:
    names = ", ".join(part.split()[-1] for part in outputs.split(", float"))
    return model_of(f"g ({inputs}) => ({outputs}) {{ {names} = Scan <{attributes}, body = b {body}> ({operands}) }}")


def test_scans_drop_what_their_body_does_not_read() -> None:
    model = _scan(
        "num_scan_inputs = 3, scan_input_axes = [1, 0, 1], scan_input_directions = [1, 0, 1]",
        "(float[2] s, float[2] a, float[2] b, float[2] c) => (float[2] r) { d = Mul(a, c) r = Add(s, d) }",
        "x, p, q, p",
        "float[2] x, float[2, 3] p, float[3, 2] q",
    )
    result = run(model, *ALL)
    (node,) = result.graph.node
    assert list(node.input) == ["x", "p"]
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute if item.name != "body"}
    assert attributes == {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [1]}
    assert_equal(model, result, [{"x": X["x"], "p": floats(2, 3), "q": floats(3, 2)}])


def test_work_leaves_a_scan_even_if_it_may_fail() -> None:
    model = _scan(
        "num_scan_inputs = 1",
        "(float[2] s, float[2] a) => (float[2] r) { m = ReduceMax<keepdims = 0>(u) t = Add(a, m) r = Add(s, t) }",
        "x, p",
        "float[2] x, float[n, 2] p, float[k] u",
    )
    result = run(model, *ALL)
    assert _inside(result) == ["Add", "Add"]
    assert_equal(model, result, [{"x": X["x"], "p": floats(3, 2), "u": floats(4)}])


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (-1, 0)])
def test_a_scan_of_one_step_is_its_body(axes: tuple[int, int]) -> None:
    shapes = ["1, 2" if axis == 0 else "2, 1" for axis in axes]
    model = _scan(
        f"num_scan_inputs = 1, scan_input_axes = [{axes[0]}], scan_output_axes = [{axes[1]}]",
        "(float[2] s, float[2] a) => (float[2] r, float[2] e) { r = Add(s, a) e = Exp(r) }",
        "x, p",
        f"float[2] x, float[{shapes[0]}] p",
        f"float[2] y, float[{shapes[1]}] stack".replace(", float", ", float"),
    )
    feeds: list[dict[str, Any]] = [{"x": X["x"], "p": floats(*map(int, shapes[0].split(", ")))}]
    assert "Scan" in operators(run(model, *ALL))  # what takes it apart and puts it together is more
    result = _aggressive(model)
    assert operators(result) == {"Squeeze": 1, "Add": 1, "Exp": 1, "Unsqueeze": 1}
    assert_equal(model, result, feeds)
