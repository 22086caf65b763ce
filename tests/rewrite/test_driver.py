"""The driver: fixed points, waking, names, and rules that misbehave."""

from __future__ import annotations

import pytest

from graphopt import Builder, Graph, Match, Miss, Value, attr, load, op, rule, var
from graphopt.analysis.inference import Inference
from graphopt.errors import DidNotConvergeError, RuleError
from graphopt.ir import check_graph
from graphopt.onnxio import parse_text, to_proto
from graphopt.rewrite import Driver, Rule

x, y, p, q = var("x"), var("y"), attr("perm"), attr("perm")
_BEFORE = "(float[2] x) => (float[2] y) { y = Relu(x) }"


@rule(op.Transpose(op.Transpose(x, perm=p), perm=q), before=_BEFORE, after=_BEFORE)
def merge(m: Match, b: Builder) -> Value:
    """Two transposes are one."""
    return b.Transpose(m[x], perm=[m[p][i] for i in m[q]])


@rule(op.Neg(op.Neg(x)), before=_BEFORE, after=_BEFORE)
def cancel(m: Match, b: Builder) -> Value:
    """Two negations cancel."""
    return m[x]


def graph_of(text: str) -> Graph:
    return load(parse_text(text, {"": 21}))


def run(graph: Graph, *rules: Rule) -> int:
    inference = Inference(graph.model)
    inference.run()
    fired = Driver("test", rules, inference).run(graph)
    check_graph(graph)
    return fired


def test_a_long_chain_reaches_its_fixed_point() -> None:
    steps = "".join(f"t{i + 1} = Neg(t{i}) " for i in range(1000))
    graph = graph_of(f"(float[2] t0) => (float[2] t1000) {{ {steps} }}")
    assert run(graph, cancel) == 500
    assert graph.nodes() == []


def test_the_result_keeps_the_name_of_what_it_replaces() -> None:
    graph = graph_of(
        "(float[2,3,4] x) => (float[3,4,2] z) { [first] a = Transpose<perm=[1,2,0]>(x)"
        " [second] b = Transpose<perm=[2,1,0]>(a) [last] z = Abs(b) }"
    )
    assert run(graph, merge) == 1
    fused = graph.of_kind("Transpose")[0]
    assert fused.name == "second"
    assert fused.result.name == "b"
    assert fused.param("perm") == (0, 2, 1)


def test_an_erased_user_wakes_the_one_that_is_left() -> None:
    graph = graph_of("(float[2] x) => (float[2] z) { a = Neg(x) z = Neg(a) dead = Abs(a) }")
    inference = Inference(graph.model)
    inference.run()

    @rule(op.Abs(x), before=_BEFORE, after=_BEFORE)
    def drop(m: Match, b: Builder) -> Value | Miss:
        """Abs goes, for the sake of the test."""
        return m[x] if m.root.results[0].name == "dead" else b.no("only the dead one")

    assert Driver("test", [cancel, drop], inference).run(graph) == 2
    assert graph.nodes() == []


def test_rules_that_feed_each_other_are_stopped_and_named() -> None:
    @rule(op.Abs(x), before=_BEFORE, after=_BEFORE)
    def to_neg(m: Match, b: Builder) -> Value:
        """Abs becomes Neg."""
        return b.Neg(m[x])

    @rule(op.Neg(x), before=_BEFORE, after=_BEFORE)
    def to_abs(m: Match, b: Builder) -> Value:
        """Neg becomes Abs."""
        return b.Abs(m[x])

    with pytest.raises(DidNotConvergeError, match=r"to_neg.*to_abs|to_abs.*to_neg"):
        run(graph_of("(float[2] x) => (float[2] y) { y = Abs(x) }"), to_neg, to_abs)


def test_a_replacement_of_another_type_is_refused() -> None:
    misses: list[str] = []

    @rule(op.Cast(x, to=attr("to")), before=_BEFORE, after=_BEFORE)
    def forget_the_type(m: Match, b: Builder) -> Value:
        """A wrong rule."""
        return m[x]

    graph = graph_of("(float[2] x) => (double[2] y) { y = Cast<to=11>(x) }")
    inference = Inference(graph.model)
    inference.run()
    driver = Driver("test", [forget_the_type], inference, lambda item, node, miss: misses.append(miss.reason))
    assert driver.run(graph) == 0
    assert misses == ["the replacement is float[2], not double[2]"]


def test_a_rule_that_returns_nothing_is_an_error_that_names_it() -> None:
    @rule(op.Abs(x), before=_BEFORE, after=_BEFORE)
    def forgetful(m: Match, b: Builder) -> None:
        """A rule without a return."""

    with pytest.raises(RuleError, match="forgetful"):
        run(graph_of("(float[2] x) => (float[2] y) { y = Abs(x) }"), forgetful)


def test_a_rule_without_docstring_or_class_is_refused() -> None:
    with pytest.raises(RuleError, match="docstring"):
        rule(op.Abs(x), before=_BEFORE, after=_BEFORE)(lambda m, b: m[x])
    with pytest.raises(RuleError, match="numeric class"):

        @rule(op.Abs(x), before=_BEFORE, after=_BEFORE, numeric="Q")
        def documented(m: Match, b: Builder) -> Value:
            """A rule."""
            return m[x]


def test_two_outputs_may_end_as_one_value() -> None:
    graph = graph_of("(float[2] x) => (float[2] x2, float[2] y) { a = Neg(x) x2 = Neg(a) b = Neg(x) y = Neg(b) }")
    assert run(graph, cancel) == 2
    names = [(node.op_type, list(node.input), list(node.output)) for node in to_proto(graph).graph.node]
    assert names == [("Identity", ["x"], ["x2"]), ("Identity", ["x"], ["y"])]


def test_the_builder_writes_the_spelling_of_the_opset() -> None:
    for opset, operands in ((11, 1), (13, 2)):
        graph = load(parse_text("(float[2,1] x) => (float[2] y) { y = Relu(x) }", {"": opset}))
        builder = Builder(graph, Inference(graph.model))
        node = builder.Squeeze(graph.inputs[0], axes=[1]).producer
        assert len(node.operands) == operands
        assert node.op_type == "Squeeze"
        assert ("axes" in node.attributes) is (operands == 1)
