"""The judge, tried on rules planted for it: five that are wrong, five that are right although bits move on the way."""

from __future__ import annotations

import types

import pytest

from graphopt import Builder, Context, Graph, Match, Miss, Value, attr, const, graph_pass, op, rule, var
from graphopt.pipeline.passes import Item, Pass
from graphopt.rewrite import NumericClass
from graphopt.runtime.session import CPU
from graphopt.testing import check_item
from graphopt.testing.pytest_support import failures_of, not_judged

x, y, w, v, c = var("x"), var("y"), const("w"), const("v"), const("c")
p, q = attr("perm"), attr("perm")
CUDA_ONLY = ("ort-cuda",)


def complaints(item: Item) -> list[str]:
    owner = Pass("planted", "For the test.", (item,), types.ModuleType("planted"))
    return [f"{report.name}: {report.reason}" for report in check_item(owner, item) if not report.ok]


# --- wrong


@rule(
    op.Max(op.Sqrt(x)),
    before="(float[8] x) => (float[8] y) { s = Sqrt(x)  y = Max(s) }",
    after="(float[8] x) => (float[8] y) { y = Sqrt(x) }",
)
def right_but_drops_the_port(m: Match, b: Builder) -> Value:
    """A rule that reads the first result of whatever made its operand."""
    producer = m[x].producer
    return b.Sqrt(producer.results[0])  # type: ignore[no-any-return]


@rule(
    op.Mul(x, const(0)),
    before="(float[4] x) => (float[4] y) <float z = {0.0}> { y = Mul(x, z) }",
    after="(float[4] x) => (float[4] y) { y = Sub(x, x) }",
)
def zero_times_anything(m: Match, b: Builder) -> Value:
    """Zero times x is x minus x, which infinities and NaN refute only in sign and payload."""
    return b.Sub(m[x], m[x])  # type: ignore[no-any-return]


@rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q),
    before="(float[2,3,4] x) => (float[4,2,3] y) { t = Transpose<perm=[1,2,0]>(x)  y = Transpose<perm=[1,2,0]>(t) }",
    after="(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm=[2,0,1]>(x) }",
)
def composes_the_wrong_way(m: Match, b: Builder) -> Value | Miss:
    """Composes two permutations as if the second were the first; its own example cannot tell."""
    return b.Transpose(m[x], perm=[m[q][i] for i in m[p]])  # type: ignore[no-any-return]


@rule(
    op.Div(x, c),
    before="(float[64] x) => (float[64] y) <float c = {3.0}> { y = Div(x, c) }",
    after="(float[64] x) => (float[64] y) <float r = {0.333333343}> { y = Mul(x, r) }",
)
def reciprocal_as_exact(m: Match, b: Builder) -> Value:
    """Dividing by three is multiplying by a third, claimed exact."""
    return b.Mul(m[x], 1.0 / 3.0)  # type: ignore[no-any-return]


@graph_pass(
    before="(float[2,3] x) => (float[2,3] y) { n = Neg(x)  y = Neg(n) }",
    after="(float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
)
def forgets_other_readers(graph: Graph, context: Context) -> None:
    """Cancels two negations, and takes the inner one from everybody who reads it."""
    for node in graph.of_kind("Neg"):
        operand = node.operands[0]
        if operand is None or not operand.producer.is_op("Neg"):
            continue
        source = operand.producer.operands[0]
        assert source is not None
        with context.rewrite(graph):
            graph.replace_uses(node.result, source)
            graph.erase(node)
            graph.replace_uses(operand, source)
            graph.erase(operand.producer)


WRONG: list[Item] = [
    right_but_drops_the_port,
    zero_times_anything,
    composes_the_wrong_way,
    reciprocal_as_exact,
    forgets_other_readers,
]


@pytest.mark.parametrize("item", WRONG, ids=lambda item: item.name)
def test_wrong_rules_are_caught(item: Item) -> None:
    assert complaints(item)


# --- right, although bits move on the way


_WEIGHT = f"<float[64,8] w = {{{', '.join(['0.1'] * 512)}}}>"


@rule(
    op.MatMul(x, op.Identity(w)),
    before=f"(float[3,64] x) => (float[3,8] y) {_WEIGHT} {{ i = Identity(w)  y = MatMul(x, i) }}",
    after=f"(float[3,64] x) => (float[3,8] y) {_WEIGHT} {{ y = MatMul(x, w) }}",
)
def weight_behind_identity(m: Match, b: Builder) -> Value:
    """The weight becomes an initializer, which the runtime would pre-pack."""
    return b.MatMul(m[x], m[w])  # type: ignore[no-any-return]


@rule(
    op.Add(op.Add(x, w), v),
    before="(float[64] x) => (float[64] y) <float w = {0.1}, float v = {0.7}> { a = Add(x, w)  y = Add(a, v) }",
    after="(float[64] x) => (float[64] y) <float c = {0.8}> { y = Add(x, c) }",
    numeric="R",
)
def one_constant_for_two(m: Match, b: Builder) -> Value:
    """Two constants are added before they are added to x: a sum in another order."""
    import numpy as np

    total = m[w].const.numpy().astype(np.float64) + m[v].const.numpy().astype(np.float64)
    return b.Add(m[x], total.astype(np.float32))  # type: ignore[no-any-return]


@rule(
    op.Div(x, c),
    before="(float[64] x) => (float[64] y) <float c = {3.0}> { y = Div(x, c) }",
    after="(float[64] x) => (float[64] y) <float r = {0.333333343}> { y = Mul(x, r) }",
    numeric="U",
)
def reciprocal_within_ulps(m: Match, b: Builder) -> Value:
    """Dividing by three is multiplying by a third, within a few units in the last place."""
    return b.Mul(m[x], 1.0 / 3.0)  # type: ignore[no-any-return]


@rule(
    op.Add(x, const(0)),
    before="(float[4] x) => (float[4] y) <float z = {0.0}> { y = Add(x, z) }",
    after="(float[4] x) => (float[4] y) { y = Identity(x) }",
    numeric="Z",
)
def nothing_added(m: Match, b: Builder) -> Value | Miss:
    """Adding zero changes nothing but the sign of a zero."""
    same = m[x].shape is not None and m[x].shape == m.root.result.shape
    return m[x] if same and None not in m[x].shape else b.no("the shape may grow")  # type: ignore[no-any-return]


@rule(
    op.Relu(op.Transpose(x, perm=p)),
    before="(float[7,9] x) => (float[9,7] y) { t = Transpose<perm=[1,0]>(x)  y = Relu(t) }",
    after="(float[7,9] x) => (float[9,7] y) { r = Relu(x)  y = Transpose<perm=[1,0]>(r) }",
)
def relu_first(m: Match, b: Builder) -> Value:
    """Relu sees its numbers at other positions, which it does not care about."""
    return b.Transpose(b.Relu(m[x]), perm=m[p])  # type: ignore[no-any-return]


RIGHT: list[Item] = [weight_behind_identity, one_constant_for_two, reciprocal_within_ulps, nothing_added, relu_first]


@pytest.mark.parametrize("item", RIGHT, ids=lambda item: item.name)
def test_right_rules_raise_no_alarm(item: Item) -> None:
    assert complaints(item) == []


# --- what nobody can judge here


@rule(
    op.Add(op.Add(x, w), y),
    before="""(float[1,4,320] x, float[1,4,320] s) => (float[1,4,320] y) <float[320] w>
              { a = Add(x, w)  y = Add(a, s) }""".replace("w>", f"w = {{{', '.join(['0.5'] * 320)}}}>"),
    after="""(float[1,4,320] x, float[1,4,320] s) => (float[1,4,320] y) <float[320] w>
             { y = com.microsoft.BiasAdd(x, w, s) }""".replace("w>", f"w = {{{', '.join(['0.5'] * 320)}}}>"),
    numeric="R",
)
def for_the_other_provider(m: Match, b: Builder) -> Value | Miss:
    """Two sums as an operator that the CPU has no kernel of."""
    is_known = m[x].shape == m[y].shape == (1, 4, 320) and m[w].shape == (320,)
    return b.microsoft.BiasAdd(m[x], m[w], m[y]) if is_known else b.no("other shapes")


def test_what_another_provider_has_is_not_judged_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.runtime.session.starts", lambda provider: provider == CPU)
    owner = Pass("planted", "For the test.", (for_the_other_provider,), types.ModuleType("planted"), targets=CUDA_ONLY)
    reports = list(check_item(owner, for_the_other_provider))
    assert failures_of(reports) == []
    assert all(report.not_judged for report in reports if report.fired)
    assert "does not start here" in not_judged(reports)


def test_what_the_cpu_has_no_kernel_of_is_wrong_there() -> None:
    assert any("does not load" in complaint for complaint in complaints(for_the_other_provider))


def test_what_is_judged_leaves_nothing_open() -> None:
    owner = Pass("planted", "For the test.", (relu_first,), types.ModuleType("planted"))
    assert not_judged(list(check_item(owner, relu_first))) == ""


def test_both_sides_of_a_class_are_covered() -> None:
    assert {item.numeric for item in RIGHT} >= {
        NumericClass.EXACT,
        NumericClass.ZERO,
        NumericClass.ULP,
        NumericClass.REASSOCIATED,
    }
