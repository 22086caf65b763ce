from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator
from pass_runs import assert_equal, floats, nodes_of, operators, run

import passes.functions as functions
import passes.pruning as pruning
from graphopt import load
from graphopt.analysis.inference import Inference
from graphopt.pipeline import Context, MetaOptimizer, Registry
from graphopt.pipeline.passes import pass_of_module

X = {"x": floats(2, 3)}


def _function(
    name: str,
    inputs: list[str],
    outputs: list[str],
    nodes: list[NodeProto],
    *,
    opset: int = 18,
    attributes: list[str] | None = None,
    defaults: list[AttributeProto] | None = None,
    overload: str = "",
    imports: dict[str, int] | None = None,
) -> FunctionProto:
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(imports or {})}.items()]
    function = helper.make_function(
        "local", name, inputs, outputs, nodes, opsets, attributes=attributes, attribute_protos=defaults
    )
    function.overload = overload
    return function


def _model(
    nodes: list[NodeProto],
    functions: list[FunctionProto],
    *,
    outputs: list[str] | None = None,
    opset: int = 18,
    inputs: list[Any] | None = None,
    is_checked: bool = True,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs or ["y"]],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    if is_checked:
        checker.check_model(model)
    return model


def _call(name: str, inputs: list[str], outputs: list[str], node_name: str = "", **attributes: Any) -> NodeProto:
    return helper.make_node(name, inputs, outputs, domain="local", name=node_name, **attributes)


def _with_reference(node: NodeProto, name: str, of: str, kind: int) -> NodeProto:
    node.attribute.append(AttributeProto(name=name, ref_attr_name=of, type=kind))
    return node


def _concat_on(axis_of: str) -> NodeProto:
    return _with_reference(helper.make_node("Concat", ["a", "a"], ["b"]), "axis", axis_of, AttributeProto.INT)


@pytest.mark.parametrize("given", [{}, {"by": 0}])
def test_attributes_come_from_the_call_or_their_defaults(given: dict[str, int]) -> None:
    function = _function("Twice", ["a"], ["b"], [_concat_on("by")], defaults=[helper.make_attribute("by", 1)])
    model = _model([_call("Twice", ["x"], ["y"], **given)], [function])
    result = run(model, functions)
    assert operators(result) == {"Concat": 1}
    assert not result.functions
    assert_equal(model, result, [X])


def test_an_attribute_nobody_gives_has_the_operators_default() -> None:
    node = _with_reference(helper.make_node("Softmax", ["a"], ["b"]), "axis", "over", AttributeProto.INT)
    model = _model([_call("S", ["x"], ["y"])], [_function("S", ["a"], ["b"], [node], attributes=["over"])])
    result = run(model, functions)
    assert not result.graph.node[0].attribute
    assert_equal(model, result, [X])


def test_a_reference_reaches_through_nested_calls_and_bodies() -> None:
    inner = _function("Inner", ["a"], ["b"], [_concat_on("axis")], attributes=["axis"])
    call = _with_reference(_call("Inner", ["a"], ["t"]), "axis", "outer_axis", AttributeProto.INT)
    value = _with_reference(helper.make_node("Constant", [], ["k"]), "value_float", "scale", AttributeProto.FLOAT)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("t", "e")]
    then = helper.make_graph([call], "then", [], infos[:1])
    other = helper.make_graph([value, helper.make_node("Mul", ["a", "k"], ["e"])], "else", [], infos[1:])
    choice = helper.make_node("If", ["c"], ["b"], then_branch=then, else_branch=other)
    outer = _function("Outer", ["a", "c"], ["b"], [choice], attributes=["outer_axis", "scale"], imports={"local": 1})
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    model = _model([_call("Outer", ["x", "c"], ["y"], outer_axis=0, scale=0.5)], [inner, outer], inputs=inputs)
    result = run(model, functions)
    assert operators(result) == {"If": 1, "Concat": 1, "Mul": 1}
    assert_equal(model, result, [{**X, "c": np.array(flag)} for flag in (True, False)])


def test_omitted_operands_are_omitted_inside() -> None:
    function = _function("Limit", ["a", "low", "high"], ["b"], [helper.make_node("Clip", ["a", "low", "high"], ["b"])])
    zero = helper.make_node("Constant", [], ["zero"], value_float=0.0)
    for operands in (["x"], ["x", "zero"], ["x", "", "zero"]):
        model = _model([zero, _call("Limit", operands, ["y"])], [function])
        result = run(model, functions)
        assert operators(result) == {"Clip": 1}
        assert list(next(node for node in result.graph.node if node.op_type == "Clip").input) == operands
        assert_equal(model, result, [X])


def test_every_result_is_handed_over() -> None:
    nodes = [helper.make_node("Neg", ["a"], ["n"]), helper.make_node("Abs", ["n"], ["unread"])]
    nodes.append(helper.make_node("Identity", ["n"], ["b"]))
    function = _function("Many", ["a"], ["a", "n", "unread", "b"], nodes)
    model = _model([_call("Many", ["x"], ["p", "q", "unread", "r"])], [function], outputs=["p", "q", "r"])
    result = run(model, functions, pruning)
    assert [value.name for value in result.graph.output] == ["p", "q", "r"]
    assert operators(result) == {"Neg": 1, "Identity": 2}
    # ONNX Runtime refuses a function that returns its operand.
    pairs = zip(ReferenceEvaluator(model).run(None, X), ReferenceEvaluator(result).run(None, X), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_names_tell_the_call_and_stay_unique() -> None:
    function = _function(
        "Act", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["x"], name="n"), helper.make_node("Exp", ["x"], ["b"])]
    )
    calls = [_call("Act", ["x"], ["t"], "first"), _call("Act", ["t"], ["u"]), _call("Act", ["u"], ["y"], "Act")]
    model = _model(calls, [function])
    result = run(model, functions)
    assert [name for node in result.graph.node for name in node.output] == [
        *("first/x", "t", "Act/x", "u", "Act/x_1", "y")
    ]
    assert_equal(model, result, [X])


def test_the_overload_that_is_called_is_inlined() -> None:
    made = [
        _function("F", ["a"], ["b"], [helper.make_node(op_type, ["a"], ["b"])], overload=overload)
        for op_type, overload in (("Neg", ""), ("Abs", "plain"))
    ]
    call = _call("F", ["x"], ["y"])
    call.overload = "plain"
    result = run(_model([call], made), functions, pruning)
    assert operators(result) == {"Abs": 1}


@pytest.mark.parametrize(("opset", "is_inlined"), [(17, True), (14, True), (12, False)])
def test_operators_must_mean_the_same_in_both_opsets(opset: int, is_inlined: bool) -> None:
    function = _function("S", ["a"], ["b"], [helper.make_node("Softmax", ["a"], ["b"])], opset=opset)
    model = _model([_call("S", ["x"], ["y"])], [function], is_checked=is_inlined)
    result = run(model, functions, pruning)
    assert len(result.functions) == (not is_inlined)
    if is_inlined:
        assert_equal(model, result, [X])


def test_an_unknown_domain_comes_with_its_import_or_stays() -> None:
    node = helper.make_node("Special", ["a"], ["b"], domain="vendor")
    model = _model([_call("S", ["x"], ["y"])], [_function("S", ["a"], ["b"], [node], imports={"vendor": 3})])
    result = run(model, functions, pruning)
    assert {entry.domain: entry.version for entry in result.opset_import} == {"": 18, "vendor": 3}
    model.opset_import.append(helper.make_opsetid("vendor", 2))
    model.graph.node.append(helper.make_node("Special", ["x"], ["z"], domain="vendor"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, None]))
    assert len(run(model, functions, pruning).functions) == 1


def test_what_stays_is_named_and_optimized_in_place() -> None:
    nodes = [
        helper.make_node("Abs", ["a"], ["unread"]),
        _call("Inner", ["a"], ["t"]),
        helper.make_node("Softmax", ["t"], ["b"]),
    ]
    outer = _function("Outer", ["a"], ["b"], nodes, opset=11, imports={"local": 1})
    inner = _function("Inner", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], opset=11)
    model = _model([_call("Outer", ["x"], ["y"], "call")], [inner, outer], is_checked=False)
    graph = load(model)
    passes = [pass_of_module(module, module.__name__) for module in (functions, pruning)]
    report = MetaOptimizer(Registry(passes)).run(graph.model, Context(Inference(graph.model)))
    assert any("'call'" in note and "opset 11" in note for note in report.notes)
    assert [node.op_type for node in graph.model.functions["local", "Outer", ""].graph.order()] == ["Neg", "Softmax"]
    assert len(graph.model.functions) == 1


@pytest.mark.parametrize("keep", ["call", "inside", "y"])
def test_what_is_kept_by_name_stays(keep: str) -> None:
    function = _function("F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"], name="inside")])
    model = _model([_call("F", ["x"], ["y"], "call")], [function])
    assert operators(run(model, functions, keep=[keep])) == {"F": 1}


def test_calls_in_bodies_are_inlined_there() -> None:
    function = _function(
        "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Exp", ["t"], ["b"])]
    )
    info = helper.make_tensor_value_info("s_next", TensorProto.FLOAT, [2, 3])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), _call("F", ["s"], ["t"]), _call("F", ["t"], ["s_next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 3]),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []), info],
    )
    trips = helper.make_node("Constant", [], ["m"], value_int=3)
    model = _model([trips, helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)], [function])
    result = run(model, functions)
    assert sum(node.op_type in ("Neg", "Exp") for node in nodes_of(result.graph)) == 4
    assert_equal(model, result, [X])


def test_functions_that_call_themselves_stay() -> None:
    a = _function("A", ["a"], ["b"], [_call("B", ["a"], ["b"])], imports={"local": 1})
    b = _function("B", ["a"], ["b"], [_call("A", ["a"], ["b"])], imports={"local": 1})
    model = _model([_call("A", ["x"], ["y"])], [a, b], is_checked=False)
    graph = load(model)
    functions.inline_functions.function(graph, Context(Inference(graph.model)))
    assert [node.op_type for node in graph.nodes()] == ["A"]
    assert len(graph.model.functions) == 2


def test_functions_that_grow_without_end_stop_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_MOST_NODES", 100)
    made = [_function("F0", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])])]
    for level in range(1, 30):
        calls = [_call(f"F{level - 1}", ["a"], ["t"]), _call(f"F{level - 1}", ["t"], ["b"])]
        made.append(_function(f"F{level}", ["a"], ["b"], calls, imports={"local": 1}))
    model = _model([_call("F29", ["x"], ["y"])], made)
    graph = load(model)
    report = MetaOptimizer(Registry([pass_of_module(functions, "functions")])).run(
        graph.model, Context(Inference(graph.model))
    )
    assert report.nodes_after <= report.nodes_before + 100 * len(made)
    assert any("added already" in note for note in report.notes)


def test_a_default_that_depends_on_the_outer_call_is_not_lost() -> None:
    inner = _function("Inner", ["a"], ["b"], [_concat_on("axis")], defaults=[helper.make_attribute("axis", 1)])
    call = _with_reference(_call("Inner", ["a"], ["t"]), "axis", "given", AttributeProto.INT)
    special = helper.make_node("Special", ["t"], ["b"], domain="vendor")
    outer = _function("Outer", ["a"], ["b"], [call, special], attributes=["given"], imports={"local": 1, "vendor": 2})
    model = _model([_call("Outer", ["x"], ["y"], "call")], [inner, outer])
    assert [node.op_type for node in run(model, functions).graph.node] == ["Concat", "Special"]
    kept = run(model, functions, keep=["call"])
    assert {function.name for function in kept.functions} == {"Inner", "Outer"}
