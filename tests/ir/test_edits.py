from __future__ import annotations

import numpy as np
import pytest
from ir_graphs import FLOATS, add, constant, empty, find, floats, nested

from graphopt.errors import EditError
from graphopt.ir import (
    AttributeSet,
    DetailSet,
    Edit,
    Erased,
    Graph,
    Inserted,
    Kind,
    Narrowed,
    OpsetSet,
    Redeclared,
    Renamed,
    Retyped,
    Rewired,
    StorageSet,
    TensorType,
    check_graph,
    check_model,
)
from graphopt.schema import RefAttribute
from graphopt.tensors import DType, Tensor


class Heard:
    def __init__(self) -> None:
        self.edits: list[Edit] = []

    def on_edit(self, edit: Edit) -> None:
        self.edits.append(edit)


# --- uses


def test_two_operands_of_one_node_are_two_uses() -> None:
    graph = empty()
    x = floats(graph)
    y = add(graph, "Add", x, x)
    assert list(x.uses) == [(y.producer, 0), (y.producer, 1)]
    assert graph.nx.number_of_edges(x.producer, y.producer) == 2
    assert x.users == [y.producer]
    assert x.sole_use() is None
    graph.set_operand(y.producer, 0, constant(graph, 1, 2))
    assert x.sole_use() == (y.producer, 1)
    check_graph(graph)


def test_outputs_are_uses_by_the_return_node() -> None:
    graph = empty()
    x = floats(graph)
    y = add(graph, "Relu", x)
    graph.set_outputs([y, x, y])
    assert graph.outputs == (y, x, y)
    assert list(y.uses) == [(graph.return_node, 0), (graph.return_node, 2)]
    assert y.is_used
    assert y.producer.is_used
    assert graph.use_count == graph.nx.number_of_edges() == 4


def test_a_capture_is_an_edge_to_the_owner_with_the_reader_in_its_key() -> None:
    graph = nested()
    a, owner = find(graph, "a"), find(graph, "b").producer
    deep = find(graph, "deep_out").producer
    assert (deep, 1) in a.uses
    assert graph.nx.has_edge(a.producer, owner, key=(deep, 1))
    check_model(graph.model)


def test_an_operand_and_captures_of_the_same_value_are_different_edges() -> None:
    graph = empty()
    c = graph.add_input("c", TensorType(DType.BOOL, ()))
    owner = graph.make_node("If", [c])
    for name in ("then_branch", "else_branch"):
        body = graph.make_body(owner, name)
        body.set_outputs([add(body, "Not", c)])
    assert not c.uses
    graph.insert(owner)
    assert len(c.uses) == graph.nx.number_of_edges(c.producer, owner) == 3
    check_model(graph.model)
    graph.erase(owner)
    assert not c.uses
    assert graph.use_count == 0
    graph.insert(owner)
    assert len(c.uses) == 3
    check_model(graph.model)


def test_edits_inside_a_detached_body_are_seen_when_it_joins() -> None:
    graph = nested()
    owner, a, x = find(graph, "b").producer, find(graph, "a"), find(graph, "x")
    p = find(graph, "p").producer
    graph.replace_uses(owner.result, a)
    graph.erase(owner)
    assert p.graph is not None
    p.graph.set_operand(p, 0, x)
    assert (p, 0) not in x.uses
    graph.insert(owner)
    assert (p, 0) in x.uses
    assert (p, 0) not in a.uses
    check_model(graph.model)


def test_omitted_operands_have_no_use() -> None:
    graph = empty()
    x, high = floats(graph), constant(graph, 6)
    y = add(graph, "Clip", x, None, high)
    assert y.producer.operands == (x, None, high)
    assert y.producer.operand(1) is y.producer.operand(7) is None
    graph.set_operand(y.producer, 2, None)
    assert not high.uses
    assert graph.make_node("Clip", [x, None, None]).operands == (x,)
    graph.set_operands(y.producer, [x])
    check_graph(graph)


def test_a_node_with_many_results_is_not_quadratic() -> None:
    graph = empty()
    count = 2000
    split = graph.make_node("Split", [floats(graph)], results=count)
    graph.insert(split)
    total = add(graph, "Concat", *split.results, axis=0)
    steps = 0

    class Counted(tuple):  # how often somebody walks over all results
        __slots__ = ()

        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            return super().__iter__()

    split.results = Counted(split.results)
    for value in split.results:
        assert value.sole_use() == (total.producer, value.index)
        graph.set_operand(total.producer, value.index, None)
        assert not value.is_used
    assert steps <= 2


# --- what edits refuse


def test_a_node_joins_once() -> None:
    graph = empty()
    y = add(graph, "Relu", floats(graph))
    with pytest.raises(EditError, match="make a new node"):
        graph.insert(y.producer)


def test_an_operand_must_be_there_first() -> None:
    graph = empty()
    first = graph.make_node("Relu", [floats(graph)])
    second = graph.make_node("Neg", first.results)
    with pytest.raises(EditError, match="insert it first"):
        graph.insert(second)
    assert second.graph is None
    assert graph.nodes() == []
    graph.insert(first)
    graph.insert(second)
    check_graph(graph)


def test_inner_values_are_not_visible_outside() -> None:
    graph = nested()
    p, y = find(graph, "p"), find(graph, "y")
    with pytest.raises(EditError, match="not visible"):
        graph.set_operand(y.producer, 0, p)
    with pytest.raises(EditError, match="not visible"):
        graph.insert(graph.make_node("Relu", [p]))
    with pytest.raises(EditError, match="not visible"):
        graph.replace_uses(y, p)
    other = nested()
    with pytest.raises(EditError, match="not visible"):
        graph.set_outputs([find(other, "y"), y])
    check_model(graph.model)


def test_what_a_body_reads_must_be_visible_too() -> None:
    graph, other = nested(), nested()
    owner = graph.make_node("If", [find(graph, "c")])
    body = graph.make_body(owner, "then_branch")
    body.set_outputs([add(body, "Relu", find(other, "a"))])
    with pytest.raises(EditError, match="not visible"):
        graph.insert(owner)
    assert owner.graph is None
    check_model(graph.model)


def test_nothing_reads_itself() -> None:
    graph = nested()
    b = find(graph, "b")
    y = find(graph, "y")
    with pytest.raises(EditError, match="which it computes"):
        graph.set_operand(y.producer, 0, y)
    inner = find(graph, "p").producer
    assert inner.graph is not None
    with pytest.raises(EditError, match="which it computes"):
        inner.graph.set_operand(inner, 0, b)
    wrapped = add(graph, "Neg", b)
    with pytest.raises(EditError, match="which it computes"):
        graph.replace_uses(b, wrapped)
    assert wrapped.producer.operands == (b,)
    check_model(graph.model)


def test_what_is_read_is_not_erased() -> None:
    graph = nested()
    with pytest.raises(EditError, match=r"still read by .*Split.*replace its uses first"):
        graph.erase(find(graph, "a").producer)
    y = find(graph, "y")
    with pytest.raises(EditError, match="still read by return"):
        graph.erase(y.producer)
    graph.erase(find(graph, "dead").producer)
    check_model(graph.model)


def test_the_signature_is_not_erased_or_renamed() -> None:
    graph = nested()
    with pytest.raises(EditError, match="signature"):
        graph.erase(graph.return_node)
    extra = floats(graph, "extra")
    with pytest.raises(EditError, match="signature"):
        graph.erase(extra.producer)
    with pytest.raises(EditError, match="cannot be renamed"):
        graph.rename(extra, "other")
    function = next(iter(graph.model.functions.values()))
    with pytest.raises(EditError, match="signature"):
        function.graph.erase(function.graph.inputs[0].producer)


def test_an_input_of_a_body_may_go() -> None:
    graph = nested()
    body = find(graph, "i").producer.graph
    assert body is not None
    body.erase(body.inputs[0].producer)
    assert [value.name for value in body.inputs] == ["going", "state"]


def test_what_is_pinned_stays() -> None:
    graph = nested()
    spare = find(graph, "spare")
    spare.producer.is_pinned = True
    with pytest.raises(EditError, match="kept by name"):
        graph.erase(spare.producer)
    with pytest.raises(EditError, match="cannot be renamed"):
        graph.rename(spare, "other")
    spare.producer.is_pinned = False
    graph.erase(spare.producer)


def test_a_node_of_another_graph_is_not_ours_to_edit() -> None:
    graph = nested()
    p = find(graph, "p").producer
    for edit in (
        lambda: graph.erase(p),
        lambda: graph.set_operand(p, 0, find(graph, "x")),
        lambda: graph.set_attribute(p, "alpha", 1.0),
        lambda: graph.set_results(p, []),
    ):
        with pytest.raises(EditError, match="its own graph"):
            edit()


def test_positions_that_are_not_there() -> None:
    graph = empty()
    y = add(graph, "Relu", floats(graph))
    for index in (-1, 1):
        with pytest.raises(EditError, match="use set_operands"):
            graph.set_operand(y.producer, index, None)


# --- attributes


def test_attributes_are_checked_against_the_opset() -> None:
    graph = empty(12)
    y = add(graph, "ReduceSum", floats(graph), axes=[0])
    graph.set_attribute(y.producer, "keepdims", False)
    assert dict(y.producer.attributes) == {"axes": (0,), "keepdims": 0}
    with pytest.raises(EditError, match="no attribute 'noop_with_empty_axes' in opset 12"):
        graph.set_attribute(y.producer, "noop_with_empty_axes", 1)
    graph.set_attribute(y.producer, "axes", None)
    graph.set_attribute(y.producer, "never_there", None)
    assert dict(y.producer.attributes) == {"keepdims": 0}
    with pytest.raises(TypeError):
        y.producer.attributes["keepdims"] = 1  # type: ignore[index]


def test_attributes_are_plain_values() -> None:
    graph = empty()
    tensor = Tensor.of([1.0], DType.FLOAT)
    values = {
        "a": np.float32(0.5), "b": np.int64(3), "c": [np.int32(1), True], "d": np.array([1, 2]), "e": "text",
        "f": b"\xff", "g": tensor, "h": [tensor], "i": DType.FLOAT, "j": RefAttribute("alpha", 1), "k": (),
        "l": np.array(7),
    }  # fmt: skip
    node = graph.make_node("Custom", [], domain="mine", attributes=values)
    assert dict(node.attributes) == {
        "a": 0.5, "b": 3, "c": (1, 1), "d": (1, 2), "e": "text", "f": b"\xff", "g": tensor, "h": (tensor,), "i": 1,
        "j": RefAttribute("alpha", 1), "k": (), "l": 7,
    }  # fmt: skip
    for value in node.attributes.values():
        assert type(value) in (int, float, str, bytes, tuple, Tensor, RefAttribute)
    for wrong in (None, {}, object(), [None]):
        with pytest.raises(EditError, match="use numbers, strings or a Tensor"):
            graph.make_node("Custom", [], domain="mine", attributes={"a": wrong})


def test_a_body_is_no_attribute() -> None:
    graph = nested()
    owner = find(graph, "b").producer
    with pytest.raises(EditError, match="is a body"):
        graph.set_attribute(owner, "then_branch", None)


# --- the other edits


def test_replacing_hands_on_the_name_and_what_is_declared() -> None:
    graph = nested()
    a = find(graph, "a")
    a.declared = b"declared"
    new = add(graph, "Abs", find(graph, "x"))
    graph.replace_uses(a, new)
    assert (new.name, new.declared, a.name, a.declared, dict(a.uses)) == ("a", b"declared", None, None, {})
    check_model(graph.model)
    named = add(graph, "Neg", find(graph, "x"))
    graph.rename(named, "mine")
    graph.replace_uses(new, named)
    assert (named.name, new.name) == ("mine", "a")


def test_replacing_takes_no_name_from_an_input_or_what_is_kept() -> None:
    graph = nested()
    x, w = find(graph, "x"), find(graph, "w")
    c = constant(graph, 1, 2)
    graph.replace_uses(x, c)
    assert (x.name, c.name) == ("x", None)
    w.producer.is_pinned = True
    graph.replace_uses(w, c)
    assert (w.name, c.name) == ("w", None)
    graph.replace_uses(c, c)
    check_model(graph.model)


def test_fewer_results() -> None:
    graph = empty()
    x = floats(graph)
    drop = graph.make_node("Split", [x], results=3, attributes={"axis": 0})
    graph.insert(drop)
    first, _, third = drop.results
    add(graph, "Relu", third)
    with pytest.raises(EditError, match="still read"):
        graph.set_results(drop, [first])
    with pytest.raises(EditError, match="in their order"):
        graph.set_results(drop, [third, first])
    graph.set_results(drop, [third])
    assert drop.results == (third,)
    assert third.index == 0
    check_graph(graph)
    drop.is_pinned = True
    with pytest.raises(EditError, match="results stay"):
        graph.set_results(drop, [])


def test_opsets_belong_to_the_outermost_graph() -> None:
    graph = nested()
    body = find(graph, "p").producer.graph
    deep = find(graph, "deep_out").producer
    assert body is not None
    with pytest.raises(EditError, match="the graph around it"):
        body.set_opset("", 18)
    graph.set_opset("", 18)
    graph.set_opset("com.microsoft", 1)
    assert deep.opset == 18
    assert dict(body.opsets) == dict(graph.opsets) == {"": 18, "local": 1, "com.microsoft": 1}
    graph.set_opset("com.microsoft", None)
    assert "com.microsoft" not in body.opsets
    with pytest.raises(TypeError):
        graph.opsets[""] = 19  # type: ignore[index]


def test_every_edit_is_told_once_and_nothing_is_told_of_no_change() -> None:
    graph = empty()
    x = floats(graph)
    heard = Heard()
    with graph.model.listening(heard):
        y = add(graph, "LeakyRelu", x, alpha=0.5)
        z = add(graph, "Relu", x)
        graph.set_outputs([y])
        graph.set_attribute(y.producer, "alpha", 0.25)
        graph.retype(y, FLOATS)
        graph.rename(y, "y")
        y.declared = b""
        graph.replace_uses(y, z)
        c = graph.add_constant(Tensor.of(1.0, DType.FLOAT))
        graph.store_as_node(c.producer, True)
        graph.set_opset("", 18)
        graph.set_detail("note", 1)
        graph.erase(y.producer)
        told = [type(edit) for edit in heard.edits]
        version = graph.version
        graph.set_outputs([z])
        graph.set_attribute(z.producer, "alpha", None)
        graph.retype(z, None)
        graph.rename(z, "y")
        graph.replace_uses(z, z)
        graph.store_as_node(c.producer, True)
        graph.set_opset("", 18)
        graph.set_results(z.producer, z.producer.results)
        assert len(heard.edits) == len(told)
        assert graph.version == version
    assert told == [
        Inserted, Inserted, Rewired, AttributeSet, Retyped, Renamed, Rewired, Redeclared, Redeclared, Renamed, Renamed,
        Inserted, StorageSet, OpsetSet, DetailSet, Erased,
    ]  # fmt: skip
    graph.erase(c.producer)
    assert len(heard.edits) == len(told)


def test_attributes_that_only_look_alike_are_a_change() -> None:
    graph = empty()
    y = add(graph, "Custom", a=1, b=(1.0, 2), c=0.0, d=float("nan"))
    heard = Heard()
    with graph.model.listening(heard):
        for name, value in [("a", 1), ("b", [1.0, 2]), ("c", 0.0), ("d", float("nan"))]:
            graph.set_attribute(y.producer, name, value)
        assert not heard.edits
        for name, value in [("a", 1.0), ("b", (1, 2)), ("c", -0.0)]:
            graph.set_attribute(y.producer, name, value)
    assert len(heard.edits) == 3


def test_narrowing_is_told() -> None:
    graph = empty()
    node = graph.make_node("Dropout", [floats(graph)], results=2)
    graph.insert(node)
    heard = Heard()
    with graph.model.listening(heard):
        graph.set_results(node, node.results[:1])
    assert [type(edit) for edit in heard.edits] == [Narrowed]


def test_versions_grow_outwards_and_changes_skip_what_became_known() -> None:
    graph = nested()
    r = find(graph, "r")
    inner, function = r.producer.graph, next(iter(graph.model.functions.values()))
    assert inner is not None
    assert inner.parent is not None
    before = (inner.version, inner.parent.version, graph.version, function.graph.version)
    assert inner.changes == graph.changes == function.graph.changes == 0
    inner.retype(r, TensorType(DType.FLOAT, (2,)))
    inner.rename(r, "renamed")
    after = (inner.version, inner.parent.version, graph.version, function.graph.version)
    assert [new - old for old, new in zip(before, after, strict=True)] == [2, 2, 2, 0]
    assert inner.changes == inner.parent.changes == graph.changes == 1


# --- reading


def test_what_a_graph_tells_of_itself() -> None:
    graph = nested()
    assert [value.name for value in graph.inputs] == ["x", "c", "n"]
    assert [value.name for value in graph.outputs] == ["y", "z"]
    assert [node.op_type for node in graph.nodes()] == [
        "Relu", "Split", "If", "Concat", "F", "Add", "Sub", "Exp",
    ]  # fmt: skip
    assert [value.name for node in graph.constants() for value in node.results] == ["w", "spare", "k"]
    assert [node.result.name for node in graph.of_kind("Add")] == ["y"]
    assert graph.of_kind("F") == []
    assert len(graph.of_kind("F", "local")) == 1
    assert ("local", "F") in graph.kinds
    assert graph.operator_count == 8
    assert len(list(graph.bodies_inside())) == 5
    assert repr(graph) == "<Graph 'main': 8 operators>"
    owner = find(graph, "b").producer
    assert [body.name for body in owner.bodies.values()] == ["then_graph", "else_graph"]
    assert [value.name for value in owner.bodies["else_branch"].captures()] == ["a", "n", "c", "w", "k"]
    assert len(list(owner.nested())) == len([n for body in graph.bodies_inside() for n in body.all_nodes()])
    deep = find(graph, "deep_out").producer.graph
    assert deep is not None
    assert graph.encloses(deep)
    assert not deep.encloses(graph)
    assert [kind for kind in (node.kind for node in graph.all_nodes()) if kind is Kind.RETURN] == [Kind.RETURN]


def test_graphs_come_innermost_first() -> None:
    graph = nested()
    names = [item.name for item in graph.model.graphs()]
    assert names == ["F", "then_graph", "deep_then", "deep_else", "loop_body", "else_graph", "main"]


def test_rewrites_are_numbered_and_limited() -> None:
    from graphopt.ir import RewriteLimitReached

    model = empty().model
    with model.rewrite("a") as first, model.rewrite("inner") as inside:
        assert first == inside == 1
        assert model.current_rewrite == "a"
    model.rewrite_limit = 2
    with model.rewrite("b") as second:
        assert second == 2
    with pytest.raises(RewriteLimitReached), model.rewrite("c"):
        raise AssertionError("the block runs all the same")
    assert model.current_rewrite is None


def test_a_graph_from_nothing_saves() -> None:
    from graphopt.onnxio import to_proto

    graph = empty()
    graph.name = "made"
    x = floats(graph)
    y = add(graph, "Relu", x)
    graph.rename(y, "y")
    graph.retype(y, FLOATS)
    graph.set_outputs([y])
    import onnx

    proto = to_proto(graph)
    onnx.checker.check_model(proto, full_check=True)
    assert [value.name for value in proto.graph.output] == ["y"]
    assert Graph is type(graph)
