"""The meta-optimizer: transactions, limits, selections, and what the report says."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from graphopt import Context, Graph, graph_pass, load
from graphopt.analysis.inference import Inference
from graphopt.errors import PassError, PluginError, UsageError
from graphopt.ir import check_model
from graphopt.onnxio import parse_text, to_proto
from graphopt.pipeline import GraphPass, MetaOptimizer, Options, Pass, Registry, Selection
from graphopt.records import OptimizeReport

_EXAMPLE = "(float[2] x) => (float[2] y) { y = Relu(x) }"
_CHAIN = "(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) c = Neg(b) y = Neg(c) }"


def pass_of(name: str, *functions: Callable[[Graph, Context], None], after: str = "", numeric: str = "E") -> Pass:
    items: tuple[GraphPass, ...] = tuple(
        graph_pass(before=_EXAMPLE, after=_EXAMPLE, numeric=numeric)(function) for function in functions
    )
    return Pass(name, "For the test.", items, types.ModuleType(name), after=after)


def run(
    text: str, *passes: Pass, keep: frozenset[str] = frozenset(), **selection: object
) -> tuple[Graph, OptimizeReport]:
    graph = load(parse_text(text, {"": 21}))
    pipeline = MetaOptimizer(Registry(passes), Selection(**selection))  # type: ignore[arg-type]
    report = pipeline.run(graph.model, Context(Inference(graph.model), Options(keep=keep)))
    check_model(graph.model)
    return graph, report


def skip_one(graph: Graph, context: Context) -> None:
    """Take the first Neg out, as one rewrite."""
    for node in graph.of_kind("Neg")[:1]:
        operand = node.operands[0]
        assert operand is not None
        context.replace(node.result, operand)


def fail_after_an_edit(graph: Graph, context: Context) -> None:
    """Edit, then raise."""
    skip_one(graph, context)
    raise ValueError("a fault of the pass")


def break_the_graph(graph: Graph, context: Context) -> None:
    """Build a node with too many operands."""
    node = graph.make_node("Neg", [graph.inputs[0], graph.inputs[0]])
    with context.rewrite(graph):
        graph.insert(node)


def test_sweeps_go_on_until_nothing_changes() -> None:
    graph, report = run(_CHAIN, pass_of("skip", skip_one))
    assert graph.nodes() == []
    assert report.converged
    assert report.sweeps == 5
    assert report.rewrites_by_rule == {"skip/skip_one": 4}
    assert [item.nodes_after for item in report.passes] == [3, 2, 1, 0, 0]


@pytest.mark.parametrize("fault", [fail_after_an_edit, break_the_graph])
def test_a_pass_that_fails_is_rolled_back_and_the_others_go_on(fault: Callable[[Graph, Context], None]) -> None:
    before = to_proto(load(parse_text(_CHAIN, {"": 21})))
    graph, report = run(_CHAIN, pass_of("faulty", fault))
    assert to_proto(graph) == before
    assert report.failures
    assert report.rewrites == ()
    graph, report = run(_CHAIN, pass_of("faulty", fault), pass_of("skip", skip_one))
    assert graph.nodes() == []


def test_a_failure_names_the_line_of_the_pass() -> None:
    _, report = run(_CHAIN, pass_of("faulty", fail_after_an_edit))
    line = fail_after_an_edit.__code__.co_firstlineno + 3
    assert report.failures[0].error == f"ValueError: a fault of the pass (test_meta.py, line {line})"


def test_strict_raises() -> None:
    with pytest.raises(PassError, match=r"a fault of the pass.*; --skip faulty leaves it out"):
        run(_CHAIN, pass_of("faulty", fail_after_an_edit), strict=True)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 9])
def test_stop_after_keeps_that_many_rewrites(limit: int) -> None:
    graph, report = run(_CHAIN, pass_of("skip", skip_one), stop_after=limit)
    assert len(graph.nodes()) == max(0, 4 - limit)
    assert [rewrite.number for rewrite in report.rewrites] == list(range(1, min(limit, 4) + 1))
    assert report.stopped_by == ("rewrite limit" if limit < 4 else "fixed point")


def test_a_deadline_keeps_the_last_finished_pass() -> None:
    graph, report = run(_CHAIN, pass_of("skip", skip_one), deadline=0.0)
    assert report.stopped_by == "deadline"
    assert len(graph.nodes()) == 4


def test_a_pass_may_take_itself_back() -> None:
    def try_it(graph: Graph, context: Context) -> None:
        """Edit, then think better of it."""
        skip_one(graph, context)
        context.take_back("it does not pay")

    graph, report = run(_CHAIN, pass_of("doubtful", try_it))
    assert len(graph.nodes()) == 4
    assert report.passes[0].status == "taken back: it does not pay"
    assert not report.failures


def test_passes_that_never_settle_are_told() -> None:
    def swing(graph: Graph, context: Context) -> None:
        """Neg and Abs take turns."""
        for node in graph.nodes()[:1]:
            builder = context.builder(graph)
            other = builder.Abs if node.op_type == "Neg" else builder.Neg
            context.replace(node.result, other(node.operands[0]), builder)

    _, report = run("(float[2] x) => (float[2] y) { y = Neg(x) }", pass_of("swing", swing))
    assert report.stopped_by == "sweep limit"
    assert not report.converged


def test_what_is_kept_survives() -> None:
    graph, _ = run(_CHAIN, pass_of("skip", skip_one), keep=frozenset({"b"}))
    assert "b" in {value.name for node in graph.nodes() for value in node.results}


def test_levels_leave_out_classes() -> None:
    _, report = run(_CHAIN, pass_of("skip", skip_one, numeric="D"))
    assert report.rewrites == ()


@pytest.mark.parametrize(
    "selection",
    [
        {"passes": ("skp",)},
        {"skip": ("skp",)},
        {"disable": ("skip/skip_on",)},
        {"disable": ("skip",)},
        {"aggressive": ("skp",)},
        {"stop_after": -1},
    ],
)
def test_unknown_names_are_errors(selection: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        run(_CHAIN, pass_of("skip", skip_one), **selection)


def test_an_unknown_name_to_keep_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing_here"):
        run(_CHAIN, pass_of("skip", skip_one), keep=frozenset({"nothing_here"}))


def test_disabled_rules_and_skipped_passes_do_not_run() -> None:
    for selection in ({"disable": ("skip/skip_one",)}, {"skip": ("skip",)}, {"passes": ()}):
        graph, _ = run(_CHAIN, pass_of("skip", skip_one), **selection)
        assert len(graph.nodes()) == 4


def test_passes_find_their_place() -> None:
    first, last, between = pass_of("a", skip_one), pass_of("z", skip_one), pass_of("plugin", skip_one, after="a")
    assert list(Registry([first, last, between]).passes) == ["a", "plugin", "z"]
    with pytest.raises(PluginError, match="two passes"):
        Registry([first, first])
    with pytest.raises(PluginError, match="does not exist"):
        Registry([pass_of("plugin", skip_one, after="nowhere")])
    with pytest.raises(PluginError, match="follow each other"):
        Registry([pass_of("p", skip_one, after="q"), pass_of("q", skip_one, after="p")])


def test_bodies_come_before_the_graph_around_them() -> None:
    seen: list[str] = []

    def look(graph: Graph, context: Context) -> None:
        """Note the graph."""
        seen.append(graph.name)

    text = """(bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = inner () => (float[2] u) { u = Neg(x) },
                   else_branch = other () => (float[2] v) { v = Abs(x) }>
    }"""
    run(text, pass_of("look", look))
    assert seen == ["inner", "other", "example"]
